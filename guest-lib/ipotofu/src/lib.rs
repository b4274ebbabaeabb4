//! IP over Tofu: a link of Ethernet frames between the nodes of a machine, by system packets.
//!
//! What goes over the wire, and why, is in the manual (docs/src/reference/ip-over-tofu.md).
//!
//! [`Link`] is the whole of it over the driver's packet interface: frames in, frames out. Its
//! parts need no device: [`addr`] derives addresses from coordinates, [`hosts`] names, [`wire`] is
//! the header of each packet, [`Core`] takes frames apart and puts them together and answers
//! questions for addresses, [`offload`] is frames that others finish, [`tree`] is how broadcasts
//! spread, [`routes`] which ways lead to a node.
//!
//! Nothing that arrives makes this panic, hang or allocate beyond [`Config`]'s bounds.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod addr;
mod finish;
mod frames;
pub mod hosts;
mod link;
pub mod neighbor;
pub mod offer;
mod offers;
pub mod offload;
mod reassembly;
pub mod routes;
#[cfg(feature = "smoltcp")]
mod stack;
pub mod tree;
pub mod wire;

pub use crate::frames::{Config, Core, Counters, Event, Piece, SendError};
pub use crate::link::{Link, LinkError};
#[cfg(feature = "smoltcp")]
pub use crate::stack::{RxToken, StackDevice, TxToken};
