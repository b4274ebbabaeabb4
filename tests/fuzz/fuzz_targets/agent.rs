//! See `tofu_fuzz::agent`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::agent::run(data));
