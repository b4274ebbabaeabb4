//! `tofu run`: a program as a job of ranks, on Linux nodes of a machine or as processes here.
//!
//! What both have in common is in `job`: ranks' output, input and ends. A rank is whatever can
//! be told and listened to as `job::Rank` says.

#![forbid(unsafe_code)]

mod args;
mod bundle;
mod job;
pub mod libraries;
mod local;
mod machine;
mod nodes;
mod place;

pub use args::{Libs, RunArgs, Variable};

/// Runs `tofu run` and returns the exit code.
///
/// # Errors
///
/// One line for the user.
pub fn run(args: &RunArgs) -> anyhow::Result<u8> {
    if args.local {
        return local::run(args);
    }
    nodes::run(args)
}
