//! Code that all device models share: access to guest memory by DMA, and accesses to registers of
//! 64 bits.
#![forbid(unsafe_code)]

mod memory;
mod register;

pub use crate::memory::{Access, DmaError, DmaMemory, DmaResult, Visit};
pub use crate::register::{Plain, RegisterWrite, aligned};
