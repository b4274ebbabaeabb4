//! `tofu hosts`.

use std::io::{self, Write};

use serde_json::json;
use tofu_abi::Coords;
use tofu_control::{find_machine, info};
use tofu_ipotofu::hosts::Host;

use crate::cli::HostsArgs;

/// Runs `tofu hosts` and returns the exit code.
pub(crate) fn run(args: &HostsArgs) -> anyhow::Result<u8> {
    let (_, control) = find_machine(args.name.as_ref())?;
    let (_, nodes) = info(&control)?;
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
