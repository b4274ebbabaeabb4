//! The throughput of a node's crossbar over its X, Y and Z links under full load, by scheduler.

use tofu_abi::topology::Axis;
use tofu_abi::{Coords, Path, TniId};
use tofu_fabric::{Class, DiscardReason, Hop, NodeId, OnLink, Port, Ps, Scheduler, Shape, Way};
use tofu_links::Parameters;
use tofu_machine::Generation;
use tofu_netmodel::{Message, Network, Options, Sink};

use super::results::{Extent, Results};
use crate::plot::{Curves, Line};
use crate::traffic::draw;

/// The most hops of a packet.
const MOST_HOPS: u64 = 4;
/// Cycles of an interval in which throughput is measured.
const CYCLES: u64 = 128;
/// Intervals that are measured, and those before them in which the network fills.
const INTERVALS: usize = 256;
const FILLING: usize = 64;
/// Bins of the histogram: one for each GB/s, up to the total of the six links.
const BINS: usize = 31;
/// The unit of TLP sizes, which are 3 to 62 of these, in bytes.
const TLP_UNIT: u16 = 32;
/// The first of the seeds, whose results are in the curves.
const SEED: u64 = 1;

/// A, B and C of the nodes that are measured, and of those that packets come from, over a link
/// each.
const MEASURED: [u8; 3] = [0, 0, 0];
const AROUND: [[u8; 3]; 4] = [[1, 0, 0], [0, 1, 0], [0, 2, 0], [0, 0, 1]];

/// The time for which the X, Y and Z links were busy in each interval, node by node.
struct Busy {
    interval: Ps,
    links: &'static Parameters,
    shape: Shape,
    busy: Vec<Ps>,
    /// Nodes whose interface has room.
    room: Vec<NodeId>,
}

impl Sink for Busy {
    fn delivered(&mut self, _: Ps, _: NodeId, _: TniId, _: u64) {}

    fn left(&mut self, _: Ps, node: NodeId, _: TniId, _: u64) {
        self.room.push(node);
    }

    fn lost(&mut self, _: Ps, _: NodeId, _: Option<Port>, _: DiscardReason, _: u64) {}

    fn hop(&mut self, at: Ps, hop: &Hop, _: Class, bytes: u32, _: u64, _: Option<OnLink>) {
        if !Axis::XYZ.contains(&hop.port.axis()) {
            return;
        }
        let nodes = self.shape.nodes() as usize;
        let (mut at, end) = (at, at + self.links.wire_ps(bytes as u16));
        while at < end {
            let interval = at / self.interval;
            let until = end.min((interval + 1) * self.interval);
            if let Some(busy) = self.busy.get_mut(interval as usize * nodes + hop.from.index()) {
                *busy += until - at;
            }
            at = until;
        }
    }
}

/// Returns the share of intervals in each bin of throughput.
fn histogram(scheduler: Scheduler, seed: u64) -> anyhow::Result<[f64; BINS]> {
    let links = Parameters::of(Generation::K);
    // Rings are longer than the longest route, so no packet goes around one.
    let shape = Shape::new([5, 5, 5, 2, 3, 2])?;
    let options = Options { scheduler, ..Options::default() };
    let mut network = Network::new(shape, links, &options)?;
    let interval = CYCLES * links.cycle_ps();
    let of = |places: &[[u8; 3]]| {
        let nodes = shape.iter().filter(|at| places.contains(&[at.a, at.b, at.c]));
        nodes.filter_map(|at| shape.node_id(at)).collect::<Vec<_>>()
    };
    let nodes = shape.nodes() as usize;
    let mut busy = Busy {
        interval,
        links,
        shape,
        busy: vec![0; (FILLING + INTERVALS) * nodes],
        room: of(&AROUND),
    };
    let end = interval * (FILLING + INTERVALS) as u64;
    let mut sent = 0;
    loop {
        for node in std::mem::take(&mut busy.room) {
            let src = shape.coords(node).unwrap_or_default();
            while network.room(node, TniId::ALL[0]) > 0 {
                network.inject(&message(seed, src, sent))?;
                sent += 1;
            }
        }
        match network.next_event() {
            Some(next) if next <= end => network.run_until(next, &mut busy),
            _ => break,
        }
    }
    let measured = of(&[MEASURED]);
    let mut bins = [0.0; BINS];
    let count = (INTERVALS * measured.len()) as f64;
    for busy in busy.busy.chunks(nodes).skip(FILLING) {
        for node in &measured {
            let rate = busy[node.index()] as f64 / interval as f64 * f64::from(links.link_kbytes());
            bins[((rate / 1e6) as usize).min(BINS - 1)] += 1.0 / count;
        }
    }
    Ok(bins)
}

/// Makes a packet that goes one to four hops, each along any axis, from and to the nodes that are
/// measured: it enters over the link from its source, and leaves over one of four links or to one
/// of four interfaces.
fn message(seed: u64, src: Coords, n: u64) -> Message {
    let hops = 1 + draw(seed, 0, n) % MOST_HOPS;
    let signs = draw(seed, 1, n);
    let mut distances = [0i8; 3];
    for hop in 0..hops {
        let axis = (draw(seed, 2 + hop, n) % 3) as usize;
        distances[axis] += if signs >> axis & 1 == 0 { 1 } else { -1 };
    }
    let tlp = TLP_UNIT * (3 + draw(seed, 8, n) % 60) as u16;
    let out = (draw(seed, 7, n) % 8) as usize;
    let [a, b, c] = *AROUND.get(out).unwrap_or(&MEASURED);
    let [path_a, path_b, path_c] = MEASURED;
    Message {
        src,
        src_tni: TniId::ALL[0],
        dst: Coords { a, b, c, ..src },
        dst_tni: TniId::ALL[out % 4],
        path: Path::new(path_a, path_b, path_c),
        way: Way::Distances(distances),
        class: Class::Request,
        tlps: 1,
        full: tlp,
        last: tlp,
        gap: 0,
        bus: 0,
        ready_at: 0,
        token: n,
    }
}

/// Returns the middle of the fullest range of 3 GB/s.
///
/// Near the peak, bins of 1 GB/s are almost equally full, so the fullest one is a matter of chance.
/// Three neighbouring ones together show the peak.
fn peak(bins: &[f64; BINS]) -> f64 {
    let fullness = |n: usize| bins[n..n + 3].iter().sum::<f64>();
    let most = (0..BINS - 2).max_by(|one, other| fullness(*one).total_cmp(&fullness(*other)));
    most.unwrap_or(0) as f64 + 1.5
}

pub(super) fn measure(results: &mut Results, extent: Extent) -> anyhow::Result<()> {
    let seeds: Vec<_> = extent
        .seeds(SEED)
        .map(|seed| {
            Ok([histogram(Scheduler::DateLine, seed)?, histogram(Scheduler::LookAhead, seed)?])
        })
        .collect::<anyhow::Result<_>>()?;
    let height = |bins: &[f64; BINS]| bins.iter().copied().fold(0.0, f64::max);
    let above = |bins: &[f64; BINS]| bins[25..].iter().sum::<f64>();
    let mut set = |name, of: &dyn Fn(&[[f64; BINS]; 2]) -> f64| {
        results.set_of_seeds(name, seeds.iter().map(of));
    };
    set("switching-date-line", &|bins| peak(&bins[0]));
    set("switching-look-ahead", &|bins| peak(&bins[1]) / peak(&bins[0]));
    set("switching-height", &|bins| height(&bins[0]) / height(&bins[1]));
    set("switching-above", &|bins| above(&bins[1]) / above(&bins[0]));
    let lines = ["date line", "look-ahead"].into_iter().zip(&seeds[0]).map(|(name, bins)| Line {
        name: name.to_owned(),
        points: (1..).map(f64::from).zip(bins.iter().map(|share| share * 100.0)).collect(),
    });
    results.curves.push(Curves {
        title: "Switching throughput in intervals of 128 cycles (Figure 8)".to_owned(),
        y: "% of intervals",
        x: "up to GB/s",
        lines: lines.collect(),
    });
    Ok(())
}
