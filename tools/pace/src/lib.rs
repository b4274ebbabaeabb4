//! The pace of guests in modelled time: the protocol between a machine and the plugin in a guest's
//! QEMU.
//!
//! A guest sends a [message] to the machine when something happens at its node, or when it accesses
//! its device. In between, guests keep each other's pace through shared [pages]. For guests on the
//! host's clock, [breaks] has what a plugin knows of broken rules.
//!
//! A stream leads from each plugin to the machine: with `tofu serve` by the socket
//! `node-X-Y-Z-A-B-C.pace` beside that of the device, with `tofu up` by a descriptor that QEMU
//! inherits. The pages say how far each guest has got; a plugin can write its guest's only. So a
//! QEMU that its guest has taken over can hold up the time of the machine, or make deliveries late,
//! and nothing else. Steps, waits and orders depend on the host; what a guest sees does not.
#![forbid(unsafe_code)]

pub mod breaks;
pub mod message;
pub mod pages;
mod words;

/// Version of the protocol.
pub const VERSION: u32 = 5;
/// The longest step of a guest, in nanoseconds of its clock.
pub const LONGEST_STEP: u64 = 100_000;
/// The streams of a guest's input from outside: its console, and the port of its agent.
pub const PORTS: usize = 2;
/// The most bytes of input of a port that a guest has not taken.
pub const INPUT: usize = 64 << 10;
