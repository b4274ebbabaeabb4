//! `tofu time`: the time of a machine in modelled time.

use std::io::{self, Write};
use std::path::Path;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::json;
use tofu_abi::Coords;
use tofu_control::protocol::{GuestTimeInfo, MachineInfo, NodeInfo, Request};
use tofu_control::rundir::node_file;
use tofu_control::{MachineName, ask, find_machine, info};
use tofu_linux_nodes::qemu::Qmp;
use tofu_spec::units::Until;
use tofu_ui::table;

/// The poll interval for a machine to reach the time.
const LOOK: Duration = Duration::from_millis(20);
/// The time limit for a virtual machine to stop after its time was stopped, on a busy host.
const STOPS: Duration = Duration::from_secs(30);

/// Show the time of a machine in modelled time, and what its guests spend on it
///
/// Prints the modelled time that has passed, the host's time for it, and for each guest: the
/// modelled time in which it was awake, the host's time in which it ran, how often it stopped to
/// request more time, its accesses to the device, the commands that its device has started, the
/// modelled time in which any of them was in flight, and the link of its node at which packets
/// waited longest for room at the other end. The guest that was awake longest is marked: the others
/// waited for it. If `tofu up --until` has stopped the time, it can be resumed.
#[derive(Debug, Clone, Args)]
pub(crate) struct TimeArgs {
    /// The machine; not needed if only one runs
    #[arg(value_name = "NAME")]
    machine: Option<MachineName>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Resume stopped time until another time, such as 250ms, and show it then
    #[arg(long, value_name = "TIME", conflicts_with = "go_on")]
    until: Option<Until>,

    /// Resume stopped time
    #[arg(long)]
    go_on: bool,
}

/// Continues a virtual machine by its monitor, once it has stopped.
fn continue_by(monitor: &Path) -> anyhow::Result<()> {
    let mut monitor = Qmp::connect(monitor)?;
    let until = Instant::now() + STOPS;
    while monitor.command("query-status", json!({}))?["running"] != false {
        ensure!(Instant::now() < until, "it does not stop");
        sleep(LOOK);
    }
    monitor.command("cont", json!({})).map(drop)
}

/// Resumes time, until `until` if given.
fn go_on(control: &Path, until: Option<u64>) -> anyhow::Result<()> {
    let nodes = info(control)?.nodes;
    ask(control, &Request::GoOn { until })?;
    let folder = control.parent().context("a socket without a folder")?;
    let goes_on = |node: &NodeInfo| {
        let monitor = folder.join(node_file("qmp", Coords::from_array(node.at), "sock"));
        if let Err(error) = continue_by(&monitor) {
            tofu_ui::tell!("tofu: node {}: it cannot be resumed: {error:#}", node.index);
        }
    };
    // All in parallel, because each may answer only when all others have continued.
    thread::scope(|scope| {
        for node in nodes.iter().filter(|node| node.is_linux() && node.state != "off") {
            scope.spawn(move || goes_on(node));
        }
    });
    Ok(())
}

/// Runs `tofu time` and returns the exit code.
pub(crate) fn run(args: &TimeArgs) -> anyhow::Result<u8> {
    let until = match args.until {
        Some(Until::Time(ps)) => Some(ps),
        Some(until) => bail!("--until {until}: give a modelled time, such as 250ms"),
        None => None,
    };
    let (name, control) = find_machine(args.machine.as_ref())?;
    if until.is_some() || args.go_on {
        go_on(&control, until).with_context(|| format!("machine {name}"))?;
    }
    let stands = |control| anyhow::Ok(info(control)?.time.is_none_or(|time| time.stands.is_some()));
    while until.is_some() && !stands(&control)? {
        sleep(LOOK);
    }
    let MachineInfo { time, seconds, .. } = info(&control)?;
    let Some(time) = time else {
        bail!("the machine {name} keeps the host's time; start it with --time modelled");
    };
    let mut out = io::stdout().lock();
    let slower = seconds * 1e9 / (time.modelled_ns.max(1) as f64);
    if args.json {
        writeln!(out, "{}", json!({ "name": name, "seconds": seconds, "time": time }))?;
        return Ok(0);
    }
    writeln!(out, "{}", time.summary())?;
    if let Some(stands) = &time.stands {
        writeln!(out, "{}", stands.text)?;
    }
    writeln!(out, "the host took {seconds:.1} s, {slower:.2} times as long")?;
    let slowest = time.guests.iter().map(|guest| guest.awake_ns).max();
    let seconds = |ns: u64| format!("{:.6}", ns as f64 / 1e9);
    let rows = time.guests.iter().map(|guest: &GuestTimeInfo| {
        let mark = if Some(guest.awake_ns) == slowest { " *" } else { "" };
        vec![
            guest.node.to_string(),
            Coords::from_array(guest.at).to_string(),
            seconds(guest.awake_ns) + mark,
            seconds(guest.host_ns),
            guest.steps.to_string(),
            guest.accesses.to_string(),
            guest.commands.to_string(),
            seconds(guest.in_flight_ns),
            guest
                .longest_wait()
                .map_or_else(String::new, |(port, ns)| format!("{port} {}", seconds(ns))),
        ]
    });
    let head = [
        "index",
        "node",
        "awake s",
        "host s",
        "steps",
        "accesses",
        "commands",
        "in flight s",
        "waited s",
    ];
    write!(out, "{}", table(&head, &[0, 3, 4, 5, 6, 7], rows))?;
    Ok(0)
}
