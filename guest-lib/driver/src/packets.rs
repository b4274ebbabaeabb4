//! System packets: the kernel's control queue sends them, and packet buffers receive them.

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

/// Configuration of the packet interface of a TNI. Start from [`PacketConfig::new`].
#[derive(Clone, Debug)]
pub struct PacketConfig {
    /// Network interface.
    pub tni: TniId,
    /// Control queue for sending; the kernel's if `None`.
    pub cq: Option<CqId>,
    /// Number of packet buffers for receiving, 1 to 1024.
    pub rx_buffers: u16,
    /// Number of packet buffers for sending, 1 to 1024.
    pub tx_buffers: u16,
    /// PRQ_MASK. If bit n is set, packets with the code n are discarded, see [`PrqRcode`].
    pub mask: u64,
    /// Longest time that the device holds back an interrupt, in nanoseconds.
    pub interrupt_ns: u64,
    /// Number of packets after which an interrupt is no longer held back.
    pub interrupt_count: u64,
    /// True to sleep until the TNI's interrupt; false to poll.
    pub interrupts: bool,
    /// The time for which [`Packets::wait`] polls before it sleeps, in nanoseconds.
    pub spin_ns: u64,
    /// Size of the memory that control queues of the same group may read by Get, in bytes, see
    /// [`Packets::share`]; 0 for none.
    pub share: usize,
    /// Size of the memory for data that [`Packets::fetch`] reads, in bytes; 0 for none.
    pub fetch: usize,
    /// Number of the group, see [`CqConfig::gpid`].
    pub gpid: u64,
}

impl PacketConfig {
    /// The kernel's queue of a TNI, 256 buffers in each direction, system packets only, and an
    /// interrupt for each packet.
    pub const fn new(tni: TniId) -> Self {
        Self {
            tni,
            cq: None,
            rx_buffers: 256,
            tx_buffers: 256,
            mask: PacketQueues::SYSTEM_ONLY,
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

/// Number of steering tags: one for each kind of memory, and the others for
/// [`Packets::renew_share`], which takes one after another.
const STAGS: u32 = 64;
/// Largest number of buffers in each direction.
const MAX_BUFFERS: u16 = PacketQueues::MAX_BUFFERS;
/// Size of the pages that hold the memory for Gets.
const SHARED_PAGE: PageSize = PageSize::Size4K;
/// Instead of a buffer's number: the command is a Get, not a packet.
const NO_BUFFER: u16 = u16::MAX;
/// Requests that wake a sleeping thread.
const WAKING: TniIrqs = TniIrqs::PRQ_WRITE_ACKNOWLEDGE;

/// The reason why the packet interface cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// The number of buffers is 0 or above 1024.
    #[error("1 to {MAX_BUFFERS} packet buffers, not {0}")]
    Buffers(u16),
    /// The control queue cannot be opened.
    #[error(transparent)]
    Queue(OpenError),
    /// There is no such TNI, or enabling it timed out.
    #[error(transparent)]
    Device(DeviceError),
    /// No memory for queues and buffers.
    #[error(transparent)]
    Memory(DmaError),
    /// This address of packet buffers is not below 2^40.
    #[error("packet buffers must lie below 2^40 for the device, not at {0:#x}")]
    Address(u64),
    /// No interrupt is left.
    #[error(transparent)]
    Interrupt(IrqError),
    /// The memory for Gets cannot be registered.
    #[error("memory for Gets: {0}")]
    Stag(StagError),
}

/// The reason why a packet is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// All buffers are in use. Try again after [`Packets::poll_sent`] has returned one.
    #[error("all packet buffers are in use")]
    Full,
    /// The payload is longer than [`SYSTEM_PAYLOAD_MAX`] bytes.
    #[error("a system packet carries {SYSTEM_PAYLOAD_MAX} bytes at most, not {0}")]
    TooLong(usize),
}

/// The result of sending a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The cookie that it was sent with.
    pub cookie: u32,
    /// [`Rcode::SUCCESS`] if the network has accepted the packet, or the reason of its loss. An
    /// accepted packet need not arrive.
    pub rcode: Rcode,
}

impl Sent {
    /// Returns true if the network has accepted the packet.
    pub const fn is_success(&self) -> bool {
        self.rcode.is_success()
    }
}

/// A buffer of [`Packets`] for a packet, neither free nor with the device.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it comes back by `post_buffer` or `give_up`"]
pub struct TxBuffer(u16);

/// A packet whose sending has ended, still in its buffer.
#[derive(Debug)]
pub struct Completed {
    /// The result of sending it.
    pub sent: Sent,
    /// Its buffer.
    pub buffer: TxBuffer,
    /// Number of bytes of its payload.
    pub len: u16,
}

/// A received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The kind of packet. Kinds other than [`PrqRcode::SystemTlp`] arrive only if they are not
    /// masked.
    pub kind: PrqRcode,
    /// The header of the TLP, with its sender and its length. Except for system packets, its
    /// contents are chosen by the sender.
    pub header: TlpHeader,
    /// Number of bytes of payload that were copied.
    pub len: usize,
}

impl TxBuffer {
    /// Offset of the buffer among the buffers for sending, in bytes.
    fn start(&self) -> usize {
        usize::from(self.0) * PACKET_BUFFER_SIZE
    }

    /// Offset of its payload among the buffers for sending, in bytes.
    fn payload(&self) -> usize {
        self.start() + HEADER_SIZE
    }
}

/// The memory that the device uses.
#[derive(Debug)]
struct Memory<D> {
    pbq: D,
    prq: D,
    /// The word for interrupt requests.
    arm: Arm<D>,
    rx: D,
    tx: D,
    share: Option<D>,
    fetch: Option<D>,
}

impl<D: DmaBuffer> Memory<D> {
    /// Allocates the memory of an interface.
    fn new<P: Platform<Dma = D>>(platform: &P, config: &PacketConfig) -> Result<Self, PacketError> {
        let entries = PacketQueues::ENTRIES as usize;
        let alloc = |count: usize, size: usize, align: usize| {
            platform.alloc_dma(count * size, align).map_err(PacketError::Memory)
        };
        // Other nodes can read whole pages.
        let (table, page) = (TABLE_ALIGN as usize, SHARED_PAGE.bytes() as usize);
        let (rx_buffers, tx_buffers) = (config.rx_buffers.into(), config.tx_buffers.into());
        let memory = Self {
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
        Ok(memory)
    }
}

/// The open packet interface of a TNI.
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
    /// Completed Gets: cookie and result code.
    fetched: VecDeque<(u16, Rcode)>,
    /// Positions in the packet queues.
    queues: PacketQueues,
    /// Buffers for sending that are free.
    free_tx: Vec<u16>,
    posted: bool,
    interrupts: bool,
    spin_ns: u64,
}

impl<P: Platform> Packets<P> {
    /// Opens the interface: a control queue for sending, and queues and buffers for receiving.
    /// Enables the TNI at the end, if it is not enabled.
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
            stags: STAGS,
            gpid: config.gpid,
            mode: CqsMode(0).with_system(true),
            interrupts: CqsIrqs::NONE,
            mrq_mask: PacketQueues::MRQ_MASK,
            ..CqConfig::new(config.tni, cq)
        };
        let cq = Cq::open(device, &cq_config).map_err(PacketError::Queue)?;
        let platform = device.platform();
        let memory = Memory::new(platform, config)?;
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
        for buffer in 0..usize::from(config.rx_buffers) {
            packets.post_receive_buffer(buffer * PACKET_BUFFER_SIZE);
        }
        packets.set_registers(config)?;
        let tni = device.tni(config.tni);
        tni.irq().reset(if config.interrupts { WAKING } else { TniIrqs::NONE });
        if config.interrupts {
            // Consumes an interrupt from before the reset of the unit.
            platform.irq_wait(vector::tni(config.tni), 0);
        }
        tni.enable().map_err(PacketError::Device)?;
        Ok(packets)
    }

    /// Sets the registers of the packet queues.
    fn set_registers(&self, config: &PacketConfig) -> Result<(), PacketError> {
        let memory = &self.memory;
        self.write(TniReg::PrqInterruptCoalescingTimer, config.interrupt_ns);
        self.write(TniReg::PrqInterruptCoalescingCount, config.interrupt_count);
        let (pbq, prq) = (memory.pbq.device_addr(), memory.prq.device_addr());
        for (reg, value) in PacketQueues::registers(config.mask, pbq, prq) {
            self.write(reg, value);
        }
        self.write(TniReg::PrqInterruptArmPa, memory.arm.addr());
        if self.read(TniReg::PrqInterruptArmPa) != memory.arm.addr() {
            let name = TniReg::PrqInterruptArmPa.name();
            return Err(PacketError::Queue(OpenError::OldDevice(name)));
        }
        Ok(())
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

    /// Gives the receive buffer at offset `at` to the device.
    fn post_receive_buffer(&mut self, at: usize) {
        let (slot, entry) = self.queues.post(at);
        self.memory.pbq.store_u64(slot * PBQ_ENTRY_SIZE, entry.0, Ordering::Release);
    }

    /// Queues a packet whose payload is the concatenation of `parts`. It goes out at the next
    /// [`Packets::flush`] at the latest.
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
        let buffer = self.take_buffer().ok_or(SendError::Full)?;
        let mut end = 0;
        for part in parts {
            self.write_payload(&buffer, end, part);
            end += part.len();
        }
        self.post_buffer(buffer, len as u16, to, cookie)
    }

    /// Takes a free buffer, if there is one.
    pub fn take_buffer(&mut self) -> Option<TxBuffer> {
        self.free_tx.pop().map(TxBuffer)
    }

    /// Frees a buffer.
    pub fn give_up(&mut self, buffer: TxBuffer) {
        self.free_tx.push(buffer.0);
    }

    /// Writes a part of a packet's payload, from offset `at` on. False if it does not fit.
    pub fn write_payload(&mut self, buffer: &TxBuffer, at: usize, bytes: &[u8]) -> bool {
        let fits = at.checked_add(bytes.len()).is_some_and(|end| end <= SYSTEM_PAYLOAD_MAX);
        if fits {
            self.memory.tx.write(buffer.payload() + at, bytes);
        }
        fits
    }

    /// Reads the beginning of a packet's payload. Returns false if there are fewer bytes.
    pub fn read_payload(&self, buffer: &TxBuffer, to: &mut [u8]) -> bool {
        let fits = to.len() <= SYSTEM_PAYLOAD_MAX;
        if fits {
            self.memory.tx.read(buffer.payload(), to);
        }
        fits
    }

    /// Like [`Packets::post`], with the payload of `len` bytes that is in the buffer. In case of an
    /// error the buffer is freed.
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    pub fn post_buffer(
        &mut self,
        buffer: TxBuffer,
        len: u16,
        to: &PacketTarget,
        cookie: u32,
    ) -> Result<(), SendError> {
        let frame = self.memory.tx.device_addr() + buffer.start() as u64;
        let order = Order::system_packet(to, frame, len);
        let cookie = u64::from(cookie) << 32 | u64::from(len) << 16 | u64::from(buffer.0);
        let posted = self.cq.as_mut().is_some_and(|cq| cq.post(&order, cookie).is_ok());
        if !posted {
            self.give_up(buffer);
            return Err(SendError::Full);
        }
        self.posted = true;
        Ok(())
    }

    /// Notifies the device of posted packets.
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

    /// Number of packets that can be posted now.
    pub fn free(&self) -> usize {
        self.free_tx.len()
    }

    /// Number of packets that can be in flight.
    pub fn buffers(&self) -> usize {
        self.memory.tx.len() / PACKET_BUFFER_SIZE
    }

    /// The result of the next packet, in the order of sending.
    pub fn poll_sent(&mut self) -> Option<Sent> {
        let Completed { sent, buffer, .. } = self.poll_completed()?;
        self.give_up(buffer);
        Some(sent)
    }

    /// Like [`Packets::poll_sent`], but the packet stays in its buffer, so that a lost one can be
    /// sent again.
    pub fn poll_completed(&mut self) -> Option<Completed> {
        let cq = self.cq.as_mut()?;
        // The notice of a Get says that it has ended.
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
        Some(Completed {
            sent: Sent { cookie: (done.cookie >> 32) as u32, rcode: done.rcode },
            buffer: TxBuffer(done.cookie as u16),
            len: (done.cookie >> 16) as u16,
        })
    }

    /// The memory that others may read. The caller decides on its contents.
    pub fn share(&self) -> Option<&P::Dma> {
        self.memory.share.as_ref()
    }

    /// The address of a byte of [`Packets::share`], as others pass it to [`Packets::fetch`].
    pub fn share_at(&self, offset: u64) -> Option<StagOffset> {
        self.share.filter(|stag| offset < stag.len()).map(|stag| stag.at(offset))
    }

    /// Changes the addresses of the memory that others may read. The former ones become invalid,
    /// and are reused only after about sixty more calls. Returns false if the device does not
    /// release the memory, or there is none; the memory then has no addresses any more.
    #[must_use]
    pub fn renew_share(&mut self) -> bool {
        let (Some(cq), Some(stag)) = (self.cq.as_mut(), self.share.take()) else { return false };
        if cq.unregister(stag).is_err() {
            return false;
        }
        let memory = Arc::clone(&self.memory);
        self.share = self.register(memory.share.as_ref(), Access::ReadOnly).unwrap_or_default();
        self.share.is_some()
    }

    /// The memory that [`Packets::fetch`] writes to.
    pub fn fetch_memory(&self) -> Option<&P::Dma> {
        self.memory.fetch.as_ref()
    }

    /// Reads `len` bytes at address `from` of the memory that another interface shares, over a
    /// path, to offset `offset` of [`Packets::fetch_memory`]. It starts at the next
    /// [`Packets::flush`] at the latest. [`Packets::poll_fetched`] reports its completion.
    ///
    /// # Errors
    ///
    /// [`SendError::Full`] if the queue is full, [`SendError::TooLong`] if the memory is too short.
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

    /// The next completed [`Packets::fetch`]: its cookie and result code.
    /// [`Packets::poll_completed`] finds completed ones.
    pub fn poll_fetched(&mut self) -> Option<(u16, Rcode)> {
        self.fetched.pop_front()
    }

    /// Returns true if [`Packets::poll_fetched`] would return a result.
    pub fn has_fetched(&self) -> bool {
        !self.fetched.is_empty()
    }

    /// Number of posted packets whose results are not known yet.
    pub fn under_way(&self) -> usize {
        self.buffers() - self.free_tx.len()
    }

    fn next(&self) -> Option<PrqEntry> {
        let at = self.queues.slot() * PRQ_ENTRY_SIZE;
        let entry = PrqEntry(self.memory.prq.load_u64(at, Ordering::Acquire));
        self.queues.is_written(entry).then_some(entry)
    }

    /// Returns true if [`Packets::recv`] would return a packet.
    pub fn is_ready(&self) -> bool {
        self.next().is_some()
    }

    /// Takes the next packet: copies its payload to `buf`, as far as it fits, and returns its
    /// buffer to the device.
    pub fn recv(&mut self, buf: &mut [u8]) -> Option<Received> {
        self.recv_split(&mut [], buf)
    }

    /// Like [`Packets::recv`], with the first bytes of the payload in `head` and the rest in
    /// `body`.
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

    /// The beginning of the next packet, which is not taken. `None` if there is none, or one that
    /// [`Packets::recv`] skips.
    pub fn peek(&self, head: &mut [u8]) -> Option<Received> {
        let entry = self.next()?;
        self.copy(entry, self.queues.buffer(entry)?, head, &mut [])
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
        let len = header.payload_len();
        let in_head = len.min(head.len());
        let in_body = (len - in_head).min(body.len());
        rx.read(at + HEADER_SIZE, &mut head[..in_head]);
        rx.read(at + HEADER_SIZE + in_head, &mut body[..in_body]);
        let len = in_head + in_body;
        Some(Received { kind, header, len })
    }

    /// Waits until there is a packet to receive, for at most `timeout_ns` nanoseconds: polls for a
    /// while ([`PacketConfig::spin_ns`]), then sleeps until the TNI's interrupt. Returns whether
    /// there is a packet.
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
    /// [`Packets::wait`]. Returns whether there is already a packet. Then no interrupt is raised.
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

    /// Cancels [`Packets::prepare_sleep`], for callers that were woken by another event and check
    /// for packets anyway.
    pub fn end_sleep(&self) {
        self.memory.arm.withdraw();
    }

    /// Closes the interface and frees its memory. The TNI stays enabled, because others may use it.
    ///
    /// # Errors
    ///
    /// If the device does not release the control queue within 3 s.
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
    /// Takes the packet buffers of a TNI from the device, and masks the interrupt. This also works
    /// for an orphaned interface, for example after the end of its process. Its control queue must
    /// be stopped, too: [`Device::stop_queues`].
    pub fn stop_packets(&self, tni: TniId) {
        self.tni(tni).irq().mask(WAKING);
        let base = tni_base(tni);
        for (reg, value) in PacketQueues::CLOSED {
            self.platform().bar0_write64(base + reg.offset(), value);
        }
        // Writes may be posted. The answer to this read shows that they have arrived, and that
        // nothing is written to the buffers any more.
        self.platform().bar0_read64(base + TniReg::PrqPa.offset());
    }
}

impl<P: Platform> Drop for Packets<P> {
    fn drop(&mut self) {
        // The error cannot be returned. The memory is safe in any case.
        let _ = self.shut_down();
    }
}
