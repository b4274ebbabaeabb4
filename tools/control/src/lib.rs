//! The control protocol of a machine: what commands ask a machine that runs, by the socket in its
//! run directory, and the client side of it.
//!
//! The server side is in `tofu-supervisor`.

#![forbid(unsafe_code)]

mod connection;
mod counters;
mod name;
mod program;
pub mod protocol;
pub mod rundir;

pub use connection::{
    Connection, Found, ask, find_machine, find_node, info, locate, parse_node, place, shape,
};
pub use counters::{Counters, NodeCounters};
pub use name::{MachineName, NodeName, node_name};
pub use program::RemoteProgram;
