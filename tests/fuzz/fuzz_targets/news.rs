//! See `tofu_fuzz::news`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::news::run(data));
