//! Completions and notices: the transmit complete queue (TCQ), the message receive queue
//! (MRQ), and the table of outstanding commands that they depend on.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use tofu_abi::StagOffset;
use tofu_abi::desc::{Header1, Header2};
use tofu_abi::irq::cqs;
use tofu_abi::queue::{
    MRQ_ENTRY_SIZE, MrqEntry, MrqId, MrqWord0, MrqWord1, RingIndex, TCQ_ENTRY_SIZE, TcqEntry,
};
use tofu_abi::regs::{CqReg, MRQ_MASK_DISCARD};
use tofu_abi::{Coords, Path, Rcode};

use crate::memory::DmaMemory;
use crate::page::Page;
use crate::tlp::Answer;

/// Commands of one queue that may be outstanding at a time.
pub(crate) const WINDOW: usize = 64;
/// Notices of one queue that may wait for local completions.
const MAX_DEFERRED: usize = 4096;
/// TCQ and MRQ entries that make a cache line of 256 bytes: as many are held back at most.
const TCQ_LINE: usize = 256 / TCQ_ENTRY_SIZE;
const MRQ_LINE: usize = 256 / MRQ_ENTRY_SIZE;

/// Which kind of command is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    Get,
    Armw,
    /// A raw or system packet. Its command has a TCQ entry but no notice.
    Frame,
}

impl Kind {
    const fn last_id(self) -> MrqId {
        match self {
            Self::Put | Self::Frame => MrqId::PutLast,
            Self::Get => MrqId::GetLast,
            Self::Armw => MrqId::Armw,
        }
    }

    const fn id(self) -> MrqId {
        match self {
            Self::Put | Self::Frame => MrqId::Put,
            Self::Get => MrqId::Get,
            Self::Armw => MrqId::Armw,
        }
    }

    const fn last_error_id(self) -> MrqId {
        match self {
            Self::Put | Self::Frame => MrqId::PutLastRemoteError,
            Self::Get => MrqId::GetLastRemoteError,
            Self::Armw => MrqId::ArmwRemoteError,
        }
    }

    const fn error_id(self) -> MrqId {
        match self {
            Self::Put | Self::Frame => MrqId::PutRemoteError,
            Self::Get => MrqId::GetRemoteError,
            Self::Armw => MrqId::ArmwRemoteError,
        }
    }
}

/// A place in the transmit order queue, which names a place in the transmit complete queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) index: u32,
    pub(crate) flip: bool,
}

/// A command whose answers have not all come yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outstanding {
    pub(crate) kind: Kind,
    pub(crate) slot: Slot,
    pub(crate) header1: Header1,
    pub(crate) header2: Header2,
    pub(crate) remote: StagOffset,
    pub(crate) local: StagOffset,
    /// Bytes of the message.
    pub(crate) length: u32,
    /// Payload bytes of one TLP at most.
    pub(crate) mtu: u32,
    /// Bytes whose answers have not come yet, or 1 for a message without data.
    pub(crate) unanswered: u32,
    /// The first error.
    pub(crate) rcode: Rcode,
    /// When the command is given up unless an answer comes, in nanoseconds.
    pub(crate) deadline_ns: u64,
    /// Order in which the commands were started; set by [`Completions::start`].
    pub(crate) sequence: u64,
}

/// What the queue's registers say about the writing of notices, read when one is written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policy {
    pub(crate) mrq_mask: u64,
    pub(crate) tcq_hold_ns: u64,
    pub(crate) mrq_hold_ns: u64,
    pub(crate) interrupt_hold_ns: u64,
    pub(crate) interrupt_count: u64,
    pub(crate) interrupt_mask: u64,
}

/// Where notices go: memory, the page with FULL_POINTER and the counters, and the time.
pub(crate) struct Writer<'a> {
    pub(crate) memory: &'a dyn DmaMemory,
    pub(crate) page: &'a Page,
    pub(crate) policy: Policy,
    pub(crate) now_ns: u64,
    /// Whether bus mastering is on; without it nothing is written. Looked at only while the
    /// queue's completions are locked, for whoever turns it off to wait for that lock.
    pub(crate) dma: &'a AtomicBool,
    /// Interrupt requests to raise when the lock on the queue is released.
    pub(crate) requests: u64,
}

/// The other end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) node: Coords,
    pub(crate) tni: u8,
}

impl Outstanding {
    /// What tells it from other commands with the same place.
    pub(crate) const fn generation(&self) -> u32 {
        self.sequence as u32
    }

    /// Whether an answer can be one to this command: it is of the right kind, comes from whom
    /// the command went to, and is about a part of its message.
    pub(crate) fn expects(&self, from: Peer, kind: Kind, answer: &Answer) -> bool {
        let peer = Peer { node: self.header1.target(), tni: self.header1.ri() };
        let end = answer.position.checked_add(answer.length);
        self.kind == kind
            && peer == from
            && end.is_some_and(|end| end <= self.length)
            && answer.done <= answer.length
    }
}

/// Completion state of an enabled queue.
#[derive(Debug)]
pub(crate) struct Completions {
    tcq_ipa: u64,
    mrq_ipa: u64,
    mrq: RingIndex,
    window: Vec<Option<Outstanding>>,
    free: Vec<u16>,
    next_sequence: u64,
    /// Notices for commands of other queues that wait until all commands of this queue
    /// that were started before them are complete, with the sequence number to wait for.
    deferred: VecDeque<(u64, MrqEntry)>,
    held_tcq: Vec<(u32, TcqEntry)>,
    held_tcq_until: u64,
    held_mrq: VecDeque<MrqEntry>,
    held_mrq_until: u64,
    unsignalled: u64,
    signal_at: u64,
}

impl Completions {
    /// The queue's first command gets the sequence number `first_sequence`. It must be higher
    /// than any of the queue's former lives, so that late answers to those find nothing.
    pub(crate) fn new(tcq_ipa: u64, mrq_ipa: u64, mrq_entries: u32, first_sequence: u64) -> Self {
        Self {
            tcq_ipa,
            mrq_ipa,
            mrq: RingIndex::new(mrq_entries),
            window: Vec::new(),
            free: Vec::new(),
            next_sequence: first_sequence,
            deferred: VecDeque::new(),
            held_tcq: Vec::new(),
            held_tcq_until: u64::MAX,
            held_mrq: VecDeque::new(),
            held_mrq_until: u64::MAX,
            unsignalled: 0,
            signal_at: u64::MAX,
        }
    }

    /// Whether another command can be started.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.window.len() < WINDOW
    }

    /// The sequence number of the next command.
    pub(crate) const fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Whether any command is outstanding.
    pub(crate) fn busy(&self) -> bool {
        self.free.len() < self.window.len()
    }

    /// Notes a command as started and returns its place and generation.
    pub(crate) fn start(&mut self, mut command: Outstanding) -> Option<(u16, u32)> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.window.len() < WINDOW => {
                self.window.push(None);
                (self.window.len() - 1) as u16
            }
            None => return None,
        };
        command.sequence = self.next_sequence;
        self.next_sequence += 1;
        self.window[usize::from(index)] = Some(command);
        Some((index, command.generation()))
    }

    /// The outstanding command that an answer belongs to, if it is still awaited.
    pub(crate) fn find(&mut self, index: u16, generation: u32) -> Option<&mut Outstanding> {
        self.window
            .get_mut(usize::from(index))?
            .as_mut()
            .filter(|command| command.generation() == generation)
    }

    /// Ends an outstanding command: its TCQ entry, its MRQ notice, and then whatever notices
    /// of others waited for it.
    pub(crate) fn finish(&mut self, index: u16, rcode: Rcode, old_value: u64, w: &mut Writer<'_>) {
        let Some(command) = self.window.get_mut(usize::from(index)).and_then(|place| place.take())
        else {
            return;
        };
        self.free.push(index);
        self.complete(command.slot, rcode, command.length, command.header1.interrupt(), w);
        if command.kind == Kind::Frame {
            self.release_deferred(w);
            return;
        }
        let id =
            if rcode.is_success() { command.kind.last_id() } else { command.kind.last_error_id() };
        let advance = if rcode.is_success() { command.length } else { 0 };
        let tail = last_tlp(command.length, command.mtu);
        let mut entry = initiator_notice(&command, id, rcode, advance, tail);
        if command.kind == Kind::Armw && rcode.is_success() {
            entry.0[2] = old_value;
        }
        self.notice(entry, w);
        self.release_deferred(w);
    }

    /// Notices of the initiator for single TLPs, which the packet-response flag asks for:
    /// those of the answered range that are not the last of their message.
    pub(crate) fn packet_notices(
        &mut self,
        index: u16,
        position: u32,
        done: u32,
        rcode: Rcode,
        w: &mut Writer<'_>,
    ) {
        let Some(Some(command)) = self.window.get(usize::from(index)).copied() else {
            return;
        };
        let mut at = position;
        let end = position + done;
        while at < end {
            let n = command.mtu.min(end - at);
            at += n;
            if at < command.length {
                self.notice(
                    initiator_notice(&command, command.kind.id(), Rcode::SUCCESS, at, n),
                    w,
                );
            }
        }
        // After an error the TLP at fault has a notice of its own, unless it is the last one.
        if !rcode.is_success() && end + command.mtu < command.length {
            let id = command.kind.error_id();
            self.notice(initiator_notice(&command, id, rcode, end, command.mtu), w);
        }
    }

    /// A notice for a command of another queue.
    ///
    /// It must not overtake the completion of a command that may have caused it, so it waits
    /// for all commands of this queue that are outstanding now.
    pub(crate) fn remote_notice(&mut self, entry: MrqEntry, w: &mut Writer<'_>) {
        if !self.busy() && self.deferred.is_empty() {
            self.notice(entry, w);
            return;
        }
        // Too many: the oldest one has waited long enough. Notices stay in order.
        if self.deferred.len() >= MAX_DEFERRED
            && let Some((_, oldest)) = self.deferred.pop_front()
        {
            self.notice(oldest, w);
        }
        self.deferred.push_back((self.next_sequence, entry));
    }

    fn release_deferred(&mut self, w: &mut Writer<'_>) {
        if self.deferred.is_empty() {
            return;
        }
        let oldest =
            self.window.iter().flatten().map(|command| command.sequence).min().unwrap_or(u64::MAX);
        while let Some((barrier, entry)) = self.deferred.front().copied()
            && barrier <= oldest
        {
            self.deferred.pop_front();
            self.notice(entry, w);
        }
    }

    /// Writes a transmit complete entry.
    pub(crate) fn complete(
        &mut self,
        slot: Slot,
        rcode: Rcode,
        length: u32,
        interrupt: bool,
        w: &mut Writer<'_>,
    ) {
        let entry = TcqEntry(0).with_flip(slot.flip).with_rcode(rcode).with_length(length);
        self.held_tcq.push((slot.index, entry));
        if interrupt {
            w.requests |= cqs::TCQ_WRITE_ACKNOWLEDGE;
        }
        if w.policy.tcq_hold_ns == 0 || interrupt || self.held_tcq.len() >= TCQ_LINE {
            self.flush_tcq(w);
        } else if self.held_tcq_until == u64::MAX {
            self.held_tcq_until = w.now_ns.saturating_add(w.policy.tcq_hold_ns);
        }
    }

    fn flush_tcq(&mut self, w: &mut Writer<'_>) {
        self.held_tcq_until = u64::MAX;
        if !w.dma.load(SeqCst) {
            return;
        }
        for (slot, entry) in self.held_tcq.drain(..) {
            let at = self.tcq_ipa.wrapping_add(u64::from(slot) * TCQ_ENTRY_SIZE as u64);
            match w.memory.store(at, entry.0) {
                Ok(()) => w.page.add(CqReg::TcqNumNotice, 1),
                Err(_) => w.requests |= cqs::TCQ_WRITE_EXCEPTION,
            }
        }
    }

    /// Puts a notice into the message receive queue.
    fn notice(&mut self, entry: MrqEntry, w: &mut Writer<'_>) {
        if w.policy.mrq_mask & MRQ_MASK_DISCARD != 0 {
            return;
        }
        // What completed before must be seen before.
        self.flush_tcq(w);
        self.held_mrq.push_back(entry);
        if w.policy.mrq_hold_ns == 0 || self.held_mrq.len() >= MRQ_LINE {
            self.flush_mrq(w);
        } else if self.held_mrq_until == u64::MAX {
            self.held_mrq_until = w.now_ns.saturating_add(w.policy.mrq_hold_ns);
        }
    }

    fn flush_mrq(&mut self, w: &mut Writer<'_>) {
        self.held_mrq_until = u64::MAX;
        if !w.dma.load(SeqCst) {
            if self.held_mrq.len() > MAX_DEFERRED {
                self.held_mrq.pop_back();
                w.requests |= cqs::MRQ_OVERFLOW;
            }
            return;
        }
        while let Some(entry) = self.held_mrq.pop_front() {
            let entries = u64::from(self.mrq.entries());
            let consumed = w.page.load(CqReg::MrqFullPointer);
            let waiting = self.mrq.count().wrapping_sub(consumed) & (2 * entries - 1);
            if waiting >= entries {
                w.requests |= cqs::MRQ_OVERFLOW;
                continue;
            }
            let at = self.mrq_ipa.wrapping_add(u64::from(self.mrq.slot()) * MRQ_ENTRY_SIZE as u64);
            let word0 = MrqWord0(entry.0[0]).with_flip(self.mrq.flip());
            // Its first word has the flip bit: an entry is never valid before it is whole.
            let written = w.memory.store_entry(at, [word0.0, entry.0[1], entry.0[2], entry.0[3]]);
            if written.is_err() {
                w.requests |= cqs::MRQ_WRITE_EXCEPTION;
                continue;
            }
            self.mrq.advance();
            w.page.add(CqReg::MrqNumNotice, 1);
            if w.policy.interrupt_mask >> word0.id() & 1 == 0 {
                self.signal(w);
            }
        }
    }

    /// Requests the interrupt of a notice, now or when enough others have come.
    fn signal(&mut self, w: &mut Writer<'_>) {
        self.unsignalled += 1;
        let by_count = w.policy.interrupt_count > 1;
        let by_time = w.policy.interrupt_hold_ns > 0;
        if (!by_count && !by_time) || (by_count && self.unsignalled >= w.policy.interrupt_count) {
            self.raise(w);
        } else if by_time && self.signal_at == u64::MAX {
            self.signal_at = w.now_ns.saturating_add(w.policy.interrupt_hold_ns);
        }
    }

    fn raise(&mut self, w: &mut Writer<'_>) {
        self.unsignalled = 0;
        self.signal_at = u64::MAX;
        w.requests |= cqs::MRQ_WRITE_ACKNOWLEDGE;
    }

    /// Writes what was held back.
    pub(crate) fn flush(&mut self, w: &mut Writer<'_>) {
        self.flush_tcq(w);
        self.flush_mrq(w);
    }

    /// Does what is due by now, and gives up commands whose answers are overdue.
    pub(crate) fn expire(&mut self, w: &mut Writer<'_>) {
        if self.held_tcq_until <= w.now_ns {
            self.flush_tcq(w);
        }
        if self.held_mrq_until <= w.now_ns {
            self.flush_mrq(w);
        }
        if self.signal_at <= w.now_ns {
            self.raise(w);
        }
        for index in 0..self.window.len() {
            if self.window[index].is_some_and(|command| command.deadline_ns <= w.now_ns) {
                self.finish(index as u16, Rcode::TIMEOUT, 0, w);
            }
        }
    }

    /// When something held back is due, in nanoseconds.
    pub(crate) fn held_until(&self) -> u64 {
        self.held_tcq_until.min(self.held_mrq_until).min(self.signal_at)
    }

    /// When [`Completions::expire`] is due next, in nanoseconds.
    pub(crate) fn next_deadline(&self) -> u64 {
        let commands = self.window.iter().flatten().map(|command| command.deadline_ns);
        commands.fold(self.held_until(), u64::min)
    }
}

/// Payload bytes of the last TLP of a message.
fn last_tlp(length: u32, mtu: u32) -> u32 {
    match length % mtu {
        0 => length.min(mtu),
        rest => rest,
    }
}

/// An entry for the initiator's own command, `advance` bytes into its message.
fn initiator_notice(
    command: &Outstanding,
    id: MrqId,
    rcode: Rcode,
    advance: u32,
    tlp: u32,
) -> MrqEntry {
    // The last error notice is not advanced; what it is about is the message's last TLP.
    let error_at = if id == command.kind.last_error_id() { command.length - tlp } else { advance };
    let advance = if command.kind == Kind::Armw { 0 } else { advance };
    let notice = Notice {
        id,
        rcode,
        peer: command.header1.target(),
        peer_tni: command.header1.ri(),
        path: command.header1.path(),
        edata: command.header2.edata(),
        // The TLP that the notice is for: behind it after a success, at it after an error.
        initial: if rcode.is_success() { advance <= tlp } else { error_at == 0 },
        length: tlp,
        local: command.local.advanced(u64::from(advance)),
        remote: command.remote.advanced(u64::from(advance)),
    };
    let mut entry = notice.entry();
    if command.kind == Kind::Armw {
        entry.0[1] = MrqWord1(entry.0[1]).with_length(0).with_op(command.header1.op()).0;
    }
    entry
}

/// The parts of an MRQ entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    pub(crate) id: MrqId,
    pub(crate) rcode: Rcode,
    pub(crate) peer: Coords,
    pub(crate) peer_tni: u8,
    pub(crate) path: Path,
    pub(crate) edata: u16,
    pub(crate) initial: bool,
    pub(crate) length: u32,
    pub(crate) local: StagOffset,
    pub(crate) remote: StagOffset,
}

impl Notice {
    pub(crate) fn entry(&self) -> MrqEntry {
        let word0 = MrqWord0(0)
            .with_id(self.id as u8)
            .with_rcode(self.rcode)
            .with_path(self.path)
            .with_coords(self.peer)
            .with_i(self.peer_tni);
        let word1 = MrqWord1(0)
            .with_initial(self.initial)
            .with_edata(self.edata)
            .with_length(self.length as u16);
        MrqEntry([word0.0, word1.0, self.local.0, self.remote.0])
    }
}
