//! Nodes of TNW, the second device, and the parts that are specific to machines of these.
//!
//! Each packet here crosses one hop, and is passed to its target immediately, because the units of
//! a link must stay in the order in which they were sent. A thread that writes to a device does the
//! device's work for a bounded time; an engine or the caller of [`Torus::run_pending`] does the
//! rest.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use tofu_abi::tnw::{Channel, Link, WINDOW_SIZE, window};
use tofu_abi::topology::Axis;
use tofu_abi::{Coords, Path, TniId};
use tofu_dma::DmaMemory;
use tofu_fabric::{
    Carrier, Class, Deliver, DiscardReason, NodeId, Packet, Port, Progress, Ps, Shape, ShardId,
    Timing, Way,
};
use tofu_inspect::{Inspect, Visit};
use tofu_links::Parameters;
use tofu_pci::{Endpoint, EndpointDevice};
use tofu_sync::Monotonic;
use tofu_tnw_device::{Config, Host, MAX_RUN, Net, Nwp, SharedWindows, Unit};

use crate::cables::{Incoming, Refused};
use crate::clock::Clock;
use crate::config::{Doorbells, Links as ModeOfLinks, Surroundings};
use crate::device::Device;
use crate::drive::{Drive, View};
use crate::engine::Engine;
use crate::error::Error;
use crate::inbox::Inbox;
use crate::interconnect::Interconnect;
use crate::shared::{RELEASES, Shared};
use crate::wakeup::{Queued, Watching, doze};
use crate::windows::{TorusParts, WindowBackend};
use crate::{Torus, Wiring};

/// Number of turns that a write to a device gives to ready devices, on its vCPU's time: to the
/// device, to its neighbour, to the device again for the answer, and one more. The engine does the
/// rest.
const TURNS_PER_WRITE: usize = 4;
/// The same in a machine without an engine.
const TURNS_PER_ROUND: usize = 256;
/// The time for which a fault holds back a unit that no other unit overtakes, in nanoseconds.
const HOLD_NS: u64 = 1_000_000;

/// Packets that cross a link together while a capture looks at them, and in a machine in shards.
/// Where links have faults or bit errors, each packet crosses by itself.
const RUN_OBSERVED: u16 = 64;
/// Packets that cross a modelled link together. They arrive when the last of them does.
const RUN_MODELLED: u16 = 8;
/// The time for which an engine polls a shared window after it last had something new, in
/// nanoseconds.
const SPIN_NS: u64 = 50_000;

/// Timing of the links: 0.6 us from processor to processor including the packet's own time, and 128
/// bytes of data in each 136 bytes at 0.91 GB/s (sections 2.2, 4).
pub const TORUS_TIMING: Timing = Timing { hop_ps: 459_341, byte_fs: 1_034_260 };

/// A node: a network processor behind a PCI Express endpoint.
pub struct TorusNode {
    id: NodeId,
    coords: Coords,
    nwp: Nwp,
    host: Arc<NwpHost>,
}

struct NwpHost {
    id: NodeId,
    shared: Weak<Shared<Nwp>>,
    /// The inbox of the node's engine.
    inbox: Arc<Inbox<Option<(Link, Channel)>>>,
    endpoint: Endpoint,
    /// True if the device is enqueued at its engine.
    queued: Queued,
    windows: Option<SharedWindows>,
    backend: Option<Arc<dyn WindowBackend>>,
    /// True if it was logged that a window could not be attached.
    warned: AtomicBool,
}

/// State that the nodes of a TNW machine share, beside that of any machine.
pub struct TnwShared {
    /// True if engines poll shared windows.
    polled: AtomicBool,
}

/// The configuration of a machine of TNW.
#[derive(Clone, Copy, Debug)]
pub struct TorusConfig {
    /// The box of nodes. A, B and C must be of length 1.
    pub shape: Shape,
    /// The model of the links.
    pub links: ModeOfLinks,
    /// Number of engines that share the nodes; at least one.
    pub engines: usize,
}

impl TorusConfig {
    /// A machine of this shape, with direct links and one engine.
    pub const fn new(shape: Shape) -> Self {
        Self { shape, links: ModeOfLinks::Direct, engines: 1 }
    }
}

impl Device for Nwp {
    type Body = Unit;
    /// The work of a device, or one of its windows.
    type Work = Option<(Link, Channel)>;
    type Node = TorusNode;
    type Config = TorusConfig;
    type Extra = TnwShared;
}

impl Drive for Nwp {
    const POLLED_NS: u64 = SPIN_NS;

    type View<'a> = Outward<'a>;

    fn view(shared: &Shared<Self>) -> Outward<'_> {
        Outward { shared, now_ns: shared.now_ns() }
    }

    fn room(node: &TorusNode) {
        Link::ALL.into_iter().for_each(|link| node.nwp.room(link));
    }

    fn rang(node: &TorusNode, work: Self::Work, life: Option<u64>) -> bool {
        // Packets taken from a window become work of the device.
        work.is_none() && node.host.queued.enter(life)
    }

    fn poll(node: &TorusNode, page: Self::Work) -> bool {
        let new = page.filter(|(link, channel)| node.nwp.window_rings(*link, *channel));
        new.iter().for_each(|(link, channel)| node.nwp.look(*link, *channel));
        new.is_some()
    }

    fn doze(node: &TorusNode, page: Self::Work) -> bool {
        page.is_none_or(|(link, channel)| {
            let set_bell = |on| node.nwp.set_bell(link, channel, on);
            !doze(set_bell, || node.nwp.window_rings(link, channel))
        })
    }

    fn watch(node: &TorusNode, page: Self::Work) {
        page.iter().for_each(|(link, channel)| node.nwp.set_bell(*link, *channel, false));
    }

    fn unwatch(node: &TorusNode, page: Self::Work) {
        page.iter().for_each(|(link, channel)| node.nwp.set_bell(*link, *channel, true));
    }
}

impl Torus {
    /// Creates a machine without devices.
    ///
    /// # Errors
    ///
    /// [`Error::NotThreeAxes`] for other shapes, and [`Error::Host`] if the host has no descriptors
    /// left.
    pub fn new(config: TorusConfig) -> Result<Self, Error> {
        Self::within(config, Surroundings::default())
    }

    /// Creates a machine with these surroundings.
    ///
    /// # Errors
    ///
    /// As [`Torus::new`].
    pub fn within(config: TorusConfig, surroundings: Surroundings) -> Result<Self, Error> {
        Self::with_clock(config, surroundings, Clock::Host(Monotonic::new()))
    }

    /// Like [`Torus::new`], but time advances only by [`Torus::advance`].
    ///
    /// # Errors
    ///
    /// As [`Torus::new`].
    pub fn with_manual_clock(config: TorusConfig) -> Result<Self, Error> {
        Self::with_clock(config, Surroundings::default(), Clock::Manual(AtomicU64::new(0)))
    }

    fn with_clock(
        config: TorusConfig,
        surroundings: Surroundings,
        clock: Clock,
    ) -> Result<Self, Error> {
        let TorusConfig { shape, links, engines } = config;
        if [Axis::A, Axis::B, Axis::C].into_iter().any(|axis| shape.len(axis) != 1) {
            return Err(Error::NotThreeAxes(shape));
        }
        let (timing, parameters) = (TORUS_TIMING, &Parameters::TNW);
        let wiring = Wiring { shape, links, timing, parameters, bus: None };
        let extra = TnwShared { polled: AtomicBool::new(false) };
        let kind = (extra, Interconnect::Tnw, config);
        Self::wired(wiring, clock, (engines, SPIN_NS), surroundings, kind)
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
        let shape = *self.fabric().shape();
        self.shared.add(coords, |id, inbox| {
            let host = Arc::new(NwpHost {
                id,
                shared: Arc::downgrade(&self.shared),
                inbox,
                endpoint: tofu_pci::network_processor(coords)?,
                queued: Queued::new(),
                windows: windows.clone(),
                backend,
                warned: AtomicBool::new(false),
            });
            let config = Config { coords, shape, life: 1, windows };
            let nwp = Nwp::new(config, Arc::clone(&host) as Arc<dyn Host>, memory);
            Ok(TorusNode { id, coords, nwp, host })
        })
    }

    /// Sets whether engines poll shared windows that had something new lately, as long as they need
    /// not sleep. Their guests then need not notify them. By default they do not poll.
    pub fn set_doorbells(&self, doorbells: Doorbells) {
        self.shared.extra.polled.store(doorbells == Doorbells::Polled, SeqCst);
    }

    /// The delivery of doorbells, as set by [`Torus::set_doorbells`].
    pub fn doorbells(&self) -> Doorbells {
        match self.shared.extra.polled.load(SeqCst) {
            true => Doorbells::Polled,
            false => Doorbells::Trapped,
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

/// A thread's view of the machine. Turns of devices are short, so it reads the clock only once.
pub struct Outward<'a> {
    shared: &'a Shared<Nwp>,
    now_ns: u64,
}

impl View<Nwp> for Outward<'_> {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn run(&mut self, node: &TorusNode, _: Option<(Link, Channel)>) -> bool {
        if !node.host.queued.leave() {
            return false;
        }
        let Self { shared, now_ns } = *self;
        node.nwp.run(&mut Links { shared, node, now_ns }) && node.host.queued.enter(None)
    }

    fn expire(&mut self, node: &TorusNode) -> u64 {
        let Self { shared, now_ns } = *self;
        node.nwp.expire(now_ns, &mut Links { shared, node, now_ns });
        node.nwp.next_deadline()
    }

    fn release(&mut self) {
        self.shared.wires.release(&mut Inward { shared: self.shared });
    }

    fn take(&mut self, from: ShardId, incoming: Incoming<Unit>) -> Result<(), Refused> {
        // The link's protocol finds out about lost units.
        if let Incoming::Packet(crossing) = incoming {
            let mut inward = Inward { shared: self.shared };
            self.shared.wires.receive(from, crossing, &mut inward)?;
        }
        Ok(())
    }

    fn turn(&mut self, limit: Option<Ps>) -> Option<Progress> {
        let mut inward = Inward { shared: self.shared };
        match limit {
            Some(limit) => self.shared.wires.turn(limit, &mut inward),
            None => self.shared.wires.step(&mut inward),
        }
    }
}

/// The links, for a device that sends over them.
struct Links<'a> {
    shared: &'a Shared<Nwp>,
    node: &'a TorusNode,
    now_ns: u64,
}

/// The interface of the fabric's that a link's units enter by. On modelled links, those of one
/// interface take turns.
const fn interface(link: Link) -> TniId {
    TniId::ALL[link.index()]
}

impl Net for Links<'_> {
    fn room(&self, link: Link) -> u16 {
        let wires = &self.shared.wires;
        match wires.is_modelled() {
            _ if !self.shared.has_room(self.node.coords, interface(link)) => 0,
            _ if wires.spoils() => 1,
            true => RUN_MODELLED,
            false if wires.is_observed() || self.shared.cables.is_some() => RUN_OBSERVED,
            false => MAX_RUN,
        }
    }

    fn by_reference(&self) -> bool {
        let wires = &self.shared.wires;
        !wires.is_observed() && !wires.is_modelled() && self.shared.cables.is_none()
    }

    fn send(&mut self, link: Link, unit: Unit) {
        let modelled = self.shared.wires.is_modelled();
        let vc = match &unit {
            // Frames of one channel keep their order, as all units of a link of TNW must.
            _ if modelled => 0,
            Unit::Data(data) => data.channel().index() as u8,
            Unit::Control(_) => 0,
        };
        let packet = Packet {
            src: self.node.coords,
            src_tni: if modelled { interface(link) } else { TniId::ALL[0] },
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
            bad: None,
            model_ps: 0,
            body: unit,
        };
        self.shared.wires.inject(packet, &mut Inward { shared: self.shared });
        if modelled {
            self.shared.courier.sent(self.now_ns);
        }
    }
}

/// The links, for the units that they deliver.
struct Inward<'a> {
    shared: &'a Shared<Nwp>,
}

impl Deliver<Unit> for Inward<'_> {
    fn arrived(&mut self, node: NodeId, packet: Packet<Unit>) {
        let Way::Hop { port, .. } = packet.way else { return };
        if let (Some(node), Some(link)) = (self.shared.node(node), Link::at(port.opposite())) {
            node.nwp.push(link, packet.body);
        }
    }

    // The link's protocol detects the loss.
    fn discarded(&mut self, _: NodeId, _: Option<Port>, _: DiscardReason, _: Packet<Unit>) {}

    fn room(&mut self, node: NodeId, tni: TniId) {
        let link = Link::ALL.into_iter().find(|link| interface(*link) == tni);
        if let (Some(node), Some(link)) = (self.shared.node(node), link) {
            node.nwp.room(link);
        }
    }

    fn link_failed(&mut self, node: NodeId, port: Port) {
        self.shared.link_failed(node, port);
    }

    fn held(&mut self) {
        let deadline = self.shared.now_ns().saturating_add(HOLD_NS);
        self.shared.engines[RELEASES].want(deadline);
    }
}

impl Host for NwpHost {
    fn interrupt(&self, vector: u16) {
        self.endpoint.trigger(vector);
    }

    fn work(&self) {
        if self.queued.enter(None) {
            self.inbox.enqueue(self.id, None);
        }
    }

    fn timer(&self, deadline_ns: u64) {
        self.inbox.want(deadline_ns);
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
        let polled = |shared: Arc<Shared<Nwp>>| {
            shared.extra.polled.load(SeqCst) && shared.running.load(SeqCst)
        };
        if self.shared.upgrade().is_some_and(polled) {
            self.inbox.watch(self.id, Some((link, channel)), Watching::Start);
        }
    }

    fn now_ns(&self) -> u64 {
        self.shared.upgrade().map_or(0, |shared| shared.now_ns())
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
            let engine = shared.running.load(SeqCst);
            let turns = if engine { TURNS_PER_WRITE } else { TURNS_PER_ROUND };
            let (shared, mut view) = (&*shared, Nwp::view(&shared));
            // The neighbour may be another engine's.
            let mut next = || {
                let mut inboxes = shared.engines.iter();
                inboxes.any(|inbox| Engine { shared, inbox }.work(&mut view, 1))
            };
            (0..turns).all(|_| next());
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use tofu_abi::pci;
    use tofu_abi::tnw::{REGISTER_BAR, REGISTER_BAR_SIZE, WINDOW_BAR, WINDOW_BAR_SIZE};
    use tofu_pci::PciFunction;
    use vm_memory::{GuestAddress, GuestMemoryMmap};

    fn function() -> Function {
        let shape = Shape::new([2, 1, 1, 1, 1, 1]).unwrap();
        let torus = Torus::new(TorusConfig::new(shape)).unwrap();
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
    fn device_has_its_bars_and_msi_x() {
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
    fn shape_of_six_axes_is_refused() {
        assert!(matches!(Torus::new(TorusConfig::new(Shape::UNIT)), Err(Error::NotThreeAxes(_))));
    }
}
