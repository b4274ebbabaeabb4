//! Observing packets as they pass.

use crate::{DiscardReason, NodeId, Packet, Port};

/// Where at a node a packet is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TapPoint {
    /// Between a network interface and the crossbar.
    Tni(u8),
    /// At the node's end of a link.
    Port(Port),
}

/// Which way a packet goes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Out of the TNI or the port.
    Out,
    /// Into it.
    In,
    /// It should have gone out, but was lost.
    Lost(DiscardReason),
}

/// A packet at one point of its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Observation {
    /// The node.
    pub node: NodeId,
    /// Where at the node.
    pub point: TapPoint,
    /// Which way it goes.
    pub direction: Direction,
    /// Virtual channel of the link; none at a TNI.
    pub vc: Option<u8>,
}

/// Observes packets.
pub trait Tap<B>: Send + Sync {
    /// A packet passes a point. Called in the sender's thread, so it should be quick.
    ///
    /// At its source a packet whose route leads it may not have its whole target yet.
    fn observe(&self, observation: Observation, packet: &Packet<B>);
}
