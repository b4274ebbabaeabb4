//! Packets that are on their way for a while: what the device does if something else happens
//! between a request and its answer.

mod common;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use common::Quiet;
use tofu_abi::desc::{Command, Descriptor, Header1, Header2};
use tofu_abi::irq::CqsIrqs;
use tofu_abi::queue::{MrqEntry, MrqId, TcqEntry};
use tofu_abi::regs::{CqReg, CqsReg, Register, TniReg, XbReg};
use tofu_abi::table::{MemoryBlock, PageEntry, Steering};
use tofu_abi::topology::Port;
use tofu_abi::{Coords, CqId, Generation, Rcode, StagOffset, TniId};
use tofu_fabric::Packet;
use tofu_icc::{Answer, Body, CommandTiming, Config, DmaMemory, Icc, Net, SharedPages, Tag};
use vm_memory::{GuestAddress, GuestMemoryMmap, MmapRegion, VolatileMemory};

const NODES: [Coords; 2] = [Coords::new(0, 0, 0, 0, 0, 0), Coords::new(0, 0, 0, 1, 0, 0)];
const TOQ: u64 = 0;
/// For size code 0.
const TOQ_ENTRIES: u64 = 2048;
const TCQ: u64 = 0x1_0000;
const STEERING: u64 = 0x1_8000;
const BLOCKS: u64 = 0x1_9000;
const PAGES: u64 = 0x1_a000;
const MRQ: u64 = 0x2_0000;
/// 8192 entries.
const MRQ_SIZE_CODE: u64 = 1;
const DATA: u64 = 0x10_0000;
const MEMORY: usize = 2 << 20;
const TIMEOUT: u64 = 1_000_000;

/// Keeps packets until the test takes them.
#[derive(Default)]
struct Slow {
    sent: VecDeque<Packet<Body>>,
    now: u64,
}

impl Net for Slow {
    fn has_room(&self, _: Coords, _: TniId) -> bool {
        true
    }

    fn inject(&mut self, packet: Packet<Body>) {
        self.sent.push_back(packet);
    }
    fn progress(&mut self) {}
    fn now_ns(&self) -> u64 {
        self.now
    }
}

/// A device with queue 0 of TNI 0 enabled and all of its memory as STag 0, so that offsets are
/// addresses.
struct Node {
    icc: Icc,
    host: Arc<Quiet>,
    memory: GuestMemoryMmap<()>,
    posted: u64,
}

fn cqs(reg: CqsReg) -> Register {
    Register::Cqs { tni: TniId::ALL[0], cq: CqId::ALL[0], reg }
}

impl Node {
    fn new(coords: Coords) -> Self {
        Self::with(coords, Quiet::default())
    }

    fn with(coords: Coords, host: Quiet) -> Self {
        Self::of(Config { timeout_ns: TIMEOUT, ..Config::tofud(coords) }, host)
    }

    fn of(config: Config, host: Quiet) -> Self {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
        let host = Arc::new(host);
        let icc = Icc::new(config, Arc::clone(&host) as _, Arc::new(memory.clone()));
        icc.set_bus_master(true);
        let node = Self { icc, host, memory, posted: 0 };
        let steering = Steering(0).with_enable(true);
        // Page size code 1: 2 MiB.
        let block = MemoryBlock(0).with_enable(true).with_ps(1).with_ipa(PAGES);
        for (addr, value) in [
            (PAGES, PageEntry(0).with_enable(true).0),
            (BLOCKS, block.0),
            (BLOCKS + 8, 1),
            (STEERING, steering.0),
            (STEERING + 8, MEMORY as u64),
        ] {
            node.memory.store(addr, value).unwrap();
        }
        node.write(Register::Tni { tni: TniId::ALL[0], reg: TniReg::Enable }, 1);
        for (reg, value) in [
            (CqsReg::ToqIpa, TOQ),
            (CqsReg::TcqIpa, TCQ),
            (CqsReg::MrqIpa, MRQ),
            (CqsReg::MrqSize, MRQ_SIZE_CODE),
            (CqsReg::SteeringTableIpa, STEERING),
            (CqsReg::SteeringTableSize, 1),
            (CqsReg::SteeringTableEnable, 1),
            (CqsReg::MemoryBlockTableIpa, BLOCKS),
            (CqsReg::MemoryBlockTableSize, 1),
            (CqsReg::MemoryBlockTableEnable, 1),
            (CqsReg::Enable, 1),
        ] {
            node.write(cqs(reg), value);
        }
        node
    }

    fn write(&self, register: Register, value: u64) {
        self.icc.bar_write(register.offset(), &value.to_le_bytes());
    }

    /// Empties the transmit order queue after one lap.
    fn begin_anew_if_full(&mut self) {
        if self.posted == TOQ_ENTRIES {
            self.write(cqs(CqsReg::Enable), 0);
            self.memory.write(TOQ, &[0; TOQ_ENTRIES as usize * 32]).unwrap();
            self.write(cqs(CqsReg::Enable), 1);
            self.posted = 0;
        }
    }

    fn post(&mut self, descriptor: &Descriptor, net: &mut Slow) {
        self.memory.write(TOQ + self.posted * 32, &descriptor.with_flip(true).to_bytes()).unwrap();
        self.posted += 1;
        while self.icc.run_queue(TniId::ALL[0], CqId::ALL[0].into(), net) {}
    }

    /// A TCQ entry of the first lap, if it is there.
    fn completion(&self, slot: u64) -> Option<TcqEntry> {
        Some(TcqEntry(self.memory.load(TCQ + slot * 8).unwrap())).filter(|entry| entry.flip())
    }

    /// The MRQ entries of the first lap.
    fn notices(&self) -> Vec<MrqEntry> {
        (0..8192)
            .map(|slot| {
                MrqEntry([0, 8, 16, 24].map(|at| self.memory.load(MRQ + slot * 32 + at).unwrap()))
            })
            .take_while(|entry| entry.word0().flip())
            .collect()
    }

    /// The EDATA of the notices of other nodes' Puts.
    fn remote_edata(&self) -> Vec<u16> {
        let notices = self.notices().into_iter();
        notices
            .filter(|notice| notice.id() == Some(MrqId::PutLastHalfway))
            .map(|notice| notice.word1().edata())
            .collect()
    }
}

fn pair() -> (Node, Node, Slow) {
    (Node::new(NODES[0]), Node::new(NODES[1]), Slow::default())
}

fn transfer(command: Command, header2: Header2, length: u32) -> Descriptor {
    let header1 = Header1(0).with_target(NODES[1]).with_path(NODES[1].default_path());
    let at = StagOffset::new(CqId::ALL[0], 0, DATA);
    Descriptor::transfer(command, header1, header2, at, at, length)
}

/// Hands the oldest packet to a node.
fn deliver(to: &Node, net: &mut Slow) {
    let packet = net.sent.pop_front().expect("a packet in flight");
    to.icc.arrive(&packet, net);
}

#[test]
fn late_answer_spares_the_next_owner() {
    let (mut a, b, mut net) = pair();
    a.post(&transfer(Command::Put, Header2(0), 8), &mut net);
    deliver(&b, &mut net);
    let late = net.sent.pop_front().unwrap();
    a.write(cqs(CqsReg::Enable), 0);
    a.memory.store(TOQ, 0).unwrap();
    a.write(cqs(CqsReg::Enable), 1);
    a.posted = 0;
    a.post(&transfer(Command::Put, Header2(0), 8), &mut net);
    a.icc.arrive(&late, &mut net);
    assert_eq!(a.completion(0), None, "this command has no answer yet");
    deliver(&b, &mut net);
    deliver(&a, &mut net);
    assert_eq!(a.completion(0).unwrap().rcode(), Rcode::SUCCESS);
}

#[test]
fn put_that_is_sent_is_complete_before_its_answer() {
    let (mut a, b, mut net) = pair();
    let count = |node: &Node| {
        let (tni, cq) = (TniId::ALL[0], CqId::ALL[0]);
        let mut value = [0; 8];
        let register = Register::Cq { tni, cq, reg: CqReg::TcqNumNotice };
        node.icc.bar_read(register.offset(), &mut value);
        u64::from_le_bytes(value)
    };
    a.memory.store(DATA, 1).unwrap();
    a.post(&transfer(Command::Put, Header2(0), 8), &mut net);
    let body = &mut net.sent[0].body;
    let (tag, last) = body.part_of_put().unwrap();
    assert!(last);
    body.detach().unwrap();
    a.icc.put_sent(TniId::ALL[0], Tag { generation: tag.generation + 1, ..tag }, 0);
    assert_eq!(a.completion(0), None, "another command");
    a.icc.put_sent(TniId::ALL[0], tag, 0);
    assert_eq!(a.completion(0).unwrap().rcode(), Rcode::SUCCESS);
    assert_eq!(a.notices(), []);
    // The memory and the entry of the queue are the program's again.
    a.memory.store(DATA, 2).unwrap();
    a.memory.store(TCQ, 0).unwrap();
    a.icc.put_sent(TniId::ALL[0], tag, 0);
    deliver(&b, &mut net);
    deliver(&a, &mut net);
    a.icc.put_sent(TniId::ALL[0], tag, 0);
    assert_eq!((a.completion(0), count(&a)), (None, 1));
    assert_eq!(a.notices()[0].id(), Some(MrqId::PutLast));
    assert_eq!(b.memory.load(DATA).unwrap(), 1);
}

#[test]
fn data_without_bus_master_is_not_written() {
    let (mut a, b, mut net) = pair();
    b.memory.store(DATA, 77).unwrap();
    a.post(&transfer(Command::Get, Header2(0), 8), &mut net);
    deliver(&b, &mut net);
    a.icc.set_bus_master(false);
    deliver(&a, &mut net);
    assert_eq!(a.memory.load(DATA).unwrap(), 0);
    assert_eq!((a.completion(0), a.notices()), (None, vec![]));
    // It is reported once bus mastering is on again.
    a.icc.set_bus_master(true);
    assert_eq!(a.completion(0).unwrap().rcode(), Rcode::PAYLOAD_ACCESS);
    assert_eq!(a.notices()[0].id(), Some(MrqId::GetLastRemoteError));
    assert_eq!(a.memory.load(DATA).unwrap(), 0);
}

#[test]
fn completion_without_bus_mastering_is_kept() {
    let (mut a, b, mut net) = pair();
    a.post(&transfer(Command::Put, Header2(0), 8), &mut net);
    deliver(&b, &mut net);
    a.icc.set_bus_master(false);
    deliver(&a, &mut net);
    assert_eq!((a.completion(0), a.notices()), (None, vec![]));
    a.icc.set_bus_master(true);
    assert_eq!(a.completion(0).unwrap().rcode(), Rcode::SUCCESS);
    assert_eq!(a.notices()[0].id(), Some(MrqId::PutLast));
}

#[test]
fn disabled_queue_drops_held_writes() {
    let (mut a, b, mut net) = pair();
    a.post(&transfer(Command::Put, Header2(0), 8), &mut net);
    deliver(&b, &mut net);
    a.icc.set_bus_master(false);
    deliver(&a, &mut net);
    a.write(cqs(CqsReg::Enable), 0);
    a.icc.set_bus_master(true);
    a.icc.expire(u64::MAX);
    assert_eq!((a.completion(0), a.notices()), (None, vec![]));
}

#[test]
fn held_notice_has_a_deadline() {
    let (mut a, b, mut net) = pair();
    a.write(cqs(CqsReg::MrqDescriptorCoalescingTimer), 500);
    a.post(&transfer(Command::Put, Header2(0), 8), &mut net);
    deliver(&b, &mut net);
    deliver(&a, &mut net);
    assert_eq!(a.notices(), []);
    assert_eq!(a.icc.next_deadline(), 500);
    a.icc.expire(500);
    assert_eq!(a.notices().len(), 1);
}

/// Writes a node's MRQ_FULL_POINTER.
fn full_pointer(node: &Node, value: u64) {
    let (tni, cq) = (TniId::ALL[0], CqId::ALL[0]);
    node.write(Register::Cq { tni, cq, reg: CqReg::MrqFullPointer }, value);
}

/// Returns true if a node has lost notices because of a full queue.
fn overflow(node: &Node) -> bool {
    let mut irr = [0; 8];
    node.icc.bar_read(cqs(CqsReg::Irr).offset(), &mut irr);
    u64::from_le_bytes(irr) & CqsIrqs::MRQ_OVERFLOW.raw() != 0
}

/// If register writes may arrive late, a full queue waits for a FULL_POINTER for that time, and
/// loses nothing if it comes.
#[test]
fn full_queue_waits_for_a_late_full_pointer() {
    const PATIENCE: u64 = 600_000;
    for (posted_writes_ns, waits) in [(PATIENCE, true), (0, false)] {
        let config = Config { timeout_ns: u64::MAX, posted_writes_ns, ..Config::tofud(NODES[0]) };
        let (mut a, b) = (Node::of(config, Quiet::default()), Node::new(NODES[1]));
        let mut net = Slow::default();
        let put = |a: &mut Node, net: &mut Slow| {
            a.post(&transfer(Command::Put, Header2(0), 8), net);
            deliver(&b, net);
            deliver(a, net);
        };
        // All 8192 entries are unread as far as the device knows.
        full_pointer(&a, 8192);
        put(&mut a, &mut net);
        put(&mut a, &mut net);
        assert_eq!((a.notices().len(), overflow(&a)), (0, !waits));
        if !waits {
            continue;
        }
        net.now = a.icc.next_deadline();
        assert!(net.now < PATIENCE, "{}", net.now);
        full_pointer(&a, 0);
        a.icc.expire(net.now);
        assert_eq!((a.notices().len(), overflow(&a)), (2, false));
        // It waits each time, but not forever.
        full_pointer(&a, 8192 + 2);
        put(&mut a, &mut net);
        let full_at = net.now;
        while a.icc.next_deadline() < full_at + PATIENCE {
            assert!(!overflow(&a));
            net.now = a.icc.next_deadline();
            a.icc.expire(net.now);
        }
        a.icc.expire(full_at + PATIENCE);
        assert_eq!((a.notices().len(), overflow(&a)), (2, true));
        assert_eq!(a.icc.next_deadline(), u64::MAX, "nothing is held any more");
    }
}

#[test]
fn progressing_command_is_not_given_up() {
    let (mut a, b, mut net) = pair();
    // Sixteen bursts, and less than the timeout between two answers.
    a.post(&transfer(Command::Put, Header2(0), 0x10_0000), &mut net);
    let bursts = net.sent.len();
    assert!(bursts > 2);
    for _ in 0..bursts {
        net.now += TIMEOUT * 3 / 4;
        a.icc.expire(net.now);
        deliver(&b, &mut net);
        let answer = net.sent.pop_back().unwrap();
        a.icc.arrive(&answer, &mut net);
    }
    assert_eq!(a.completion(0).unwrap().rcode(), Rcode::SUCCESS);

    // One that does not is.
    a.post(&transfer(Command::Put, Header2(0), 8), &mut net);
    net.now += TIMEOUT;
    a.icc.expire(net.now);
    assert_eq!(a.completion(1).unwrap().rcode(), Rcode::SUCCESS, "it was sent");
}

#[test]
fn notices_stay_in_order_however_many_wait() {
    let (mut a, mut b, mut net) = pair();
    // While this command has no answer, notices of others wait.
    b.post(&transfer(Command::Put, Header2(0), 0), &mut net);
    net.sent.clear();
    for n in 0..5000 {
        let header2 = Header2(0).with_remote_notice(true).with_edata(n);
        a.begin_anew_if_full();
        a.post(&transfer(Command::Put, header2, 0), &mut net);
        deliver(&b, &mut net);
        deliver(&a, &mut net);
    }
    b.icc.expire(TIMEOUT);
    assert!(b.remote_edata().into_iter().eq(0..5000));
}

/// Of more notices than may wait for room, the newest are lost. The others come when there is room.
#[test]
fn full_queue_loses_only_excess_notices() {
    const WAIT: u16 = 4096;
    let late = Config { posted_writes_ns: TIMEOUT, ..Config::tofud(NODES[1]) };
    let (mut a, b) = (Node::new(NODES[0]), Node::of(late, Quiet::default()));
    let mut net = Slow::default();
    full_pointer(&b, 8192);
    for n in 0..WAIT + 2 {
        assert!(n <= WAIT || overflow(&b), "{n} notices");
        a.begin_anew_if_full();
        let header2 = Header2(0).with_remote_notice(true).with_edata(n);
        a.post(&transfer(Command::Put, header2, 0), &mut net);
        deliver(&b, &mut net);
        deliver(&a, &mut net);
        assert!(n >= WAIT || !overflow(&b), "{n} notices");
    }
    assert!(b.remote_edata().is_empty());
    full_pointer(&b, 0);
    b.icc.expire(b.icc.next_deadline());
    assert!(b.remote_edata().into_iter().eq(0..WAIT));
}

#[test]
fn host_hears_of_queues_in_order() {
    let node =
        Node::with(NODES[0], Quiet { enabling: Duration::from_millis(50), ..Quiet::default() });
    node.write(cqs(CqsReg::Enable), 0);
    std::thread::scope(|s| {
        s.spawn(|| node.write(cqs(CqsReg::Enable), 1));
        while node.host.begun.load(SeqCst) < 2 {
            std::thread::yield_now();
        }
        node.write(cqs(CqsReg::Enable), 0);
    });
    assert_eq!(*node.host.enabled.lock().unwrap(), [true, false, true, false]);
    assert!(!node.icc.queue_is_enabled(TniId::ALL[0], CqId::ALL[0].into()));
}

#[test]
fn direct_descriptor_rings_only_when_whole() {
    let region = Arc::new(MmapRegion::new(SharedPages::SIZE).unwrap());
    let config = Config { pages: SharedPages::new(Arc::clone(&region)), ..Config::tofud(NODES[0]) };
    let blank = config.blank;
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
    let icc = Icc::new(config, Arc::new(Quiet::default()), Arc::new(memory));
    icc.set_bus_master(true);
    let write = |register: Register, value: u64| {
        icc.bar_write(register.offset(), &value.to_le_bytes());
    };
    write(Register::Tni { tni: TniId::ALL[0], reg: TniReg::Enable }, 1);
    for (reg, value) in
        [(CqsReg::TcqIpa, TCQ), (CqsReg::MrqIpa, MRQ), (CqsReg::FetchStop, 1), (CqsReg::Enable, 1)]
    {
        write(cqs(reg), value);
    }
    let word = |n: usize| region.get_atomic_ref::<AtomicU64>(n * 8).unwrap();
    let nop = Header1(0).with_source_type(1).with_flip(true).0;
    for n in [0, 1, 2] {
        word(n).store(nop, SeqCst);
        // An engine that counted this as work would never sleep.
        assert!(!icc.poll_doorbell(TniId::ALL[0], CqId::ALL[0].into()), "word {n}");
    }
    word(3).store(0, SeqCst);
    assert!(!icc.poll_doorbell(TniId::ALL[0], CqId::ALL[0].into()), "the queue may not fetch");
    write(cqs(CqsReg::FetchStop), 0);
    assert!(icc.poll_doorbell(TniId::ALL[0], CqId::ALL[0].into()));
    let mut net = Slow::default();
    icc.run_queue(TniId::ALL[0], CqId::ALL[0].into(), &mut net);
    assert_eq!(word(0).load(SeqCst), blank);
    assert!(!icc.poll_doorbell(TniId::ALL[0], CqId::ALL[0].into()));
}

#[test]
fn cycle_counter_outlasts_any_uptime() {
    let host = Quiet { now: u64::MAX - 1, ..Quiet::default() };
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
    let icc = Icc::new(Config::tofud(NODES[0]), Arc::new(host), Arc::new(memory));
    let mut bytes = [0; 8];
    let reg = tofu_abi::regs::PortReg::FreeRunCount;
    icc.bar_read(Register::Port { port: Port::A, reg }.offset(), &mut bytes);
    let expected = (u128::from(u64::MAX - 1) * 425 / 1000) as u64;
    assert!(u64::from_le_bytes(bytes).abs_diff(expected) <= 425);
}

/// The most extreme timers and sizes.
#[test]
fn greatest_settings_overflow_nothing() {
    let (mut a, b, mut net) = pair();
    for reg in [
        CqsReg::TcqDescriptorCoalescingTimer,
        CqsReg::MrqDescriptorCoalescingTimer,
        CqsReg::MrqInterruptCoalescingTimer,
        CqsReg::MrqInterruptCoalescingCount,
    ] {
        a.write(cqs(reg), u64::MAX);
        b.write(cqs(reg), u64::MAX);
    }
    for reg in [XbReg::StqUpdateInterval, XbReg::StqPa, XbReg::StqSize, XbReg::StqEnable] {
        a.write(Register::Xb(reg), u64::MAX);
    }
    net.now = u64::MAX - 1;
    let header2 = Header2(0).with_remote_notice(true).with_packet_response(true);
    a.post(&transfer(Command::Put, header2, 64 << 10), &mut net);
    deliver(&b, &mut net);
    deliver(&a, &mut net);
    a.icc.expire(u64::MAX - 1);
    a.icc.expire(u64::MAX);
    a.write(Register::Xb(XbReg::StqUpdateInterval), 0);
    a.write(Register::Xb(XbReg::StqEnable), 1);
    a.icc.expire(u64::MAX);
    let fetch = Register::Cq { tni: TniId::ALL[0], cq: CqId::ALL[0], reg: CqReg::FetchStart };
    a.write(fetch, u64::MAX);
    assert!(a.icc.queue_is_enabled(TniId::ALL[0], CqId::ALL[0].into()));
}

#[test]
fn stq_enables_upper_half_keeps_the_dumps() {
    let node = Node::new(NODES[0]);
    let xb = Register::Xb;
    node.write(xb(XbReg::StqPa), DATA);
    node.write(xb(XbReg::StqSize), 64);
    node.write(xb(XbReg::StqEnable), 1);
    node.icc.expire(node.icc.next_deadline());
    let next_offset = || {
        let mut value = [0; 8];
        node.icc.bar_read(xb(XbReg::StqNextOffset).offset(), &mut value);
        u64::from_le_bytes(value)
    };
    let after_a_dump = next_offset();
    assert_ne!(after_a_dump, 0);
    node.icc.bar_write(xb(XbReg::StqEnable).offset() + 4, &[0; 4]);
    assert_eq!(next_offset(), after_a_dump);
    node.icc.bar_write(xb(XbReg::StqEnable).offset(), &1u32.to_le_bytes());
    assert_eq!(next_offset(), 0, "a write of the lower half starts them anew");
}

/// Completions and notices go into the cache of the process that polls them if bit 63 of TCQ_IPA
/// and MRQ_IPA says so.
#[test]
fn entries_in_memory_come_later() {
    let node = Node::new(Coords::default());
    let tag = Tag { cq: CqId::ALL[0], index: 0, generation: 0 };
    let rcode = Rcode::SUCCESS;
    let answer = Answer { tag, position: 0, length: 8, done: 8, rcode, request_ps: 0 };
    let later = |node: &Node, generation| {
        let timing = CommandTiming::of(generation);
        let body = Body::PutAck { answer };
        node.icc.deliver_ps(TniId::ALL[0], &body) - timing.deliver(&body)
    };
    let access = CommandTiming::TOFUD.memory_ps;
    for (tcq, mrq, expected) in
        [(0, 0, access), (1 << 63, 0, access), (0, 1 << 63, access), (1 << 63, 1 << 63, 0)]
    {
        node.write(cqs(CqsReg::Enable), 0);
        node.write(cqs(CqsReg::TcqIpa), TCQ | tcq);
        node.write(cqs(CqsReg::MrqIpa), MRQ | mrq);
        node.write(cqs(CqsReg::Enable), 1);
        assert_eq!(later(&node, Generation::Fugaku), expected, "{tcq:#x} {mrq:#x}");
    }
    // Tofu has no cache injection: nothing is later without it.
    let config = Config { timeout_ns: TIMEOUT, ..Config::of(Generation::K, Coords::default()) };
    let node = Node::of(config, Quiet::default());
    assert_eq!(later(&node, Generation::K), 0);
}
