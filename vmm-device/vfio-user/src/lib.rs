//! Serves a node's device to another VMM by the vfio-user protocol: QEMU (`vfio-user-pci`, 10.1
//! or later) or Cloud Hypervisor (`--user-device`), over a UNIX socket for each node.
//!
//! The client maps its guest's memory into this process ([`ClientMemory`]), forwards accesses to
//! configuration space and BARs, and gives an eventfd for each MSI-X vector. [`Server`] answers
//! one client after the other; when one leaves, the device is reset and the memory given back.
//!
//! # Trust
//!
//! The client is as little trusted as the guest behind it. Messages are bounded, as are the
//! mapped ranges, files and bytes ([`Limits`]). Memory must be a memfd that cannot shrink
//! ([`Backing::Sealed`]): of any other file the client could cut off a part while the device
//! accesses it, which would end this process by SIGBUS. A client that sends nothing more, or does
//! not read its answers, stops only the thread that serves it.
//!
//! One thing is left: interrupts are written by the device's own threads, and whether a write to
//! an eventfd blocks is a flag that the client shares. The server sets it and looks first, so
//! that a client has to clear the flag and fill the counter within the same microsecond to hold
//! up an engine.
#![forbid(unsafe_code)]

mod channel;
mod irq;
mod memory;
mod server;
mod wire;

pub use crate::channel::ChannelError;
pub use crate::memory::{Backing, ClientMemory, Limits};
pub use crate::server::{Error, Server};
