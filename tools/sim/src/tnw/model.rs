//! Network processors in modelled time: the device model itself, driven by the real library.
//!
//! One thread executes all events in the order of modelled time, and those of the same time in the
//! order in which they were scheduled.
//!
//! Time is modelled where the paper has figures. A link is busy with a packet for as long as 128
//! bytes take at 0.91 GB/s, which includes coding and protocol (section 2.2), so commands take no
//! separate link time. A packet takes 0.6 us from processor to processor, and 0.2 us over PCI
//! Express, both including its own transfer time (section 4). A node has two interfaces of PCI
//! Express, each of which carries 3.2 GB/s in each direction (section 1). *Ours*: an Nget is
//! fetched by reads of 4 KiB, the longest that PCI Express permits, and the next read is issued
//! when the link has sent the data of the previous one; how transfers are divided among the
//! interfaces ([`Interfaces`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use anyhow::Context;
use tofu_abi::Coords;
use tofu_abi::tnw::{LINKS, Link, PACKET_DATA, PACKET_SIZE, REGISTER_BAR, WINDOW_BAR, WindowPlace};
use tofu_dma::{Access, DmaError, DmaMemory, DmaResult, Visit};
use tofu_fabric::chance::{STEP, below, mix};
use tofu_fabric::{Disturb, Ppm, Ps, Shape};
use tofu_inproc::{Arena, Backend, InProcess, Interrupts};
use tofu_machine::TORUS_TIMING;
use tofu_netmodel::BusLine;
use tofu_sync::lock;
use tofu_tnw::Nwp;
use tofu_tnw_device::{Config, Host, NEVER, Net, Nwp as Device, Unit};
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// The interfaces of PCI Express between a node's processor and its FPGA (section 1).
const INTERFACES: usize = 2;
/// The capacity of one direction of an interface, in bytes per second (section 1).
const BUS_BYTES_PER_S: u64 = 3_200_000_000;
/// The time of a packet's transfer over PCI Express, including the packet's own time (section 4).
pub(super) const TRANSFER_PS: Ps = 200_000;
/// The latency of PCI Express alone.
const WAY_PS: Ps = TRANSFER_PS - PACKET_ON_BUS_PS;
/// The time for which a packet's data occupies the bus.
const PACKET_ON_BUS_PS: Ps = PACKET_DATA as Ps * 1_000_000_000_000 / BUS_BYTES_PER_S;
/// The time for which a link is busy with a packet.
const PACKET_PS: Ps = TORUS_TIMING.transit_ps(0, PACKET_SIZE as u64);
/// Packets of an Nget that are fetched together: those of the longest read of PCI Express (*ours*).
const FETCH: u16 = (4096 / PACKET_DATA) as u16;
/// Memory of a node starts here, so that address 0 is not memory.
const MEMORY_BASE: u64 = 0x1000;
/// Time that passes when no event is scheduled.
const IDLE_PS: Ps = 1_000_000;

/// The effects of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Something in a device or on its way to one.
    Device,
    /// A device has written to the memory of a node.
    Memory(usize),
    /// The time that this program requested has come.
    Program(usize),
}

/// The parameters of a model.
pub(super) struct ModelConfig {
    pub(super) shape: Shape,
    /// Bytes of each node's memory.
    pub(super) memory: usize,
    /// The share of units that links damage.
    pub(super) errors: Ppm,
    pub(super) seed: u64,
}

/// A machine in modelled time.
pub(super) struct Model {
    world: Arc<World>,
    /// The nodes of the torus that have a device.
    nodes: Vec<Option<Nwp<InProcess>>>,
}

impl Model {
    /// Builds a machine with devices at these places, enabled and connected to their neighbours.
    pub(super) fn new(
        config: &ModelConfig,
        places: impl IntoIterator<Item = Coords>,
    ) -> anyhow::Result<Self> {
        let ModelConfig { shape, memory, errors, seed } = *config;
        let count = shape.nodes() as usize;
        let state = State {
            now: 0,
            due: BTreeMap::new(),
            serial: 0,
            nodes: (0..count).map(|_| NodeState::default()).collect(),
            random: seed,
        };
        let devices = (0..count).map(|_| OnceLock::new()).collect();
        let clock = AtomicU64::new(0);
        let world = Arc::new(World { shape, errors, devices, state: Mutex::new(state), clock });
        let mut nodes: Vec<_> = (0..count).map(|_| None).collect();
        for coords in places {
            let node = shape.node_id(coords).context("a node of the shape")?.index();
            if nodes[node].is_none() {
                nodes[node] = Some(World::add(&world, node, coords, memory)?);
            }
        }
        let model = Self { world, nodes };
        while model.step().is_some() {}
        Ok(model)
    }

    /// Returns the modelled time.
    pub(super) fn now(&self) -> Ps {
        self.world.now()
    }

    /// Returns the node at these coordinates, with its number.
    pub(super) fn node(&self, coords: Coords) -> anyhow::Result<(usize, &Nwp<InProcess>)> {
        let node = self.world.shape.node_id(coords).context("a node of a model")?.index();
        let nwp = self.nodes.get(node).and_then(Option::as_ref);
        Ok((node, nwp.context("a node of a model")?))
    }

    /// Returns when the processor of a node has put its stores on the bus.
    pub(super) fn stored_until(&self, node: usize) -> Ps {
        self.world.state().nodes[node].stored_until
    }

    /// Schedules [`Event::Program`] at a time.
    pub(super) fn resume(&self, program: usize, at: Ps) {
        self.world.state().push(at, Due::Program(program));
    }

    /// Executes the next event. Returns `None` if there is none.
    pub(super) fn step(&self) -> Option<Event> {
        self.world.step()
    }
}

/// Data on its way over a bus to memory.
enum Written {
    Bytes(Vec<u8>),
    Word(u64),
}

/// A scheduled event.
enum Due {
    /// A processor's store reaches its device.
    Store { node: usize, bar: u8, offset: u64, data: Vec<u8> },
    /// A device has work to do.
    Run(usize),
    /// A link has sent all of its data.
    Room(usize, Link),
    /// A unit has arrived over a link.
    Arrive(usize, Link, Unit),
    /// Data that a device has written reaches memory.
    Memory { node: usize, address: u64, written: Written },
    /// A device's timer expires.
    Expire(usize),
    /// A program resumes.
    Program(usize),
}

/// One direction of a node's interfaces of PCI Express.
///
/// *Ours*: stores to windows use the interface of their link; each interface has every second link.
/// Reads, and data that a device writes, use the interface that is free first. Data becomes visible
/// in the order in which it was sent, and its notification follows it on the same interface.
#[derive(Default)]
struct Interfaces {
    lines: [BusLine; INTERFACES],
    busy_until: [Ps; INTERFACES],
    last: usize,
    /// When the last transfer was there.
    ended: Ps,
}

impl Interfaces {
    /// Transfers bytes by an interface. Returns when they start to arrive and when all are there.
    fn by(&mut self, interface: usize, now: Ps, bytes: u64) -> (Ps, Ps) {
        let interface = interface % INTERFACES;
        let (from, end) = self.lines[interface].read(BUS_BYTES_PER_S, now, bytes);
        (self.busy_until[interface], self.last) = (end, interface);
        (from, end)
    }

    /// The same by the interface that is free first.
    fn by_any(&mut self, now: Ps, bytes: u64) -> (Ps, Ps) {
        let free = |interface: &usize| self.busy_until[*interface].max(now);
        self.by((0..INTERFACES).min_by_key(free).unwrap_or_default(), now, bytes)
    }

    /// Returns when bytes are there that end at `end` and must not overtake earlier ones.
    fn in_order(&mut self, end: Ps) -> Ps {
        self.ended = self.ended.max(end);
        self.ended
    }
}

struct NodeState {
    /// True if a [`Due::Run`] is scheduled.
    queued: bool,
    /// The earliest [`Due::Expire`].
    timer: Ps,
    /// From processor and memory to the device, and in the other direction.
    to_device: Interfaces,
    to_memory: Interfaces,
    /// Stores on their way to the device.
    stores: usize,
    stored_until: Ps,
    /// When the data that the device has just fetched starts to arrive.
    fetched: Option<Ps>,
    /// When each link has sent all of its data.
    links: [Ps; LINKS],
}

impl Default for NodeState {
    fn default() -> Self {
        Self {
            queued: false,
            timer: Ps::MAX,
            to_device: Interfaces::default(),
            to_memory: Interfaces::default(),
            stores: 0,
            stored_until: 0,
            fetched: None,
            links: [0; LINKS],
        }
    }
}

/// The mutable state.
struct State {
    now: Ps,
    /// Scheduled events, by time and then in the order in which they were scheduled.
    due: BTreeMap<(Ps, u64), Due>,
    serial: u64,
    nodes: Vec<NodeState>,
    random: u64,
}

impl State {
    fn push(&mut self, at: Ps, due: Due) {
        self.serial += 1;
        self.due.insert((at, self.serial), due);
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(STEP);
        mix(self.random)
    }

    /// Schedules a device's timer, unless an earlier one is set.
    fn want(&mut self, node: usize, at: Ps) {
        if at < self.nodes[node].timer {
            self.nodes[node].timer = at;
            self.push(at, Due::Expire(node));
        }
    }
}

struct Node {
    coords: Coords,
    device: Device,
    memory: GuestMemoryMmap<()>,
}

struct World {
    shape: Shape,
    errors: Ppm,
    devices: Vec<OnceLock<Node>>,
    state: Mutex<State>,
    /// The time, readable without locking the state.
    clock: AtomicU64,
}

impl World {
    fn add(
        world: &Arc<Self>,
        node: usize,
        coords: Coords,
        bytes: usize,
    ) -> anyhow::Result<Nwp<InProcess>> {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(MEMORY_BASE), bytes)])?;
        let arena = Arena::new(memory.clone()).context("memory of a node")?;
        let interrupts = Arc::new(Interrupts::default());
        let around = Arc::new(Surroundings {
            world: Arc::downgrade(world),
            node,
            memory: memory.clone(),
            interrupts: Arc::clone(&interrupts),
        });
        let config = Config { coords, shape: world.shape, life: 1, windows: None };
        let device = Device::new(config, Arc::clone(&around) as Arc<dyn Host>, around);
        device.set_bus_master(true);
        // It cannot have been set before.
        let _ = world.devices[node].set(Node { coords, device, memory });
        let backend = Arc::new(NodeBackend { world: Arc::clone(world), node });
        Ok(Nwp::probe(InProcess::new(backend, arena, interrupts))?)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn now(&self) -> Ps {
        self.clock.load(SeqCst)
    }

    fn node(&self, node: usize) -> Option<&Node> {
        self.devices.get(node)?.get()
    }

    fn step(&self) -> Option<Event> {
        let due = {
            let mut state = self.state();
            let ((at, _), due) = state.due.pop_first()?;
            state.now = state.now.max(at);
            self.clock.store(state.now, SeqCst);
            match due {
                Due::Run(node) => state.nodes[node].queued = false,
                Due::Store { node, .. } => state.nodes[node].stores -= 1,
                // An earlier timer has replaced this one.
                Due::Expire(node) if state.nodes[node].timer != at => return Some(Event::Device),
                Due::Expire(node) => state.nodes[node].timer = Ps::MAX,
                _ => {}
            }
            due
        };
        match due {
            Due::Store { node, bar, offset, data } => {
                self.node(node)?.device.bar_write(bar, offset, &data);
            }
            Due::Run(node) => {
                if self.node(node)?.device.run(&mut Wire { world: self, node }) {
                    self.work(node);
                }
            }
            Due::Room(node, link) => self.node(node)?.device.room(link),
            Due::Arrive(node, link, unit) => {
                if let Some(node) = self.node(node) {
                    node.device.push(link, unit);
                }
            }
            Due::Memory { node, address, written } => {
                let memory = &self.node(node)?.memory;
                // The device has checked the address, and memory does not go away.
                let _ = match written {
                    Written::Bytes(bytes) => memory.write(address, &bytes),
                    Written::Word(word) => memory.store(address, word),
                };
                return Some(Event::Memory(node));
            }
            Due::Expire(node) => {
                let device = &self.node(node)?.device;
                device.expire(self.now() / 1000, &mut Wire { world: self, node });
                let next = device.next_deadline();
                if next != NEVER {
                    self.state().want(node, next.saturating_mul(1000));
                }
            }
            Due::Program(program) => return Some(Event::Program(program)),
        }
        Some(Event::Device)
    }

    /// Schedules work of a device.
    fn work(&self, node: usize) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.nodes[node].queued, true) {
            let now = state.now;
            state.push(now, Due::Run(node));
        }
    }

    /// Schedules a processor's store to its device.
    fn store(&self, node: usize, bar: u8, offset: u64, data: &[u8]) {
        let mut state = self.state();
        let now = state.now;
        let unit = &mut state.nodes[node];
        let link = match bar {
            WINDOW_BAR => WindowPlace::decode(offset).map_or(0, |place| place.link.index()),
            _ => 0,
        };
        let (_, end) = unit.to_device.by(link, now, data.len() as u64);
        unit.stored_until = end;
        unit.stores += 1;
        state.push(end + WAY_PS, Due::Store { node, bar, offset, data: data.to_vec() });
    }

    /// Schedules a device's write to memory.
    fn write(&self, node: usize, address: u64, bytes: usize, written: Written) {
        let mut state = self.state();
        let now = state.now;
        let bus = &mut state.nodes[node].to_memory;
        let (_, end) = match written {
            Written::Bytes(_) => bus.by_any(now, bytes as u64),
            Written::Word(_) => bus.by(bus.last, now, bytes as u64),
        };
        let end = bus.in_order(end);
        state.push(end + WAY_PS, Due::Memory { node, address, written });
    }

    /// Models a device's read, which crosses the bus in both directions.
    fn fetch(&self, node: usize, bytes: usize) {
        let mut state = self.state();
        let asked = state.now + WAY_PS;
        let unit = &mut state.nodes[node];
        let (from, _) = unit.to_device.by_any(asked, bytes as u64);
        unit.fetched = Some(from + WAY_PS);
    }

    fn send(&self, node: usize, link: Link, unit: Unit) {
        let from = self.node(node).map(|node| node.coords);
        let to = from.and_then(|from| self.shape.neighbor(from, link.port()));
        let Some(to) = to.and_then(|to| self.shape.node_id(to)) else { return };
        let (to, entry) = (to.index(), link.opposite());
        let mut state = self.state();
        let now = state.now;
        let Unit::Data(data) = unit else {
            let at = now.max(state.nodes[node].links[link.index()]) + TORUS_TIMING.hop_ps;
            let unit = self.disturbed(&mut state, unit);
            state.push(at, Due::Arrive(to, entry, unit));
            return;
        };
        let fetched = state.nodes[node].fetched.take();
        for (index, packet) in (1..).zip(data.to_wire()) {
            // A packet can leave once its data has arrived.
            let ready = fetched.map_or(now, |from| from + index * PACKET_ON_BUS_PS);
            let free = &mut state.nodes[node].links[link.index()];
            *free = ready.max(*free) + PACKET_PS;
            let at = *free + TORUS_TIMING.hop_ps;
            if let Some(unit) = Unit::from_wire(&packet) {
                let unit = self.disturbed(&mut state, unit);
                state.push(at, Due::Arrive(to, entry, unit));
            }
        }
        let free = state.nodes[node].links[link.index()];
        state.push(free, Due::Room(node, link));
    }

    fn disturbed(&self, state: &mut State, mut unit: Unit) -> Unit {
        let errors = u64::from(self.errors.parts());
        if errors > 0 && below(state.random(), Ppm::ALWAYS.parts().into()) < errors {
            unit.damage(state.random(), false);
        }
        unit
    }
}

/// The device's interface to its links.
struct Wire<'a> {
    world: &'a World,
    node: usize,
}

impl Net for Wire<'_> {
    fn room(&self, link: Link) -> u16 {
        let state = self.world.state();
        if state.nodes[self.node].links[link.index()] <= state.now { FETCH } else { 0 }
    }

    fn send(&mut self, link: Link, unit: Unit) {
        self.world.send(self.node, link, unit);
    }
}

/// The device's environment: the host, and memory at the other end of the bus.
struct Surroundings {
    world: Weak<World>,
    node: usize,
    memory: GuestMemoryMmap<()>,
    interrupts: Arc<Interrupts>,
}

impl Surroundings {
    /// Calls `f` with the world. A device outlives its world only while it is being dropped.
    fn with(&self, f: impl FnOnce(&World)) {
        if let Some(world) = self.world.upgrade() {
            f(&world);
        }
    }
}

impl Host for Surroundings {
    fn interrupt(&self, vector: u16) {
        self.interrupts.fire(vector);
    }

    fn work(&self) {
        self.with(|world| world.work(self.node));
    }

    fn timer(&self, deadline_ns: u64) {
        self.with(|world| world.state().want(self.node, deadline_ns.saturating_mul(1000)));
    }

    fn now_ns(&self) -> u64 {
        self.world.upgrade().map_or(0, |world| world.now() / 1000)
    }
}

impl DmaMemory for Surroundings {
    fn contains(&self, addr: u64, len: usize, access: Access) -> bool {
        self.memory.contains(addr, len, access)
    }

    fn access(&self, addr: u64, len: usize, access: Access, f: &mut Visit<'_>) -> DmaResult {
        self.memory.access(addr, len, access, f)
    }

    fn read(&self, addr: u64, buf: &mut [u8]) -> DmaResult {
        self.memory.read(addr, buf)?;
        self.with(|world| world.fetch(self.node, buf.len()));
        Ok(())
    }

    fn write(&self, addr: u64, buf: &[u8]) -> DmaResult {
        if !self.contains(addr, buf.len(), Access::Write) {
            return Err(DmaError { addr, len: buf.len() });
        }
        let written = Written::Bytes(buf.to_vec());
        self.with(|world| world.write(self.node, addr, buf.len(), written));
        Ok(())
    }

    fn store(&self, addr: u64, value: u64) -> DmaResult {
        if !addr.is_multiple_of(8) || !self.contains(addr, 8, Access::Write) {
            return Err(DmaError { addr, len: 8 });
        }
        self.with(|world| world.write(self.node, addr, 8, Written::Word(value)));
        Ok(())
    }
}

/// The library's platform for a node.
struct NodeBackend {
    world: Arc<World>,
    node: usize,
}

impl Backend for NodeBackend {
    /// Earlier stores reach the device first. The time of the read itself is not modelled, because
    /// the library reads no registers between messages.
    fn bar_read(&self, offset: u64, data: &mut [u8]) {
        while self.world.state().nodes[self.node].stores > 0 && self.world.step().is_some() {}
        if let Some(node) = self.world.node(self.node) {
            node.device.bar_read(REGISTER_BAR, offset, data);
        }
    }

    fn bar_write(&self, offset: u64, data: &[u8]) {
        self.world.store(self.node, REGISTER_BAR, offset, data);
    }

    fn bar_store(&self, bar: u8, offset: u64, data: &[u8]) {
        self.world.store(self.node, bar, offset, data);
    }

    fn now_ns(&self) -> u64 {
        self.world.now() / 1000
    }

    fn pump(&self) -> bool {
        if self.world.step().is_none() {
            let mut state = self.world.state();
            state.now += IDLE_PS;
            self.world.clock.store(state.now, SeqCst);
        }
        true
    }
}
