//! Compares nodes with Fugaku's processor to x86 ones: how long they take to be ready, and the cost
//! of Puts and messages between two of them. The devices are the same, and the nodes' programs have
//! the same sources.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Serialize;
use tofu_image::Arch;
use tofu_linux_nodes::lan::Ethernet;
use tofu_linux_nodes::progress::ImageProgress;
use tofu_linux_nodes::runtimes::{Monitors, Runtimes};
use tofu_spec::MachineSpec;
use tofu_spec::plan::Plan;
use tofu_spec::units::{Driver, Timeout};
use tofu_ui::Style;

use crate::figures::Latency;
use crate::linux::{Lab, SHAPE};
use crate::machine::empty;

/// The time limit for all nodes together. On a busy host, each of a dozen emulated nodes gets a
/// small share of a processor.
const ALL_READY: Duration = Duration::from_secs(600);

/// A figure for both kinds of nodes, from one run.
#[derive(Debug, Serialize)]
pub(crate) struct Beside {
    pub(crate) what: String,
    /// The size of the Put or message.
    pub(crate) bytes: Option<u64>,
    /// The unit of the times, `s` or `us`. Times are medians.
    pub(crate) unit: &'static str,
    pub(crate) x86_64: f64,
    pub(crate) arm64: f64,
    /// The factor by which it takes longer with Fugaku's processor.
    pub(crate) times: f64,
}

impl Beside {
    fn new(
        what: String,
        bytes: Option<u64>,
        unit: &'static str,
        [x86_64, arm64]: [f64; 2],
    ) -> Self {
        Self { what, bytes, unit, x86_64, arm64, times: arm64 / x86_64 }
    }

    fn header() -> String {
        format!("{:<44} {:>8} {:>10} {:>10} {:>8}", "", "bytes", "x86-64", "A64FX", "times")
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, bytes, unit, x86_64, arm64, times } = self;
        let bytes = bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
        write!(
            f,
            "{what:<44} {bytes:>8} {x86_64:>7.2} {unit:<2} {arm64:>7.2} {unit:<2} {times:>8.2}"
        )
    }
}

fn machine(arch: Arch, shape: &str) -> anyhow::Result<MachineSpec> {
    Ok(MachineSpec {
        linux: Some(true),
        arch: Some(arch),
        driver: Some(Driver::Vfio),
        // Those with Fugaku's processor cannot be clones.
        cold: Some(true),
        boot_timeout: Some(Timeout(ALL_READY)),
        ..empty(shape)?
    })
}

/// Fetches or makes everything that is missing in the cache.
fn prepare() -> anyhow::Result<()> {
    let progress =
        ImageProgress::new(Arc::new(AtomicBool::new(false)), Style::detect(false).progress);
    for arch in Arch::ALL {
        Runtimes::prepare(&Plan::new(&machine(arch, SHAPE)?)?, &Monitors::qemu(), &progress)?;
    }
    Ok(())
}

/// Returns the seconds until two nodes are ready, and latencies between them.
fn two(arch: Arch, quick: bool) -> anyhow::Result<(f64, Vec<Latency>)> {
    let lab = Lab::start(&machine(arch, SHAPE)?, Ethernet::None)?;
    let mut latencies = Vec::new();
    lab.guests.latencies(quick, "auto", &mut |latency| {
        latencies.push(latency);
        Ok(())
    })?;
    Ok((lab.ready.as_secs_f64(), latencies))
}

/// Runs the benchmark. `say` is called with each line of results.
pub(crate) fn measure(
    quick: bool,
    say: &mut dyn FnMut(&dyn fmt::Display) -> io::Result<()>,
) -> anyhow::Result<Vec<Beside>> {
    prepare()?;
    say(&Beside::header())?;
    let mut rows = Vec::new();
    let mut tell = |what: String, bytes, unit, times| {
        let row = Beside::new(what, bytes, unit, times);
        say(&row)?;
        rows.push(row);
        io::Result::Ok(())
    };
    let (x86_64, puts) = two(Arch::X86_64, quick)?;
    let (arm64, others) = two(Arch::Arm64, quick)?;
    tell("two nodes ready".to_owned(), None, "s", [x86_64, arm64])?;
    for (put, other) in puts.into_iter().zip(others) {
        tell(put.what, Some(put.bytes), "us", [put.p50_us, other.p50_us])?;
    }
    if !quick {
        let unit = |arch| {
            anyhow::Ok(Lab::start(&machine(arch, "unit")?, Ethernet::None)?.ready.as_secs_f64())
        };
        let times = [unit(Arch::X86_64)?, unit(Arch::Arm64)?];
        tell("twelve nodes ready".to_owned(), None, "s", times)?;
    }
    Ok(rows)
}
