//! The Tofu interconnect controller (ICC) of one node, as a device model.
//!
//! The device is a state machine over register accesses, packet arrivals and time. It knows
//! neither KVM nor vfio-user: guest memory ([`DmaMemory`]), interrupts and doorbells
//! ([`Host`]) and the network ([`Net`]) are given to it. All methods take `&self` and may be
//! called from any thread: vCPUs access registers, engine threads run queues and hand over
//! arrivals.
//!
//! What a guest writes is never trusted. Registers, descriptors and tables are read when they
//! are needed, checked, and answered with the documented exception; the work of a call is
//! bounded, and so is the memory of a queue.
//!
//! Locks: a queue has one for its life, which is held while it is enabled, disabled or reset;
//! it is taken first and never by what runs queues. It has one for its transmitting side, which
//! only [`run_queue`](Icc::run_queue) and enabling take, and one for its completions, which is
//! never held across a call to the host or the network. The first may be held when the second is
//! taken, not the other way round; no two queues' locks are ever held together except a
//! transmitting side's and, below it, completions of any queue. The barrier gates of an interface
//! have one lock, below which no other of the device is taken.
#![forbid(unsafe_code)]

mod barrier;
mod cq;
mod disturb;
mod handover;
mod host;
mod irq;
mod memory;
mod notice;
mod packet;
mod page;
mod regfile;
mod rx;
mod stats;
mod tlp;
mod translate;
mod tx;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use tofu_abi::barrier::Profile;
use tofu_abi::irq::{tnr, vector};
use tofu_abi::regs::{NUM_CQ, NUM_TNI};
use tofu_abi::{Coords, CqId, Doorbell, TniId};

use crate::barrier::Barrier;
use crate::cq::{Cq, lock};
use crate::irq::IrqUnit;
use crate::notice::{Completions, Writer};
use crate::regfile::Plain;
use crate::stats::{Statistics, TniUnit};

pub use crate::barrier::BarrierTime;
pub use crate::host::{Host, Net};
pub use crate::memory::{Access, DmaError, DmaMemory, Segment, Segments};
pub use crate::page::SharedPages;
pub use crate::rx::discard_rcode;
pub use crate::stats::{Faults, ModelTime};
pub use crate::tlp::{Answer, Body, Payload, Request, Signal, Tag, burst_size, wire_bytes};
pub use crate::translate::Pin;
pub use tofu_sync::Epochs;

/// What a device is made from.
#[derive(Clone, Debug)]
pub struct Config {
    /// Place of the node in the machine.
    pub coords: Coords,
    /// How long a command waits for an answer before it ends with
    /// [`TIMEOUT`](tofu_abi::Rcode::TIMEOUT), in nanoseconds.
    pub timeout_ns: u64,
    /// Modelled time from a doorbell to the first TLP on the link and from the last link to
    /// memory, in picoseconds: everything but the network.
    pub issue_ps: u64,
    /// Modelled time of a byte at the interface, in femtoseconds.
    pub byte_fs: u64,
    /// Its barrier gates and channels.
    pub barrier: Profile,
    /// Pages that the guest maps, for polled doorbells; without them doorbells are trapped.
    pub pages: Option<SharedPages>,
    /// What an unwritten word of the direct descriptor register reads as in a shared page: any
    /// value that a guest is unlikely to write. Give each node one of its own at random.
    pub blank: u64,
}

impl Config {
    /// A TofuD node with trapped doorbells.
    ///
    /// An 8-byte Put to a neighbour takes 0.49 us with the direct carrier's 0.1 us for a hop
    /// and the time of its 104 bytes on the wire (TofuD paper, table III, near CMGs).
    pub const fn tofud(coords: Coords) -> Self {
        Self {
            coords,
            timeout_ns: 500_000_000,
            issue_ps: 374_000,
            byte_fs: 147_059,
            barrier: Profile::TOFUD,
            pages: None,
            blank: 0x7fb1_4a5c_93e6_d02f,
        }
    }
}

/// The interconnect controller of one node.
pub struct Icc {
    config: Config,
    host: Arc<dyn Host>,
    memory: Arc<dyn DmaMemory>,
    bus_master: AtomicBool,
    tnis: [TniUnit; NUM_TNI],
    /// Control queues, TNI by TNI.
    queues: Vec<Cq>,
    barrier: Barrier,
    tnr: IrqUnit,
    plain: Plain,
    statistics: Statistics,
    faults: Faults,
    next_deadline: AtomicU64,
}

impl Icc {
    /// A device in its reset state. Bus mastering is off until
    /// [`set_bus_master`](Icc::set_bus_master).
    pub fn new(config: Config, host: Arc<dyn Host>, memory: Arc<dyn DmaMemory>) -> Self {
        let (pages, blank) = (config.pages.as_ref(), config.blank);
        let queues = TniId::ALL
            .into_iter()
            .flat_map(|tni| CqId::ALL.map(|cq| Cq::new(tni, cq, pages, blank)))
            .collect();
        let tnis = TniId::ALL.map(TniUnit::new);
        Self {
            host,
            memory,
            bus_master: AtomicBool::new(false),
            tnis,
            queues,
            barrier: Barrier::default(),
            tnr: IrqUnit::new(vector::TNR, tnr::ALL),
            plain: Plain::default(),
            statistics: Statistics::default(),
            faults: Faults::default(),
            next_deadline: AtomicU64::new(u64::MAX),
            config,
        }
    }

    /// Place of the node in the machine.
    pub fn coords(&self) -> Coords {
        self.config.coords
    }

    /// PCI bus mastering: while it is off the device neither reads nor writes memory, and
    /// answers requests of others with
    /// [`TARGET_DMA_OFF`](tofu_abi::Rcode::TARGET_DMA_OFF). What it should have written to its
    /// own queues it writes when bus mastering is on again.
    ///
    /// When a call that turns it off returns, the device does not touch memory any more.
    pub fn set_bus_master(&self, on: bool) {
        self.bus_master.store(on, SeqCst);
        let enabled = self.queues.iter().filter(|queue| queue.enabled());
        if on {
            let now_ns = self.host.now_ns();
            enabled.for_each(|queue| self.with_completions(queue, now_ns, Completions::flush));
            self.expire_packets(now_ns, true);
            self.ring_all();
        } else {
            enabled.for_each(Cq::quiesce);
            self.quiesce_packets();
            self.quiesce_barrier();
            self.statistics.quiesce();
        }
    }

    /// Puts the device back to its reset state (function level reset or power on). When this
    /// returns it does not touch memory any more.
    pub fn reset(&self) {
        for queue in &self.queues {
            let _life = lock(&queue.life);
            let was = queue.enabled();
            queue.reset();
            if was {
                self.host.queue_enabled(queue.tni, queue.id.into(), false);
            }
        }
        for tni in &self.tnis {
            tni.reset();
        }
        self.reset_barrier();
        self.tnr.reset();
        self.plain.reset();
        self.statistics.reset();
        self.next_deadline.store(u64::MAX, SeqCst);
    }

    /// Rings the doorbells of all enabled queues.
    fn ring_all(&self) {
        for queue in self.queues.iter().filter(|queue| queue.enabled()) {
            self.host.doorbell(queue.tni, queue.id.into());
        }
    }

    /// Whether the control queue with this doorbell is enabled, or the barrier channel in use.
    pub fn queue_is_enabled(&self, tni: TniId, doorbell: Doorbell) -> bool {
        match doorbell {
            Doorbell::Cq(cq) => self.queue(tni, cq).enabled(),
            Doorbell::Channel(bch) => self.channel_in_use(tni, bch),
        }
    }

    /// Looks at the shared page of an enabled queue or a channel in use: whether its doorbell was
    /// rung since the last look. Then [`run_queue`](Icc::run_queue) is due.
    ///
    /// While the queue cannot work for another reason, none is heard: all ring when that ends.
    pub fn poll_doorbell(&self, tni: TniId, doorbell: Doorbell) -> bool {
        let queue = match doorbell {
            Doorbell::Cq(cq) => self.queue(tni, cq),
            Doorbell::Channel(bch) => return self.poll_channel(tni, bch),
        };
        self.dma_enabled() && self.tni(tni).enabled() && queue.enabled() && queue.poll_doorbell()
    }

    /// Does what is due at `now_ns`: notices and interrupts that were held back, commands that
    /// get no answer, statistics.
    pub fn expire(&self, now_ns: u64) {
        if self.next_deadline.load(SeqCst) > now_ns {
            return;
        }
        self.next_deadline.store(u64::MAX, SeqCst);
        for queue in self.queues.iter().filter(|queue| queue.enabled()) {
            self.with_completions(queue, now_ns, Completions::expire);
            self.note_deadline(queue);
            if queue.stalled.swap(false, SeqCst) {
                self.host.doorbell(queue.tni, queue.id.into());
            }
        }
        self.expire_packets(now_ns, false);
        self.dump_statistics(now_ns);
    }

    /// When [`expire`](Icc::expire) is due next; `u64::MAX` if nothing is.
    pub fn next_deadline(&self) -> u64 {
        self.next_deadline.load(SeqCst)
    }

    /// Notes when the queue wants `expire` to be called.
    fn note_deadline(&self, queue: &Cq) {
        let deadline = lock(&queue.completions).as_ref().map_or(u64::MAX, |c| c.next_deadline());
        self.want_expire(deadline);
    }

    fn want_expire(&self, deadline: u64) {
        if deadline != u64::MAX && deadline < self.next_deadline.fetch_min(deadline, SeqCst) {
            self.host.timer(deadline);
        }
    }

    /// Raises interrupt requests of a queue that came up while it was locked.
    fn raise(&self, queue: &Cq, requests: u64) {
        const FATAL: u64 = tofu_abi::irq::cqs::TCQ_WRITE_EXCEPTION;
        if requests & FATAL != 0 {
            queue.stop();
        }
        queue.irq.request(&*self.host, requests);
    }

    fn queue(&self, tni: TniId, cq: CqId) -> &Cq {
        &self.queues[tni.index() * NUM_CQ + cq.index()]
    }

    fn tni(&self, tni: TniId) -> &TniUnit {
        &self.tnis[tni.index()]
    }

    /// A writer of notices with the queue's present settings.
    fn writer<'a>(&'a self, queue: &'a Cq, now_ns: u64) -> Writer<'a> {
        queue.writer(&*self.memory, &self.bus_master, now_ns)
    }

    /// Does something to the completions of a queue if it is enabled, and raises what comes of it.
    fn with_completions(
        &self,
        queue: &Cq,
        now_ns: u64,
        f: impl FnOnce(&mut Completions, &mut Writer<'_>),
    ) {
        let mut writer = self.writer(queue, now_ns);
        if let Some(completions) = lock(&queue.completions).as_mut() {
            f(completions, &mut writer);
        }
        let requests = writer.requests;
        self.raise(queue, requests);
    }

    fn dma_enabled(&self) -> bool {
        self.bus_master.load(SeqCst)
    }

    fn host(&self) -> &dyn Host {
        &*self.host
    }

    fn memory(&self) -> &dyn DmaMemory {
        &*self.memory
    }

    fn shared_memory(&self) -> Arc<dyn DmaMemory> {
        Arc::clone(&self.memory)
    }

    fn tnr(&self) -> &IrqUnit {
        &self.tnr
    }

    fn timeout_ns(&self) -> u64 {
        self.config.timeout_ns
    }

    /// Modelled time at which a TLP leaves that follows `wire` bytes of its message.
    fn issue_ps(&self, wire: u64) -> u64 {
        self.config.issue_ps.saturating_add(wire.saturating_mul(self.config.byte_fs) / 1000)
    }
}
