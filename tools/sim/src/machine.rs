//! Devices in modelled time: real ones, driven by the real driver, on the modelled network.
//!
//! One thread executes all events in the order of modelled time, and those of the same time in the
//! order in which they were scheduled. The process at a node is the code that calls the driver: it
//! takes no time, and sees data as soon as it is in memory.
//!
//! Apart from the network, a command keeps busy the interface's command engine, the bus to memory,
//! and the interface's sending side, where TLPs wait for the network.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use anyhow::Context;
use tofu_abi::{Coords, Doorbell, TniId};
use tofu_driver::Device;
use tofu_fabric::{
    Class, DiscardReason, GAP_BYTES, NodeId, Packet, Port, PortCounters, Ps, Shape, TNIS,
    XbCounters,
};
use tofu_icc::{Body, CommandTiming, Config, Host, Icc, Net, discard_rcode};
use tofu_inproc::{Arena, Backend, InProcess, Interrupts};
use tofu_links::Parameters;
use tofu_machine::Generation;
use tofu_netmodel::{Arbiter, BusLine, Message, Network, Options, Refused, Sink};
use tofu_sync::lock;
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// Memory of a node starts here, so that address 0 is not memory.
const MEMORY_BASE: u64 = 0x1000;
/// TLPs of a class that an interface reads ahead of the network (*ours*: enough to hide the latency
/// of memory).
const TLPS_AHEAD: u32 = 16;
/// Commands whose data an interface reads at the same time.
const COMMANDS_AHEAD: usize = 2;
/// Time that passes when no event is scheduled, in picoseconds.
const IDLE_PS: Ps = 1_000_000;

/// The parameters of a model.
pub(crate) struct ModelConfig {
    pub(crate) generation: Generation,
    pub(crate) shape: Shape,
    pub(crate) arbiter: Arbiter,
    /// Bytes of each node's memory.
    pub(crate) memory: usize,
}

impl ModelConfig {
    pub(crate) const fn new(generation: Generation, shape: Shape) -> Self {
        Self { generation, shape, arbiter: Arbiter::InTurn, memory: 1 << 20 }
    }
}

/// A machine in modelled time.
pub(crate) struct Model {
    world: Arc<World>,
    devices: Vec<Device<InProcess>>,
}

impl Model {
    /// Builds a machine that has all of its nodes, with their interfaces enabled.
    pub(crate) fn new(config: &ModelConfig) -> anyhow::Result<Self> {
        let ModelConfig { generation, shape, arbiter, memory } = *config;
        let timing = CommandTiming::of(generation);
        let options = Options { arbiter, backlog: TLPS_AHEAD, ..Options::default() };
        let network = Network::new(shape, Parameters::of(generation), &options)?;
        let nodes = shape.nodes() as usize;
        let state = State {
            network,
            due: BTreeMap::new(),
            serial: 0,
            interfaces: (0..nodes * TNIS).map(|_| Interface::default()).collect(),
            buses: vec![BusLine::default(); nodes],
            packets: Vec::new(),
            free: Vec::new(),
        };
        let world = Arc::new(World {
            shape,
            timing,
            links: *Parameters::of(generation),
            icc: OnceLock::new(),
            state: Mutex::new(state),
            now: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            arrival: AtomicU64::new(0),
        });
        let mut icc = Vec::with_capacity(nodes);
        let mut parts = Vec::with_capacity(nodes);
        for (node, coords) in shape.iter().enumerate() {
            let memory =
                GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(MEMORY_BASE), memory)])?;
            let interrupts = Arc::new(Interrupts::default());
            let config = Config::of(generation, coords);
            let interrupts_of = Arc::clone(&interrupts);
            let host =
                Surroundings { world: Arc::downgrade(&world), node, interrupts: interrupts_of };
            let device = Icc::new(config, Arc::new(host), Arc::new(memory.clone()));
            device.set_bus_master(true);
            icc.push(Arc::new(device));
            parts.push((Arena::new(memory).context("memory of a node")?, interrupts));
        }
        // It cannot have been set before.
        let _ = world.icc.set(icc);
        let devices = parts
            .into_iter()
            .enumerate()
            .map(|(node, (arena, interrupts))| {
                let backend = Arc::new(NodeBackend { world: Arc::clone(&world), node });
                let device = Device::probe(InProcess::new(backend, arena, interrupts))?;
                for tni in generation.description().tni_ids() {
                    device.tni(tni).enable()?;
                }
                Ok(device)
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { world, devices })
    }

    /// Returns the modelled time, in picoseconds.
    pub(crate) fn now(&self) -> Ps {
        self.world.now.load(SeqCst)
    }

    /// Returns the device of a node.
    pub(crate) fn device(&self, coords: Coords) -> anyhow::Result<&Device<InProcess>> {
        let id = self.world.shape.node_id(coords).context("a node of a model")?;
        self.devices.get(id.index()).context("a node of a model")
    }

    /// Returns the controller of a node, for what a driver cannot read.
    pub(crate) fn icc(&self, coords: Coords) -> anyhow::Result<&Icc> {
        let id = self.world.shape.node_id(coords).context("a node of a model")?;
        self.world.icc().get(id.index()).map(|icc| &**icc).context("a node of a model")
    }

    /// Makes the modelled times that devices count start from now.
    pub(crate) fn begin_epoch(&self) {
        self.world.epoch.store(self.now(), SeqCst);
    }

    /// Returns when the last packet arrived. `now` may be later, because timers run after it.
    pub(crate) fn last_arrival(&self) -> Ps {
        self.world.arrival.load(SeqCst)
    }

    /// Executes the next event. Returns false if there is none.
    pub(crate) fn step(&self) -> bool {
        self.world.step()
    }

    /// Executes events until `done` returns a value.
    pub(crate) fn run<T>(
        &self,
        mut done: impl FnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        loop {
            if let Some(result) = done()? {
                return Ok(result);
            }
            if !self.step() {
                anyhow::bail!("nothing is under way, and what is waited for has not come");
            }
        }
    }
}

/// A scheduled event.
#[derive(Clone, Copy, Debug)]
enum Due {
    /// A doorbell of a node has rung.
    Doorbell(usize, TniId, Doorbell),
    /// An interface can take another command.
    Room(usize),
    /// A packet is in memory, or has been lost.
    Arrive(usize),
    /// A node's timer expires.
    Expire(usize),
}

/// A packet on its way.
struct InFlight {
    packet: Packet<Body>,
    /// Sizes of all TLPs but the last, and of the last one, in bytes without routing headers.
    sizes: (u16, u16),
    /// TLPs that have arrived at the target or have been lost.
    arrived: u32,
    /// Where and why the first TLP was lost.
    lost: Option<(NodeId, Option<Port>, DiscardReason)>,
    /// How long its interface sends no other TLP of this kind after each of its TLPs.
    gap: Ps,
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
    /// TLPs of either kind that have been handed to the network and have not left.
    ahead: [u32; 2],
    /// Whether the last TLP asked for a gap, and when the latest gap ends.
    pauses: [bool; 2],
    quiet: [Ps; 2],
}

/// The mutable state.
struct State {
    network: Network,
    /// Scheduled events, by time and then in the order in which they were scheduled.
    due: BTreeMap<(Ps, u64), Due>,
    serial: u64,
    /// The interfaces of all nodes, node by node.
    interfaces: Vec<Interface>,
    buses: Vec<BusLine>,
    packets: Vec<Option<InFlight>>,
    free: Vec<usize>,
}

struct World {
    shape: Shape,
    timing: CommandTiming,
    links: Parameters,
    icc: OnceLock<Vec<Arc<Icc>>>,
    state: Mutex<State>,
    now: AtomicU64,
    /// When the modelled times that devices count start.
    epoch: AtomicU64,
    /// When the last packet arrived.
    arrival: AtomicU64,
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
    fn push(&mut self, at: Ps, due: Due) {
        self.serial += 1;
        self.due.insert((at, self.serial), due);
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

    fn take(&mut self, index: usize) -> Option<InFlight> {
        let taken = self.packets.get_mut(index)?.take()?;
        self.free.push(index);
        Some(taken)
    }

    /// Hands TLPs of an interface to the network, as far ahead as allowed.
    fn feed(&mut self, interface: usize, now: Ps, bus_rate: Option<u64>) {
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
                if let Some(rate) = bus_rate {
                    let read = data_of(flight, sent, packet.body.payload_bytes().0);
                    let (_, end) = self.buses[interface / TNIS].read(rate, now, read);
                    ready_at = ready_at.max(end);
                }
                let message = Message {
                    src: packet.src,
                    src_tni: packet.src_tni,
                    dst: packet.dst,
                    dst_tni: packet.entry(),
                    path: packet.path,
                    way: packet.way,
                    class: packet.class,
                    tlps: 1,
                    full: size,
                    last: size,
                    gap: 0,
                    bus: 0,
                    ready_at,
                    token: (index as u64) << 1 | lane as u64,
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
    fn lost(&mut self, at: Ps, index: usize, how: (NodeId, Option<Port>, DiscardReason)) {
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
    fn delivered(&mut self, at: Ps, node: NodeId, index: usize, timing: &CommandTiming) {
        let Some(Some(flight)) = self.packets.get_mut(index) else { return };
        let mut in_memory = at;
        if let Some(rate) = timing.bus_bytes_per_s {
            let written = data_of(flight, flight.arrived, flight.packet.body.payload_bytes().1);
            in_memory = self.buses[node.index()].write(rate, at, written, written);
        }
        let deliver = timing.deliver(&flight.packet.body);
        self.arrived(in_memory + deliver, index);
    }
}

/// A report of the network.
enum Told {
    Delivered(NodeId, u64),
    Left(NodeId, TniId, u64),
    Lost(NodeId, Option<Port>, DiscardReason, u64),
}

#[derive(Default)]
struct Tidings(Vec<(Ps, Told)>);

impl Sink for Tidings {
    fn delivered(&mut self, at: Ps, node: NodeId, _: TniId, token: u64) {
        self.0.push((at, Told::Delivered(node, token)));
    }

    fn left(&mut self, at: Ps, node: NodeId, tni: TniId, token: u64) {
        self.0.push((at, Told::Left(node, tni, token)));
    }

    fn lost(
        &mut self,
        at: Ps,
        node: NodeId,
        port: Option<Port>,
        reason: DiscardReason,
        token: u64,
    ) {
        self.0.push((at, Told::Lost(node, port, reason, token)));
    }

    fn wants_hops(&self) -> bool {
        false
    }
}

impl World {
    fn icc(&self) -> &[Arc<Icc>] {
        self.icc.get().map_or(&[], Vec::as_slice)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn now(&self) -> Ps {
        self.now.load(SeqCst)
    }

    /// Takes the next event and advances the time to it. The network runs until then.
    fn next(&self) -> Option<Due> {
        let mut state = self.state();
        loop {
            let due = state.due.first_key_value().map(|((at, _), _)| *at);
            let network = state.network.next_event();
            match (due, network) {
                (due, Some(at)) if due.is_none_or(|due| at < due) => {
                    let mut tidings = Tidings::default();
                    state.network.run_until(at, &mut tidings);
                    self.now.fetch_max(at, SeqCst);
                    self.hear(&mut state, tidings);
                }
                (Some(at), _) => {
                    self.now.fetch_max(at, SeqCst);
                    return state.due.pop_first().map(|(_, due)| due);
                }
                (None, _) => return None,
            }
        }
    }

    fn hear(&self, state: &mut State, tidings: Tidings) {
        for (at, told) in tidings.0 {
            match told {
                Told::Left(node, tni, token) => {
                    let interface = node.index() * TNIS + tni.index();
                    let (index, lane) = ((token >> 1) as usize, (token & 1) as usize);
                    let flight = state.packets.get(index).and_then(Option::as_ref);
                    let gap = flight.map_or(0, |flight| flight.gap);
                    let unit = &mut state.interfaces[interface];
                    unit.ahead[lane] -= 1;
                    unit.quiet[lane] = at + gap;
                    state.feed(interface, at, self.timing.bus_bytes_per_s);
                }
                Told::Delivered(node, token) => {
                    state.delivered(at, node, (token >> 1) as usize, &self.timing);
                }
                Told::Lost(node, port, reason, token) => {
                    state.lost(at, (token >> 1) as usize, (node, port, reason));
                }
            }
        }
    }

    fn step(self: &Arc<Self>) -> bool {
        let Some(due) = self.next() else { return false };
        let mut wire = Wire { world: self };
        match due {
            Due::Doorbell(node, tni, bell) => {
                if self.icc()[node].run_queue(tni, bell, &mut wire) {
                    self.state().push(self.now(), due);
                }
            }
            Due::Room(interface) => {
                let (node, tni) = (interface / TNIS, interface % TNIS);
                self.icc()[node].room(TniId::ALL[tni]);
            }
            Due::Arrive(index) => {
                let Some(InFlight { mut packet, lost, .. }) = self.state().take(index) else {
                    return true;
                };
                if let Some(how) = lost {
                    self.lose(&packet, how);
                    return true;
                }
                let Some(node) = self.shape.node_id(packet.dst) else { return true };
                let arrived = self.now() - self.timing.deliver(&packet.body);
                packet.model_ps = arrived.saturating_sub(self.epoch.load(SeqCst));
                self.arrival.store(self.now(), SeqCst);
                self.icc()[node.index()].arrive(packet, &mut wire);
            }
            Due::Expire(node) => self.icc()[node].expire(self.now() / 1000),
        }
        true
    }

    /// Reports the loss of a packet to the router that lost it, and to the node that sent it.
    fn lose(&self, packet: &Packet<Body>, how: (NodeId, Option<Port>, DiscardReason)) {
        let (node, port, reason) = how;
        if let Some(icc) = self.icc().get(node.index()) {
            icc.router_event(port, reason);
        }
        if let Some(source) = self.shape.node_id(packet.src) {
            let now_ns = self.now() / 1000;
            self.icc()[source.index()].undeliverable(packet, discard_rcode(reason), now_ns);
        }
    }

    fn inject(&self, packet: Packet<Body>) {
        let Some(node) = self.shape.node_id(packet.src) else { return };
        let interface = node.index() * TNIS + packet.src_tni.index();
        let (now, epoch) = (self.now(), self.epoch.load(SeqCst));
        let mut begins = false;
        let gap = self.links.bytes_on_link_ps(u64::from(packet.gap) * GAP_BYTES);
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
        let mut state = self.state();
        let lane = lane(packet.class);
        let sizes = packet.tlp_sizes();
        let packet = state.insert(InFlight { packet, sizes, arrived: 0, lost: None, gap });
        let unit = &mut state.interfaces[interface];
        unit.jobs[lane].push_back(Job { packet, ready_at, sent: 0 });
        if begins {
            unit.command_free = now.max(unit.command_free) + self.timing.command_ps;
            let free = unit.command_free;
            state.push(free, Due::Room(interface));
        }
        state.feed(interface, now, self.timing.bus_bytes_per_s);
    }
}

/// The network as a device sees it.
struct Wire<'a> {
    world: &'a World,
}

impl Net for Wire<'_> {
    fn has_room(&self, node: Coords, tni: TniId) -> bool {
        let Some(node) = self.world.shape.node_id(node) else { return false };
        let state = self.world.state();
        let unit = &state.interfaces[node.index() * TNIS + tni.index()];
        unit.command_free <= self.world.now() && unit.jobs[0].len() < COMMANDS_AHEAD
    }

    fn inject(&mut self, packet: Packet<Body>) {
        self.world.inject(packet);
    }

    fn progress(&mut self) {}

    fn now_ns(&self) -> u64 {
        self.world.now() / 1000
    }
}

/// The host as a device sees it.
struct Surroundings {
    world: Weak<World>,
    node: usize,
    interrupts: Arc<Interrupts>,
}

impl Surroundings {
    /// Schedules an event. A device outlives its world only while it is being dropped.
    fn push(&self, at_ps: impl FnOnce(&World) -> Ps, due: Due) {
        if let Some(world) = self.world.upgrade() {
            let at = at_ps(&world);
            world.state().push(at, due);
        }
    }
}

impl Host for Surroundings {
    fn interrupt(&self, vector: u16) {
        self.interrupts.fire(vector);
    }

    fn doorbell(&self, tni: TniId, doorbell: Doorbell) {
        self.push(World::now, Due::Doorbell(self.node, tni, doorbell));
    }

    fn queue_enabled(&self, _: TniId, _: Doorbell, _: bool) {}

    fn timer(&self, deadline_ns: u64) {
        self.push(|_| deadline_ns.saturating_mul(1000), Due::Expire(self.node));
    }

    fn now_ns(&self) -> u64 {
        self.world.upgrade().map_or(0, |world| world.now() / 1000)
    }

    fn port_counters(&self, port: Port) -> PortCounters {
        let counters = self
            .world
            .upgrade()
            .and_then(|world| world.state().network.port_counters(NodeId(self.node as u32), port));
        counters.unwrap_or_default()
    }

    fn xb_counters(&self) -> XbCounters {
        let world = self.world.upgrade();
        let node = NodeId(self.node as u32);
        world.and_then(|world| world.state().network.xb_counters(node)).unwrap_or_default()
    }
}

/// A node as the driver's platform sees it.
struct NodeBackend {
    world: Arc<World>,
    node: usize,
}

impl Backend for NodeBackend {
    fn bar_read(&self, offset: u64, data: &mut [u8]) {
        self.world.icc()[self.node].bar_read(offset, data);
    }

    fn bar_write(&self, offset: u64, data: &[u8]) {
        self.world.icc()[self.node].bar_write(offset, data);
    }

    fn now_ns(&self) -> u64 {
        self.world.now() / 1000
    }

    fn pump(&self) -> bool {
        if !self.world.step() {
            self.world.now.fetch_add(IDLE_PS, SeqCst);
        }
        true
    }
}
