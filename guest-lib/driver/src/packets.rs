//! System packets: a kernel's control queue to send them, packet buffers to receive them.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::sync::atomic::Ordering;

use thiserror::Error;
use tofu_abi::frame::{HEADER_SIZE, ROUTING_HEADER_SIZE, SYSTEM_PAYLOAD_MAX, TlpHeader};
use tofu_abi::irq::{CqsIrqs, TniIrqs, vector};
use tofu_abi::packets::{PacketQueues, PacketTarget};
use tofu_abi::queue::{PACKET_BUFFER_SIZE, PBQ_ENTRY_SIZE, PRQ_ENTRY_SIZE, PrqEntry, PrqRcode};
use tofu_abi::regs::{CqsMode, TniReg, tni_base};
use tofu_abi::table::{PageSize, TABLE_ALIGN};
use tofu_abi::{CqId, Path, Rcode, StagOffset, TniId};

use crate::arm::Arm;
use crate::cq::{Cq, CqConfig, OpenError};
use crate::device::{Device, DeviceError};
use crate::order::{Order, Target};
use crate::platform::{DmaBuffer, DmaError, IrqError, Platform};
use crate::tables::{Access, MemoryRange, Stag, StagError};

/// How to open the packet interface of a TNI. Start from [`PacketConfig::new`].
#[derive(Clone, Debug)]
pub struct PacketConfig {
    /// Network interface.
    pub tni: TniId,
    /// Control queue that sends: the kernel's if `None`.
    pub cq: Option<CqId>,
    /// Packet buffers to receive to, 1 to 1024.
    pub rx_buffers: u16,
    /// Frames that can be on their way out, 1 to 1024.
    pub tx_buffers: u16,
    /// PRQ_MASK: bit n set discards what has the code n, see [`PrqRcode`].
    pub mask: u64,
    /// Longest time that an interrupt is held back, in nanoseconds.
    pub interrupt_ns: u64,
    /// Packets after which a held back interrupt is sent.
    pub interrupt_count: u64,
    /// Whether to sleep until the interrupt of the TNI; if not, waiting is polling.
    pub interrupts: bool,
    /// How long [`Packets::wait`] polls before it sleeps, in nanoseconds.
    pub spin_ns: u64,
    /// Bytes of memory that the control queues of the same group may read by Get, see
    /// [`Packets::share`]; 0: none.
    pub share: usize,
    /// Bytes of memory for what is read from others by [`Packets::fetch`]; 0: none.
    pub fetch: usize,
    /// Number of the group, see [`CqConfig::gpid`].
    pub gpid: u64,
}

impl PacketConfig {
    /// The kernel's queue of a TNI, 256 buffers each way, system packets only, an interrupt for
    /// each.
    pub const fn new(tni: TniId) -> Self {
        Self {
            tni,
            cq: None,
            rx_buffers: 256,
            tx_buffers: 256,
            mask: !(1 << PrqRcode::SystemTlp as u8),
            interrupt_ns: 0,
            interrupt_count: 0,
            interrupts: true,
            spin_ns: 0,
            share: 0,
            fetch: 0,
            gpid: 0,
        }
    }
}

/// Largest number of buffers, either way.
const MAX_BUFFERS: u16 = PacketQueues::MAX_BUFFERS;
/// Pages that the memory for Gets is made of.
const SHARED_PAGE: PageSize = PageSize::Size4K;
/// In the place of a buffer's number: the command is no packet but a Get.
const NO_BUFFER: u16 = u16::MAX;
/// Requests that a sleeper is woken by.
const WAKING: TniIrqs = TniIrqs::PRQ_WRITE_ACKNOWLEDGE;

/// Why the packet interface cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// No buffers, or more than 1024.
    #[error("1 to {MAX_BUFFERS} packet buffers, not {0}")]
    Buffers(u16),
    /// Its control queue cannot be opened.
    #[error(transparent)]
    Queue(OpenError),
    /// There is no such TNI, or it does not get to work.
    #[error(transparent)]
    Device(DeviceError),
    /// No memory for queues and buffers.
    #[error(transparent)]
    Memory(DmaError),
    /// Packet buffers must lie below 2^40, which this address does not.
    #[error("packet buffers must lie below 2^40 for the device, not at {0:#x}")]
    Address(u64),
    /// No interrupt.
    #[error(transparent)]
    Interrupt(IrqError),
    /// The memory for Gets cannot be registered.
    #[error("memory for Gets: {0}")]
    Stag(StagError),
}

/// Why a packet is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// All buffers are on their way out. Try again when [`Packets::poll_sent`] has returned one.
    #[error("all packet buffers are on their way out")]
    Full,
    /// The payload is longer than [`SYSTEM_PAYLOAD_MAX`] bytes.
    #[error("a system packet carries {SYSTEM_PAYLOAD_MAX} bytes at most, not {0}")]
    TooLong(usize),
}

/// The end of a packet's sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The cookie that it was sent with.
    pub cookie: u32,
    /// [`Rcode::SUCCESS`] if the network has accepted it, or why it was lost. An accepted packet
    /// need not arrive.
    pub rcode: Rcode,
}

impl Sent {
    /// Whether the network has taken the packet.
    pub const fn is_success(&self) -> bool {
        self.rcode.is_success()
    }
}

/// A packet that was lost, in its buffer.
#[derive(Debug)]
#[must_use = "its buffer comes back by `resend` or `give_up`"]
pub struct Lost {
    /// How its sending ended.
    pub sent: Sent,
    buffer: u16,
    len: u32,
}

/// Something that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// What it is. Everything but [`PrqRcode::SystemTlp`] comes only if it is not masked.
    pub kind: PrqRcode,
    /// The TLP's header: its sender and its length. For kinds other than system packets the sender
    /// may have written anything there.
    pub header: TlpHeader,
    /// Bytes of payload that were copied.
    pub len: usize,
}

/// The memory that the device uses.
#[derive(Debug)]
struct Memory<D> {
    pbq: D,
    prq: D,
    /// Where interrupts are asked for.
    arm: Arm<D>,
    rx: D,
    tx: D,
    share: Option<D>,
    fetch: Option<D>,
}

/// The packet interface of a TNI, open.
///
/// Dropping it closes it.
#[derive(Debug)]
pub struct Packets<P: Platform> {
    device: Device<P>,
    tni: TniId,
    cq: Option<Cq<P>>,
    memory: Arc<Memory<P::Dma>>,
    share: Option<Stag>,
    fetch: Option<Stag>,
    /// Gets that have ended: cookie and result code.
    fetched: VecDeque<(u16, Rcode)>,
    /// Which entries of the packet queues are next.
    queues: PacketQueues,
    /// Buffers that are not on their way out.
    free_tx: Vec<u16>,
    posted: bool,
    interrupts: bool,
    spin_ns: u64,
}

impl<P: Platform> Packets<P> {
    /// Opens the interface: a control queue for sending, queues and buffers for receiving. Enables
    /// the TNI, last, if it is not.
    ///
    /// # Errors
    ///
    /// See [`PacketError`].
    pub fn open(device: &Device<P>, config: &PacketConfig) -> Result<Self, PacketError> {
        for n in [config.rx_buffers, config.tx_buffers] {
            if n == 0 || n > MAX_BUFFERS {
                return Err(PacketError::Buffers(n));
            }
        }
        let cq = config.cq.unwrap_or_else(|| device.description().kernel_cq());
        let cq_config = CqConfig {
            stags: 2,
            gpid: config.gpid,
            mode: CqsMode(0).with_system(true),
            interrupts: CqsIrqs::NONE,
            mrq_mask: PacketQueues::MRQ_MASK,
            ..CqConfig::new(config.tni, cq)
        };
        let cq = Cq::open(device, &cq_config).map_err(PacketError::Queue)?;
        let platform = device.platform();
        let entries = PacketQueues::ENTRIES as usize;
        let alloc = |count: usize, size: usize, align: usize| {
            platform.alloc_dma(count * size, align).map_err(PacketError::Memory)
        };
        // Whole pages are what others get to see.
        let (table, page) = (TABLE_ALIGN as usize, SHARED_PAGE.bytes() as usize);
        let (rx_buffers, tx_buffers) = (config.rx_buffers.into(), config.tx_buffers.into());
        let memory = Memory {
            pbq: alloc(entries, PBQ_ENTRY_SIZE, table)?,
            prq: alloc(entries, PRQ_ENTRY_SIZE, table)?,
            arm: Arm::new(platform).map_err(PacketError::Memory)?,
            rx: alloc(rx_buffers, PACKET_BUFFER_SIZE, PACKET_BUFFER_SIZE)?,
            tx: alloc(tx_buffers, PACKET_BUFFER_SIZE, PACKET_BUFFER_SIZE)?,
            share: (config.share > 0).then(|| alloc(config.share, 1, page)).transpose()?,
            fetch: (config.fetch > 0).then(|| alloc(config.fetch, 1, page)).transpose()?,
        };
        let end = memory.rx.device_addr().saturating_add(memory.rx.len() as u64);
        if end > 1 << 40 {
            return Err(PacketError::Address(end));
        }
        let queues = PacketQueues::new(memory.rx.device_addr(), config.rx_buffers);
        if config.interrupts {
            platform.irq_enable(vector::tni(config.tni)).map_err(PacketError::Interrupt)?;
        }
        let mut packets = Self {
            device: device.clone(),
            tni: config.tni,
            cq: Some(cq),
            memory: Arc::new(memory),
            share: None,
            fetch: None,
            fetched: VecDeque::new(),
            queues,
            free_tx: (0..config.tx_buffers).rev().collect(),
            posted: false,
            interrupts: config.interrupts,
            spin_ns: config.spin_ns,
        };
        let memory = Arc::clone(&packets.memory);
        packets.share = packets.register(memory.share.as_ref(), Access::ReadOnly)?;
        packets.fetch = packets.register(memory.fetch.as_ref(), Access::ReadWrite)?;
        for buffer in 0..rx_buffers {
            packets.post_receive_buffer(buffer * PACKET_BUFFER_SIZE);
        }
        packets.write(TniReg::PrqInterruptCoalescingTimer, config.interrupt_ns);
        packets.write(TniReg::PrqInterruptCoalescingCount, config.interrupt_count);
        let (pbq, prq) = (memory.pbq.device_addr(), memory.prq.device_addr());
        for (reg, value) in PacketQueues::registers(config.mask, pbq, prq) {
            packets.write(reg, value);
        }
        packets.write(TniReg::PrqInterruptArmPa, memory.arm.addr());
        if packets.read(TniReg::PrqInterruptArmPa) != memory.arm.addr() {
            let name = TniReg::PrqInterruptArmPa.name();
            return Err(PacketError::Queue(OpenError::OldDevice(name)));
        }
        let tni = device.tni(config.tni);
        tni.irq().reset(if config.interrupts { WAKING } else { TniIrqs::NONE });
        if config.interrupts {
            // An interrupt from before the reset of the unit is no news.
            platform.irq_wait(vector::tni(config.tni), 0);
        }
        tni.enable().map_err(PacketError::Device)?;
        Ok(packets)
    }

    fn register(
        &mut self,
        memory: Option<&P::Dma>,
        access: Access,
    ) -> Result<Option<Stag>, PacketError> {
        let (Some(cq), Some(memory)) = (&mut self.cq, memory) else { return Ok(None) };
        let range = MemoryRange::of(memory);
        cq.register(&[range], SHARED_PAGE, access, None).map(Some).map_err(PacketError::Stag)
    }

    /// Network interface.
    pub fn tni(&self) -> TniId {
        self.tni
    }

    /// The device.
    pub fn device(&self) -> &Device<P> {
        &self.device
    }

    fn write(&self, reg: TniReg, value: u64) {
        self.device.platform().bar0_write64(tni_base(self.tni) + reg.offset(), value);
    }

    /// Reads a register of the TNI, such as a counter.
    pub fn read(&self, reg: TniReg) -> u64 {
        self.device.platform().bar0_read64(tni_base(self.tni) + reg.offset())
    }

    /// Posts the buffer at byte `at` of them all, for the device to write to.
    fn post_receive_buffer(&mut self, at: usize) {
        let (slot, entry) = self.queues.post(at);
        self.memory.pbq.store_u64(slot * PBQ_ENTRY_SIZE, entry.0, Ordering::Release);
    }

    /// Puts a packet into the queue, whose payload is the `parts` one after the other. It goes out
    /// at the next [`Packets::flush`] at the latest.
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    pub fn post(
        &mut self,
        to: &PacketTarget,
        parts: &[&[u8]],
        cookie: u32,
    ) -> Result<(), SendError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > SYSTEM_PAYLOAD_MAX {
            return Err(SendError::TooLong(len));
        }
        let buffer = self.free_tx.pop().ok_or(SendError::Full)?;
        let at = usize::from(buffer) * PACKET_BUFFER_SIZE;
        let mut end = at + HEADER_SIZE;
        for part in parts {
            self.memory.tx.write(end, part);
            end += part.len();
        }
        self.post_buffer(buffer, len, to, cookie).inspect_err(|_| self.free_tx.push(buffer))
    }

    fn post_buffer(
        &mut self,
        buffer: u16,
        len: usize,
        to: &PacketTarget,
        cookie: u32,
    ) -> Result<(), SendError> {
        let at = u64::from(buffer) * PACKET_BUFFER_SIZE as u64;
        let order = Order::system_packet(to, self.memory.tx.device_addr() + at, len as u16);
        let cookie = u64::from(cookie) << 32 | (len as u64) << 16 | u64::from(buffer);
        let cq = self.cq.as_mut().ok_or(SendError::Full)?;
        cq.post(&order, cookie).map_err(|_| SendError::Full)?;
        self.posted = true;
        Ok(())
    }

    /// Tells the device of what was posted.
    pub fn flush(&mut self) {
        if mem::take(&mut self.posted)
            && let Some(cq) = &self.cq
        {
            cq.doorbell();
        }
    }

    /// [`Packets::post`] and [`Packets::flush`].
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    pub fn send(
        &mut self,
        to: &PacketTarget,
        parts: &[&[u8]],
        cookie: u32,
    ) -> Result<(), SendError> {
        self.post(to, parts, cookie)?;
        self.flush();
        Ok(())
    }

    /// Packets that can be posted now.
    pub fn free(&self) -> usize {
        self.free_tx.len()
    }

    /// Packets that can be under way at a time.
    pub fn buffers(&self) -> usize {
        self.memory.tx.len() / PACKET_BUFFER_SIZE
    }

    /// The outcome of the next packet, in the order of sending.
    pub fn poll_sent(&mut self) -> Option<Sent> {
        Some(match self.poll_sent_or_lost()? {
            Ok(sent) => sent,
            Err(lost) => {
                let sent = lost.sent;
                self.give_up(lost);
                sent
            }
        })
    }

    /// The same, but a packet that was lost stays in its buffer until [`Packets::resend`] or
    /// [`Packets::give_up`].
    pub fn poll_sent_or_lost(&mut self) -> Option<Result<Sent, Lost>> {
        let cq = self.cq.as_mut()?;
        // A Get has ended when its notice says so.
        while let Some(notice) = cq.poll_mrq() {
            let cookie = notice.word1().edata();
            self.fetched.push_back((cookie, notice.word0().rcode()));
        }
        let done = loop {
            let done = cq.poll_tcq()?;
            if done.cookie as u16 != NO_BUFFER {
                break done;
            }
            if done.rcode.is_refused_unsent() {
                self.fetched.push_back(((done.cookie >> 32) as u16, done.rcode));
            }
        };
        let sent = Sent { cookie: (done.cookie >> 32) as u32, rcode: done.rcode };
        let lost = Lost { sent, buffer: done.cookie as u16, len: done.cookie as u32 >> 16 };
        if !sent.is_success() {
            return Some(Err(lost));
        }
        self.give_up(lost);
        Some(Ok(sent))
    }

    /// Posts a lost packet once more, to where and by which way is asked for now.
    pub fn resend(&mut self, lost: Lost, to: &PacketTarget, cookie: u32) {
        // There is room, as there is one for each buffer.
        if self.post_buffer(lost.buffer, lost.len as usize, to, cookie).is_err() {
            self.give_up(lost);
        }
    }

    /// Lets go of a lost packet.
    pub fn give_up(&mut self, lost: Lost) {
        self.free_tx.push(lost.buffer);
    }

    /// Copies the payload of a lost packet to `buf`, as far as there is room, and returns its
    /// length.
    pub fn read_lost(&self, lost: &Lost, buf: &mut [u8]) -> usize {
        let len = (lost.len as usize).min(buf.len());
        let at = usize::from(lost.buffer) * PACKET_BUFFER_SIZE + HEADER_SIZE;
        self.memory.tx.read(at, &mut buf[..len]);
        len
    }

    /// The memory that others may read. It is the caller's business which part of it means what.
    pub fn share(&self) -> Option<&P::Dma> {
        self.memory.share.as_ref()
    }

    /// The place of a byte of [`Packets::share`], by which others name it to [`Packets::fetch`].
    pub fn share_at(&self, offset: u64) -> Option<StagOffset> {
        self.share.filter(|stag| offset < stag.len()).map(|stag| stag.at(offset))
    }

    /// The memory that [`Packets::fetch`] reads to.
    pub fn fetch_memory(&self) -> Option<&P::Dma> {
        self.memory.fetch.as_ref()
    }

    /// Reads `len` bytes from place `from` of the memory that another interface shares, by a path,
    /// to byte `offset` of [`Packets::fetch_memory`]. It starts at the next [`Packets::flush`] at
    /// the latest; its end is reported by [`Packets::poll_fetched`].
    ///
    /// # Errors
    ///
    /// [`SendError::Full`] if the queue is full, [`SendError::TooLong`] if the memory ends before.
    pub fn fetch(
        &mut self,
        (target, path): (Target, Path),
        from: StagOffset,
        offset: u64,
        len: u32,
        cookie: u16,
    ) -> Result<(), SendError> {
        let stag = self
            .fetch
            .filter(|stag| offset.checked_add(len.into()).is_some_and(|end| end <= stag.len()));
        let stag = stag.ok_or(SendError::TooLong(len as usize))?;
        let order = Order::get(target, from, stag.at(offset), len).path(path).edata(cookie);
        let cookie = u64::from(cookie) << 32 | u64::from(NO_BUFFER);
        let cq = self.cq.as_mut().ok_or(SendError::Full)?;
        cq.post(&order, cookie).map_err(|_| SendError::Full)?;
        self.posted = true;
        Ok(())
    }

    /// The next of the [`Packets::fetch`]es that have ended: its cookie and result code.
    /// [`Packets::poll_sent_or_lost`] finds them.
    pub fn poll_fetched(&mut self) -> Option<(u16, Rcode)> {
        self.fetched.pop_front()
    }

    /// Whether [`Packets::poll_fetched`] has something.
    pub fn has_fetched(&self) -> bool {
        !self.fetched.is_empty()
    }

    /// Packets that were posted and of which nothing is known yet.
    pub fn under_way(&self) -> usize {
        self.buffers() - self.free_tx.len()
    }

    fn next(&self) -> Option<PrqEntry> {
        let at = self.queues.slot() * PRQ_ENTRY_SIZE;
        let entry = PrqEntry(self.memory.prq.load_u64(at, Ordering::Acquire));
        self.queues.is_written(entry).then_some(entry)
    }

    /// Whether [`Packets::recv`] has something.
    pub fn is_ready(&self) -> bool {
        self.next().is_some()
    }

    /// Takes the next packet: copies its payload to `buf`, as far as there is room, and gives its
    /// buffer back to the device.
    pub fn recv(&mut self, buf: &mut [u8]) -> Option<Received> {
        self.recv_split(&mut [], buf)
    }

    /// The same, with the first bytes of the payload in `head` and what follows in `body`.
    pub fn recv_split(&mut self, head: &mut [u8], body: &mut [u8]) -> Option<Received> {
        loop {
            let entry = self.next()?;
            let consumed = self.queues.advance();
            let buffer = self.queues.buffer(entry);
            let received = buffer.and_then(|at| self.copy(entry, at, head, body));
            if let Some(at) = buffer {
                self.post_receive_buffer(at);
            }
            if let Some(count) = consumed {
                self.write(TniReg::PrqFullPointer, count);
            }
            if received.is_some() {
                return received;
            }
        }
    }

    fn copy(
        &self,
        entry: PrqEntry,
        at: usize,
        head: &mut [u8],
        body: &mut [u8],
    ) -> Option<Received> {
        let kind = entry.kind().filter(|_| !entry.e())?;
        let rx = &self.memory.rx;
        let header = TlpHeader(rx.load_u64(at + ROUTING_HEADER_SIZE, Ordering::Relaxed));
        let len = usize::from(header.length()).min(SYSTEM_PAYLOAD_MAX);
        let in_head = len.min(head.len());
        let in_body = (len - in_head).min(body.len());
        rx.read(at + HEADER_SIZE, &mut head[..in_head]);
        rx.read(at + HEADER_SIZE + in_head, &mut body[..in_body]);
        let len = in_head + in_body;
        Some(Received { kind, header, len })
    }

    /// Waits until there is something to receive, for `timeout_ns` nanoseconds at most: polls for
    /// a while ([`PacketConfig::spin_ns`]), then sleeps until the TNI's interrupt. Returns whether
    /// there is.
    pub fn wait(&mut self, timeout_ns: u64) -> bool {
        self.flush();
        let platform = self.device.platform();
        let start = platform.now_ns();
        let spin_ns = if self.interrupts { self.spin_ns.min(timeout_ns) } else { timeout_ns };
        loop {
            if self.is_ready() {
                return true;
            }
            if platform.now_ns().saturating_sub(start) >= spin_ns {
                break;
            }
            platform.relax();
        }
        loop {
            if self.prepare_sleep() {
                return true;
            }
            let platform = self.device.platform();
            let elapsed = platform.now_ns().saturating_sub(start);
            if elapsed >= timeout_ns || !self.interrupts {
                self.end_sleep();
                return false;
            }
            platform.irq_wait(vector::tni(self.tni), timeout_ns - elapsed);
        }
    }

    /// Makes the next packet raise an interrupt, for callers that sleep by other means than
    /// [`Packets::wait`]. Returns whether there is a packet already; then no interrupt is raised.
    pub fn prepare_sleep(&self) -> bool {
        if !self.interrupts {
            return self.is_ready();
        }
        self.memory.arm.ask();
        let ready = self.is_ready();
        if ready {
            self.memory.arm.withdraw();
        }
        ready
    }

    /// Cancels [`Packets::prepare_sleep`]: for callers that were woken by something else and look
    /// for packets anyway.
    pub fn end_sleep(&self) {
        self.memory.arm.withdraw();
    }

    /// Closes the interface and frees its memory. The TNI stays enabled: others may use it.
    ///
    /// # Errors
    ///
    /// If the device does not let go of the control queue within 3 s.
    pub fn close(mut self) -> Result<(), crate::TimedOut> {
        self.shut_down()
    }

    fn shut_down(&mut self) -> Result<(), crate::TimedOut> {
        let Some(cq) = self.cq.take() else { return Ok(()) };
        self.device.stop_packets(self.tni);
        let closed = cq.close();
        if closed.is_err() {
            // The device may still read from the buffers.
            mem::forget(Arc::clone(&self.memory));
        }
        closed
    }
}

impl<P: Platform> Device<P> {
    /// Takes the packet buffers of a TNI from the device, and masks the interrupt. This works also
    /// for an orphaned interface, whose process has ended, say. Its control queue must be stopped,
    /// too: [`Device::stop_queues`].
    pub fn stop_packets(&self, tni: TniId) {
        self.tni(tni).irq().mask(WAKING);
        let base = tni_base(tni);
        self.platform().bar0_write64(base + TniReg::PrqPa.offset(), 0);
        self.platform().bar0_write64(base + TniReg::PbqPa.offset(), 0);
        self.platform().bar0_write64(base + TniReg::PrqInterruptArmPa.offset(), 0);
        // Writes may be posted. When this is answered they have arrived, and nothing is written to
        // the buffers any more.
        self.platform().bar0_read64(base + TniReg::PrqPa.offset());
    }
}

impl<P: Platform> Drop for Packets<P> {
    fn drop(&mut self) {
        // The error has nowhere to go; the memory is safe either way.
        let _ = self.shut_down();
    }
}
