//! `tofu sim`: networks and devices in modelled time, without guests.
#![forbid(unsafe_code)]

#[cfg(test)]
mod independent;
mod machine;
mod papers;
mod part;
mod plot;
mod scenario;
mod tnw;
mod traffic;

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;

pub use part::{Common, Meet, Part};
use plot::Curves;

/// Run a network in modelled time, without guests
///
/// `tofu sim papers` prints values that papers have published about the Tofu interconnects and TNW,
/// next to those of this model. With a scenario, which says who sends what to whom, the results of
/// its run are printed.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct SimArgs {
    /// papers, a scenario file, or one of the scenarios torus, uniform, permutation, rails,
    /// neighbour, transpose, hotspot, errors, k and tnw
    #[arg(value_name = "WHAT")]
    what: String,

    /// With papers: as many messages as the papers have, which takes many minutes
    #[arg(long)]
    full: bool,

    /// Print the results as JSON
    #[arg(long)]
    json: bool,

    /// Threads that run the network of a scenario; the results do not depend on their number
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    threads: u32,

    /// Write the curves to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  tofu sim papers                  each published value beside ours
  tofu sim papers --svg papers.svg
  tofu sim uniform                 latency against load, half a rack
  tofu sim torus                   latency against load and saturation, 8x8x8
  tofu sim my.toml --json          your own scenario
  tofu sim k --threads 2           on two processors
  tofu sim k --part 0/2 --join demo
                                   in two processes, with `--part 1/2`, on a host or two
  tofu sim tnw                     messages over three links of TNW at once";

/// Runs `tofu sim`. With `meet`, runs one part of a scenario: the results are those of all parts,
/// and part 0 prints them.
///
/// # Errors
///
/// If `args` names nothing that exists, a result cannot be written, a model fails, or another part
/// is lost.
pub fn run(args: &SimArgs, meet: Option<Box<Meet<'_>>>) -> anyhow::Result<u8> {
    let whole = |what: &str| format!("--part is for scenarios of Tofu's links, and not for {what}");
    if args.what == "papers" {
        ensure!(meet.is_none(), whole("papers"));
        let report = papers::Report::measure(papers::Extent::new(args.full))?;
        return args.print(&report, report.curves(), &report.text());
    }
    ensure!(!args.full, "--full is for papers: a scenario says how many messages there are");
    let text = scenario::text_of(&args.what)?;
    if tnw::scenario::is_of_tnw(&text) {
        ensure!(meet.is_none(), whole("TNW"));
        let report = tnw::scenario::Scenario::parse(&args.what, &text)?.run()?;
        return args.print(&report, &report.curves(), &report.text());
    }
    let scenario = scenario::Scenario::parse(&args.what, &text)?;
    let common = Common { text: &text, threads: args.threads };
    let part = meet.map(|meet| meet(&common)).transpose()?;
    let report = scenario.run(args.threads, part.as_ref())?;
    if part.is_some_and(|part| part.own != 0) {
        return Ok(0);
    }
    args.print(&report, &report.curves(), &report.text())
}

impl SimArgs {
    fn print(&self, report: &impl Serialize, curves: &[Curves], text: &str) -> anyhow::Result<u8> {
        if let Some(path) = &self.svg {
            let picture = plot::svg(curves)?;
            std::fs::write(path, picture)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(report)?)?;
        } else {
            out.write_all(text.as_bytes())?;
        }
        out.flush()?;
        Ok(0)
    }
}
