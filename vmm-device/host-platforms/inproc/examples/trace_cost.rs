//! The cost of a trace for a Put: Puts with and without one by turns, in one run.
//!
//! `trace_cost [BYTES [TURNS]]` prints the medians of batches, in nanoseconds a Put, and their
//! ratio. A second thread reads the trace, as `tofu trace` does. The time is the CPU time of the
//! thread that puts, so the reader and the rest of the host affect it only through the caches.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tofu_inproc::Pair;

/// Puts of a batch.
const BATCH: u32 = 5000;

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Nanoseconds that this thread has run.
fn ran() -> io::Result<u64> {
    // The kernel brings the number up to date when the thread says that it could wait.
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| io::Error::other("schedstat has no number"))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
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
        let took = std::thread::scope(|scope| -> Result<_, Box<dyn std::error::Error>> {
            if let Some(mut trace) = trace {
                let done = &done;
                scope.spawn(move || {
                    while !done.load(Relaxed) {
                        std::thread::sleep(Duration::from_millis(5));
                        trace.read(false);
                    }
                });
            }
            let start = ran()?;
            let all = (0..BATCH).try_for_each(|_| pair.run(&order));
            let took = ran()? - start;
            done.store(true, Relaxed);
            all?;
            Ok(took)
        })?;
        times[usize::from(traced)].push(took as f64 / f64::from(BATCH));
    }
    let [without, with] = times.each_mut().map(|times| median(times));
    println!("{bytes} bytes: {without:.0} ns, traced {with:.0} ns: {:.3}", with / without);
    Ok(())
}
