//! `tofu events`.

use std::io::{self, Write};

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tofu_abi::Coords;
use tofu_control::protocol::{EventInfo, EventKind, Reply, Request, seconds};
use tofu_control::{Connection, MachineName, find_machine, rundir};

/// Print a machine's events until it ends
///
/// Prints a line for each event: nodes that boot, print, end or are paused, links and faults that
/// change, clients that attach to served devices, jobs that are queued, run and end.
#[derive(Debug, Clone, Args)]
pub(crate) struct EventsArgs {
    /// Machine; not needed if only one runs
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<MachineName>,

    /// Print one JSON object per event, as the control socket sends it
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `tofu events` and returns the exit code.
pub(crate) fn run(args: &EventsArgs) -> anyhow::Result<u8> {
    let (_, control) = find_machine(args.name.as_ref())?;
    let mut connection = Connection::open(&control, &Request::Events)?;
    let mut out = io::stdout().lock();
    loop {
        match connection.answer() {
            Ok(Reply::Done) => {}
            Ok(Reply::Event(event)) => {
                match args.json {
                    true => writeln!(out, "{}", json!(event))?,
                    false => writeln!(out, "{}", line(&event))?,
                }
                out.flush()?;
                if event.what == EventKind::Down {
                    return Ok(0);
                }
            }
            Ok(_) => bail!("not an answer"),
            // It was killed.
            Err(_) if rundir::has_ended(&control) => return Ok(0),
            Err(error) => return Err(error),
        }
    }
}

/// An event for people.
fn line(event: &EventInfo) -> String {
    let mut line = format!("{:10.3} s ", event.seconds);
    if let Some(ns) = event.modelled_ns {
        line += &format!(" {:>14} s modelled ", seconds(ns));
    }
    if let Some(at) = event.at {
        line += &format!(" {}", Coords::from_array(at));
    }
    line + " " + &words(&event.what)
}

fn words(what: &EventKind) -> String {
    match what {
        EventKind::Booted => "booted".to_owned(),
        EventKind::Netboot { stage, file, percent, why } => {
            let percent = percent.map(|percent| format!("{percent} %"));
            let more: Vec<_> = file.iter().chain(&percent).chain(why).map(String::as_str).collect();
            format!("boot: {stage} {}", more.join(" ")).trim_end().to_owned()
        }
        EventKind::Line { text } => format!("says: {text}"),
        EventKind::Ended { outcome, code, detail } => {
            let code = code.map(|code| format!(" with code {code}")).unwrap_or_default();
            let detail = detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
            format!("{outcome}{code}{detail}")
        }
        EventKind::Died { why } => format!("off: {why}"),
        EventKind::Paused => "paused".to_owned(),
        EventKind::Resumed => "resumed".to_owned(),
        EventKind::Attached => "a client has attached".to_owned(),
        EventKind::Detached => "the client has left".to_owned(),
        EventKind::Link { port, up } => {
            format!("link {port} {}", if *up { "up" } else { "down" })
        }
        EventKind::Router { up: false } => "down: its router has failed".to_owned(),
        EventKind::Router { up: true } => "up: its router works again".to_owned(),
        EventKind::LinkFailed { port } => {
            format!("link {port} has failed: nothing gets through it, and it is down")
        }
        EventKind::LinkErrors { port, errors: Some(errors) } => {
            format!("link {port} has errors: {errors}")
        }
        EventKind::LinkErrors { port, errors: None } => format!("link {port} has no more errors"),
        EventKind::Faults { faults: Some(faults) } => format!("faults {faults}"),
        EventKind::Faults { faults: None } => "no more faults".to_owned(),
        EventKind::Job { job, state, command, nodes } => {
            let on = match nodes.len() {
                0 => String::new(),
                1 => " on 1 node".to_owned(),
                nodes => format!(" on {nodes} nodes"),
            };
            format!("job {job} {state}{on}: {command}")
        }
        EventKind::TimeStands { text, .. } => text.clone(),
        EventKind::TimeGoesOn => "modelled time continues".to_owned(),
        EventKind::Down => "the machine ends".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_in_words() {
        let what = EventKind::Link { port: "X+".into(), up: false };
        let (seconds, node) = (1.5, Some(0));
        let event = EventInfo { seconds, modelled_ns: None, node, at: Some([0; 6]), what };
        assert_eq!(line(&event), "     1.500 s  (0,0,0,0,0,0) link X+ down");
        let modelled = EventInfo { modelled_ns: Some(1_900_000_005), ..event.clone() };
        let expected = "     1.500 s     1.900000005 s modelled  (0,0,0,0,0,0) link X+ down";
        assert_eq!(line(&modelled), expected);
        let what = EventKind::Ended { outcome: "exited".into(), code: Some(3), detail: None };
        assert_eq!(words(&what), "exited with code 3");
        let event = EventInfo { what: EventKind::Down, node: None, at: None, ..event };
        assert_eq!(line(&event), "     1.500 s  the machine ends");
    }
}
