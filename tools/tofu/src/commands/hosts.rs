//! `tofu hosts`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use tofu_abi::Coords;
use tofu_control::{MachineName, find_machine, info};
use tofu_ipotofu::hosts::Host;

use crate::commands::slurm;

/// Print the names and addresses of a machine's nodes, as lines of /etc/hosts
///
/// They are useful on the host if the machine has a gateway; Linux nodes already have them. `tofu
/// hosts init` is for the hosts that a machine in shards runs on.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct HostsArgs {
    /// Machine; not needed if only one runs
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<MachineName>,

    /// The number that the machine was given by `tofu up --ip-number N`, a part of its addresses
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=7))]
    pub(crate) machine: u8,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(subcommand)]
    command: Option<HostsCommand>,
}

#[derive(Debug, Clone, Subcommand)]
enum HostsCommand {
    /// Create the folder of a machine in shards, with the shards' addresses, keys and certificates
    ///
    /// Each shard has a key and a certificate in it. Copy parts.toml, authority.pem and the folder
    /// part-I to the host of shard I; any holder of these files can act as that shard. Then start
    /// each shard with `tofu up --shard I/N --join DIR`.
    #[command(after_help = EXAMPLES)]
    Init(InitArgs),
}

#[derive(Debug, Clone, Args)]
struct InitArgs {
    /// Where each shard listens, shard 0 first: an address or name of its host, and a port
    #[arg(value_name = "HOST:PORT", required_unless_present = "slurm")]
    addresses: Vec<String>,

    /// Use the hosts of the Slurm job that this runs in: one shard for each task, in the order of
    /// `--distribution=block`
    #[arg(long, conflicts_with = "addresses")]
    slurm: bool,

    /// With --slurm: the port of the first shard on each host; further shards use the following
    /// ports
    #[arg(long, value_name = "PORT", default_value_t = 7700, requires = "slurm")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,

    /// Folder to create
    #[arg(long, value_name = "DIR", default_value = "tofu-hosts")]
    dir: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  tofu hosts init --dir demo 127.0.0.1:7700 127.0.0.1:7701
      two shards on this host
  tofu hosts init node1:7700 node2:7700 node3:7700 node4:7700
      four shards, one on each host
  tofu hosts init --slurm --dir /shared/demo
      a shard for each task of a Slurm job, in its batch script";

/// Runs `tofu hosts` and returns the exit code.
pub(crate) fn run(args: &HostsArgs) -> anyhow::Result<u8> {
    if let Some(HostsCommand::Init(args)) = &args.command {
        return init(args);
    }
    let (_, control) = find_machine(args.name.as_ref())?;
    let nodes = info(&control)?.nodes;
    let hosts: Vec<_> = nodes
        .iter()
        .map(|node| Host::new(args.machine, Coords::from_array(node.at), node.index))
        .collect();
    let mut out = io::stdout().lock();
    if args.json {
        let hosts: Vec<_> = hosts
            .iter()
            .map(|host| {
                json!({
                    "node": host.node.to_array(), "index": host.rank,
                    "name": host.name().to_string(), "alias": host.alias().to_string(),
                    "ipv4": host.ipv4, "ipv6": host.ipv6,
                })
            })
            .collect();
        writeln!(out, "{}", json!(hosts))?;
    } else {
        for host in hosts {
            write!(out, "{host}")?;
        }
    }
    out.flush()?;
    Ok(0)
}

fn init(InitArgs { addresses, slurm, port, dir }: &InitArgs) -> anyhow::Result<u8> {
    let addresses = match slurm {
        true => &slurm::addresses(&slurm::environment, *port)?,
        false => addresses,
    };
    tofu_cables::hosts::init(dir, addresses)?;
    let (count, dir) = (addresses.len(), dir.display());
    let mut out = io::stdout().lock();
    for (shard, address) in addresses.iter().enumerate() {
        writeln!(out, "shard {shard} at {address}: tofu up --shard {shard}/{count} --join {dir}")?;
    }
    out.flush()?;
    Ok(0)
}
