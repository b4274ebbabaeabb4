//! The device as a whole: its parts, its reset, and its clock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use tofu_abi::barrier::Profile;
use tofu_abi::desc::Header1;
use tofu_abi::generation::{Description, Generation};
use tofu_abi::irq::{CqsIrqs, TnrIrqs, vector};
use tofu_abi::regs::{CqReg, NUM_CQ, NUM_TNI};
use tofu_abi::{Coords, CqId, Doorbell, Rcode, TniId};
use tofu_fabric::{EccErrors, MemoryErrors};
use tofu_sync::lock;

use crate::barrier::unit::Barrier;
use crate::completions::{Completions, Failed, Writer};
use crate::cq::Cq;
use crate::ecc::{Ecc, EccPlace};
use crate::fault::Fault;
use crate::host::Host;
use crate::irq::IrqUnit;
use crate::memory::{DmaError, DmaMemory, DmaResult, Reach};
use crate::observe::explain;
use crate::observe::failures::Failures;
use crate::observe::rules;
use crate::observe::statistics::{FailedCommands, Faults, ModelTime, Statistics};
use crate::observe::trace_events::{Subject, Which};
use crate::observe::tracing::Traced;
use crate::observe::violations::{self, Violations};
use crate::page::SharedPages;
use crate::timing::CommandTiming;
use crate::tlp::{Body, Request};
use crate::tni::Tni;
use tofu_dma::Plain;
use tofu_rules::{Device, Point, Rule, Rules};

/// The configuration of a device.
#[derive(Clone, Debug)]
pub struct Config {
    /// Place of the node in the machine.
    pub coords: Coords,
    /// The time for which a command waits for an answer until it ends with
    /// [`TIMEOUT`](tofu_abi::Rcode::TIMEOUT), in nanoseconds.
    pub timeout_ns: u64,
    /// Modelled time of its commands: everything but the network.
    pub timing: CommandTiming,
    /// The kind of controller.
    pub generation: Generation,
    /// Pages that the guest maps, for polled doorbells; without them doorbells are trapped.
    pub pages: Option<SharedPages>,
    /// The value of an unwritten word of the direct descriptor register in a shared page: any value
    /// that a guest is unlikely to write. Give each node a different random one.
    pub blank: u64,
    /// The delay of the guest's register writes behind its stores to memory, in nanoseconds; 0 if
    /// the guest waits for each. On PCI Express there is no such delay: a device that reads a
    /// descriptor has received all earlier register writes. A full MRQ waits this long for a
    /// FULL_POINTER that may be in flight.
    pub posted_writes_ns: u64,
}

impl Config {
    /// A node of Fugaku with trapped doorbells.
    pub const fn tofud(coords: Coords) -> Self {
        Self::of(Generation::Fugaku, coords)
    }

    /// A node of a generation with trapped doorbells.
    pub const fn of(generation: Generation, coords: Coords) -> Self {
        Self {
            coords,
            timeout_ns: 500_000_000,
            timing: CommandTiming::of(generation),
            generation,
            pages: None,
            blank: 0x7fb1_4a5c_93e6_d02f,
            posted_writes_ns: 0,
        }
    }
}

/// The interconnect controller of one node.
///
/// Its methods are in the modules of their subjects:
///
/// | module | methods |
/// |---|---|
/// | here | life of the device and its queues, deadlines, bus mastering |
/// | `regfile`, `map` | register reads and writes; registers by name |
/// | `initiator` | fetching descriptors, sending, answers |
/// | `target` | requests of other nodes |
/// | `in_place` | Puts and Gets without packets |
/// | `packets` | system packets |
/// | `barrier` | gates and channels |
/// | `router` | counters and interrupts of links and crossbar |
/// | `observe` | traces, inspection |
pub struct Icc {
    config: Config,
    host: Arc<dyn Host>,
    memory: Arc<Reach>,
    bus_master: AtomicBool,
    tnis: [Tni; NUM_TNI],
    /// Control queues, TNI by TNI.
    queues: Vec<Cq>,
    pub(crate) barrier: Barrier,
    pub(crate) tnr: IrqUnit<TnrIrqs>,
    pub(crate) plain: Plain,
    pub(crate) statistics: Statistics,
    pub(crate) faults: Faults,
    pub(crate) ecc: Ecc,
    pub(crate) traced: Traced,
    pub(crate) rules: Rules,
    violations: Violations,
    /// Commands of this node, and requests of others.
    pub(crate) failed: Failures,
    pub(crate) refused: Failures,
    next_deadline: AtomicU64,
}

impl Icc {
    /// A device in its reset state. Bus mastering is off until
    /// [`set_bus_master`](Icc::set_bus_master).
    pub fn new(config: Config, host: Arc<dyn Host>, memory: Arc<dyn DmaMemory>) -> Self {
        let memory = Arc::new(Reach::new(memory));
        let (pages, values) = (config.pages.as_ref(), (config.blank, config.posted_writes_ns));
        let queues = TniId::ALL
            .into_iter()
            .flat_map(|tni| {
                CqId::ALL.map(|cq| Cq::new((tni, cq), pages, values, Arc::clone(&memory)))
            })
            .collect();
        let tnis = TniId::ALL.map(Tni::new);
        Self {
            host,
            memory,
            bus_master: AtomicBool::new(false),
            tnis,
            queues,
            barrier: Barrier::default(),
            tnr: IrqUnit::new(vector::TNR),
            plain: Plain::default(),
            statistics: Statistics::default(),
            faults: Faults::default(),
            ecc: Ecc::default(),
            traced: Traced::default(),
            rules: Rules::new(Device::Tofu),
            violations: Violations::default(),
            failed: Failures::default(),
            refused: Failures::default(),
            next_deadline: AtomicU64::new(u64::MAX),
            config,
        }
    }

    /// Place of the node in the machine.
    pub fn coords(&self) -> Coords {
        self.config.coords
    }

    /// PCI bus mastering: while it is off the device neither reads nor writes memory, and answers
    /// requests of others with [`TARGET_DMA_OFF`](tofu_abi::Rcode::TARGET_DMA_OFF). The entries
    /// that it should have written to its own queues are written when bus mastering is on again.
    ///
    /// When a call that turns it off returns, the device no longer accesses memory.
    pub fn set_bus_master(&self, on: bool) {
        if self.bus_master.swap(on, SeqCst) && !on {
            self.queues.iter().for_each(|queue| self.note_early_mastering(queue));
        }
        if on {
            self.flush_entries();
            self.expire_packets(self.host.now_ns(), true);
            self.ring_all();
        } else {
            self.queues.iter().for_each(|queue| self.note_unseen_stop(queue, "Bus Master Enable"));
            self.queues.iter().filter(|queue| queue.enabled()).for_each(Cq::quiesce);
            self.tnis.iter().for_each(Tni::quiesce_packets);
            self.quiesce_barrier();
            self.statistics.quiesce();
        }
    }

    /// Resets the device (function level reset or power on). When this returns, it no longer
    /// accesses memory.
    pub fn reset(&self) {
        self.queues.iter().for_each(|queue| self.reset_one(queue));
        for tni in &self.tnis {
            tni.reset();
        }
        self.reset_barrier();
        self.tnr.reset();
        self.plain.reset();
        self.statistics.reset();
        self.ecc.reset();
        self.failed.forget();
        self.refused.forget();
        self.next_deadline.store(u64::MAX, SeqCst);
    }

    /// Resets a control queue to its initial state. When this returns, it no longer accesses
    /// memory.
    pub fn reset_queue(&self, tni: TniId, cq: CqId) {
        self.reset_one(self.queue(tni, cq));
    }

    fn reset_one(&self, queue: &Cq) {
        let _life = lock(&queue.life);
        let was = queue.enabled();
        queue.reset();
        if was {
            self.host.queue_enabled(queue.tni, queue.id.into(), false);
        }
    }

    /// Rings the doorbells of all enabled queues.
    pub(crate) fn ring_all(&self) {
        for queue in self.queues.iter().filter(|queue| queue.enabled()) {
            self.host.doorbell(queue.tni, queue.id.into());
        }
    }

    /// Returns true if the control queue with this doorbell is enabled, or the barrier channel in
    /// use.
    pub fn queue_is_enabled(&self, tni: TniId, doorbell: Doorbell) -> bool {
        match doorbell {
            Doorbell::Cq(cq) => self.queue(tni, cq).enabled(),
            Doorbell::Channel(bch) => self.channel_in_use(tni, bch),
        }
    }

    /// Checks whether the doorbell in the shared page of an enabled queue or a channel in use was
    /// rung since the last check. If so, [`run_queue`](Icc::run_queue) is due.
    ///
    /// While the queue is blocked for another reason, rings are not noticed. All are handled when
    /// that ends.
    pub fn poll_doorbell(&self, tni: TniId, doorbell: Doorbell) -> bool {
        let queue = match doorbell {
            Doorbell::Cq(cq) => self.queue(tni, cq),
            Doorbell::Channel(bch) => return self.poll_channel(tni, bch),
        };
        self.dma_enabled() && self.tni(tni).enabled() && queue.enabled() && queue.poll_doorbell()
    }

    /// Handles everything that is due at `now_ns`: notices and interrupts that were held back,
    /// command timeouts, statistics.
    pub fn expire(&self, now_ns: u64) {
        if self.next_deadline.load(SeqCst) > now_ns {
            return;
        }
        self.next_deadline.store(u64::MAX, SeqCst);
        for queue in self.queues.iter().filter(|queue| queue.enabled()) {
            self.completing(queue, now_ns, |completions, writer| completions.expire(writer));
            self.renew_deadline(queue);
            self.ring_stalled(queue);
        }
        self.expire_packets(now_ns, false);
        if let Some(due) = self.statistics.expire(
            &*self.host,
            self.memory(),
            &self.bus_master,
            now_ns,
            &self.rules,
        ) {
            self.want_expire(due);
        }
    }

    /// Returns when [`expire`](Icc::expire) is due next; `u64::MAX` if nothing is.
    pub fn next_deadline(&self) -> u64 {
        self.next_deadline.load(SeqCst)
    }

    /// Rings the doorbell of a queue that stopped for lack of room.
    pub(crate) fn ring_stalled(&self, queue: &Cq) {
        // The queue sets this and then checks for room, under the lock that a command's end takes
        // to make room. So either the queue sees the room, or the end sees the flag. The plain load
        // comes first because most ends find the flag clear.
        if queue.stalled.load(SeqCst) && queue.stalled.swap(false, SeqCst) {
            self.host.doorbell(queue.tni, queue.id.into());
        }
    }

    /// Asks for `expire` when the first of a queue's commands may have to be given up. What it
    /// holds back has asked for itself.
    #[inline]
    pub(crate) fn note_deadline(&self, queue: &Cq) {
        self.want_expire(queue.patience_ends());
    }

    /// Asks for `expire` when anything of a queue is due.
    fn renew_deadline(&self, queue: &Cq) {
        let completions = queue.lock_completions();
        let due = completions.as_ref().map_or(u64::MAX, |completions| {
            let commands = completions.commands_due();
            queue.set_patience(commands);
            completions.held_due().min(commands)
        });
        drop(completions);
        self.want_expire(due);
    }

    #[inline]
    pub(crate) fn want_expire(&self, deadline: u64) {
        if deadline != u64::MAX && deadline < self.next_deadline.fetch_min(deadline, SeqCst) {
            self.host.timer(deadline);
        }
    }

    /// Counts and reports the commands of a queue that have failed.
    #[cold]
    fn note_failures(&self, queue: &Cq) {
        let failures = queue.lock_completions().as_mut().map(Completions::take_failures);
        let Some(failures) = failures else { return };
        self.statistics.count_failures(queue.tni, &failures);
        if let Some(Failed { rcode, message, index, generation }) = failures.last {
            let which = Which::Tag(index, generation);
            let (node, tni, cq) = (self.coords(), queue.tni, queue.id);
            let rule = rules::of_begun(rcode);
            self.failed.note(
                self.host().now_ns(),
                (rcode, rule),
                || format!("{}: {message}", queue.name()),
                || explain::failure(queue, self.memory(), &message, rcode),
                |failure| {
                    self.report_breach(failure.rule(), format_args!("{failure}"));
                    self.tell_why(Subject { node, tni, cq, which }, &failure.reason());
                },
            );
        }
    }

    pub(crate) fn queue(&self, tni: TniId, cq: CqId) -> &Cq {
        &self.queues[tni.index() * NUM_CQ + cq.index()]
    }

    pub(crate) fn tni(&self, tni: TniId) -> &Tni {
        &self.tnis[tni.index()]
    }

    pub(crate) fn queues(&self) -> &[Cq] {
        &self.queues
    }

    pub(crate) fn tnis(&self) -> &[Tni] {
        &self.tnis
    }

    /// Does something with the completions of a queue, which are locked meanwhile, and a writer of
    /// entries at this time. Afterwards it raises interrupt requests, and sets a timer for what is
    /// held back. Returns `None` if the queue is not enabled.
    #[inline]
    pub(crate) fn completing<'a, R>(
        &'a self,
        queue: &'a Cq,
        now_ns: u64,
        change: impl FnOnce(&mut Completions, &mut Writer<'a>) -> R,
    ) -> Option<R> {
        let mut locked = queue.lock_completions();
        let completions = locked.as_mut()?;
        let mut writer = Writer {
            memory: self.memory(),
            page: &queue.page,
            now_ns,
            dma: &self.bus_master,
            away: &queue.away,
            requests: CqsIrqs::NONE,
            failed: false,
            held_until: u64::MAX,
            trace: self.traced.watch(self.host(), (queue.tni, queue.id)),
            rules: &self.rules,
            lane: self.rules.lane(queue.tni.index()),
        };
        let result = change(completions, &mut writer);
        if !completions.busy() {
            queue.set_patience(u64::MAX);
        }
        let wanted = self.take_arm(queue, &mut writer);
        drop(locked);
        let quiet = writer.requests.is_empty() && wanted == Ok(CqsIrqs::NONE);
        if !quiet || writer.failed || writer.held_until != u64::MAX {
            self.announce(queue, &writer, wanted);
        }
        Some(result)
    }

    /// Checks whether the driver has asked in memory for an interrupt for what was written, while
    /// the queue cannot be disabled. Returns the requests that it has asked for.
    ///
    /// # Errors
    ///
    /// If the word by which it asks is not memory.
    #[inline(always)]
    fn take_arm(&self, queue: &Cq, writer: &mut Writer<'_>) -> DmaResult<CqsIrqs> {
        let (arm, acknowledges) = (queue.arm(), writer.requests & CqsIrqs::ACKNOWLEDGES);
        if acknowledges.is_empty() || !arm.is_used() {
            return Ok(CqsIrqs::NONE);
        }
        writer.requests = writer.requests & CqsIrqs::EXCEPTIONS;
        if !self.dma_enabled() {
            return Ok(CqsIrqs::NONE);
        }
        let wanted = arm.take(writer.memory)?;
        writer.lane.kept(Point::Asked);
        Ok(if wanted { acknowledges } else { CqsIrqs::NONE })
    }

    /// Carries out what follows from entries that were written, with the completions unlocked.
    /// `asked` are the requests that the driver has asked for in memory.
    #[inline(never)]
    fn announce(&self, queue: &Cq, writer: &Writer<'_>, asked: DmaResult<CqsIrqs>) {
        let &Writer { requests, failed, held_until, .. } = writer;
        if !requests.is_empty() {
            self.request(queue, requests);
        }
        match asked {
            Ok(CqsIrqs::NONE) => {}
            Ok(asked) => queue.irq.announce(self.host(), asked),
            Err(error) => self.no_arm_word(queue, error),
        }
        if failed {
            self.note_failures(queue);
        }
        self.want_expire(held_until);
    }

    /// Raises interrupt requests of a queue.
    fn request(&self, queue: &Cq, requests: CqsIrqs) {
        if requests.intersects(CqsIrqs::TCQ_WRITE_EXCEPTION) {
            queue.stop();
        }
        self.count_queue_exceptions(requests);
        queue.irq.request(self.host(), requests);
    }

    /// The word by which the driver asks for interrupts is not memory.
    #[cold]
    fn no_arm_word(&self, queue: &Cq, DmaError { addr, .. }: DmaError) {
        let what =
            format_args!("{} INTERRUPT_ARM_IPA: there is no word at {addr:#x}", queue.name());
        self.breach(Rule::ArmWord, what);
        queue.irq.request(self.host(), CqsIrqs::MRQ_WRITE_EXCEPTION);
    }

    /// Injects wrong bits into the device's memory. Those of the router are found in packets that
    /// arrive; the network finds them in others, if it has [`Icc::router_errors`].
    pub fn inject_ecc(&self, place: EccPlace, errors: EccErrors) {
        self.ecc.inject(place, errors);
    }

    /// The errors of the node's router.
    pub const fn router_errors(&self) -> &Arc<MemoryErrors> {
        self.ecc.router()
    }

    /// Errors that the device's codes have found, by name (*ours*).
    pub fn ecc_counts(&self) -> [(&'static str, u64); 6] {
        self.ecc.counts()
    }

    /// Holds back entries of TCQ and MRQ for at least these times, in nanoseconds; longer if the
    /// driver requests it.
    pub(crate) fn hold_entries(&self, tcq_ns: u64, mrq_ns: u64) {
        let mut changed = false;
        for queue in &self.queues {
            changed |= queue.hold_back([tcq_ns, mrq_ns]);
        }
        if changed {
            self.flush_entries();
        }
    }

    /// Sets a view of the memory whose accesses may fail. Must be called once.
    pub fn set_refusing_memory(&self, memory: Arc<dyn DmaMemory>) {
        self.memory.set_refusing(memory);
    }

    /// Makes accesses to memory fail from now on, as
    /// [`set_refusing_memory`](Icc::set_refusing_memory) defines, or stops that.
    pub fn refuse_accesses(&self, refuses: bool) {
        self.memory.refuse(refuses);
    }

    /// Writes the entries that were held back.
    fn flush_entries(&self) {
        let now_ns = self.host.now_ns();
        for queue in self.queues.iter().filter(|queue| queue.enabled()) {
            self.completing(queue, now_ns, |completions, writer| completions.flush(writer));
        }
    }

    /// Accesses that hit no register or had a wrong size.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Modelled time of the commands of a TNI.
    pub fn model_time(&self, tni: TniId) -> ModelTime {
        self.statistics.model_time(tni)
    }

    /// Counts and reports that this node's guest has broken a rule.
    #[cold]
    pub(crate) fn breach(&self, rule: Rule, what: fmt::Arguments<'_>) {
        self.rules.broke(rule);
        self.report_breach(Some(rule), what);
    }

    /// Reports a violation by this node's guest, which has already been counted.
    #[cold]
    pub(crate) fn report_breach(&self, rule: Option<Rule>, what: fmt::Arguments<'_>) {
        if !violations::are_told() {
            return;
        }
        let (node, now_ns) = (self.coords(), self.host().now_ns());
        match rule {
            Some(rule) => self.violations.tell(node, now_ns, format_args!("{rule}: {what}")),
            None => self.violations.tell(node, now_ns, what),
        }
    }

    /// Commands of a TNI that failed at their targets or in transit, since the last reset.
    pub fn failed_commands(&self, tni: TniId) -> FailedCommands {
        self.statistics.failed_commands(tni)
    }

    /// Commands of all control queues that wait for answers.
    pub fn commands_under_way(&self) -> u64 {
        let of = |queue: &Cq| queue.lock_completions().as_ref().map_or(0, Completions::under_way);
        self.queues.iter().filter(|queue| queue.enabled()).map(|queue| of(queue) as u64).sum()
    }

    /// Payload bytes that all control queues together have sent and received.
    pub fn payload_bytes(&self) -> (u64, u64) {
        self.queues.iter().fold((0, 0), |(sent, received), queue| {
            // A guest can write anything to the counters in a shared page.
            (
                sent.wrapping_add(queue.page.load(CqReg::TxPayloadByte)),
                received.wrapping_add(queue.page.load(CqReg::RxPayloadByte)),
            )
        })
    }

    pub(crate) fn dma_enabled(&self) -> bool {
        self.bus_master.load(SeqCst)
    }

    pub(crate) fn host(&self) -> &dyn Host {
        &*self.host
    }

    /// Requests the interrupt of a fault at the queue that has the address. Returns its code.
    pub(crate) fn raise(&self, queue: &Cq, fault: Fault) -> Rcode {
        queue.irq.request(self.host(), fault.irq);
        if let Some(rule) = rules::of_local(fault.rcode) {
            self.rules.broke(rule);
        }
        fault.rcode
    }

    pub(crate) fn memory(&self) -> &Reach {
        &self.memory
    }

    /// The memory without the faults that drivers are tried with, for what only looks.
    pub(crate) fn faultless_memory(&self) -> &dyn DmaMemory {
        self.memory.faultless()
    }

    /// The kind of controller.
    pub const fn generation(&self) -> Generation {
        self.config.generation
    }

    /// The description of its generation.
    pub const fn description(&self) -> &'static Description {
        self.config.generation.description()
    }

    pub(crate) fn profile(&self) -> Profile {
        self.description().barrier
    }

    pub(crate) fn pages(&self) -> Option<&SharedPages> {
        self.config.pages.as_ref()
    }

    /// The deadline of a command that is started or gets an answer now, in nanoseconds.
    pub(crate) fn command_deadline(&self, now_ns: u64) -> u64 {
        now_ns.saturating_add(self.config.timeout_ns)
    }

    /// The time from the arrival of a packet until its process can read data and queue entries; see
    /// [`CommandTiming::deliver`]. Entries that do not go into a cache take an access to memory,
    /// unless data takes one at the same time. The frame of an entry in a packet receive queue
    /// always does.
    #[inline]
    pub fn deliver_ps(&self, tni: TniId, body: &Body) -> u64 {
        if let Body::Put { request, .. } = body {
            return self.deliver_put_ps(tni, request);
        }
        let timing = self.timing();
        let deliver = timing.deliver(body);
        let answered = matches!(body, Body::PutAck { .. } | Body::ArmwAck { .. });
        let told = match body {
            Body::Armw { request, .. } => {
                request.header2.remote_notice().then_some(request.remote.cqid())
            }
            Body::PutAck { answer } | Body::ArmwAck { answer, .. } => Some(answer.tag.cq.get()),
            _ => None,
        };
        let told = told.and_then(CqId::new).filter(|_| timing.cache_injection);
        let in_memory = told.is_some_and(|cq| {
            let queue = self.queue(tni, cq);
            !queue.has_cached_notices() || (answered && !queue.has_cached_completions())
        });
        deliver + if in_memory { timing.memory_ps } else { 0 }
    }

    /// The same of the data of a Put.
    #[inline(always)]
    pub(crate) fn deliver_put_ps(&self, tni: TniId, request: &Request) -> u64 {
        let (timing, header2) = (self.timing(), request.header2);
        let told = header2.cache_injection() && header2.remote_notice() && timing.cache_injection;
        let told = if told { CqId::new(request.remote.cqid()) } else { None };
        let in_memory = told.is_some_and(|cq| !self.queue(tni, cq).has_cached_notices());
        timing.deliver_put(request) + if in_memory { timing.memory_ps } else { 0 }
    }

    /// Modelled time from the doorbell to the first TLP of a command.
    /// `cq` is its control queue, unless a kernel sends it, which may run on any core.
    pub(crate) fn issue_ps(&self, header: Header1, cq: Option<CqId>, reads: bool) -> u64 {
        self.config.timing.issue(header, cq, reads)
    }

    /// The costs of the node's commands.
    pub const fn timing(&self) -> &CommandTiming {
        &self.config.timing
    }
}
