//! The event engine as those who keep the clocks of nodes use it.

mod common;

use std::sync::{Arc, Mutex};

use common::TNI;
use tofu_abi::topology::NodeId;
use tofu_abi::{CqId, Doorbell};
use tofu_driver::{PacketTarget, Packets};
use tofu_fabric::Ps;
use tofu_inproc::InProcess;
use tofu_timed::{EventEngine, Interrupt};

const NODES: [NodeId; 2] = [NodeId(0), NodeId(1)];

/// Two neighbours, their packet queues, and the interrupts that they have sent.
struct Machine {
    engine: Arc<EventEngine>,
    ends: [Packets<InProcess>; 2],
    to: PacketTarget,
    sent: Arc<Mutex<Vec<Interrupt>>>,
}

fn machine() -> Machine {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&sent);
    let interrupt = move |interrupt| log.lock().unwrap().push(interrupt);
    let machine = common::machine("1x1x1x2x1x1", Box::new(interrupt));
    let to = machine.to(0, 1);
    let Ok(ends) = machine.ends.try_into() else { panic!("two ends") };
    Machine { engine: machine.engine, ends, to, sent }
}

/// Sends packets to a node that sleeps, and runs the machine in such quanta. Returns the
/// interrupts, by the time since the first packet.
fn interrupts(quantum: Ps) -> Vec<(Ps, NodeId)> {
    let Machine { engine, ends: [mut a, mut b], to, sent } = machine();
    sent.lock().unwrap().clear();
    let start = engine.now();
    for round in 0..3 {
        assert!(!b.prepare_sleep());
        a.send(&to, &[&[round; 100]], 0).unwrap();
        let end = start + (u64::from(round) + 1) * 10_000_000;
        while engine.now() < end {
            let (before, next) = (sent.lock().unwrap().len(), engine.next(NODES[1]));
            engine.run_until(end.min(engine.now() + quantum));
            for interrupt in &sent.lock().unwrap()[before..] {
                assert!(next.is_some_and(|next| next <= interrupt.at), "{next:?} {interrupt:?}");
            }
        }
        assert_eq!(engine.now(), end);
        b.end_sleep();
        assert!(b.recv(&mut [0; 2048]).is_some());
    }
    let sent = sent.lock().unwrap();
    sent.iter().map(|interrupt| (interrupt.at - start, interrupt.node)).collect()
}

#[test]
fn quanta_keep_the_times_of_interrupts() {
    let whole = interrupts(Ps::MAX / 2);
    let of_target = whole.iter().filter(|(_, node)| *node == NODES[1]);
    let times: Vec<_> = of_target.map(|(at, _)| at % 10_000_000).collect();
    assert_eq!(times.len(), 3, "{whole:?}");
    // A hop takes 0.49 us at least.
    assert!(times.iter().all(|at| (490_000..2_000_000).contains(at)), "{times:?}");
    assert!(times.windows(2).all(|pair| pair[0] == pair[1]), "{times:?}");
    for quantum in [100_000, 490_000, 1_234_567] {
        assert_eq!(interrupts(quantum), whole, "{quantum}");
    }
}

#[test]
fn doorbells_ring_at_their_times() {
    let engine = machine().engine;
    let bell = Doorbell::Cq(CqId::ALL[0]);
    while engine.step() {}
    let now = engine.now();
    engine.doorbell(NODES[1], TNI, bell, now + 5000);
    engine.doorbell(NodeId(2), TNI, bell, now + 1000);
    let elsewhere = now + 5000 + engine.doorbell_lookahead(NODES[1]);
    assert_eq!(NODES.map(|node| engine.next(node)), [Some(elsewhere), Some(now + 5000)]);
    engine.run_until(now + 4999);
    assert_eq!((engine.now(), engine.next(NODES[1])), (now + 4999, Some(now + 5000)));
    engine.run_until(now + 5000);
    assert_eq!((engine.now(), engine.next(NODES[1])), (now + 5000, None));
    // The past is now, and time does not go back.
    engine.doorbell(NODES[0], TNI, bell, 0);
    assert_eq!(engine.next(NODES[0]), Some(now + 5000));
    engine.run_until(now);
    assert_eq!((engine.now(), engine.step()), (now + 5000, true));
}

#[test]
fn outside_comes_at_each_period_and_bounds_all_nodes() {
    let engine = machine().engine;
    while engine.step() {}
    let (now, period) = (engine.now(), 1_000_000);
    let came = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&came);
    engine.let_in(
        period,
        Box::new(move |at| {
            let mut log = log.lock().unwrap();
            log.push(at);
            // The second time something comes to one node.
            if log.len() == 2 { vec![NODES[1]] } else { Vec::new() }
        }),
    );
    assert!(!engine.is_busy());
    assert_eq!(NODES.map(|node| engine.next(node)), [Some(now + period); 2]);
    let before = NODES.map(|node| engine.events_at(node));
    engine.run_until(now + period);
    assert_eq!(NODES.map(|node| engine.events_at(node)), before);
    assert_eq!(engine.next(NODES[0]), Some(now + 2 * period));
    engine.run_until(now + 3 * period);
    assert_eq!(NODES.map(|node| engine.events_at(node)), [before[0], before[1] + 1]);
    let times = came.lock().unwrap().clone();
    assert_eq!(times, [1, 2, 3].map(|n| now + n * period));
}
