//! A control queue: its registers, and the rings that they set up.

use core::mem;

use thiserror::Error;
use tofu_abi::cq::{CqRings, StagTables};
use tofu_abi::irq::{CqsIrqs, vector};
use tofu_abi::queue::queue_entries;
use tofu_abi::regs::{CqReg, CqsMode, CqsReg, CqsStatus, TniReg, cq_page, cqs_page, tni_base};
use tofu_abi::table::PageSize;
use tofu_abi::{CqId, TniId};

use crate::arm::Arm;
use crate::device::{Device, DevicePage, IrqUnit, TimedOut, listed};
use crate::order::Order;
use crate::platform::{DmaBuffer, DmaError, IrqError, Platform, UserPage};
use crate::rings::{Completion, Full, Notice, RingMemory, Rings};
use crate::tables::{Access, MAX_STAGS, Memory, MemoryRange, Stag, StagError, Tables};

/// Configuration of a control queue. Start from [`CqConfig::new`].
#[derive(Clone, Debug)]
pub struct CqConfig {
    /// Network interface.
    pub tni: TniId,
    /// Control queue.
    pub cq: CqId,
    /// Size code of the transmit queues: 2^(2 code + 11) entries, code 0 to 5.
    pub toq_size: u8,
    /// Size code of the message receive queue.
    pub mrq_size: u8,
    /// Number of STags, 1 to 65536.
    pub stags: u32,
    /// Group process id. Queues communicate only with queues of the same id.
    pub gpid: u64,
    /// Rights and subnet.
    pub mode: CqsMode,
    /// MRQ_MASK, see [`tofu_abi::regs::MRQ_MASK_DISCARD`].
    pub mrq_mask: u64,
    /// Longest time that the device holds back a TCQ entry, in nanoseconds.
    pub tcq_coalescing_ns: u64,
    /// Longest time that the device holds back an MRQ entry, in nanoseconds.
    pub mrq_coalescing_ns: u64,
    /// Longest time that the device holds back an MRQ interrupt, in nanoseconds.
    pub mrq_interrupt_ns: u64,
    /// Number of entries after which an MRQ interrupt is no longer held back.
    pub mrq_interrupt_count: u64,
    /// If bit n is set, notices with id n do not request an interrupt.
    pub mrq_interrupt_mask: u64,
    /// Requests to unmask. With none the queue is only polled.
    pub interrupts: CqsIrqs,
    /// The time for which [`Cq::wait`] polls before it sleeps, in nanoseconds.
    pub spin_ns: u64,
}

impl CqConfig {
    /// A queue with the smallest rings (2048 entries) and 256 STags. The nodes that it communicates
    /// with are not limited. Completions, notices and exceptions raise interrupts.
    pub const fn new(tni: TniId, cq: CqId) -> Self {
        Self {
            tni,
            cq,
            toq_size: 0,
            mrq_size: 0,
            stags: 256,
            gpid: 0,
            mode: CqsMode(0),
            mrq_mask: 0,
            tcq_coalescing_ns: 0,
            mrq_coalescing_ns: 0,
            mrq_interrupt_ns: 0,
            mrq_interrupt_count: 0,
            mrq_interrupt_mask: 0,
            interrupts: CqsIrqs::ALL,
            spin_ns: 0,
        }
    }
}

/// The reason why a control queue cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// The device has no such queue.
    #[error("there is no CQ {cq} on TNI {tni}")]
    NoSuchCq {
        /// Network interface.
        tni: TniId,
        /// Control queue.
        cq: CqId,
    },
    /// A size code beyond 5.
    #[error("queue size code {0} is not 0 to 5")]
    QueueSize(u8),
    /// The number of STags is 0 or above 65536.
    #[error("a queue has 1 to {MAX_STAGS} STags, not {0}")]
    Stags(u32),
    /// The queue is already enabled, so it is in use.
    #[error("the queue is in use (STATUS {:#x})", .0.0)]
    Busy(CqsStatus),
    /// No memory for rings and tables.
    #[error(transparent)]
    Memory(DmaError),
    /// No interrupt is left.
    #[error(transparent)]
    Interrupt(IrqError),
    /// Timed out enabling the queue.
    #[error(transparent)]
    Enable(TimedOut),
    /// The device lacks the register of this name, which is needed to request interrupts.
    #[error("the device has no {0}: the tofu that runs it is older than this driver")]
    OldDevice(&'static str),
}

/// Descriptions of the exceptions of a control queue.
const EXCEPTIONS: [(CqsIrqs, &str); 11] = [
    (CqsIrqs::TOQ_READ_EXCEPTION, "TOQ unreadable"),
    (CqsIrqs::TOQ_DIRECT_DESCRIPTOR_EXCEPTION, "direct descriptor misused"),
    (CqsIrqs::TOQ_MARKED_UE, "TOQ entry damaged in memory"),
    (CqsIrqs::TCQ_WRITE_EXCEPTION, "TCQ not writable"),
    (CqsIrqs::TOQ_SOURCE_TYPE_EXCEPTION, "descriptor from the wrong source"),
    (CqsIrqs::MRQ_WRITE_EXCEPTION, "MRQ not writable"),
    (CqsIrqs::MRQ_OVERFLOW, "MRQ overflow"),
    (CqsIrqs::STEERING_READ_EXCEPTION, "steering entry unusable"),
    (CqsIrqs::MB_READ_EXCEPTION, "memory block or page entry unusable"),
    (CqsIrqs::PAYLOAD_READ_EXCEPTION, "payload unreadable"),
    (CqsIrqs::PAYLOAD_WRITE_EXCEPTION, "payload not writable"),
];

/// The device reports exceptions of a control queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("control queue exception:{} (STATUS {:#x})", listed(*irr, &EXCEPTIONS), status.0)]
pub struct CqException {
    /// Pending exceptions of IRR.
    pub irr: CqsIrqs,
    /// STATUS at that time.
    pub status: CqsStatus,
}

/// The reason why a wait failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WaitError {
    /// The wait timed out.
    #[error("timed out")]
    TimedOut,
    /// The device reports an exception, which stays pending until
    /// [`Cq::clear_exceptions`].
    #[error(transparent)]
    Exception(CqException),
}

/// An open control queue.
///
/// Dropping it closes it. If the device does not release the queue then, its memory is never freed,
/// so that the device cannot write to memory that has another owner.
#[derive(Debug)]
pub struct Cq<P: Platform> {
    tni: TniId,
    cq: CqId,
    system: u64,
    vector: u16,
    interrupts: CqsIrqs,
    spin_ns: u64,

    rings: Rings<P::Dma, DevicePage<P>>,
    tables: Tables<P>,

    /// The word for interrupt requests, if the queue has interrupts.
    arm: Option<Arm<P::Dma>>,
    open: bool,
}

impl<P: Platform> Cq<P> {
    /// Opens a control queue with empty rings and no STags. It can send and receive only while its
    /// network interface is enabled.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(device: &Device<P>, config: &CqConfig) -> Result<Self, OpenError> {
        let alloc = |size, align| device.platform().alloc_dma(size, align);
        Self::open_in(device, config, |orders, notices| RingMemory::new(orders, notices, alloc))
    }

    /// Like [`Cq::open`], with rings in the caller's memory. `rings` gets the required numbers of
    /// entries. This is for a process that opens queues which another process posts to and polls.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open_in(
        device: &Device<P>,
        config: &CqConfig,
        rings: impl FnOnce(u32, u32) -> Result<RingMemory<P::Dma>, DmaError>,
    ) -> Result<Self, OpenError> {
        let (tni, cq) = (config.tni, config.cq);
        let platform = device.platform();
        let present = platform.bar0_read64(tni_base(tni) + TniReg::CqPresent.offset());
        if present >> cq.get() & 1 == 0 {
            return Err(OpenError::NoSuchCq { tni, cq });
        }
        if config.stags == 0 || config.stags > MAX_STAGS {
            return Err(OpenError::Stags(config.stags));
        }
        let entries = |code: u8| queue_entries(code.into()).ok_or(OpenError::QueueSize(code));
        let (orders, notices) = (entries(config.toq_size)?, entries(config.mrq_size)?);
        let system = cqs_page(tni, cq);
        let status = CqsStatus(platform.bar0_read64(system + CqsReg::Status.offset()));
        if status.cq_enable() {
            return Err(OpenError::Busy(status));
        }
        let vector = vector::cq(tni, cq);
        if !config.interrupts.is_empty() {
            platform.irq_enable(vector).map_err(OpenError::Interrupt)?;
        }

        let arm = (!config.interrupts.is_empty()).then(|| Arm::new(platform));
        let arm = arm.transpose().map_err(OpenError::Memory)?;
        let memory = rings(orders, notices).map_err(OpenError::Memory)?;
        let page = DevicePage::new(device.clone(), cq_page(tni, cq));
        let mut queue = Self {
            tni,
            cq,
            system,
            vector,
            interrupts: config.interrupts,
            spin_ns: config.spin_ns,
            rings: Rings::new(memory, page),
            tables: Tables::new(platform, cq, config.stags).map_err(OpenError::Memory)?,
            arm,
            open: true,
        };
        queue.enable(config).map_err(OpenError::Enable)?;
        if let Some(arm) = &queue.arm {
            let reg = CqsReg::InterruptArmIpa;
            if queue.read(reg) != arm.addr() {
                return Err(OpenError::OldDevice(reg.name()));
            }
        }
        // Consumes an interrupt from before the reset of the unit.
        if !queue.interrupts.is_empty() {
            platform.irq_wait(vector, 0);
        }
        Ok(queue)
    }

    fn enable(&mut self, config: &CqConfig) -> Result<(), TimedOut> {
        let stags = self.tables.len();
        let rings = self.rings.memory();
        let rings = CqRings {
            toq: rings.toq_addr(),
            toq_size: config.toq_size,
            tcq: rings.tcq_addr(),
            mrq: rings.mrq_addr(),
            mrq_size: config.mrq_size,
            mrq_mask: config.mrq_mask,
            tcq_coalescing_ns: config.tcq_coalescing_ns,
            mrq_coalescing_ns: config.mrq_coalescing_ns,
        };
        let tables = StagTables {
            blocks: self.tables.blocks().device_addr(),
            block_count: stags,
            steering: self.tables.steering().device_addr(),
            stags,
        };
        let settings = [
            (CqsReg::Mode, config.mode.0),
            (CqsReg::Gpid, config.gpid),
            (CqsReg::MrqInterruptCoalescingTimer, config.mrq_interrupt_ns),
            (CqsReg::MrqInterruptCoalescingCount, config.mrq_interrupt_count),
            (CqsReg::MrqInterruptMask, config.mrq_interrupt_mask),
            (CqsReg::InterruptArmIpa, self.arm.as_ref().map_or(0, Arm::addr)),
        ];
        for (reg, value) in settings.into_iter().chain(rings.registers()).chain(tables.registers())
        {
            self.write(reg, value);
        }
        self.irq().reset(self.interrupts);
        self.write(CqsReg::Enable, 1);
        let status = self.system + CqsReg::Status.offset();
        let enabled = |v| CqsStatus(v).cq_enable();
        self.device().poll_register(status, "STATUS.CQ_ENABLE to be set", enabled).map(drop)
    }

    /// Gives a queue that was opened without interrupts those for new entries, for callers that
    /// begin to wait later. Nothing fires before [`Cq::ask_interrupt`]. `masked` is
    /// [`CqConfig::mrq_interrupt_mask`]. Does nothing if the queue has interrupts.
    ///
    /// # Errors
    ///
    /// [`OpenError::Memory`], [`OpenError::Interrupt`] and [`OpenError::OldDevice`].
    pub fn enable_interrupts(&mut self, masked: u64) -> Result<(), OpenError> {
        if self.arm.is_some() {
            return Ok(());
        }
        let platform = self.device().platform();
        platform.irq_enable(self.vector).map_err(OpenError::Interrupt)?;
        let arm = Arm::new(platform).map_err(OpenError::Memory)?;
        // From here on, the device uses the word instead of IRR.
        self.write(CqsReg::InterruptArmIpa, arm.addr());
        if self.read(CqsReg::InterruptArmIpa) != arm.addr() {
            return Err(OpenError::OldDevice(CqsReg::InterruptArmIpa.name()));
        }
        self.write(CqsReg::MrqInterruptMask, masked);
        self.irq().reset(CqsIrqs::ACKNOWLEDGES);
        self.interrupts = CqsIrqs::ACKNOWLEDGES;
        self.arm = Some(arm);
        Ok(())
    }

    /// Forgets an interrupt that has come, for callers that wait in their own event loop.
    pub fn take_interrupt(&self) {
        if self.arm.is_some() {
            self.device().platform().irq_wait(self.vector, 0);
        }
    }

    /// The descriptor of the queue's interrupt, see [`Platform::irq_fd`].
    pub fn interrupt_fd(&self) -> Option<i32> {
        self.arm.as_ref()?;
        self.device().platform().irq_fd(self.vector)
    }

    /// Stops the queue and frees its memory. Incomplete commands end, and their completions are
    /// lost.
    ///
    /// # Errors
    ///
    /// If the device does not stop within 3 s. The queue's memory is then never freed.
    pub fn close(mut self) -> Result<(), TimedOut> {
        self.shut_down()
    }

    fn shut_down(&mut self) -> Result<(), TimedOut> {
        if !mem::replace(&mut self.open, false) {
            return Ok(());
        }
        self.device().disable_queue(self.tni, self.cq);
        if let Err(e) = self.device().finish_queue(self.tni, self.cq) {
            // Commands that still run may write to the rings and read the tables. So this memory
            // must never be reused.
            self.rings.leak();
            mem::forget(self.arm.take());
            self.tables.leak();
            return Err(e);
        }
        Ok(())
    }

    /// Network interface of the queue.
    pub fn tni(&self) -> TniId {
        self.tni
    }

    /// Number of the queue on its network interface.
    pub fn cq(&self) -> CqId {
        self.cq
    }

    /// The device that the queue belongs to.
    pub fn device(&self) -> &Device<P> {
        self.rings.page().device()
    }

    fn write(&self, reg: CqsReg, value: u64) {
        self.device().platform().bar0_write64(self.system + reg.offset(), value);
    }

    fn irq(&self) -> IrqUnit<'_, P, CqsIrqs> {
        self.device().cqs_irq(self.tni, self.cq)
    }

    fn read(&self, reg: CqsReg) -> u64 {
        self.device().platform().bar0_read64(self.system + reg.offset())
    }

    /// The value of STATUS.
    pub fn status(&self) -> CqsStatus {
        CqsStatus(self.read(CqsReg::Status))
    }

    /// Registers memory under an STag: `wanted`, or the next free one.
    ///
    /// `ranges` are the parts of the memory in order. Between parts, they must begin and end at
    /// boundaries of pages of size `page`. The memory must stay allocated until [`Cq::unregister`]
    /// or the end of the queue: any peer that knows the STag can reach it.
    ///
    /// # Errors
    ///
    /// See [`StagError`].
    pub fn register(
        &mut self,
        ranges: &[MemoryRange],
        page: PageSize,
        access: Access,
        wanted: Option<u32>,
    ) -> Result<Stag, StagError> {
        let platform = self.rings.page().device().platform();
        self.tables.register(platform, &Memory { ranges, page, access }, wanted)
    }

    /// Like [`Cq::register`] for one contiguous range, with a given STag. The first byte of the
    /// range gets the given offset.
    ///
    /// A peer that knows the STag also reaches memory before the range: within the page of its
    /// first byte, but not below offset 0.
    ///
    /// # Errors
    ///
    /// See [`StagError`]. The offset must be the range's address modulo 256.
    pub fn register_at(
        &mut self,
        range: MemoryRange,
        page: PageSize,
        access: Access,
        stag: u32,
        offset: u64,
    ) -> Result<Stag, StagError> {
        let platform = self.rings.page().device().platform();
        let memory = Memory { ranges: &[range], page, access };
        self.tables.register_at(platform, &memory, stag, offset)
    }

    /// Unregisters the memory of an STag: disables its entries and empties the device's translation
    /// cache. Afterwards the device no longer uses the memory.
    ///
    /// # Errors
    ///
    /// If the STag is not registered, or [`StagError::Flush`].
    pub fn unregister(&mut self, stag: Stag) -> Result<(), StagError> {
        self.tables.disable(stag.stag())?;
        self.flush_cache().map_err(StagError::Flush)?;
        self.tables.release(stag.stag());
        Ok(())
    }

    /// Empties the device's translation cache.
    ///
    /// # Errors
    ///
    /// If that takes longer than 3 s.
    pub fn flush_cache(&self) -> Result<(), TimedOut> {
        self.write(CqsReg::CacheFlush, 1);
        let status = self.system + CqsReg::Status.offset();
        self.device()
            .poll_register(status, "STATUS.CACHE_FLUSH_BUSY to be clear", |v| {
                !CqsStatus(v).cache_flush_busy()
            })
            .map(drop)
    }

    /// Number of entries of the transmit order queue.
    pub fn orders(&self) -> usize {
        self.rings.orders()
    }

    /// Number of entries of the message receive queue.
    pub fn notices(&self) -> usize {
        self.rings.notices()
    }

    /// Number of descriptors that can be posted now.
    #[inline]
    pub fn free_slots(&self) -> usize {
        self.rings.free_slots()
    }

    /// See [`Rings::post`].
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    #[inline]
    pub fn post(&mut self, order: &Order, cookie: u64) -> Result<(), Full> {
        self.rings.post(order, cookie)
    }

    /// See [`Rings::post_delayed`].
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    #[inline]
    pub fn post_delayed(&mut self, order: &Order, cookie: u64) -> Result<(), Full> {
        self.rings.post_delayed(order, cookie)
    }

    /// See [`Rings::post_direct`].
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    #[inline]
    pub fn post_direct(&mut self, order: &Order, cookie: u64) -> Result<(), Full> {
        self.rings.post_direct(order, cookie)
    }

    /// See [`Rings::post_and_ring`].
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    #[inline]
    pub fn post_and_ring(&mut self, order: &Order, cookie: u64) -> Result<(), Full> {
        self.rings.post_and_ring(order, cookie)
    }

    /// See [`Rings::doorbell`].
    #[inline]
    pub fn doorbell(&self) {
        self.rings.doorbell();
    }

    /// See [`Rings::poll_tcq`].
    #[inline]
    pub fn poll_tcq(&mut self) -> Option<Completion> {
        self.rings.poll_tcq()
    }

    /// See [`Rings::poll_mrq`].
    #[inline]
    pub fn poll_mrq(&mut self) -> Option<Notice> {
        self.rings.poll_mrq()
    }

    /// See [`Rings::acknowledge_mrq`].
    pub fn acknowledge_mrq(&mut self) {
        self.rings.acknowledge_mrq();
    }

    /// Returns true if [`Cq::poll_tcq`] or [`Cq::poll_mrq`] would return an entry.
    pub fn is_ready(&self) -> bool {
        self.rings.is_ready()
    }

    /// Requests one interrupt for the next entry that interrupts, for callers that wait for it in
    /// their own event loop instead of [`Cq::wait`]. Entries that already exist raise none, so the
    /// caller must poll for them afterwards.
    pub fn ask_interrupt(&self) {
        if let Some(arm) = &self.arm {
            arm.ask();
        }
    }

    /// Withdraws that request. An interrupt may already be in flight.
    pub fn ask_no_more(&self) {
        if let Some(arm) = &self.arm {
            arm.withdraw();
        }
    }

    /// Waits until there is an entry to reap, for at most `timeout_ns` nanoseconds: polls for a
    /// while ([`CqConfig::spin_ns`]), then sleeps until the queue's interrupt. A queue without
    /// interrupts only polls.
    ///
    /// A completion wakes the thread only if its order has [`Order::interrupt`].
    ///
    /// # Errors
    ///
    /// See [`WaitError`]. An exception whose interrupt is masked is not reported here.
    pub fn wait(&mut self, timeout_ns: u64) -> Result<(), WaitError> {
        self.wait_until(timeout_ns, |cq| cq.is_ready().then_some(()))
    }

    /// Takes the next notice, waiting for it as [`Cq::wait`] does.
    ///
    /// # Errors
    ///
    /// As [`Cq::wait`].
    pub fn wait_mrq(&mut self, timeout_ns: u64) -> Result<Notice, WaitError> {
        self.wait_until(timeout_ns, Self::poll_mrq)
    }

    /// Reaps the next completion, waiting for it as [`Cq::wait`] does.
    ///
    /// # Errors
    ///
    /// As [`Cq::wait`].
    pub fn wait_tcq(&mut self, timeout_ns: u64) -> Result<Completion, WaitError> {
        self.wait_until(timeout_ns, Self::poll_tcq)
    }

    fn wait_until<T>(
        &mut self,
        timeout_ns: u64,
        mut poll: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, WaitError> {
        if let Some(found) = poll(self) {
            return Ok(found);
        }
        let start = self.device().platform().now_ns();
        let spin_ns =
            if self.interrupts.is_empty() { timeout_ns } else { self.spin_ns.min(timeout_ns) };
        loop {
            self.device().platform().relax();
            if let Some(found) = poll(self) {
                return Ok(found);
            }
            if self.device().platform().now_ns().saturating_sub(start) >= spin_ns {
                break;
            }
        }
        loop {
            // The order is request, check, sleep. An entry written after the check finds the
            // request; an earlier one is found by the check.
            self.ask_interrupt();
            if let Some(found) = poll(self) {
                self.ask_no_more();
                return Ok(found);
            }
            let platform = self.device().platform();
            let elapsed = platform.now_ns().saturating_sub(start);
            if elapsed >= timeout_ns {
                self.ask_no_more();
                return Err(WaitError::TimedOut);
            }
            if self.interrupts.is_empty() {
                platform.relax();
            } else if platform.irq_wait(self.vector, timeout_ns - elapsed) {
                if let Some(found) = poll(self) {
                    return Ok(found);
                }
                if self.interrupts.intersects(CqsIrqs::EXCEPTIONS)
                    && let Some(exception) = self.exception()
                {
                    return Err(WaitError::Exception(exception));
                }
            }
        }
    }

    /// The pending exceptions, masked or not.
    pub fn exception(&self) -> Option<CqException> {
        let irr = self.irq().pending() & CqsIrqs::EXCEPTIONS;
        (!irr.is_empty()).then(|| CqException { irr, status: self.status() })
    }

    /// Clears pending exceptions, so that they can be reported again.
    pub fn clear_exceptions(&self) {
        self.irq().clear(CqsIrqs::EXCEPTIONS);
    }

    /// Reads a register of the queue's user page, such as a counter.
    pub fn read_page(&self, reg: CqReg) -> u64 {
        self.rings.page().read(reg.offset())
    }
}

impl<P: Platform> Drop for Cq<P> {
    fn drop(&mut self) {
        // The error cannot be returned. The memory is safe in any case.
        let _ = self.shut_down();
    }
}
