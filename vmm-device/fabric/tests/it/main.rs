//! Tests of the network through its public interface.

mod carrier;
mod common;
mod deadlock;
mod links;
mod routing;
mod shapes;
mod shards;
mod wires;
