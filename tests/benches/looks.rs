//! The time for which a guest's Put waits for `tofu inspect`: Puts with and without a thread that
//! inspects the whole device again and again, in turn.
//!
//! On a host with other work, the longest times are those in which the scheduler had preempted the
//! thread. They occur without inspection, too.
//!
//! On a busy host the median Put of 8 bytes took 1.51 us instead of 1.48 us, and the 99th
//! percentile 2.44 us instead of 2.03 us, while a thread inspected the device all the time, 433 us
//! each.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use tofu_fabric::NodeId;
use tofu_inproc::Pair;
use tofu_inspect::{Query, look};

/// Puts per turn, and turns of each kind.
const PUTS: usize = 20_000;
const TURNS: usize = 10;

fn main() {
    let mut pair = Pair::new().expect("two nodes");
    let order = pair.put(8);
    let node = pair.network().node(NodeId(0)).expect("the node is there");
    let mut times = [Vec::new(), Vec::new()];
    let (looks, looked_ns) = (AtomicU64::new(0), AtomicU64::new(0));
    for turn in 0..2 * TURNS {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if turn % 2 == 1 {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        let query = Query { path: &[], depth: 99, limit: usize::MAX };
                        let start = Instant::now();
                        let seen = look(&*node, &query).is_ok();
                        assert!(seen, "the node can be looked at");
                        looked_ns.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
                        looks.fetch_add(1, Relaxed);
                    }
                });
            }
            for _ in 0..PUTS {
                let start = Instant::now();
                pair.run(&order).expect("a Put");
                times[turn % 2].push(start.elapsed().as_nanos() as u64);
            }
            done.store(true, Relaxed);
        });
    }
    let (looks, looked_ns) = (looks.into_inner(), looked_ns.into_inner());
    println!("{looks} looks, {:.0} us each", looked_ns as f64 / looks.max(1) as f64 / 1e3);
    println!("a Put of 8 bytes, us    median    99 %   99.9 %   longest");
    for (name, times) in ["unobserved", "observed"].iter().zip(&mut times) {
        times.sort_unstable();
        let at = |part: f64| times[(times.len() as f64 * part) as usize] as f64 / 1e3;
        let longest = times.last().copied().unwrap_or(0) as f64 / 1e3;
        println!("{name:<22}{:>8.2}{:>8.2}{:>9.2}{longest:>10.1}", at(0.5), at(0.99), at(0.999));
    }
}
