//! `tofu sim`: networks and devices in modelled time, without guests.
#![forbid(unsafe_code)]

#[cfg(test)]
mod independent;
mod machine;
mod papers;
mod plot;
mod scenario;
mod tnw;
mod traffic;

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;

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
  tofu sim tnw                     messages over three links of TNW at once";

/// Runs `tofu sim` and returns the exit code.
///
/// # Errors
///
/// If `args` names nothing that exists, a result cannot be written, or a model fails.
pub fn run(args: &SimArgs) -> anyhow::Result<u8> {
    if args.what == "papers" {
        let report = papers::Report::measure(papers::Extent::new(args.full))?;
        return args.print(&report, report.curves(), &report.text());
    }
    ensure!(!args.full, "--full is for papers: a scenario says how many messages there are");
    let text = scenario::text_of(&args.what)?;
    if tnw::scenario::is_of_tnw(&text) {
        let report = tnw::scenario::Scenario::parse(&args.what, &text)?.run()?;
        return args.print(&report, &report.curves(), &report.text());
    }
    let report = scenario::Scenario::parse(&args.what, &text)?.run(args.threads)?;
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
