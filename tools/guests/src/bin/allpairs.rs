//! Put, atomic and Get between every two nodes, with all data verified. At the end all nodes sum up
//! a number of each by their barrier gates.
//!
//! `rounds=N`: how often (once). `pairs=N`: each node does so with only N others, which are spread
//! over all nodes.
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use tofu_abi::desc::ArmwOp;
use tofu_abi::reduce::Op;
use tofu_driver::{DmaBuffer, Order};
use tofu_guests::collective::Gates;
use tofu_guests::{Comm, Error, fail, fill_pattern, now_ns, number, println};

tofu_guests::entry!(allpairs);

/// Bytes between the places of two nodes.
const SLOT: u64 = 4096;
/// Data is not aligned within its place, and its length is odd.
const SKEW: u64 = 13;
/// More than two TLPs.
const LEN: usize = 4001;

/// Offsets in each node's memory: a counter, the data that it sends, a place for each node
/// to put to, and one for each node to get from.
#[derive(Clone, Copy)]
struct Layout {
    nodes: u64,
}

impl Layout {
    const COUNTER: u64 = 0;
    const SOURCE: u64 = SLOT;

    fn of(nodes: u32) -> Self {
        Self { nodes: nodes.into() }
    }

    fn put(self, from: u32) -> u64 {
        2 * SLOT + u64::from(from) * SLOT + SKEW
    }

    fn got(self, from: u32) -> u64 {
        (2 + self.nodes) * SLOT + u64::from(from) * SLOT + SKEW
    }

    fn size(self) -> usize {
        ((2 + 2 * self.nodes) * SLOT) as usize
    }
}

fn allpairs() -> Result<(), Error> {
    let rounds = number("rounds", 1)?;
    let pairs = number("pairs", u64::MAX)?;
    let mut comm = Comm::open(|nodes| Layout::of(nodes).size())?;
    let others = Others::of(&comm, pairs);
    comm.barrier()?;
    let start = now_ns();
    for round in 0..rounds {
        round_of(&mut comm, &others, round)?;
    }
    let us = (now_ns() - start) / 1000;
    let peers = others.to.len();
    let what = if comm.has_atomics() { "put, get and atomic" } else { "put and get" };
    println!("{peers} peers: {what} verified {rounds} times, {us} us");
    allreduce(&mut comm)
}

/// The nodes that a node puts to and gets from, and those that do so with it.
struct Others {
    to: Vec<u32>,
    from: Vec<u32>,
}

impl Others {
    /// So many of all nodes, at the same distances from each, beginning with the next one.
    fn of(comm: &Comm, pairs: u64) -> Self {
        let (me, nodes) = (u64::from(comm.rank()), u64::from(comm.nodes()));
        let all = nodes - 1;
        let pairs = pairs.min(all);
        let distance = |n: u64| 1 + n * all / pairs;
        let distances = || (0..pairs).map(distance);
        Self {
            to: distances().map(|by| ((me + by) % nodes) as u32).collect(),
            from: distances().map(|by| ((me + nodes - by) % nodes) as u32).collect(),
        }
    }
}

/// The last thing: a sum over all nodes, without the processor.
fn allreduce(comm: &mut Comm) -> Result<(), Error> {
    let (rank, nodes) = (u64::from(comm.rank()), u64::from(comm.nodes()));
    let mut gates = Gates::open(comm)?;
    let start = now_ns();
    let [sum] = gates.reduce(Op::Sum, [rank + 1])?;
    let us = (now_ns() - start) / 1000;
    if sum != nodes * (nodes + 1) / 2 {
        return Err(fail!("the allreduce of 1 to {nodes} is {sum}"));
    }
    if rank == 0 {
        let algorithm = gates.choice().algorithm;
        println!("allreduce over {nodes} nodes by {algorithm}: sum {sum}, {us} us");
    }
    // Other nodes' gates may still send to gates of this node.
    comm.barrier()
}

/// The message of node `rank` in a round.
fn data_of(rank: u32, round: u64, bytes: &mut [u8]) {
    fill_pattern(round << 32 | u64::from(rank), bytes);
}

fn round_of(comm: &mut Comm, others: &Others, round: u64) -> Result<(), Error> {
    let layout = Layout::of(comm.nodes());
    let me = comm.rank();
    let mut bytes = vec![0; LEN];
    data_of(me, round, &mut bytes);
    comm.data().write(Layout::SOURCE as usize, &bytes);
    // Every node has data to get.
    comm.barrier()?;

    let len = LEN as u32;
    let source = comm.at(Layout::SOURCE);
    let to = || others.to.iter().copied();
    let puts: Vec<_> = to()
        .flat_map(|peer| {
            let to = comm.target(peer);
            let put = Order::put(to, comm.at(layout.put(me)), source, len);
            let count = Order::armw8(to, ArmwOp::Add, comm.at(Layout::COUNTER), 1);
            [Some(put), comm.has_atomics().then_some(count)].into_iter().flatten()
        })
        .collect();
    comm.run_all(puts)?;
    let gets: Vec<_> = to()
        .map(|peer| Order::get(comm.target(peer), source, comm.at(layout.got(peer)), len))
        .collect();
    comm.run_all(gets)?;
    // All nodes' Puts and atomics have arrived.
    comm.barrier()?;

    let mut found = vec![0; LEN];
    let put = others.from.iter().map(|peer| ("put by", *peer, layout.put(*peer)));
    let got = to().map(|peer| ("got from", peer, layout.got(peer)));
    for (what, peer, offset) in put.chain(got) {
        data_of(peer, round, &mut bytes);
        comm.data().read(offset as usize, &mut found);
        if found != bytes {
            return Err(fail!("round {round}: data {what} node {peer} is wrong"));
        }
    }
    let count = comm.data().load_u64(Layout::COUNTER as usize, Ordering::Acquire);
    let counts = if comm.has_atomics() { round + 1 } else { 0 };
    let expected = counts * others.from.len() as u64;
    if count != expected {
        return Err(fail!("round {round}: {count} atomics arrived instead of {expected}"));
    }
    // No node changes anything, or leaves, while others still read.
    comm.barrier()
}
