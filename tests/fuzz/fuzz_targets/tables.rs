//! See `tofu_fuzz::tables`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::tables::run(data));
