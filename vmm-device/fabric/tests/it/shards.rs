//! A machine in shards, over cables in memory, compared with the same machine in one piece.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use tofu_abi::{Coords, Path};
use tofu_fabric::{
    Cables, Carrier, Class, Crossing, DiscardReason, Disturb, Fabric, FaultPlan, Link, NodeId,
    Packet, Port, Ppm, Rates, Shape, ShardId, Shards, Stray, Timing, Way, Wires,
};

use crate::common::{self, Log};
use crate::shapes::{any_coords, shape};

/// A body that can be duplicated and damaged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Letter(u32);

impl Disturb for Letter {
    fn duplicate(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn damage(&mut self, random: u64, _: bool) -> bool {
        self.0 ^= 1 << (random % 8) << 24;
        true
    }
}

type Sent = (ShardId, ShardId, Crossing<Letter>);

/// All cables of a machine.
#[derive(Default)]
struct Post {
    under_way: Mutex<VecDeque<Sent>>,
    dead: Mutex<Vec<ShardId>>,
}

/// Those that leave a shard.
struct Outbox {
    post: Arc<Post>,
    from: ShardId,
}

impl Cables<Letter> for Outbox {
    fn send(&self, to: ShardId, crossing: Crossing<Letter>) -> Option<Crossing<Letter>> {
        if self.post.dead.lock().unwrap().contains(&to) {
            return Some(crossing);
        }
        self.post.under_way.lock().unwrap().push_back((self.from, to, crossing));
        None
    }
}

struct Machine {
    shards: Arc<Shards>,
    wires: Vec<Wires<Letter>>,
    post: Arc<Post>,
}

impl Machine {
    fn new(shape: Shape, shards: u32) -> Self {
        let shards = Arc::new(Shards::new(shape, shards).unwrap());
        let post = Arc::new(Post::default());
        let wires = shards.all().map(|from| {
            let fabric = Fabric::of_shard(Arc::clone(&shards), from).unwrap();
            let wires = Wires::new(fabric, Timing::TOFUD);
            wires.set_cables(Some(Arc::new(Outbox { post: Arc::clone(&post), from })));
            wires
        });
        Self { wires: wires.collect(), shards, post }
    }

    fn at(&self, node: Coords) -> &Wires<Letter> {
        let id = self.shards.shape().node_id(node).unwrap();
        &self.wires[self.shards.of(id).unwrap().index()]
    }

    fn send(&self, packet: Packet<Letter>, log: &mut Log<Letter>) {
        self.at(packet.src).inject(packet, log);
    }

    /// Lets cables deliver, in an order that `turn` decides, until nothing is on its way.
    fn settle(&self, log: &mut Log<Letter>, mut turn: u32) -> u32 {
        let mut crossed = 0;
        loop {
            let (from, to, crossing) = {
                let mut under_way = self.post.under_way.lock().unwrap();
                turn = turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let Some(any) = (turn as usize >> 8).checked_rem(under_way.len()) else {
                    return crossed;
                };
                // The first message of that cable, because each cable keeps the order.
                let cable = (under_way[any].0, under_way[any].1);
                let first = under_way.iter().position(|(from, to, _)| (*from, *to) == cable);
                under_way.remove(first.unwrap()).unwrap()
            };
            crossed += 1;
            self.wires[to.index()].receive(from, crossing, log).unwrap();
        }
    }
}

fn packet(class: Class, src: Coords, dst: Coords, path: Path, number: u32) -> Packet<Letter> {
    let one = common::packet(class, src, dst, Letter(number));
    Packet { path, tlps: 3, bytes: 600, tlp_bytes: 208, before: 70, model_ps: 1_000, ..one }
}

fn whole(shape: Shape) -> Wires<Letter> {
    Wires::new(Fabric::new(shape), Timing::TOFUD)
}

fn sorted(mut log: Log<Letter>) -> Log<Letter> {
    log.arrived.sort_by_key(|(_, packet)| packet.body.clone());
    log.discarded.sort_by_key(|(.., packet)| packet.body.clone());
    log
}

/// Shapes whose packets cross few shards or many, and possible numbers of shards.
fn any_machine() -> impl Strategy<Value = (Shape, u32)> {
    let lengths = (1..=6u8, 1..=4u8, 1..=3u8, 1..=2u8, 1..=3u8, 1..=2u8);
    let machine = (lengths, any::<[bool; 3]>(), 1..=12u32);
    machine.prop_filter_map("cannot be cut so", |((x, y, z, a, b, c), torus, shards)| {
        let shape = shape([x, y, z, a, b, c]).with_torus(torus);
        Shards::new(shape, shards).ok().map(|_| (shape, shards))
    })
}

type Journey = (Coords, Coords, Coords, u8);

fn any_traffic() -> impl Strategy<Value = (Shape, u32, Vec<Journey>, Vec<u32>)> {
    any_machine().prop_flat_map(|(shape, shards)| {
        let node = || any_coords(&shape);
        let journeys = prop::collection::vec((node(), node(), node(), 0..4u8), 1..40);
        let down = prop::collection::vec(any::<u32>(), 0..4);
        (Just(shape), Just(shards), journeys, down)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Arrivals, losses and their places, all times and all counters are the same.
    #[test]
    fn shards_together_are_the_whole_machine(
        (shape, shards, journeys, down) in any_traffic(),
        turn: u32,
    ) {
        let (whole, machine) = (whole(shape), Machine::new(shape, shards));
        let links: Vec<_> = Link::all(&shape).collect();
        for index in down {
            let Some(index) = (index as usize).checked_rem(links.len()) else { break };
            let Link { from, port, to, .. } = links[index];
            whole.fabric().set_link(from, port, false).unwrap();
            // The shards that have one of the ends.
            for end in [from, to] {
                machine.at(end).fabric().set_link(from, port, false).unwrap();
            }
        }
        let (mut expected, mut found) = (Log::default(), Log::default());
        for (number, (src, dst, via, kind)) in (0..).zip(journeys) {
            let class = Class::ALL[usize::from(kind % 3)];
            let packet = packet(class, src, dst, via.default_path(), number);
            let port = Port::ALL[number as usize % Port::COUNT];
            let packet = match kind {
                3 => Packet { way: Way::Hop { port, vc: 1, nullified: true }, ..packet },
                _ => packet,
            };
            whole.inject(packet.clone(), &mut expected);
            machine.send(packet, &mut found);
        }
        machine.settle(&mut found, turn);
        prop_assert_eq!(sorted(found), sorted(expected));
        for (id, node) in (0..).map(NodeId).zip(shape.iter()) {
            let shard = machine.at(node).fabric();
            for port in Port::ALL {
                let (found, expected) =
                    (shard.port_counters(id, port), whole.fabric().port_counters(id, port));
                prop_assert_eq!(found, expected, "{} {}", node, port);
            }
            prop_assert_eq!(shard.xb_counters(id), whole.fabric().xb_counters(id));
        }
    }

    /// Packets of one class, source, target and path, each once.
    #[test]
    fn packets_arrive_in_order_and_once((shape, shards) in any_machine(), seed: u64, turn: u32) {
        let machine = Machine::new(shape, shards);
        let nodes: Vec<_> = shape.iter().collect();
        let pick = |n: u64| nodes[(n % nodes.len() as u64) as usize];
        let flows = [(seed, seed >> 8), (seed >> 16, seed >> 24), (seed >> 32, seed >> 40)];
        let mut log = Log::default();
        for number in 0..60 {
            let flow = number % 3;
            let (src, dst) = flows[flow as usize];
            let (src, dst) = (pick(src), pick(dst));
            let path = pick(seed >> 48).default_path();
            let flow = packet(Class::Request, src, dst, path, flow << 16 | number);
            machine.send(flow, &mut log);
            if number % 7 == 0 {
                machine.settle(&mut log, turn ^ number);
            }
        }
        machine.settle(&mut log, turn);
        for flow in 0..3 {
            let of = |letter: &Letter| letter.0 >> 16 == flow;
            let found = log.arrived.iter().map(|(_, packet)| packet.body.clone()).filter(of);
            let sent = (0..60).filter(|number| number % 3 == flow);
            prop_assert!(found.eq(sent.map(|number| Letter(flow << 16 | number))));
        }
    }

    /// A peer can send only over its own cables, regardless of what it claims.
    #[test]
    fn strays_are_refused_and_leave_no_trace(
        (shape, shards) in any_machine(),
        src: [u8; 6],
        dst: [u8; 6],
        distances: Option<[i8; 3]>,
        hops: u32,
        few: bool,
        from: u8,
    ) {
        let hops = if few { hops % 16 } else { hops };
        let (src, dst) = (Coords::from_array(src), Coords::from_array(dst));
        let machine = Machine::new(shape, shards);
        let own = &machine.wires[0];
        let way = distances.map_or(Way::Shortest, Way::Distances);
        let near = |n: Coords| {
            let lengths = shape.lengths();
            let mut n = n.to_array();
            (0..6).for_each(|axis| n[axis] %= lengths[axis]);
            Coords::from_array(n)
        };
        for (src, dst) in [(src, dst), (near(src), near(dst))] {
            let packet = packet(Class::Request, src, dst, dst.default_path(), 1);
            let packet = Packet { way, ..packet };
            let crossing = Crossing { packet, hops, held: None, duplicated: false };
            let mut log = Log::default();
            let taken = own.receive(ShardId(from.into()), crossing, &mut log);
            let told = log.arrived.len() + log.discarded.len();
            let onwards = machine.post.under_way.lock().unwrap().drain(..).count();
            prop_assert_eq!(told + onwards, usize::from(taken.is_ok()));
            if taken.is_err() {
                for id in (0..shape.nodes()).map(NodeId) {
                    let sum: u64 = Port::ALL
                        .into_iter()
                        .filter_map(|port| own.fabric().port_counters(id, port))
                        .map(|port| port.send_tlp + port.recv_tlp)
                        .sum();
                    prop_assert_eq!(sum, 0);
                }
            }
        }
    }
}

fn node(x: u8) -> Coords {
    Coords::new(x, 0, 0, 0, 0, 0)
}

fn line(shards: u32) -> Machine {
    Machine::new(shape([6, 1, 1, 1, 1, 1]).with_torus([false; 3]), shards)
}

#[test]
fn packet_passes_through_other_shards() {
    let machine = line(3);
    let mut log = Log::default();
    machine.send(packet(Class::Request, node(0), node(5), Path::new(0, 0, 0), 7), &mut log);
    assert_eq!(machine.settle(&mut log, 0), 2);
    let [(at, packet)] = &log.arrived[..] else { panic!("{log:?}") };
    assert_eq!((*at, &packet.body), (NodeId(5), &Letter(7)));
    // Five hops of 100 ns, and 670 bytes at 6.8 GB/s.
    assert_eq!(packet.model_ps, 1_000 + 500_000 + 98_529);
}

#[test]
fn link_between_shards_is_down_by_either() {
    for near in [1, 2] {
        let machine = line(3);
        let own = machine.at(node(near)).fabric();
        own.set_link(node(1), Port::XPlus, false).unwrap();
        let mut log = Log::default();
        machine.send(packet(Class::Request, node(0), node(5), Path::new(0, 0, 0), 7), &mut log);
        machine.settle(&mut log, 0);
        let [(at, port, reason, _)] = &log.discarded[..] else { panic!("{log:?}") };
        let expected = (NodeId(1), Some(Port::XPlus), DiscardReason::LinkDown);
        assert_eq!((*at, *port, *reason), expected);
    }
}

#[test]
fn lost_shard_is_a_region_of_dead_links() {
    let machine = line(3);
    machine.post.dead.lock().unwrap().push(ShardId(1));
    let mut log = Log::default();
    machine.send(packet(Class::Request, node(0), node(5), Path::new(0, 0, 0), 1), &mut log);
    machine.send(packet(Class::Request, node(0), node(1), Path::new(0, 0, 0), 2), &mut log);
    let [(at, port, reason, _)] = &log.discarded[..] else { panic!("{log:?}") };
    assert_eq!((*at, *port, *reason), (NodeId(1), Some(Port::XPlus), DiscardReason::LinkDown));
    assert_eq!(log.arrived.len(), 1);
}

#[test]
fn faults_strike_once_on_a_cable() {
    let machine = line(3);
    let twice = Rates { duplicate: Ppm::ALWAYS, ..Rates::NONE };
    let plan = FaultPlan { everywhere: twice, ..FaultPlan::default() };
    for wires in &machine.wires {
        wires.set_faults(Some(plan.clone())).unwrap();
    }
    let mut log = Log::default();
    // The link of the cable makes the duplicate.
    machine.send(packet(Class::System, node(1), node(5), Path::new(0, 0, 0), 7), &mut log);
    machine.settle(&mut log, 0);
    assert_eq!(log.arrived.len(), 2);
    let lost = Rates { loss: Ppm::ALWAYS, ..Rates::NONE };
    let plan = FaultPlan { links: vec![(node(1), Port::XPlus, lost)], ..FaultPlan::default() };
    for wires in &machine.wires {
        wires.set_faults(Some(plan.clone())).unwrap();
    }
    machine.send(packet(Class::System, node(1), node(5), Path::new(0, 0, 0), 8), &mut log);
    machine.settle(&mut log, 0);
    assert_eq!(log.arrived.len(), 2);
    let struck = machine.wires.iter().map(|wires| wires.faults().unwrap().1.lost);
    assert_eq!(struck.sum::<u64>(), 1);
}

#[test]
fn undivided_machine_takes_nothing_by_cable() {
    let wires = whole(shape([2, 1, 1, 1, 1, 1]));
    let packet = packet(Class::Request, node(0), node(1), Path::new(0, 0, 0), 7);
    let crossing = Crossing { packet, hops: 1, held: None, duplicated: false };
    let error = wires.receive(ShardId(0), crossing, &mut Log::default());
    assert_eq!(error, Err(Stray::NoShards));
}
