//! Packets.

use tofu_abi::{Coords, Path};

use crate::Port;

/// Whether a packet asks or answers. The two have virtual channels of their own, so
/// that waiting requests never hold up the responses they wait for (IEEE Micro 2012).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A request, which may bring about a response.
    Request,
    /// A response, which its receiver always takes in.
    Response,
    /// A raw or system packet, which its receiver takes in or throws away. That these have
    /// channels of their own, so that neither requests nor responses hold them up, is ours.
    System,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 3] = [Self::Request, Self::Response, Self::System];

    /// The first of the class's two virtual channels (numbers are ours).
    #[inline]
    pub const fn first_vc(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Response => 2,
            Self::System => 4,
        }
    }
}

/// Which way a packet takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Way {
    /// The shortest one to the target.
    #[default]
    Shortest,
    /// So many hops on X, Y and Z, towards higher coordinates if positive. Where on X, Y and Z
    /// the target is follows from that: the carrier works it out.
    Distances([i8; 3]),
    /// One hop, to whatever is behind a port: the carrier works out the target.
    Hop {
        /// The port.
        port: Port,
        /// The virtual channel.
        vc: u8,
        /// The frame is marked as bad on the way out.
        nullified: bool,
    },
}

/// A burst: one or more consecutive transport-layer packets (TLPs) of one command
/// that share a route.
///
/// Routing and counting cost once for the burst; a carrier that needs single TLPs may
/// split it. Apart from the body all fields are plain data without references, so a
/// carrier to another process can send them as they are; whether the body can be sent
/// is for whoever chooses `B` (it may refer to the sender's memory where all nodes are
/// in one process).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<B> {
    /// The node that sends.
    pub src: Coords,
    /// Its TNI, 0 to 5.
    pub src_tni: u8,
    /// The node that is to receive.
    pub dst: Coords,
    /// Its TNI. Not looked at on the way, so it may be any number.
    pub dst_tni: u8,
    /// Where the packet enters X, Y, Z routing.
    pub path: Path,
    /// The way it takes. If that is not the shortest one, some of `dst` is worked out by the
    /// carrier.
    pub way: Way,
    /// Request, response or neither.
    pub class: Class,
    /// Whether these are system TLPs, which have counters of their own.
    pub system: bool,
    /// Number of TLPs.
    pub tlps: u32,
    /// Bytes on the wire: routing headers and TLPs, all of the burst.
    pub bytes: u64,
    /// Modelled time since the command began, in picoseconds. The carrier adds the
    /// time on the way.
    pub model_ps: u64,
    /// What the packet carries; nothing to the network.
    pub body: B,
}
