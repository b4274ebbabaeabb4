//! Virtual control queues.

use alloc::sync::Arc;
#[cfg(feature = "std")]
use core::sync::atomic::AtomicBool;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;
#[cfg(feature = "std")]
use std::os::fd::{AsRawFd, RawFd};
#[cfg(feature = "std")]
use std::time::Instant;

use tofu_abi::desc::Descriptor;
use tofu_abi::{Coords, CqId, TniId};

use crate::command::{Command, Packets, Posting};
use crate::error::{Code, Error};
use crate::flags;
use crate::half::Half;
use crate::ids::{Stadd, VcqId};
use crate::lock::{Guard, Lock};
use crate::notice::Notice;
use crate::provider::{OpenQueue, Provider};
use crate::queue::{Completion, OpenState};
#[cfg(feature = "std")]
use crate::rest;
use crate::rest::RestAfter;
use crate::stag::NUM_STAGS;

/// The most looks for the parts of a Put before a VCQ is freed: about a second.
const LOOKS_AT_PARTS: u32 = 1 << 23;

/// The longest sleep before the next check that the device still has the queue.
#[cfg(feature = "std")]
const LOOK: Duration = Duration::from_secs(1);

/// Distinguishes a VCQ from others of its queue, and from those that had its place before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The extra value of its ID, 0 to 15.
    pub extra: u8,
    /// The number of the VCQ among those of the queue, modulo [`Ticket::SERIALS`].
    pub serial: u32,
}

impl Ticket {
    /// Serial numbers, after which they begin again.
    pub const SERIALS: u32 = 1 << 24;
}

/// A control queue of the device that VCQs may share. It is open as long as there are any.
///
/// Several threads may call it at the same time, with any flags of the VCQ.
pub struct SharedQueue<P: Provider + ?Sized> {
    provider: Arc<P>,
    tni: TniId,
    cq: CqId,
    /// True if the device has atomic commands.
    atomics: bool,
    /// The size from which Puts are sent in parts, over several paths.
    split_from: u32,
    /// The process's half of the queue, if another one has the rest.
    half: Option<Half>,
    serial: AtomicU32,
    state: Lock<Option<OpenState<P::Queue>>>,
    /// When polls that find nothing rest.
    pub(crate) rest_after: RestAfter,
    /// The queue has no interrupts.
    #[cfg(feature = "std")]
    is_deaf: AtomicBool,
}

/// The arguments of a Put or Get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The VCQ at the other end.
    pub peer: VcqId,
    /// Memory of this process.
    pub local: Stadd,
    /// Memory of the peer.
    pub remote: Stadd,
    /// Number of bytes.
    pub length: usize,
    /// Data for notices.
    pub edata: u64,
    /// See [`flags`].
    pub flags: u64,
}

impl Transfer {
    fn posting(&self) -> Result<Posting, Error> {
        Posting::new(self.peer.0, self.edata, self.flags)
    }
}

/// The kind of VCQ to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VcqKind {
    /// 8 + component ID.
    pub(crate) extra: Option<u8>,
    pub(crate) exclusive: bool,
    /// True if commands start as the session advances. Such a VCQ shares its queue with no other.
    pub(crate) session: bool,
}

impl VcqKind {
    const fn is_alone(self) -> bool {
        self.exclusive || self.session
    }
}

impl<P: Provider + ?Sized> SharedQueue<P> {
    /// Creates a queue of the process, or its half of one. Puts of at least `split_from` bytes are
    /// split.
    pub(crate) fn new(
        provider: Arc<P>,
        (tni, cq): (TniId, CqId),
        half: Option<Half>,
        split_from: u32,
    ) -> Self {
        let atomics = provider.generation().description().atomics;
        let (serial, state) = (AtomicU32::new(1), Lock::new(None));
        Self {
            provider,
            tni,
            cq,
            atomics,
            split_from,
            half,
            serial,
            state,
            rest_after: RestAfter::default(),
            #[cfg(feature = "std")]
            is_deaf: AtomicBool::new(false),
        }
    }

    /// Returns the coordinates of the node.
    pub fn coords(&self) -> Coords {
        self.provider.coords()
    }

    pub(crate) fn tni(&self) -> TniId {
        self.tni
    }

    pub(crate) fn cq(&self) -> CqId {
        self.cq
    }

    /// Creates a VCQ on this queue. Returns `None` if the queue's other VCQs do not permit it.
    pub(crate) fn create(&self, kind: VcqKind) -> Result<Option<Ticket>, Error> {
        let mut state = self.state.lock();
        let is_joint = self.half.is_some();
        if (kind.is_alone() && (state.is_some() || is_joint))
            || state.as_ref().is_some_and(|open| open.exclusive)
        {
            return Ok(None);
        }
        let open = match &mut *state {
            Some(open) => {
                open.check()?;
                open
            }
            closed => {
                let (tni, cq) = (self.tni, self.cq);
                let wanted = OpenQueue { tni, cq, stags: NUM_STAGS, session: kind.session };
                let queue = self.provider.open(&wanted)?;
                closed.insert(OpenState::new(queue, self.half, kind.is_alone(), kind.session))
            }
        };
        let extra = match kind.extra {
            Some(extra) if open.has(extra) => {
                let hint = "this process has a VCQ with it on this TNI";
                let value = u64::from(extra - 8);
                return Err(Error::with_value(Code::Used, "component ID", value, hint));
            }
            Some(extra) if !open.is_own(extra) => {
                let hint = "the process that shares this one's control queue has it: of the IDs \
                            0 to 3 and 4 to 7, each has four";
                let value = u64::from(extra - 8);
                return Err(Error::with_value(Code::Used, "component ID", value, hint));
            }
            Some(extra) => extra,
            None => open.free_extra().ok_or({
                let hint = "a process has at most 8 VCQs without component ID on a TNI, or 4 if it \
                            shares the control queue";
                Error::new(Code::Full, "VCQs", hint)
            })?,
        };
        let serial = self.serial.fetch_add(1, Relaxed) % Ticket::SERIALS;
        open.add(extra, serial);
        Ok(Some(Ticket { extra, serial }))
    }

    #[inline]
    fn with<T>(
        &self,
        ticket: Ticket,
        f: impl FnOnce(&mut OpenState<P::Queue>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut state = self.state.lock();
        match &mut *state {
            Some(open) if open.is(ticket.extra, ticket.serial) => f(open),
            _ => Err(no_such_vcq()),
        }
    }

    /// Frees a VCQ, with all of its registrations. Commands in flight may still complete, but that
    /// is not reported.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVcqHdl`] if it was freed before.
    pub fn free(&self, ticket: Ticket) -> Result<(), Error> {
        let mut state: Guard<'_, Option<OpenState<P::Queue>>> = self.state.lock();
        let open = match &mut *state {
            Some(open) if open.is(ticket.extra, ticket.serial) => open,
            _ => return Err(no_such_vcq()),
        };
        // First, post what waits for parts of a Put, unless the device is too slow for that.
        for _ in 0..LOOKS_AT_PARTS {
            if !open.is_split() {
                break;
            }
            open.progress();
            self.provider.relax();
        }
        let result = open.remove(ticket.extra);
        if open.is_empty() {
            *state = None;
        }
        result
    }

    /// Returns the ID of a VCQ.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVcqHdl`] if there is no such VCQ.
    pub fn id(&self, ticket: Ticket) -> Result<VcqId, Error> {
        self.with(ticket, |_| {
            Ok(VcqId::new(self.provider.coords(), self.tni, self.cq, ticket.extra))
        })
    }

    /// Checks that a VCQ exists.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVcqHdl`] if it does not.
    pub fn check(&self, ticket: Ticket) -> Result<(), Error> {
        self.with(ticket, |_| Ok(()))
    }

    /// Checks that devices of this generation support a command.
    ///
    /// # Errors
    ///
    /// [`Code::NotSupported`] if they do not.
    #[inline]
    pub fn check_command(&self, command: &Command) -> Result<(), Error> {
        if self.atomics || !command.is_atomic() {
            return Ok(());
        }
        let hint = "the controllers of this generation have none";
        Err(Error::new(Code::NotSupported, "atomic commands", hint))
    }

    /// Posts a command, and starts it unless it must wait.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVcqHdl`], [`Code::Busy`].
    #[inline]
    pub fn post(&self, ticket: Ticket, command: &Command, cbdata: usize) -> Result<(), Error> {
        self.check_command(command)?;
        if command.put_length().is_some_and(|length| length >= self.split_from)
            // A program that requests the completion of a Put polls for it, which lets the library
            // make progress.
            && (command.tcq_notice() || command.local_notice())
            && !command.is_delayed()
        {
            let from = self.provider.coords();
            return self.with(ticket, |open| open.post_long(ticket.extra, command, cbdata, from));
        }
        let slots = command.prepared().len();
        self.with(ticket, |open| open.post(ticket.extra, slots, core::iter::once(*command), cbdata))
    }

    /// Posts the same command for `blocks` blocks that begin `stride` bytes apart on both sides,
    /// either for all of them or for none.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVcqHdl`], [`Code::Busy`]; [`Code::InvalidNumber`] for no blocks, more than
    /// the transmit queue has entries, or blocks beyond the largest offset.
    pub fn post_blocks(
        &self,
        ticket: Ticket,
        command: &Command,
        stride: usize,
        blocks: usize,
        cbdata: usize,
    ) -> Result<(), Error> {
        self.check_command(command)?;
        command.check_blocks(stride, blocks)?;
        let slots = command.prepared().len().saturating_mul(blocks);
        let block = |i: usize| command.moved(i as u64 * stride as u64).unwrap_or(*command);
        self.with(ticket, |open| open.post(ticket.extra, slots, (0..blocks).map(block), cbdata))
    }

    /// Posts prepared descriptors, either all of them or none.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVcqHdl`], [`Code::Busy`]; [`Code::InvalidDesc`] if they were not prepared;
    /// [`Code::InvalidNumber`] if they are more than the transmit queue has entries.
    pub fn post_prepared(
        &self,
        ticket: Ticket,
        descriptors: &[Descriptor],
        cbdata: usize,
    ) -> Result<(), Error> {
        let mut rest = descriptors;
        while !rest.is_empty() {
            let (command, taken) = Command::parse(rest)?;
            self.check_command(&command)?;
            rest = &rest[taken..];
        }
        let mut rest = descriptors;
        let commands = core::iter::from_fn(|| {
            let (command, taken) = Command::parse(rest).ok()?;
            rest = &rest[taken..];
            Some(command)
        });
        self.with(ticket, |open| open.post(ticket.extra, descriptors.len(), commands, cbdata))
    }

    /// Polls, rests if there has been nothing for long, and polls again then.
    #[inline]
    fn poll<T>(
        &self,
        ticket: Ticket,
        once: impl Fn(&mut OpenState<P::Queue>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut waited = None;
        let found = self.with(ticket, |open| {
            let found = once(open);
            waited = open.idle(ticket.extra, found.is_some(), &self.rest_after);
            open.polled(found)
        })?;
        let Some(waited) = waited else { return Ok(found) };
        self.rest(ticket, waited);
        self.with(ticket, |open| {
            let found = once(open);
            open.polled(found)
        })
    }

    #[cfg(not(feature = "std"))]
    fn rest(&self, _: Ticket, _: Duration) {}

    /// Sleeps in a poll that has found nothing, like earlier ones for this time.
    #[cfg(feature = "std")]
    #[cold]
    fn rest(&self, ticket: Ticket, waited: Duration) {
        std::thread_local! {
            /// The queue and VCQ of the thread's last rest: it polls this one alone, or several.
            static LAST: core::cell::Cell<(usize, u8)> = const { core::cell::Cell::new((0, 0)) };
        }
        let own = (core::ptr::from_ref(self).addr(), ticket.extra);
        if LAST.replace(own) != own || self.is_deaf.load(Relaxed) {
            return rest::doze(waited);
        }
        match self.sleep(ticket, rest::nap(waited), false) {
            Err(error) if error.code() != Code::InvalidVcqHdl => {
                self.is_deaf.store(true, Relaxed);
            }
            _ => {}
        }
    }

    /// Takes the next completion.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVcqHdl`]; [`Code::Fatal`] if the device has lost the queue.
    #[inline]
    pub fn poll_tcq(&self, ticket: Ticket) -> Result<Option<Completion>, Error> {
        self.poll(ticket, |open| open.poll_tcq(ticket.extra))
    }

    /// Takes the next notice.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVcqHdl`]; [`Code::Fatal`] if the device has lost the queue.
    #[inline]
    pub fn poll_mrq(&self, ticket: Ticket) -> Result<Option<Notice>, Error> {
        self.poll(ticket, |open| open.poll_mrq(ticket.extra))
    }

    /// Sleeps until the VCQ has a completion or a notice to take, or the time has passed. Returns
    /// whether it has. Another thread may take it first.
    ///
    /// If the VCQ has a [descriptor](SharedQueue::wait_fd) and this returns false, the descriptor
    /// becomes readable when something has come.
    ///
    /// # Errors
    ///
    /// [`Code::NotSupported`] if the process has no interrupts; [`Code::InvalidVcqHdl`], also if
    /// the VCQ is freed during the wait; [`Code::OutOfMemory`], [`Code::OutOfResource`];
    /// [`Code::Fatal`] if the device has lost the queue.
    #[cfg(feature = "std")]
    pub fn wait(&self, ticket: Ticket, timeout: Duration) -> Result<bool, Error> {
        self.sleep(ticket, timeout, true)
    }

    /// Waits. With `asked`, the program has called for this wait, and may wait by the descriptor
    /// afterwards.
    #[cfg(feature = "std")]
    fn sleep(&self, ticket: Ticket, timeout: Duration, asked: bool) -> Result<bool, Error> {
        let start = Instant::now();
        let extra = ticket.extra;
        let Some(bell) = self.with(ticket, |open| open.begin_wait(extra))? else {
            return Ok(true);
        };
        let found = loop {
            if !self.with(ticket, |open| open.arm(extra, &bell))? {
                break true;
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() || !bell.sleep(left.min(LOOK)) {
                if left <= LOOK {
                    break false;
                }
                // A device that has lost the queue interrupts no more.
                self.with(ticket, OpenState::look)?;
            }
        };
        self.with(ticket, |open| {
            open.end_wait(extra, asked.then(|| !found && bell.has_descriptor()));
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns a descriptor for event loops. It becomes readable when the VCQ may have something to
    /// take, and stays so until a [`SharedQueue::wait`] finds nothing. It belongs to the VCQ.
    ///
    /// # Errors
    ///
    /// As [`SharedQueue::wait`].
    #[cfg(feature = "std")]
    pub fn wait_fd(&self, ticket: Ticket) -> Result<RawFd, Error> {
        let bell = self.with(ticket, |open| open.bell(ticket.extra))?;
        Ok(bell.descriptor()?.as_raw_fd())
    }

    /// Returns how many completions can be taken now.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVcqHdl`].
    pub fn unread_tcq(&self, ticket: Ticket) -> Result<usize, Error> {
        self.with(ticket, |open| Ok(open.unread_tcq(ticket.extra)))
    }

    /// Returns how many notices can be taken now.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVcqHdl`].
    pub fn unread_mrq(&self, ticket: Ticket) -> Result<usize, Error> {
        self.with(ticket, |open| Ok(open.unread_mrq(ticket.extra)))
    }

    /// Registers memory, under a reserved steering tag (0 to 255) if one is given.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVcqHdl`], [`Code::InvalidAddress`], [`Code::InvalidSize`],
    /// [`Code::InvalidFlags`], [`Code::InvalidStag`]; [`Code::Used`] if the reserved tag is in use,
    /// [`Code::Full`] if no tag is free.
    ///
    /// # Safety
    ///
    /// Until [`SharedQueue::deregister`] or [`SharedQueue::free`], the memory stays mapped, and
    /// the process treats it as memory that others may change at any time.
    #[allow(unsafe_code)]
    pub unsafe fn register(
        &self,
        ticket: Ticket,
        addr: usize,
        size: usize,
        stag: Option<u32>,
        flags: u64,
    ) -> Result<Stadd, Error> {
        flags::check(flags, flags::REG_MEM_READ_ONLY, "flags of a registration")?;
        let read_only = flags & flags::REG_MEM_READ_ONLY != 0;
        self.with(ticket, |open| {
            // SAFETY: guaranteed by the caller.
            unsafe { open.register(ticket.extra, addr, size, stag, read_only) }
        })
    }

    /// Ends a registration. If it was the last one of its memory, no peer can access the memory
    /// after this returns.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVcqHdl`], [`Code::InvalidStadd`].
    pub fn deregister(&self, ticket: Ticket, stadd: u64) -> Result<(), Error> {
        let stadd = Stadd::check(stadd, "STADD")?;
        self.with(ticket, |open| open.deregister(ticket.extra, stadd))
    }
}

const fn no_such_vcq() -> Error {
    Error::new(Code::InvalidVcqHdl, "VCQ handle", "there is no such VCQ, or it was freed")
}

/// A virtual control queue. Dropping it frees it.
///
/// Calls may come from several threads at the same time.
pub struct Vcq<P: Provider + ?Sized> {
    queue: Arc<SharedQueue<P>>,
    ticket: Ticket,
    id: VcqId,
}

impl<P: Provider + ?Sized> Vcq<P> {
    pub(crate) fn new(queue: Arc<SharedQueue<P>>, ticket: Ticket) -> Self {
        let id = VcqId::new(queue.provider.coords(), queue.tni, queue.cq, ticket.extra);
        Self { queue, ticket, id }
    }

    /// Gives up the automatic release. Returns the parts, to be used with [`SharedQueue`].
    pub fn into_parts(self) -> (Arc<SharedQueue<P>>, Ticket) {
        let this = core::mem::ManuallyDrop::new(self);
        (Arc::clone(&this.queue), this.ticket)
    }

    /// Returns its ID.
    pub fn id(&self) -> VcqId {
        self.id
    }

    /// Registers memory of the process, under a reserved steering tag (0 to 255) if one is given.
    ///
    /// # Errors
    ///
    /// See [`SharedQueue::register`].
    ///
    /// # Safety
    ///
    /// Until [`Vcq::dereg_mem`] or the end of the VCQ, the memory stays mapped, and the process
    /// treats it as memory that others may change at any time.
    #[allow(unsafe_code)]
    pub unsafe fn reg_mem(
        &self,
        addr: *mut u8,
        size: usize,
        stag: Option<u32>,
        flags: u64,
    ) -> Result<Stadd, Error> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.queue.register(self.ticket, addr as usize, size, stag, flags) }
    }

    /// Ends a registration; see [`SharedQueue::deregister`].
    ///
    /// # Errors
    ///
    /// [`Code::InvalidStadd`].
    pub fn dereg_mem(&self, stadd: Stadd) -> Result<(), Error> {
        self.queue.deregister(self.ticket, stadd.0)
    }

    /// Posts a command, and starts it unless it must wait.
    ///
    /// # Errors
    ///
    /// [`Code::Busy`] if there is no room.
    #[inline]
    pub fn post(&self, command: &Command, cbdata: usize) -> Result<(), Error> {
        self.queue.post(self.ticket, command, cbdata)
    }

    /// Posts a command for several blocks; see [`SharedQueue::post_blocks`].
    ///
    /// # Errors
    ///
    /// [`Code::Busy`], [`Code::InvalidNumber`].
    pub fn post_blocks(
        &self,
        command: &Command,
        stride: usize,
        blocks: usize,
        cbdata: usize,
    ) -> Result<(), Error> {
        self.queue.post_blocks(self.ticket, command, stride, blocks, cbdata)
    }

    /// Posts prepared descriptors ([`Command::prepared`]); see [`SharedQueue::post_prepared`].
    ///
    /// # Errors
    ///
    /// [`Code::Busy`], [`Code::InvalidDesc`], [`Code::InvalidNumber`].
    pub fn post_prepared(&self, descriptors: &[Descriptor], cbdata: usize) -> Result<(), Error> {
        self.queue.post_prepared(self.ticket, descriptors, cbdata)
    }

    /// Writes local memory to memory of the peer.
    ///
    /// # Errors
    ///
    /// See [`Posting`]; [`Code::Busy`] if there is no room.
    pub fn put(&self, transfer: &Transfer, cbdata: usize) -> Result<(), Error> {
        let &Transfer { local, remote, length, .. } = transfer;
        let command = transfer.posting()?.put(local.0, remote.0, length, Packets::default())?;
        self.post(&command, cbdata)
    }

    /// Reads memory of the peer into local memory.
    ///
    /// # Errors
    ///
    /// See [`Posting`]; [`Code::Busy`] if there is no room.
    pub fn get(&self, transfer: &Transfer, cbdata: usize) -> Result<(), Error> {
        let &Transfer { local, remote, length, .. } = transfer;
        let command = transfer.posting()?.get(local.0, remote.0, length, Packets::default())?;
        self.post(&command, cbdata)
    }

    /// Takes the next completion of a command with [`flags::TCQ_NOTICE`].
    pub fn poll_tcq(&self) -> Option<Completion> {
        self.queue.poll_tcq(self.ticket).ok().flatten()
    }

    /// Takes the next notice.
    pub fn poll_mrq(&self) -> Option<Notice> {
        self.queue.poll_mrq(self.ticket).ok().flatten()
    }

    /// Sleeps until there is an entry to take; see [`SharedQueue::wait`].
    ///
    /// # Errors
    ///
    /// As [`SharedQueue::wait`].
    #[cfg(feature = "std")]
    pub fn wait(&self, timeout: Duration) -> Result<bool, Error> {
        self.queue.wait(self.ticket, timeout)
    }

    /// Returns a descriptor for event loops; see [`SharedQueue::wait_fd`].
    ///
    /// # Errors
    ///
    /// As [`SharedQueue::wait`].
    #[cfg(feature = "std")]
    pub fn wait_fd(&self) -> Result<RawFd, Error> {
        self.queue.wait_fd(self.ticket)
    }

    /// Returns how many completions can be taken now.
    pub fn unread_tcq(&self) -> usize {
        self.queue.unread_tcq(self.ticket).unwrap_or(0)
    }

    /// Returns how many notices can be taken now.
    pub fn unread_mrq(&self) -> usize {
        self.queue.unread_mrq(self.ticket).unwrap_or(0)
    }

    /// Lets others use the processor while the device works.
    pub fn relax(&self) {
        self.queue.provider.relax();
    }
}

impl<P: Provider + ?Sized> Drop for Vcq<P> {
    fn drop(&mut self) {
        // The VCQ exists. If the device does not release its memory, that stays mapped until the
        // process ends.
        let _ = self.queue.free(self.ticket);
    }
}
