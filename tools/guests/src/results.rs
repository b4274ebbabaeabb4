//! Results of measurements: a table for people, or a line of JSON.

use alloc::vec::Vec;
use core::fmt;

use crate::{Comm, Error, fail, number, option, print, println};

/// A column: its name in the table, its name in JSON, and its width.
pub type Column = (&'static str, &'static str, usize);

/// Rows of numbers, printed as they come; with `json=1` kept and printed in one line at the end:
/// `{"program":"puts","rows":[{"bytes":8,...},...]}`.
pub struct Table {
    program: &'static str,
    columns: &'static [Column],
    rows: Option<Vec<Vec<Hundredths>>>,
}

impl Table {
    /// A table without rows. Its head is printed unless JSON is wanted.
    ///
    /// # Errors
    ///
    /// If `json=` is neither 0 nor 1.
    pub fn new(program: &'static str, columns: &'static [Column]) -> Result<Self, Error> {
        let json = match option("json") {
            None | Some("0") => false,
            Some("1" | "") => true,
            Some(other) => return Err(fail!("json={other} is neither 0 nor 1")),
        };
        if !json {
            for (i, (head, _, width)) in columns.iter().enumerate() {
                print!("{}{head:>width$}", if i > 0 { " " } else { "" });
            }
            println!();
        }
        Ok(Self { program, columns, rows: json.then(Vec::new) })
    }

    /// Adds a row: a number for each column.
    pub fn row(&mut self, numbers: Vec<Hundredths>) {
        if let Some(rows) = &mut self.rows {
            rows.push(numbers);
            return;
        }
        for (i, (number, (_, _, width))) in numbers.iter().zip(self.columns).enumerate() {
            print!("{}{number:>width$}", if i > 0 { " " } else { "" });
        }
        println!();
    }

    /// Prints the line of JSON, if one is wanted.
    pub fn finish(self) {
        let Some(rows) = self.rows else { return };
        print!("{{\"program\":\"{}\",\"rows\":[", self.program);
        for (i, row) in rows.iter().enumerate() {
            print!("{}{{", if i > 0 { "," } else { "" });
            for (i, (number, (_, name, _))) in row.iter().zip(self.columns).enumerate() {
                print!("{}\"{name}\":{number}", if i > 0 { "," } else { "" });
            }
            print!("}}");
        }
        println!("]}}");
    }
}

/// A number with at most two decimal places.
#[derive(Clone, Copy)]
pub struct Hundredths {
    value: u64,
    whole: bool,
}

impl Hundredths {
    /// A number without decimal places.
    pub const fn whole(value: u64) -> Self {
        Self { value, whole: true }
    }

    /// Nanoseconds as microseconds.
    pub const fn micros(ns: u64) -> Self {
        Self { value: ns / 10, whole: false }
    }

    /// Bytes in a time, as MiB/s.
    pub fn mib_per_s(bytes: u64, ns: u64) -> Self {
        let per_s = u128::from(bytes) * 100_000_000_000 / u128::from(ns.max(1));
        Self { value: (per_s >> 20) as u64, whole: false }
    }

    /// A count in a time, as thousands per second.
    pub fn thousands_per_s(count: u64, ns: u64) -> Self {
        let per_s = u128::from(count) * 100_000_000 / u128::from(ns.max(1));
        Self { value: per_s as u64, whole: false }
    }
}

impl fmt::Display for Hundredths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.whole {
            return self.value.fmt(f);
        }
        f.pad(&alloc::format!("{}.{:02}", self.value / 100, self.value % 100))
    }
}

/// Columns of a table of latencies by size, whose rows are those of [`latency_row`].
pub const LATENCY_COLUMNS: &[Column] = &[
    ("bytes", "bytes", 8),
    ("min us", "min_us", 10),
    ("p50 us", "p50_us", 10),
    ("p99 us", "p99_us", 10),
];

/// A row with a size, and the shortest, the median and the 99th percentile of some times in
/// nanoseconds, which it sorts.
pub fn latency_row(size: u64, times: &mut [u64]) -> Vec<Hundredths> {
    times.sort_unstable();
    [Hundredths::whole(size)].into_iter().chain([0, 50, 99].map(|p| percentile(times, p))).collect()
}

/// The time below which this percentage of `times` (sorted, in nanoseconds) lies.
pub fn percentile(times: &[u64], percent: usize) -> Hundredths {
    Hundredths::micros(times.get(times.len() * percent / 100).copied().unwrap_or_default())
}

/// A measurement of latency between node 0 and another one, as the command line wants it:
/// `peer=N` (the last node), `count=N` for each size, `max=N` bytes at most (65536).
pub struct Latencies {
    /// This node's queue.
    pub comm: Comm,
    /// The other node.
    pub peer: u32,
    /// Measurements for each size.
    pub count: u64,
    /// Largest size in bytes. Each node has twice as much memory.
    pub max: u64,
    table: Option<Table>,
}

impl Latencies {
    /// Reads the command line, opens the queue and waits for the other nodes. Node 0 prints the
    /// head of the table.
    ///
    /// # Errors
    ///
    /// If the command line makes no sense, or as [`Comm::open`] and [`Comm::barrier`].
    pub fn open(program: &'static str, count: u64) -> Result<Self, Error> {
        const LIMIT: u64 = 1 << 20;
        let max = number("max", 64 << 10)?;
        let count = number("count", count)?;
        if !(8..=LIMIT).contains(&max) || count == 0 {
            return Err(fail!("max= must be 8 to {LIMIT}, count= at least 1"));
        }
        let mut comm = Comm::open(|_| 2 * max as usize)?;
        let peer = number("peer", u64::from(comm.nodes()) - 1)?;
        if peer == 0 || peer >= comm.nodes().into() {
            return Err(fail!("peer={peer} is not another node"));
        }
        comm.barrier()?;
        let table = (comm.rank() == 0).then(|| Table::new(program, LATENCY_COLUMNS)).transpose()?;
        Ok(Self { comm, peer: peer as u32, count, max, table })
    }

    /// The sizes: 8 bytes, and eight times as much each time.
    pub fn sizes(&self) -> impl Iterator<Item = u64> + use<> {
        let max = self.max;
        core::iter::successors(Some(8), |size| Some(size * 8)).take_while(move |size| *size <= max)
    }

    /// Node 0: prints a row of the table from times in nanoseconds.
    pub fn report(&mut self, size: u64, mut times: Vec<u64>) {
        if let Some(table) = &mut self.table {
            table.row(latency_row(size, &mut times));
        }
    }

    /// Waits for the other nodes and ends the table.
    ///
    /// # Errors
    ///
    /// As [`Comm::barrier`].
    pub fn finish(mut self) -> Result<(), Error> {
        self.comm.barrier()?;
        if let Some(table) = self.table {
            table.finish();
        }
        Ok(())
    }
}
