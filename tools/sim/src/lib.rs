//! `tofu sim`: networks and devices in modelled time, without guests.
#![deny(unsafe_code)]

#[cfg(test)]
mod independent;
mod machine;
mod measured;
mod papers;
mod plot;
mod scenario;
mod tnw;
mod traffic;

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, ensure};
use serde::Serialize;

use plot::Curves;

/// Options of `tofu sim`.
#[derive(Debug, Clone)]
pub struct Options {
    /// `papers`, `tables`, `measured`, a scenario file, or the name of a scenario.
    pub what: String,
    /// True if there are as many messages as the papers have.
    pub full: bool,
    /// True if the results are printed as JSON.
    pub json: bool,
    /// Threads that run the network of a scenario. The results do not depend on their number.
    pub threads: u32,
    /// The file for the curves, as SVG.
    pub svg: Option<PathBuf>,
    /// The time of an instruction of a program in nanoseconds, if not that of an A64FX.
    pub ns_per_instruction: Option<f64>,
}

/// Runs `tofu sim` and returns the exit code.
///
/// # Errors
///
/// If `args` names nothing that exists, a result cannot be written, or a model fails.
pub fn run(args: &Options) -> anyhow::Result<u8> {
    ensure!(
        args.ns_per_instruction.is_none() || args.what == "measured",
        "--ns-per-instruction is only for measured, which runs programs"
    );
    ensure!(
        !args.full || args.what == "papers",
        "--full is for papers: a scenario says how many messages there are"
    );
    if args.what == "papers" {
        let report = papers::Report::measure(papers::Extent::new(args.full))?;
        return args.print(&report, report.curves(), &report.text());
    }
    if args.what == "tables" {
        let tables = papers::Tables::new()?;
        return args.print(&tables, &[], &tables.text());
    }
    if args.what == "measured" {
        let speed = args.ns_per_instruction.unwrap_or(measured::NS_PER_INSTRUCTION);
        let report = measured::Report::measure(speed)?;
        return args.print(&report, report.curves(), &report.text());
    }
    let text = scenario::text_of(&args.what)?;
    if tnw::scenario::is_of_tnw(&text) {
        let report = tnw::scenario::Scenario::parse(&args.what, &text)?.run()?;
        return args.print(&report, &report.curves(), &report.text());
    }
    let report = scenario::Scenario::parse(&args.what, &text)?.run(args.threads)?;
    args.print(&report, &report.curves(), &report.text())
}

impl Options {
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
