//! Scenario files: a network, and traffic on it.

mod file;
mod report;

use std::borrow::Cow;
use std::path::Path;

use anyhow::{Context, anyhow};
use tofu_abi::frame::TLP_MAX;
use tofu_abi::topology::Shape;
use tofu_links::Parameters;
use tofu_machine::{Generation, Interconnect};
use tofu_ui::TomlFile;

use self::file::{Offered, Raw, SHAPE, TIME, time};
pub(crate) use self::file::{OneOrMore, within};
pub(crate) use self::report::Report;
use self::report::{Described, Row};
use crate::traffic::{ANSWER_BYTES, Limits, Load, MOST_WALKED, Spread, Traffic};

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
        let rows = rows.collect::<anyhow::Result<_>>()?;
        Ok(Report::new(&self.name, &self.title, &self.network, rows))
    }
}

#[cfg(test)]
mod tests;
