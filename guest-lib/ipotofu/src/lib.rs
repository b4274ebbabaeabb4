//! IP over Tofu: an Ethernet link between the nodes of a machine, over system packets.
//!
//! The manual describes the format and its reasons (docs/src/reference/ip-over-tofu.md).
//!
//! The engine has no device and no allocator. Its owner provides memory ([`Storage`]), a queue that
//! sends packets ([`PacketQueue`], [`rendezvous::Rendezvous`]), frames to send ([`Outgoing`]) and
//! buffers for received frames ([`FrameBuffer`]). The kernel driver compiles only this part of the
//! crate.
//!
//! [`Inbound`] sorts and handles arriving packets. [`Outbound`] fragments frames into packets and
//! handles transmit completions; it also tests the node's [`Ports`] and reports dead ones.
//! [`rendezvous`] handles long frames, which the receiver fetches. [`Health`] tracks dead links,
//! from the node's own tests and from reports of other nodes.
//!
//! They are based on these modules: [`addr`] derives addresses from coordinates, [`hosts`] has
//! names, [`wire`] the header of each packet, [`offload`] frames that other nodes complete,
//! [`neighbor`] address queries, [`tree`] the relaying of broadcasts, and [`routes`] the routes to
//! a node.
//!
//! The feature `link` adds [`Link`], which runs all of it over the driver's packet interface:
//! frames in, frames out. [`Core`] is the same without a device.
//!
//! ```ignore
//! let device = Device::probe(platform)?;
//! let config = Config { mtu: 9000, ..Config::new(shape) };
//! let mut link = Link::open(&device, config, &PacketConfig::new(0))?;
//! link.send(&frame)?;
//! link.flush();
//! if link.wait(1_000_000_000)
//!     && let Some(len) = link.recv(&mut buf)
//! {
//!     // buf[..len] is a frame.
//! }
//! ```
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
#[cfg(any(feature = "link", test))]
pub mod testing;
pub mod tree;
pub mod wire;

pub use counters::Counters;
#[cfg(feature = "link")]
pub use frames::{Config, Core, SendError};
pub use health::{Health, Known, REPORT_NS, Report, Reporter};
pub use inbound::{Arrival, Event, Inbound, Incoming, Limits};
#[cfg(feature = "link")]
pub use link::{Frame, FrameSlot, Link, LinkError};
pub use nodes::{CAPABILITIES_NS, Peers};
pub use outbound::{Ended, Offer, Outbound, Outgoing, PacketQueue, Purpose, Sending, Tag, Unsent};
pub use ports::{Ports, dead_links_met};
pub use reassembly::FrameBuffer;
#[cfg(feature = "smoltcp")]
pub use stack::{RxToken, StackDevice, TxToken};
#[cfg(any(feature = "link", test))]
pub use storage::Heap;
pub use storage::Storage;
