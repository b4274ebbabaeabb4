//! Programs like those that were run on the machine. They only use uTofu.
//!
//! The published texts say what was measured, but not each step of a loop. *Ours*: a program that
//! waits for data polls its last word in memory, the time of one way is half of a round trip, and
//! data alternates between two places, so that a completion is taken a round later.

use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_fabric::Ps;
use tofu_machine::Generation;

use super::rank::{Move, Rank, Software, run};

/// Twelve nodes in one unit.
const SHAPE: [u8; 6] = [1, 1, 1, 2, 3, 2];
/// Rounds that are counted, which are all alike, and rounds before them.
const ROUNDS: u64 = 16;
const WARM_UP: u64 = 2;
/// Commands of a stream, and how many of them are in flight.
const STREAM: usize = 128;
const WINDOW: usize = 8;
/// Places in a buffer: what is sent and received in even and odd rounds, and the slots of a tree.
const OUT: [u64; 2] = [0, 0x2_0000];
const IN: [u64; 2] = [0x4_0000, 0x6_0000];
const SLOT: u64 = 0x2_0000;
/// Instructions of an addition for a vector of 64 bytes: two loads, the addition and a store.
const ADD: u64 = 4;

/// A program, and what it is run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// Two nodes put 8 bytes to each other by turns.
    Put { hops: u8 },
    /// A node gets 8 bytes.
    Get { hops: u8 },
    /// A node adds to 8 bytes of another, and gets what was there.
    FetchAdd { hops: u8 },
    /// A node puts to a neighbour, with eight Puts in flight.
    PutStream { bytes: usize },
    /// A node gets from a neighbour, with eight Gets in flight.
    GetStream { bytes: usize },
    /// Twelve nodes put to the next one, and wait for the one before, each a neighbour.
    Ring { bytes: usize },
    /// The same eleven times, with an addition of all bytes after each.
    RingReduce { bytes: usize },
    /// A tree by axes: sums along A, B and C, and back.
    TreeReduce { bytes: usize },
    /// Two neighbours put to each other by turns, with a part of the data by each interface.
    Striped { bytes: usize, tnis: usize },
}

const fn at(a: u8, b: u8, c: u8) -> Coords {
    Coords::new(0, 0, 0, a, b, c)
}

/// Nodes in a ring in which the next one is always a neighbour.
const RING: [Coords; 12] = [
    at(0, 0, 0),
    at(0, 1, 0),
    at(0, 2, 0),
    at(1, 2, 0),
    at(1, 1, 0),
    at(1, 0, 0),
    at(1, 0, 1),
    at(1, 1, 1),
    at(1, 2, 1),
    at(0, 2, 1),
    at(0, 1, 1),
    at(0, 0, 1),
];

impl Program {
    /// Runs it. Returns microseconds, or 10^9 bytes a second of a stream.
    pub(super) fn run(self, software: Software) -> anyhow::Result<f64> {
        let machine = (Generation::Fugaku, Shape::new(SHAPE)?);
        let far = |hops| at(1, u8::from(hops > 2), u8::from(hops > 1));
        let pair = |hops| [at(0, 0, 0), far(hops)];
        let first = |nodes: &[Coords], program: &(dyn Fn(&mut Rank) -> _ + Sync)| {
            let results = run(machine, nodes, software, program)?;
            anyhow::Ok(results.first().copied().unwrap_or_default())
        };
        match self {
            Self::Put { hops } => first(&pair(hops), &|rank| exchange(rank, (8, 1))),
            Self::Get { hops } => first(&pair(hops), &|rank| alone(rank, 1.0, get_word)),
            Self::FetchAdd { hops } => first(&pair(hops), &|rank| alone(rank, 1.0, add_word)),
            Self::PutStream { bytes } => first(&pair(1), &|rank| stream(rank, bytes, Rank::put)),
            Self::GetStream { bytes } => first(&pair(1), &|rank| stream(rank, bytes, Rank::get)),
            Self::Ring { bytes } => first(&RING, &|rank| ring(rank, bytes, false)),
            Self::RingReduce { bytes } => Ok(11.0 * first(&RING, &|rank| ring(rank, bytes, true))?),
            Self::TreeReduce { bytes } => first(&RING, &|rank| tree(rank, bytes)),
            Self::Striped { bytes, tnis } => first(&pair(1), &|rank| exchange(rank, (bytes, tnis))),
        }
    }
}

/// The time of each counted round in microseconds, divided by `parts`.
fn rounds(
    rank: &mut Rank,
    parts: f64,
    mut round: impl FnMut(&mut Rank, u64) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let mut start = 0;
    for number in 1..=WARM_UP + ROUNDS {
        round(rank, number)?;
        if number == WARM_UP {
            start = rank.now();
        }
    }
    Ok(micros(rank.now() - start) / ROUNDS as f64 / parts)
}

fn micros(ps: Ps) -> f64 {
    ps as f64 / 1e6
}

/// Rounds of the first program by itself; the other one only has the memory.
fn alone(
    rank: &mut Rank,
    parts: f64,
    round: impl FnMut(&mut Rank, u64) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    if rank.rank() == 0 { rounds(rank, parts, round) } else { Ok(0.0) }
}

fn get_word(rank: &mut Rank, _: u64) -> anyhow::Result<()> {
    rank.get(Move { peer: 1, tni: 0, from: IN[0], to: OUT[0], bytes: 8 })?;
    rank.complete(0, 0)
}

fn add_word(rank: &mut Rank, number: u64) -> anyhow::Result<()> {
    let before = rank.fetch_add(Move { peer: 1, tni: 0, from: OUT[0], to: IN[0], bytes: 8 })?;
    anyhow::ensure!(before + 1 == number, "the sum is {before} in round {number}");
    Ok(())
}

/// The places of a message's parts, by interface: their starts and lengths.
fn parts(bytes: usize, tnis: usize) -> impl Iterator<Item = (usize, u64, usize)> {
    let each = bytes / tnis / 8 * 8;
    (0..tnis).map(move |tni| {
        let len = if tni + 1 == tnis { bytes - each * tni } else { each };
        (tni, (each * tni) as u64, len)
    })
}

/// Two programs put to each other by turns; the time of one way.
fn exchange(rank: &mut Rank, (bytes, tnis): (usize, usize)) -> anyhow::Result<f64> {
    let peer = 1 - rank.rank();
    let send = |rank: &mut Rank, number: u64| {
        let from = OUT[number as usize % 2];
        for (tni, start, bytes) in parts(bytes, tnis) {
            rank.complete(tni, 1)?;
            rank.store(from + start + bytes as u64 - 8, number);
            rank.put(Move { peer, tni, from: from + start, to: IN[0] + start, bytes })?;
        }
        anyhow::Ok(())
    };
    let receive = |rank: &mut Rank, number| {
        for (_, start, bytes) in parts(bytes, tnis) {
            rank.wait_for(IN[0] + start + bytes as u64 - 8, number)?;
        }
        anyhow::Ok(())
    };
    let first = rank.rank() == 0;
    rounds(rank, 2.0, |rank, number| {
        if first {
            send(rank, number)?;
            receive(rank, number)
        } else {
            receive(rank, number)?;
            send(rank, number)
        }
    })
}

/// The first program's transfers one after another, some in flight; bytes in a nanosecond.
fn stream(
    rank: &mut Rank,
    bytes: usize,
    post: fn(&mut Rank, Move) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    if rank.rank() != 0 {
        return Ok(0.0);
    }
    let (mut posted, mut start) = (0, 0);
    for done in 0..STREAM {
        while posted < STREAM && posted < done + WINDOW {
            post(rank, Move { peer: 1, tni: 0, from: OUT[0], to: IN[0], bytes })?;
            posted += 1;
        }
        rank.complete(0, posted - done - 1)?;
        if done + 1 == WINDOW {
            start = rank.now();
        }
    }
    Ok((bytes * (STREAM - WINDOW)) as f64 * 1000.0 / (rank.now() - start) as f64)
}

/// All programs put to the next one at once; the time of a hop.
fn ring(rank: &mut Rank, bytes: usize, adds: bool) -> anyhow::Result<f64> {
    let peer = (rank.rank() + 1) % rank.ranks();
    let last = bytes as u64 - 8;
    rounds(rank, 1.0, |rank, number| {
        // A program is at most one round ahead of the next one, which has used what came before.
        let [from, slot] = [OUT, IN].map(|places| places[number as usize % 2]);
        rank.complete(0, 1)?;
        rank.store(from + last, number);
        rank.put(Move { peer, tni: 0, from, to: slot, bytes })?;
        rank.wait_for(slot + last, number)?;
        if adds {
            rank.compute(ADD * bytes.div_ceil(64) as u64)?;
        }
        Ok(())
    })
}

/// A sum of all programs' data at the first one, along A, B and C, which everybody then gets.
fn tree(rank: &mut Rank, bytes: usize) -> anyhow::Result<f64> {
    let last = bytes as u64 - 8;
    let own = RING[rank.rank()];
    let rank_of = |node| RING.iter().position(|known| *known == node).unwrap_or_default();
    // The parent along the first axis on which it is not 0, and the slot there.
    let (parent, level) = match (own.a, own.b, own.c) {
        (1, b, c) => (Some((at(0, b, c), 0)), 0),
        (_, b, c) if b > 0 => (Some((at(0, 0, c), u64::from(b))), 1),
        (_, _, 1) => (Some((at(0, 0, 0), 3)), 2),
        _ => (None, 3),
    };
    let mut children = Vec::new();
    if level > 0 {
        children.push((at(1, own.b, own.c), 0));
    }
    if level > 1 {
        children.extend([1, 2].map(|b| (at(0, b, own.c), u64::from(b))));
    }
    if level > 2 {
        children.push((at(0, 0, 1), 3));
    }
    /// The slot of the result.
    const DOWN: u64 = 4;
    let slot = |number| IN[0] + SLOT * number;
    rounds(rank, 1.0, |rank, number| {
        // The data sent up and down in the previous round has arrived, because it was answered.
        rank.complete(0, 0)?;
        for (_, from) in &children {
            rank.wait_for(slot(*from) + last, number)?;
            rank.compute(ADD * bytes.div_ceil(64) as u64)?;
        }
        rank.store(OUT[0] + last, number);
        if let Some((parent, to)) = parent {
            rank.put(Move { peer: rank_of(parent), tni: 0, from: OUT[0], to: slot(to), bytes })?;
            rank.wait_for(slot(DOWN) + last, number)?;
        }
        let from = if parent.is_some() { slot(DOWN) } else { OUT[0] };
        for (child, _) in children.iter().rev() {
            rank.put(Move { peer: rank_of(*child), tni: 0, from, to: slot(DOWN), bytes })?;
        }
        Ok(())
    })
}
