//! Runs machines of small guests from start to end.

use std::time::{Duration, Instant};

use tofu_spec::MachineSpec;
use tofu_spec::guest::GuestName;
use tofu_spec::plan::Plan;
use tofu_supervisor::confine::Confinement;
use tofu_supervisor::event::{self, Event, Outcome};
use tofu_supervisor::runner::{Backend, Machines};

/// The time limit for a machine to run a guest program to its end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The output of a machine's guests, and how long it ran.
pub(crate) struct Run {
    pub(crate) lines: Vec<String>,
    pub(crate) took: Duration,
    /// Memory of this process beyond that of the guests when the last guest had started, in KiB.
    pub(crate) beyond_kib: Option<f64>,
    /// True if each guest exited with code 0.
    pub(crate) ok: bool,
}

pub(crate) fn run_machine(spec: &MachineSpec, limit: Duration) -> anyhow::Result<Run> {
    let plan = Plan::new(spec)?;
    let count = plan.vms().count();
    let (sender, events) = event::events();
    let before = resident_kib();
    let start = Instant::now();
    let mut machine = Machines::bare(Confinement::default()).start(&plan, sender)?;
    let beyond_kib = machine
        .guest_resident_kib()
        .zip(resident_kib().zip(before))
        .map(|(guests, (now, before))| now.saturating_sub(before).saturating_sub(guests) as f64);
    let mut run = Run { lines: Vec::new(), took: Duration::ZERO, beyond_kib, ok: true };
    let mut ended = 0;
    while ended < count {
        match events.recv_timeout(limit.saturating_sub(start.elapsed())) {
            Ok(Event::Line(_, text)) => run.lines.push(text),
            Ok(Event::Ended(_, outcome)) => {
                run.ok &= outcome == Outcome::Exited(0);
                ended += 1;
            }
            Ok(_) => {}
            Err(_) => {
                run.ok = false;
                break;
            }
        }
    }
    run.took = start.elapsed();
    events.release();
    machine.stop();
    Ok(run)
}

/// Returns the resident memory of this process in KiB.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// Returns the machine of this shape whose nodes run a shipped guest, without a sandbox.
pub(crate) fn up(shape: &str, guest: &str) -> anyhow::Result<MachineSpec> {
    Ok(MachineSpec { guest: Some(GuestName::named(guest)?), ..empty(shape)? })
}

/// Returns a default machine of this shape, without a sandbox.
pub(crate) fn empty(shape: &str) -> anyhow::Result<MachineSpec> {
    let shape = Some(shape.parse()?);
    Ok(MachineSpec { shape, no_sandbox: Some(true), ..MachineSpec::default() })
}
