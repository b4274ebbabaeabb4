//! Raw and system packets: commands, packet queues, counters, requests.

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use tofu_abi::Rcode;
use tofu_abi::desc::{Command, Descriptor, Header1};
use tofu_abi::frame::{
    ECRC_SIZE, FRAME_MAX, FRAME_MIN, HEADER_SIZE, Report, RoutingHeader, SYSTEM_PAYLOAD_MAX,
    TlpHeader, TlpKind, frame_size,
};
use tofu_abi::irq::{CqsIrqs, TniIrqs};
use tofu_abi::queue::{MrqId, PbqEntry, PrqEntry, PrqRcode, RingIndex};
use tofu_abi::regs::{CqsMode, PortReg, Register, TniReg};
use tofu_abi::topology::Port;
use tofu_abi::{Coords, TniId};
use tofu_driver::{
    CqConfig, DmaBuffer, Order, PacketConfig, PacketTarget, Packets, Received, SendError,
};
use tofu_inproc::{Buffer, InProcess};
use tofu_tests::{Cluster, Endpoint, pattern};

const ENTRIES: u32 = 2048;

fn open(cluster: &Cluster, rank: u32) -> Packets<InProcess> {
    Packets::open(cluster.device(rank), &PacketConfig::new(TniId::ALL[0])).unwrap()
}

fn straight(cluster: &Cluster, from: u32, to: u32) -> PacketTarget {
    PacketTarget::straight(
        cluster.device(from).coords(),
        cluster.device(to).coords(),
        TniId::ALL[0],
    )
}

fn tni(cluster: &Cluster, rank: u32, reg: TniReg) -> u64 {
    cluster.device(rank).read(Register::Tni { tni: TniId::ALL[0], reg })
}

fn irr(cluster: &Cluster, rank: u32) -> TniIrqs {
    TniIrqs::from_raw(tni(cluster, rank, TniReg::Irr))
}

/// A packet with its payload.
fn receive(packets: &mut Packets<InProcess>) -> Option<(Received, Vec<u8>)> {
    let mut buf = [0; SYSTEM_PAYLOAD_MAX];
    let received = packets.recv(&mut buf)?;
    Some((received, buf[..received.len].to_vec()))
}

/// Sends, and returns the code with which the command ends.
fn send(cluster: &Cluster, from: &mut Packets<InProcess>, to: &PacketTarget, data: &[u8]) -> Rcode {
    from.send(to, &[data], 0).unwrap();
    cluster.settle();
    from.poll_sent().unwrap().rcode
}

/// Packet queues set up by hand, for mistakes that the driver does not make.
struct Queues {
    pbq: Buffer,
    prq: Buffer,
    buffers: Buffer,
    receive: RingIndex,
}

impl Queues {
    /// Queues of node `rank` with `posted` buffers in them.
    fn new(cluster: &Cluster, rank: u32, posted: u32) -> Self {
        let queues = Self {
            pbq: cluster.alloc(rank, ENTRIES as usize * 8, 256),
            prq: cluster.alloc(rank, ENTRIES as usize * 8, 256),
            buffers: cluster.alloc(rank, 64 * 2048, 2048),
            receive: RingIndex::new(ENTRIES),
        };
        for n in 0..posted {
            queues.post(n.into(), queues.buffers.device_addr() + u64::from(n % 64) * 2048);
        }
        for (reg, value) in [
            (TniReg::PbqSize, 0),
            (TniReg::PbqPa, queues.pbq.device_addr()),
            (TniReg::PrqSize, 0),
            (TniReg::PrqPa, queues.prq.device_addr()),
        ] {
            cluster.device(rank).write(Register::Tni { tni: TniId::ALL[0], reg }, value);
        }
        queues
    }

    fn post(&self, n: u64, addr: u64) {
        let slot = (n % u64::from(ENTRIES)) as usize;
        let flip = (n / u64::from(ENTRIES)).is_multiple_of(2);
        self.pbq.store_u64(slot * 8, PbqEntry::post(addr, flip).0, Ordering::Release);
    }

    fn next(&mut self) -> Option<PrqEntry> {
        let at = self.receive.slot() as usize * 8;
        let entry = PrqEntry(self.prq.load_u64(at, Ordering::Acquire));
        if entry.f() != self.receive.flip() {
            return None;
        }
        self.receive.advance();
        Some(entry)
    }

    fn bytes(&self, entry: PrqEntry, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffers.read((entry.addr() - self.buffers.device_addr()) as usize, &mut bytes);
        bytes
    }
}

/// A kernel's queue with all rights and a frame to send.
fn kernel_queue(cluster: &Cluster, rank: u32) -> Endpoint {
    let mode = CqsMode(0).with_system(true).with_trp1_enable(true).with_trp2_enable(true);
    cluster.endpoint_with(rank, &CqConfig { mode, ..tofu_tests::config(0, 11) })
}

/// A frame of this header and size with a correct ECRC.
fn frame(header: TlpHeader, size: usize) -> Vec<u8> {
    let mut frame = pattern(5, size);
    frame[8..16].copy_from_slice(&header.0.to_le_bytes());
    let end = size - ECRC_SIZE;
    let sum = crc32fast::hash(&frame[8..end]);
    frame[end..].copy_from_slice(&sum.to_le_bytes());
    frame
}

/// A TRANSMIT_RAW_PACKET1 of the contents of the queue's memory to another node.
fn raw(from: &Endpoint, to: Coords, length: usize) -> Order {
    let header = Header1(0).with_target(to).with_path(to.default_path());
    let command = Command::TransmitRawPacket1;
    let at = from.buffer.device_addr();
    Order::raw(&[Descriptor::packet(command, header, length as u16, at)])
}

#[test]
fn system_packet_arrives_with_its_sender() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let (mut a, mut b) = (open(&cluster, 0), open(&cluster, 1));
    let there = straight(&cluster, 0, 1);
    for len in [0, 1, 83, 84, 85, 1500, SYSTEM_PAYLOAD_MAX] {
        let data = pattern(len as u64, len);
        assert_eq!(send(&cluster, &mut a, &there, &data), Rcode::SUCCESS);
        let (received, bytes) = receive(&mut b).unwrap();
        assert_eq!(bytes, data, "{len} bytes");
        assert_eq!(received.kind, PrqRcode::SystemTlp);
        let header = received.header;
        assert_eq!((header.source(), header.i()), (cluster.device(0).coords(), 0));
        assert_eq!(usize::from(header.length()), len);
        assert_eq!(receive(&mut b), None, "one packet, one entry");
    }
    assert_eq!(tni(&cluster, 0, TniReg::NumSendSystemTlp), 7);
    assert_eq!(tni(&cluster, 1, TniReg::RxNumSystemTlp), 7);
    assert_eq!(tni(&cluster, 1, TniReg::RxNumDiscardSystemTlp), 0);
    let port = |rank, reg| cluster.device(rank).read(Register::Port { port: Port::A, reg });
    assert_eq!(port(0, PortReg::NumSendSystemTlp), 7);
    assert_eq!(port(1, PortReg::NumReceiveSystemTlp), 7);
    assert_eq!(port(0, PortReg::ByteSendTlp) * 16, tni(&cluster, 0, TniReg::ByteSendTlp) * 16);
    // To oneself, too.
    let here = straight(&cluster, 0, 0);
    assert_eq!(send(&cluster, &mut a, &here, b"echo"), Rcode::SUCCESS);
    assert_eq!(receive(&mut a).unwrap().1, b"echo");
}

#[test]
fn buffer_holds_the_frame_as_on_the_link() {
    let cluster = Cluster::new("3x1x1x2x1x1");
    let mut queues = Queues::new(&cluster, 4, 8);
    let mut a = open(&cluster, 0);
    let to = PacketTarget { distances: [-1, 0, 0], ..straight(&cluster, 0, 4) };
    assert_eq!(send(&cluster, &mut a, &to, b"frame"), Rcode::SUCCESS);
    let entry = queues.next().unwrap();
    assert_eq!(entry.addr(), queues.buffers.device_addr());
    assert_eq!(
        (entry.kind(), entry.w(), entry.l(), entry.e()),
        (Some(PrqRcode::SystemTlp), false, true, false)
    );
    let bytes = queues.bytes(entry, FRAME_MIN);
    let routing = RoutingHeader(u64::from_le_bytes(bytes[..8].try_into().unwrap()));
    assert_eq!(routing.tlp_size(), 96);
    assert_eq!(routing.dx() as i8, -1);
    assert!(routing.system() && !routing.barrier());
    assert_eq!(&bytes[HEADER_SIZE..HEADER_SIZE + 5], b"frame");
    assert!(bytes[HEADER_SIZE + 5..FRAME_MIN - 4].iter().all(|b| *b == 0));
    let sum = u32::from_le_bytes(bytes[FRAME_MIN - 4..].try_into().unwrap());
    assert_eq!(sum, crc32fast::hash(&bytes[8..FRAME_MIN - 4]));
}

#[test]
fn distances_lead_to_the_node_that_they_say() {
    let cluster = Cluster::new("3x2x1x2x1x1");
    let mut nodes: Vec<_> = (0..12).map(|rank| open(&cluster, rank)).collect();
    // From (0,0,0,0,0,0), two hops up on X are one hop down.
    for (distances, target) in
        [([2, 0, 0], [2, 0]), ([-1, 0, 0], [2, 0]), ([-2, 1, 0], [1, 1]), ([0, -1, 0], [0, 1])]
    {
        let to = PacketTarget { distances, ..straight(&cluster, 0, 0) };
        assert_eq!(send(&cluster, &mut nodes[0], &to, b"x"), Rcode::SUCCESS);
        let rank = target[0] * 4 + target[1] * 2;
        assert!(receive(&mut nodes[rank]).is_some(), "{distances:?}");
    }
    for distances in [[3, 0, 0], [0, 2, 0], [0, 0, 1], [-128, 0, 0], [127, 127, 127]] {
        let to = PacketTarget { distances, ..straight(&cluster, 0, 0) };
        let code = send(&cluster, &mut nodes[0], &to, b"x");
        assert_eq!(code, Rcode::NO_SUCH_NODE, "{distances:?}");
    }
    let no_path = PacketTarget { path: tofu_abi::Path::new(0, 2, 0), ..straight(&cluster, 0, 1) };
    assert_eq!(send(&cluster, &mut nodes[0], &no_path, b"x"), Rcode::NO_SUCH_PATH);
}

#[test]
fn packet_on_a_dead_link_is_reported() {
    let cluster = Cluster::new("3x1x1x1x1x1");
    let (mut a, mut b) = (open(&cluster, 0), open(&cluster, 2));
    let down = PacketTarget { distances: [-1, 0, 0], ..straight(&cluster, 0, 0) };
    let up = PacketTarget { distances: [2, 0, 0], ..down };
    cluster.set_link(0, 4, false);
    assert_eq!(send(&cluster, &mut a, &down, b"x"), Rcode::LINK_DOWN);
    assert_eq!(receive(&mut b), None);
    let discards = Register::Port { port: Port::XMinus, reg: PortReg::NumTxDiscardSystemTlp };
    assert_eq!(cluster.device(0).read(discards), 1);
    assert_eq!(send(&cluster, &mut a, &up, b"x"), Rcode::SUCCESS, "the other way round");
    assert!(receive(&mut b).is_some());
    cluster.set_link(0, 4, true);
    assert_eq!(send(&cluster, &mut a, &down, b"x"), Rcode::SUCCESS);
}

#[test]
fn packet_commands_are_checked() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut queue = kernel_queue(&cluster, 0);
    let to = cluster.device(1).coords();
    let at = queue.buffer.device_addr();
    let mut run = |command, length: usize, at| {
        let header = Header1(0).with_target(to).with_path(to.default_path()).with_distances([0; 3]);
        queue.run(&Order::raw(&[Descriptor::packet(command, header, length as u16, at)]))
    };
    let (raw, system) = (Command::TransmitRawPacket1, Command::TransmitSystemPacket2);
    for length in [0, 8, FRAME_MIN - 32, FRAME_MIN + 1, FRAME_MAX + 32, 4095] {
        assert_eq!(run(raw, length, at).rcode, Rcode::BAD_LENGTH, "raw, {length}");
    }
    for length in [0, HEADER_SIZE - 1, HEADER_SIZE + SYSTEM_PAYLOAD_MAX + 1, 4095] {
        assert_eq!(run(system, length, at).rcode, Rcode::BAD_LENGTH, "system, {length}");
    }
    for command in [raw, system] {
        assert_eq!(run(command, FRAME_MIN, at + 8).rcode, Rcode::ALIGNMENT);
        assert_eq!(run(command, FRAME_MIN, 1 << 47).rcode, Rcode::PAYLOAD_ACCESS);
        let done = run(command, FRAME_MIN, at);
        assert_eq!((done.rcode, done.length), (Rcode::SUCCESS, FRAME_MIN as u32));
    }
    let header = straight(&cluster, 0, 1).header().with_ri(7);
    let order = Order::raw(&[Descriptor::packet(system, header, FRAME_MIN as u16, at)]);
    assert_eq!(queue.run(&order).rcode, Rcode::NO_SUCH_NODE, "no such interface");
    let exceptions = queue.cqs_register(tofu_abi::regs::CqsReg::Irr);
    let pending = CqsIrqs::from_raw(queue.device().read(exceptions));
    assert_eq!(pending & CqsIrqs::EXCEPTIONS, CqsIrqs::PAYLOAD_READ_EXCEPTION);
    assert_eq!(queue.notices(), [], "packet commands have no notices");
    // Without packet queues, arriving packets were counted and discarded.
    assert_eq!(tni(&cluster, 1, TniReg::RxNumDiscardSystemTlp), 1);
    assert_eq!(irr(&cluster, 1), TniIrqs::PRQ_PACKET_DISCARD);
}

#[test]
fn raw_packets_go_as_they_are() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut queue = kernel_queue(&cluster, 0);
    let mut queues = Queues::new(&cluster, 1, 64);
    let (me, to) = (cluster.device(0).coords(), cluster.device(1).coords());
    let system = TlpHeader(0).with_kind(TlpKind::System as u8).with_source(me);
    let payload = |size: usize| (size - HEADER_SIZE - ECRC_SIZE) as u16;
    let whole = |header: TlpHeader, size| header.with_length(payload(size));
    let cases = [
        (whole(system, FRAME_MIN), FRAME_MIN, PrqRcode::SystemTlp),
        (whole(system, FRAME_MAX), FRAME_MAX, PrqRcode::SystemTlp),
        // The source is another node or another TNI, the length exceeds the frame, or the frame is
        // longer than the length needs.
        (whole(system.with_source(to), FRAME_MIN), FRAME_MIN, PrqRcode::IllegalTlpFlags),
        (whole(system.with_i(3), FRAME_MIN), FRAME_MIN, PrqRcode::IllegalTlpFlags),
        (system.with_length(payload(FRAME_MIN) + 1), FRAME_MIN, PrqRcode::IllegalTlpLength),
        (system.with_length(0), FRAME_MIN + 32, PrqRcode::IllegalTlpLength),
        (TlpHeader(0x77), FRAME_MIN + 64, PrqRcode::UnknownTlp),
        (system.with_kind(TlpKind::Report as u8), FRAME_MIN, PrqRcode::UnknownTlp),
    ];
    for (header, size, expected) in cases {
        let bytes = frame(header, size);
        queue.fill(0, &bytes);
        assert!(queue.run(&raw(&queue, to, size)).is_success());
        let entry = queues.next().unwrap();
        assert_eq!((entry.kind(), entry.w(), entry.e()), (Some(expected), false, false));
        assert_eq!(queues.bytes(entry, size)[8..], bytes[8..]);
    }
    assert_eq!(tni(&cluster, 1, TniReg::RxNumSystemTlp), 2);
    assert_eq!(tni(&cluster, 1, TniReg::RxNumExceptionTlp), 4);
    assert_eq!(tni(&cluster, 1, TniReg::RxNumUnknownTlp), 2);
    // A wrong ECRC ends a frame where it arrives.
    let mut bytes = frame(whole(system, FRAME_MIN), FRAME_MIN);
    bytes[40] ^= 1;
    queue.fill(0, &bytes);
    assert!(queue.run(&raw(&queue, to, FRAME_MIN)).is_success());
    assert_eq!(queues.next(), None);
    assert_eq!(tni(&cluster, 1, TniReg::NumReceiveNullifiedTlp), 1);
}

#[test]
fn raw_packets_leave_by_the_named_port() {
    let cluster = Cluster::new("3x1x1x1x1x1");
    let mut queue = kernel_queue(&cluster, 0);
    let mut queues = Queues::new(&cluster, 2, 8);
    let me = cluster.device(0).coords();
    let header = TlpHeader(0).with_kind(TlpKind::System as u8).with_source(me).with_length(84);
    queue.fill(0, &frame(header, FRAME_MIN));
    queue.set_word(0, RoutingHeader(0).with_di(0).0);
    let at = queue.buffer.device_addr();
    let mut hop = |header: Header1| {
        let command = Command::TransmitRawPacket2;
        queue.run(&Order::raw(&[Descriptor::packet(command, header, FRAME_MIN as u16, at)])).rcode
    };
    for vc in 0..4 {
        assert_eq!(hop(Header1(0).with_port(4).with_vc(vc)), Rcode::SUCCESS);
        assert_eq!(queues.next().unwrap().kind(), Some(PrqRcode::SystemTlp));
    }
    // Marked as bad: counted, never seen.
    assert_eq!(hop(Header1(0).with_port(4).with_e(true)), Rcode::SUCCESS);
    assert_eq!(queues.next(), None);
    assert_eq!(tni(&cluster, 2, TniReg::NumReceiveNullifiedTlp), 1);
    let sent = Register::Port { port: Port::XMinus, reg: PortReg::NumSendNullifiedTlp };
    let received = Register::Port { port: Port::XPlus, reg: PortReg::NumReceiveNullifiedTlp };
    assert_eq!(cluster.device(0).read(sent), 1);
    assert_eq!(cluster.device(2).read(received), 1);
    assert_eq!(hop(Header1(0).with_port(10)), Rcode::NO_SUCH_NODE);
    assert_eq!(hop(Header1(0).with_port(0)), Rcode::NO_SUCH_NODE, "no link at that port");
    cluster.set_link(0, 4, false);
    assert_eq!(hop(Header1(0).with_port(4)), Rcode::LINK_DOWN);
}

#[test]
fn receive_errors_are_told_apart() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = open(&cluster, 0);
    let there = straight(&cluster, 0, 1);
    let mut queues = Queues::new(&cluster, 1, 2);
    let irc = Register::Tni { tni: TniId::ALL[0], reg: TniReg::Irc };
    let take_irr = || {
        let pending = irr(&cluster, 1);
        cluster.device(1).write(irc, u64::MAX);
        pending
    };
    let mut put = || send(&cluster, &mut a, &there, b"12345678");
    assert_eq!((put(), put()), (Rcode::SUCCESS, Rcode::SUCCESS));
    assert_eq!(take_irr(), TniIrqs::PRQ_WRITE_ACKNOWLEDGE);
    put();
    let discard = TniIrqs::PRQ_PACKET_DISCARD;
    assert_eq!(take_irr(), discard | TniIrqs::PBQ_UNDERFLOW);
    assert_eq!(tni(&cluster, 1, TniReg::RxNumDiscardSystemTlp), 1);
    assert_eq!((queues.next().is_some(), queues.next().is_some()), (true, true));
    assert_eq!(queues.next(), None);
    // A buffer that is not memory: its address comes back, marked.
    let nowhere = 0x12_3456_7800;
    queues.post(2, nowhere);
    put();
    assert_eq!(take_irr(), discard | TniIrqs::PRQ_WRITE_EXCEPTION | TniIrqs::PRQ_WRITE_ACKNOWLEDGE);
    let entry = queues.next().unwrap();
    assert_eq!((entry.addr(), entry.e()), (nowhere, true));
    // As many entries as the queue has, none consumed.
    for n in 3..u64::from(ENTRIES) {
        queues.post(n, queues.buffers.device_addr());
    }
    for _ in 3..ENTRIES {
        assert_eq!(put(), Rcode::SUCCESS);
    }
    assert_eq!(take_irr(), TniIrqs::PRQ_WRITE_ACKNOWLEDGE);
    queues.post(ENTRIES.into(), queues.buffers.device_addr());
    put();
    assert_eq!(take_irr(), discard | TniIrqs::PRQ_OVERFLOW);
    let full = Register::Tni { tni: TniId::ALL[0], reg: TniReg::PrqFullPointer };
    cluster.device(1).write(full, 1);
    put();
    assert_eq!(take_irr(), TniIrqs::PRQ_WRITE_ACKNOWLEDGE);
    let received = std::iter::from_fn(|| queues.next()).count();
    assert_eq!(received, ENTRIES as usize - 2, "those of the first lap, and one of the second");
    // Queues that are not memory.
    let pbq = Register::Tni { tni: TniId::ALL[0], reg: TniReg::PbqPa };
    cluster.device(1).write(pbq, cluster.memory_end(1) + 64);
    cluster.device(1).write(full, u64::from(ENTRIES));
    put();
    assert_eq!(take_irr(), discard | TniIrqs::PBQ_READ_EXCEPTION);
    cluster.device(1).write(pbq, queues.pbq.device_addr());
    queues.pbq.fill(0);
    queues.post(0, queues.buffers.device_addr());
    let prq = Register::Tni { tni: TniId::ALL[0], reg: TniReg::PrqPa };
    cluster.device(1).write(prq, cluster.memory_end(1) + 64);
    put();
    assert_eq!(take_irr(), TniIrqs::PRQ_WRITE_EXCEPTION);
    // Turned off.
    cluster.device(1).write(prq, 0);
    put();
    assert_eq!(take_irr(), discard);
}

#[test]
fn exceptions_of_others_are_reported() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let b = cluster.endpoint(1, 0, 0);
    let mut queues = Queues::new(&cluster, 1, 64);
    let remote = |offset| b.at(offset);
    let local = a.at(0);
    let put = |at| Order::put(b.target(), at, local, 64);
    let orders = [
        (put(remote(0xffff)), Rcode::OFFSET_RANGE.remote(), PrqRcode::AddressRangeException),
        (put(remote(0).with_stag(9)), Rcode::STAG_DISABLED.remote(), PrqRcode::CqException),
        (put(remote(0).with_cqid(1)), Rcode::CQ_DISABLED, PrqRcode::CqError),
        (put(remote(0).with_cqid(63)), Rcode::NO_SUCH_CQ, PrqRcode::CqError),
    ];
    for (order, code, kind) in orders {
        assert_eq!(a.end_of(&order), code);
        let entry = queues.next().unwrap();
        assert_eq!((entry.kind(), entry.w()), (Some(kind), true));
        let bytes = queues.bytes(entry, frame_size(Report::SIZE));
        let header = TlpHeader(u64::from_le_bytes(bytes[8..16].try_into().unwrap()));
        assert_eq!(header.kind(), TlpKind::Report as u8);
        assert_eq!(header.source(), a.node);
        let report = Report::from_bytes(bytes[16..16 + Report::SIZE].try_into().unwrap());
        assert_eq!((report.rcode, report.length, report.source_cq), (code, 64, 0));
        assert_eq!(report.command, Command::Put as u8);
        assert_eq!(report.remote, order.descriptors()[0].remote());
    }
    // Masked, they are counted only.
    let mask = Register::Tni { tni: TniId::ALL[0], reg: TniReg::PrqMask };
    cluster.device(1).write(mask, 1 << PrqRcode::CqError as u8);
    a.run(&put(remote(0).with_cqid(1)));
    assert_eq!(queues.next(), None);
    assert_eq!(tni(&cluster, 1, TniReg::RxNumExceptionTlp), 5);
    assert_eq!(tni(&cluster, 1, TniReg::RxNumDiscardExceptionTlp), 1);
}

#[test]
fn entries_and_interrupts_are_coalesced() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = open(&cluster, 0);
    let there = straight(&cluster, 0, 1);
    let mut queues = Queues::new(&cluster, 1, 64);
    let set =
        |reg, value| cluster.device(1).write(Register::Tni { tni: TniId::ALL[0], reg }, value);
    let mut put = |n| {
        for _ in 0..n {
            assert_eq!(send(&cluster, &mut a, &there, b"x"), Rcode::SUCCESS);
        }
    };
    set(TniReg::PrqEntryCoalescingTimer, 50_000);
    put(1);
    assert_eq!(queues.next(), None, "held back");
    cluster.pass(50_000);
    assert!(queues.next().is_some());
    put(32);
    assert_eq!(std::iter::from_fn(|| queues.next()).count(), 32, "a line is full");
    set(TniReg::PrqEntryCoalescingTimer, 0);
    set(TniReg::PrqInterruptCoalescingCount, 3);
    set(TniReg::PrqInterruptCoalescingTimer, 50_000);
    set(TniReg::Irc, u64::MAX);
    put(2);
    assert_eq!(irr(&cluster, 1), TniIrqs::NONE);
    put(1);
    assert_eq!(irr(&cluster, 1), TniIrqs::PRQ_WRITE_ACKNOWLEDGE, "by count");
    set(TniReg::Irc, u64::MAX);
    put(1);
    assert_eq!(irr(&cluster, 1), TniIrqs::NONE);
    cluster.pass(50_000);
    assert_eq!(irr(&cluster, 1), TniIrqs::PRQ_WRITE_ACKNOWLEDGE, "by time");
    // A queue that requests interrupts through memory is notified in the same way.
    set(TniReg::Irc, u64::MAX);
    let word = cluster.alloc(1, 8, 8);
    word.store_u64(0, 1, Ordering::Release);
    let asked = || word.load_u64(0, Ordering::Acquire) != 0;
    set(TniReg::PrqInterruptArmPa, word.device_addr());
    put(2);
    assert!(asked());
    put(1);
    assert!(!asked(), "by count");
    word.store_u64(0, 1, Ordering::Release);
    put(1);
    assert!(asked());
    cluster.pass(50_000);
    assert!(!asked(), "by time");
    assert_eq!(irr(&cluster, 1), TniIrqs::NONE);
    set(TniReg::PrqInterruptCoalescingCount, 0);
    set(TniReg::PrqInterruptArmPa, cluster.memory_end(1) + 64);
    put(1);
    cluster.pass(50_000);
    assert_eq!(irr(&cluster, 1), TniIrqs::PRQ_WRITE_EXCEPTION);
}

#[test]
fn disabled_tni_or_bus_receives_nothing() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let (mut a, mut b) = (open(&cluster, 0), open(&cluster, 1));
    let there = straight(&cluster, 0, 1);
    cluster.set_bus_master(1, false);
    assert_eq!(send(&cluster, &mut a, &there, b"1"), Rcode::SUCCESS);
    cluster.set_bus_master(1, true);
    cluster.device(1).tni(TniId::ALL[0]).disable().unwrap();
    assert_eq!(send(&cluster, &mut a, &there, b"2"), Rcode::SUCCESS);
    cluster.device(1).tni(TniId::ALL[0]).enable().unwrap();
    assert_eq!(send(&cluster, &mut a, &there, b"3"), Rcode::SUCCESS);
    assert_eq!(receive(&mut b).unwrap().1, b"3");
    assert_eq!(receive(&mut b), None);
    assert_eq!(tni(&cluster, 1, TniReg::RxNumDiscardSystemTlp), 2);
    // A reset drops the queues.
    cluster.icc(1).reset();
    cluster.icc(1).set_bus_master(true);
    cluster.device(1).tni(TniId::ALL[0]).enable().unwrap();
    assert_eq!(send(&cluster, &mut a, &there, b"4"), Rcode::SUCCESS);
    assert_eq!(tni(&cluster, 1, TniReg::RxNumDiscardSystemTlp), 1);
}

#[test]
fn system_packets_pass_rdma_that_is_stuck() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let (mut a, mut b) = (open(&cluster, 0), open(&cluster, 1));
    let mut user = cluster.endpoint(0, 0, 0);
    let target = cluster.endpoint(1, 0, 0);
    cluster.lose_answers(true);
    for _ in 0..200 {
        user.cq.post(&Order::put(target.target(), target.at(0), user.at(0), 4096), 0).unwrap();
    }
    user.cq.doorbell();
    cluster.settle();
    assert!(user.cq.poll_tcq().is_none(), "no Put gets an answer");
    for _ in 0..300 {
        assert_eq!(send(&cluster, &mut a, &straight(&cluster, 0, 1), b"through"), Rcode::SUCCESS);
        assert_eq!(receive(&mut b).unwrap().1, b"through");
    }
    assert!(!user.ids().contains(&MrqId::PutLast));
}

#[test]
fn sleeper_wakes_for_each_packet() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let (mut a, mut b) = (open(&cluster, 0), open(&cluster, 1));
    assert!(!b.wait(10_000), "nothing to wait for");
    for round in 0..20u8 {
        a.send(&straight(&cluster, 0, 1), &[&[round], &[round; 7]], 0).unwrap();
        assert!(b.wait(1_000_000_000));
        assert_eq!(receive(&mut b).unwrap().1, [round; 8]);
        assert!(a.poll_sent().unwrap().is_success());
    }
}

#[test]
fn senders_buffers_come_back() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let config = PacketConfig { tx_buffers: 3, ..PacketConfig::new(TniId::ALL[0]) };
    let mut a = Packets::open(cluster.device(0), &config).unwrap();
    let there = straight(&cluster, 0, 1);
    for cookie in 0..3 {
        a.post(&there, &[b"x"], cookie).unwrap();
    }
    assert_eq!(a.post(&there, &[b"x"], 3), Err(SendError::Full));
    assert_eq!(
        a.post(&there, &[&[0; SYSTEM_PAYLOAD_MAX], &[0]], 3),
        Err(SendError::TooLong(SYSTEM_PAYLOAD_MAX + 1))
    );
    a.flush();
    cluster.settle();
    let sent: Vec<_> = std::iter::from_fn(|| a.poll_sent()).map(|sent| sent.cookie).collect();
    assert_eq!(sent, [0, 1, 2]);
    assert_eq!(a.free(), 3);
    // Closed and opened again, with the same memory.
    a.close().unwrap();
    let a = Packets::open(cluster.device(0), &config).unwrap();
    assert_eq!(a.free(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any sequence of packets between three nodes arrives in order, for more packets than the
    /// queues hold.
    #[test]
    fn packets_arrive_in_order_and_whole(
        bursts in proptest::collection::vec((0u32..3, 0u32..3, 1usize..60, 0usize..1973), 1..40),
    ) {
        let cluster = Cluster::new("3x1x1x1x1x1");
        let mut nodes: Vec<_> = (0..3).map(|rank| open(&cluster, rank)).collect();
        let mut seed = 0;
        for (from, to, count, len) in bursts {
            let target = straight(&cluster, from, to);
            let first = seed;
            for _ in 0..count {
                nodes[from as usize].post(&target, &[&pattern(seed, len)], 7).unwrap();
                seed += 1;
            }
            nodes[from as usize].flush();
            cluster.settle();
            for n in first..seed {
                let (received, bytes) = receive(&mut nodes[to as usize]).unwrap();
                prop_assert_eq!(bytes, pattern(n, len));
                prop_assert_eq!(received.header.source(), cluster.device(from).coords());
                prop_assert!(nodes[from as usize].poll_sent().unwrap().is_success());
            }
        }
        for node in &mut nodes {
            prop_assert_eq!(receive(node), None);
        }
    }
}
