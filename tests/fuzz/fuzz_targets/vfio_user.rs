//! See `tofu_fuzz::vfio_user`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::vfio_user::run(data));
