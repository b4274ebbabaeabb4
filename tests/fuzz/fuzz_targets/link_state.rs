//! See `tofu_fuzz::link_state`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::link_state::run(data));
