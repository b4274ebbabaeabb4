//! Packets that no device sends, but that a peer over a cable could make up.

mod common;

use std::sync::Arc;

use tofu_abi::desc::{Command, Descriptor, Header1, Header2};
use tofu_abi::regs::{CqReg, CqsReg, Register, TniReg};
use tofu_abi::{Coords, CqId, Path, Rcode, StagOffset, TniId};
use tofu_fabric::{Class, Packet};
use tofu_icc::{Answer, Body, Config, DmaMemory, Icc, Payload, Request, Tag};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use common::{PEER, Quiet, SELF, Sent};

const TOQ: u64 = 0;
const TCQ: u64 = 0x1_0000;
const MRQ: u64 = 0x2_0000;
const MEMORY: usize = 0x3_0000;

/// A device with one enabled queue without translation tables.
fn device() -> (Icc, GuestMemoryMmap<()>) {
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
    let icc = Icc::new(Config::tofud(SELF), Arc::new(Quiet::default()), Arc::new(memory.clone()));
    icc.set_bus_master(true);
    let write = |register: Register, value: u64| {
        icc.bar_write(register.offset(), &value.to_le_bytes());
    };
    write(Register::Tni { tni: TniId::ALL[0], reg: TniReg::Enable }, 1);
    for (reg, value) in
        [(CqsReg::ToqIpa, TOQ), (CqsReg::TcqIpa, TCQ), (CqsReg::MrqIpa, MRQ), (CqsReg::Enable, 1)]
    {
        write(Register::Cqs { tni: TniId::ALL[0], cq: CqId::ALL[0], reg }, value);
    }
    (icc, memory)
}

fn packet(class: Class, body: Body) -> Packet<Body> {
    Packet { path: Path::default(), ..Packet::shortest(class, PEER, SELF, body) }
}

fn request() -> Request {
    Request {
        tag: Tag { cq: CqId::ALL[0], index: 0, generation: 1 },
        gpid: 0,
        header2: Header2(0),
        sps: 0,
        remote: StagOffset::new(CqId::ALL[0], 0, 0),
        local: StagOffset::new(CqId::ALL[0], 0, 0),
        position: 0,
        length: 8,
        total: 8,
        mtu: 1920,
    }
}

/// Lets a Get arrive and returns the code of its answer.
fn get(request: Request) -> Rcode {
    let (icc, _) = device();
    let mut net = Sent::default();
    icc.arrive(&packet(Class::Request, Body::Get { request }), &mut net);
    match net.0.pop().map(|p| p.body) {
        Some(Body::GetData { answer, .. }) if net.0.is_empty() => answer.rcode,
        other => panic!("{other:?} instead of one answer"),
    }
}

#[test]
fn sizes_that_no_device_sends_are_refused() {
    assert_eq!(get(request()), Rcode::STEERING_TABLE_DISABLED, "a legal request");
    let padding = Header2(0).with_padding(true);
    let notices = Header2(0).with_packet_response(true);
    let long = Request { length: 256 << 10, total: 256 << 10, ..request() };
    for illegal in [
        Request { mtu: 0, ..request() },
        Request { mtu: 4, ..request() },
        Request { mtu: u32::MAX, header2: padding, ..request() },
        // It would take memory of the target's process to copy what tables may map many times over.
        Request { length: u32::MAX, total: u32::MAX, ..request() },
        Request { length: (256 << 10) + 1, total: 1 << 20, ..request() },
        Request { total: 1 << 24, ..request() },
        Request { position: 1, ..request() },
        Request { position: u32::MAX, ..request() },
        // Notices without number.
        Request { mtu: 8, header2: notices, ..long },
    ] {
        assert_eq!(get(illegal), Rcode::ILLEGAL_TLP, "{illegal:?}");
    }
    assert_eq!(get(long), Rcode::STEERING_TABLE_DISABLED, "the longest burst");
}

/// Posts a Get of 64 bytes to the peer and lets something arrive instead of its answer. Returns
/// whether the command has ended.
fn ends_with(change: impl FnOnce(&mut Packet<Body>)) -> bool {
    let (icc, memory) = device();
    let header1 = Header1(0).with_target(PEER).with_path(PEER.default_path());
    let notices = Header2(0).with_packet_response(true);
    let (remote, local) =
        (StagOffset::new(CqId::ALL[0], 0, 0), StagOffset::new(CqId::ALL[0], 0, 0));
    let get = Descriptor::transfer(Command::Get, header1, notices, remote, local, 64);
    memory.write(TOQ, &get.with_flip(true).to_bytes()).unwrap();
    let mut net = Sent::default();
    let doorbell = Register::Cq { tni: TniId::ALL[0], cq: CqId::ALL[0], reg: CqReg::FetchStart };
    icc.bar_write(doorbell.offset(), &1u64.to_le_bytes());
    assert!(!icc.run_queue(TniId::ALL[0], CqId::ALL[0].into(), &mut net));
    let (tag, _) = net.0[0].body.tag().unwrap();
    let answer =
        Answer { tag, position: 0, length: 64, done: 0, rcode: Rcode::CQ_DISABLED, request_ps: 0 };
    let payload = Payload::Bytes(Box::new([0; 64]));
    let mut packet = packet(Class::Response, Body::GetData { answer, payload, mtu: 64 });
    change(&mut packet);
    icc.arrive(&packet, &mut net);
    memory.load(TCQ).unwrap() != 0
}

fn answer(packet: &mut Packet<Body>) -> &mut Answer {
    match &mut packet.body {
        Body::GetData { answer, .. } => answer,
        other => panic!("{other:?} is no answer to a Get"),
    }
}

#[test]
fn unexpected_answers_are_ignored() {
    assert!(ends_with(|_| ()), "the right answer");
    // The place in a notice would be beyond the message, and beyond 32 bits.
    assert!(!ends_with(|p| answer(p).position = u32::MAX));
    assert!(!ends_with(|p| answer(p).position = 1));
    assert!(!ends_with(|p| answer(p).length = u32::MAX));
    assert!(!ends_with(|p| answer(p).done = 65));
    assert!(!ends_with(|p| answer(p).tag.generation = 2));
    assert!(!ends_with(|p| p.src = Coords::new(0, 0, 0, 0, 1, 0)), "from another node");
    assert!(!ends_with(|p| p.src_tni = TniId::ALL[1]), "from another interface");
    // An answer of another kind.
    assert!(!ends_with(|p| {
        let answer = *answer(p);
        p.body = Body::PutAck { answer };
    }));
}

#[test]
fn scribbled_counters_can_be_summed() {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use tofu_icc::SharedPages;
    use vm_memory::{MmapRegion, VolatileMemory};

    let region = Arc::new(MmapRegion::new(SharedPages::SIZE).unwrap());
    let config = Config { pages: SharedPages::new(Arc::clone(&region)), ..Config::tofud(SELF) };
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
    let icc = Icc::new(config, Arc::new(Quiet::default()), Arc::new(memory));
    for cq in [0, 1] {
        let at = SharedPages::page_offset(TniId::ALL[0], CqId::ALL[cq].into())
            + CqReg::TxPayloadByte.offset() as usize;
        region.get_atomic_ref::<AtomicU64>(at).unwrap().store(u64::MAX, SeqCst);
    }
    assert_eq!(icc.payload_bytes(), (u64::MAX - 1, 0));
}
