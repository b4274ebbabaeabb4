//! Runs a machine in a process: starts and stops its nodes, and serves requests of other processes
//! while it runs.
//!
//! A command makes a [`Plan`](tofu_spec::plan::Plan) and starts it in a [`session::Session`] with a
//! [`runner::Backend`]. Everything else is reported to it as [`event::Event`]s.

#![forbid(unsafe_code)]

pub mod agent;
pub mod backtrace;
pub mod capture;
mod changes;
pub mod command_line;
pub mod confine;
pub mod console;
pub mod duplex;
pub mod event;
pub mod gateway;
mod guests;
pub mod janitor;
mod jobs;
pub mod limits;
pub mod link_errors;
pub mod machine;
pub mod memory;
pub mod namespaces;
pub mod netboot;
pub mod node;
mod outlet;
pub mod programs;
pub mod registry;
pub mod runner;
pub mod served;
pub mod server;
pub mod session;
mod settings;
pub mod shards;
mod shortage;
pub mod timed;
pub mod timed_nodes;
pub mod trace;
