//! Keeps a modelled network busy for a while and prints what a hop of a TLP costs.
//!
//! `cargo run --release -p tofu-fabric --example network_load -- SHAPE PATTERN MICROSECONDS
//! [THREADS]`, where PATTERN is uniform or neighbour. Under `valgrind --tool=callgrind` it says how
//! many instructions a hop takes. What it prints first is a fingerprint of all that arrived and
//! when, which no optimisation may change.

use std::time::Instant;

use tofu_abi::Coords;
use tofu_fabric::network::{Message, Network, Options, Ps, Sink};
use tofu_fabric::{DiscardReason, NodeId, Port, Shape};
use tofu_links::Parameters;

/// TNIs of a node that send.
const TNIS: u8 = 4;
const MICROSECOND: Ps = 1_000_000;

#[derive(Default)]
struct Traffic {
    random: u64,
    left: Vec<(NodeId, u8)>,
    fingerprint: u64,
}

impl Traffic {
    const fn note(&mut self, what: u64) {
        self.fingerprint = (self.fingerprint ^ what).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.fingerprint ^= self.fingerprint >> 29;
    }

    const fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (((self.random >> 32) * n as u64) >> 32) as usize
    }
}

impl Sink for Traffic {
    fn delivered(&mut self, at: Ps, node: NodeId, tni: u8, _: u64) {
        self.note(at << 24 ^ u64::from(node.0) << 4 ^ u64::from(tni));
    }

    fn left(&mut self, at: Ps, node: NodeId, tni: u8, _: u64) {
        self.note(!(at << 24 ^ u64::from(node.0) << 4 ^ u64::from(tni)));
        self.left.push((node, tni));
    }

    fn lost(&mut self, _: Ps, _: NodeId, _: Option<Port>, _: DiscardReason, _: u64) {}

    fn wants_hops(&self) -> bool {
        false
    }
}

/// Time that this thread has had of a processor, in seconds: others may be busy, too.
fn processor_time() -> f64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let time: Option<f64> = schedstat.split(' ').next().and_then(|time| time.parse().ok());
    time.unwrap_or_default() / 1e9
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let arg = |n: usize, default: &str| args.get(n).map_or(default, String::as_str).to_owned();
    let shape: Shape = arg(1, "half-rack").parse().expect("a shape");
    let uniform = arg(2, "uniform") == "uniform";
    let time: Ps = arg(3, "20").parse().expect("microseconds");
    let threads = arg(4, "1").parse().expect("a number of threads");
    let options = Options { threads, ..Options::default() };
    let mut network = Network::new(shape, &Parameters::TOFU, &options).expect("defaults");
    let nodes: Vec<Coords> = shape.iter().collect();
    let mut traffic = Traffic { random: 1, ..Traffic::default() };
    let tnis = |node| (0..TNIS).flat_map(move |tni| [(NodeId(node), tni); 4]);
    traffic.left = (0..shape.nodes()).flat_map(tnis).collect();
    let (mut hops, mut spent, mut processor) = (0, 0.0, 0.0);
    for now in 1..=10 * time {
        for (node, src_tni) in std::mem::take(&mut traffic.left) {
            let src = nodes[node.index()];
            let dst = if uniform {
                nodes[traffic.below(nodes.len())]
            } else {
                let around = Port::ALL.map(|port| shape.neighbor(src, port));
                let around: Vec<_> = around.into_iter().flatten().collect();
                around[traffic.below(around.len())]
            };
            let message = Message { src_tni, dst_tni: src_tni, ..Message::longest(src, dst) };
            network.inject(&message).expect("a message has left");
        }
        let before = network.hops();
        let (start, used) = (Instant::now(), processor_time());
        network.run_until(now * MICROSECOND / 10, &mut traffic);
        // The network fills first.
        if now > 2 * time {
            spent += start.elapsed().as_secs_f64();
            processor += processor_time() - used;
            hops += network.hops() - before;
        }
    }
    println!("fingerprint {:016x}, {} hops", traffic.fingerprint, network.hops());
    let hops = hops as f64;
    println!(
        "{:.2} million hops a second ({:.2} a second of this thread's processor), {} bytes a node",
        hops / spent / 1e6,
        hops / processor / 1e6,
        network.memory() / shape.nodes() as usize,
    );
}
