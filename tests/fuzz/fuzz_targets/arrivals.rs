//! See `tofu_fuzz::arrivals`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::arrivals::run(data));
