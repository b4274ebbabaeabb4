//! Traces of valid, refused and meaningless commands: every step is there, and sums equal the
//! device's counters.

use std::sync::Arc;

use proptest::prelude::*;
use tofu_abi::desc::Descriptor;
use tofu_abi::regs::{CqReg, Register};
use tofu_abi::table::PageSize;
use tofu_abi::{Coords, CqId, Rcode, StagOffset, TniId};
use tofu_driver::{
    Access, Cq, CqConfig, Device, DmaBuffer, MemoryRange, Order, PacketConfig, PacketTarget,
    Packets, Platform, Target,
};
use tofu_fabric::NodeId;
use tofu_fuzz::traced::ended;
use tofu_icc::{Event, Which};
use tofu_inproc::{Buffer, InProcess};
use tofu_machine::trace::{Reason, Record, What};
use tofu_machine::{Machine, MachineConfig};

/// Bytes of a node's buffer.
const BUFFER: usize = 1 << 20;
/// A command without an answer times out before this much time has passed.
const LATE_NS: u64 = 2_000_000_000;

/// Two nodes with a queue each, and no threads.
struct Two {
    machine: Arc<Machine>,
    devices: Vec<Device<InProcess>>,
    queues: Vec<(Cq<InProcess>, StagOffset)>,
    _buffers: Vec<Buffer>,
}

impl Two {
    fn new() -> Self {
        let config = MachineConfig::new("1x1x1x2x1x1".parse().unwrap());
        let machine = Arc::new(Machine::with_manual_clock(config).unwrap());
        let (mut devices, mut queues, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
        for node in 0..2 {
            let platform = InProcess::attach(&machine, Self::at(node), 16 << 20).unwrap();
            let buffer = platform.alloc_dma(BUFFER, 64 << 10).unwrap();
            let range = MemoryRange { addr: buffer.device_addr(), len: buffer.len() as u64 };
            let device = Device::probe(platform).unwrap();
            device.tni(TniId::ALL[0]).enable().unwrap();
            let mut cq = Cq::open(&device, &CqConfig::new(TniId::ALL[0], CqId::ALL[0])).unwrap();
            let access = Access::ReadWrite;
            let stag = cq.register(&[range], PageSize::Size4K, access, None).unwrap();
            queues.push((cq, stag.at(0)));
            devices.push(device);
            buffers.push(buffer);
        }
        Self { machine, devices, queues, _buffers: buffers }
    }

    fn at(node: u8) -> Coords {
        Coords::new(0, 0, 0, node, 0, 0)
    }

    fn to(&self) -> Target {
        Target::new(Self::at(1), TniId::ALL[0])
    }

    /// Addresses of both buffers: the target's and the own one.
    fn both(&self, remote: u64, local: u64) -> (StagOffset, StagOffset) {
        (self.queues[1].1.advanced(remote), self.queues[0].1.advanced(local))
    }

    /// Makes node 0 carry out an order, as far as possible.
    fn run(&mut self, order: &Order) {
        let _ = self.queues[0].0.post_and_ring(order, 0);
        self.machine.run_pending();
        let cq = &mut self.queues[0].0;
        while cq.poll_tcq().is_some() || cq.poll_mrq().is_some() {}
    }

    fn put(&mut self, remote: u64, bytes: u32) {
        let (to, (remote, local)) = (self.to(), self.both(remote, 0));
        self.run(&Order::put(to, remote, local, bytes));
    }

    /// TCQ entries that node 0's device has written.
    fn completed(&self) -> u64 {
        let (tni, cq, reg) = (TniId::ALL[0], CqId::ALL[0], CqReg::TcqNumNotice);
        self.devices[0].read(Register::Cq { tni, cq, reg })
    }
}

fn events(records: &[Record], node: u32) -> impl Iterator<Item = Event> + '_ {
    records.iter().filter(move |record| record.node == NodeId(node)).filter_map(|record| {
        match record.what {
            What::Command(event) => Some(event),
            _ => None,
        }
    })
}

#[test]
fn put_has_steps_and_a_refused_one_a_reason() {
    let mut two = Two::new();
    two.put(0, 8);
    let mut trace = two.machine.network().trace().unwrap();
    two.put(0, 4096);
    let steps = trace.read(true);
    let mut commands = steps.iter().filter_map(|record| match record.what {
        What::Command(event) => Some((record.time_ns, record.node.0, event)),
        _ => None,
    });
    let Some((begun, 0, Event::Begun { tag, length: 4096, .. })) = commands.next() else {
        panic!("{steps:?}");
    };
    let Some((served, 1, Event::Served { since, from, tag: its, done: 4096, .. })) =
        commands.next()
    else {
        panic!("{steps:?}");
    };
    let Some((ended, 0, Event::Ended { tag: last, rcode, .. })) = commands.next() else {
        panic!("{steps:?}");
    };
    assert!(begun <= since && since <= served && served <= ended, "{steps:?}");
    assert_eq!((its, last, rcode, from), (tag, tag, Rcode::SUCCESS, Two::at(0)));
    assert!(commands.next().is_none());

    // Beyond the end of the buffer.
    two.put(BUFFER as u64, 8);
    let steps = trace.read(true);
    let Some(Event::Ended { tag, rcode, .. }) = events(&steps, 0).last() else {
        panic!("{steps:?}");
    };
    assert_eq!(rcode, Rcode::OFFSET_RANGE.remote());
    let reasons = trace.reasons();
    let of = |reason: &&Reason| {
        reason.by == Two::at(1) && reason.subject.which == Which::Tag(tag.index, tag.generation)
    };
    let reason = reasons.iter().find(of).unwrap_or_else(|| panic!("{reasons:?}"));
    assert!(reason.why.contains("beyond the STag"), "{reason:?}");
    assert_eq!(trace.lost(), 0);

    // No records are written any more, and a second trace has none of the first.
    drop(trace);
    two.put(0, 8);
    let mut trace = two.machine.network().trace().unwrap();
    assert!(trace.read(true).is_empty() && trace.reasons().is_empty());
}

/// A packet is seen at its target, which has no place for another one.
#[test]
fn packets_have_their_part_at_the_target() {
    let two = Two::new();
    let config = PacketConfig::new(TniId::ALL[0]);
    let mut from = Packets::open(&two.devices[0], &config).unwrap();
    let to = PacketTarget::straight(Two::at(0), Two::at(1), TniId::ALL[0]);
    let mut trace = two.machine.network().trace().unwrap();
    for receives in [true, false] {
        let mut at = receives.then(|| Packets::open(&two.devices[1], &config).unwrap());
        from.send(&to, &[b"a packet"], 0).unwrap();
        two.machine.run_pending();
        assert!(from.poll_sent().unwrap().rcode.is_success());
        assert!(at.as_mut().is_none_or(|at| at.recv(&mut [0; 64]).is_some()));
        let steps = trace.read(true);
        let Some(Event::Begun { tag, .. }) = events(&steps, 0).next() else { panic!("{steps:?}") };
        let [Event::Served { tag: its, from, done, .. }] =
            events(&steps, 1).collect::<Vec<_>>()[..]
        else {
            panic!("{steps:?}");
        };
        assert_eq!((its, from, done > 0), (tag, Two::at(0), receives), "{steps:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A guest may have anything in its queue.
    #[test]
    fn sums_are_those_of_the_counters(
        descriptors in prop::collection::vec(any::<([u64; 4], u8)>(), 1..48),
    ) {
        let mut two = Two::new();
        let before = two.completed();
        let mut trace = two.machine.network().trace().unwrap();
        for (words, kind) in descriptors {
            let (remote, local) = two.both(words[0] % (2 * BUFFER as u64), 64);
            let bytes = words[1] as u32 % BUFFER as u32;
            let order = match kind % 4 {
                0 => Order::put(two.to(), remote, local, bytes),
                1 => Order::get(two.to(), remote, local, bytes),
                _ => Order::raw(&[Descriptor(words)]),
            };
            two.run(&order);
        }
        two.machine.advance(LATE_NS);
        two.machine.run_pending();
        let records = trace.read(true);
        prop_assert_eq!(trace.lost(), 0);
        let (commands, open) = ended(&records, NodeId(0));
        prop_assert_eq!(commands, two.completed() - before);
        prop_assert_eq!(open, 0);
        for reason in trace.reasons() {
            prop_assert!(!reason.why.contains(char::is_control), "{:?}", reason);
        }
    }
}
