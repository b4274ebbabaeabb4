//! `tofu restart`, `pause` and `resume`.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use tofu_abi::Coords;
use tofu_control::protocol::Request;
use tofu_control::rundir::node_file;
use tofu_control::{Connection, find_node, info};

use crate::commands::gdb::monitor::Monitor;

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

/// Let the processors of a node continue after `tofu pause`
#[derive(Debug, Clone, Args)]
pub(crate) struct ResumeArgs {
    /// Node, as for `tofu exec`
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
}

/// Runs `tofu pause` (`on`) or `tofu resume` and returns the exit code.
pub(crate) fn hold(node: &str, on: bool) -> anyhow::Result<u8> {
    let found = find_node(node)?;
    let node = found.node.index;
    let request = if on { Request::Pause { node } } else { Request::Resume { node } };
    Connection::open(&found.control, &request)?.answer()?;
    let monitor =
        found.control.with_file_name(node_file("qmp", Coords::from_array(found.node.at), "sock"));
    // A part's own host has its QEMUs. The guest of one that is woken does not come back, but ends.
    if !on && found.node.vmm == "qemu" && monitor.exists() && is_suspended(&monitor) {
        bail!("node {node}: it has suspended itself; `tofu restart {node}` starts it anew");
    }
    Ok(0)
}

fn is_suspended(monitor: &Path) -> bool {
    // It may be busy with somebody else.
    Monitor::connect(monitor).and_then(|mut monitor| monitor.is_suspended()).unwrap_or(false)
}

/// Runs `tofu restart` and returns the exit code.
pub(crate) fn restart(args: &RestartArgs) -> anyhow::Result<u8> {
    let found = find_node(&args.node)?;
    let node = found.node.index;
    Connection::open(&found.control, &Request::Restart { node })?.answer()?;
    // Waits until it can be used, or has failed for good.
    loop {
        let nodes = info(&found.control)?.nodes;
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
