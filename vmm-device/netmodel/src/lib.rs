//! The Tofu network in modelled time: frames, virtual channels, credits and crossbars.
//!
//! A [`Network`] moves [`Message`]s from TNI to TNI by discrete events. Each frame of a message
//! crosses its links by virtual cut-through: once its header has arrived at a node, it requests its
//! output. It leaves when the output is free, the crossbar takes nothing else from its input, and
//! the queue at the other end of the link and the replay buffer have room for the whole frame.
//! Outputs serve requests in turn.
//!
//! Nothing in it depends on a clock, on threads or on addresses: the same messages, injected in
//! the same order at the same times, have the same fate to the picosecond.
//!
//! Simulations drive a [`Network`] themselves. Live machines have it behind the [`wires`] of their
//! nodes, where others look into it, too.
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
