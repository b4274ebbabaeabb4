//! The Tofu barrier: devices without guests, whose gates keep modelled time.

use anyhow::Context;
use tofu_abi::barrier::BgAddress;
use tofu_abi::irq::BgsIrqs;
use tofu_abi::reduce::{Input, Op};
use tofu_abi::regs::NUM_BCH;
use tofu_abi::{BgId, Coords, TniId};
use tofu_collective::plan::{Algorithm, GateOf, GroupShape, Plan, disseminate, in_series};
use tofu_driver::{Channel, ChannelConfig, Gate};
use tofu_fabric::Shape;
use tofu_machine::Generation;

use super::results::Results;
use crate::machine::{Model, ModelConfig};
use crate::plot::{Curves, Line};

/// Memory of a node of a model in bytes, for the notices of its channels.
const MEMORY: usize = 64 << 10;
/// The time limit for a round of a model, in nanoseconds of host time.
const ROUND_NS: u64 = 10_000_000_000;
/// Rounds of a model. Only the last one counts.
const ROUNDS: usize = 2;

/// Start and end points and TNIs of Table VI, with the names of the values for gates and stages.
const TABLE_VI: [(u32, u32, &str, &str); 5] = [
    (1, 1, "gates-1", "stages-1"),
    (4, 4, "gates-4", "stages-4"),
    (8, 6, "gates-8", "stages-8"),
    (16, 6, "gates-16", "stages-16"),
    (48, 6, "gates-48", "stages-48"),
];

/// The modelled cost of a barrier.
struct Modelled {
    us: f64,
    /// Gates of the TNI that needs the most.
    gates: usize,
    stages: u32,
}

pub(super) fn measure(results: &mut Results) -> anyhow::Result<()> {
    let alone = series(1)?;
    let relay = series(2)? - alone;
    results.set("relay", relay);
    results.set("channel", alone - relay);
    let mut channels = Line { name: "modelled".to_owned(), points: Vec::new() };
    for (points, tnis, gates, stages) in TABLE_VI {
        let row = of_one_node(points, tnis)?;
        results.set(gates, row.gates as f64);
        results.set(stages, row.stages.into());
        channels.points.push((points.into(), row.us));
        if points == 48 {
            results.set("serial-48", row.us);
        }
    }
    results.curves.push(Curves {
        title: "Barrier within a node (TofuD, Figure 8)".to_owned(),
        y: "us",
        x: "start/end points",
        lines: vec![channels],
    });
    let mut lines = FIGURE_10.map(|a| Line { name: a.to_string(), points: Vec::new() });
    for z in [1u8, 2, 4, 8, 16] {
        for (line, us) in lines.iter_mut().zip(of_nodes(z)?) {
            line.points.push((48.0 * f64::from(z), us));
        }
    }
    let us = |line: &Line, i: usize| line.points[i].1;
    let [ring, doubling, three] = &lines;
    let steps = (us(ring, 4) - us(ring, 3)) / (us(ring, 3) - us(ring, 2));
    results.set("ring-linear", steps);
    results.set("ring-doubling-96", us(ring, 1) / us(doubling, 1));
    results.set("ring-doubling", us(ring, 4) / us(doubling, 4));
    results.set("doubling-3d", us(doubling, 4) / us(three, 4));
    results.curves.push(Curves {
        title: "Barrier among nodes (Tofu, IEEE Micro, Figure 10)".to_owned(),
        y: "us",
        x: "nodes",
        lines: lines.into(),
    });
    Ok(())
}

/// Builds a model of devices without guests.
fn devices(generation: Generation, lengths: [u8; 6]) -> anyhow::Result<Model> {
    let shape = Shape::new(lengths).context("the shape of a model")?;
    Model::new(&ModelConfig { memory: MEMORY, ..ModelConfig::new(generation, shape) })
}

/// Runs a barrier among members, each at a node and TNI. Returns its modelled time in microseconds,
/// and the gates of the TNI that needs the most.
fn run(model: &Model, members: &[(Coords, TniId)], plan: &Plan) -> anyhow::Result<(f64, usize)> {
    // For each place, its start and end gates and its relay gates, counted.
    let mut used: Vec<((Coords, TniId), u8, u8)> = Vec::new();
    let mut numbers: Vec<Vec<u8>> = Vec::new();
    for (member, place) in members.iter().enumerate() {
        let at = used.iter().position(|(known, ..)| known == place).unwrap_or_else(|| {
            used.push((*place, 0, 0));
            used.len() - 1
        });
        let (_, starts, relays) = &mut used[at];
        let more = plan.gates(member).len() as u8 - 1;
        let first = NUM_BCH as u8 + *relays;
        numbers.push([*starts].into_iter().chain(first..first + more).collect());
        *starts += 1;
        *relays += more;
    }
    let most = used.iter().map(|(_, starts, relays)| usize::from(starts + relays)).max();
    let number = |at: GateOf| BgId::from_field(numbers[at.member as usize][usize::from(at.gate)]);
    let address = |at: GateOf| {
        let (node, tni) = members[at.member as usize];
        BgAddress::new(node, tni, number(at))
    };
    let mut channels = Vec::new();
    for (member, &(node, tni)) in (0..).zip(members) {
        let own = |gate| number(GateOf { member, gate });
        let start = own(0).channel().context("a start and end gate")?;
        let links = plan.gates(member as usize);
        let gates: Vec<_> = (0..)
            .zip(links)
            .map(|(gate, links)| Gate {
                src_local: links.src_local.map(own),
                src_remote: links.src_remote.map(address),
                dst_local: links.dst_local.map(own),
                dst_remote: links.dst_remote.map(address),
                ..Gate::new(tni, own(gate))
            })
            .collect();
        let config = ChannelConfig { interrupts: BgsIrqs::NONE, ..ChannelConfig::new(tni, start) };
        channels.push(Channel::open(model.device(node)?, &config, &gates)?);
    }
    let mut last = 0;
    for _ in 0..ROUNDS {
        model.begin_epoch();
        for channel in &mut channels {
            channel.start(Op::Barrier, &Input::default(), 0)?;
        }
        last = 0;
        for (channel, (node, _)) in channels.iter_mut().zip(members) {
            channel.wait(ROUND_NS)?;
            let time = model.icc(*node)?.barrier_time(channel.tni(), channel.bch());
            last = last.max(time.last_ps);
        }
    }
    Ok((last as f64 / 1e6, most.unwrap_or(0)))
}

/// Runs a barrier among channels of one node, as in Table VI and Figure 8.
fn of_one_node(channels: u32, tnis: u32) -> anyhow::Result<Modelled> {
    let model = devices(Generation::Fugaku, [1; 6])?;
    let node = Coords::default();
    let part = |member: u32| (0..tnis).rev().find(|part| part * channels / tnis <= member);
    let place = |member| Ok((node, TniId::new(part(member).unwrap_or(0) as u8).context("a TNI")?));
    let members = (0..channels).map(place).collect::<anyhow::Result<Vec<_>>>()?;
    let plan = test_program(channels, tnis)?;
    let (us, gates) = run(&model, &members, &plan)?;
    Ok(Modelled { us, gates, stages: plan.stages() })
}

/// Returns the time of `relays` relay gates in series behind a channel.
fn series(relays: u8) -> anyhow::Result<f64> {
    let model = devices(Generation::Fugaku, [1; 6])?;
    Ok(run(&model, &[(Coords::default(), TniId::ALL[0])], &in_series(relays))?.0)
}

/// Returns links with the gates and stages of Table VI. According to the paper, the tests used
/// trees within a TNI and recursive doubling among TNIs, and two gates in series for a single
/// channel.
fn test_program(channels: u32, tnis: u32) -> anyhow::Result<Plan> {
    if channels == 1 {
        return Ok(in_series(1));
    }
    let trees = Algorithm::Parts(tnis).plan(GroupShape::line(channels))?;
    // Dissemination has fewer stages where trees of equal size would be deep.
    let disseminated = disseminate(channels, tnis)?;
    Ok(if disseminated.stages() < trees.stages() { disseminated } else { trees })
}

/// Returns place `i` of an axis that folds one of X, Y, Z with one of A, B, C, so that neighbours
/// are one hop apart.
fn folded(i: u32, length: u32) -> (u8, u8) {
    let (outer, inner) = (i / length, i % length);
    let inner = if outer % 2 == 0 { inner } else { length - 1 - inner };
    (outer as u8, inner as u8)
}

/// Runs barriers on 2 x 2 x `z` units of twelve nodes (4 x 6 x 2 `z` in three logical dimensions)
/// with each algorithm of Figure 10.
fn of_nodes(z: u8) -> anyhow::Result<[f64; 3]> {
    let model = devices(Generation::K, [2, 2, z, 2, 3, 2])?;
    let axes = [4, 6, 2 * u32::from(z)];
    let nodes: u32 = axes.iter().product();
    let members: Vec<_> = (0..nodes)
        .map(|member| {
            let (x, a) = folded(member % 4, 2);
            let (y, b) = folded(member / 4 % 6, 3);
            let (z, c) = folded(member / 24, 2);
            (Coords::new(x, y, z, a, b, c), TniId::ALL[0])
        })
        .collect();
    let mut us = [0.0; 3];
    for (us, algorithm) in us.iter_mut().zip(FIGURE_10) {
        (*us, _) = run(&model, &members, &algorithm.plan(GroupShape { axes })?)?;
    }
    Ok(us)
}

/// The algorithms of Figure 10, slowest first.
const FIGURE_10: [Algorithm; 3] =
    [Algorithm::DoubleRing3d, Algorithm::RecursiveDoubling, Algorithm::RecursiveDoubling3d];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folded_axes_have_adjacent_neighbours() {
        for length in [2, 3] {
            let places: Vec<_> = (0..12).map(|i| folded(i, length)).collect();
            for pair in places.windows(2) {
                let [(a, b), (c, d)] = [pair[0], pair[1]];
                assert_eq!(a.abs_diff(c) + b.abs_diff(d), 1, "{pair:?}");
            }
        }
    }
}
