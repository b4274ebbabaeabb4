//! Latency by size of messages between node 0 and another one.
//!
//! `peer=N` is the other node (the last one), `count=N` the round trips for each size (200),
//! `max=N` the largest size in bytes (65536). The other nodes only wait.
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use tofu_driver::{DmaBuffer, Order};
use tofu_guests::{Comm, Error, Latencies, now_ns};

tofu_guests::entry!(pingpong);

fn pingpong() -> Result<(), Error> {
    let mut run = Latencies::open("pingpong", 200)?;
    let (peer, max) = (run.peer, run.max);
    let mut sequence = 0;
    for size in run.sizes() {
        let mut times = Vec::with_capacity(run.count as usize);
        for _ in 0..run.count {
            sequence += 1;
            let comm = &mut run.comm;
            if comm.rank() == 0 {
                let start = now_ns();
                send(comm, peer, size, max, sequence)?;
                receive(comm, size, sequence)?;
                times.push((now_ns() - start) / 2);
            } else if comm.rank() == peer {
                receive(comm, size, sequence)?;
                send(comm, 0, size, max, sequence)?;
            }
        }
        if run.comm.rank() == 0 {
            run.report(size, times);
        }
        // No message of this size may arrive late and overwrite one of the next size.
        run.comm.finish()?;
    }
    run.finish()
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
