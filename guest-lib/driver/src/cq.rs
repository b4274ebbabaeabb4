//! A control queue: rings, doorbell, completions, notices, interrupts.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::mem;
use core::sync::atomic::Ordering;

use tofu_abi::desc::{DESC_SIZE, Descriptor, Header1, source_type};
use tofu_abi::irq;
use tofu_abi::queue::{
    MRQ_ENTRY_SIZE, MrqEntry, MrqWord0, RingIndex, TCQ_ENTRY_SIZE, TcqEntry, queue_entries,
};
use tofu_abi::rcode;
use tofu_abi::regs::{
    CqReg, CqsMode, CqsReg, CqsStatus, NUM_CQ, NUM_TNI, TniReg, cq_page, cqs_page, tni_base,
};
use tofu_abi::table::{PageSize, TABLE_ALIGN};

use crate::device::{Device, IrqUnit, TimedOut};
use crate::order::Order;
use crate::platform::{DmaBuffer, DmaError, IrqError, Platform};
use crate::tables::{Access, MAX_STAGS, MemoryRange, Stag, StagError, Tables};

/// How to open a control queue. Start from [`CqConfig::new`].
#[derive(Clone, Debug)]
pub struct CqConfig {
    /// Network interface, 0 to 5.
    pub tni: u8,
    /// Control queue, 0 to 11; 11 is the kernel's.
    pub cq: u8,
    /// Size code of the transmit queues: 2^(2 code + 11) entries, code 0 to 5.
    pub toq_size: u8,
    /// Size code of the message receive queue.
    pub mrq_size: u8,
    /// STags, 1 to 65536.
    pub stags: u32,
    /// Group process id. Only queues with the same one talk to each other.
    pub gpid: u64,
    /// Rights and subnet.
    pub mode: CqsMode,
    /// MRQ_MASK, see [`tofu_abi::regs::MRQ_MASK_DISCARD`].
    pub mrq_mask: u64,
    /// Longest time that a TCQ entry is held back, in nanoseconds.
    pub tcq_coalescing_ns: u64,
    /// Longest time that an MRQ entry is held back, in nanoseconds.
    pub mrq_coalescing_ns: u64,
    /// Longest time that an MRQ interrupt is held back, in nanoseconds.
    pub mrq_interrupt_ns: u64,
    /// Entries after which a held back MRQ interrupt is sent.
    pub mrq_interrupt_count: u64,
    /// Bit n set keeps notices with id n from requesting an interrupt.
    pub mrq_interrupt_mask: u64,
    /// Requests to unmask, see [`tofu_abi::irq::cqs`]. 0 opens a queue that is only polled.
    pub interrupts: u64,
    /// How long [`Cq::wait`] polls before it sleeps, in nanoseconds.
    pub spin_ns: u64,
}

impl CqConfig {
    /// A queue with the smallest rings (2048 entries), 256 STags, no limits on whom it talks
    /// to, and interrupts for completions, notices and exceptions.
    pub const fn new(tni: u8, cq: u8) -> Self {
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
            interrupts: irq::cqs::ALL,
            spin_ns: 0,
        }
    }
}

/// Why a control queue cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The device has no such queue.
    NoSuchCq {
        /// Network interface.
        tni: u8,
        /// Control queue.
        cq: u8,
    },
    /// A size code beyond 5.
    QueueSize(u8),
    /// No STags, or more than 65536.
    Stags(u32),
    /// The queue is enabled already: someone else uses it.
    Busy(CqsStatus),
    /// No memory for rings and tables.
    Memory(DmaError),
    /// No interrupt.
    Interrupt(IrqError),
    /// The queue did not get enabled.
    Enable(TimedOut),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchCq { tni, cq } => write!(f, "there is no CQ {cq} on TNI {tni}"),
            Self::QueueSize(code) => write!(f, "queue size code {code} is not 0 to 5"),
            Self::Stags(n) => write!(f, "a queue has 1 to {MAX_STAGS} STags, not {n}"),
            Self::Busy(status) => write!(f, "the queue is in use (STATUS {:#x})", status.0),
            Self::Memory(e) => e.fmt(f),
            Self::Interrupt(e) => e.fmt(f),
            Self::Enable(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for OpenError {}

/// The transmit order queue has no room for the descriptors, until more completions are
/// reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("transmit order queue full")
    }
}

impl core::error::Error for Full {}

/// The device reports exceptions of a control queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqException {
    /// Pending exception bits of IRR, see [`tofu_abi::irq::cqs`].
    pub irr: u64,
    /// STATUS at that time.
    pub status: CqsStatus,
}

impl fmt::Display for CqException {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(u64, &str); 11] = [
            (irq::cqs::TOQ_READ_EXCEPTION, "TOQ unreadable"),
            (irq::cqs::TOQ_DIRECT_DESCRIPTOR_EXCEPTION, "direct descriptor misused"),
            (irq::cqs::TOQ_MARKED_UE, "TOQ entry damaged in memory"),
            (irq::cqs::TCQ_WRITE_EXCEPTION, "TCQ not writable"),
            (irq::cqs::TOQ_SOURCE_TYPE_EXCEPTION, "descriptor from the wrong source"),
            (irq::cqs::MRQ_WRITE_EXCEPTION, "MRQ not writable"),
            (irq::cqs::MRQ_OVERFLOW, "MRQ overflow"),
            (irq::cqs::STEERING_READ_EXCEPTION, "steering entry unusable"),
            (irq::cqs::MB_READ_EXCEPTION, "memory block or page entry unusable"),
            (irq::cqs::PAYLOAD_READ_EXCEPTION, "payload unreadable"),
            (irq::cqs::PAYLOAD_WRITE_EXCEPTION, "payload not writable"),
        ];
        f.write_str("control queue exception:")?;
        let set = NAMES.iter().filter(|(bit, _)| self.irr & bit != 0);
        for (i, (_, name)) in set.enumerate() {
            write!(f, "{} {name}", if i == 0 { "" } else { "," })?;
        }
        write!(f, " (STATUS {:#x})", self.status.0)
    }
}

impl core::error::Error for CqException {}

/// Why a wait ended without anything to reap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitError {
    /// Nothing came in time.
    TimedOut,
    /// The device reports an exception, which stays pending until
    /// [`Cq::clear_exceptions`].
    Exception(CqException),
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str("timed out"),
            Self::Exception(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for WaitError {}

/// The end of a command, from its transmit complete queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the command was posted with.
    pub cookie: u64,
    /// How it ended, see [`tofu_abi::rcode`].
    pub rcode: u8,
    /// The entry's length field: bytes of the message.
    pub length: u32,
}

impl Completion {
    /// Whether the command did what it should.
    pub const fn is_success(&self) -> bool {
        self.rcode == rcode::SUCCESS
    }
}

/// An entry of the message receive queue.
pub type Notice = MrqEntry;

/// What the driver remembers about a transmit order queue slot.
#[derive(Clone, Copy, Debug)]
struct Slot {
    cookie: u64,
    /// The command's completion is that of a later slot.
    silent: bool,
}

/// Memory of the three rings.
#[derive(Debug)]
struct Rings<D> {
    toq: D,
    tcq: D,
    mrq: D,
}

/// An open control queue.
///
/// Dropping it closes it. If the device does not let go of the queue then, its memory is
/// never freed, so that the device cannot write to memory that belongs to someone else.
#[derive(Debug)]
pub struct Cq<P: Platform> {
    device: Device<P>,
    tni: u8,
    cq: u8,
    page: u64,
    system: u64,
    vector: u16,
    interrupts: u64,
    spin_ns: u64,

    rings: Arc<Rings<P::Dma>>,
    tables: Tables<P>,

    /// Next transmit order to write.
    post: RingIndex,
    /// Next transmit completion to read.
    reap: RingIndex,
    slots: Vec<Slot>,
    /// [`RingIndex::count`] just after the last direct descriptor.
    direct_end: u64,
    /// Header of the first order that the device must not see yet, and its count.
    held: Option<(u64, Header1)>,
    /// Next notice to read.
    receive: RingIndex,
    /// Notices that the device knows to be consumed.
    full_pointer: u64,
    /// The acknowledge bits of IRR were cleared after the last interrupt.
    armed: bool,
    open: bool,
}

impl<P: Platform> Cq<P> {
    /// Brings up a control queue with empty rings and no STags. Its network interface must
    /// be enabled for it to send or receive.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(device: &Device<P>, config: &CqConfig) -> Result<Self, OpenError> {
        let (tni, cq) = (config.tni, config.cq);
        let platform = device.platform();
        let exists = usize::from(tni) < NUM_TNI
            && usize::from(cq) < NUM_CQ
            && platform.bar0_read64(tni_base(tni) + TniReg::CqPresent.offset()) >> cq & 1 != 0;
        if !exists {
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
        let vector = irq::vector::cq(tni, cq);
        if config.interrupts != 0 {
            platform.irq_enable(vector).map_err(OpenError::Interrupt)?;
        }

        let alloc = |entries: u32, size: usize| {
            platform
                .alloc_dma(entries as usize * size, TABLE_ALIGN as usize)
                .map_err(OpenError::Memory)
        };
        let rings = Rings {
            toq: alloc(orders, DESC_SIZE)?,
            tcq: alloc(orders, TCQ_ENTRY_SIZE)?,
            mrq: alloc(notices, MRQ_ENTRY_SIZE)?,
        };
        let mut queue = Self {
            device: device.clone(),
            tni,
            cq,
            page: cq_page(tni, cq),
            system,
            vector,
            interrupts: config.interrupts,
            spin_ns: config.spin_ns,
            rings: Arc::new(rings),
            tables: Tables::new(platform, cq, config.stags).map_err(OpenError::Memory)?,
            post: RingIndex::new(orders),
            reap: RingIndex::new(orders),
            slots: vec![Slot { cookie: 0, silent: false }; orders as usize],
            direct_end: 0,
            held: None,
            receive: RingIndex::new(notices),
            full_pointer: 0,
            armed: true,
            open: true,
        };
        queue.enable(config).map_err(OpenError::Enable)?;
        // An interrupt from before the reset of the unit is no news.
        if queue.interrupts != 0 {
            platform.irq_wait(vector, 0);
        }
        Ok(queue)
    }

    fn enable(&mut self, config: &CqConfig) -> Result<(), TimedOut> {
        let stags = u64::from(self.tables.len());
        let writes = [
            (CqsReg::Mode, config.mode.0),
            (CqsReg::Gpid, config.gpid),
            (CqsReg::ToqIpa, self.rings.toq.device_addr()),
            (CqsReg::ToqSize, config.toq_size.into()),
            (CqsReg::TcqIpa, self.rings.tcq.device_addr()),
            (CqsReg::MrqIpa, self.rings.mrq.device_addr()),
            (CqsReg::MrqSize, config.mrq_size.into()),
            (CqsReg::MrqMask, config.mrq_mask),
            (CqsReg::TcqDescriptorCoalescingTimer, config.tcq_coalescing_ns),
            (CqsReg::MrqDescriptorCoalescingTimer, config.mrq_coalescing_ns),
            (CqsReg::MrqInterruptCoalescingTimer, config.mrq_interrupt_ns),
            (CqsReg::MrqInterruptCoalescingCount, config.mrq_interrupt_count),
            (CqsReg::MrqInterruptMask, config.mrq_interrupt_mask),
            (CqsReg::MemoryBlockTableIpa, self.tables.blocks().device_addr()),
            (CqsReg::MemoryBlockTableSize, stags),
            (CqsReg::MemoryBlockTableEnable, 1),
            (CqsReg::SteeringTableIpa, self.tables.steering().device_addr()),
            (CqsReg::SteeringTableSize, stags),
            (CqsReg::SteeringTableEnable, 1),
        ];
        for (reg, value) in writes {
            self.write(reg, value);
        }
        self.irq().reset(self.interrupts);
        self.write(CqsReg::Enable, 1);
        let status = self.system + CqsReg::Status.offset();
        let enabled = |v| CqsStatus(v).cq_enable();
        self.device.poll_register(status, "STATUS.CQ_ENABLE to be set", enabled).map(drop)
    }

    /// Stops the queue and frees its memory. Commands that are not complete end; their
    /// completions are lost.
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
        self.device.disable_queue(self.tni, self.cq);
        if let Err(e) = self.device.finish_queue(self.tni, self.cq) {
            // Whatever still runs there may write to the rings and read the tables: they
            // must stay what they are for good.
            mem::forget(Arc::clone(&self.rings));
            self.tables.leak();
            return Err(e);
        }
        Ok(())
    }

    /// Network interface of the queue.
    pub fn tni(&self) -> u8 {
        self.tni
    }

    /// Number of the queue on its network interface.
    pub fn cq(&self) -> u8 {
        self.cq
    }

    /// The device that the queue belongs to.
    pub fn device(&self) -> &Device<P> {
        &self.device
    }

    fn write(&self, reg: CqsReg, value: u64) {
        self.device.platform().bar0_write64(self.system + reg.offset(), value);
    }

    fn irq(&self) -> IrqUnit<'_, P> {
        self.device.cqs_irq(self.tni, self.cq)
    }

    /// STATUS.
    pub fn status(&self) -> CqsStatus {
        CqsStatus(self.device.platform().bar0_read64(self.system + CqsReg::Status.offset()))
    }

    /// Gives memory an STag: `wanted`, or the next one that is free.
    ///
    /// `ranges` are the pieces of the memory in order; in between they must begin and end at
    /// pages of size `page`. The memory must stay allocated until [`Cq::unregister`] or the
    /// end of the queue: whoever knows the STag can reach it.
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
        self.tables.register(self.device.platform(), ranges, page, access, wanted)
    }

    /// Like [`Cq::register`] for one contiguous range, under a given STag and such that the
    /// range's first byte has the given offset.
    ///
    /// Whoever knows the STag reaches, besides the range, what lies in front of it in the pages
    /// that hold its first byte, as far back as offset 0.
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
        self.tables.register_at(self.device.platform(), range, page, access, stag, offset)
    }

    /// Takes an STag's memory back: disables its entries and empties the device's translation
    /// cache. When it returns, the device uses the memory no more.
    ///
    /// # Errors
    ///
    /// If it is not registered, or [`StagError::Flush`].
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
        self.device
            .poll_register(status, "STATUS.CACHE_FLUSH_BUSY to be clear", |v| {
                !CqsStatus(v).cache_flush_busy()
            })
            .map(drop)
    }

    /// Descriptors that can be posted now.
    pub fn free_slots(&self) -> usize {
        self.slots.len() - (self.post.count() - self.reap.count()) as usize
    }

    /// Puts a command into the transmit order queue. The device takes notice at the next
    /// [`Cq::doorbell`] at the latest.
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    pub fn post(&mut self, order: &Order, cookie: u64) -> Result<(), Full> {
        let descriptors = order.descriptors();
        let first = self.claim(descriptors.len(), cookie)?;
        // Backwards, so that the device finds either nothing or the whole command.
        for (i, descriptor) in descriptors.iter().enumerate().rev() {
            self.write_order(first + i as u64, *descriptor);
        }
        self.release();
        Ok(())
    }

    /// Puts a command into the transmit order queue, but keeps it and all that is posted so
    /// after it from the device until the next command is posted in another way. A doorbell
    /// alone does not start them.
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    pub fn post_delayed(&mut self, order: &Order, cookie: u64) -> Result<(), Full> {
        let descriptors = order.descriptors();
        let first = self.claim(descriptors.len(), cookie)?;
        for (i, descriptor) in descriptors.iter().enumerate().rev() {
            let count = first + i as u64;
            if i == 0 && self.held.is_none() {
                // The device stops at this entry as long as it is blank.
                self.write_operands(count, descriptor);
                self.held = Some((count, descriptor.header1()));
            } else {
                self.write_order(count, *descriptor);
            }
        }
        Ok(())
    }

    /// Lets the device have what [`Cq::post_delayed`] kept from it.
    fn release(&mut self) {
        if let Some((count, header)) = self.held.take() {
            self.write_header(count, header);
        }
    }

    /// Tells the device that there are commands. One doorbell is enough for any number.
    pub fn doorbell(&self) {
        self.write_page(CqReg::FetchStart, 1);
    }

    /// [`Cq::post`] and [`Cq::doorbell`].
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    pub fn post_and_ring(&mut self, order: &Order, cookie: u64) -> Result<(), Full> {
        self.post(order, cookie)?;
        self.doorbell();
        Ok(())
    }

    /// Hands a command to the device through the direct descriptor register, which saves it
    /// the reading of the queue. Everything posted before goes first.
    ///
    /// While the last direct descriptor is not complete, the command goes into the queue
    /// instead and the doorbell is rung.
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room.
    pub fn post_direct(&mut self, order: &Order, cookie: u64) -> Result<(), Full> {
        if !self.is_complete(self.direct_end) {
            return self.post_and_ring(order, cookie);
        }
        let descriptors = order.descriptors();
        let n = descriptors.len();
        let first = self.claim(n, cookie)?;
        self.release();
        self.direct_end = self.post.count();
        let direct = |h: Header1| h.with_source_type(source_type::DIRECT);
        // The queue's entries keep the places, so that the command has its turn and its
        // completion entry.
        for i in (0..n as u64).rev() {
            self.write_order(first + i, Descriptor([direct(Header1(0)).0, 0, 0, 0]));
        }
        let mut words = [0; 8];
        for (i, descriptor) in descriptors.iter().enumerate() {
            let [header, rest @ ..] = descriptor.0;
            let header = direct(Header1(header)).with_flip(self.flip(first + i as u64));
            words[i * 4] = header.0;
            words[i * 4 + 1..i * 4 + 4].copy_from_slice(&rest);
        }
        // The first qword goes last: it tells how many there are.
        for i in (0..n * 4).rev() {
            let offset = self.page + CqReg::DirectDescriptor0.offset() + i as u64 * 8;
            self.device.platform().doorbell_write64(offset, words[i]);
        }
        Ok(())
    }

    /// Takes `n` slots for one command and returns the count of the first one.
    fn claim(&mut self, n: usize, cookie: u64) -> Result<u64, Full> {
        if self.free_slots() < n {
            return Err(Full);
        }
        let first = self.post.count();
        for i in 0..n {
            self.slots[self.post.slot() as usize] = Slot { cookie, silent: i + 1 < n };
            self.post.advance();
        }
        Ok(first)
    }

    fn slot(&self, count: u64) -> usize {
        (count & (u64::from(self.post.entries()) - 1)) as usize
    }

    /// Flip bit of a valid entry, see [`RingIndex::flip`].
    fn flip(&self, count: u64) -> bool {
        (count >> self.post.entries().trailing_zeros()) & 1 == 0
    }

    /// Writes the descriptor into its slot and makes it valid.
    fn write_order(&self, count: u64, descriptor: Descriptor) {
        self.write_operands(count, &descriptor);
        // The first word still has the last lap's flip bit and so is blank until here. One
        // store brings the command and its flip bit, after all that is to be seen with it.
        self.write_header(count, descriptor.header1());
    }

    fn write_operands(&self, count: u64, descriptor: &Descriptor) {
        let at = self.slot(count) * DESC_SIZE;
        let [_, a, b, c] = descriptor.0;
        let toq = &self.rings.toq;
        toq.store_u64(at + 8, a, Ordering::Relaxed);
        toq.store_u64(at + 16, b, Ordering::Relaxed);
        toq.store_u64(at + 24, c, Ordering::Relaxed);
    }

    fn write_header(&self, count: u64, header: Header1) {
        let header = header.with_flip(self.flip(count));
        self.rings.toq.store_u64(self.slot(count) * DESC_SIZE, header.0, Ordering::Release);
    }

    /// Whether the commands before `count` are complete, reaped or not.
    fn is_complete(&self, count: u64) -> bool {
        if self.reap.count() >= count {
            return true;
        }
        let entry = self.load_tcq(count - 1);
        entry.flip() == self.flip(count - 1)
    }

    fn load_tcq(&self, count: u64) -> TcqEntry {
        TcqEntry(self.rings.tcq.load_u64(self.slot(count) * TCQ_ENTRY_SIZE, Ordering::Acquire))
    }

    fn tcq_ready(&self) -> bool {
        (self.reap.count()..self.post.count())
            .take_while(|n| self.load_tcq(*n).flip() == self.flip(*n))
            .any(|n| !self.slots[self.slot(n)].silent)
    }

    /// Reaps the next completion, in the order of posting.
    ///
    /// A command of two descriptors has one completion.
    pub fn poll_tcq(&mut self) -> Option<Completion> {
        while self.reap.count() < self.post.count() {
            let entry = self.load_tcq(self.reap.count());
            if entry.flip() != self.reap.flip() {
                return None;
            }
            let slot = self.slots[self.reap.slot() as usize];
            self.reap.advance();
            if !slot.silent {
                let cookie = slot.cookie;
                return Some(Completion { cookie, rcode: entry.rcode(), length: entry.length() });
            }
        }
        None
    }

    fn load_mrq(&self) -> Option<MrqWord0> {
        let at = self.receive.slot() as usize * MRQ_ENTRY_SIZE;
        let word = MrqWord0(self.rings.mrq.load_u64(at, Ordering::Acquire));
        (word.flip() == self.receive.flip()).then_some(word)
    }

    /// Takes the next notice from the message receive queue.
    pub fn poll_mrq(&mut self) -> Option<Notice> {
        let word0 = self.load_mrq()?;
        let at = self.receive.slot() as usize * MRQ_ENTRY_SIZE;
        let word = |i: usize| self.rings.mrq.load_u64(at + i * 8, Ordering::Relaxed);
        let notice = MrqEntry([word0.0, word(1), word(2), word(3)]);
        self.receive.advance();
        // A register write for every notice would cost more than the notice.
        if self.receive.count() - self.full_pointer >= u64::from(self.receive.entries()) / 4 {
            self.acknowledge_mrq();
        }
        Some(notice)
    }

    /// Tells the device how many notices were taken. [`Cq::poll_mrq`] does so for each
    /// quarter of the queue.
    pub fn acknowledge_mrq(&mut self) {
        self.full_pointer = self.receive.count();
        self.write_page(CqReg::MrqFullPointer, self.full_pointer);
    }

    fn write_page(&self, reg: CqReg, value: u64) {
        self.device.platform().doorbell_write64(self.page + reg.offset(), value);
    }

    /// Whether [`Cq::poll_tcq`] or [`Cq::poll_mrq`] has something.
    pub fn is_ready(&self) -> bool {
        self.tcq_ready() || self.load_mrq().is_some()
    }

    /// Waits until there is something to reap, for `timeout_ns` nanoseconds at most: polls
    /// for a while ([`CqConfig::spin_ns`]), then sleeps until the queue's interrupt. A queue
    /// without interrupts only polls.
    ///
    /// A completion wakes the sleeper only if its order asked for an [`Order::interrupt`].
    ///
    /// # Errors
    ///
    /// See [`WaitError`]. An exception whose interrupt is not unmasked goes unseen here.
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
        const ACKNOWLEDGES: u64 = irq::cqs::TCQ_WRITE_ACKNOWLEDGE | irq::cqs::MRQ_WRITE_ACKNOWLEDGE;
        if let Some(found) = poll(self) {
            return Ok(found);
        }
        let start = self.device.platform().now_ns();
        let spin_ns = if self.interrupts == 0 { timeout_ns } else { self.spin_ns.min(timeout_ns) };
        loop {
            self.device.platform().relax();
            if let Some(found) = poll(self) {
                return Ok(found);
            }
            if self.device.platform().now_ns().saturating_sub(start) >= spin_ns {
                break;
            }
        }
        loop {
            // The device sends an interrupt when a request bit goes from 0 to 1. So: clear
            // the bit, look, sleep. An entry written after the look sets the bit anew; one
            // written before was seen. Without an interrupt since the last clearing, the bit
            // is clear still and the register need not be touched.
            if self.interrupts != 0 && !self.armed {
                self.irq().clear(ACKNOWLEDGES);
                // A write may be posted, and arrive after the look: then it would take away the
                // request of an entry that the look has missed. A read overtakes no write.
                self.irq().pending();
                self.armed = true;
            }
            if let Some(found) = poll(self) {
                return Ok(found);
            }
            let platform = self.device.platform();
            let elapsed = platform.now_ns().saturating_sub(start);
            if elapsed >= timeout_ns {
                return Err(WaitError::TimedOut);
            }
            if self.interrupts == 0 {
                platform.relax();
            } else if platform.irq_wait(self.vector, timeout_ns - elapsed) {
                self.armed = false;
                if let Some(found) = poll(self) {
                    return Ok(found);
                }
                if self.interrupts & irq::cqs::EXCEPTIONS != 0
                    && let Some(exception) = self.exception()
                {
                    return Err(WaitError::Exception(exception));
                }
            }
        }
    }

    /// Exceptions that are pending, whether unmasked or not.
    pub fn exception(&self) -> Option<CqException> {
        let irr = self.irq().pending() & irq::cqs::EXCEPTIONS;
        (irr != 0).then(|| CqException { irr, status: self.status() })
    }

    /// Forgets pending exceptions, so that they can be reported again.
    pub fn clear_exceptions(&self) {
        self.irq().clear(irq::cqs::EXCEPTIONS);
    }

    /// Reads a register of the queue's user page, such as a counter.
    pub fn read_page(&self, reg: CqReg) -> u64 {
        self.device.platform().bar0_read64(self.page + reg.offset())
    }
}

impl<P: Platform> Drop for Cq<P> {
    fn drop(&mut self) {
        // Nobody is left to be told; the memory is safe either way.
        let _ = self.shut_down();
    }
}
