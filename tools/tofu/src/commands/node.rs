//! `tofu restart`, `pause` and `resume`.

use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use tofu_control::protocol::MachineInfo;
use tofu_control::protocol::Request;
use tofu_control::{Connection, find_node, info, ping};

/// Restart the virtual machine of a Linux node
///
/// Its device is reset; all other nodes keep running.
#[derive(Debug, Clone, Args)]
pub(crate) struct RestartArgs {
    /// Node, as for `tofu exec`
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
}

/// Stop the processors of a node
///
/// Its device keeps working, so others can still reach its memory and barrier gates. `tofu resume`
/// lets the processors continue.
#[derive(Debug, Clone, Args)]
pub(crate) struct PauseArgs {
    /// Node, as for `tofu exec`
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
}

/// Let the processors of a node continue after `tofu pause`, or wake a node
///
/// A node that has suspended itself (`echo mem > /sys/power/state`) does not answer. It is woken by
/// a line feed on its console.
#[derive(Debug, Clone, Args)]
pub(crate) struct ResumeArgs {
    /// Node, as for `tofu exec`
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
}

/// The number of times a node that does not answer within [`PING`](tofu_control::PING) is woken.
const WAKE_UPS: u32 = 5;

/// Runs `tofu pause` (`on`) or `tofu resume` and returns the exit code.
pub(crate) fn hold(node: &str, on: bool) -> anyhow::Result<u8> {
    let found = find_node(node)?;
    let index = found.node.index;
    let request = if on { Request::Pause { node: index } } else { Request::Resume { node: index } };
    Connection::open(&found.control, &request)?.answer()?;
    if on {
        return Ok(0);
    }
    for _ in 0..WAKE_UPS {
        if state_of(index, ping(&found.control)?).as_deref() != Some("not answering") {
            return Ok(0);
        }
        let mut console = Connection::open(&found.control, &Request::Console { node: index })?;
        console.answer()?;
        console.stream()?.write_all(b"\n").context("the machine has ended")?;
    }
    bail!("node {node} does not answer; `tofu console {node}` shows why")
}

/// The state of a node, as in `tofu ps`.
fn state_of(node: u32, machine: MachineInfo) -> Option<String> {
    machine.nodes.into_iter().find(|info| info.index == node).map(|info| info.state)
}

/// Runs `tofu restart` and returns the exit code.
pub(crate) fn restart(args: &RestartArgs) -> anyhow::Result<u8> {
    let found = find_node(&args.node)?;
    let node = found.node.index;
    Connection::open(&found.control, &Request::Restart { node })?.answer()?;
    // Waits until it can be used, or has failed for good.
    loop {
        match state_of(node, info(&found.control)?).as_deref() {
            Some("ready") => return Ok(0),
            Some("off") | None => {
                bail!("node {} did not come up again; `tofu console {0}` shows why", args.node)
            }
            Some(_) => sleep(Duration::from_millis(50)),
        }
    }
}
