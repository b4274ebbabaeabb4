//! The direct carrier with a place for a tap and for faults.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tofu_sync::lock;

use crate::carrier::Observer;
use crate::faults::{Fate, Faults};
use crate::{
    Carrier, Class, Deliver, Direct, Direction, DiscardReason, Disturb, Fabric, FaultCounters,
    FaultPlan, Hop, NoSuchLink, NodeId, Observation, Packet, Port, Tap, TapPoint, Timing,
};

/// Packets that are held back at most; further ones go on at once.
const MOST_HELD: usize = 256;

/// A [`Direct`] carrier whose packets a [`Tap`] can observe and faults can disturb.
///
/// While it does neither, that costs a packet one relaxed load.
pub struct Wires<B> {
    direct: Direct,
    /// Whether there is a tap or there are faults.
    observed: AtomicBool,
    equipment: RwLock<Equipment<B>>,
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
            observed: AtomicBool::new(false),
            equipment: RwLock::new(Equipment { tap: None, faults: None }),
            held: Mutex::new(VecDeque::new()),
        }
    }

    /// The links.
    pub const fn fabric(&self) -> &Arc<Fabric> {
        self.direct.fabric()
    }

    /// Has this tap, or none, observe all packets from now on. The former one may still observe
    /// packets that are under way at the same time.
    pub fn set_tap(&self, tap: Option<Arc<dyn Tap<B>>>) {
        self.change(|equipment| equipment.tap = tap);
    }

    /// Has these faults happen from now on, or none. Counters start from 0.
    ///
    /// # Errors
    ///
    /// If a link that is named is not there. All stays as it was then.
    pub fn set_faults(&self, plan: Option<FaultPlan>) -> Result<(), NoSuchLink>
    where
        B: Disturb,
    {
        let faults = plan.map(|plan| Faults::new(self.fabric(), plan)).transpose()?;
        self.change(|equipment| equipment.faults = faults.map(Arc::new));
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
        let mut equipment = self.equipment.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut equipment);
        self.observed.store(equipment.tap.is_some() || equipment.faults.is_some(), Relaxed);
    }

    fn equipment(&self) -> Equipment<B> {
        self.equipment.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn held(&self) -> MutexGuard<'_, VecDeque<Held<B>>> {
        lock(&self.held)
    }

    #[cold]
    fn inject_observed(&self, packet: Packet<B>, out: &mut dyn Deliver<B>) {
        let Equipment { tap, faults } = self.equipment();
        let mut observer =
            WiresObserver { wires: self, tap: tap.as_deref(), faults: faults.as_deref() };
        self.direct.carry(packet, &mut observer, out);
    }
}

impl<B: Send> Carrier<B> for Wires<B> {
    #[inline]
    fn inject(&self, packet: Packet<B>, out: &mut dyn Deliver<B>) {
        if self.observed.load(Relaxed) {
            self.inject_observed(packet, out);
        } else {
            self.direct.inject(packet, out);
        }
    }
}

/// Shows packets to the tap and applies the faults as they travel.
struct WiresObserver<'a, B> {
    wires: &'a Wires<B>,
    tap: Option<&'a dyn Tap<B>>,
    faults: Option<&'a Faults<B>>,
}

impl<B> WiresObserver<'_, B> {
    fn observe(
        &self,
        node: NodeId,
        point: TapPoint,
        direction: Direction,
        vc: Option<u8>,
        packet: &Packet<B>,
    ) {
        if let Some(tap) = self.tap {
            tap.observe(Observation { node, point, direction, vc }, packet);
        }
    }
}

/// Hands a packet to its target.
fn deliver<B>(tap: Option<&dyn Tap<B>>, node: NodeId, packet: Packet<B>, out: &mut dyn Deliver<B>) {
    if let Some(tap) = tap {
        let point = TapPoint::Tni(packet.dst_tni);
        tap.observe(Observation { node, point, direction: Direction::In, vc: None }, &packet);
    }
    out.arrived(node, packet);
}

impl<B> Observer<B> for WiresObserver<'_, B> {
    fn entered(&mut self, node: NodeId, packet: &Packet<B>) {
        self.observe(node, TapPoint::Tni(packet.src_tni), Direction::Out, None, packet);
    }

    fn crossed(&mut self, hop: Hop, packet: &mut Packet<B>) -> Fate {
        self.observe(hop.from, TapPoint::Port(hop.port), Direction::Out, Some(hop.vc), packet);
        let fate = self.faults.map(|faults| faults.apply(hop, packet)).unwrap_or_default();
        if !fate.lost {
            let port = TapPoint::Port(hop.port.opposite());
            self.observe(hop.to, port, Direction::In, Some(hop.vc), packet);
        }
        fate
    }

    fn duplicate(&mut self, packet: &Packet<B>) -> Option<Packet<B>> {
        self.faults?.duplicate(packet)
    }

    fn lost(&mut self, at: NodeId, port: Option<Port>, reason: DiscardReason, packet: &Packet<B>) {
        let point = port.map_or(TapPoint::Tni(packet.src_tni), TapPoint::Port);
        self.observe(at, point, Direction::Lost(reason), None, packet);
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
