//! Control queues that two processes of a node share, because the node has more processes than
//! queues: the owner of the queues, as a state machine.
//!
//! `tofud` owns them on Linux nodes, and the command with `tofu run --local`. Both have a loop of
//! their own, which reads the processes' messages and waits for [`SharedQueues::events`]. A process
//! requests its half of a queue and the registration of memory by the messages that isolated
//! processes use ([`IsolatedRequest`]), and has rings that the owner serves ([`JointQueue`]). When
//! a process ends, by any cause, its memory is deregistered, and the other one continues.
//!
//! A completion is that of the process that posted the command. A notice is that of the process to
//! whose extra values the one in `edata` belongs, of which bit 2 suffices.
//!
//! The alternative was rings that both processes map, with a lock that outlives the process that
//! holds it. A process may then be killed at each store to a ring, and the next one to take the
//! lock must find out how far it came. With an owner the processes share neither lock nor memory. A
//! doorbell is a message, which costs two changes of process for each command that is not posted
//! with others.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::{fmt, io, mem};

use rustix::event::{EventfdFlags, eventfd};
use tofu_abi::irq::vector;
use tofu_abi::regs::CqReg;
use tofu_abi::{CqId, Subnet, TniId};
use tofu_driver::{CqConfig, Device, Platform};
use tofu_utofu::{Code, Error, Half, JointQueue, MappedMemory, NUM_STAGS, OwnedQueue};
use tofu_vfio::broker::wire::{Answer, IsolatedRequest, Page, Queue, Refusal};
use tofu_vfio::broker::{Part, SharedRings};

/// Size code of the message receive queues: 32768 notices. Processes empty their own ones.
const MRQ_SIZE: u8 = 2;
/// The largest size code of a process's: 131072 notices, as on real systems.
const LARGEST_MRQ_SIZE: u8 = 3;

/// A queue of the node.
pub type Place = (TniId, CqId);

/// The reason why a process's request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The kind of reason.
    pub why: Refusal,
    /// The reason in one line.
    pub text: String,
}

impl Refused {
    /// A refusal of this kind.
    pub fn new(why: Refusal, text: impl Into<String>) -> Self {
        Self { why, text: text.into() }
    }

    /// The answer to the process. Its text fits into a message.
    pub fn answer(&self) -> Answer {
        Answer::Refused { why: self.why, text: self.text.chars().take(300).collect() }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let why = match error.code() {
            Code::NotAvailable => Refusal::InUse,
            Code::OutOfMemory | Code::OutOfResource => Refusal::NoneLeft,
            Code::Fatal => Refusal::NoDevice,
            _ => Refusal::Wrong,
        };
        Self::new(why, error.to_string())
    }
}

fn wrong(text: &str) -> Refused {
    Refused::new(Refusal::Wrong, text)
}

fn none_left(error: impl fmt::Display) -> Refused {
    Refused::new(Refusal::NoneLeft, error.to_string())
}

/// Which other queues a queue reaches, and is reached from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The register GPID.
    pub gpid: u64,
    /// The nodes.
    pub subnet: Subnet,
}

/// Memory of a process in a file, to be mapped for the device.
#[derive(Clone, Copy, Debug)]
pub struct FilePart<'a> {
    /// The file.
    pub file: BorrowedFd<'a>,
    /// Its runs in the file: offset and length.
    pub runs: &'a [(u64, u64)],
    /// Address of the first byte in the process.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
}

/// The device whose queues are shared, as its owner has it.
pub trait Home {
    /// The device's platform.
    type Platform: Platform;
    /// Keeps memory of a process mapped.
    type Mapping;
    /// True if processes map their memory for the device themselves.
    const PROCESSES_MAP: bool;

    /// Returns the device.
    fn device(&self) -> &Device<Self::Platform>;

    /// Returns the eventfd of a vector.
    ///
    /// # Errors
    ///
    /// If there is none.
    fn event(&self, vector: u16) -> io::Result<Arc<OwnedFd>>;

    /// Maps memory for the device, and returns its address there.
    ///
    /// # Errors
    ///
    /// If that is impossible.
    fn map(&self, memory: &FilePart<'_>) -> Result<(u64, Self::Mapping), Refused>;
}

/// A request that is done when the queue allows it.
#[derive(Clone, Copy, Debug)]
enum Pending {
    /// For its half of the queue.
    Open { mrq_size: u8 },
    /// To return it.
    Close,
}

/// A process that shares a queue.
#[derive(Debug)]
pub struct Member {
    place: Place,
    half: Half,
    rights: Rights,
    is_open: bool,
    pending: Option<Pending>,
    /// The eventfd by which it is woken, the same for each opening of its queue.
    wake: Arc<OwnedFd>,
}

impl Member {
    /// A process with this half of a queue, which is not open.
    ///
    /// # Errors
    ///
    /// If no descriptors are left.
    pub fn new((place, half): (Place, Half), rights: Rights) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { place, half, rights, is_open: false, pending: None, wake: Arc::new(wake) })
    }

    /// Returns the queue.
    pub const fn place(&self) -> Place {
        self.place
    }
}

/// Something that a process gets.
#[derive(Debug)]
pub enum Reply {
    /// An answer.
    Answer(Answer),
    /// Memory, by [`Answer::Memory`], with its file and an eventfd.
    Memory(OwnedFd, Arc<OwnedFd>),
}

impl Reply {
    /// Returns the message, and the descriptors that come with it.
    pub fn parts(&self) -> (Answer, Vec<BorrowedFd<'_>>) {
        match self {
            Self::Answer(answer) => (answer.clone(), Vec::new()),
            Self::Memory(file, event) => (Answer::Memory, vec![file.as_fd(), event.as_fd()]),
        }
    }
}

const DONE: Reply = Reply::Answer(Answer::Done);

/// The queues of a node that are shared.
pub trait SharedQueues {
    /// Handles a request of a process. Returns `None` if it gets its answer [later](Self::settle),
    /// or none.
    ///
    /// # Errors
    ///
    /// If it is refused.
    fn handle(
        &mut self,
        member: &mut Member,
        request: &IsolatedRequest,
        fds: &[OwnedFd],
    ) -> Result<Option<Reply>, Refused>;

    /// Returns what a process waits for, if it can be had by now.
    ///
    /// # Errors
    ///
    /// If it is refused.
    fn settle(&mut self, member: &mut Member) -> Result<Option<Reply>, Refused>;

    /// Takes everything back from a process that has gone.
    fn end(&mut self, member: &mut Member);

    /// Moves what there is, and wakes processes. Returns whether there was anything.
    fn serve(&mut self) -> bool;

    /// The same before the owner sleeps, with interrupts for what comes later. It must not sleep if
    /// there was anything.
    fn rest(&mut self) -> bool;

    /// Closes the queues that no process has any more. Returns those that do not stop.
    fn close_unused(&mut self) -> Vec<Place>;

    /// Returns whether a queue is open.
    fn has(&self, place: Place) -> bool;

    /// Returns the descriptors that are readable when there is something to move.
    fn events(&self) -> Vec<Arc<OwnedFd>>;
}

/// An open queue.
struct Open<H: Home> {
    joint: JointQueue<OwnedQueue<H::Platform>, Part>,
    rights: Rights,
    event: Arc<OwnedFd>,
    wakes: [Option<Arc<OwnedFd>>; 2],
    /// The memory of each process, by steering tag.
    mapped: [BTreeMap<u32, H::Mapping>; 2],
}

impl<H: Home> Open<H> {
    fn serve(&mut self) -> bool {
        let busy = self.joint.serve();
        for half in Half::BOTH {
            if self.joint.must_wake(half)
                && let Some(wake) = &self.wakes[half as usize]
            {
                // It fails only if the counter is full, and then it is readable.
                let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
            }
        }
        busy
    }

    /// Takes a half back from a process.
    fn leave(&mut self, half: Half) -> Result<(), Error> {
        self.wakes[half as usize] = None;
        let mapped = mem::take(&mut self.mapped[half as usize]);
        match self.joint.leave(half) {
            Ok(0) => Ok(()),
            Ok(lost) => {
                let cq = self.joint.queue().cq();
                let (tni, cq) = (cq.tni(), cq.cq());
                log::warn!(
                    "queue {cq} of TNI {tni}: a process did not poll, and lost {lost} notices"
                );
                Ok(())
            }
            Err(error) => {
                // The device may still use it.
                mem::forget(mapped);
                Err(error)
            }
        }
    }
}

/// The owner of the queues. Dropping it closes them.
pub struct QueueOwner<H: Home> {
    home: H,
    queues: BTreeMap<Place, Open<H>>,
}

impl<H: Home> QueueOwner<H> {
    /// An owner without open queues.
    pub const fn new(home: H) -> Self {
        Self { home, queues: BTreeMap::new() }
    }

    /// Gives a process its half of a queue, which is opened if it is not open.
    fn open(&mut self, member: &mut Member, mrq_size: u8) -> Result<Reply, Refused> {
        let &mut Member { place, half, rights, .. } = member;
        let SharedRings { file, rings, arm } = SharedRings::new(mrq_size).map_err(none_left)?;
        if !self.queues.contains_key(&place) {
            let open = self.open_queue(place, rights)?;
            self.queues.insert(place, open);
        }
        let open = self.queues.get_mut(&place).ok_or_else(not_open)?;
        if open.rights != rights {
            let text = "the control queue is shared with a process of another user";
            return Err(Refused::new(Refusal::InUse, text));
        }
        open.joint.join(half, rings, arm)?;
        open.wakes[half as usize] = Some(Arc::clone(&member.wake));
        member.is_open = true;
        Ok(Reply::Memory(file, Arc::clone(&member.wake)))
    }

    fn open_queue(&self, (tni, cq): Place, rights: Rights) -> Result<Open<H>, Refused> {
        let Rights { gpid, subnet } = rights;
        let config = CqConfig {
            stags: NUM_STAGS,
            mrq_size: MRQ_SIZE,
            gpid,
            mode: subnet.mode(),
            ..CqConfig::new(tni, cq)
        };
        let queue = OwnedQueue::open(self.home.device(), &config)?;
        let event = self.home.event(vector::cq(tni, cq)).map_err(none_left)?;
        let (joint, wakes, mapped) = (JointQueue::new(queue), [None, None], Default::default());
        Ok(Open { joint, rights, event, wakes, mapped })
    }

    /// Registers memory that the process has mapped at `memory.address`, or that is in a file.
    fn register(
        &mut self,
        &Member { place, half, .. }: &Member,
        memory: MappedMemory,
        part: Option<FilePart<'_>>,
    ) -> Result<Reply, Refused> {
        let open = self.queues.get_mut(&place).ok_or_else(not_open)?;
        let Some(part) = part else {
            open.joint.register(half, &memory)?;
            return Ok(DONE);
        };
        let (address, mapping) = self.home.map(&part)?;
        open.joint.register(half, &MappedMemory { address, ..memory })?;
        open.mapped[half as usize].insert(memory.stag, mapping);
        Ok(DONE)
    }

    fn deregister(&mut self, member: &Member, stag: u32) -> Result<Reply, Refused> {
        let open = self.queues.get_mut(&member.place).ok_or_else(not_open)?;
        let done = open.joint.deregister(member.half, stag);
        if done.as_ref().is_err_and(|error| error.code() == Code::Fatal) {
            // The device may still use it.
            mem::forget(open.mapped[member.half as usize].remove(&stag));
        }
        done?;
        open.mapped[member.half as usize].remove(&stag);
        Ok(DONE)
    }

    /// Handles a request to a queue that the process has open.
    fn of_open(
        &mut self,
        member: &mut Member,
        request: &IsolatedRequest,
        fds: &[OwnedFd],
    ) -> Result<Option<Reply>, Refused> {
        let open = self.queues.get_mut(&member.place).filter(|_| member.is_open);
        let open = open.ok_or_else(not_open)?;
        match *request {
            IsolatedRequest::CloseQueue { .. } => {
                open.joint.stop(member.half);
                member.pending = Some(Pending::Close);
                Ok(None)
            }
            IsolatedRequest::RegisterMapped { stag, offset, address, len, read_only, .. }
                if H::PROCESSES_MAP =>
            {
                let memory = MappedMemory { address, len, stag, offset, read_only };
                self.register(member, memory, None).map(Some)
            }
            IsolatedRequest::Register {
                stag, offset, address, len, read_only, ref runs, ..
            } if !H::PROCESSES_MAP => {
                let file = fds.first().ok_or_else(|| wrong("no file comes with it"))?.as_fd();
                let memory = MappedMemory { address, len, stag, offset, read_only };
                self.register(member, memory, Some(FilePart { file, runs, address, len })).map(Some)
            }
            IsolatedRequest::Deregister { stag, .. } => self.deregister(member, stag).map(Some),
            IsolatedRequest::Write { offset, value, .. } => {
                // A doorbell needs no more than the message: its orders are looked for next.
                if u64::from(offset) == CqReg::MrqFullPointer.offset() {
                    open.joint.acknowledge(member.half, value);
                }
                Ok(None)
            }
            IsolatedRequest::Read { .. } if open.joint.queue().cq().status().cq_enable() => {
                Ok(Some(Reply::Answer(Answer::Value(0))))
            }
            IsolatedRequest::Read { .. } => {
                Err(Refused::new(Refusal::NoDevice, "the device has lost the queue"))
            }
            _ => Err(wrong("a shared queue does not have that")),
        }
    }
}

/// The queue that a request is about.
const fn queue_of(request: &IsolatedRequest) -> Option<Queue> {
    match *request {
        IsolatedRequest::OpenQueue { queue, .. }
        | IsolatedRequest::CloseQueue { queue }
        | IsolatedRequest::Register { queue, .. }
        | IsolatedRequest::RegisterMapped { queue, .. }
        | IsolatedRequest::Deregister { queue, .. }
        | IsolatedRequest::Write { page: Page::Queue(queue), .. }
        | IsolatedRequest::Read { page: Page::Queue(queue), .. } => Some(queue),
        _ => None,
    }
}

fn not_open() -> Refused {
    wrong("its queue is not open")
}

impl<H: Home> SharedQueues for QueueOwner<H> {
    fn handle(
        &mut self,
        member: &mut Member,
        request: &IsolatedRequest,
        fds: &[OwnedFd],
    ) -> Result<Option<Reply>, Refused> {
        if member.pending.is_some() {
            return Err(wrong("it waits for an answer"));
        }
        if queue_of(request).and_then(Queue::ids) != Some(member.place) {
            return Err(wrong("the control queue is not its own"));
        }
        match *request {
            IsolatedRequest::OpenQueue { stags, mrq_size, session, .. } => {
                if member.is_open || session || stags > NUM_STAGS || mrq_size > LARGEST_MRQ_SIZE {
                    return Err(wrong("a shared queue is not opened in that way, or open already"));
                }
                member.pending = Some(Pending::Open { mrq_size });
                Ok(None)
            }
            _ => self.of_open(member, request, fds),
        }
    }

    fn settle(&mut self, member: &mut Member) -> Result<Option<Reply>, Refused> {
        let Some(pending) = member.pending else { return Ok(None) };
        let half = member.half;
        let queue = self.queues.get_mut(&member.place);
        match pending {
            Pending::Open { mrq_size } => {
                // Another process may have had the half, and its commands must end.
                if queue.is_some_and(|open| !open.joint.is_free(half)) {
                    return Ok(None);
                }
                member.pending = None;
                self.open(member, mrq_size).map(Some)
            }
            Pending::Close => {
                if queue.as_ref().is_some_and(|open| !open.joint.is_over(half)) {
                    return Ok(None);
                }
                (member.pending, member.is_open) = (None, false);
                if let Some(open) = queue {
                    open.leave(half)?;
                }
                Ok(Some(DONE))
            }
        }
    }

    fn end(&mut self, member: &mut Member) {
        member.pending = None;
        if !mem::take(&mut member.is_open) {
            return;
        }
        if let Some(open) = self.queues.get_mut(&member.place)
            && let Err(error) = open.leave(member.half)
        {
            log::warn!("memory of a process that has ended: {error}");
        }
    }

    fn serve(&mut self) -> bool {
        self.queues.values_mut().fold(false, |busy, open| open.serve() | busy)
    }

    fn rest(&mut self) -> bool {
        for open in self.queues.values() {
            // An entry that is there by now interrupts no more, and later ones do.
            let cq = open.joint.queue().cq();
            cq.take_interrupt();
            cq.ask_interrupt();
        }
        self.serve()
    }

    fn close_unused(&mut self) -> Vec<Place> {
        let mut stuck = Vec::new();
        for (place, open) in self.queues.extract_if(.., |_, open| open.joint.is_unused()) {
            if let Err(error) = open.joint.into_queue().close() {
                log::error!("a shared control queue does not stop: {error}");
                stuck.push(place);
            }
        }
        stuck
    }

    fn has(&self, place: Place) -> bool {
        self.queues.contains_key(&place)
    }

    fn events(&self) -> Vec<Arc<OwnedFd>> {
        self.queues.values().map(|open| Arc::clone(&open.event)).collect()
    }
}

impl<H: Home> Drop for QueueOwner<H> {
    fn drop(&mut self) {
        // Memory is unmapped only where the device has released it.
        for open in self.queues.values_mut() {
            for half in Half::BOTH {
                if let Err(error) = open.leave(half) {
                    log::warn!("memory of a process that shares a control queue: {error}");
                }
            }
        }
    }
}
