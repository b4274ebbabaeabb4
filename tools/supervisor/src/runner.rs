//! The seam between a command and the machine that it runs.
//!
//! `tofu up` makes a [`Plan`], starts it here, and sees everything else as [`Event`]s. Policy
//! (timeouts, Ctrl-C, what counts as success, output) is the command's; this side only runs VMs.

use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::Context;
use tofu_abi::Coords;
use tofu_abi::pci::REGISTER_BAR;
use tofu_control::node_name;
use tofu_fabric::NodeId;
use tofu_gateway::IoNode;
use tofu_icc::SharedPages;
use tofu_machine::capture::CaptureConfig;
use tofu_machine::{DoorbellBackend, Doorbells, Generation, Machine, MachineConfig, NodeParts};
use tofu_pci::PciFunction;
use tofu_programs::FIRMWARE;
use tofu_sandbox::Role;
use tofu_sync::lock;
use tofu_vmm::{Attachment, Hypervisor, Vm, VmConfig, Windows};
use vm_memory::{GuestMemoryBackend, MmapRegion};
use vmm_sys_util::eventfd::EventFd;

use crate::capture::{FileCapture, ToFile};
use crate::confine::Confinement;
use crate::event::{Event, Outcome};
use crate::gateway::{Gateway, GatewaySetup};
use crate::node::LinuxBackend;
use crate::plan::{Network, Plan, VmPlan};
use crate::registry::Registry;
use crate::units::{BootFrom, Doorbell, Engines};
use crate::{command_line, netboot, programs};

/// A machine that runs. Dropping it stops it, joins its threads and frees
/// everything.
pub trait Running: Send {
    /// The registers of a node's vCPU in one line, for a report about a guest that
    /// hangs. `None` if it has none or does not answer.
    fn registers(&self, node: NodeId) -> Option<String>;

    /// Memory of the guests that this process really has, in KiB, if that can be told.
    fn guest_resident_kib(&self) -> Option<u64> {
        None
    }

    /// Ends all guests that still run and waits for them, for a bounded time. Their
    /// [`Event::Ended`] has been sent on return.
    fn stop(&mut self);
}

/// What can start machines; tests have one of their own.
pub trait Backend {
    /// Starts all VMs of `plan` and returns while they run. `events` may be cloned
    /// and used from any thread.
    ///
    /// # Errors
    /// One line on what this host lacks or what is wrong with a guest, and how to
    /// mend it. Nothing runs then.
    fn start(&self, plan: &Plan, events: Sender<Event>) -> anyhow::Result<Box<dyn Running>>;

    /// Makes a [`Backend::start`] under way return soon, with an error, if it takes long.
    fn cancel(&self) {}
}

/// Machines in this process: VMs of our own VMM around the devices of a [`Machine`].
pub struct Machines {
    /// What starts the plan's Linux nodes.
    pub linux: Option<Box<dyn LinuxBackend>>,
    /// What is told of it to those who serve `tofu ps` and the like, if anything.
    pub registry: Option<Arc<Registry>>,
    /// What joins it to the host.
    pub gateway: Option<GatewaySetup>,
    /// What its threads give up.
    pub confinement: Confinement,
}

impl Machines {
    /// Machines of small guests only, which nobody asks about.
    pub fn bare(confinement: Confinement) -> Self {
        Self { linux: None, registry: None, gateway: None, confinement }
    }
}

/// A machine without nodes whose engines run, with the links down that are to be.
pub fn machine(
    network: &Network,
    generation: Generation,
    doorbells: Doorbells,
    engines: usize,
    confinement: &Confinement,
) -> anyhow::Result<Machine> {
    let config = MachineConfig::of(generation, network.shape);
    let machine = Machine::new(MachineConfig { doorbells, engines, ..config })?;
    for &(at, port) in &network.links_down {
        machine.fabric().set_link(at, port, false)?;
    }
    let first = confinement.hook(Role::Engine);
    machine.start_with(move || first())?;
    Ok(machine)
}

/// How many engines a machine gets.
pub fn engines(wanted: Option<Engines>, cores: usize) -> usize {
    wanted.map_or(cores.min(MOST_ENGINES), |engines| engines.0.get() as usize)
}

impl Backend for Machines {
    fn start(&self, plan: &Plan, events: Sender<Event>) -> anyhow::Result<Box<dyn Running>> {
        let any_bare = plan.bare().next().is_some();
        let hypervisor = any_bare.then(Hypervisor::open).transpose()?;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let engines = engines(plan.engines, cores);
        let doorbells = doorbells(plan, cores, engines);
        let (network, confinement) = (&plan.network, &self.confinement);
        let machine = machine(network, plan.generation, doorbells, engines, confinement)?;
        let machine = Arc::new(machine);
        machine.network().wires().set_faults(plan.faults.clone())?;
        let captures = captures(&machine, plan)?;
        let mut running = Local {
            vms: HashMap::new(),
            linux: None,
            boot_server: None,
            gateway: None,
            machine,
            captures,
        };
        let registry = self.registry.as_ref();
        // Before anybody looks for it.
        if let Some(setup) = &self.gateway {
            running.gateway = Some(setup.start(&running.machine, &self.confinement)?);
        }
        if let Some(registry) = registry {
            registry.built(&running.machine, running.gateway.as_ref().map(Gateway::info))?;
            registry.others().extend(plan.gateway().map(|id| (id, "gateway")));
        }
        running.boot_server = {
            let files = self.linux.as_ref().map(|host| host.boot_files(plan));
            netboot::start(&running.machine, plan, files.as_ref(), &events, &self.confinement)?
        };
        // First, as they take their time, and small guests would wait for them in vain.
        if let Some(host) = &self.linux {
            running.linux = Some(host.start(&running.machine, plan, &events)?);
        }
        for (id, vm) in plan.bare() {
            let Some(hypervisor) = &hypervisor else { break };
            let at = plan.coords(id);
            let noted = registry.cloned();
            let note = move |state| {
                if let Some(registry) = &noted {
                    registry.others().insert(id, state);
                }
            };
            note("running");
            let first = self.confinement.hook(Role::Vcpu);
            let machine = &running.machine;
            let vm = boot(hypervisor, machine, plan, (id, at), vm, &events, first, note)
                .with_context(|| format!("node {at}"))?;
            // The receiver is gone only when the run is over.
            let _ = events.send(Event::Booted(id));
            if let Some(registry) = registry {
                registry.with_guest(id, vm.holder());
            }
            running.vms.insert(id, vm);
        }
        for node in registry.iter().flat_map(|registry| registry.linux()) {
            let linux = plan.linux().find(|(id, _)| *id == node.id());
            if let Some((linux, guest)) = linux.and_then(|(_, l)| Some((l, l.guest.as_ref()?))) {
                programs::start(node, guest, &linux.args, &events)?;
            }
        }
        Ok(Box::new(running))
    }

    fn cancel(&self) {
        if let Some(registry) = &self.registry {
            registry.cancel();
        }
    }
}

/// Starts the captures of a plan.
fn captures(machine: &Machine, plan: &Plan) -> anyhow::Result<Vec<FileCapture>> {
    let start = |to: &ToFile| {
        let node = plan.network.shape.node_id(to.at).context("no such node")?;
        FileCapture::start(machine.network().capture(CaptureConfig::new(node)), to)
    };
    plan.captures.iter().map(start).collect()
}

/// Engines of a machine unless the user says otherwise: more of them than this fight over the
/// same nodes rather than share the work.
const MOST_ENGINES: usize = 4;

/// Polled doorbells are faster as long as every guest and every engine has a core of its own;
/// otherwise whoever polls takes time from those who have work.
pub fn doorbells(plan: &Plan, cores: usize, engines: usize) -> Doorbells {
    match plan.doorbell {
        Doorbell::Trapped => Doorbells::Trapped,
        Doorbell::Polled => Doorbells::Polled,
        Doorbell::Auto if plan.vms().count() + engines <= cores => Doorbells::Polled,
        Doorbell::Auto => Doorbells::Trapped,
    }
}

/// Makes a node and starts its guest; `first` is called on the vCPU's thread before that runs,
/// `note` with a word when the guest has ended.
#[expect(clippy::too_many_arguments, reason = "called once")]
fn boot(
    hypervisor: &Hypervisor,
    machine: &Machine,
    plan: &Plan,
    (id, at): (NodeId, Coords),
    vm_plan: &VmPlan,
    events: &Sender<Event>,
    first: Arc<dyn Fn() + Send + Sync>,
    note: impl Fn(&'static str) + Send + 'static,
) -> anyhow::Result<Vm> {
    let lines = events.clone();
    let config = VmConfig { name: node_name(at), memory: vm_plan.memory.0, ..VmConfig::default() };
    let vm = Vm::new(hypervisor, &config, move |line| {
        let _ = lines.send(Event::Line(id, line.to_owned()));
    })?;
    let pages = match machine.config().doorbells {
        Doorbells::Trapped => None,
        Doorbells::Polled => SharedPages::new(tofu_vmm::shared_region(SharedPages::SIZE)?),
    };
    let windows = vm.new_windows();
    let parts = NodeParts {
        memory: Arc::new(vm.memory().clone()),
        pages,
        backend: Some(Arc::new(WindowDoorbells::new(windows.clone()))),
    };
    let node = machine.add_node_of(at, parts)?;
    if let Some(table) = node.endpoint().msix() {
        table.connect(vm.msi_sink());
    }
    vm.add_function_with(Arc::clone(&node) as Arc<dyn PciFunction>, windows)?;
    match plan.boot_server.filter(|_| vm_plan.boot == BootFrom::Tofu) {
        None => vm.boot(&vm_plan.guest.image, &command_line::guest(plan, vm_plan))?,
        Some(server) => vm.boot(FIRMWARE, &command_line::firmware(plan, &server))?,
    }
    vm.on_thread_start(move |_| first());
    let ends = events.clone();
    vm.start(move |outcome| {
        // A guest that exited is like a processor that halted: its device goes on serving others
        // until the machine ends. One that crashed is like a node that lost its power.
        if !matches!(outcome, tofu_vmm::Outcome::Exited(_)) {
            node.reset();
        }
        note("ended");
        let _ = ends.send(Event::Ended(id, outcome_of(outcome)));
    })?;
    Ok(vm)
}

fn outcome_of(outcome: &tofu_vmm::Outcome) -> Outcome {
    match outcome {
        tofu_vmm::Outcome::Exited(code) => Outcome::Exited(*code),
        tofu_vmm::Outcome::Reset => Outcome::Reset,
        tofu_vmm::Outcome::Stopped => Outcome::Stopped,
        fault => Outcome::Fault(fault.to_string()),
    }
}

/// A machine that runs in this process.
struct Local {
    // Dropped in this order: no vCPU may be left when the engines stop.
    vms: HashMap<NodeId, Vm>,
    linux: Option<Box<dyn Send>>,
    boot_server: Option<IoNode>,
    gateway: Option<Gateway>,
    machine: Arc<Machine>,
    captures: Vec<FileCapture>,
}

impl Running for Local {
    fn registers(&self, node: NodeId) -> Option<String> {
        self.vms.get(&node)?.registers().map(|registers| registers.to_string())
    }

    fn guest_resident_kib(&self) -> Option<u64> {
        let regions: BTreeSet<u64> = self
            .vms
            .values()
            .flat_map(|vm| vm.memory().iter())
            .map(|region| region.as_ptr() as u64)
            .collect();
        resident_kib(&std::fs::read_to_string("/proc/self/smaps").ok()?, &regions)
    }

    fn stop(&mut self) {
        for vm in self.vms.values() {
            vm.stop();
        }
        self.linux = None;
        if let Some(server) = &mut self.boot_server {
            server.stop();
        }
        self.gateway = None;
        self.machine.stop();
        self.captures.clear();
    }
}

/// Resident memory of the mappings in which one of `starts` is, from a text like that of
/// /proc/self/smaps. The host merges neighbouring mappings of guest memory into one.
fn resident_kib(smaps: &str, starts: &BTreeSet<u64>) -> Option<u64> {
    let (mut sum, mut counts) = (0, false);
    for line in smaps.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let bound = |text| u64::from_str_radix(text, 16).ok();
        if let Some((start, end)) = range.and_then(|(a, b)| Some((bound(a)?, bound(b)?))) {
            counts = starts.range(start..end.max(start)).next().is_some();
        } else if let (true, Some(size)) = (counts, line.strip_prefix("Rss:")) {
            sum += size.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?;
        }
    }
    Some(sum)
}

/// Doorbells by way of KVM: ioeventfds and shared pages.
struct WindowDoorbells {
    windows: Windows,
    attached: Mutex<HashMap<u64, Attachment>>,
}

impl WindowDoorbells {
    fn new(windows: Windows) -> Self {
        Self { windows, attached: Mutex::new(HashMap::new()) }
    }

    fn attached(&self) -> MutexGuard<'_, HashMap<u64, Attachment>> {
        lock(&self.attached)
    }

    fn keep(&self, offset: u64, attachment: Attachment) {
        if let Some(former) = self.attached().insert(offset, attachment) {
            self.windows.detach(former);
        }
    }
}

impl DoorbellBackend for WindowDoorbells {
    fn attach_event(&self, offset: u64, event: &EventFd) -> Result<(), String> {
        let event = event.try_clone().map_err(|error| error.to_string())?;
        let attachment = self
            .windows
            .attach_doorbell(REGISTER_BAR, offset, event)
            .map_err(|error| error.to_string())?;
        self.keep(offset, attachment);
        Ok(())
    }

    fn attach_page(
        &self,
        offset: u64,
        region: &Arc<MmapRegion<()>>,
        page_offset: usize,
        written: Box<dyn Fn() + Send + Sync>,
    ) -> Result<(), String> {
        let attachment = self
            .windows
            .attach_watched_page(REGISTER_BAR, offset, region, page_offset, written)
            .map_err(|error| error.to_string())?;
        self.keep(offset, attachment);
        Ok(())
    }

    fn protect_page(&self, offset: u64) {
        let attachment = self.attached().get(&offset).copied();
        if let Some(attachment) = attachment
            && let Err(error) = self.windows.set_read_only(attachment, true)
        {
            log::warn!("protecting a control queue page: {error}");
        }
    }

    fn detach(&self, offset: u64) {
        if let Some(attachment) = self.attached().remove(&offset) {
            self.windows.detach(attachment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_of_chosen_mappings() {
        let smaps = "\
7f00-8000 rw-p 00000000 00:00 0\nSize:  16 kB\nRss:   12 kB\n\
8000-9000 rw-p 00000000 00:00 0\nRss:   4 kB\n\
a000-b000 rw-p 00000000 00:00 0\nRss:   8 kB\n";
        assert_eq!(resident_kib(smaps, &BTreeSet::from([0x7f10, 0xa000])), Some(20));
        assert_eq!(resident_kib(smaps, &BTreeSet::new()), Some(0));
        assert_eq!(resident_kib("7f00-8000 rw-p\nRss: many\n", &BTreeSet::from([0x7f00])), None);
    }
}
