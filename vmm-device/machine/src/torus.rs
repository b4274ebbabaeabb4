//! A machine of TNW, the second device: its nodes, their links, and the engine that drives them.
//!
//! The links come from `tofu-fabric`, as in every machine: shapes, links that are down, faults and
//! counters. Each packet here is one hop long. A thread that writes to a device does its work for a
//! bounded time; an engine thread ([`Torus::start`]) or the caller of [`Torus::run_pending`] does
//! the rest.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tofu_abi::tnw::{
    Channel, Link, REGISTER_BAR, REGISTER_BAR_SIZE, WINDOW_BAR, WINDOW_BAR_SIZE, WINDOW_SIZE,
    vector, window,
};
use tofu_abi::topology::Axis;
use tofu_abi::{Coords, Path, TniId, pci};
use tofu_fabric::{
    Carrier, Class, Deliver, DiscardReason, Fabric, NodeId, Packet, Port, Shape, Timing, Way, Wires,
};
use tofu_inspect::{Inspect, Visit};
use tofu_parts::DmaMemory;
use tofu_pci::{Bar, Endpoint, EndpointDevice, Identity, LinkSpeed};
use tofu_sync::lock;
use tofu_tnw_device::{Config, Host, MAX_RUN, NEVER, Net, Nwp, SharedWindows, Unit};

use crate::capture::{Capture, CaptureConfig, Hub};
use crate::clock::Clock;
use crate::config::Doorbells;
use crate::error::Error;
use crate::interconnect::Interconnect;
use crate::windows::{HasNwp, TorusParts, Watched, WindowBackend};

/// Number of turns that a write to a device gives to ready devices, on its vCPU's time: to the
/// device, to its neighbour, to the device again for the answer, and one more. The engine does the
/// rest.
const TURNS_PER_WRITE: usize = 4;
/// Number of turns in a row of an engine, or of a machine without one.
const TURNS_PER_ROUND: usize = 256;
/// How long a fault holds back a unit that no other unit overtakes, in nanoseconds.
const HOLD_NS: u64 = 1_000_000;

/// Packets that go over a link together while a capture or faults inspect them.
const RUN_OBSERVED: u16 = 64;
/// How long the engine polls a shared window after it last had something new, in nanoseconds.
const SPIN_NS: u64 = 50_000;

/// Timing of the links: 0.6 us from processor to processor including the packet's own time, and 128
/// bytes of data in each 136 bytes at 0.91 GB/s (sections 2.2, 4).
pub const TORUS_TIMING: Timing = Timing { hop_ps: 459_341, byte_fs: 1_034_260 };

/// A machine whose nodes have TNW network processors.
pub struct Torus {
    shared: Arc<TorusShared>,
    captures: Arc<Hub<Unit>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The network of a machine of TNW, for code that observes or disturbs it. It may outlive the
/// machine.
#[derive(Clone)]
pub struct TorusNetwork {
    wires: Arc<Wires<Unit>>,
    captures: Arc<Hub<Unit>>,
    machine: Weak<TorusShared>,
}

impl TorusNetwork {
    /// The links, and their faults.
    pub fn wires(&self) -> &Wires<Unit> {
        &self.wires
    }

    /// Starts to record the packets that pass the given ports of a node.
    pub fn capture(&self, config: CaptureConfig) -> Capture {
        self.captures.start(config.of(Interconnect::Tnw))
    }

    /// A node; `None` if no device was added or the machine has been dropped.
    pub fn node(&self, id: NodeId) -> Option<Arc<TorusNode>> {
        self.machine.upgrade()?.nodes.get(id.index())?.get().cloned()
    }
}

struct TorusShared {
    wires: Arc<Wires<Unit>>,
    nodes: Vec<OnceLock<Arc<TorusNode>>>,
    clock: Clock,
    /// Devices that have work, each at most once.
    ready: Mutex<VecDeque<NodeId>>,
    /// Signalled when devices become ready, and when the machine stops.
    changed: Condvar,
    /// Whether the engine thread sleeps or is about to.
    sleeping: AtomicBool,
    has_engine: AtomicBool,
    deadline: AtomicU64,
    stopping: AtomicBool,
    /// Whether the engine polls shared windows.
    polled: AtomicBool,
    /// Windows that the engine is to poll from now on.
    rung: Mutex<Vec<(NodeId, Link, Channel)>>,
    has_rung: AtomicBool,
}

/// A node: a network processor behind a PCI Express endpoint.
pub struct TorusNode {
    id: NodeId,
    coords: Coords,
    nwp: Nwp,
    host: Arc<NwpHost>,
}

struct NwpHost {
    id: NodeId,
    shared: Weak<TorusShared>,
    endpoint: Endpoint,
    queued: AtomicBool,
    windows: Option<SharedWindows>,
    backend: Option<Arc<dyn WindowBackend>>,
    /// Whether it was logged that a window could not be attached.
    warned: AtomicBool,
}

impl Torus {
    /// Creates a machine of this shape without devices. A, B and C must be of length 1.
    ///
    /// # Errors
    ///
    /// [`Error::NotThreeAxes`] for other shapes.
    pub fn new(shape: Shape) -> Result<Self, Error> {
        Self::with_clock(shape, Clock::Host(Instant::now()))
    }

    /// Like [`Torus::new`], but time advances only by [`Torus::advance`].
    ///
    /// # Errors
    ///
    /// As [`Torus::new`].
    pub fn with_manual_clock(shape: Shape) -> Result<Self, Error> {
        Self::with_clock(shape, Clock::Manual(AtomicU64::new(0)))
    }

    fn with_clock(shape: Shape, clock: Clock) -> Result<Self, Error> {
        if [Axis::A, Axis::B, Axis::C].into_iter().any(|axis| shape.len(axis) != 1) {
            return Err(Error::NotThreeAxes(shape));
        }
        let shared = TorusShared {
            wires: Arc::new(Wires::new(Fabric::new(shape), TORUS_TIMING)),
            nodes: (0..shape.nodes()).map(|_| OnceLock::new()).collect(),
            clock,
            ready: Mutex::default(),
            changed: Condvar::new(),
            sleeping: AtomicBool::new(false),
            has_engine: AtomicBool::new(false),
            deadline: AtomicU64::new(NEVER),
            stopping: AtomicBool::new(false),
            polled: AtomicBool::new(false),
            rung: Mutex::default(),
            has_rung: AtomicBool::new(false),
        };
        let captures = Hub::new(&shared.wires);
        Ok(Self { shared: Arc::new(shared), captures, thread: Mutex::new(None) })
    }

    /// The links: up or down, their counters, their faults.
    pub fn wires(&self) -> &Wires<Unit> {
        &self.shared.wires
    }

    /// The network, which any thread may inspect and change.
    pub fn network(&self) -> TorusNetwork {
        TorusNetwork {
            wires: Arc::clone(&self.shared.wires),
            captures: Arc::clone(&self.captures),
            machine: Arc::downgrade(&self.shared),
        }
    }

    /// Time on the machine's clock, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// Adds a device at `coords`, with DMA to `memory`.
    ///
    /// # Errors
    ///
    /// If `coords` are outside the machine or taken.
    pub fn add_node(
        &self,
        coords: Coords,
        memory: Arc<dyn DmaMemory>,
    ) -> Result<Arc<TorusNode>, Error> {
        self.add_node_of(coords, TorusParts::new(memory))
    }

    /// Adds a device at `coords`, made from `parts`.
    ///
    /// # Errors
    ///
    /// As [`Torus::add_node`].
    pub fn add_node_of(&self, coords: Coords, parts: TorusParts) -> Result<Arc<TorusNode>, Error> {
        let TorusParts { memory, windows, backend } = parts;
        let shape = *self.shared.wires.fabric().shape();
        let id = shape.node_id(coords).ok_or(Error::NoSuchNode(coords))?;
        let place = self.shared.nodes.get(id.index()).ok_or(Error::NoSuchNode(coords))?;
        let host = Arc::new(NwpHost {
            id,
            shared: Arc::downgrade(&self.shared),
            endpoint: endpoint(coords)?,
            queued: AtomicBool::new(false),
            windows: windows.clone(),
            backend,
            warned: AtomicBool::new(false),
        });
        let config = Config { coords, shape, life: 1, windows };
        let nwp = Nwp::new(config, Arc::clone(&host) as Arc<dyn Host>, memory);
        let node = Arc::new(TorusNode { id, coords, nwp, host });
        place.set(Arc::clone(&node)).map_err(|_| Error::NodeExists(coords))?;
        Ok(node)
    }

    /// Sets whether the engine polls shared windows that had something new lately, as long as it
    /// need not sleep. Their guests then need not notify it. By default it does not poll.
    pub fn set_doorbells(&self, doorbells: Doorbells) {
        self.shared.polled.store(doorbells == Doorbells::Polled, SeqCst);
    }

    /// How doorbells arrive, as set by [`Torus::set_doorbells`].
    pub fn doorbells(&self) -> Doorbells {
        match self.shared.polled.load(SeqCst) {
            true => Doorbells::Polled,
            false => Doorbells::Trapped,
        }
    }

    /// The device at `coords`; `None` if none was added.
    pub fn node(&self, coords: Coords) -> Option<&Arc<TorusNode>> {
        let id = self.shared.wires.fabric().shape().node_id(coords)?;
        self.shared.nodes.get(id.index())?.get()
    }

    /// Starts the engine thread.
    ///
    /// # Errors
    ///
    /// [`Error::Host`] if the host has no threads left.
    pub fn start(&self) -> Result<(), Error> {
        self.start_with(|| ())
    }

    /// Like [`Torus::start`], but the thread first calls `first`, for example to drop privileges.
    ///
    /// # Errors
    ///
    /// As [`Torus::start`].
    pub fn start_with(&self, first: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let engine = std::thread::Builder::new()
                .name("torus".to_owned())
                .spawn(move || {
                    first();
                    shared.serve();
                })
                .map_err(Error::host("starting an engine thread"))?;
            *thread = Some(engine);
            self.shared.has_engine.store(true, SeqCst);
        }
        Ok(())
    }

    /// Stops the engine thread after its current work.
    pub fn stop(&self) {
        self.shared.stopping.store(true, SeqCst);
        {
            let _ready = lock(&self.shared.ready);
            self.shared.changed.notify_all();
        }
        if let Some(thread) = lock(&self.thread).take()
            && thread.join().is_err()
        {
            log::error!("an engine thread has panicked");
        }
    }

    /// Whether there is an engine thread.
    pub fn has_engine(&self) -> bool {
        self.shared.has_engine.load(SeqCst)
    }

    /// Does the pending work in this thread, until only work that waits for time to pass is left.
    /// Returns whether there was any pending work.
    pub fn run_pending(&self) -> bool {
        let mut worked = self.shared.expire();
        while self.shared.run(TURNS_PER_ROUND) {
            worked = true;
        }
        worked
    }

    /// Advances a manual clock. Has no effect on a machine that uses the host's clock.
    pub fn advance(&self, ns: u64) {
        self.shared.clock.advance(ns);
    }
}

impl Drop for Torus {
    fn drop(&mut self) {
        self.stop();
    }
}

impl TorusShared {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn enqueue(&self, id: NodeId) {
        lock(&self.ready).push_back(id);
        if self.sleeping.load(SeqCst) {
            self.changed.notify_one();
        }
    }

    /// Gives ready devices up to `turns` turns. Returns whether any was ready.
    fn run(&self, turns: usize) -> bool {
        for turn in 0..turns {
            let Some(id) = lock(&self.ready).pop_front() else {
                return turn > 0;
            };
            if let Some(node) = self.nodes.get(id.index()).and_then(OnceLock::get) {
                node.host.queued.store(false, SeqCst);
                if node.nwp.run(&mut Outward { shared: self, node }) {
                    node.host.work();
                }
            }
        }
        true
    }

    fn want(&self, deadline_ns: u64) {
        if self.deadline.fetch_min(deadline_ns, SeqCst) > deadline_ns && self.sleeping.load(SeqCst)
        {
            let _ready = lock(&self.ready);
            self.changed.notify_one();
        }
    }

    /// Does the work that is due by now. Returns whether there was any.
    fn expire(&self) -> bool {
        let now = self.now_ns();
        if self.deadline.load(SeqCst) > now {
            return false;
        }
        self.deadline.store(NEVER, SeqCst);
        self.wires.release(&mut Inward { shared: self });
        for node in self.nodes.iter().filter_map(OnceLock::get) {
            node.nwp.expire(now, &mut Outward { shared: self, node });
            self.deadline.fetch_min(node.nwp.next_deadline(), SeqCst);
        }
        true
    }

    /// The body of the engine's thread.
    fn serve(&self) {
        let mut watched = Watched::new(SPIN_NS);
        while !self.stopping.load(SeqCst) {
            self.watch(&mut watched);
            self.expire();
            if self.run(TURNS_PER_ROUND) | watched.poll(self.now_ns()) {
                continue;
            }
            if !watched.is_empty() {
                spin_loop();
                continue;
            }
            let ready = lock(&self.ready);
            self.sleeping.store(true, SeqCst);
            let deadline = self.deadline.load(SeqCst);
            let now = self.now_ns();
            let idle = ready.is_empty() && deadline > now && !self.has_rung.load(SeqCst);
            if idle && !self.stopping.load(SeqCst) {
                // A manual clock advances from elsewhere, so it is read again at intervals.
                let most = Duration::from_millis(20);
                let wait = Duration::from_nanos(deadline - now).min(most);
                let woken = self.changed.wait_timeout(ready, wait);
                drop(woken.unwrap_or_else(PoisonError::into_inner));
            }
            self.sleeping.store(false, SeqCst);
        }
        watched.end();
    }

    /// Adds the windows to poll from now on.
    fn watch(&self, watched: &mut Watched<Arc<TorusNode>>) {
        if !self.has_rung.swap(false, SeqCst) {
            return;
        }
        for (id, link, channel) in std::mem::take(&mut *lock(&self.rung)) {
            if let Some(node) = self.nodes.get(id.index()).and_then(OnceLock::get) {
                watched.add(Arc::clone(node), link, channel, self.now_ns());
            }
        }
    }

    /// Notes that the guest of a window has notified the engine.
    fn rang(&self, place: (NodeId, Link, Channel)) {
        if !(self.polled.load(SeqCst) && self.has_engine.load(SeqCst)) {
            return;
        }
        {
            let mut rung = lock(&self.rung);
            if rung.contains(&place) {
                return;
            }
            rung.push(place);
            self.has_rung.store(true, SeqCst);
        }
        if self.sleeping.load(SeqCst) {
            let _ready = lock(&self.ready);
            self.changed.notify_one();
        }
    }
}

impl Inspect for TorusNode {
    fn inspect(&self, visit: Visit<'_>) {
        let Self { id, coords: _, nwp, host } = self;
        visit.tree(|tree| {
            tree.add("index", &id.0);
            tree.add("pci", &host.endpoint);
            tree.add("device", nwp);
        });
    }
}

/// The links, for a device that sends over them.
struct Outward<'a> {
    shared: &'a TorusShared,
    node: &'a TorusNode,
}

impl Net for Outward<'_> {
    fn room(&self, _: Link) -> u16 {
        if self.shared.wires.is_observed() { RUN_OBSERVED } else { MAX_RUN }
    }

    fn by_reference(&self) -> bool {
        !self.shared.wires.is_observed()
    }

    fn send(&mut self, link: Link, unit: Unit) {
        let vc = match &unit {
            Unit::Data(data) => data.channel().index() as u8,
            Unit::Control(_) => 0,
        };
        let packet = Packet {
            src: self.node.coords,
            src_tni: TniId::ALL[0],
            // The fabric determines the target.
            dst: self.node.coords,
            dst_tni: 0,
            path: Path::default(),
            way: Way::Hop { port: link.port(), vc, nullified: false },
            // A class of packets to which every fault applies.
            class: Class::System,
            system: false,
            tlps: unit.packets(),
            bytes: unit.wire_bytes(),
            tlp_bytes: (unit.wire_bytes() / u64::from(unit.packets().max(1))) as u32,
            gap: 0,
            sender: vc,
            before: 0,
            model_ps: 0,
            body: unit,
        };
        self.shared.wires.inject(packet, &mut Inward { shared: self.shared });
    }
}

/// The links, for the units that they deliver.
struct Inward<'a> {
    shared: &'a TorusShared,
}

impl Deliver<Unit> for Inward<'_> {
    fn arrived(&mut self, node: NodeId, packet: Packet<Unit>) {
        let Way::Hop { port, .. } = packet.way else { return };
        let node = self.shared.nodes.get(node.index()).and_then(OnceLock::get);
        if let (Some(node), Some(link)) = (node, Link::at(port.opposite())) {
            node.nwp.push(link, packet.body);
        }
    }

    // The link's protocol detects the loss.
    fn discarded(&mut self, _: NodeId, _: Option<Port>, _: DiscardReason, _: Packet<Unit>) {}

    fn held(&mut self) {
        self.shared.want(self.shared.now_ns().saturating_add(HOLD_NS));
    }
}

impl Host for NwpHost {
    fn interrupt(&self, vector: u16) {
        self.endpoint.trigger(vector);
    }

    fn work(&self) {
        if !self.queued.swap(true, SeqCst)
            && let Some(shared) = self.shared.upgrade()
        {
            shared.enqueue(self.id);
        }
    }

    fn timer(&self, deadline_ns: u64) {
        if let Some(shared) = self.shared.upgrade() {
            shared.want(deadline_ns);
        }
    }

    fn window_shared(&self, link: Link, channel: Channel, shared: bool) {
        let (Some(backend), Some(windows)) = (&self.backend, &self.windows) else { return };
        let at = window(link, channel);
        if !shared {
            return backend.detach_window(at);
        }
        let attached =
            backend.attach_window(at, windows.region(), at as usize, WINDOW_SIZE as usize);
        if let Err(error) = attached
            && !self.warned.swap(true, SeqCst)
        {
            // A guest can make this happen as often as it likes.
            log::warn!("node {}: a window that is memory: {error}", self.id);
        }
    }

    fn window_rang(&self, link: Link, channel: Channel) {
        if let Some(shared) = self.shared.upgrade() {
            shared.rang((self.id, link, channel));
        }
    }

    fn now_ns(&self) -> u64 {
        self.shared.upgrade().map_or(0, |shared| shared.now_ns())
    }
}

impl HasNwp for Arc<TorusNode> {
    fn nwp(&self) -> &Nwp {
        &self.nwp
    }
}

impl TorusNode {
    /// The index of the node in its machine.
    pub const fn id(&self) -> NodeId {
        self.id
    }

    /// The coordinates of the node in its machine.
    pub const fn coords(&self) -> Coords {
        self.coords
    }

    /// The device.
    pub const fn nwp(&self) -> &Nwp {
        &self.nwp
    }

    fn run(&self) {
        if let Some(shared) = self.host.shared.upgrade() {
            let engine = shared.has_engine.load(SeqCst);
            shared.run(if engine { TURNS_PER_WRITE } else { TURNS_PER_ROUND });
        }
    }
}

impl EndpointDevice for TorusNode {
    fn endpoint(&self) -> &Endpoint {
        &self.host.endpoint
    }

    fn bus_master_changed(&self, on: bool) {
        self.nwp.set_bus_master(on);
        self.run();
    }

    fn read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        self.nwp.bar_read(bar, offset, data);
    }

    fn write(&self, bar: u8, offset: u64, data: &[u8]) {
        self.nwp.bar_write(bar, offset, data);
        self.run();
    }

    fn reset_device(&self) {
        self.nwp.set_bus_master(false);
        self.nwp.reset();
    }
}

fn endpoint(coords: Coords) -> Result<Endpoint, Error> {
    let identity = Identity {
        vendor: pci::VENDOR_ID,
        device: pci::DEVICE_TNW,
        class: pci::CLASS_CODE,
        revision: pci::REVISION,
        subsystem_vendor: pci::VENDOR_ID,
        subsystem: pci::DEVICE_TNW,
    };
    // Gen2 (section 1).
    Ok(Endpoint::new(identity, LinkSpeed::Gen2)
        .with_bar(REGISTER_BAR, Bar::memory64(REGISTER_BAR_SIZE))?
        .with_msix(pci::MSIX_BAR, vector::COUNT)?
        .with_bar(WINDOW_BAR, Bar::memory64(WINDOW_BAR_SIZE).prefetchable())?
        .with_serial_number(crate::node::serial_number(coords)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use tofu_pci::PciFunction;
    use vm_memory::{GuestAddress, GuestMemoryMmap};

    fn function() -> Function {
        let torus = Torus::new(Shape::new([2, 1, 1, 1, 1, 1]).unwrap()).unwrap();
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x10_0000)]).unwrap();
        let node = torus.add_node(Coords::default(), Arc::new(memory)).unwrap();
        Function(torus, node)
    }

    /// A node that keeps its machine alive.
    struct Function(#[expect(dead_code, reason = "kept")] Torus, Arc<TorusNode>);

    impl EndpointDevice for Function {
        fn endpoint(&self) -> &Endpoint {
            EndpointDevice::endpoint(&*self.1)
        }
        fn bus_master_changed(&self, on: bool) {
            self.1.bus_master_changed(on);
        }
        fn read(&self, bar: u8, offset: u64, data: &mut [u8]) {
            EndpointDevice::read(&*self.1, bar, offset, data);
        }
        fn write(&self, bar: u8, offset: u64, data: &[u8]) {
            EndpointDevice::write(&*self.1, bar, offset, data);
        }
        fn reset_device(&self) {
            self.1.reset_device();
        }
    }

    tofu_pci::testing::law_tests!(function);

    #[test]
    fn it_has_two_bars_of_its_own_and_that_of_msi_x() {
        let bars = tofu_pci::size_bars(&function());
        let sizes = bars.iter().map(|bar| (bar.index, bar.size, bar.prefetchable));
        let sizes: Vec<_> = sizes.filter(|(index, ..)| *index != pci::MSIX_BAR).collect();
        let [registers, windows] =
            [(REGISTER_BAR, REGISTER_BAR_SIZE, false), (WINDOW_BAR, WINDOW_BAR_SIZE, true)];
        assert_eq!(sizes, [registers, windows]);
        let mut id = [0; 4];
        function().config_read(0, &mut id);
        assert_eq!(id, [0xcf, 0x10, 0xce, 0x1c]);
    }

    #[test]
    fn a_shape_of_six_axes_is_refused() {
        assert!(matches!(Torus::new(Shape::UNIT), Err(Error::NotThreeAxes(_))));
    }
}
