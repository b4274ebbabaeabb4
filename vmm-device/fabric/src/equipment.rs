//! What packets meet on their way besides links: a tap, and faults.

use std::collections::VecDeque;
use std::sync::Mutex;

use tofu_sync::lock;

use crate::carrier::Observer;
use crate::faults::{Fate, Faults};
use crate::{
    Class, Deliver, Direction, DiscardReason, Hop, NodeId, Observation, Packet, Port, Tap, TapPoint,
};

/// Packets that are held back at most; further ones go on at once.
const MOST_HELD: usize = 256;

/// Packets that faults hold back.
pub(crate) type HeldBack<B> = Mutex<VecDeque<Held<B>>>;

/// A packet that waits at its target until others have overtaken it.
pub(crate) struct Held<B> {
    pub(crate) at: NodeId,
    others: u32,
    pub(crate) packet: Packet<B>,
}

/// The tap and the faults there are, and packets that these hold back.
pub(crate) struct Equipped<'a, B> {
    pub(crate) tap: Option<&'a dyn Tap<B>>,
    pub(crate) faults: Option<&'a Faults<B>>,
    pub(crate) held: &'a HeldBack<B>,
}

impl<B> Equipped<'_, B> {
    pub(crate) fn observe(
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

    /// What a tap sees of a packet on a link, and what becomes of it there.
    pub(crate) fn cross(&self, hop: Hop, packet: &mut Packet<B>) -> Fate {
        self.observe(hop.from, TapPoint::Port(hop.port), Direction::Out, Some(hop.vc), packet);
        let fate = self.faults.map(|faults| faults.apply(hop, packet)).unwrap_or_default();
        if !fate.lost {
            let port = TapPoint::Port(hop.port.opposite());
            self.observe(hop.to, port, Direction::In, Some(hop.vc), packet);
        }
        fate
    }

    /// Hands a packet to its target.
    pub(crate) fn deliver(&self, node: NodeId, packet: Packet<B>, out: &mut dyn Deliver<B>) {
        self.observe(node, TapPoint::Tni(packet.dst_tni), Direction::In, None, &packet);
        out.arrived(node, packet);
    }

    /// Hands a packet to its target, where `held` others are to overtake it.
    pub(crate) fn arrive(
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

impl<B> Observer<B> for Equipped<'_, B> {
    fn entered(&mut self, node: NodeId, packet: &Packet<B>) {
        self.observe(node, TapPoint::Tni(packet.src_tni), Direction::Out, None, packet);
    }

    fn crossed(&mut self, hop: Hop, packet: &mut Packet<B>) -> Fate {
        self.cross(hop, packet)
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
        self.arrive(at, packet, held, out);
    }
}
