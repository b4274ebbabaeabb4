//! Code shared by all device models: DMA to guest memory, and accesses to 64-bit registers.
#![forbid(unsafe_code)]

mod memory;
mod register;

pub use crate::memory::{Access, DmaError, DmaMemory, DmaResult, Mapped, Visit};
pub use crate::register::{Plain, RegisterWrite, aligned};
