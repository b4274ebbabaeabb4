//! IP over Tofu on Linux: `tofu0`, an Ethernet interface of the kernel whose frames travel over the
//! torus.
//!
//! [`Tap`] is the interface to the kernel, [`tofu_ipotofu::Link`] the one to the torus, and
//! [`Pump`] moves frames between the two. [`Daemon`] runs all of this in a Linux node. It shares
//! the device with other programs through `tofud`, releases it to a program that needs exclusive
//! use, and takes it back afterwards. [`AddressPlan`] has the addresses of a node, and [`names`]
//! the names for those of all nodes.
#![deny(unsafe_code)]

mod daemon;
pub mod names;
mod plan;
mod pump;
mod tap;

pub use daemon::{Daemon, Settings, ask};
pub use plan::AddressPlan;
pub use pump::{Counters, End, Pump};
pub use tap::{Tap, TapError};
