//! Carriers, which move packets from node to node.

use std::sync::Arc;

use tofu_abi::{Coords, Path, TniId};
use tofu_links::Parameters;

use crate::fabric::Passage;
use crate::faults::Fate;
use crate::shard::ShardId;
use crate::ways::{Known, Ways};
use crate::{DiscardReason, Fabric, Hop, NodeId, Packet, Port, Route, RouteError, Way};

/// Receives the fate of packets.
pub trait Deliver<B> {
    /// The packet has arrived at its target, the node `node`.
    fn arrived(&mut self, node: NodeId, packet: Packet<B>);

    /// The packet was lost at node `at`, which it should have left through `port`.
    ///
    /// If there is no port, the packet had no route and was lost at its source. `at` is
    /// [`NodeId::NOWHERE`] if the source is not in the machine.
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

    /// An injected fault has dropped the packet in transit, without notice to its target. A carrier
    /// without delay does not report this.
    fn swallowed(&mut self, packet: Packet<B>) {
        drop(packet);
    }

    /// A port of a node has taken down its link, because no frame gets through any more.
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
    /// `out` receives the fate of each packet exactly once, unless a requested fault swallows or
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
    /// The number of packets that overtake it at its target, because of an injected fault.
    pub held: Option<u32>,
    /// True if a fault has duplicated the packet, or if it is a duplicate. It is not duplicated
    /// again.
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
    /// After the number of links that it claims, its route does not lead from that shard to this
    /// one.
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

/// The carrier without delay: a packet crosses its whole route in the caller's thread, and `out` is
/// called before `inject` returns.
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

/// The way of a request and of its answer over links that nothing observes.
#[derive(Debug)]
pub struct Trip<'a> {
    direct: &'a Direct,
    ways: &'a [Known; 2],
}

impl Trip<'_> {
    /// The node that the request is for.
    #[inline]
    pub const fn target(&self) -> NodeId {
        self.ways[1].from()
    }

    /// Counts a request that takes the way, of so many TLPs and bytes in all, from a TNI. Returns
    /// its time on the way, in picoseconds.
    #[inline]
    pub fn there(&self, size: (TniId, u32, u64)) -> u64 {
        self.count(&self.ways[0], size)
    }

    /// The same for its answer.
    #[inline]
    pub fn back(&self, size: (TniId, u32, u64)) -> u64 {
        self.count(&self.ways[1], size)
    }

    #[inline(always)]
    fn count(&self, way: &Known, (tni, tlps, bytes): (TniId, u32, u64)) -> u64 {
        let Direct { fabric, timing } = self.direct;
        fabric.count_way((way.from(), tni), way.hops(), tlps, bytes);
        timing.transit_ps(way.hops().len() as u32, bytes)
    }
}

impl Direct {
    /// The route of a packet. Fills in the packet's target if that follows from its way.
    fn route<B>(&self, packet: &mut Packet<B>) -> Result<Route<'_>, RouteError> {
        let (dst, route) = Route::of(self.fabric.shape(), packet)?;
        packet.dst = dst;
        Ok(route)
    }

    /// Moves a packet along its route. `observer` sees it and may change its fate.
    pub(crate) fn carry<B, W: Observer<B>>(
        &self,
        mut packet: Packet<B>,
        observer: &mut W,
        out: &mut dyn Deliver<B>,
    ) {
        let mut double = None;
        let end = self.set_out(&mut packet, &mut double, observer);
        self.finish(end, packet, observer, out);
        self.follow(double, observer, out);
    }

    /// Carries a packet over its route without an observer. Returns the node at which it has
    /// arrived. The packet is not moved in this process's memory, because that would cost more than
    /// the route.
    #[inline]
    pub(crate) fn pass<B>(&self, packet: &mut Packet<B>, ways: &mut Ways) -> Result<NodeId, Lost> {
        let Some(way) = ways.of(self.fabric.id(), self.fabric.shape(), packet) else {
            return self.pass_anyway(packet);
        };
        self.fabric.count_injected(way.from(), packet.src_tni, packet.bytes);
        let (mut end, mut links) = (Ok(way.from()), 0);
        for hop in way.hops() {
            match self.fabric.send(*hop, packet.system, packet.tlps, packet.bytes) {
                Passage::Crossed => (end, links) = (Ok(hop.to), links + 1),
                // Without an observer there are no cables.
                Passage::Down | Passage::Beyond(_) => {
                    end = Err(Lost::at_link(*hop));
                    break;
                }
            }
        }
        self.take_time(packet, links, packet.bytes.saturating_add(packet.before.into()));
        end
    }

    /// The way of a request from one node to another and of its answer by a path, if both are
    /// remembered and all their links are up and in this shard of the machine. `key` stands for the
    /// ends.
    #[inline]
    pub(crate) fn trip<'a>(
        &'a self,
        key: [u64; 2],
        ends: impl FnOnce() -> (Coords, Coords, Path),
        ways: &'a mut Ways,
    ) -> Option<Trip<'a>> {
        let (id, shape) = (self.fabric.id(), self.fabric.shape());
        let (ways, open_at) = ways.there_and_back(id, shape, key, ends)?;
        let now = self.fabric.epoch();
        if *open_at != now {
            let is_open = |way: &Known| way.hops().iter().all(|hop| self.fabric.is_open(*hop));
            if !ways.iter().all(is_open) {
                return None;
            }
            *open_at = now;
        }
        Some(Trip { direct: self, ways })
    }

    /// The same for a packet whose way is not remembered.
    #[cold]
    fn pass_anyway<B>(&self, packet: &mut Packet<B>) -> Result<NodeId, Lost> {
        match self.set_out(packet, &mut None, &mut Unobserved) {
            End::Arrived(place) => Ok(place.at),
            End::Lost(lost) => Err(lost),
            End::Beyond(Beyond { place, hop, .. }) => {
                self.take_time(packet, place.taken, 0);
                Err(Lost::at_link(hop))
            }
            // Without an observer no packet is taken away, so this one is where it was.
            End::Swallowed => Err(Lost::without_route(NodeId::NOWHERE, DiscardReason::NoSuchNode)),
        }
    }

    /// Takes a packet from its source over its hops. Puts its duplicate into `double` if it gets
    /// one that stays in this shard of the machine.
    #[inline]
    fn set_out<'a, B, W: Observer<B>>(
        &'a self,
        packet: &mut Packet<B>,
        double: &mut Option<Double<'a, B>>,
        observer: &mut W,
    ) -> End<B> {
        if let Way::Hop { port, vc, nullified } = packet.way {
            return self.set_out_one_hop(packet, (port, vc), nullified, double, observer);
        }
        match self.route(packet) {
            Ok(route) => {
                let at = route.node();
                self.enter(at, packet, observer);
                self.travel(packet, route, Place::source(at), Some(double), observer)
            }
            Err(error) => {
                let at = self.fabric.shape().node_id(packet.src).unwrap_or(NodeId::NOWHERE);
                let reason = match error {
                    RouteError::Source(_) | RouteError::Target(_) | RouteError::Distance { .. } => {
                        DiscardReason::NoSuchNode
                    }
                    RouteError::Path(_) => DiscardReason::NoSuchPath,
                };
                End::Lost(Lost::without_route(at, reason))
            }
        }
    }

    /// The same for a packet that takes one hop.
    fn set_out_one_hop<'a, B, W: Observer<B>>(
        &'a self,
        packet: &mut Packet<B>,
        (port, vc): (Port, u8),
        bad: bool,
        double: &mut Option<Double<'a, B>>,
        observer: &mut W,
    ) -> End<B> {
        let hop = match self.only_hop(packet, port, vc) {
            Ok(hop) => hop,
            Err(from) => {
                let (at, port) = (from.unwrap_or(NodeId::NOWHERE), from.map(|_| port));
                return End::Lost(Lost { at, port, reason: DiscardReason::NoSuchNode });
            }
        };
        self.enter(hop.from, packet, observer);
        if bad && self.fabric.link_up(packet.src, port) == Some(true) {
            self.fabric.count_nullified(hop, packet.tlps);
        }
        self.travel(packet, Rest::One(hop), Place::source(hop.from), Some(double), observer)
    }

    /// Takes a packet from a TNI into the crossbar.
    #[inline]
    fn enter<B, W: Observer<B>>(&self, at: NodeId, packet: &Packet<B>, observer: &mut W) {
        self.fabric.count_injected(at, packet.src_tni, packet.bytes);
        observer.entered(at, packet);
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
        let (hop, rest) = if let Way::Hop { port, vc, nullified } = packet.way {
            let hop = self.only_hop(&mut packet, port, vc).ok();
            let hop = hop.filter(|hop| nth == 0 && ours(hop)).ok_or_else(|| wrong(&packet))?;
            if nullified && self.fabric.link_up(packet.src, port) == Some(true) {
                self.fabric.count_nullified(hop, packet.tlps);
            }
            (hop, Rest::End)
        } else {
            let mut route = self.route(&mut packet)?;
            let hop = route.nth(nth).filter(ours).ok_or_else(|| wrong(&packet))?;
            (hop, Rest::Route(route))
        };
        let Packet { system, tlps, bytes, .. } = packet;
        if self.fabric.send(hop, system, tlps, bytes) == Passage::Down {
            self.finish(End::Lost(Lost::at_link(hop)), packet, observer, out);
            return Ok(());
        }
        observer.came_in(hop, &packet);
        let place = Place { at: hop.to, before: taken, taken: 0, held };
        let mut double = None;
        let may = (!duplicated).then_some(&mut double);
        let end = self.travel(&mut packet, rest, place, may, observer);
        self.finish(end, packet, observer, out);
        self.follow(double, observer, out);
        Ok(())
    }

    /// Moves a packet over its remaining hops in this shard of the machine. If a fault duplicates
    /// it and the duplicate stays in this shard, puts that into `double`.
    #[inline]
    fn travel<'a, B, W: Observer<B>, H: Iterator<Item = Hop> + Clone + Into<Rest<'a>>>(
        &'a self,
        packet: &mut Packet<B>,
        mut hops: H,
        mut place: Place,
        mut double: Option<&mut Option<Double<'a, B>>>,
        observer: &mut W,
    ) -> End<B> {
        let length = packet.bytes.saturating_add(packet.before.into());
        while let Some(hop) = hops.next() {
            let passage = self.fabric.send(hop, packet.system, packet.tlps, packet.bytes);
            if passage == Passage::Down {
                self.take_time(packet, place.taken, length);
                return End::Lost(Lost::at_link(hop));
            }
            place.taken += 1;
            place.at = hop.to;
            let fate = observer.crossed(hop, packet);
            if fate.lost {
                return End::Swallowed;
            }
            place.held = place.held.max(fate.held);
            let another = match double {
                Some(None) if fate.duplicated => observer.duplicate(packet),
                _ => None,
            };
            if let Passage::Beyond(shard) = passage {
                let had_one = double.is_none_or(|double| double.is_some());
                let duplicated = had_one || another.is_some();
                let another = another.map(Box::new);
                return End::Beyond(Beyond { shard, hop, place, duplicated, another });
            }
            if let (Some(packet), Some(double)) = (another, &mut double) {
                **double = Some(Double { packet, hops: hops.clone().into(), place });
            }
        }
        self.take_time(packet, place.taken, length);
        End::Arrived(place)
    }

    /// Adds the time that a packet of that many bytes takes over links.
    #[inline]
    fn take_time<B>(&self, packet: &mut Packet<B>, links: u32, bytes: u64) {
        let transit = self.timing.transit_ps(links, bytes);
        packet.model_ps = packet.model_ps.saturating_add(transit);
    }

    /// Finishes a packet's route in this shard of the machine: reports its arrival or loss, or
    /// passes it to a cable.
    #[inline]
    fn finish<B, W: Observer<B>>(
        &self,
        end: End<B>,
        packet: Packet<B>,
        observer: &mut W,
        out: &mut dyn Deliver<B>,
    ) {
        match end {
            End::Arrived(place) => observer.arrived(place.at, packet, place.held, out),
            End::Lost(lost) => lose(lost, packet, observer, out),
            End::Swallowed => {}
            End::Beyond(beyond) => self.leave(beyond, packet, observer, out),
        }
    }

    /// Carries a duplicate, if there is one, over its remaining hops.
    #[inline]
    fn follow<'a, B, W: Observer<B>>(
        &'a self,
        double: Option<Double<'a, B>>,
        observer: &mut W,
        out: &mut dyn Deliver<B>,
    ) {
        if let Some(Double { mut packet, hops, place }) = double {
            let end = self.travel(&mut packet, hops, place, None, observer);
            self.finish(end, packet, observer, out);
        }
    }

    /// Passes a packet, and the duplicate that it got at its last link, to a cable.
    #[cold]
    fn leave<B, W: Observer<B>>(
        &self,
        beyond: Beyond<B>,
        packet: Packet<B>,
        observer: &mut W,
        out: &mut dyn Deliver<B>,
    ) {
        let Beyond { shard, hop, place: Place { before, taken, held, .. }, duplicated, another } =
            beyond;
        for mut packet in [Some(packet), another.map(|another| *another)].into_iter().flatten() {
            // The length is counted once, at the end of the whole route.
            self.take_time(&mut packet, taken, 0);
            let hops = before.saturating_add(taken);
            let crossing = Crossing { packet, hops, held, duplicated };
            if let Some(Crossing { packet, .. }) = observer.leave(shard, crossing) {
                lose(Lost::at_link(hop), packet, observer, out);
            }
        }
    }
}

/// Reports the loss of a packet.
#[cold]
fn lose<B, W: Observer<B>>(
    Lost { at, port, reason }: Lost,
    packet: Packet<B>,
    observer: &mut W,
    out: &mut dyn Deliver<B>,
) {
    observer.lost(at, port, reason, &packet);
    out.discarded(at, port, reason, packet);
}

impl<B> Carrier<B> for Direct {
    fn inject(&self, packet: Packet<B>, out: &mut dyn Deliver<B>) {
        self.carry(packet, &mut Unobserved, out);
    }
}

/// The place of a packet on its way.
#[derive(Clone, Copy)]
struct Place {
    at: NodeId,
    /// Links that it crossed before it came to this shard of the machine.
    before: u32,
    /// Links that it crossed since.
    taken: u32,
    held: Option<u32>,
}

impl Place {
    const fn source(at: NodeId) -> Self {
        Self { at, before: 0, taken: 0, held: None }
    }
}

/// A duplicate somewhere on its way.
struct Double<'a, B> {
    packet: Packet<B>,
    /// The rest of the way.
    hops: Rest<'a>,
    place: Place,
}

/// The end of a packet's way, or of its part in this shard of the machine.
enum End<B> {
    /// Its target.
    Arrived(Place),
    Lost(Lost),
    /// A fault has taken the packet.
    Swallowed,
    Beyond(Beyond<B>),
}

/// The end of a cable to another shard of the machine.
struct Beyond<B> {
    shard: ShardId,
    /// The link of the cable.
    hop: Hop,
    place: Place,
    /// The packet has a duplicate, or is one.
    duplicated: bool,
    /// The duplicate that it got at this link.
    another: Option<Box<Packet<B>>>,
}

/// Where and why a packet was lost; see [`Deliver::discarded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The node that lost it.
    pub at: NodeId,
    /// The port through which it should have left.
    pub port: Option<Port>,
    /// The reason.
    pub reason: DiscardReason,
}

impl Lost {
    const fn at_link(hop: Hop) -> Self {
        Self { at: hop.from, port: Some(hop.port), reason: DiscardReason::LinkDown }
    }

    const fn without_route(at: NodeId, reason: DiscardReason) -> Self {
        Self { at, port: None, reason }
    }
}

/// The rest of a way.
#[derive(Clone)]
enum Rest<'a> {
    Route(Route<'a>),
    One(Hop),
    End,
}

impl<'a> From<Route<'a>> for Rest<'a> {
    fn from(route: Route<'a>) -> Self {
        Self::Route(route)
    }
}

impl Iterator for Rest<'_> {
    type Item = Hop;

    fn next(&mut self) -> Option<Hop> {
        match *self {
            Self::Route(ref mut route) => route.next(),
            Self::One(hop) => {
                *self = Self::End;
                Some(hop)
            }
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

    /// It is lost. This is also reported to `out`.
    fn lost(&mut self, _: NodeId, _: Option<Port>, _: DiscardReason, _: &Packet<B>) {}

    /// It has arrived at its target, where `held` packets are to overtake it.
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
