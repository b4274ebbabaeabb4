//! `tofu sim`: networks in modelled time, without guests.

use std::path::PathBuf;

use clap::Args;
use tofu_sim::Options;

/// Run a network in modelled time, without guests
///
/// `tofu sim papers` prints values that papers have published about the Tofu interconnects and TNW,
/// next to those of this model. `tofu sim tables` prints the TofuD paper's tables of the
/// generations from this model's parameters. `tofu sim measured` runs programs in modelled time,
/// and prints their times next to what was measured on Fugaku. Given a scenario (a traffic
/// pattern), it runs that and prints the results.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimArgs {
    /// papers, tables, measured, a scenario file, or one of the scenarios torus, uniform,
    /// permutation, rails, job, neighbour, transpose, hotspot, errors, k and tnw
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

    /// With measured: the time of an instruction of a program, in nanoseconds; 0.3 unless said,
    /// three instructions in two cycles of an A64FX at 2.2 GHz
    #[arg(long, value_name = "NS", value_parser = nanoseconds)]
    ns_per_instruction: Option<f64>,
}

fn nanoseconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|ns| (0.0..=1000.0).contains(ns));
    number.ok_or_else(|| format!("{text:?} is no number of nanoseconds from 0 to 1000"))
}

const EXAMPLES: &str = "\
Examples:
  tofu sim papers                  each published value beside ours
  tofu sim papers --svg papers.svg
  tofu sim tables                  the generations side by side
  tofu sim measured                programs beside their times on Fugaku
  tofu sim uniform                 latency against load, half a rack
  tofu sim torus                   latency against load and saturation, 8x8x8
  tofu sim my.toml --json          your own scenario
  tofu sim k --threads 2           on two processors
  tofu sim tnw                     messages over three links of TNW at once";

/// Runs `tofu sim` and returns the exit code.
pub(crate) fn run(args: &SimArgs) -> anyhow::Result<u8> {
    let SimArgs { what, full, json, threads, svg, ns_per_instruction } = args.clone();
    tofu_sim::run(&Options { what, full, json, threads, svg, ns_per_instruction })
}
