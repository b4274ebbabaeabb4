//! See `tofu_fuzz::netboot`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::netboot::run(data));
