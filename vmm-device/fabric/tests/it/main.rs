//! Tests of the network through its public interface.

mod carrier;
mod common;
mod deadlock;
mod routing;
mod topology;
mod wires;
