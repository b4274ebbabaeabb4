//! See `tofu_fuzz::tnw`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::tnw::registers(data));
