//! Seeing packets go by.

use crate::{DiscardReason, NodeId, Packet, Port};

/// Where at a node a packet is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
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

/// A packet at one place of its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sight {
    /// The node.
    pub node: NodeId,
    /// Where at the node.
    pub place: Place,
    /// Which way it goes.
    pub direction: Direction,
    /// Virtual channel of the link; none at a TNI.
    pub vc: Option<u8>,
}

/// Is shown packets.
pub trait Tap<B>: Send + Sync {
    /// A packet passes a place. Called in the sender's thread, so it should be quick.
    ///
    /// At its source a packet whose route leads it may not have its whole target yet.
    fn seen(&self, sight: Sight, packet: &Packet<B>);
}
