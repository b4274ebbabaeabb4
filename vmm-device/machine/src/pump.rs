//! Drives devices: takes packets from one to the next until none is under way.

use std::collections::VecDeque;

use tofu_abi::Rcode;
use tofu_fabric::{Carrier, Deliver, DiscardReason, NodeId, Packet, Port};
use tofu_icc::{Body, Net, discard_rcode};

use crate::shared::Shared;

/// How long a fault holds a packet back that nobody overtakes, in nanoseconds.
const HOLD_NS: u64 = 1_000_000;
/// The engine that lets such packets go.
pub(crate) const RELEASES: usize = 0;

/// A thread's view of the network.
///
/// A packet that is injected is not handled by its target at once but queued, so that no
/// device is ever called from within another one.
pub struct Pump<'a> {
    shared: &'a Shared,
    arrivals: VecDeque<Arrival>,
    now_ns: u64,
}

enum Arrival {
    Arrived(NodeId, Packet<Body>),
    Discarded(NodeId, Option<Port>, DiscardReason, Packet<Body>),
}

impl<'a> Pump<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        Self { shared, arrivals: VecDeque::new(), now_ns: shared.now_ns() }
    }

    /// Lets packets go that a fault holds back.
    pub(crate) fn release(&mut self) {
        let shared = self.shared;
        shared.wires.release(self);
        self.progress();
    }

    /// Reads the clock.
    pub(crate) fn refresh(&mut self) {
        self.now_ns = self.shared.now_ns();
    }
}

impl Deliver<Body> for Pump<'_> {
    fn arrived(&mut self, node: NodeId, packet: Packet<Body>) {
        self.arrivals.push_back(Arrival::Arrived(node, packet));
    }

    fn discarded(
        &mut self,
        at: NodeId,
        port: Option<Port>,
        reason: DiscardReason,
        packet: Packet<Body>,
    ) {
        self.arrivals.push_back(Arrival::Discarded(at, port, reason, packet));
    }

    fn held(&mut self) {
        let deadline = self.now_ns.saturating_add(HOLD_NS);
        self.shared.engines[RELEASES].want(deadline);
    }
}

impl Net for Pump<'_> {
    fn inject(&mut self, packet: Packet<Body>) {
        let shared = self.shared;
        shared.wires.inject(packet, self);
    }

    fn progress(&mut self) {
        while let Some(event) = self.arrivals.pop_front() {
            match event {
                Arrival::Arrived(node, packet) => match self.shared.node(node) {
                    Some(target) => target.icc().arrive(packet, self),
                    // A place of the machine whose device is not there, or not yet: it answers as
                    // one in its reset state.
                    None => self.undeliverable(Rcode::TARGET_DMA_OFF, &packet),
                },
                Arrival::Discarded(at, port, reason, packet) => {
                    self.lost(at, port, reason, &packet);
                }
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }
}

impl Pump<'_> {
    /// Tells the router that lost a packet, and the node that sent it.
    fn lost(&self, at: NodeId, port: Option<Port>, reason: DiscardReason, packet: &Packet<Body>) {
        if let Some(node) = self.shared.node(at) {
            node.icc().router_event(port, reason);
        }
        self.undeliverable(discard_rcode(reason), packet);
    }

    /// Tells the node that sent a packet that it did not arrive.
    fn undeliverable(&self, code: Rcode, packet: &Packet<Body>) {
        let source = self.shared.fabric().shape().node_id(packet.src);
        if let Some(node) = source.and_then(|id| self.shared.node(id)) {
            node.icc().undeliverable(packet, code, self.now_ns);
        }
    }
}
