//! See `tofu_fuzz::tof`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::tof::run(data));
