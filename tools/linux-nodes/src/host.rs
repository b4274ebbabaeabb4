//! Starts the Linux nodes of a machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, bail};
use tofu_abi::Coords;
use tofu_control::node_name;
use tofu_control::rundir::node_file;
use tofu_image::{Arch, BOOT_ARGUMENTS, Cache, TCG_ARGUMENTS};
use tofu_spec::plan::{InputLog, LinuxPlan, Plan, TimePlan};
use tofu_spec::units::BootFrom;
use tofu_supervisor::command_line;
use tofu_supervisor::confine::Confinement;
use tofu_supervisor::event::EventSender;
use tofu_supervisor::machine::AnyMachine;
use tofu_supervisor::netboot::{self, LinuxFiles};
use tofu_supervisor::node::{AgentNode, LinuxBackend};
use tofu_supervisor::registry::Registry;
use tofu_supervisor::served::Served;
use tofu_supervisor::session::Session;
use tofu_vfio_user::Backing;

use crate::lan::{self, Ethernet, Lan};
use crate::monitor::MonitorKind;
use crate::node::{Common, LinuxNode};
use crate::own::{LatestMemory, Own};
use crate::qemu;
use crate::runtimes::{MonitorChoice, Runtime, Runtimes};
use crate::setup::{GuestTime, VmSetup};
use crate::template::{Preload, Templates};
use crate::watch::Watch;
use crate::{template, timekeeper};

/// Has the kernel (Linux 6.12) give programs their memory in runs of up to 256 KiB where it can. An
/// emulated IOMMU takes a message to the device's server for each run of memory that is registered.
const LARGE_PAGES: &str = "thp_anon=16K-256K:always;2M:inherit";

/// Resources of Linux nodes, apart from the plan.
pub struct LinuxHost {
    /// Their boot files, and the monitor that runs them.
    runtime: Runtimes,
    /// Folder for sockets and logs.
    dir: PathBuf,
    /// Process group of the janitor.
    group: i32,
    /// The Ethernet of the nodes.
    pub lan: Ethernet,
    /// Files that nodes have from the beginning, if they are clones.
    preload: Option<Arc<Preload>>,
    /// Where their code that breaks rules is noted, if that is wanted.
    pub(crate) watch: Option<Watch>,
    /// The registry that has them.
    registry: Arc<Registry>,
    /// The rights that its threads give up.
    confinement: Confinement,
    /// The modelled time of the machine, if it keeps that.
    time: Option<TimePlan>,
}

impl LinuxHost {
    /// Starts nodes in a session, with the plan's Ethernet.
    pub fn new(plan: &Plan, session: &Session, runtime: Runtimes) -> Self {
        Self {
            runtime,
            dir: session.dir.path().to_owned(),
            group: session.janitor.group(),
            lan: plan.on_linux.net.into(),
            preload: None,
            watch: None,
            registry: Arc::clone(&session.registry),
            confinement: session.confinement.clone(),
            time: plan.modelled,
        }
    }

    /// Gives nodes that are clones files from the beginning.
    #[must_use]
    pub fn with_files(self, files: Option<Preload>) -> Self {
        Self { preload: files.map(Arc::new), ..self }
    }
}

impl LinuxBackend for LinuxHost {
    fn boot_files(&self, plan: &Plan) -> LinuxFiles<'_> {
        let Runtime { boot_files, kvm, .. } = self.runtime.of(Arch::default());
        let has_lan = !matches!(self.lan, Ethernet::None);
        let lines = plan.netbooted_linux().map(|(id, linux)| {
            // Nodes of other shards have no place in the Ethernet.
            let index = plan.linux().position(|(own, _)| own == id).filter(|_| has_lan);
            let line = self.command_line(plan, plan.coords(id), linux, index.map(lan::ip));
            (id, qemu::with_clock(line, qemu::host_clock(*kvm)))
        });
        LinuxFiles {
            kernel: &boot_files.kernel,
            initrd: &boot_files.initrd,
            command_lines: lines.collect(),
        }
    }

    fn start(
        &self,
        machine: &AnyMachine,
        plan: &Plan,
        events: &EventSender,
    ) -> anyhow::Result<Box<dyn Send>> {
        let templates = Templates::new(Cache::from_env()?, self.preload.clone());
        let mut common = Common::new(plan.on_linux.boot_timeout.0, events.clone(), templates);
        if plan.modelled.is_some() {
            // Time begins when all are there.
            common.start_at_once(plan.linux().count());
        }
        let common = Arc::new(common);
        let lan = self.lan.join(plan.linux().count(), &self.confinement)?;
        let firmware = netboot::firmware(plan, &self.dir)?;
        let (mut nodes, mut served) = (Vec::new(), Vec::new());
        for (index, (id, linux)) in plan.linux().enumerate() {
            let at = plan.coords(id);
            let socket = self.dir.join(node_file("node", at, "sock"));
            let Runtime { boot_files, monitor, kvm } = self.runtime.of(linux.arch);
            let kind = match monitor {
                MonitorChoice::Qemu(qemu) => {
                    let sealed = Backing::Sealed;
                    served.push(Served::at_path(machine, at, &socket, sealed, &self.confinement)?);
                    MonitorKind::Qemu { group: self.group, qemu: Arc::clone(qemu) }
                }
                MonitorChoice::Own(hypervisor) => own(machine, at, Arc::clone(hypervisor))?,
            };
            let watch = self.watch.as_ref().and_then(|w| w.begin(index, machine, at));
            let ip = lan.as_ref().map(|_| lan::ip(index));
            let can_clone = lan.is_none() && self.runtime.can_clone(plan, linux);
            let setup = VmSetup {
                boot_files: Arc::clone(boot_files),
                name: node_name(at),
                memory: linux.memory,
                arm_cpu: plan.on_linux.cpu,
                cpus: linux.cpus.0,
                command_line: self.command_line(plan, at, linux, ip),
                template: can_clone.then(|| self.template_line(linux)),
                device: socket,
                qmp: self.dir.join(node_file("qmp", at, "sock")),
                firmware: firmware.clone().filter(|_| linux.boot == BootFrom::Tofu),
                confinement: self.confinement.clone(),
                lan: lan.as_ref().and_then(|lan| lan.place(index)),
                time: self.time(machine, plan, at)?,
                watch,
                kvm: *kvm,
            };
            let log = self.dir.join(node_file("console", at, "log"));
            nodes.push(Arc::new(LinuxNode::new((id, at), setup, kind, log, Arc::clone(&common))));
        }
        let mut this = LinuxNodes { nodes, supervisors: Vec::new(), _served: served, _lan: lan };
        self.registry.with_linux(this.nodes.iter().map(|node| Arc::clone(node) as _).collect())?;
        this.supervise()?;
        Ok(Box::new(this))
    }
}

/// A node with a virtual machine of our own monitor, which needs no socket.
fn own(
    machine: &AnyMachine,
    at: Coords,
    hypervisor: Arc<tofu_vmm::Hypervisor>,
) -> anyhow::Result<MonitorKind> {
    let memory = Arc::new(LatestMemory::default());
    let (device, function) = machine.add_node(at, Arc::clone(&memory) as _)?;
    Ok(MonitorKind::Own(Own { hypervisor, device, function, memory }))
}

/// The Linux nodes of a machine. Dropping it ends them.
struct LinuxNodes {
    nodes: Vec<Arc<LinuxNode>>,
    supervisors: Vec<JoinHandle<()>>,
    // Dropped after the virtual machines, which use them.
    _served: Vec<Served>,
    _lan: Option<Lan>,
}

impl LinuxNodes {
    /// Starts the nodes, each with a thread that supervises it, and waits until all are ready.
    fn supervise(&mut self) -> anyhow::Result<()> {
        for node in &self.nodes {
            let supervised = Arc::clone(node);
            let thread = thread::Builder::new().name(node_name(node.at()));
            let thread = thread.spawn(move || supervised.supervise());
            self.supervisors.push(thread.context("no threads left")?);
        }
        for node in &self.nodes {
            if let Err(why) = node.wait_ready() {
                bail!("node {}: {why}", node.at());
            }
        }
        Ok(())
    }
}

impl Drop for LinuxNodes {
    fn drop(&mut self) {
        for node in &self.nodes {
            node.stop();
        }
        for thread in self.supervisors.drain(..) {
            // A panic in the thread has already been printed.
            let _ = thread.join();
        }
    }
}

impl LinuxHost {
    /// Returns the command line of a node's kernel, which programs can read in /proc/cmdline.
    fn command_line(
        &self,
        plan: &Plan,
        at: Coords,
        linux: &LinuxPlan,
        ip: Option<String>,
    ) -> String {
        let machine = command_line::machine(plan, "tofu.");
        let ip = ip.map(|ip| format!("tofu.ip={ip} ")).unwrap_or_default();
        self.line_with(linux, &format!("tofu.name={} {machine} {ip}", node_name(at)))
    }

    /// Returns the modelled time of a node's guest, if it keeps that.
    fn time(
        &self,
        machine: &AnyMachine,
        plan: &Plan,
        at: Coords,
    ) -> anyhow::Result<Option<GuestTime>> {
        let (Some(time), AnyMachine::Timed(machine)) = (plan.modelled, machine) else {
            return Ok(None);
        };
        let (machine, plugin) = (Arc::clone(machine), timekeeper::plugin()?);
        let replays = matches!(plan.input, Some(InputLog::Replay(_)));
        Ok(Some(GuestTime { machine, at, plugin, replays, instruction: time.instruction }))
    }

    /// Returns the command line of the kernel of a node that is going to be cloned.
    fn template_line(&self, linux: &LinuxPlan) -> String {
        self.line_with(linux, template::WORD)
    }

    /// Returns a kernel's command line with words about the node.
    fn line_with(&self, linux: &LinuxPlan, node: &str) -> String {
        let boot_files = &self.runtime.of(linux.arch).boot_files;
        let driver = if boot_files.without_driver { "module_blacklist=tofu " } else { "" };
        let own = match boot_files.arch {
            // The addresses that the root port needs are in a region that QEMU reserves.
            Arch::X86_64 => {
                let intel = boot_files.has_driver || self.time.is_some();
                let iommu = if intel { "intel_iommu=on " } else { "" };
                let timer = self.time.map(|_| format!("{} ", timekeeper::KERNEL_WORDS));
                let timer = timer.unwrap_or_default();
                format!("console=ttyS0 {TCG_ARGUMENTS} {timer}{iommu}pci=no_e820")
            }
            Arch::Arm64 => "console=ttyAMA0".to_owned(),
        };
        let timed = self
            .time
            .map(|_| format!("{} {} ", timekeeper::IDLE_WORDS, timekeeper::DIRECT))
            .unwrap_or_default();
        let words = format!(
            "{own} {BOOT_ARGUMENTS} {LARGE_PAGES} \
             vfio_iommu_type1.allow_unsafe_interrupts=1 iomem=relaxed {driver}{timed}{} {}",
            node.trim_end(),
            linux.append
        );
        words.trim_end().to_owned()
    }
}
