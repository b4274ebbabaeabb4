//! `tofu prove`: what a driver keeps, breaks, survives and leaves behind.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use tofu_prove::Options;
use tofu_spec::device_faults::DeviceFaultSpec;
use tofu_spec::units::{Interconnect, Timeout};

use crate::fault_plan;

/// Prove a driver on two Linux nodes
///
/// Boots two nodes, loads the driver there, sends traffic, binds it anew, resets the device, also
/// under load, takes the link down and up, reloads the driver many times and unloads it. Prints
/// which rules of the registers the driver has kept, broken and never met, what it has left behind,
/// and what the kernels' logs complain of. The manual's page Rules has all rules.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ProveArgs {
    /// A module (.ko), a folder with its source and Kbuild, or a static program that drives the
    /// device through VFIO [default: tofu.ko, as images have it]. Several modules are proved one
    /// after the other, with a report each
    #[arg(value_name = "DRIVER")]
    drivers: Vec<PathBuf>,

    /// Parent folder with more files that the sources need, such as headers [default: the folder
    /// itself]
    #[arg(long, value_name = "FOLDER")]
    base: Option<PathBuf>,

    /// Parameters of the modules, or arguments of the program
    #[arg(value_name = "ARG", last = true)]
    arguments: Vec<String>,

    /// Shell command that both nodes run as traffic, at the same time; $NODE is 0 or 1, and $PEER
    /// the other node's IP address, if the driver has an interface. Can be repeated
    #[arg(long, value_name = "COMMAND")]
    traffic: Vec<String>,

    /// File to copy to /tmp of both nodes, for --traffic. Can be repeated
    #[arg(long, value_name = "FILE")]
    copy: Vec<PathBuf>,

    /// Only load, traffic, stopped queue, interface down and up, reset, faults and unload
    #[arg(long)]
    quick: bool,

    /// Faults of both devices to play, as in `tofu fault device`. Can be repeated
    #[arg(long, value_name = "FAULTS")]
    fault: Vec<DeviceFaults>,

    /// The same from a file, as in `tofu fault device --plan`. Can be repeated
    #[arg(long, value_name = "FILE")]
    plan: Vec<PathBuf>,

    /// Number of times to unload and load the driver, or to run the program again
    #[arg(long, value_name = "N", default_value_t = 20)]
    reloads: u32,

    /// Kernel and image of the nodes, for which a folder is compiled, such as driver-debug, whose
    /// kernel checks locks and memory; not for programs
    #[arg(long, value_name = "KERNEL", default_value = "driver-cloud")]
    kernel: String,

    /// Generation of the devices
    #[arg(long, value_name = "GENERATION")]
    generation: Option<Interconnect>,

    /// Time after which a command on a node counts as hung; to boot, it has twice as long
    #[arg(long, value_name = "TIME", default_value = "60s")]
    patience: Timeout,

    /// Time after which no further command is started, for each driver
    #[arg(long, value_name = "TIME", default_value = "15m")]
    limit: Timeout,

    /// Print the report as JSON; those about several drivers as an array
    #[arg(long)]
    json: bool,

    /// Write the report to this file, as JUnit
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Write the broken rules to this file, as SARIF
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,
}

/// Faults of a device, as text.
#[derive(Debug, Clone)]
struct DeviceFaults(String);

impl FromStr for DeviceFaults {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<DeviceFaultSpec>().map(|_| Self(text.to_owned()))
    }
}

const EXAMPLES: &str = "\
Examples:
  tofu prove                      the shipped driver
  tofu prove ./first_put          a folder with Kbuild, compiled for the nodes' kernel
  tofu prove --base . ./driver    its Kbuild names -I$(src)/../include
  tofu prove wrong/*.ko --quick   one after the other on the same nodes
  tofu prove my.ko --reloads 100 -- debug=1
  tofu prove ./my-vfio --junit report.xml

Exit codes: 0 nothing broke; 1 something did; 2 the driver cannot be tried.";

/// Runs `tofu prove` and returns the exit code.
pub(crate) fn run(args: &ProveArgs) -> anyhow::Result<u8> {
    let args = args.clone();
    let plans = args.plan.iter().map(|plan| fault_plan::read(plan));
    let plans = plans.collect::<anyhow::Result<Vec<_>>>()?;
    let faults = args.fault.into_iter().map(|DeviceFaults(text)| text).chain(plans);
    tofu_prove::run(&Options {
        drivers: args.drivers,
        base: args.base,
        arguments: args.arguments,
        kernel: args.kernel,
        generation: args.generation,
        quick: args.quick,
        reloads: args.reloads,
        traffic: args.traffic,
        faults: faults.collect(),
        copy: args.copy,
        patience: args.patience.0,
        limit: args.limit.0,
        json: args.json,
        junit: args.junit,
        sarif: args.sarif,
    })
}
