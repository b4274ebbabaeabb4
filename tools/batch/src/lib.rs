//! Job scripts as on Fugaku: `pjsub`, `pjstat`, `pjdel`, `pjwait`, and the `mpiexec` that scripts
//! call.
//!
//! Jobs wait in a spool, a folder of the user. There is no daemon: `pjsub` starts a process that
//! runs one job after another and ends with the last one. The behaviour of the real commands comes
//! from public guides and scripts; the manual says what is ours.

#![forbid(unsafe_code)]

mod alter;
mod commands;
mod directives;
mod environment;
mod interactive;
mod key;
mod mpiexec;
mod options;
mod processes;
mod record;
mod request;
mod resources;
mod runner;
mod site;
mod spool;
mod stat;
mod statistics;
mod steps;

pub use alter::{pjacl, pjalter, pjhold, pjrls, pjshowrsc};
pub use commands::{pjdel, pjsub, pjwait};
pub use mpiexec::mpiexec;
pub use runner::run as run_queue;
pub use stat::pjstat;

/// The names of the commands of this crate in scripts. They are links to the `tofu` command.
pub const NAMES: [&str; 12] = [
    "pjsub",
    "pjstat",
    "pjdel",
    "pjwait",
    "pjhold",
    "pjrls",
    "pjalter",
    "pjshowrsc",
    "pjacl",
    "mpiexec",
    "mpirun",
    "mpiexec.hydra",
];

/// The command that runs the jobs of a spool, behind `tofu`.
pub const QUEUE: &str = "pjqueue";
