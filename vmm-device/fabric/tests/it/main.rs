//! Tests of the network through its public interface.

mod carrier;
mod common;
mod deadlock;
mod links;
mod network;
mod parts;
mod routing;
mod wires;
