//! `tofu time`: the time of a machine in modelled time.

use std::io::{self, Write};

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tofu_abi::Coords;
use tofu_control::protocol::{GuestTimeInfo, MachineInfo};
use tofu_control::{MachineName, find_machine, info};
use tofu_ui::table;

/// Show the time of a machine in modelled time, and what its guests spend on it
///
/// Prints how much modelled time has passed, how long the host took for it, and of each guest: the
/// modelled time in which it was awake, the host's time in which it ran, how often it stopped to
/// ask how far it may run, and its accesses to the device. The guest that was awake longest is
/// marked: the others waited for it.
#[derive(Debug, Clone, Args)]
pub(crate) struct TimeArgs {
    /// The machine; not needed if only one runs
    #[arg(value_name = "NAME")]
    machine: Option<MachineName>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `tofu time` and returns the exit code.
pub(crate) fn run(args: &TimeArgs) -> anyhow::Result<u8> {
    let (name, control) = find_machine(args.machine.as_ref())?;
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
        ]
    });
    let head = ["index", "node", "awake s", "host s", "steps", "accesses"];
    write!(out, "{}", table(&head, &[0, 3, 4, 5], rows))?;
    Ok(0)
}
