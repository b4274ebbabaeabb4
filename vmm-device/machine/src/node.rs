//! A node: an ICC behind a PCI Express endpoint.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use tofu_abi::regs::{CqReg, NUM_TNI};
use tofu_abi::{Coords, CqId, Doorbell, TniId, pci};
use tofu_fabric::{Fabric, NodeId, Port, PortCounters, XbCounters};
use tofu_icc::device_faults::{DeviceFaults, Fate, Injector};
use tofu_icc::{Config, DmaMemory, Event, Host, Icc, SharedPages, Subject};
use tofu_inspect::{Inspect, Said, Tree, Visit};
use tofu_pci::{Endpoint, EndpointDevice, MsixTable};
use tofu_sync::lock;
use vm_memory::MmapRegion;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::config::{Doorbells, MachineConfig};
use crate::error::Error;
use crate::inbox::Inbox;
use crate::trace::{Recorder, What};
use crate::wakeup::{Queued, Watching};

/// Services that the VMM behind a node provides for its doorbells. All offsets are in BAR0.
///
/// Engine threads call the methods, and so does any thread that enables a queue.
pub trait DoorbellBackend: Send + Sync {
    /// Makes guest writes at `offset` signal `event` instead of reaching the device.
    ///
    /// # Errors
    ///
    /// A text for the log; the doorbell then reaches the device as a write.
    fn attach_event(&self, offset: u64, event: &EventFd) -> Result<(), String>;

    /// Maps the memory at `page_offset` of `region` as the page of 4 KiB at `offset`.
    ///
    /// # Errors
    ///
    /// A text for the log; accesses then reach the device.
    fn attach_page(
        &self,
        offset: u64,
        region: &Arc<MmapRegion<()>>,
        page_offset: usize,
        written: Box<dyn Fn() + Send + Sync>,
    ) -> Result<(), String>;

    /// Write-protects the page at `offset`. On the guest's next write, the backend either lifts the
    /// protection and calls the page's `written` before the write, or passes the write to the
    /// device and keeps the protection.
    fn protect_page(&self, offset: u64);

    /// True if [`DoorbellBackend::protect_page`] works. If not, because another process has mapped
    /// the pages, engines keep polling quiet pages, ever less often.
    fn can_protect(&self) -> bool {
        true
    }

    /// Removes the event or page that was attached at `offset`.
    fn detach(&self, offset: u64);
}

thread_local! {
    /// State of this thread's trapped write.
    static INLINE: Inline = const { Inline { writes: Cell::new(false), rung: Cell::new(None) } };
    /// The doorbells after the first one. They are apart because state that needs no destructor is
    /// reached without a check.
    static MORE: RefCell<Vec<(TniId, Doorbell)>> = const { RefCell::new(Vec::new()) };
}

/// A doorbell that rang during a trapped write of a thread. The thread runs it itself after the
/// write.
struct Inline {
    /// True if the thread is within a trapped write.
    writes: Cell<bool>,
    /// The first, and the only one unless the write did more than ring a doorbell.
    rung: Cell<Option<Rung>>,
}

/// A doorbell that rang during a trapped write.
#[derive(Clone, Copy)]
struct Rung {
    tni: TniId,
    bell: Doorbell,
    /// Others have rung after it.
    more: bool,
}

/// The parts that a node is made from.
pub struct NodeParts {
    /// Memory that the device reaches by DMA.
    pub memory: Arc<dyn DmaMemory>,
    /// Pages that the guest can map, which polled doorbells need.
    pub pages: Option<SharedPages>,
    /// Services of the VMM for doorbells that need no exit.
    pub backend: Option<Arc<dyn DoorbellBackend>>,
    /// The delay of the guest's register writes behind its stores to memory, in
    /// nanoseconds; 0 if the guest waits for each.
    pub posted_writes_ns: u64,
}

impl NodeParts {
    /// Parts of a node whose registers are all reached by exits.
    pub const fn new(memory: Arc<dyn DmaMemory>) -> Self {
        Self { memory, pages: None, backend: None, posted_writes_ns: 0 }
    }
}

/// The part of a machine that its nodes use. This keeps nodes independent of the code that drives
/// machines.
pub(crate) trait Parent: Send + Sync {
    /// Time on the machine's clock, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// The links.
    fn fabric(&self) -> &Arc<Fabric>;

    /// Runs a queue of a node for one turn, in this thread. It must be marked as enqueued. Returns
    /// whether it must be enqueued for another turn.
    fn run(&self, node: &Node, tni: TniId, bell: Doorbell) -> bool;
}

/// A node of a machine.
pub struct Node {
    id: NodeId,
    coords: Coords,
    icc: Icc,
    host: Arc<NodeHost>,
}

/// The event descriptor of a trapped doorbell.
struct Bell {
    event: Arc<EventFd>,
    /// True if the event was handed out. It then outlives the queue.
    exported: bool,
}

/// The surroundings of a node's device.
struct NodeHost {
    id: NodeId,
    machine: Weak<dyn Parent>,
    /// The inbox of the node's engine.
    inbox: Arc<Inbox<(TniId, Doorbell)>>,
    recorder: Arc<Recorder>,
    endpoint: Endpoint,
    pages: Option<SharedPages>,
    backend: Option<Arc<dyn DoorbellBackend>>,
    /// Event descriptors of trapped doorbells, by queue.
    events: Mutex<HashMap<(TniId, CqId), Bell>>,
    /// Queues that wait for their engine, so that each waits only once.
    waiting: Vec<Queued>,
    /// True if it was logged that a doorbell could not be attached.
    warned: AtomicBool,
    faults: Arc<Injector>,
}

impl Node {
    pub(crate) fn new(
        id: NodeId,
        coords: Coords,
        machine: Weak<dyn Parent>,
        inbox: Arc<Inbox<(TniId, Doorbell)>>,
        recorder: Arc<Recorder>,
        config: &MachineConfig,
        parts: NodeParts,
    ) -> Result<Self, Error> {
        let NodeParts { memory, pages, backend, posted_writes_ns } = parts;
        let host = Arc::new(NodeHost {
            id,
            machine,
            inbox,
            recorder,
            endpoint: tofu_pci::controller(config.generation, coords)?,
            pages: pages.clone(),
            backend,
            events: Mutex::new(HashMap::new()),
            waiting: (0..NUM_TNI * Doorbell::COUNT).map(|_| Queued::new()).collect(),
            warned: AtomicBool::new(false),
            faults: Arc::default(),
        });
        let icc_config = Config {
            timeout_ns: config.timeout_ns,
            pages,
            blank: RandomState::new().hash_one(id.0),
            posted_writes_ns,
            ..Config::of(config.generation, coords)
        };
        let icc = Icc::new(icc_config, Arc::clone(&host) as Arc<dyn Host>, Arc::clone(&memory));
        host.faults.refuse_accesses(&icc, memory);
        Ok(Self { id, coords, icc, host })
    }

    /// The index of the node in its machine.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The coordinates of the node in its machine.
    pub fn coords(&self) -> Coords {
        self.coords
    }

    /// The device.
    pub fn icc(&self) -> &Icc {
        &self.icc
    }

    /// The PCI Express endpoint, where MSI-X messages are connected.
    pub fn endpoint(&self) -> &Endpoint {
        &self.host.endpoint
    }

    /// The delivery of the node's doorbells: polled only if it was made with shared pages.
    pub fn doorbells(&self) -> Doorbells {
        if self.host.pages.is_some() { Doorbells::Polled } else { Doorbells::Trapped }
    }

    /// The event descriptor that rings a queue's trapped doorbell while the queue is enabled, for
    /// use outside of this process. It stays the same when the queue is disabled and enabled, until
    /// [`Node::renew_doorbell_events`]. Engines never read it, so its owner can neither block nor
    /// silence them. The backend gets it again whenever the queue is enabled, and may then see
    /// earlier signals.
    ///
    /// # Errors
    ///
    /// [`Error::Host`] if the host has no descriptors left.
    pub fn doorbell_event(&self, tni: TniId, cq: CqId) -> Result<Arc<EventFd>, Error> {
        let mut events = lock(&self.host.events);
        if let Some(bell) = events.get_mut(&(tni, cq)) {
            bell.exported = true;
            return Ok(Arc::clone(&bell.event));
        }
        let event = EventFd::new(EFD_NONBLOCK).map_err(Error::host("creating an eventfd"))?;
        let event = Arc::new(event);
        events.insert((tni, cq), Bell { event: Arc::clone(&event), exported: true });
        Ok(event)
    }

    /// Revokes the descriptors of [`Node::doorbell_event`]: queues that are enabled later get new
    /// ones. Must be called after a reset.
    pub fn renew_doorbell_events(&self) {
        lock(&self.host.events).retain(|_, bell| !bell.exported);
    }

    /// True if a queue is enqueued at its engine.
    pub(crate) fn waiting(&self, tni: TniId, bell: Doorbell) -> &Queued {
        &self.host.waiting[bell_index(tni, bell)]
    }

    /// Write-protects the page of a queue, so that it is not polled any more. Returns false if that
    /// is not possible.
    pub(crate) fn protect(&self, tni: TniId, bell: Doorbell) -> bool {
        let Some(backend) = self.host.backend.as_ref().filter(|backend| backend.can_protect())
        else {
            return false;
        };
        backend.protect_page(bell.page(tni));
        true
    }

    /// Replaces the faults of the device.
    pub fn set_faults(&self, faults: DeviceFaults) {
        self.host.faults.set_of(&self.icc, faults);
        if faults == DeviceFaults::default() {
            self.send_due(u64::MAX);
        }
    }

    /// Sends delayed interrupts that are due by now. Returns when the next one is.
    fn send_due(&self, now_ns: u64) -> u64 {
        self.host.faults.send_due(now_ns, |vector| self.host.endpoint.trigger(vector))
    }

    /// Does all work that is due by now. Returns the time at which more is due.
    pub(crate) fn expire(&self, now_ns: u64) -> u64 {
        self.icc.expire(now_ns);
        self.icc.next_deadline().min(self.send_due(now_ns))
    }

    fn trapped_write(&self, offset: u64, data: &[u8]) {
        let rung = INLINE.with(|inline| {
            inline.writes.set(true);
            self.icc.bar_write(offset, data);
            inline.writes.set(false);
            inline.rung.take()
        });
        let Some(Rung { tni, bell, more }) = rung else { return };
        let others = more.then(|| MORE.take());
        let Some(machine) = self.host.machine.upgrade() else { return };
        let run = |(tni, bell)| {
            if machine.run(self, tni, bell) {
                self.host.enqueue(tni, bell);
            }
        };
        run((tni, bell));
        others.into_iter().flatten().for_each(run);
    }
}

impl Inspect for Node {
    fn inspect(&self, visit: Visit<'_>) {
        let Self { id, coords, icc, host } = self;
        visit.tree(|tree| {
            tree.add("index", &id.0);
            tree.add("doorbells", &Said(format_args!("{:?}", self.doorbells())));
            tree.add("pci", &host.endpoint);
            tree.add("device", icc);
            tree.add("faults", &*host.faults);
            if let Some(machine) = host.machine.upgrade() {
                let fabric = machine.fabric();
                // Callers pass only existing nodes.
                tree.add("router_up", &fabric.node_up(*coords).unwrap_or_default());
                let links = |tree: &mut Tree<'_>| links(tree, fabric, *coords);
                tree.add_with("link", |visit| visit.tree(links));
            }
        });
    }
}

/// The links of a node by port, and whether they are up.
fn links(tree: &mut Tree<'_>, fabric: &Fabric, node: Coords) {
    let shape = fabric.shape();
    for port in Port::ALL {
        let Some(to) = shape.neighbor(node, port) else { continue };
        tree.add_with(port, |visit| {
            visit.tree(|tree| {
                tree.add("up", &fabric.link_up(node, port).unwrap_or_default());
                tree.add("to", &shape.node_id(to).map(|to| to.0));
                tree.add("at", &Said(to));
            });
        });
    }
}

fn bell_index(tni: TniId, bell: Doorbell) -> usize {
    tni.index() * Doorbell::COUNT + usize::from(bell.number())
}

impl NodeHost {
    /// Adds an event to the trace, if there is one.
    fn note(&self, what: What) {
        if self.recorder.is_on() {
            self.recorder.note(self.id, &what);
        }
    }

    /// Queues a control queue or channel at its engine.
    fn enqueue(&self, tni: TniId, bell: Doorbell) {
        self.inbox.enqueue(self.id, (tni, bell));
    }

    /// A doorbell rang outside of a trapped write, or after the first one of a write.
    #[cold]
    fn rang_more(&self, tni: TniId, bell: Doorbell) {
        let first = INLINE.with(|inline| inline.rung.get().filter(|_| inline.writes.get()));
        match first {
            Some(first) => {
                INLINE.with(|inline| inline.rung.set(Some(Rung { more: true, ..first })));
                MORE.with_borrow_mut(|more| more.push((tni, bell)));
            }
            None => self.enqueue(tni, bell),
        }
    }

    fn attach(&self, tni: TniId, bell: Doorbell) -> Result<(), String> {
        // Before doorbells are attached, so that no ring of the new life counts for the old one.
        let life = self.waiting[bell_index(tni, bell)].renew();
        let Some(backend) = &self.backend else {
            return Ok(());
        };
        let page = bell.page(tni);
        if let Some(pages) = &self.pages {
            let (inbox, id) = (Arc::clone(&self.inbox), self.id);
            let at = pages.offset_of(tni, bell);
            let written = Box::new(move || inbox.watch(id, (tni, bell), Watching::Lifted));
            backend.attach_page(page, pages.region(), at, written)?;
            self.inbox.watch(self.id, (tni, bell), Watching::Start);
            return Ok(());
        }
        let Doorbell::Cq(cq) = bell else {
            // The value written to a channel's doorbell matters, so it has to come as a write.
            return Ok(());
        };
        let exported = lock(&self.events).get(&(tni, cq)).map(|bell| Arc::clone(&bell.event));
        let event = match exported {
            Some(event) => event,
            None => Arc::new(EventFd::new(EFD_NONBLOCK).map_err(|error| error.to_string())?),
        };
        backend.attach_event(page + CqReg::FetchStart.offset(), &event)?;
        // Another thread may have exported the queue's descriptor in the meantime; that one is
        // used.
        let own = Bell { event, exported: false };
        let event = Arc::clone(&lock(&self.events).entry((tni, cq)).or_insert(own).event);
        self.inbox.listen(self.id, (tni, bell), life, event);
        Ok(())
    }

    fn detach(&self, tni: TniId, bell: Doorbell) {
        let Some(backend) = &self.backend else { return };
        let page = bell.page(tni);
        if self.pages.is_some() {
            backend.detach(page);
            self.inbox.watch(self.id, (tni, bell), Watching::Stop);
            return;
        }
        let Doorbell::Cq(cq) = bell else { return };
        let event = {
            let mut events = lock(&self.events);
            let Some(known) = events.get(&(tni, cq)) else {
                return;
            };
            let (event, exported) = (Arc::clone(&known.event), known.exported);
            if !exported {
                events.remove(&(tni, cq));
            }
            event
        };
        backend.detach(page + CqReg::FetchStart.offset());
        self.inbox.ignore(event);
    }
}

impl Host for NodeHost {
    fn interrupt(&self, vector: u16) {
        self.note(What::Interrupt(vector));
        match self.faults.message(vector) {
            Fate::Sent => self.endpoint.trigger(vector),
            Fate::Delayed => match self.faults.delay(vector, self.now_ns()) {
                Some(due_ns) => self.timer(due_ns),
                None => self.endpoint.trigger(vector),
            },
            Fate::Lost => {}
            Fate::Doubled => {
                self.endpoint.trigger(vector);
                self.endpoint.trigger(vector);
            }
        }
    }

    fn sends_interrupts(&self) -> bool {
        self.endpoint.msix().is_none_or(MsixTable::enabled)
    }

    fn observe(&self, event: &Event) {
        self.recorder.note_step(self.id, event);
    }

    fn explain(&self, subject: &Subject, why: &str) {
        if let Some(at) = self.machine.upgrade().and_then(|m| m.fabric().shape().coords(self.id)) {
            self.recorder.explain(at, subject, why);
        }
    }

    fn stamp(&self) -> u64 {
        self.recorder.stamp()
    }

    fn doorbell(&self, tni: TniId, bell: Doorbell) {
        let index = bell_index(tni, bell);
        if self.waiting.get(index).is_none_or(|waiting| !waiting.enter(None)) {
            return;
        }
        let is_noted = INLINE.with(|inline| {
            let (writes, rung) = (inline.writes.get(), inline.rung.get());
            if writes && rung.is_none() {
                inline.rung.set(Some(Rung { tni, bell, more: false }));
            }
            writes && rung.is_none()
        });
        if !is_noted {
            self.rang_more(tni, bell);
        }
    }

    fn queue_enabled(&self, tni: TniId, bell: Doorbell, enabled: bool) {
        if !enabled {
            self.detach(tni, bell);
        } else if let Err(error) = self.attach(tni, bell)
            && !self.warned.swap(true, Relaxed)
        {
            // Doorbells still arrive, as ordinary writes. A guest can make this happen as often
            // as it likes.
            log::warn!("node {}: doorbell of TNI {tni} {bell}: {error}", self.id);
        }
    }

    fn timer(&self, deadline_ns: u64) {
        self.inbox.want(deadline_ns);
    }

    fn now_ns(&self) -> u64 {
        self.machine.upgrade().map_or(0, |machine| machine.now_ns())
    }

    fn port_counters(&self, port: Port) -> PortCounters {
        self.machine
            .upgrade()
            .and_then(|machine| machine.fabric().port_counters(self.id, port))
            .unwrap_or_default()
    }

    fn xb_counters(&self) -> XbCounters {
        self.machine
            .upgrade()
            .and_then(|machine| machine.fabric().xb_counters(self.id))
            .unwrap_or_default()
    }
}

impl EndpointDevice for Node {
    fn endpoint(&self) -> &Endpoint {
        &self.host.endpoint
    }

    fn bus_master_changed(&self, on: bool) {
        self.icc.set_bus_master(on);
    }

    fn read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        if bar == pci::REGISTER_BAR {
            self.host.note(What::Access { offset, write: false });
            if self.host.faults.is_gone() {
                data.fill(0xff);
            } else {
                self.icc.bar_read(offset, data);
                self.host.faults.read(data);
            }
        } else {
            data.fill(0xff);
        }
    }

    fn write(&self, bar: u8, offset: u64, data: &[u8]) {
        if bar == pci::REGISTER_BAR {
            self.host.note(What::Access { offset, write: true });
            if !self.host.faults.is_gone() && !self.host.faults.keeps_queue(offset, data) {
                self.trapped_write(offset, data);
            }
        }
    }

    fn answers(&self) -> bool {
        !self.host.faults.is_gone()
    }

    fn reset_device(&self) {
        self.icc.reset();
        self.icc.set_bus_master(false);
        self.host.faults.reset();
    }
}
