//! Raw and system packets: frames out of memory, and the packet buffer and packet receive queues
//! (PBQ, PRQ) that frames of others, and reports about their requests, go to.

use std::collections::VecDeque;

use tofu_abi::desc::{Command, Descriptor, Header1};
use tofu_abi::frame::{
    ECRC_SIZE, FRAME_ALIGN, HEADER_SIZE, ROUTING_HEADER_SIZE, Report, RoutingHeader,
    SYSTEM_PAYLOAD_MAX, TLP_UNIT, TlpHeader, TlpKind, frame_size, is_frame_size,
};
use tofu_abi::irq::{cqs, tni as requests};
use tofu_abi::queue::{
    PBQ_ENTRY_SIZE, PRQ_ENTRY_SIZE, PbqEntry, PrqEntry, PrqRcode, RingIndex, queue_entries,
};
use tofu_abi::regs::{CACHE_INJECTION, TniReg};
use tofu_abi::{Coords, Rcode, TniId};
use tofu_fabric::{Class, Packet, Port, Way};

use crate::Icc;
use crate::cq::{Cq, lock};
use crate::memory::DmaMemory;
use crate::notice::Peer;
use crate::stats::TniUnit;
use crate::tlp::{Body, Request, Tag};

/// PRQ entries that make a cache line of 256 bytes: as many are held back at most.
const PRQ_LINE: usize = 256 / PRQ_ENTRY_SIZE;

/// A queue of the packet interface: where it is, and where its next entry goes.
#[derive(Clone, Copy, Debug)]
struct Ring {
    base: u64,
    index: RingIndex,
}

impl Ring {
    /// The queue at `base`; none for address 0, one that is not a multiple of 8, or a size code
    /// that does not exist.
    fn new(base: u64, size: u64) -> Option<Self> {
        let base = base & !CACHE_INJECTION;
        let entries = queue_entries(size)?;
        (base != 0 && base.is_multiple_of(8))
            .then_some(Self { base, index: RingIndex::new(entries) })
    }

    fn at(&self, entry_size: usize) -> u64 {
        self.base.wrapping_add(u64::from(self.index.slot()) * entry_size as u64)
    }
}

/// The packet queues of a TNI.
#[derive(Debug)]
pub(crate) struct PacketQueues {
    buffers: Option<Ring>,
    receive: Option<Ring>,
    held: VecDeque<PrqEntry>,
    held_until: u64,
    unsignalled: u64,
    signal_at: u64,
}

impl Default for PacketQueues {
    fn default() -> Self {
        Self {
            buffers: None,
            receive: None,
            held: VecDeque::new(),
            held_until: u64::MAX,
            unsignalled: 0,
            signal_at: u64::MAX,
        }
    }
}

/// What becomes of something that is to be received.
enum Fate {
    /// It is in a buffer, or at least has an entry.
    Taken,
    /// There is no place for it.
    Lost,
}

impl PacketQueues {
    /// Starts the packet buffer queue anew.
    pub(crate) fn set_buffers(&mut self, base: u64, size: u64) {
        self.buffers = Ring::new(base, size);
    }

    /// Starts the packet receive queue anew.
    pub(crate) fn set_receive(&mut self, base: u64, size: u64) {
        self.receive = Ring::new(base, size);
        self.held.clear();
        self.held_until = u64::MAX;
        self.unsignalled = 0;
        self.signal_at = u64::MAX;
    }

    /// Whether the receive queue is set up.
    pub(crate) fn receives(&self) -> bool {
        self.receive.is_some()
    }

    /// Puts `bytes` into a buffer and notes an entry about it. What there is to request is added
    /// to `irq`.
    fn take(
        &mut self,
        unit: &TniUnit,
        memory: &dyn DmaMemory,
        (code, report): (PrqRcode, bool),
        bytes: &[u8],
        now_ns: u64,
        irq: &mut u64,
    ) -> Fate {
        let (Some(receive), Some(buffers)) = (self.receive, &mut self.buffers) else {
            return Fate::Lost;
        };
        let entries = u64::from(receive.index.entries());
        let consumed = unit.read(TniReg::PrqFullPointer);
        let written = receive.index.count().wrapping_add(self.held.len() as u64);
        if written.wrapping_sub(consumed) & (2 * entries - 1) >= entries {
            *irq |= requests::PRQ_OVERFLOW;
            return Fate::Lost;
        }
        let Ok(entry) = memory.load(buffers.at(PBQ_ENTRY_SIZE)) else {
            *irq |= requests::PBQ_READ_EXCEPTION;
            return Fate::Lost;
        };
        let entry = PbqEntry(entry);
        if entry.f() != buffers.index.flip() {
            *irq |= requests::PBQ_UNDERFLOW;
            return Fate::Lost;
        }
        buffers.index.advance();
        let stored = memory.write(entry.addr(), bytes);
        if stored.is_err() {
            *irq |= requests::PRQ_WRITE_EXCEPTION;
        }
        self.held.push_back(
            PrqEntry(0)
                .with_rcode(code as u8)
                .with_pa_units(entry.pa_units())
                .with_w(report && stored.is_ok())
                .with_l(true)
                .with_e(stored.is_err()),
        );
        let hold_ns = unit.read(TniReg::PrqEntryCoalescingTimer);
        if hold_ns == 0 || self.held.len() >= PRQ_LINE {
            self.flush(unit, memory, now_ns, irq);
        } else if self.held_until == u64::MAX {
            self.held_until = now_ns.saturating_add(hold_ns);
        }
        if stored.is_err() { Fate::Lost } else { Fate::Taken }
    }

    /// Writes the entries that were held back.
    fn flush(&mut self, unit: &TniUnit, memory: &dyn DmaMemory, now_ns: u64, irq: &mut u64) {
        self.held_until = u64::MAX;
        let Some(ring) = &mut self.receive else {
            self.held.clear();
            return;
        };
        let mut written = 0;
        for entry in self.held.drain(..) {
            let entry = entry.with_f(ring.index.flip());
            if memory.store(ring.at(PRQ_ENTRY_SIZE), entry.0).is_err() {
                *irq |= requests::PRQ_WRITE_EXCEPTION;
                continue;
            }
            ring.index.advance();
            written += 1;
        }
        if written > 0 {
            self.signal(unit, written, now_ns, irq);
        }
    }

    /// Requests the interrupt of `n` entries, now or when enough others have come.
    fn signal(&mut self, unit: &TniUnit, n: u64, now_ns: u64, irq: &mut u64) {
        let count = unit.read(TniReg::PrqInterruptCoalescingCount);
        let hold_ns = unit.read(TniReg::PrqInterruptCoalescingTimer);
        self.unsignalled = self.unsignalled.saturating_add(n);
        let (by_count, by_time) = (count > 1, hold_ns > 0);
        if (!by_count && !by_time) || (by_count && self.unsignalled >= count) {
            self.raise(irq);
        } else if by_time && self.signal_at == u64::MAX {
            self.signal_at = now_ns.saturating_add(hold_ns);
        }
    }

    fn raise(&mut self, irq: &mut u64) {
        self.unsignalled = 0;
        self.signal_at = u64::MAX;
        *irq |= requests::PRQ_WRITE_ACKNOWLEDGE;
    }

    /// When something held back is due, in nanoseconds.
    fn next_deadline(&self) -> u64 {
        self.held_until.min(self.signal_at)
    }
}

/// A packet command as it goes out.
struct Outgoing {
    frame: Box<[u8]>,
    dst: Coords,
    dst_tni: u8,
    way: Way,
}

impl Icc {
    /// Checks a packet command and makes its packet, or tells with which code it ends.
    ///
    /// `fault` is called with the queue's exception if the frame cannot be read. The tag is for
    /// the caller to fill in.
    pub(crate) fn packet(
        &self,
        queue: &Cq,
        command: Command,
        descriptor: &Descriptor,
        fault: impl FnOnce(u64),
    ) -> Result<Packet<Body>, Rcode> {
        let (tni, mode) = (queue.tni, queue.mode());
        let header = descriptor.header1();
        let raw = matches!(command, Command::TransmitRawPacket1 | Command::TransmitRawPacket2);
        let allowed = match command {
            Command::TransmitRawPacket1 => mode.system() && mode.trp1_enable(),
            Command::TransmitRawPacket2 => mode.system() && mode.trp2_enable(),
            _ => mode.system(),
        };
        if !allowed {
            return Err(Rcode::NOT_PERMITTED);
        }
        let length = usize::from(descriptor.header2().packet_length());
        let fits = if raw {
            is_frame_size(length)
        } else {
            (HEADER_SIZE..=HEADER_SIZE + SYSTEM_PAYLOAD_MAX).contains(&length)
        };
        if !fits {
            return Err(Rcode::BAD_LENGTH);
        }
        let hop = command == Command::TransmitRawPacket2;
        if !hop && TniId::new(header.ri()).is_none() {
            return Err(Rcode::NO_SUCH_NODE);
        }
        let port = Port::from_index(header.port().into());
        if hop && port.is_none() {
            return Err(Rcode::NO_SUCH_NODE);
        }
        let at = descriptor.packet_address();
        if !at.is_multiple_of(FRAME_ALIGN) {
            fault(cqs::PAYLOAD_READ_EXCEPTION);
            return Err(Rcode::ALIGNMENT);
        }
        let size = if raw { length } else { frame_size(length - HEADER_SIZE) };
        let mut frame = vec![0; size];
        if self.memory().read(at, &mut frame[..length]).is_err() {
            fault(cqs::PAYLOAD_READ_EXCEPTION);
            return Err(Rcode::PAYLOAD_ACCESS);
        }
        let out = match (command, port) {
            (Command::TransmitRawPacket1, _) => self.raw(header, frame),
            (Command::TransmitRawPacket2, Some(port)) => self.raw_hop(header, port, frame),
            _ => self.system(tni, header, length - HEADER_SIZE, frame),
        };
        let system = tlp_header(&out.frame).kind() == TlpKind::System as u8;
        Ok(Packet {
            src: self.coords(),
            src_tni: tni.get(),
            dst: out.dst,
            dst_tni: out.dst_tni,
            path: header.path(),
            way: out.way,
            class: Class::System,
            system,
            tlps: 1,
            bytes: out.frame.len() as u64,
            model_ps: self.issue_ps(0),
            body: Body::Frame {
                tag: Tag { cq: queue.id, index: 0, generation: 0 },
                frame: out.frame,
            },
        })
    }

    fn system(&self, tni: TniId, header: Header1, payload: usize, mut frame: Vec<u8>) -> Outgoing {
        let distances = header.distances();
        let tlp = TlpHeader(0)
            .with_kind(TlpKind::System as u8)
            .with_length(payload as u16)
            .with_source(self.coords())
            .with_i(tni.get());
        frame[ROUTING_HEADER_SIZE..HEADER_SIZE].copy_from_slice(&tlp.0.to_le_bytes());
        seal(&mut frame);
        let routing = routing_header(header, frame.len()).with_distances(distances);
        let source = self.coords();
        Outgoing {
            frame: finished(frame, routing.with_di(header.ri()).with_system(true)),
            // The carrier works out X, Y and Z.
            dst: Coords { x: source.x, y: source.y, z: source.z, ..header.target() },
            dst_tni: header.ri(),
            way: Way::Distances(distances),
        }
    }

    fn raw(&self, header: Header1, frame: Vec<u8>) -> Outgoing {
        let system = tlp_header(&frame).kind() == TlpKind::System as u8;
        let routing = routing_header(header, frame.len()).with_di(header.ri()).with_system(system);
        Outgoing {
            frame: finished(frame, routing),
            dst: header.target(),
            dst_tni: header.ri(),
            way: Way::Shortest,
        }
    }

    fn raw_hop(&self, header: Header1, port: Port, frame: Vec<u8>) -> Outgoing {
        let di = routing_of(&frame).di();
        let system = tlp_header(&frame).kind() == TlpKind::System as u8;
        let routing = RoutingHeader(0)
            .with_tlp_units(len_field(frame.len()))
            .with_path(header.path())
            .with_di(di)
            .with_system(system);
        Outgoing {
            frame: finished(frame, routing),
            dst: self.coords(),
            dst_tni: di,
            way: Way::Hop { port, vc: header.vc(), nullified: header.e() },
        }
    }

    /// Takes a frame that arrived for TNI `tni` of this node.
    pub(crate) fn receive_frame(
        &self,
        tni: TniId,
        from: Peer,
        way: Way,
        frame: &[u8],
        now_ns: u64,
    ) {
        let unit = self.tni(tni);
        if matches!(way, Way::Hop { nullified: true, .. }) {
            unit.add(TniReg::NumReceiveNullifiedTlp, 1);
            return;
        }
        let whole = is_frame_size(frame.len())
            && routing_of(frame).tlp_size() + ROUTING_HEADER_SIZE == frame.len();
        if !whole {
            // No link lets such a thing through.
            unit.add(TniReg::RxNumUnknownTlp, 1);
            unit.add(TniReg::RxNumDiscardUnknownTlp, 1);
            unit.irq.request(self.host(), requests::PRQ_PACKET_DISCARD);
            return;
        }
        if !ecrc_is_right(frame) {
            unit.add(TniReg::NumReceiveNullifiedTlp, 1);
            return;
        }
        let header = tlp_header(frame);
        let named = Peer { node: header.source(), tni: header.i() };
        let (code, counter, discards) = if header.kind() != TlpKind::System as u8 {
            let discards = TniReg::RxNumDiscardUnknownTlp;
            (PrqRcode::UnknownTlp, TniReg::RxNumUnknownTlp, discards)
        } else if frame_size(header.length().into()) != frame.len() {
            exception(PrqRcode::IllegalTlpLength)
        } else if named != from {
            exception(PrqRcode::IllegalTlpFlags)
        } else {
            let discards = TniReg::RxNumDiscardSystemTlp;
            (PrqRcode::SystemTlp, TniReg::RxNumSystemTlp, discards)
        };
        unit.add(counter, 1);
        self.deliver(unit, (code, false), frame, discards, now_ns);
    }

    /// Counts a request of another node that was refused, and reports it to the packet receive
    /// queue if there is one.
    pub(crate) fn log_exception(
        &self,
        tni: TniId,
        from: Peer,
        command: Command,
        request: &Request,
        rcode: Rcode,
        now_ns: u64,
    ) {
        let unit = self.tni(tni);
        unit.add(TniReg::RxNumExceptionTlp, 1);
        let Some(code) = exception_code(rcode, request) else {
            return;
        };
        if !lock(&unit.packets).receives() {
            return;
        }
        let report = Report {
            rcode,
            source_cq: request.tag.cq.get(),
            command: command as u8,
            length: request.length,
            remote: request.remote,
            gpid: request.gpid,
        };
        let frame = report_frame(from, &report);
        self.deliver(unit, (code, true), &frame, TniReg::RxNumDiscardExceptionTlp, now_ns);
    }

    /// Puts something into the packet receive queue of a TNI, or counts it as discarded.
    fn deliver(
        &self,
        unit: &TniUnit,
        what: (PrqRcode, bool),
        bytes: &[u8],
        discards: TniReg,
        now_ns: u64,
    ) {
        if unit.read(TniReg::PrqMask) >> (what.0 as u8) & 1 != 0 {
            unit.add(discards, 1);
            return;
        }
        let mut irq = 0;
        let deadline;
        let fate = {
            let mut queues = lock(&unit.packets);
            // Looked at with the lock held: whoever turns one of them off waits for it.
            let fate = if unit.enabled() && self.dma_enabled() {
                queues.take(unit, self.memory(), what, bytes, now_ns, &mut irq)
            } else {
                Fate::Lost
            };
            deadline = queues.next_deadline();
            fate
        };
        if let Fate::Lost = fate {
            unit.add(discards, 1);
            irq |= requests::PRQ_PACKET_DISCARD;
        }
        unit.irq.request(self.host(), irq);
        self.want_expire(deadline);
    }

    /// Does what is due by now for the packet queues, or, with `all`, all that was held back.
    pub(crate) fn expire_packets(&self, now_ns: u64, all: bool) {
        for unit in &self.tnis {
            let mut irq = 0;
            let deadline;
            {
                let mut queues = lock(&unit.packets);
                if self.dma_enabled() && (all || queues.held_until <= now_ns) {
                    queues.flush(unit, self.memory(), now_ns, &mut irq);
                }
                if queues.signal_at <= now_ns {
                    queues.raise(&mut irq);
                }
                deadline = queues.next_deadline();
            }
            unit.irq.request(self.host(), irq);
            // Without DMA nothing can be written; turning it on again writes it.
            if deadline > now_ns {
                self.want_expire(deadline);
            }
        }
    }

    /// Waits for the end of writes to packet buffers and queues that are under way. Something
    /// must keep more from beginning.
    pub(crate) fn quiesce_packets(&self) {
        for unit in &self.tnis {
            drop(lock(&unit.packets));
        }
    }
}

/// What counts a TLP at fault.
const fn exception(code: PrqRcode) -> (PrqRcode, TniReg, TniReg) {
    (code, TniReg::RxNumExceptionTlp, TniReg::RxNumDiscardExceptionTlp)
}

/// As what a request that was answered with `rcode` goes into the packet receive queue, if at all.
fn exception_code(code: Rcode, request: &Request) -> Option<PrqRcode> {
    Some(match code.local() {
        Rcode::SUCCESS | Rcode::TNI_DISABLED | Rcode::TARGET_DMA_OFF => return None,
        Rcode::ILLEGAL_TLP if !request.has_legal_mtu() => PrqRcode::IllegalTlpFlags,
        Rcode::ILLEGAL_TLP => PrqRcode::IllegalTlpLength,
        Rcode::STAG_RANGE | Rcode::OFFSET_RANGE | Rcode::MEMORY_BLOCK_RANGE | Rcode::PAGE_RANGE => {
            PrqRcode::AddressRangeException
        }
        Rcode::NO_SUCH_CQ | Rcode::CQ_DISABLED | Rcode::GPID | Rcode::REMOTE_SUBNET => {
            PrqRcode::CqError
        }
        _ => PrqRcode::CqException,
    })
}

/// A frame that a device writes for its own node.
fn report_frame(from: Peer, report: &Report) -> Vec<u8> {
    let mut frame = vec![0; frame_size(Report::SIZE)];
    let tlp = TlpHeader(0)
        .with_kind(TlpKind::Report as u8)
        .with_length(Report::SIZE as u16)
        .with_source(from.node)
        .with_i(from.tni);
    frame[ROUTING_HEADER_SIZE..HEADER_SIZE].copy_from_slice(&tlp.0.to_le_bytes());
    frame[HEADER_SIZE..HEADER_SIZE + Report::SIZE].copy_from_slice(&report.to_bytes());
    let routing = RoutingHeader(0).with_tlp_units(len_field(frame.len()));
    frame[..ROUTING_HEADER_SIZE].copy_from_slice(&routing.0.to_le_bytes());
    seal(&mut frame);
    frame
}

/// The routing header of a packet that is routed by its descriptor.
fn routing_header(header: Header1, frame: usize) -> RoutingHeader {
    let target = header.target();
    RoutingHeader(0)
        .with_tlp_units(len_field(frame))
        .with_path(header.path())
        .with_a(target.a)
        .with_b(target.b)
        .with_c(target.c)
}

/// The LEN field of a frame of so many bytes.
const fn len_field(frame: usize) -> u8 {
    ((frame - ROUTING_HEADER_SIZE) / TLP_UNIT - 1) as u8
}

fn finished(mut frame: Vec<u8>, routing: RoutingHeader) -> Box<[u8]> {
    frame[..ROUTING_HEADER_SIZE].copy_from_slice(&routing.0.to_le_bytes());
    frame.into_boxed_slice()
}

/// The qword at a place of a frame; 0 beyond its end.
fn qword(frame: &[u8], at: usize) -> u64 {
    let bytes = frame.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

fn routing_of(frame: &[u8]) -> RoutingHeader {
    RoutingHeader(qword(frame, 0))
}

fn tlp_header(frame: &[u8]) -> TlpHeader {
    TlpHeader(qword(frame, ROUTING_HEADER_SIZE))
}

/// The ECRC that a frame should end with.
fn ecrc(frame: &[u8]) -> u32 {
    let end = frame.len().saturating_sub(ECRC_SIZE);
    frame.get(ROUTING_HEADER_SIZE..end).map_or(0, crc32fast::hash)
}

/// Makes a frame end with its ECRC.
pub(crate) fn seal(frame: &mut [u8]) {
    let sum = ecrc(frame);
    if let Some(end) = frame.last_chunk_mut::<ECRC_SIZE>() {
        *end = sum.to_le_bytes();
    }
}

pub(crate) fn ecrc_is_right(frame: &[u8]) -> bool {
    frame.last_chunk::<ECRC_SIZE>().is_some_and(|end| u32::from_le_bytes(*end) == ecrc(frame))
}
