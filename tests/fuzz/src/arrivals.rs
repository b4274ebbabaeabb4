//! Any packet that a peer at the other end of a cable could send.
//!
//! There is one answer for each request, and the device still releases its memory when reset.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use arbitrary::{Result, Unstructured};
use tofu_abi::desc::{ArmwOp, Command, DESC_SIZE, Descriptor, Header1, Header2};
use tofu_abi::frame::{
    ECRC_SIZE, HEADER_SIZE, ROUTING_HEADER_SIZE, RoutingHeader, SYSTEM_PAYLOAD_MAX, TLP_UNIT,
    TlpHeader, TlpKind, frame_size,
};
use tofu_abi::regs::{CqReg, CqsMode, CqsReg, NUM_CQ, Register, TniReg};
use tofu_abi::{Coords, CqId, Doorbell, Path, Rcode, StagOffset, TniId};
use tofu_fabric::{Class, DiscardReason, Packet, Port, PortCounters, Way, XbCounters};
use tofu_icc::{Answer, Body, Config, Host, Icc, Net, Payload, Request, SharedPages, Tag};
use vm_memory::{MmapRegion, VolatileMemory};

use crate::world::{
    BUFFERS_RANGE, CQ, DATA_RANGE, HIGH, MRQ_RANGE, Memory, PRQ_RANGE, TCQ, TCQ_RANGE, TNI, TOQ,
    coords, generation, open_packet_queues, open_queue,
};

/// Actions of one input at most.
const MAX_ACTIONS: u32 = 64;

const ALLOWED: [Range<u64>; 6] =
    [DATA_RANGE, TCQ_RANGE, MRQ_RANGE, PRQ_RANGE, BUFFERS_RANGE, HIGH..TCQ];

/// Surroundings that do nothing by themselves.
struct Quiet(AtomicU64);

impl Host for Quiet {
    fn interrupt(&self, _: u16) {}
    fn doorbell(&self, _: TniId, _: Doorbell) {}
    fn queue_enabled(&self, _: TniId, _: Doorbell, _: bool) {}
    fn timer(&self, _: u64) {}
    fn now_ns(&self) -> u64 {
        self.0.load(SeqCst)
    }
    fn port_counters(&self, _: Port) -> PortCounters {
        PortCounters::default()
    }
    fn xb_counters(&self) -> XbCounters {
        XbCounters::default()
    }
}

/// A network without another end. It keeps what was sent.
struct Void {
    now_ns: u64,
    sent: Vec<Packet<Body>>,
}

impl Net for Void {
    fn has_room(&self, _: Coords, _: TniId) -> bool {
        true
    }

    fn inject(&mut self, packet: Packet<Body>) {
        self.sent.push(packet);
    }
    fn progress(&mut self) {}
    fn now_ns(&self) -> u64 {
        self.now_ns
    }
}

struct Bench {
    icc: Icc,
    host: Arc<Quiet>,
    memory: Memory,
    pages: Option<Arc<MmapRegion<()>>>,
    posted: u64,
    /// Requests of the device that have not been answered.
    requests: Vec<Packet<Body>>,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok(shared) = u.arbitrary() else { return };
    let mut bench = Bench::new(shared);
    let before = bench.memory.snapshot();
    for _ in 0..MAX_ACTIONS {
        if u.is_empty() || bench.act(&mut u).is_err() {
            break;
        }
    }
    bench.memory.assert_unchanged(&before, &ALLOWED);
    // The device still stops on request, and then releases its memory.
    bench.requests.clear();
    bench.icc.set_bus_master(false);
    bench.icc.reset();
    assert!(!bench.icc.queue_is_enabled(TNI, CQ.into()));
}

impl Bench {
    /// A device with one queue, and with pages that the guest writes to if `shared`.
    fn new(shared: bool) -> Self {
        let host = Arc::new(Quiet(AtomicU64::new(0)));
        let memory = Memory::new();
        memory.fill(0);
        memory.set_tables();
        let region =
            || Arc::new(MmapRegion::new(SharedPages::SIZE).expect("the host has this much memory"));
        let pages = shared.then(region);
        let config = Config {
            pages: pages.clone().and_then(SharedPages::new),
            ..Config::of(generation(), coords(0))
        };
        let icc = Icc::new(config, Arc::clone(&host) as _, Arc::new(memory.0.clone()));
        icc.set_bus_master(true);
        let write = |register: Register, value: u64| {
            icc.bar_write(register.offset(), &value.to_le_bytes());
        };
        write(Register::Tni { tni: TNI, reg: TniReg::Enable }, 1);
        let mode = CqsMode(0).with_system(true).with_trp1_enable(true).with_trp2_enable(true);
        write(Register::Cqs { tni: TNI, cq: CQ, reg: CqsReg::Mode }, mode.0);
        open_queue(&mut |reg, value| write(Register::Cqs { tni: TNI, cq: CQ, reg }, value));
        open_packet_queues(&memory, &mut |reg, value| {
            write(Register::Tni { tni: TNI, reg }, value)
        });
        Self { icc, host, memory, pages, posted: 0, requests: Vec::new() }
    }

    fn now(&self) -> u64 {
        self.host.0.load(SeqCst)
    }

    fn act(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=11)? {
            // A command whose answers the input determines.
            0 | 1 => {
                let command = *u.choose(&Command::ALL)?;
                let place = StagOffset::new(CQ, 0, u.arbitrary::<u16>()?.into());
                let length = u.int_in_range(0..=0x2_0000)?;
                let header2 = Header2(u.arbitrary::<u16>()?.into());
                let header1 = Header1(0).with_target(coords(1)).with_mtu(u.arbitrary()?);
                let words = Descriptor::transfer(command, header1, header2, place, place, length);
                let slot = TOQ + self.posted * DESC_SIZE as u64;
                self.memory.write(slot, &words.with_flip(true).to_bytes());
                self.posted += 1;
                let mut net = Void { now_ns: self.now(), sent: Vec::new() };
                self.icc.run_queue(TNI, CQ.into(), &mut net);
                self.requests.extend(net.sent);
            }
            2 if !self.requests.is_empty() => {
                let index = u.choose_index(self.requests.len())?;
                let packet = self.requests.swap_remove(index);
                self.icc.undeliverable(&packet, Rcode::LINK_DOWN, self.now());
            }
            3 => {
                self.host.0.fetch_add(u.arbitrary::<u32>()?.into(), SeqCst);
                self.icc.expire(self.now());
            }
            4 => {
                let port = Port::from_index(u.int_in_range(0..=9)?);
                self.icc.router_event(port, DiscardReason::LinkDown);
            }
            // A write of the guest to its page in between.
            5 => {
                self.write_page(u)?;
            }
            _ => {
                let packet = self.packet(u)?;
                // Only a peer out of order names an interface that no node has.
                let answered = packet.body.is_request() && TniId::new(packet.dst_tni).is_some();
                let mut net = Void { now_ns: self.now(), sent: Vec::new() };
                self.icc.arrive(&packet, &mut net);
                assert_eq!(net.sent.len(), usize::from(answered), "answers to one packet");
                if answered {
                    let answer = &net.sent[0];
                    assert!(!answer.body.is_request(), "a request was answered by a request");
                }
            }
        }
        // Reads that a driver does frequently.
        for reg in [CqsReg::Status, CqsReg::Irr] {
            let register = Register::Cqs { tni: TNI, cq: CQ, reg };
            self.icc.bar_read(register.offset(), &mut [0; 8]);
        }
        self.icc.bar_read(
            Register::Cq { tni: TNI, cq: CQ, reg: CqReg::MrqNumNotice }.offset(),
            &mut [0; 8],
        );
        Ok(())
    }

    /// The guest writes to its page of doorbells, if it has one.
    fn write_page(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let Some(pages) = &self.pages else { return Ok(()) };
        let at = SharedPages::page_offset(TNI, CQ.into()) + 8 * u.int_in_range(0..=17)?;
        if let Ok(word) = pages.get_atomic_ref::<AtomicU64>(at) {
            word.store(u.arbitrary()?, SeqCst);
        }
        if self.icc.poll_doorbell(TNI, CQ.into()) {
            let mut net = Void { now_ns: self.now(), sent: Vec::new() };
            self.icc.run_queue(TNI, CQ.into(), &mut net);
            self.requests.extend(net.sent);
        }
        self.icc.payload_bytes();
        Ok(())
    }

    /// A packet, often one that answers a command of the device.
    fn packet(&self, u: &mut Unstructured<'_>) -> Result<Packet<Body>> {
        let (tag, position, length) = self.tag(u)?;
        let request = Request {
            tag,
            gpid: u64::from(u.ratio(1, 16)?),
            header2: Header2(u.arbitrary::<u16>()?.into()),
            // It has four bits in a descriptor, but that does not restrict what a peer sends.
            sps: if u.arbitrary()? { 0 } else { u.arbitrary()? },
            remote: place(u)?,
            local: place(u)?,
            position,
            length,
            total: number(u)?,
            mtu: if u.arbitrary()? { 1920 } else { number(u)? },
        };
        let answer = Answer {
            tag,
            position,
            length,
            done: if u.arbitrary()? { length } else { number(u)? },
            rcode: Rcode::new(if u.arbitrary()? { 0 } else { u.arbitrary()? }),
            request_ps: u.arbitrary()?,
        };
        let body = match u.int_in_range(0..=6)? {
            0 => Body::Put { request, payload: payload(u, length)? },
            1 => Body::Get { request },
            2 => Body::Armw {
                request: Request { length: *u.choose(&[4, 8, 8, length])?, ..request },
                op: *u.choose(&ArmwOp::ALL)?,
                operand: u.arbitrary()?,
                compare: u.arbitrary()?,
            },
            3 => Body::PutAck { answer },
            4 => Body::GetData { answer, payload: payload(u, answer.done)?, mtu: number(u)? },
            6 => Body::Frame { tag, frame: frame(u)? },
            _ => Body::ArmwAck { answer, old: u.arbitrary()? },
        };
        let other: u8 = u.arbitrary()?;
        Ok(Packet {
            src: if other & 7 == 0 { Coords::from_array(u.arbitrary()?) } else { coords(1) },
            src_tni: if other & 8 == 0 { TniId::ALL[0] } else { *u.choose(&TniId::ALL)? },
            dst: coords(0),
            dst_tni: if other & 0x70 == 0 { u.arbitrary()? } else { TNI.get() },
            path: Path::new(0, other & 3, 0),
            way: Way::Shortest,
            class: if other & 0x80 == 0 { Class::Request } else { Class::Response },
            system: other & 4 != 0,
            tlps: number(u)?,
            bytes: u.arbitrary()?,
            tlp_bytes: 104,
            gap: u.arbitrary()?,
            sender: u.arbitrary()?,
            before: u.arbitrary()?,
            bad: None,
            model_ps: u.arbitrary()?,
            body,
        })
    }

    /// A tag, a position and a length, often of a command that the device has sent.
    fn tag(&self, u: &mut Unstructured<'_>) -> Result<(Tag, u32, u32)> {
        let mut tag = Tag {
            cq: CqId::ALL[u.int_in_range(0..=1)?],
            index: u.int_in_range(0..=2)?,
            generation: u.int_in_range(0..=2)?,
        };
        if u.ratio(1, 16)? {
            let cq = CqId::ALL[usize::from(u.arbitrary::<u8>()?) % NUM_CQ];
            tag = Tag { cq, index: u.arbitrary()?, generation: u.arbitrary()? };
        }
        let mut position = number(u)?;
        let mut length = number(u)?;
        if !self.requests.is_empty() && u.ratio(3, 4)? {
            let sent = &self.requests[u.choose_index(self.requests.len())?];
            if let Some((sent, _)) = sent.body.tag() {
                tag = sent;
            }
            if let (Body::Put { request, .. } | Body::Get { request }, true) =
                (&sent.body, u.arbitrary()?)
            {
                (position, length) = (request.position, request.length);
            }
        }
        Ok((tag, position, length))
    }
}

/// A frame, more often a plausible one.
fn frame(u: &mut Unstructured<'_>) -> Result<Box<[u8]>> {
    if u.ratio(1, 4)? {
        let len = u.int_in_range(0..=4096)?;
        return Ok(vec![u.arbitrary()?; len].into());
    }
    let payload = u.int_in_range(0..=SYSTEM_PAYLOAD_MAX)?;
    let mut frame = vec![0x11; frame_size(payload)];
    let units = (frame.len() - ROUTING_HEADER_SIZE) / TLP_UNIT - 1;
    let routing = RoutingHeader(u.arbitrary()?).with_tlp_units(units as u8);
    let mut header = TlpHeader(u64::from(u.arbitrary::<u32>()?));
    if u.ratio(3, 4)? {
        header = header.with_kind(TlpKind::System as u8).with_length(payload as u16);
    }
    let header = if u.arbitrary()? { header.with_source(coords(1)).with_i(0) } else { header };
    frame[..ROUTING_HEADER_SIZE].copy_from_slice(&routing.0.to_le_bytes());
    frame[ROUTING_HEADER_SIZE..HEADER_SIZE].copy_from_slice(&header.0.to_le_bytes());
    let end = frame.len() - ECRC_SIZE;
    let sum = crc32fast::hash(&frame[ROUTING_HEADER_SIZE..end]);
    frame[end..].copy_from_slice(&sum.to_le_bytes());
    Ok(frame.into())
}

/// A length, a count or a position.
fn number(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match u.int_in_range(0..=3)? {
        0 => u.int_in_range(0..=16)?,
        1 => u.arbitrary::<u16>()?.into(),
        2 => u32::MAX - u32::from(u.arbitrary::<u8>()?),
        _ => u.arbitrary()?,
    })
}

fn place(u: &mut Unstructured<'_>) -> Result<StagOffset> {
    if u.ratio(1, 16)? {
        return Ok(StagOffset(u.arbitrary()?));
    }
    Ok(StagOffset::new(CQ, u.int_in_range(0..=8)?, u.arbitrary::<u16>()?.into()))
}

/// A payload, more often one of the length that its header says.
fn payload(u: &mut Unstructured<'_>, length: u32) -> Result<Payload> {
    let length = length.min(0x2_0000);
    Ok(match u.int_in_range(0..=3)? {
        0 => Payload::Inline { data: [0xa5; 32], len: u.arbitrary()? },
        1 => Payload::Bytes(vec![0x5a; u.int_in_range(0..=0x1000)?].into()),
        _ => Payload::Bytes(vec![0xc3; length as usize].into()),
    })
}
