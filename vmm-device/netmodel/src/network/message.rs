//! Messages into the modelled network, and its reports.

use tofu_abi::frame::TLP_MAX;
use tofu_abi::topology::{NodeId, Port};
use tofu_abi::{Coords, Path, TniId};
use tofu_fabric::{Class, DiscardReason, Hop, OnLink, Packet, Ps, RouteError, Way};
use tofu_links::Dllp;

/// The longest TLP: 1920 bytes of payload behind 64 bytes of header.
pub const LONGEST_TLP: u16 = TLP_MAX as u16;

/// Consecutive TLPs of one command that share a route. Each is a frame on the links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The node that sends.
    pub src: Coords,
    /// Its TNI.
    pub src_tni: TniId,
    /// The destination node. Unless the way is the shortest, part of it follows from the way.
    pub dst: Coords,
    /// Its TNI.
    pub dst_tni: TniId,
    /// The node of the unit at which the message enters X, Y, Z routing.
    pub path: Path,
    /// The way it takes.
    pub way: Way,
    /// Request, response or neither.
    pub class: Class,
    /// Number of TLPs, at least 1.
    pub tlps: u32,
    /// Bytes of each TLP but the last, without the routing header.
    pub full: u16,
    /// Bytes of the last TLP, without the routing header.
    pub last: u16,
    /// The time for which the TNI sends nothing of this class after each TLP.
    pub gap: Ps,
    /// The time for which the bus to the sending node's memory is busy with the data of each TLP.
    /// All TNIs of a node share it, and none sends its next TLP before the data has been read.
    pub bus: Ps,
    /// The earliest time at which the TNI begins to send.
    pub ready_at: Ps,
    /// The caller's name for the message. Messages in flight should have different ones, and frames
    /// of a lost message may be in flight for some time after the loss is reported.
    pub token: u64,
}

impl Message {
    /// A request of one TLP, the longest that there is, from TNI 0 to TNI 0 by the default path.
    pub const fn longest(src: Coords, dst: Coords) -> Self {
        Self {
            src,
            src_tni: TniId::ALL[0],
            dst,
            dst_tni: TniId::ALL[0],
            path: dst.default_path(),
            way: Way::Shortest,
            class: Class::Request,
            tlps: 1,
            full: LONGEST_TLP,
            last: LONGEST_TLP,
            gap: 0,
            bus: 0,
            ready_at: 0,
            token: 0,
        }
    }

    /// The burst of a packet, with neither gap nor bus.
    pub fn of<B>(packet: &Packet<B>, ready_at: Ps, token: u64) -> Self {
        let (full, last) = packet.tlp_sizes();
        Self {
            src: packet.src,
            src_tni: packet.src_tni,
            dst: packet.dst,
            dst_tni: packet.entry(),
            path: packet.path,
            way: packet.way,
            class: packet.class,
            tlps: packet.tlps.max(1),
            full,
            last,
            gap: 0,
            bus: 0,
            ready_at,
            token,
        }
    }
}

/// Learns the fate of messages. Times never go back from one call to the next.
pub trait Sink {
    /// The last byte of a message has arrived at its target.
    fn delivered(&mut self, at: Ps, node: NodeId, tni: TniId, token: u64);

    /// The last byte of a message has left its TNI, which has room for another.
    fn left(&mut self, at: Ps, node: NodeId, tni: TniId, token: u64);

    /// A message, or a part of it, was lost at a node, at the port through which it should have
    /// left. The only later report of it is that the rest has left its TNI.
    fn lost(&mut self, at: Ps, node: NodeId, port: Option<Port>, reason: DiscardReason, token: u64);

    /// A link has failed at the port of a node, because its frames did not get through. It is now
    /// down.
    fn failed(&mut self, at: Ps, node: NodeId, port: Port) {
        let _ = (at, node, port);
    }

    /// Returns true if [`Self::hop`] and the following methods are to be called. The network is
    /// faster without these calls.
    fn wants_hops(&self) -> bool {
        true
    }

    /// A frame starts to cross a link, whose data link layer may be modelled in full. Frames that
    /// are resent there, or that were found bad before, are not reported.
    #[inline]
    fn hop(
        &mut self,
        at: Ps,
        hop: &Hop,
        class: Class,
        bytes: u32,
        token: u64,
        link: Option<OnLink>,
    ) {
        let _ = (at, hop, class, bytes, token, link);
    }

    /// The same for a frame that is resent, or that was found bad before.
    fn again(&mut self, at: Ps, hop: &Hop, bytes: u32, token: u64, link: OnLink) {
        let _ = (at, hop, bytes, token, link);
    }

    /// A data-link-layer packet starts to cross a link that is modelled in full.
    fn said(&mut self, at: Ps, hop: &Hop, dllp: Dllp, link: OnLink) {
        let _ = (at, hop, dllp, link);
    }
}

/// The reason why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The TNI has as many messages to send as it can hold.
    #[error("the TNI has no room for another message")]
    NoRoom,
    /// There is no way to the target.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// There is no link at the port, or no such virtual channel.
    #[error("node {node} has no link at port {port} with virtual channel {vc}")]
    Port {
        /// The node.
        node: Coords,
        /// The port.
        port: Port,
        /// The virtual channel.
        vc: u8,
    },
    /// A TLP has no bytes or too many, or there is none.
    #[error("a message has TLPs of 1 to {most} bytes each, at least one of them")]
    Size {
        /// The size of the longest TLP.
        most: u32,
    },
}

impl Refused {
    /// Returns the loss of a packet for a lost message: the port through which it should have left,
    /// if the source has that port, and the reason.
    pub const fn fate(&self) -> (Option<Port>, DiscardReason) {
        match self {
            Self::Route(RouteError::Path(_)) => (None, DiscardReason::NoSuchPath),
            Self::Port { port, .. } => (Some(*port), DiscardReason::NoSuchNode),
            _ => (None, DiscardReason::NoSuchNode),
        }
    }
}
