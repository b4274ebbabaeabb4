//! The event engine, driven as by code that keeps the clocks of nodes.

mod common;

use std::sync::{Arc, Mutex};

use common::TNI;
use proptest::prelude::*;
use tofu_abi::topology::{NodeId, Port};
use tofu_abi::{CqId, Doorbell};
use tofu_driver::{PacketTarget, Packets};
use tofu_fabric::{
    Direction, EccErrors, FaultPlan, LinkErrors, MemoryErrors, ModelledLinks, Observation, Packet,
    Ppm, Ps, Rates, Tap, TapPoint, Tapped,
};
use tofu_icc::Body;
use tofu_icc::device_faults::DeviceFaults;
use tofu_inproc::InProcess;
use tofu_links::ErrorRate;
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
            // The second time, input arrives for one node.
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

/// An event in the life of a machine of six nodes.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// A node sends a packet of so many bytes to the one so many ahead.
    Send(u32, u32, usize),
    /// The link at a port of a node goes down or up.
    Link(u32, Port, bool),
    /// A bit of so many is wrong on a link, or none.
    Errors(u32, Port, Option<u32>),
    /// Packets are lost, doubled, damaged and held back as the seed says, or no longer.
    Faults(Option<u64>),
    /// Time passes.
    Run(Ps),
}

/// Faults of every third packet or so.
fn often(seed: u64) -> FaultPlan {
    let share = Ppm::new(100_000).unwrap();
    let everywhere =
        Rates { loss: share, duplicate: share, reorder: share, corrupt: share, ..Rates::NONE };
    FaultPlan { seed, everywhere, ..FaultPlan::default() }
}

const PORTS: [Port; 3] = [Port::A, Port::BMinus, Port::BPlus];

fn action() -> impl Strategy<Value = Action> {
    let port = prop::sample::select(PORTS.to_vec());
    let errors = prop::option::of(prop::sample::select(vec![100, 5000, 1_000_000]));
    prop_oneof![
        4 => (0..6u32, 1..6u32, 1..1500usize).prop_map(|(from, to, n)| Action::Send(from, to, n)),
        1 => (0..6u32, port.clone(), any::<bool>())
            .prop_map(|(n, port, up)| Action::Link(n, port, up)),
        1 => (0..6u32, port, errors).prop_map(|(n, port, ber)| Action::Errors(n, port, ber)),
        1 => prop::option::of(any::<u64>()).prop_map(Action::Faults),
        4 => (1..2_000_000u64).prop_map(Action::Run),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Nothing happens at a node before the time that `next` gives, though links and faults lose
    /// packets.
    #[test]
    fn next_is_a_promise_while_links_fail(actions in prop::collection::vec(action(), 1..60)) {
        let mut machine = common::machine("1x1x1x2x3x1", Box::new(|_| {}));
        let engine = Arc::clone(&machine.engine);
        // Packets that faults hold back are released there.
        engine.let_in(700_000_000, Box::new(|_| Vec::new()));
        let nodes = [0, 1, 2, 3, 4, 5].map(NodeId);
        let run = |end: Ps| {
            loop {
                let (next, before) =
                    (nodes.map(|node| engine.next(node)), nodes.map(|node| engine.events_at(node)));
                if !engine.step_until(end) {
                    break;
                }
                let now = engine.now();
                for node in nodes {
                    let n = node.index();
                    let kept = engine.events_at(node) == before[n];
                    let due = next[n].is_some_and(|at| at <= now);
                    prop_assert!(kept || due, "{n} {next:?} {now}");
                }
            }
            engine.run_until(end);
            Ok(())
        };
        for action in actions {
            match action {
                Action::Send(from, ahead, bytes) => {
                    let to = machine.to(from, (from + ahead) % 6);
                    // Its queue may be full of packets that wait.
                    let _ = machine.ends[from as usize].send(&to, &[&vec![1; bytes]], 0);
                }
                Action::Link(node, port, up) => {
                    let at = machine.shape.coords(NodeId(node)).unwrap();
                    engine.set_link(at, port, up).unwrap();
                    prop_assert_eq!(engine.link_up(at, port), Some(up));
                }
                Action::Errors(node, port, ber) => {
                    let at = machine.shape.coords(NodeId(node)).unwrap();
                    let rate = ber.map_or(ErrorRate::NEVER, |bits| {
                        ErrorRate::new(1.0 / f64::from(bits)).unwrap()
                    });
                    let mut errors = LinkErrors::default();
                    errors.rates[..2].fill(rate);
                    engine.set_errors(at, port, &errors).unwrap();
                }
                Action::Faults(seed) => engine.set_faults(seed.map(often)).unwrap(),
                Action::Run(ps) => run(engine.now() + ps)?,
            }
        }
        run(engine.now() + 1_000_000_000)?;
    }
}

#[test]
fn packets_over_a_link_that_is_down_are_lost_and_counted() {
    let Machine { engine, ends: [mut a, mut b], to, .. } = machine();
    let at = tofu_abi::Coords::default();
    engine.set_link(at, Port::A, false).unwrap();
    a.send(&to, &[&[1; 100]], 0).unwrap();
    engine.run_until(engine.now() + 1_000_000_000);
    assert!(b.recv(&mut [0; 2048]).is_none());
    let counters = ModelledLinks::port_counters(&*engine, NODES[0], Port::A).unwrap();
    assert_eq!((counters.send_tlp, counters.tx_discard_system), (0, 1));
    engine.set_link(at, Port::A, true).unwrap();
    a.send(&to, &[&[2; 100]], 0).unwrap();
    engine.run_until(engine.now() + 1_000_000_000);
    let mut got = [0; 2048];
    assert_eq!(b.recv(&mut got).map(|packet| (packet.len, got[0])), Some((100, 2)));
}

#[test]
fn router_with_wrong_bits_marks_the_packet_that_it_sends_on() {
    let mut machine = machine();
    let errors = Arc::<MemoryErrors>::default();
    errors.inject(EccErrors::Correctable(1));
    machine.engine.set_router_errors(NODES[0], Arc::clone(&errors));
    assert_eq!(stream(&mut machine, &[100, 100]).len(), 2);
    errors.inject(EccErrors::Fatal);
    machine.engine.set_router_errors(NODES[0], Arc::clone(&errors));
    let got = stream(&mut machine, &[100, 100]);
    assert_eq!(got.iter().map(|(.., number)| *number).collect::<Vec<_>>(), [1]);
    assert_eq!(errors.counts(), [1, 1]);
    let at = |node| ModelledLinks::port_counters(&*machine.engine, node, Port::A).unwrap();
    let (near, far) = (at(NODES[0]), at(NODES[1]));
    assert_eq!((near.xb_ce, near.generate_nullified, near.send_nullified), (1, 1, 1));
    assert_eq!((far.recv_nullified, far.generate_nullified), (1, 0));
}

/// Sends packets of so many bytes one after the other. Returns the bytes of those that arrive,
/// when each does, and the first byte of each.
fn stream(machine: &mut Machine, bytes: &[usize]) -> Vec<(Ps, usize, u8)> {
    let Machine { engine, ends: [a, b], to, .. } = machine;
    let start = engine.now();
    for (number, bytes) in (0..).zip(bytes) {
        a.send(to, &[&vec![number; *bytes]], 0).unwrap();
    }
    let mut got = Vec::new();
    let mut buffer = [0; 2048];
    while engine.now() < start + 3_000_000_000 && engine.step() {
        while let Some(packet) = b.recv(&mut buffer) {
            got.push((engine.now() - start, packet.len, buffer[0]));
        }
    }
    got
}

/// A sight of a tap: when, where, which way, the number of the frame, and its bytes.
type Sight = (Ps, NodeId, TapPoint, Direction, Option<u32>, u64);

/// Notes all that it sees.
struct Watch(Arc<EventEngine>, Mutex<Vec<Sight>>);

impl Tap<Body> for Watch {
    fn observe(&self, seen: Observation, packet: &Packet<Body>) {
        let Observation { node, point, direction, link, .. } = seen;
        let frame = link.map(|link| link.tlp);
        let sight = (self.0.now(), node, point, direction, frame, packet.bytes);
        self.1.lock().unwrap().push(sight);
    }
}

#[test]
fn tap_sees_packets_at_their_times() {
    let alone = stream(&mut machine(), &[100]);
    let mut machine = machine();
    let (engine, start) = (Arc::clone(&machine.engine), machine.engine.now());
    let watch = Arc::new(Watch(Arc::clone(&engine), Mutex::default()));
    Tapped::look_at(&*engine, &[NODES[0]].into());
    engine.set_tap(Some(Arc::clone(&watch) as _));
    // The receiver notices nothing of it.
    assert_eq!(stream(&mut machine, &[100]), alone);
    engine.set_tap(None);
    let seen = watch.1.lock().unwrap().clone();
    let at = |sight: &Sight| (sight.1, sight.2, sight.3);
    let tni = TapPoint::Tni(TNI.get());
    let link = TapPoint::Port(Port::A);
    let ways = [
        (NODES[0], tni, Direction::Out),
        (NODES[0], link, Direction::Out),
        (NODES[1], link, Direction::In),
        (NODES[1], tni, Direction::In),
    ];
    assert_eq!(seen.iter().map(at).collect::<Vec<_>>(), ways);
    assert!(seen.is_sorted_by_key(|sight| sight.0), "{seen:?}");
    // It is on the link after the interface and before it has arrived.
    let times: Vec<_> = seen.iter().map(|sight| sight.0 - start).collect();
    assert!(times[0] < times[1] && times[1] < times[3], "{times:?}");
    assert_eq!(times[3], alone[0].0);
    assert_eq!((seen[1].4, seen[0].4), (Some(0), None));
    assert_eq!(stream(&mut machine, &[100]).len(), 1);
    assert_eq!(watch.1.lock().unwrap().len(), seen.len());
}

#[test]
fn faults_of_packets_are_the_same_in_each_run() {
    let bytes = [100; 40];
    let run = |seed: Option<u64>| {
        let mut machine = machine();
        machine.engine.let_in(1_000_000_000, Box::new(|_| Vec::new()));
        machine.engine.set_faults(seed.map(often)).unwrap();
        let got = stream(&mut machine, &bytes);
        let counted = machine.engine.faults().map(|(_, counted)| counted);
        (got, counted)
    };
    let (whole, none) = run(None);
    assert_eq!((whole.len(), none), (40, None));
    let (got, counted) = run(Some(7));
    assert_eq!(run(Some(7)), (got.clone(), counted));
    assert_ne!(run(Some(8)), (got.clone(), counted));
    let counted = counted.unwrap();
    let faults = [counted.lost, counted.duplicated, counted.reordered, counted.corrupted];
    assert!(faults.iter().all(|count| *count > 0), "{counted:?}");
    // Damaged ones are dropped by the target.
    assert!(got.len() as u64 >= 40 - counted.lost - counted.corrupted, "{counted:?} {got:?}");
    let order: Vec<_> = got.iter().map(|(.., number)| *number).collect();
    assert!(!order.is_sorted(), "{order:?}");
    // One that a fault holds back comes with others, or at the next boundary.
    let mut alone = machine();
    alone.engine.let_in(1_000_000_000, Box::new(|_| Vec::new()));
    let boundary = alone.engine.now() + 1_000_000_000;
    let everywhere = Rates { reorder: Ppm::ALWAYS, ..Rates::NONE };
    alone.engine.set_faults(Some(FaultPlan { everywhere, ..FaultPlan::default() })).unwrap();
    let start = alone.engine.now();
    let got = stream(&mut alone, &[100]);
    assert_eq!(got, [(boundary - start, 100, 0)]);
}

#[test]
fn interrupts_are_lost_and_late_by_faults() {
    /// When a sleeping node is woken by a packet, by the time since it was sent.
    fn woken(faults: DeviceFaults) -> Vec<Ps> {
        let Machine { engine, ends: [mut a, b], to, sent } = machine();
        assert!(engine.set_device_faults(NODES[1], faults));
        assert!(!b.prepare_sleep());
        sent.lock().unwrap().clear();
        let start = engine.now();
        a.send(&to, &[&[1; 100]], 0).unwrap();
        engine.run_until(start + 1_000_000_000);
        let sent = sent.lock().unwrap();
        let sent = sent.iter().filter(|interrupt| interrupt.node == NODES[1]);
        sent.map(|interrupt| interrupt.at - start).collect()
    }
    let soon = woken(DeviceFaults::default());
    assert_eq!(soon.len(), 1);
    let lost = DeviceFaults { msix_lost: Ppm::ALWAYS, ..DeviceFaults::default() };
    assert!(woken(lost).is_empty());
    let late =
        DeviceFaults { msix_delayed: Ppm::ALWAYS, delay_ns: 250_000, ..DeviceFaults::default() };
    let [at] = woken(late)[..] else { panic!("one interrupt") };
    // A device's clock has nanoseconds.
    assert!((soon[0] + 249_999_000..=soon[0] + 250_000_000).contains(&at), "{at} {soon:?}");
    let doubled = DeviceFaults { msix_doubled: Ppm::ALWAYS, ..DeviceFaults::default() };
    assert_eq!(woken(doubled), [soon[0]; 2]);
    assert!(!machine().engine.set_device_faults(NodeId(2), doubled));
}

#[test]
fn late_entries_come_at_their_time() {
    /// When the driver finds the end of a packet, by the time since it was sent.
    fn ended(faults: DeviceFaults) -> Ps {
        let Machine { engine, ends: [mut a, _], to, .. } = machine();
        assert!(engine.set_device_faults(NODES[0], faults));
        let start = engine.now();
        a.send(&to, &[&[1; 100]], 0).unwrap();
        while a.poll_sent().is_none() {
            assert!(engine.step());
        }
        engine.now() - start
    }
    let soon = ended(DeviceFaults::default());
    let late = ended(DeviceFaults { late_tcq_ns: 50_000, ..DeviceFaults::default() });
    // A device's clock has nanoseconds.
    assert!((soon + 49_999_000..=soon + 50_000_000).contains(&late), "{soon} {late}");
}
