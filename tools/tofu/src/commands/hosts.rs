//! `tofu hosts`.

use std::io::{self, Write};

use clap::Args;
use serde_json::json;
use tofu_abi::Coords;
use tofu_control::{MachineName, find_machine, info};
use tofu_ipotofu::hosts::Host;

/// Print the names and addresses of a machine's nodes, as lines of /etc/hosts
///
/// On the host they are of use where there is a gateway to the machine; Linux nodes have them.
#[derive(Debug, Clone, Args)]
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
}

/// Runs `tofu hosts` and returns the exit code.
pub(crate) fn run(args: &HostsArgs) -> anyhow::Result<u8> {
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
