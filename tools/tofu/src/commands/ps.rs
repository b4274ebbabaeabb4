//! `tofu ps`.

use std::io::{self, Write};

use clap::Args;
use serde_json::json;
use tofu_abi::Coords;
use tofu_control::protocol::{MachineInfo, NodeInfo};
use tofu_control::{info, rundir};

/// List the machines that stay up, and their nodes
#[derive(Debug, Clone, Args)]
pub(crate) struct PsArgs {
    /// Print the list as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `tofu ps` and returns the exit code.
pub(crate) fn run(args: &PsArgs) -> anyhow::Result<u8> {
    let mut machines = Vec::new();
    for (name, control) in rundir::machines()? {
        match info(&control) {
            Ok((machine, nodes)) => machines.push((name.to_string(), machine, nodes)),
            // It has come or gone this moment.
            Err(_) if rundir::is_gone(&control) => rundir::clear(&control)?,
            Err(error) => log::warn!("machine {name}: {error:#}"),
        }
    }
    let mut out = io::stdout().lock();
    if args.json {
        let machines: Vec<_> = machines
            .iter()
            .map(|(name, machine, nodes)| {
                json!({
                    "name": name, "pid": machine.pid, "shape": machine.shape,
                    "seconds": machine.seconds, "nodes": nodes,
                })
            })
            .collect();
        writeln!(out, "{}", json!(machines))?;
    } else if machines.is_empty() {
        writeln!(out, "no machine is running")?;
    } else {
        for (name, machine, nodes) in &machines {
            print(&mut out, name, machine, nodes)?;
        }
    }
    out.flush()?;
    Ok(0)
}

fn print(
    out: &mut dyn Write,
    name: &str,
    machine: &MachineInfo,
    nodes: &[NodeInfo],
) -> io::Result<()> {
    let (shape, pid, up) = (&machine.shape, machine.pid, duration(machine.seconds));
    writeln!(out, "machine {name}: {shape}, up {up}, process {pid}")?;
    let at = |node: &NodeInfo| Coords::from_array(node.at).to_string();
    let width = nodes.iter().map(|node| at(node).len()).max().unwrap_or(0).max("node".len());
    writeln!(
        out,
        "{:>5}  {:width$}  {:8}  {:5}  {:>8}  for",
        "index", "node", "state", "vmm", "process"
    )?;
    for node in nodes {
        let pid = node.pid.map_or("-".to_owned(), |pid| pid.to_string());
        writeln!(
            out,
            "{:>5}  {:width$}  {:8}  {:5}  {:>8}  {}",
            node.index,
            at(node),
            node.state,
            node.vmm,
            pid,
            duration(node.seconds)
        )?;
    }
    Ok(())
}

/// A time that people read.
fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_readable() {
        assert_eq!(duration(9.26), "9.3 s");
        assert_eq!(duration(61.9), "1 min 1 s");
        assert_eq!(duration(7260.0), "2 h 1 min");
    }
}
