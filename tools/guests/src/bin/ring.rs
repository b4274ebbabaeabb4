//! A token passes through all nodes in the order of their numbers.
//!
//! `laps=N`: how often (once).
#![cfg_attr(feature = "bare", no_std, no_main)]

use core::sync::atomic::Ordering;

use tofu_driver::{DmaBuffer, Order};
use tofu_guests::{Comm, Error, fail, now_ns, number, println};

tofu_guests::entry!(ring);

fn ring() -> Result<(), Error> {
    let laps = number("laps", 1)?;
    let mut comm = Comm::open(|_| 8)?;
    let (rank, nodes) = (u64::from(comm.rank()), u64::from(comm.nodes()));
    let next = comm.target((comm.rank() + 1) % comm.nodes());
    let mut start = now_ns();
    for lap in 0..laps {
        // The token counts its hops. Node 0 has it first, and at the end of each lap again.
        let arrival = lap * nodes + rank;
        if arrival > 0 {
            comm.wait_until(|c| c.data().load_u64(0, Ordering::Acquire) >= arrival)?;
        }
        let token = (arrival + 1).to_le_bytes();
        comm.run(&Order::put_piggyback(next, comm.at(0), &token)?.remote_notice())?;
        if lap == 0 && rank == 0 {
            // The first hop may have waited for the next node to come up.
            start = now_ns();
        }
    }
    if rank != 0 {
        println!("passed the token on {laps} times");
        return Ok(());
    }
    comm.wait_until(|c| c.data().load_u64(0, Ordering::Acquire) >= laps * nodes)?;
    let hops = comm.data().load_u64(0, Ordering::Acquire);
    if hops != laps * nodes {
        return Err(fail!("the token counted {hops} hops instead of {}", laps * nodes));
    }
    let us = (now_ns() - start) / 1000;
    println!("the token came back after {hops} hops and {us} us");
    Ok(())
}
