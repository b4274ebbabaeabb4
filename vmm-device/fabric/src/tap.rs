//! Observing packets as they pass.

use std::collections::BTreeSet;
use std::sync::Arc;

use tofu_links::{Check, Dllp, Seq};

use crate::{DiscardReason, NodeId, Packet, Port, Shape};

/// The place at a node at which a packet is observed.
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

/// A frame on a modelled link, as its data link layer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OnLink {
    /// Its sequence number; 0 for a frame without a TLP.
    pub seq: Seq,
    /// Which of the packet's TLPs it carries, from 0.
    pub tlp: u32,
    /// Number of lanes it is spread over; with TofuD, 1 means that it is sent whole on each.
    pub lanes: u8,
    /// Lanes of the other direction that are received badly, as bits (STAT).
    pub stat: u8,
    /// Lanes on which it is corrupted, as bits.
    pub spoilt: u8,
    /// The receiver's verdict.
    pub check: Check,
    /// True if it is a retransmission.
    pub again: bool,
}

/// A packet at one point of its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Observation {
    /// The node.
    pub node: NodeId,
    /// The place at the node.
    pub point: TapPoint,
    /// Which way it goes.
    pub direction: Direction,
    /// Virtual channel of the link; none at a TNI.
    pub vc: Option<u8>,
    /// The one frame that passes, at a port whose link is modelled in full.
    pub link: Option<OnLink>,
}

/// Observes packets.
pub trait Tap<B>: Send + Sync {
    /// A packet passes a point. Called in the sender's thread, so it should be quick.
    ///
    /// If a packet's target follows from its route, the target may still be incomplete at the
    /// source.
    fn observe(&self, observation: Observation, packet: &Packet<B>);

    /// A frame without a TLP passes a port whose link is modelled in full. It carries a
    /// data-link-layer packet from or to the node `peer`.
    fn observe_dllp(&self, observation: Observation, peer: NodeId, dllp: Dllp) {
        let _ = (observation, peer, dllp);
    }
}

/// A carrier whose packets a tap can observe.
pub trait Tapped<B>: Send + Sync {
    /// The shape of its machine.
    fn shape(&self) -> &Shape;

    /// Makes the tap, if any, observe the ports of these nodes in full. These nodes replace those
    /// of earlier calls.
    fn look_at(&self, nodes: &BTreeSet<NodeId>);

    /// Makes this tap, or none, observe all packets from now on. The previous one may still observe
    /// packets that are in flight.
    fn set_tap(&self, tap: Option<Arc<dyn Tap<B>>>);
}
