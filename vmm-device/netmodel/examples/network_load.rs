//! Keeps a modelled network busy for a while and prints what a hop of a TLP costs.
//!
//! `cargo run --release -p tofu-netmodel --example network_load -- SHAPE PATTERN MICROSECONDS
//! [THREADS]`, where PATTERN is uniform, neighbour or stream. Under `valgrind --tool=callgrind` it
//! reports the instructions per hop. It first prints a hash of all arrivals with their times, which
//! no optimisation may change.
//!
//! A hop of half a rack has 1850 instructions with its share of messages, 773 accesses to memory,
//! of which 31 miss the first cache, and 20 mispredicted jumps of 211. Half is for nodes' queues,
//! counters, credit and timers, an eighth for messages and their routes, a tenth for notices. Where
//! all send to neighbours, a hop takes 3600 instructions. Large machines wait for memory. No gain:
//! prefetching a node's state (4 % for the K computer), huge pages (nothing), the crate as one
//! codegen unit (1 %), keeping the least of all timers (8 % more).

#[allow(unreachable_pub)]
mod load;

use std::time::Instant;

use load::{Pattern, Traffic};
use tofu_fabric::{Ps, Shape};
use tofu_links::Parameters;
use tofu_netmodel::{Network, Options};

const MICROSECOND: Ps = 1_000_000;

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
    let pattern = match arg(2, "uniform").as_str() {
        "uniform" => Pattern::Uniform,
        "stream" => Pattern::Stream,
        _ => Pattern::Neighbour,
    };
    let time: Ps = arg(3, "20").parse().expect("microseconds");
    let threads = arg(4, "1").parse().expect("a number of threads");
    let options = Options { threads, ..Options::default() };
    let mut network = Network::new(shape, &Parameters::TOFU, &options).expect("defaults");
    let mut traffic = Traffic::new(shape, pattern);
    let (mut hops, mut spent, mut processor) = (0, 0.0, 0.0);
    for now in 1..=10 * time {
        traffic.refill(&mut network);
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
    println!("fingerprint {:016x}, {} hops", traffic.fingerprint(), network.hops());
    let hops = hops as f64;
    println!(
        "{:.2} million hops a second ({:.2} a second of this thread's processor), {} bytes a node",
        hops / spent / 1e6,
        hops / processor / 1e6,
        network.memory() / shape.nodes() as usize,
    );
}
