//! The carrier whose packets take time: it sends them through the modelled network.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tofu_abi::TniId;
use tofu_abi::topology::{NodeId, Port, Shape};
use tofu_fabric::{
    Class, Deliver, Direction, DiscardReason, Equipped, GAP_BYTES, Hop, ModelledCarrier, OnLink,
    Packet, Progress, Ps, SENDERS, TNIS, TapPoint, Wires,
};
use tofu_links::{Dllp, Parameters};
use tofu_sync::lock;

use crate::bus::{BusLine, HostBus};
use crate::network::{BadOption, Message, Network, Options, Sink};
use crate::shared::SharedNetwork;

/// Most requests that a TNI holds. More would only make each of them wait longer.
const MOST_REQUESTS: u32 = 16;
/// The time that the network runs in one turn, in picoseconds: others may wait for it that long,
/// and a packet for its turn.
const TURN_PS: Ps = 2_000_000;

/// Creates wires over modelled links of a machine, without tap and faults. Data of nodes also takes
/// time and turns on this bus, if any.
///
/// # Errors
/// [`BadOption`] as [`Network::new`], if the links have impossible parameters.
pub fn wires<B: Send + 'static>(
    shape: Shape,
    parameters: &Parameters,
    bus: Option<HostBus<B>>,
) -> Result<Wires<B>, BadOption> {
    // The carrier has a separate bound.
    let options = Options { backlog: u32::MAX, ..Options::default() };
    let network = Arc::new(SharedNetwork::new(Network::new(shape, parameters, &options)?));
    let carrier = Modelled::new(shape, Arc::clone(&network), bus);
    Ok(Wires::modelled(shape, network, Box::new(carrier)))
}

/// The modelled network with packets in it.
struct Modelled<B> {
    shape: Shape,
    network: Arc<SharedNetwork>,
    bus: Option<HostBus<B>>,
    /// Packets injected since the last turn.
    inbox: Mutex<Vec<Packet<B>>>,
    under_way: Mutex<UnderWay<B>>,
    /// Requests that each TNI holds, node by node.
    requests: Box<[AtomicU32]>,
}

/// Packets in the network, by token. A token has the index of the place in its low half, and a
/// serial number. Each token is unique, because frames of a lost packet may outlive it in the
/// network.
struct UnderWay<B> {
    places: Vec<InFlight<B>>,
    free: Vec<u32>,
    serial: u32,
    /// When the first packet of the latest command of each sender entered, TNI by TNI.
    began: Vec<[Ps; SENDERS]>,
    /// The buses of all nodes, if they are modelled.
    buses: Vec<BusLine>,
    /// Packets that have arrived and are on their way over the bus, by the time of their end and in
    /// the order of arrival.
    landing: BTreeMap<(Ps, u64), (NodeId, Traveller<B>)>,
    landed: u64,
}

/// A packet in the network.
struct InFlight<B> {
    token: u64,
    /// `None` once its fate is known.
    traveller: Option<Traveller<B>>,
    /// True if some of it is still at its TNI.
    at_tni: bool,
    /// True if it takes room there.
    request: bool,
}

struct Traveller<B> {
    packet: Packet<B>,
    since: Ps,
    /// A fault has dropped part of it. Its frames continue, but no observer sees them.
    swallowed: bool,
    /// The duplicate that a fault has made of it.
    double: Option<Box<Packet<B>>>,
    /// The number of packets that are to overtake it at its target.
    held: Option<u32>,
}

impl<B> UnderWay<B> {
    fn new(tnis: usize, buses: usize) -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            serial: 0,
            began: vec![[0; SENDERS]; tnis],
            buses: vec![BusLine::default(); buses],
            landing: BTreeMap::new(),
            landed: 0,
        }
    }

    /// When the next packet will be in memory.
    fn next_landing(&self) -> Option<Ps> {
        self.landing.first_key_value().map(|((at, _), _)| *at)
    }

    /// The start of the time of a packet that enters now at a node: when its command's first packet
    /// entered.
    fn since(&mut self, node: NodeId, packet: &Packet<B>, now: Ps) -> Ps {
        let tni = node.index() * TNIS + packet.src_tni.index();
        let sender = usize::from(packet.sender) % SENDERS;
        let Some(began) = self.began.get_mut(tni).map(|senders| &mut senders[sender]) else {
            return now;
        };
        if packet.before > 0 {
            return *began;
        }
        // Responses belong to other nodes' commands.
        if packet.class != Class::Response {
            *began = now;
        }
        now
    }

    fn insert(&mut self, packet: Packet<B>, since: Ps) -> u64 {
        let request = packet.class != Class::Response;
        let index = self.free.pop().unwrap_or(self.places.len() as u32);
        self.serial = self.serial.wrapping_add(1);
        let token = u64::from(self.serial) << 32 | u64::from(index);
        let traveller = Traveller { packet, since, swallowed: false, double: None, held: None };
        let place = InFlight { token, traveller: Some(traveller), at_tni: true, request };
        match self.places.get_mut(index as usize) {
            Some(free) => *free = place,
            None => self.places.push(place),
        }
        token
    }

    fn place(&mut self, token: u64) -> Option<&mut InFlight<B>> {
        self.places.get_mut(token as u32 as usize).filter(|place| place.token == token)
    }

    /// Removes a packet whose fate is known.
    fn take(&mut self, token: u64) -> Option<Traveller<B>> {
        let place = self.place(token)?;
        let (traveller, free) = (place.traveller.take()?, !place.at_tni);
        if free {
            self.free.push(token as u32);
        }
        Some(traveller)
    }

    /// Notes that all of a packet has left its TNI. Returns whether it took room there.
    fn leave(&mut self, token: u64) -> bool {
        let Some(place) = self.place(token).filter(|place| place.at_tni) else { return false };
        place.at_tni = false;
        let (request, free) = (place.request, place.traveller.is_none());
        if free {
            self.free.push(token as u32);
        }
        request
    }
}

impl<B> Modelled<B> {
    fn new(shape: Shape, network: Arc<SharedNetwork>, bus: Option<HostBus<B>>) -> Self {
        let nodes = shape.nodes() as usize;
        let tnis = nodes * TNIS;
        Self {
            shape,
            network,
            bus,
            inbox: Mutex::default(),
            under_way: Mutex::new(UnderWay::new(tnis, bus.map_or(0, |_| nodes))),
            requests: (0..tnis).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn requests(&self, node: NodeId, tni: TniId) -> Option<&AtomicU32> {
        self.requests.get(node.index() * TNIS + tni.index())
    }
}

impl<B: Send> ModelledCarrier<B> for Modelled<B> {
    fn has_room(&self, node: NodeId, tni: TniId) -> bool {
        self.requests(node, tni).is_none_or(|held| held.load(SeqCst) < MOST_REQUESTS)
    }

    fn inject(&self, packet: Packet<B>) {
        if packet.class != Class::Response
            && let Some(node) = self.shape.node_id(packet.src)
            && let Some(held) = self.requests(node, packet.src_tni)
        {
            held.fetch_add(1, SeqCst);
        }
        lock(&self.inbox).push(packet);
    }

    fn has_mail(&self) -> bool {
        !lock(&self.inbox).is_empty()
    }

    fn turn(&self, limit: Ps, equipped: &Equipped<'_, B>, out: &mut dyn Deliver<B>) -> Progress {
        let mut under_way = lock(&self.under_way);
        let mut network = self.network.drive();
        let mut witness = Witness { carrier: self, under_way: &mut under_way, equipped, out };
        let until = match witness.next(&network) {
            // If no event is due, the network can skip any span of time.
            Some(next) if next <= limit => limit.min(next.max(network.now() + TURN_PS)),
            _ => limit,
        };
        network.run_until(until, &mut witness);
        witness.land(until);
        let mail = std::mem::take(&mut *lock(&self.inbox));
        for packet in mail {
            witness.enter(&mut network, packet);
        }
        Progress { now: network.now(), next: witness.next(&network) }
    }

    fn step(&self, equipped: &Equipped<'_, B>, out: &mut dyn Deliver<B>) -> Progress {
        let limit = {
            let landing = lock(&self.under_way).next_landing();
            let network = self.network.drive();
            let next = network.next_event().into_iter().chain(landing).min();
            next.unwrap_or_else(|| network.now())
        };
        self.turn(limit, equipped, out)
    }

    fn abandon(&self) {
        lock(&self.inbox).clear();
        let mut under_way = lock(&self.under_way);
        under_way.landing.clear();
        for place in &mut under_way.places {
            place.traveller = None;
        }
    }
}

/// Observes what happens in the network.
struct Witness<'a, B> {
    carrier: &'a Modelled<B>,
    under_way: &'a mut UnderWay<B>,
    equipped: &'a Equipped<'a, B>,
    out: &'a mut dyn Deliver<B>,
}

impl<B> Witness<'_, B> {
    /// When the next event is due.
    fn next(&self, network: &Network) -> Option<Ps> {
        network.next_event().into_iter().chain(self.under_way.next_landing()).min()
    }

    /// The time for which each TLP of a packet occupies the bus of the node that sends it.
    fn read_ps(&self, packet: &Packet<B>) -> Ps {
        let Some(bus) = &self.carrier.bus else { return 0 };
        bus.time_ps((bus.data)(&packet.body).0 / u64::from(packet.tlps.max(1)))
    }

    /// When a packet that has arrived at a node will be in its memory.
    fn written(&mut self, at: Ps, node: NodeId, packet: &Packet<B>) -> Ps {
        let Some(HostBus { bytes_per_s, data }) = self.carrier.bus else { return at };
        let Some(bus) = self.under_way.buses.get_mut(node.index()) else { return at };
        let (bytes, tlps) = (data(&packet.body).1, u64::from(packet.tlps.max(1)));
        let last = bytes.saturating_sub(bytes.div_ceil(tlps) * (tlps - 1));
        bus.write(bytes_per_s, at, bytes, last)
    }

    /// Delivers what is in memory by now.
    fn land(&mut self, now: Ps) {
        while let Some(first) = self.under_way.landing.first_entry()
            && first.key().0 <= now
        {
            let ((at, _), (node, traveller)) = first.remove_entry();
            self.arrive(at, node, traveller);
        }
    }

    /// Delivers a packet to its target.
    fn arrive(&mut self, at: Ps, node: NodeId, traveller: Traveller<B>) {
        let Traveller { mut packet, since, double, held, .. } = traveller;
        let model_ps = packet.model_ps.saturating_add(at - since);
        let dst = self.carrier.shape.coords(node).unwrap_or(packet.dst);
        (packet.model_ps, packet.dst) = (model_ps, dst);
        self.equipped.arrive(node, packet, held, self.out);
        if let Some(double) = double {
            self.equipped.arrive(node, Packet { model_ps, dst, ..*double }, None, self.out);
        }
    }

    /// Gives a packet to the network.
    fn enter(&mut self, network: &mut Network, packet: Packet<B>) {
        let shape = self.carrier.shape;
        let at = shape.node_id(packet.src).unwrap_or(NodeId::NOWHERE);
        let tni = packet.src_tni;
        let since = self.under_way.since(at, &packet, network.now());
        let gap = u64::from(packet.gap) * GAP_BYTES;
        let message = Message {
            gap: network.parameters().bytes_on_link_ps(gap),
            bus: self.read_ps(&packet),
            ..Message::of(&packet, network.now(), 0)
        };
        let message = Message { token: self.under_way.insert(packet, since), ..message };
        let token = message.token;
        let refused = network.inject(&message);
        let Some(place) = self.under_way.place(token) else { return };
        let Some(Traveller { packet, .. }) = &place.traveller else { return };
        let Err(refused) = refused else {
            self.equipped.observe(at, TapPoint::Tni(tni.get()), Direction::Out, packet);
            return;
        };
        let (port, reason) = refused.fate();
        self.lose(at, port, reason, token);
        self.give_room(at, tni, token);
    }

    fn lose(&mut self, at: NodeId, port: Option<Port>, reason: DiscardReason, token: u64) {
        let Some(Traveller { packet, swallowed, .. }) = self.under_way.take(token) else { return };
        if swallowed {
            self.out.swallowed(packet);
            return;
        }
        let point = port.map_or(TapPoint::Tni(packet.src_tni.get()), TapPoint::Port);
        self.equipped.observe(at, point, Direction::Lost(reason), &packet);
        self.out.discarded(at, port, reason, packet);
    }

    /// Notes that a packet is no longer at its TNI.
    fn give_room(&mut self, node: NodeId, tni: TniId, token: u64) {
        if !self.under_way.leave(token) {
            return;
        }
        let held = self.carrier.requests(node, tni).map(|held| held.fetch_sub(1, SeqCst));
        // Waiting senders are notified only when the first place becomes free.
        if held == Some(MOST_REQUESTS) {
            self.out.room(node, tni);
        }
    }
}

impl<B> Sink for Witness<'_, B> {
    fn delivered(&mut self, at: Ps, node: NodeId, _: TniId, token: u64) {
        let Some(traveller) = self.under_way.take(token) else { return };
        if traveller.swallowed {
            self.out.swallowed(traveller.packet);
            return;
        }
        let end = self.written(at, node, &traveller.packet);
        if self.carrier.bus.is_none() {
            self.arrive(at, node, traveller);
            return;
        }
        let landed = self.under_way.landed;
        self.under_way.landed += 1;
        self.under_way.landing.insert((end, landed), (node, traveller));
    }

    fn left(&mut self, _: Ps, node: NodeId, tni: TniId, token: u64) {
        self.give_room(node, tni, token);
    }

    fn failed(&mut self, _: Ps, node: NodeId, port: Port) {
        self.out.link_failed(node, port);
    }

    fn lost(&mut self, _: Ps, node: NodeId, port: Option<Port>, reason: DiscardReason, token: u64) {
        self.lose(node, port, reason, token);
    }

    fn wants_hops(&self) -> bool {
        self.equipped.sees_links()
    }

    fn hop(&mut self, _: Ps, hop: &Hop, _: Class, bytes: u32, token: u64, link: Option<OnLink>) {
        if !self.equipped.sees_links() {
            return;
        }
        let Some(place) = self.under_way.place(token) else { return };
        let Some(traveller) = place.traveller.as_mut().filter(|one| !one.swallowed) else { return };
        let packet = &mut traveller.packet;
        // Only one frame of a burst crosses the link now.
        let burst = (packet.tlps, packet.bytes);
        (packet.tlps, packet.bytes) = (1, bytes.into());
        let fate = self.equipped.cross(*hop, link, packet);
        (packet.tlps, packet.bytes) = burst;
        traveller.swallowed = fate.lost;
        traveller.held = traveller.held.max(fate.held);
        if fate.duplicated && traveller.double.is_none() {
            traveller.double = self.equipped.duplicate(packet).map(Box::new);
        }
    }

    fn again(&mut self, _: Ps, hop: &Hop, bytes: u32, token: u64, link: OnLink) {
        let Some(place) = self.under_way.place(token) else { return };
        // If a fault has taken the packet, no observer has seen its first frame either.
        let seen = place.traveller.as_mut().filter(|traveller| !traveller.swallowed);
        let Some(traveller) = seen else { return };
        let packet = &mut traveller.packet;
        let burst = (packet.tlps, packet.bytes);
        (packet.tlps, packet.bytes) = (1, bytes.into());
        self.equipped.pass(*hop, link, packet);
        (packet.tlps, packet.bytes) = burst;
    }

    fn said(&mut self, _: Ps, hop: &Hop, dllp: Dllp, link: OnLink) {
        self.equipped.said(*hop, link, dllp);
    }
}
