//! See `tofu_fuzz::links`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::links::run(data));
