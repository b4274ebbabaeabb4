//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tofu_fabric::Shape;

use crate::units::{Doorbell, Engines, GuestArgs, MemorySize, Timeout};

/// Run a Tofu machine of virtual machines
///
/// tofu builds a machine out of virtual machines: each is a node with an emulated
/// TofuD interface controller on its PCI Express bus, and the controllers are
/// linked into the 6D mesh/torus that the K computer and Fugaku use. Programs in
/// the guests move data between each other's memory by RDMA.
#[derive(Debug, Parser)]
#[command(name = "tofu", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Start here:
  tofu doctor                     what this host can do
  tofu up                         12 VMs, one Tofu unit, every pair exchanges data
  tofu topo                       the same machine on paper
  tofu up --help                  shapes, guests, machine files

Exit codes: 0 all guests succeeded; 1 a guest failed; 2 bad input or the host
cannot run this; 130 interrupted.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(UpArgs),
    Doctor(DoctorArgs),
    Topo(TopoArgs),
    Bench(BenchArgs),
    #[command(subcommand)]
    Guest(GuestCommand),
}

/// Which machine.
#[derive(Debug, Clone, Args)]
pub(crate) struct ShapeArgs {
    /// Shape of the machine: unit, shelf, half-rack, or six lengths
    ///
    /// Six lengths are XxYxZxAxBxC: X, Y and Z 1 to 32, A and C 1 to 2, B 1 to 3.
    /// unit is 1x1x1x2x3x2 (12 nodes), shelf 1x1x4x2x3x2 (48), half-rack 2x2x4x2x3x2
    /// (192). [default: unit]
    #[arg(long, value_name = "SHAPE")]
    pub(crate) shape: Option<Shape>,

    /// Machine file (TOML)
    ///
    /// Options on the command line win over the file's machine-wide settings.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// Boot a machine and run a guest program on every node
///
/// Boots one VM per node, shows what the guests print with the coordinates of
/// their nodes, and ends when all guests have ended, the time is over, or you
/// press Ctrl-C. A guest succeeds if it exits with code 0.
#[derive(Debug, Clone, Parser)]
#[command(after_help = UP_EXAMPLES)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,

    /// Guest program: a shipped one (see `tofu guest ls`) or the path of an ELF file
    ///
    /// A path has a / or ends in .elf. [default: allpairs]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) guest: Option<String>,

    /// Text to append to every guest's command line
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) args: Option<GuestArgs>,

    /// Boot VMs on the first N nodes only
    ///
    /// Nodes are numbered with X slowest and C fastest. The others are there as
    /// devices without a VM: they forward packets and answer what their reset state
    /// answers. [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) nodes: Option<u32>,

    /// Guest memory of each node, such as 16MiB [default: 16MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<MemorySize>,

    /// End guests that still run after this time, such as 30s [default: 60s]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Timeout>,

    /// How doorbells reach the devices [default: auto]
    #[arg(long, value_name = "MODE")]
    pub(crate) doorbell: Option<Doorbell>,

    /// Number of engine threads that move data, 1 to 256 [default: from the host's cores]
    #[arg(long, value_name = "N")]
    pub(crate) engines: Option<Engines>,

    /// Print one JSON object per event and a summary at the end
    #[arg(long)]
    pub(crate) json: bool,
}

const UP_EXAMPLES: &str = "\
Examples:
  tofu up
      a Tofu unit, every node exchanges data with every other
  tofu up --shape half-rack --guest ring
      192 VMs pass a token around
  tofu up --shape 4x1x1x1x1x1 --guest pingpong --args 'max=4096'
      four nodes on a ring
  tofu up --guest ./target/release/mine.elf --nodes 2 --timeout 10s
      your own program on two nodes
  tofu up -c machine.toml --json
      a machine file; output for scripts

A machine file:
  shape = \"2x1x1x2x3x2\"
  torus = { x = false }
  guest = \"ring\"

  [[link]]                          # this link starts down
  at = [0, 0, 0, 0, 0, 0]
  port = \"B+\"
  down = true";

/// Say what this host can and cannot do
///
/// Looks at KVM, processors, memory and limits, and says in plain words what they
/// mean. Exits with 0 if machines can run here and with 1 if not.
#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show a machine's nodes and links as text or as a picture
#[derive(Debug, Clone, Args)]
#[command(after_help = TOPO_EXAMPLES)]
pub(crate) struct TopoArgs {
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,

    /// Write a picture of the 6D box to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Print the machine as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const TOPO_EXAMPLES: &str = "\
Examples:
  tofu topo
  tofu topo --shape half-rack --svg half-rack.svg
  tofu topo -c machine.toml --json";

/// Measure this emulation on this host
///
/// Each figure stands beside a baseline that was measured in the same run, as the
/// host may be busy: compare ratios rather than times.
#[derive(Debug, Clone, Args)]
#[command(after_help = BENCH_EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Measure only this part
    #[arg(long, value_name = "PART")]
    pub(crate) only: Option<BenchPart>,

    /// Measure briefly, and no large machines
    #[arg(long)]
    pub(crate) quick: bool,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A part of `tofu bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchPart {
    /// Puts in this process by size, and commands a second, against a memory copy
    Put,
    /// Latency between two guests in each doorbell mode
    Guests,
    /// Machines of 1 to 192 nodes from start to end, and their memory
    Boot,
}

const BENCH_EXAMPLES: &str = "\
Examples:
  tofu bench                      everything, about two minutes
  tofu bench --only put --quick   a first impression
  tofu bench --json > host.json   for scripts";

/// List the shipped guest programs, or start one of your own
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum GuestCommand {
    /// List the shipped guest programs
    Ls {
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a new guest program from a template
    ///
    /// Creates the folder DIR with a crate that builds into an ELF file for
    /// `tofu up --guest`. The last part of DIR is the crate's name.
    New {
        /// The folder to create
        dir: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help() {
        let mut command = Cli::command();
        command.build();
        for sub in command.get_subcommands() {
            assert!(sub.get_about().is_some(), "{}", sub.get_name());
            for argument in sub.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", sub.get_name(), argument.get_id());
            }
        }
    }
}
