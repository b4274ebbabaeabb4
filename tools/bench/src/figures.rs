//! Figures with their units and sources, and how to print them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::baseline;

/// The host of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) virtualisation: String,
}

/// A latency between two threads or guests.
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) what: String,
    pub(crate) bytes: u64,
    pub(crate) min_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Returns the median and 99th percentile of some times.
pub(crate) fn quantiles(times: &mut [u64]) -> [u64; 2] {
    times.sort_unstable();
    [50, 99].map(|percent| times.get(times.len() * percent / 100).copied().unwrap_or(0))
}

/// Parses a line of a guest's table: bytes, minimum, p50 and p99 in microseconds.
pub(crate) fn latency(what: &str, line: &str) -> Option<Latency> {
    let mut words = line.split_whitespace();
    let bytes = words.next()?.parse().ok()?;
    let mut number = || words.next()?.parse().ok();
    Some(Latency {
        what: what.to_owned(),
        bytes,
        min_us: number()?,
        p50_us: number()?,
        p99_us: number()?,
    })
}

impl Latency {
    /// A round trip to a host thread that only answers.
    pub(crate) fn bare(what: &str, times: baseline::Times) -> Self {
        let [min_us, p50_us, p99_us] = times.map(|ns| ns as f64 / 1000.0);
        Self { what: format!("{what}, round trip"), bytes: 8, min_us, p50_us, p99_us }
    }

    pub(crate) fn header() -> String {
        format!("{:52} {:>8} {:>10} {:>10} {:>10}", "", "bytes", "min us", "p50 us", "p99 us")
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:52} {:>8} {:>10.2} {:>10.2} {:>10.2}",
            self.what, self.bytes, self.min_us, self.p50_us, self.p99_us
        )
    }
}
