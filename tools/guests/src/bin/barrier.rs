//! How long a barrier, and the sum of a number of each node, take: in barrier gates, and by Puts.
//!
//! `rounds=N` of each (1000), by turns, so that both see the same load. Node 0 prints a table:
//! `gates` is 1 for gates and 0 for Puts, `bytes` 0 for a barrier and 8 for a sum.
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::vec::Vec;

use tofu_abi::reduce::Op;
use tofu_guests::collective::{Gates, Messages};
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
    let rounds = number("rounds", 1000)?;
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
            // One more, which finds all nodes at the same place and is not counted.
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
