//! The direct carrier with a place for a tap and for faults.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::carrier::Watch;
use crate::faults::{Fate, Faults};
use crate::{
    Carrier, Class, Deliver, Direct, Direction, DiscardReason, Disturb, Fabric, FaultCounters,
    FaultPlan, Hop, NoSuchLink, NodeId, Packet, Place, Port, Sight, Tap, Timing,
};

/// Packets that are held back at most; further ones go on at once.
const MOST_HELD: usize = 256;

/// A [`Direct`] carrier that can show packets to a [`Tap`], and disturb them.
///
/// While it does neither, that costs a packet one relaxed load.
pub struct Wires<B> {
    direct: Direct,
    /// Whether there is a tap or there are faults.
    watched: AtomicBool,
    watch: RwLock<Equipment<B>>,
    held: Mutex<VecDeque<Held<B>>>,
}

struct Equipment<B> {
    tap: Option<Arc<dyn Tap<B>>>,
    faults: Option<Arc<Faults<B>>>,
}

impl<B> Clone for Equipment<B> {
    fn clone(&self) -> Self {
        Self { tap: self.tap.clone(), faults: self.faults.clone() }
    }
}

/// A packet that waits at its target until others have overtaken it.
struct Held<B> {
    at: NodeId,
    others: u32,
    packet: Packet<B>,
}

impl<B> fmt::Debug for Wires<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wires").field("direct", &self.direct).finish_non_exhaustive()
    }
}

impl<B> Wires<B> {
    /// Wires over these links, without tap and faults.
    pub fn new(fabric: Arc<Fabric>, timing: Timing) -> Self {
        Self {
            direct: Direct::new(fabric, timing),
            watched: AtomicBool::new(false),
            watch: RwLock::new(Equipment { tap: None, faults: None }),
            held: Mutex::new(VecDeque::new()),
        }
    }

    /// The links.
    pub const fn fabric(&self) -> &Arc<Fabric> {
        self.direct.fabric()
    }

    /// Shows all packets to this tap from now on, or to none. Packets under way at the same time
    /// may still be shown to the former one.
    pub fn set_tap(&self, tap: Option<Arc<dyn Tap<B>>>) {
        self.change(|watch| watch.tap = tap);
    }

    /// Has these faults happen from now on, or none. Counters start anew.
    ///
    /// # Errors
    ///
    /// If a link that is named is not there. All stays as it was then.
    pub fn set_faults(&self, plan: Option<FaultPlan>) -> Result<(), NoSuchLink>
    where
        B: Disturb,
    {
        let faults = plan.map(|plan| Faults::new(self.fabric(), plan)).transpose()?;
        self.change(|watch| watch.faults = faults.map(Arc::new));
        Ok(())
    }

    /// The faults there are, and how often they happened since they were set.
    pub fn faults(&self) -> Option<(FaultPlan, FaultCounters)> {
        let faults = self.equipment().faults?;
        Some((faults.plan().clone(), faults.counters()))
    }

    /// Lets all packets go that are held back.
    pub fn release(&self, out: &mut dyn Deliver<B>) {
        let all = std::mem::take(&mut *self.held());
        if all.is_empty() {
            return;
        }
        let tap = self.equipment().tap;
        for held in all {
            deliver(tap.as_deref(), held.at, held.packet, out);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Equipment<B>)) {
        let mut watch = self.watch.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut watch);
        self.watched.store(watch.tap.is_some() || watch.faults.is_some(), Relaxed);
    }

    fn equipment(&self) -> Equipment<B> {
        self.watch.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn held(&self) -> MutexGuard<'_, VecDeque<Held<B>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn inject_watched(&self, packet: Packet<B>, out: &mut dyn Deliver<B>) {
        let Equipment { tap, faults } = self.equipment();
        let mut watching = Watching { wires: self, tap: tap.as_deref(), faults: faults.as_deref() };
        self.direct.carry(packet, &mut watching, out);
    }
}

impl<B: Send> Carrier<B> for Wires<B> {
    #[inline]
    fn inject(&self, packet: Packet<B>, out: &mut dyn Deliver<B>) {
        if self.watched.load(Relaxed) {
            self.inject_watched(packet, out);
        } else {
            self.direct.inject(packet, out);
        }
    }
}

/// What looks on as a packet travels.
struct Watching<'a, B> {
    wires: &'a Wires<B>,
    tap: Option<&'a dyn Tap<B>>,
    faults: Option<&'a Faults<B>>,
}

impl<B> Watching<'_, B> {
    fn show(
        &self,
        node: NodeId,
        place: Place,
        direction: Direction,
        vc: Option<u8>,
        packet: &Packet<B>,
    ) {
        if let Some(tap) = self.tap {
            tap.seen(Sight { node, place, direction, vc }, packet);
        }
    }
}

/// Hands a packet to its target.
fn deliver<B>(tap: Option<&dyn Tap<B>>, node: NodeId, packet: Packet<B>, out: &mut dyn Deliver<B>) {
    if let Some(tap) = tap {
        let place = Place::Tni(packet.dst_tni);
        tap.seen(Sight { node, place, direction: Direction::In, vc: None }, &packet);
    }
    out.arrived(node, packet);
}

impl<B> Watch<B> for Watching<'_, B> {
    fn entered(&mut self, node: NodeId, packet: &Packet<B>) {
        self.show(node, Place::Tni(packet.src_tni), Direction::Out, None, packet);
    }

    fn crossed(&mut self, hop: Hop, packet: &mut Packet<B>) -> Fate {
        self.show(hop.from, Place::Port(hop.port), Direction::Out, Some(hop.vc), packet);
        let fate = self.faults.map(|faults| faults.strike(hop, packet)).unwrap_or_default();
        if !fate.lost {
            let port = Place::Port(hop.port.opposite());
            self.show(hop.to, port, Direction::In, Some(hop.vc), packet);
        }
        fate
    }

    fn double(&mut self, packet: &Packet<B>) -> Option<Packet<B>> {
        self.faults?.double(packet)
    }

    fn lost(&mut self, at: NodeId, port: Option<Port>, reason: DiscardReason, packet: &Packet<B>) {
        let place = port.map_or(Place::Tni(packet.src_tni), Place::Port);
        self.show(at, place, Direction::Lost(reason), None, packet);
    }

    fn arrived(
        &mut self,
        at: NodeId,
        packet: Packet<B>,
        held: Option<u32>,
        out: &mut dyn Deliver<B>,
    ) {
        let (Some(faults), Class::System) = (self.faults, packet.class) else {
            deliver(self.tap, at, packet, out);
            return;
        };
        let mut waiting = self.wires.held();
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
        deliver(self.tap, at, packet, out);
        for held in due {
            deliver(self.tap, held.at, held.packet, out);
        }
    }
}
