//! The control protocol of a machine: requests that commands send to a running machine over the
//! socket in its run directory, and the client side.
//!
//! The server side is in `tofu-supervisor`.

#![forbid(unsafe_code)]

mod connection;
mod counters;
pub mod lines;
mod name;
mod program;
pub mod protocol;
pub mod rates;
pub mod rundir;

pub use connection::{
    Connection, Found, PING, Present, SILENCE, ask, find_machine, find_node, find_present, info,
    locate, node_number, parse_node, ping, place, present, shape,
};
pub use counters::{
    COMMANDS_LOST, COMMANDS_REFUSED, Counters, LinkCounters, NodeCounters, QueueCounters,
};
pub use name::{MachineName, NodeAt, NodeName, node_name};
pub use program::RemoteProgram;
