//! A node: an ICC behind a PCI Express endpoint.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tofu_abi::irq::vector;
use tofu_abi::regs::{CqReg, NUM_CQ, NUM_TNI, cq_page};
use tofu_abi::{Coords, pci};
use tofu_fabric::{NodeId, Port, PortCounters, XbCounters};
use tofu_icc::{Config, DmaMemory, Host, Icc, SharedPages};
use tofu_pci::{BAR_COUNT, Bar, BarRange, Endpoint, Identity, LinkSpeed, PciFunction};
use vm_memory::MmapRegion;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::{Error, MachineConfig, Pump, Shared, lock};

/// How doorbells arrive at the devices of a machine. The guest cannot tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbells {
    /// By an exit or an ioeventfd; engines sleep meanwhile.
    Trapped,
    /// In memory that the guest has mapped and the engines look at; they fall asleep after a
    /// while of quiet, and the next doorbell is trapped.
    Polled,
}

/// What the VMM behind a node does for its doorbells. All offsets are in BAR0.
///
/// Methods are called from whichever thread enables a queue and from engine threads.
pub trait DoorbellBackend: Send + Sync {
    /// From now on guest writes at `offset` signal `event` instead of reaching the device.
    ///
    /// # Errors
    ///
    /// A text for the log; the doorbell then reaches the device as a write.
    fn attach_event(&self, offset: u64, event: &EventFd) -> Result<(), String>;

    /// From now on the page of 4 KiB at `offset` is the memory at `page_offset` of `region`.
    ///
    /// # Errors
    ///
    /// A text for the log; accesses then reach the device.
    fn attach_page(
        &self,
        offset: u64,
        region: &Arc<MmapRegion<()>>,
        page_offset: usize,
    ) -> Result<(), String>;

    /// Makes writes to the page at `offset` reach the device, or ends that.
    fn protect_page(&self, offset: u64, protect: bool);

    /// Ends what was attached at `offset`.
    fn detach(&self, offset: u64);
}

thread_local! {
    /// Doorbells that rang during a trapped write of this thread, which runs them itself when
    /// the write is done. `None` outside of such a write.
    static INLINE: RefCell<Option<Vec<(u8, u8)>>> = const { RefCell::new(None) };
}

/// A node of a machine.
pub struct Node {
    id: NodeId,
    coords: Coords,
    icc: Icc,
    host: Arc<NodeHost>,
}

/// The surroundings of a node's device.
struct NodeHost {
    id: NodeId,
    shared: Weak<Shared>,
    endpoint: Endpoint,
    pages: Option<SharedPages>,
    backend: OnceLock<Arc<dyn DoorbellBackend>>,
    /// Event descriptors of trapped doorbells, by queue.
    events: Mutex<HashMap<(u8, u8), Arc<EventFd>>>,
    /// Queues that wait for their engine, so that each waits only once.
    waiting: Vec<AtomicBool>,
    /// How the doorbells of shared pages rang lately, by queue; empty if there are none.
    rhythms: Vec<Rhythm>,
}

/// Doorbells that a page served by being looked at, from which on that was worth its while.
const WORTHWHILE: u32 = 64;
/// Doorbells in quick succession that a page needs at most to be looked at again.
const MOST_NEEDED: u32 = 4096;

/// How the doorbell of a write-protected shared page rings: often enough to look at the page
/// instead of taking an exit each time?
#[derive(Debug)]
struct Rhythm {
    /// When it rang last, in nanoseconds.
    rang_at: AtomicU64,
    /// How often it rang in quick succession.
    quick: AtomicU32,
    /// How often it must, before the page is looked at.
    needed: AtomicU32,
}

impl Rhythm {
    const fn new() -> Self {
        Self { rang_at: AtomicU64::new(0), quick: AtomicU32::new(0), needed: AtomicU32::new(2) }
    }

    /// It rang. Returns whether the page is to be looked at from now on.
    fn rang(&self, now_ns: u64, quick_ns: u64) -> bool {
        let before = self.rang_at.swap(now_ns, SeqCst);
        if now_ns.saturating_sub(before) > quick_ns {
            self.quick.store(0, SeqCst);
            return false;
        }
        self.quick.fetch_add(1, SeqCst) + 1 >= self.needed.load(SeqCst)
    }

    /// The page was looked at and served `doorbells` before it fell quiet. If these were few,
    /// twice as many are needed the next time, as changing the protection costs as
    /// much as many exits.
    fn settle(&self, doorbells: u32) {
        self.quick.store(0, SeqCst);
        let needed = match self.needed.load(SeqCst) {
            _ if doorbells >= WORTHWHILE => 2,
            needed => (needed * 2).min(MOST_NEEDED),
        };
        self.needed.store(needed, SeqCst);
    }
}

impl Node {
    pub(crate) fn new(
        id: NodeId,
        coords: Coords,
        shared: &Arc<Shared>,
        config: &MachineConfig,
        memory: Arc<dyn DmaMemory>,
    ) -> Result<Arc<Self>, Error> {
        let pages = match shared.doorbells {
            Doorbells::Trapped => None,
            Doorbells::Polled => {
                let region = MmapRegion::new(SharedPages::SIZE).map_err(|error| {
                    Error::host("mapping control queue pages")(std::io::Error::other(error))
                })?;
                SharedPages::new(Arc::new(region))
            }
        };
        let host = Arc::new(NodeHost {
            id,
            shared: Arc::downgrade(shared),
            endpoint: endpoint(coords)?,
            pages: pages.clone(),
            backend: OnceLock::new(),
            events: Mutex::new(HashMap::new()),
            waiting: (0..NUM_TNI * NUM_CQ).map(|_| AtomicBool::new(false)).collect(),
            rhythms: match pages {
                Some(_) => (0..NUM_TNI * NUM_CQ).map(|_| Rhythm::new()).collect(),
                None => Vec::new(),
            },
        });
        let icc_config = Config {
            timeout_ns: config.timeout_ns,
            byte_fs: config.timing.byte_fs,
            pages,
            blank: RandomState::new().hash_one(id.0),
            ..Config::tofud(coords)
        };
        let icc = Icc::new(icc_config, Arc::clone(&host) as Arc<dyn Host>, memory);
        Ok(Arc::new(Self { id, coords, icc, host }))
    }

    /// Index of the node in its machine.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Place of the node in its machine.
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

    /// Gives the node a way for doorbells that needs no exit. Only the first one counts.
    pub fn set_backend(&self, backend: Arc<dyn DoorbellBackend>) {
        // A second backend would have to take over what the first one has attached.
        let _ = self.host.backend.set(backend);
    }

    /// Runs a queue for one turn; returns whether there is more to do.
    pub(crate) fn run(&self, tni: u8, cq: u8, pump: &mut Pump<'_>) -> bool {
        self.host.waiting[queue_index(tni, cq)].store(false, SeqCst);
        pump.refresh();
        let more = self.icc.run_queue(tni, cq, pump);
        if more {
            self.host.waiting[queue_index(tni, cq)].store(true, SeqCst);
        }
        more
    }

    /// The page of a queue is not looked at any more; it served so many doorbells.
    pub(crate) fn settle(&self, tni: u8, cq: u8, doorbells: u32) {
        if let Some(rhythm) = self.host.rhythms.get(queue_index(tni, cq)) {
            rhythm.settle(doorbells);
        }
    }

    /// Write-protects the page of a queue, or ends that.
    pub(crate) fn protect(&self, tni: u8, cq: u8, protect: bool) {
        if let Some(backend) = self.host.backend.get() {
            backend.protect_page(cq_page(tni, cq), protect);
        }
    }

    fn trapped_write(&self, bar: u8, offset: u64, data: &[u8]) {
        INLINE.with(|inline| *inline.borrow_mut() = Some(Vec::new()));
        self.icc.bar_write(offset, data);
        let rung = INLINE.with(|inline| inline.borrow_mut().take()).unwrap_or_default();
        let Some(shared) = self.host.shared.upgrade() else {
            return;
        };
        debug_assert_eq!(bar, pci::REGISTER_BAR);
        for (tni, cq) in rung {
            let mut pump = Pump::new(&shared);
            if self.run(tni, cq, &mut pump) {
                self.host.enqueue(tni, cq);
            }
        }
    }

    fn reset_device(&self) {
        self.icc.set_bus_master(false);
        self.icc.reset();
    }
}

fn queue_index(tni: u8, cq: u8) -> usize {
    usize::from(tni) * NUM_CQ + usize::from(cq)
}

fn endpoint(coords: Coords) -> Result<Endpoint, Error> {
    let identity = Identity {
        vendor: pci::VENDOR_ID,
        device: pci::DEVICE_TOFUD,
        class: pci::CLASS_CODE,
        revision: pci::REVISION,
        subsystem_vendor: pci::VENDOR_ID,
        subsystem: pci::DEVICE_TOFUD,
    };
    let registers = Bar::memory64(tofu_abi::regs::BAR0_SIZE).prefetchable();
    // The serial number tells nodes apart in a PCI listing: their coordinates.
    let serial = coords.to_array().iter().fold(0, |n, &c| n << 8 | u64::from(c));
    Ok(Endpoint::new(identity, LinkSpeed::Gen3)
        .with_bar(pci::REGISTER_BAR, registers)?
        .with_msix(pci::MSIX_BAR, vector::COUNT)?
        .with_serial_number(serial))
}

impl NodeHost {
    /// Puts a queue in line at its engine.
    fn enqueue(&self, tni: u8, cq: u8) {
        if let Some(shared) = self.shared.upgrade() {
            shared.engine_of(self.id).enqueue(self.id, tni, cq);
        }
    }

    fn attach(&self, tni: u8, cq: u8) -> Result<(), String> {
        let Some(backend) = self.backend.get() else {
            return Ok(());
        };
        let page = cq_page(tni, cq);
        if let Some(pages) = &self.pages {
            backend.attach_page(page, pages.region(), SharedPages::page_offset(tni, cq))?;
            if let Some(shared) = self.shared.upgrade() {
                shared.engine_of(self.id).watch(self.id, tni, cq, true);
            }
            return Ok(());
        }
        let event = EventFd::new(EFD_NONBLOCK).map_err(|error| error.to_string())?;
        let event = Arc::new(event);
        backend.attach_event(page + CqReg::FetchStart.offset(), &event)?;
        if let Some(shared) = self.shared.upgrade() {
            shared.engine_of(self.id).listen(self.id, tni, cq, Arc::clone(&event));
        }
        lock(&self.events).insert((tni, cq), event);
        Ok(())
    }

    fn detach(&self, tni: u8, cq: u8) {
        let (Some(backend), Some(shared)) = (self.backend.get(), self.shared.upgrade()) else {
            return;
        };
        let engine = shared.engine_of(self.id);
        let page = cq_page(tni, cq);
        if self.pages.is_some() {
            backend.detach(page);
            engine.watch(self.id, tni, cq, false);
        } else if let Some(event) = lock(&self.events).remove(&(tni, cq)) {
            backend.detach(page + CqReg::FetchStart.offset());
            engine.ignore(event);
        }
    }
}

impl Host for NodeHost {
    fn interrupt(&self, vector: u16) {
        self.endpoint.trigger(vector);
    }

    fn doorbell(&self, tni: u8, cq: u8) {
        let index = queue_index(tni, cq);
        if self.waiting.get(index).is_none_or(|waiting| waiting.swap(true, SeqCst)) {
            return;
        }
        // A write to a shared page only comes here while nobody looks at it. When such writes
        // come often, the engine is to know.
        let engine = self.rhythms.get(index).is_some_and(|rhythm| {
            let shared = self.shared.upgrade();
            shared.is_some_and(|shared| rhythm.rang(shared.now_ns(), shared.spin_ns))
        });
        let inline = !engine
            && INLINE.with(|inline| match inline.borrow_mut().as_mut() {
                Some(rung) => {
                    rung.push((tni, cq));
                    true
                }
                None => false,
            });
        if !inline {
            self.enqueue(tni, cq);
        }
    }

    fn queue_enabled(&self, tni: u8, cq: u8, enabled: bool) {
        if !enabled {
            self.detach(tni, cq);
        } else if let Err(error) = self.attach(tni, cq) {
            // Doorbells still arrive, as ordinary writes.
            log::warn!("node {}: doorbell of TNI {tni} CQ {cq}: {error}", self.id);
        }
    }

    fn timer(&self, deadline_ns: u64) {
        if let Some(shared) = self.shared.upgrade() {
            shared.engine_of(self.id).want(deadline_ns);
        }
    }

    fn now_ns(&self) -> u64 {
        self.shared.upgrade().map_or(0, |shared| shared.now_ns())
    }

    fn port_counters(&self, port: u8) -> PortCounters {
        let port = Port::from_index(usize::from(port));
        self.shared
            .upgrade()
            .and_then(|shared| shared.fabric().port_counters(self.id, port?))
            .unwrap_or_default()
    }

    fn xb_counters(&self) -> XbCounters {
        self.shared
            .upgrade()
            .and_then(|shared| shared.fabric().xb_counters(self.id))
            .unwrap_or_default()
    }
}

impl PciFunction for Node {
    fn config_read(&self, offset: u16, data: &mut [u8]) {
        self.host.endpoint.config_read(offset, data);
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        let changes = self.host.endpoint.config_write(offset, data);
        if changes.function_reset {
            self.reset_device();
        }
        if changes.bus_master || changes.function_reset {
            self.icc.set_bus_master(self.host.endpoint.bus_master());
        }
    }

    fn bars(&self) -> [Option<BarRange>; BAR_COUNT] {
        self.host.endpoint.bars()
    }

    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        if bar == pci::REGISTER_BAR {
            self.icc.bar_read(offset, data);
        } else if !self.host.endpoint.msix_bar_read(bar, offset, data) {
            data.fill(0xff);
        }
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) {
        if bar == pci::REGISTER_BAR {
            self.trapped_write(bar, offset, data);
        } else {
            self.host.endpoint.msix_bar_write(bar, offset, data);
        }
    }

    fn reset(&self) {
        self.host.endpoint.reset();
        self.reset_device();
    }
}
