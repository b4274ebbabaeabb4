//! All nodes reduce numbers in their barrier gates, and verify the results.
//!
//! `rounds=N`: how often (10).
#![cfg_attr(feature = "bare", no_std, no_main)]

use tofu_abi::reduce::Op;
use tofu_guests::collective::Gates;
use tofu_guests::{Comm, Error, fail, now_ns, number, println};

tofu_guests::entry!(allreduce);

fn allreduce() -> Result<(), Error> {
    let rounds = number("rounds", 10)?;
    let mut comm = Comm::open(|_| 8)?;
    let mut gates = Gates::open(&mut comm)?;
    let start = now_ns();
    for round in 0..rounds {
        round_of(&comm, &mut gates, round)?;
    }
    let us = (now_ns() - start) / 1000;
    let (nodes, own) = (comm.nodes(), gates.count(&comm));
    let algorithm = gates.choice().algorithm;
    println!(
        "{nodes} nodes, {algorithm}, {own} gates here: \
         all operations verified {rounds} times, {us} us"
    );
    // Other nodes' gates may still send to gates of this node.
    comm.barrier()
}

fn same<T: PartialEq + core::fmt::Debug>(what: &str, got: T, expected: T) -> Result<(), Error> {
    if got == expected {
        return Ok(());
    }
    Err(fail!("{what}: {got:?} instead of {expected:?}"))
}

fn round_of(comm: &Comm, gates: &mut Gates, round: u64) -> Result<(), Error> {
    let (rank, nodes) = (u64::from(comm.rank()), u64::from(comm.nodes()));
    let ranks = || 0..nodes;
    let of = |rank: u64| (rank + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round;
    let all = |f: fn(u64, u64) -> u64| ranks().map(of).reduce(f).unwrap_or(0);
    gates.barrier()?;
    for (name, op, f) in [
        ("AND", Op::And, (|a, b| a & b) as fn(u64, u64) -> u64),
        ("OR", Op::Or, |a, b| a | b),
        ("XOR", Op::Xor, |a, b| a ^ b),
        ("MAX", Op::Max, u64::max),
        ("SUM", Op::Sum, u64::wrapping_add),
    ] {
        let got = gates.reduce(op, [of(rank), rank, 7])?;
        same(name, got[0], all(f))?;
    }
    if gates.have_pairs() {
        let greatest = ranks().max_by_key(|rank| of(*rank)).unwrap_or(0);
        same("MAXLOC", gates.reduce(Op::MaxLoc, [of(rank), rank])?, [of(greatest), greatest])?;
        same("MAXLOC of equals", gates.reduce(Op::MaxLoc, [5, rank])?, [5, 0])?;
    }
    // Huge numbers that cancel each other, before and after a small one, which a sum in floating
    // point would lose.
    let huge = match rank {
        0 if nodes > 2 => 1e16,
        2 => -1e16,
        _ => 0.0,
    };
    let small = if rank == 1 || nodes == 1 { 1.0 } else { 0.0 };
    let odd = (rank + round % 5) as f64 * 1e-3;
    let [sum, all, odd] = gates.sum([huge + small, 0.5, odd])?;
    same("sum with cancellation", sum, 1.0)?;
    same("sum of halves", all, nodes as f64 / 2.0)?;
    // Every node has the same result, to the last bit.
    let bits = gates.reduce(Op::Max, [odd.to_bits(), !odd.to_bits()])?;
    same("bits of the sum", bits, [odd.to_bits(), !odd.to_bits()])
}
