//! The command line of `tofu bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Measure this emulation on this host
///
/// Each figure stands beside a baseline that was measured in the same run, as the
/// host may be busy: compare ratios rather than times.
#[derive(Debug, Clone, Args)]
#[command(after_help = BENCH_EXAMPLES)]
pub struct BenchArgs {
    /// Measure only this part
    #[arg(long, value_name = "PART")]
    pub(crate) only: Option<BenchPart>,

    /// Measure briefly, and no large machines
    #[arg(long)]
    pub(crate) quick: bool,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// utofu-perf, linked statically, to measure uTofu on the driver and on VFIO; the manual's
    /// page on uTofu says how to build it
    #[arg(long, value_name = "FILE")]
    pub(crate) utofu_perf: Option<PathBuf>,

    /// Write a picture of the barriers' figures to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// A part of `tofu bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchPart {
    /// Puts in this process by size, and commands a second, against a memory copy
    Put,
    /// Messages of TNW in this process by size, against Puts of Tofu and memory copies
    Tnw,
    /// Latency between two guests in each doorbell mode
    Guests,
    /// Barriers and sums of twelve guests, by gates and by Puts
    Barrier,
    /// Machines of 1 to 192 nodes from start to end, and their memory
    Boot,
    /// Two Linux nodes, against an Ethernet and soft RoCE between the same guests
    Linux,
    /// Linux nodes with Fugaku's processor, against x86 ones: until they are ready, and Puts
    Arm64,
    /// IP between two nodes, against virtio-net on a bridge, and TCP/IP stacks on a veth pair
    Ip,
    /// The kernel driver, against VFIO and tofu-net on the same device, and virtio-net; needs its
    /// kernel (tofu image build --kernel driver-cloud)
    Driver,
}

const BENCH_EXAMPLES: &str = "\
Examples:
  tofu bench                      everything, some minutes
  tofu bench --only put --quick   a first impression
  tofu bench --json > host.json   for scripts";
