//! Completions: the transmit complete queue (TCQ), the message receive queue (MRQ), and the table
//! of outstanding commands that they depend on.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use tofu_abi::Rcode;
use tofu_abi::irq::CqsIrqs;
use tofu_abi::queue::{MRQ_ENTRY_SIZE, MrqEntry, MrqWord0, RingIndex, TCQ_ENTRY_SIZE, TcqEntry};
use tofu_abi::regs::{CqReg, MRQ_MASK_DISCARD};
use tofu_inspect::inspect;
use tofu_rules::{Lane, Point, Rule, Rules};

use crate::away::Away;
use crate::coalesce::{Held, HeldInterrupt};
use crate::command::{CommandKind, Message};
use crate::memory::{DmaMemory, Reach};
use crate::notice::{NoticeEvent, Peer};
use crate::observe::format::{Code, Ring};
use crate::observe::rules::of_remote;
use crate::observe::tracing::Watch;
use crate::page::Page;
use crate::tlp::{Answer, Tag};

/// Commands of one queue that may be outstanding at a time.
pub(crate) const WINDOW: usize = 64;
/// The place of commands that their target carries out in place, in their tags: it is not in the
/// table.
pub(crate) const TRANSACTION: u16 = WINDOW as u16;
/// Notices of one queue that may wait for local completions, or for room.
const MAX_DEFERRED: usize = 4096;
/// Interval at which notices that wait for room are tried again, in nanoseconds.
const RETRY_NS: u64 = 50_000;

/// A place in the transmit order queue, which names a place in the transmit complete queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) index: u32,
    pub(crate) flip: bool,
}

inspect!(Slot { index, flip });

/// A command whose answers have not all come yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outstanding {
    pub(crate) message: Message,
    pub(crate) slot: Slot,
    /// Bytes whose answers have not come yet, or 1 for a message without data.
    unanswered: u32,
    /// The first error, which its notice reports.
    pub(crate) rcode: Rcode,
    /// The first error at this end, which its TCQ entry reports.
    local: Rcode,
    /// When the command is given up unless an answer comes, in nanoseconds.
    deadline_ns: u64,
    /// Order in which the commands were started.
    sequence: u64,
    /// Its TCQ entry is written, as its data has been sent.
    sent: bool,
}

inspect!(Outstanding {
    message as said,
    slot,
    unanswered,
    rcode as Code,
    local as Code,
    deadline_ns as time,
    sequence,
    sent,
});

/// The result of a part of a command, or of all of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) rcode: Rcode,
    /// The side of the fault, if it is one.
    pub(crate) at: Side,
    /// The value before the change that an atomic command has made.
    pub(crate) old_value: u64,
}

impl End {
    /// The end of a command, or of a part without an old value.
    pub(crate) const fn new(rcode: Rcode, at: Side) -> Self {
        Self { rcode, at, old_value: 0 }
    }
}

/// The side at which a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// At the initiator. The TCQ entry reports it, and so does the notice.
    Initiator,
    /// At the target or on the way there and back. The command was sent all the same, so the TCQ
    /// entry says success; the notice has the code.
    Elsewhere,
}

/// Commands that have failed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failures {
    /// Commands that the target has refused.
    pub(crate) refused: u64,
    /// Commands that have not reached the target, or have no answer.
    pub(crate) lost: u64,
    /// The last one that has failed, at either end.
    pub(crate) last: Option<Failed>,
}

/// A command that has failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failed {
    pub(crate) rcode: Rcode,
    pub(crate) message: Message,
    /// From its [`Tag`].
    pub(crate) index: u16,
    pub(crate) generation: u32,
}

/// The settings for notices in the queue's registers. A queue reads them when it is enabled and
/// when one of them is written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policy {
    pub(crate) mrq_mask: u64,
    pub(crate) tcq_hold_ns: u64,
    pub(crate) mrq_hold_ns: u64,
    pub(crate) interrupt_hold_ns: u64,
    pub(crate) interrupt_count: u64,
    pub(crate) interrupt_mask: u64,
    /// True if failed commands always request an interrupt.
    pub(crate) failures: bool,
    /// The time for which a full queue waits for a FULL_POINTER that may be on its way, in
    /// nanoseconds.
    pub(crate) patience_ns: u64,
}

/// The destination of notices: memory, the page with FULL_POINTER and the counters, and the time.
pub(crate) struct Writer<'a> {
    pub(crate) memory: &'a Reach,
    pub(crate) page: &'a Page,
    pub(crate) now_ns: u64,
    /// True if bus mastering is on; without it nothing is written. It is read only while the
    /// queue's completions are locked, so that code which turns bus mastering off can wait for that
    /// lock.
    pub(crate) dma: &'a AtomicBool,
    pub(crate) away: &'a Away,
    /// Interrupt requests to raise when the lock on the queue is released.
    pub(crate) requests: CqsIrqs,
    /// Commands have failed, to be counted then: [`Completions::take_failures`].
    pub(crate) failed: bool,
    /// When the first thing that this writer held back is due, in nanoseconds.
    pub(crate) held_until: u64,
    /// Learns of commands that end, if anybody does.
    pub(crate) trace: Option<Watch<'a>>,
    /// Counts of broken rules, and of those that the queue's interface has kept.
    pub(crate) rules: &'a Rules,
    pub(crate) lane: &'a Lane,
}

impl Outstanding {
    /// Distinguishes it from other commands with the same place.
    pub(crate) const fn generation(&self) -> u32 {
        self.sequence as u32
    }

    /// Returns true if an answer can be one to this command: it is of the right kind, comes from
    /// the command's target, and is about a part of its message.
    pub(crate) fn expects(&self, from: Peer, kind: CommandKind, answer: &Answer) -> bool {
        let end = answer.position.checked_add(answer.length);
        self.message.kind == kind
            && self.message.peer() == from
            && end.is_some_and(|end| end <= self.message.length)
            && answer.done <= answer.length
    }

    /// Keeps the first errors.
    fn note(&mut self, end: &End) {
        if self.rcode.is_success() {
            self.rcode = end.rcode;
        }
        if self.local.is_success() && end.at == Side::Initiator {
            self.local = end.rcode;
        }
    }
}

impl Failures {
    /// Counts a command that has failed.
    #[cold]
    fn count(&mut self, index: u16, command: &Outstanding) {
        let Outstanding { message, rcode, local, .. } = *command;
        self.last = Some(Failed { rcode, message, index, generation: command.generation() });
        if !local.is_success() {
            return;
        }
        match rcode {
            Rcode::NO_SUCH_NODE | Rcode::NO_SUCH_PATH | Rcode::LINK_DOWN | Rcode::TIMEOUT => {
                self.lost += 1;
            }
            _ => self.refused += 1,
        }
    }
}

/// Writes an entry of the transmit complete queue.
fn write_tcq(tcq: u64, (slot, entry): (u32, TcqEntry), w: &mut Writer<'_>) {
    match w.memory.store(tcq.wrapping_add(u64::from(slot) * TCQ_ENTRY_SIZE as u64), entry.0) {
        Ok(()) => w.page.add(CqReg::TcqNumNotice, 1),
        Err(_) => w.requests |= CqsIrqs::TCQ_WRITE_EXCEPTION,
    }
}

/// Completion state of an enabled queue.
#[derive(Clone, Debug)]
pub(crate) struct Completions {
    tcq_ipa: u64,
    mrq_ipa: u64,
    mrq: RingIndex,
    policy: Policy,
    window: Vec<Option<Outstanding>>,
    free: Vec<u16>,
    next_sequence: u64,
    /// Notices for commands of other queues, each with a sequence number. A notice waits until all
    /// commands of this queue before that number are complete.
    deferred: VecDeque<(u64, MrqEntry)>,
    held_tcq: Held<(u32, TcqEntry)>,
    held_mrq: Held<MrqEntry>,
    /// The time at which the message receive queue was found full, in nanoseconds; `u64::MAX` if it
    /// has room.
    full_since_ns: u64,
    /// FULL_POINTER was ahead when it was looked at.
    is_ahead: bool,
    interrupt: HeldInterrupt,
    failures: Failures,
}

inspect!(Completions {
    tcq_ipa as hex,
    mrq_ipa as hex,
    mrq as Ring,
    policy as skip,
    window as sparse,
    free as len,
    next_sequence,
    deferred as len,
    held_tcq,
    held_mrq,
    full_since_ns as time,
    is_ahead,
    interrupt,
    failures as skip,
});

impl Completions {
    /// The queue's first command gets the sequence number `first_sequence`. It must be higher
    /// than any of the queue's former lives, so that late answers to those find nothing.
    pub(crate) fn new(
        [tcq_ipa, mrq_ipa]: [u64; 2],
        mrq_entries: u32,
        policy: Policy,
        first_sequence: u64,
    ) -> Self {
        Self {
            tcq_ipa,
            mrq_ipa,
            mrq: RingIndex::new(mrq_entries),
            policy,
            window: Vec::new(),
            free: Vec::new(),
            next_sequence: first_sequence,
            deferred: VecDeque::new(),
            held_tcq: Held::new(TCQ_ENTRY_SIZE),
            held_mrq: Held::new(MRQ_ENTRY_SIZE),
            full_since_ns: u64::MAX,
            is_ahead: false,
            interrupt: HeldInterrupt::NONE,
            failures: Failures::default(),
        }
    }

    /// Keeps to these settings from now on.
    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// The failures since the last call.
    pub(crate) fn take_failures(&mut self) -> Failures {
        std::mem::take(&mut self.failures)
    }

    /// Commands that can be started now.
    pub(crate) fn room(&self) -> usize {
        WINDOW - self.under_way()
    }

    /// The sequence number of the next command.
    pub(crate) const fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Commands that are outstanding.
    pub(crate) fn under_way(&self) -> usize {
        self.window.len() - self.free.len()
    }

    /// Returns true if any command is outstanding.
    pub(crate) fn busy(&self) -> bool {
        self.under_way() > 0
    }

    /// Records the command of a message as started, with the timeout `deadline_ns`. Returns its
    /// place and generation, or `None` if there is no room.
    pub(crate) fn start(
        &mut self,
        message: Message,
        slot: Slot,
        deadline_ns: u64,
    ) -> Option<(u16, u32)> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.window.len() < WINDOW => {
                self.window.push(None);
                (self.window.len() - 1) as u16
            }
            None => return None,
        };
        let command = Outstanding {
            message,
            slot,
            unanswered: message.length.max(1),
            rcode: Rcode::SUCCESS,
            local: Rcode::SUCCESS,
            deadline_ns,
            sequence: self.next_sequence,
            sent: false,
        };
        self.next_sequence += 1;
        self.window[usize::from(index)] = Some(command);
        Some((index, command.generation()))
    }

    /// The outstanding command with this tag, if it is still awaited.
    pub(crate) fn find(&mut self, tag: Tag) -> Option<&mut Outstanding> {
        self.window
            .get_mut(usize::from(tag.index))?
            .as_mut()
            .filter(|command| command.generation() == tag.generation)
    }

    /// Writes the TCQ entry of a command whose data has been read and sent, unless it has ended.
    /// Its notice comes with the answers.
    pub(crate) fn sent(&mut self, tag: Tag, w: &mut Writer<'_>) {
        let Some(command) = self.find(tag) else { return };
        if command.sent || !command.local.is_success() {
            return;
        }
        command.sent = true;
        let (slot, message) = (command.slot, command.message);
        self.complete(slot, Rcode::SUCCESS, message.length, message.header1.interrupt(), w);
    }

    /// Counts `n` bytes of a command as answered, and ends it if these were the last. Otherwise its
    /// deadline moves to `deadline_ns`. Returns whether it has ended.
    #[inline]
    pub(crate) fn account(
        &mut self,
        tag: Tag,
        n: u32,
        end: End,
        deadline_ns: u64,
        w: &mut Writer<'_>,
    ) -> bool {
        let Some(command) = self.find(tag) else {
            return false;
        };
        command.note(&end);
        command.unanswered = command.unanswered.saturating_sub(n);
        if command.unanswered > 0 {
            // It makes progress, so its timeout starts over.
            command.deadline_ns = deadline_ns;
            return false;
        }
        self.finish(tag.index, end.old_value, w);
        true
    }

    /// Ends an outstanding command: its TCQ entry, its MRQ notice, and then the notices of other
    /// queues that waited for it.
    ///
    /// The TCQ entry reports that the command was read, checked and sent. Raw and system packets
    /// have no notice, so their entry also reports the packet's fate.
    #[inline]
    fn finish(&mut self, index: u16, old_value: u64, w: &mut Writer<'_>) {
        let Some(place) = self.window.get_mut(usize::from(index)) else { return };
        let Some(command) = place.as_ref() else { return };
        // What is needed of it: all of it is large, and moved only if it has failed.
        let &Outstanding { ref message, slot, rcode, local, sent: told, .. } = command;
        let (kind, length, generation) = (message.kind, message.length, command.generation());
        let interrupt = message.header1.interrupt();
        let mut entry = message.last_notice(rcode);
        let frame = kind == CommandKind::Frame;
        let failed = if frame || rcode.is_success() { None } else { *place };
        *place = None;
        self.free.push(index);
        let sent = if frame { rcode } else { local };
        if !told {
            self.complete(slot, sent, length, interrupt, w);
        }
        if !rcode.is_success()
            && local.is_success()
            && let Some(rule) = of_remote(rcode)
        {
            w.rules.broke(rule);
        }
        if frame {
            w.lane.kept(Point::PacketSent);
        } else {
            if let Some(command) = &failed {
                self.failures.count(index, command);
                w.failed = true;
                w.lane.kept(Point::Failed);
            } else {
                w.lane.kept(Point::Ended);
                if kind == CommandKind::Armw {
                    entry.0[2] = old_value;
                }
            }
            self.notice(entry, w);
        }
        if let Some(watch) = w.trace {
            watch.ended((index, generation), rcode, sent);
        }
        self.release_deferred(w);
    }

    /// Ends a command that its target has carried out in place, as [`Completions::finish`] does.
    #[inline]
    pub(crate) fn end_transaction(&mut self, slot: Slot, message: &Message, w: &mut Writer<'_>) {
        let generation = self.next_sequence as u32;
        self.next_sequence += 1;
        w.away.end();
        self.complete(slot, Rcode::SUCCESS, message.length, message.header1.interrupt(), w);
        w.lane.kept(Point::Ended);
        self.notice(message.last_notice(Rcode::SUCCESS), w);
        if let Some(watch) = w.trace {
            watch.ended((TRANSACTION, generation), Rcode::SUCCESS, Rcode::SUCCESS);
        }
        self.release_deferred(w);
    }

    /// Writes the initiator's notices for single TLPs, which the packet-response flag requests: for
    /// all TLPs in the answered range except the last one of the message.
    pub(crate) fn packet_notices(
        &mut self,
        message: &Message,
        answer: &Answer,
        w: &mut Writer<'_>,
    ) {
        let mut at = answer.position;
        let end = answer.position + answer.done;
        while at < end {
            let n = message.mtu.min(end - at);
            at += n;
            if at < message.length {
                self.notice(message.notice(NoticeEvent::Tlp, Rcode::SUCCESS, at, n), w);
            }
        }
        // After an error the TLP at fault has a separate notice, unless it is the last one.
        if !answer.rcode.is_success() && end + message.mtu < message.length {
            self.notice(message.notice(NoticeEvent::TlpFailed, answer.rcode, end, message.mtu), w);
        }
    }

    /// A notice for a command of another queue.
    ///
    /// It must not overtake the completion of a command that may have caused it, so it waits
    /// for all commands of this queue that are outstanding now, or away.
    pub(crate) fn remote_notice(&mut self, entry: MrqEntry, w: &mut Writer<'_>) {
        if !self.busy() && !w.away.is_one() && self.deferred.is_empty() {
            self.notice(entry, w);
            return;
        }
        // Too many wait: the oldest one is written now, so that notices stay in order.
        if self.deferred.len() >= MAX_DEFERRED
            && let Some((_, oldest)) = self.deferred.pop_front()
        {
            self.notice(oldest, w);
        }
        self.deferred.push_back((self.next_sequence, entry));
    }

    #[inline(always)]
    fn release_deferred(&mut self, w: &mut Writer<'_>) {
        if !self.deferred.is_empty() && !w.away.is_one() {
            self.release_what_is_due(w);
        }
    }

    #[cold]
    fn release_what_is_due(&mut self, w: &mut Writer<'_>) {
        let oldest =
            self.window.iter().flatten().map(|command| command.sequence).min().unwrap_or(u64::MAX);
        while let Some((barrier, entry)) = self.deferred.front().copied()
            && barrier <= oldest
        {
            self.deferred.pop_front();
            self.notice(entry, w);
        }
    }

    /// Writes a transmit complete entry. `interrupt` is what the descriptor says.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        slot: Slot,
        rcode: Rcode,
        length: u32,
        interrupt: bool,
        w: &mut Writer<'_>,
    ) {
        let entry = TcqEntry(0).with_flip(slot.flip).with_rcode(rcode).with_length(length);
        let interrupt = interrupt || self.policy.failures && !rcode.is_success();
        if interrupt {
            w.requests |= CqsIrqs::TCQ_WRITE_ACKNOWLEDGE;
        }
        let hold_ns = if interrupt { 0 } else { self.policy.tcq_hold_ns };
        if hold_ns == 0 && self.held_tcq.len() == 0 && w.dma.load(SeqCst) {
            write_tcq(self.tcq_ipa, (slot.index, entry), w);
        } else {
            self.hold_tcq((slot.index, entry), hold_ns, w);
        }
    }

    /// Holds an entry of the transmit complete queue back for a time, in nanoseconds.
    #[cold]
    fn hold_tcq(&mut self, entry: (u32, TcqEntry), hold_ns: u64, w: &mut Writer<'_>) {
        if self.held_tcq.push(entry, hold_ns, w.now_ns) {
            self.flush_tcq(w);
        } else {
            w.held_until = w.held_until.min(self.held_tcq.until());
        }
    }

    #[inline]
    fn flush_tcq(&mut self, w: &mut Writer<'_>) {
        if self.held_tcq.len() > 0 {
            self.flush_held_tcq(w);
        }
    }

    #[cold]
    fn flush_held_tcq(&mut self, w: &mut Writer<'_>) {
        let held = self.held_tcq.release();
        if !w.dma.load(SeqCst) {
            return;
        }
        for held in held.drain(..) {
            write_tcq(self.tcq_ipa, held, w);
        }
    }

    /// Puts a notice into the message receive queue.
    #[inline]
    fn notice(&mut self, entry: MrqEntry, w: &mut Writer<'_>) {
        if self.policy.mrq_mask & (MRQ_MASK_DISCARD | 1 << entry.word0().id()) != 0 {
            return;
        }
        // Completions must become visible in order, so those that are held back go first.
        self.flush_tcq(w);
        let none_waits = self.held_mrq.len() == 0 && self.policy.mrq_hold_ns == 0;
        if !none_waits || !w.dma.load(SeqCst) || !self.write_notice(entry, w) {
            self.hold_notice(entry, w);
        }
    }

    #[cold]
    fn hold_notice(&mut self, entry: MrqEntry, w: &mut Writer<'_>) {
        if self.held_mrq.push(entry, self.policy.mrq_hold_ns, w.now_ns) {
            self.flush_mrq(w);
        } else {
            w.held_until = w.held_until.min(self.held_mrq.until());
        }
    }

    /// Writes the notices that were held back. Those for which there is no room yet wait; without
    /// bus mastering all do. Of more than [`MAX_DEFERRED`] the newest is lost.
    fn flush_mrq(&mut self, w: &mut Writer<'_>) {
        let dma = w.dma.load(SeqCst);
        let mut done = 0;
        while dma
            && let Some(&entry) = self.held_mrq.get(done)
            && self.write_notice(entry, w)
        {
            done += 1;
        }
        let held = self.held_mrq.release();
        held.drain(..done);
        if held.len() > MAX_DEFERRED {
            held.pop();
            w.requests |= CqsIrqs::MRQ_OVERFLOW;
        }
        if dma && !held.is_empty() {
            self.held_mrq.hold(w.now_ns.saturating_add(RETRY_NS));
            w.held_until = w.held_until.min(self.held_mrq.until());
        }
    }

    /// The rule that is broken if FULL_POINTER is ahead of what was written, unless it was ahead at
    /// the call before.
    pub(crate) fn has_run_ahead(&mut self, page: &Page) -> Option<Rule> {
        let waiting = self.mrq.unconsumed(page.load(CqReg::MrqFullPointer));
        let is_ahead = waiting > u64::from(self.mrq.entries());
        let before = std::mem::replace(&mut self.is_ahead, is_ahead);
        (is_ahead && !before).then_some(Rule::MrqWritten)
    }

    /// Writes a notice, or drops it if there has been no room for too long. Returns false if it
    /// must wait for room.
    #[inline]
    fn write_notice(&mut self, entry: MrqEntry, w: &mut Writer<'_>) -> bool {
        let entries = u64::from(self.mrq.entries());
        if self.mrq.unconsumed(w.page.load(CqReg::MrqFullPointer)) >= entries {
            if let Some(rule) = self.has_run_ahead(w.page) {
                w.rules.broke(rule);
            }
            self.full_since_ns = self.full_since_ns.min(w.now_ns);
            if w.now_ns - self.full_since_ns < self.policy.patience_ns {
                return false;
            }
            w.requests |= CqsIrqs::MRQ_OVERFLOW;
            return true;
        }
        self.full_since_ns = u64::MAX;
        let offset = u64::from(self.mrq.slot()) * MRQ_ENTRY_SIZE as u64;
        let word0 = MrqWord0(entry.0[0]).with_flip(self.mrq.flip());
        // Its first word has the flip bit: an entry is never valid before it is whole.
        let entry = [word0.0, entry.0[1], entry.0[2], entry.0[3]];
        let written = w.memory.store_entry(self.mrq_ipa.wrapping_add(offset), entry);
        if written.is_err() {
            w.requests |= CqsIrqs::MRQ_WRITE_EXCEPTION;
            return true;
        }
        self.mrq.advance();
        w.lane.kept(Point::Notice);
        w.page.add(CqReg::MrqNumNotice, 1);
        if self.policy.interrupt_mask >> word0.id() & 1 != 0 {
            return true;
        }
        let Policy { interrupt_count, interrupt_hold_ns, .. } = self.policy;
        if self.interrupt.add(1, interrupt_count, interrupt_hold_ns, w.now_ns) {
            w.requests |= CqsIrqs::MRQ_WRITE_ACKNOWLEDGE;
        } else {
            w.held_until = w.held_until.min(self.interrupt.until());
        }
        true
    }

    /// Writes what was held back.
    pub(crate) fn flush(&mut self, w: &mut Writer<'_>) {
        self.flush_tcq(w);
        self.flush_mrq(w);
    }

    /// Writes entries that are due by now, and ends commands whose answers have timed out.
    pub(crate) fn expire(&mut self, w: &mut Writer<'_>) {
        if self.held_tcq.until() <= w.now_ns {
            self.flush_tcq(w);
        }
        if self.held_mrq.until() <= w.now_ns {
            self.flush_mrq(w);
        }
        if self.interrupt.expire(w.now_ns) {
            w.requests |= CqsIrqs::MRQ_WRITE_ACKNOWLEDGE;
        }
        for index in 0..self.window.len() {
            let overdue = |command: &&mut Outstanding| command.deadline_ns <= w.now_ns;
            if let Some(command) = self.window[index].as_mut().filter(overdue) {
                command.note(&End::new(Rcode::TIMEOUT, Side::Elsewhere));
                self.finish(index as u16, 0, w);
            }
        }
    }

    /// When something that is held back is due, in nanoseconds.
    pub(crate) fn held_due(&self) -> u64 {
        self.held_tcq.until().min(self.held_mrq.until()).min(self.interrupt.until())
    }

    /// When the first command is to be given up, in nanoseconds; `u64::MAX` if there is none.
    pub(crate) fn commands_due(&self) -> u64 {
        let commands = self.window.iter().flatten().map(|command| command.deadline_ns);
        commands.min().unwrap_or(u64::MAX)
    }
}
