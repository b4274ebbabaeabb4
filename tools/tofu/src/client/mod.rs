//! Commands that speak to a machine that runs: `ps`, `hosts`, `exec`, `console`, `cp`, `forward`,
//! `restart`, `down`, `link`, `fault`, `stats`, `capture`.

pub(crate) mod capture;
pub(crate) mod console;
pub(crate) mod cp;
pub(crate) mod exec;
pub(crate) mod fault;
pub(crate) mod forward;
pub(crate) mod hosts;
pub(crate) mod link;
pub(crate) mod ps;
pub(crate) mod stats;

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tofu_control::protocol::Request;
use tofu_control::{Connection, find_machine, find_node, info, rundir};

use crate::cli::{DownArgs, RestartArgs};

/// How long it may take to end.
const END: Duration = Duration::from_secs(20);

/// Runs `tofu pause` (`on`) or `tofu resume` and returns the exit code.
pub(crate) fn hold(node: &str, on: bool) -> anyhow::Result<u8> {
    let found = find_node(node)?;
    let node = found.node.index;
    Connection::open(&found.control, &Request::Hold { node, on })?.answer()?;
    Ok(0)
}

/// Runs `tofu restart` and returns the exit code.
pub(crate) fn restart(args: &RestartArgs) -> anyhow::Result<u8> {
    let found = find_node(&args.node)?;
    let node = found.node.index;
    Connection::open(&found.control, &Request::Restart { node })?.answer()?;
    // Until it can be used, or has failed for good.
    loop {
        let (_, nodes) = info(&found.control)?;
        let now = nodes.iter().find(|info| info.index == node).map(|info| info.state.as_str());
        match now {
            Some("ready") => return Ok(0),
            Some("off") | None => {
                bail!("node {} did not come up again; `tofu console {0}` shows why", args.node)
            }
            Some(_) => sleep(Duration::from_millis(50)),
        }
    }
}

/// Runs `tofu down` and returns the exit code.
pub(crate) fn down(args: &DownArgs) -> anyhow::Result<u8> {
    let machines = match args.all {
        true => rundir::machines()?,
        false => vec![find_machine(args.name.as_ref())?],
    };
    for (name, control) in &machines {
        let asked = Connection::open(control, &Request::Down)
            .and_then(|mut connection| connection.answer());
        if let Err(error) = asked
            && !rundir::is_gone(control)
        {
            return Err(error).with_context(|| format!("machine {name}"));
        }
    }
    let end = Instant::now() + END;
    for (name, control) in &machines {
        while !rundir::is_gone(control) {
            if Instant::now() > end {
                bail!("the machine {name} does not end");
            }
            sleep(Duration::from_millis(10));
        }
    }
    Ok(0)
}
