//! Nodes whose guest is Linux: under QEMU, or our own monitor where that can run them.
//!
//! [`host::LinuxHost`] is the supervisor's way here.

#![forbid(unsafe_code)]

mod arm64;
pub mod host;
pub mod kit;
pub mod lan;
mod monitor;
mod node;
mod own;
pub mod qemu;
mod setup;
