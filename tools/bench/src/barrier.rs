//! Barriers and reductions: by gates against the same by Puts, from guest to guest; and the time
//! that the device's model has for configurations that papers have measured.

use std::fmt::{self, Write};
use std::sync::Arc;

use anyhow::{Context, bail};
use serde::Serialize;
use tofu_abi::barrier::BgAddress;
use tofu_abi::irq::BgsIrqs;
use tofu_abi::reduce::{Input, Op};
use tofu_abi::regs::NUM_BCH;
use tofu_abi::{BgId, Coords, TniId};
use tofu_collective::plan::{Algorithm, GateOf, GroupShape, Plan, disseminate, in_series};
use tofu_driver::{Channel, ChannelConfig, Device, Gate};
use tofu_inproc::InProcess;
use tofu_machine::{Machine, MachineConfig};
use tofu_supervisor::options::MachineArgs;
use tofu_supervisor::units::{Doorbell, GuestArgs};

use crate::machine::{PATIENCE, run_machine, up};

/// Memory of a node of a model, in bytes: notices of its channels.
const MEMORY: usize = 64 << 10;
/// How long a round of a model may take, in nanoseconds of the host's.
const ROUND_NS: u64 = 10_000_000_000;
/// Rounds of a model, of which the last one counts.
const ROUNDS: usize = 2;

/// What was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Barriers {
    /// Twelve guests.
    guests: Vec<Round>,
    /// Channels of one node, as in Table VI and Figure 8 of the TofuD paper.
    channels: Vec<Channels>,
    /// Nodes, as in Figure 10 of the paper on Tofu.
    nodes: Vec<Modelled>,
}

/// A barrier or a sum among guests.
#[derive(Debug, Serialize)]
struct Round {
    doorbells: &'static str,
    /// By barrier gates, rather than by Puts.
    gates: bool,
    /// 0 for a barrier.
    bytes: u64,
    min_us: f64,
    p50_us: f64,
    p99_us: f64,
}

/// A barrier among channels of one node.
#[derive(Debug, Serialize)]
struct Channels {
    channels: u32,
    tnis: u32,
    /// Of the TNI with the most.
    gates_per_tni: usize,
    stages: u32,
    modelled_us: f64,
    paper_gates_per_tni: usize,
    paper_stages: u32,
}

/// A barrier among nodes.
#[derive(Debug, Serialize)]
struct Modelled {
    nodes: u32,
    algorithm: String,
    gates: usize,
    stages: u32,
    modelled_us: f64,
}

/// Measures all of it, and says it as it comes.
pub(crate) fn measure(
    quick: bool,
    say: &mut dyn FnMut(&dyn fmt::Display) -> std::io::Result<()>,
) -> anyhow::Result<Barriers> {
    say(&"\nTwelve guests: a barrier and an 8-byte sum, by gates against the same by Puts")?;
    say(&Round::header())?;
    let mut guests = Vec::new();
    for doorbell in [Doorbell::Trapped, Doorbell::Polled] {
        let rounds = among_guests(doorbell, quick)?;
        for round in rounds {
            say(&round)?;
            guests.push(round);
        }
    }
    for bytes in [0, 8] {
        if let Some(ratio) = ratio(&guests, bytes) {
            let what = if bytes == 0 { "barrier" } else { "8-byte sum" };
            say(&format_args!("{what}: {ratio:.1} times as fast by gates (p50, best doorbells)"))?;
        }
    }
    say(&"\nModelled: channels of one node (TofuD paper, Table VI and Figure 8)")?;
    say(&Channels::header())?;
    let mut channels = Vec::new();
    for row in TABLE_VI {
        let row = of_one_node(row)?;
        say(&row)?;
        channels.push(row);
    }
    say(&"\nModelled: nodes (Tofu in IEEE Micro, Figure 10), by TofuD's figures")?;
    say(&Modelled::header())?;
    let mut nodes = Vec::new();
    for z in [1u8, 2, 4, 8, 16].into_iter().take(if quick { 2 } else { 5 }) {
        for row in of_nodes(z)? {
            say(&row)?;
            nodes.push(row);
        }
    }
    Ok(Barriers { guests, channels, nodes })
}

/// How much faster gates are than Puts, by their medians.
fn ratio(rounds: &[Round], bytes: u64) -> Option<f64> {
    let best = |gates| {
        let same = rounds.iter().filter(|round| round.gates == gates && round.bytes == bytes);
        same.map(|round| round.p50_us).min_by(f64::total_cmp)
    };
    Some(best(false)? / best(true)?)
}

fn among_guests(doorbell: Doorbell, quick: bool) -> anyhow::Result<Vec<Round>> {
    let rounds = if quick { 100 } else { 1000 };
    let args = MachineArgs {
        args: Some(GuestArgs(format!("rounds={rounds}"))),
        doorbell: Some(doorbell),
        ..up("unit", "barrier")?
    };
    let doorbells = doorbell.name();
    let run = run_machine(&args, PATIENCE)?;
    if !run.ok {
        bail!("barrier with {doorbells} doorbells failed");
    }
    let rounds: Vec<_> = run.lines.iter().filter_map(|line| Round::of(doorbells, line)).collect();
    if rounds.len() != 4 {
        bail!("barrier with {doorbells} doorbells has printed no table");
    }
    Ok(rounds)
}

impl Round {
    /// A line of the guest's table: 0 or 1, bytes, and times in microseconds.
    fn of(doorbells: &'static str, line: &str) -> Option<Self> {
        let words: Option<Vec<f64>> =
            line.split_whitespace().map(|word| word.parse().ok()).collect();
        match words?[..] {
            [gates, bytes, min_us, p50_us, p99_us] => {
                let (gates, bytes) = (gates == 1.0, bytes as u64);
                Some(Self { doorbells, gates, bytes, min_us, p50_us, p99_us })
            }
            _ => None,
        }
    }

    fn name(&self) -> String {
        let what = if self.bytes == 0 { "barrier" } else { "8-byte sum" };
        let how = if self.gates { "gates" } else { "Puts" };
        format!("{what} by {how}, {}", self.doorbells)
    }

    fn header() -> String {
        format!("{:36} {:>10} {:>10} {:>10}", "", "min us", "p50 us", "p99 us")
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min_us, p50_us, p99_us, .. } = self;
        write!(f, "{:36} {min_us:>10.2} {p50_us:>10.2} {p99_us:>10.2}", self.name())
    }
}

/// Start and end points, TNIs, gates of the TNI with the most, stages.
const TABLE_VI: [(u32, u32, usize, u32); 5] =
    [(1, 1, 2, 2), (4, 4, 2, 2), (8, 6, 5, 4), (16, 6, 9, 6), (48, 6, 24, 9)];

/// Devices in this process, without guests.
struct Model {
    machine: Arc<Machine>,
    devices: Vec<Device<InProcess>>,
}

impl Model {
    fn new(lengths: [u8; 6]) -> anyhow::Result<Self> {
        let shape = tofu_fabric::Shape::new(lengths).context("the shape of a model")?;
        let machine = Arc::new(Machine::new(MachineConfig::new(shape))?);
        let devices = shape
            .iter()
            .map(|coords| {
                let device = Device::probe(InProcess::attach(&machine, coords, MEMORY)?)?;
                for tni in TniId::ALL {
                    device.tni(tni).enable()?;
                }
                Ok(device)
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { machine, devices })
    }

    fn device(&self, coords: Coords) -> anyhow::Result<&Device<InProcess>> {
        let found = self.devices.iter().find(|device| device.coords() == coords);
        found.context("a node of a model")
    }

    /// What the model has for a barrier among members, each at a node and TNI, in microseconds;
    /// and the gates of the TNI with the most.
    fn run(&self, members: &[(Coords, u8)], plan: &Plan) -> anyhow::Result<(f64, usize)> {
        // The gates that each member has: a start and end gate, and relays.
        let mut used: Vec<((Coords, u8), u8, u8)> = Vec::new();
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
        let number = |at: GateOf| numbers[at.member as usize][usize::from(at.gate)];
        let address = |at: GateOf| {
            let (node, tni) = members[at.member as usize];
            BgAddress::new(node, tni, number(at))
        };
        let mut channels = Vec::new();
        for (member, (node, tni)) in (0..).zip(members) {
            let own = |gate| BgId::from_field(number(GateOf { member, gate }));
            let start = own(0).channel().context("a start and end gate")?;
            let tni = TniId::new(*tni).context("a TNI")?;
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
            let config =
                ChannelConfig { interrupts: BgsIrqs::NONE, ..ChannelConfig::new(tni, start) };
            channels.push(Channel::open(self.device(*node)?, &config, &gates)?);
        }
        let mut last = 0;
        for _ in 0..ROUNDS {
            for channel in &mut channels {
                channel.start(Op::Barrier, &Input::default(), 0)?;
            }
            last = 0;
            for (channel, (node, _)) in channels.iter_mut().zip(members) {
                channel.wait(ROUND_NS)?;
                let node = self.machine.node(*node).context("a node of a model")?;
                last = last.max(node.icc().barrier_time(channel.tni(), channel.bch()).last_ps);
            }
        }
        Ok((last as f64 / 1e6, most.unwrap_or(0)))
    }
}

fn of_one_node(row: (u32, u32, usize, u32)) -> anyhow::Result<Channels> {
    let (channels, tnis, paper_gates_per_tni, paper_stages) = row;
    let model = Model::new([1; 6])?;
    let node = Coords::default();
    let part = |member: u32| (0..tnis).rev().find(|part| part * channels / tnis <= member);
    let members: Vec<_> = (0..channels).map(|m| (node, part(m).unwrap_or(0) as u8)).collect();
    let plan = test_program(channels, tnis)?;
    let (modelled_us, gates_per_tni) = model.run(&members, &plan)?;
    let stages = plan.stages();
    Ok(Channels {
        channels,
        tnis,
        gates_per_tni,
        stages,
        modelled_us,
        paper_gates_per_tni,
        paper_stages,
    })
}

/// Links that have the gates and stages of Table VI. The paper says that trees within a TNI and
/// recursive doubling among TNIs were tested, and a channel alone with two gates in series.
fn test_program(channels: u32, tnis: u32) -> anyhow::Result<Plan> {
    if channels == 1 {
        return Ok(in_series(1));
    }
    let trees = Algorithm::Parts(tnis).plan(GroupShape::line(channels))?;
    // Which has fewer stages where trees of equal size would be deep.
    let disseminated = disseminate(channels, tnis)?;
    Ok(if disseminated.stages() < trees.stages() { disseminated } else { trees })
}

/// Place `i` of an axis of which one of X, Y, Z is folded with one of A, B, C: neighbours are one
/// hop apart.
fn folded(i: u32, length: u32) -> (u8, u8) {
    let (outer, inner) = (i / length, i % length);
    let inner = if outer % 2 == 0 { inner } else { length - 1 - inner };
    (outer as u8, inner as u8)
}

/// 2 x 2 x `z` units of twelve nodes, 4 x 6 x 2 `z` in three logical dimensions.
fn of_nodes(z: u8) -> anyhow::Result<Vec<Modelled>> {
    let model = Model::new([2, 2, z, 2, 3, 2])?;
    let axes = [4, 6, 2 * u32::from(z)];
    let nodes: u32 = axes.iter().product();
    let members: Vec<_> = (0..nodes)
        .map(|member| {
            let (x, a) = folded(member % 4, 2);
            let (y, b) = folded(member / 4 % 6, 3);
            let (z, c) = folded(member / 24, 2);
            (Coords::new(x, y, z, a, b, c), 0)
        })
        .collect();
    let algorithms = [
        Algorithm::DoubleRing3d,
        Algorithm::RecursiveDoubling,
        Algorithm::RecursiveDoubling3d,
        Algorithm::Tree,
    ];
    let run = |algorithm: Algorithm| {
        let plan = algorithm.plan(GroupShape { axes })?;
        let (modelled_us, _) = model.run(&members, &plan)?;
        let (gates, stages) = (plan.most_gates(), plan.stages());
        Ok(Modelled { nodes, algorithm: algorithm.to_string(), gates, stages, modelled_us })
    };
    algorithms.into_iter().map(run).collect()
}

impl Channels {
    fn header() -> String {
        format!(
            "{:>8} {:>5} {:>14} {:>14} {:>8} {:>14} {:>12}",
            "channels", "TNIs", "gates per TNI", "(paper)", "stages", "(paper)", "modelled us"
        )
    }
}

impl fmt::Display for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>8} {:>5} {:>14} {:>14} {:>8} {:>14} {:>12.2}",
            self.channels,
            self.tnis,
            self.gates_per_tni,
            self.paper_gates_per_tni,
            self.stages,
            self.paper_stages,
            self.modelled_us
        )
    }
}

impl Modelled {
    fn header() -> String {
        format!("{:>6} {:24} {:>6} {:>7} {:>12}", "nodes", "", "gates", "stages", "modelled us")
    }
}

impl fmt::Display for Modelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, algorithm, gates, stages, modelled_us } = self;
        write!(f, "{nodes:>6} {algorithm:24} {gates:>6} {stages:>7} {modelled_us:>12.2}")
    }
}

const WIDTH: f64 = 720.0;
const COLOURS: [&str; 4] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd"];

/// The figures as a picture: bars for guests, lines for nodes.
pub(crate) fn svg(barriers: &Barriers) -> String {
    let bars = barriers.guests.len() as f64 * 26.0 + 60.0;
    let height = bars + 320.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n<text x=\"10\" y=\"20\" font-size=\"14\">12 guests: median, and 99th \
         percentile as a line (us, logarithmic)</text>\n"
    );
    let most = barriers.guests.iter().map(|round| round.p99_us).fold(1.0, f64::max);
    let x = |us: f64| 260.0 + us.max(1.0).ln() / most.max(2.0).ln() * (WIDTH - 340.0);
    for (i, round) in barriers.guests.iter().enumerate() {
        let y = 36.0 + i as f64 * 26.0;
        let colour = COLOURS[usize::from(!round.gates)];
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"10\" y=\"{:.1}\">{}</text><rect x=\"260\" y=\"{y:.1}\" width=\"{:.1}\" \
             height=\"16\" fill=\"{colour}\"/><line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{:.1}\" \
             y2=\"{:.1}\" stroke=\"black\"/><text x=\"{:.1}\" y=\"{:.1}\">{:.1}</text>",
            y + 13.0,
            round.name(),
            x(round.p50_us) - 260.0,
            x(round.p50_us),
            x(round.p99_us),
            y + 8.0,
            y + 8.0,
            x(round.p99_us) + 4.0,
            y + 13.0,
            round.p50_us
        );
    }
    let top = bars + 20.0;
    let _ = writeln!(
        svg,
        "<text x=\"10\" y=\"{top}\" font-size=\"14\">Modelled barrier latency by nodes (us)</text>"
    );
    let most_us = barriers.nodes.iter().map(|row| row.modelled_us).fold(1.0, f64::max);
    let least = barriers.nodes.iter().map(|row| row.nodes).min().unwrap_or(1);
    let most = barriers.nodes.iter().map(|row| row.nodes).max().unwrap_or(2).max(least + 1);
    let span = f64::from(most - least);
    let point = |row: &Modelled| {
        let x = 60.0 + f64::from(row.nodes - least) / span * (WIDTH - 260.0);
        (x, top + 270.0 - row.modelled_us / most_us * 240.0)
    };
    let mut algorithms: Vec<&str> = Vec::new();
    for row in &barriers.nodes {
        if !algorithms.contains(&row.algorithm.as_str()) {
            algorithms.push(&row.algorithm);
        }
        let (x, y) = point(row);
        let label = format!("{:.1}", row.modelled_us);
        let _ =
            writeln!(svg, "<text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"9\">{label}</text>", y - 4.0);
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"9\">{}</text>",
            top + 284.0,
            row.nodes
        );
    }
    for (i, algorithm) in algorithms.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let mut points = String::new();
        for row in barriers.nodes.iter().filter(|row| row.algorithm == *algorithm) {
            let (x, y) = point(row);
            let _ = write!(points, "{x:.1},{y:.1} ");
        }
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/><text x=\"{}\" y=\"{}\" \
             fill=\"{colour}\">{algorithm}</text>",
            points.trim_end(),
            WIDTH - 180.0,
            top + 30.0 + 18.0 * i as f64
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The papers' figures for what does not depend on how gates are linked.
    #[test]
    fn modelled_times_of_one_node() {
        let rows: Vec<_> = TABLE_VI.iter().map(|row| of_one_node(*row).unwrap()).collect();
        for row in &rows {
            let (ours, papers) = (row.gates_per_tni, row.paper_gates_per_tni);
            assert_eq!((ours, row.stages), (papers, row.paper_stages), "{row:?}");
        }
        // A channel alone with a relay gate, and one on each of four TNIs: two stages of
        // recursive doubling.
        assert!((0.61..0.62).contains(&rows[0].modelled_us), "{:?}", rows[0]);
        assert!((0.61..0.75).contains(&rows[1].modelled_us), "{:?}", rows[1]);
        // Channels of one TNI one after the other: 8 times 0.29 us and more.
        assert!(rows[4].modelled_us > 8.0 * 0.29, "{:?}", rows[4]);
    }

    #[test]
    fn algorithms_compare_as_in_figure_10() {
        let by_nodes: Vec<_> = [1, 2].map(|z| of_nodes(z).unwrap()).into();
        for rows in &by_nodes {
            let [ring, one, three, _] = &rows[..] else { panic!("{rows:?}") };
            assert!(three.modelled_us < one.modelled_us, "{rows:?}");
            assert!(one.modelled_us < ring.modelled_us, "{rows:?}");
        }
        assert!(by_nodes[1][0].stages > by_nodes[0][0].stages);
        let barriers = Barriers {
            guests: vec![Round::of("polled", " 1 8 3.25 4 5.5").unwrap()],
            channels: Vec::new(),
            nodes: by_nodes.into_iter().flatten().collect(),
        };
        let svg = svg(&barriers);
        assert!(svg.contains("8-byte sum by gates, polled") && svg.contains("polyline"), "{svg}");
        assert!(Round::of("polled", "gates bytes min us p50 us p99 us").is_none());
    }

    #[test]
    fn folded_axes_have_neighbours_one_hop_apart() {
        for length in [2, 3] {
            let places: Vec<_> = (0..12).map(|i| folded(i, length)).collect();
            for pair in places.windows(2) {
                let [(a, b), (c, d)] = [pair[0], pair[1]];
                assert_eq!(a.abs_diff(c) + b.abs_diff(d), 1, "{pair:?}");
            }
        }
    }
}
