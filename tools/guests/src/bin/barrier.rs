//! Latency of a barrier and of a sum over all nodes, by barrier gates and by Puts.
//!
//! `rounds=N` of each (200), alternating, so that both have the same load. Node 0 prints a table:
//! `gates` is 1 for gates and 0 for Puts, `bytes` 0 for a barrier and 8 for a sum.
//!
//! With `through=SECONDS`, nodes 0 and 2 of three instead sum up numbers for that long, through
//! relay gates of node 1, whose program takes no part. Node 1 prints a count, which shows that its
//! program stops when the node is paused, while the others continue.
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::vec::Vec;

use tofu_abi::reduce::Op;
use tofu_guests::collective::{Gates, Messages, Through};
use tofu_guests::{
    Column, Comm, Error, Hundredths, Table, fail, now_ns, number, percentile, println,
};

tofu_guests::entry!(barrier);

const COLUMNS: &[Column] = &[
    ("gates", "gates", 5),
    ("bytes", "bytes", 5),
    ("min us", "min_us", 10),
    ("p50 us", "p50_us", 10),
    ("p99 us", "p99_us", 10),
];
/// Rounds in a row of the same kind.
const TURN: u64 = 50;

fn barrier() -> Result<(), Error> {
    match number("through", 0)? {
        0 => measure(),
        seconds => through(seconds),
    }
}

/// Time between two lines of a node, in nanoseconds.
const LINE_NS: u64 = 100_000_000;

fn through(seconds: u64) -> Result<(), Error> {
    let mut comm = Comm::open(|_| Messages::SIZE)?;
    let mut pair = Through::open(&mut comm)?;
    let end = now_ns().saturating_add(seconds.saturating_mul(1_000_000_000));
    let (mut sums, mut next) = (0u64, now_ns());
    loop {
        // Both nodes know which round is the last.
        let over = u64::from(now_ns() >= end);
        if comm.rank() == Through::RELAY {
            comm.pause(LINE_NS);
            if over != 0 {
                break;
            }
            println!("relays");
            continue;
        }
        let [sum, last] = pair.sum([sums, over])?;
        if sum != 2 * sums {
            return Err(fail!("the sum is {sum} instead of {}", 2 * sums));
        }
        if last != 0 {
            break;
        }
        sums += 1;
        if now_ns() >= next {
            println!("{sums} sums");
            next = now_ns() + LINE_NS;
        }
    }
    // Other nodes' gates may still send to gates of this node.
    comm.barrier()
}

fn measure() -> Result<(), Error> {
    let rounds = number("rounds", 200)?;
    if !(1..=1_000_000).contains(&rounds) {
        return Err(fail!("rounds= must be 1 to 1000000"));
    }
    let mut comm = Comm::open(|_| Messages::SIZE)?;
    let mut gates = Gates::open(&mut comm)?;
    let mut messages = Messages::new();
    let mut times: [Vec<u64>; 4] = Default::default();
    let nodes = u64::from(comm.nodes());
    let mut done = 0;
    while done < rounds {
        let turn = TURN.min(rounds - done);
        for (kind, times) in times.iter_mut().enumerate() {
            // One more round, which brings all nodes to the same place and is not counted.
            for i in 0..=turn {
                let start = now_ns();
                let number = done + i;
                let (sum, expected) = match kind {
                    0 => (messages.sum(&mut comm, 0)?, 0),
                    1 => {
                        gates.barrier()?;
                        (0, 0)
                    }
                    2 => (messages.sum(&mut comm, number)?, number * nodes),
                    _ => (gates.reduce(Op::Sum, [number])?[0], number * nodes),
                };
                if sum != expected {
                    return Err(fail!("the sum is {sum} instead of {expected}"));
                }
                if i > 0 {
                    times.push(now_ns() - start);
                }
            }
        }
        done += turn;
    }
    if comm.rank() == 0 {
        let mut table = Table::new("barrier", COLUMNS)?;
        for (kind, times) in times.iter_mut().enumerate() {
            times.sort_unstable();
            let kind = kind as u64;
            let row = [Hundredths::whole(kind % 2), Hundredths::whole(kind / 2 * 8)];
            let found = [0, 50, 99].map(|percent| percentile(times, percent));
            table.row(row.into_iter().chain(found).collect());
        }
        table.finish();
    } else {
        println!("{rounds} rounds of each");
    }
    comm.barrier()
}
