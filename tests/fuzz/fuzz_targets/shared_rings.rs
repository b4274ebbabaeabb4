//! See `tofu_fuzz::shared_rings`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::shared_rings::run(data));
