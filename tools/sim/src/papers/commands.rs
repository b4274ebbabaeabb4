//! Commands between neighbours: latency, throughput and injection rate.

use anyhow::Context;
use tofu_abi::{Coords, TniId};
use tofu_driver::Order;
use tofu_fabric::{Ps, Shape};
use tofu_machine::Generation;

use super::end::{End, PIGGYBACK};
use super::results::{Extent, Results};
use crate::machine::{Model, ModelConfig};
use crate::plot::{Curves, Line};

/// Memory of a node that sends large messages, in bytes.
const MEMORY: usize = 8 << 20;
/// Bytes of the buffer of an end.
const BUFFER: usize = 2 << 20;
/// Rounds of a ping-pong, which are all alike. The first one does not count.
const ROUNDS: u32 = 5;
/// Rounds of a ping-pong in the paper's Table 2, and messages of each size in its Figure 6.
const PAPER_ROUNDS: u32 = 1_000_000;
const PAPER_MESSAGES: u32 = 1000;

/// The part of the highest throughput from which on a curve counts as saturated: the tolerance for
/// points of curves.
const SATURATED: f64 = 0.9;

/// Builds a model with two neighbours on A.
fn pair(generation: Generation) -> anyhow::Result<(Model, [End; 2])> {
    pair_of(generation, End::new)
}

type MakeEnd = fn(&Model, Coords, TniId, usize) -> anyhow::Result<End>;

fn pair_of(generation: Generation, end: MakeEnd) -> anyhow::Result<(Model, [End; 2])> {
    let shape = Shape::new([1, 1, 1, 2, 1, 1])?;
    let model = Model::new(&ModelConfig { memory: MEMORY, ..ModelConfig::new(generation, shape) })?;
    let end = |a| end(&model, Coords::new(0, 0, 0, a, 0, 0), TniId::ALL[0], BUFFER);
    let ends = [end(0)?, end(1)?];
    Ok((model, ends))
}

/// The place to which a command is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Memory,
    Register,
}

/// Returns the mean of the times from one process to the other and back, in picoseconds.
fn one_way(
    (model, ends): &mut (Model, [End; 2]),
    (bytes, rounds): (u32, u32),
    from: From,
    change: impl Fn(Order) -> Order,
) -> anyhow::Result<Ps> {
    let mut start = model.now();
    for leg in 1..=2 * rounds {
        if leg == 3 {
            start = model.now();
        }
        let [one, other] = &mut *ends;
        let (sender, receiver) = if leg % 2 == 1 { (one, other) } else { (other, one) };
        sender.ended()?;
        let order = change(sender.put(receiver, bytes, leg, PIGGYBACK[1])?);
        match from {
            From::Memory => sender.cq.post_and_ring(&order, 0)?,
            From::Register => sender.cq.post_direct(&order, 0)?,
        }
        model.run(|| Ok(receiver.has(bytes, leg).then_some(())))?;
    }
    Ok((model.now() - start) / Ps::from(2 * (rounds - 1)))
}

/// Sends consecutive messages from one end, or from both at the same time. Returns the bytes per
/// second of one direction.
pub(super) fn ping(
    generation: Generation,
    bytes: u32,
    both: bool,
    extent: Extent,
) -> anyhow::Result<f64> {
    let (model, mut ends) = pair(generation)?;
    let paper = PAPER_MESSAGES as usize;
    let count = if extent.full { paper } else { (MEMORY / bytes as usize).clamp(8, 256) };
    let senders = if both { 2 } else { 1 };
    for sender in 0..senders {
        let order = ends[sender].put(&ends[1 - sender], bytes, 1, PIGGYBACK[0])?;
        for _ in 0..count {
            ends[sender].cq.post(&order, 0)?;
        }
        ends[sender].cq.doorbell();
    }
    let (mut ended, mut first) = ([0; 2], [None; 2]);
    let last = model.run(|| {
        for (i, end) in ends.iter_mut().enumerate().take(senders) {
            ended[i] += end.ended()?;
            if ended[i] > 0 && first[i].is_none() {
                first[i] = Some((model.now(), ended[i]));
            }
        }
        Ok((ended[0] == count).then(|| model.now()))
    })?;
    let (first, before) = first[0].context("the first message")?;
    Ok(((count - before) as f64 * f64::from(bytes)) * 1e12 / (last - first) as f64)
}

/// Bytes of the Puts of Table V (*ours*).
pub(super) const LARGE: u32 = 1 << 20;

/// Sends from all interfaces of a node at the same time, each to another neighbour. Returns the
/// bytes per second.
pub(super) fn injection(generation: Generation) -> anyhow::Result<f64> {
    const BYTES: u32 = 2 << 20;
    const COUNT: usize = 2;
    let shape = Shape::new([3, 3, 3, 1, 1, 1])?;
    let config = ModelConfig { memory: 2 * MEMORY, ..ModelConfig::new(generation, shape) };
    let model = Model::new(&config)?;
    let places = [(1, 0, 0), (2, 0, 0), (0, 1, 0), (0, 2, 0), (0, 0, 1), (0, 0, 2)];
    let mut senders = Vec::new();
    let mut targets = Vec::new();
    for (tni, (x, y, z)) in generation.description().tni_ids().zip(places) {
        senders.push(End::new(&model, Coords::default(), tni, BUFFER)?);
        targets.push(End::new(&model, Coords::new(x, y, z, 0, 0, 0), tni, BUFFER)?);
    }
    let start = model.now();
    for (sender, target) in senders.iter_mut().zip(&targets) {
        let order = sender.put(target, BYTES, 1, 0)?;
        for _ in 0..COUNT {
            sender.cq.post(&order, 0)?;
        }
        sender.cq.doorbell();
    }
    let mut ended = 0;
    let all = COUNT * senders.len();
    model.run(|| {
        for sender in &mut senders {
            ended += sender.ended()?;
        }
        Ok((ended == all).then_some(()))
    })?;
    Ok(all as f64 * f64::from(BYTES) * 1e12 / (model.now() - start) as f64)
}

pub(super) fn measure(results: &mut Results, extent: Extent) -> anyhow::Result<()> {
    let latency = |generation: Generation, end: MakeEnd, bytes, from, injected| {
        let mut pair = pair_of(generation, end)?;
        let change = |order: Order| if injected { order.cache_injection() } else { order };
        // Table 2 is about 4 bytes.
        let rounds = if extent.full && bytes == 4 { PAPER_ROUNDS } else { ROUNDS };
        let ps = one_way(&mut pair, (bytes, rounds), from, change)?;
        Ok::<_, anyhow::Error>(ps as f64 / 1e6)
    };
    let [tofu, tofu2, tofud] = [Generation::K, Generation::Fx100, Generation::Fugaku];
    let near: MakeEnd = End::new;
    let rows = [
        ("tofu-fetched", tofu, near, 8, From::Memory, false),
        ("tofu-direct", tofu, near, 8, From::Register, false),
        ("tofu2-memory", tofu2, near, 8, From::Register, false),
        ("tofu2-injected", tofu2, near, 8, From::Register, true),
        ("tofud-far", tofud, End::far, 8, From::Register, true),
        ("tofud-near", tofud, near, 8, From::Register, true),
        ("pingpong-fetched", tofu, near, 4, From::Memory, false),
        ("pingpong-direct", tofu, near, 4, From::Register, false),
    ];
    for (name, generation, end, bytes, from, injected) in rows {
        results.set(name, latency(generation, end, bytes, from, injected)?);
    }
    let rates = [
        ("injection-k", tofu),
        ("injection-fx10", Generation::Fx10),
        ("injection-tofu2", tofu2),
        ("injection-tofud", tofud),
    ];
    for (name, generation) in rates {
        results.set(name, injection(generation)? / 1e9);
    }
    let puts = [("put-tofu", tofu), ("put-tofu2", tofu2), ("put-tofud", tofud)];
    for (name, generation) in puts {
        results.set(name, ping(generation, LARGE, false, extent)? / 1e9);
    }
    figure_6(results, extent)
}

/// Measures throughput by size: ping, ping-ping and ping-pong.
fn figure_6(results: &mut Results, extent: Extent) -> anyhow::Result<()> {
    let mut lines = ["ping", "ping-ping", "ping-pong"]
        .map(|name| Line { name: name.to_owned(), points: Vec::new() });
    for power in 3..=20 {
        let bytes = 1u32 << power;
        let rounds = if extent.full { PAPER_MESSAGES } else { ROUNDS };
        let ps = {
            let mut pair = pair(Generation::K)?;
            one_way(&mut pair, (bytes, rounds), From::Memory, |order| order)?
        };
        let one = ping(Generation::K, bytes, false, extent)?;
        let both = ping(Generation::K, bytes, true, extent)?;
        let rates = [one, both, f64::from(bytes) * 1e12 / ps as f64];
        for (line, rate) in lines.iter_mut().zip(rates) {
            line.points.push((bytes.into(), rate / 1e9));
        }
    }
    let [ping, ping_ping, ping_pong] = &lines;
    let at = |line: &Line, bytes: f64| {
        let point = line.points.iter().find(|point| point.0 == bytes);
        point.map(|point| point.1).context("a size of figure 6")
    };
    results.set("ping-512", at(ping, 512.0)?);
    results.set("ping-2048", at(ping, 2048.0)?);
    results.set("ping-ping", at(ping_ping, 65536.0)?);
    results.set("ping-ping-512", at(ping_ping, 512.0)? / at(ping, 512.0)?);
    let peak = ping.points.iter().map(|point| point.1).fold(0.0, f64::max);
    results.set("ping-pong-half", crossing(ping_pong, peak / 2.0).context("half of it")? / 1024.0);
    let full = crossing(ping_pong, peak * SATURATED).context("nearly all of it")?;
    results.set("ping-pong-saturated", full / 1024.0);
    // Twice the size gives twice the throughput as long as the time goes into commands.
    results.set("ping-256", at(ping, 256.0)? / at(ping, 128.0)?);
    results.curves.push(Curves {
        title: "Throughput of one interface (Tofu, IEEE Micro, Figure 6)".to_owned(),
        y: "GB/s",
        x: "bytes",
        lines: lines.into(),
    });
    Ok(())
}

/// Returns where a line first reaches `y`, interpolated between two of its points.
fn crossing(line: &Line, y: f64) -> Option<f64> {
    let pair = line.points.windows(2).find(|pair| pair[0].1 < y && pair[1].1 >= y)?;
    let [from, to] = [pair[0], pair[1]];
    Some(from.0 + (to.0 - from.0) * (y - from.1) / (to.1 - from.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_abi::Rcode;
    use tofu_driver::Target;
    use tofu_icc::CommandTiming;

    /// Returns the time until `count` copies of a command are answered.
    fn time(order: impl Fn(&[End; 2]) -> Order, count: usize) -> Ps {
        let (model, mut ends) = pair(Generation::Fugaku).unwrap();
        let (order, start) = (order(&ends), model.now());
        for _ in 0..count {
            ends[0].cq.post(&order, 0).unwrap();
        }
        ends[0].cq.doorbell();
        let mut notices = 0;
        model
            .run(|| {
                while ends[0].cq.poll_mrq().is_some() {
                    notices += 1;
                }
                ends[0].ended()?;
                Ok((notices == count).then_some(()))
            })
            .unwrap();
        model.now() - start
    }

    #[test]
    fn gap_idles_the_link_between_frames() {
        let put =
            |gap| move |ends: &[End; 2]| ends[0].put(&ends[1], 1 << 20, 1, 0).unwrap().gap(gap);
        let (full, half) = (time(put(0), 1), time(put(64), 1));
        // 64 units of 32 bytes are about as long as a frame of 2064 bytes.
        let ratio = half as f64 / full as f64;
        assert!((1.95..2.05).contains(&ratio), "{full} {half}");
    }

    #[test]
    fn answers_of_gets_take_their_time() {
        let get = |bytes| {
            move |ends: &[End; 2]| {
                let (from, to) = (ends[1].stag.at(0), ends[0].stag.at(0));
                Order::get(ends[1].target(), from, to, bytes)
            }
        };
        let (one, four) = (time(get(1 << 20), 1), time(get(1 << 20), 4));
        let rate = 3.0 * f64::from(1 << 20) * 1e3 / (four - one) as f64;
        assert!((6.2..6.5).contains(&rate), "{rate} GB/s, as Puts have");
        let short = time(get(8), 1);
        let put = time(|ends| ends[0].put(&ends[1], 8, 1, 8).unwrap(), 1);
        // The data is read at the target, and delivered to the node that issued the command. The
        // answer to a Put is not: the target delivers meanwhile.
        let CommandTiming { memory_ps, deliver_ps, .. } = CommandTiming::TOFUD;
        assert_eq!(short, put + memory_ps + deliver_ps);
    }

    #[test]
    fn put_to_nowhere_ends() {
        let (model, mut ends) = pair(Generation::Fugaku).unwrap();
        let nowhere = Target::new(Coords::new(5, 0, 0, 0, 0, 0), ends[1].cq.tni());
        let order = Order::put(nowhere, ends[1].stag.at(0), ends[0].stag.at(0), 1 << 16);
        ends[0].cq.post_and_ring(&order, 0).unwrap();
        let notice = model.run(|| Ok(ends[0].cq.poll_mrq())).unwrap();
        assert_eq!(notice.word0().rcode(), Rcode::NO_SUCH_NODE);
        // It leaves nothing behind.
        let put = ends[0].put(&ends[1], 8, 7, 0).unwrap();
        ends[0].cq.post_and_ring(&put, 0).unwrap();
        model.run(|| Ok(ends[1].has(8, 7).then_some(()))).unwrap();
        while model.step() {}
        assert!(model.run(|| Ok(None::<()>)).is_err(), "nothing is in flight");
    }
}
