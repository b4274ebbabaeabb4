//! The carrier of a machine: direct or modelled, with a place for a tap and for faults.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use tofu_abi::{Coords, Path, TniId};
use tofu_links::ErrorRate;

use crate::carrier::{Cables, Crossing, Lost, Stray, Trip};
use crate::equipment::{Equipment, Equipped};
use crate::modelled::ModelledLinks;
use crate::shard::ShardId;
use crate::{
    Carrier, Deliver, Direct, Disturb, Fabric, FaultCounters, FaultPlan, MemoryErrors, NoSuchLink,
    NodeId, Packet, Port, Ps, Shape, Tap, Tapped, Timing, Ways,
};

/// Takes packets over links in modelled time. It has no clock: its driver says until when it runs.
pub trait ModelledCarrier<B>: Send + Sync {
    /// Returns true if a TNI accepts another request.
    fn has_room(&self, node: NodeId, tni: TniId) -> bool;

    /// Accepts a packet. It sets out at the next turn.
    fn inject(&self, packet: Packet<B>);

    /// Returns true if packets have come in since the last turn.
    fn has_mail(&self) -> bool;

    /// Runs until `limit`, or for one turn, and accepts what was sent. `equipped` sees each packet
    /// at every hop.
    fn turn(&self, limit: Ps, equipped: &Equipped<'_, B>, out: &mut dyn Deliver<B>) -> Progress;

    /// The same up to the next event, for drivers without a clock.
    fn step(&self, equipped: &Equipped<'_, B>, out: &mut dyn Deliver<B>) -> Progress;

    /// Drops all packets, as it is not driven any more.
    fn abandon(&self);
}

/// The time up to which links in modelled time have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Time on the links, in picoseconds.
    pub now: Ps,
    /// The time of the next event; `now` if packets were injected since; `None` if nothing is in
    /// flight.
    pub next: Option<Ps>,
}

/// A carrier whose packets a [`Tap`] can observe and faults can disturb.
///
/// If links are [modelled](Wires::modelled), packets take time, and a thread must call
/// [`Wires::turn`] to drive them. Otherwise this is a [`Direct`] carrier; without tap and faults,
/// the choice costs a packet one relaxed load.
pub struct Wires<B> {
    direct: Direct,
    modelled: Option<Box<dyn ModelledCarrier<B>>>,
    /// It is on if packets do not just go the direct way: there is a tap, faults or cables, or
    /// links are modelled.
    equipment: Equipment<B>,
}

impl<B> fmt::Debug for Wires<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wires").field("direct", &self.direct).finish_non_exhaustive()
    }
}

impl<B> Wires<B> {
    /// Creates wires over these links, without tap and faults.
    pub fn new(fabric: Fabric, timing: Timing) -> Self {
        Self::with_carrier(fabric, timing, None)
    }

    /// Creates wires over links in modelled time. `carrier` moves packets over them.
    pub fn modelled(
        shape: Shape,
        links: Arc<dyn ModelledLinks>,
        carrier: Box<dyn ModelledCarrier<B>>,
    ) -> Self {
        let timing = Timing::of(&links.parameters());
        Self::with_carrier(Fabric::modelled(shape, links), timing, Some(carrier))
    }

    fn with_carrier(
        fabric: Fabric,
        timing: Timing,
        modelled: Option<Box<dyn ModelledCarrier<B>>>,
    ) -> Self {
        let takes_time = modelled.is_some();
        let equipment = Equipment::of(Arc::clone(fabric.routers()), takes_time, takes_time);
        Self { direct: Direct::new(Arc::new(fabric), timing), equipment, modelled }
    }

    /// The links.
    pub const fn fabric(&self) -> &Arc<Fabric> {
        self.direct.fabric()
    }

    /// Makes this tap, or none, observe all packets from now on. The previous one may still observe
    /// packets that are in flight.
    pub fn set_tap(&self, tap: Option<Arc<dyn Tap<B>>>) {
        self.equipment.set_tap(tap);
    }

    /// Makes these cables take packets to other shards of the machine. Without cables, those shards
    /// are absent.
    pub fn set_cables(&self, cables: Option<Arc<dyn Cables<B>>>) {
        self.equipment.set_cables(cables);
    }

    /// Takes a packet that has come over a cable from another shard of the machine on to its target
    /// or to the next shard.
    ///
    /// The packet is not trusted. The link of the cable follows from its source, target, path and
    /// number of links, and must lead from that shard to this one.
    ///
    /// # Errors
    ///
    /// [`Stray`] if it does not. The packet is then gone, and nothing has been counted.
    pub fn receive(
        &self,
        from: ShardId,
        crossing: Crossing<B>,
        out: &mut dyn Deliver<B>,
    ) -> Result<(), Stray> {
        self.equipment.with(|equipped| self.direct.carry_on(from, crossing, equipped, out))
    }

    /// Makes the tap, if any, observe the ports of these nodes in full: each frame with the header
    /// and trailer of a modelled link, retransmissions, and data-link-layer packets. These nodes
    /// replace those of earlier calls.
    pub fn look_at(&self, nodes: &BTreeSet<NodeId>) {
        self.fabric().look_at(nodes);
    }

    /// Sets the faults that happen from now on, or none. Counters start from 0.
    ///
    /// # Errors
    ///
    /// If a link that is named does not exist. Nothing changes then.
    pub fn set_faults(&self, plan: Option<FaultPlan>) -> Result<(), NoSuchLink>
    where
        B: Disturb,
    {
        self.equipment.set_faults(self.fabric().shape(), plan)
    }

    /// The faults, and how often they have happened since they were set.
    pub fn faults(&self) -> Option<(FaultPlan, FaultCounters)> {
        self.equipment.faults()
    }

    /// Sets the probability that a bit on a link is wrong when it arrives, in both directions. This
    /// is for links whose errors the devices correct.
    ///
    /// # Errors
    ///
    /// If there is no such link.
    pub fn set_bit_errors(
        &self,
        node: Coords,
        port: Port,
        rate: ErrorRate,
    ) -> Result<(), NoSuchLink>
    where
        B: Disturb,
    {
        self.equipment.set_bit_errors(self.fabric().shape(), (node, port), rate)
    }

    /// Returns true if links have faults or such errors.
    pub fn spoils(&self) -> bool {
        self.equipment.spoils()
    }

    /// Makes packets meet these errors where they leave the router of a node, from now on.
    pub fn set_router_errors(&self, node: NodeId, errors: Arc<MemoryErrors>) {
        self.equipment.set_router_errors(node, errors);
    }

    /// Releases all packets that are held back.
    pub fn release(&self, out: &mut dyn Deliver<B>) {
        self.equipment.release(out);
    }

    /// Returns true if there is a tap, a fault, a cable or a modelled link on the packet path.
    #[inline]
    pub fn is_observed(&self) -> bool {
        self.equipment.is_on()
    }

    /// Returns true if packets take time.
    #[inline]
    pub const fn is_modelled(&self) -> bool {
        self.modelled.is_some()
    }

    /// Carries a packet over its route without moving it in memory, if nothing
    /// [observes](Wires::is_observed) it. Returns where it has arrived or was lost; `Deliver` is
    /// not called. Returns `None` if something observes it. The packet has then not been sent, and
    /// the caller must use [`Carrier::inject`]. `ways` is the thread's cache of routes.
    #[inline]
    pub fn pass(&self, packet: &mut Packet<B>, ways: &mut Ways) -> Option<Result<NodeId, Lost>> {
        (!self.is_observed()).then(|| self.direct.pass(packet, ways))
    }

    /// The way of a request from one node to another and of its answer by a path, for a carrier
    /// that has the request carried out where it is. `None` if something
    /// [observes](Wires::is_observed) packets or one of their links is not up; the request must
    /// then be sent. `ways` is the thread's cache of routes. `key` stands for the ends: it is the
    /// same for the same ends, and only for these.
    #[inline]
    pub fn trip<'a>(
        &'a self,
        key: [u64; 2],
        ends: impl FnOnce() -> (Coords, Coords, Path),
        ways: &'a mut Ways,
    ) -> Option<Trip<'a>> {
        if self.is_observed() {
            return None;
        }
        self.direct.trip(key, ends, ways)
    }

    /// Returns true if a TNI of a node accepts another request. If not, [`Deliver::room`] is called
    /// when it does.
    #[inline]
    pub fn has_room(&self, node: Coords, tni: TniId) -> bool {
        let Some(modelled) = &self.modelled else { return true };
        let node = self.fabric().shape().node_id(node);
        node.is_none_or(|node| modelled.has_room(node, tni))
    }

    /// Runs modelled links until the time `limit`, in picoseconds, or for a while, and accepts what
    /// was sent. Returns `None` if links are not modelled.
    pub fn turn(&self, limit: Ps, out: &mut dyn Deliver<B>) -> Option<Progress> {
        let modelled = self.modelled.as_ref()?;
        Some(self.equipment.with(|equipped| modelled.turn(limit, equipped, out)))
    }

    /// The same until the next event has happened, at any time.
    pub fn step(&self, out: &mut dyn Deliver<B>) -> Option<Progress> {
        let modelled = self.modelled.as_ref()?;
        Some(self.equipment.with(|equipped| modelled.step(equipped, out)))
    }

    /// Returns true if packets wait for the next turn of modelled links.
    pub fn has_mail(&self) -> bool {
        self.modelled.as_ref().is_some_and(|modelled| modelled.has_mail())
    }

    /// Drops all packets in modelled links, which are not driven any more.
    pub fn abandon(&self) {
        if let Some(modelled) = &self.modelled {
            modelled.abandon();
        }
    }

    #[cold]
    fn inject_observed(&self, packet: Packet<B>, out: &mut dyn Deliver<B>) {
        if let Some(modelled) = &self.modelled {
            modelled.inject(packet);
            return;
        }
        self.equipment.with(|equipped| self.direct.carry(packet, equipped, out));
    }
}

impl<B: Send> Tapped<B> for Wires<B> {
    fn shape(&self) -> &Shape {
        self.fabric().shape()
    }

    fn look_at(&self, nodes: &BTreeSet<NodeId>) {
        Self::look_at(self, nodes);
    }

    fn set_tap(&self, tap: Option<Arc<dyn Tap<B>>>) {
        Self::set_tap(self, tap);
    }
}

impl<B: Send> Carrier<B> for Wires<B> {
    #[inline]
    fn inject(&self, packet: Packet<B>, out: &mut dyn Deliver<B>) {
        if self.is_observed() {
            self.inject_observed(packet, out);
        } else {
            self.direct.inject(packet, out);
        }
    }
}
