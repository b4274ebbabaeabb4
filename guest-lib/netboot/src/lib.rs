//! Network boot: how a node without a disk gets what it is to run from a boot server, over the
//! link of [IP over Tofu](https://docs.rs/tofu-ipotofu).
//!
//! What goes over the wire, and why, is in the manual (docs/src/reference/netboot.md).
//!
//! [`wire`] has the messages, [`Ask`] and [`Fetch`] are the node's end, [`Server`] is the other
//! one, and [`image`] computes where a program or kernel goes in memory and what it is handed. None
//! of them has a device or a clock: the caller passes messages in both directions, and the time.
//!
//! Nothing that arrives makes any of this panic, hang or allocate beyond its bounds.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod client;
pub mod image;
mod server;
pub mod wire;

pub use crate::client::{Ask, Failure, Fetch, Poll, Settings, Task};
pub use crate::server::{Boot, Content, Counters, Fault, News, Server};
