//! See `tofu_fuzz::registers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::registers::run(data));
