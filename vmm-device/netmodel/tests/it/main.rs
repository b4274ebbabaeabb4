//! Tests of the network in modelled time through its public interface.

mod network;
#[path = "../../../fabric/tests/it/shapes.rs"]
mod shapes;
