//! A few nodes for tests: devices and links without a VM, driven by the test's own thread.
//!
//! Nothing happens in a [`Cluster`] unless a test waits for it, and its clock only moves
//! while a test waits, so a test does the same on each run.
//!
//! Tests get the generation of `TOFU_TEST_GENERATION` from `description()`, and an interface or
//! queue from `tni` and `cq`, whose numbers wrap around. A test of something that a generation
//! lacks, such as atomic commands, returns at once.
#![forbid(unsafe_code)]

pub mod seen;
pub mod shards;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tofu_abi::Generation;
use tofu_abi::generation::Description;
use tofu_abi::queue::{MrqEntry, MrqId};
use tofu_abi::regs::{CqReg, CqsReg, PortReg, Register, TniReg};
use tofu_abi::table::PageSize;
use tofu_abi::{Coords, CqId, Doorbell, Rcode, StagOffset, TniId};
use tofu_driver::{
    Access, Completion, Cq, CqConfig, Device, DmaBuffer, MemoryRange, Order, Platform, Stag, Target,
};
use tofu_fabric::{
    Carrier, Deliver, DiscardReason, EccErrors, Fabric, LinkErrors, NodeId, Packet, Port,
    PortCounters, Shape, Timing, Wires, XbCounters,
};
use tofu_icc::{Body, CommandTiming, Config, EccPlace, Host, Icc, Net, SharedPages, discard_rcode};
use tofu_inproc::{Arena, Backend, Buffer, InProcess, Interrupts};
use tofu_links::Parameters;
use tofu_machine::{Links, MachineConfig};
use tofu_netmodel::HostBus;
use vm_memory::{GuestAddress, GuestMemoryMmap, MmapRegion, VolatileMemory};

/// The start of a node's memory.
const MEMORY_BASE: u64 = 0x10_0000;
/// Time that passes with each poll of a test, in nanoseconds.
const TICK_NS: u64 = 1000;
/// The time for which tests wait on the cluster's clock: longer than a device waits for an answer.
pub const PATIENCE_NS: u64 = 2_000_000_000;

/// The carrier for tests that do not depend on it: as the environment variable
/// `TOFU_TEST_LINKS` says, directly if it is not set.
///
/// # Panics
///
/// If it says anything but `direct` or `modelled`.
pub fn links() -> Links {
    match std::env::var("TOFU_TEST_LINKS").as_deref() {
        Err(_) | Ok("direct") => Links::Direct,
        Ok("modelled") => Links::Modelled,
        Ok(other) => panic!("TOFU_TEST_LINKS is direct or modelled, not {other}"),
    }
}

/// The generation of the controllers in tests that do not depend on it: the one that the
/// environment variable `TOFU_TEST_GENERATION` names, Fugaku if it is not set.
///
/// # Panics
///
/// If there is no such generation.
pub fn generation() -> Generation {
    let Ok(name) = std::env::var("TOFU_TEST_GENERATION") else { return Generation::Fugaku };
    let generation = Generation::from_name(&name);
    generation
        .unwrap_or_else(|| panic!("TOFU_TEST_GENERATION is {}, not {name}", Generation::NAMES))
}

/// The properties of controllers of [`generation`].
pub fn description() -> &'static Description {
    generation().description()
}

/// An interface of such controllers. Tests that want another one than the first give any number:
/// numbers wrap around.
pub fn tni(number: u8) -> TniId {
    TniId::ALL[usize::from(number % description().tnis)]
}

/// A control queue of such controllers; numbers wrap around.
pub fn cq(number: u8) -> CqId {
    CqId::ALL[usize::from(number % description().cqs)]
}

/// A machine of this shape with such controllers and links.
pub fn machine(shape: Shape) -> MachineConfig {
    MachineConfig { links: links(), ..MachineConfig::of(generation(), shape) }
}

/// The state that all nodes of a cluster share.
struct World {
    fabric: Arc<Fabric>,
    wires: Wires<Body>,
    nodes: OnceLock<Vec<Arc<Icc>>>,
    doorbells: Mutex<VecDeque<(usize, TniId, Doorbell)>>,
    now: AtomicU64,
    /// Answers are lost while this is set.
    lose_answers: AtomicU64,
    /// Control queue pages of each node, where doorbells are polled.
    pages: Vec<SharedPages>,
}

impl World {
    fn nodes(&self) -> &[Arc<Icc>] {
        self.nodes.get().map_or(&[], Vec::as_slice)
    }

    /// Looks at the pages that guests have mapped.
    fn poll(&self) {
        for node in 0..self.pages.len() {
            for (tni, bell) in
                TniId::ALL.into_iter().flat_map(|tni| Doorbell::ALL.map(|bell| (tni, bell)))
            {
                if self.nodes()[node].poll_doorbell(tni, bell) {
                    self.doorbells.lock().unwrap().push_back((node, tni, bell));
                }
            }
        }
    }

    /// The memory behind a register of a shared page; `None` if accesses are trapped.
    fn mapped(&self, node: usize, offset: u64) -> Option<&AtomicU64> {
        let at = match Register::decode(offset)? {
            Register::Cq { tni, cq, reg } => {
                SharedPages::page_offset(tni, cq.into()) + reg.offset() as usize
            }
            Register::Bch { tni, bch, reg } => {
                SharedPages::page_offset(tni, bch.into()) + reg.offset() as usize
            }
            _ => return None,
        };
        self.pages.get(node)?.region().get_atomic_ref(at).ok()
    }

    /// Does all pending work.
    fn settle(&self) {
        let mut net = Wire { world: self, arrivals: VecDeque::new() };
        self.poll();
        loop {
            let next = self.doorbells.lock().unwrap().pop_front();
            let Some((node, tni, bell)) = next else {
                // Time advances in modelled links when there is no other work.
                let progress = self.wires.step(&mut net);
                net.progress();
                let under_way = progress.is_some_and(|progress| progress.next.is_some());
                if under_way || self.wires.has_mail() || !self.doorbells.lock().unwrap().is_empty()
                {
                    continue;
                }
                break;
            };
            if self.nodes()[node].run_queue(tni, bell, &mut net) {
                self.doorbells.lock().unwrap().push_back((node, tni, bell));
            }
            net.progress();
        }
    }

    fn pass(&self, ns: u64) {
        let now = self.now.fetch_add(ns, Ordering::SeqCst) + ns;
        for node in self.nodes().iter().filter(|node| node.next_deadline() <= now) {
            node.expire(now);
        }
    }
}

/// The network during one call of [`World::settle`].
struct Wire<'a> {
    world: &'a World,
    arrivals: VecDeque<(usize, Packet<Body>)>,
}

impl Net for Wire<'_> {
    fn has_room(&self, node: Coords, tni: TniId) -> bool {
        self.world.wires.has_room(node, tni)
    }

    fn tells_of_frames(&self) -> bool {
        self.world.wires.is_modelled()
    }

    fn inject(&mut self, packet: Packet<Body>) {
        let answer = matches!(packet.body.tag(), Some((_, false)));
        if answer && self.world.lose_answers.load(Ordering::SeqCst) != 0 {
            return;
        }
        self.world.wires.inject(packet, self);
    }

    fn progress(&mut self) {
        while let Some((node, packet)) = self.arrivals.pop_front() {
            if self.tells_of_frames() {
                self.frame_passed(&packet);
            }
            self.world.nodes()[node].arrive(&packet, self);
        }
    }

    fn now_ns(&self) -> u64 {
        self.world.now.load(Ordering::SeqCst)
    }
}

impl Wire<'_> {
    /// Tells the node that sent a raw or system packet that it has left the network.
    fn frame_passed(&self, packet: &Packet<Body>) {
        let source = self.world.fabric.shape().node_id(packet.src);
        if let (Body::Frame { tag, .. }, Some(source)) = (&packet.body, source) {
            let node = &self.world.nodes()[source.index()];
            node.frame_passed(packet.src_tni, *tag, self.now_ns());
        }
    }
}

impl Deliver<Body> for Wire<'_> {
    fn swallowed(&mut self, packet: Packet<Body>) {
        self.frame_passed(&packet);
    }

    fn room(&mut self, node: NodeId, tni: TniId) {
        self.world.nodes()[node.index()].room(tni);
    }

    fn arrived(&mut self, node: NodeId, packet: Packet<Body>) {
        self.arrivals.push_back((node.index(), packet));
    }

    fn discarded(
        &mut self,
        at: NodeId,
        port: Option<Port>,
        reason: DiscardReason,
        packet: Packet<Body>,
    ) {
        let nodes = self.world.nodes();
        if let Some(node) = nodes.get(at.index()) {
            node.router_event(port, reason);
        }
        if let Some(source) = self.world.fabric.shape().node_id(packet.src) {
            nodes[source.index()].undeliverable(&packet, discard_rcode(reason), self.now_ns());
        }
    }
}

/// A device's view of its cluster.
struct Surroundings {
    world: Weak<World>,
    node: usize,
    interrupts: Arc<Interrupts>,
}

impl Surroundings {
    fn world(&self) -> Arc<World> {
        self.world.upgrade().expect("the cluster outlives its devices")
    }
}

impl Host for Surroundings {
    fn interrupt(&self, vector: u16) {
        self.interrupts.fire(vector);
    }

    fn doorbell(&self, tni: TniId, bell: Doorbell) {
        self.world().doorbells.lock().unwrap().push_back((self.node, tni, bell));
    }

    fn queue_enabled(&self, _: TniId, _: Doorbell, _: bool) {}

    fn timer(&self, _: u64) {}

    fn now_ns(&self) -> u64 {
        self.world().now.load(Ordering::SeqCst)
    }

    fn port_counters(&self, port: Port) -> PortCounters {
        let node = NodeId(self.node as u32);
        self.world().fabric.port_counters(node, port).expect("the node is in the machine")
    }

    fn xb_counters(&self) -> XbCounters {
        let node = NodeId(self.node as u32);
        self.world().fabric.xb_counters(node).expect("the node is in the machine")
    }
}

/// The driver's platform for one node.
struct NodeBackend {
    world: Arc<World>,
    node: usize,
}

impl Backend for NodeBackend {
    fn bar_read(&self, offset: u64, data: &mut [u8]) {
        match self.world.mapped(self.node, offset) {
            Some(word) => data.copy_from_slice(&word.load(Ordering::SeqCst).to_le_bytes()),
            None => self.world.nodes()[self.node].bar_read(offset, data),
        }
    }

    fn bar_write(&self, offset: u64, data: &[u8]) {
        match (self.world.mapped(self.node, offset), data.try_into()) {
            (Some(word), Ok(bytes)) => word.store(u64::from_le_bytes(bytes), Ordering::SeqCst),
            _ => self.world.nodes()[self.node].bar_write(offset, data),
        }
    }

    fn now_ns(&self) -> u64 {
        self.world.now.load(Ordering::SeqCst)
    }

    fn pump(&self) -> bool {
        self.world.settle();
        self.world.pass(TICK_NS);
        true
    }
}

/// All nodes of a machine, probed and with their network interfaces enabled.
pub struct Cluster {
    world: Arc<World>,
    devices: Vec<Device<InProcess>>,
    memory_end: u64,
}

impl Cluster {
    /// A machine of this shape (`1x1x1x2x3x2`), 4 MiB of memory for each node. An axis of X,
    /// Y or Z that is 3 long or more is a torus.
    pub fn new(shape: &str) -> Self {
        Self::with_memory(shape, 4 << 20)
    }

    /// Like [`Cluster::new`], with control queue pages that are memory shared between driver
    /// and device, which the device polls from time to time.
    pub fn polled(shape: &str) -> Self {
        Self::build(shape, 4 << 20, true, generation(), links())
    }

    /// A machine with `size` bytes of memory for each node.
    pub fn with_memory(shape: &str, size: usize) -> Self {
        Self::build(shape, size, false, generation(), links())
    }

    /// A machine of a generation.
    pub fn of(generation: Generation, shape: &str) -> Self {
        Self::build(shape, 4 << 20, false, generation, links())
    }

    /// A machine of such links, with `size` bytes of memory for each node.
    pub fn with_links(shape: &str, size: usize, links: Links) -> Self {
        Self::build(shape, size, false, generation(), links)
    }

    fn build(shape: &str, size: usize, polled: bool, generation: Generation, links: Links) -> Self {
        let shape: Shape = shape.parse().unwrap();
        let parameters = Parameters::of(generation);
        let wires = match links {
            Links::Direct => Wires::new(Fabric::new(shape), Timing::of(parameters)),
            Links::Modelled => {
                let bus = CommandTiming::of(generation).bus_bytes_per_s;
                let data = Body::payload_bytes;
                let bus = bus.map(|bytes_per_s| HostBus { bytes_per_s, data });
                tofu_netmodel::wires(shape, parameters, bus).unwrap()
            }
        };
        let pages: Vec<_> = (0..if polled { shape.nodes() } else { 0 })
            .map(|_| {
                let region = MmapRegion::new(SharedPages::SIZE).unwrap();
                SharedPages::new(Arc::new(region)).unwrap()
            })
            .collect();
        let world = Arc::new(World {
            pages,
            fabric: Arc::clone(wires.fabric()),
            wires,
            nodes: OnceLock::new(),
            doorbells: Mutex::default(),
            now: AtomicU64::new(0),
            lose_answers: AtomicU64::new(0),
        });
        let mut nodes = Vec::new();
        let mut parts = Vec::new();
        for (node, coords) in shape.iter().enumerate() {
            let memory =
                GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(MEMORY_BASE), size)]).unwrap();
            let interrupts = Arc::new(Interrupts::default());
            let host = Surroundings {
                world: Arc::downgrade(&world),
                node,
                interrupts: Arc::clone(&interrupts),
            };
            let pages = world.pages.get(node).cloned();
            let config = Config { pages, ..Config::of(generation, coords) };
            let icc = Icc::new(config, Arc::new(host), Arc::new(memory.clone()));
            icc.set_bus_master(true);
            nodes.push(Arc::new(icc));
            parts.push((Arena::new(memory).unwrap(), interrupts));
        }
        assert!(world.nodes.set(nodes).is_ok());
        let devices = parts
            .into_iter()
            .enumerate()
            .map(|(node, (arena, interrupts))| {
                let backend = Arc::new(NodeBackend { world: Arc::clone(&world), node });
                let device = Device::probe(InProcess::new(backend, arena, interrupts)).unwrap();
                device.enable_tnis().unwrap();
                device
            })
            .collect();
        Self { world, devices, memory_end: MEMORY_BASE + size as u64 }
    }

    /// The device of node `rank`.
    pub fn device(&self, rank: u32) -> &Device<InProcess> {
        &self.devices[rank as usize]
    }

    /// Memory of node `rank`.
    pub fn alloc(&self, rank: u32, size: usize, align: usize) -> Buffer {
        self.device(rank).platform().memory().alloc(size, align).unwrap()
    }

    /// First address behind the memory of a node.
    pub fn memory_end(&self, _rank: u32) -> u64 {
        self.memory_end
    }

    /// Opens a queue of node `rank` with 64 KiB of memory registered as STag 0.
    pub fn endpoint(&self, rank: u32, tni: u8, cq: u8) -> Endpoint {
        self.endpoint_with(rank, &config(tni, cq))
    }

    /// Like [`Cluster::endpoint`], with `size` bytes of memory.
    pub fn endpoint_of(&self, rank: u32, tni: u8, cq: u8, size: usize) -> Endpoint {
        Endpoint::new(self, rank, &config(tni, cq), size)
    }

    /// Like [`Cluster::endpoint`], with its own settings.
    pub fn endpoint_with(&self, rank: u32, config: &CqConfig) -> Endpoint {
        Endpoint::new(self, rank, config, 64 << 10)
    }

    /// Lets the devices finish all work that they can do now.
    pub fn settle(&self) {
        self.world.settle();
    }

    /// Lets time pass.
    pub fn pass(&self, ns: u64) {
        self.world.pass(ns);
        self.world.settle();
    }

    /// Takes the link at port `port` of node `rank` up or down.
    pub fn set_link(&self, rank: u32, port: usize, up: bool) {
        let port = Port::from_index(port).unwrap();
        self.world.fabric.set_link(self.device(rank).coords(), port, up).unwrap();
    }

    /// Makes the router of node `rank` fail or work again, and all its links with it.
    pub fn set_node(&self, rank: u32, up: bool) {
        self.world.fabric.set_node(self.device(rank).coords(), up).unwrap();
    }

    /// The counters of the crossbar of node `rank`.
    pub fn xb_counters(&self, rank: u32) -> XbCounters {
        self.world.fabric.xb_counters(NodeId(rank)).unwrap()
    }

    /// Sets the errors of the modelled link at port `port` of node `rank`.
    pub fn set_link_errors(&self, rank: u32, port: usize, errors: &LinkErrors) {
        let port = Port::from_index(port).unwrap();
        self.world.fabric.set_link_errors(self.device(rank).coords(), port, errors).unwrap();
    }

    /// Injects wrong bits into the memory of a node's device, as a machine does.
    pub fn inject_ecc(&self, rank: u32, place: EccPlace, errors: EccErrors) {
        let icc = self.icc(rank);
        icc.inject_ecc(place, errors);
        if place == EccPlace::Router {
            self.world.wires.set_router_errors(NodeId(rank), Arc::clone(icc.router_errors()));
        }
    }

    /// The counters of a port of node `rank`.
    pub fn port_counters(&self, rank: u32, port: usize) -> PortCounters {
        self.world.fabric.port_counters(NodeId(rank), Port::from_index(port).unwrap()).unwrap()
    }

    /// Lets all answers disappear without a trace, or arrive again.
    pub fn lose_answers(&self, lose: bool) {
        self.world.lose_answers.store(lose.into(), Ordering::SeqCst);
    }

    /// Turns the bus mastering of a node's device on or off.
    pub fn set_bus_master(&self, rank: u32, on: bool) {
        self.world.nodes()[rank as usize].set_bus_master(on);
    }

    /// The device itself, for what a driver cannot do.
    pub fn icc(&self, rank: u32) -> &Icc {
        &self.world.nodes()[rank as usize]
    }

    /// TLPs that TNI `tni` of node `rank` has sent.
    pub fn sent_tlps(&self, rank: u32, tni: u8) -> u64 {
        let tni = TniId::new(tni).unwrap();
        self.device(rank).read(Register::Tni { tni, reg: TniReg::NumSendTlp })
    }

    /// Bytes, in units of 16, that left node `rank` through port `port`.
    pub fn sent_bytes(&self, rank: u32, port: Port) -> u64 {
        self.device(rank).read(Register::Port { port, reg: PortReg::ByteSendTlp })
    }
}

/// The settings of a queue of an interface: [`tni`] and [`cq`] of these numbers.
pub fn config(tni: u8, cq: u8) -> CqConfig {
    CqConfig::new(self::tni(tni), self::cq(cq))
}

/// Opens a queue with `size` bytes of memory as STag 0.
pub fn open(
    device: &Device<InProcess>,
    config: &CqConfig,
    size: usize,
) -> (Cq<InProcess>, Arc<Buffer>) {
    let mut cq = Cq::open(device, config).unwrap();
    let buffer = Arc::new(device.platform().alloc_dma(size, 4096).unwrap());
    let range = [MemoryRange::of(&*buffer)];
    cq.register(&range, PageSize::Size4K, Access::ReadWrite, Some(0)).unwrap();
    (cq, buffer)
}

/// An open queue with some registered memory.
pub struct Endpoint {
    /// Number of the node.
    pub rank: u32,
    /// Coordinates of the node.
    pub node: Coords,
    /// Network interface.
    pub tni: TniId,
    /// The queue.
    pub cq: Cq<InProcess>,
    /// The memory, aligned to 64 KiB.
    pub buffer: Buffer,
    /// The STag of the memory.
    pub stag: Stag,
}

impl Endpoint {
    fn new(cluster: &Cluster, rank: u32, config: &CqConfig, size: usize) -> Self {
        let device = cluster.device(rank);
        let mut cq = Cq::open(device, config).unwrap();
        let buffer = cluster.alloc(rank, size, 64 << 10);
        let range = [MemoryRange::of(&buffer)];
        let stag = cq.register(&range, PageSize::Size64K, Access::ReadWrite, Some(0)).unwrap();
        Self { rank, node: device.coords(), tni: config.tni, cq, buffer, stag }
    }

    /// The device of the queue.
    pub fn device(&self) -> &Device<InProcess> {
        self.cq.device()
    }

    /// The target of commands to this queue.
    pub fn target(&self) -> Target {
        Target::new(self.node, self.cq.tni())
    }

    /// The address of a byte of the memory.
    pub fn at(&self, offset: u64) -> StagOffset {
        self.stag.at(offset)
    }

    /// A register of the queue's user page.
    pub fn cq_register(&self, reg: CqReg) -> Register {
        Register::Cq { tni: self.cq.tni(), cq: self.cq.cq(), reg }
    }

    /// A register of the queue's system page.
    pub fn cqs_register(&self, reg: CqsReg) -> Register {
        Register::Cqs { tni: self.cq.tni(), cq: self.cq.cq(), reg }
    }

    /// Posts a command and waits until it is complete.
    pub fn run(&mut self, order: &Order) -> Completion {
        self.cq.post_and_ring(order, 0).unwrap();
        self.complete()
    }

    /// Runs a command and checks that its completion says that it was sent, which holds even if its
    /// target refuses it or it gets lost. Returns the code of its notice. Earlier notices are
    /// taken, too.
    pub fn end_of(&mut self, order: &Order) -> Rcode {
        self.notices();
        let done = self.run(order);
        assert_eq!(done.rcode, Rcode::SUCCESS, "the TCQ entry of {order:?}, which was sent");
        let start = self.now();
        loop {
            if let Some(notice) = self.cq.poll_mrq() {
                if notice.id().is_some_and(MrqId::ends_own_command) {
                    return notice.word0().rcode();
                }
                continue;
            }
            assert!(self.now() - start < PATIENCE_NS, "no notice");
            tofu_driver::Platform::relax(self.device().platform());
        }
    }

    /// Waits for the next completion.
    pub fn complete(&mut self) -> Completion {
        let start = self.now();
        loop {
            if let Some(done) = self.cq.poll_tcq() {
                return done;
            }
            assert!(self.now() - start < PATIENCE_NS, "no completion");
            tofu_driver::Platform::relax(self.device().platform());
        }
    }

    fn now(&self) -> u64 {
        tofu_driver::Platform::now_ns(self.device().platform())
    }

    /// Takes all notices that are there.
    pub fn notices(&mut self) -> Vec<MrqEntry> {
        std::iter::from_fn(|| self.cq.poll_mrq()).collect()
    }

    /// Takes all notices and keeps their ids.
    pub fn ids(&mut self) -> Vec<MrqId> {
        self.notices().iter().map(|n| n.id().expect("a known id")).collect()
    }

    /// Writes into the memory.
    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        self.buffer.write(offset, bytes);
    }

    /// Reads from the memory.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read(offset, &mut bytes);
        bytes
    }

    /// The first `n` words of 8 bytes from word `first` on.
    pub fn words(&self, first: usize, n: usize) -> Vec<u64> {
        (first..first + n).map(|i| self.buffer.load_u64(i * 8, Ordering::Acquire)).collect()
    }

    /// Writes the 8 bytes at `offset`.
    pub fn set_word(&self, offset: usize, value: u64) {
        self.buffer.store_u64(offset, value, Ordering::Release);
    }
}

/// `len` bytes that look random and depend on `seed`.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 7);
    while bytes.len() < len {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
