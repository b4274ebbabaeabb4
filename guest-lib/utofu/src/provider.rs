//! What the library needs from whoever has the device.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use tofu_abi::Coords;
use tofu_abi::desc::Descriptor;
use tofu_abi::queue::{MrqEntry, queue_entries};
use tofu_abi::regs::CqsMode;
use tofu_abi::table::PageSize;
use tofu_driver::{
    Access, Cq, CqConfig, Device, Full, MemoryRange, OpenError, Order, Platform, Stag, StagError,
};

use crate::error::{Code, Error};

/// A control queue to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenQueue {
    /// Network interface, 0 to 5.
    pub tni: u8,
    /// Control queue, 0 to 10.
    pub cq: u8,
    /// Steering tags.
    pub stags: u32,
    /// Commands start as the session advances.
    pub session: bool,
}

/// Gives a process control queues of its node's device.
pub trait Provider {
    /// A control queue.
    type Queue: Queue;

    /// The node.
    fn coords(&self) -> Coords;

    /// Opens a control queue, with its interface at work.
    ///
    /// # Errors
    ///
    /// [`Code::NotAvailable`] if somebody else has it, [`Code::OutOfResource`] or
    /// [`Code::OutOfMemory`] if there is nothing left for it, [`Code::Fatal`] if the device does
    /// not answer.
    fn open(&self, queue: &OpenQueue) -> Result<Self::Queue, Error>;

    /// Called while a thread waits for the device.
    fn relax(&self);
}

/// Memory to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Address in the process.
    pub addr: usize,
    /// Length in bytes, not 0.
    pub len: usize,
    /// The steering tag, which is not in use.
    pub stag: u32,
    /// Offset that the first byte is to have, the same as the address modulo 256.
    pub offset: u64,
    /// Nobody may write to it.
    pub read_only: bool,
}

/// An open control queue.
///
/// Dropping it closes it; what it had registered is not used any more then.
pub trait Queue {
    /// Entries of the transmit order queue.
    fn orders(&self) -> usize;

    /// Entries of the message receive queue.
    fn notices(&self) -> usize;

    /// Descriptors that can be posted now.
    fn free_slots(&self) -> usize;

    /// Posts one command of one or two descriptors; one that is `delayed` waits for the next
    /// that is not.
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    fn post(&mut self, descriptors: &[Descriptor], delayed: bool) -> Result<(), Full>;

    /// Starts what was posted.
    fn ring(&mut self);

    /// The result code of the next command, in the order of posting.
    fn poll_completion(&mut self) -> Option<u8>;

    /// The next notice.
    fn poll_notice(&mut self) -> Option<MrqEntry>;

    /// Lets the device reach memory.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidAddress`] for memory that cannot be reached, [`Code::OutOfResource`] or
    /// [`Code::OutOfMemory`] if there is nothing left for it.
    ///
    /// # Safety
    ///
    /// Until [`Queue::deregister`] or the end of the queue, the memory stays mapped, and the
    /// process treats it as memory that others may change at any time.
    #[allow(unsafe_code)]
    unsafe fn register(&mut self, memory: &Registration) -> Result<(), Error>;

    /// Takes memory back. When it returns, the device uses it no more.
    ///
    /// # Errors
    ///
    /// [`Code::Fatal`] if the device does not let go of it.
    fn deregister(&mut self, stag: u32) -> Result<(), Error>;
}

/// Memory of the process that the device can reach until this is dropped.
#[derive(Debug)]
pub struct Mapped<M> {
    /// Keeps it so.
    pub mapping: M,
    /// Address of the first byte for the device; what follows is contiguous.
    pub device_addr: u64,
    /// Nothing else is mapped in the 64 KiB in front of it.
    pub isolated: bool,
}

/// Lends the device behind a platform memory of the process.
pub trait MapUser<P>: Clone {
    /// A loan, which ends when it is dropped.
    type Mapping;

    /// Lets the device behind `platform` reach `len` bytes of memory at `addr`.
    ///
    /// # Errors
    ///
    /// As [`Queue::register`].
    ///
    /// # Safety
    ///
    /// Until the loan ends, the memory stays mapped, and the process treats it as memory that
    /// others may change at any time.
    #[allow(unsafe_code)]
    unsafe fn map_user(
        &self,
        platform: &P,
        addr: usize,
        len: usize,
    ) -> Result<Mapped<Self::Mapping>, Error>;
}

/// Keeps processes that share a device off each other's control queues.
pub trait ClaimQueue {
    /// The right to a queue, which ends when it is dropped.
    type Claim;

    /// Asks for a queue that is to be opened.
    ///
    /// # Errors
    ///
    /// [`Code::NotAvailable`] if another process has it.
    fn claim(&self, tni: u8, cq: u8) -> Result<Self::Claim, Error>;
}

/// A process that has all queues of the device, or those that it was told of, for itself.
impl ClaimQueue for () {
    type Claim = ();

    fn claim(&self, _: u8, _: u8) -> Result<(), Error> {
        Ok(())
    }
}

/// A provider in a process that drives a device.
#[derive(Debug)]
pub struct DriverProvider<P: Platform, M, C = ()> {
    device: Device<P>,
    memory: M,
    claims: C,
    mrq_size: u8,
    gpid: u64,
}

impl<P: Platform, M> DriverProvider<P, M> {
    /// Gives out the queues of `device`, with message receive queues of size code `mrq_size` (0 to
    /// 5), to processes of the group `gpid`; `memory` lends it memory to be registered.
    pub const fn new(device: Device<P>, memory: M, mrq_size: u8, gpid: u64) -> Self {
        Self { device, memory, claims: (), mrq_size, gpid }
    }

    /// The same for a device that is shared with other processes.
    pub fn with_claims<C>(self, claims: C) -> DriverProvider<P, M, C> {
        let Self { device, memory, claims: (), mrq_size, gpid } = self;
        DriverProvider { device, memory, claims, mrq_size, gpid }
    }
}

impl<P: Platform, M, C> DriverProvider<P, M, C> {
    /// The device.
    pub const fn device(&self) -> &Device<P> {
        &self.device
    }
}

impl<P: Platform, M: MapUser<P>, C: ClaimQueue> Provider for DriverProvider<P, M, C> {
    type Queue = DriverQueue<P, M, C::Claim>;

    fn coords(&self) -> Coords {
        self.device.coords()
    }

    fn open(&self, queue: &OpenQueue) -> Result<Self::Queue, Error> {
        let broken = |_| {
            Error::with_value(
                Code::Fatal,
                "TNI",
                queue.tni.into(),
                "the device does not enable the interface",
            )
        };
        let claim = self.claims.claim(queue.tni, queue.cq)?;
        self.device.tni(queue.tni).and_then(|tni| tni.enable()).map_err(broken)?;
        let config = CqConfig {
            stags: queue.stags,
            mrq_size: self.mrq_size,
            gpid: self.gpid,
            mode: CqsMode(0).with_session(queue.session),
            // The library polls.
            interrupts: 0,
            ..CqConfig::new(queue.tni, queue.cq)
        };
        let cq = Cq::open(&self.device, &config).map_err(open_error)?;
        let notices = queue_entries(self.mrq_size.into()).unwrap_or(0) as usize;
        let orders = cq.free_slots();
        let memory = self.memory.clone();
        let registered = BTreeMap::new();
        Ok(DriverQueue { cq, orders, notices, memory, registered, idle: 0, _claim: claim })
    }

    fn relax(&self) {
        self.device.platform().relax();
    }
}

fn open_error(error: OpenError) -> Error {
    const WHAT: &str = "control queue";
    match error {
        OpenError::NoSuchCq { cq, .. } => {
            Error::with_value(Code::NotAvailable, WHAT, cq.into(), "the device does not have it")
        }
        OpenError::Busy(_) => Error::new(Code::NotAvailable, WHAT, "another process has it"),
        OpenError::Memory(_) => Error::new(Code::OutOfMemory, WHAT, "no memory for its rings"),
        OpenError::QueueSize(_) | OpenError::Stags(_) | OpenError::Interrupt(_) => {
            Error::new(Code::OutOfResource, WHAT, "the device does not allow for its size")
        }
        OpenError::Enable(_) => Error::new(Code::Fatal, WHAT, "the device does not enable it"),
    }
}

/// After so many polls that found nothing the processor is offered to others: a few microseconds.
const POLLS_IN_VAIN: u32 = 64;

/// A control queue of a device that the process drives.
pub struct DriverQueue<P: Platform, M: MapUser<P>, C = ()> {
    // First, so that it is closed before its memory goes.
    cq: Cq<P>,
    orders: usize,
    notices: usize,
    memory: M,
    registered: BTreeMap<u32, (Stag, M::Mapping)>,
    /// Polls since there was something.
    idle: u32,
    // Last, when nobody uses the queue any more.
    _claim: C,
}

impl<P: Platform, M: MapUser<P>, C> DriverQueue<P, M, C> {
    /// The queue as the driver has it.
    pub fn cq(&self) -> &Cq<P> {
        &self.cq
    }

    /// Notes what a poll has found. A program that polls in vain may be keeping what it waits for
    /// from the processor: a device that is a program, or a peer.
    #[inline]
    fn polled<T>(&mut self, found: Option<T>) -> Option<T> {
        if found.is_some() {
            self.idle = 0;
        } else {
            self.idle = self.idle.wrapping_add(1);
            if self.idle.is_multiple_of(POLLS_IN_VAIN) {
                self.cq.device().platform().relax();
            }
        }
        found
    }
}

impl<P: Platform, M: MapUser<P>, C> Queue for DriverQueue<P, M, C> {
    fn orders(&self) -> usize {
        self.orders
    }

    fn notices(&self) -> usize {
        self.notices
    }

    #[inline]
    fn free_slots(&self) -> usize {
        self.cq.free_slots()
    }

    #[inline]
    fn post(&mut self, descriptors: &[Descriptor], delayed: bool) -> Result<(), Full> {
        let order = Order::raw(descriptors);
        if delayed { self.cq.post_delayed(&order, 0) } else { self.cq.post(&order, 0) }
    }

    #[inline]
    fn ring(&mut self) {
        self.cq.doorbell();
    }

    #[inline]
    fn poll_completion(&mut self) -> Option<u8> {
        let found = self.cq.poll_tcq().map(|done| done.rcode);
        self.polled(found)
    }

    #[inline]
    fn poll_notice(&mut self) -> Option<MrqEntry> {
        let found = self.cq.poll_mrq();
        self.polled(found)
    }

    #[allow(unsafe_code)]
    unsafe fn register(&mut self, memory: &Registration) -> Result<(), Error> {
        let platform = self.cq.device().platform();
        // SAFETY: as promised to this function; the loan ends with the registration.
        let mapped = unsafe { self.memory.map_user(platform, memory.addr, memory.len)? };
        let range = MemoryRange { addr: mapped.device_addr, len: memory.len as u64 };
        // Large pages make small tables and quick translations, but open up what is in front.
        let same = (mapped.device_addr ^ memory.addr as u64) & 0xffff == 0;
        let page = match memory.len {
            _ if !mapped.isolated || !same => PageSize::Size4K,
            0..=0x1_0000 => PageSize::Size64K,
            _ => PageSize::Size2M,
        };
        let access = if memory.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let stag = self
            .cq
            .register_at(range, page, access, memory.stag, memory.offset)
            .map_err(register_error)?;
        self.registered.insert(memory.stag, (stag, mapped.mapping));
        Ok(())
    }

    fn deregister(&mut self, stag: u32) -> Result<(), Error> {
        let Some((taken, mapping)) = self.registered.remove(&stag) else {
            return Ok(());
        };
        if self.cq.unregister(taken).is_err() {
            // The device may still use the memory: it stays lent for good.
            core::mem::forget(mapping);
            let hint = "the device does not let go of the memory";
            return Err(Error::with_value(Code::Fatal, "steering tag", stag.into(), hint));
        }
        Ok(())
    }
}

fn register_error(error: StagError) -> Error {
    const WHAT: &str = "memory to be registered";
    match error {
        StagError::Memory(_) => Error::new(Code::OutOfMemory, WHAT, "no memory for its tables"),
        StagError::NoneFree | StagError::InUse(_) | StagError::OutOfRange(_) => {
            Error::new(Code::OutOfResource, WHAT, "the device has no steering tag for it")
        }
        StagError::Empty
        | StagError::NotPages { .. }
        | StagError::Address(_)
        | StagError::Offset(_) => {
            Error::new(Code::InvalidAddress, WHAT, "the device cannot reach it")
        }
        StagError::NotRegistered(_) | StagError::Flush(_) => {
            Error::new(Code::Fatal, WHAT, "the device does not answer")
        }
    }
}

impl<Q: Queue + ?Sized> Queue for Box<Q> {
    fn orders(&self) -> usize {
        (**self).orders()
    }

    fn notices(&self) -> usize {
        (**self).notices()
    }

    fn free_slots(&self) -> usize {
        (**self).free_slots()
    }

    fn post(&mut self, descriptors: &[Descriptor], delayed: bool) -> Result<(), Full> {
        (**self).post(descriptors, delayed)
    }

    fn ring(&mut self) {
        (**self).ring();
    }

    fn poll_completion(&mut self) -> Option<u8> {
        (**self).poll_completion()
    }

    fn poll_notice(&mut self) -> Option<MrqEntry> {
        (**self).poll_notice()
    }

    #[allow(unsafe_code)]
    unsafe fn register(&mut self, memory: &Registration) -> Result<(), Error> {
        // SAFETY: as promised to this function.
        unsafe { (**self).register(memory) }
    }

    fn deregister(&mut self, stag: u32) -> Result<(), Error> {
        (**self).deregister(stag)
    }
}
