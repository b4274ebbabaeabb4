//! Nodes with Linux guests, under QEMU, or under our own monitor where that can run them.
//!
//! The supervisor uses this crate through [`host::LinuxHost`].

#![forbid(unsafe_code)]

mod arm64;
pub mod boot_files;
pub mod host;
pub mod lab;
pub mod lan;
mod monitor;
mod node;
mod own;
pub mod progress;
pub mod qemu;
pub mod runtimes;
mod setup;
mod template;
pub mod timekeeper;
mod watch;

pub use template::Preload;
