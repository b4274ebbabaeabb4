//! What a trace costs a Put: Puts with and without one by turns, in one run.
//!
//! `trace_cost [BYTES [TURNS]]` prints the medians of batches, in nanoseconds a Put, and their
//! ratio. The trace is read meanwhile, as `tofu trace` does.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tofu_inproc::{Pair, PairError};

/// Puts of a batch.
const BATCH: u32 = 2000;

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), PairError> {
    let mut args = std::env::args().skip(1).map(|text| text.parse().unwrap_or(8));
    let (bytes, turns) = (args.next().unwrap_or(8), args.next().unwrap_or(200));
    let mut pair = Pair::new()?;
    let order = pair.put(bytes);
    let network = pair.network();
    let mut times = [Vec::new(), Vec::new()];
    for turn in 0..2 * turns {
        let traced = turn % 2 == 1;
        let done = AtomicBool::new(false);
        let trace = traced.then(|| network.trace()).flatten();
        let took = std::thread::scope(|scope| {
            if let Some(mut trace) = trace {
                let done = &done;
                scope.spawn(move || {
                    while !done.load(Relaxed) {
                        std::thread::sleep(Duration::from_millis(5));
                        trace.read(false);
                    }
                });
            }
            let start = Instant::now();
            let ran = (0..BATCH).try_for_each(|_| pair.run(&order));
            let took = start.elapsed();
            done.store(true, Relaxed);
            ran.map(|()| took)
        })?;
        times[usize::from(traced)].push(took.as_nanos() as f64 / f64::from(BATCH));
    }
    let [without, with] = times.each_mut().map(|times| median(times));
    println!("{bytes} bytes: {without:.0} ns, traced {with:.0} ns: {:.3}", with / without);
    Ok(())
}
