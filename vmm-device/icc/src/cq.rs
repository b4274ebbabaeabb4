//! A control queue: its registers and its life.

use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Release, Ordering::SeqCst,
};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tofu_abi::desc::{Command, Descriptor, source_type};
use tofu_abi::generation::Description;
use tofu_abi::irq::{CqsIrqs, vector};
use tofu_abi::queue::{RingIndex, queue_entries};
use tofu_abi::regs::{CACHE_INJECTION, CqReg, CqsMode, CqsReg, CqsStatus};
use tofu_abi::{CqId, TniId};
use tofu_inspect::inspect;
use tofu_sync::lock;

use crate::away::Away;
use crate::command::Message;
use crate::completions::{Completions, Policy, Slot};
use crate::handover::Handover;
use crate::irq::{Arm, IrqUnit};
use crate::memory::Reach;
use crate::observe::format::Words;
use crate::observe::violations::QueueName;
use crate::page::{DIRECT, PIGGYBACK, Page, SharedPages};
use crate::translate::Tables;
use crate::transmit::Transmit;
use tofu_dma::RegisterWrite;
use tofu_rules::Rule;

/// The longest time for which a write to ENABLE waits for bursts in flight. A burst takes as long
/// as a memory copy, so this time is reached only if the host hardly runs at all. It is long,
/// because the guest's memory must not be written after the queue was reported disabled.
const QUIESCE_LIMIT: Duration = Duration::from_secs(30);

/// Largest value of STATUS.SESSION_OFFSET.
const MAX_SESSION: u32 = (1 << 25) - 1;

/// One or two descriptors from the direct descriptor register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectCommand {
    pub(crate) words: [u64; 8],
}

inspect!(DirectCommand { words as Words });

impl DirectCommand {
    pub(crate) fn first(&self) -> Descriptor {
        let w = &self.words;
        Descriptor([w[0], w[1], w[2], w[3]])
    }

    /// The second descriptor of a two-descriptor command.
    pub(crate) fn second(&self) -> Option<Descriptor> {
        let w = &self.words;
        is_double(w[0]).then_some(Descriptor([w[4], w[5], w[6], w[7]]))
    }
}

/// Returns true if a command with this first qword fills all eight direct descriptor registers.
fn is_double(word0: u64) -> bool {
    Descriptor([word0, 0, 0, 0]).header1().command() == Command::WritePiggybackBuffer as u8
}

/// The direct descriptor register of a queue.
#[derive(Debug, Default)]
pub(crate) struct DirectRegister {
    /// The value so far, by trapped writes.
    words: [u64; 8],
    /// Which halves of the words were written: bits 2n and 2n + 1 for word n.
    written: u16,
    /// A complete command that waits to be taken.
    ready: Option<DirectCommand>,
}

inspect!(DirectRegister { words as Words, written as hex, ready });

impl DirectRegister {
    /// Records a trapped write; `Err` if a command still waits.
    fn write(&mut self, word: usize, write: RegisterWrite) -> Result<bool, ()> {
        if self.ready.is_some() {
            return Err(());
        }
        self.words[word] = write.merge(self.words[word]);
        self.written |= write.halves() << (2 * word);
        let needed = if is_double(self.words[0]) { 0xffff } else { 0x00ff };
        if self.written & 0b11 != 0b11 || self.written & needed != needed {
            return Ok(false);
        }
        self.written = 0;
        self.ready = Some(DirectCommand { words: self.words });
        Ok(true)
    }

    fn take(&mut self) -> Option<DirectCommand> {
        self.ready.take()
    }
}

/// Registers of CQS that only hold what was written, by offset / 8.
const PLAIN: usize = 31;

/// A control queue.
pub(crate) struct Cq {
    pub(crate) tni: TniId,
    pub(crate) id: CqId,
    enabled: AtomicBool,
    /// Held while the queue is enabled or disabled and the host is notified, so that it gets
    /// these calls in order. Taken before all other locks.
    pub(crate) life: Mutex<()>,
    plain: [AtomicU64; PLAIN],
    /// DESCRIPTOR_PROCESS_STOP and DESCRIPTOR_FETCH_STOP.
    process_stop: AtomicBool,
    fetch_stop: AtomicBool,
    /// The driver has disabled the queue, and has not looked at STATUS since.
    unseen_stop: AtomicBool,
    /// The fields of STATUS about the next descriptor, as of the last time that the queue ran.
    next: AtomicU64,
    /// Descriptors that a session may still start, and whether there were ever too many to count.
    session: AtomicU32,
    session_overflow: AtomicBool,
    pub(crate) irq: IrqUnit<CqsIrqs>,
    pub(crate) page: Page,
    pub(crate) tables: Arc<Tables>,
    pub(crate) direct: Mutex<DirectRegister>,
    /// True if a direct descriptor waits to be taken. Changed with `direct` locked. A thread sets
    /// it before it requests a turn of the queue, so that turn sees it.
    direct_waits: AtomicBool,
    pub(crate) transmit: Handover<Option<Transmit>>,
    /// The queue stopped for lack of room for another outstanding command.
    pub(crate) stalled: AtomicBool,
    completions: Mutex<Option<Completions>>,
    pub(crate) away: Away,
    /// No command is given up before this time, in nanoseconds; `u64::MAX` if none is outstanding.
    /// Changed with `completions` locked.
    patience_ends: AtomicU64,
    /// Sequence number of the first command of the next life. Changed with `completions` locked.
    first_sequence: AtomicU64,
    /// The content of an unwritten word of the direct descriptor register in a shared page.
    blank: u64,
    /// The time for which a full MRQ waits for room, in nanoseconds.
    patience_ns: u64,
    /// Shortest times for which entries of TCQ and MRQ are held back, in nanoseconds.
    late_ns: [AtomicU64; 2],
}

impl Cq {
    pub(crate) fn new(
        (tni, id): (TniId, CqId),
        shared: Option<&SharedPages>,
        (blank, patience_ns): (u64, u64),
        memory: Arc<Reach>,
    ) -> Self {
        Self {
            tni,
            id,
            enabled: AtomicBool::new(false),
            life: Mutex::new(()),
            plain: [const { AtomicU64::new(0) }; PLAIN],
            process_stop: AtomicBool::new(false),
            fetch_stop: AtomicBool::new(false),
            unseen_stop: AtomicBool::new(false),
            next: AtomicU64::new(0),
            session: AtomicU32::new(0),
            session_overflow: AtomicBool::new(false),
            irq: IrqUnit::new(vector::cq(tni, id)),
            page: Page::new(tni, id, shared),
            tables: Arc::new(Tables::new(memory)),
            direct: Mutex::new(DirectRegister::default()),
            direct_waits: AtomicBool::new(false),
            transmit: Handover::new(None),
            stalled: AtomicBool::new(false),
            completions: Mutex::new(None),
            away: Away::new(),
            patience_ends: AtomicU64::new(u64::MAX),
            first_sequence: AtomicU64::new(1),
            blank,
            patience_ns,
            late_ns: Default::default(),
        }
    }

    /// Its name in the log.
    pub(crate) const fn name(&self) -> QueueName {
        QueueName(self.tni, self.id)
    }

    pub(crate) fn enabled(&self) -> bool {
        self.enabled.load(SeqCst)
    }

    pub(crate) fn mode(&self) -> CqsMode {
        CqsMode(self.plain(CqsReg::Mode))
    }

    pub(crate) fn gpid(&self) -> u64 {
        self.plain(CqsReg::Gpid)
    }

    /// Returns true if notices go into the cache of the processor that polls them.
    pub(crate) fn has_cached_notices(&self) -> bool {
        self.plain(CqsReg::MrqIpa) & CACHE_INJECTION != 0
    }

    /// The same of completions.
    pub(crate) fn has_cached_completions(&self) -> bool {
        self.plain(CqsReg::TcqIpa) & CACHE_INJECTION != 0
    }

    fn plain(&self, reg: CqsReg) -> u64 {
        self.plain[reg.offset() as usize / 8].load(SeqCst)
    }

    /// Returns true if the queue may take another descriptor.
    pub(crate) fn may_fetch(&self) -> bool {
        self.enabled() && !self.fetch_stop.load(SeqCst) && !self.process_stop.load(SeqCst)
    }

    /// Returns true if a command in progress may continue.
    pub(crate) fn may_process(&self) -> bool {
        self.enabled() && !self.process_stop.load(SeqCst)
    }

    /// Returns true if the queue's session allows it to take another descriptor: always, if it is
    /// not in session mode.
    pub(crate) fn session_may_start(&self) -> bool {
        !self.mode().session() || self.session.load(SeqCst) > 0
    }

    /// Notes that a descriptor was taken. Only the thread that runs the queue takes descriptors.
    pub(crate) fn use_session_step(&self) {
        if self.mode().session() {
            let _ = self.session.fetch_update(SeqCst, SeqCst, |steps| steps.checked_sub(1));
        }
    }

    /// Returns true if the queue is in session mode and an exception has stopped it, so its session
    /// has ended.
    fn session_dead(&self) -> bool {
        self.enabled() && self.mode().session() && self.process_stop.load(SeqCst)
    }

    /// Lets the session take `steps` more descriptors. Returns whether the queue must be run.
    pub(crate) fn advance_session(&self, steps: u8) -> bool {
        if steps == 0 || !self.mode().session() || !self.enabled() || self.session_dead() {
            return false;
        }
        let more = |now: u32| {
            let sum = now.saturating_add(steps.into());
            if sum > MAX_SESSION {
                self.session_overflow.store(true, SeqCst);
            }
            Some(sum.min(MAX_SESSION))
        };
        self.session.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// Stops the queue for an exception, until it is disabled and enabled again.
    pub(crate) fn stop(&self) {
        self.process_stop.store(true, SeqCst);
    }

    /// Shows in STATUS which descriptor comes next.
    pub(crate) fn show_next(&self, ring: &RingIndex) {
        let status = CqsStatus(0)
            .with_next_descriptor_offset_units(ring.slot())
            .with_blank_entry_flip_bit(!ring.flip());
        // Release and not SeqCst, because no other data depends on it, and this runs for each
        // descriptor.
        self.next.store(status.0, Release);
    }

    fn status(&self) -> u64 {
        CqsStatus(self.next.load(SeqCst))
            .with_cq_enable(self.enabled())
            .with_cache_flush_busy(self.tables.flush_busy())
            .with_descriptor_fetch_stop(self.fetch_stop.load(SeqCst))
            .with_descriptor_process_stop(self.process_stop.load(SeqCst))
            .with_session_dead(self.session_dead())
            .with_session_offset(self.session.load(SeqCst))
            .with_session_offset_overflow(self.session_overflow.load(SeqCst))
            .0
    }

    /// Notes whether the driver has disabled the queue without looking at STATUS. Returns what was
    /// noted before.
    pub(crate) fn set_unseen_stop(&self, unseen: bool) -> bool {
        // STATUS is polled, and rarely after a stop.
        self.unseen_stop.load(SeqCst) != unseen && self.unseen_stop.swap(unseen, SeqCst)
    }

    /// Reads a system register.
    pub(crate) fn read(&self, reg: CqsReg) -> u64 {
        match reg {
            CqsReg::Status => self.status(),
            CqsReg::Enable => self.enabled().into(),
            CqsReg::CacheFlush => 0,
            CqsReg::FetchStop => self.fetch_stop.load(SeqCst).into(),
            CqsReg::MemoryBlockTableEnable
            | CqsReg::MemoryBlockTableIpa
            | CqsReg::MemoryBlockTableSize
            | CqsReg::SteeringTableEnable
            | CqsReg::SteeringTableIpa
            | CqsReg::SteeringTableSize => self.tables.read(reg),
            CqsReg::Irr => self.irq.pending(),
            CqsReg::Imr | CqsReg::Imc => self.irq.mask(),
            CqsReg::Irc => 0,
            CqsReg::Icl => self.irq.level(),
            CqsReg::Mode
            | CqsReg::Gpid
            | CqsReg::ToqIpa
            | CqsReg::ToqSize
            | CqsReg::TcqIpa
            | CqsReg::MrqIpa
            | CqsReg::MrqSize
            | CqsReg::MrqMask
            | CqsReg::TcqDescriptorCoalescingTimer
            | CqsReg::MrqDescriptorCoalescingTimer
            | CqsReg::MrqInterruptCoalescingTimer
            | CqsReg::MrqInterruptCoalescingCount
            | CqsReg::ToqDirectSourceCount
            | CqsReg::ToqDirectDescriptorCount
            | CqsReg::MrqInterruptMask
            | CqsReg::InterruptArmIpa => self.plain(reg),
        }
    }

    /// Stores a register that only holds what was written.
    pub(crate) fn write_plain(&self, reg: CqsReg, value: u64) {
        self.plain[reg.offset() as usize / 8].store(value, SeqCst);
    }

    /// The settings for notices, as they are in registers.
    fn policy(&self) -> Policy {
        let late = |of: usize| self.late_ns[of].load(SeqCst);
        Policy {
            mrq_mask: self.plain(CqsReg::MrqMask),
            tcq_hold_ns: self.plain(CqsReg::TcqDescriptorCoalescingTimer).max(late(0)),
            mrq_hold_ns: self.plain(CqsReg::MrqDescriptorCoalescingTimer).max(late(1)),
            interrupt_hold_ns: self.plain(CqsReg::MrqInterruptCoalescingTimer),
            interrupt_count: self.plain(CqsReg::MrqInterruptCoalescingCount),
            interrupt_mask: self.plain(CqsReg::MrqInterruptMask),
            failures: self.mode().failures(),
            patience_ns: self.patience_ns,
        }
    }

    /// Lets an enabled queue keep to what its registers say now.
    pub(crate) fn renew_policy(&self) {
        if let Some(completions) = self.lock_completions().as_mut() {
            completions.set_policy(self.policy());
        }
    }

    /// Holds entries of TCQ and MRQ back for at least these times, in nanoseconds. Returns whether
    /// that is new.
    pub(crate) fn hold_back(&self, late_ns: [u64; 2]) -> bool {
        let [tcq, mrq] = &self.late_ns;
        let before = [tcq.swap(late_ns[0], SeqCst), mrq.swap(late_ns[1], SeqCst)];
        self.renew_policy();
        before != late_ns
    }

    /// Counts a direct descriptor command of `descriptors` descriptors.
    pub(crate) fn count_direct(&self, descriptors: u64) {
        let add = |reg: CqsReg, n| self.plain[reg.offset() as usize / 8].fetch_add(n, SeqCst);
        add(CqsReg::ToqDirectSourceCount, 1);
        add(CqsReg::ToqDirectDescriptorCount, descriptors);
    }

    /// Sets FETCH_STOP.
    pub(crate) fn set_fetch_stop(&self, stop: bool) {
        self.fetch_stop.store(stop, SeqCst);
    }

    /// Enables the queue with the addresses and sizes that its registers have now.
    ///
    /// # Errors
    ///
    /// The queue stays disabled if a size code is out of range or an address not a multiple of its
    /// entry's size. The error has the rule, the register, its value, and the rule in words.
    pub(crate) fn enable(
        &self,
        description: &Description,
    ) -> Result<(), (Rule, CqsReg, u64, &'static str)> {
        let mut transmit = self.transmit.lock();
        let mut completions = lock(&self.completions);
        if self.enabled() {
            return Ok(());
        }
        let entries = |reg| {
            let code = self.plain(reg);
            queue_entries(code).ok_or((Rule::QueueSize, reg, code, "size codes are 0 to 5"))
        };
        let address = |reg, size, rule| {
            let address = self.plain(reg) & !CACHE_INJECTION;
            let wrong = (Rule::QueueAlignment, reg, address, rule);
            if address.is_multiple_of(size) { Ok(address) } else { Err(wrong) }
        };
        if self.mode().session() && !description.session_mode {
            let why = "there is no session mode";
            return Err((Rule::SessionMode, CqsReg::Mode, self.mode().0, why));
        }
        let toq_entries = entries(CqsReg::ToqSize)?;
        let mrq_entries = entries(CqsReg::MrqSize)?;
        let toq = address(CqsReg::ToqIpa, 32, "the address is a multiple of 32")?;
        let tcq = address(CqsReg::TcqIpa, 8, "the address is a multiple of 8")?;
        let mrq = address(CqsReg::MrqIpa, 32, "the address is a multiple of 32")?;
        self.page.clear();
        self.blank_direct();
        self.forget_direct();
        self.write_plain(CqsReg::ToqDirectSourceCount, 0);
        self.write_plain(CqsReg::ToqDirectDescriptorCount, 0);
        self.process_stop.store(false, SeqCst);
        self.session.store(0, SeqCst);
        self.session_overflow.store(false, SeqCst);
        let ring = RingIndex::new(toq_entries);
        self.show_next(&ring);
        *transmit = Some(Transmit::new(toq, ring));
        let first_sequence = self.first_sequence.load(SeqCst);
        let policy = self.policy();
        *completions = Some(Completions::new([tcq, mrq], mrq_entries, policy, first_sequence));
        self.enabled.store(true, SeqCst);
        Ok(())
    }

    /// Disables the queue: when this returns, the device no longer accesses its memory. Outstanding
    /// commands are dropped, because their rings may be gone.
    ///
    /// Returns whether it was enabled.
    pub(crate) fn disable(&self) -> bool {
        let was = self.enabled.swap(false, SeqCst);
        *self.transmit.lock() = None;
        if let Some(completions) = lock(&self.completions).take() {
            self.set_patience(u64::MAX);
            self.first_sequence.store(completions.next_sequence(), SeqCst);
        }
        self.drain();
        was
    }

    /// Waits for all memory accesses in progress. The caller must have prevented new ones.
    pub(crate) fn quiesce(&self) {
        drop(self.transmit.lock());
        drop(lock(&self.completions));
        self.drain();
    }

    /// Waits for bursts in flight.
    fn drain(&self) {
        self.tables.flush();
        let start = Instant::now();
        while self.tables.flush_busy() {
            if start.elapsed() > QUIESCE_LIMIT {
                log::warn!("TNI {} CQ {}: a transfer is still in flight", self.tni, self.id);
                break;
            }
            std::thread::yield_now();
        }
    }

    /// Locks the queue's completions, for operations that raise no interrupts and hold back no
    /// entries.
    pub(crate) fn lock_completions(&self) -> MutexGuard<'_, Option<Completions>> {
        lock(&self.completions)
    }

    /// Notes a command as outstanding, until `deadline_ns` at least. Returns its place and
    /// generation; `None` if there is no room.
    #[inline]
    pub(crate) fn begin(
        &self,
        message: &Message,
        slot: Slot,
        deadline_ns: u64,
    ) -> Option<(u16, u32)> {
        let mut completions = self.lock_completions();
        let begun = completions.as_mut()?.start(*message, slot, deadline_ns);
        self.set_patience(self.patience_ends().min(deadline_ns));
        begun
    }

    /// No command is given up before this time, in nanoseconds.
    #[inline]
    pub(crate) fn patience_ends(&self) -> u64 {
        self.patience_ends.load(Acquire)
    }

    /// Sets that time, with the completions locked.
    #[inline]
    pub(crate) fn set_patience(&self, until_ns: u64) {
        self.patience_ends.store(until_ns, Release);
    }

    /// Commands that can be started now.
    pub(crate) fn room(&self) -> usize {
        self.lock_completions().as_ref().map_or(0, Completions::room)
    }

    /// Puts all registers back to their reset values.
    pub(crate) fn reset(&self) {
        self.disable();
        for reg in &self.plain {
            reg.store(0, SeqCst);
        }
        for reg in [
            CqsReg::SteeringTableEnable,
            CqsReg::SteeringTableIpa,
            CqsReg::SteeringTableSize,
            CqsReg::MemoryBlockTableEnable,
            CqsReg::MemoryBlockTableIpa,
            CqsReg::MemoryBlockTableSize,
        ] {
            self.tables.write(reg, 0);
        }
        self.process_stop.store(false, SeqCst);
        self.fetch_stop.store(false, SeqCst);
        self.unseen_stop.store(false, SeqCst);
        self.session.store(0, SeqCst);
        self.session_overflow.store(false, SeqCst);
        self.next.store(0, SeqCst);
        self.irq.reset();
        self.page.clear();
        self.forget_direct();
    }

    /// A write to the direct descriptor register that came through the BAR. Returns whether a
    /// command is complete now; `Err` if one that was written before still waits.
    pub(crate) fn write_direct(&self, word: usize, write: RegisterWrite) -> Result<bool, ()> {
        if self.page.is_shared() {
            let old = self.page.load(DIRECT[word]);
            let old = if old == self.blank { 0 } else { old };
            self.page.store(DIRECT[word], write.merge(old));
            return Ok(true);
        }
        let mut direct = lock(&self.direct);
        let complete = direct.write(word, write)?;
        self.direct_waits.fetch_or(complete, SeqCst);
        Ok(complete)
    }

    fn forget_direct(&self) {
        let mut direct = lock(&self.direct);
        *direct = DirectRegister::default();
        self.direct_waits.store(false, SeqCst);
    }

    /// Takes the direct descriptor that waits, if any.
    #[inline]
    pub(crate) fn take_direct(&self) -> Option<DirectCommand> {
        if !self.page.is_shared() && !self.direct_waits.load(SeqCst) {
            return None;
        }
        self.take_waiting()
    }

    /// The same where one may wait.
    #[inline(never)]
    fn take_waiting(&self) -> Option<DirectCommand> {
        self.poll_direct();
        if !self.direct_waits.load(SeqCst) {
            return None;
        }
        let mut direct = lock(&self.direct);
        self.direct_waits.store(false, SeqCst);
        direct.take()
    }

    /// Takes a direct descriptor that the guest has written to its shared page, if any.
    fn poll_direct(&self) {
        if !self.page.is_shared() || self.page.load(DIRECT[0]) == self.blank {
            return;
        }
        let mut direct = lock(&self.direct);
        if direct.ready.is_some() {
            return;
        }
        let Some((words, count)) = self.direct_in_page() else {
            return;
        };
        for reg in DIRECT.into_iter().take(count) {
            self.page.store(reg, self.blank);
        }
        direct.ready = Some(DirectCommand { words });
        self.direct_waits.store(true, SeqCst);
    }

    /// The command in the direct descriptor register of a shared page, and how many words it
    /// has; `None` as long as any of them is not written.
    fn direct_in_page(&self) -> Option<([u64; 8], usize)> {
        let word0 = self.page.load(DIRECT[0]);
        if word0 == self.blank {
            return None;
        }
        let count = if is_double(word0) { 8 } else { 4 };
        let mut words = [0; 8];
        words[0] = word0;
        for (word, reg) in words.iter_mut().zip(DIRECT).take(count).skip(1) {
            *word = self.page.load(reg);
            if *word == self.blank {
                return None;
            }
        }
        Some((words, count))
    }

    fn blank_direct(&self) {
        if self.page.is_shared() {
            for reg in DIRECT {
                self.page.store(reg, self.blank);
            }
        }
    }

    /// Returns true if the guest rang the doorbell in its shared page, or wrote a direct descriptor
    /// there that the queue may take. A descriptor that must wait must not keep engines awake.
    pub(crate) fn poll_doorbell(&self) -> bool {
        let fetch = self.page.reg(CqReg::FetchStart);
        let rung =
            fetch.load(std::sync::atomic::Ordering::Relaxed) != 0 && fetch.swap(0, SeqCst) != 0;
        rung || (self.page.load(DIRECT[0]) != self.blank
            && self.may_fetch()
            && self.direct_in_page().is_some())
    }

    /// Reads a register of the user page that came through the BAR.
    pub(crate) fn read_page(&self, reg: CqReg) -> u64 {
        if DIRECT.contains(&reg) || reg == CqReg::FetchStart {
            return 0;
        }
        self.page.load(reg)
    }

    /// Keeps the data of a WRITE_PIGGYBACK_BUFFER.
    pub(crate) fn write_piggyback(&self, data: [u64; 3]) {
        for (reg, word) in PIGGYBACK.into_iter().zip(data) {
            self.page.store(reg, word);
        }
    }

    /// The data of the last WRITE_PIGGYBACK_BUFFER or write to the registers.
    pub(crate) fn piggyback(&self) -> [u64; 3] {
        PIGGYBACK.map(|reg| self.page.load(reg))
    }

    /// The word in which the driver requests interrupts.
    pub(crate) fn arm(&self) -> Arm {
        Arm(self.plain(CqsReg::InterruptArmIpa))
    }

    /// Returns true if a queue entry with this source_type keeps a place for a direct descriptor.
    pub(crate) fn is_placeholder(source: u8) -> bool {
        source == source_type::DIRECT
    }
}
