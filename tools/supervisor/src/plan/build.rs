//! Plans from the machine file and the command line.

use std::collections::HashMap;
use std::fs::File;
use std::hash::Hash;
use std::path::Path;
use std::sync::Arc;

use tofu_abi::Coords;
use tofu_control::{NodeAt, NodeName};
use tofu_fabric::{Axis, FaultPlan, NodeId, Shape};
use tofu_image::Arch;
use tofu_input::STDIN;
use tofu_ui::{FileError, TomlFile};

use super::error::{PlanError, refuse};
use super::{IpPlan, LinuxPlan, Network, NodePlan, Plan, Role, ServerPlan, VmPlan};
use crate::capture::ToFile;
use crate::config::{LinkEntry, MachineFile, Settings};
use crate::faults::FaultSpec;
use crate::guest::{Guest, GuestError, GuestName};
use crate::options::{MachineArgs, ShapeArgs, Vmm};
use crate::units::{
    BootFrom, Cpus, Doorbell, Driver, GuestArgs, Interconnect, LinkMode, MemorySize, Timeout,
};

/// The guest program that runs by default.
const DEFAULT_GUEST: &str = "allpairs";
/// The guest program that runs by default on machines of TNW.
const DEFAULT_TNW_GUEST: &str = "tnw-allpairs";

impl Network {
    /// Builds the network of a machine file, or of an empty one, overridden by the command line.
    /// `interconnect` may give the kind of device, and `default` gives the shape if none is given.
    /// If the file does not name an interconnect, it becomes that of the shape.
    fn new(
        args: &ShapeArgs,
        interconnect: Option<Interconnect>,
        default: impl FnOnce(Interconnect) -> Shape,
    ) -> Result<(Self, MachineFile), PlanError> {
        let mut file = match &args.config {
            Some(path) => {
                let stdin = args.stdin.as_deref().filter(|_| path == Path::new(STDIN));
                let text = TomlFile::read(stdin.unwrap_or(path), "machine file")?;
                MachineFile::parse(path, &text)?
            }
            None => MachineFile::default(),
        };
        let default = default(interconnect.or(file.interconnect).unwrap_or_default());
        let shape = args.shape.or(file.shape).unwrap_or(default);
        file.interconnect.get_or_insert(Interconnect::of_shape(&shape));
        let [x, y, z] = shape.torus();
        let [given_x, given_y, given_z] = file.torus;
        let torus = [given_x.unwrap_or(x), given_y.unwrap_or(y), given_z.unwrap_or(z)];
        let shape = with_io_nodes(shape.with_torus(torus), args, &file)?;
        file.check(&shape)?;
        let down = file.links.iter().filter(|link| link.down);
        let links_down = down.map(|link| (link.at, link.port)).collect();
        Ok((Self { shape, links_down, part: None }, file))
    }
}

impl Plan {
    /// Builds the plan for `tofu up`. The command line overrides the file's machine-wide settings,
    /// and a `[[node]]` of the file overrides both.
    pub fn new(args: &MachineArgs) -> Result<Self, PlanError> {
        let default = |interconnect| default_shape(args, interconnect);
        let (network, file) = Network::new(&args.shape, args.generation, default)?;
        let shape = network.shape;
        let devices = Self::devices(args, network, &file)?;
        let interconnect = devices.interconnect;
        let asked = Asked::new(args, &file, &shape)?;
        let gateway = asked.gateway;
        let mut nodes = nodes(args, &file, interconnect, &asked, &shape)?;
        if args.ip.nat && gateway.is_none() {
            return Err(PlanError::Nat);
        }
        if shape.nodes() == 1 && gateway.is_some() {
            return Err(PlanError::OnlyGateway);
        }
        let mut driver = args.linux.driver.or(file.driver).unwrap_or_default();
        if interconnect == Interconnect::Tnw {
            let lacks = [
                (any_netbooted(&nodes, None), "nodes that boot over the torus"),
                (gateway.is_some(), "a gateway"),
                (driver == Driver::Tofu, "the kernel driver, which is Tofu's (--driver tofu)"),
            ];
            refuse(lacks, PlanError::Tnw)?;
            // An image with that driver is of no use to its nodes, either.
            driver = Driver::Vfio;
        }
        let cpu = args.linux.cpu.or(file.cpu);
        if nodes.iter().any(|node| node.role.arch() == Some(Arch::Arm64)) {
            let lacks = [
                (
                    any_netbooted(&nodes, Some(Arch::Arm64)),
                    "nodes that boot over the torus (--boot tofu)",
                ),
                (args.linux.vmm == Vmm::Tofu, "our own monitor (--vmm tofu)"),
            ];
            refuse(lacks, PlanError::Arm64)?;
        } else if cpu.is_some() {
            return Err(PlanError::Cpu);
        }
        // People use the nodes behind a gateway, and take their time.
        let timeout = if gateway.is_some() { Timeout::LONGEST } else { Timeout::DEFAULT };
        let boot_server = match any_netbooted(&nodes, None) {
            false => None,
            true => {
                let asked = args.boot.boot_server.map(|at| at.0).or(file.boot_server);
                Some(ServerPlan::new(make_room(&mut nodes, asked, &shape)?, &args.boot))
            }
        };
        Ok(Self {
            boot_server,
            timeout: args.timeout.or(file.timeout).unwrap_or(timeout),
            fail_with_guest: args.fail_with_guest || file.fail_with_guest,
            image: args.linux.image.clone().or(file.image),
            driver,
            cpu: cpu.unwrap_or_default(),
            captures: captures(args, &shape)?,
            nodes,
            ..devices
        })
    }

    /// Builds the plan for `tofu serve`: a machine of devices whose guests others start.
    pub fn served(args: &MachineArgs) -> Result<Self, PlanError> {
        let (plan, file) = Self::without_guests(args)?;
        // A file may be shared with `tofu up`.
        if let Some((place, field)) = &file.of_guests {
            log::warn!("{place}: {field} has no effect here: `tofu serve` starts no guests");
        }
        // Not `auto`, because only the monitors know how much of the host's processors they leave.
        let doorbell = args.doorbell.or(file.doorbell).unwrap_or(Doorbell::Trapped);
        Ok(Self { doorbell, ..plan })
    }

    /// Builds the plan of a machine that a command only describes, such as `tofu topo`.
    pub fn described(args: &MachineArgs) -> Result<Self, PlanError> {
        Ok(Self::without_guests(args)?.0)
    }

    fn without_guests(args: &MachineArgs) -> Result<(Self, MachineFile), PlanError> {
        let (network, file) = Network::new(&args.shape, args.generation, shape_of)?;
        Ok((Self::devices(args, network, &file)?, file))
    }

    /// Builds the plan of a machine whose nodes have no guests.
    fn devices(
        args: &MachineArgs,
        network: Network,
        file: &MachineFile,
    ) -> Result<Self, PlanError> {
        let shape = network.shape;
        let interconnect = args.generation.or(file.interconnect).unwrap_or_default();
        let link_mode = args.links.or(file.link_mode).unwrap_or_default();
        if interconnect == Interconnect::Tnw {
            if [Axis::A, Axis::B, Axis::C].into_iter().any(|axis| shape.len(axis) != 1) {
                return Err(PlanError::TnwShape(shape));
            }
            let lacks = [
                (shape.has_io_nodes(), "I/O nodes"),
                (link_mode != LinkMode::Direct, "modelled links"),
            ];
            refuse(lacks, PlanError::Tnw)?;
        }
        Ok(Self {
            network,
            doorbell: args.doorbell.or(file.doorbell).unwrap_or_default(),
            timeout: Timeout::DEFAULT,
            interconnect,
            links: link_mode.links(),
            engines: args.engines.or(file.engines),
            metrics: args.metrics.or(file.metrics),
            image: None,
            driver: Driver::default(),
            cpu: Default::default(),
            boot_server: None,
            ip: IpPlan {
                number: args.ip.ip_number.or(file.ip_number).unwrap_or_default(),
                mtu: args.ip.mtu.or(file.mtu).unwrap_or_default(),
                nat: args.ip.nat,
            },
            fail_with_guest: false,
            end_with_part: false,
            faults: faults(args.faults.or(file.faults), &file.links),
            captures: Vec::new(),
            nodes: shape.iter().map(|coords| NodePlan { coords, role: Role::Stub }).collect(),
            elsewhere: Vec::new(),
        })
    }
}

/// Options of single nodes.
struct Asked<'a> {
    gateway: Option<NodeId>,
    /// The settings of nodes in the file.
    own: HashMap<NodeId, &'a Settings>,
}

impl<'a> Asked<'a> {
    fn new(args: &MachineArgs, file: &'a MachineFile, shape: &Shape) -> Result<Self, PlanError> {
        let (asked, shape) = (args.ip.gateway, *shape);
        let gateway = match asked.flatten() {
            Some(NodeAt(at)) => Some(shape.node_id(at).ok_or(PlanError::Gateway { at, shape })?),
            None => None,
        };
        let mut this = Self { gateway, own: HashMap::new() };
        for node in &file.nodes {
            let Some(id) = shape.node_id(node.at) else { continue };
            this.own.insert(id, &node.settings);
            // The command line takes precedence.
            if node.gateway && asked.is_none() {
                this.gateway = Some(id);
            }
        }
        if asked == Some(None) {
            let mut free = shape.io_nodes().filter_map(|at| shape.node_id(at));
            let free = free.find(|id| !this.has_guest(*id));
            this.gateway = Some(free.ok_or(PlanError::GatewayNowhere)?);
        }
        Ok(this)
    }

    /// Whether a guest is asked for this very node.
    fn has_guest(&self, id: NodeId) -> bool {
        self.own.get(&id).is_some_and(|own| **own != Settings::default())
    }
}

/// The settings of nodes that have none of their own.
fn settings(args: &MachineArgs, file: &MachineFile) -> Result<Settings, PlanError> {
    let guest = match &args.guest {
        Some(name) => Some(
            GuestName::find(name, Path::new(""))
                .ok_or_else(|| GuestError::Unknown { name: name.clone() })?,
        ),
        None => file.settings.guest.clone(),
    };
    let own = &file.settings;
    Ok(Settings {
        guest,
        memory: args.memory.or(own.memory),
        args: args.args.clone().or_else(|| own.args.clone()),
        linux: if args.linux.linux { Some(true) } else { own.linux },
        cpus: args.linux.cpus.or(own.cpus),
        append: args.linux.append.clone().or_else(|| own.append.clone()),
        boot: args.boot.boot.or(own.boot),
        arch: args.linux.arch.or(own.arch),
    })
}

/// The nodes of the machine: the first compute nodes have guests, as many as are asked for.
fn nodes(
    args: &MachineArgs,
    file: &MachineFile,
    interconnect: Interconnect,
    asked: &Asked<'_>,
    shape: &Shape,
) -> Result<Vec<NodePlan>, PlanError> {
    let mut count = args.nodes.unwrap_or(shape.compute_nodes());
    if count == 0 || count > shape.compute_nodes() {
        return Err(PlanError::Nodes { asked: count, shape: *shape });
    }
    let machine = settings(args, file)?;
    let default_guest = match interconnect {
        Interconnect::Tofu(_) => DEFAULT_GUEST,
        Interconnect::Tnw => DEFAULT_TNW_GUEST,
    };
    let (bare, linux) = (HashMap::new(), HashMap::new());
    let mut roles = Roles { machine: &machine, default_guest, bare, linux };
    let mut nodes = Vec::with_capacity(shape.nodes() as usize);
    for (id, coords) in (0..).map(NodeId).zip(shape.iter()) {
        let own = asked.own.get(&id).copied().unwrap_or(&machine);
        let is_io = shape.is_io_node(coords);
        let counts = !is_io && count > 0;
        count -= u32::from(counts);
        let role = match asked.gateway {
            Some(gateway) if gateway == id => Role::Gateway,
            _ if counts || is_io && asked.has_guest(id) => roles.of(own)?,
            _ => Role::Stub,
        };
        nodes.push(NodePlan { coords, role });
    }
    Ok(nodes)
}

/// Whether any node boots over the torus, or any of this architecture does.
fn any_netbooted(nodes: &[NodePlan], arch: Option<Arch>) -> bool {
    let of_arch = |role: &Role| arch.is_none() || role.arch() == arch;
    nodes.iter().any(|node| of_arch(&node.role) && node.role.is_netbooted())
}

/// Applies the setting for I/O nodes of the command line or else of the file. Without one, the
/// shape keeps those that its name implies.
fn with_io_nodes(shape: Shape, args: &ShapeArgs, file: &MachineFile) -> Result<Shape, PlanError> {
    let (asked, file) = match &file.io_nodes {
        _ if args.io_nodes => (true, None),
        Some((place, asked)) => (*asked, Some(place)),
        None => return Ok(shape),
    };
    let with = shape.with_io_nodes(asked);
    match file {
        _ if with.has_io_nodes() == asked => Ok(with),
        None => Err(PlanError::OnlyIoNodes(shape)),
        Some(place) => Err(FileError::Value {
            place: place.clone(),
            field: "io_nodes",
            value: "true".into(),
            allowed: format!("for shapes with a Z of 2 or more, and this one is {shape}"),
        }
        .into()),
    }
}

/// Returns the faults of a machine, including those that single links have instead.
fn faults(everywhere: Option<FaultSpec>, links: &[LinkEntry]) -> Option<FaultPlan> {
    let own = |link: &LinkEntry| Some((link.at, link.port, link.faults?.rates));
    let links: Vec<_> = links.iter().filter_map(own).collect();
    if everywhere.is_none() && links.is_empty() {
        return None;
    }
    Some(FaultPlan { links, ..everywhere.unwrap_or_default().plan() })
}

fn captures(args: &MachineArgs, shape: &Shape) -> Result<Vec<ToFile>, PlanError> {
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
        let path = Path::new(if args.only_check { "/dev/null" } else { path });
        let file = File::create(path)
            .map_err(|error| no(format!("cannot write {}: {error}", path.display())))?;
        Ok(ToFile { at, path: path.into(), file: Arc::new(file) })
    };
    args.capture.iter().map(capture).collect()
}

/// Returns the default shape of a machine of small guests.
fn shape_of(interconnect: Interconnect) -> Shape {
    match interconnect {
        Interconnect::Tofu(_) => Shape::UNIT,
        Interconnect::Tnw => cube(),
    }
}

/// Returns the default shape of a machine.
fn default_shape(args: &MachineArgs, interconnect: Interconnect) -> Shape {
    match (args.linux.linux, args.boot.boot) {
        (false, _) => shape_of(interconnect),
        // The third node is for a boot server.
        (true, Some(BootFrom::Tofu)) => Shape::new([3, 1, 1, 1, 1, 1]).unwrap_or(Shape::UNIT),
        (true, _) => pair(),
    }
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

/// Returns the default shape of a machine of Linux nodes: two neighbouring nodes.
fn pair() -> Shape {
    Shape::new([2, 1, 1, 1, 1, 1]).unwrap_or(Shape::UNIT)
}

/// Makes roles from settings. Each guest program is loaded once.
struct Roles<'a> {
    machine: &'a Settings,
    default_guest: &'static str,
    bare: HashMap<GuestName, Guest>,
    linux: HashMap<(GuestName, Arch), Guest>,
}

impl Roles<'_> {
    /// Returns the role of a node with these settings of its own.
    fn of(&mut self, own: &Settings) -> Result<Role, PlanError> {
        let machine = self.machine;
        let name = own.guest.as_ref().or(machine.guest.as_ref());
        let memory = own.memory.or(machine.memory);
        let text = |text: Option<&GuestArgs>| text.map(|text| text.0.clone()).unwrap_or_default();
        let args = text(own.args.as_ref().or(machine.args.as_ref()));
        let boot = own.boot.or(machine.boot).unwrap_or_default();
        if own.linux.or(machine.linux).unwrap_or(false) {
            let arch = own.arch.or(machine.arch).unwrap_or_else(Arch::host);
            let find = |(name, arch): &(GuestName, Arch)| Guest::load_linux(name, *arch);
            let key = name.map(|name| (name.clone(), arch));
            let guest = key.map(|key| load(&mut self.linux, &key, find)).transpose()?;
            let memory = memory.unwrap_or(MemorySize::LINUX_DEFAULT);
            if memory.0 < MemorySize::LINUX_LEAST.0 {
                return Err(PlanError::LinuxMemory { memory });
            }
            let cpus = own.cpus.or(machine.cpus).unwrap_or(Cpus::DEFAULT);
            let append = text(own.append.as_ref().or(machine.append.as_ref()));
            return Ok(Role::Linux(LinuxPlan { guest, memory, cpus, args, append, boot, arch }));
        }
        let default = GuestName::Shipped(self.default_guest.into());
        let guest = load(&mut self.bare, name.unwrap_or(&default), Guest::load_bare)?;
        let memory = memory.unwrap_or(MemorySize::DEFAULT);
        if memory.0 < guest.end() {
            let least = MemorySize(guest.end().next_multiple_of(1 << 20));
            return Err(PlanError::GuestMemory { memory, guest: guest.name, least });
        }
        Ok(Role::Bare(VmPlan { guest, memory, args, boot }))
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Doorbell;
    use clap::Parser;
    use std::fs;
    use tempfile::TempDir;
    use tofu_fabric::Port;

    struct Case {
        folder: TempDir,
    }

    impl Case {
        /// Creates a folder with a machine file and two bootable programs.
        fn new(file: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let mut elf = vec![0; 64];
            elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
            (elf[16], elf[18]) = (2, 62);
            for name in ["one.elf", "two.elf"] {
                fs::write(folder.path().join(name), &elf).unwrap();
            }
            fs::write(folder.path().join("m.toml"), file).unwrap();
            Self { folder }
        }

        fn plan(&self, args: &[&str]) -> Result<Plan, PlanError> {
            let config = self.folder.path().join("m.toml");
            let fixed = ["up", "-c", config.to_str().unwrap()];
            let args = MachineArgs::try_parse_from(fixed.iter().chain(args)).unwrap();
            Plan::new(&args)
        }

        fn error(&self, args: &[&str]) -> String {
            let message = self.plan(args).unwrap_err().to_string();
            assert!(!message.contains('\n'), "{message}");
            message
        }
    }

    fn bare(plan: &Plan, node: usize) -> VmPlan {
        plan.bare().find(|(id, _)| id.index() == node).unwrap().1.clone()
    }

    #[test]
    fn defaults_are_a_unit() {
        let plan = Case::new("guest = \"one.elf\"").plan(&[]).unwrap();
        assert_eq!(plan.network.shape, Shape::UNIT);
        assert_eq!(plan.vms().count(), 12);
        assert_eq!((plan.doorbell, plan.timeout), (Doorbell::Auto, Timeout::DEFAULT));
        assert_eq!(plan.guest_memory(), 12 * (16 << 20));
        assert_eq!(plan.coords(NodeId(11)), Coords::new(0, 0, 0, 1, 2, 1));
        assert!(plan.bare().all(|(_, vm)| vm.guest.name == "one" && vm.args.is_empty()));
    }

    #[test]
    fn machines_of_tnw_have_three_axes_and_what_works_on_them() {
        let case = Case::new("generation = \"tnw\"\nguest = \"one.elf\"");
        let plan = case.plan(&[]).unwrap();
        assert_eq!(plan.interconnect, Interconnect::Tnw);
        assert_eq!(plan.network.shape.lengths(), [2, 2, 2, 1, 1, 1]);
        let plan = case.plan(&["--shape", "4x2x2"]).unwrap();
        assert_eq!(plan.vms().count(), 16);
        assert!(case.error(&["--shape", "unit"]).contains("three lengths"));
        for (args, what) in [
            (&["--links", "modelled"][..], "modelled links"),
            (&["--linux", "--arch", "x86-64", "--boot", "tofu"], "nodes that boot over the torus"),
            (&["--driver", "tofu"], "the kernel driver, which is Tofu's (--driver tofu)"),
            (&["--gateway", "0,0,0,0,0,0"], "a gateway"),
            (&["--boot", "tofu"], "nodes that boot over the torus"),
        ] {
            let message = case.error(args);
            assert_eq!(message, format!("a machine of TNW cannot have {what}"));
        }
        // It has two Linux nodes, too, and they have no image with the kernel driver.
        let plan = Case::new("generation = \"tnw\"").plan(&["--linux"]).unwrap();
        assert_eq!((plan.network.shape, plan.linux().count()), (pair(), 2));
        assert_eq!(plan.driver, Driver::Vfio);
        // The command line takes precedence.
        let plan = case.plan(&["--generation", "k", "--shape", "unit"]).unwrap();
        assert_eq!(plan.interconnect.tofu().map(|k| k.name()), Some("k"));
        let plan = case.plan(&["--generation", "fugaku"]).unwrap();
        assert_eq!(plan.network.shape, Shape::UNIT);
        let plan = Case::new("guest = \"one.elf\"").plan(&["--generation", "tnw"]).unwrap();
        assert_eq!(plan.network.shape.lengths(), [2, 2, 2, 1, 1, 1]);
    }

    #[test]
    fn command_line_beats_file_and_node_beats_both() {
        let case = Case::new(
            r#"
            shape = "2x1x1x1x1x1"
            torus = { x = false }
            guest = "one.elf"
            memory = "4MiB"
            args = "file"
            doorbell = "polled"
            timeout = "1s"
            engines = 1
            [[node]]
            at = [1, 0, 0, 0, 0, 0]
            guest = "two.elf"
            memory = "8MiB"
            "#,
        );
        let plan = case.plan(&[]).unwrap();
        assert!(!plan.network.shape.wraps(tofu_fabric::Axis::X));
        let [first, second] = [0, 1].map(|node: usize| bare(&plan, node));
        assert_eq!(
            (first.guest.name.as_str(), first.memory.0, first.args.as_str()),
            ("one", 4 << 20, "file")
        );
        assert_eq!(
            (second.guest.name.as_str(), second.memory.0, second.args.as_str()),
            ("two", 8 << 20, "file")
        );

        let plan = case
            .plan(&[
                "--memory",
                "2MiB",
                "--args",
                "line",
                "--doorbell",
                "trapped",
                "--timeout",
                "2s",
                "--engines",
                "3",
            ])
            .unwrap();
        let [first, second] = [0, 1].map(|node: usize| bare(&plan, node));
        assert_eq!((first.memory.0, first.args.as_str()), (2 << 20, "line"));
        assert_eq!((second.memory.0, second.args.as_str()), (8 << 20, "line"));
        assert_eq!(plan.doorbell, Doorbell::Trapped);
        assert_eq!(Some(plan.timeout), "2s".parse().ok());
        assert_eq!(plan.engines, "3".parse().ok());
    }

    #[test]
    fn the_rest_of_the_nodes_are_stubs() {
        let plan = Case::new("guest = \"one.elf\"").plan(&["--nodes", "2"]).unwrap();
        assert_eq!(plan.nodes.len(), 12);
        assert_eq!(plan.vms().map(|id| id.0).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn a_boot_server_has_a_node_of_its_own() {
        let case = Case::new("guest = \"one.elf\"");
        let server = |plan: &Plan| plan.boot_server.map(|server| plan.coords(server.at));
        assert_eq!(server(&case.plan(&[]).unwrap()), None);
        // The last node gives way if there is no other place.
        let plan = case.plan(&["--boot", "tofu"]).unwrap();
        assert_eq!(server(&plan), Some(Coords::new(0, 0, 0, 1, 2, 1)));
        assert_eq!((plan.vms().count(), plan.netbooted()), (11, 11));
        let plan = case.plan(&["--boot", "tofu", "--nodes", "3"]).unwrap();
        assert_eq!(server(&plan), Some(Coords::new(0, 0, 0, 1, 2, 1)));
        assert_eq!(plan.vms().count(), 3);
        let plan = case.plan(&["--boot", "tofu", "--boot-server", "0,0,0,0,1,0"]).unwrap();
        assert_eq!(server(&plan), Some(Coords::new(0, 0, 0, 0, 1, 0)));
        assert!(plan.vms().all(|id| Some(plan.coords(id)) != server(&plan)));
        let message = case.error(&["--boot", "tofu", "--boot-server", "1,0,0,0,0,0"]);
        assert_eq!(message, "boot server at (1,0,0,0,0,0): the shape 1x1x1x2x3x2 has no such node");
        let message = case.error(&["--boot", "tofu", "--shape", "1x1x1x1x1x1"]);
        assert!(message.contains("need a boot server on a node of its own"), "{message}");
    }

    #[test]
    fn io_nodes_have_no_guests_but_the_gateway_and_the_boot_server() {
        let case = Case::new("shape = \"1x1x3x1x1x2\"\nio_nodes = true\nguest = \"one.elf\"");
        let vms = |plan: &Plan| plan.vms().map(|id| id.0).collect::<Vec<_>>();
        let server = |plan: &Plan| plan.boot_server.map(|server| server.at.0);
        let plan = case.plan(&[]).unwrap();
        assert_eq!((vms(&plan), plan.gateway()), (vec![2, 3, 4, 5], None));
        let words = "shape=1x1x3x1x1x2 torus=z io=1 nodes=4";
        assert_eq!(crate::command_line::machine(&plan, ""), words);
        let plan = case.plan(&["--gateway", "--boot", "tofu"]).unwrap();
        assert_eq!((plan.gateway(), server(&plan)), (Some(NodeId(0)), Some(1)));
        assert_eq!((vms(&plan), plan.netbooted()), (vec![2, 3, 4, 5], 4));
        // It is an I/O node, although the last node is a compute node without a VM.
        let plan = case.plan(&["--nodes", "3", "--boot", "tofu"]).unwrap();
        assert_eq!((vms(&plan), server(&plan)), (vec![2, 3, 4], Some(1)));
        // Other places can be named.
        let more = ["--gateway", "0,0,2,0,0,1", "--boot", "tofu", "--boot-server", "0,0,2,0,0,0"];
        let plan = case.plan(&more).unwrap();
        assert_eq!((plan.gateway(), server(&plan)), (Some(NodeId(5)), Some(4)));
        let message = case.error(&["--nodes", "5"]);
        assert_eq!(message, "--nodes 5: the shape 1x1x3x1x1x2 has 4 compute nodes; give 1 to 4");
        // Some names of shapes imply I/O nodes, too.
        let file = "guest = \"one.elf\"\nshape = \"k-racks\"";
        let plan = Case::new(file).plan(&["--gateway"]).unwrap();
        assert_eq!((plan.vms().count(), plan.gateway()), (192, Some(NodeId(0))));
        // And the K computer's interconnect, unless another one is asked for.
        assert_eq!(plan.interconnect.name(), "k");
        let plan = Case::new(file).plan(&["--generation", "fugaku"]).unwrap();
        assert_eq!(plan.interconnect, Interconnect::default());
        let plan = Case::new(&format!("{file}\nio_nodes = false")).plan(&[]).unwrap();
        assert_eq!(plan.vms().count(), 204);
    }

    #[test]
    fn an_io_node_may_be_given_a_guest() {
        let file = r#"
            shape = "1x1x2x1x1x2"
            guest = "one.elf"
            [[node]]
            at = [0, 0, 0, 0, 0, 0]
            linux = true
            arch = "x86-64"
        "#;
        let case = Case::new(file);
        let plan = case.plan(&["--io-nodes", "--gateway"]).unwrap();
        assert_eq!(plan.linux().map(|(id, _)| id.0).collect::<Vec<_>>(), [0]);
        assert_eq!((plan.bare().count(), plan.gateway()), (2, Some(NodeId(1))));
        // Programs that count nodes leave out the node of the gateway.
        assert!(crate::command_line::machine(&plan, "").contains("nodes=2 "));
    }

    #[test]
    fn io_nodes_that_cannot_be_are_refused() {
        let case = Case::new("guest = \"one.elf\"");
        let message = case.error(&["--io-nodes"]);
        assert!(message.contains("the shape 1x1x1x2x3x2 has no other nodes"), "{message}");
        let message = case.error(&["--gateway"]);
        assert!(message.starts_with("--gateway without a node is for machines"), "{message}");
        let message = Case::new("shape = \"unit\"\nio_nodes = true").error(&[]);
        let expected = "m.toml:2: io_nodes = true is not allowed; io_nodes is for shapes with a Z \
                        of 2 or more, and this one is 1x1x1x2x3x2";
        assert!(message.ends_with(expected), "{message}");
        let tnw = ["--generation", "tnw", "--shape", "2x2x2", "--io-nodes"];
        assert_eq!(case.error(&tnw), "a machine of TNW cannot have I/O nodes");
    }

    #[test]
    fn single_nodes_boot_over_the_torus() {
        let file = r#"
            guest = "one.elf"
            boot_server = [0, 0, 0, 0, 0, 1]
            [[node]]
            at = [0, 0, 0, 1, 0, 0]
            boot = "tofu"
        "#;
        let plan = Case::new(file).plan(&[]).unwrap();
        assert_eq!((plan.vms().count(), plan.netbooted()), (11, 1));
        assert_eq!(plan.boot_server.map(|server| server.at), Some(NodeId(1)));
        let args = ["--linux", "--arch", "x86-64", "--boot", "tofu"];
        let plan = Case::new("").plan(&args).unwrap();
        assert_eq!((plan.linux().count(), plan.network.shape.nodes()), (2, 3));
    }

    #[test]
    fn linux_is_a_pair_that_stays_up() {
        let plan = Case::new("").plan(&["--linux"]).unwrap();
        assert_eq!(plan.network.shape, pair());
        assert_eq!(pair().nodes(), 2);
        assert_eq!(plan.linux().count(), 2);
        assert_eq!(plan.guest_memory(), 2 * (256 << 20));
        assert!(plan.stays_up() && plan.programs().next().is_none());
        let plan = Case::new("").plan(&["--linux", "--guest", "/bin/true"]).unwrap();
        assert!(!plan.stays_up());
        assert_eq!(plan.program(NodeId(1)), Some("true"));
        let message = Case::new("").error(&["--linux", "--memory", "64MiB"]);
        assert!(message.starts_with("64MiB of memory are too little"), "{message}");
    }

    #[test]
    fn bare_and_linux_nodes_mix() {
        let file = r#"
            shape = "2x1x1x1x1x1"
            cpus = 3
            append = "all"
            [[node]]
            at = [1, 0, 0, 0, 0, 0]
            linux = true
            memory = "512MiB"
            append = "own"
        "#;
        let plan = Case::new(file).plan(&[]).unwrap();
        assert_eq!(
            plan.bare().map(|(id, vm)| (id.0, &*vm.guest.name)).collect::<Vec<_>>(),
            [(0, "allpairs")]
        );
        let (id, linux) = plan.linux().next().unwrap();
        assert_eq!(
            (id.0, linux.cpus, linux.memory.0, &*linux.append),
            (1, Cpus(3), 512 << 20, "own")
        );
        assert!(linux.guest.is_none() && plan.stays_up());
        assert_eq!(plan.vms().count(), 2);
    }

    #[test]
    fn a_link_is_down_from_both_ends() {
        let link = "[[link]]\nat = [0, 0, 0, 0, 0, 0]\nport = \"B-\"\ndown = true";
        let plan = Case::new(&format!("guest = \"one.elf\"\n{link}")).plan(&[]).unwrap();
        let network = plan.network;
        assert!(network.is_down(Coords::new(0, 0, 0, 0, 0, 0), Port::BMinus));
        assert!(network.is_down(Coords::new(0, 0, 0, 0, 2, 0), Port::BPlus));
        assert!(!network.is_down(Coords::new(0, 0, 0, 0, 2, 0), Port::BMinus));
        let up = Case::new(&link.replace("true", "false"));
        let config = Some(up.folder.path().join("m.toml"));
        let shape = ShapeArgs { config, ..ShapeArgs::default() };
        let plan = Plan::described(&MachineArgs { shape, ..MachineArgs::default() });
        assert!(plan.unwrap().network.links_down.is_empty());
    }

    #[test]
    fn what_the_shape_does_not_have_is_named() {
        let node = "[[node]]\nat = [0, 0, 0, 0, 2, 0]\n";
        let message = Case::new(node).error(&["--shape", "1x1x1x2x1x1"]);
        assert!(message.contains("m.toml:2: at = [0, 0, 0, 0, 2, 0] is not allowed"), "{message}");
        assert!(message.ends_with("each below its length in the shape 1x1x1x2x1x1"), "{message}");

        let message = Case::new(&format!("{node}{node}")).error(&[]);
        assert!(message.contains("m.toml:4: at = [0, 0, 0, 0, 2, 0] is not allowed"), "{message}");
        assert!(message.ends_with("at is a node that no other [[node]] names"), "{message}");

        let link = "[[link]]\nat = [0, 0, 0, 0, 0, 0]\nport = \"X+\"\ndown = true";
        let message = Case::new(link).error(&[]);
        assert!(
            message.ends_with(
                "m.toml:3: port = \"X+\" is not allowed; port is one of \"A\", \"C\", \"B-\", \
                 \"B+\" at [0, 0, 0, 0, 0, 0]"
            ),
            "{message}"
        );
        let message = Case::new(link).error(&["--shape", "1x1x1x1x1x1"]);
        assert!(message.ends_with("and [0, 0, 0, 0, 0, 0] has none"), "{message}");
        let message = Case::new(&link.replace("[0,", "[1,")).error(&[]);
        assert!(message.contains("at = [1, 0, 0, 0, 0, 0] is not allowed"), "{message}");
    }

    #[test]
    fn counts_and_guests_are_checked() {
        let case = Case::new("guest = \"one.elf\"");
        for count in ["0", "13"] {
            let message = case.error(&["--nodes", count]);
            let expected =
                format!("--nodes {count}: the shape 1x1x1x2x3x2 has 12 nodes; give 1 to 12");
            assert_eq!(message, expected);
        }
        let message = case.error(&["--guest", "nope"]);
        assert!(message.starts_with("guest nope: there is no such guest"), "{message}");
        let toml = case.folder.path().join("m.toml");
        let message = case.error(&["--guest", toml.to_str().unwrap()]);
        assert!(message.contains("m.toml: not an ELF file"), "{message}");
    }
}
