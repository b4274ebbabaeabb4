//! From the machine file and the command line to a machine that can be started.

use std::collections::HashMap;
use std::path::Path;

use tofu_abi::Coords;
use tofu_fabric::{NodeId, Port, Shape};

use crate::cli::{ShapeArgs, UpArgs};
use crate::config::{ConfigError, MachineFile, Settings};
use crate::guests::{Guest, GuestError, GuestName};
use crate::units::{Doorbell, Engines, MemorySize, Timeout};

/// The guest program that runs if nothing else is asked for.
const DEFAULT_GUEST: &str = "allpairs";

/// The network of a machine: what `topo` draws and `up` builds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    /// Lengths of the axes and which wrap round.
    pub(crate) shape: Shape,
    /// Links that start down, each named from one of its ends; the other
    /// direction is down as well.
    pub(crate) links_down: Vec<(Coords, Port)>,
}

/// A machine, checked: nothing in it is left to be refused but by the host.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The fabric.
    pub(crate) network: Network,
    /// How doorbells arrive at the devices.
    pub(crate) doorbell: Doorbell,
    /// After this time all guests that still run count as hanging.
    pub(crate) timeout: Timeout,
    /// Engine threads; `None` leaves the number to the machine.
    pub(crate) engines: Option<Engines>,
    /// All nodes in the order of their numbers.
    pub(crate) nodes: Vec<NodePlan>,
}

/// A node of a [`Plan`].
#[derive(Clone, Debug)]
pub(crate) struct NodePlan {
    /// Where it is.
    pub(crate) coords: Coords,
    /// Its VM; `None` makes the node a stub, a device that forwards packets and has
    /// no guest.
    pub(crate) vm: Option<VmPlan>,
}

/// A virtual machine of a [`Plan`].
#[derive(Clone, Debug)]
pub(crate) struct VmPlan {
    /// The program.
    pub(crate) guest: Guest,
    /// Guest memory.
    pub(crate) memory: MemorySize,
    /// What the user wants on the command line; the machine adds its own part.
    pub(crate) args: String,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Guest(#[from] GuestError),
    #[error("--nodes {asked}: the shape {shape} has {} nodes; give 1 to {0}", shape.nodes())]
    Nodes { asked: u32, shape: Shape },
}

impl Network {
    /// The network of a machine file, or that of an empty one, with the command
    /// line's say on top.
    pub(crate) fn new(args: &ShapeArgs) -> Result<(Self, MachineFile), PlanError> {
        let file = match &args.config {
            Some(path) => MachineFile::read(path)?,
            None => MachineFile::default(),
        };
        let shape = args.shape.or(file.shape).unwrap_or(Shape::UNIT);
        let shape = shape.with_torus(file.torus.map(|torus| torus.unwrap_or(true)));
        let mut links_down = Vec::new();
        for link in &file.links {
            if shape.neighbor(link.at, link.port).is_none() {
                return Err(link.outside(&shape).into());
            }
            if link.down {
                links_down.push((link.at, link.port));
            }
        }
        Ok((Self { shape, links_down }, file))
    }

    /// Whether the link at this port starts down, from whichever end it was named.
    pub(crate) fn is_down(&self, at: Coords, port: Port) -> bool {
        let other = self.shape.neighbor(at, port).map(|to| (to, port.opposite()));
        self.links_down.iter().any(|named| *named == (at, port) || Some(*named) == other)
    }
}

impl Plan {
    /// Builds the plan for `tofu up`. The command line wins over the file's
    /// machine-wide settings, a `[[node]]` of the file over both.
    pub(crate) fn new(args: &UpArgs) -> Result<Self, PlanError> {
        let (network, file) = Network::new(&args.shape)?;
        let shape = network.shape;
        let count = args.nodes.unwrap_or(shape.nodes());
        if count == 0 || count > shape.nodes() {
            return Err(PlanError::Nodes { asked: count, shape });
        }

        let mut overrides: HashMap<NodeId, &Settings> = HashMap::new();
        for node in &file.nodes {
            let id = shape.node_id(node.at).ok_or_else(|| node.outside(&shape))?;
            if overrides.insert(id, &node.settings).is_some() {
                return Err(node.repeated().into());
            }
        }

        let guest = match &args.guest {
            Some(name) => GuestName::find(name, Path::new(""))
                .ok_or_else(|| GuestError::Unknown(name.clone()))?,
            None => file.settings.guest.clone().unwrap_or(GuestName::Shipped(DEFAULT_GUEST.into())),
        };
        let machine = Settings {
            guest: Some(guest.clone()),
            memory: args.memory.or(file.settings.memory),
            args: args.args.clone().or(file.settings.args),
        };

        let mut loaded: HashMap<GuestName, Guest> = HashMap::new();
        let mut vm = |own: &Settings| -> Result<VmPlan, GuestError> {
            let name = own.guest.as_ref().unwrap_or(&guest);
            let guest = match loaded.get(name) {
                Some(guest) => guest.clone(),
                None => {
                    let guest = Guest::load(name)?;
                    loaded.insert(name.clone(), guest.clone());
                    guest
                }
            };
            let memory = own.memory.or(machine.memory).unwrap_or(MemorySize::DEFAULT);
            let args = own.args.as_ref().or(machine.args.as_ref());
            Ok(VmPlan { guest, memory, args: args.map(|args| args.0.clone()).unwrap_or_default() })
        };
        let mut nodes = Vec::with_capacity(shape.nodes() as usize);
        for (id, coords) in (0..).map(NodeId).zip(shape.iter()) {
            let own = overrides.get(&id).copied().unwrap_or(&machine);
            let vm = if id.0 < count { Some(vm(own)?) } else { None };
            nodes.push(NodePlan { coords, vm });
        }
        Ok(Self {
            network,
            doorbell: args.doorbell.or(file.doorbell).unwrap_or_default(),
            timeout: args.timeout.or(file.timeout).unwrap_or(Timeout::DEFAULT),
            engines: args.engines.or(file.engines),
            nodes,
        })
    }

    /// The VMs with their nodes.
    pub(crate) fn vms(&self) -> impl Iterator<Item = (NodeId, &VmPlan)> {
        (0..).map(NodeId).zip(&self.nodes).filter_map(|(id, node)| Some((id, node.vm.as_ref()?)))
    }

    /// Coordinates of a node.
    pub(crate) fn coords(&self, node: NodeId) -> Coords {
        self.nodes[node.index()].coords
    }

    /// Guest memory of all VMs in bytes.
    pub(crate) fn guest_memory(&self) -> u64 {
        self.vms().map(|(_, vm)| vm.memory.0).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::fs;
    use tempfile::TempDir;

    struct Case {
        folder: TempDir,
    }

    impl Case {
        /// A folder with a machine file and two programs that can be booted.
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
            let args = UpArgs::try_parse_from(fixed.iter().chain(args)).unwrap();
            Plan::new(&args)
        }

        fn error(&self, args: &[&str]) -> String {
            let message = self.plan(args).unwrap_err().to_string();
            assert!(!message.contains('\n'), "{message}");
            message
        }
    }

    #[test]
    fn defaults_are_a_unit() {
        let plan = Case::new("guest = \"one.elf\"").plan(&[]).unwrap();
        assert_eq!(plan.network.shape, Shape::UNIT);
        assert_eq!(plan.vms().count(), 12);
        assert_eq!((plan.doorbell, plan.timeout), (Doorbell::Auto, Timeout::DEFAULT));
        assert_eq!(plan.guest_memory(), 12 * (16 << 20));
        assert_eq!(plan.coords(NodeId(11)), Coords::new(0, 0, 0, 1, 2, 1));
        assert!(plan.vms().all(|(_, vm)| vm.guest.name == "one" && vm.args.is_empty()));
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
        let [first, second] = [0, 1].map(|node: usize| plan.nodes[node].vm.clone().unwrap());
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
        let [first, second] = [0, 1].map(|node: usize| plan.nodes[node].vm.clone().unwrap());
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
        assert_eq!(plan.vms().map(|(id, _)| id.0).collect::<Vec<_>>(), [0, 1]);
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
        let network =
            Network::new(&ShapeArgs { config: Some(up.folder.path().join("m.toml")), shape: None });
        assert!(network.unwrap().0.links_down.is_empty());
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
