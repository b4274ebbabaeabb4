//! Puts on the event engine: when their data and their completions come.

mod common;

use std::sync::atomic::Ordering::SeqCst;

use common::{Machine, TNI};
use tofu_abi::regs::CqReg;
use tofu_abi::table::PageSize;
use tofu_abi::topology::{NodeId, Port};
use tofu_abi::{CqId, Rcode};
use tofu_driver::{Access, Cq, CqConfig, DmaBuffer, MemoryRange, Order, Platform, Stag, Target};
use tofu_fabric::{ModelledLinks, Ps};
use tofu_inproc::{Buffer, InProcess};

const BYTES: usize = 64 << 10;

struct End {
    cq: Cq<InProcess>,
    stag: Stag,
    buffer: Buffer,
}

fn end(machine: &Machine, node: u32) -> End {
    let device = &machine.devices[node as usize];
    let buffer = device.platform().alloc_dma(BYTES, 64 << 10).unwrap();
    let mut cq = Cq::open(device, &CqConfig::new(TNI, CqId::ALL[0])).unwrap();
    let range = MemoryRange { addr: buffer.device_addr(), len: BYTES as u64 };
    let stag = cq.register(&[range], PageSize::Size64K, Access::ReadWrite, None).unwrap();
    End { cq, stag, buffer }
}

/// When a Put was complete, noticed and in memory, in picoseconds since its doorbell.
#[derive(Debug)]
struct Put {
    completed: Ps,
    noticed: Ps,
    arrived: Ps,
}

/// Puts from node 0 to another one. As soon as the Put is complete, its memory is changed.
fn put(to: u32, bytes: u32) -> Put {
    let machine = common::machine("1x1x1x2x3x2", Box::new(|_| {}));
    let (mut source, target) = (end(&machine, 0), end(&machine, to));
    let engine = &machine.engine;
    while engine.step() {}
    let last = bytes as usize - 4;
    source.buffer.store_u32(last, 1, SeqCst);
    let at = Target::new(machine.shape.coords(NodeId(to)).unwrap(), TNI);
    let order = Order::put(at, target.stag.at(0), source.stag.at(0), bytes);
    let start = engine.now();
    source.cq.post_and_ring(&order, 7).unwrap();
    let (mut completed, mut noticed, mut arrived) = (None, None, None);
    while completed.is_none() || noticed.is_none() || arrived.is_none() {
        let nodes = [NodeId(0), NodeId(to)];
        let before = nodes.map(|node| (engine.next(node), engine.events_at(node)));
        assert!(engine.step(), "{completed:?} {noticed:?} {arrived:?}");
        for (node, (next, events)) in nodes.into_iter().zip(before) {
            let happened = engine.events_at(node) > events;
            assert!(!happened || next.is_some_and(|next| next <= engine.now()), "{node:?}");
        }
        let since = engine.now() - start;
        if let Some(completion) = source.cq.poll_tcq() {
            assert_eq!((completion.cookie, completion.rcode), (7, Rcode::SUCCESS));
            assert_eq!(completed.replace(since), None, "one completion");
            source.buffer.store_u32(last, 2, SeqCst);
        }
        if source.cq.poll_mrq().is_some() {
            assert_eq!(noticed.replace(since), None, "one notice");
        }
        if arrived.is_none() && target.buffer.load_u32(last, SeqCst) != 0 {
            arrived = Some(since);
        }
    }
    while engine.step() {}
    assert_eq!(target.buffer.load_u32(last, SeqCst), 1, "the data of the command");
    assert_eq!((source.cq.poll_tcq(), source.cq.read_page(CqReg::TcqNumNotice)), (None, 1));
    let [completed, noticed, arrived] = [completed, noticed, arrived].map(Option::unwrap);
    Put { completed, noticed, arrived }
}

#[test]
fn completion_of_put_comes_at_same_time_for_any_distance() {
    let nodes = {
        let shape = common::machine("1x1x1x2x3x2", Box::new(|_| {})).shape;
        [1, 2, 3].map(|hops| {
            let far = |node: &u32| {
                let at = |node| shape.coords(NodeId(node)).unwrap();
                shape.distance(at(0), at(*node)) == hops
            };
            (1..12).find(far).unwrap()
        })
    };
    for bytes in [8, 4000, BYTES as u32] {
        let [near, middle, far] = nodes.map(|node| put(node, bytes));
        assert_eq!([middle.completed, far.completed], [near.completed; 2]);
        // Data takes 0.1 us more for each hop, and a notice comes with the answer.
        assert_eq!(middle.arrived - near.arrived, 100_000);
        assert_eq!(far.arrived - near.arrived, 200_000);
        assert_eq!(far.noticed - near.noticed, 400_000);
        assert!(far.completed < far.noticed, "{far:?}");
    }
}

#[test]
fn put_over_broken_link_is_complete_and_its_notice_says_why() {
    let machine = common::machine("1x1x1x2x1x1", Box::new(|_| {}));
    let (mut source, target) = (end(&machine, 0), end(&machine, 1));
    let engine = &machine.engine;
    let [here, there] = [0, 1].map(|node| machine.shape.coords(NodeId(node)).unwrap());
    let port =
        Port::ALL.into_iter().find(|port| machine.shape.neighbor(here, *port) == Some(there));
    let port = port.unwrap();
    engine.set_link(here, port, false).unwrap();
    let order = Order::put(Target::new(there, TNI), target.stag.at(0), source.stag.at(0), 8);
    source.cq.post_and_ring(&order, 0).unwrap();
    while engine.step() {}
    assert_eq!(source.cq.poll_tcq().unwrap().rcode, Rcode::SUCCESS);
    assert_eq!(source.cq.poll_tcq(), None);
    assert_eq!(source.cq.poll_mrq().unwrap().word0().rcode(), Rcode::LINK_DOWN);
}
