//! The state in flight: scheduled events, and packets in interfaces and in the network.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use tofu_abi::topology::{NodeId, Port};
use tofu_abi::{Doorbell, TniId};
use tofu_fabric::{
    Class, Direction, DiscardReason, Equipment, Fate, GAP_BYTES, Hop, OnLink, Packet, Ps, Route,
    TNIS, TapPoint,
};
use tofu_icc::{Body, CommandTiming, Icc, Tag};
use tofu_links::Dllp;
use tofu_netmodel::{BusLine, Message, Network, Refused, Sink};

/// TLPs of a class that an interface reads ahead of the network (*ours*: enough to hide the latency
/// of memory).
pub(crate) const TLPS_AHEAD: u32 = 16;
/// Commands whose data an interface reads at the same time.
const COMMANDS_AHEAD: usize = 2;

/// A scheduled event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    /// A doorbell of a node has rung.
    Doorbell(NodeId, TniId, Doorbell),
    /// An interface can take another command.
    Room(usize),
    /// A packet is in memory, or has been lost.
    Arrive(usize),
    /// A Put of a node counts as sent.
    Sent(NodeId, TniId, Tag),
    /// A node's timer expires.
    Expire(NodeId),
    /// Something may come from outside the machine now.
    Outside,
}

/// The place and the reason of a TLP's loss.
pub(crate) type Loss = (NodeId, Option<Port>, DiscardReason);

/// A packet on its way.
pub(crate) struct InFlight {
    pub(crate) packet: Packet<Body>,
    /// Sizes of all TLPs but the last, and of the last one, in bytes without routing headers.
    sizes: (u16, u16),
    /// TLPs that have arrived at the target or have been lost.
    arrived: u32,
    /// The place and the reason of the first TLP's loss.
    pub(crate) lost: Option<Loss>,
    /// The time for which its interface sends no other TLP of this kind after each of its TLPs.
    gap: Ps,
    /// The earliest time at which it can be at its target.
    earliest: Ps,
    /// The earliest time at which its last TLP can leave its interface; `Ps::MAX` once it has.
    leaves: Ps,
    /// Distinguishes it from others that had its place before, whose frames may still be in the
    /// network.
    serial: u64,
    /// The faults that it has met.
    pub(crate) fate: Met,
}

/// The faults that a packet has met on its way.
#[derive(Default)]
pub(crate) struct Met {
    /// Part of it is gone. Its other frames continue, but no observer sees them.
    pub(crate) swallowed: bool,
    /// A copy of it.
    pub(crate) double: Option<Box<Packet<Body>>>,
    /// The number of packets that are to overtake it at its target.
    pub(crate) held: Option<u32>,
}

/// The name of a TLP in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token {
    /// Its lane.
    lane: usize,
    /// Its number in the packet.
    tlp: u32,
    /// The place of its packet.
    packet: usize,
    /// The low bits of the packet's serial number.
    serial: u64,
}

impl Token {
    const TLP_BITS: u32 = 15;
    const PACKET_BITS: u32 = 24;
    const SERIAL_BITS: u32 = 64 - Self::TLP_BITS - Self::PACKET_BITS - 1;

    const fn to_bits(self) -> u64 {
        let Self { lane, tlp, packet, serial } = self;
        let tlp = tlp as u64 & ((1 << Self::TLP_BITS) - 1);
        ((serial << Self::PACKET_BITS | packet as u64) << Self::TLP_BITS | tlp) << 1 | lane as u64
    }

    const fn from_bits(bits: u64) -> Self {
        Self {
            lane: (bits & 1) as usize,
            tlp: (bits >> 1) as u32 & ((1 << Self::TLP_BITS) - 1),
            packet: (bits >> (1 + Self::TLP_BITS)) as usize & ((1 << Self::PACKET_BITS) - 1),
            serial: bits >> (64 - Self::SERIAL_BITS),
        }
    }

    /// True if its packet is this one.
    const fn is_of(self, flight: &InFlight) -> bool {
        (flight.serial ^ self.serial) << (64 - Self::SERIAL_BITS) == 0
    }
}

/// A packet whose TLPs an interface is sending.
struct Job {
    packet: usize,
    ready_at: Ps,
    sent: u32,
}

/// The state of an interface.
#[derive(Default)]
struct Interface {
    /// When it can start the next command.
    command_free: Ps,
    /// Requests and answers with TLPs still to be read from memory.
    jobs: [VecDeque<Job>; 2],
    /// The places of the packets of Puts that are on their way.
    puts: Vec<usize>,
    /// TLPs of either kind that have been handed to the network and have not left.
    ahead: [u32; 2],
    /// For either kind, true if a gap must follow its last TLP, and the time when its latest gap
    /// ends.
    pauses: [bool; 2],
    quiet: [Ps; 2],
}

/// The mutable state.
pub(crate) struct State {
    pub(crate) network: Network,
    timing: CommandTiming,
    /// The time from when the last TLP of a Put has left until the Put counts as sent.
    sent_ps: Ps,
    /// The controllers, whose registers say where their notices go.
    nodes: Vec<Arc<Icc>>,
    /// Scheduled events, by time and then in the order in which they were scheduled.
    due: BTreeMap<(Ps, u64), Due>,
    serial: u64,
    /// The interfaces of all nodes, node by node.
    interfaces: Vec<Interface>,
    buses: Vec<BusLine>,
    packets: Vec<Option<InFlight>>,
    free: Vec<usize>,
    /// Links that may lose packets, each by the lower one of its ends.
    wrong: BTreeSet<(NodeId, Port, Wrong)>,
    /// Hears of links that have failed by themselves.
    pub(crate) failed: Option<LinkFailed>,
    /// The tap and the faults that packets meet.
    pub(crate) equipment: Arc<Equipment<Body>>,
    /// The time of the engine.
    now: Arc<AtomicU64>,
}

type LinkFailed = Box<dyn Fn(NodeId, Port) + Send + Sync>;

/// The reason why a link may lose packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wrong {
    /// It is down.
    Down,
    /// It has errors, so that it may go down by itself.
    Errors,
}

/// Answers and requests have separate queues.
const fn lane(class: Class) -> usize {
    matches!(class, Class::Response) as usize
}

/// Returns how many of a packet's `bytes` of data are in TLP `index`.
fn data_of(packet: &InFlight, index: u32, bytes: u64) -> u64 {
    let tlps = u64::from(packet.packet.tlps.max(1));
    let each = bytes.div_ceil(tlps);
    each.min(bytes.saturating_sub(each * u64::from(index)))
}

impl State {
    /// Nothing is in flight.
    pub(crate) fn new(
        network: Network,
        timing: CommandTiming,
        iccs: Vec<Arc<Icc>>,
        equipment: Arc<Equipment<Body>>,
        now: Arc<AtomicU64>,
    ) -> Self {
        let nodes = network.shape().nodes() as usize;
        let sent_ps = timing.put_sent_ps(network.parameters().hop_ps());
        Self {
            network,
            timing,
            sent_ps,
            nodes: iccs,
            due: BTreeMap::new(),
            serial: 0,
            interfaces: (0..nodes * TNIS).map(|_| Interface::default()).collect(),
            buses: vec![BusLine::default(); nodes],
            packets: Vec::new(),
            free: Vec::new(),
            wrong: BTreeSet::new(),
            failed: None,
            equipment,
            now,
        }
    }

    /// Takes the network to a time.
    fn run_network(&mut self, until: Ps) {
        let mut tidings = Tidings { hops: self.equipment.is_on(), told: Vec::new() };
        self.network.run_until(until, &mut tidings);
        self.hear(tidings);
    }

    /// Takes the network to the present, where it can be changed.
    pub(crate) fn catch_up(&mut self, now: Ps) -> &mut Network {
        self.run_network(now);
        &mut self.network
    }

    /// Notes that a link may lose packets from now on, or no longer for this reason.
    pub(crate) fn set_wrong(&mut self, node: NodeId, port: Port, why: Wrong, on: bool) {
        let shape = self.network.shape();
        let far = shape.coords(node).and_then(|at| shape.neighbor(at, port));
        let far = far.and_then(|at| Some((shape.node_id(at)?, port.opposite())));
        let (node, port) = far.map_or((node, port), |far| far.min((node, port)));
        match on {
            true => self.wrong.insert((node, port, why)),
            false => self.wrong.remove(&(node, port, why)),
        };
    }

    pub(crate) fn push(&mut self, at: Ps, due: Due) {
        self.serial += 1;
        self.due.insert((at, self.serial), due);
    }

    /// True if anything is in flight or scheduled, except for input from outside.
    pub(crate) fn is_busy(&mut self) -> bool {
        let scheduled = self.due.values().any(|due| !matches!(due, Due::Outside));
        scheduled || self.network.next_event().is_some()
    }

    fn insert(&mut self, packet: InFlight) -> usize {
        match self.free.pop() {
            Some(index) => {
                self.packets[index] = Some(packet);
                index
            }
            None => {
                self.packets.push(Some(packet));
                self.packets.len() - 1
            }
        }
    }

    /// Takes the next event until `limit`, and returns the time that the machine reaches by it. The
    /// network runs until then.
    pub(crate) fn next(&mut self, limit: Ps) -> (Ps, Option<Due>) {
        let mut now = 0;
        loop {
            let due = self.due.first_key_value().map(|((at, _), _)| *at);
            let network = self.network.next_event().filter(|at| *at <= limit);
            match (due, network) {
                (due, Some(at)) if due.is_none_or(|due| at < due) => {
                    self.run_network(at);
                    now = at;
                }
                (Some(at), _) if at <= limit => {
                    return (at, self.due.pop_first().map(|(_, due)| due));
                }
                _ => return (now, None),
            }
        }
    }

    /// Returns the time before which nothing in flight can have an effect at a node; `None` if
    /// nothing ever will. `reaction` is the least time from a doorbell of a node to an effect at
    /// another.
    ///
    /// An event elsewhere needs a hop to get there. A packet is at its target no earlier than its
    /// hops take, and no earlier than the network's next event. Its source notices that TLPs have
    /// left only if it has more of a request to send. A packet that is lost has an effect where
    /// that happens and at its source, with the network's next event or a later one. A Put counts
    /// as sent some time after its last TLP has left.
    pub(crate) fn next_of(&mut self, node: NodeId, reaction: impl Fn(NodeId) -> Ps) -> Option<Ps> {
        let hop = self.network.parameters().hop_ps();
        let network = self.network.next_event();
        let mut best = network.filter(|_| {
            let first = node.index() * TNIS;
            let own = self.interfaces.iter().skip(first).take(TNIS);
            own.into_iter().any(|interface| !interface.jobs[0].is_empty())
        });
        let sooner = |best: Option<Ps>, at: Ps| Some(best.map_or(at, |best| best.min(at)));
        for ((at, _), due) in &self.due {
            if best.is_some_and(|best| best <= *at) {
                break;
            }
            let away = match due {
                _ if self.concerns(due, node) => 0,
                Due::Doorbell(from, ..) => reaction(*from),
                Due::Room(interface) => reaction(NodeId((interface / TNIS) as u32)),
                Due::Outside => 0,
                Due::Arrive(_) | Due::Sent(..) | Due::Expire(_) => hop,
            };
            best = sooner(best, at.saturating_add(away));
        }
        // Packets whose TLPs have all arrived are in `due`.
        let flying = self.packets.iter().flatten();
        for flight in flying.filter(|flight| flight.arrived < flight.packet.tlps.max(1)) {
            if let Some(at) = network
                && (flight.lost.is_some() || !self.wrong.is_empty())
            {
                best = sooner(best, at);
            }
            let there = flight.earliest.max(network.unwrap_or(0));
            let at = |end| self.network.shape().node_id(end) == Some(node);
            if flight.leaves < Ps::MAX && at(flight.packet.src) {
                let left = flight.leaves.max(network.unwrap_or(0));
                best = sooner(best, left.saturating_add(self.sent_ps));
            }
            let target = at(flight.packet.dst);
            best = sooner(best, if target { there } else { there.saturating_add(hop) });
        }
        best
    }

    /// Returns true if an event has an effect at a node itself.
    fn concerns(&self, due: &Due, node: NodeId) -> bool {
        match *due {
            Due::Doorbell(at, ..) | Due::Sent(at, ..) | Due::Expire(at) => at == node,
            Due::Room(interface) => interface / TNIS == node.index(),
            Due::Outside => true,
            Due::Arrive(index) => {
                let Some(Some(flight)) = self.packets.get(index) else { return false };
                let InFlight { packet, lost, .. } = flight;
                let at = |end| self.network.shape().node_id(end) == Some(node);
                lost.map_or_else(|| at(packet.dst), |(by, ..)| by == node || at(packet.src))
            }
        }
    }

    pub(crate) fn take(&mut self, index: usize) -> Option<InFlight> {
        let taken = self.packets.get_mut(index)?.take()?;
        self.free.push(index);
        if taken.packet.body.part_of_put().is_some()
            && let Some(node) = self.network.shape().node_id(taken.packet.src)
        {
            let unit = &mut self.interfaces[node.index() * TNIS + taken.packet.src_tni.index()];
            unit.puts.retain(|place| *place != index);
        }
        Some(taken)
    }

    /// Reads the data of a Put that is still on its way, so that its sender may change it. Returns
    /// false if it can't be read.
    pub(crate) fn detach(&mut self, node: NodeId, tni: TniId, tag: Tag) -> bool {
        let unit = &self.interfaces[node.index() * TNIS + tni.index()];
        unit.puts.iter().all(|place| {
            let Some(Some(flight)) = self.packets.get_mut(*place) else { return true };
            let body = &mut flight.packet.body;
            body.part_of_put().is_none_or(|(of, _)| of != tag) || body.detach().is_ok()
        })
    }

    /// Hands TLPs of an interface to the network, as far ahead as allowed.
    fn feed(&mut self, interface: usize, now: Ps) {
        for lane in [1, 0] {
            loop {
                let unit = &mut self.interfaces[interface];
                let ahead = unit.ahead[lane];
                let Some(job) = unit.jobs[lane].front_mut() else { break };
                let (index, sent) = (job.packet, job.sent);
                let Some(flight) = &self.packets[index] else { break };
                // A gap begins when the previous TLP has left.
                let spaced = flight.gap > 0 || unit.pauses[lane];
                if ahead >= TLPS_AHEAD || spaced && ahead > 0 {
                    break;
                }
                unit.pauses[lane] = flight.gap > 0;
                let packet = &flight.packet;
                let ends = sent + 1 == packet.tlps.max(1);
                let size = if ends { flight.sizes.1 } else { flight.sizes.0 };
                let mut ready_at = job.ready_at.max(unit.quiet[lane]);
                if let Some(rate) = self.timing.bus_bytes_per_s {
                    let read = data_of(flight, sent, packet.body.payload_bytes().0);
                    let (_, end) = self.buses[interface / TNIS].read(rate, now, read);
                    ready_at = ready_at.max(end);
                }
                let token = Token { lane, tlp: sent, packet: index, serial: flight.serial };
                let token = token.to_bits();
                let message = Message {
                    tlps: 1,
                    full: size,
                    last: size,
                    ..Message::of(packet, ready_at, token)
                };
                job.sent += 1;
                if ends {
                    unit.jobs[lane].pop_front();
                }
                let taken = self.network.inject(&message);
                if taken.is_ok() {
                    unit.ahead[lane] += 1;
                }
                if ends && lane == 0 {
                    self.push(now, Due::Room(interface));
                }
                if let Err(refused) = taken {
                    self.refuse(index, now, &refused);
                }
            }
        }
    }

    /// Handles a TLP for which the network has no route.
    fn refuse(&mut self, index: usize, now: Ps, refused: &Refused) {
        let (port, reason) = refused.fate();
        let Some(flight) = &self.packets[index] else { return };
        let node = self.network.shape().node_id(flight.packet.src).unwrap_or(NodeId::NOWHERE);
        self.lost(now, index, (node, port, reason));
    }

    /// Records that a TLP was lost, and its packet with it. The loss is reported once all other
    /// TLPs have arrived or been lost.
    fn lost(&mut self, at: Ps, index: usize, how: Loss) {
        let Some(Some(flight)) = self.packets.get_mut(index) else { return };
        flight.lost.get_or_insert(how);
        self.arrived(at, index);
    }

    /// Counts a TLP of a packet that is no longer on its way.
    fn arrived(&mut self, at: Ps, index: usize) {
        let Some(Some(flight)) = self.packets.get_mut(index) else { return };
        flight.arrived += 1;
        if flight.arrived == flight.packet.tlps.max(1) {
            self.push(at, Due::Arrive(index));
        }
    }

    /// Handles the arrival of a TLP at its target: its data goes over the bus.
    fn delivered(&mut self, at: Ps, node: NodeId, index: usize) {
        let Some(Some(flight)) = self.packets.get_mut(index) else { return };
        let mut in_memory = at;
        if let Some(rate) = self.timing.bus_bytes_per_s {
            let written = data_of(flight, flight.arrived, flight.packet.body.payload_bytes().1);
            in_memory = self.buses[node.index()].write(rate, at, written, written);
        }
        let body = &flight.packet.body;
        let deliver = match (self.nodes.get(node.index()), TniId::new(flight.packet.dst_tni)) {
            (Some(icc), Some(tni)) => icc.deliver_ps(tni, body),
            _ => self.timing.deliver(body),
        };
        self.arrived(in_memory + deliver, index);
    }

    /// Shows the tap and the faults what happens on a link.
    fn cross(&mut self, hop: Hop, crossing: Crossing) {
        let (token, bytes, link, new) = match crossing {
            Crossing::Frame { token, bytes, link } => (token, bytes, link, true),
            Crossing::Again { token, bytes, link } => (token, bytes, Some(link), false),
            Crossing::Dllp { dllp, link } => {
                self.equipment.with(|equipped| equipped.said(hop, link, dllp));
                return;
            }
        };
        let token = Token::from_bits(token);
        let flight = self.packets.get_mut(token.packet).and_then(Option::as_mut);
        let flight = flight.filter(|flight| token.is_of(flight) && !flight.fate.swallowed);
        let Some(InFlight { packet, fate: met, .. }) = flight else { return };
        let link = link.map(|link| OnLink { tlp: token.tlp, ..link });
        self.equipment.with(|equipped| {
            // Only one frame of a burst crosses the link now.
            let burst = (packet.tlps, packet.bytes);
            (packet.tlps, packet.bytes) = (1, bytes.into());
            let fate = match link.filter(|_| !new) {
                Some(link) => {
                    equipped.pass(hop, link, packet);
                    Fate::default()
                }
                None => equipped.cross(hop, link, packet),
            };
            (packet.tlps, packet.bytes) = burst;
            met.swallowed = fate.lost;
            met.held = met.held.max(fate.held);
            if fate.duplicated && met.double.is_none() {
                met.double = equipped.duplicate(packet).map(Box::new);
            }
        });
    }

    fn hear(&mut self, tidings: Tidings) {
        for (at, told) in tidings.told {
            if tidings.hops {
                // Observers read it.
                self.now.fetch_max(at, SeqCst);
            }
            match told {
                Told::Crosses(hop, crossing) => self.cross(hop, crossing),
                Told::Left(node, tni, token) => {
                    let interface = node.index() * TNIS + tni.index();
                    let token = Token::from_bits(token);
                    let lane = token.lane;
                    let flight = self.packets.get_mut(token.packet).and_then(Option::as_mut);
                    let mut flight = flight.filter(|flight| token.is_of(flight));
                    let gap = flight.as_ref().map_or(0, |flight| flight.gap);
                    if let Some(flight) = &mut flight
                        && token.tlp + 1 == flight.packet.tlps.max(1)
                    {
                        flight.leaves = Ps::MAX;
                        if let Some((tag, true)) = flight.packet.body.part_of_put() {
                            let sent = at.saturating_add(self.sent_ps);
                            self.push(sent, Due::Sent(node, tni, tag));
                        }
                    }
                    let unit = &mut self.interfaces[interface];
                    unit.ahead[lane] -= 1;
                    unit.quiet[lane] = at + gap;
                    self.feed(interface, at);
                }
                Told::Delivered(node, token) => {
                    self.delivered(at, node, Token::from_bits(token).packet);
                }
                Told::Lost(node, port, reason, token) => {
                    self.lost(at, Token::from_bits(token).packet, (node, port, reason));
                }
                Told::Failed(node, port) => {
                    self.set_wrong(node, port, Wrong::Down, true);
                    if let Some(hears) = &self.failed {
                        hears(node, port);
                    }
                }
            }
        }
    }

    /// Gives an interface a packet to send. Modelled times that devices count start at `epoch`.
    pub(crate) fn inject(&mut self, mut packet: Packet<Body>, now: Ps, epoch: Ps) {
        // Arrivals and waiting guests are looked up by the target. The network refuses a way
        // without a target.
        if let Some(end) = Route::end_of(self.network.shape(), &packet) {
            packet.dst = end;
        }
        let Some(node) = self.network.shape().node_id(packet.src) else { return };
        let interface = node.index() * TNIS + packet.src_tni.index();
        let mut begins = false;
        let gap = self.network.parameters().bytes_on_link_ps(u64::from(packet.gap) * GAP_BYTES);
        // A request's time counts from its command. That of an answer or signal counts from the
        // epoch, like that of the packet that caused it.
        let ready_at = match &packet.body {
            Body::Put { request, .. } | Body::Get { request } | Body::Armw { request, .. } => {
                begins = request.position == 0;
                now + packet.model_ps
            }
            Body::Frame { .. } => {
                begins = true;
                now + packet.model_ps
            }
            _ => now.max(epoch + packet.model_ps),
        };
        let lane = lane(packet.class);
        let sizes = packet.tlp_sizes();
        let target = self.network.shape().node_id(packet.dst).map(|_| packet.dst);
        let hops = target.map_or(0, |dst| self.network.shape().distance(packet.src, dst));
        let hops = Ps::from(hops);
        let earliest = ready_at
            .saturating_add(hops * self.network.parameters().hop_ps())
            .saturating_add(self.timing.deliver(&packet.body));
        if self.equipment.is_on() {
            self.equipment.with(|equipped| {
                let tni = TapPoint::Tni(packet.src_tni.get());
                equipped.observe(node, tni, Direction::Out, &packet);
            });
        }
        self.serial += 1;
        let is_put = packet.body.part_of_put().is_some();
        let flight = InFlight {
            packet,
            sizes,
            arrived: 0,
            lost: None,
            gap,
            earliest,
            leaves: if is_put { ready_at } else { Ps::MAX },
            serial: self.serial,
            fate: Met::default(),
        };
        let packet = self.insert(flight);
        let unit = &mut self.interfaces[interface];
        if is_put {
            unit.puts.push(packet);
        }
        unit.jobs[lane].push_back(Job { packet, ready_at, sent: 0 });
        if begins {
            unit.command_free = now.max(unit.command_free) + self.timing.command_ps;
            let free = unit.command_free;
            self.push(free, Due::Room(interface));
        }
        self.feed(interface, now);
    }
    /// Returns true if an interface can take another command.
    pub(crate) fn has_room(&self, node: NodeId, tni: TniId, now: Ps) -> bool {
        let unit = &self.interfaces[node.index() * TNIS + tni.index()];
        unit.command_free <= now && unit.jobs[0].len() < COMMANDS_AHEAD
    }
}

/// A frame that begins to cross a link.
enum Crossing {
    /// A TLP.
    Frame { token: u64, bytes: u32, link: Option<OnLink> },
    /// The same, resent or found bad before.
    Again { token: u64, bytes: u32, link: OnLink },
    /// A packet of the data link layer.
    Dllp { dllp: Dllp, link: OnLink },
}

/// A report of the network.
enum Told {
    Crosses(Hop, Crossing),
    Delivered(NodeId, u64),
    Left(NodeId, TniId, u64),
    Lost(NodeId, Option<Port>, DiscardReason, u64),
    Failed(NodeId, Port),
}

/// Reports of the network.
struct Tidings {
    /// True if someone observes packets on links.
    hops: bool,
    told: Vec<(Ps, Told)>,
}

impl Sink for Tidings {
    fn delivered(&mut self, at: Ps, node: NodeId, _: TniId, token: u64) {
        self.told.push((at, Told::Delivered(node, token)));
    }

    fn left(&mut self, at: Ps, node: NodeId, tni: TniId, token: u64) {
        self.told.push((at, Told::Left(node, tni, token)));
    }

    fn lost(
        &mut self,
        at: Ps,
        node: NodeId,
        port: Option<Port>,
        reason: DiscardReason,
        token: u64,
    ) {
        self.told.push((at, Told::Lost(node, port, reason, token)));
    }

    fn failed(&mut self, at: Ps, node: NodeId, port: Port) {
        self.told.push((at, Told::Failed(node, port)));
    }

    fn wants_hops(&self) -> bool {
        self.hops
    }

    fn hop(&mut self, at: Ps, hop: &Hop, _: Class, bytes: u32, token: u64, link: Option<OnLink>) {
        if self.hops {
            self.told.push((at, Told::Crosses(*hop, Crossing::Frame { token, bytes, link })));
        }
    }

    fn again(&mut self, at: Ps, hop: &Hop, bytes: u32, token: u64, link: OnLink) {
        if self.hops {
            self.told.push((at, Told::Crosses(*hop, Crossing::Again { token, bytes, link })));
        }
    }

    fn said(&mut self, at: Ps, hop: &Hop, dllp: Dllp, link: OnLink) {
        if self.hops {
            self.told.push((at, Told::Crosses(*hop, Crossing::Dllp { dllp, link })));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_keep_their_parts() {
        let token = Token { lane: 1, tlp: 8738, packet: (1 << 24) - 1, serial: (1 << 24) - 2 };
        assert_eq!(Token::from_bits(token.to_bits()), token);
        let far = Token { lane: 0, tlp: 1, packet: 2, serial: 5 + (7 << 24) };
        assert_eq!(Token::from_bits(far.to_bits()), Token { serial: 5, ..far });
    }
}
