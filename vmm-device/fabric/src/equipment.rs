//! Hooks on the packet path besides links: a tap, faults, wrong bits of links and routers, and
//! cables to other shards.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};

use tofu_abi::Coords;
use tofu_links::{Check, Dllp, ErrorRate};
use tofu_sync::{lock, read, write};

use crate::carrier::Observer;
use crate::carrier::{Cables, Crossing};
use crate::ecc::RouterErrors;
use crate::faults::{BitErrors, Fate, Faults, both_ends};
use crate::shard::ShardId;
use crate::{
    Class, Deliver, Direction, DiscardReason, Disturb, FaultCounters, FaultPlan, Hop, MemoryErrors,
    NoSuchLink, NodeId, Observation, OnLink, Packet, Port, PortCounters, Shape, Tap, TapPoint,
};

/// An observation at both ends of a hop.
fn ends(hop: Hop, link: Option<OnLink>) -> [Observation; 2] {
    let near = (hop.from, hop.port, Direction::Out);
    let far = (hop.to, hop.port.opposite(), Direction::In);
    [near, far].map(|(node, port, direction)| {
        let point = TapPoint::Port(port);
        Observation { node, point, direction, vc: Some(hop.vc), link }
    })
}

/// The tap, the faults and the cables of a carrier, which may change at any time, wrong bits in
/// routers, and packets that faults hold back.
pub struct Equipment<B> {
    /// True if there are any, or packets go another way than the direct one.
    on: AtomicBool,
    /// True if links have faults or bit errors.
    spoils: AtomicBool,
    always_on: bool,
    /// True if packets take time.
    modelled: bool,
    hooks: RwLock<Hooks<B>>,
    held: HeldBack<B>,
    routers: Arc<RouterErrors>,
}

struct Hooks<B> {
    tap: Option<Arc<dyn Tap<B>>>,
    faults: Option<Arc<Faults<B>>>,
    bits: Option<Arc<BitErrors<B>>>,
    cables: Option<Arc<dyn Cables<B>>>,
}

impl<B> Clone for Hooks<B> {
    fn clone(&self) -> Self {
        let Self { tap, faults, bits, cables } = self;
        let (faults, bits) = (faults.clone(), bits.clone());
        Self { tap: tap.clone(), faults, bits, cables: cables.clone() }
    }
}

impl<B> fmt::Debug for Equipment<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Equipment").field("on", &self.on).finish_non_exhaustive()
    }
}

impl<B> Equipment<B> {
    /// Nothing so far, for a machine of this shape whose packets take time.
    pub fn modelled(shape: Shape) -> Self {
        Self::of(Arc::new(RouterErrors::new(shape)), true, false)
    }

    /// Nothing so far. If `always_on`, this is [on](Self::is_on) nevertheless.
    pub(crate) fn of(routers: Arc<RouterErrors>, modelled: bool, always_on: bool) -> Self {
        let hooks = RwLock::new(Hooks { tap: None, faults: None, bits: None, cables: None });
        let (on, spoils) = (AtomicBool::new(always_on), AtomicBool::new(false));
        Self { on, spoils, always_on, modelled, hooks, held: HeldBack::default(), routers }
    }

    /// Returns true if there is any.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Returns true if links have faults or bit errors.
    pub(crate) fn spoils(&self) -> bool {
        self.spoils.load(Relaxed)
    }

    /// Sets the probability that a bit on a link is wrong, in both directions.
    ///
    /// # Errors
    ///
    /// If there is no such link.
    pub(crate) fn set_bit_errors(
        &self,
        shape: &Shape,
        (node, port): (Coords, Port),
        rate: ErrorRate,
    ) -> Result<(), NoSuchLink>
    where
        B: Disturb,
    {
        let ends = both_ends(shape, node, port)?;
        self.change(|hooks| {
            let mut bits = BitErrors::after(hooks.bits.as_deref());
            let any = bits.set(ends, rate);
            hooks.bits = any.then(|| Arc::new(bits));
        });
        Ok(())
    }

    fn change(&self, change: impl FnOnce(&mut Hooks<B>)) {
        let mut hooks = write(&self.hooks);
        change(&mut hooks);
        let Hooks { tap, faults, bits, cables } = &*hooks;
        let spoils = faults.is_some() || bits.is_some();
        self.spoils.store(spoils, Relaxed);
        let any = tap.is_some() || spoils || cables.is_some();
        // Where packets take time, one that is marked as bad is counted on its further way, too.
        let routers = self.routers.is_due() || self.modelled && self.routers.has_any();
        self.on.store(any || routers || self.always_on, Relaxed);
    }

    /// Makes this tap, or none, observe all packets from now on. The previous one may still observe
    /// packets that are in flight.
    pub fn set_tap(&self, tap: Option<Arc<dyn Tap<B>>>) {
        self.change(|hooks| hooks.tap = tap);
    }

    /// Makes these cables, or none, take packets to other shards.
    pub(crate) fn set_cables(&self, cables: Option<Arc<dyn Cables<B>>>) {
        self.change(|hooks| hooks.cables = cables);
    }

    /// Sets the faults that happen from now on, or none. Counters start from 0.
    ///
    /// # Errors
    ///
    /// If a link that is named does not exist. Nothing changes then.
    pub fn set_faults(&self, shape: &Shape, plan: Option<FaultPlan>) -> Result<(), NoSuchLink>
    where
        B: Disturb,
    {
        let faults = plan.map(|plan| Faults::new(shape, plan)).transpose()?;
        self.change(|hooks| hooks.faults = faults.map(Arc::new));
        Ok(())
    }

    /// The faults, and how often they have happened since they were set.
    pub fn faults(&self) -> Option<(FaultPlan, FaultCounters)> {
        let faults = read(&self.hooks).faults.clone()?;
        Some((faults.plan().clone(), faults.counters()))
    }

    /// Makes packets meet these errors where they leave the router of a node, from now on.
    pub fn set_router_errors(&self, node: NodeId, errors: Arc<MemoryErrors>) {
        self.change(|_| self.routers.set(node, errors));
    }

    /// Adds what routers have found in packets to the counters of a port.
    pub fn count_router_errors(&self, counters: &mut PortCounters, node: NodeId, port: Port) {
        self.routers.add_to(counters, node, port);
    }

    /// Calls this with what there is now.
    pub fn with<T>(&self, shows: impl FnOnce(&mut Equipped<'_, B>) -> T) -> T {
        if self.routers.is_due() {
            self.change(|_| self.routers.prune());
        }
        // A tap and cables may take their time, and may be exchanged meanwhile.
        let Hooks { tap, faults, bits, cables } = read(&self.hooks).clone();
        let (tap, faults, bits) = (tap.as_deref(), faults.as_deref(), bits.as_deref());
        let (held, cables, routers) = (&self.held, cables.as_deref(), &*self.routers);
        shows(&mut Equipped { tap, faults, bits, held, cables, routers })
    }

    /// Releases all packets that are held back.
    pub fn release(&self, out: &mut dyn Deliver<B>) {
        let all = std::mem::take(&mut *lock(&self.held));
        if all.is_empty() {
            return;
        }
        self.with(|equipped| {
            for held in all {
                equipped.deliver(held.at, held.packet, out);
            }
        });
    }
}

/// The most packets that are held back; further ones are not delayed.
const MOST_HELD: usize = 256;

/// Packets that faults hold back.
type HeldBack<B> = Mutex<VecDeque<Held<B>>>;

/// A packet that waits at its target until others have overtaken it.
struct Held<B> {
    at: NodeId,
    others: u32,
    packet: Packet<B>,
}

/// The tap and the faults, if any, and packets that faults hold back: what a carrier shows packets
/// to on their way.
pub struct Equipped<'a, B> {
    tap: Option<&'a dyn Tap<B>>,
    faults: Option<&'a Faults<B>>,
    bits: Option<&'a BitErrors<B>>,
    held: &'a HeldBack<B>,
    /// The cables to other shards of the machine.
    cables: Option<&'a dyn Cables<B>>,
    routers: &'a RouterErrors,
}

impl<B> Equipped<'_, B> {
    /// Returns true if a tap, faults, or wrong bits of links or routers apply to packets on links.
    pub fn sees_links(&self) -> bool {
        let spoils = self.faults.is_some() || self.bits.is_some();
        self.tap.is_some() || spoils || self.routers.has_any()
    }

    /// Shows the tap a packet at a point of a node.
    pub fn observe(&self, node: NodeId, point: TapPoint, direction: Direction, packet: &Packet<B>) {
        if let Some(tap) = self.tap {
            tap.observe(Observation { node, point, direction, vc: None, link: None }, packet);
        }
    }

    /// Shows the tap a packet on a link, or one of its frames, and returns its fate.
    pub fn cross(&self, hop: Hop, link: Option<OnLink>, packet: &mut Packet<B>) -> Fate {
        self.routers.cross(hop, packet);
        let [out, into] = ends(hop, link);
        if let Some(tap) = self.tap {
            tap.observe(out, packet);
        }
        let mut fate = self.faults.map(|faults| faults.apply(hop, packet)).unwrap_or_default();
        fate.lost = fate.lost || self.bits.is_some_and(|bits| !bits.apply(hop, packet));
        if let Some(tap) = self.tap.filter(|_| !fate.lost) {
            tap.observe(into, packet);
        }
        fate
    }

    /// Shows the tap a frame to which no new fault applies: it is a retransmission, or was bad
    /// before.
    pub fn pass(&self, hop: Hop, link: OnLink, packet: &Packet<B>) {
        if let Some(tap) = self.tap {
            ends(hop, Some(link)).into_iter().for_each(|end| tap.observe(end, packet));
        }
    }

    /// The same for a frame without a TLP.
    pub fn said(&self, hop: Hop, link: OnLink, dllp: Dllp) {
        if let Some(tap) = self.tap {
            let [out, into] = ends(hop, Some(link)).map(|end| Observation { vc: None, ..end });
            tap.observe_dllp(out, hop.to, dllp);
            if link.check != Check::Bad {
                tap.observe_dllp(into, hop.from, dllp);
            }
        }
    }

    /// Hands a packet to its target.
    fn deliver(&self, node: NodeId, packet: Packet<B>, out: &mut dyn Deliver<B>) {
        self.observe(node, TapPoint::Tni(packet.dst_tni), Direction::In, &packet);
        out.arrived(node, packet);
    }

    /// Duplicates a packet, if possible.
    pub fn duplicate(&self, packet: &Packet<B>) -> Option<Packet<B>> {
        self.faults?.duplicate(packet)
    }

    /// Delivers a packet to its target, where `held` packets are to overtake it.
    pub fn arrive(
        &self,
        at: NodeId,
        packet: Packet<B>,
        held: Option<u32>,
        out: &mut dyn Deliver<B>,
    ) {
        let (Some(faults), Class::System) = (self.faults, packet.class) else {
            self.deliver(at, packet, out);
            return;
        };
        let mut waiting = lock(self.held);
        if let Some(others) = held.filter(|_| waiting.len() < MOST_HELD) {
            waiting.push_back(Held { at, others, packet });
            drop(waiting);
            faults.count_held();
            out.held();
            return;
        }
        let mut due = Vec::new();
        for held in waiting.iter_mut().filter(|held| held.at == at) {
            held.others = held.others.saturating_sub(1);
        }
        while let Some(index) = waiting.iter().position(|held| held.others == 0) {
            due.extend(waiting.remove(index));
        }
        drop(waiting);
        self.deliver(at, packet, out);
        for held in due {
            self.deliver(held.at, held.packet, out);
        }
    }
}

impl<B> fmt::Debug for Equipped<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Equipped").field("sees_links", &self.sees_links()).finish_non_exhaustive()
    }
}

impl<B> Observer<B> for Equipped<'_, B> {
    fn entered(&mut self, node: NodeId, packet: &Packet<B>) {
        self.observe(node, TapPoint::Tni(packet.src_tni.get()), Direction::Out, packet);
    }

    fn crossed(&mut self, hop: Hop, packet: &mut Packet<B>) -> Fate {
        self.cross(hop, None, packet)
    }

    fn came_in(&mut self, hop: Hop, packet: &Packet<B>) {
        let [_, into] = ends(hop, None);
        if let Some(tap) = self.tap {
            tap.observe(into, packet);
        }
    }

    fn leave(&mut self, to: ShardId, crossing: Crossing<B>) -> Option<Crossing<B>> {
        match self.cables {
            Some(cables) => cables.send(to, crossing),
            None => Some(crossing),
        }
    }

    fn duplicate(&mut self, packet: &Packet<B>) -> Option<Packet<B>> {
        Equipped::duplicate(self, packet)
    }

    fn lost(&mut self, at: NodeId, port: Option<Port>, reason: DiscardReason, packet: &Packet<B>) {
        let point = port.map_or(TapPoint::Tni(packet.src_tni.get()), TapPoint::Port);
        self.observe(at, point, Direction::Lost(reason), packet);
    }

    fn arrived(
        &mut self,
        at: NodeId,
        packet: Packet<B>,
        held: Option<u32>,
        out: &mut dyn Deliver<B>,
    ) {
        self.arrive(at, packet, held, out);
    }
}
