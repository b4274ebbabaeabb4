//! Carriers: what takes packets from node to node.

use std::sync::Arc;

use tofu_abi::TniId;
use tofu_links::Parameters;

use crate::fabric::Passage;
use crate::faults::Fate;
use crate::shard::ShardId;
use crate::{DiscardReason, Fabric, Hop, NodeId, Packet, Port, Route, RouteError, Way};

/// Learns the fate of packets.
pub trait Deliver<B> {
    /// The packet has arrived at its target, the node `node`.
    fn arrived(&mut self, node: NodeId, packet: Packet<B>);

    /// The packet was lost at node `at`, which it should have left through `port`.
    ///
    /// Without a port, it was lost at its source for lack of a route. `at` is [`NodeId::NOWHERE`]
    /// if the machine does not even have the source.
    fn discarded(
        &mut self,
        at: NodeId,
        port: Option<Port>,
        reason: DiscardReason,
        packet: Packet<B>,
    );

    /// A fault holds back a packet. It is delivered some packets later, or by
    /// [`Wires::release`](crate::Wires::release), which should be called soon.
    fn held(&mut self) {}

    /// A fault has taken the packet on its way, and its target learns nothing. A carrier whose
    /// packets take no time does not report this.
    fn swallowed(&mut self, packet: Packet<B>) {
        drop(packet);
    }

    /// Nothing gets through a link any more, and the port of a node has taken it down.
    fn link_failed(&mut self, node: NodeId, port: Port) {
        let _ = (node, port);
    }

    /// A TNI of a node that had no room for another request has room again.
    fn room(&mut self, node: NodeId, tni: TniId) {
        let _ = (node, tni);
    }
}

/// Takes packets to their targets.
pub trait Carrier<B>: Send + Sync {
    /// Sends a packet from its source.
    ///
    /// `out` learns the fate of each packet exactly once, unless a requested fault swallows or
    /// duplicates it. A carrier without delay reports this packet before it returns; one with delay
    /// may report earlier packets. Packets of one class with the same source, target and path
    /// arrive in the order in which they were sent.
    fn inject(&self, packet: Packet<B>, out: &mut dyn Deliver<B>);
}

/// A packet on a cable, from one shard of a machine to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crossing<B> {
    /// The packet. Its time counts up to the end of the cable.
    pub packet: Packet<B>,
    /// Links that it has crossed, including that of the cable.
    pub hops: u32,
    /// The number of others that are to overtake it at its target, because of a fault.
    pub held: Option<u32>,
    /// A fault has duplicated it, or made it as a duplicate: it is not duplicated again.
    pub duplicated: bool,
}

/// Takes packets from this shard of a machine to the others.
///
/// Packets for one shard arrive there in the order in which they were sent, each once, or none
/// after the first that did not.
pub trait Cables<B>: Send + Sync {
    /// Sends a packet to a shard. Returns the packet if that shard is absent.
    fn send(&self, to: ShardId, crossing: Crossing<B>) -> Option<Crossing<B>>;
}

/// The reason why a packet from another shard is refused: a correct shard never sends one like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stray {
    /// The machine is not in shards.
    #[error("the machine is not in shards")]
    NoShards,
    /// The packet has no way through the machine.
    #[error(transparent)]
    NoRoute(#[from] RouteError),
    /// After that many links its route does not lead from that shard to this one.
    #[error("a packet from {src} to {dst} does not come over a cable of that shard as link {hops}")]
    WrongCable {
        /// Its source.
        src: tofu_abi::Coords,
        /// Its target.
        dst: tofu_abi::Coords,
        /// Links that it claims to have crossed.
        hops: u32,
    },
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
/// It checks and counts at every link, but has no buffers, no credits and no transmission errors.
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
    /// The route of a packet. Fills in the packet's target if that follows from its way.
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

    /// Takes a packet along its way. `observer` sees it and may change its fate.
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
        self.travel(Journey::begin(at, route, packet), true, observer, out);
    }

    /// Takes a packet one hop.
    fn carry_one_hop<B, W: Observer<B>>(
        &self,
        mut packet: Packet<B>,
        port: Port,
        vc: u8,
        bad: bool,
        observer: &mut W,
        out: &mut dyn Deliver<B>,
    ) {
        let hop = match self.only_hop(&mut packet, port, vc) {
            Ok(hop) => hop,
            Err(from) => {
                let (at, port) = (from.unwrap_or(NodeId::NOWHERE), from.map(|_| port));
                observer.lost(at, port, DiscardReason::NoSuchNode, &packet);
                out.discarded(at, port, DiscardReason::NoSuchNode, packet);
                return;
            }
        };
        let from = hop.from;
        self.fabric.count_injected(from, packet.src_tni, packet.bytes);
        observer.entered(from, &packet);
        if bad && self.fabric.link_up(packet.src, port) == Some(true) {
            self.fabric.count_nullified(hop, packet.tlps);
        }
        let hops = std::iter::once(hop);
        self.travel(Journey::begin(from, hops, packet), true, observer, out);
    }

    /// The hop of a packet that goes through a port, from which its target follows. If there is
    /// none, returns the packet's source, if that exists.
    fn only_hop<B>(
        &self,
        packet: &mut Packet<B>,
        port: Port,
        vc: u8,
    ) -> Result<Hop, Option<NodeId>> {
        let shape = self.fabric.shape();
        let from = shape.node_id(packet.src).ok_or(None)?;
        let dst = shape.neighbor(packet.src, port).ok_or(Some(from))?;
        let to = shape.node_id(dst).ok_or(Some(from))?;
        packet.dst = dst;
        Ok(Hop { from, port, to, vc })
    }

    /// Carries on a packet that comes over a cable from another shard of the machine.
    pub(crate) fn carry_on<B, W: Observer<B>>(
        &self,
        from: ShardId,
        crossing: Crossing<B>,
        observer: &mut W,
        out: &mut dyn Deliver<B>,
    ) -> Result<(), Stray> {
        let Crossing { mut packet, hops: taken, held, duplicated } = crossing;
        let (shards, own) = self.fabric.shard().ok_or(Stray::NoShards)?;
        let wrong = |packet: &Packet<B>| {
            let Packet { src, dst, .. } = *packet;
            Stray::WrongCable { src, dst, hops: taken }
        };
        let ours = |hop: &Hop| shards.of(hop.from) == Some(from) && shards.of(hop.to) == Some(own);
        let nth = taken.checked_sub(1).ok_or_else(|| wrong(&packet))? as usize;
        let mut journey = |hop: Hop, rest, packet: Packet<B>| {
            let Packet { system, tlps, bytes, .. } = packet;
            if self.fabric.send(hop, system, tlps, bytes) == Passage::Down {
                observer.lost(hop.from, Some(hop.port), DiscardReason::LinkDown, &packet);
                out.discarded(hop.from, Some(hop.port), DiscardReason::LinkDown, packet);
                return;
            }
            observer.came_in(hop, &packet);
            let journey = Journey { at: hop.to, hops: rest, before: taken, taken: 0, packet, held };
            self.travel(journey, !duplicated, observer, out);
        };
        if let Way::Hop { port, vc, nullified } = packet.way {
            let hop = self.only_hop(&mut packet, port, vc).ok();
            let hop = hop.filter(|hop| nth == 0 && ours(hop)).ok_or_else(|| wrong(&packet))?;
            if nullified && self.fabric.link_up(packet.src, port) == Some(true) {
                self.fabric.count_nullified(hop, packet.tlps);
            }
            journey(hop, Rest::End, packet);
            return Ok(());
        }
        let mut route = self.route(&mut packet)?;
        let hop = route.nth(nth).filter(ours).ok_or_else(|| wrong(&packet))?;
        journey(hop, Rest::Route(route), packet);
        Ok(())
    }

    /// Takes a packet, and its duplicate if it gets one, over its remaining hops.
    #[inline]
    fn travel<B, W: Observer<B>, H: Iterator<Item = Hop> + Clone>(
        &self,
        journey: Journey<B, H>,
        may_duplicate: bool,
        observer: &mut W,
        out: &mut dyn Deliver<B>,
    ) {
        if let Some(duplicate) = self.travel_once(journey, may_duplicate, observer, out) {
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
        let Journey { mut at, mut hops, before, mut taken, mut packet, mut held } = journey;
        let mut duplicate = None;
        let mut dead = None;
        while let Some(hop) = hops.next() {
            let passage = self.fabric.send(hop, packet.system, packet.tlps, packet.bytes);
            if passage == Passage::Down {
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
            let double = (fate.duplicated && may_duplicate && duplicate.is_none())
                .then(|| observer.duplicate(&packet))
                .flatten();
            if let Passage::Beyond(shard) = passage {
                let duplicated = !may_duplicate || duplicate.is_some() || double.is_some();
                for packet in [Some(packet), double].into_iter().flatten() {
                    let hops = before.saturating_add(taken);
                    let crossing = Crossing { packet, hops, held, duplicated };
                    self.leave(shard, hop, taken, crossing, observer, out);
                }
                return duplicate;
            }
            if let Some(packet) = double {
                let hops = hops.clone();
                duplicate = Some(Journey { at, hops, before, taken, packet, held });
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

    /// Hands a packet to a cable, which takes it over the link of `hop`, the last of the `taken`
    /// links in this shard.
    #[cold]
    fn leave<B, W: Observer<B>>(
        &self,
        to: ShardId,
        hop: Hop,
        taken: u32,
        mut crossing: Crossing<B>,
        observer: &mut W,
        out: &mut dyn Deliver<B>,
    ) {
        // The length costs once, at the end of the whole way.
        let transit = self.timing.transit_ps(taken, 0);
        crossing.packet.model_ps = crossing.packet.model_ps.saturating_add(transit);
        if let Some(Crossing { packet, .. }) = observer.leave(to, crossing) {
            observer.lost(hop.from, Some(hop.port), DiscardReason::LinkDown, &packet);
            out.discarded(hop.from, Some(hop.port), DiscardReason::LinkDown, packet);
        }
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
    /// The rest of the way.
    hops: H,
    /// Links that it crossed before it came to this shard of the machine.
    before: u32,
    /// Links that it crossed since.
    taken: u32,
    packet: Packet<B>,
    held: Option<u32>,
}

impl<B, H> Journey<B, H> {
    const fn begin(at: NodeId, hops: H, packet: Packet<B>) -> Self {
        Self { at, hops, before: 0, taken: 0, packet, held: None }
    }
}

/// The rest of a way behind a cable.
#[derive(Clone)]
enum Rest<'a> {
    Route(Route<'a>),
    End,
}

impl Iterator for Rest<'_> {
    type Item = Hop;

    fn next(&mut self) -> Option<Hop> {
        match self {
            Self::Route(route) => route.next(),
            Self::End => None,
        }
    }
}

/// Observes packets as they travel.
pub(crate) trait Observer<B> {
    /// It has entered the crossbar of its source.
    fn entered(&mut self, _: NodeId, _: &Packet<B>) {}

    /// It crosses a link that is up.
    fn crossed(&mut self, _: Hop, _: &mut Packet<B>) -> Fate {
        Fate::default()
    }

    /// It comes over a link from another shard of the machine, which has observed everything
    /// before.
    fn came_in(&mut self, _: Hop, _: &Packet<B>) {}

    /// It goes to another shard of the machine. Returns it if that shard is absent.
    fn leave(&mut self, _: ShardId, crossing: Crossing<B>) -> Option<Crossing<B>> {
        Some(crossing)
    }

    /// Duplicates the packet, if possible.
    fn duplicate(&mut self, _: &Packet<B>) -> Option<Packet<B>> {
        None
    }

    /// It goes no further, as `out` will learn.
    fn lost(&mut self, _: NodeId, _: Option<Port>, _: DiscardReason, _: &Packet<B>) {}

    /// It has arrived at its target, where `held` others are to overtake it.
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

/// No observer.
struct Unobserved;

impl<B> Observer<B> for Unobserved {}
