//! See `tofu_fuzz::archives`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::archives::run(data));
