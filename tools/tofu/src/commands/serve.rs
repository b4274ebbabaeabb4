//! `tofu serve`: the devices of a machine, for virtual machine monitors that are not ours.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::bail;
use clap::Parser;
use serde_json::json;
use tofu_abi::Coords;
use tofu_control::MachineName;
use tofu_control::rundir::{RunDir, node_file};
use tofu_linux_nodes::qemu;
use tofu_supervisor::confine::Confinement;
use tofu_supervisor::event::{self, Event};
use tofu_supervisor::janitor::Janitor;
use tofu_supervisor::options::{MachineArgs, SandboxArgs, ShapeArgs};
use tofu_supervisor::plan::Plan;
use tofu_supervisor::served::Served;
use tofu_supervisor::units::{Doorbell, Engines, Interconnect, MemorySize, MetricsAddress};
use tofu_supervisor::{command_line, runner, server};
use tofu_ui::exit;
use tofu_vfio_user::Backing;

/// Serve the devices of a machine to other virtual machine monitors
///
/// Each node's device is served on a UNIX socket, by the vfio-user protocol. QEMU (10.1 or later)
/// and Cloud Hypervisor can attach, detach and restart at any time, while the other nodes keep
/// running. Prints how to attach them. Runs until Ctrl-C.
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

    /// How doorbells reach the devices, as for `tofu up` [default: trapped]
    ///
    /// When polled, the doorbells of Tofu and the windows of TNW are memory that monitors map.
    #[arg(long, value_name = "MODE")]
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
  tofu serve --generation k --shape 2x1x1x1x1x1
  tofu serve -c machine.toml --socket-dir /tmp/sockets --json";

/// The most sockets that are printed with their command lines; for more, only the folder is
/// printed.
const SHOWN: usize = 12;
/// Nodes of a machine: each takes a thread and descriptors.
const MOST: u32 = 1024;

/// Runs `tofu serve` and returns the exit code.
pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<u8> {
    let plan = Plan::served(&MachineArgs {
        shape: args.shape.clone(),
        generation: args.generation,
        doorbell: args.doorbell,
        engines: args.engines,
        metrics: args.metrics,
        ..MachineArgs::default()
    })?;
    let shape = plan.network.shape;
    if shape.nodes() > MOST {
        bail!("the shape {shape} has {} nodes; at most {MOST} can be served", shape.nodes());
    }
    let (sender, events) = event::events();
    let _signals = sender.forward_signals()?;
    let dir = RunDir::create(args.name.as_ref())?;
    let folder = args.socket_dir.clone().unwrap_or_else(|| dir.path().to_owned());
    // A client may be started from another folder.
    let folder = std::path::absolute(&folder)?;
    if !folder.is_dir() {
        bail!("--socket-dir {}: there is no such folder", folder.display());
    }
    let sockets: Vec<PathBuf> =
        shape.iter().map(|at| folder.join(node_file("node", at, "sock"))).collect();
    // Before the sandbox, because a confined process cannot bind ports.
    let metrics = plan.metrics.map(server::Metrics::bind).transpose()?;
    let confinement = Confinement::of_programs(&[dir.base(), folder.as_path()], args.sandbox.off)?;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let engines = runner::engines(plan.engines, plan.interconnect, cores);
    let kind = (plan.interconnect, plan.links);
    let doorbells = runner::doorbells(plan.doorbell, sockets.len(), cores, engines);
    let network = (&plan.network, plan.faults.clone());
    let (machine, registry) =
        runner::registered_machine(network, kind, doorbells, engines, &confinement, sender)?;
    let backing = if args.any_memory { Backing::Any } else { Backing::Sealed };
    let mut served = Vec::new();
    for (at, socket) in shape.iter().zip(&sockets) {
        let device = Served::at_path(&machine, at, socket, backing, &confinement)?;
        if let Some(id) = shape.node_id(at) {
            registry.with_served(id, std::slice::from_ref(&device));
        }
        served.push(device);
    }
    // Only now, because other processes' sockets in that folder do not concern it.
    let ours: &[PathBuf] = if args.socket_dir.is_some() { &sockets } else { &[] };
    let _janitor = Janitor::start(&dir, ours)?;
    server::serve(&dir.control(), &registry)?;
    metrics.map_or(Ok(()), |metrics| metrics.serve(&registry))?;
    let served_at: Vec<_> = shape.iter().zip(sockets).collect();
    print(args, &plan, &dir, &served_at, &folder)?;
    let code = loop {
        let event = events.recv()?;
        registry.on_event(&event);
        match event {
            Event::Signal(signal) => break exit::of_signal(signal),
            Event::Down => break 0,
            _ => {}
        }
    };
    drop(served);
    machine.stop();
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
        "Cloud Hypervisor{}:",
        if args.any_memory { "" } else { " (with --any-memory here)" }
    )?;
    writeln!(out, "  cloud-hypervisor --memory size=256M,shared=on \\")?;
    writeln!(out, "    --user-device socket={}", first.display())?;
    writeln!(out, "On the kernel's command line of each guest that is to have IP over Tofu:")?;
    writeln!(out, "  {words}")?;
    writeln!(out, "\nCtrl-C ends it.")?;
    Ok(out.flush()?)
}
