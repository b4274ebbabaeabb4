//! See `tofu_fuzz::ipotofu`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::ipotofu::run(data));
