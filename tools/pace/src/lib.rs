//! The pace of guests in modelled time: what a machine and the plugin of a guest's QEMU tell each
//! other.
//!
//! A [message] takes the guest to the machine, which is needed where something happens at
//! its node, or where it accesses its device. In between, guests keep each other's pace by
//! [pages] that they share.
#![forbid(unsafe_code)]

pub mod message;
pub mod pages;
mod words;

/// Version of the protocol.
pub const VERSION: u32 = 5;
/// The longest step of a guest, in nanoseconds of its clock.
pub const LONGEST_STEP: u64 = 100_000;
/// The streams by which a guest has input from outside: its console, and the port of its agent.
pub const PORTS: usize = 2;
/// The most bytes of input of a port that a guest has not taken.
pub const INPUT: usize = 64 << 10;
