//! The time to register and deregister memory.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::api::Registrar;
use crate::measure::Row;

/// Repeatedly registers memory of these sizes in bytes, as far as there is memory; the memory has
/// been written to before.
pub(crate) fn measure(sizes: &[usize], time: Duration) -> Result<Vec<Row>> {
    let registrar = Registrar::new()?;
    let mut rows = Vec::new();
    for &size in sizes {
        let mut memory: Vec<u8> = Vec::new();
        if memory.try_reserve_exact(size).is_err() {
            break;
        }
        memory.resize(size, 1);
        let (mut there, mut back) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
        let begun = Instant::now();
        while there.is_empty() || begun.elapsed() < time {
            let start = Instant::now();
            let stadd = match registrar.register(&mut memory) {
                // A node may have less than the largest.
                Err(error) if !rows.is_empty() && there.is_empty() => {
                    eprintln!("registration of {size} bytes: {error}");
                    return Ok(rows);
                }
                stadd => stadd?,
            };
            there.record(start.elapsed().as_nanos() as u64)?;
            let start = Instant::now();
            registrar.deregister(stadd)?;
            back.record(start.elapsed().as_nanos() as u64)?;
        }
        for (test, times) in [("register", there), ("deregister", back)] {
            rows.push(Row::new(test, size, 1, times.len()).times(&times, 1000.0));
        }
    }
    Ok(rows)
}
