//! Packets.

use tofu_abi::frame::{FRAME_MIN, ROUTING_HEADER_SIZE};
use tofu_abi::{Coords, Path, TniId};

use crate::{NodeId, Port};

/// The kind of a packet: a request or a response. The two have separate virtual channels, so that
/// waiting requests never hold up the responses they wait for (IEEE Micro 2012).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A request, which may cause a response.
    Request,
    /// A response, which its receiver always accepts.
    Response,
    /// A raw or system packet, which its receiver accepts or discards. That these share the
    /// requests' channels is ours: a link has four in all (IEEE Micro 2012).
    System,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 3] = [Self::Request, Self::Response, Self::System];

    /// The first of the class's two virtual channels (numbers are ours).
    #[inline]
    pub const fn first_vc(self) -> u8 {
        match self {
            Self::Request | Self::System => 0,
            Self::Response => 2,
        }
    }
}

/// Which way a packet takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Way {
    /// The shortest one to the target.
    #[default]
    Shortest,
    /// That many hops on X, Y and Z, towards higher coordinates if positive. The target's X, Y and
    /// Z follow from that: the carrier works them out.
    Distances([i8; 3]),
    /// One hop, to the neighbour at a port: the carrier works out the target.
    Hop {
        /// The port.
        port: Port,
        /// The virtual channel.
        vc: u8,
        /// The frame is marked as bad on the way out.
        nullified: bool,
    },
}

/// Bytes of the unit in which a command gives the gap between its TLPs (*ours*: that of TLPs). A
/// gap lasts as long as its bytes take on a link.
pub const GAP_BYTES: u64 = 32;

/// Senders of a TNI: control queues, and its barrier gates as one.
pub const SENDERS: usize = 16;

/// A burst: one or more consecutive transport-layer packets (TLPs) of one command
/// that share a route.
///
/// A burst is routed and counted once; a carrier that needs single TLPs may split it. All fields
/// except the body are plain data without references, so that a carrier can send them to another
/// process. The choice of `B` decides whether the body can be sent too: if all nodes are in one
/// process, it may refer to the sender's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<B> {
    /// The node that sends.
    pub src: Coords,
    /// Its TNI.
    pub src_tni: TniId,
    /// The destination node.
    pub dst: Coords,
    /// Its TNI. The network does not interpret it, so it may be any number.
    pub dst_tni: u8,
    /// The node of the unit at which the packet enters X, Y, Z routing.
    pub path: Path,
    /// The way it takes. Unless that is the shortest one, the carrier works out part of `dst`.
    pub way: Way,
    /// Request, response or neither.
    pub class: Class,
    /// True if these are system TLPs, which are counted separately.
    pub system: bool,
    /// Number of TLPs.
    pub tlps: u32,
    /// Bytes on the wire: routing headers and TLPs, all of the burst.
    pub bytes: u64,
    /// Bytes of each TLP but the last, with its routing header.
    pub tlp_bytes: u32,
    /// The time for which the TNI pauses after each of the TLPs, in [`GAP_BYTES`]. This has no
    /// effect over direct links.
    pub gap: u8,
    /// Which of the TNI's senders this is from, 0 to [`SENDERS`] - 1. Each sends one command after
    /// another.
    pub sender: u8,
    /// Bytes on the wire of earlier packets of the same command, which cross the links before this
    /// one.
    pub before: u32,
    /// The node whose router has marked it as bad, because it found more wrong bits than its codes
    /// can correct.
    pub bad: Option<NodeId>,
    /// Modelled time since the command began, in picoseconds, without the time of earlier packets.
    /// The carrier adds that and the time in transit.
    pub model_ps: u64,
    /// The payload. The network does not interpret it.
    pub body: B,
}

impl<B> Packet<B> {
    /// The shortest packet: one TLP, from TNI 0 to TNI 0 by the default path.
    pub fn shortest(class: Class, src: Coords, dst: Coords, body: B) -> Self {
        Self {
            src,
            src_tni: TniId::ALL[0],
            dst,
            dst_tni: 0,
            path: dst.default_path(),
            way: Way::Shortest,
            class,
            system: class == Class::System,
            tlps: 1,
            bytes: FRAME_MIN as u64,
            tlp_bytes: FRAME_MIN as u32,
            gap: 0,
            sender: 0,
            before: 0,
            bad: None,
            model_ps: 0,
            body,
        }
    }

    /// The TNI by which the packet enters its target. A raw packet may name one that no node has:
    /// that matters only to the target, and the packet takes the last one.
    pub fn entry(&self) -> TniId {
        TniId::new(self.dst_tni).unwrap_or(TniId::ALL[TniId::ALL.len() - 1])
    }

    /// Bytes of each TLP but the last, and of the last one, without routing headers.
    pub fn tlp_sizes(&self) -> (u16, u16) {
        let before = u64::from(self.tlps.saturating_sub(1)) * u64::from(self.tlp_bytes);
        let tlp = |bytes: u64| {
            let bytes = bytes.saturating_sub(ROUTING_HEADER_SIZE as u64).max(1);
            u16::try_from(bytes).unwrap_or(u16::MAX)
        };
        (tlp(self.tlp_bytes.into()), tlp(self.bytes.saturating_sub(before)))
    }
}

/// The reason why a packet was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DiscardReason {
    /// A link on its route is down.
    LinkDown,
    /// The machine does not have the target node (or the source).
    NoSuchNode,
    /// The machine does not have the path's A, B, C coordinates.
    NoSuchPath,
}
