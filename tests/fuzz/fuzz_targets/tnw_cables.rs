//! See `tofu_fuzz::cables`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::cables::tnw(data));
