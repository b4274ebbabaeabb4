//! Node 0 and another one send each other messages: latency by size.
//!
//! `peer=N` is the other node (the last one), `count=N` the round trips for each size (200),
//! `max=N` the largest size in bytes (65536). The other nodes only wait.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use tofu_bare::{println, time};
use tofu_driver::{DmaBuffer, Order};
use tofu_guests::{Comm, Error, exit_code, fail, number};

tofu_bare::entry!(main);

/// Where messages arrive and where they are sent from, with as much room as `max` each.
const LIMIT: u64 = 1 << 20;

fn main() -> i32 {
    exit_code(pingpong())
}

fn pingpong() -> Result<(), Error> {
    let max = number("max", 64 << 10)?;
    let count = number("count", 200)?;
    if !(8..=LIMIT).contains(&max) || count == 0 {
        return Err(fail!("max= must be 8 to {LIMIT}, count= at least 1"));
    }
    let mut comm = Comm::open(|_| 2 * max as usize)?;
    let peer = number("peer", u64::from(comm.nodes()) - 1)?;
    if peer == 0 || peer >= comm.nodes().into() {
        return Err(fail!("peer={peer} is not another node"));
    }
    let peer = peer as u32;
    comm.barrier()?;
    if comm.rank() == 0 {
        println!("{:>8} {:>10} {:>10} {:>10}", "bytes", "min us", "p50 us", "p99 us");
    }
    let mut sequence = 0;
    let mut size = 8;
    while size <= max {
        if comm.rank() == 0 {
            let mut times = Vec::with_capacity(count as usize);
            for _ in 0..count {
                sequence += 1;
                let start = time::now_ns();
                send(&mut comm, peer, size, max, sequence)?;
                receive(&mut comm, size, sequence)?;
                times.push((time::now_ns() - start) / 2);
            }
            times.sort_unstable();
            let [min, p50, p99] =
                [0, count / 2, count * 99 / 100].map(|i| Micros(times[i as usize]));
            println!("{size:>8} {min:>10} {p50:>10} {p99:>10}");
        } else if comm.rank() == peer {
            for _ in 0..count {
                sequence += 1;
                receive(&mut comm, size, sequence)?;
                send(&mut comm, 0, size, max, sequence)?;
            }
        }
        // None of this size may come late and overwrite one of the next.
        comm.finish()?;
        size *= 8;
    }
    comm.barrier()
}

/// Puts a message that ends with its sequence number.
fn send(comm: &mut Comm, to: u32, size: u64, max: u64, sequence: u64) -> Result<(), Error> {
    let tail = size - 8;
    let to = comm.target(to);
    let order = if size == 8 {
        Order::put_piggyback(to, comm.at(0), &sequence.to_le_bytes())?
    } else {
        comm.data().store_u64((max + tail) as usize, sequence, Ordering::Release);
        Order::put(to, comm.at(0), comm.at(max), size as u32).strong_order()
    };
    comm.start(&order.remote_notice())
}

/// Waits for a message with that sequence number.
fn receive(comm: &mut Comm, size: u64, sequence: u64) -> Result<(), Error> {
    let tail = (size - 8) as usize;
    comm.wait_until(|c| c.data().load_u64(tail, Ordering::Acquire) == sequence)
}

/// Nanoseconds, shown as microseconds with two places.
struct Micros(u64);

impl core::fmt::Display for Micros {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let text = alloc::format!("{}.{:02}", self.0 / 1000, self.0 / 10 % 100);
        f.pad(&text)
    }
}
