//! Time of a Put by size, from node 0 to another node.
//!
//! `peer=N` is the other node (the last one), `count=N` the Puts for each size (1000), `max=N` the
//! largest size in bytes (65536). Times are kept for the first 262144 Puts of each size, so that
//! any `count` can be used to keep a machine busy. Only node 0 spins; the others sleep, so that two
//! processors are enough for this guest and an engine.
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::vec::Vec;
use core::hint::spin_loop;

use tofu_abi::queue::MrqId;
use tofu_driver::Order;
use tofu_guests::{Comm, Error, Latencies, fail, now_ns};

tofu_guests::entry!(puts);

/// A Put that takes longer than this is lost, in nanoseconds.
const PATIENCE_NS: u64 = 10_000_000_000;
/// Times of a size that are kept.
const KEPT: usize = 1 << 18;

fn puts() -> Result<(), Error> {
    let mut run = Latencies::open("puts", 1000)?;
    if run.comm.rank() == 0 {
        let to = run.comm.target(run.peer);
        for size in run.sizes() {
            let (remote, local) = (run.comm.at(0), run.comm.at(run.max));
            let order = Order::put(to, remote, local, size as u32);
            let mut times = Vec::new();
            for _ in 0..run.count {
                let time = timed(&mut run.comm, &order)?;
                if times.len() < KEPT {
                    times.push(time);
                }
            }
            run.report(size, times);
        }
    }
    run.finish()
}

/// Nanoseconds from the doorbell until the completion is seen.
fn timed(comm: &mut Comm, order: &Order) -> Result<u64, Error> {
    let start = now_ns();
    comm.cq().post_and_ring(order, 0)?;
    let done = loop {
        if let Some(done) = comm.cq().poll_tcq() {
            break done;
        }
        if now_ns() - start > PATIENCE_NS {
            return Err(fail!("a Put did not complete"));
        }
        spin_loop();
    };
    let time = now_ns() - start;
    // Its notice is there as well, or will come; it has the target's result.
    let notice = loop {
        match comm.cq().poll_mrq() {
            Some(notice) if notice.id().is_some_and(MrqId::ends_own_command) => break notice,
            None if now_ns() - start > PATIENCE_NS => {
                return Err(fail!("the notice of a Put did not come"));
            }
            _ => spin_loop(),
        }
    };
    for code in [done.rcode, notice.word0().rcode()] {
        if !code.is_success() {
            return Err(fail!("a Put ended with result code {code:#x}"));
        }
    }
    Ok(time)
}
