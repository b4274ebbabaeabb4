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
//! clients agree among themselves which of them uses which, so they must trust each other.
//!
//! # Commands
//!
//! This is version 0.1 of the [protocol](https://www.qemu.org/docs/master/interop/vfio-user.html).
//! Tests run QEMU; of Cloud Hypervisor only the sources were read.
//!
//! - VERSION: major 0; `max_msg_fds` 16, `max_data_xfer_size` 1 MiB, `write_multiple` true.
//!   `max_dma_maps` is announced as 65535 at most, because QEMU refuses more; the server's own
//!   limit is the one that counts.
//! - DEVICE_GET_INFO: 9 regions, 5 interrupt indices.
//! - DEVICE_GET_REGION_INFO: BAR0 (256 MiB), BAR2 (MSI-X), configuration space; if doorbells are
//!   polled, with areas that can be mapped.
//! - DEVICE_GET_REGION_IO_FDS: eventfds of the doorbells, if doorbells are trapped.
//! - DEVICE_GET_IRQ_INFO, DEVICE_SET_IRQS: 97 MSI-X vectors by eventfds, which may be bound one by
//!   one.
//! - REGION_READ, REGION_WRITE: up to 1 MiB, split into naturally aligned accesses of 1 to 8 bytes.
//! - REGION_WRITE_MULTI: each write is handled as if it had come alone; the answer has the number
//!   of those that were possible.
//! - DMA_MAP, DMA_UNMAP: see below. DMA_READ and DMA_WRITE are never sent.
//! - DEVICE_RESET resets the device. Anything else is EOPNOTSUPP.
//!
//! A message that is too short for its command, or asks for something that does not exist, is
//! answered by EINVAL. A size that no message has, a message that breaks off, or one that is no
//! command ends the connection.
//!
//! # Memory
//!
//! A range that comes with a descriptor is memory for the device, for reading, writing or both, as
//! the client says; atomic commands need both. A write to a range that is mapped for reading only
//! ends with PAYLOAD_ACCESS and the payload exception, as if it was not mapped.
//!
//! A vIOMMU maps page by page. Ranges that are contiguous both in addresses and in the file are
//! merged. DMA_UNMAP may remove a part of a range, because the client cannot know which ranges were
//! merged. Up to 2^20 ranges that are not contiguous are kept, of about 60 bytes each ([`Limits`]).
//! DMA_UNMAP is answered when no transfer touches the range any more.
//!
//! Ranges without a descriptor (QEMU sends some for ROMs and for BARs of other devices) are
//! accepted, but the device finds no memory there: forwarding each access to the client would let a
//! slow client stall the engine, which serves other nodes too. Such a range is refused (EINVAL) if
//! it contains the address 1 MiB, where a PC has ordinary memory.
//!
//! Memory of the client's process ([`Backing::Process`]) is for programs of the user's own, never
//! for guests. A range without a descriptor is then memory of the process that connected to the
//! socket, and the `offset` of DMA_MAP is its address there, to the byte; this is *ours*. The
//! server reaches it by process_vm_readv and process_vm_writev. It accepts only clients that run as
//! the same user. A connection ends with the process that made it, even if a child still holds the
//! socket. A client can make an engine wait while the kernel brings in pages.
//!
//! # Connecting and disconnecting
//!
//! A node has one socket and one client at a time. When another has waited for two seconds, `tofu
//! serve` answers its first message with EBUSY and closes its connection. When a client leaves, in
//! any way, its node is reset and its memory and descriptors are released. The next client finds
//! the device as after power on. Other nodes' commands to it that are in flight end with an error.
//! `bind_socket` replaces a stale socket file, refuses one that is in use, and removes its own at
//! the end.
//!
//! Of several clients of a node, each has an equal part of the device's addresses and maps nothing
//! outside of it. A vector belongs to the client that has bound an eventfd to it; another one gets
//! EBUSY.
//!
//! QEMU 11.1 aborts when a vfio-user device with MSI-X is unplugged (`device_del`):
//! `memory_region_del_subregion: Assertion 'subregion->container == mr' failed`. Its
//! `vfio_user_instance_finalize` removes the region of the pending bits after both were unparented.
//! Plugging in at run time works.
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
