//! The Tofu network in modelled time: frames, virtual channels, credits and crossbars.
//!
//! A [`Network`] moves [`Message`]s from TNI to TNI by discrete events. Each frame of a message
//! crosses its links by virtual cut-through: once its header has arrived at a node, it requests its
//! output. It leaves when the output is free, the crossbar takes nothing else from its input, and
//! the queue at the other end of the link and the replay buffer have room for the whole frame.
//! Outputs serve requests round robin.
//!
//! The model is deterministic: it depends on no clock, thread or address. The same messages,
//! injected in the same order at the same times, have the same fate to the picosecond.
//!
//! Simulations drive a [`Network`] themselves. In live machines it is behind the [`wires`] of their
//! nodes, and other threads may inspect it.
#![forbid(unsafe_code)]

mod bus;
mod carrier;
mod network;
mod shared;

pub use bus::{BusLine, HostBus};
pub use carrier::wires;
pub use network::{
    Arbiter, BadOption, LONGEST_TLP, MOST_THREADS, Message, Network, Options, Refused, Sink, Totals,
};
