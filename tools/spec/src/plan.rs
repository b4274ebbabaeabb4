//! A machine that can be started, from the machine file and the command line.

mod build;
mod error;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use tofu_abi::Coords;
use tofu_arch::Arch;
use tofu_control::MachineName;
use tofu_fabric::{FaultPlan, Link, NodeId, Port, Shape, Shards};
use tofu_machine::Links;
use tofu_netboot::Fault;

use crate::guest::Guest;
use crate::units::{
    ArmCpu, BootFrom, Cpus, Doorbell, Driver, Engines, ImageName, InstructionTime, Interconnect,
    IpNumber, MemorySize, MetricsAddress, Mtu, Net, Quantum, ShardOf, TapWhen, Timeout, Until, Vmm,
};

pub use error::PlanError;

/// The network of a machine, which `topo` draws and `up` builds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Lengths of the axes, and which of them wrap around.
    pub shape: Shape,
    /// Links that start down in both directions, each named from one of its ends.
    pub links_down: BTreeSet<(Coords, Port)>,
    /// The shard of it that this process has, or `None` for all of it.
    pub shard: Option<ShardOf>,
}

/// A checked machine. From here on, only the host can refuse something in it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The fabric.
    pub network: Network,
    /// The kind of doorbells.
    pub doorbell: Doorbell,
    /// The time after which guests that still run count as hanging.
    pub timeout: Timeout,
    /// The interconnect of the nodes.
    pub interconnect: Interconnect,
    /// The carrier of packets over links.
    pub links: Links,
    /// Its way of keeping modelled time, if it does.
    pub modelled: Option<TimePlan>,
    /// A record of the guests' input, in modelled time.
    pub input: Option<InputLog>,
    /// Engine threads; `None` leaves the number to the machine.
    pub engines: Option<Engines>,
    /// The address at which metrics are served, if at all.
    pub metrics: Option<MetricsAddress>,
    /// The machine's name, if it is given.
    pub name: Option<MachineName>,
    /// True if its threads give up rights on the host.
    pub sandbox: bool,
    /// Settings of all Linux nodes.
    pub on_linux: OnLinux,
    /// The boot server, if nodes boot over the torus.
    pub boot_server: Option<ServerPlan>,
    /// Settings of IP over Tofu.
    pub ip: IpPlan,
    /// True if a node fails when its guest crashes or its virtual machine dies.
    pub fail_with_guest: bool,
    /// True if the guests of this shard are stopped when another shard is lost.
    pub end_with_shard: bool,
    /// Faults on its links.
    pub faults: Option<FaultPlan>,
    /// Captures from the start of the machine on.
    pub captures: Vec<CapturePlan>,
    /// All nodes in the order of their numbers. Those of other shards are stubs here.
    pub nodes: Vec<NodePlan>,
    /// The roles of nodes in other shards.
    pub elsewhere: Vec<(NodeId, Role)>,
}

/// The settings of all Linux nodes of a [`Plan`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnLinux {
    /// The monitor that runs them.
    pub vmm: Vmm,
    /// The image, if one is named.
    pub image: Option<ImageName>,
    /// A kernel instead of the image's.
    pub kernel: Option<PathBuf>,
    /// An initrd instead of the image's.
    pub initrd: Option<PathBuf>,
    /// Which driver owns the device.
    pub driver: Driver,
    /// The processor model of arm64 nodes.
    pub cpu: ArmCpu,
    /// The Ethernet between them.
    pub net: Net,
    /// The time within which one must be ready.
    pub boot_timeout: Timeout,
    /// True if all boot from their kernel, rather than as clones of a node that has booted.
    pub cold: bool,
}

/// The settings of a machine in modelled time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimePlan {
    /// The least step of a guest; `None` if it is as short as it must be for exact times.
    pub quantum: Option<Quantum>,
    /// The modelled time of an instruction.
    pub instruction: InstructionTime,
    /// The seed for the start times of the guests; `None` if all start at the same time.
    pub seed: Option<u32>,
    /// The point at which it stops.
    pub until: Option<Until>,
}

/// A record of the input of guests in modelled time, with its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputLog {
    /// It is written into a file.
    Record(PathBuf),
    /// Input is taken from a file, and none from outside.
    Replay(PathBuf),
}

/// A capture of the packets of a node into a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturePlan {
    /// The node.
    pub at: Coords,
    /// The file.
    pub path: PathBuf,
}

/// The settings of IP over Tofu on all nodes of a [`Plan`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpPlan {
    /// The machine's number, which is a part of its addresses.
    pub number: IpNumber,
    /// Largest IP packet.
    pub mtu: Mtu,
    /// True if nodes can reach the networks of the host.
    pub nat: bool,
    /// True if the host has an interface to the gateway.
    pub tap: TapWhen,
}

/// A node of a [`Plan`].
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// Its coordinates.
    pub coords: Coords,
    /// The user of its device.
    pub role: Role,
}

/// The user of a node's device.
#[derive(Clone, Debug)]
pub enum Role {
    /// No guest: the device only forwards packets.
    Stub,
    /// A small guest without an operating system, under our own monitor.
    Bare(VmPlan),
    /// A Linux guest.
    Linux(LinuxPlan),
    /// This process, which connects the machine to the host.
    Gateway,
}

impl Role {
    /// Returns whether its program comes over the torus.
    fn is_netbooted(&self) -> bool {
        match self {
            Self::Stub | Self::Gateway => false,
            Self::Bare(vm) => vm.boot == BootFrom::Tofu,
            Self::Linux(linux) => linux.boot == BootFrom::Tofu,
        }
    }

    /// Returns the architecture of a Linux guest.
    fn arch(&self) -> Option<Arch> {
        match self {
            Self::Linux(linux) => Some(linux.arch),
            _ => None,
        }
    }

    /// Returns the guest memory, and the name of the guest program that runs there to its end.
    fn vm(&self) -> Option<(MemorySize, Option<&str>)> {
        match self {
            Self::Stub | Self::Gateway => None,
            Self::Bare(vm) => Some((vm.memory, Some(&vm.guest.name))),
            Self::Linux(linux) => {
                Some((linux.memory, linux.guest.as_ref().map(|guest| &*guest.name)))
            }
        }
    }
}

/// The boot server of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerPlan {
    /// Its node.
    pub at: NodeId,
    /// The time for which nodes wait for it, in milliseconds.
    pub patience_ms: u64,
    /// Its faults, for tests.
    pub fault: Fault,
}

/// The time for which nodes wait for a boot server unless the user says otherwise.
const DEFAULT_PATIENCE_MS: u64 = 10_000;

impl ServerPlan {
    /// Creates a server at this node, which makes no mistakes.
    pub fn new(at: NodeId) -> Self {
        Self { at, patience_ms: DEFAULT_PATIENCE_MS, fault: Fault::None }
    }
}

/// A Linux guest of a [`Plan`].
#[derive(Clone, Debug)]
pub struct LinuxPlan {
    /// The program to run there; without one the node stays up.
    pub guest: Option<Guest>,
    /// Guest memory.
    pub memory: MemorySize,
    /// Virtual processors.
    pub cpus: Cpus,
    /// Arguments of the program.
    pub args: String,
    /// The user's additions to the kernel's command line.
    pub append: String,
    /// The source of the kernel.
    pub boot: BootFrom,
    /// The architecture of its processors.
    pub arch: Arch,
}

/// A small guest of a [`Plan`].
#[derive(Clone, Debug)]
pub struct VmPlan {
    /// The program.
    pub guest: Guest,
    /// Guest memory.
    pub memory: MemorySize,
    /// The user's part of the command line; the machine adds its own part.
    pub args: String,
    /// The source of the program.
    pub boot: BootFrom,
}

impl Network {
    /// Describes nodes and links in one line.
    pub fn summary(&self) -> String {
        let shape = &self.shape;
        let links = Link::all(shape).count();
        let down = Link::all(shape).filter(|link| self.is_down(link.from, link.port)).count();
        let plural = |count: usize, word: &str| {
            if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
        };
        let mut line = format!(
            "machine {shape}: {}, {}",
            plural(shape.nodes() as usize, "node"),
            plural(links, "link")
        );
        if down > 0 {
            let _ = write!(line, ", {down} down");
        }
        if shape.has_io_nodes() {
            let _ = write!(line, ", {} I/O nodes", shape.nodes() - shape.compute_nodes());
        }
        line
    }

    /// Returns whether the link at this port starts down, from whichever end it was named.
    pub fn is_down(&self, at: Coords, port: Port) -> bool {
        let other = self.shape.neighbor(at, port).map(|to| (to, port.opposite()));
        let named = |end| self.links_down.contains(&end);
        named((at, port)) || other.is_some_and(named)
    }
}

impl Plan {
    /// Returns the plan of one shard of this machine. Other processes have the other shards.
    ///
    /// # Errors
    ///
    /// If the machine cannot be cut into this many shards, or has something that machines in shards
    /// do not support.
    pub fn cut(mut self, own: ShardOf) -> Result<Self, PlanError> {
        let shards = Shards::new(self.network.shape, own.of)?;
        let lacks = [
            (self.links != Links::Direct, "modelled links"),
            (self.modelled.is_some(), "modelled time"),
        ];
        error::refuse(lacks, PlanError::InShards)?;
        if self.on_linux.net != Net::None {
            return Err(PlanError::NetInShards);
        }
        for CapturePlan { at, .. } in &self.captures {
            let shard = self.network.shape.node_id(*at).and_then(|id| shards.of(id));
            if let Some(shard) = shard.filter(|shard| *shard != own.shard) {
                return Err(PlanError::CaptureElsewhere { at: *at, shard });
            }
        }
        for (id, node) in (0..).map(NodeId).zip(&mut self.nodes) {
            if shards.of(id) != Some(own.shard) {
                let role = std::mem::replace(&mut node.role, Role::Stub);
                self.elsewhere.push((id, role));
            }
        }
        self.network.shard = Some(own);
        Ok(self)
    }

    fn roles(&self) -> impl Iterator<Item = (NodeId, &Role)> {
        (0..).map(NodeId).zip(self.nodes.iter().map(|node| &node.role))
    }

    /// Returns the small guests with their nodes.
    pub fn bare(&self) -> impl Iterator<Item = (NodeId, &VmPlan)> {
        self.roles().filter_map(|(id, role)| match role {
            Role::Bare(vm) => Some((id, vm)),
            _ => None,
        })
    }

    /// Returns the Linux guests with their nodes.
    pub fn linux(&self) -> impl Iterator<Item = (NodeId, &LinuxPlan)> {
        self.roles().filter_map(|(id, role)| match role {
            Role::Linux(linux) => Some((id, linux)),
            _ => None,
        })
    }

    /// Returns the architectures of Linux guests, each once.
    pub fn archs(&self) -> Vec<Arch> {
        let has = |arch: &Arch| self.linux().any(|(_, linux)| linux.arch == *arch);
        Arch::ALL.into_iter().filter(has).collect()
    }

    /// Returns the gateway if it is in this shard.
    pub fn gateway(&self) -> Option<NodeId> {
        self.roles().find(|(_, role)| matches!(role, Role::Gateway)).map(|(id, _)| id)
    }

    /// Returns the gateway, whichever shard has it.
    pub fn any_gateway(&self) -> Option<NodeId> {
        let elsewhere = self.elsewhere.iter().find(|(_, role)| matches!(role, Role::Gateway));
        self.gateway().or(elsewhere.map(|(id, _)| *id))
    }

    /// Returns the boot server if it is in this shard.
    pub fn own_boot_server(&self) -> Option<ServerPlan> {
        let elsewhere = |server: &ServerPlan| {
            let ShardOf { shard, of } = self.network.shard?;
            Some(Shards::new(self.network.shape, of).ok()?.of(server.at) != Some(shard))
        };
        self.boot_server.filter(|server| elsewhere(server) != Some(true))
    }

    /// Returns the small guests of all shards that boot over the torus.
    pub fn netbooted_bare(&self) -> impl Iterator<Item = (NodeId, &VmPlan)> {
        self.all_roles().filter_map(|(id, role)| match role {
            Role::Bare(vm) if vm.boot == BootFrom::Tofu => Some((id, vm)),
            _ => None,
        })
    }

    /// Returns the Linux guests of all shards that boot over the torus.
    pub fn netbooted_linux(&self) -> impl Iterator<Item = (NodeId, &LinuxPlan)> {
        self.all_roles().filter_map(|(id, role)| match role {
            Role::Linux(linux) if linux.boot == BootFrom::Tofu => Some((id, linux)),
            _ => None,
        })
    }

    fn all_roles(&self) -> impl Iterator<Item = (NodeId, &Role)> {
        self.roles().chain(self.elsewhere.iter().map(|(id, role)| (*id, role)))
    }

    /// Returns the nodes of this shard that have a virtual machine.
    pub fn vms(&self) -> impl Iterator<Item = NodeId> {
        self.roles().filter_map(|(id, role)| role.vm().map(|_| id))
    }

    /// Returns the number of virtual machines in all shards of the machine, without those at I/O
    /// nodes.
    pub fn compute_vms(&self) -> usize {
        let shape = &self.network.shape;
        let counts = |id: NodeId| !shape.is_io_node(self.coords(id));
        self.all_roles().filter(|(id, role)| role.vm().is_some() && counts(*id)).count()
    }

    /// Returns the number of virtual machines in all shards of the machine.
    pub fn all_vms(&self) -> usize {
        self.all_roles().filter(|(_, role)| role.vm().is_some()).count()
    }

    /// Returns the nodes where a guest program runs to its end, with its name.
    pub fn programs(&self) -> impl Iterator<Item = (NodeId, &str)> {
        self.roles().filter_map(|(id, role)| Some((id, role.vm()?.1?)))
    }

    /// Returns how many nodes fetch their programs from the boot server.
    pub fn netbooted(&self) -> usize {
        self.nodes.iter().filter(|node| node.role.is_netbooted()).count()
    }

    /// Returns the name of the guest program of a node.
    pub fn program(&self, node: NodeId) -> Option<&str> {
        self.nodes.get(node.index())?.role.vm()?.1
    }

    /// Returns whether the machine stays up until a command ends it, rather than until its programs
    /// have ended.
    pub fn stays_up(&self) -> bool {
        self.linux().any(|(_, linux)| linux.guest.is_none())
    }

    /// Returns the coordinates of a node.
    pub fn coords(&self, node: NodeId) -> Coords {
        self.nodes[node.index()].coords
    }

    /// Returns the host's memory that all VMs are known to take, in bytes. The memory of a small
    /// guest takes none until it is touched, and most guests touch little of it. A kernel touches
    /// all of its memory in time.
    pub fn least_memory(&self) -> u64 {
        let bare = self.bare().map(|(_, vm)| {
            let touched = MemorySize::OVERHEAD.0.saturating_add(vm.guest.size());
            touched.min(MemorySize::OVERHEAD.0.saturating_add(vm.memory.0))
        });
        let linux = self.linux().map(|(_, linux)| linux.memory.0);
        bare.chain(linux).fold(0, u64::saturating_add)
    }

    /// Returns the guest memory of all VMs, in bytes.
    pub fn guest_memory(&self) -> u64 {
        let sizes = self.roles().filter_map(|(_, role)| role.vm()).map(|(memory, _)| memory.0);
        sizes.fold(0, u64::saturating_add)
    }
}
