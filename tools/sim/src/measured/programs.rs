//! Programs like those that were run on the machine. They only use uTofu.
//!
//! The published texts say what was measured, but not each step of a loop. *Ours*: a program that
//! waits for data polls its last word in memory, and the time of one way is half of a round trip.

use std::collections::BTreeSet;

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
/// Places in a buffer: what is sent and received in even and odd rounds.
const OUT: [u64; 2] = [0, 0x2_0000];
const IN: [u64; 2] = [0x4_0000, 0x6_0000];
/// Instructions of an addition for a vector of 64 bytes: two loads, the addition and a store.
const ADD: u64 = 4;

/// A program, and what it is run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// Two nodes put to each other by turns.
    Put { bytes: usize, hops: u8 },
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
    /// Recursive doubling: messages with all bytes, and additions.
    Sum { bytes: usize, adds: bool },
    /// Twelve nodes put to all others, over interfaces by turns; over one, one after the other.
    ToAll { bytes: usize, tnis: usize },
    /// Each passes on to the next one what came from the one before, eleven times.
    GatherByRing { bytes: usize },
    /// Recursive doubling of what each node has.
    GatherByDoubling { bytes: usize },
    /// Each node sends vectors to the nodes that have eight of 256 experts, drawn at random, and
    /// gets as many back: the time of both ways.
    Dispatch { bytes: usize, tnis: usize },
    /// Data goes through all nodes in a row: the time of the way there and back.
    Chain { bytes: usize },
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
            Self::Put { bytes, hops } => first(&pair(hops), &|rank| exchange(rank, (bytes, 1))),
            Self::Get { hops } => first(&pair(hops), &|rank| alone(rank, 1.0, get_word)),
            Self::FetchAdd { hops } => first(&pair(hops), &|rank| alone(rank, 1.0, add_word)),
            Self::PutStream { bytes } => first(&pair(1), &|rank| stream(rank, bytes, Rank::put)),
            Self::GetStream { bytes } => first(&pair(1), &|rank| stream(rank, bytes, Rank::get)),
            Self::Ring { bytes } => first(&RING, &|rank| ring(rank, bytes, false)),
            Self::RingReduce { bytes } => Ok(11.0 * first(&RING, &|rank| ring(rank, bytes, true))?),
            Self::Sum { bytes, adds } => first(&RING, &|rank| sum(rank, bytes, adds)),
            Self::ToAll { bytes, tnis } => first(&RING, &|rank| to_all(rank, bytes, tnis)),
            Self::GatherByRing { bytes } => first(&RING, &|rank| gather_by_ring(rank, bytes)),
            Self::GatherByDoubling { bytes } => {
                first(&RING, &|rank| gather_by_doubling(rank, bytes))
            }
            Self::Dispatch { bytes, tnis } => first(&RING, &|rank| dispatch(rank, bytes, tnis)),
            Self::Chain { bytes } => first(&RING, &|rank| chain(rank, bytes)),
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
        rank.store(from + last, number);
        rank.put(Move { peer, tni: 0, from, to: slot, bytes })?;
        rank.complete(0, 0)?;
        rank.wait_for(slot + last, number)?;
        if adds {
            rank.compute(ADD * bytes.div_ceil(64) as u64)?;
        }
        Ok(())
    })
}

/// The place of what a program has sent or received, by its number, with a word behind that says in
/// which round.
fn part(bytes: usize, number: usize) -> u64 {
    number as u64 * slot_of(bytes)
}

/// Whole lines of 256 bytes.
fn slot_of(bytes: usize) -> u64 {
    (bytes as u64 + 8).next_multiple_of(256)
}

/// All programs put their part to all others.
fn to_all(rank: &mut Rank, bytes: usize, tnis: usize) -> anyhow::Result<f64> {
    let (own, ranks) = (rank.rank(), rank.ranks());
    let from = part(bytes, own);
    rounds(rank, 1.0, |rank, number| {
        rank.store(from + bytes as u64, number);
        for other in 1..ranks {
            let (peer, tni) = ((own + other) % ranks, (other - 1) % tnis);
            rank.put(Move { peer, tni, from, to: from, bytes: bytes + 8 })?;
            if tnis == 1 {
                rank.complete(tni, 0)?;
            }
        }
        for tni in 0..tnis {
            rank.complete(tni, 0)?;
        }
        for other in (0..ranks).filter(|other| *other != own) {
            rank.wait_for(part(bytes, other) + bytes as u64, number)?;
        }
        Ok(())
    })
}

/// All programs get the parts of all, from the one before.
fn gather_by_ring(rank: &mut Rank, bytes: usize) -> anyhow::Result<f64> {
    let (own, ranks) = (rank.rank(), rank.ranks());
    let peer = (own + 1) % ranks;
    rounds(rank, 1.0, |rank, number| {
        rank.store(part(bytes, own) + bytes as u64, number);
        for step in 0..ranks - 1 {
            let mine = (own + ranks - step) % ranks;
            let from = part(bytes, mine);
            rank.put(Move { peer, tni: 0, from, to: from, bytes: bytes + 8 })?;
            rank.complete(0, 0)?;
            let came = (mine + ranks - 1) % ranks;
            rank.wait_for(part(bytes, came) + bytes as u64, number)?;
        }
        Ok(())
    })
}

/// Programs in recursive doubling, which takes a power of two. Of each two of the first ones, as
/// many pairs as there are further ones, the one with the odd number takes part for both.
#[derive(Clone, Copy)]
struct Doubling {
    own: usize,
    ranks: usize,
    /// The power of two.
    places: usize,
}

impl Doubling {
    fn of(rank: &Rank) -> Self {
        let (own, ranks) = (rank.rank(), rank.ranks());
        let places = 1 << ranks.ilog2();
        Self { own, ranks, places }
    }

    const fn extra(self) -> usize {
        self.ranks - self.places
    }

    /// True if the program stands for another one as well, or is stood for.
    const fn is_paired(self) -> bool {
        self.own < 2 * self.extra()
    }

    /// The program that takes part instead of this one.
    const fn proxy(self) -> Option<usize> {
        if self.is_paired() && self.own.is_multiple_of(2) { Some(self.own + 1) } else { None }
    }

    const fn place(self) -> usize {
        if self.is_paired() { self.own / 2 } else { self.own - self.extra() }
    }

    const fn rank_at(self, place: usize) -> usize {
        if place < self.extra() { 2 * place + 1 } else { place + self.extra() }
    }

    /// The first program whose part a place has at first.
    const fn first_of(self, place: usize) -> usize {
        if place < self.extra() { 2 * place } else { place + self.extra() }
    }

    /// The other place in each step.
    fn steps(self) -> impl Iterator<Item = (usize, usize)> {
        let place = self.place();
        (0..self.places.ilog2()).map(move |step| (1 << step, place ^ 1 << step))
    }
}

/// All programs get the parts of all, twice as many in each step. The last word of a message is
/// behind its last part.
fn gather_by_doubling(rank: &mut Rank, bytes: usize) -> anyhow::Result<f64> {
    let all = Doubling::of(rank);
    let (own, place, slot) = (all.own, all.place(), slot_of(bytes));
    let behind = |end: usize| end as u64 * slot - 8;
    let send = |rank: &mut Rank, peer, parts: std::ops::Range<usize>| {
        let from = parts.start as u64 * slot;
        let bytes = parts.len() * slot as usize;
        rank.put(Move { peer, tni: 0, from, to: from, bytes })?;
        rank.complete(0, 0)
    };
    rounds(rank, 1.0, |rank, number| {
        rank.store(behind(own + 1), number);
        if let Some(proxy) = all.proxy() {
            send(rank, proxy, own..own + 1)?;
            return rank.wait_for(behind(all.ranks), number);
        }
        if all.is_paired() {
            rank.wait_for(behind(own), number)?;
        }
        for (step, other) in all.steps() {
            let [mine, theirs] = [place, other].map(|place| {
                let first = place / step * step;
                all.first_of(first)..all.first_of(first + step)
            });
            send(rank, all.rank_at(other), mine)?;
            rank.wait_for(behind(theirs.end), number)?;
        }
        if all.is_paired() {
            send(rank, own - 1, 0..all.ranks)?;
        }
        Ok(())
    })
}

/// A sum of all programs' data, which each of them gets.
fn sum(rank: &mut Rank, bytes: usize, adds: bool) -> anyhow::Result<f64> {
    let all = Doubling::of(rank);
    // A place for what comes in each step, and one for what is sent.
    let (last, out) = (bytes as u64, part(bytes, 8));
    let result = part(bytes, 7);
    let send = |rank: &mut Rank, peer, to| {
        rank.put(Move { peer, tni: 0, from: out, to, bytes: bytes + 8 })?;
        rank.complete(0, 0)
    };
    rounds(rank, 1.0, |rank, number| {
        let add = |rank: &mut Rank, from| {
            rank.wait_for(from + last, number)?;
            rank.compute(if adds { ADD * bytes.div_ceil(64) as u64 } else { 0 })
        };
        rank.store(out + last, number);
        if let Some(proxy) = all.proxy() {
            send(rank, proxy, part(bytes, 0))?;
            return rank.wait_for(result + last, number);
        }
        if all.is_paired() {
            add(rank, part(bytes, 0))?;
        }
        for (step, (_, other)) in (1..).zip(all.steps()) {
            send(rank, all.rank_at(other), part(bytes, step))?;
            add(rank, part(bytes, step))?;
        }
        if all.is_paired() {
            send(rank, all.own - 1, result)?;
        }
        Ok(())
    })
}

/// The vectors that each of so many programs sends to each, by the numbers of splitmix64 from 1 on,
/// as the program on the machine draws them.
fn drawn(ranks: usize) -> Vec<Vec<usize>> {
    const EXPERTS: usize = 256;
    let mut state: u64 = 1;
    let mut random = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) as usize % EXPERTS
    };
    let of_one = |_| {
        let mut experts = BTreeSet::new();
        while experts.len() < 8 {
            experts.insert(random());
        }
        let mut counts = vec![0; ranks];
        for expert in experts {
            counts[expert / EXPERTS.div_ceil(ranks)] += 1;
        }
        counts
    };
    (0..ranks).map(of_one).collect()
}

/// Vectors go from each program to several others, and as many back.
fn dispatch(rank: &mut Rank, bytes: usize, tnis: usize) -> anyhow::Result<f64> {
    let (own, ranks) = (rank.rank(), rank.ranks());
    let counts = drawn(ranks);
    let most = counts.iter().flatten().max().copied().unwrap_or_default();
    // What is sent, and what is received on either way, by the other program.
    let place = |kind: usize, other| part(most * bytes, kind * ranks + other);
    let exchange = |rank: &mut Rank, number, back: usize| {
        let count = |from: usize, to: usize| {
            if back == 0 { counts[from][to] } else { counts[to][from] }
        };
        let others = (1..ranks).map(|other| (own + other) % ranks);
        for (turn, peer) in others.clone().filter(|to| count(own, *to) > 0).enumerate() {
            let (from, bytes) = (place(0, peer), count(own, peer) * bytes);
            rank.store(from + bytes as u64, number);
            let to = place(1 + back, own);
            rank.put(Move { peer, tni: turn % tnis, from, to, bytes: bytes + 8 })?;
        }
        for tni in 0..tnis {
            rank.complete(tni, 0)?;
        }
        for from in others.filter(|from| count(*from, own) > 0) {
            rank.wait_for(place(1 + back, from) + (count(from, own) * bytes) as u64, number)?;
        }
        anyhow::Ok(())
    };
    let there = rounds(rank, 1.0, |rank, number| exchange(rank, number, 0))?;
    Ok(there + rounds(rank, 1.0, |rank, number| exchange(rank, number, 1))?)
}

/// The first program's data goes to the last one, and back to the first one by the same nodes.
fn chain(rank: &mut Rank, bytes: usize) -> anyhow::Result<f64> {
    let (own, end) = (rank.rank(), rank.ranks() - 1);
    let [there, back] = [0, 1].map(|number| part(bytes, number));
    let last = bytes as u64;
    let pass = |rank: &mut Rank, peer, place| {
        rank.put(Move { peer, tni: 0, from: place, to: place, bytes: bytes + 8 })?;
        rank.complete(0, 0)
    };
    rounds(rank, 1.0, |rank, number| {
        if own == 0 {
            rank.store(there + last, number);
            pass(rank, 1, there)?;
            return rank.wait_for(back + last, number);
        }
        rank.wait_for(there + last, number)?;
        if own == end {
            rank.store(back + last, number);
        } else {
            pass(rank, own + 1, there)?;
            rank.wait_for(back + last, number)?;
        }
        pass(rank, own - 1, back)
    })
}
