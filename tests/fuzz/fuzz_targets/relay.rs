//! See `tofu_fuzz::relay`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::relay::run(data));
