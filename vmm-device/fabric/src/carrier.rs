//! Carriers: what takes packets from node to node.

use std::sync::Arc;

use tofu_links::Parameters;

use crate::faults::Fate;
use crate::{DiscardReason, Fabric, Hop, NodeId, Packet, Port, Route, RouteError, Way};

/// Receives what becomes of packets.
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

    /// A packet is held back by a fault; it is delivered some packets later, or by
    /// [`Wires::release`](crate::Wires::release), which should be called soon.
    fn held(&mut self) {}

    /// A fault has taken the packet on its way, of which its target is not told. A carrier whose
    /// packets take no time does not tell it.
    fn swallowed(&mut self, packet: Packet<B>) {
        drop(packet);
    }

    /// Nothing got through a link any more, and the port of a node has taken it down.
    fn link_failed(&mut self, node: NodeId, port: Port) {
        let _ = (node, port);
    }

    /// A TNI of a node that had no room for another request has some.
    fn room(&mut self, node: NodeId, tni: u8) {
        let _ = (node, tni);
    }
}

/// Takes packets to their targets.
pub trait Carrier<B>: Send + Sync {
    /// Sends a packet from its source.
    ///
    /// `out` is called exactly once with what became of each packet, unless a fault that was asked
    /// for swallows or duplicates it. A carrier without delay tells it of this packet before it
    /// returns; one with delay may tell it of earlier packets. Packets of one class with the same
    /// source, target and path arrive in the order in which they were sent.
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
    /// TofuD.
    pub const TOFUD: Self = Self::of(&Parameters::TOFUD);

    /// The time that packets take on links of a generation.
    pub const fn of(links: &Parameters) -> Self {
        let rate = links.link_kbytes() as u64;
        Self { hop_ps: links.hop_ps(), byte_fs: (1_000_000_000_000 + rate / 2) / rate }
    }

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
                    Route::by_distances(shape, src, packet.dst, distances, path, class)?;
                packet.dst = dst;
                Ok(route)
            }
            _ => Route::new(shape, src, packet.dst, path, class),
        }
    }

    /// Takes a packet along its way; `observer` sees it, and may change what becomes of it.
    #[inline]
    pub(crate) fn carry<B, W: Observer<B>>(
        &self,
        mut packet: Packet<B>,
        observer: &mut W,
        out: &mut dyn Deliver<B>,
    ) {
        if let Way::Hop { port, vc, nullified } = packet.way {
            self.carry_one_hop(packet, port, vc, nullified, observer, out);
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
                observer.lost(at, None, reason, &packet);
                out.discarded(at, None, reason, packet);
                return;
            }
        };
        let at = route.node();
        self.fabric.count_injected(at, packet.src_tni, packet.bytes);
        observer.entered(at, &packet);
        self.travel(Journey { at, hops: route, taken: 0, packet, held: None }, observer, out);
    }

    /// Takes a packet one hop far.
    fn carry_one_hop<B, W: Observer<B>>(
        &self,
        mut packet: Packet<B>,
        port: Port,
        vc: u8,
        bad: bool,
        observer: &mut W,
        out: &mut dyn Deliver<B>,
    ) {
        let shape = self.fabric.shape();
        let from = shape.node_id(packet.src);
        let to = shape.neighbor(packet.src, port);
        let (Some(from), Some(dst)) = (from, to) else {
            let (at, port) = (from.unwrap_or(NodeId::NOWHERE), from.map(|_| port));
            observer.lost(at, port, DiscardReason::NoSuchNode, &packet);
            out.discarded(at, port, DiscardReason::NoSuchNode, packet);
            return;
        };
        let Some(to) = shape.node_id(dst) else { return };
        packet.dst = dst;
        self.fabric.count_injected(from, packet.src_tni, packet.bytes);
        observer.entered(from, &packet);
        let hop = Hop { from, port, to, vc };
        if bad && self.fabric.link_up(packet.src, port) == Some(true) {
            self.fabric.count_nullified(hop, packet.tlps);
        }
        let hops = std::iter::once(hop);
        self.travel(Journey { at: from, hops, taken: 0, packet, held: None }, observer, out);
    }

    /// Takes a packet, and its duplicate if it gets one, over the rest of their hops.
    #[inline]
    fn travel<B, W: Observer<B>, H: Iterator<Item = Hop> + Clone>(
        &self,
        journey: Journey<B, H>,
        observer: &mut W,
        out: &mut dyn Deliver<B>,
    ) {
        if let Some(duplicate) = self.travel_once(journey, true, observer, out) {
            self.travel_once(duplicate, false, observer, out);
        }
    }

    /// Returns the packet's duplicate, if it may have one and got one.
    #[inline]
    fn travel_once<B, W: Observer<B>, H: Iterator<Item = Hop> + Clone>(
        &self,
        journey: Journey<B, H>,
        may_duplicate: bool,
        observer: &mut W,
        out: &mut dyn Deliver<B>,
    ) -> Option<Journey<B, H>> {
        let Journey { mut at, mut hops, mut taken, mut packet, mut held } = journey;
        let mut duplicate = None;
        let mut dead = None;
        while let Some(hop) = hops.next() {
            if !self.fabric.send(hop, packet.system, packet.tlps, packet.bytes) {
                dead = Some(hop.port);
                break;
            }
            taken += 1;
            at = hop.to;
            let fate = observer.crossed(hop, &mut packet);
            if fate.lost {
                return duplicate;
            }
            held = held.max(fate.held);
            if fate.duplicated && may_duplicate && duplicate.is_none() {
                let copy = observer.duplicate(&packet);
                duplicate =
                    copy.map(|packet| Journey { at, hops: hops.clone(), taken, packet, held });
            }
        }
        let bytes = packet.bytes.saturating_add(packet.before.into());
        let transit = self.timing.transit_ps(taken, bytes);
        packet.model_ps = packet.model_ps.saturating_add(transit);
        match dead {
            None => observer.arrived(at, packet, held, out),
            Some(port) => {
                observer.lost(at, Some(port), DiscardReason::LinkDown, &packet);
                out.discarded(at, Some(port), DiscardReason::LinkDown, packet);
            }
        }
        duplicate
    }
}

impl<B> Carrier<B> for Direct {
    fn inject(&self, packet: Packet<B>, out: &mut dyn Deliver<B>) {
        self.carry(packet, &mut Unobserved, out);
    }
}

/// A packet somewhere on its way.
struct Journey<B, H> {
    at: NodeId,
    /// What is left of the way.
    hops: H,
    taken: u32,
    packet: Packet<B>,
    held: Option<u32>,
}

/// Observes packets as they travel.
pub(crate) trait Observer<B> {
    /// It is in the crossbar of its source.
    fn entered(&mut self, _: NodeId, _: &Packet<B>) {}

    /// It goes over a link that is up.
    fn crossed(&mut self, _: Hop, _: &mut Packet<B>) -> Fate {
        Fate::default()
    }

    /// The same packet again, if it can be had.
    fn duplicate(&mut self, _: &Packet<B>) -> Option<Packet<B>> {
        None
    }

    /// It goes no further, which `out` will learn.
    fn lost(&mut self, _: NodeId, _: Option<Port>, _: DiscardReason, _: &Packet<B>) {}

    /// It is at its target, where `held` others are to overtake it.
    fn arrived(
        &mut self,
        at: NodeId,
        packet: Packet<B>,
        _held: Option<u32>,
        out: &mut dyn Deliver<B>,
    ) {
        out.arrived(at, packet);
    }
}

/// Nobody observes.
struct Unobserved;

impl<B> Observer<B> for Unobserved {}
