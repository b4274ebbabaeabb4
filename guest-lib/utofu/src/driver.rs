//! A provider for a process that drives a device itself.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use tofu_abi::barrier::BgAddress;
use tofu_abi::desc::Descriptor;
use tofu_abi::generation::Generation;
use tofu_abi::irq::{BgsIrqs, CqsIrqs};
use tofu_abi::queue::{MrqEntry, MrqId};
use tofu_abi::reduce::{Input, Op, Value};
use tofu_abi::table::PageSize;
use tofu_abi::{BchId, BgId, Coords, CqId, Rcode, Subnet, TniId};
use tofu_driver::{
    Access, ChannelConfig, ChannelError, Cq, CqConfig, Device, Full, Gate, MemoryRange, OpenError,
    Order, Outcome, Platform, Stag, StagError, StartError, TimedOut,
};

use crate::error::{Code, Error};
use crate::gates::{GatePool, VbgSetting};
use crate::idle::IdlePolls;
use crate::ids::VbgId;
use crate::lock::Lock;
use crate::provider::{Channel, OpenQueue, Provider, Queue, Registration, no_interrupts};

/// Memory of the process that the device can access until this is dropped.
#[derive(Debug)]
pub struct Mapped<M> {
    /// Keeps the memory mapped.
    pub mapping: M,
    /// Address of the first byte for the device. The memory is contiguous there.
    pub device_addr: u64,
    /// True if nothing else is mapped in the 64 KiB before it.
    pub isolated: bool,
}

/// Maps memory of the process for the device behind a platform.
pub trait MapUser<P>: Clone {
    /// A mapping, which is removed when it is dropped.
    type Mapping;

    /// Lets the device behind `platform` access `len` bytes of memory at `addr`.
    ///
    /// # Errors
    ///
    /// As [`Queue::register`].
    ///
    /// # Safety
    ///
    /// Until the mapping is dropped, the memory stays mapped, and the process treats it as memory
    /// that others may change at any time.
    #[allow(unsafe_code)]
    unsafe fn map_user(
        &self,
        platform: &P,
        addr: usize,
        len: usize,
    ) -> Result<Mapped<Self::Mapping>, Error>;
}

/// Prevents processes that share a device from using the same control queues.
pub trait ClaimQueue {
    /// The right to a queue, which is given up when it is dropped.
    type Claim;

    /// Claims a queue before it is opened.
    ///
    /// # Errors
    ///
    /// [`Code::NotAvailable`] if another process has it.
    fn claim(&self, tni: TniId, cq: CqId) -> Result<Self::Claim, Error>;

    /// Takes barrier gates, as [`Provider::take_gates`].
    ///
    /// # Errors
    ///
    /// [`Code::OutOfResource`] if there is no broker.
    fn take_gates(&self, tni: TniId, relays: usize) -> Result<Option<u64>, Error>;

    /// Returns barrier gates.
    fn give_gates(&self, tni: TniId, gates: u64);
}

/// A process with exclusive use of all barrier gates, and of all queues of the device or the given
/// ones.
#[derive(Debug, Default)]
pub struct Unshared {
    gates: Lock<GatePool>,
}

impl Unshared {
    /// Creates it with all barrier gates of a generation's device.
    pub fn new(generation: Generation) -> Self {
        Self { gates: Lock::new(GatePool::new(generation)) }
    }
}

impl ClaimQueue for Unshared {
    type Claim = ();

    fn claim(&self, _: TniId, _: CqId) -> Result<(), Error> {
        Ok(())
    }

    fn take_gates(&self, tni: TniId, relays: usize) -> Result<Option<u64>, Error> {
        Ok(self.gates.lock().take(tni, relays))
    }

    fn give_gates(&self, tni: TniId, gates: u64) {
        self.gates.lock().give(tni, gates);
    }
}

/// A provider in a process that drives a device.
#[derive(Debug)]
pub struct DriverProvider<P: Platform, M, C = Unshared> {
    device: Device<P>,
    memory: M,
    claims: C,
    mrq_size: u8,
    gpid: u64,
    subnet: Subnet,
    direct: bool,
}

impl<P: Platform, M> DriverProvider<P, M> {
    /// Creates a provider of the queues of `device` for processes of the group `gpid`, with message
    /// receive queues of size code `mrq_size` (0 to 5). `memory` maps registered memory.
    pub fn new(device: Device<P>, memory: M, mrq_size: u8, gpid: u64) -> Self {
        let claims = Unshared::new(device.generation());
        Self { device, memory, claims, mrq_size, gpid, subnet: Subnet::default(), direct: false }
    }

    /// Confines the processes to a subnet.
    #[must_use]
    pub fn with_subnet(self, subnet: Subnet) -> Self {
        Self { subnet, ..self }
    }

    /// Passes commands to the device by direct descriptors when it is ready for one, which saves it
    /// a read of memory. A processor stores them in one burst; on an emulated device each store may
    /// be an exit, so queues are the default.
    #[must_use]
    pub fn with_direct_descriptors(self, direct: bool) -> Self {
        Self { direct, ..self }
    }

    /// Shares the device with other processes by `claims`.
    pub fn with_claims<C>(self, claims: C) -> DriverProvider<P, M, C> {
        let Self { device, memory, claims: _, mrq_size, gpid, subnet, direct } = self;
        DriverProvider { device, memory, claims, mrq_size, gpid, subnet, direct }
    }
}

impl<P: Platform, M, C> DriverProvider<P, M, C> {
    /// Returns the device.
    pub const fn device(&self) -> &Device<P> {
        &self.device
    }

    fn enable(&self, tni: TniId) -> Result<(), Error> {
        let hint = "the device does not enable the interface";
        let broken = |_| Error::with_value(Code::Fatal, "TNI", tni.get().into(), hint);
        self.device.tni(tni).enable().map_err(broken)
    }
}

impl<P: Platform, M: MapUser<P>, C: ClaimQueue> Provider for DriverProvider<P, M, C> {
    type Queue = DriverQueue<P, M, C::Claim>;
    type Channel = DriverChannel<tofu_driver::Channel<P>>;

    fn coords(&self) -> Coords {
        self.device.coords()
    }

    fn open(&self, queue: &OpenQueue) -> Result<Self::Queue, Error> {
        let claim = self.claims.claim(queue.tni, queue.cq)?;
        self.enable(queue.tni)?;
        let config = CqConfig {
            stags: queue.stags,
            mrq_size: self.mrq_size,
            gpid: self.gpid,
            mode: self.subnet.mode().with_session(queue.session),
            // The library polls.
            interrupts: CqsIrqs::NONE,
            ..CqConfig::new(queue.tni, queue.cq)
        };
        let cq = Cq::open(&self.device, &config).map_err(open_error)?;
        let memory = self.memory.clone();
        let registered = BTreeMap::new();
        let (idle, direct) = (IdlePolls::default(), self.direct);
        Ok(DriverQueue { cq, memory, registered, idle, is_lost: false, direct, _claim: claim })
    }

    fn generation(&self) -> Generation {
        self.device.generation()
    }

    fn take_gates(&self, tni: TniId, relays: usize) -> Result<Option<u64>, Error> {
        self.claims.take_gates(tni, relays)
    }

    fn give_gates(&self, tni: TniId, gates: u64) {
        self.claims.give_gates(tni, gates);
    }

    fn open_channel(
        &self,
        tni: TniId,
        bch: BchId,
        gates: &[VbgSetting],
    ) -> Result<Self::Channel, Error> {
        let gates = gates.iter().map(VbgSetting::gate).collect::<Result<Vec<Gate>, _>>()?;
        for tni in TniId::ALL {
            if gates.iter().any(|gate| gate.tni == tni) {
                self.enable(tni)?;
            }
        }
        // The library polls.
        let config = ChannelConfig {
            gpid: self.gpid,
            subnet: self.subnet.mode(),
            interrupts: BgsIrqs::NONE,
            ..ChannelConfig::new(tni, bch)
        };
        let channel = tofu_driver::Channel::open(&self.device, &config, &gates)?;
        Ok(DriverChannel::new(channel))
    }

    fn relax(&self) {
        self.device.platform().relax();
    }
}

/// Returns the address of a gate.
fn address(id: VbgId) -> BgAddress {
    BgAddress(0).with_bg(id.bg()).with_tni(id.tni()).with_coords(id.coords())
}

impl VbgSetting {
    /// Converts the setting to the driver's form.
    ///
    /// # Errors
    ///
    /// [`Code::InvalidVbgId`] for an interface that does not exist.
    pub fn gate(&self) -> Result<Gate, Error> {
        let path = |to: BgAddress| self.path.map_or(to, |path| to.with_path(path));
        let number = |id: VbgId| BgId::from_field(id.bg());
        Ok(Gate {
            tni: TniId::new(self.id.tni()).ok_or_else(|| {
                let hint = "the device does not have it";
                Error::with_value(Code::InvalidVbgId, "VBG ID", self.id.0, hint)
            })?,
            bg: number(self.id),
            src_local: self.src_local.map(number),
            src_remote: self.src_remote.map(|from| address(from).place()),
            dst_local: self.dst_local.map(number),
            dst_remote: self.dst_remote.map(|to| path(address(to))),
        })
    }
}

impl From<ChannelError> for Error {
    fn from(error: ChannelError) -> Self {
        const WHAT: &str = "barrier gate";
        let gate = |code, bg: BgId, hint| Error::with_value(code, WHAT, bg.get().into(), hint);
        match error {
            ChannelError::NoSuchChannel { bch, .. } => {
                gate(Code::InvalidVbgId, bch.gate(), "the device does not have it")
            }
            ChannelError::NoSuchGate { bg, .. } => {
                gate(Code::InvalidVbgId, bg, "the device does not have it")
            }
            ChannelError::Twice { bg, .. } => gate(Code::InvalidVbgId, bg, "it is named twice"),
            ChannelError::StartGate { bg, .. } => {
                gate(Code::InvalidVbgId, bg, "a channel has one start and end gate, its own")
            }
            ChannelError::NoSuchAddress { bg, .. } => {
                gate(Code::InvalidVbgId, bg, "it is linked to a gate that no node has")
            }
            ChannelError::Subnet { bg, .. } => gate(
                Code::InvalidVbgId,
                bg,
                "it is linked to a gate outside of the process's subnet",
            ),
            ChannelError::LocalLink { bg, .. } => {
                gate(Code::InvalidVbgId, bg, "the gate that it is linked to is not linked to it")
            }
            ChannelError::NoSource { bg, .. } => {
                gate(Code::InvalidArg, bg, "it waits for no gate, so it would never fire")
            }
            ChannelError::NeverFires { bg, .. } => gate(
                Code::InvalidArg,
                bg,
                "it waits for gates that wait for it, so it would never fire",
            ),
            ChannelError::Busy { bg, .. } => {
                gate(Code::Used, bg, "it is in use, by whom this library does not know")
            }
            ChannelError::Refused { bg, .. } => {
                gate(Code::InvalidVbgId, bg, "the device refuses its links: a gate does not exist")
            }
            ChannelError::Memory(_) => Error::new(Code::OutOfMemory, WHAT, "no memory for results"),
            ChannelError::Interrupt(_) | ChannelError::Number(_) => {
                Error::new(Code::OutOfResource, WHAT, "the device does not allow for it")
            }
            ChannelError::Enable(_) => {
                Error::new(Code::Fatal, WHAT, "the device does not enable it")
            }
        }
    }
}

pub(crate) fn open_error(error: OpenError) -> Error {
    const WHAT: &str = "control queue";
    match error {
        OpenError::NoSuchCq { cq, .. } => Error::with_value(
            Code::NotAvailable,
            WHAT,
            cq.get().into(),
            "the device does not have it",
        ),
        OpenError::Busy(_) => Error::new(Code::NotAvailable, WHAT, "another process has it"),
        OpenError::Memory(_) => Error::new(Code::OutOfMemory, WHAT, "no memory for its rings"),
        OpenError::QueueSize(_) | OpenError::Stags(_) | OpenError::Interrupt(_) => {
            Error::new(Code::OutOfResource, WHAT, "the device does not allow for its size")
        }
        OpenError::Enable(_) => Error::new(Code::Fatal, WHAT, "the device does not enable it"),
        OpenError::OldDevice(_) => {
            Error::new(Code::Fatal, WHAT, "the tofu that runs the device is older than this driver")
        }
    }
}

/// After this many polls that found nothing, a queue or the gates of a channel are checked for
/// errors, which takes longer.
const POLLS_WITHOUT_QUESTION: u32 = 1 << 16;

/// A barrier channel, as the driver provides it.
pub trait DriverBarrier {
    /// See [`tofu_driver::Rounds::start`].
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    fn start(&mut self, op: Op, input: &Input, count: u8) -> Result<(), StartError>;

    /// See [`tofu_driver::Rounds::poll`].
    fn poll(&mut self) -> Option<Outcome>;

    /// Returns exceptions that the channel's gates report; `None` if the device has lost them, by
    /// a reset.
    fn exceptions(&self) -> Option<BgsIrqs>;

    /// Called by a thread whose polls have found nothing for some microseconds.
    fn yield_processor(&self) {}

    /// Closes the channel.
    ///
    /// # Errors
    ///
    /// If the device does not release it.
    fn close(self) -> Result<(), TimedOut>;
}

impl<P: Platform> DriverBarrier for tofu_driver::Channel<P> {
    fn start(&mut self, op: Op, input: &Input, count: u8) -> Result<(), StartError> {
        self.start(op, input, count)
    }

    #[inline]
    fn poll(&mut self) -> Option<Outcome> {
        self.poll()
    }

    fn exceptions(&self) -> Option<BgsIrqs> {
        self.is_enabled().then(|| self.exceptions())
    }

    fn yield_processor(&self) {
        self.device().platform().yield_processor();
    }

    fn close(self) -> Result<(), TimedOut> {
        self.close()
    }
}

/// A barrier channel of a device that the process drives.
pub struct DriverChannel<B> {
    channel: B,
    idle: IdlePolls,
}

impl<B: DriverBarrier> DriverChannel<B> {
    /// Wraps an open channel.
    pub fn new(channel: B) -> Self {
        Self { channel, idle: IdlePolls::default() }
    }
}

impl<B: DriverBarrier> Channel for DriverChannel<B> {
    fn start(&mut self, op: Op, input: &Input, count: u8) -> Result<(), Error> {
        self.channel.start(op, input, count).map_err(|error| match error {
            StartError::Busy => {
                let hint = "its last round has not ended: free its gates, and allocate others";
                Error::new(Code::Busy, "barrier channel", hint)
            }
            StartError::Count { max, .. } => {
                let hint = "the device reduces no more elements in a round";
                Error::with_value(Code::InvalidNumber, "elements above", max.into(), hint)
            }
        })
    }

    #[inline]
    fn poll(&mut self) -> Result<Option<Value>, Error> {
        let found = self.channel.poll();
        if let Some(outcome) = self.idle.note(found, || self.channel.yield_processor()) {
            return match outcome.op {
                Some(_) => Ok(Some(outcome.value)),
                None => {
                    let hint = "members of the group have started different operations";
                    Err(Error::new(Code::BarrierMismatch, "barrier", hint))
                }
            };
        }
        if self.idle.count().is_multiple_of(POLLS_WITHOUT_QUESTION) {
            let exceptions = self.channel.exceptions().ok_or_else(|| {
                let hint = "the device was reset: free its gates, and allocate others";
                Error::new(Code::Fatal, "barrier channel", hint)
            })?;
            if exceptions.intersects(BgsIrqs::DMA_COMPLETION_EXCEPTION) {
                let hint = "the device could not write the result";
                return Err(Error::with_value(
                    Code::BarrierOther,
                    "exceptions",
                    exceptions.raw(),
                    hint,
                ));
            }
            if exceptions.intersects(BgsIrqs::BG_SEND_ADDRESS_EXCEPTION) {
                let hint = "a gate could not send to the gate that it is linked to";
                return Err(Error::with_value(
                    Code::BarrierOther,
                    "exceptions",
                    exceptions.raw(),
                    hint,
                ));
            }
        }
        Ok(None)
    }

    fn close(self: Box<Self>) -> Result<(), Error> {
        let hint = "the device does not release it";
        self.channel.close().map_err(|_| Error::new(Code::Fatal, "barrier channel", hint))
    }
}

/// A control queue of a device that the process drives.
pub struct DriverQueue<P: Platform, M: MapUser<P>, C = ()> {
    // First, so that it is closed before its memory is freed.
    cq: Cq<P>,
    memory: M,
    registered: BTreeMap<u32, (Stag, M::Mapping)>,
    idle: IdlePolls,
    is_lost: bool,
    /// True if commands go by direct descriptors, which need no doorbell.
    direct: bool,
    // Last, when the queue is not used any more.
    _claim: C,
}

impl<P: Platform, M: MapUser<P>, C> DriverQueue<P, M, C> {
    /// Returns the driver's queue.
    pub fn cq(&self) -> &Cq<P> {
        &self.cq
    }

    #[inline]
    fn polled<T>(&mut self, found: Option<T>) -> Option<T> {
        let found = self.idle.note(found, || self.cq.device().platform().yield_processor());
        if found.is_none() && self.idle.count().is_multiple_of(POLLS_WITHOUT_QUESTION) {
            self.look();
        }
        found
    }
}

/// The kinds of notices about the queue's own commands, one bit each. The device writes one for
/// each command. They do not interrupt: a program that waits for the command's end has requested an
/// interrupt with the completion, which the device writes at the same time.
const LOCAL_NOTICES: u64 = {
    let (mut local, mut at) = (0, 0);
    while at < MrqId::ALL.len() {
        if !MrqId::ALL[at].is_halfway() {
            local |= 1 << MrqId::ALL[at] as u8;
        }
        at += 1;
    }
    local
};

impl<P: Platform, M: MapUser<P>, C> Queue for DriverQueue<P, M, C> {
    fn orders(&self) -> usize {
        self.cq.orders()
    }

    fn notices(&self) -> usize {
        self.cq.notices()
    }

    #[inline]
    fn free_slots(&self) -> usize {
        self.cq.free_slots()
    }

    #[inline]
    fn post(&mut self, descriptors: &[Descriptor], delayed: bool) -> Result<(), Full> {
        let order = Order::raw(descriptors);
        match (delayed, self.direct) {
            (true, _) => self.cq.post_delayed(&order, 0),
            (false, true) => self.cq.post_direct(&order, 0),
            (false, false) => self.cq.post(&order, 0),
        }
    }

    #[inline]
    fn ring(&mut self) {
        if !self.direct {
            self.cq.doorbell();
        }
    }

    #[inline]
    fn poll_completion(&mut self) -> Option<Rcode> {
        let found = self.cq.poll_tcq().map(|done| done.rcode);
        self.polled(found)
    }

    #[inline]
    fn poll_notice(&mut self) -> Option<MrqEntry> {
        let found = self.cq.poll_mrq();
        self.polled(found)
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn interrupt_fd(&mut self) -> Result<i32, Error> {
        const WHAT: &str = "waiting for a control queue";
        self.cq.enable_interrupts(LOCAL_NOTICES).map_err(|error| match error {
            OpenError::Memory(_) => Error::new(Code::OutOfMemory, WHAT, "no memory is left"),
            OpenError::OldDevice(_) => {
                let hint = "the tofu that runs the device is older than this library: poll";
                Error::new(Code::NotSupported, WHAT, hint)
            }
            _ => no_interrupts(),
        })?;
        self.cq.interrupt_fd().ok_or_else(no_interrupts)
    }

    fn ask_interrupt(&mut self) {
        self.cq.take_interrupt();
        self.cq.ask_interrupt();
    }

    fn ask_no_more(&mut self) {
        self.cq.ask_no_more();
    }

    fn look(&mut self) {
        self.is_lost = !self.cq.status().cq_enable();
    }

    #[allow(unsafe_code)]
    unsafe fn register(&mut self, memory: &Registration) -> Result<(), Error> {
        let platform = self.cq.device().platform();
        // SAFETY: guaranteed by the caller. The mapping ends with the registration.
        let mapped = unsafe { self.memory.map_user(platform, memory.addr, memory.len)? };
        let range = MemoryRange { addr: mapped.device_addr, len: memory.len as u64 };
        // Large pages make tables small and translation fast, but expose what is before the memory.
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
            // The device may still use the memory, so it stays mapped until the process ends.
            core::mem::forget(mapping);
            let hint = "the device does not release the memory";
            return Err(Error::with_value(Code::Fatal, "steering tag", stag.into(), hint));
        }
        Ok(())
    }
}

pub(crate) fn register_error(error: StagError) -> Error {
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
