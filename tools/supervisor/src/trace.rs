//! Traces: assembles commands from the steps that a machine reports, and selects those that a user
//! wants.

mod assemble;
mod select;

pub use assemble::{Assembler, Ended};
pub(crate) use select::Selection;
