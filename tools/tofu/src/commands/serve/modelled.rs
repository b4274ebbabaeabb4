//! `tofu serve --time modelled`: devices for guests that QEMU keeps in modelled time.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use tofu_abi::Generation;
use tofu_linux_nodes::{qemu, timekeeper};
use tofu_spec::plan::{Network, TimePlan};
use tofu_spec::units::MemorySize;
use tofu_supervisor::event::Event;
use tofu_supervisor::session::Session;
use tofu_supervisor::timed_nodes::{Sockets, TimedNodes};
use tofu_sync::queue::Receiver;
use tofu_ui::exit;
use tofu_vfio_user::Backing;

/// The devices, and the way of serving them.
pub(super) struct How {
    pub(super) generation: Generation,
    /// The shape, and the links that are down.
    pub(super) network: Network,
    pub(super) backing: Backing,
    /// The settings of its time.
    pub(super) time: TimePlan,
    /// QEMU's plugin.
    pub(super) plugin: PathBuf,
    /// True if one JSON object is printed.
    pub(super) json: bool,
}

/// Serves the devices until a signal comes. Returns the exit code.
pub(super) fn run(
    how: &How,
    session: &mut Session,
    folder: &Path,
    events: &Receiver<Event>,
) -> anyhow::Result<u8> {
    let How { generation, ref network, backing, time, .. } = *how;
    let confinement = &session.confinement;
    let nodes = TimedNodes::serve((generation, network), folder, backing, time, confinement)?;
    for (_, device, pace) in nodes.sockets() {
        session.janitor.remove_file(device)?;
        session.janitor.remove_file(pace)?;
    }
    print(how, session, nodes.sockets())?;
    let code = loop {
        match events.recv()? {
            Event::Signal(signal) => break exit::of_signal(signal),
            Event::Down => break 0,
            _ => {}
        }
    };
    drop(nodes);
    Ok(code)
}

fn print(how: &How, session: &Session, sockets: &[Sockets]) -> anyhow::Result<()> {
    let How { generation, network: Network { shape, .. }, time, ref plugin, .. } = *how;
    let (mut out, name) = (io::stdout().lock(), session.dir.name());
    if how.json {
        let nodes = sockets.iter().map(
            |(at, device, pace)| json!({ "node": at.to_array(), "socket": device, "pace": pace }),
        );
        let machine = json!({
            "machine": name, "generation": generation.name(), "shape": shape.to_string(),
            "time": "modelled", "plugin": plugin, "nodes": nodes.collect::<Vec<_>>(),
        });
        writeln!(out, "{machine}")?;
        return Ok(out.flush()?);
    }
    writeln!(out, "machine {name}: {} devices of {generation} in modelled time", sockets.len())?;
    for (at, device, _) in sockets {
        writeln!(out, "{at}  {}", device.display())?;
    }
    let Some((_, device, pace)) = sockets.first() else { return Ok(()) };
    let memory = qemu::memory_arguments(MemorySize::LINUX_DEFAULT, "q35").join(" ");
    writeln!(out, "\nQEMU 11.1, one for each node; time begins when all are there:")?;
    writeln!(out, "  qemu-system-x86_64 {memory} -smp 1 \\")?;
    writeln!(out, "    -accel tcg,thread=single -icount shift=0,sleep=off \\")?;
    writeln!(out, "    -rtc clock=vm,base=2026-01-01 -seed 1 \\")?;
    writeln!(out, "    -plugin file={},pace={} \\", plugin.display(), pace.display())?;
    writeln!(out, "    -device '{}'", qemu::device_argument(device))?;
    writeln!(out, "On the kernel's command line of each guest:")?;
    let khz = time.instruction.clock_khz();
    let words = [timekeeper::KERNEL_WORDS, timekeeper::IDLE_WORDS, timekeeper::DIRECT].join(" ");
    writeln!(out, "  tsc_early_khz={khz} tsc=reliable no_timer_check {words}")?;
    writeln!(out, "\nCtrl-C ends it.")?;
    Ok(out.flush()?)
}
