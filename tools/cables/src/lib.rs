//! Cables between the parts of a machine in different processes, on one host or several.
//!
//! Each part listens at an address of its own and has one TLS connection with each other part. Both
//! ends have a certificate that says which part they are, signed by an authority that was created
//! for the machine ([`hosts::init`]). [`Joining`] waits for all parts, before the process drops the
//! right to open connections. Then a [`Mesh`] is the transport of its machine.
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
pub use crate::hello::{Hello, PartStatus};
pub use crate::mesh::{Mesh, PartEvent, PeerInfo, Receive};
pub use crate::streams::Visit;
