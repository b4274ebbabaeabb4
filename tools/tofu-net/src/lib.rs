//! IP over Tofu on Linux: `tofu0`, an Ethernet interface of the kernel's whose frames go over the
//! torus.
//!
//! [`Tap`] is the kernel's side of it, [`tofu_ipotofu::Link`] the torus's, [`Pump`] moves frames
//! between the two, and [`Daemon`] runs all of that in a Linux node: it shares the device with
//! other programs through `tofud`, gives way to one that needs it alone, and comes back.
//! [`AddressPlan`] has the addresses of a node, [`names`] gives names to those of all nodes.
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
