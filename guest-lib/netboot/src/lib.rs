//! Network boot: how a node without a disk gets what it is to run from a boot server, over the
//! link of [IP over Tofu](https://docs.rs/tofu-ipotofu).
//!
//! The manual describes the protocol and its reasons (docs/src/reference/netboot.md).
//!
//! [`wire`] has the messages. [`Ask`] and [`Fetch`] are the node's end, [`Server`] is the other
//! one. [`image`] computes where a program or kernel goes in memory and which parameters it gets.
//! None of them has a device or a clock: the caller passes messages in both directions, and the
//! time.
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
pub use crate::server::{Boot, BootEvent, Content, Counters, Fault, Server};
