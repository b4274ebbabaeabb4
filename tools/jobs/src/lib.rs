//! `tofu run`: runs a program as a job of ranks, on Linux nodes of a machine or as local processes.
//!
//! `job` has what both have in common: the output, input and end of ranks. A rank is anything that
//! implements `job::Rank`.

#![forbid(unsafe_code)]

mod bundle;
mod closure;
mod cross_arch;
mod elf;
mod exec_all;
mod fetch_outputs;
mod folder;
mod job;
mod lease;
pub mod libraries;
mod local;
mod machine;
mod mpi;
mod node_command;
mod node_mpi;
mod nodes;
mod place;
mod process_manager;
mod queue_owner;
mod spec;
mod user;

pub use bundle::preload;
pub use exec_all::{Silence, run_on_all};
pub use fetch_outputs::complain;
pub use job::write;
pub use local::{MOST_RANKS, descendants, find_program, is_program};
pub use spec::{JobShape, JobSpec, Libs, RankFile, RankOrder, Variable};

/// Runs `tofu run` and returns the exit code.
///
/// # Errors
///
/// One line for the user.
pub fn run(spec: &JobSpec) -> anyhow::Result<u8> {
    if spec.local {
        return local::run(spec);
    }
    nodes::run(spec)
}
