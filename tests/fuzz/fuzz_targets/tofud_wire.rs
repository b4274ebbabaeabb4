//! See `tofu_fuzz::tofud_wire`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::tofud_wire::run(data));
