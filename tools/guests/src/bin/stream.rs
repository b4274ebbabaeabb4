//! Node 0 puts messages to another node as fast as it can: throughput by size.
//!
//! `peer=N` is the other node (the last one), `bytes=N` what to move for each size (64 MiB),
//! `max=N` the largest size in bytes (1 MiB). The other nodes only wait.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec;

use tofu_bare::{println, time};
use tofu_driver::{DmaBuffer, Order};
use tofu_guests::{Comm, Error, exit_code, fail, fill_pattern, number};

tofu_bare::entry!(main);

/// Messages for each size at most, so that small ones do not take for ever.
const MAX_COUNT: u64 = 20_000;

fn main() -> i32 {
    exit_code(stream())
}

fn stream() -> Result<(), Error> {
    let max = number("max", 1 << 20)?;
    let bytes = number("bytes", 64 << 20)?;
    if !(8..=4 << 20).contains(&max) {
        return Err(fail!("max= must be 8 to {}", 4 << 20));
    }
    let mut comm = Comm::open(|_| 2 * max as usize)?;
    let peer = number("peer", u64::from(comm.nodes()) - 1)?;
    if peer == 0 || peer >= comm.nodes().into() {
        return Err(fail!("peer={peer} is not another node"));
    }
    let peer = peer as u32;
    let mut expected = vec![0; max as usize];
    fill_pattern(7, &mut expected);
    comm.data().write(max as usize, &expected);
    comm.barrier()?;
    if comm.rank() == 0 {
        println!("{:>8} {:>8} {:>10} {:>10}", "bytes", "messages", "MB/s", "1000/s");
        let to = comm.target(peer);
        let mut size = 8;
        loop {
            let count = (bytes / size).clamp(1, MAX_COUNT);
            let order = Order::put(to, comm.at(0), comm.at(max), size as u32);
            let start = time::now_ns();
            comm.run_all((0..count).map(|_| order))?;
            let us = ((time::now_ns() - start) / 1000).max(1);
            println!("{size:>8} {count:>8} {:>10} {:>10}", count * size / us, count * 1000 / us);
            if size == max {
                break;
            }
            size = (size * 8).min(max);
        }
    }
    // The last and longest message is there when node 0 comes here.
    comm.barrier()?;
    if comm.rank() == peer {
        let mut found = vec![0; max as usize];
        comm.data().read(0, &mut found);
        if found != expected {
            return Err(fail!("the data that arrived is wrong"));
        }
    }
    comm.barrier()
}
