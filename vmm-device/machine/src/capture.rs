//! Records of the packets that pass a node.
//!
//! A [`Capture`] records the packets that go through the TNIs and ports of one node. The threads
//! that move packets never wait for its reader: if its ring is full, a packet is counted and
//! dropped.

mod record;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use tofu_abi::Generation;
use tofu_abi::tnw::Link;
use tofu_fabric::{
    Direction, NodeId, Observation, Packet, Port, Ps, Shape, TNIS, Tap, TapPoint, Tapped,
};
use tofu_icc::Body;
use tofu_links::Dllp;
use tofu_sync::{lock, read, write};
use tofu_tnw_device::Unit;

use crate::interconnect::Interconnect;

pub use record::{HEADER_SIZE, LinkPart, MessagePart, PacketKind, RecordHeader, TnwPart, VERSION};

/// Number of interfaces of a node at which packets are seen: its TNIs, then its ports, in the order
/// of their numbers.
pub const INTERFACES: usize = TNIS + Port::COUNT;

/// The number of an interface, below [`INTERFACES`]; `None` for a TNI that no node has.
pub fn interface(place: TapPoint) -> Option<usize> {
    match place {
        TapPoint::Tni(tni) => Some(usize::from(tni)).filter(|tni| *tni < TNIS),
        TapPoint::Port(port) => Some(TNIS + port.index()),
    }
}

/// The interface with this number; `None` if it is not below [`INTERFACES`].
pub fn place(interface: usize) -> Option<TapPoint> {
    match interface.checked_sub(TNIS) {
        None => Some(TapPoint::Tni(interface as u8)),
        Some(port) => Port::from_index(port).map(TapPoint::Port),
    }
}

/// The numbers of the interfaces that nodes of this kind have.
pub fn interfaces(interconnect: Interconnect) -> impl Iterator<Item = usize> + use<> {
    let tnis = interconnect.tofu().map_or(0, |generation| generation.description().tnis);
    let ports = (TNIS..INTERFACES).filter(move |interface| {
        let port = Port::from_index(interface - TNIS);
        interconnect != Interconnect::Tnw || port.is_some_and(|port| Link::at(port).is_some())
    });
    (0..usize::from(tnis)).chain(ports)
}

/// Like [`interfaces`], as a bit mask.
pub fn interface_bits(interconnect: Interconnect) -> u32 {
    interfaces(interconnect).fold(0, |bits, interface| bits | 1 << interface)
}

/// The filter and the limits of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureConfig {
    /// The kind of machine. The machine fills it in.
    pub interconnect: Interconnect,
    /// The node.
    pub node: NodeId,
    /// Bit n selects the interface with the number n.
    pub interfaces: u32,
    /// Bit n selects the [`PacketKind`] with the code n.
    pub kinds: u32,
    /// Maximum size of a record including its header, in bytes. The header is always kept.
    pub snaplen: usize,
    /// Maximum total size of the records that wait for the reader, in bytes.
    pub backlog: usize,
}

impl CaptureConfig {
    /// Whole frames of all kinds at all interfaces of a node; up to 8 MiB wait.
    pub const fn new(node: NodeId) -> Self {
        Self {
            interconnect: Interconnect::Tofu(Generation::Fugaku),
            node,
            interfaces: (1 << INTERFACES) - 1,
            kinds: u32::MAX,
            snaplen: record::SNAPLEN,
            backlog: 8 << 20,
        }
    }

    /// The same for this kind of machine, limited to the interfaces of its nodes.
    pub(crate) fn of(self, interconnect: Interconnect) -> Self {
        let interfaces = self.interfaces & interface_bits(interconnect);
        Self { interconnect, interfaces, ..self }
    }
}

/// A packet at an interface of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Time of the host's clock, or of the guests' in modelled time, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The number of the interface, see [`interface`].
    pub interface: usize,
    /// The direction of the packet.
    pub direction: Direction,
    /// The record's header, and as much of the packet as fits. See `capture/record.rs`.
    pub bytes: Vec<u8>,
    /// Size of the header and the whole packet, in bytes.
    pub length: u32,
}

/// Counters of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Packets that passed the filter.
    pub seen: u64,
    /// Packets that passed the filter but were dropped because the ring was full.
    pub dropped: u64,
}

/// A recording of the packets of a node, from its creation until it is dropped.
pub struct Capture {
    active: Arc<Active>,
    hub: Arc<dyn Captures>,
}

pub(crate) struct Active {
    config: CaptureConfig,
    clock: Arc<Clock>,
    ring: Mutex<Ring>,
    filled: Condvar,
    seen: [AtomicU64; INTERFACES],
    dropped: [AtomicU64; INTERFACES],
}

/// The clock of a machine's captures.
enum Clock {
    Host,
    /// Picoseconds of a machine in modelled time, and when they began, in nanoseconds since 1970.
    Modelled {
        epoch_ns: u64,
        now: Box<dyn Fn() -> Ps + Send + Sync>,
    },
}

impl Clock {
    /// Nanoseconds since 1970.
    fn now_ns(&self) -> u64 {
        match self {
            Self::Host => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                now.map_or(0, |now| now.as_nanos() as u64)
            }
            Self::Modelled { epoch_ns, now } => epoch_ns.saturating_add(now() / 1000),
        }
    }
}

#[derive(Default)]
struct Ring {
    records: VecDeque<Record>,
    bytes: usize,
    closed: bool,
}

/// Memory that a record takes besides its own bytes.
const RECORD_COST: usize = size_of::<Record>();

impl Capture {
    /// Waits for the next record; `None` if none comes within `timeout`.
    pub fn next(&self, timeout: Duration) -> Option<Record> {
        let end = Instant::now() + timeout;
        let mut ring = lock(&self.active.ring);
        loop {
            if let Some(record) = ring.records.pop_front() {
                ring.bytes -= record.bytes.len() + RECORD_COST;
                return Some(record);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.active.filled.wait_timeout(ring, left);
            ring = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Stops recording. Records that wait can still be read.
    pub fn close(&self) {
        lock(&self.active.ring).closed = true;
    }

    /// The counters of an interface so far.
    ///
    /// # Panics
    ///
    /// If there is no such interface.
    pub fn counters(&self, interface: usize) -> InterfaceCounters {
        InterfaceCounters {
            seen: self.active.seen[interface].load(Relaxed),
            dropped: self.active.dropped[interface].load(Relaxed),
        }
    }

    /// The time of its clock, in nanoseconds since 1970.
    pub fn now_ns(&self) -> u64 {
        self.active.clock.now_ns()
    }

    /// The configuration of the capture.
    pub fn config(&self) -> &CaptureConfig {
        &self.active.config
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        Arc::clone(&self.hub).remove(&self.active);
    }
}

impl Active {
    /// Stores a record of at most `snaplen` bytes that `encode` makes. `encode` also returns the
    /// size that the record would have without the limit.
    fn take(
        &self,
        observation: Observation,
        kind: PacketKind,
        encode: impl FnOnce(usize) -> (Vec<u8>, u32),
    ) {
        let Some(interface) = interface(observation.point) else { return };
        let config = &self.config;
        if config.interfaces & 1 << interface == 0 || config.kinds & 1 << kind as u8 == 0 {
            return;
        }
        let time_ns = self.clock.now_ns();
        // Encoded before the lock is taken, so that readers and senders do not wait for a copy.
        if self.is_full() {
            self.count(interface, true);
            return;
        }
        let (bytes, length) = encode(config.snaplen);
        let record = Record { time_ns, interface, direction: observation.direction, bytes, length };
        let mut ring = lock(&self.ring);
        let cost = record.bytes.len() + RECORD_COST;
        let full = ring.bytes + cost > config.backlog;
        if !full && !ring.closed {
            ring.bytes += cost;
            ring.records.push_back(record);
        }
        let closed = ring.closed;
        drop(ring);
        if !closed {
            self.count(interface, full);
            self.filled.notify_one();
        }
    }

    fn is_full(&self) -> bool {
        let ring = lock(&self.ring);
        !ring.closed && ring.bytes + record::HEADER_SIZE + RECORD_COST > self.config.backlog
    }

    fn count(&self, interface: usize, dropped: bool) {
        self.seen[interface].fetch_add(1, Relaxed);
        if dropped {
            self.dropped[interface].fetch_add(1, Relaxed);
        }
    }
}

/// A packet body that is sent over links of a machine and can be recorded.
pub(crate) trait Recorded: Sized + Send + 'static {
    /// Passes a packet that was seen at a node to the capture of that node.
    fn record(active: &Active, shape: &Shape, observation: Observation, packet: &Packet<Self>);
}

impl Recorded for Body {
    fn record(active: &Active, shape: &Shape, observation: Observation, packet: &Packet<Self>) {
        let Some(at) = shape.coords(observation.node) else { return };
        let (kind, interconnect) = (PacketKind::of(packet), active.config.interconnect);
        active.take(observation, kind, |snaplen| {
            record::encode(interconnect, at, observation, kind, packet, snaplen)
        });
    }
}

impl Recorded for Unit {
    /// Adds a record for each packet of a run.
    fn record(active: &Active, shape: &Shape, observation: Observation, packet: &Packet<Self>) {
        let TapPoint::Port(port) = observation.point else { return };
        let at = shape.coords(observation.node);
        let ends = at.and_then(|at| Some((at, shape.neighbor(at, port)?)));
        let Some(ends) = ends else { return };
        let take = |vc: Option<u8>, kind: PacketKind, bytes: &[u8]| {
            let observation = Observation { vc, ..observation };
            active.take(observation, kind, |snaplen| {
                record::encode_unit(ends, port, observation, kind, bytes, snaplen)
            });
        };
        match &packet.body {
            Self::Data(data) => {
                let vc = Some(data.channel().index() as u8);
                data.to_wire().for_each(|bytes| take(vc, PacketKind::TnwData, &bytes));
            }
            Self::Control(control) => {
                take(None, PacketKind::of_command(control.kind()), &control.to_wire());
            }
        }
    }
}

/// All captures of a machine, for any type of packet body.
pub(crate) trait Captures: Send + Sync {
    /// Starts a capture.
    fn begin(self: Arc<Self>, config: CaptureConfig) -> Capture;

    fn remove(self: Arc<Self>, gone: &Arc<Active>);
}

impl<B: Recorded> Captures for Hub<B> {
    fn begin(self: Arc<Self>, config: CaptureConfig) -> Capture {
        self.start(config)
    }

    fn remove(self: Arc<Self>, gone: &Arc<Active>) {
        self.change(|all| all.retain(|active| !Arc::ptr_eq(active, gone)));
    }
}

/// The captures of a machine in modelled time, whose carrier is another one than that of a
/// [`Machine`](crate::Machine).
#[derive(Clone)]
pub struct ModelledCaptures {
    hub: Arc<Hub<Body>>,
    interconnect: Interconnect,
}

impl ModelledCaptures {
    /// Captures of packets of this carrier. Its clock began at `epoch_ns`, in nanoseconds since
    /// 1970. The time of an observation is what `now` returns during it.
    pub fn new(
        carrier: &Arc<impl Tapped<Body> + 'static>,
        interconnect: Interconnect,
        epoch_ns: u64,
        now: impl Fn() -> Ps + Send + Sync + 'static,
    ) -> Self {
        let clock = Clock::Modelled { epoch_ns, now: Box::new(now) };
        Self { hub: Hub::with(carrier, clock), interconnect }
    }

    /// Starts a capture.
    pub fn begin(&self, config: CaptureConfig) -> Capture {
        self.hub.start(config.of(self.interconnect))
    }
}

impl fmt::Debug for ModelledCaptures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelledCaptures").finish_non_exhaustive()
    }
}

/// All captures of a machine.
pub(crate) struct Hub<B> {
    carrier: Weak<dyn Tapped<B>>,
    shape: Shape,
    clock: Arc<Clock>,
    active: RwLock<Vec<Arc<Active>>>,
    /// Held while captures begin or end, so that the order of two changes is well defined.
    changing: Mutex<()>,
}

impl<B: Recorded> Hub<B> {
    pub(crate) fn new(carrier: &Arc<impl Tapped<B> + 'static>) -> Arc<Self> {
        Self::with(carrier, Clock::Host)
    }

    fn with(carrier: &Arc<impl Tapped<B> + 'static>, clock: Clock) -> Arc<Self> {
        let shape = *carrier.shape();
        let carrier = Arc::downgrade(carrier) as Weak<dyn Tapped<B>>;
        Arc::new(Self {
            carrier,
            shape,
            clock: Arc::new(clock),
            active: RwLock::default(),
            changing: Mutex::new(()),
        })
    }

    pub(crate) fn start(self: &Arc<Self>, config: CaptureConfig) -> Capture {
        let active = Arc::new(Active {
            config,
            clock: Arc::clone(&self.clock),
            ring: Mutex::default(),
            filled: Condvar::new(),
            seen: Default::default(),
            dropped: Default::default(),
        });
        self.change(|all| all.push(Arc::clone(&active)));
        Capture { active, hub: Arc::clone(self) as Arc<dyn Captures> }
    }

    fn change(self: &Arc<Self>, change: impl FnOnce(&mut Vec<Arc<Active>>)) {
        let _changing = lock(&self.changing);
        let nodes: BTreeSet<_> = {
            let mut all = write(&self.active);
            change(&mut all);
            all.iter().map(|active| active.config.node).collect()
        };
        // The thread that drives modelled links comes here with the links locked.
        if let Some(carrier) = self.carrier.upgrade() {
            let tap = (!nodes.is_empty()).then(|| Arc::clone(self) as Arc<dyn Tap<B>>);
            carrier.look_at(&nodes);
            carrier.set_tap(tap);
        }
    }
}

impl<B> Hub<B> {
    /// Calls `each` for each capture of a node.
    fn at(&self, node: NodeId, each: impl Fn(&Active)) {
        let all = read(&self.active);
        all.iter().filter(|active| active.config.node == node).for_each(|active| each(active));
    }
}

impl<B: Recorded> Tap<B> for Hub<B> {
    fn observe(&self, observation: Observation, packet: &Packet<B>) {
        self.at(observation.node, |active| B::record(active, &self.shape, observation, packet));
    }

    fn observe_dllp(&self, observation: Observation, peer: NodeId, dllp: Dllp) {
        let ends = (self.shape.coords(observation.node), self.shape.coords(peer));
        let (Some(at), Some(peer)) = ends else { return };
        self.at(observation.node, |active| {
            active.take(observation, PacketKind::Dllp, |snaplen| {
                let interconnect = active.config.interconnect;
                record::encode_dllp(interconnect, (at, peer), observation, dllp, snaplen)
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_abi::{Coords, CqId, TniId};
    use tofu_fabric::{Carrier, Class, Deliver, DiscardReason, Fabric, Timing, Wires};
    use tofu_icc::Tag;

    /// Targets without a device.
    struct Unused;

    impl Deliver<Body> for Unused {
        fn arrived(&mut self, _: NodeId, _: Packet<Body>) {}
        fn discarded(&mut self, _: NodeId, _: Option<Port>, _: DiscardReason, _: Packet<Body>) {}
    }

    struct Net {
        wires: Arc<Wires<Body>>,
        hub: Arc<Hub<Body>>,
    }

    impl Net {
        fn new() -> Self {
            let wires = Arc::new(Wires::new(Fabric::new(Shape::UNIT), Timing::TOFUD));
            Self { hub: Hub::new(&wires), wires }
        }

        /// A system packet from node 0 to its neighbour on C, node 1.
        fn send(&self) {
            let (src, dst) = (Coords::default(), Coords::new(0, 0, 0, 0, 0, 1));
            let tag = Tag { cq: CqId::KERNEL, index: 0, generation: 0 };
            let body = Body::Frame { tag, frame: vec![0xa5; 104].into() };
            let packet = Packet::shortest(Class::System, src, dst, body);
            let packet = Packet { src_tni: TniId::ALL[2], dst_tni: 3, ..packet };
            self.wires.inject(packet, &mut Unused);
        }
    }

    fn all(capture: &Capture) -> Vec<Record> {
        std::iter::from_fn(|| capture.next(Duration::ZERO)).collect()
    }

    #[test]
    fn node_sees_its_own_places() {
        let net = Net::new();
        let captures = [0, 1, 2].map(|node| net.hub.start(CaptureConfig::new(NodeId(node))));
        net.send();
        let seen = captures.each_ref().map(|capture| {
            let records = all(capture).into_iter();
            records.map(|record| (record.interface, record.direction)).collect::<Vec<_>>()
        });
        let port_c = TNIS + Port::C.index();
        assert_eq!(seen[0], [(2, Direction::Out), (port_c, Direction::Out)]);
        assert_eq!(seen[1], [(port_c, Direction::In), (3, Direction::In)]);
        assert_eq!(seen[2], []);
    }

    #[test]
    fn sleeping_reader_counts_lost_packets() {
        let net = Net::new();
        let config = CaptureConfig { backlog: 4096, ..CaptureConfig::new(NodeId(0)) };
        let capture = net.hub.start(config);
        (0..100).for_each(|_| net.send());
        let records = all(&capture).len() as u64;
        let counters = [2, TNIS + Port::C.index()].map(|interface| capture.counters(interface));
        assert_eq!(counters.map(|counters| counters.seen), [100, 100]);
        let dropped: u64 = counters.iter().map(|counters| counters.dropped).sum();
        assert!(records > 4 && records < 30, "{records}");
        assert_eq!(records + dropped, 200);
        // The ring has room again.
        net.send();
        assert_eq!(all(&capture).len(), 2);
        capture.close();
        net.send();
        assert_eq!((all(&capture).len(), capture.counters(2).seen), (0, 101));
    }

    #[test]
    fn places_kinds_and_lengths_can_be_chosen() {
        let net = Net::new();
        let whole = CaptureConfig::new(NodeId(0));
        let port = CaptureConfig { interfaces: 0xffc0, snaplen: 60, ..whole.clone() };
        let puts = CaptureConfig { kinds: 1 << PacketKind::Put as u8, ..whole.clone() };
        let captures = [whole, port, puts].map(|config| net.hub.start(config));
        net.send();
        let found = captures.each_ref().map(all);
        assert_eq!(found.each_ref().map(Vec::len), [2, 1, 0]);
        let [first, cut] = [&found[0][0], &found[1][0]];
        assert_eq!((first.bytes.len(), first.length), (HEADER_SIZE + 104, 160));
        assert_eq!((cut.bytes.len(), cut.length), (60, 160));
        assert_eq!(first.bytes[HEADER_SIZE..], [0xa5; 104]);
        // Version, header, TNI 2, out; no channel, system class, system packet, shortest way.
        assert_eq!(first.bytes[..8], [VERSION, HEADER_SIZE as u8, 2, 0, 255, 2, 1, 0]);
        assert_eq!(captures[2].counters(2).seen, 0);
    }
}
