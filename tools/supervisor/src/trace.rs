//! Traces: commands put together from the steps that a machine tells, and which a user wants.

mod assemble;
mod select;

pub use assemble::{Assembler, Ended};
pub(crate) use select::Selection;
