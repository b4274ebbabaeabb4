//! Boot times of machines whose nodes boot over the torus, compared with the same machines booted
//! by the monitor, which puts everything into memory.

use std::fmt;
use std::time::Duration;

use anyhow::bail;
use serde::Serialize;
use tofu_linux_nodes::lan::Ethernet;
use tofu_spec::MachineSpec;
use tofu_spec::guest::GuestName;
use tofu_spec::units::{BootFrom, Driver, MemorySize, Timeout};

use crate::linux::Lab;
use crate::machine::{PATIENCE, empty, run_machine};

/// The time limit for all nodes together. On a busy host, each of a dozen emulated nodes gets a
/// small share of a processor.
const ALL_READY: Duration = Duration::from_secs(300);

/// A machine that was started in both ways.
#[derive(Debug, Serialize)]
pub(crate) struct Boot {
    pub(crate) what: String,
    /// Number of nodes, without that of the boot server.
    pub(crate) nodes: u32,
    /// Seconds from the command to the end of the last bare guest, or until the last Linux node is
    /// ready.
    pub(crate) monitor_s: f64,
    pub(crate) torus_s: f64,
}

impl Boot {
    pub(crate) fn header() -> String {
        format!("{:<32} {:>6} {:>12} {:>12}", "boot", "nodes", "monitor s", "torus s")
    }
}

impl fmt::Display for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, nodes, monitor_s, torus_s } = self;
        write!(f, "{what:<32} {nodes:>6} {monitor_s:>12.2} {torus_s:>12.2}")
    }
}

/// Returns a machine of `nodes` nodes and a boot server in a row.
fn row(nodes: u32, from: BootFrom) -> anyhow::Result<MachineSpec> {
    // In the machine without a boot server, the server's node runs nothing, either.
    let row = empty(&format!("{}x1x1x1x1x1", nodes + 1))?;
    Ok(MachineSpec { nodes: Some(nodes), boot: Some(from), ..row })
}

/// Boots bare guests that say hello.
pub(crate) fn bare(nodes: u32) -> anyhow::Result<Boot> {
    let seconds = |from| {
        let guest = Some(GuestName::named("hello")?);
        let run = run_machine(&MachineSpec { guest, ..row(nodes, from)? }, PATIENCE)?;
        if !run.ok {
            bail!("the guest hello failed");
        }
        Ok(run.took.as_secs_f64())
    };
    let (monitor_s, torus_s) = (seconds(BootFrom::Monitor)?, seconds(BootFrom::Tofu)?);
    Ok(Boot { what: "bare guests, to the end".to_owned(), nodes, monitor_s, torus_s })
}

/// Boots Linux nodes with the default image.
pub(crate) fn linux(nodes: u32) -> anyhow::Result<Boot> {
    let seconds = |from| {
        let spec = MachineSpec {
            linux: Some(true),
            driver: Some(Driver::Vfio),
            memory: Some(MemorySize(256 << 20)),
            boot_timeout: Some(Timeout(ALL_READY)),
            ..row(nodes, from)?
        };
        anyhow::Ok(Lab::start(&spec, Ethernet::None)?.ready.as_secs_f64())
    };
    let (monitor_s, torus_s) = (seconds(BootFrom::Monitor)?, seconds(BootFrom::Tofu)?);
    Ok(Boot { what: "Linux nodes, until ready".to_owned(), nodes, monitor_s, torus_s })
}
