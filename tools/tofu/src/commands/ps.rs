//! `tofu ps`.

use std::io::{self, Write};

use clap::Args;
use serde_json::json;
use tofu_abi::Coords;
use tofu_control::protocol::{JobInfo, MachineInfo, NodeInfo, ShardInfo, ShardState};
use tofu_control::{MachineName, Present, find_present, ping, present, rundir};
use tofu_ui::{printable, table};

/// List the running machines, their nodes and their jobs
///
/// Linux nodes are pinged; a node that does not reply within two seconds is shown as not answering.
/// A node whose router has failed (see `tofu node`) is shown as down. Jobs of `tofu run` are listed
/// with their nodes; jobs that wait for nodes are shown as queued. A machine in shards is listed
/// once, with the nodes of all shards that answer.
#[derive(Debug, Clone, Args)]
pub(crate) struct PsArgs {
    /// Only this machine
    #[arg(value_name = "NAME")]
    pub(crate) machine: Option<MachineName>,

    /// Print the list as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `tofu ps` and returns the exit code.
pub(crate) fn run(args: &PsArgs) -> anyhow::Result<u8> {
    let mut machines = Vec::new();
    let present = match &args.machine {
        Some(name) => vec![find_present(Some(name))?],
        None => present()?,
    };
    for machine in present {
        if let Some(seen) = look(&machine)? {
            machines.push((machine.name.to_string(), seen));
        }
    }
    let mut out = io::stdout().lock();
    if args.json {
        let machines: Vec<_> = machines
            .iter()
            .map(|(name, machine)| match machine {
                Ok(machine) => json!({
                    "name": name, "pid": machine.pid, "shape": machine.shape,
                    "generation": machine.generation, "arch": machine.arch,
                    "seconds": machine.seconds, "time": machine.time, "nodes": machine.nodes,
                    "jobs": machine.jobs,
                    "parts": machine.shards,
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

/// A machine's description of itself, or the error; `None` if it has gone.
fn look(machine: &Present) -> anyhow::Result<Option<Result<MachineInfo, String>>> {
    let mut seen = None;
    // Any shard answers for all.
    for (_, control) in &machine.sockets {
        match ping(control) {
            Ok(info) => return Ok(Some(Ok(info))),
            // It has come or gone this moment.
            Err(_) if rundir::has_ended(control) => rundir::clear(control)?,
            Err(error) => seen = Some(Err(format!("{error:#}"))),
        }
    }
    Ok(seen)
}

fn print(out: &mut dyn Write, name: &str, machine: &MachineInfo) -> io::Result<()> {
    let (shape, pid, up) = (&machine.shape, machine.pid, duration(machine.seconds));
    // None while it starts.
    let generation = machine.generation.as_ref().map(|of| format!(", {of}")).unwrap_or_default();
    let in_shards = !machine.shards.is_empty();
    match machine.shards.len() {
        0 => writeln!(out, "machine {name}: {shape}{generation}, up {up}, process {pid}")?,
        shards => writeln!(out, "machine {name}: {shape}{generation}, up {up}, {shards} shards")?,
    }
    if let Some(time) = &machine.time {
        writeln!(out, "{}", time.summary())?;
    }
    let has_jobs = !machine.jobs.is_empty();
    let rows = machine.nodes.iter().map(|node: &NodeInfo| {
        let mut row = vec![
            node.index.to_string(),
            Coords::from_array(node.at).to_string(),
            node.kind.to_string(),
            state(node),
            node.vmm.clone(),
            node.pid.map_or("-".to_owned(), |pid| pid.to_string()),
            duration(node.seconds),
        ];
        let shard = || node.shard.map_or("-".to_owned(), |shard| shard.to_string());
        row.extend(in_shards.then(shard));
        row.extend(has_jobs.then(|| JobInfo::numbers(&machine.jobs, node.index)));
        row
    });
    let mut head = vec!["index", "node", "kind", "state", "vmm", "process", "for"];
    head.extend(in_shards.then_some("shard"));
    head.extend(has_jobs.then_some("job"));
    write!(out, "{}", table(&head, &[0, 5], rows))?;
    if in_shards {
        let rows = machine.shards.iter().map(|shard: &ShardInfo| {
            // The process number of another host has no meaning here.
            let ShardInfo { shard, address, pid, state } = shard;
            let state = match state {
                ShardState::Here => format!("here, process {pid}"),
                state => state.to_string(),
            };
            vec![shard.to_string(), printable(address), state]
        });
        write!(out, "{}", table(&["shard", "address", "state"], &[0], rows))?;
    }
    if has_jobs {
        let rows = machine.jobs.iter().map(|job: &JobInfo| {
            vec![
                job.job.to_string(),
                job.state.to_string(),
                job.pid.map_or("-".to_owned(), |pid| pid.to_string()),
                duration(job.seconds),
                job.shape.clone().unwrap_or_else(|| "-".to_owned()),
                has(job),
                job.command.clone(),
            ]
        });
        let head = ["job", "state", "process", "for", "shape", "nodes", "command"];
        write!(out, "{}", table(&head, &[0, 2], rows))?;
    }
    Ok(())
}

/// The resources of a job.
fn has(job: &JobInfo) -> String {
    match (&job.nodes[..], job.alone) {
        ([], _) => "-".to_owned(),
        (nodes, true) => format!("{} alone", ranges(nodes)),
        (nodes, false) => ranges(nodes),
    }
}

/// Numbers in ascending order, such as `0-3 6`.
fn ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in sorted {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(" ")
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
    fn nodes_of_a_job_are_short() {
        assert_eq!(ranges(&[6, 0, 2, 1, 3]), "0-3 6");
        assert_eq!(ranges(&[7, u32::MAX]), "7 4294967295");
    }

    #[test]
    fn durations_are_readable() {
        assert_eq!(duration(9.26), "9.3 s");
        assert_eq!(duration(61.9), "1 min 1 s");
        assert_eq!(duration(7260.0), "2 h 1 min");
    }
}
