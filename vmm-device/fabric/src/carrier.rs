//! Carriers: what takes packets from node to node.

use std::sync::Arc;

use crate::{Fabric, Hop, NodeId, Packet, Port, Route, RouteError, Way};

/// Why a packet was lost.
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

/// Is told what became of packets.
pub trait Deliver<B> {
    /// The packet is at its target, the node `node`.
    fn arrived(&mut self, node: NodeId, packet: Packet<B>);

    /// The packet was lost at node `at`, at whose port `port` it should have left.
    ///
    /// Without a port it was lost at its source, for want of a route. `at` is
    /// [`NodeId::NOWHERE`] if the machine does not even have the source.
    fn discarded(
        &mut self,
        at: NodeId,
        port: Option<Port>,
        reason: DiscardReason,
        packet: Packet<B>,
    );
}

/// Takes packets to their targets.
pub trait Carrier<B>: Send + Sync {
    /// Sends a packet from its source.
    ///
    /// `out` is told of each packet exactly once what became of it. A carrier without
    /// delay tells it of this packet before it returns; one with delay may tell it of
    /// earlier packets. Packets of one class with the same source, target and path
    /// arrive in the order in which they were sent.
    fn inject(&self, packet: Packet<B>, out: &mut dyn Deliver<B>);
}

/// The time that packets take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// One hop, link and switches, in picoseconds.
    pub hop_ps: u64,
    /// One byte on a link, in femtoseconds.
    pub byte_fs: u64,
}

impl Timing {
    /// Tofu (K computer): 5.0 GB/s links (TofuD paper, Table I), about 0.1 us a hop
    /// ("Tofu: Interconnect for the K computer", Fujitsu).
    pub const TOFU1: Self = Self { hop_ps: 100_000, byte_fs: 200_000 };
    /// Tofu2: 12.5 GB/s links, a hop about 0.2 us longer than Tofu's (TofuD paper,
    /// Table I and Figure 7).
    pub const TOFU2: Self = Self { hop_ps: 300_000, byte_fs: 80_000 };
    /// TofuD: 6.8 GB/s links, a hop nearly that of Tofu (TofuD paper, Table I and
    /// Figure 7).
    pub const TOFUD: Self = Self { hop_ps: 100_000, byte_fs: 147_059 };

    /// The time, in picoseconds, of `bytes` bytes over `hops` hops. Switches send a
    /// frame on before it is complete, so its length costs once.
    #[inline]
    pub const fn transit_ps(&self, hops: u32, bytes: u64) -> u64 {
        let length = bytes.saturating_mul(self.byte_fs) / 1000;
        (hops as u64).saturating_mul(self.hop_ps).saturating_add(length)
    }
}

/// The fast carrier: a packet walks its whole route at once, in the caller's thread,
/// and `out` is called before `inject` returns.
///
/// It checks and counts at every link, but has no buffers, no credits and no
/// errors of transmission.
#[derive(Clone, Debug)]
pub struct Direct {
    fabric: Arc<Fabric>,
    timing: Timing,
}

impl Direct {
    /// A direct carrier over these links.
    pub const fn new(fabric: Arc<Fabric>, timing: Timing) -> Self {
        Self { fabric, timing }
    }

    /// The links it works on.
    pub const fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }
}

impl Direct {
    /// The route of a packet, whose target is filled in if it follows from its way.
    fn route<B>(&self, packet: &mut Packet<B>) -> Result<Route<'_>, RouteError> {
        let shape = self.fabric.shape();
        let (src, path, class) = (packet.src, packet.path, packet.class);
        match packet.way {
            Way::Distances(distances) => {
                let (dst, route) =
                    shape.route_by_distances(src, packet.dst, distances, path, class)?;
                packet.dst = dst;
                Ok(route)
            }
            _ => shape.route(src, packet.dst, path, class),
        }
    }

    /// Takes a packet one hop far.
    fn hop<B>(
        &self,
        mut packet: Packet<B>,
        port: Port,
        vc: u8,
        bad: bool,
        out: &mut dyn Deliver<B>,
    ) {
        let shape = self.fabric.shape();
        let from = shape.node_id(packet.src);
        let to = shape.neighbor(packet.src, port);
        let (Some(from), Some(dst)) = (from, to) else {
            let at = from.unwrap_or(NodeId::NOWHERE);
            out.discarded(at, from.map(|_| port), DiscardReason::NoSuchNode, packet);
            return;
        };
        let Some(to) = shape.node_id(dst) else { return };
        packet.dst = dst;
        self.fabric.count_injected(from, packet.src_tni, packet.bytes);
        let hop = Hop { from, port, to, vc };
        if !self.fabric.send(hop, packet.system, packet.tlps, packet.bytes) {
            out.discarded(from, Some(port), DiscardReason::LinkDown, packet);
            return;
        }
        if bad {
            self.fabric.count_nullified(hop, packet.tlps);
        }
        let transit = self.timing.transit_ps(1, packet.bytes);
        packet.model_ps = packet.model_ps.saturating_add(transit);
        out.arrived(to, packet);
    }
}

impl<B> Carrier<B> for Direct {
    fn inject(&self, mut packet: Packet<B>, out: &mut dyn Deliver<B>) {
        if let Way::Hop { port, vc, nullified } = packet.way {
            self.hop(packet, port, vc, nullified, out);
            return;
        }
        let route = match self.route(&mut packet) {
            Ok(route) => route,
            Err(error) => {
                let at = self.fabric.shape().node_id(packet.src).unwrap_or(NodeId::NOWHERE);
                let reason = match error {
                    RouteError::Source(_) | RouteError::Target(_) | RouteError::Distance { .. } => {
                        DiscardReason::NoSuchNode
                    }
                    RouteError::Path(_) => DiscardReason::NoSuchPath,
                };
                out.discarded(at, None, reason, packet);
                return;
            }
        };
        let mut at = route.node();
        self.fabric.count_injected(at, packet.src_tni, packet.bytes);
        let mut hops = 0;
        let mut dead = None;
        for hop in route {
            if !self.fabric.send(hop, packet.system, packet.tlps, packet.bytes) {
                dead = Some(hop.port);
                break;
            }
            hops += 1;
            at = hop.to;
        }
        let transit = self.timing.transit_ps(hops, packet.bytes);
        packet.model_ps = packet.model_ps.saturating_add(transit);
        match dead {
            None => out.arrived(at, packet),
            Some(port) => out.discarded(at, Some(port), DiscardReason::LinkDown, packet),
        }
    }
}
