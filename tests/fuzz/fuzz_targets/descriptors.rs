//! See `tofu_fuzz::descriptors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::descriptors::run(data));
