//! Drives devices: carries packets from one to the next until none is in flight.

use std::cell::Cell;
use std::mem;
use std::sync::Arc;

use tofu_abi::{Coords, Doorbell, Rcode, TniId};
use tofu_fabric::{
    Carrier, Deliver, DiscardReason, Fabric, Lost, NodeId, Packet, Port, Progress, Ps, ShardId,
    Ways,
};
use tofu_icc::{Body, Ended, Icc, Net, Transaction, discard_rcode};

use crate::cables::{Incoming, Refused};
use crate::config::MachineConfig;
use crate::device::Device;
use crate::drive::{Drive, View};
use crate::node::{Node, Parent};
use crate::shared::{RELEASES, Shared};
use crate::trace::Recorder;

/// The time for which a fault holds back a packet that no other packet overtakes, in nanoseconds.
const HOLD_NS: u64 = 1_000_000;

/// Maximum capacity of the lists of arrivals that a thread keeps for its next view.
const KEPT: usize = 64;

thread_local! {
    /// State that is kept for this thread's next view, because each doorbell creates a view.
    static ARRIVALS: Cell<Option<Box<Arrivals>>> = const { Cell::new(None) };
}

/// A thread's view of the network.
///
/// A packet that nothing observes on its way is handled by its target before [`Net::inject`]
/// returns, and so is the answer to it. It is not moved in memory. All others wait for
/// [`Net::progress`]: those that a tap, a fault or a cable may take, and signals of gates, each of
/// which can cause others without end.
pub struct Pump<'a> {
    shared: &'a Shared<Icc>,
    /// The thread's, or made when they are first needed.
    arrivals: Option<Box<Arrivals>>,
    now_ns: u64,
}

#[derive(Default)]
struct Arrivals {
    /// Arrivals that are not handled yet.
    waiting: Vec<Arrival>,
    /// Empty: takes what arrives while the other list is handled. Packets are large, so they stay
    /// where they are in a list until they were handled.
    next: Vec<Arrival>,
    /// Ways that this thread has sent packets.
    ways: Ways,
}

impl Arrivals {
    /// Drops what is not handled, and memory for more of it than a view usually needs.
    #[cold]
    fn tidy(&mut self) {
        let Self { waiting, next, ways: _ } = self;
        for list in [waiting, next] {
            list.clear();
            if list.capacity() > KEPT {
                *list = Vec::new();
            }
        }
    }
}

enum Arrival {
    Room(NodeId, TniId),
    Arrived(NodeId, Packet<Body>),
    Discarded(Lost, Packet<Body>),
    Swallowed(Packet<Body>),
    Handled,
}

impl<'a> Pump<'a> {
    pub(crate) fn new(shared: &'a Shared<Icc>) -> Self {
        Self { shared, arrivals: ARRIVALS.take(), now_ns: shared.now_ns() }
    }

    fn arrivals(&mut self) -> &mut Arrivals {
        self.arrivals.get_or_insert_default()
    }
}

/// State that the nodes of a Tofu machine share, beside that of any machine.
pub struct TofuShared {
    pub(crate) recorder: Arc<Recorder>,
}

impl Device for Icc {
    type Body = Body;
    type Work = (TniId, Doorbell);
    type Node = Node;
    type Config = MachineConfig;
    type Extra = TofuShared;
}

impl Drive for Icc {
    /// A page is then protected. The time is long enough for a vCPU that the host has descheduled
    /// to finish the write for which the protection was lifted.
    const POLLED_NS: u64 = 20_000_000;

    type View<'a> = Pump<'a>;

    fn view(shared: &Shared<Self>) -> Pump<'_> {
        Pump::new(shared)
    }

    fn room(node: &Node) {
        TniId::ALL.into_iter().for_each(|tni| node.icc().room(tni));
    }

    fn recorder(extra: &TofuShared) -> Option<&Arc<Recorder>> {
        Some(&extra.recorder)
    }

    fn set_traced(node: &Node, on: bool) {
        node.icc().set_traced(on);
    }

    fn rang(node: &Node, (tni, bell): (TniId, Doorbell), life: Option<u64>) -> bool {
        node.waiting(tni, bell).enter(life)
    }

    fn poll(node: &Node, (tni, bell): (TniId, Doorbell)) -> bool {
        node.icc().poll_doorbell(tni, bell)
    }

    fn doze(node: &Node, (tni, bell): (TniId, Doorbell)) -> bool {
        node.protect(tni, bell)
    }
}

impl View<Icc> for Pump<'_> {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// A doorbell that rang before the queue was last enabled has no effect.
    fn run(&mut self, node: &Node, (tni, bell): (TniId, Doorbell)) -> bool {
        self.run_once(node, (tni, bell), |pump| pump.now_ns = pump.shared.now_ns())
    }

    fn expire(&mut self, node: &Node) -> u64 {
        node.expire(self.now_ns)
    }

    fn release(&mut self) {
        let shared = self.shared;
        shared.wires.release(self);
        self.progress();
    }

    fn take(&mut self, from: ShardId, incoming: Incoming<Body>) -> Result<(), Refused> {
        let shared = self.shared;
        match incoming {
            Incoming::Packet(crossing) => shared.wires.receive(from, crossing, self)?,
            Incoming::Undelivered(code, packet) => self.undeliverable(code, &packet),
        }
        self.progress();
        Ok(())
    }

    fn turn(&mut self, limit: Option<Ps>) -> Option<Progress> {
        let shared = self.shared;
        let progress = match limit {
            Some(limit) => shared.wires.turn(limit, self),
            None => shared.wires.step(self),
        };
        self.progress();
        progress
    }
}

impl Parent for Shared<Icc> {
    fn now_ns(&self) -> u64 {
        self.now_ns()
    }

    fn fabric(&self) -> &Arc<Fabric> {
        self.fabric()
    }

    fn run(&self, node: &Node, tni: TniId, bell: Doorbell) -> bool {
        // A new view has just read the clock.
        Pump::new(self).run_once(node, (tni, bell), |_| {})
    }
}

impl Drop for Pump<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(mut arrivals) = self.arrivals.take() else { return };
        if arrivals.waiting.capacity() | arrivals.next.capacity() != 0 {
            arrivals.tidy();
        }
        // A thread that is ending has no memory for another view.
        let _ = ARRIVALS.try_with(|kept| kept.set(Some(arrivals)));
    }
}

impl Deliver<Body> for Pump<'_> {
    fn arrived(&mut self, node: NodeId, packet: Packet<Body>) {
        self.arrivals().waiting.push(Arrival::Arrived(node, packet));
    }

    fn discarded(
        &mut self,
        at: NodeId,
        port: Option<Port>,
        reason: DiscardReason,
        packet: Packet<Body>,
    ) {
        self.arrivals().waiting.push(Arrival::Discarded(Lost { at, port, reason }, packet));
    }

    fn swallowed(&mut self, packet: Packet<Body>) {
        self.arrivals().waiting.push(Arrival::Swallowed(packet));
    }

    fn link_failed(&mut self, node: NodeId, port: Port) {
        self.shared.link_failed(node, port);
    }

    fn room(&mut self, node: NodeId, tni: TniId) {
        self.arrivals().waiting.push(Arrival::Room(node, tni));
    }

    fn held(&mut self) {
        let deadline = self.now_ns.saturating_add(HOLD_NS);
        self.shared.engines[RELEASES].want(deadline);
    }
}

impl Net for Pump<'_> {
    fn has_room(&self, node: Coords, tni: TniId) -> bool {
        self.shared.has_room(node, tni)
    }

    fn can_be_full(&self) -> bool {
        self.tells_of_frames() || self.shared.cables.is_some()
    }

    fn tells_of_frames(&self) -> bool {
        self.shared.wires.is_modelled()
    }

    fn inject(&mut self, mut packet: Packet<Body>) {
        let shared = self.shared;
        match shared.wires.pass(&mut packet, &mut self.arrivals().ways) {
            Some(Ok(node)) if !matches!(packet.body, Body::Signal(_)) => {
                self.arrive(node, &packet);
            }
            Some(end) => self.wait(end, packet),
            None => self.inject_observed(packet),
        }
    }

    fn transacts(&self) -> bool {
        !self.shared.wires.is_observed()
    }

    #[inline]
    fn transact(&mut self, whole: &Transaction<'_>) -> Option<Ended> {
        let (shared, now_ns) = (self.shared, self.now_ns);
        let trip = shared.wires.trip(whole.key(), || whole.ends(), &mut self.arrivals().ways)?;
        let target = shared.node(trip.target())?;
        let served = target.icc().serve_transaction(whole, now_ns)?;
        Some(served.over(trip.there(whole.there()), trip.back(whole.back())))
    }

    fn progress(&mut self) {
        if self.arrivals.as_ref().is_some_and(|arrivals| !arrivals.waiting.is_empty()) {
            self.handle_waiting();
        }
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }
}

impl Pump<'_> {
    /// Handles arrivals until none waits.
    #[cold]
    fn handle_waiting(&mut self) {
        while let Arrivals { waiting, next, .. } = self.arrivals()
            && !waiting.is_empty()
        {
            let mut arrivals = mem::replace(waiting, mem::take(next));
            if let Some((last, others)) = arrivals.split_last_mut() {
                for arrival in others {
                    self.handle(arrival);
                    // Drops the arrival, and the memory that it pins, before the next one is
                    // handled.
                    *arrival = Arrival::Handled;
                }
                self.handle(last);
            }
            arrivals.clear();
            self.arrivals().next = arrivals;
        }
    }

    /// Reports the last packet as lost, or passes it to the observers of packets.
    #[cold]
    fn wait(&mut self, end: Result<NodeId, Lost>, packet: Packet<Body>) {
        self.arrivals().waiting.push(match end {
            Ok(node) => Arrival::Arrived(node, packet),
            Err(lost) => Arrival::Discarded(lost, packet),
        });
    }

    /// Gives a packet to what observes it.
    #[cold]
    fn inject_observed(&mut self, packet: Packet<Body>) {
        let shared = self.shared;
        shared.wires.inject(packet, self);
        if shared.wires.is_modelled() {
            shared.courier.sent(self.now_ns);
        }
    }

    /// Runs a queue for one turn, unless its doorbell rang in an earlier life. `set_clock` is
    /// called before.
    fn run_once(
        &mut self,
        node: &Node,
        (tni, bell): (TniId, Doorbell),
        set_clock: impl FnOnce(&mut Self),
    ) -> bool {
        let waiting = node.waiting(tni, bell);
        if !waiting.leave() {
            return false;
        }
        set_clock(self);
        node.icc().run_queue(tni, bell, self) && waiting.enter(None)
    }

    fn handle(&mut self, arrival: &Arrival) {
        match arrival {
            Arrival::Arrived(node, packet) => {
                if self.tells_of_frames() && self.shared.node(*node).is_some() {
                    self.frame_passed(packet);
                }
                self.arrive(*node, packet);
            }
            Arrival::Room(node, tni) => {
                if let Some(node) = self.shared.node(*node) {
                    node.icc().room(*tni);
                }
            }
            Arrival::Discarded(lost, packet) => self.lost(*lost, packet),
            // The sender does not notice the loss either: its command ends as if the packet had
            // arrived.
            Arrival::Swallowed(packet) => self.frame_passed(packet),
            Arrival::Handled => {}
        }
    }

    /// Lets its target handle a packet.
    #[inline]
    fn arrive(&mut self, node: NodeId, packet: &Packet<Body>) {
        match self.shared.node(node) {
            Some(target) => target.icc().arrive(packet, self),
            // A place of the machine without a device, or without one yet. It answers like a device
            // in its reset state.
            None => self.undeliverable(Rcode::TARGET_DMA_OFF, packet),
        }
    }

    /// Reports a lost packet to the router that lost it and to the node that sent it.
    fn lost(&self, Lost { at, port, reason }: Lost, packet: &Packet<Body>) {
        if let Some(node) = self.shared.node(at) {
            node.icc().router_event(port, reason);
        }
        self.undeliverable(discard_rcode(reason), packet);
    }

    /// Tells the node that sent a raw or system packet that it has arrived.
    fn frame_passed(&self, packet: &Packet<Body>) {
        if let Body::Frame { tag, .. } = &packet.body
            && let Some(source) = self.source(packet)
        {
            source.frame_passed(packet.src_tni, *tag, self.now_ns);
        }
    }

    fn source(&self, packet: &Packet<Body>) -> Option<&Icc> {
        let node = self.shared.fabric().shape().node_id(packet.src)?;
        self.shared.node(node).map(|node| node.icc())
    }

    /// Tells the node that sent a packet that it did not arrive.
    fn undeliverable(&self, code: Rcode, packet: &Packet<Body>) {
        if let Some(source) = self.source(packet) {
            source.undeliverable(packet, code, self.now_ns);
            return;
        }
        let fabric = self.shared.fabric();
        let shard = fabric.shape().node_id(packet.src).and_then(|node| fabric.elsewhere(node));
        if let (Some(cables), Some(shard)) = (&self.shared.cables, shard) {
            cables.report(shard, code, packet);
        }
    }
}
