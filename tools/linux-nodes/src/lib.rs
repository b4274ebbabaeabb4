//! Nodes with Linux guests, under QEMU, or under our own monitor where that can run them.
//!
//! The supervisor uses this crate through [`host::LinuxHost`].

#![forbid(unsafe_code)]

mod arm64;
pub mod host;
pub mod kit;
pub mod lan;
mod monitor;
mod node;
pub mod outfits;
mod own;
pub mod progress;
pub mod qemu;
mod setup;
