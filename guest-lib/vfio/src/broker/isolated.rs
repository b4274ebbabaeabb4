//! A process that the broker isolates: it has rings, notices, and memory that it has registered.
//! The device, its address space and all tables are the broker's.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use tofu_abi::barrier::{NOTICE_SIZE, Profile};
use tofu_abi::irq::BgsIrqs;
use tofu_abi::queue::queue_entries;
use tofu_abi::regs::{CqReg, NodeAddress};
use tofu_abi::{BchId, Coords, CqId, Generation, TniId};
use tofu_driver::{
    Arm, ChannelConfig, ChannelError, DmaError, Gate, RingMemory, Rings, Rounds, UserPage,
    VolatileBuffer,
};
use tofu_process::{Resize, memory_file};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use super::client::{Broker, BrokerError, SharedPlatform, queue_number};
use super::own::{OwnMemory, ShareError};
use super::wire::{
    Answer, Channel, GateLinks, IsolatedRequest, Page, Queue, Refusal, Request, VERSION,
};
use crate::page_size;

/// The way a process uses a device that a broker shares.
#[derive(Debug)]
pub enum Joined {
    /// It has the device's registers and address space, like all processes that trust each other.
    Shared(Box<SharedPlatform>),
    /// It has only its own queues and channels.
    Isolated(IsolatedDevice),
}

impl Broker {
    /// Asks to use the device in the way that the broker allows this process: sharing it with other
    /// trusted processes, or isolated from them.
    ///
    /// # Errors
    ///
    /// See [`BrokerError`].
    pub fn join_any(self: Arc<Self>, place: Option<(u16, u16)>) -> Result<Joined, BrokerError> {
        let (answer, fds) = self.ask(&Request::Hello { version: VERSION, place })?;
        match answer {
            Answer::Isolated { node, generation, cq } => {
                let generation = Generation::from_register(generation);
                let generation = generation.ok_or(BrokerError::Answer)?;
                let cq = queue_number(cq)?;
                let coords = NodeAddress(node).coords();
                Ok(Joined::Isolated(IsolatedDevice::new(self, coords, generation, cq)))
            }
            answer => {
                self.welcomed(answer, fds, None).map(|shared| Joined::Shared(Box::new(shared)))
            }
        }
    }
}

/// Size code of transmit queues.
const TOQ_SIZE: u8 = 0;

/// A device that this process uses through a broker, isolated from other users' processes.
#[derive(Debug)]
pub struct IsolatedDevice {
    broker: Arc<Broker>,
    coords: Coords,
    generation: Generation,
    cq: Option<CqId>,
    memory: Arc<OwnMemory>,
    /// The eventfd by which the broker wakes this process, if it shares its queue. It is the same
    /// for every opening of the queue, and threads may wait for it while the device is used.
    event: OnceLock<Arc<OwnedFd>>,
}

/// The reason why memory cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The process's memory cannot be shared with the device.
    #[error(transparent)]
    Share(ShareError),
    /// The broker does not do it.
    #[error(transparent)]
    Broker(BrokerError),
}

impl IsolatedDevice {
    fn new(broker: Arc<Broker>, coords: Coords, generation: Generation, cq: Option<CqId>) -> Self {
        let (memory, event) = Default::default();
        Self { broker, coords, generation, cq, memory, event }
    }

    /// The node.
    pub const fn coords(&self) -> Coords {
        self.coords
    }

    /// The device's generation.
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// The control queue of each interface that is this process's own, if it did not know its
    /// place on the node.
    pub const fn cq(&self) -> Option<CqId> {
        self.cq
    }

    /// The broker.
    pub const fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }

    /// Opens a control queue for this process, with message receive queues of size code `mrq_size`.
    ///
    /// # Errors
    ///
    /// See [`BrokerError`].
    pub fn open(
        &self,
        queue: (TniId, CqId),
        stags: u32,
        mrq_size: u8,
        session: bool,
    ) -> Result<IsolatedQueue, BrokerError> {
        let queue = Queue::from(queue);
        let entries = |code: u8| queue_entries(code.into()).ok_or(BrokerError::Answer);
        let (orders, notices) = (entries(TOQ_SIZE)?, entries(mrq_size)?);
        let request = IsolatedRequest::OpenQueue { queue, stags, mrq_size, session };
        let (file, event) = self.memory_of(request)?;
        let page = BrokerPage { broker: Arc::clone(&self.broker), page: Page::Queue(queue) };
        let cut = Cut::default();
        let rings = map_rings(&cut, &file, orders, notices).map_err(|_| cannot_map())?;
        let wake = match event {
            None => None,
            Some(event) => {
                let arm = map_arm(&cut, &file).map_err(|_| cannot_map())?;
                let event = Arc::clone(self.event.get_or_init(|| Arc::new(event)));
                Some(Wake { arm, event })
            }
        };
        let (broker, memory) = (Arc::clone(&self.broker), Arc::clone(&self.memory));
        Ok(IsolatedQueue { rings: Rings::new(rings, page), wake, queue, broker, memory })
    }

    /// Opens a barrier channel with gates of this process. The broker ignores the group, subnet and
    /// interrupts of `config` and sets its own.
    ///
    /// # Errors
    ///
    /// The errors of the gates, or a [`BrokerError`].
    pub fn open_channel(
        &self,
        config: &ChannelConfig,
        profile: Profile,
        gates: &[Gate],
    ) -> Result<Result<IsolatedChannel, BrokerError>, ChannelError> {
        config.check(profile, gates)?;
        Ok(self.open_checked((config.tni, config.bch), profile, gates))
    }

    fn open_checked(
        &self,
        channel: (TniId, BchId),
        profile: Profile,
        gates: &[Gate],
    ) -> Result<IsolatedChannel, BrokerError> {
        let channel = Channel::from(channel);
        let gates = gates.iter().map(GateLinks::from).collect();
        let (file, _) = self.memory_of(IsolatedRequest::OpenChannel { channel, gates })?;
        let notices = Cut::default().next(&file, NOTICE_SIZE).map_err(|_| cannot_map())?;
        let page = BrokerPage { broker: Arc::clone(&self.broker), page: Page::Channel(channel) };
        let rounds = Rounds::new(notices, page, profile, 0);
        Ok(IsolatedChannel { rounds, channel, broker: Arc::clone(&self.broker) })
    }

    /// Asks for memory. Returns its file, and an eventfd if one comes with it.
    fn memory_of(
        &self,
        request: IsolatedRequest,
    ) -> Result<(OwnedFd, Option<OwnedFd>), BrokerError> {
        let (Answer::Memory, fds) = self.broker.ask(&Request::Isolated(request))? else {
            return Err(BrokerError::Answer);
        };
        let mut fds = fds.into_iter();
        let file = fds.next().ok_or(BrokerError::Answer)?;
        Ok((file, fds.next()))
    }
}

/// The means by which the broker wakes a process that shares a queue and has requested it.
#[derive(Debug)]
pub struct Wake {
    arm: Arm<Part>,
    event: Arc<OwnedFd>,
}

impl Wake {
    /// The descriptor that becomes readable.
    pub fn fd(&self) -> i32 {
        self.event.as_raw_fd()
    }

    /// Forgets an event that has come, and requests one for the next entry. The caller must poll
    /// afterwards.
    pub fn ask(&self) {
        // The broker has made it so that this does not wait.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.arm.ask();
    }

    /// Withdraws that.
    pub fn ask_no_more(&self) {
        self.arm.withdraw();
    }
}

/// The rings of a process that shares a queue, for the broker, which serves them.
#[derive(Debug)]
pub struct SharedRings {
    /// The file of all of them, for the process.
    pub file: OwnedFd,
    /// The rings.
    pub rings: RingMemory<Part>,
    /// The word by which the process requests to be woken.
    pub arm: Arm<Part>,
}

impl SharedRings {
    /// Makes blank ones: the answer to [`IsolatedRequest::OpenQueue`] with a message receive queue
    /// of size code `mrq_size`.
    ///
    /// # Errors
    ///
    /// If there is no such size, or no memory.
    pub fn new(mrq_size: u8) -> io::Result<Self> {
        let entries = |code: u8| queue_entries(code.into()).ok_or(io::ErrorKind::InvalidInput);
        let (orders, notices) = (entries(TOQ_SIZE)?, entries(mrq_size)?);
        let sizes = RingMemory::<Part>::sizes(orders, notices).into_iter();
        let pages = sizes.chain([Arm::<Part>::SIZE]).map(|size| size.next_multiple_of(page()));
        let file = memory_file("tofu-rings", pages.sum::<usize>() as u64, Resize::Grow)?;
        let cut = Cut::default();
        let rings = map_rings(&cut, &file, orders, notices).map_err(io::Error::other)?;
        let arm = map_arm(&cut, &file)?;
        Ok(Self { file, rings, arm })
    }
}

fn page() -> usize {
    page_size() as usize
}

fn map_rings(
    cut: &Cut,
    file: &OwnedFd,
    orders: u32,
    notices: u32,
) -> Result<RingMemory<Part>, DmaError> {
    RingMemory::new(orders, notices, |size, _| {
        cut.next(file, size).map_err(|_| DmaError { size, align: page() })
    })
}

fn map_arm(cut: &Cut, file: &OwnedFd) -> io::Result<Arm<Part>> {
    cut.next(file, Arm::<Part>::SIZE).map(Arm::of)
}

fn cannot_map() -> BrokerError {
    let source = io::ErrorKind::OutOfMemory.into();
    BrokerError::System { what: "mapping the memory of a queue", source }
}

/// Parts of a file in the order in which they are in it, in whole pages each.
#[derive(Default)]
struct Cut(std::cell::Cell<u64>);

impl Cut {
    fn next(&self, file: &OwnedFd, len: usize) -> io::Result<Part> {
        let whole = len.next_multiple_of(page());
        let file = FileOffset::new(File::from(file.try_clone()?), self.0.get());
        let memory = MmapRegion::from_file(file, whole).map_err(io::Error::other)?;
        self.0.set(self.0.get() + whole as u64);
        Ok(Part { memory, len })
    }
}

/// Memory that the device writes or reads. Only the broker has its device address.
pub struct Part {
    memory: MmapRegion<()>,
    len: usize,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Part({} bytes)", self.len)
    }
}

impl VolatileBuffer for Part {
    fn addr(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    #[inline]
    fn memory(&self) -> VolatileSlice<'_> {
        self.memory.get_slice(0, self.len).expect("the region is as long at least")
    }
}

/// A page of registers that is reached through the broker.
#[derive(Debug)]
pub struct BrokerPage {
    broker: Arc<Broker>,
    page: Page,
}

impl UserPage for BrokerPage {
    /// A register that cannot be read reads as ones.
    fn read(&self, offset: u64) -> u64 {
        let request = IsolatedRequest::Read { page: self.page, offset: offset as u16 };
        match self.broker.ask(&Request::Isolated(request)) {
            Ok((Answer::Value(value), _)) => value,
            _ => u64::MAX,
        }
    }

    fn write(&self, offset: u64, value: u64) {
        // A message is a system call, so it comes after all earlier writes to memory.
        let request = IsolatedRequest::Write { page: self.page, offset: offset as u16, value };
        self.broker.tell(&Request::Isolated(request));
    }
}

fn done(broker: &Broker, request: IsolatedRequest) -> Result<(), BrokerError> {
    match broker.ask(&Request::Isolated(request))? {
        (Answer::Done, _) => Ok(()),
        _ => Err(BrokerError::Answer),
    }
}

/// A control queue of a process that is kept apart. Dropping it closes it.
#[derive(Debug)]
pub struct IsolatedQueue {
    rings: Rings<Part, BrokerPage>,
    wake: Option<Wake>,
    queue: Queue,
    broker: Arc<Broker>,
    memory: Arc<OwnMemory>,
}

impl IsolatedQueue {
    /// The rings, to post to and to poll.
    pub const fn rings(&self) -> &Rings<Part, BrokerPage> {
        &self.rings
    }

    /// The rings, to post to and to poll.
    pub const fn rings_mut(&mut self) -> &mut Rings<Part, BrokerPage> {
        &mut self.rings
    }

    /// The means by which the process is woken, if it shares the queue.
    pub const fn wake(&self) -> Option<&Wake> {
        self.wake.as_ref()
    }

    /// Returns true if the device still has the queue. It loses it if it is reset.
    pub fn works(&self) -> bool {
        self.rings.page().read(CqReg::RxPayloadByte.offset()) != u64::MAX
    }

    /// Registers memory of this process under an STag that is free, so that its first byte has this
    /// offset. Its pages become pages of a file that the broker also has; their content stays the
    /// same.
    ///
    /// # Errors
    ///
    /// See [`RegisterError`].
    ///
    /// # Safety
    ///
    /// Until [`IsolatedQueue::deregister`], or until the queue is closed, the process treats the
    /// memory as memory that others may change at any time.
    #[allow(unsafe_code)]
    pub unsafe fn register(
        &self,
        (addr, len): (usize, usize),
        stag: u32,
        offset: u64,
        read_only: bool,
    ) -> Result<(), RegisterError> {
        // SAFETY: as promised to this function.
        let shared = unsafe { self.memory.share(addr, len, read_only) };
        let (file, runs) = shared.map_err(RegisterError::Share)?;
        let request = Request::Isolated(IsolatedRequest::Register {
            queue: self.queue,
            stag,
            offset,
            address: addr as u64,
            len: len as u64,
            read_only,
            runs,
        });
        match self.broker.ask_with(&request, &[file.as_fd()]) {
            Ok((Answer::Done, _)) => Ok(()),
            Ok(_) => Err(RegisterError::Broker(BrokerError::Answer)),
            Err(error) => Err(RegisterError::Broker(error)),
        }
    }

    /// Registers memory that this process has mapped for the device, at an address that no other
    /// process has. The STag must be free. The first byte gets the offset `offset`.
    ///
    /// # Errors
    ///
    /// If the broker does not allow it, as most do not, or the device has no room for it.
    pub fn register_mapped(
        &self,
        (address, len): (u64, u64),
        stag: u32,
        offset: u64,
        read_only: bool,
    ) -> Result<(), BrokerError> {
        let queue = self.queue;
        let request =
            IsolatedRequest::RegisterMapped { queue, stag, offset, address, len, read_only };
        done(&self.broker, request)
    }

    /// Deregisters memory. When it returns, the device no longer uses it.
    ///
    /// # Errors
    ///
    /// If the broker or the device does not do it.
    pub fn deregister(&self, stag: u32) -> Result<(), BrokerError> {
        done(&self.broker, IsolatedRequest::Deregister { queue: self.queue, stag })
    }
}

impl Drop for IsolatedQueue {
    fn drop(&mut self) {
        let closed = done(&self.broker, IsolatedRequest::CloseQueue { queue: self.queue });
        // A broker that is gone has closed it.
        if let Err(error @ BrokerError::Refused { why: Refusal::InUse, .. }) = closed {
            log::error!("{error}");
        }
    }
}

/// A barrier channel of a process that is kept apart. Dropping it closes it.
#[derive(Debug)]
pub struct IsolatedChannel {
    rounds: Rounds<Part, BrokerPage>,
    channel: Channel,
    broker: Arc<Broker>,
}

impl IsolatedChannel {
    /// The rounds, to start and to poll.
    pub const fn rounds_mut(&mut self) -> &mut Rounds<Part, BrokerPage> {
        &mut self.rounds
    }

    /// Exceptions of the channel's gates, and none if the broker has gone; `None` if the device has
    /// lost the channel, by a reset.
    pub fn exceptions(&self) -> Option<BgsIrqs> {
        let request = IsolatedRequest::Exceptions { channel: self.channel };
        match self.broker.ask(&Request::Isolated(request)) {
            Ok((Answer::Value(value), _)) => Some(BgsIrqs::from_raw(value)),
            Err(BrokerError::Refused { .. }) => None,
            _ => Some(BgsIrqs::NONE),
        }
    }
}

impl Drop for IsolatedChannel {
    fn drop(&mut self) {
        let closed = done(&self.broker, IsolatedRequest::CloseChannel { channel: self.channel });
        if let Err(error @ BrokerError::Refused { why: Refusal::InUse, .. }) = closed {
            log::error!("{error}");
        }
    }
}
