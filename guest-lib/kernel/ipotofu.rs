// SPDX-License-Identifier: GPL-2.0

//! What does not need an allocator of `tofu-driver` and `tofu-ipotofu`, as a crate of its own:
//! addresses, the packets of IP over Tofu and how broadcasts spread are defined once, for the
//! kernel, too.
#![no_std]
#![forbid(unsafe_code)]

// The files below name the crate that they come from.
extern crate self as tofu_driver;
#[macro_use]
extern crate zerocopy_derive;

#[path = "../ipotofu/src/addr.rs"]
pub mod addr;
#[path = "../ipotofu/src/neighbor.rs"]
pub mod neighbor;
#[path = "../ipotofu/src/offer.rs"]
pub mod offer;
#[path = "../ipotofu/src/offload.rs"]
pub mod offload;
#[path = "../ipotofu/src/routes.rs"]
pub mod routes;
#[path = "../driver/src/target.rs"]
mod target;
#[path = "../ipotofu/src/tree.rs"]
pub mod tree;
#[path = "../ipotofu/src/wire.rs"]
pub mod wire;

pub use target::PacketTarget;
