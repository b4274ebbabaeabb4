//! `tofu ps`.

use std::io::{self, Write};

use clap::Args;
use serde_json::json;
use tofu_abi::Coords;
use tofu_control::protocol::{MachineInfo, NodeInfo};
use tofu_control::{ping, rundir};
use tofu_ui::{printable, table};

/// List the machines that run, and their nodes
///
/// Linux nodes are asked for a sign of life; one that gives none in two seconds is shown as not
/// answering. A node whose router has failed (see `tofu node`) is shown as down.
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
        match ping(&control) {
            Ok(machine) => machines.push((name.to_string(), Ok(machine))),
            // It has come or gone this moment.
            Err(_) if rundir::is_gone(&control) => rundir::clear(&control)?,
            Err(error) => machines.push((name.to_string(), Err(format!("{error:#}")))),
        }
    }
    let mut out = io::stdout().lock();
    if args.json {
        let machines: Vec<_> = machines
            .iter()
            .map(|(name, machine)| match machine {
                Ok(machine) => json!({
                    "name": name, "pid": machine.pid, "shape": machine.shape,
                    "generation": machine.generation, "seconds": machine.seconds,
                    "nodes": machine.nodes,
                }),
                Err(why) => json!({ "name": name, "error": why }),
            })
            .collect();
        writeln!(out, "{}", json!(machines))?;
    } else if machines.is_empty() {
        writeln!(out, "no machine is running")?;
    } else {
        for (name, machine) in &machines {
            match machine {
                Ok(machine) => print(&mut out, name, machine)?,
                Err(why) => writeln!(out, "machine {name}: {}", printable(why))?,
            }
        }
    }
    out.flush()?;
    Ok(0)
}

fn print(out: &mut dyn Write, name: &str, machine: &MachineInfo) -> io::Result<()> {
    let (shape, pid, up) = (&machine.shape, machine.pid, duration(machine.seconds));
    // None while it starts.
    let generation = machine.generation.as_ref().map(|of| format!(", {of}")).unwrap_or_default();
    writeln!(out, "machine {name}: {shape}{generation}, up {up}, process {pid}")?;
    let rows = machine.nodes.iter().map(|node: &NodeInfo| {
        vec![
            node.index.to_string(),
            Coords::from_array(node.at).to_string(),
            node.kind.to_string(),
            state(node),
            node.vmm.clone(),
            node.pid.map_or("-".to_owned(), |pid| pid.to_string()),
            duration(node.seconds),
        ]
    });
    let head = ["index", "node", "kind", "state", "vmm", "process", "for"];
    write!(out, "{}", table(&head, &[0, 5], rows))?;
    Ok(())
}

fn state(node: &NodeInfo) -> String {
    if node.down { format!("{}, down", node.state) } else { node.state.clone() }
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
