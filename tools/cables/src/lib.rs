//! Cables between the shards of a machine in different processes, on one host or several.
//!
//! Each shard listens at its address and has one TLS connection with each other shard.
//! Both ends have a certificate that says which shard they are, signed by an authority that was
//! created for the machine ([`hosts::init`]). [`Joining`] waits for all shards, before the process
//! drops the right to open connections. Then a [`Mesh`] is the transport of its machine.
//!
//! The manual explains the choice of TLS over TCP, and why there is no larger library:
//! docs/src/dev/cables.md.

#![deny(unsafe_code)]

mod handshake;
mod hello;
pub mod hosts;
mod keepalive;
mod link;
mod mesh;
mod peer;
mod streams;

pub use crate::handshake::Joining;
pub use crate::hello::{Hello, ShardStatus};
pub use crate::mesh::{Mesh, PeerInfo, Receive, ShardEvent};
pub use crate::streams::Visit;
