//! Packets.

use tofu_abi::{Coords, Path};

/// Whether a packet asks or answers. The two have virtual channels of their own, so
/// that waiting requests never hold up the responses they wait for (IEEE Micro 2012).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A request, which may bring about a response.
    Request,
    /// A response, which its receiver always takes in.
    Response,
}

impl Class {
    /// The first of the class's two virtual channels (numbers are ours).
    #[inline]
    pub const fn first_vc(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Response => 2,
        }
    }
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
    /// Request or response.
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
