//! IP over Tofu: a link of Ethernet frames between the nodes of a machine, by system packets.
//!
//! What goes over the wire, and why, is in the manual (docs/src/reference/ip-over-tofu.md).
//!
//! The engine has no device and no allocator: its owner gives it memory ([`Storage`]), a queue to
//! send packets by ([`PacketQueue`], [`rendezvous::Rendezvous`]) and frames to receive to
//! ([`FrameBuffer`]). The kernel driver compiles this much of the crate. [`Inbound`] is packets
//! that arrive, [`Outbound`] those that leave, [`rendezvous`] long frames, which are fetched. Below
//! them are [`addr`], which derives addresses from coordinates, [`hosts`] with names, [`wire`], the
//! header of each packet, [`offload`], frames that others complete, [`neighbor`], questions for
//! addresses, [`tree`], how broadcasts are relayed, and [`routes`], which ways lead to a node.
//! [`Health`] is which links are dead, as far as [`Ports`] and reports of other nodes tell.
//!
//! With the feature `link` there is [`Link`], all of it over the driver's packet interface: frames
//! in, frames out. [`Core`] is the same without a device.
//!
//! Nothing that arrives makes this panic, hang or allocate beyond [`Config`]'s bounds.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(feature = "link", test))]
extern crate alloc;

pub mod addr;
#[cfg(feature = "link")]
mod complete;
mod counters;
#[cfg(feature = "link")]
mod frames;
mod health;
pub mod hosts;
mod inbound;
#[cfg(feature = "link")]
mod link;
pub mod neighbor;
mod nodes;
pub mod offload;
mod outbound;
mod ports;
mod reassembly;
pub mod rendezvous;
pub mod routes;
#[cfg(feature = "smoltcp")]
mod stack;
mod storage;
pub mod tree;
pub mod wire;

pub use counters::Counters;
#[cfg(feature = "link")]
pub use frames::{Config, Core, SendError};
pub use health::{Health, Known, REPORT_NS, Report, Reporter};
pub use inbound::{Event, Inbound, Incoming, Limits};
#[cfg(feature = "link")]
pub use link::{Frame, FrameSlot, Link, LinkError};
pub use nodes::{CAPABILITIES_NS, Peers};
pub use outbound::{Outbound, PacketQueue, Tag};
pub use ports::{Ports, dead_links_met};
pub use reassembly::FrameBuffer;
#[cfg(feature = "smoltcp")]
pub use stack::{RxToken, StackDevice, TxToken};
#[cfg(any(feature = "link", test))]
pub use storage::Heap;
pub use storage::Storage;
