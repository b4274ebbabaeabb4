//! Any message from a peer over a cable, to a shard of a machine with a device, whose queue, packet
//! queue and barrier channel are open.
//!
//! There is one answer or report at most for a message, and none for one that is refused; links
//! stay up. Units of TNW that no shard sends are refused and counted.

use std::sync::{Arc, Mutex};

use arbitrary::{Result, Unstructured};
use tofu_abi::barrier::{BgAddress, OpType};
use tofu_abi::desc::{ArmwOp, Header2};
use tofu_abi::reduce::VALUE_QWORDS;
use tofu_abi::table::PageSize;
use tofu_abi::{BchId, BgId, Coords, CqId, Rcode, StagOffset, TniId};
use tofu_driver::{
    Access, Channel, ChannelConfig, Cq, CqConfig, Device, Gate, MemoryRange, PacketConfig, Packets,
    Platform,
};
use tofu_fabric::wire;
use tofu_fabric::{Class, Crossing, NodeId, Packet, Port, Shape, ShardId, Way};
use tofu_icc::{Answer, Body, Payload, Request, Signal, Tag};
use tofu_inproc::InProcess;
use tofu_machine::{
    MAX_MESSAGE, Machine, MachineConfig, Shard, Surroundings, Torus, TorusConfig, Transport,
};
use tofu_tnw::Nwp;

use crate::world::generation;

/// Messages of one input at most.
const MAX_MESSAGES: u32 = 32;
/// The shard that sends the messages; this process has the first of the two shards.
const PEER: ShardId = ShardId(1);

/// The interface that is open, and the group process id of its queue and its barrier channel.
const TNI: TniId = TniId::ALL[0];
const GPID: u64 = 5;
/// Bytes that others may read and write, and of all of the device's memory.
const SHARED: usize = 8 << 10;
const MEMORY: usize = 1 << 20;

/// Keeps what is sent.
#[derive(Default)]
struct Void(Mutex<Vec<(ShardId, Vec<u8>)>>);

impl Transport for Void {
    fn send(&self, to: ShardId, message: Vec<u8>) -> bool {
        assert_eq!(to, PEER, "to a shard that there is");
        assert!(message.len() <= MAX_MESSAGE, "{} bytes", message.len());
        self.0.lock().expect("not poisoned").push((to, message));
        true
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let shape: Shape = "1x1x1x2x2x2".parse().expect("it is a shape");
    let config = MachineConfig::of(generation(), shape);
    let void = Arc::new(Void::default());
    let shard = Shard { count: 2, own: ShardId(0), transport: Arc::clone(&void) as _ };
    let surroundings = Surroundings { shard: Some(shard), ..Surroundings::default() };
    let machine = Machine::within(config, surroundings);
    let machine = Arc::new(machine.expect("the host has descriptors"));
    machine.network().shard_came(PEER);
    // The other nodes of the shard have no device.
    let node = Coords::default();
    let platform = InProcess::attach(&machine, node, MEMORY).expect("the node is free");
    let device = Device::probe(platform).expect("there is one");
    let _open = open(&device);
    machine.run_pending();
    for _ in 0..MAX_MESSAGES {
        if u.is_empty() {
            break;
        }
        let Ok(message) = message(&mut u) else { break };
        let taken = machine.network().receive(PEER, &message);
        let answers = std::mem::take(&mut *void.0.lock().expect("not poisoned"));
        assert!(answers.len() <= 1, "{} answers to one message", answers.len());
        assert!(taken.is_ok() || answers.is_empty(), "an answer to what was refused");
    }
    machine.run_pending();
    let counters = machine.network().cables(PEER).expect("there are cables");
    assert!(counters.refused <= counters.received);
    // A packet within this shard still gets through.
    let up = machine.fabric().links().filter(|(_, up)| *up).count();
    assert_eq!(up, machine.fabric().links().count());
    assert!(machine.fabric().port_counters(NodeId(0), Port::A).is_some());
}

/// Runs one input of messages to a shard of a machine of TNW, whose first device is enabled. Its
/// links lead to the other shard.
pub fn tnw(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let void = Arc::new(Void::default());
    let shard = Shard { count: 2, own: ShardId(0), transport: Arc::clone(&void) as _ };
    let surroundings = Surroundings { shard: Some(shard), ..Surroundings::default() };
    let shape: Shape = "2x2x1".parse().expect("it is a shape");
    let torus = Torus::within(TorusConfig::new(shape), surroundings);
    let torus = Arc::new(torus.expect("the host has descriptors"));
    torus.network().shard_came(PEER);
    let platform = InProcess::attach_nwp(&torus, Coords::default(), MEMORY);
    let nwp = Nwp::probe(platform.expect("the node is free")).expect("there is one");
    torus.run_pending();
    for _ in 0..MAX_MESSAGES {
        if u.is_empty() {
            break;
        }
        let Ok(message) = unit(&mut u) else { break };
        let _ = torus.network().receive(PEER, &message);
        torus.run_pending();
        void.0.lock().expect("not poisoned").clear();
    }
    let counters = torus.network().cables(PEER).expect("there are cables");
    assert!(counters.refused <= counters.received);
    assert_eq!(nwp.coords(), Coords::default());
}

/// A unit that comes over a cable, with any content, more often one that a shard could send.
fn unit(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let kind = u.int_in_range(0..=2)?;
    if u.ratio(1, 8)? {
        let len = u.int_in_range(0..=400)?;
        return Ok([&[kind], u.bytes(len.min(u.len()))?].concat());
    }
    let port = Port::ALL[u.choose_index(Port::COUNT)?];
    let mut message = vec![kind];
    // Links crossed, held back, flags, source with interface, target with interface, path.
    message.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(&[1, u.int_in_range(0..=2)?, 0, 0, 0, 0, 0]);
    message.extend_from_slice(&[0; 7 + 3]);
    message.extend_from_slice(&[2, port.index() as u8, u.int_in_range(0..=8)?, 0]);
    message.extend_from_slice(&[0, 0]);
    let packets: u8 = u.int_in_range(0..=3)?;
    for number in [u32::from(packets.max(1)), 136, 0] {
        message.extend_from_slice(&number.to_le_bytes());
    }
    message.extend_from_slice(&[0; 16]);
    if packets == 0 {
        message.push(1);
        message.extend_from_slice(&u.arbitrary::<[u8; 32]>()?);
    } else {
        message.push(0);
        message.extend_from_slice(&u.arbitrary::<[u8; 8]>()?);
        message.resize(message.len() + usize::from(packets) * 128, u.arbitrary()?);
    }
    Ok(message)
}

/// Opens queues and gates that packets may be for.
fn open(device: &Device<InProcess>) -> impl Sized + use<'_> {
    const WORKS: &str = "there is memory for it";
    device.tni(TNI).enable().expect(WORKS);
    let config = CqConfig { gpid: GPID, ..CqConfig::new(TNI, CqId::ALL[0]) };
    let mut cq = Cq::open(device, &config).expect(WORKS);
    let buffer = device.platform().alloc_dma(SHARED, 4096).expect(WORKS);
    let range = [MemoryRange::of(&buffer)];
    cq.register(&range, PageSize::Size4K, Access::ReadWrite, Some(0)).expect(WORKS);
    let config = PacketConfig { rx_buffers: 16, tx_buffers: 16, ..PacketConfig::new(TNI) };
    let packets = Packets::open(device, &config).expect(WORKS);
    // A round of two: a peer's node is the other one.
    let bch = BchId::ALL[0];
    let far = BgAddress::new(Coords::new(0, 0, 0, 1, 1, 1), TNI, bch.gate());
    let mut gate = Gate::new(TNI, bch.gate());
    (gate.src_local, gate.dst_local) = (Some(bch.gate()), Some(bch.gate()));
    (gate.src_remote, gate.dst_remote) = (Some(far), Some(far));
    let config = ChannelConfig { gpid: GPID, ..ChannelConfig::new(TNI, bch) };
    let channel = Channel::open(device, &config, &[gate]).expect(WORKS);
    (cq, buffer, packets, channel)
}

/// Bytes, more often those of a packet with a few of them changed.
fn message(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut message = vec![u.int_in_range(0..=3)?];
    if u.ratio(1, 8)? {
        let len = u.int_in_range(0..=400)?;
        message.extend_from_slice(u.bytes(len.min(u.len()))?);
        return Ok(message);
    }
    if message[0] == 2 {
        let codes = [Rcode::LINK_DOWN, Rcode::TARGET_DMA_OFF, Rcode::new(u.arbitrary()?)];
        message.push(u.choose(&codes)?.raw());
    }
    // Data in a device's own memory cannot be read here.
    if wire::encode(&crossing(u)?, &mut message).is_err() {
        return Ok(Vec::new());
    }
    for _ in 0..u.int_in_range(0..=2)? {
        let at = u.choose_index(message.len())?;
        message[at] = u.arbitrary()?;
    }
    Ok(message)
}

fn coords(u: &mut Unstructured<'_>) -> Result<Coords> {
    if u.ratio(1, 16)? {
        return Ok(Coords::from_array(u.arbitrary()?));
    }
    let bits: u8 = u.arbitrary()?;
    Ok(Coords::new(0, 0, 0, bits & 1, bits >> 1 & 1, bits >> 2 & 1))
}

fn crossing(u: &mut Unstructured<'_>) -> Result<Crossing<Body>> {
    let tag = Tag {
        cq: CqId::ALL[u.choose_index(CqId::ALL.len())?],
        index: u.arbitrary::<u8>()?.into(),
        generation: u.arbitrary::<u8>()?.into(),
    };
    let length = u.int_in_range(0..=4096)?;
    let gpid = if u.ratio(1, 8)? { u.arbitrary::<u8>()?.into() } else { GPID };
    let request = Request {
        tag,
        gpid,
        header2: Header2(u.arbitrary()?),
        sps: u.arbitrary()?,
        remote: place(u)?,
        local: place(u)?,
        position: u.arbitrary()?,
        length,
        total: u.arbitrary()?,
        mtu: u.arbitrary()?,
    };
    let body = body(request, u)?;
    let way = way(u)?;
    let packet = Packet {
        src: coords(u)?,
        src_tni: *u.choose(&TniId::ALL)?,
        dst: coords(u)?,
        dst_tni: u.arbitrary()?,
        path: coords(u)?.default_path(),
        way,
        class: Class::Request,
        system: false,
        tlps: u.int_in_range(1..=200)?,
        bytes: u.arbitrary()?,
        tlp_bytes: u.arbitrary()?,
        gap: u.arbitrary()?,
        sender: u.int_in_range(0..=15)?,
        before: u.arbitrary()?,
        bad: None,
        model_ps: u.arbitrary()?,
        body,
    };
    let hops = if u.ratio(1, 8)? { u.arbitrary()? } else { u.int_in_range(0..=5)? };
    let held = if u.ratio(1, 8)? { Some(u.arbitrary()?) } else { None };
    let (duplicated, bad) = (u.arbitrary()?, u.arbitrary::<Option<u32>>()?.map(NodeId));
    Ok(Crossing { packet: Packet { bad, ..packet }, hops, held, duplicated })
}

/// One of the bodies that cross cables.
fn body(request: Request, u: &mut Unstructured<'_>) -> Result<Body> {
    let Request { tag, gpid, length, .. } = request;
    let rcode = Rcode::new(u.arbitrary()?);
    let answer = Answer { tag, position: 0, length, done: length, rcode, request_ps: 1 };
    let payload = Payload::Bytes(vec![0x5a; length as usize].into());
    let body = match u.int_in_range(0..=7)? {
        0 => Body::Put { request, payload },
        1 => Body::Get { request },
        2 => {
            let op = *u.choose(&ArmwOp::ALL)?;
            Body::Armw { request, op, operand: 1, compare: 2 }
        }
        3 => Body::PutAck { answer },
        4 => Body::GetData { answer, payload, mtu: 104 },
        5 => Body::Signal(Signal {
            source: BgId::ALL[u.choose_index(BgId::ALL.len())?],
            target: if u.ratio(1, 4)? { BgId::ALL[17] } else { BchId::ALL[0].gate() },
            gpid,
            bseq: u.int_in_range(0..=2)?,
            op: OpType::new(u.int_in_range(0..=15)?),
            value: u.arbitrary::<bool>()?.then(|| Box::new([7; VALUE_QWORDS])),
        }),
        6 => Body::Frame { tag, frame: vec![0; length.min(1992) as usize].into() },
        _ => Body::ArmwAck { answer, old: 3 },
    };
    Ok(body)
}

/// A place in memory, more often one that may exist.
fn place(u: &mut Unstructured<'_>) -> Result<StagOffset> {
    if u.ratio(1, 4)? {
        return Ok(StagOffset(u.arbitrary()?));
    }
    Ok(StagOffset::new(
        CqId::ALL[usize::from(u.int_in_range(0..=1_u8)?)],
        u.int_in_range(0..=1)?,
        u.arbitrary::<u16>()?.into(),
    ))
}

fn way(u: &mut Unstructured<'_>) -> Result<Way> {
    let way = match u.int_in_range(0..=5)? {
        0 => Way::Distances(u.arbitrary()?),
        1 => {
            let port = Port::ALL[u.choose_index(Port::COUNT)?];
            Way::Hop { port, vc: u.int_in_range(0..=3)?, nullified: u.arbitrary()? }
        }
        _ => Way::Shortest,
    };
    Ok(way)
}
