//! Scenario files as they are written, and their fields with what is allowed.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use anyhow::anyhow;
use serde::Deserialize;
use tofu_abi::Coords;
use tofu_abi::topology::{Axis, NodeId, Port, Shape};
use tofu_fabric::{Link, LinkErrors, Ps, Scheduler};
use tofu_links::{ErrorRate, Parameters};
use tofu_machine::Generation;
use tofu_netmodel::{Arbiter, Network, Options};
use tofu_ui::{FileError, TomlFile};
use toml::Spanned;

use super::report::{DATE_LINE, IN_TURN, LOOK_AHEAD, STRAIGHT_FIRST, TRANSIT_FIRST};
use crate::traffic::{Arrivals, Load, Pattern, Rails};

/// The fields of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    pub(super) shape: Spanned<String>,
    pub(super) torus: Option<Spanned<String>>,
    pub(super) generation: Option<Spanned<String>>,
    scheduler: Option<Spanned<String>>,
    pub(super) arbiter: Option<Spanned<String>>,
    pub(super) seed: Option<u64>,
    queue_bytes: Option<Spanned<u32>>,
    replay_bytes: Option<Spanned<u32>>,
    pub(super) pattern: Spanned<String>,
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
    pub(super) tnis: Option<Spanned<i64>>,
    pub(super) answers: Option<bool>,
    pub(super) answer_bytes: Option<Spanned<i64>>,
    senders: Option<Spanned<String>>,
    pub(super) seeds: Option<Spanned<i64>>,
    pub(super) gap: Option<Spanned<String>>,
    pub(super) window: Option<Spanned<i64>>,
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

pub(super) const SHAPE: &str = "\"unit\", \"shelf\", \"half-rack\", \"rack\", \"k-racks\", \"k\" \
                                or six lengths such as \"2x2x4x2x3x2\" \
                                (X, Y, Z 1 to 32; A, C 1 to 2; B 1 to 3)";
const COORDS: &str = "[x, y, z, a, b, c] of a node of this shape";
const RANGES: &str = "ranges of coordinates such as \"z=1-16, a=0\"";
pub(super) const TIME: &str = "more than 0 and at most 1000 s, such as \"50us\" (ns, us or ms)";
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

pub(super) fn time(text: &str) -> Option<Ps> {
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

/// The amount of traffic, before the size of messages is known.
pub(super) enum Offered {
    Load(Load),
    /// A fraction of the rate at which a link is full.
    Part {
        part: f64,
        warm_up: Ps,
        time: Ps,
    },
}

impl Raw {
    /// The options of the network, which it has confirmed.
    pub(super) fn options(
        &self,
        file: &TomlFile<'_>,
        links: &Parameters,
    ) -> anyhow::Result<Options> {
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

    pub(super) fn arrivals(&self, file: &TomlFile<'_>) -> Result<Arrivals, FileError> {
        let arrivals = file.checked("arrivals", &self.arrivals, |name| match name.as_str() {
            "even" => Ok(Arrivals::Even),
            "poisson" => Ok(Arrivals::Poisson),
            _ => Err("\"even\" or \"poisson\""),
        })?;
        Ok(arrivals.unwrap_or_default())
    }

    pub(super) fn rails(&self, file: &TomlFile<'_>) -> Result<Rails, FileError> {
        let rails = file.checked("rails", &self.rails, |name| match name.as_str() {
            "single" => Ok(Rails::Single),
            "minimal" => Ok(Rails::Minimal),
            _ => Err("\"single\" or \"minimal\""),
        })?;
        Ok(rails.unwrap_or_default())
    }

    pub(super) fn sizes(&self, file: &TomlFile<'_>) -> Result<Vec<u64>, FileError> {
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

    pub(super) fn pattern(&self, file: &TomlFile<'_>, shape: &Shape) -> anyhow::Result<Pattern> {
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

    pub(super) fn loads(
        &self,
        file: &TomlFile<'_>,
        generation: Generation,
    ) -> anyhow::Result<Vec<Offered>> {
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
    pub(super) fn senders(
        &self,
        file: &TomlFile<'_>,
        shape: &Shape,
    ) -> anyhow::Result<Vec<NodeId>> {
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

    pub(super) fn down(
        &self,
        file: &TomlFile<'_>,
        shape: &Shape,
    ) -> Result<Vec<(Coords, Port)>, FileError> {
        self.down.iter().map(|down| link(file, shape, &down.at, &down.port)).collect()
    }

    /// Returns the errors of each link that has any, by the end that names the link.
    pub(super) fn errors(
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
