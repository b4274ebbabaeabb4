//! The interface between a command and the machine that it runs.
//!
//! `tofu up` makes a [`Plan`] and starts it here; everything else is reported to it as [`Event`]s.
//! Policy (timeouts, Ctrl-C, what counts as success, output) belongs to the command; this side only
//! runs VMs.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use anyhow::{Context, bail};
use tofu_control::protocol::NodeKind;
use tofu_fabric::NodeId;
use tofu_gateway::IoNode;
use tofu_machine::capture::CaptureConfig;
use tofu_machine::{
    Doorbells, Drive, Machine, MachineConfig, MachineOf, Shard, Surroundings, Torus, TorusConfig,
};
use tofu_sandbox::Role;
use tofu_vfio_user::Backing;
use tofu_vmm::Hypervisor;

use crate::backtrace::Frame;
use crate::capture::{FileCapture, ToFile};
use crate::confine::Confinement;
use crate::event::{Event, EventSender};
use crate::gateway::{Gateway, GatewaySetup};
use crate::guests::Guests;
use crate::machine::AnyMachine;
use crate::node::LinuxBackend;
use crate::registry::{Registry, SmallGuests};
use crate::shards::Others;
use crate::timed::TimedMachine;
use crate::timed::outside::InputFile;
use crate::{memory, netboot, programs, shortage};
use tofu_spec::plan::{Network, Plan, TimePlan};
use tofu_spec::units::{Doorbell, Engines, Interconnect, ShardOf};

/// A running machine. Dropping it stops it, joins its threads and frees everything.
pub trait Running: Send {
    /// Returns the registers of a node's vCPU in one line, for a report about a guest that hangs.
    /// `None` if it has none or does not answer.
    fn registers(&self, node: NodeId) -> Option<String>;

    /// Returns the current call stack of a node's small guest, innermost function first. Empty if
    /// it is not known.
    fn frames(&self, _: NodeId) -> Vec<Frame> {
        Vec::new()
    }

    /// Returns the resident memory of the guests in KiB, if it is known.
    fn guest_resident_kib(&self) -> Option<u64> {
        None
    }

    /// Returns the machine, to which devices for others can be added.
    fn machine(&self) -> Option<&AnyMachine> {
        None
    }

    /// Tells the other shards that all guests of this shard have ended or are about to be stopped,
    /// and how many have failed.
    fn ended(&self, _failed: u32) {}

    /// Ends all guests that still run and waits for them, for a bounded time. Their
    /// [`Event::Ended`] have been sent when it returns.
    fn stop(&mut self);
}

/// Starts machines; tests substitute another backend.
pub trait Backend {
    /// Starts all VMs of `plan` and returns while they run. `events` may be cloned and used from
    /// any thread.
    ///
    /// # Errors
    /// One line on what this host lacks or what is wrong with a guest, and how to
    /// fix it. Nothing runs then.
    fn start(&self, plan: &Plan, events: EventSender) -> anyhow::Result<Box<dyn Running>>;

    /// Passes an event of the machine to outside followers. Must be called for each event.
    fn on_event(&self, _event: &Event) {}

    /// Makes a [`Backend::start`] in progress return an error soon.
    fn cancel(&self) {}
}

/// The small guests from which on a machine's threads share one heap. With fewer, KVM's reports
/// about heaps cost less than threads that wait for each other's allocations could.
const MANY_GUESTS: usize = 128;

/// Prepares this process for the machine of `plan`: to be called before it has other threads.
pub fn prepare(plan: &Plan) {
    if plan.bare().count() >= MANY_GUESTS {
        tofu_vmm::share_heap();
    }
}

/// Machines in this process: VMs of our own VMM around the devices of a [`Machine`].
pub struct Machines {
    /// Starts the plan's Linux nodes.
    pub linux: Option<Box<dyn LinuxBackend>>,
    /// Keeps the machine's state for `tofu ps` and similar commands, if present.
    pub registry: Option<Arc<Registry>>,
    /// Connects it to the host.
    pub gateway: Option<GatewaySetup>,
    /// Captures from its start on.
    pub captures: Vec<ToFile>,
    /// The record of its guests' input, in modelled time.
    pub input: Option<InputFile>,
    /// Its other shards, if it is in shards.
    pub others: Option<Others>,
    /// The rights that its threads give up.
    pub confinement: Confinement,
    /// Returns the memory of the host that is left, in bytes, if that is known.
    pub memory: fn() -> Option<u64>,
    /// True if commands wait longer for an answer than usual. The nodes are processes of a host
    /// that they may keep busy, and nothing gets lost between them.
    pub is_patient: bool,
}

impl Machines {
    /// Runs machines of small guests only, without a registry.
    pub fn bare(confinement: Confinement) -> Self {
        let (linux, registry, gateway, others) = (None, None, None, None);
        let (captures, input, memory) = (Vec::new(), None, memory::available);
        let is_patient = false;
        Self { linux, registry, gateway, captures, input, others, confinement, memory, is_patient }
    }
}

/// The longer time for which commands wait for an answer *(ours)*: in a machine in shards, as some
/// hosts may be busier than others, and a cable that loses packets retransmits them for a while.
const LONG_TIMEOUT_NS: u64 = 10_000_000_000;

/// Takes links of a machine down and starts its engines.
fn started<D: Drive>(
    machine: MachineOf<D>,
    network: &Network,
    confinement: &Confinement,
) -> anyhow::Result<MachineOf<D>> {
    for &(at, port) in &network.links_down {
        machine.fabric().set_link(at, port, false)?;
    }
    let first = confinement.hook(Role::Engine);
    machine.start_with(move || first())?;
    Ok(machine)
}

/// Builds a machine in modelled time, for the plan's guests.
fn timed(
    plan: &Plan,
    time: TimePlan,
    input: Option<&InputFile>,
) -> anyhow::Result<Arc<TimedMachine>> {
    let generation = plan.interconnect.tofu().context("TNW has no modelled time")?;
    let guests: Vec<_> = plan.linux().map(|(id, _)| id).collect();
    let kind = (generation, plan.network.shape);
    let machine = TimedMachine::new(kind, &guests, Backing::Sealed, time)?;
    machine.take_down(&plan.network.links_down)?;
    machine.network().set_faults(plan.faults.clone())?;
    machine.let_in(input)?;
    Ok(machine)
}

/// Returns how many engines a machine gets.
pub fn engines(wanted: Option<Engines>, interconnect: Interconnect, cores: usize) -> usize {
    let most = match interconnect {
        Interconnect::Tofu(_) => MOST_ENGINES,
        // The threads that write do most of the work, and neighbours on one engine are handled
        // immediately.
        Interconnect::Tnw => 1,
    };
    wanted.map_or(cores.min(most), |engines| engines.0.get() as usize)
}

impl Backend for Machines {
    fn start(&self, plan: &Plan, events: EventSender) -> anyhow::Result<Box<dyn Running>> {
        let any_bare = plan.bare().next().is_some();
        let hypervisor = any_bare.then(Hypervisor::open).transpose()?;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let engines = engines(plan.engines, plan.interconnect, cores);
        // Others start the guests of a machine without any.
        let guests = Some(plan.vms().count()).filter(|vms| *vms > 0);
        let guests = guests.unwrap_or(plan.nodes.len());
        let doorbells = doorbells(plan.doorbell, guests, cores, engines);
        let confinement = &self.confinement;
        let machine = self.build(plan, doorbells, engines)?;
        if let AnyMachine::Timed(timed) = &machine {
            timed.tell(&events);
        }
        let captures = self.start_captures(&machine, plan)?;
        let guests = hypervisor.map(|hypervisor| {
            Arc::new(Guests {
                hypervisor,
                machine: machine.clone(),
                plan: plan.clone(),
                confinement: confinement.clone(),
                registry: self.registry.clone(),
                events: events.clone(),
                all: Default::default(),
            })
        });
        let shortage = guests.as_ref().map(|guests| shortage::Watch::start(guests, self.memory));
        let mut running = Local {
            _shortage: shortage.transpose()?,
            guests,
            linux: None,
            boot_server: None,
            gateway: None,
            others: self.others.clone(),
            machine,
            captures,
        };
        let registry = self.registry.as_ref();
        // The gateway must exist before anybody looks for it.
        if let (Some(setup), Some(machine)) = (&self.gateway, running.machine.tofu()) {
            running.gateway = Some(setup.start(machine, &self.confinement)?);
        }
        if let Some(registry) = registry {
            let gateway = running.gateway.as_ref().map(Gateway::info);
            registry.built(&running.machine, gateway)?;
            plan.gateway().into_iter().for_each(|id| {
                registry.note(id, NodeKind::Gateway, "gateway");
            });
        }
        // As soon as they are connected, they may send this shard settings that commands have
        // changed.
        if let Some(others) = &self.others {
            others.connect(running.machine.network(), &events, confinement)?;
        }
        if let Some(machine) = running.machine.tofu() {
            let files = self.linux.as_ref().map(|host| host.boot_files(plan));
            running.boot_server =
                netboot::start(machine, plan, files.as_ref(), &events, &self.confinement)?;
        }
        // Linux nodes come first: they take long, and small guests would time out waiting for them.
        if let Some(host) = &self.linux {
            running.linux = Some(host.start(&running.machine, plan, &events)?);
        }
        self.start_programs(&running, plan, &events)?;
        Ok(Box::new(running))
    }

    fn on_event(&self, event: &Event) {
        if let Some(registry) = &self.registry {
            registry.on_event(event);
        }
    }

    fn cancel(&self) {
        if let Some(registry) = &self.registry {
            registry.cancel();
        }
    }
}

impl Machines {
    /// Builds the machine of a plan, without nodes, with running engines and the plan's links down.
    fn build(
        &self,
        plan: &Plan,
        doorbells: Doorbells,
        engines: usize,
    ) -> anyhow::Result<AnyMachine> {
        if let Some(time) = plan.modelled {
            return Ok(AnyMachine::Timed(timed(plan, time, self.input.as_ref())?));
        }
        let (network, confinement, links) = (&plan.network, &self.confinement, plan.links);
        let surroundings = self.surroundings(network)?;
        let machine = match plan.interconnect {
            Interconnect::Tofu(generation) => {
                let mut config = MachineConfig::of(generation, network.shape);
                if self.is_patient || surroundings.shard.is_some() {
                    config.timeout_ns = LONG_TIMEOUT_NS;
                }
                let config = MachineConfig { links, doorbells, engines, ..config };
                let machine = Machine::within(config, surroundings)?;
                AnyMachine::Tofu(Arc::new(started(machine, network, confinement)?))
            }
            Interconnect::Tnw => {
                let config = TorusConfig { shape: network.shape, links, engines };
                let torus = Torus::within(config, surroundings)?;
                torus.set_doorbells(doorbells);
                AnyMachine::Tnw(Arc::new(started(torus, network, confinement)?))
            }
        };
        machine.network().set_faults(plan.faults.clone())?;
        Ok(machine)
    }

    /// The shard that this process runs, if the machine is divided, and the callback for failed
    /// links.
    fn surroundings(&self, network: &Network) -> anyhow::Result<Surroundings> {
        let shard = match (network.shard, &self.others) {
            (Some(ShardOf { shard: own, of: count }), Some(others)) => {
                Some(Shard { count, own, transport: others.transport() })
            }
            (Some(_), None) => bail!("a shard of a machine needs the others"),
            (None, _) => None,
        };
        let link_failed = self.registry.as_ref().map(Registry::link_failed);
        Ok(Surroundings { shard, link_failed })
    }

    /// Boots small guests, and starts the programs of Linux nodes.
    fn start_programs(
        &self,
        running: &Local,
        plan: &Plan,
        events: &EventSender,
    ) -> anyhow::Result<()> {
        let registry = self.registry.as_ref();
        if let Some(guests) = &running.guests {
            if let Some(registry) = registry {
                let guests: Weak<dyn SmallGuests> = Arc::downgrade(guests) as _;
                registry.with_guests(guests)?;
            }
            guests.boot_all()?;
        }
        for node in registry.iter().flat_map(|registry| registry.linux()) {
            let linux = plan.linux().find(|(id, _)| *id == node.id());
            if let Some((linux, guest)) = linux.and_then(|(_, l)| Some((l, l.guest.as_ref()?))) {
                if node.status().state != "ready" {
                    bail!("--until: time stands still before the nodes can run their programs");
                }
                programs::start(node, guest, &linux.args, events)?;
            }
        }
        Ok(())
    }

    fn start_captures(
        &self,
        machine: &AnyMachine,
        plan: &Plan,
    ) -> anyhow::Result<Vec<FileCapture>> {
        let start = |to: &ToFile| {
            let node = plan.network.shape.node_id(to.at).context("no such node")?;
            let capture = machine.network().capture(CaptureConfig::new(node));
            FileCapture::start(capture, to)
        };
        self.captures.iter().map(start).collect()
    }
}

/// The most engines of a machine unless the user says otherwise. More would compete for the same
/// nodes rather than share the work.
const MOST_ENGINES: usize = 4;

/// Chooses how doorbells are delivered. Polling is faster as long as every guest and every engine
/// has a dedicated core; otherwise it takes time from threads that have work.
pub fn doorbells(doorbell: Doorbell, guests: usize, cores: usize, engines: usize) -> Doorbells {
    match doorbell {
        Doorbell::Trapped => Doorbells::Trapped,
        Doorbell::Polled => Doorbells::Polled,
        Doorbell::Auto if guests + engines <= cores => Doorbells::Polled,
        Doorbell::Auto => Doorbells::Trapped,
    }
}

/// A machine that runs in this process.
struct Local {
    // Dropped in this order: no vCPU may be left when the engines stop.
    _shortage: Option<shortage::Watch>,
    guests: Option<Arc<Guests>>,
    linux: Option<Box<dyn Send>>,
    boot_server: Option<IoNode>,
    gateway: Option<Gateway>,
    others: Option<Others>,
    machine: AnyMachine,
    captures: Vec<FileCapture>,
}

impl Running for Local {
    fn machine(&self) -> Option<&AnyMachine> {
        Some(&self.machine)
    }

    fn registers(&self, node: NodeId) -> Option<String> {
        self.guests.as_ref()?.registers(node).map(|registers| registers.to_string())
    }

    fn frames(&self, node: NodeId) -> Vec<Frame> {
        self.guests.as_ref().map_or_else(Vec::new, |guests| guests.frames(node))
    }

    fn guest_resident_kib(&self) -> Option<u64> {
        let regions = self.guests.as_ref().map(|guests| guests.regions()).unwrap_or_default();
        resident_kib(&std::fs::read_to_string("/proc/self/smaps").ok()?, &regions)
    }

    fn ended(&self, failed: u32) {
        if let Some(others) = &self.others {
            others.tell(failed);
        }
    }

    fn stop(&mut self) {
        if let Some(guests) = &self.guests {
            guests.stop();
        }
        if let Some(others) = &self.others {
            others.leave();
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

/// Returns the resident memory of the mappings that contain one of `starts`, from text like that of
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
