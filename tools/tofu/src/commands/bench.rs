//! `tofu bench`: figures of this host, each beside a baseline.

use std::path::PathBuf;

use clap::Args;
use tofu_bench::{BenchPart, Options};

use crate::options::choice;

/// Measure this emulation on this host
///
/// Each figure stands beside a baseline that was measured in the same run, as the
/// host may be busy: compare ratios rather than times.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Measure only this part
    #[arg(long, value_name = "PART", value_parser = choice::<BenchPart>())]
    only: Option<BenchPart>,

    /// Measure briefly, and no large machines
    #[arg(long)]
    quick: bool,

    /// Print the figures as JSON
    #[arg(long)]
    json: bool,

    /// utofu-perf, linked statically, to measure uTofu on the driver and on VFIO; the manual's
    /// page on uTofu says how to build it
    #[arg(long, value_name = "FILE")]
    utofu_perf: Option<PathBuf>,

    /// Write a picture of the barriers' figures to this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Append the figures to this file as a line of JSON, and show those that changed by 10 % or
    /// more since the last run of this kind on this host
    #[arg(long, value_name = "FILE")]
    trend: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  tofu bench                      everything, some minutes
  tofu bench --only put --quick   a first impression
  tofu bench --json > host.json   for scripts
  tofu bench --trend nights.json  tonight's figures, against the last night's";

/// Runs `tofu bench` and returns the exit code.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<u8> {
    let BenchArgs { only, quick, json, utofu_perf, plot, trend } = args.clone();
    tofu_bench::run(&Options { only, quick, json, utofu_perf, plot, trend })
}
