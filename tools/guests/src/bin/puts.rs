//! Node 0 puts to another node and looks for the completion: time by size.
//!
//! `peer=N` is the other node (the last one), `count=N` the Puts for each size (1000), `max=N`
//! the largest size in bytes (65536). Only node 0 spins; the others sleep, so that two processors
//! are enough for this guest and an engine.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;
use core::hint::spin_loop;

use tofu_bare::{println, time};
use tofu_driver::Order;
use tofu_guests::{Comm, Error, exit_code, fail, number};

tofu_bare::entry!(main);

/// The largest message.
const LIMIT: u64 = 1 << 20;
/// A Put that takes longer than this is lost, in nanoseconds.
const PATIENCE_NS: u64 = 10_000_000_000;

fn main() -> i32 {
    exit_code(puts())
}

fn puts() -> Result<(), Error> {
    let max = number("max", 64 << 10)?;
    let count = number("count", 1000)?;
    if !(8..=LIMIT).contains(&max) || count == 0 {
        return Err(fail!("max= must be 8 to {LIMIT}, count= at least 1"));
    }
    let mut comm = Comm::open(|_| 2 * max as usize)?;
    let peer = number("peer", u64::from(comm.nodes()) - 1)?;
    if peer == 0 || peer >= comm.nodes().into() {
        return Err(fail!("peer={peer} is not another node"));
    }
    comm.barrier()?;
    if comm.rank() == 0 {
        println!("{:>8} {:>10} {:>10} {:>10}", "bytes", "min us", "p50 us", "p99 us");
        let to = comm.target(peer as u32);
        let mut size = 8;
        while size <= max {
            let order = Order::put(to, comm.at(0), comm.at(max), size as u32);
            let mut times = Vec::with_capacity(count as usize);
            for _ in 0..count {
                times.push(timed(&mut comm, &order)?);
            }
            times.sort_unstable();
            let [min, p50, p99] =
                [0, count / 2, count * 99 / 100].map(|i| Micros(times[i as usize]));
            println!("{size:>8} {min:>10} {p50:>10} {p99:>10}");
            size *= 8;
        }
    }
    comm.barrier()
}

/// Nanoseconds from the doorbell until the completion is seen.
fn timed(comm: &mut Comm, order: &Order) -> Result<u64, Error> {
    let start = time::now_ns();
    comm.cq().post_and_ring(order, 0)?;
    let done = loop {
        if let Some(done) = comm.cq().poll_tcq() {
            break done;
        }
        if time::now_ns() - start > PATIENCE_NS {
            return Err(fail!("a Put did not complete"));
        }
        spin_loop();
    };
    let time = time::now_ns() - start;
    while comm.cq().poll_mrq().is_some() {}
    if !done.is_success() {
        return Err(fail!("a Put ended with result code {:#x}", done.rcode));
    }
    Ok(time)
}

/// Nanoseconds, shown as microseconds with two places.
struct Micros(u64);

impl core::fmt::Display for Micros {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let text = alloc::format!("{}.{:02}", self.0 / 1000, self.0 / 10 % 100);
        f.pad(&text)
    }
}
