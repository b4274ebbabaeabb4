//! What device models share, whatever they are models of: memory of a guest as they reach it by
//! DMA, and accesses to registers of 64 bits.
#![forbid(unsafe_code)]

mod memory;
mod register;

pub use crate::memory::{Access, DmaError, DmaMemory, DmaResult, Visit};
pub use crate::register::{Plain, RegisterWrite, aligned};
