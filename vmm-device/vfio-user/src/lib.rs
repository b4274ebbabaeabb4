//! Serves a node's device, of Tofu or of TNW, to another VMM by the vfio-user protocol: QEMU
//! (`vfio-user-pci`, 10.1 or later) or Cloud Hypervisor (`--user-device`), over a UNIX socket for
//! each node.
//!
//! The client maps its guest's memory into this process ([`ClientMemory`]), forwards accesses to
//! configuration space and BARs, and gives an eventfd for each MSI-X vector. [`Server`] answers
//! one client after the other; when one leaves, the device is reset and the memory given back.
//! Doorbells come as messages, as events that the client has asked for, or, with
//! [`ClientPages`], by pages that the client has mapped.
//!
//! Several clients can share a node's device ([`Server::joint`]), each at a socket and with
//! addresses of its own. When one leaves, the queues and gates that it has used are reset, and the
//! others' are not. Who uses which they agree upon among themselves, so they must be friends. They
//! have no interrupts.
//!
//! Memory that a client maps without a descriptor is none for the device, which then ends its
//! commands as for any other address that cannot be translated: to ask the client for each access
//! would let a slow client hold up the engine that serves other nodes too. A range around 1 MiB,
//! where a PC has ordinary memory, is refused without one.
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
#![deny(unsafe_code)]

mod channel;
mod client;
mod device;
mod irq;
mod memory;
mod pages;
mod process;
mod sent;
mod server;
mod socket;
mod wire;

pub use crate::channel::ChannelError;
pub use crate::client::{Client, ClientError, Doorbell, MappedPages};
pub use crate::memory::{Backing, ClientMemory, Limits, client_window};
pub use crate::pages::{ClientPages, ClientWindows};
pub use crate::server::{Error, Server};
pub use crate::socket::{BoundSocket, SocketError, bind_socket};
