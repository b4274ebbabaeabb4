//! The modelled network under load: the time of a TLP's hop, beside a queue that a number is pushed
//! to and popped from.

#[allow(unreachable_pub)]
#[path = "../../vmm-device/netmodel/examples/load/mod.rs"]
mod load;

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use load::{Pattern, Traffic};
use tofu_fabric::{Ps, Shape};
use tofu_links::Parameters;
use tofu_netmodel::{Network, Options};

const MICROSECOND: Ps = 1_000_000;

fn busy(shape: Shape, pattern: Pattern) -> (Network, Traffic) {
    let options = Options::default();
    let mut network = Network::new(shape, &Parameters::TOFU, &options).expect("defaults");
    let mut traffic = Traffic::new(shape, pattern);
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
            if let Some((network, traffic)) = running {
                black_box(traffic.fingerprint());
                let each = network.memory() / shape.nodes() as usize;
                println!("{name}: {each} bytes a node");
            }
        }
    }
    group.finish();
}

criterion_group!(benches, hops);
criterion_main!(benches);
