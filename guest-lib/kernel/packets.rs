// SPDX-License-Identifier: GPL-2.0

//! The packet interface of a TNI: the kernel's control queue, which sends system packets, and the
//! queues and buffers that receive them.

use kernel::prelude::*;
use kernel::sync::barrier::{dma_mb, Full, Read};
use kernel::sync::Arc;

use tofu_abi::cq::CqRings;
use tofu_abi::desc::{Command, Descriptor, Header1, Header2, DESC_SIZE};
use tofu_abi::frame::{TlpHeader, HEADER_SIZE, ROUTING_HEADER_SIZE, SYSTEM_PAYLOAD_MAX};
use tofu_abi::irq::{CqsIrqs, TniIrqs};
use tofu_abi::packets::PacketQueues;
use tofu_abi::queue::{
    MrqWord0, MrqWord1, PrqEntry, PrqRcode, RingIndex, TcqEntry, MRQ_ENTRY_SIZE, PACKET_BUFFER_SIZE,
};
use tofu_abi::regs::{CqReg, CqsMode, CqsReg, CqsStatus, TniReg};
use tofu_abi::{Coords, Group, PacketTarget, Path, Rcode, StagOffset, TniId};
use tofu_ipotofu::rendezvous::SLOTS;
use tofu_ipotofu::{Ended, PacketQueue, Purpose};

use crate::device::Device;
use crate::dma::Table;
use crate::ids::QueueId;
use crate::kept::Kept;
use crate::rendezvous::RendezvousMemory;
use crate::shim;
use crate::tx_queue::{Passed, TxQueue};

/// Packets that can be in flight.
pub(crate) const OUT: u16 = 512;
/// Waiters for room are woken when there is room for this many packets.
pub(crate) const ENOUGH: usize = 400;
/// Packet buffers for reception.
pub(crate) const IN: u16 = PacketQueues::MAX_BUFFERS;
/// The number of entries each queue has.
const ENTRIES: u32 = PacketQueues::ENTRIES;
/// Qwords of a buffer, and of a descriptor.
const BUFFER_QWORDS: usize = PACKET_BUFFER_SIZE / 8;
const DESC_QWORDS: usize = DESC_SIZE / 8;
/// The qword after the `ENTRIES` qwords of a table, in which its interrupts are requested.
const ARM: usize = ENTRIES as usize;
/// Qwords of a notice, and the number of notices after which the read position is reported to the
/// device.
const NOTICE_QWORDS: usize = MRQ_ENTRY_SIZE / 8;
const NOTICES: u64 = ENTRIES as u64 / 4;
/// The most polls for the end of a cache flush. A burst in flight takes microseconds, and so does
/// each poll.
const FLUSH_LOOKS: u32 = 10_000;

/// A command in flight.
#[derive(Clone, Copy)]
enum Posted {
    /// A packet in a buffer, with `len` bytes of payload.
    Packet {
        purpose: Purpose,
        buffer: u16,
        len: u16,
    },
    /// A Get of a frame to this slot.
    Fetch(u8),
}

/// A completed command.
pub(crate) enum Reaped {
    /// A packet.
    Packet(Ended<u16>),
    /// A Get of a frame to a slot, and its result code.
    Fetch(u8, Rcode),
}

/// The memory that the device reads and writes to send.
struct SendMemory {
    toq: Table,
    tcq: Table,
    mrq: Table,
    frames: Table,
    rendezvous: Option<RendezvousMemory>,
    /// Memory for rendezvous that the device may have in its cache.
    _unflushed: Option<RendezvousMemory>,
}

impl SendMemory {
    fn rings(&self) -> CqRings {
        CqRings {
            toq: self.toq.addr(),
            toq_size: PacketQueues::SIZE_CODE,
            tcq: self.tcq.addr(),
            mrq: self.mrq.addr(),
            mrq_size: PacketQueues::SIZE_CODE,
            mrq_mask: PacketQueues::MRQ_MASK,
            tcq_coalescing_ns: 0,
            mrq_coalescing_ns: 0,
        }
    }
}

/// Memory of senders that the device may still use.
pub(crate) struct KeptMemory(Arc<Kept<SendMemory>>);

impl KeptMemory {
    /// Creates an empty list.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self> {
        Kept::new(device).map(Self)
    }
}

/// The sending side.
pub(crate) struct Sender {
    device: Arc<Device>,
    id: QueueId,
    memory: Option<SendMemory>,
    /// Gets the memory if the device does not stop.
    kept: Arc<Kept<SendMemory>>,
    post: RingIndex,
    reap: RingIndex,
    notices: RingIndex,
    /// By slots of the TOQ.
    commands: KVVec<Option<Posted>>,
    free: KVVec<u16>,
    posted: u32,
    /// Not told to the kernel yet.
    passed: Passed,
    /// The bytes that may still be posted before the stack waits, since the last report.
    allowance: i32,
}

impl Sender {
    /// Opens the kernel's queue of a TNI, whose memory goes to `kept` if the device does not stop.
    /// Frees there what it can. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ETIMEDOUT`, `EIO`.
    pub(crate) fn open(device: &Arc<Device>, tni: TniId, kept: &KeptMemory) -> Result<Self> {
        kept.0.free();
        let n = ENTRIES as usize;
        let memory = SendMemory {
            toq: Table::new(device, n * DESC_QWORDS)?,
            tcq: Table::new(device, ARM + 1)?,
            mrq: Table::new(device, n * NOTICE_QWORDS)?,
            frames: Table::new(device, usize::from(OUT) * BUFFER_QWORDS)?,
            rendezvous: RendezvousMemory::new(device).ok(),
            _unflushed: None,
        };
        let tables = memory.rendezvous.as_ref().map(RendezvousMemory::registers);
        if tables.is_none() {
            dev_info!(
                device.pdev(),
                "no memory for rendezvous: frames go in fragments\n"
            );
        }
        let rings = memory.rings();
        let settings = [
            (
                CqsReg::Mode,
                CqsMode(0).with_system(true).with_failures(true).0,
            ),
            (CqsReg::Gpid, Group::Kernel.gpid()),
            (CqsReg::MrqInterruptMask, u64::MAX),
            (CqsReg::InterruptArmIpa, memory.tcq.qword_addr(ARM)),
            (CqsReg::Imr, u64::MAX),
            (CqsReg::Irc, u64::MAX),
            (CqsReg::Imc, CqsIrqs::TCQ_WRITE_ACKNOWLEDGE.raw()),
        ];
        let mut free = KVVec::with_capacity(OUT.into(), GFP_KERNEL)?;
        for buffer in (0..OUT).rev() {
            free.push(buffer, GFP_KERNEL)?;
        }
        let this = Self {
            device: device.clone(),
            id: QueueId::kernel(tni, device.description()),
            memory: Some(memory),
            kept: kept.0.clone(),
            post: RingIndex::new(ENTRIES),
            reap: RingIndex::new(ENTRIES),
            notices: RingIndex::new(ENTRIES),
            commands: KVVec::from_elem(None, n, GFP_KERNEL)?,
            free,
            posted: 0,
            passed: Passed::default(),
            allowance: 0,
        };
        device.write_all(this.id, &settings);
        device.write_all(this.id, &rings.registers());
        if let Some(tables) = tables {
            device.write_all(this.id, &tables);
        }
        let arm = device.read(this.id, CqsReg::InterruptArmIpa);
        knows(device, CqsReg::InterruptArmIpa.name(), arm)?;
        // From here on `drop` stops the queue.
        device.enable_cq(this.id, true)?;
        Ok(this)
    }

    /// The number of commands posted without a doorbell.
    pub(crate) fn posted(&self) -> usize {
        self.posted as usize
    }

    /// Tells the kernel's byte queue limits what was posted and what has ended.
    pub(crate) fn account(&mut self, queue: TxQueue<'_>) {
        self.allowance = queue.account(&core::mem::take(&mut self.passed));
    }

    /// Returns true if the stack waits until packets have ended.
    pub(crate) fn is_full(&self) -> bool {
        self.allowance < 0
    }

    /// The payload of a buffer.
    pub(crate) fn payload(&mut self, buffer: u16) -> Option<&mut [u8]> {
        let at = usize::from(buffer) * PACKET_BUFFER_SIZE + HEADER_SIZE;
        let bytes = self.memory.as_ref()?.frames.bytes(at, SYSTEM_PAYLOAD_MAX)?;
        // SAFETY: the memory lives as long as `self`. The device only reads posted buffers; the
        // memory is not shared otherwise.
        Some(unsafe { &mut *bytes })
    }

    /// Puts a command into the queue.
    fn push(&mut self, posted: Posted, descriptor: Descriptor) {
        let Some(memory) = self.memory.as_ref() else {
            return;
        };
        let words = descriptor.with_flip(self.post.flip()).0;
        let slot = self.post.slot() as usize;
        if let Some(place) = self.commands.get_mut(slot) {
            *place = Some(posted);
        }
        // The first word has the flip bit, so it is stored last.
        for (i, word) in words.into_iter().enumerate().rev() {
            memory.toq.store(slot * DESC_QWORDS + i, word);
        }
        self.post.advance();
        self.posted += 1;
    }

    /// Returns true if there is memory for rendezvous.
    pub(crate) fn has_rendezvous(&self) -> bool {
        self.memory.as_ref().is_some_and(|m| m.rendezvous.is_some())
    }

    /// That memory.
    pub(crate) fn rendezvous(&mut self) -> Option<&mut RendezvousMemory> {
        self.memory.as_mut()?.rendezvous.as_mut()
    }

    /// Takes back all frames that others may read, except for those of slots that are `under_way`.
    pub(crate) fn unshare(&mut self, under_way: impl Fn(usize) -> bool) {
        let Some(rendezvous) = self.rendezvous() else {
            return;
        };
        let mut any = false;
        for slot in (0..SLOTS).filter(|slot| !under_way(*slot)) {
            any |= rendezvous.unshare(slot);
        }
        if !any || !self.forget() {
            return;
        }
        let Some(rendezvous) = self.rendezvous() else {
            return;
        };
        for slot in (0..SLOTS).filter(|slot| !under_way(*slot)) {
            rendezvous.free(slot);
        }
    }

    /// Posts a Get of `len` bytes of another node's memory, on a path, to a slot. Returns false if
    /// that is not possible.
    pub(crate) fn fetch(
        &mut self,
        (from, path): (Coords, Path),
        place: StagOffset,
        slot: usize,
        len: usize,
    ) -> bool {
        // There is room: the queue has more entries than there are buffers and slots.
        let prepared = self.rendezvous().and_then(|r| r.prepare(slot, len));
        let Some(local) = prepared else {
            return false;
        };
        let header = Header1(0)
            .with_target(from)
            .with_path(path)
            .with_ri(self.id.tni.get())
            .with_interrupt(true);
        // Its notice names the slot.
        let (command, header2) = (Command::Get, Header2(0).with_edata(slot as u16));
        let get = Descriptor::transfer(command, header, header2, place, local, len as u32);
        self.push(Posted::Fetch(slot as u8), get);
        true
    }

    /// Flushes entries that were removed from the tables of [`RendezvousMemory`] out of the
    /// device's cache. Returns false if the device does not respond: then the memory is kept until
    /// the queue has stopped, and rendezvous ends.
    pub(crate) fn forget(&mut self) -> bool {
        self.device.write(self.id, CqsReg::CacheFlush, 1);
        // No lock may be held for long: a device that is gone does not answer later either.
        let status = || self.device.try_read(self.id, CqsReg::Status);
        let mut looks = (0..FLUSH_LOOKS).map_while(|_| status().ok());
        if looks.any(|status| !CqsStatus(status).cache_flush_busy()) {
            return true;
        }
        dev_err!(
            self.device.pdev(),
            "{}: no cache flush, rendezvous disabled\n",
            self.id
        );
        if let Some(memory) = self.memory.as_mut() {
            memory._unflushed = memory.rendezvous.take();
        }
        false
    }

    /// Rings the doorbell for all posted commands.
    pub(crate) fn flush(&mut self) {
        if self.posted == 0 {
            return;
        }
        shim::tofu_shim_trace_doorbell(self.id.tni, self.id.cq, self.posted);
        self.posted = 0;
        self.device.write(self.id, CqReg::FetchStart, 1);
    }

    /// Takes the result of a Get. Its completion only says that it was sent; the target's result is
    /// in its notice.
    fn reap_notice(&mut self) -> Option<Reaped> {
        let memory = self.memory.as_ref()?;
        let at = self.notices.slot() as usize * NOTICE_QWORDS;
        let word0 = MrqWord0(memory.mrq.load(at));
        if word0.flip() != self.notices.flip() {
            return None;
        }
        // The device writes the word with the flip bit last, so the rest must be read after it.
        dma_mb(Read);
        let slot = MrqWord1(memory.mrq.load(at + 1)).edata();
        self.notices.advance();
        let count = self.notices.count();
        if count % NOTICES == 0 {
            self.device.write(self.id, CqReg::MrqFullPointer, count);
        }
        Some(Reaped::Fetch(slot as u8, word0.rcode()))
    }

    /// Takes the next completed command; packets come in the order of posting. The caller owns the
    /// buffer of a packet.
    pub(crate) fn reap(&mut self) -> Option<Reaped> {
        if let Some(ended) = self.reap_notice() {
            return Some(ended);
        }
        loop {
            let (posted, rcode) = self.reap_completion()?;
            match posted {
                Posted::Packet {
                    purpose,
                    buffer,
                    len,
                } => {
                    self.passed.packets += 1;
                    self.passed.bytes += u32::from(len);
                    return Some(Reaped::Packet(Ended {
                        purpose,
                        rcode,
                        buffer,
                        len,
                    }));
                }
                Posted::Fetch(slot) if rcode.is_refused_unsent() => {
                    return Some(Reaped::Fetch(slot, rcode))
                }
                Posted::Fetch(_) => {}
            }
        }
    }

    /// Takes the next transmit complete entry, in the order of posting.
    fn reap_completion(&mut self) -> Option<(Posted, Rcode)> {
        if self.reap.count() == self.post.count() {
            return None;
        }
        let slot = self.reap.slot();
        let entry = TcqEntry(self.memory.as_ref()?.tcq.load(slot as usize));
        if entry.flip() != self.reap.flip() {
            return None;
        }
        self.reap.advance();
        let QueueId { tni, cq } = self.id;
        shim::tofu_shim_trace_completion(tni, cq, slot, entry.rcode());
        let posted = self.commands.get(slot as usize).copied().flatten()?;
        Some((posted, entry.rcode()))
    }

    /// Enables the interrupt for the next completion that requests one. The caller must check for
    /// earlier completions afterwards.
    pub(crate) fn rearm(&self) {
        if let Some(memory) = self.memory.as_ref() {
            arm(&memory.tcq);
        }
    }

    /// Disables the interrupt.
    pub(crate) fn disarm(&self) {
        if let Some(memory) = self.memory.as_ref() {
            memory.tcq.store(ARM, 0);
        }
    }
}

/// Checks that the device has kept the value of the register for interrupt requests. A device
/// without that register would latch its interrupts, which are not cleared here, so it would send
/// only one.
fn knows(device: &Device, register: &str, kept: u64) -> Result {
    if kept != 0 {
        return Ok(());
    }
    dev_err!(
        device.pdev(),
        "the device has no {}: the tofu that runs this node is older than this driver, update it\n",
        register
    );
    Err(EOPNOTSUPP)
}

/// Requests an interrupt through the word after a queue. The caller must check the queue
/// afterwards, because the device reads the word only after it has written an entry.
fn arm(queue: &Table) {
    queue.store(ARM, 1);
    // Later loads must not pass the store. Otherwise an entry could be written in between: the
    // driver would miss the entry, and the device the request.
    dma_mb(Full);
}

impl PacketQueue for Sender {
    type Buffer = u16;

    fn room(&self) -> usize {
        self.free.len()
    }

    fn size(&self) -> usize {
        OUT.into()
    }

    fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    fn give_up(&mut self, buffer: u16) {
        // There is room, because each one was there initially.
        let _ = self.free.push_within_capacity(buffer);
    }

    fn write(&mut self, buffer: &u16, at: usize, bytes: &[u8]) -> bool {
        let payload = self.payload(*buffer);
        let place = payload.and_then(|all| all.get_mut(at..at + bytes.len()));
        place.map(|place| place.copy_from_slice(bytes)).is_some()
    }

    fn read(&mut self, buffer: &u16, to: &mut [u8]) -> bool {
        let payload = self.payload(*buffer);
        let from = payload.and_then(|all| all.get(..to.len()));
        from.map(|from| to.copy_from_slice(from)).is_some()
    }

    fn post_buffer(
        &mut self,
        buffer: u16,
        len: u16,
        target: &PacketTarget,
        purpose: Purpose,
    ) -> bool {
        let Some(memory) = self.memory.as_ref() else {
            self.give_up(buffer);
            return false;
        };
        let frame = memory.frames.addr() + u64::from(buffer) * PACKET_BUFFER_SIZE as u64;
        self.passed.posted += u32::from(len);
        self.allowance = self.allowance.saturating_sub(len.into());
        // A stopped queue must be woken as soon as there is room, so the last packets of frames
        // request completions.
        let is_last = usize::from(len) < SYSTEM_PAYLOAD_MAX;
        let ask = is_last && (self.room() < ENOUGH || self.is_full());
        let posted = Posted::Packet {
            purpose,
            buffer,
            len,
        };
        self.push(posted, target.descriptor(frame, len, ask));
        true
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.device.write(self.id, CqsReg::Imr, u64::MAX);
        if self.device.enable_cq(self.id, false).is_err() {
            dev_err!(
                self.device.pdev(),
                "{} {}: its memory is kept until a reset\n",
                self.id,
                self.device.why_not_stopped()
            );
            if let Some(memory) = self.memory.take() {
                self.kept.add(memory);
            }
        }
    }
}

/// The receiving side.
pub(crate) struct Receiver {
    device: Arc<Device>,
    tni: TniId,
    pbq: Table,
    prq: Table,
    frames: Table,
    queues: PacketQueues,
}

impl Receiver {
    /// Posts buffers to a TNI.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn open(device: &Arc<Device>, tni: TniId) -> Result<Self> {
        let n = ENTRIES as usize;
        let frames = Table::new(device, usize::from(IN) * BUFFER_QWORDS)?;
        let mut this = Self {
            device: device.clone(),
            tni,
            pbq: Table::new(device, n)?,
            prq: Table::new(device, ARM + 1)?,
            queues: PacketQueues::new(frames.addr(), IN),
            frames,
        };
        for buffer in 0..usize::from(IN) {
            this.post(buffer * PACKET_BUFFER_SIZE);
        }
        this.write(TniReg::Imr, u64::MAX);
        this.write(TniReg::Irc, u64::MAX);
        let (mask, pbq, prq) = (PacketQueues::SYSTEM_ONLY, this.pbq.addr(), this.prq.addr());
        for (reg, value) in PacketQueues::registers(mask, pbq, prq) {
            this.write(reg, value);
        }
        this.write(TniReg::PrqInterruptArmPa, this.prq.qword_addr(ARM));
        let arm = device.read(tni, TniReg::PrqInterruptArmPa);
        knows(device, TniReg::PrqInterruptArmPa.name(), arm)?;
        this.write(TniReg::Imc, TniIrqs::PRQ_WRITE_ACKNOWLEDGE.raw());
        Ok(this)
    }

    fn write(&self, reg: TniReg, value: u64) {
        self.device.write(self.tni, reg, value);
    }

    /// Posts the buffer at byte `at` of the buffer memory.
    fn post(&mut self, at: usize) {
        let (slot, entry) = self.queues.post(at);
        self.pbq.store(slot, entry.0);
    }

    fn next(&self) -> Option<PrqEntry> {
        let entry = PrqEntry(self.prq.load(self.queues.slot()));
        self.queues.is_written(entry).then_some(entry)
    }

    /// Returns true if there is a packet to take.
    pub(crate) fn is_ready(&self) -> bool {
        self.next().is_some()
    }

    /// The sender and the payload of a packet.
    fn packet(&self, entry: &PrqEntry) -> Option<(Coords, *mut [u8])> {
        let at = self.queues.buffer(*entry)?;
        if entry.e() || entry.kind() != Some(PrqRcode::SystemTlp) {
            return None;
        }
        let header = TlpHeader(self.frames.load((at + ROUTING_HEADER_SIZE) / 8));
        let payload = self.frames.bytes(at + HEADER_SIZE, header.payload_len())?;
        Some((header.source(), payload))
    }

    /// Applies `look` to the next packet, which stays where it is.
    pub(crate) fn peek<R>(&self, look: impl FnOnce(Coords, &[u8]) -> R) -> Option<R> {
        let entry = self.next()?;
        // The device writes the packet before its entry, so the packet is read after the entry.
        dma_mb(Read);
        let (from, payload) = self.packet(&entry)?;
        // SAFETY: the device has returned the buffer, and does not write it before it is posted
        // again. Only `take` posts it, which needs `&mut self`.
        Some(look(from, unsafe { &*payload }))
    }

    /// Takes the next packet: passes its sender and payload to `take`, and posts its buffer again.
    /// Returns `None` if there is none, and `Some(None)` if it was not a valid packet.
    pub(crate) fn take<R>(
        &mut self,
        take: impl FnOnce(Coords, &[u8]) -> Option<R>,
    ) -> Option<Option<R>> {
        let entry = self.next()?;
        // The device writes the packet before its entry, so the packet is read after the entry.
        dma_mb(Read);
        let consumed = self.queues.advance();
        let taken = self.packet(&entry).and_then(|(from, payload)| {
            // SAFETY: the device has returned the buffer and does not write it any more.
            take(from, unsafe { &*payload })
        });
        if let Some(at) = self.queues.buffer(entry) {
            self.post(at);
        }
        if let Some(count) = consumed {
            self.write(TniReg::PrqFullPointer, count);
        }
        Some(taken)
    }

    /// Makes the next packet raise an interrupt. Returns true if there is one already.
    pub(crate) fn rearm(&self) -> bool {
        arm(&self.prq);
        let ready = self.is_ready();
        if ready {
            self.disarm();
        }
        ready
    }

    /// Disables the interrupt.
    pub(crate) fn disarm(&self) {
        self.prq.store(ARM, 0);
    }

    /// Sets the coalescing of interrupts: the longest delay, in nanoseconds, and the number of
    /// packets after which an interrupt is sent without it.
    pub(crate) fn coalesce(&self, nanoseconds: u64, packets: u64) {
        self.write(TniReg::PrqInterruptCoalescingTimer, nanoseconds);
        self.write(TniReg::PrqInterruptCoalescingCount, packets);
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.write(TniReg::Imr, u64::MAX);
        for (reg, value) in PacketQueues::CLOSED {
            self.write(reg, value);
        }
        // This read completes only after the writes have arrived.
        self.device.read(self.tni, TniReg::PrqPa);
    }
}
