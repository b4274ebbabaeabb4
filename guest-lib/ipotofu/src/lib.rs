//! IP over Tofu: a link of Ethernet frames between the nodes of a machine, by system packets.
//!
//! The manual describes the format and its reasons (docs/src/reference/ip-over-tofu.md).
//!
//! The engine has no device and no allocator. Its owner gives it memory ([`Storage`]), a queue to
//! send packets by ([`PacketQueue`], [`rendezvous::Rendezvous`]) and frames to receive to
//! ([`FrameBuffer`]). The kernel driver compiles this much of the crate. [`Inbound`] handles
//! arriving packets, [`Outbound`] departing ones, and [`rendezvous`] long frames, which are
//! fetched. They are based on [`addr`], which derives addresses from coordinates, [`hosts`] with
//! names, [`wire`], the header of each packet, [`offload`], frames that others complete,
//! [`neighbor`], address queries, [`tree`], the relaying of broadcasts, and [`routes`], the routes
//! to a node. [`Health`] knows which links are dead, from [`Ports`] and from reports of other
//! nodes.
//!
//! The feature `link` adds [`Link`], which runs all of it over the driver's packet interface:
//! frames in, frames out. [`Core`] is the same without a device.
//!
//! No arriving packet makes this crate panic, hang or allocate beyond [`Config`]'s limits.
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
