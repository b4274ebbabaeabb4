//! Drives an emulated device in the same process: no VM, no KVM, no rights needed.
#![forbid(unsafe_code)]

mod interrupts;
mod memory;

pub use interrupts::Interrupts;
pub use memory::{Arena, Buffer};
