//! A control queue and the VCQs that share it.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use tofu_abi::{Coords, Rcode};

use crate::command::Command;
use crate::error::{Code, Error};
use crate::half::{self, Half};
use crate::ids::{Stadd, VcqId, reserved_stag};
use crate::notice::{Entry, Notice, tcq_code};
use crate::provider::{Queue, Registration};
use crate::rest::{EmptyPolls, RestAfter};
use crate::split::{Cut, Split, Tail};
use crate::stag::{Memory, Stags};
use crate::wait::Bell;
use crate::wire::Mark;

/// The number of extra values, and so the most VCQs of a queue.
pub(crate) const NUM_EXTRA: usize = 16;
/// The most notices that wait in the library for a VCQ that does not poll: as many as the largest
/// queue of real systems holds. Any more are lost, as when that queue overflows.
const MAX_WAITING: usize = 1 << 17;

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The value that the command was posted with.
    pub cbdata: usize,
    /// The result, see [`Rcode`](tofu_abi::Rcode).
    pub rcode: Rcode,
}

impl Completion {
    /// Returns the return code for it.
    pub fn status(&self) -> Code {
        tcq_code(self.rcode)
    }
}

/// The data kept of a command until its completion is taken.
#[derive(Clone, Copy, Debug)]
struct Posted {
    cbdata: usize,
    extra: u8,
    /// True if the completion is to be reported.
    told: bool,
    /// True if it is a part of a Put, which only the library knows.
    part: bool,
}

/// A command that waits until the parts of the Put before it have arrived.
#[derive(Clone, Copy, Debug)]
struct Held {
    extra: u8,
    command: Command,
    cbdata: usize,
    /// The node that sends it, if it may be sent in parts as well.
    long_from: Option<Coords>,
}

/// The part of a VCQ that its queue handles.
#[derive(Debug)]
struct Vcq {
    serial: u32,
    completions: VecDeque<Completion>,
    notices: VecDeque<Notice>,
    /// Notices that were lost because of a full queue.
    lost: u64,
    /// Wakes threads that wait for it, once there have been any.
    bell: Option<Arc<Bell>>,
    /// The number of those that are in a call.
    sleepers: u32,
    /// True if the program has found nothing, and waits by the bell's descriptor.
    watched: bool,
    /// Polls that found nothing, and how many completions of the queue had been taken then.
    empty: EmptyPolls,
    reaped: usize,
}

impl Vcq {
    /// Wakes threads that wait for the VCQ, because one of its lists has an entry.
    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

/// An open control queue with its VCQs.
pub(crate) struct OpenState<Q> {
    // Before the memory that it has registered, so that it is closed first.
    queue: Q,
    /// The process's half of the queue, if another one has the rest.
    half: Option<Half>,
    vcqs: [Option<Vcq>; NUM_EXTRA],
    pub(crate) exclusive: bool,
    /// The device has lost the queue.
    is_lost: bool,
    posted: Vec<Posted>,
    post: usize,
    reap: usize,
    /// Completions in the VCQs' lists. Each keeps its slot of the transmit order queue.
    waiting: usize,
    stags: Stags,
    /// Commands posted since the message receive queue was last found empty.
    unseen: usize,
    /// For each value of the lower three bits of a target's extra value: bit 0 is set if commands
    /// were sent to a target without component ID, and bit 1 if to one with it. Bits 2 and 3 say
    /// which came first.
    classes: [u8; 8],
    /// Commands to such targets since both kinds exist, until their notices arrive, which have only
    /// the lower three bits.
    ambiguous: VecDeque<Ambiguous>,
    /// True if commands start as the session advances. The library must not add its own commands
    /// then.
    session: bool,
    /// A Put whose parts are on their way, the VCQ that posted it, and the value that it was posted
    /// with.
    split: Option<(Split, u8, usize)>,
    /// The number of Puts that were sent in parts.
    splits: u8,
    /// Ends of Puts sent in parts whose local notices have not arrived.
    tails: VecDeque<Tail>,
    /// Commands posted after the Put in `split`.
    held: VecDeque<Held>,
    /// The number of their descriptors.
    held_slots: usize,
    /// Nodes for which a part of a split Put was lost. Puts to them are no longer split.
    whole_only: BTreeSet<Coords>,
}

/// The key of a command's notice.
#[derive(Clone, Copy, Debug)]
struct Ambiguous {
    /// Node, interface, control queue and whole extra value.
    to: VcqId,
    user: u8,
    /// The start and end of the remote memory.
    remote: [u64; 2],
}

impl<Q: Queue> OpenState<Q> {
    pub(crate) fn new(queue: Q, half: Option<Half>, exclusive: bool, session: bool) -> Self {
        let none = Posted { cbdata: 0, extra: 0, told: false, part: false };
        let posted = vec![none; queue.orders().next_power_of_two()];
        Self {
            queue,
            half,
            vcqs: [const { None }; NUM_EXTRA],
            exclusive,
            is_lost: false,
            posted,
            post: 0,
            reap: 0,
            waiting: 0,
            stags: Stags::of(half::normal_stags(half)),
            unseen: 0,
            classes: [0; 8],
            ambiguous: VecDeque::new(),
            session,
            split: None,
            splits: 0,
            tails: VecDeque::new(),
            held: VecDeque::new(),
            held_slots: 0,
            whole_only: BTreeSet::new(),
        }
    }

    /// Checks that the device still has the queue, as far as is known.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_lost { Err(lost()) } else { Ok(()) }
    }

    /// Returns what a poll has found, unless it will never find anything.
    #[inline]
    pub(crate) fn polled<T>(&mut self, found: Option<T>) -> Result<Option<T>, Error> {
        if found.is_none() {
            self.is_lost |= self.queue.is_lost();
            self.check()?;
        }
        Ok(found)
    }

    /// Notes the result of a poll of a VCQ. If the thread should sleep, returns how long such polls
    /// have found nothing. Completions that were not requested count as found: a program may poll
    /// because the queue was full.
    #[inline]
    pub(crate) fn idle(&mut self, extra: u8, found: bool, after: &RestAfter) -> Option<Duration> {
        let vcq = self.vcqs[usize::from(extra)].as_mut()?;
        if found || vcq.reaped != self.reap {
            vcq.reaped = self.reap;
            vcq.empty.found();
            return None;
        }
        vcq.empty.add(after)
    }

    fn settle(&mut self) {
        if self.vcqs.iter().flatten().all(|vcq| vcq.sleepers == 0 && !vcq.watched) {
            self.queue.ask_no_more();
        }
    }

    /// Returns whether no VCQ is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.vcqs.iter().all(Option::is_none)
    }

    /// Returns the lowest extra value that is free for a VCQ without component ID.
    pub(crate) fn free_extra(&self) -> Option<u8> {
        let mark = self.split.as_ref().map(|(split, ..)| split.mark.sender);
        (0..8).find(|extra| self.is_own(*extra) && !self.has(*extra) && mark != Some(*extra))
    }

    /// Returns whether VCQs of this process may have an extra value.
    pub(crate) fn is_own(&self, extra: u8) -> bool {
        self.half.is_none_or(|half| half == Half::of_extra(extra))
    }

    pub(crate) fn has(&self, extra: u8) -> bool {
        self.vcqs[usize::from(extra)].is_some()
    }

    /// Returns whether the VCQ is that of a ticket.
    #[inline]
    pub(crate) fn is(&self, extra: u8, serial: u32) -> bool {
        self.vcqs[usize::from(extra)].as_ref().is_some_and(|vcq| vcq.serial == serial)
    }

    pub(crate) fn add(&mut self, extra: u8, serial: u32) {
        let (completions, notices) = (VecDeque::new(), VecDeque::new());
        self.vcqs[usize::from(extra)] = Some(Vcq {
            serial,
            completions,
            notices,
            lost: 0,
            bell: None,
            sleepers: 0,
            watched: false,
            empty: EmptyPolls::default(),
            reaped: 0,
        });
    }

    /// Removes a VCQ, with everything that it has registered, its completions and its notices.
    pub(crate) fn remove(&mut self, extra: u8) -> Result<(), Error> {
        let mut result = Ok(());
        while let Some(stag) = self.stags.any_of(extra) {
            self.stags.forget(stag);
            result = result.and(self.queue.deregister(stag));
        }
        for at in self.reap..self.post {
            let mask = self.posted.len() - 1;
            let posted = &mut self.posted[at & mask];
            posted.told &= posted.extra != extra;
        }
        if let Some(vcq) = self.vcqs[usize::from(extra)].take() {
            self.waiting -= vcq.completions.len();
            // Wakes sleeping threads, which then find that it is gone.
            vcq.ring();
            self.settle();
        }
        result
    }

    fn room(&self) -> usize {
        // A place is reserved for the end of a Put whose parts are on their way.
        let taken = self.waiting + self.held_slots + usize::from(self.split.is_some());
        self.queue.free_slots().saturating_sub(taken)
    }

    /// Posts commands with `slots` descriptors in total, either all of them or none.
    #[inline]
    pub(crate) fn post(
        &mut self,
        extra: u8,
        slots: usize,
        commands: impl Iterator<Item = Command>,
        cbdata: usize,
    ) -> Result<(), Error> {
        self.check()?;
        if self.split.is_some() {
            self.progress();
        }
        if self.room() < slots {
            self.make_room(slots)?;
        }
        if self.split.is_some() {
            for command in commands {
                self.hold(Held { extra, command, cbdata, long_from: None });
            }
            return Ok(());
        }
        let mut ring = false;
        for command in commands {
            ring |= !command.is_delayed();
            self.post_one(extra, command, cbdata)?;
        }
        if ring {
            self.queue.ring();
        }
        self.look_for_notices();
        Ok(())
    }

    /// Posts a long Put from a node, in parts if possible.
    #[cold]
    pub(crate) fn post_long(
        &mut self,
        extra: u8,
        command: &Command,
        cbdata: usize,
        from: Coords,
    ) -> Result<(), Error> {
        self.check()?;
        self.progress();
        if self.room() == 0 {
            self.make_room(1)?;
        }
        let held = Held { extra, command: *command, cbdata, long_from: Some(from) };
        if self.split.is_some() {
            self.hold(held);
            return Ok(());
        }
        self.start(held)
    }

    /// Posts a command for whose descriptors there is room.
    #[inline(always)]
    fn post_one(&mut self, extra: u8, mut command: Command, cbdata: usize) -> Result<(), Error> {
        let (delayed, told) = (command.is_delayed(), command.tcq_notice());
        if let Some(target) = command.target() {
            let class = &mut self.classes[usize::from(target & 7)];
            let bit = 1 << (target >> 3);
            *class |= if *class == 0 { bit | bit << 2 } else { bit };
            if *class & 3 == 3 {
                self.remember(&command);
            }
        }
        if self.queue.post(command.finish(extra), delayed).is_err() {
            return Err(busy());
        }
        self.note(Posted { cbdata, extra, told, part: false });
        Ok(())
    }

    #[inline(always)]
    fn note(&mut self, posted: Posted) {
        let mask = self.posted.len() - 1;
        self.posted[self.post & mask] = posted;
        self.post = self.post.wrapping_add(1);
        self.unseen += 1;
    }

    /// Reads notices occasionally: the device writes one for each command, wanted or not, even for
    /// programs that never poll for them.
    #[inline(always)]
    fn look_for_notices(&mut self) {
        if self.unseen > self.queue.notices() / 4 {
            self.sort_notices();
        }
    }

    fn hold(&mut self, held: Held) {
        self.held_slots += held.command.prepared().len();
        self.held.push_back(held);
    }

    /// Posts a command for which there is room, in parts if it may be split and there is room for
    /// them.
    fn start(&mut self, held: Held) -> Result<(), Error> {
        let Held { extra, command, cbdata, long_from } = held;
        if let Some((cut, mark)) = long_from.and_then(|from| self.cut(&command, from)) {
            for part in cut.parts(mark) {
                if self.queue.post(&[part], false).is_err() {
                    return Err(busy());
                }
                self.note(Posted { cbdata: 0, extra, told: false, part: true });
            }
            self.split = Some((Split::new(cut, mark), extra, cbdata));
            self.queue.ring();
        } else {
            self.post_one(extra, command, cbdata)?;
            if !command.is_delayed() {
                self.queue.ring();
            }
        }
        self.look_for_notices();
        Ok(())
    }

    /// Returns how to split a long Put, if it must be split.
    fn cut(&mut self, command: &Command, from: Coords) -> Option<(Cut, Mark)> {
        if self.session || self.whole_only.contains(&command.header1().target()) {
            return None;
        }
        let sender = (0..8).rev().find(|extra| self.is_own(*extra) && !self.has(*extra))?;
        // There must be room for the notices of all parts, and a place for the end.
        let most = self.room().saturating_sub(1).min(self.queue.notices() / 8);
        let cut = Cut::new(command, from, most)?;
        self.splits = self.splits.wrapping_add(1);
        Some((cut, Mark { sender, number: self.splits }))
    }

    /// Advances a Put in parts, and posts commands that were held after it.
    #[cold]
    pub(crate) fn progress(&mut self) {
        while self.split.is_some() {
            self.sort_completions();
            self.sort_notices();
            let Some((split, extra, cbdata)) = &mut self.split else { return };
            let (extra, cbdata) = (*extra, *cbdata);
            let Some((next, tail)) = split.next() else { return };
            let target = split.target();
            self.split = None;
            match tail {
                Some(tail) if next.local_notice() => {
                    // Ends whose notices were lost are dropped eventually.
                    if self.tails.len() >= self.posted.len() {
                        self.tails.pop_front();
                    }
                    self.tails.push_back(tail);
                }
                Some(_) => {}
                None => {
                    self.whole_only.insert(target);
                }
            }
            // There is room for all of these.
            let mut held = Some(Held { extra, command: next, cbdata, long_from: None });
            while let Some(next) = held {
                if self.start(next).is_err() || self.split.is_some() {
                    break;
                }
                held = self.held.pop_front();
                if let Some(next) = &held {
                    self.held_slots -= next.command.prepared().len();
                }
            }
        }
    }

    /// Handles a notice of the end of a Put in parts, if it is one.
    #[cold]
    fn pass_tail(&mut self, entry: &mut Entry) {
        if entry.wanted && entry.notice.kind.is_local() {
            let found = self.tails.iter().position(|tail| tail.takes(&mut entry.notice));
            found.and_then(|at| self.tails.remove(at));
        }
    }

    /// Returns whether commands wait for parts of a Put.
    pub(crate) fn is_split(&self) -> bool {
        self.split.is_some()
    }

    #[cold]
    fn make_room(&mut self, slots: usize) -> Result<(), Error> {
        if slots > self.queue.orders() {
            let hint = "more descriptors than the transmit queue has entries";
            return Err(Error::with_value(Code::InvalidNumber, "commands", slots as u64, hint));
        }
        // This reaps commands whose completion the program has not requested.
        self.sort_completions();
        if self.room() < slots { Err(busy()) } else { Ok(()) }
    }

    #[inline(always)]
    fn next_completion(&mut self) -> Option<(Posted, Completion)> {
        let rcode = self.queue.poll_completion()?;
        let posted = self.posted[self.reap & (self.posted.len() - 1)];
        self.reap = self.reap.wrapping_add(1);
        if posted.part
            && let Some((split, ..)) = &mut self.split
        {
            split.ended(rcode);
        }
        Some((posted, Completion { cbdata: posted.cbdata, rcode }))
    }

    fn keep(&mut self, posted: Posted, completion: Completion) {
        if let Some(vcq) = &mut self.vcqs[usize::from(posted.extra)] {
            vcq.completions.push_back(completion);
            vcq.ring();
            self.waiting += 1;
        }
    }

    /// Hands all completions to their VCQs.
    fn sort_completions(&mut self) {
        while let Some((posted, completion)) = self.next_completion() {
            if posted.told {
                self.keep(posted, completion);
            }
        }
    }

    /// Returns the next completion of a VCQ.
    #[inline]
    pub(crate) fn poll_tcq(&mut self, extra: u8) -> Option<Completion> {
        if self.split.is_some() {
            self.progress();
        }
        if self.waiting > 0
            && let Some(vcq) = &mut self.vcqs[usize::from(extra)]
            && let Some(completion) = vcq.completions.pop_front()
        {
            self.waiting -= 1;
            return Some(completion);
        }
        while let Some((posted, completion)) = self.next_completion() {
            if posted.told && posted.extra == extra {
                return Some(completion);
            }
            if posted.told {
                self.keep(posted, completion);
            }
        }
        None
    }

    /// Returns the VCQ that a notice is for, or `None` if it is for none.
    #[inline(always)]
    fn addressee(&self, entry: &Entry) -> Option<u8> {
        if entry.notice.kind.is_local() {
            return entry.wanted.then_some(entry.sender);
        }
        // The VCQ owns the memory, unless the sender has named another one.
        let candidates = [entry.target, entry.target | 8];
        match self.stags.owner(entry.stag) {
            Some(owner) if candidates.contains(&owner) => Some(owner),
            _ => candidates.into_iter().find(|extra| self.has(*extra)),
        }
    }

    /// Completes the peer's extra value in a notice of a command of this queue.
    #[inline(always)]
    fn complete(&mut self, entry: &mut Entry) {
        if !entry.notice.kind.is_local() {
            return;
        }
        let id = entry.notice.vcq_id;
        let class = self.classes[usize::from(entry.target)];
        // Commands posted before both kinds existed went to the first kind.
        let first = entry.target | if class & 8 == 0 { 0 } else { 8 };
        let extra = match class & 3 {
            1 | 2 => first,
            _ => {
                let same = |a: &Ambiguous| {
                    a.to.extra() & 7 == entry.target
                        && a.to.with_extra(0).with_path_id(0) == id.with_path_id(0)
                        && a.user == entry.notice.edata
                        && a.remote.contains(&entry.notice.rmt_stadd)
                };
                let found = self.ambiguous.iter().position(same);
                let command = found.and_then(|i| self.ambiguous.remove(i));
                command.map_or(first, |a| a.to.extra())
            }
        };
        entry.notice.vcq_id = id.with_extra(extra);
    }

    #[cold]
    fn remember(&mut self, command: &Command) {
        let Some((to, user, remote)) = command.whereabouts() else {
            return;
        };
        // Commands that the device has refused never get a notice.
        if self.ambiguous.len() >= self.posted.len() {
            self.ambiguous.pop_front();
        }
        self.ambiguous.push_back(Ambiguous { to, user, remote });
    }

    #[inline(always)]
    fn next_notice(&mut self) -> Option<(Option<u8>, Notice)> {
        loop {
            let Some(raw) = self.queue.poll_notice() else {
                self.unseen = 0;
                return None;
            };
            // In programs that wait for completions, most notices are of this kind.
            if Entry::is_unwanted(&raw) {
                continue;
            }
            if let Some(mut entry) = Entry::decode(&raw) {
                if let Some((split, ..)) = &mut self.split
                    && split.takes(&entry)
                {
                    continue;
                }
                if !self.tails.is_empty() {
                    self.pass_tail(&mut entry);
                }
                self.complete(&mut entry);
                return Some((self.addressee(&entry), entry.notice));
            }
        }
    }

    fn keep_notice(&mut self, extra: Option<u8>, notice: Notice) {
        let Some(Some(vcq)) = extra.map(|extra| &mut self.vcqs[usize::from(extra)]) else {
            return;
        };
        if vcq.notices.len() < MAX_WAITING {
            vcq.notices.push_back(notice);
            vcq.ring();
        } else {
            vcq.lost += 1;
        }
    }

    /// Hands all notices to their VCQs.
    fn sort_notices(&mut self) {
        while let Some((extra, notice)) = self.next_notice() {
            self.keep_notice(extra, notice);
        }
    }

    /// Returns the next notice of a VCQ.
    #[inline]
    pub(crate) fn poll_mrq(&mut self, extra: u8) -> Option<Notice> {
        if self.split.is_some() {
            self.progress();
        }
        if let Some(vcq) = &mut self.vcqs[usize::from(extra)]
            && let Some(notice) = vcq.notices.pop_front()
        {
            return Some(notice);
        }
        while let Some((addressee, notice)) = self.next_notice() {
            if addressee == Some(extra) {
                return Some(notice);
            }
            self.keep_notice(addressee, notice);
        }
        None
    }

    /// Returns how many completions a VCQ can take now.
    pub(crate) fn unread_tcq(&mut self, extra: u8) -> usize {
        if self.split.is_some() {
            self.progress();
        }
        self.sort_completions();
        self.vcqs[usize::from(extra)].as_ref().map_or(0, |vcq| vcq.completions.len())
    }

    /// Returns how many notices a VCQ can take now.
    pub(crate) fn unread_mrq(&mut self, extra: u8) -> usize {
        if self.split.is_some() {
            self.progress();
        }
        self.sort_notices();
        self.vcqs[usize::from(extra)].as_ref().map_or(0, |vcq| vcq.notices.len())
    }

    /// Registers memory under a reserved tag, or under one that the library chooses.
    ///
    /// # Safety
    ///
    /// As [`Queue::register`].
    #[allow(unsafe_code)]
    pub(crate) unsafe fn register(
        &mut self,
        extra: u8,
        addr: usize,
        size: usize,
        reserved: Option<u32>,
        read_only: bool,
    ) -> Result<Stadd, Error> {
        self.check()?;
        if addr == 0 {
            return Err(Error::new(Code::InvalidAddress, "memory to be registered", "address 0"));
        }
        let fits = addr.checked_add(size).is_some() && size as u64 <= MAX_REGISTERED;
        if size == 0 || !fits {
            let hint = "registered memory has 1 to 2^39 bytes, and ends within the address space";
            return Err(Error::with_value(Code::InvalidSize, "size", size as u64, hint));
        }
        let memory = Memory { addr, size, read_only, owner: extra };
        let (stadd, new) = match reserved {
            Some(stag) => (self.stags.add_reserved(memory, reserved_stag(extra, stag)?)?, true),
            None => self.stags.add(memory)?,
        };
        if new {
            let (stag, offset) = (stadd.stag(), stadd.offset());
            let registration = Registration { addr, len: size, stag, offset, read_only };
            // SAFETY: guaranteed by the caller.
            if let Err(error) = unsafe { self.queue.register(&registration) } {
                self.stags.forget(stag);
                return Err(error);
            }
        }
        Ok(stadd)
    }

    /// Ends a registration.
    pub(crate) fn deregister(&mut self, extra: u8, stadd: Stadd) -> Result<(), Error> {
        if self.stags.remove(stadd, extra)? { self.queue.deregister(stadd.stag()) } else { Ok(()) }
    }
}

/// Sleep until a VCQ has something.
#[cfg(feature = "std")]
impl<Q: Queue> OpenState<Q> {
    /// Finds out whether the device still has the queue.
    pub(crate) fn look(&mut self) -> Result<(), Error> {
        self.queue.look();
        self.polled(None::<()>).map(drop)
    }

    /// Returns the bell of a VCQ.
    pub(crate) fn bell(&mut self, extra: u8) -> Result<Arc<Bell>, Error> {
        let Some(vcq) = &mut self.vcqs[usize::from(extra)] else { return Err(lost()) };
        if let Some(bell) = &vcq.bell {
            return Ok(Arc::clone(bell));
        }
        let bell = Arc::new(Bell::new(self.queue.interrupt_fd()?)?);
        // It rings until a thread has found that nothing is there.
        bell.ring();
        vcq.bell = Some(Arc::clone(&bell));
        Ok(bell)
    }

    /// A thread begins to wait for a VCQ, and calls [`OpenState::end_wait`] in the end. Returns
    /// `None` if the VCQ has something already.
    pub(crate) fn begin_wait(&mut self, extra: u8) -> Result<Option<Arc<Bell>>, Error> {
        self.check()?;
        let bell = self.bell(extra)?;
        if self.has_unread(extra) {
            return Ok(None);
        }
        if let Some(vcq) = &mut self.vcqs[usize::from(extra)] {
            vcq.sleepers += 1;
        }
        Ok(Some(bell))
    }

    /// Prepares a thread for sleep. Returns false if the VCQ has something.
    ///
    /// The order is: silence the bell, request an interrupt, poll the rings. An entry that comes
    /// after the poll interrupts. An entry that came before it is found by this thread, or by
    /// another one that has polled since the bell was silenced; that thread rings the bell.
    pub(crate) fn arm(&mut self, extra: u8, bell: &Bell) -> Result<bool, Error> {
        self.check()?;
        bell.silence();
        self.queue.ask_interrupt();
        let asleep = !self.has_unread(extra);
        if !asleep {
            // For other threads that wait for the same VCQ.
            bell.ring();
        }
        Ok(asleep)
    }

    /// Ends a thread's wait. `watched` says, if given, whether the program now waits by the bell's
    /// descriptor. The interrupt is withdrawn unless a thread or descriptor needs it.
    pub(crate) fn end_wait(&mut self, extra: u8, watched: Option<bool>) {
        if let Some(vcq) = &mut self.vcqs[usize::from(extra)] {
            vcq.sleepers -= 1;
            vcq.watched = watched.unwrap_or(vcq.watched);
        }
        self.settle();
    }

    fn has_unread(&mut self, extra: u8) -> bool {
        // Both, so that entries of other VCQs reach their lists, and ring their bells.
        let (tcq, mrq) = (self.unread_tcq(extra), self.unread_mrq(extra));
        tcq + mrq > 0
    }
}

/// The most bytes of one registration, because addresses in a device's tables have 40 bits.
const MAX_REGISTERED: u64 = 1 << 39;

const fn lost() -> Error {
    let hint = "the device was reset: free the queue's VCQs, and create others";
    Error::new(Code::Fatal, "control queue", hint)
}

const fn busy() -> Error {
    let hint = "poll its completions (utofu_poll_tcq), and try again";
    Error::new(Code::Busy, "the transmit queue is full", hint)
}
