//! The modelled network under load: the time of a TLP's hop, beside a queue that a number is pushed
//! to and popped from.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tofu_abi::Coords;
use tofu_fabric::chance::{below, mix};
use tofu_fabric::network::{Message, Network, Options, Ps, Sink};
use tofu_fabric::{DiscardReason, NodeId, Port, Shape};
use tofu_links::Parameters;

/// TNIs of a node that send.
const TNIS: u8 = 4;
const MICROSECOND: Ps = 1_000_000;

/// Who sends to whom.
#[derive(Clone, Copy)]
enum Pattern {
    /// Everyone to anyone.
    Uniform,
    /// Everyone to those next to it.
    Neighbour,
}

/// Keeps TNIs busy: a TNI that has sent a message is given another.
struct Traffic {
    pattern: Pattern,
    nodes: Vec<Coords>,
    shape: Shape,
    random: u64,
    left: Vec<(NodeId, u8)>,
    delivered: u64,
}

impl Sink for Traffic {
    fn delivered(&mut self, _: Ps, _: NodeId, _: u8, _: u64) {
        self.delivered += 1;
    }

    fn left(&mut self, _: Ps, node: NodeId, tni: u8, _: u64) {
        self.left.push((node, tni));
    }

    fn lost(&mut self, _: Ps, _: NodeId, _: Option<Port>, _: DiscardReason, _: u64) {}

    fn wants_hops(&self) -> bool {
        false
    }
}

impl Traffic {
    fn below(&mut self, n: usize) -> usize {
        self.random = mix(self.random);
        below(self.random, n as u64) as usize
    }

    fn target(&mut self, from: Coords) -> Coords {
        match self.pattern {
            Pattern::Uniform => {
                let n = self.below(self.nodes.len());
                self.nodes[n]
            }
            Pattern::Neighbour => loop {
                let port = Port::ALL[self.below(Port::COUNT)];
                if let Some(to) = self.shape.neighbor(from, port) {
                    return to;
                }
            },
        }
    }

    fn refill(&mut self, network: &mut Network) {
        for (node, src_tni) in std::mem::take(&mut self.left) {
            let src = self.nodes[node.index()];
            let dst = self.target(src);
            let message = Message { src_tni, dst_tni: src_tni, ..Message::longest(src, dst) };
            network.inject(&message).expect("a message has left");
        }
    }
}

fn busy(shape: Shape, pattern: Pattern) -> (Network, Traffic) {
    let options = Options::default();
    let mut network = Network::new(shape, &Parameters::TOFU, &options).expect("defaults");
    let nodes: Vec<Coords> = shape.iter().collect();
    let left = (0..shape.nodes())
        .flat_map(|node| (0..TNIS).flat_map(move |tni| [(NodeId(node), tni); 4]))
        .collect();
    let mut traffic = Traffic { pattern, nodes, shape, random: 1, left, delivered: 0 };
    for now in 1..=20 {
        traffic.refill(&mut network);
        network.run_until(now * MICROSECOND, &mut traffic);
    }
    (network, traffic)
}

fn hops(c: &mut Criterion) {
    let mut group = c.benchmark_group("network");
    group.measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_millis(500));
    group.sample_size(10);
    let mut queue = VecDeque::from([0u64; 1024]);
    group.bench_function("queue", |b| {
        b.iter(|| {
            let first = queue.pop_front();
            queue.push_back(black_box(first).unwrap_or_default() + 1);
        });
    });
    for (name, len) in [
        ("unit", [1, 1, 1, 2, 3, 2]),
        ("half-rack", [2, 2, 4, 2, 3, 2]),
        ("6144 nodes", [8, 8, 8, 2, 3, 2]),
        ("K computer", [24, 18, 16, 2, 3, 2]),
    ] {
        let shape = Shape::new(len).expect("lengths are within limits");
        for (how, pattern) in [("uniform", Pattern::Uniform), ("neighbour", Pattern::Neighbour)] {
            let mut running = None;
            group.bench_function(BenchmarkId::new(how, name), |b| {
                let (network, traffic) = running.get_or_insert_with(|| busy(shape, pattern));
                b.iter_custom(|hops| {
                    let (before, start) = (network.hops(), Instant::now());
                    while network.hops() - before < hops {
                        traffic.refill(network);
                        let now = network.now();
                        network.run_until(now + MICROSECOND / 10, traffic);
                    }
                    start.elapsed().mul_f64(hops as f64 / (network.hops() - before) as f64)
                });
            });
            if let Some((network, _)) = running {
                let each = network.memory() / shape.nodes() as usize;
                println!("{name}: {each} bytes a node");
            }
        }
    }
    group.finish();
}

criterion_group!(benches, hops);
criterion_main!(benches);
