//! Network boot: a node without a disk loads its program or kernel from a boot server, over [IP
//! over Tofu](https://docs.rs/tofu-ipotofu).
//!
//! The manual describes the protocol and its reasons (docs/src/reference/netboot.md).
//!
//! [`wire`] has the messages. [`Ask`] and [`Fetch`] are the node's end, and [`Server`] is the other
//! one. [`image`] computes the place of a program or kernel in memory, and its parameters. None of
//! them has a device or a clock: the caller passes messages in both directions, and the time.
//!
//! No arriving message makes this crate panic, hang or allocate beyond its bounds.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod client;
pub mod image;
mod server;
pub mod wire;

pub use crate::client::{Ask, Failure, Fetch, Poll, Settings, Task};
pub use crate::server::{Boot, BootEvent, Content, Counters, Fault, Server};
