//! Commands that their target carries out in place: what they leave is what packets leave.

use std::sync::Arc;

use tofu_abi::queue::MrqEntry;
use tofu_abi::regs::{CqReg, Register, TniReg};
use tofu_abi::table::PageSize;
use tofu_abi::{Coords, CqId, StagOffset, TniId};
use tofu_driver::{
    Access, Completion, Cq, CqConfig, Device, DmaBuffer, MemoryRange, Order, Platform, Target,
};
use tofu_fabric::{Observation, Packet, Port, PortCounters, Tap, XbCounters};
use tofu_icc::{Body, ModelTime, Report};
use tofu_inproc::{Buffer, InProcess};
use tofu_machine::{Machine, MachineConfig};

const TNI: TniId = TniId::ALL[0];
const BUFFER: usize = 1 << 20;
/// The node that puts, its neighbour, and one that is five hops away.
const NODES: [Coords; 3] = [
    Coords { x: 0, y: 0, z: 0, a: 0, b: 0, c: 0 },
    Coords { x: 0, y: 0, z: 0, a: 1, b: 0, c: 0 },
    Coords { x: 1, y: 1, z: 0, a: 1, b: 1, c: 1 },
];

/// The commands' results at a queue, its counters, and what its node counts.
#[derive(Clone, Debug, PartialEq)]
struct Left {
    completions: Vec<Completion>,
    notices: Vec<MrqEntry>,
    counters: Vec<u64>,
    time: ModelTime,
    rules: Report,
    crossbar: Option<XbCounters>,
    ports: Vec<Option<PortCounters>>,
    memory: Vec<u8>,
}

/// Observes packets, which are sent for it.
struct Unread;

impl Tap<Body> for Unread {
    fn observe(&self, _: Observation, _: &Packet<Body>) {}
}

/// A node with a queue and a registered buffer.
struct End {
    cq: Cq<InProcess>,
    stag: StagOffset,
    buffer: Buffer,
}

impl End {
    fn new(machine: &Arc<Machine>, at: Coords) -> Self {
        let platform = InProcess::attach(machine, at, 16 << 20).expect("a node");
        let buffer = platform.alloc_dma(BUFFER, 64 << 10).expect("memory");
        let bytes: Vec<_> = (0..BUFFER).map(|i| (i % 251) as u8 + at.a + 3 * at.x).collect();
        buffer.write(0, &bytes);
        let range = MemoryRange { addr: buffer.device_addr(), len: BUFFER as u64 };
        let device = Device::probe(platform).expect("a device");
        device.tni(TNI).enable().expect("an interface");
        let mut cq = Cq::open(&device, &CqConfig::new(TNI, CqId::ALL[0])).expect("a queue");
        let stag = cq.register(&[range], PageSize::Size64K, Access::ReadWrite, None);
        Self { cq, stag: stag.expect("memory").at(0), buffer }
    }

    /// The results that the end has, and the counts of its node.
    fn left(&mut self, machine: &Machine, at: Coords) -> Left {
        let node = machine.node(at).expect("it was added");
        let read = |register: Register| {
            let mut data = [0; 8];
            node.icc().bar_read(register.offset(), &mut data);
            u64::from_le_bytes(data)
        };
        let cq = CqId::ALL[0];
        let of_queue = CqReg::ALL.iter().map(|&reg| Register::Cq { tni: TNI, cq, reg });
        let of_tni = TniReg::ALL.iter().map(|&reg| Register::Tni { tni: TNI, reg });
        let mut memory = vec![0; BUFFER];
        self.buffer.read(0, &mut memory);
        let fabric = machine.fabric();
        Left {
            completions: std::iter::from_fn(|| self.cq.poll_tcq()).collect(),
            notices: std::iter::from_fn(|| self.cq.poll_mrq()).collect(),
            counters: of_queue.chain(of_tni).map(read).collect(),
            time: node.icc().model_time(TNI),
            rules: node.icc().rules(),
            crossbar: fabric.xb_counters(node.id()),
            ports: Port::ALL.map(|port| fabric.port_counters(node.id(), port)).to_vec(),
            memory,
        }
    }
}

/// Commands between two places. Some of them are no transactions, or fail.
fn orders(to: Target, there: StagOffset, here: StagOffset) -> [Order; 11] {
    [
        Order::put(to, there, here, 8).remote_notice(),
        Order::put(to, there, here.advanced(64), 5000).mtu(256).padding().edata(7),
        Order::put_piggyback(to, there.advanced(6000), &[9; 20]).expect("it fits"),
        Order::put(to, there.advanced(8000), here, 64 << 10).cache_injection(),
        Order::get(to, there.advanced(70), here.advanced(90_000), 3000),
        Order::get(to, there.advanced(70), here.advanced(94_000), 8).remote_notice(),
        Order::put(to, there, here, 8).strong_order(),
        Order::put(to, there.advanced(1 << 30), here, 8),
        Order::put(to, there, here.advanced(1 << 30), 8),
        Order::put(to, there, here, 0),
        Order::put(to, there, here, 600).packet_response().interrupt(),
    ]
}

/// Runs commands, each after its own doorbell or all after one. A machine that is `observed` sends
/// packets.
fn left(observed: bool, at_once: bool, change: impl Fn(&Machine)) -> Vec<Left> {
    let config = MachineConfig::new("2x2x1x2x3x2".parse().expect("a shape"));
    let machine = Arc::new(Machine::with_manual_clock(config).expect("a machine"));
    let mut ends = NODES.map(|at| End::new(&machine, at));
    machine.wires().set_tap(if observed { Some(Arc::new(Unread)) } else { None });
    change(&machine);
    for (i, node) in (1u64..).zip([1, 2, 0]) {
        let places = [&ends[node], &ends[0]].map(|end| end.stag.advanced(i << 17));
        for order in orders(Target::new(NODES[node], TNI), places[0], places[1]) {
            ends[0].cq.post(&order, 0).expect("there is room");
            if !at_once {
                ends[0].cq.doorbell();
            }
        }
    }
    ends[0].cq.doorbell();
    while machine.run_turn() {}
    NODES.iter().zip(&mut ends).map(|(at, end)| end.left(&machine, *at)).collect()
}

#[test]
fn transactions_leave_what_packets_leave() {
    for at_once in [false, true] {
        let [sent, transactions] = [true, false].map(|traced| left(traced, at_once, |_| {}));
        assert_eq!((sent[0].completions.len(), sent[1].notices.len()), (33, 2));
        for (node, (sent, transactions)) in NODES.iter().zip(sent.iter().zip(&transactions)) {
            assert!(sent.memory == transactions.memory, "memory of {node}");
            let rest = |left: &Left| Left { memory: vec![], ..left.clone() };
            assert_eq!(rest(transactions), rest(sent), "{node}");
        }
    }
}

#[test]
fn transactions_meet_links_that_are_down() {
    let cut = |machine: &Machine| {
        machine.fabric().set_link(NODES[0], Port::A, false).expect("there is a link");
    };
    let [sent, transactions] = [true, false].map(|traced| left(traced, false, cut));
    assert_eq!(sent[0].notices, transactions[0].notices);
    assert!(sent[0].notices.iter().any(|notice| !notice.word0().rcode().is_success()));
    assert!(sent == transactions);
}
