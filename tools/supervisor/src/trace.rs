//! Traces: commands assembled from the steps that a machine reports, and the selection that a user
//! wants.

mod assemble;
mod select;

pub use assemble::{Assembler, Ended};
pub(crate) use select::Selection;
