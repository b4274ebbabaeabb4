//! Scenario files: a network, and traffic on it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use tofu_abi::Coords;
use tofu_abi::frame::TLP_MAX;
use tofu_abi::topology::{Axis, NodeId, Port, Shape};
use tofu_fabric::{Link, LinkErrors, Ps, Scheduler};
use tofu_links::{ErrorRate, Parameters};
use tofu_machine::{Generation, Interconnect};
use tofu_netmodel::{Arbiter, Network, Options};
use tofu_ui::{FileError, TomlFile};
use toml::Spanned;

use crate::plot::{Curves, Line};
use crate::traffic::{
    ANSWER_BYTES, Arrivals, Limits, Load, MOST_WALKED, Outcome, Pattern, Rails, Spread, Traffic,
};

/// The shipped scenarios: name and text.
pub(crate) const SHIPPED: [(&str, &str); 11] = [
    ("torus", include_str!("../scenarios/torus.toml")),
    ("uniform", include_str!("../scenarios/uniform.toml")),
    ("permutation", include_str!("../scenarios/permutation.toml")),
    ("rails", include_str!("../scenarios/rails.toml")),
    ("job", include_str!("../scenarios/job.toml")),
    ("neighbour", include_str!("../scenarios/neighbour.toml")),
    ("transpose", include_str!("../scenarios/transpose.toml")),
    ("hotspot", include_str!("../scenarios/hotspot.toml")),
    ("errors", include_str!("../scenarios/errors.toml")),
    ("k", include_str!("../scenarios/k.toml")),
    ("tnw", include_str!("../scenarios/tnw.toml")),
];

/// Returns the text of a shipped scenario, or of one in a file.
pub(crate) fn text_of(what: &str) -> anyhow::Result<Cow<'static, str>> {
    if let Some((_, text)) = SHIPPED.iter().find(|(name, _)| *name == what) {
        return Ok(Cow::Borrowed(text));
    }
    let names = SHIPPED.map(|(name, _)| name);
    let meant = tofu_ui::did_you_mean(what, names.into_iter().chain(["papers"]));
    if !Path::new(what).exists() {
        let names = names.join(", ");
        return Err(anyhow!("{what}: no such file, and not one of papers, {names}{meant}"));
    }
    let text = tofu_input::read_text(Path::new(what), tofu_input::DESCRIPTION)
        .with_context(|| format!("cannot read {what}"))?;
    Ok(Cow::Owned(text))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    shape: Spanned<String>,
    torus: Option<Spanned<String>>,
    generation: Option<Spanned<String>>,
    scheduler: Option<Spanned<String>>,
    arbiter: Option<Spanned<String>>,
    seed: Option<u64>,
    queue_bytes: Option<Spanned<u32>>,
    replay_bytes: Option<Spanned<u32>>,
    pattern: Spanned<String>,
    hot: Option<Spanned<Vec<i64>>>,
    hot_percent: Option<Spanned<i64>>,
    pairs: Option<Spanned<Vec<[Vec<i64>; 2]>>>,
    size: Spanned<OneOrMore<i64>>,
    count: Option<Spanned<i64>>,
    rate: Option<Spanned<OneOrMore<f64>>>,
    load: Option<Spanned<OneOrMore<f64>>>,
    arrivals: Option<Spanned<String>>,
    warm_up: Option<Spanned<String>>,
    time: Option<Spanned<String>>,
    rails: Option<Spanned<String>>,
    tnis: Option<Spanned<i64>>,
    answers: Option<bool>,
    answer_bytes: Option<Spanned<i64>>,
    senders: Option<Spanned<String>>,
    seeds: Option<Spanned<i64>>,
    gap: Option<Spanned<String>>,
    window: Option<Spanned<i64>>,
    #[serde(default)]
    down: Vec<RawLink>,
    #[serde(default)]
    errors: Vec<Spanned<RawErrors>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    at: Spanned<Vec<i64>>,
    port: Spanned<String>,
}

/// Errors of a link in both directions, or of all links if none is named.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawErrors {
    at: Option<Spanned<Vec<i64>>>,
    port: Option<Spanned<String>>,
    lane: Option<Spanned<i64>>,
    ber: Option<Spanned<f64>>,
    dead: Option<bool>,
    dllp_loss: Option<Spanned<f64>>,
}

/// A value, or a list of values to be run one after another.
#[derive(Clone, Deserialize)]
#[serde(untagged, expecting = "one value, or a list of values, of the right type")]
pub(crate) enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T> OneOrMore<T> {
    pub(crate) const fn all(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::More(more) => more.as_slice(),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for OneOrMore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(one) => one.fmt(f),
            Self::More(more) => more.fmt(f),
        }
    }
}

const SHAPE: &str = "\"unit\", \"shelf\", \"half-rack\", \"rack\", \"k-racks\", \"k\" or six \
                     lengths such as \"2x2x4x2x3x2\" (X, Y, Z 1 to 32; A, C 1 to 2; B 1 to 3)";
const COORDS: &str = "[x, y, z, a, b, c] of a node of this shape";
const RANGES: &str = "ranges of coordinates such as \"z=1-16, a=0\"";
const TIME: &str = "more than 0 and at most 1000 s, such as \"50us\" (ns, us or ms)";
const MAX_TIME: Ps = 1_000_000_000_000_000;

/// Returns a value that another setting requires.
fn needed<T>(file: &TomlFile<'_>, field: &str, why: &str, value: Option<T>) -> anyhow::Result<T> {
    let path = file.path.display();
    value.ok_or_else(|| anyhow!("{path}: {field} is missing, which {why} needs"))
}

/// Returns the node with these coordinates.
fn node(shape: &Shape, coords: &[i64]) -> Option<(NodeId, Coords)> {
    let coords = <[i64; 6]>::try_from(coords).ok()?;
    let mut all = [0; 6];
    for (place, coordinate) in all.iter_mut().zip(coords) {
        *place = u8::try_from(coordinate).ok()?;
    }
    let coords = Coords::from_array(all);
    Some((shape.node_id(coords)?, coords))
}

/// Returns a number if it is within limits, or else the limits as text.
pub(crate) fn within(number: i64, limits: RangeInclusive<u64>) -> Result<u64, String> {
    let number = u64::try_from(number).ok().filter(|number| limits.contains(number));
    number.ok_or_else(|| format!("{} to {}", limits.start(), limits.end()))
}

fn time(text: &str) -> Option<Ps> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let unit = match unit {
        "ns" => 1_000,
        "us" => 1_000_000,
        "ms" => 1_000_000_000,
        _ => return None,
    };
    let time = number.trim().parse::<u64>().ok()?.checked_mul(unit)?;
    (1..=MAX_TIME).contains(&time).then_some(time)
}

/// Returns the ranges of coordinates, by axis, that an expression such as `z=1-16, a=0` names.
fn ranges(text: &str) -> Option<Vec<(Axis, RangeInclusive<u8>)>> {
    let range = |part: &str| {
        let (axis, range) = part.split_once('=')?;
        let axis = Axis::ALL
            .into_iter()
            .find(|known| known.to_string().eq_ignore_ascii_case(axis.trim()))?;
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((axis, first.trim().parse().ok()?..=last.trim().parse().ok()?))
    };
    text.split(',').map(range).collect()
}

/// The greatest allowed load, relative to the rate at which a link is full.
const MOST_LOAD: f64 = 4.0;
/// While the network is not saturated, at least this share of the offered load arrives.
const UNSATURATED: f64 = 0.95;

/// The amount of traffic, before the size of messages is known.
enum Offered {
    Load(Load),
    /// A fraction of the rate at which a link is full.
    Part {
        part: f64,
        warm_up: Ps,
        time: Ps,
    },
}

/// One point of a scenario, and its result.
#[derive(Debug, Serialize)]
struct Row {
    size: u64,
    /// Bytes that a link carries while it carries a message.
    link_bytes: u64,
    /// The offered payload of each node, unless nodes send as much as they can.
    offered_gbytes_per_s: Option<f64>,
    /// The payload of each node of uniform traffic at which a link is full, given the routes.
    bound_gbytes_per_s: Option<f64>,
    /// The mean number of links on a message's route, and the mean time of a message that never
    /// waits, if they are known.
    mean_hops: Option<f64>,
    unloaded_us: Option<f64>,
    /// With the first seed.
    #[serde(flatten)]
    outcome: Outcome,
    /// The payload of each node with each of several seeds, in GB/s.
    seeds: Option<Spread>,
}

/// The network, with the parameters that other simulators need.
#[derive(Clone, Debug, Serialize)]
struct Described {
    nodes: u32,
    link_gbytes_per_s: f64,
    /// From when a frame's header leaves one node until it may leave the next.
    hop_ns: f64,
    cycle_ns: f64,
    /// The unit of credit.
    row_bytes: u8,
    /// Receive queues of a port for requests. There are as many for answers.
    request_channels: u8,
    queue_bytes: u32,
    replay_bytes: u32,
    scheduler: &'static str,
    arbiter: &'static str,
    /// The most messages that a TNI holds.
    backlog: u32,
}

impl Described {
    fn new(traffic: &Traffic) -> Self {
        let Traffic { shape, links, options, .. } = traffic;
        let row = u32::from(links.row);
        let rows = |bytes: Option<u32>, all: u32| bytes.unwrap_or(all) / row * row;
        Self {
            nodes: shape.nodes(),
            link_gbytes_per_s: f64::from(links.link_kbytes()) / 1e6,
            hop_ns: links.hop_ps() as f64 / 1e3,
            cycle_ns: links.cycle_ps() as f64 / 1e3,
            row_bytes: links.row,
            request_channels: 2,
            queue_bytes: rows(options.queue_bytes, links.queue_bytes),
            replay_bytes: rows(options.replay_bytes, links.replay_bytes),
            scheduler: match options.scheduler {
                Scheduler::LookAhead => LOOK_AHEAD,
                Scheduler::DateLine => DATE_LINE,
            },
            arbiter: match options.arbiter {
                Arbiter::InTurn => IN_TURN,
                Arbiter::StraightFirst => STRAIGHT_FIRST,
                Arbiter::TransitFirst => TRANSIT_FIRST,
            },
            backlog: options.backlog,
        }
    }
}

const LOOK_AHEAD: &str = "look-ahead";
const DATE_LINE: &str = "date-line";
const IN_TURN: &str = "in-turn";
const STRAIGHT_FIRST: &str = "straight-first";
const TRANSIT_FIRST: &str = "transit-first";

/// A scenario with all of its points.
pub(crate) struct Scenario {
    name: String,
    title: String,
    network: Described,
    /// The traffic of each point, with the limits that follow from the routes, if they are known.
    points: Vec<(Traffic, Option<Limits>)>,
    /// Seeds that each point is run with, from its own on.
    seeds: u64,
}

/// The results of a scenario.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    scenario: String,
    network: Described,
    rows: Vec<Row>,
    /// Saturation for each size that was sent at several rates.
    saturation: Vec<Saturation>,
    #[serde(skip)]
    title: String,
}

impl Scenario {
    pub(crate) fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        let file = TomlFile::new(Path::new(name), text);
        let raw: Raw = file.parse()?;
        let shape = raw.shape.get_ref().parse::<Shape>();
        let shape = shape.map_err(|_| file.value_error("shape", &raw.shape, SHAPE))?;
        let torus = file.checked("torus", &raw.torus, |letters| {
            let known = letters.chars().all(|c| "xyz".contains(c)).then(|| letters.clone());
            known.ok_or("letters of \"xyz\", or \"\" for meshes")
        })?;
        let named = shape;
        let shape = torus.map_or(shape, |letters| shape.with_torus_letters(&letters));
        let generation = file
            .checked("generation", &raw.generation, |name| {
                Generation::from_name(name).ok_or(Generation::NAMES)
            })?
            .or_else(|| Interconnect::of_shape(&named).tofu())
            .unwrap_or_default();
        let links = *Parameters::of(generation);
        let options = raw.options(&file, &links)?;
        let pattern = raw.pattern(&file, &shape)?;
        let sizes = raw.sizes(&file)?;
        let loads = raw.loads(&file, generation)?;
        let tnis = generation.description().tnis;
        let traffic = Traffic {
            down: raw.down(&file, &shape)?,
            errors: raw.errors(&file, &shape, &links)?,
            shape,
            links,
            options,
            seed: raw.seed.unwrap_or(1),
            pattern,
            size: 0,
            load: Load::Count(0),
            arrivals: raw.arrivals(&file)?,
            rails: raw.rails(&file)?,
            tnis: file
                .checked("tnis", &raw.tnis, |number| within(*number, 1..=tnis.into()))?
                .map_or(tnis, |number| number as u8),
            answers: raw.answers.unwrap_or(true),
            answer_bytes: file
                .checked("answer_bytes", &raw.answer_bytes, |bytes| {
                    within(*bytes, 8..=TLP_MAX as u64)
                })?
                .map_or(ANSWER_BYTES, |bytes| bytes as u16),
            senders: raw.senders(&file, &shape)?,
            gap: file.checked("gap", &raw.gap, |text| time(text).ok_or(TIME))?.unwrap_or(0),
            window: file
                .checked("window", &raw.window, |most| within(*most, 1..=1_000_000))?
                .unwrap_or(u64::MAX),
        };
        let points = Self::points(name, &traffic, &sizes, &loads)?;
        let generation = generation.description().interconnect;
        let title = format!("{} on {} ({generation})", raw.pattern.get_ref(), raw.shape.get_ref());
        let network = Described::new(&traffic);
        let seeds = file.checked("seeds", &raw.seeds, |seeds| within(*seeds, 1..=1000))?;
        Ok(Self { name: name.to_owned(), title, network, points, seeds: seeds.unwrap_or(1) })
    }

    /// A point for each size and load, with the limits that follow from the routes.
    fn points(
        name: &str,
        traffic: &Traffic,
        sizes: &[u64],
        loads: &[Offered],
    ) -> anyhow::Result<Vec<(Traffic, Option<Limits>)>> {
        let mut points = Vec::new();
        for &size in sizes {
            let limits = Traffic { size, ..traffic.clone() }.limits();
            for load in loads {
                let load = match (load, limits) {
                    (Offered::Load(load), _) => *load,
                    (Offered::Part { part, warm_up, time }, Some(limits)) => {
                        let kbytes = (part * limits.rate / 1e3) as u64;
                        Load::Rate { kbytes: kbytes.max(1), warm_up: *warm_up, time: *time }
                    }
                    _ => {
                        return Err(anyhow!(
                            "{name}: load needs pattern \"uniform\" or \"permutations\", \
                             2 to {MOST_WALKED} nodes that all send, one rail, no gap or window, \
                             and links without errors"
                        ));
                    }
                };
                points.push((Traffic { size, load, ..traffic.clone() }, limits));
            }
        }
        Ok(points)
    }

    /// Runs every point.
    pub(crate) fn run(&self, threads: u32) -> anyhow::Result<Report> {
        let rows = self.points.iter().map(|(traffic, limits)| {
            let offered_gbytes_per_s = match traffic.load {
                Load::Rate { kbytes, .. } => Some(kbytes as f64 / 1e6),
                Load::Count(_) => None,
            };
            let outcome = |seed| traffic.with_seed(traffic.seed + seed).run(threads);
            let outcomes = (0..self.seeds).map(outcome).collect::<anyhow::Result<Vec<_>>>();
            let outcomes = outcomes.with_context(|| self.name.clone())?;
            let seeds = Spread::of(outcomes.iter().map(|outcome| outcome.gbytes_per_s));
            let outcome = outcomes.first().context("no seed")?.clone();
            Ok(Row {
                size: traffic.size,
                link_bytes: traffic.frames().bytes,
                offered_gbytes_per_s,
                bound_gbytes_per_s: limits.map(|limits| limits.rate / 1e9),
                mean_hops: limits.map(|limits| limits.hops),
                unloaded_us: limits.map(|limits| limits.latency / 1e6),
                outcome,
                seeds: seeds.filter(|_| self.seeds > 1),
            })
        });
        let mut report = Report {
            scenario: self.name.clone(),
            network: self.network.clone(),
            rows: rows.collect::<anyhow::Result<_>>()?,
            saturation: Vec::new(),
            title: self.title.clone(),
        };
        let mut sizes: Vec<_> = report.rows.iter().map(|row| row.size).collect();
        sizes.dedup();
        report.saturation = sizes.into_iter().filter_map(|size| report.saturates(size)).collect();
        Ok(report)
    }
}

impl Raw {
    /// The options of the network, which it has confirmed.
    fn options(&self, file: &TomlFile<'_>, links: &Parameters) -> anyhow::Result<Options> {
        let options = Options {
            scheduler: file
                .checked("scheduler", &self.scheduler, |name| match name.as_str() {
                    LOOK_AHEAD => Ok(Scheduler::LookAhead),
                    DATE_LINE => Ok(Scheduler::DateLine),
                    _ => Err("\"look-ahead\" or \"date-line\""),
                })?
                .unwrap_or_default(),
            arbiter: file
                .checked("arbiter", &self.arbiter, |name| match name.as_str() {
                    IN_TURN => Ok(Arbiter::InTurn),
                    STRAIGHT_FIRST => Ok(Arbiter::StraightFirst),
                    TRANSIT_FIRST => Ok(Arbiter::TransitFirst),
                    _ => Err("\"in-turn\", \"transit-first\" or \"straight-first\""),
                })?
                .unwrap_or_default(),
            seed: self.seed.unwrap_or(1),
            queue_bytes: self.queue_bytes.as_ref().map(|bytes| *bytes.get_ref()),
            replay_bytes: self.replay_bytes.as_ref().map(|bytes| *bytes.get_ref()),
            ..Options::default()
        };
        // The network decides whether buffers are large enough. A single unit suffices for this
        // check.
        for (field, bytes) in
            [("queue_bytes", &self.queue_bytes), ("replay_bytes", &self.replay_bytes)]
        {
            let Some(bytes) = bytes else { continue };
            let refused = Network::new(Shape::UNIT, links, &options).err();
            if let Some(bad) = refused.filter(|bad| bad.name == field) {
                let allowed = format!("{} to {}", bad.least, bad.most);
                return Err(file.value_error(field, bytes, allowed).into());
            }
        }
        Ok(options)
    }

    fn arrivals(&self, file: &TomlFile<'_>) -> Result<Arrivals, FileError> {
        let arrivals = file.checked("arrivals", &self.arrivals, |name| match name.as_str() {
            "even" => Ok(Arrivals::Even),
            "poisson" => Ok(Arrivals::Poisson),
            _ => Err("\"even\" or \"poisson\""),
        })?;
        Ok(arrivals.unwrap_or_default())
    }

    fn rails(&self, file: &TomlFile<'_>) -> Result<Rails, FileError> {
        let rails = file.checked("rails", &self.rails, |name| match name.as_str() {
            "single" => Ok(Rails::Single),
            "minimal" => Ok(Rails::Minimal),
            _ => Err("\"single\" or \"minimal\""),
        })?;
        Ok(rails.unwrap_or_default())
    }

    fn sizes(&self, file: &TomlFile<'_>) -> Result<Vec<u64>, FileError> {
        let sizes = self.size.get_ref().all().iter();
        // A rate in bytes says nothing about messages without any.
        let least = u64::from(self.count.is_none());
        let allowed = least..=16 << 20;
        let sizes = sizes.map(|size| u64::try_from(*size).ok().filter(|n| allowed.contains(n)));
        let sizes = sizes.collect::<Option<Vec<_>>>().filter(|sizes| !sizes.is_empty());
        sizes.ok_or_else(|| {
            let why = if least > 0 { " with rate or load" } else { "" };
            let allowed = format!("{least} to 16777216 bytes{why}, or a list of such");
            file.value_error("size", &self.size, allowed)
        })
    }

    fn pattern(&self, file: &TomlFile<'_>, shape: &Shape) -> anyhow::Result<Pattern> {
        let pattern = match self.pattern.get_ref().as_str() {
            "uniform" => Pattern::Uniform,
            "permutation" => Pattern::Permutation,
            "permutations" => Pattern::Permutations,
            "neighbour" => Pattern::Neighbour,
            "transpose" => Pattern::Transpose,
            "hotspot" => {
                let why = "pattern = \"hotspot\"";
                let hot = file.checked("hot", &self.hot, |hot| node(shape, hot).ok_or(COORDS))?;
                let percent = file.checked("hot_percent", &self.hot_percent, |percent| {
                    within(*percent, 1..=100)
                })?;
                let (hot, _) = needed(file, "hot", why, hot)?;
                Pattern::Hotspot(hot, needed(file, "hot_percent", why, percent)? as u32)
            }
            "pairs" => {
                let pairs = file.checked("pairs", &self.pairs, |pairs| {
                    let pairs = pairs.iter();
                    let pairs =
                        pairs.map(|[from, to]| Some((node(shape, from)?.0, node(shape, to)?.0)));
                    let pairs = pairs.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty());
                    pairs.ok_or_else(|| format!("a list of [from, to], each of them {COORDS}"))
                })?;
                Pattern::Pairs(needed(file, "pairs", "pattern = \"pairs\"", pairs)?)
            }
            _ => {
                let allowed = "\"uniform\", \"permutation\", \"permutations\", \"neighbour\", \
                               \"transpose\", \"hotspot\" or \"pairs\"";
                return Err(file.value_error("pattern", &self.pattern, allowed).into());
            }
        };
        let others =
            [("hot", self.hot.is_some(), "hotspot"), ("pairs", self.pairs.is_some(), "pairs")];
        for (field, given, of) in others {
            if given && self.pattern.get_ref() != of {
                let name = file.path.display();
                return Err(anyhow!("{name}: {field} is for pattern = \"{of}\" only"));
            }
        }
        Ok(pattern)
    }

    fn loads(&self, file: &TomlFile<'_>, generation: Generation) -> anyhow::Result<Vec<Offered>> {
        let count =
            file.checked("count", &self.count, |count| within(*count, 1..=1_000_000_000))?;
        let time = |text: &String| time(text).ok_or(TIME);
        let warm_up = file.checked("warm_up", &self.warm_up, time)?;
        let span = file.checked("time", &self.time, time)?;
        match (count, &self.rate, &self.load) {
            (Some(count), None, None) => Ok(vec![Offered::Load(Load::Count(count))]),
            (None, None, Some(parts)) => {
                let time = needed(file, "time", "load", span)?;
                let all = parts.get_ref().all().iter().map(|part| {
                    let warm_up = warm_up.unwrap_or(time);
                    let allowed = *part > 0.0 && *part <= MOST_LOAD;
                    allowed.then_some(Offered::Part { part: *part, warm_up, time })
                });
                let all = all.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty());
                let allowed = format!("more than 0 and at most {MOST_LOAD}, or a list of such");
                Ok(all.ok_or_else(|| file.value_error("load", parts, allowed))?)
            }
            (None, Some(rates), None) => {
                let most = generation.description().injection_bytes_per_s() as f64 / 1e9;
                let allowed = format!("more than 0 and at most {most} GB/s, or a list of such");
                let time = needed(file, "time", "rate", span)?;
                let loads = rates.get_ref().all().iter().map(|rate| {
                    let kbytes = (rate * 1e6) as u64;
                    let warm_up = warm_up.unwrap_or(time);
                    let load = Load::Rate { kbytes, warm_up, time };
                    (kbytes > 0 && *rate <= most).then_some(Offered::Load(load))
                });
                let loads = loads.collect::<Option<Vec<_>>>().filter(|loads| !loads.is_empty());
                Ok(loads.ok_or_else(|| file.value_error("rate", rates, allowed))?)
            }
            _ => Err(anyhow!("{}: one of count, rate and load is needed", file.path.display())),
        }
    }

    /// The nodes whose coordinates are in all of the ranges.
    fn senders(&self, file: &TomlFile<'_>, shape: &Shape) -> anyhow::Result<Vec<NodeId>> {
        let nodes = file.checked("senders", &self.senders, |text| {
            let ranges = ranges(text).ok_or(RANGES)?;
            let inside =
                |at: &Coords| ranges.iter().all(|(axis, range)| range.contains(&at[*axis]));
            let nodes = shape.iter().filter(inside).filter_map(|at| shape.node_id(at));
            let mut nodes: Vec<_> = nodes.collect();
            nodes.sort_unstable();
            if nodes.is_empty() { Err("ranges in which this shape has nodes") } else { Ok(nodes) }
        })?;
        Ok(nodes.unwrap_or_default())
    }

    fn down(&self, file: &TomlFile<'_>, shape: &Shape) -> Result<Vec<(Coords, Port)>, FileError> {
        self.down.iter().map(|down| link(file, shape, &down.at, &down.port)).collect()
    }

    /// Returns the errors of each link that has any, by the end that names the link.
    fn errors(
        &self,
        file: &TomlFile<'_>,
        shape: &Shape,
        links: &Parameters,
    ) -> anyhow::Result<Vec<(Coords, Port, LinkErrors)>> {
        let mut all: BTreeMap<(Coords, Port), LinkErrors> = BTreeMap::new();
        for entry in &self.errors {
            let errors = entry.get_ref();
            let named: Vec<_> = match (&errors.at, &errors.port) {
                (Some(at), Some(port)) => vec![link(file, shape, at, port)?],
                (None, None) => Link::all(shape).map(|link| (link.from, link.port)).collect(),
                _ => {
                    let place = file.place(entry.span());
                    return Err(anyhow!("{place}: at and port name a link together"));
                }
            };
            let rate = |rate: &f64| ErrorRate::new(*rate).ok_or("0 to 1");
            let ber = file.checked("ber", &errors.ber, rate)?;
            let dllp_loss = file.checked("dllp_loss", &errors.dllp_loss, rate)?;
            let lane = file.checked("lane", &errors.lane, |lane| {
                let known = usize::try_from(*lane).ok();
                known
                    .filter(|lane| *lane < usize::from(links.lanes))
                    .ok_or_else(|| format!("0 to {}, the lanes of {}", links.lanes - 1, links.name))
            })?;
            for link in named {
                let errors_of = all.entry(link).or_default();
                for lane in (0..usize::from(links.lanes)).filter(|n| lane.is_none_or(|l| l == *n)) {
                    if let Some(rate) = ber {
                        errors_of.rates[lane] = rate;
                    }
                    if let Some(dead) = errors.dead {
                        errors_of.dead = errors_of.dead & !(1 << lane) | u8::from(dead) << lane;
                    }
                }
                if let Some(rate) = dllp_loss {
                    errors_of.dllp_loss = rate;
                }
            }
        }
        Ok(all.into_iter().map(|((at, port), errors)| (at, port, errors)).collect())
    }
}

/// Returns the link at a node's port.
fn link(
    file: &TomlFile<'_>,
    shape: &Shape,
    at: &Spanned<Vec<i64>>,
    port: &Spanned<String>,
) -> Result<(Coords, Port), FileError> {
    let (_, node) = node(shape, at.get_ref()).ok_or_else(|| file.value_error("at", at, COORDS))?;
    let known = Port::from_name(port.get_ref());
    let known = known.filter(|port| shape.neighbor(node, *port).is_some());
    let known = known.ok_or_else(|| {
        let all = shape.neighbors(node).map(|(port, _)| format!("\"{port}\""));
        let all: Vec<_> = all.collect();
        let allowed = format!("a port of {node} with a link: {}", all.join(", "));
        file.value_error("port", port, allowed)
    })?;
    Ok((node, known))
}

/// The load at which a network saturates, in GB/s of each node.
#[derive(Debug, Serialize)]
struct Saturation {
    size: u64,
    /// The lowest offered rate of which less than 95 % arrived.
    at_gbytes_per_s: Option<f64>,
    /// The highest rate that arrived.
    most_gbytes_per_s: f64,
    bound_gbytes_per_s: Option<f64>,
    /// The mean time of a message that never waits.
    unloaded_us: Option<f64>,
}

impl fmt::Display for Saturation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, .. } = self;
        let (at, most) = (self.at_gbytes_per_s, self.most_gbytes_per_s);
        let bound = self.bound_gbytes_per_s;
        write!(f, "{size} bytes: ")?;
        if let Some(unloaded) = self.unloaded_us {
            write!(f, "{unloaded:.3} us without load; ")?;
        }
        write!(f, "at most {most:.3} GB/s of each node arrive")?;
        if let Some(bound) = bound {
            let part = most / bound * 100.0;
            write!(f, ", {part:.0} % of {bound:.3}, at which a link is full")?;
        }
        match at {
            Some(at) => write!(f, "; saturated at {at:.3}"),
            None => write!(f, "; not saturated"),
        }
    }
}

impl Report {
    /// The table, with a line for each point.
    fn table(&self) -> String {
        let number = |value: f64| format!("{value:.2}");
        let rows = self.rows.iter().map(|row| {
            let Row { size, offered_gbytes_per_s, outcome, .. } = row;
            vec![
                size.to_string(),
                offered_gbytes_per_s.map_or_else(|| "all".to_owned(), number),
                format!("{:.3}", outcome.gbytes_per_s),
                number(outcome.mean_us),
                number(outcome.p50_us),
                number(outcome.p99_us),
                number(outcome.max_us),
                outcome.delivered.to_string(),
                outcome.lost.to_string(),
                number(outcome.time_us),
                number(outcome.busiest_gbytes_per_s),
                outcome.hops.to_string(),
                outcome.of_a_node.map_or_else(String::new, |node| node.to_string()),
                row.seeds.map_or_else(String::new, |seeds| seeds.to_string()),
            ]
        });
        let head = [
            "bytes",
            "offered",
            "GB/s",
            "mean us",
            "50 %",
            "99 %",
            "most",
            "messages",
            "lost",
            "in us",
            "link GB/s",
            "hops",
            "slowest / mean / fastest node",
            "least / mean / most of seeds",
        ];
        // The last two are not always known.
        let known = if self.rows.iter().any(|row| row.seeds.is_some()) {
            head.len()
        } else if self.rows.iter().any(|row| row.outcome.of_a_node.is_some()) {
            head.len() - 1
        } else {
            head.len() - 2
        };
        let head = &head[..known];
        let rows = rows.map(|row| row.into_iter().take(known).collect());
        let right: Vec<_> = (0..head.len()).collect();
        tofu_ui::table(head, &right, rows)
    }

    /// Formats the results as a table.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let senders = self.rows.first().map_or(0, |row| row.outcome.senders);
        // Writing to a string cannot fail.
        let Described { link_gbytes_per_s, hop_ns, request_channels, queue_bytes, .. } =
            self.network;
        let _ = writeln!(
            text,
            "{}, {senders} nodes send\n\
             links of {link_gbytes_per_s} GB/s, {hop_ns} ns a hop, {request_channels} queues of \
             {queue_bytes} bytes a port for requests, {} and {}\n",
            self.title, self.network.scheduler, self.network.arbiter
        );
        text += &self.table();
        let wrong: u64 = self.rows.iter().map(|row| row.outcome.lcrc_errors).sum();
        let late: u64 = self.rows.iter().map(|row| row.outcome.ack_timeouts).sum();
        if (wrong, late) != (0, 0) {
            let _ = writeln!(
                text,
                "\nOn links: {wrong} frames with a wrong CRC, {late} acknowledgements too late."
            );
        }
        for saturation in &self.saturation {
            let _ = writeln!(text, "\n{saturation}");
        }
        text
    }

    /// Finds where messages of a size saturate the network, as far as the measured rates show it.
    fn saturates(&self, size: u64) -> Option<Saturation> {
        let rows = self.rows.iter().filter(|row| row.size == size);
        let points: Vec<_> = rows
            .clone()
            .filter_map(|row| Some((row.offered_gbytes_per_s?, row.outcome.gbytes_per_s)))
            .collect();
        let most = points.iter().map(|point| point.1).reduce(f64::max)?;
        let saturates = |(offered, arrived): &&(f64, f64)| *arrived < UNSATURATED * *offered;
        let at = points.iter().filter(saturates).map(|point| point.0).reduce(f64::min);
        Some(Saturation {
            size,
            at_gbytes_per_s: at,
            most_gbytes_per_s: most,
            bound_gbytes_per_s: rows.clone().find_map(|row| row.bound_gbytes_per_s),
            unloaded_us: rows.clone().find_map(|row| row.unloaded_us),
        })
    }

    /// Returns the offered rate, the rate that arrived, both in GB/s of each node, and the mean
    /// latency in microseconds, for each rate.
    #[cfg(test)]
    pub(crate) fn rates(&self) -> impl Iterator<Item = (f64, f64, f64)> {
        self.rows.iter().filter_map(|row| {
            let Outcome { gbytes_per_s, mean_us, .. } = row.outcome;
            Some((row.offered_gbytes_per_s?, gbytes_per_s, mean_us))
        })
    }

    /// Returns throughput and latency by rate if rates vary, or else by size.
    pub(crate) fn curves(&self) -> Vec<Curves> {
        let by_rate = self.rows.iter().any(|row| row.offered_gbytes_per_s.is_some());
        let lines = |y: fn(&Outcome) -> f64| {
            let mut lines: Vec<Line> = Vec::new();
            for row in &self.rows {
                let (name, x) = match row.offered_gbytes_per_s {
                    Some(rate) if by_rate => (format!("{} bytes", row.size), rate),
                    _ => (self.scenario.clone(), row.size.max(1) as f64),
                };
                let point = (x, y(&row.outcome));
                match lines.iter_mut().find(|line| line.name == name) {
                    Some(line) => line.points.push(point),
                    None => lines.push(Line { name, points: vec![point] }),
                }
            }
            lines
        };
        let x = if by_rate { "GB/s of each node" } else { "bytes" };
        let curves = |title: &str, y: &'static str, lines| Curves {
            title: format!("{}: {title}", self.title),
            y,
            x,
            lines,
        };
        vec![
            curves("throughput of a node", "GB/s", lines(|outcome| outcome.gbytes_per_s)),
            curves("mean latency", "us", lines(|outcome| outcome.mean_us)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(text: &str) -> Vec<Outcome> {
        let report = Scenario::parse("test", text).unwrap().run(1).unwrap();
        report.rows.into_iter().map(|row| row.outcome).collect()
    }

    /// The shipped scenarios that this module reads.
    fn networks() -> impl Iterator<Item = (&'static str, &'static str)> {
        SHIPPED.into_iter().filter(|(name, _)| *name != "tnw")
    }

    #[test]
    fn shipped_scenarios_are_valid() {
        for (name, text) in networks() {
            let scenario = Scenario::parse(name, text).unwrap();
            assert!(!scenario.points.is_empty() && text.starts_with("# "), "{name}");
        }
    }

    /// Runs the first point of each, except for the one with a whole K computer.
    #[test]
    fn shipped_scenarios_run() {
        for (name, text) in networks().filter(|(name, _)| *name != "k") {
            let mut scenario = Scenario::parse(name, text).unwrap();
            scenario.points.truncate(1);
            scenario.seeds = 1;
            assert_eq!(scenario.points.len(), 1, "{name}");
            let report = scenario.run(1).unwrap();
            let outcome = &report.rows[0].outcome;
            assert!(outcome.delivered > 0 && outcome.lost == 0, "{name}: {outcome:?}");
        }
    }

    /// With every pattern on a small machine, all messages arrive, and a second run gives the same
    /// result.
    #[test]
    fn sent_messages_arrive_at_the_same_times() {
        let more = [
            ("uniform", ""),
            ("permutation", ""),
            ("permutations", "rails = \"minimal\""),
            ("neighbour", "generation = \"fx100\""),
            ("transpose", "scheduler = \"date-line\""),
            ("hotspot", "hot = [1, 0, 0, 1, 2, 1]\nhot_percent = 50"),
            ("pairs", "pairs = [[[0,0,0,0,0,0], [1,0,0,0,0,0]], [[0,0,0,0,0,0], [1,0,0,1,1,1]]]"),
        ];
        for (pattern, more) in more {
            let text = format!(
                "shape = \"2x1x1x2x3x2\"\nsize = [8, 5000]\ncount = 20\n\
                 pattern = \"{pattern}\"\n{more}"
            );
            let first = outcomes(&text);
            for outcome in &first {
                let sent = u64::from(outcome.senders) * 20;
                assert!(outcome.delivered <= sent && outcome.lost == 0, "{pattern}: {outcome:?}");
                assert!(outcome.delivered == sent || pattern == "hotspot", "{pattern}");
                assert!(outcome.gbytes_per_s > 0.0 && outcome.max_us > 0.0, "{pattern}");
            }
            assert_eq!(first, outcomes(&text), "{pattern}");
        }
    }

    #[test]
    fn lone_pair_reaches_link_speed() {
        let text = "shape = \"1x1x1x2x1x1\"\ngeneration = \"k\"\npattern = \"pairs\"\n\
                    pairs = [[[0,0,0,0,0,0], [0,0,0,1,0,0]]]\nsize = 192000\ncount = 50";
        let outcome = &outcomes(text)[0];
        assert!((4.70..4.77).contains(&outcome.gbytes_per_s), "{outcome:?}");
    }

    #[test]
    fn more_load_takes_longer_and_saturates() {
        let text = "shape = \"unit\"\npattern = \"uniform\"\nsize = 1920\nrate = [0.5, 5, 40]\n\
                    warm_up = \"10us\"\ntime = \"20us\"";
        let [low, middle, high] = &outcomes(text)[..] else { panic!("three points") };
        assert!((0.4..0.6).contains(&low.gbytes_per_s), "{low:?}");
        assert!((4.5..5.5).contains(&middle.gbytes_per_s), "{middle:?}");
        assert!(high.gbytes_per_s < 38.0, "{high:?}");
        assert!(low.mean_us < middle.mean_us && middle.mean_us < high.mean_us);
    }

    /// On several tori, all traffic arrives while links have room, no more ever arrives than a full
    /// link permits, and saturation leaves a good part of that.
    #[test]
    fn uniform_traffic_saturates_below_bound() {
        for shape in ["8x1x1x1x1x1", "16x1x1x1x1x1", "8x8x1x1x1x1", "4x4x4x1x1x1"] {
            let text = format!(
                "shape = \"{shape}\"\ngeneration = \"k\"\npattern = \"uniform\"\nsize = 1024\n\
                 answers = false\nload = [0.1, 0.3, 1, 2]\nwarm_up = \"40us\"\ntime = \"80us\""
            );
            let report = Scenario::parse("test", &text).unwrap().run(1).unwrap();
            let bound = report.rows[0].bound_gbytes_per_s.unwrap();
            let part = |row: &Row| row.outcome.gbytes_per_s / bound;
            let parts: Vec<_> = report.rows.iter().map(part).collect();
            println!("{shape}: {bound:.3} GB/s, {parts:.2?}");
            let [low, middle, full, double] = parts[..] else { panic!("four loads") };
            assert!((0.08..0.12).contains(&low) && (0.27..0.33).contains(&middle), "{parts:?}");
            // Traffic is not spread quite evenly over the links in such a short time.
            assert!(full < 1.02 && double < 1.02 && full > 0.4 && double > 0.4, "{parts:?}");
            let us: Vec<_> = report.rows.iter().map(|row| row.outcome.mean_us).collect();
            assert!(us.is_sorted(), "{us:?}");
            // With little load, hardly any message waits.
            let unloaded = report.rows[0].unloaded_us.unwrap();
            assert!((0.95..1.1).contains(&(us[0] / unloaded)), "{us:?}, {unloaded}");
            let saturation = &report.saturation[0];
            assert_eq!(saturation.bound_gbytes_per_s, Some(bound));
            assert!(saturation.at_gbytes_per_s.is_some_and(|at| at > 0.3 * bound), "{saturation}");
            assert!(report.text().contains("at which a link is full; saturated at"));
        }
    }

    /// Long rings gain from serving straight traffic first, and nothing else changes.
    #[test]
    fn arbiter_can_be_chosen() {
        let run = |arbiter| {
            let text = format!(
                "shape = \"16x1x1x1x1x1\"\npattern = \"uniform\"\nsize = 1024\ncount = 300\n\
                 arbiter = \"{arbiter}\""
            );
            outcomes(&text)[0].clone()
        };
        let (turn, straight) = (run("in-turn"), run("straight-first"));
        assert_eq!((turn.delivered, turn.hops), (straight.delivered, straight.hops));
        let transit = run("transit-first");
        assert_eq!((turn.delivered, turn.hops), (transit.delivered, transit.hops));
        assert!(transit.gbytes_per_s > 1.1 * turn.gbytes_per_s, "{turn:?} {transit:?}");
        assert!(straight.gbytes_per_s > 1.1 * turn.gbytes_per_s, "{turn:?} {straight:?}");
    }

    /// A job is a part of a machine: only its nodes send, to each other, and it has the links of
    /// the rest.
    #[test]
    fn senders_are_those_in_the_ranges() {
        let run = |more: &str| {
            let text = format!("shape = \"2x2x5x1x1x1\"\nsize = 1000\ncount = 50\n{more}");
            outcomes(&text)[0].clone()
        };
        for (senders, count) in [("z=1-3", 12), ("Z = 1-3, x=0", 6), ("z=4", 4)] {
            for pattern in ["uniform", "permutation", "permutations"] {
                let outcome = run(&format!("pattern = \"{pattern}\"\nsenders = \"{senders}\""));
                assert_eq!((outcome.senders, outcome.lost), (count, 0), "{senders} {pattern}");
                assert_eq!(outcome.delivered, u64::from(count) * 50, "{senders} {pattern}");
            }
            // The targets of other nodes do not change.
            let outcome = run(&format!("pattern = \"neighbour\"\nsenders = \"{senders}\""));
            assert_eq!(outcome.senders, count, "{senders}");
        }
        // Two adjacent nodes of a ring reach each other only over their own link.
        let pair = run("pattern = \"permutation\"\nsenders = \"x=0,y=0,z=1-2\"");
        assert!(pair.hops <= 4 * 50, "{pair:?}");
    }

    /// Messages of a TNI are separated by frame and gap, or by a round trip if only one may be in
    /// flight.
    #[test]
    fn gap_and_window_slow_a_sender() {
        let run = |more: &str| {
            let text = format!(
                "shape = \"1x1x1x2x1x1\"\ngeneration = \"k\"\npattern = \"pairs\"\n\
                 pairs = [[[0,0,0,0,0,0], [0,0,0,1,0,0]]]\nsize = 1024\ncount = 1000\ntnis = 1\n\
                 {more}"
            );
            outcomes(&text)[0].gbytes_per_s
        };
        let near = |ours: f64, ns: f64| (ours / (1024.0 / ns) - 1.0).abs() < 0.01;
        // 1120 bytes at 5 GB/s.
        assert!(near(run(""), 224.0));
        assert!(near(run("gap = \"76ns\""), 300.0));
        assert!(near(run("window = 16"), 224.0));
        // A hop and a frame there, 100 ns, a hop and an answer back, in steps of the run.
        let alone = 1024.0 / run("window = 1\nanswers = false");
        assert!((324.0..425.0).contains(&alone), "{alone} ns");
        let answered = 1024.0 / run("window = 1");
        assert!((alone + 150.0..alone + 300.0).contains(&answered), "{answered} ns");
        let short = 1024.0 / run("window = 1\nanswer_bytes = 32");
        assert!(short <= answered, "{short} ns");
    }

    /// Each node's own time is at most that of all, and shorter answers leave links more room.
    #[test]
    fn nodes_have_times_of_their_own() {
        let run = |more: &str| {
            let text = format!(
                "shape = \"4x1x1x1x1x1\"\ngeneration = \"k\"\ntorus = \"\"\nsize = 256\n\
                 pattern = \"permutations\"\ncount = 400\ntnis = 1\n{more}"
            );
            outcomes(&text)[0].clone()
        };
        let all = run("");
        let node = all.of_a_node.unwrap();
        assert!((node.least / all.gbytes_per_s - 1.0).abs() < 0.01, "{all:?}");
        assert!(node.least <= node.mean && node.mean <= node.most, "{all:?}");
        assert!(run("answer_bytes = 32").gbytes_per_s > 1.05 * all.gbytes_per_s);
        assert!(run("answers = false").gbytes_per_s > 1.05 * all.gbytes_per_s);
    }

    #[test]
    fn seeds_show_their_spread() {
        let run = |more: &str| {
            let text = format!(
                "shape = \"unit\"\npattern = \"permutations\"\nsize = 1024\ncount = 30\n{more}"
            );
            Scenario::parse("test", &text).unwrap().run(1).unwrap()
        };
        let one = |seed: u64| run(&format!("seed = {seed}")).rows[0].outcome.gbytes_per_s;
        let singles = [3, 4, 5].map(one);
        let report = run("seed = 3\nseeds = 3");
        let seeds = report.rows[0].seeds.unwrap();
        assert_eq!(Some(seeds), Spread::of(singles.into_iter()));
        assert_eq!(report.rows[0].outcome.gbytes_per_s.to_bits(), singles[0].to_bits());
        assert!(report.text().contains(&seeds.to_string()), "{}", report.text());
        assert_eq!(run("").rows[0].seeds, None);
    }

    #[test]
    fn packets_on_a_dead_link_are_lost() {
        let text = "shape = \"1x1x1x2x1x1\"\npattern = \"uniform\"\nsize = 8\ncount = 5\n\
                    [[down]]\nat = [0,0,0,0,0,0]\nport = \"A\"";
        let outcome = &outcomes(text)[0];
        assert_eq!((outcome.delivered, outcome.lost), (0, 10));
    }

    /// Errors on links cost time but no messages.
    #[test]
    fn errors_lose_nothing() {
        let text = "shape = \"1x1x1x2x3x1\"\npattern = \"uniform\"\nsize = 4000\ncount = 100\n";
        let errors = [
            "[[errors]]\nber = 1e-5",
            "[[errors]]\ndllp_loss = 0.5",
            "[[errors]]\nlane = 1\ndead = true",
            "[[errors]]\nat = [0,0,0,0,0,0]\nport = \"A\"\nlane = 0\nber = 1e-4",
        ];
        let without = &outcomes(text)[0];
        assert_eq!((without.lcrc_errors, without.ack_timeouts), (0, 0));
        for errors in errors {
            let text = format!("{text}{errors}");
            let with = &outcomes(&text)[0];
            assert_eq!((with.delivered, with.lost), (without.delivered, 0), "{errors}");
            assert!(with.time_us > without.time_us, "{errors}: {with:?}");
            assert!(with.lcrc_errors > 0 || errors.contains("dllp"), "{errors}: {with:?}");
            assert_eq!(*with, outcomes(&text)[0], "{errors}");
        }
    }

    /// The example in the manual can be run.
    #[test]
    fn manuals_scenario_parses() {
        let manual = include_str!("../../../docs/src/user/sim.md");
        let (_, example) = manual.split_once("```toml\n").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        assert!(Scenario::parse("sim.md", example).is_ok());
    }

    /// A part of a good scenario, its replacement, and a part of the message.
    const BAD: &[(&str, &str, &str)] = &[
        ("\"unit\"", "\"9x9\"", "s.toml:1: shape = \"9x9\" is not allowed; shape is \"unit\""),
        ("\"uniform\"", "\"hot\"", "s.toml:2: pattern = \"hot\" is not allowed; pattern is"),
        ("size = 8", "size = -1", "s.toml:3: size = -1 is not allowed; size is 0 to 16777216"),
        ("size = 8", "size = [8, -1]", "s.toml:3: size = [8, -1] is not allowed"),
        (
            "size = 8\ncount = 1",
            "size = [8, 0]\nrate = 1\ntime = \"1us\"",
            "s.toml:3: size = [8, 0] is not allowed; size is 1 to 16777216 bytes with rate or",
        ),
        (
            "size = 8\ncount = 1",
            "size = 0\nload = 1\ntime = \"1us\"",
            "s.toml:3: size = 0 is not allowed; size is 1 to 16777216 bytes with rate or load",
        ),
        ("count = 1", "count = 0", "s.toml:4: count = 0 is not allowed; count is 1 to"),
        ("count = 1", "", "s.toml: one of count, rate and load is needed"),
        ("count = 1", "rate = 2.5", "s.toml: time is missing, which rate needs"),
        ("count = 1", "rate = 100\ntime = \"1us\"", "s.toml:4: rate = 100.0 is not allowed"),
        ("count = 1", "load = 5\ntime = \"1us\"", "s.toml:4: load = 5.0 is not allowed; load is"),
        ("count = 1", "load = 1", "s.toml: time is missing, which load needs"),
        (
            "pattern = \"uniform\"\nsize = 8\ncount = 1",
            "pattern = \"transpose\"\nsize = 8\nload = 1\ntime = \"1us\"",
            "s.toml: load needs pattern \"uniform\" or \"permutations\", 2 to 2048",
        ),
        (
            "count = 1",
            "count = 1\narbiter = \"x\"",
            "s.toml:5: arbiter = \"x\" is not allowed; arbiter is \"in-turn\", \"transit-first\"",
        ),
        ("count = 1", "count = 1\nsenders = \"z\"", "senders is ranges of coordinates such as"),
        ("count = 1", "count = 1\nsenders = \"z=3\"", "ranges in which this shape has nodes"),
        ("count = 1", "count = 1\nwindow = 0", "s.toml:5: window = 0 is not allowed; window is 1"),
        ("count = 1", "count = 1\nseeds = 0", "s.toml:5: seeds = 0 is not allowed; seeds is 1 to"),
        ("count = 1", "count = 1\ngap = \"1\"", "s.toml:5: gap = \"1\" is not allowed"),
        (
            "count = 1",
            "count = 1\nanswer_bytes = 7",
            "s.toml:5: answer_bytes = 7 is not allowed; answer_bytes is 8 to 1984",
        ),
        ("count = 1", "rate = 1\ntime = \"1\"", "s.toml:5: time = \"1\" is not allowed"),
        (
            "count = 1",
            "count = 1\narrivals = \"x\"",
            "s.toml:5: arrivals = \"x\" is not allowed; arrivals is \"even\" or \"poisson\"",
        ),
        ("\"uniform\"", "\"hotspot\"", "hot is missing, which pattern = \"hotspot\" needs"),
        ("\"fugaku\"", "\"tofud\"", "s.toml:5: generation = \"tofud\" is not allowed"),
        ("\"fugaku\"", "\"k\"\ntnis = 5", "s.toml:6: tnis = 5 is not allowed; tnis is 1 to 4"),
        ("count", "cuont", "s.toml:4: cuont = 1: did you mean count? unknown field `cuont`"),
        ("count = 1", "count = 1\nqueue_bytes = 1", "s.toml:5: queue_bytes = 1 is not allowed"),
        ("count = 1", "count = 1\nhot = [0,0,0,0,0,0]", "hot is for pattern = \"hotspot\" only"),
        ("size = 8", "size = \"x\"", "s.toml:3: size = \"x\": "),
        (
            "\"fugaku\"",
            "\"fugaku\"\n[[down]]\nat = [0,0,0,0,0,0]\nport = \"X+\"",
            "s.toml:8: port = \"X+\" is not allowed; port is a port of (0,0,0,0,0,0) with",
        ),
        (
            "\"fugaku\"",
            "\"fugaku\"\n[[down]]\nat = [5,0,0,0,0,0]\nport = \"A\"",
            "s.toml:7: at = [5, 0, 0, 0, 0, 0] is not allowed; at is [x, y, z, a, b, c]",
        ),
    ];

    #[test]
    fn bad_values_name_the_allowed_ones() {
        const GOOD: &str =
            "shape = \"unit\"\npattern = \"uniform\"\nsize = 8\ncount = 1\ngeneration = \"fugaku\"";
        assert!(Scenario::parse("test", GOOD).is_ok());
        let errors = [
            ("ber = 2", "s.toml:7: ber = 2.0 is not allowed; ber is 0 to 1"),
            ("lane = 2", "s.toml:7: lane = 2 is not allowed; lane is 0 to 1, the lanes of TofuD"),
            ("port = \"A\"", "s.toml:6: at and port name a link together"),
        ];
        let errors =
            errors.map(|(error, expected)| (format!("\"fugaku\"\n[[errors]]\n{error}"), expected));
        let errors = errors.iter().map(|(to, expected)| ("\"fugaku\"", to.as_str(), *expected));
        for (from, to, expected) in BAD.iter().copied().chain(errors) {
            let text = GOOD.replacen(from, to, 1);
            let error = Scenario::parse("s.toml", &text).err();
            let error = error.unwrap_or_else(|| panic!("{to} is allowed")).to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{to}: {error}");
        }
    }

    #[test]
    fn misspelt_scenario_gets_a_suggestion() {
        let error = text_of("unifrom").err().unwrap().to_string();
        assert!(error.contains("did you mean uniform?"), "{error}");
    }

    #[test]
    fn report_has_table_and_curves() {
        let text = "shape = \"unit\"\npattern = \"uniform\"\nsize = [8, 64]\nrate = [0.5, 1]\n\
                    time = \"2us\"";
        let report = Scenario::parse("test", text).unwrap().run(1).unwrap();
        let table = report.text();
        assert!(table.starts_with("uniform on unit (TofuD), 12 nodes send\n"), "{table}");
        assert_eq!(table.lines().count(), 3 + 1 + 4 + 4, "{table}");
        let curves = report.curves();
        assert_eq!(curves[0].lines.len(), 2);
        assert_eq!(curves[0].lines[1].points.len(), 2);
        assert!(serde_json::to_string(&report).unwrap().contains("offered_gbytes_per_s"));
    }
}
