//! The part of the device for a process that does not have the device itself: queues and channels
//! that are opened for it, with tables and registers that it cannot write to.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use tofu_abi::irq::{BgsIrqs, CqsIrqs};
use tofu_abi::queue::queue_entries;
use tofu_abi::regs::{PAGE_SIZE, bch_page, cq_page};
use tofu_abi::table::PageSize;
use tofu_abi::{BchId, CqId, TniId};
use tofu_driver::{
    Access, Channel, ChannelConfig, ChannelError, Cq, CqConfig, Device, DmaError, Gate,
    MemoryRange, OpenError, Platform, RingMemory, Stag,
};
use tofu_queue_owner::{Refused, Rights};
use tofu_vfio::broker::wire::Refusal;
use tofu_vfio::{Buffer, FileMemory, MapError, VfioPlatform};

/// The most registrations of a process at a time: each is an IOMMU mapping, and the kernel permits
/// 65535 of these for a device.
const MAX_REGISTRATIONS: usize = 8192;
/// The memory of a steering tag: an entry in each of two tables, and what is noted of it.
const STAG_BYTES: u64 = 64;
/// The memory of a registration besides its pages: a table of one page at least, and objects.
const REGISTRATION_BYTES: u64 = 8192;

/// A queue to be opened.
#[derive(Clone, Copy, Debug)]
pub struct NewQueue {
    /// Network interface and number.
    pub queue: (TniId, CqId),
    /// Steering tags.
    pub stags: u32,
    /// Size code of the message receive queue.
    pub mrq_size: u8,
    /// Commands start as the session advances.
    pub session: bool,
}

impl NewQueue {
    /// Bytes of memory that it takes: rings, tables, and what is noted of each steering tag.
    pub fn cost(&self) -> u64 {
        let (tni, cq) = self.queue;
        let entries = |code: u8| queue_entries(code.into()).unwrap_or(0);
        let (orders, notices) = (entries(CqConfig::new(tni, cq).toq_size), entries(self.mrq_size));
        let rings: usize = RingMemory::<Buffer>::sizes(orders, notices).iter().sum();
        rings as u64 + u64::from(self.stags) * STAG_BYTES
    }
}

/// Memory to be registered.
#[derive(Clone, Copy, Debug)]
pub struct NewMemory<'a> {
    /// The queue.
    pub queue: (TniId, CqId),
    /// The steering tag.
    pub stag: u32,
    /// Offset of the first byte.
    pub offset: u64,
    /// Address of the first byte in the process.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// It must not be written to.
    pub read_only: bool,
    /// The file that it is in.
    pub file: BorrowedFd<'a>,
    /// Its runs in the file: offset and length.
    pub runs: &'a [(u64, u64)],
}

impl NewMemory<'_> {
    /// Bytes of memory that it takes: its pages, their table, and what is noted of it here and in
    /// the kernel.
    pub fn cost(&self) -> u64 {
        let pages = self.runs.iter().fold(0u64, |sum, (_, len)| sum.saturating_add(*len));
        pages.saturating_add(pages / PAGE_SIZE * 8).saturating_add(REGISTRATION_BYTES)
    }
}

/// A page of registers.
#[derive(Clone, Copy, Debug)]
pub enum Registers {
    /// The page of a queue.
    Queue((TniId, CqId)),
    /// The page of a channel.
    Channel((TniId, BchId)),
}

/// The part of a device that a process has. Queues and gates belong to the process; dropping this
/// closes those that are open.
pub trait Part {
    /// Opens a queue, and returns the file of its rings.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be opened.
    fn open_queue(&mut self, new: &NewQueue) -> Result<OwnedFd, Refused>;

    /// Closes a queue.
    ///
    /// # Errors
    ///
    /// If it is not open, or does not stop; in that case its memory stays mapped.
    fn close_queue(&mut self, queue: (TniId, CqId)) -> Result<(), Refused>;

    /// Registers memory with a queue.
    ///
    /// # Errors
    ///
    /// The reason why that is impossible.
    fn register(&mut self, new: &NewMemory<'_>) -> Result<(), Refused>;

    /// Deregisters memory.
    ///
    /// # Errors
    ///
    /// If it was not registered, or the device does not release it.
    fn deregister(&mut self, queue: (TniId, CqId), stag: u32) -> Result<(), Refused>;

    /// Opens a channel with gates that belong to the process, and returns the file of its notices.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be opened.
    fn open_channel(&mut self, channel: (TniId, BchId), gates: &[Gate])
    -> Result<OwnedFd, Refused>;

    /// Closes a channel.
    ///
    /// # Errors
    ///
    /// If it is not open, or does not stop.
    fn close_channel(&mut self, channel: (TniId, BchId)) -> Result<(), Refused>;

    /// The exceptions that the gates of a channel report.
    ///
    /// # Errors
    ///
    /// If it is not open.
    fn exceptions(&self, channel: (TniId, BchId)) -> Result<u64, Refused>;

    /// Writes a register of a page that belongs to the process.
    ///
    /// # Errors
    ///
    /// If it is not open, or there is no such register.
    fn write(&self, page: Registers, offset: u16, value: u64) -> Result<(), Refused>;

    /// Reads one.
    ///
    /// # Errors
    ///
    /// As for [`Part::write`], and if the device has lost the queue or channel, by a reset.
    fn read(&self, page: Registers, offset: u16) -> Result<u64, Refused>;

    /// Bytes of the node's memory that it has, by [`NewQueue::cost`] and [`NewMemory::cost`].
    fn taken(&self) -> u64;
}

/// A queue of a process.
struct Queue {
    // Dropped first, so that the device uses nothing when the rest is dropped.
    cq: Option<Cq<VfioPlatform>>,
    registered: BTreeMap<u32, (Stag, FileMemory, u64)>,
    cost: u64,
}

impl Queue {
    fn close(mut self) -> Result<(), Refused> {
        let closed = self.cq.take().map_or(Ok(()), Cq::close);
        closed.map_err(|error| {
            // The device may still write there.
            std::mem::forget(std::mem::take(&mut self.registered));
            Refused::new(Refusal::InUse, format!("a control queue does not stop: {error}"))
        })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.cq.take().is_some_and(|cq| cq.close().is_err()) {
            std::mem::forget(std::mem::take(&mut self.registered));
        }
    }
}

/// The part of a device behind VFIO.
pub(crate) struct VfioPart {
    device: Device<VfioPlatform>,
    rights: Rights,
    queues: BTreeMap<(TniId, CqId), Queue>,
    channels: BTreeMap<(TniId, BchId), Channel<VfioPlatform>>,
}

fn wrong(text: impl Into<String>) -> Refused {
    Refused::new(Refusal::Wrong, text)
}

fn no_queue() -> Refused {
    wrong("the control queue is not open")
}

fn no_channel() -> Refused {
    wrong("the barrier channel is not open")
}

fn lost() -> Refused {
    Refused::new(Refusal::NoDevice, "the device was reset, and has lost it".to_owned())
}

fn none_left(error: impl std::fmt::Display) -> Refused {
    Refused::new(Refusal::NoneLeft, error.to_string())
}

/// Checks that a process that has registered memory so many times may do it again.
pub(crate) fn check_registrations(many: usize) -> Result<(), Refused> {
    if many < MAX_REGISTRATIONS {
        return Ok(());
    }
    let text = format!("a process may register memory {MAX_REGISTRATIONS} times");
    Err(Refused::new(Refusal::NoneLeft, text))
}

/// An error of a process's memory.
pub(crate) fn map_error(error: MapError) -> Refused {
    match error {
        MapError::Range { .. } => wrong(error.to_string()),
        error => none_left(error),
    }
}

impl VfioPart {
    /// The part of a device for a process with these rights.
    pub(crate) fn new(device: Device<VfioPlatform>, rights: Rights) -> Self {
        Self { device, rights, queues: BTreeMap::new(), channels: BTreeMap::new() }
    }

    fn enable(&self, tni: TniId) -> Result<(), Refused> {
        let broken = |error| Refused::new(Refusal::NoDevice, format!("TNI {tni}: {error}"));
        self.device.tni(tni).enable().map_err(broken)
    }

    /// Memory for buffers of these sizes, and its file.
    fn memory(&self, sizes: &[usize]) -> Result<(OwnedFd, Vec<Buffer>), Refused> {
        self.device.platform().alloc_file(sizes).map_err(none_left)
    }

    /// The address of a register.
    fn register_at(&self, page: Registers, offset: u16) -> Result<u64, Refused> {
        let offset = u64::from(offset);
        if !offset.is_multiple_of(8) || offset >= PAGE_SIZE {
            return Err(wrong("there is no such register"));
        }
        Ok(offset
            + match page {
                Registers::Queue(queue) => {
                    self.queues.get(&queue).ok_or_else(no_queue)?;
                    cq_page(queue.0, queue.1)
                }
                Registers::Channel(channel) => {
                    self.channels.get(&channel).ok_or_else(no_channel)?;
                    bch_page(channel.0, channel.1)
                }
            })
    }
}

impl Part for VfioPart {
    fn open_queue(&mut self, new: &NewQueue) -> Result<OwnedFd, Refused> {
        let &NewQueue { queue: (tni, cq), stags, mrq_size, session } = new;
        if self.queues.contains_key(&(tni, cq)) {
            return Err(wrong("the control queue is open already"));
        }
        self.enable(tni)?;
        let config = CqConfig {
            stags,
            mrq_size,
            gpid: self.rights.gpid,
            mode: self.rights.subnet.mode().with_session(session),
            interrupts: CqsIrqs::NONE,
            ..CqConfig::new(tni, cq)
        };
        let mut file = None;
        let opened = Cq::open_in(&self.device, &config, |orders, notices| {
            let sizes = RingMemory::<Buffer>::sizes(orders, notices);
            let error = DmaError { size: sizes.iter().sum(), align: PAGE_SIZE as usize };
            let (made, buffers) = self.memory(&sizes).map_err(|_| error)?;
            file = Some(made);
            let rings = <[Buffer; 3]>::try_from(buffers).map_err(|_| error)?;
            Ok(RingMemory::of(rings, orders, notices))
        });
        let opened = opened.map_err(|error| match error {
            OpenError::Memory(_) => none_left(error),
            OpenError::Busy(_) => Refused::new(Refusal::InUse, error.to_string()),
            OpenError::Enable(_) | OpenError::Interrupt(_) | OpenError::OldDevice(_) => {
                Refused::new(Refusal::NoDevice, error.to_string())
            }
            OpenError::NoSuchCq { .. } | OpenError::QueueSize(_) | OpenError::Stags(_) => {
                wrong(error.to_string())
            }
        })?;
        let queue = Queue { cq: Some(opened), registered: BTreeMap::new(), cost: new.cost() };
        self.queues.insert((tni, cq), queue);
        file.ok_or_else(|| none_left("no memory for rings"))
    }

    fn close_queue(&mut self, queue: (TniId, CqId)) -> Result<(), Refused> {
        self.queues.remove(&queue).ok_or_else(no_queue)?.close()
    }

    fn register(&mut self, new: &NewMemory<'_>) -> Result<(), Refused> {
        let &NewMemory { queue, stag, offset, address, len, read_only, file, runs } = new;
        check_registrations(self.queues.values().map(|queue| queue.registered.len()).sum())?;
        let queue = self.queues.get_mut(&queue).ok_or_else(no_queue)?;
        let cq = queue.cq.as_mut().ok_or_else(no_queue)?;
        let mapped = self.device.platform().map_file(file, runs, address, len);
        let memory = mapped.map_err(map_error)?;
        let range = MemoryRange { addr: memory.device_addr(), len };
        // As in the library, for memory that it maps itself. A holder of the STag also reaches the
        // memory before it in its page, down to offset 0, but no memory of another process.
        let page = match len {
            _ if offset > memory.device_addr() & 0xffff => PageSize::Size4K,
            0..=0x1_0000 => PageSize::Size64K,
            _ => PageSize::Size2M,
        };
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        let stag = cq.register_at(range, page, access, stag, offset);
        let stag = stag.map_err(|error| wrong(error.to_string()))?;
        queue.registered.insert(stag.stag(), (stag, memory, new.cost()));
        Ok(())
    }

    fn deregister(&mut self, queue: (TniId, CqId), stag: u32) -> Result<(), Refused> {
        let queue = self.queues.get_mut(&queue).ok_or_else(no_queue)?;
        let (Some(cq), Some((stag, memory, _))) =
            (queue.cq.as_mut(), queue.registered.remove(&stag))
        else {
            return Err(wrong("no memory is registered under this steering tag"));
        };
        cq.unregister(stag).map_err(|error| {
            std::mem::forget(memory);
            Refused::new(Refusal::InUse, error.to_string())
        })
    }

    fn open_channel(
        &mut self,
        (tni, bch): (TniId, BchId),
        gates: &[Gate],
    ) -> Result<OwnedFd, Refused> {
        for tni in TniId::ALL {
            if gates.iter().any(|gate| gate.tni == tni) {
                self.enable(tni)?;
            }
        }
        let config = ChannelConfig {
            gpid: self.rights.gpid,
            subnet: self.rights.subnet.mode(),
            interrupts: BgsIrqs::NONE,
            ..ChannelConfig::new(tni, bch)
        };
        let mut file = None;
        let channel = Channel::open_in(&self.device, &config, gates, |size| {
            let error = DmaError { size, align: size };
            let (made, buffers) = self.memory(&[size]).map_err(|_| error)?;
            file = Some(made);
            buffers.into_iter().next().ok_or(error)
        });
        let channel = channel.map_err(|error| match error {
            ChannelError::Subnet { .. } => wrong(error.to_string()),
            error => Refused::new(Refusal::InUse, error.to_string()),
        })?;
        self.channels.insert((tni, bch), channel);
        file.ok_or_else(|| none_left("no memory for notices"))
    }

    fn close_channel(&mut self, channel: (TniId, BchId)) -> Result<(), Refused> {
        let channel = self.channels.remove(&channel).ok_or_else(no_channel)?;
        channel.close().map_err(|error| Refused::new(Refusal::InUse, error.to_string()))
    }

    fn exceptions(&self, channel: (TniId, BchId)) -> Result<u64, Refused> {
        let channel = self.channels.get(&channel).ok_or_else(no_channel)?;
        if channel.is_enabled() { Ok(channel.exceptions().raw()) } else { Err(lost()) }
    }

    fn write(&self, page: Registers, offset: u16, value: u64) -> Result<(), Refused> {
        let at = self.register_at(page, offset)?;
        self.device.platform().doorbell_write64(at, value);
        Ok(())
    }

    fn read(&self, page: Registers, offset: u16) -> Result<u64, Refused> {
        let at = self.register_at(page, offset)?;
        let works = match page {
            Registers::Queue(queue) => {
                let cq = self.queues.get(&queue).and_then(|open| open.cq.as_ref());
                cq.is_some_and(|cq| cq.status().cq_enable())
            }
            Registers::Channel(channel) => {
                self.channels.get(&channel).is_some_and(Channel::is_enabled)
            }
        };
        if works { Ok(self.device.platform().bar0_read64(at)) } else { Err(lost()) }
    }

    fn taken(&self) -> u64 {
        let registered = self.queues.values().flat_map(|queue| queue.registered.values());
        let queues: u64 = self.queues.values().map(|queue| queue.cost).sum();
        registered.map(|(_, _, cost)| cost).sum::<u64>() + queues
    }
}
