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
//!
//! # Why not the crate of rust-vmm
//!
//! The server of `vfio_user` 0.1 of the rust-vmm project is not fit for untrusted clients. It
//! allocates as much as a message says, up to 4 GiB, panics at a `VERSION` text without its final
//! zero, and has no limits on descriptors, transfers or mapped ranges. It has neither
//! `DEVICE_GET_REGION_IO_FDS` nor `REGION_WRITE_MULTI`, writes an answer in two pieces (some
//! versions of QEMU take that as an error), answers an error of the device with the error number 0,
//! and serves one client, once. Our tests use its client as the other end.
//!
//! # Doorbells
//!
//! - **A message.** By default a doorbell is a REGION_WRITE, and the thread that serves the client
//!   runs the queue. QEMU does not wait for the answer to a write. An engine that already runs the
//!   queue finds further descriptors in memory, and may overtake earlier messages of the guest. So
//!   a full MRQ waits up to 100 ms for MRQ_FULL_POINTER before notices are lost (ours).
//! - **An eventfd** (trapped doorbells). A client that asks by DEVICE_GET_REGION_IO_FDS gets one
//!   for FETCH_START of each queue, or of as many queues as its `max_msg_fds` allows: queue 0 of
//!   each TNI first, then queue 1, and so on. Given to KVM as an ioeventfd it needs no exit to the
//!   client. It rings only while the queue is enabled. Neither QEMU 11.1 nor Cloud Hypervisor asks
//!   for them.
//! - **A mapped page** (polled doorbells). The pages of the 72 control queues and 96 barrier
//!   channels are areas that the client maps, and engines poll those in use. QEMU and Cloud
//!   Hypervisor both map them, all at once when they attach.
//!
//! The page of a queue that is not enabled is memory without consequences, and enabling the queue
//! clears the page first. Unlike in a trapped page, FETCH_START and the direct descriptor can be
//! read back. Each client gets its own memory for the pages, so a client that has left reaches
//! nothing of the next one's.
//!
//! A page cannot be write-protected here, as the mapping belongs to another process. So engines
//! keep polling: all the time for the first 50 us of silence, then after a quarter of its length,
//! every 20 us to 1 ms, and from a second on every 10 ms. That takes each engine 2 to 3 % of a
//! processor in the first second of silence, 0.1 to 0.3 % after that. Trapped doorbells are better
//! for guests that are quiet most of the time, or a host with few processors.
//!
//! # The other side
//!
//! `tofu_vfio_user::Client` speaks the protocol from the client's side, and the crate
//! `tofu-vfio-user-client` is a platform of the driver on it, without any virtual machine. It maps
//! pages if the server offers them. Otherwise it asks for the events of two queues of each
//! interface; other doorbells are messages without an answer.
#![deny(unsafe_code)]

mod access;
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

pub use crate::access::accessed_node;
pub use crate::channel::ChannelError;
pub use crate::client::{Client, ClientError, Doorbell, MappedPages};
pub use crate::error::Error;
pub use crate::memory::{Backing, ClientMemory, Limits, client_window};
pub use crate::pages::{ClientPages, ClientWindows};
pub use crate::server::Server;
pub use crate::socket::{BoundSocket, SocketError, bind_socket};
