//! See `tofu_fuzz::barrier`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::barrier::run(data));
