//! Taps and faults.

use std::sync::{Arc, Mutex};

use tofu_abi::{Coords, TniId};
use tofu_fabric::{
    Carrier, Class, Deliver, Direction, DiscardReason, Disturb, Fabric, FaultPlan, LinkErrors,
    NodeId, Observation, Packet, Port, Ppm, REORDER_DEPTH, Rates, Tap, TapPoint, Timing, Ways,
    Wires,
};

use tofu_links::{ErrorRate, Parameters};

use crate::common;
use crate::shapes::shape;

/// A body that records what was done to it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Letter {
    number: u32,
    damage: u32,
    forged: u32,
}

impl Disturb for Letter {
    fn duplicate(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn damage(&mut self, _: u64, undetected: bool) -> bool {
        if undetected {
            self.forged += 1;
        } else {
            self.damage += 1;
        }
        true
    }
}

/// The reports of packets.
#[derive(Default)]
struct Log {
    arrived: Vec<(NodeId, Letter)>,
    discarded: Vec<DiscardReason>,
    held: usize,
    swallowed: u32,
}

impl Deliver<Letter> for Log {
    fn arrived(&mut self, node: NodeId, packet: Packet<Letter>) {
        self.arrived.push((node, packet.body));
    }

    fn discarded(&mut self, _: NodeId, _: Option<Port>, reason: DiscardReason, _: Packet<Letter>) {
        self.discarded.push(reason);
    }

    fn held(&mut self) {
        self.held += 1;
    }

    fn swallowed(&mut self, _: Packet<Letter>) {
        self.swallowed += 1;
    }
}

impl Log {
    fn numbers(&self) -> Vec<u32> {
        self.arrived.iter().map(|(_, letter)| letter.number).collect()
    }
}

fn node(x: u8) -> Coords {
    Coords::new(x, 0, 0, 0, 0, 0)
}

fn wires() -> Wires<Letter> {
    let shape = shape([5, 1, 1, 1, 1, 1]).with_torus([false; 3]);
    Wires::new(Fabric::new(shape), Timing::TOFUD)
}

fn packet(class: Class, from: u8, to: u8, number: u32) -> Packet<Letter> {
    let body = Letter { number, ..Letter::default() };
    common::packet(class, node(from), node(to), body)
}

fn with(rates: Rates) -> Wires<Letter> {
    let wires = wires();
    let plan = FaultPlan { seed: 1, everywhere: rates, ..FaultPlan::default() };
    wires.set_faults(Some(plan)).unwrap();
    wires
}

/// Sends packets 0 to `count` - 1.
fn send(wires: &Wires<Letter>, class: Class, to: u8, count: u32) -> Log {
    let mut log = Log::default();
    for number in 0..count {
        wires.inject(packet(class, 0, to, number), &mut log);
    }
    log
}

fn percent(n: u32) -> Ppm {
    Ppm::new(n * 10_000).unwrap()
}

/// [`Wires::pass`] and [`Carrier::inject`] take a packet the same way.
#[test]
fn unobserved_packet_stays_where_it_is() {
    let wires = wires();
    let mut ways = Ways::default();
    let ends = [(0, 2), (2, 0), (1, 1), (0, 4), (0, 9), (9, 0)];
    // The way of a packet is remembered the first time. It is the same later, also over links whose
    // state has changed.
    for ((from, to), up) in [true, false, true].map(|up| ends.map(|ends| (ends, up))).as_flattened()
    {
        let (from, to) = (*from, *to);
        wires.fabric().set_link(node(3), Port::XPlus, *up).unwrap();
        let mut passed = packet(Class::Request, from, to, 1);
        let mut log = common::Log::default();
        wires.inject(passed.clone(), &mut log);
        match wires.pass(&mut passed, &mut ways).expect("nothing observes it") {
            Ok(at) => assert_eq!(log.arrived, [(at, passed)]),
            Err(lost) => {
                assert_eq!(log.discarded, [(lost.at, lost.port, lost.reason, passed)]);
            }
        }
    }
    wires.set_faults(Some(FaultPlan::default())).unwrap();
    assert_eq!(wires.pass(&mut packet(Class::Request, 0, 2, 1), &mut ways), None);
}

#[test]
fn every_rate_holds_on_every_link() {
    // Two links, each of which applies the rate. Four standard deviations are 240 at most.
    let near = |found: u64, expected: u64| assert!(found.abs_diff(expected) < 250, "{found}");
    let lossy = with(Rates { loss: percent(5), ..Rates::NONE });
    let log = send(&lossy, Class::System, 2, 20_000);
    let lost = lossy.faults().unwrap().1.lost;
    near(lost, 20_000 - 20_000 * 95 * 95 / 10_000);
    assert_eq!(log.arrived.len() as u64, 20_000 - lost);
    // No loss is reported.
    assert_eq!(log.discarded, []);

    let wires = with(Rates { corrupt: percent(5), undetected: percent(1), ..Rates::NONE });
    let log = send(&wires, Class::System, 2, 20_000);
    let counters = wires.faults().unwrap().1;
    near(counters.corrupted, 2_000);
    near(counters.undetected, 400);
    let sum = |of: fn(&Letter) -> u32| log.arrived.iter().map(|(_, l)| u64::from(of(l))).sum();
    assert_eq!((counters.corrupted, counters.undetected), (sum(|l| l.damage), sum(|l| l.forged)));
}

#[test]
fn packet_is_duplicated_once() {
    let wires = with(Rates { duplicate: Ppm::ALWAYS, ..Rates::NONE });
    let log = send(&wires, Class::System, 4, 3);
    assert_eq!(log.numbers(), [0, 0, 1, 1, 2, 2]);
    assert_eq!(wires.faults().unwrap().1.duplicated, 3);
    // The copy goes over the remaining links: three of the four.
    let counters = wires.fabric().port_counters(NodeId(1), Port::XPlus).unwrap();
    assert_eq!(counters.send_system, 6);
}

#[test]
fn packets_are_overtaken_and_not_lost() {
    let wires = with(Rates { reorder: percent(20), ..Rates::NONE });
    let mut log = send(&wires, Class::System, 1, 1_000);
    wires.release(&mut log);
    let mut numbers = log.numbers();
    let held = wires.faults().unwrap().1.reordered;
    assert!((150..250).contains(&held), "{held}");
    assert_eq!(log.held as u64, held);
    let moved = numbers.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(moved > 50, "{moved}");
    for (place, number) in numbers.iter().enumerate() {
        // Packets that are held back do not count as overtaking others, hence the factor.
        assert!(place.abs_diff(*number as usize) <= 3 * REORDER_DEPTH as usize, "{place} {number}");
    }
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..1_000));
}

#[test]
fn last_packet_waits_for_release_only() {
    let wires = with(Rates { reorder: Ppm::ALWAYS, ..Rates::NONE });
    let mut log = send(&wires, Class::System, 1, 1);
    assert_eq!((log.arrived.len(), log.held), (0, 1));
    wires.set_faults(None).unwrap();
    wires.inject(packet(Class::System, 0, 2, 7), &mut log);
    assert_eq!(log.numbers(), [7]);
    wires.release(&mut log);
    assert_eq!(log.numbers(), [7, 0]);
    assert!(wires.faults().is_none());
}

#[test]
fn commands_are_left_alone_unless_asked_for() {
    let rates = Rates {
        loss: Ppm::ALWAYS,
        duplicate: Ppm::ALWAYS,
        reorder: Ppm::ALWAYS,
        corrupt: Ppm::ALWAYS,
        undetected: Ppm::ALWAYS,
    };
    let wires = with(rates);
    for class in [Class::Request, Class::Response] {
        let log = send(&wires, class, 2, 10);
        assert!(log.numbers().into_iter().eq(0..10));
        assert!(log.arrived.iter().all(|(_, letter)| letter.damage + letter.forged == 0));
    }
    let plan = FaultPlan { everywhere: rates, commands: true, ..FaultPlan::default() };
    wires.set_faults(Some(plan)).unwrap();
    assert_eq!(send(&wires, Class::Request, 2, 10).arrived, []);
    assert_eq!(wires.faults().unwrap().1.lost, 10);
}

#[test]
fn same_seed_has_the_same_faults() {
    let run = |seed| {
        let wires = wires();
        let rates = Rates { loss: percent(10), duplicate: percent(10), ..Rates::NONE };
        let plan = FaultPlan { seed, everywhere: rates, ..FaultPlan::default() };
        wires.set_faults(Some(plan)).unwrap();
        send(&wires, Class::System, 3, 200).numbers()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn single_links_have_rates_of_their_own() {
    let wires = wires();
    let all = Rates { loss: Ppm::ALWAYS, ..Rates::NONE };
    let links = vec![(node(2), Port::XMinus, all), (node(3), Port::XPlus, all)];
    wires.set_faults(Some(FaultPlan { links, ..FaultPlan::default() })).unwrap();
    let arrived = |from, to| {
        let mut log = Log::default();
        wires.inject(packet(Class::System, from, to, 0), &mut log);
        log.arrived.len()
    };
    // Both directions, and no others.
    assert_eq!((arrived(2, 1), arrived(1, 2)), (0, 0));
    assert_eq!((arrived(0, 1), arrived(2, 3), arrived(3, 4)), (1, 1, 0));
    let links = vec![(node(0), Port::YPlus, all)];
    let plan = FaultPlan { links, ..FaultPlan::default() };
    let error = wires.set_faults(Some(plan)).unwrap_err();
    assert_eq!(error.to_string(), "node (0,0,0,0,0,0) has no link at port Y+");
    assert_eq!(arrived(1, 2), 0);
}

/// Node, point, direction, virtual channel and damage of a packet.
type Observed = (u32, TapPoint, Direction, Option<u8>, u32);

/// Records what it observes.
#[derive(Default)]
struct Recorder(Mutex<Vec<Observed>>);

impl Tap<Letter> for Recorder {
    fn observe(&self, observation: Observation, packet: &Packet<Letter>) {
        let Observation { node, point, direction, vc, .. } = observation;
        self.0.lock().unwrap().push((node.0, point, direction, vc, packet.body.damage));
    }
}

#[test]
fn tap_observes_every_point_of_the_path() {
    use Direction::{In, Lost, Out};
    let (plus, minus) = (TapPoint::Port(Port::XPlus), TapPoint::Port(Port::XMinus));
    let wires = wires();
    let seen = Arc::new(Recorder::default());
    wires.set_tap(Some(Arc::clone(&seen) as _));
    let all = Rates { corrupt: Ppm::ALWAYS, ..Rates::NONE };
    let links = vec![(node(1), Port::XPlus, all)];
    wires.set_faults(Some(FaultPlan { links, ..FaultPlan::default() })).unwrap();
    let take = || std::mem::take(&mut *seen.0.lock().unwrap());
    send(&wires, Class::System, 2, 1);
    let expected = [
        (0, TapPoint::Tni(2), Out, None, 0),
        (0, plus, Out, Some(0), 0),
        (1, minus, In, Some(0), 0),
        (1, plus, Out, Some(1), 0),
        // Damaged on the second link.
        (2, minus, In, Some(1), 1),
        (2, TapPoint::Tni(1), In, None, 1),
    ];
    assert_eq!(take(), expected);

    // To itself: no link.
    send(&wires, Class::Request, 0, 1);
    assert_eq!(take(), [(0, TapPoint::Tni(2), Out, None, 0), (0, TapPoint::Tni(1), In, None, 0)]);

    wires.fabric().set_link(node(0), Port::XPlus, false).unwrap();
    send(&wires, Class::Request, 1, 1);
    let lost = Lost(DiscardReason::LinkDown);
    assert_eq!(take(), [(0, TapPoint::Tni(2), Out, None, 0), (0, plus, lost, None, 0)]);

    let mut log = Log::default();
    wires.inject(packet(Class::Request, 0, 9, 0), &mut log);
    assert_eq!(take(), [(0, TapPoint::Tni(2), Lost(DiscardReason::NoSuchNode), None, 0)]);

    wires.set_tap(None);
    send(&wires, Class::System, 0, 1);
    assert_eq!(take(), []);
}

/// The same five nodes on modelled links.
fn modelled() -> Wires<Letter> {
    let shape = shape([5, 1, 1, 1, 1, 1]).with_torus([false; 3]);
    tofu_netmodel::wires(shape, &Parameters::TOFUD, None).unwrap()
}

/// Sends packets 0 to `count` - 1 over modelled links, each once there is room, and drives these
/// until nothing is on its way.
fn drive(wires: &Wires<Letter>, class: Class, to: u8, count: u32) -> Log {
    let mut log = Log::default();
    let quiet = |log: &mut Log| {
        let progress = wires.step(log).unwrap();
        progress.next.is_none() && !wires.has_mail()
    };
    for number in 0..count {
        while !wires.has_room(node(0), TniId::ALL[2]) {
            quiet(&mut log);
        }
        wires.inject(packet(class, 0, to, number), &mut log);
    }
    while !quiet(&mut log) {}
    log
}

/// Wrong bits, a lane that dies and acknowledgements that are lost, on every link.
fn spoil(wires: &Wires<Letter>) {
    let rate = |rate| ErrorRate::new(rate).unwrap();
    let mut errors = LinkErrors { dllp_loss: rate(0.2), ..LinkErrors::default() };
    errors.rates[..2].fill(rate(1e-4));
    for x in 0..4 {
        wires.fabric().set_link_errors(node(x), Port::XPlus, &errors).unwrap();
    }
}

/// Seed, link and packet number alone determine which packets are damaged, lost and duplicated, for
/// both kinds of links.
#[test]
fn modelled_errors_match_direct_faults() {
    let plan = |everywhere, links| FaultPlan { seed: 3, everywhere, links, commands: false };
    let damage = Rates { corrupt: percent(10), undetected: percent(5), ..Rates::NONE };
    let lossy = plan(Rates { loss: percent(10), ..damage }, Vec::new());
    // A duplicate takes its own way over further links, so there are none.
    let twice = Rates { duplicate: percent(10), ..Rates::NONE };
    let double = plan(Rates::NONE, vec![(node(1), Port::XPlus, twice)]);
    for (plan, to) in [(lossy, 3), (double, 2)] {
        let direct = wires();
        direct.set_faults(Some(plan.clone())).unwrap();
        let expected = send(&direct, Class::System, to, 400);
        let of = |log: &Log| {
            let letters = log.arrived.iter().map(|(_, letter)| letter.clone());
            letters.map(|letter| (letter.number, letter.damage, letter.forged)).collect::<Vec<_>>()
        };
        for errors in [false, true] {
            let wires = modelled();
            wires.set_faults(Some(plan.clone())).unwrap();
            if errors {
                spoil(&wires);
            }
            let log = drive(&wires, Class::System, to, 400);
            assert_eq!(of(&log), of(&expected));
            assert_eq!(wires.faults(), direct.faults());
            assert_eq!(log.discarded, []);
            // The command of a lost packet is completed at its sender.
            assert_eq!(u64::from(log.swallowed), wires.faults().unwrap().1.lost);
            let replayed = wires.fabric().port_counters(NodeId(1), Port::XMinus).unwrap();
            assert_eq!(replayed.lcrc_errors > 0, errors);
        }
    }
}

#[test]
fn modelled_links_delay_and_lose_packets() {
    let wires = modelled();
    let everywhere = Rates { reorder: percent(20), ..Rates::NONE };
    wires.set_faults(Some(FaultPlan { everywhere, ..FaultPlan::default() })).unwrap();
    let mut log = drive(&wires, Class::System, 1, 500);
    wires.release(&mut log);
    let mut numbers = log.numbers();
    assert!(numbers.windows(2).any(|pair| pair[0] > pair[1]));
    assert_eq!(log.held as u64, wires.faults().unwrap().1.reordered);
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..500));
    // Commands are in order, and lost only if that was requested.
    let lossy = Rates { loss: Ppm::ALWAYS, ..everywhere };
    let plan = FaultPlan { everywhere: lossy, ..FaultPlan::default() };
    wires.set_faults(Some(plan.clone())).unwrap();
    assert!(drive(&wires, Class::Request, 2, 50).numbers().into_iter().eq(0..50));
    wires.set_faults(Some(FaultPlan { commands: true, ..plan })).unwrap();
    let log = drive(&wires, Class::Request, 2, 50);
    assert_eq!((log.arrived.len(), log.swallowed), (0, 50));
    // A link that is down comes first.
    wires.fabric().set_link(node(0), Port::XPlus, false).unwrap();
    assert_eq!(drive(&wires, Class::Request, 2, 5).discarded.len(), 5);
}
