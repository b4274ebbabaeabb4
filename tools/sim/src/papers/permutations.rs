//! Random permutations among all nodes, through one or several interfaces of each node.
//!
//! On eight units (384 nodes) a submesh leaves no more than 82 % of the published throughput in
//! messages of 1 KB: 1120 bytes go over a link for each, and 128 for its answer. On a ring, a frame
//! that goes `h` hops meets `h - 1` outputs at which it goes straight on. If these give such frames
//! a share of `s`, links can be busy for `s / (1 - 1/h)` of the time. So the order in which an
//! output serves its inputs, which is not published, decides. Variants that were tried, in percent
//! of what the paper expects, by the devices with messages of 1 KB (3 % by chance; all but the
//! first two rows are of a model in which answers without data did not overtake packets that wait
//! for the host bus):
//!
//! | | 192 nodes | 384 | 768 |
//! |---|---|---|---|
//! | published | 60 | 80 | 100 |
//! | the model: outputs serve inputs in turn, which starves none | 59 | 59 | 72 |
//! | frames that go straight on leave first | 50 | 57 | 114 |
//! | the oldest frame leaves first, though frames carry no age | 69 | 75 | 124 |
//! | a ring of Z for each job, ties of direction towards higher coordinates | 55 | 60 | 54 |
//! | the same, ties to either side by the source's coordinate | 71 | 81 | 64 |
//! | the same, straight first | 70 | 87 | 114 |
//! | the same, the oldest first | 72 | 111 | 125 |
//! | a ring each, either side, in turn, queues of 64 KB | | 99 | |
//! | the same, an input of a crossbar sends one frame at a time | | 82 | |
//!
//! The network carries less when more is offered than it can take: full queues block frames whose
//! outputs are idle. On 768 nodes that send as fast as they can, the busiest link moves 2.4 of 5.0
//! GB/s; if each offers 1.57 GB/s it moves 4.3. The scenario `job`, with 1000 messages of each
//! node and without devices:
//!
//! | | 192 nodes | 384 | 768 |
//! |---|---|---|---|
//! | as fast as possible | 54 | 54 | 70 |
//! | a gap, so that a node offers 3.0, 1.8 and 1.25 GB/s | 58 | 71 | 99 |
//! | the gap with which most arrives | 67 | 71 | 121 |
//! | at most 4 messages of a node in flight (`window`) | 43 | 59 | 104 |
//! | at most 8 | 57 | 65 | 122 |
//! | frames from links before those from TNIs (`transit-first`) | 52 | 57 | 71 |
//! | frames that go straight on first | 51 | 62 | 115 |
//! | the mean of each node's own throughput, not of the slowest | 58 | 56 | 72 |
//! | answers with a TLP of 64 bytes | 50 | 57 | 70 |
//! | answers with a TLP of 32 bytes | 56 | 58 | 71 |
//! | no answers | 62 | 61 | 72 |
//! | 5 % of each frame's bytes as overhead, not 96 bytes, and answers of 16 | 64 | 62 | 74 |
//! | four TNIs of a node in turn, rather than one | 63 | 58 | 70 |
//! | the date line alone | 47 | 53 | 69 |
//! | the gap for 1.8 GB/s on 384 nodes, answers with a TLP of 64 bytes | | 73 | |
//! | the gap for 1.9 GB/s, answers with a TLP of 32 bytes | | 74 | |
//! | the gap for 2.1 GB/s, 5 % as overhead, answers of 16 bytes | | 82 | |
//!
//! A gap needs no change of the model: it is a field of each command. How many messages Tofu's TNIs
//! leave unanswered is not published, and no window meets all three values. The length of Tofu's
//! answers is not published either; ours take 128 bytes of a link, as TofuD's shortest frame.
//! Overhead in proportion to data would fit Figure 6 and Table V alike, but no part of a frame
//! explains it. There is no paced row for 384 nodes, as the 2.5 GB/s that the paper expects there
//! are beyond saturation.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use anyhow::{anyhow, ensure};
use tofu_abi::TniId;
use tofu_driver::Order;
use tofu_fabric::{GAP_BYTES, Shape};
use tofu_links::Parameters;
use tofu_machine::Generation;
use tofu_netmodel::Arbiter;

use super::end::End;
use super::results::{Extent, Results};
use crate::machine::{Model, ModelConfig};
use crate::plot::{Curves, Line};
use crate::traffic::{Rails, paths, permuted};

/// Interfaces of a node.
const RAILS: usize = 4;
/// Memory of a node and of an end, in bytes.
const MEMORY: usize = 2 << 20;
const BUFFER: usize = 64 << 10;
/// Messages of each node, by size.
const MESSAGES: &[(u32, usize)] = &[(256, 100), (1 << 10, 100), (4 << 10, 40), (16 << 10, 12)];
/// The sizes at which the paper has the peak of a single rail, and those for several rails.
const PEAK: &[(u32, usize)] = MESSAGES.split_at(1).1.split_at(1).0;
const LONG: &[(u32, usize)] = MESSAGES.split_at(2).1;
/// Units on a ring of Z: one of I/O nodes, the others of compute nodes (IEEE Micro 2012).
const UNITS: u8 = 17;
/// The rate of the middle of Z in both directions together, as the paper has it.
const BISECTION_KBYTES: u64 = 480_000_000;
/// Messages of each node and size in the paper.
const PAPER: usize = 1000;
/// The first of the seeds, whose results are in the curves.
const SEED: u64 = 9;

/// A measurement.
#[derive(Clone, Copy)]
struct Run {
    /// Units on Z that send. They are adjacent, like those of a job.
    z: u8,
    rails: Rails,
    arbiter: Arbiter,
    messages: &'static [(u32, usize)],
    /// The gap field of commands.
    gap: u8,
}

impl Run {
    const fn new(z: u8, rails: Rails, messages: &'static [(u32, usize)]) -> Self {
        Self { z, rails, arbiter: Arbiter::InTurn, messages, gap: 0 }
    }

    /// A TNI that sends one message after another offers what the paper expects of its node: as
    /// long as a link takes for a message at that rate, less its frame, is the gap.
    const fn paced(z: u8) -> Self {
        let run = Self::new(z, Rails::Single, PEAK);
        let (bytes, _) = PEAK[0];
        let link = Parameters::TOFU.link_kbytes() as u64;
        let each = bytes as u64 * link * run.nodes() / (2 * BISECTION_KBYTES);
        let frame = Parameters::TOFU.wire_bytes(tofu_icc::wire_bytes(bytes) as u16) as u64;
        Self { gap: ((each - frame) / GAP_BYTES) as u8, ..run }
    }

    const fn straight(z: u8) -> Self {
        Self { arbiter: Arbiter::StraightFirst, ..Self::new(z, Rails::Single, PEAK) }
    }

    /// Returns the throughput that the paper expects of a node, in bytes per second: half of all
    /// traffic crosses the middle of Z, which carries 480 GB/s in both directions together.
    const fn expected(&self) -> f64 {
        BISECTION_KBYTES as f64 * 1e3 / (self.nodes() as f64 / 2.0)
    }

    const fn nodes(&self) -> u64 {
        self.z as u64 * 48
    }

    /// Returns whether a value of the paper depends on it; the others are only in the curves.
    const fn is_compared(&self) -> bool {
        matches!(self.arbiter, Arbiter::InTurn)
    }

    fn name(&self) -> String {
        let rails = if matches!(self.rails, Rails::Single) { "single" } else { "multi" };
        let arbiter = match self.arbiter {
            Arbiter::InTurn => "",
            Arbiter::StraightFirst => ", straight first",
            Arbiter::TransitFirst => ", transit first",
        };
        let paced = if self.gap > 0 { ", paced" } else { "" };
        format!("2x2x{}x2x3x2, {rails} rail{arbiter}{paced}", self.z)
    }
}

const RUNS: [Run; 10] = [
    Run::new(4, Rails::Single, MESSAGES),
    Run::new(4, Rails::Minimal, MESSAGES),
    Run::new(8, Rails::Single, MESSAGES),
    Run::new(8, Rails::Minimal, LONG),
    Run::new(16, Rails::Single, MESSAGES),
    Run::new(16, Rails::Minimal, LONG),
    Run::paced(16),
    Run::straight(4),
    Run::straight(8),
    Run::straight(16),
];

/// Returns the throughput of a node in random permutations, in bytes per second, by message size.
fn throughput(run: &Run, seed: u64, full: bool) -> anyhow::Result<Vec<f64>> {
    let Run { z, rails, arbiter, messages, gap } = *run;
    // X and Y of the whole machine are longer than the job, so they are meshes here.
    let machine = Shape::new([2, 2, UNITS, 2, 3, 2])?.with_torus_letters("z");
    let config =
        ModelConfig { memory: MEMORY, arbiter, ..ModelConfig::new(Generation::K, machine) };
    let model = Model::new(&config)?;
    let used = if matches!(rails, Rails::Single) { 1 } else { RAILS };
    let mut ends = Vec::new();
    for node in machine.iter().filter(|node| (1..=z).contains(&node.z)) {
        for tni in TniId::ALL.into_iter().take(used) {
            ends.push(End::new(&model, node, tni, BUFFER)?);
        }
    }
    let nodes = (ends.len() / used) as u32;
    let mut rates = Vec::new();
    for &(bytes, messages) in messages {
        let messages = if full { PAPER } else { messages };
        let start = model.now();
        let mut expected = 0;
        for message in 0..messages {
            for from in 0..nodes {
                let to = permuted(seed, message as u64, from, nodes) as usize * used;
                let from = from as usize * used;
                let parts = paths(rails, ends[from].node, ends[to].node);
                let count = parts.clone().count();
                for (part, path) in parts.enumerate() {
                    let rail = (message + part) % used;
                    let length = bytes / count as u32;
                    let (from, to) = (from + rail, &ends[to + rail]);
                    let (remote, local) = (to.stag.at(0), ends[from].stag.at(0));
                    let order = Order::put(to.target(), remote, local, length).path(path).gap(gap);
                    ends[from].cq.post(&order, 0)?;
                    expected += 1;
                }
            }
        }
        ends.iter().for_each(|end| end.cq.doorbell());
        while model.step() {}
        let mut ended = 0;
        for end in &mut ends {
            ended += end.ended()?;
        }
        ensure!(ended == expected, "{ended} of {expected} commands have ended");
        let sent = messages as f64 * f64::from(bytes);
        rates.push(sent * 1e12 / (model.last_arrival() - start) as f64);
    }
    Ok(rates)
}

/// Runs each run with each seed on its own machine, as many at a time as there are processors.
/// Returns their curves, in percent of what is expected.
fn all(extent: Extent) -> anyhow::Result<Vec<Vec<Line>>> {
    // With all messages, one takes ten minutes of a processor.
    let most = if extent.full { 1 } else { usize::MAX };
    let jobs: Vec<_> = extent
        .seeds(SEED)
        .take(most)
        .flat_map(|seed| RUNS.iter().enumerate().map(move |(i, run)| (seed, i, run)))
        .filter(|(seed, _, run)| *seed == SEED || run.is_compared())
        .collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(&(seed, i, run)) = jobs.get(next.fetch_add(1, SeqCst)) {
            let rates = throughput(run, seed, extent.full)?;
            let sizes = run.messages.iter().map(|(bytes, _)| f64::from(*bytes));
            let parts = rates.iter().map(|rate| rate / run.expected() * 100.0);
            done.push((seed, i, Line { name: run.name(), points: sizes.zip(parts).collect() }));
        }
        anyhow::Ok(done)
    };
    let workers = thread::available_parallelism().map_or(1, |n| n.get().min(jobs.len()));
    let done = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().map_err(|_| anyhow!("a run has failed"))?
        };
        threads.into_iter().map(join).collect::<anyhow::Result<Vec<Vec<_>>>>()
    })?;
    let mut done: Vec<_> = done.into_iter().flatten().collect();
    done.sort_by_key(|(seed, i, _)| (*seed, *i));
    let by_seed = done.chunk_by(|one, other| one.0 == other.0);
    Ok(by_seed.map(|runs| runs.iter().map(|(.., line)| line.clone()).collect()).collect())
}

/// Figure 9.
pub(super) fn measure(results: &mut Results, extent: Extent) -> anyhow::Result<()> {
    let mut seeds = all(extent)?;
    let most = |line: &Line| line.points.iter().map(|point| point.1).fold(0.0, f64::max);
    let at = |line: &Line| {
        let point = line.points.iter().max_by(|one, other| one.1.total_cmp(&other.1));
        point.map_or(0.0, |point| point.0 / 1024.0)
    };
    let last = |line: &Line| line.points.last().map_or(0.0, |point| point.1);
    let kept = |line: &Line| last(line) / most(line);
    let mut set = |name, of: &dyn Fn(&[Line]) -> f64| {
        results.set_of_seeds(name, seeds.iter().map(|lines| of(lines)));
    };
    for (name, line) in [("random-4", 0), ("random-8", 2), ("random-16", 4), ("random-16-paced", 6)]
    {
        set(name, &|lines| most(&lines[line]));
    }
    set("random-single-peak", &|lines| at(&lines[0]));
    set("random-multi-peak", &|lines| at(&lines[1]));
    set("random-multi-rise", &|lines| lines[1].points[2].1 / lines[1].points[1].1);
    for (name, single) in [("random-long", 0), ("random-long-8", 2), ("random-long-16", 4)] {
        set(name, &|lines| kept(&lines[single + 1]) / kept(&lines[single]));
    }
    results.curves.push(Curves {
        title: "Random permutations (Tofu, IEEE Micro, Figure 9)".to_owned(),
        y: "% of what is expected",
        x: "bytes",
        lines: seeds.swap_remove(0),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_paces_at_what_is_expected() {
        let run = Run::paced(16);
        // 1024 bytes at 1.25 GB/s, without a frame of 1120 bytes at 5 GB/s: in units of 6.4 ns.
        assert_eq!((run.gap, run.expected() as u64), (93, 1_250_000_000));
        assert_eq!(Run::paced(8).gap, 29);
    }
}
