//! See `tofu_fuzz::pci_config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tofu_fuzz::pci_config::run(data));
