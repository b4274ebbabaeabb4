//! Baselines, the minimum that could do the same job: a copy in place of a Put, a word that two
//! threads poll in place of a message. They are measured in the same run as the rest, on the same
//! host.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::measure::{Row, wait};

/// Copies of a batch, and bytes of it at least: the clock must not count.
const BATCH_BYTES: usize = 1 << 16;

/// Copies between two buffers; times are those of batches, by the number of copies.
pub(crate) fn copy(size: usize, time: Duration) -> Result<Row> {
    let from = vec![1u8; size];
    let mut to = vec![2u8; size];
    let batch = (BATCH_BYTES / size).max(1) as u64;
    let mut histogram = Histogram::<u64>::new(3)?;
    let (start, mut copies) = (Instant::now(), 0);
    while copies == 0 || start.elapsed() < time {
        let began = Instant::now();
        for _ in 0..batch {
            black_box(&mut to).copy_from_slice(black_box(&from));
        }
        // Hundredths, as a short copy takes less than a nanosecond or two.
        histogram.record(began.elapsed().as_nanos() as u64 * 100 / batch)?;
        copies += batch;
    }
    let mut row = Row::new("copy", size, 0, copies).times(&histogram, 100_000.0);
    row.mb_per_s = Some(copies as f64 * size as f64 / start.elapsed().as_secs_f64() / 1e6);
    Ok(row)
}

/// The time that a word takes from the thread that writes it to another thread that polls for it:
/// half of the round trip.
pub(crate) fn word(time: Duration) -> Result<Row> {
    static WORDS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
    const END: u64 = u64::MAX;
    let [there, back] = &WORDS;
    let mut histogram = Histogram::<u64>::new(3)?;
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let mut last = 0;
            while last != END {
                last = wait("word of the other thread", || {
                    let word = there.load(Ordering::Acquire);
                    Ok((word != last).then_some(word))
                })?;
                back.store(last, Ordering::Release);
            }
            anyhow::Ok(())
        });
        let (begun, mut count) = (Instant::now(), 0u64);
        while count == 0 || begun.elapsed() < time {
            count += 1;
            let start = Instant::now();
            there.store(count, Ordering::Release);
            wait("word of the other thread", || {
                Ok((back.load(Ordering::Acquire) == count).then_some(()))
            })?;
            histogram.record(start.elapsed().as_nanos() as u64 / 2)?;
        }
        there.store(END, Ordering::Release);
        let _ = echo.join();
        Ok(Row::new("word", 8, 0, count).times(&histogram, 1000.0))
    })
}

/// The load average of the last minute, if the system reports it.
pub(crate) fn load() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}
