//! The data link layer of the three generations of Tofu, as pure state machines.
//!
//! A link has two directions, each with a [`Sender`] at one end and a [`Receiver`] at the other.
//! The receiver replies in the opposite direction, by [`Dllp`]s. The caller passes each event with
//! its time, and gets back what to do: there is no clock, no thread and no shared memory. Time is
//! in picoseconds ([`Ps`]) from any origin.
//!
//! [`Parameters`] describe the links of a generation.
//!
//! A link without errors needs no events for acknowledgements and credit: see [`Sender`].
//!
//! Each item names the source of its facts: *IEEE Micro 2012* is Ajima et al., "The Tofu
//! Interconnect", IEEE Micro 32(1), 2012; *TofuD paper* is Ajima et al., "The Tofu Interconnect D",
//! IEEE CLUSTER 2018; *ours* marks what neither settles.
#![no_std]
#![forbid(unsafe_code)]

mod counters;
mod dllp;
mod lanes;
mod parameters;
mod receiver;
mod sender;
mod slice;

pub use counters::Counters;
pub use dllp::{Dllp, Seq};
pub use lanes::{ErrorRate, Lanes, MAX_LANES};
pub use parameters::{Parameters, Ps, Rows, Slicing};
pub use receiver::{Check, Receiver, Verdict};
pub use sender::{Effect, MOST_ATTEMPTS, Reason, Sender, Timeout, WINDOW};
pub use slice::{Assembled, Fault, LinkFrame, MAX_SLICE, Slice, assemble};

/// Virtual channels of a link (IEEE Micro 2012).
pub const VCS: usize = 4;

/// A time that never comes.
pub const NEVER: Ps = Ps::MAX;
