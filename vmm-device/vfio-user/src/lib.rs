//! Serves a node's device, of Tofu or of TNW, to another VMM by the vfio-user protocol: QEMU
//! (`vfio-user-pci`, 10.1 or later) or Cloud Hypervisor (`--user-device`), over a UNIX socket for
//! each node.
//!
//! The client maps its guest's memory into this process ([`ClientMemory`]), forwards accesses to
//! configuration space and BARs, and gives an eventfd for each MSI-X vector. [`Server`] serves one
//! client after the other; when one disconnects, the device is reset and the memory released.
//! Doorbells arrive as messages, as events that the client has asked for, or, with [`ClientPages`],
//! through pages that the client has mapped.
//!
//! Several clients can share a node's device ([`Server::joint`]), each at a socket and with its own
//! addresses. When one disconnects, only the queues and gates that it has used are reset. The
//! clients agree among themselves which of them uses which, so they must trust each other. They
//! have no interrupts.
//!
//! The device cannot access memory that a client maps without a descriptor. It ends commands to
//! such memory as for any other address that cannot be translated. Forwarding each access to the
//! client would let a slow client stall the engine, which serves other nodes too. A range around 1
//! MiB, where a PC has ordinary memory, is refused without a descriptor.
//!
//! # Trust
//!
//! The client is trusted no more than the guest behind it. Messages are bounded, as are the mapped
//! ranges, files and bytes ([`Limits`]). Memory must be a memfd that cannot shrink
//! ([`Backing::Sealed`]). Any other file could be truncated by the client while the device accesses
//! it, which would end this process by SIGBUS. A client that stops sending, or does not read its
//! answers, blocks only the thread that serves it.
//!
//! One risk is left. The device's own threads write interrupts, and the client shares the flag that
//! decides whether a write to an eventfd blocks. The server sets the flag and checks it first. To
//! stall an engine, a client must clear the flag and fill the counter within the same microsecond.
#![deny(unsafe_code)]

mod channel;
mod client;
mod client_device;
mod device;
mod error;
mod irq;
mod memory;
mod pages;
mod process;
mod requests;
mod sent;
mod server;
mod session;
mod socket;
mod wire;

pub use crate::channel::ChannelError;
pub use crate::client::{Client, ClientError, Doorbell, MappedPages};
pub use crate::error::Error;
pub use crate::memory::{Backing, ClientMemory, Limits, client_window};
pub use crate::pages::{ClientPages, ClientWindows};
pub use crate::server::Server;
pub use crate::socket::{BoundSocket, SocketError, bind_socket};
