//! The Linux nodes of a machine that runs.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tofu_abi::Coords;
use tofu_control::rundir::node_file;
use tofu_fabric::NodeId;
use tofu_gateway::{Connector, LinkStats};
use tofu_image::Qemu;
use tofu_machine::Machine;
use tofu_vfio_user::Backing;
use tofu_vmm::{Holder, Hypervisor};

use super::kit::Kit;
use super::lan::{self, Ethernet, Lan};
use super::monitor::Kind;
use super::node::{Common, LinuxNode};
use super::own::{LatestMemory, Own};
use super::qemu::{self, Setup};
use crate::confine::Confinement;
use crate::gateway::Gateway;
use crate::netboot::{self, BootFrom, LinuxFiles};
use crate::plan::{LinuxPlan, Network, Plan};
use crate::runner::{self, Event};
use crate::served::Served;

/// What Linux nodes are made with, besides the plan.
pub(crate) struct Host {
    pub(crate) kit: Arc<Kit>,
    /// Folder for sockets and logs.
    pub(crate) dir: PathBuf,
    pub(crate) monitor: Choice,
    /// Process group of the janitor.
    pub(crate) group: i32,
    pub(crate) boot_timeout: Duration,
    /// Whether the host's hardware runs the guests.
    pub(crate) kvm: bool,
    /// The Ethernet of the nodes.
    pub(crate) lan: Ethernet,
    pub(crate) registry: Arc<Registry>,
    /// What its threads give up.
    pub(crate) confinement: Confinement,
}

impl Host {
    /// What a plan's Linux nodes boot over the torus, if any do.
    pub(crate) fn boot_files(&self, plan: &Plan) -> LinuxFiles<'_> {
        let lines = plan.linux().enumerate().map(|(index, (id, linux))| {
            let has_lan = !matches!(self.lan, Ethernet::None);
            let line = command_line(plan, plan.coords(id), linux, has_lan.then(|| lan::ip(index)));
            (id, qemu::with_clock(line, self.kvm))
        });
        LinuxFiles {
            kernel: &self.kit.kernel,
            initrd: &self.kit.initrd,
            command_lines: lines.collect(),
        }
    }
}

/// The monitor of a machine's Linux nodes.
#[derive(Clone)]
pub(crate) enum Choice {
    Own(Arc<Hypervisor>),
    Qemu(Arc<Qemu>),
}

/// What is known about a machine outside of the thread that runs it: by those who serve `tofu ps`
/// and the like.
pub(crate) struct Registry {
    pub(crate) network: Network,
    pub(crate) started: Instant,
    pub(crate) events: Sender<Event>,
    linux: OnceLock<Vec<Arc<LinuxNode>>>,
    running: OnceLock<tofu_machine::Network>,
    /// Nodes without Linux, and what they are doing, in a word.
    others: Mutex<HashMap<NodeId, &'static str>>,
    /// The virtual machines of small guests.
    holders: Mutex<HashMap<NodeId, Holder>>,
    gateway: OnceLock<Connector>,
    gateway_link: OnceLock<(Coords, LinkStats)>,
    cancelled: AtomicBool,
}

impl Registry {
    pub(crate) fn new(network: &Network, events: Sender<Event>) -> Self {
        Self {
            network: network.clone(),
            started: Instant::now(),
            events,
            linux: OnceLock::new(),
            running: OnceLock::new(),
            others: Mutex::default(),
            holders: Mutex::default(),
            gateway: OnceLock::new(),
            gateway_link: OnceLock::new(),
            cancelled: AtomicBool::new(false),
        }
    }

    /// The machine's gateway, if it has one that works.
    pub(crate) fn gateway(&self) -> Option<&Connector> {
        self.gateway.get()
    }

    /// What the gateway's link counts, if it is at this place.
    pub(crate) fn gateway_link(&self, at: Coords) -> Option<&LinkStats> {
        self.gateway_link.get().filter(|(place, _)| *place == at).map(|(_, stats)| stats)
    }

    /// Tells of the gateway. Only the first one counts.
    pub(crate) fn with_gateway(&self, gateway: &Gateway) {
        let _ = self.gateway.set(gateway.connector.clone());
        let _ = self.gateway_link.set((gateway.at, gateway.stats.clone()));
    }

    /// The Linux nodes; none before they were started.
    pub(crate) fn linux(&self) -> &[Arc<LinuxNode>] {
        self.linux.get().map_or(&[], Vec::as_slice)
    }

    /// The network of a machine that has been built.
    pub(crate) fn running(&self) -> Option<&tofu_machine::Network> {
        self.running.get()
    }

    /// Tells which machine it is about. Only the first one counts.
    pub(crate) fn built(&self, machine: &Machine) {
        let _ = self.running.set(machine.network().clone());
    }

    /// Tells of the virtual machine of a small guest.
    pub(crate) fn with_guest(&self, node: NodeId, holder: Holder) {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner).insert(node, holder);
    }

    /// Stops the processors of a node, or lets them go on. Its device works on.
    ///
    /// # Errors
    ///
    /// If the node has none that run.
    pub(crate) fn hold(&self, node: NodeId, on: bool) -> anyhow::Result<()> {
        if let Some(linux) = self.linux().iter().find(|linux| linux.id == node) {
            return linux.hold(on);
        }
        let holder =
            self.holders.lock().unwrap_or_else(PoisonError::into_inner).get(&node).cloned();
        let holder = holder.context("the node has no virtual machine")?;
        if !on {
            holder.resume();
        } else if !holder.pause() {
            bail!("the node's guest has ended, or does not stop");
        }
        Ok(())
    }

    pub(crate) fn others(&self) -> MutexGuard<'_, HashMap<NodeId, &'static str>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a start under way.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, SeqCst);
        for node in self.linux() {
            node.stop();
        }
    }
}

/// The Linux nodes of a machine. Dropping it ends them.
pub(crate) struct LinuxNodes {
    registry: Arc<Registry>,
    supervisors: Vec<JoinHandle<()>>,
    // After the virtual machines, which use them.
    served: Vec<Served>,
    _lan: Option<Lan>,
}

impl LinuxNodes {
    /// Starts the plan's Linux nodes and waits until all are ready.
    ///
    /// # Errors
    ///
    /// If one does not come up, or was cancelled. All have ended then.
    pub(crate) fn start(
        host: &Host,
        machine: &Machine,
        plan: &Plan,
        events: &Sender<Event>,
    ) -> anyhow::Result<Self> {
        let common = Common::new(host.boot_timeout, events.clone());
        let common = Arc::new(common);
        let lan = host.lan.join(plan.linux().count())?;
        let firmware = netboot::firmware(plan, &host.dir)?;
        let (mut nodes, mut served) = (Vec::new(), Vec::new());
        for (index, (id, linux)) in plan.linux().enumerate() {
            let at = plan.coords(id);
            let socket = host.dir.join(node_file("node", at, "sock"));
            let kind = match &host.monitor {
                Choice::Qemu(qemu) => {
                    served.push(Served::start(
                        machine,
                        at,
                        &socket,
                        Backing::Sealed,
                        &host.confinement,
                    )?);
                    Kind::Qemu { group: host.group, qemu: Arc::clone(qemu) }
                }
                Choice::Own(hypervisor) => {
                    let memory = Arc::new(LatestMemory::default());
                    let node = machine.add_node(at, Arc::clone(&memory) as _)?;
                    Kind::Own(Own { hypervisor: Arc::clone(hypervisor), node, memory })
                }
            };
            let setup = Setup {
                kit: Arc::clone(&host.kit),
                name: runner::name(at),
                memory: linux.memory,
                cpus: linux.cpus.0,
                command_line: command_line(plan, at, linux, lan.as_ref().map(|_| lan::ip(index))),
                device: socket,
                qmp: host.dir.join(node_file("qmp", at, "sock")),
                firmware: firmware.clone().filter(|_| linux.boot == BootFrom::Tofu),
                confinement: host.confinement.clone(),
                lan: lan.as_ref().and_then(|lan| lan.place(index)),
                kvm: host.kvm,
            };
            let log = host.dir.join(node_file("console", at, "log"));
            nodes.push(Arc::new(LinuxNode::new((id, at), setup, kind, log, Arc::clone(&common))));
        }
        let registry = Arc::clone(&host.registry);
        if registry.linux.set(nodes).is_err() {
            bail!("a machine can be started once only");
        }
        let mut this = Self { registry, supervisors: Vec::new(), served, _lan: lan };
        let registry = Arc::clone(&this.registry);
        for node in registry.linux() {
            let supervised = Arc::clone(node);
            let thread = thread::Builder::new().name(runner::name(node.at));
            let thread = thread.spawn(move || supervised.supervise());
            this.supervisors.push(thread.context("no threads left")?);
        }
        if registry.cancelled.load(SeqCst) {
            registry.cancel();
        }
        for node in registry.linux() {
            if let Err(why) = node.wait_ready() {
                bail!("node {}: {why}", node.at);
            }
        }
        Ok(this)
    }

    /// Ends all nodes.
    pub(crate) fn stop(&mut self) {
        for node in self.registry.linux() {
            node.stop();
        }
        for thread in self.supervisors.drain(..) {
            // A panic there has been printed.
            let _ = thread.join();
        }
        self.served.clear();
    }
}

impl Drop for LinuxNodes {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What kernels can do without at boot: self-tests, calibration, waiting for entropy.
const FAST_BOOT: &str = "lsm=capability cryptomgr.notests no_timer_check tsc=reliable \
                         random.trust_cpu=on initcall_blacklist=jent_mod_init";

/// What the kernel of a node is told, and what programs in it find in /proc/cmdline.
fn command_line(plan: &Plan, at: Coords, linux: &LinuxPlan, ip: Option<String>) -> String {
    let machine = runner::machine_words(plan, "tofu.");
    let ip = ip.map(|ip| format!("tofu.ip={ip} ")).unwrap_or_default();
    let words = format!(
        "console=ttyS0 quiet panic=-1 {FAST_BOOT} intel_iommu=on \
         vfio_iommu_type1.allow_unsafe_interrupts=1 iomem=relaxed tofu.name={} {machine} {ip}{}",
        runner::name(at),
        linux.append
    );
    words.trim_end().to_owned()
}
