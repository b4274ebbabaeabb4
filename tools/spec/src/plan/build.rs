//! Plans from specifications.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use tofu_abi::Coords;
use tofu_arch::Arch;
use tofu_control::NodeName;
use tofu_fabric::{Axis, FaultPlan, NodeId, Shape};
use tofu_netboot::Fault;

use super::error::{PlanError, refuse};
use super::{
    CapturePlan, InputLog, IpPlan, LinuxPlan, Network, NodePlan, OnLinux, Plan, Role, ServerPlan,
    TimePlan, VmPlan,
};
use crate::guest::{Guest, GuestError, GuestName};
use crate::spec::{GatewayAt, GuestSpec, Lines, LinkSpec, MachineSpec, NodeSpec, Use};
use crate::units::{
    BootFault, BootFrom, Cpus, Doorbell, Driver, GuestArgs, Interconnect, MemorySize, Net, TapWhen,
    Time, Timeout, Until, Vmm,
};

/// The guest program that runs by default.
const DEFAULT_GUEST: &str = "allpairs";
/// The guest program that runs by default on machines of TNW.
const DEFAULT_TNW_GUEST: &str = "tnw-allpairs";

impl Network {
    /// Builds the network of a specification.
    fn new(spec: &MachineSpec) -> Result<Self, PlanError> {
        let shape = spec.shape.unwrap_or_else(|| default_shape(spec));
        let [x, y, z] = shape.torus();
        let given = spec.torus;
        let torus = [given.x.unwrap_or(x), given.y.unwrap_or(y), given.z.unwrap_or(z)];
        let shape = with_io_nodes(shape.with_torus(torus), spec)?;
        check_nodes(&spec.node, &shape)?;
        check_links(&spec.link, &shape)?;
        let down = spec.link.iter().filter(|link| link.down);
        let links_down = down.map(|link| (link.at, link.port)).collect();
        Ok(Self { shape, links_down, shard: None })
    }
}

impl Plan {
    /// Builds the plan of a machine with its guests. A `[[node]]` takes precedence over what is
    /// said of all nodes.
    ///
    /// # Errors
    ///
    /// One line on what is wrong, and if a machine file says it, where.
    pub fn new(spec: &MachineSpec) -> Result<Self, PlanError> {
        let devices = Self::devices(spec)?;
        let (shape, interconnect) = (devices.network.shape, devices.interconnect);
        let places = Places::new(spec, &shape)?;
        let mut nodes = nodes(spec, interconnect, &places, &shape)?;
        let has_gateway = places.gateway.is_some();
        check_gateway(spec, has_gateway, &shape)?;
        let mut driver = spec.driver.unwrap_or_default();
        if interconnect == Interconnect::Tnw {
            let lacks = [
                (any_netbooted(&nodes, None), "nodes that boot over the torus"),
                (has_gateway, "a gateway"),
                (driver == Driver::Tofu, "the kernel driver, which is Tofu's (--driver tofu)"),
            ];
            refuse(lacks, PlanError::Tnw)?;
            // An image with that driver is of no use to its nodes, either.
            driver = Driver::Vfio;
        }
        check_arm64(spec, &nodes)?;
        if devices.modelled.is_some() {
            check_modelled(spec, &nodes)?;
        }
        if !nodes.iter().any(|node| matches!(node.role, Role::Linux(_)))
            && let Some(given) = spec.given().find(|given| given.of == Use::Linux)
        {
            return Err(spec.about(given.field, PlanError::NeedsLinux));
        }
        // People use the nodes behind a gateway, and take their time.
        // In modelled time, a second of the guests takes minutes.
        let slow = has_gateway || devices.modelled.is_some();
        let timeout = if slow { Timeout::LONGEST } else { Timeout::DEFAULT };
        let boot_timeout = match devices.modelled {
            Some(_) => Timeout::LONGEST,
            None => Timeout::DEFAULT,
        };
        let boot_server = match any_netbooted(&nodes, None) {
            false => None,
            true => Some(boot_server(spec, &mut nodes, &shape)?),
        };
        Ok(Self {
            boot_server,
            timeout: spec.timeout.unwrap_or(timeout),
            fail_with_guest: spec.fail_with_guest.unwrap_or(false),
            on_linux: OnLinux {
                vmm: spec.vmm.unwrap_or_default(),
                image: spec.image.clone(),
                kernel: spec.kernel.clone(),
                initrd: spec.initrd.clone(),
                driver,
                cpu: spec.cpu.unwrap_or_default(),
                net: spec.net.unwrap_or_default(),
                boot_timeout: spec.boot_timeout.unwrap_or(boot_timeout),
                cold: spec.cold.unwrap_or(false),
            },
            captures: captures(spec, &shape)?,
            nodes,
            ..devices
        })
    }

    /// Builds the plan of a machine of devices whose guests others start.
    ///
    /// # Errors
    ///
    /// As [`Plan::new`], and if any option is for guests.
    pub fn served(spec: &MachineSpec) -> Result<Self, PlanError> {
        if let Some(given) = spec.given().find(|given| given.of != Use::Machine) {
            return Err(spec.about(given.field, PlanError::NoGuests));
        }
        for node in &spec.node {
            let field = node.guest().given().next().map(|given| given.field);
            if let Some(field) = field.or(node.gateway.then_some("gateway")) {
                return Err(PlanError::NoGuests(field.into()).at(node.lines.of(field)));
            }
        }
        // Not `auto`, because only the monitors know how much of the host's processors they leave.
        let doorbell = spec.doorbell.unwrap_or(Doorbell::Trapped);
        Ok(Self { doorbell, ..Self::devices(spec)? })
    }

    /// Builds the plan of a machine whose nodes have no guests.
    fn devices(spec: &MachineSpec) -> Result<Self, PlanError> {
        let network = Network::new(spec)?;
        let shape = network.shape;
        let interconnect = spec.generation.unwrap_or_else(|| Interconnect::of_shape(&shape));
        let link_mode = spec.links.unwrap_or_default();
        if interconnect == Interconnect::Tnw {
            if [Axis::A, Axis::B, Axis::C].into_iter().any(|axis| shape.len(axis) != 1) {
                return Err(PlanError::TnwShape(shape));
            }
            refuse([(shape.has_io_nodes(), "I/O nodes")], PlanError::Tnw)?;
        }
        let modelled = modelled(spec, interconnect, &network)?;
        Ok(Self {
            network,
            doorbell: spec.doorbell.unwrap_or_default(),
            timeout: Timeout::DEFAULT,
            interconnect,
            links: link_mode.links(),
            modelled,
            input: input(spec)?,
            engines: spec.engines,
            metrics: spec.metrics,
            name: spec.name.clone(),
            sandbox: !spec.no_sandbox.unwrap_or(false),
            on_linux: OnLinux::default(),
            boot_server: None,
            ip: IpPlan {
                number: spec.ip_number.unwrap_or_default(),
                mtu: spec.mtu.unwrap_or_default(),
                nat: spec.nat.unwrap_or(false),
                tap: spec.tap.unwrap_or_default(),
            },
            fail_with_guest: false,
            end_with_shard: false,
            faults: faults(spec),
            captures: Vec::new(),
            nodes: shape.iter().map(|coords| NodePlan { coords, role: Role::Stub }).collect(),
            elsewhere: Vec::new(),
        })
    }
}

impl MachineSpec {
    /// Returns an error about a field: under its name if a machine file has it, else as an option.
    fn about(&self, field: &'static str, error: impl FnOnce(String) -> PlanError) -> PlanError {
        match self.lines.of(field) {
            Some(place) => error(field.into()).at(Some(place)),
            None => error(format!("--{}", field.replace('_', "-"))),
        }
    }
}

/// Checks that each `[[node]]` is of this shape, and the only one for its node.
fn check_nodes(nodes: &[NodeSpec], shape: &Shape) -> Result<(), PlanError> {
    let (mut seen, mut gateway) = (HashSet::new(), false);
    for node in nodes {
        if !shape.contains(node.at) {
            return Err(not_in_machine(node.at, &node.lines, shape));
        }
        if !seen.insert(node.at) {
            let allowed = "a node that no other [[node]] names";
            return Err(wrong("at", show_coords(node.at), allowed.into(), &node.lines));
        }
        if node.gateway && std::mem::replace(&mut gateway, true) {
            let allowed = "for one node of a machine only";
            return Err(wrong("gateway", "true".into(), allowed.into(), &node.lines));
        }
    }
    Ok(())
}

/// Checks that each `[[link]]` is of this shape, and the only one for its link.
fn check_links(links: &[LinkSpec], shape: &Shape) -> Result<(), PlanError> {
    let mut seen = HashSet::new();
    for link in links {
        if !shape.contains(link.at) {
            return Err(not_in_machine(link.at, &link.lines, shape));
        }
        let port = |allowed| wrong("port", format!("\"{}\"", link.port), allowed, &link.lines);
        let Some(far) = shape.neighbor(link.at, link.port) else {
            let ports = shape.neighbors(link.at).map(|(port, _)| format!("\"{port}\""));
            let ports: Vec<String> = ports.collect();
            let at = show_coords(link.at);
            return Err(port(match ports.as_slice() {
                [] => format!("a port with a link, and {at} has none"),
                ports => format!("one of {} at {at}", ports.join(", ")),
            }));
        };
        let ends = [(link.at, link.port), (far, link.port.opposite())];
        if ends.iter().any(|end| seen.contains(end)) {
            let allowed = "a port whose link no other [[link]] names, from either end";
            return Err(port(allowed.into()));
        }
        seen.extend(ends);
    }
    Ok(())
}

/// Returns the error for a value that is not allowed in this machine.
fn wrong(field: &'static str, value: String, allowed: String, lines: &Lines) -> PlanError {
    PlanError::Value { field, value, allowed }.at(lines.of(field))
}

fn not_in_machine(at: Coords, lines: &Lines, shape: &Shape) -> PlanError {
    let allowed = format!("[x, y, z, a, b, c], each below its length in the shape {shape}");
    wrong("at", show_coords(at), allowed, lines)
}

fn show_coords(at: Coords) -> String {
    format!("{:?}", at.to_array())
}

/// Checks the settings of the gateway.
fn check_gateway(spec: &MachineSpec, exists: bool, shape: &Shape) -> Result<(), PlanError> {
    let nat = spec.nat == Some(true);
    match exists {
        false if nat => Err(PlanError::Nat),
        true if shape.nodes() == 1 => Err(PlanError::OnlyGateway),
        true if nat && spec.tap == Some(TapWhen::Off) => Err(PlanError::NatWithoutTap),
        _ => Ok(()),
    }
}

/// Checks the settings of arm64 nodes.
fn check_arm64(spec: &MachineSpec, nodes: &[NodePlan]) -> Result<(), PlanError> {
    if nodes.iter().any(|node| node.role.arch() == Some(Arch::Arm64)) {
        let netbooted = any_netbooted(nodes, Some(Arch::Arm64));
        let lacks = [
            (netbooted, "nodes that boot over the torus (--boot tofu)"),
            (spec.vmm == Some(Vmm::Tofu), "our own monitor (--vmm tofu)"),
        ];
        refuse(lacks, PlanError::Arm64)
    } else if spec.cpu.is_some() {
        Err(PlanError::Cpu.at(spec.lines.of("cpu")))
    } else {
        Ok(())
    }
}

/// The most nodes of a machine in modelled time, whose guests wait for each other.
const MOST_MODELLED: u32 = 64;

/// Checks the settings of a machine in modelled time, except for its guests. Returns its settings
/// of time; `None` if it keeps the host's time.
fn modelled(
    spec: &MachineSpec,
    interconnect: Interconnect,
    network: &Network,
) -> Result<Option<TimePlan>, PlanError> {
    if spec.time.unwrap_or_default() == Time::Host {
        let given = [
            ("quantum", spec.quantum.is_some()),
            ("ns_per_instruction", spec.ns_per_instruction.is_some()),
            ("seed", spec.seed.is_some()),
            ("record", spec.record.is_some()),
            ("replay", spec.replay.is_some()),
            ("until", spec.until.is_some()),
        ];
        return match given.into_iter().find(|(_, given)| *given) {
            Some((field, _)) => Err(spec.about(field, PlanError::NeedsModelled)),
            None => Ok(None),
        };
    }
    let nodes = network.shape.nodes();
    if nodes > MOST_MODELLED {
        return Err(PlanError::ModelledNodes { nodes, most: MOST_MODELLED });
    }
    // Memory that is polled has no time.
    let polled = spec.doorbell == Some(Doorbell::Polled);
    let lacks = [
        (interconnect == Interconnect::Tnw, "the devices of TNW"),
        (polled, "polled doorbells (--doorbell polled)"),
        (spec.links.is_some(), "links of another kind (--links)"),
        (spec.engines.is_some(), "engine threads (--engines)"),
        (spec.metrics.is_some(), "metrics (--metrics)"),
    ];
    refuse(lacks, PlanError::Modelled)?;
    if let Some(Until::Command { node, .. }) = spec.until
        && node >= nodes
    {
        return Err(spec.about("until", |field| PlanError::Until { field, node, nodes }));
    }
    let instruction = spec.ns_per_instruction.unwrap_or_default();
    Ok(Some(TimePlan { quantum: spec.quantum, instruction, seed: spec.seed, until: spec.until }))
}

/// Returns the settings for a record of the guests' input.
fn input(spec: &MachineSpec) -> Result<Option<InputLog>, PlanError> {
    match (&spec.record, &spec.replay) {
        (Some(_), Some(_)) => Err(PlanError::RecordAndReplay),
        (Some(path), None) => Ok(Some(InputLog::Record(path.clone()))),
        (None, Some(path)) => Ok(Some(InputLog::Replay(path.clone()))),
        (None, None) => Ok(None),
    }
}

/// Checks the settings of guests of a machine in modelled time.
fn check_modelled(spec: &MachineSpec, nodes: &[NodePlan]) -> Result<(), PlanError> {
    let any = |of: fn(&Role) -> bool| nodes.iter().any(|node| of(&node.role));
    let several = |role: &Role| matches!(role, Role::Linux(linux) if linux.cpus.0 > 1);
    if any(|role| matches!(role, Role::Bare(_))) {
        return Err(PlanError::ModelledGuests);
    }
    let lacks = [
        (any(|role| matches!(role, Role::Gateway)), "a gateway"),
        (any_netbooted(nodes, None), "nodes that boot over the torus (--boot tofu)"),
        (any(several), "nodes with several processors (--cpus)"),
        (spec.vmm == Some(Vmm::Tofu), "our own monitor (--vmm tofu)"),
        (spec.net.unwrap_or_default() != Net::None, "an Ethernet (--net)"),
        (spec.fail_with_guest == Some(true), "nodes that fail with their guests"),
    ];
    refuse(lacks, PlanError::Modelled)?;
    // Their clock has a frequency of 32 bits, and counts no slower than QEMU.
    let kept = (250..=1000).contains(&spec.ns_per_instruction.unwrap_or_default().ps());
    if any(|role| role.arch() == Some(Arch::Arm64)) && !kept {
        return Err(spec.about("ns_per_instruction", PlanError::ModelledArm64));
    }
    Ok(())
}

/// The nodes with a special role.
struct Places<'a> {
    gateway: Option<NodeId>,
    /// The settings of nodes in a machine file.
    own: HashMap<NodeId, &'a NodeSpec>,
}

impl<'a> Places<'a> {
    fn new(spec: &'a MachineSpec, shape: &Shape) -> Result<Self, PlanError> {
        let shape = *shape;
        let id = |node: &'a NodeSpec| Some((shape.node_id(node.at)?, node));
        let mut this = Self { gateway: None, own: spec.node.iter().filter_map(id).collect() };
        this.gateway = match spec.gateway {
            Some(GatewayAt::Node(at)) => {
                Some(shape.node_id(at).ok_or(PlanError::Gateway { at, shape })?)
            }
            Some(GatewayAt::IoNode) => {
                let mut free = shape.io_nodes().filter_map(|at| shape.node_id(at));
                let free = free.find(|id| !this.has_guest(*id));
                Some(free.ok_or(PlanError::GatewayNowhere)?)
            }
            None => this.own.iter().find(|(_, node)| node.gateway).map(|(id, _)| *id),
        };
        Ok(this)
    }

    /// Returns true if a guest is requested for this particular node.
    fn has_guest(&self, id: NodeId) -> bool {
        self.own.get(&id).is_some_and(|own| own.guest() != GuestSpec::default())
    }
}

/// The nodes of the machine. The first compute nodes have the requested number of guests.
fn nodes(
    spec: &MachineSpec,
    interconnect: Interconnect,
    places: &Places<'_>,
    shape: &Shape,
) -> Result<Vec<NodePlan>, PlanError> {
    let mut count = spec.nodes.unwrap_or(shape.compute_nodes());
    if count == 0 || count > shape.compute_nodes() {
        return Err(PlanError::Nodes { asked: count, shape: *shape });
    }
    let default_guest = match interconnect {
        Interconnect::Tofu(_) => DEFAULT_GUEST,
        Interconnect::Tnw => DEFAULT_TNW_GUEST,
    };
    let mut roles = Roles { spec, default_guest, bare: HashMap::new(), linux: HashMap::new() };
    let mut nodes = Vec::with_capacity(shape.nodes() as usize);
    for (id, coords) in (0..).map(NodeId).zip(shape.iter()) {
        let is_io = shape.is_io_node(coords);
        let counts = !is_io && count > 0;
        count -= u32::from(counts);
        let role = match places.gateway {
            Some(gateway) if gateway == id => Role::Gateway,
            _ if counts || is_io && places.has_guest(id) => {
                roles.of(places.own.get(&id).copied())?
            }
            _ => Role::Stub,
        };
        nodes.push(NodePlan { coords, role });
    }
    Ok(nodes)
}

/// Returns true if any node boots over the torus, or any of this architecture does.
fn any_netbooted(nodes: &[NodePlan], arch: Option<Arch>) -> bool {
    let of_arch = |role: &Role| arch.is_none() || role.arch() == arch;
    nodes.iter().any(|node| of_arch(&node.role) && node.role.is_netbooted())
}

/// Applies the setting for I/O nodes. Without one, the shape keeps those that its name implies.
fn with_io_nodes(shape: Shape, spec: &MachineSpec) -> Result<Shape, PlanError> {
    let Some(asked) = spec.io_nodes else { return Ok(shape) };
    let with = shape.with_io_nodes(asked);
    if with.has_io_nodes() == asked {
        return Ok(with);
    }
    if spec.lines.of("io_nodes").is_none() {
        return Err(PlanError::OnlyIoNodes(shape));
    }
    let allowed = format!("for shapes with a Z of 2 or more, and this one is {shape}");
    Err(wrong("io_nodes", "true".into(), allowed, &spec.lines))
}

/// Returns the faults of a machine, including those that single links have instead.
fn faults(spec: &MachineSpec) -> Option<FaultPlan> {
    let own = |link: &LinkSpec| Some((link.at, link.port, link.faults?.rates));
    let links: Vec<_> = spec.link.iter().filter_map(own).collect();
    if spec.faults.is_none() && links.is_empty() {
        return None;
    }
    Some(FaultPlan { links, ..spec.faults.unwrap_or_default().plan() })
}

fn captures(spec: &MachineSpec, shape: &Shape) -> Result<Vec<CapturePlan>, PlanError> {
    let capture = |asked: &String| {
        let no = |why: String| PlanError::Capture { asked: asked.clone(), why };
        let (node, path) = asked
            .split_once('=')
            .ok_or_else(|| no("give NODE=FILE, such as 0=node0.pcapng".into()))?;
        let name = NodeName::parse(node).ok_or_else(|| {
            no("give an index, coordinates or a name of a node in front of the =".into())
        })?;
        let at =
            name.at(shape).ok_or_else(|| no(format!("the machine {shape} has no node {node}")))?;
        Ok(CapturePlan { at, path: path.into() })
    };
    spec.captures.iter().map(capture).collect()
}

/// Returns the default shape of a machine of small guests.
fn shape_of(interconnect: Interconnect) -> Shape {
    match interconnect {
        Interconnect::Tofu(_) => Shape::UNIT,
        Interconnect::Tnw => cube(),
    }
}

/// Returns the default shape of a machine.
fn default_shape(spec: &MachineSpec) -> Shape {
    match (spec.linux, spec.boot) {
        // The third node is for a boot server.
        (Some(true), Some(BootFrom::Tofu)) => row(3),
        (Some(true), _) => row(2),
        _ => shape_of(spec.generation.unwrap_or_default()),
    }
}

/// Makes the boot server, on a separate node.
fn boot_server(
    spec: &MachineSpec,
    nodes: &mut [NodePlan],
    shape: &Shape,
) -> Result<ServerPlan, PlanError> {
    let at = make_room(nodes, spec.boot_server, shape);
    let server = ServerPlan::new(at.map_err(|error| error.at(spec.lines.of("boot_server")))?);
    let patience = spec.boot_patience.map_or(server.patience_ms, |patience| {
        u64::try_from(patience.0.as_millis()).unwrap_or(u64::MAX)
    });
    let fault = match spec.boot_fault.unwrap_or_default() {
        BootFault::None => Fault::None,
        BootFault::Corrupt => Fault::Corrupt,
        BootFault::Silent => Fault::Silent(50),
    };
    Ok(ServerPlan { patience_ms: patience, fault, ..server })
}

/// Assigns a node to the boot server: the requested one, else the last I/O node without a VM, else
/// the last node without a VM, else the last node that is not the gateway.
fn make_room(
    nodes: &mut [NodePlan],
    asked: Option<Coords>,
    shape: &Shape,
) -> Result<NodeId, PlanError> {
    let at = match asked {
        Some(at) => shape.node_id(at).ok_or(PlanError::BootServer { at, shape: *shape })?.index(),
        None => {
            let is_free = |node: &NodePlan| matches!(node.role, Role::Stub);
            let is_io = |node: &NodePlan| shape.is_io_node(node.coords);
            let io = nodes.iter().rposition(|node| is_io(node) && is_free(node));
            let free = || nodes.iter().rposition(is_free);
            let last = || nodes.iter().rposition(|node| !matches!(node.role, Role::Gateway));
            io.or_else(free).or_else(last).ok_or(PlanError::NoBootServer)?
        }
    };
    if matches!(nodes[at].role, Role::Gateway) {
        return Err(PlanError::BootServerAtGateway { at: nodes[at].coords });
    }
    nodes[at].role = Role::Stub;
    if !nodes.iter().any(|node| node.role.is_netbooted()) {
        return Err(PlanError::NoBootServer);
    }
    Ok(NodeId(at as u32))
}

/// Returns the default shape of a machine of TNW.
fn cube() -> Shape {
    Shape::new([2, 2, 2, 1, 1, 1]).unwrap_or(Shape::UNIT)
}

/// Returns the default shape of a machine of Linux nodes: neighbouring nodes in a row.
fn row(nodes: u8) -> Shape {
    Shape::new([nodes, 1, 1, 1, 1, 1]).unwrap_or(Shape::UNIT)
}

/// Makes roles from specifications. Each guest program is loaded once.
struct Roles<'a> {
    spec: &'a MachineSpec,
    default_guest: &'static str,
    bare: HashMap<GuestName, Guest>,
    linux: HashMap<(GuestName, Arch), Guest>,
}

impl Roles<'_> {
    /// Returns the role of a node, which may have settings in a machine file.
    fn of(&mut self, own: Option<&NodeSpec>) -> Result<Role, PlanError> {
        let guest = own.map(NodeSpec::guest).unwrap_or_default().merged(self.spec.guests());
        let place = |field: &str| {
            let line = own.and_then(|own| own.lines.of(field));
            line.or_else(|| self.spec.lines.of(field))
        };
        let [memory, program] = ["memory", "guest"].map(place);
        match guest.linux {
            Some(true) => self.linux(guest).map_err(|error| match error {
                PlanError::LinuxMemory { .. } => error.at(memory),
                error => error.at(program),
            }),
            _ => self.bare(guest).map_err(|error| match error {
                PlanError::GuestMemory { .. } => error.at(memory),
                error => error.at(program),
            }),
        }
    }

    fn linux(&mut self, spec: GuestSpec) -> Result<Role, PlanError> {
        let arch = spec.arch.unwrap_or_else(Arch::host);
        let find = |(name, arch): &(GuestName, Arch)| Guest::load_linux(name, *arch);
        let key = spec.guest.map(|name| (name, arch));
        let guest = key.map(|key| load(&mut self.linux, &key, find)).transpose()?;
        let memory = spec.memory.unwrap_or(MemorySize::LINUX_DEFAULT);
        if memory.0 < MemorySize::LINUX_LEAST.0 {
            return Err(PlanError::LinuxMemory { memory });
        }
        Ok(Role::Linux(LinuxPlan {
            guest,
            memory,
            cpus: spec.cpus.unwrap_or(Cpus::DEFAULT),
            args: text(spec.args),
            append: text(spec.append),
            boot: spec.boot.unwrap_or_default(),
            arch,
        }))
    }

    fn bare(&mut self, spec: GuestSpec) -> Result<Role, PlanError> {
        let default = || GuestName::Shipped(self.default_guest.into());
        let name = spec.guest.unwrap_or_else(default);
        let guest = load(&mut self.bare, &name, Guest::load_bare)?;
        let memory = spec.memory.unwrap_or(MemorySize::DEFAULT);
        if memory.0 < guest.end() {
            let least = MemorySize(guest.end().next_multiple_of(1 << 20));
            return Err(PlanError::GuestMemory { memory, guest: guest.name, least });
        }
        let (args, boot) = (text(spec.args), spec.boot.unwrap_or_default());
        Ok(Role::Bare(VmPlan { guest, memory, args, boot }))
    }
}

fn text(args: Option<GuestArgs>) -> String {
    args.map(|args| args.0).unwrap_or_default()
}

fn load<K: Clone + Eq + Hash, T: Clone>(
    loaded: &mut HashMap<K, T>,
    name: &K,
    load: impl FnOnce(&K) -> Result<T, GuestError>,
) -> Result<T, GuestError> {
    if let Some(guest) = loaded.get(name) {
        return Ok(guest.clone());
    }
    let guest = load(name)?;
    loaded.insert(name.clone(), guest.clone());
    Ok(guest)
}
