//! `tofu serve`: the devices of a machine, for virtual machine monitors that are not ours.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Parser;
use serde_json::json;
use tofu_abi::Coords;
use tofu_control::MachineName;
use tofu_control::rundir::{RunDir, node_file};
use tofu_fabric::NodeId;
use tofu_linux_nodes::{qemu, timekeeper};
use tofu_spec::MachineSpec;
use tofu_spec::plan::Plan;
use tofu_spec::units::{Doorbell, Engines, Interconnect, MemorySize, MetricsAddress};
use tofu_supervisor::command_line;
use tofu_supervisor::event::{self, Event};
use tofu_supervisor::runner::Backend;
use tofu_supervisor::served::Served;
use tofu_supervisor::session::{Rights, Session};
use tofu_ui::exit;
use tofu_vfio_user::Backing;

use crate::options::{ClockArgs, SandboxArgs, ShapeArgs, choice};

use self::modelled::How;

mod modelled;

/// Serve the devices of a machine to other virtual machine monitors
///
/// Each node's device is served on a UNIX socket, by the vfio-user protocol. A QEMU (10.1 or later)
/// attaches when it starts, and may end and start again while the other nodes keep running; QEMU
/// 11.1 aborts if the device is unplugged by device_del. Cloud Hypervisor was not tried. Prints how
/// to attach both. Runs until Ctrl-C.
#[derive(Debug, Clone, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,

    /// Generation of the devices: k, fx10, fx100, fugaku or tnw, as for `tofu up`
    ///
    /// [default: that of the machine file, or k for the shape k-racks, or fugaku]
    #[arg(long, value_name = "GENERATION")]
    pub(crate) generation: Option<Interconnect>,

    /// Folder for the sockets, node-X-Y-Z-A-B-C.sock [default: the machine's run directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) socket_dir: Option<PathBuf>,

    /// The delivery of doorbells to the devices, as for `tofu up` [default: trapped]
    ///
    /// When polled, the doorbells of Tofu and the windows of TNW are memory that monitors map.
    #[arg(long, value_name = "MODE", value_parser = choice::<Doorbell>())]
    pub(crate) doorbell: Option<Doorbell>,

    /// Number of engine threads that move data, 1 to 256 [default: from the host's cores]
    #[arg(long, value_name = "N")]
    pub(crate) engines: Option<Engines>,

    /// Serve the devices' counters to Prometheus, at http://ADDRESS/metrics, as for `tofu up`
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<MetricsAddress>,

    /// Also serve clients whose memory is not sealed against shrinking, such as Cloud Hypervisor
    ///
    /// Such a client can crash this process.
    #[arg(long)]
    pub(crate) any_memory: bool,

    #[command(flatten)]
    pub(crate) time: ClockArgs,

    /// Name of the machine [default: tofu, tofu-2, ...]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<MachineName>,

    /// Print one JSON object with the sockets
    #[arg(long)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tofu serve --shape 2x1x1x1x1x1
  tofu serve --shape 2x1x1x1x1x1 --time modelled
  tofu serve --generation k --shape 2x1x1x1x1x1
  tofu serve -c machine.toml --socket-dir /tmp/sockets --json";

/// The most sockets that are printed with their command lines; for more, only the folder is
/// printed.
const SHOWN: usize = 12;
/// Nodes of a machine: each takes a thread and descriptors.
const MOST: u32 = 1024;

impl ServeArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        let options = MachineSpec {
            generation: self.generation,
            doorbell: self.doorbell,
            engines: self.engines,
            metrics: self.metrics,
            name: self.name.clone(),
            no_sandbox: self.sandbox.off.then_some(true),
            ..MachineSpec::default()
        };
        let plan = Plan::served(&self.shape.over_file(self.time.over(options))?)?;
        let shape = plan.network.shape;
        if shape.nodes() > MOST {
            bail!("the shape {shape} has {} nodes; at most {MOST} can be served", shape.nodes());
        }
        Ok(plan)
    }

    fn backing(&self) -> Backing {
        if self.any_memory { Backing::Any } else { Backing::Sealed }
    }

    /// The way of serving the plan in modelled time, if it keeps that.
    fn modelled(&self, plan: &Plan) -> anyhow::Result<Option<How>> {
        let Some((time, generation)) = plan.modelled.zip(plan.interconnect.tofu()) else {
            return Ok(None);
        };
        if plan.faults.is_some() || !plan.captures.is_empty() {
            bail!("devices that are served in modelled time cannot have faults or captures so far");
        }
        let (backing, json) = (self.backing(), self.json);
        // Without it, the devices are of no use.
        let plugin = timekeeper::plugin()?;
        Ok(Some(How { generation, network: plan.network.clone(), backing, time, plugin, json }))
    }

    /// The folder for the sockets, if it is not the machine's own. A client may be started from
    /// another folder than this process.
    fn folder(&self) -> anyhow::Result<Option<PathBuf>> {
        let folder = self.socket_dir.as_ref().map(std::path::absolute).transpose()?;
        match &folder {
            Some(folder) if !folder.is_dir() => {
                bail!("--socket-dir {}: there is no such folder", folder.display())
            }
            _ => Ok(folder),
        }
    }
}

/// Runs `tofu serve` and returns the exit code.
pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<u8> {
    let (plan, own_folder) = (args.plan()?, args.folder()?);
    let (sender, events) = event::events();
    let _signals = sender.forward_signals()?;
    let folders: Vec<&Path> = own_folder.as_deref().into_iter().collect();
    let modelled = args.modelled(&plan)?;
    let mut session = Session::start(&plan, Rights::Programs(&folders), sender.clone(), None)?;
    if let Some(how) = modelled {
        let folder = own_folder.as_deref().unwrap_or(session.dir.path()).to_owned();
        return modelled::run(&how, &mut session, &folder, &events);
    }
    let backend = session.machines(None);
    let mut running = backend.start(&plan, sender)?;
    let machine = running.machine().context("no machine")?;
    let folder = own_folder.as_deref().unwrap_or(session.dir.path()).to_owned();
    let backing = args.backing();
    let (mut served, mut sockets) = (Vec::new(), Vec::new());
    for (id, at) in (0..).map(NodeId).zip(plan.network.shape.iter()) {
        let socket = folder.join(node_file("node", at, "sock"));
        let device = Served::at_path(machine, at, &socket, backing, &session.confinement)?;
        session.registry.with_served(id, std::slice::from_ref(&device));
        served.push(device);
        // Not before, because another process's socket there does not concern the janitor.
        session.janitor.remove_file(&socket)?;
        sockets.push((at, socket));
    }
    print(args, &plan, &session.dir, &sockets, &folder)?;
    let code = loop {
        let event = events.recv()?;
        backend.on_event(&event);
        match event {
            Event::Signal(signal) => break exit::of_signal(signal),
            Event::Down => break 0,
            _ => {}
        }
    };
    drop(served);
    running.stop();
    Ok(code)
}

fn print(
    args: &ServeArgs,
    plan: &Plan,
    dir: &RunDir,
    served: &[(Coords, PathBuf)],
    folder: &std::path::Path,
) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let (interconnect, words) = (plan.interconnect, command_line::served(plan));
    if args.json {
        let nodes: Vec<_> = served
            .iter()
            .map(|(at, socket)| json!({ "node": at.to_array(), "socket": socket }))
            .collect();
        let machine = json!({
            "machine": dir.name(), "generation": interconnect.name(),
            "shape": plan.network.shape.to_string(),
            "nodes": nodes, "append": words,
        });
        writeln!(out, "{machine}")?;
        return Ok(out.flush()?);
    }
    let (name, devices, folder) = (dir.name(), served.len(), folder.display());
    let kind = interconnect.tofu().map_or("TNW".to_owned(), |generation| generation.to_string());
    writeln!(out, "machine {name}: {devices} devices of {kind} in {folder}")?;
    for (at, socket) in served.iter().take(SHOWN) {
        writeln!(out, "{at}  {}", socket.display())?;
    }
    if served.len() > SHOWN {
        writeln!(out, "... and {} more", served.len() - SHOWN)?;
    }
    let Some((_, first)) = served.first() else { return Ok(()) };
    let memory = qemu::memory_arguments(MemorySize::LINUX_DEFAULT, "q35").join(" ");
    writeln!(out, "\nQEMU 10.1 or later, for the first:")?;
    writeln!(out, "  qemu-system-x86_64 {memory} \\")?;
    writeln!(out, "    -device '{}'", qemu::device_argument(first))?;
    writeln!(
        out,
        "  and for VFIO in the guest: -machine q35,kernel-irqchip=split,memory-backend=ram \\"
    )?;
    writeln!(out, "    -device intel-iommu,caching-mode=on, and intel_iommu=on for its kernel")?;
    writeln!(
        out,
        "Cloud Hypervisor, which was not tried{}:",
        if args.any_memory { "" } else { " (with --any-memory here)" }
    )?;
    writeln!(out, "  cloud-hypervisor --memory size=256M,shared=on \\")?;
    writeln!(out, "    --user-device socket={}", first.display())?;
    writeln!(out, "On the kernel's command line of each guest that is to have IP over Tofu:")?;
    writeln!(out, "  {words}")?;
    writeln!(out, "\nCtrl-C ends it.")?;
    Ok(out.flush()?)
}
