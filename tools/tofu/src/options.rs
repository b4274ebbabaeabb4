//! Options of machines: the common command-line options that describe one, as a
//! [`MachineSpec`].

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser};
use tofu_control::{MachineName, NodeAt};
use tofu_fabric::Shape;
use tofu_image::Arch;
use tofu_input::STDIN;
use tofu_spec::faults::FaultSpec;
use tofu_spec::guest::GuestName;
use tofu_spec::units::{
    ArmCpu, BootFault, BootFrom, Choice, Cpus, Doorbell, Driver, Engines, GuestArgs, ImageName,
    InstructionTime, Interconnect, IpNumber, LinkMode, MemorySize, MetricsAddress, Mtu, Net,
    Quantum, TapWhen, Time, Timeout, Until, Vmm,
};
use tofu_spec::{GatewayAt, MachineSpec};
use tofu_ui::FileError;

/// The parser of an option with a few words, whose help says what each of them means.
pub(crate) fn choice<T: Choice + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let known = T::ALL.iter().map(|(_, word, help)| PossibleValue::new(*word).help(help.trim()));
    PossibleValuesParser::new(known).try_map(|word| word.parse::<T>())
}

/// A machine: its nodes, links and programs.
#[derive(Debug, Clone, Default, Parser)]
pub(crate) struct MachineArgs {
    /// Which machine.
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,

    /// True if its threads give up rights.
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,

    /// Interconnect of the machine: k, fx10, fx100 or fugaku, which are generations of Tofu, or tnw
    ///
    /// tnw is the torus network of QPACE and AuroraScience, whose shapes have three axes.
    /// [default: k for the shapes k and k-racks, else fugaku]
    #[arg(long, value_name = "GENERATION")]
    pub(crate) generation: Option<Interconnect>,

    /// Guest program: a shipped one (see `tofu guest ls`) or the path of an ELF file
    ///
    /// A path has a / or ends in .elf. [default: allpairs, tnw-allpairs with tnw]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) guest: Option<String>,

    /// Text to append to every guest's command line
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) args: Option<GuestArgs>,

    /// Boot VMs on the first N nodes only
    ///
    /// Nodes are numbered with X slowest and C fastest; I/O nodes do not count. The others are
    /// devices without a VM: they forward packets, and answer commands like a device after reset.
    /// [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) nodes: Option<u32>,

    /// Memory of each guest, such as 16MiB [default: 16MiB, 256MiB with Linux]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<MemorySize>,

    /// Stop guests that are still running after this time, such as 30s [default: 60s]
    ///
    /// The time starts when all guests have booted. Linux nodes without --guest stay up.
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Timeout>,

    /// The delivery of doorbells to the devices [default: auto]
    #[arg(long, value_name = "MODE", value_parser = choice::<Doorbell>())]
    pub(crate) doorbell: Option<Doorbell>,

    /// Number of engine threads that move data, 1 to 256 [default: from the host's cores]
    #[arg(long, value_name = "N")]
    pub(crate) engines: Option<Engines>,

    /// Serve the devices' counters to Prometheus, at http://ADDRESS/metrics
    ///
    /// An IP address of this host and a port, such as 127.0.0.1:9400. There is no authentication.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<MetricsAddress>,

    /// The transport of packets over links: immediate (direct), or as frames with credits in
    /// modelled time (modelled)
    ///
    /// With modelled links, queues see back-pressure, and link and crossbar counters are live.
    /// Modelled time advances with the host's time, or more slowly if the host cannot keep up.
    /// [default: direct]
    #[arg(long, value_name = "LINKS", value_parser = choice::<LinkMode>())]
    #[arg(hide_possible_values = true)]
    pub(crate) links: Option<LinkMode>,

    /// The clock of the machine
    #[command(flatten)]
    pub(crate) time: ClockArgs,

    /// Make a node fail when its guest crashes or its virtual machine dies
    ///
    /// As with `tofu node down`, all of its links go down, and the other nodes continue. The node
    /// works again after `tofu node up`, or when its Linux guest is ready again (`tofu restart`).
    /// Without this option, a node whose guest has crashed still forwards the packets of others,
    /// and a small guest that fails ends the machine.
    #[arg(long)]
    pub(crate) fail_with_guest: bool,

    /// Faults on all links, such as loss=1%,duplicate=0.5%,reorder=2%,corrupt=1%,seed=7
    ///
    /// They apply to raw and system packets, which IP over Tofu uses. `undetected` corrupts packets
    /// and recomputes their CRC. With `commands`, loss also applies to commands such as Puts and
    /// Gets. `tofu fault` changes the faults while the machine runs.
    #[arg(long, value_name = "FAULTS")]
    pub(crate) faults: Option<FaultSpec>,

    /// Capture the packets of a node, from start to end, into a file for Wireshark
    ///
    /// NODE is an index, coordinates X,Y,Z,A,B,C or a name t-X-Y-Z-A-B-C. See `tofu capture` for
    /// more.
    #[arg(long, value_name = "NODE=FILE")]
    pub(crate) capture: Vec<String>,

    /// Network boot.
    #[command(flatten)]
    pub(crate) boot: BootArgs,

    /// IP over Tofu.
    #[command(flatten)]
    pub(crate) ip: GatewayArgs,

    /// Linux nodes.
    #[command(flatten)]
    pub(crate) linux: LinuxArgs,
}

/// Which machine.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ShapeArgs {
    /// Shape of the machine: unit, shelf, half-rack, rack, k-racks, k, or six lengths
    ///
    /// Six lengths are XxYxZxAxBxC: X, Y and Z 1 to 32, A and C 1 to 2, B 1 to 3. Three, XxYxZ,
    /// leave A, B and C at 1.
    /// unit is 1x1x1x2x3x2 (12 nodes), shelf 1x1x4x2x3x2 (48), half-rack 2x2x4x2x3x2
    /// (192), rack 2x2x8x2x3x2 (384); k is the K computer, 24x18x16x2x3x2 with Y a mesh;
    /// k-racks two racks of it, 1x1x17x2x3x2 (204), with I/O nodes.
    /// [default: unit]
    #[arg(long, value_name = "SHAPE")]
    pub(crate) shape: Option<Shape>,

    /// Nodes with Z = 0 are I/O nodes, as in the K computer
    ///
    /// They run no guests, except for nodes with a guest in the machine file, and jobs do not use
    /// them. A gateway (--gateway without a node) and a boot server are placed on one of them. The
    /// shape k-racks has them without this option.
    #[arg(long)]
    pub(crate) io_nodes: bool,

    /// Machine file (TOML), or - for standard input
    ///
    /// Options on the command line override the file's machine-wide settings.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// The former standard input, for the process that runs a detached machine
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) stdin: Option<PathBuf>,
}

/// The clock of a machine.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ClockArgs {
    /// The clock of the machine: the host's, or modelled time [default: host]
    ///
    /// In modelled time, programs in Linux nodes measure the modelled times of devices, network and
    /// instructions, even on a slow or loaded host. QEMU counts the guests' instructions, and a
    /// plugin keeps their clocks in the machine's time. See the manual's page on guests in modelled
    /// time.
    #[arg(long = "time", value_name = "CLOCK", value_parser = choice::<Time>())]
    #[arg(hide_possible_values = true)]
    pub(crate) clock: Option<Time>,

    /// With --time modelled: the time of an instruction of a guest, in nanoseconds, 0.1 to 100, for
    /// arm64 0.25 to 1 [default: 0.3, which fits an A64FX]
    #[arg(long, value_name = "NS")]
    pub(crate) ns_per_instruction: Option<InstructionTime>,

    /// With --time modelled: the least step of a guest, in nanoseconds
    ///
    /// A longer step makes the machine faster, but effects of other nodes come late. Their number
    /// and delay are counted. [default: none, and nothing is late]
    #[arg(long, value_name = "NS")]
    pub(crate) quantum: Option<Quantum>,

    /// With --time modelled: start each guest up to 1 us after the first, at random times from the
    /// seed N
    ///
    /// Another seed gives another interleaving of the nodes. [default: all start at the same time]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u32>,

    /// With --time modelled: record the input of nodes, with its times
    ///
    /// That is data from programs such as `tofu exec`, and the input of consoles.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// With --time modelled: replay a recorded run exactly
    ///
    /// All options must be those of the recorded run, except for --seed: another seed shows another
    /// interleaving. Nodes have no other input.
    #[arg(long, value_name = "FILE", conflicts_with = "record")]
    pub(crate) replay: Option<PathBuf>,

    /// With --time modelled: stop time at this point, such as 250ms or 1.5s after it began, or
    /// 'node 3 command 1234', when node 3 has started that many commands
    ///
    /// All guests then stop, and can be inspected: tofu time, inspect, regs, stats, gdb. `tofu time
    /// --until` continues. `tofu run` ends there, with exit code 125.
    #[arg(long, value_name = "WHERE")]
    pub(crate) until: Option<Until>,
}

/// True if the machine's threads give up rights.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SandboxArgs {
    /// Turn the sandbox off
    ///
    /// In the sandbox, each thread that serves a guest gives up the system calls that it does not
    /// need (seccomp), and the process gives up access to files (Landlock), so a guest that takes
    /// over its monitor gains little. Disable it to rule the sandbox out, or to attach a debugger.
    #[arg(long = "no-sandbox")]
    pub(crate) off: bool,
}

/// Linux nodes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Linux nodes")]
pub(crate) struct LinuxArgs {
    /// Boot Linux on the nodes; two nodes unless a shape is given
    ///
    /// The machine stays up until Ctrl-C or `tofu down`; with --guest, until that program has ended
    /// on all nodes. The first run downloads the required files into a cache.
    #[arg(long)]
    pub(crate) linux: bool,

    /// The monitor of Linux nodes
    #[arg(long, value_name = "VMM", default_value = "auto", value_parser = choice::<Vmm>())]
    pub(crate) vmm: Vmm,

    /// Virtual processors of each Linux node, 1 to 16 [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<Cpus>,

    /// Architecture of Linux nodes: x86-64, or arm64 as in Fugaku, under QEMU
    ///
    /// arm64 nodes boot the image arm64, with Debian's kernel and our programs, which is made if it
    /// does not exist. [default: the host's]
    #[arg(long, value_name = "ARCH")]
    pub(crate) arch: Option<Arch>,

    /// Processor of arm64 nodes [default: a64fx]
    #[arg(long, value_name = "CPU", value_parser = choice::<ArmCpu>())]
    pub(crate) cpu: Option<ArmCpu>,

    /// Image to boot; see `tofu image` [default: see --driver]
    #[arg(long, value_name = "NAME")]
    pub(crate) image: Option<ImageName>,

    /// The owner of the device in the nodes: the kernel driver (tofu), programs (vfio), or auto
    ///
    /// `tofu` boots the first image that exists of driver-cloud, driver-generic and driver. `vfio`
    /// boots the image default, which is made if it does not exist. `auto` acts like `tofu` in
    /// machines that stay up and run under QEMU, if there is such an image, and otherwise like
    /// `vfio`. With --image, `tofu` requires the driver in that image, and `vfio` keeps the driver
    /// away from the device. [default: auto]
    #[arg(long, value_name = "DRIVER", value_parser = choice::<Driver>())]
    #[arg(hide_possible_values = true)]
    pub(crate) driver: Option<Driver>,

    /// Kernel to boot instead of the image's: a bzImage or vmlinux
    #[arg(long, value_name = "FILE")]
    pub(crate) kernel: Option<PathBuf>,

    /// Initrd to boot instead of the image's
    #[arg(long, value_name = "FILE")]
    pub(crate) initrd: Option<PathBuf>,

    /// Text to append to the kernel's command line
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) append: Option<GuestArgs>,

    /// Ethernet between the Linux nodes, with the addresses 10.84.0.1 and up
    #[arg(long, value_name = "NET", default_value = "none", value_parser = choice::<Net>())]
    pub(crate) net: Net,

    /// Time within which a node must be ready [default: 60s, 24h in modelled time]
    #[arg(long, value_name = "TIME")]
    pub(crate) boot_timeout: Option<Timeout>,

    /// Boot each node from its kernel, instead of cloning a node that has booted
    ///
    /// The node to clone is booted at the first use of an image with these options, and kept in the
    /// cache. Nodes with --net, --kernel, --initrd, --boot tofu, --record, --replay or --until,
    /// arm64 nodes, and nodes that the host's hardware runs, always boot.
    #[arg(long)]
    pub(crate) cold: bool,

    /// Name of the machine [default: tofu, tofu-2, ...]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<MachineName>,

    /// Return when the nodes are ready, and leave the machine running
    #[arg(short, long)]
    pub(crate) detach: bool,

    /// This process is the one that runs a detached machine
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

/// The connection of the machine's network to the host.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "IP over Tofu")]
pub(crate) struct GatewayArgs {
    /// Node that connects the machine to the host, and has no guest: X,Y,Z,A,B,C
    ///
    /// Without coordinates it is the first I/O node, in machines that have any (see --io-nodes).
    /// `tofu forward` makes ports of nodes available on the host. With CAP_NET_ADMIN the host also
    /// gets a network interface, so that ping, ssh and other programs reach all nodes.
    #[arg(long, value_name = "NODE", num_args = 0..=1)]
    pub(crate) gateway: Option<Option<NodeAt>>,

    /// Give the host a network interface to the gateway
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = choice::<TapWhen>())]
    pub(crate) tap: TapWhen,

    /// Let nodes reach the host's networks with the host's address (NAT); needs the network
    /// interface
    #[arg(long)]
    pub(crate) nat: bool,

    /// Number of the machine, 0 to 7, which is a part of its nodes' IP addresses [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) ip_number: Option<IpNumber>,

    /// Largest IP packet between nodes in bytes, 1280 to 65521 [default: 1500]
    #[arg(long, value_name = "BYTES")]
    pub(crate) mtu: Option<Mtu>,
}

/// Network boot.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Network boot")]
pub(crate) struct BootArgs {
    /// Where guests and kernels come from [default: monitor]
    #[arg(long, value_name = "FROM", value_parser = choice::<BootFrom>())]
    pub(crate) boot: Option<BootFrom>,

    /// Node of the boot server, which runs nothing else: X,Y,Z,A,B,C
    ///
    /// [default: the last I/O node; without those, the last node without a VM; the last node if all
    /// have one]
    #[arg(long, value_name = "NODE")]
    pub(crate) boot_server: Option<NodeAt>,

    /// The time for which a node waits for an answer from the boot server before it gives up
    /// [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub(crate) boot_patience: Option<Timeout>,

    /// Lets the boot server make mistakes
    #[arg(long, value_name = "FAULT", value_parser = choice::<BootFault>(), hide = true)]
    pub(crate) boot_fault: Option<BootFault>,
}

impl ClockArgs {
    /// A specification with the values of these options.
    pub(crate) fn over(&self, spec: MachineSpec) -> MachineSpec {
        let Self { clock: time, ns_per_instruction, quantum, seed, .. } = *self;
        let Self { record, replay, until, .. } = self.clone();
        MachineSpec { time, ns_per_instruction, quantum, seed, record, replay, until, ..spec }
    }
}

impl ShapeArgs {
    /// Returns the settings of these options, which override the machine file.
    ///
    /// # Errors
    ///
    /// If there is something wrong with the file.
    pub(crate) fn over_file(&self, options: MachineSpec) -> Result<MachineSpec, FileError> {
        let io_nodes = self.io_nodes.then_some(true);
        let options = MachineSpec { shape: self.shape, io_nodes, ..options };
        let Some(path) = &self.config else { return Ok(options) };
        let copy = self.stdin.as_deref().filter(|_| path == Path::new(STDIN));
        Ok(options.over(MachineSpec::read_as(path, copy.unwrap_or(path))?))
    }
}

impl MachineArgs {
    /// Returns the settings of the options, which override the machine file.
    ///
    /// # Errors
    ///
    /// If there is something wrong with the file, or no guest has the name.
    pub(crate) fn spec(&self) -> anyhow::Result<MachineSpec> {
        let Self { shape, sandbox, boot, ip, linux, .. } = self;
        let gateway = ip.gateway.map(|at| match at {
            Some(NodeAt(at)) => GatewayAt::Node(at),
            None => GatewayAt::IoNode,
        });
        let options = MachineSpec {
            generation: self.generation,
            links: self.links,
            fail_with_guest: self.fail_with_guest.then_some(true),
            guest: self.guest.as_deref().map(GuestName::named).transpose()?,
            memory: self.memory,
            args: self.args.clone(),
            doorbell: self.doorbell,
            timeout: self.timeout,
            engines: self.engines,
            metrics: self.metrics,
            linux: linux.linux.then_some(true),
            cpus: linux.cpus,
            append: linux.append.clone(),
            image: linux.image.clone(),
            driver: linux.driver,
            arch: linux.arch,
            cpu: linux.cpu,
            boot: boot.boot,
            boot_server: boot.boot_server.map(|at| at.0),
            ip_number: ip.ip_number,
            mtu: ip.mtu,
            faults: self.faults,
            nodes: self.nodes,
            gateway,
            tap: Some(ip.tap),
            nat: ip.nat.then_some(true),
            boot_patience: boot.boot_patience,
            boot_fault: boot.boot_fault,
            captures: self.capture.clone(),
            vmm: Some(linux.vmm),
            kernel: linux.kernel.clone(),
            initrd: linux.initrd.clone(),
            net: Some(linux.net).filter(|net| *net != Net::None),
            boot_timeout: linux.boot_timeout,
            cold: linux.cold.then_some(true),
            name: linux.name.clone(),
            no_sandbox: sandbox.off.then_some(true),
            ..MachineSpec::default()
        };
        Ok(shape.over_file(self.time.over(options))?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;
    use tofu_abi::Coords;
    use tofu_fabric::{Axis, NodeId, Port};
    use tofu_spec::plan::{InputLog, Plan, VmPlan};
    use tofu_supervisor::command_line;

    use super::*;

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

        fn plan(&self, args: &[&str]) -> anyhow::Result<Plan> {
            let config = self.folder.path().join("m.toml");
            let fixed = ["up", "-c", config.to_str().unwrap()];
            let args = MachineArgs::try_parse_from(fixed.iter().chain(args)).unwrap();
            Ok(Plan::new(&args.spec()?)?)
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
    fn tnw_machines_have_three_axes() {
        let case = Case::new("generation = \"tnw\"\nguest = \"one.elf\"");
        let plan = case.plan(&[]).unwrap();
        assert_eq!(plan.interconnect, Interconnect::Tnw);
        assert_eq!(plan.network.shape.lengths(), [2, 2, 2, 1, 1, 1]);
        let plan = case.plan(&["--shape", "4x2x2"]).unwrap();
        assert_eq!(plan.vms().count(), 16);
        assert!(case.error(&["--shape", "unit"]).contains("three lengths"));
        for (args, what) in [
            (
                &["--linux", "--arch", "x86-64", "--boot", "tofu"][..],
                "nodes that boot over the torus",
            ),
            (&["--driver", "tofu"], "the kernel driver, which is Tofu's (--driver tofu)"),
            (&["--gateway", "0,0,0,0,0,0"], "a gateway"),
            (&["--boot", "tofu"], "nodes that boot over the torus"),
        ] {
            let message = case.error(args);
            assert_eq!(message, format!("a machine of TNW cannot have {what}"));
        }
        // It has two Linux nodes, too, and they have no image with the kernel driver.
        let plan = Case::new("generation = \"tnw\"").plan(&["--linux"]).unwrap();
        assert_eq!(
            (plan.network.shape, plan.linux().count()),
            (Shape::new([2, 1, 1, 1, 1, 1]).unwrap(), 2)
        );
        assert_eq!(plan.on_linux.driver, Driver::Vfio);
        // The command line takes precedence.
        let plan = case.plan(&["--generation", "k", "--shape", "unit"]).unwrap();
        assert_eq!(plan.interconnect.tofu().map(|k| k.name()), Some("k"));
        let plan = case.plan(&["--generation", "fugaku"]).unwrap();
        assert_eq!(plan.network.shape, Shape::UNIT);
        let plan = Case::new("guest = \"one.elf\"").plan(&["--generation", "tnw"]).unwrap();
        assert_eq!(plan.network.shape.lengths(), [2, 2, 2, 1, 1, 1]);
    }

    #[test]
    fn command_line_beats_file_and_node_both() {
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
        assert!(!plan.network.shape.wraps(Axis::X));
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
    fn remaining_nodes_are_stubs() {
        let plan = Case::new("guest = \"one.elf\"").plan(&["--nodes", "2"]).unwrap();
        assert_eq!(plan.nodes.len(), 12);
        assert_eq!(plan.vms().map(|id| id.0).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn boot_server_has_a_separate_node() {
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
        assert!(message.contains("need a boot server on a separate node"), "{message}");
    }

    #[test]
    fn io_nodes_have_only_service_guests() {
        let case = Case::new("shape = \"1x1x3x1x1x2\"\nio_nodes = true\nguest = \"one.elf\"");
        let vms = |plan: &Plan| plan.vms().map(|id| id.0).collect::<Vec<_>>();
        let server = |plan: &Plan| plan.boot_server.map(|server| server.at.0);
        let plan = case.plan(&[]).unwrap();
        assert_eq!((vms(&plan), plan.gateway()), (vec![2, 3, 4, 5], None));
        let words = "shape=1x1x3x1x1x2 torus=z io=1 nodes=4";
        assert_eq!(command_line::machine(&plan, ""), words);
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
        // And the K computer's interconnect, unless another one is requested.
        assert_eq!(plan.interconnect.name(), "k");
        let plan = Case::new(file).plan(&["--generation", "fugaku"]).unwrap();
        assert_eq!(plan.interconnect, Interconnect::default());
        let plan = Case::new(&format!("{file}\nio_nodes = false")).plan(&[]).unwrap();
        assert_eq!(plan.vms().count(), 204);
    }

    #[test]
    fn io_node_may_be_given_a_guest() {
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
        assert!(command_line::machine(&plan, "").contains("nodes=2 "));
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
        assert_eq!(plan.network.shape, Shape::new([2, 1, 1, 1, 1, 1]).unwrap());
        assert_eq!(Shape::new([2, 1, 1, 1, 1, 1]).unwrap().nodes(), 2);
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
    fn link_is_down_from_both_ends() {
        let link = "[[link]]\nat = [0, 0, 0, 0, 0, 0]\nport = \"B-\"\ndown = true";
        let plan = Case::new(&format!("guest = \"one.elf\"\n{link}")).plan(&[]).unwrap();
        let network = plan.network;
        assert!(network.is_down(Coords::new(0, 0, 0, 0, 0, 0), Port::BMinus));
        assert!(network.is_down(Coords::new(0, 0, 0, 0, 2, 0), Port::BPlus));
        assert!(!network.is_down(Coords::new(0, 0, 0, 0, 2, 0), Port::BMinus));
        let plan = Case::new(&link.replace("true", "false")).plan(&[]);
        assert!(plan.unwrap().network.links_down.is_empty());
    }

    #[test]
    fn absent_places_are_named() {
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
    fn mistakes_name_their_line_or_option() {
        let file = "shape = \"2x1x1x1x1x1\"\nlinux = true\narch = \"x86-64\"\nmemory = \"64MiB\"";
        let case = Case::new(file);
        let message = case.error(&[]);
        assert!(message.contains("m.toml:4: 64MiB of memory are too little"), "{message}");
        let message = case.error(&["--memory", "65MiB"]);
        assert!(message.starts_with("65MiB of memory are too little"), "{message}");
        let node = "\n[[node]]\nat = [1, 0, 0, 0, 0, 0]\nmemory = \"66MiB\"";
        let message = Case::new(&format!("{file}{node}")).error(&["--memory", "256MiB"]);
        assert!(message.contains("m.toml:7: 66MiB of memory are too little"), "{message}");
        let message = Case::new("\nguest = \"./none.elf\"").error(&[]);
        assert!(message.contains("m.toml:2: guest "), "{message}");
    }

    #[test]
    fn settings_of_linux_nodes_need_such_nodes() {
        let case = Case::new("guest = \"one.elf\"\ncpus = 2");
        let message = case.error(&[]);
        assert!(
            message.ends_with("m.toml:2: cpus is for machines with Linux nodes; add --linux"),
            "{message}"
        );
        let message = Case::new("guest = \"one.elf\"").error(&["--initrd", "x"]);
        assert_eq!(message, "--initrd is for machines with Linux nodes; add --linux");
    }

    #[test]
    fn modelled_time_has_limits() {
        let file = "shape = \"2x1x1x1x1x1\"\nlinux = true\narch = \"x86-64\"\ntime = \"modelled\"";
        let case = Case::new(file);
        let time = case.plan(&["--ns-per-instruction", "0.5"]).unwrap().modelled.unwrap();
        assert_eq!((time.instruction.ps(), time.quantum), (500, None));
        let time = case.plan(&["--quantum", "2000"]).unwrap().modelled.unwrap();
        assert_eq!((time.instruction.ps(), time.quantum), (300, Some(Quantum(2000))));
        for (args, what) in [
            (&["--cpus", "2"][..], "nodes with several processors (--cpus)"),
            (&["--net", "lan"], "an Ethernet (--net)"),
            (&["--vmm", "tofu"], "our own monitor (--vmm tofu)"),
            (&["--gateway", "0,0,0,0,0,0"], "a gateway"),
            (&["--links", "modelled"], "links of another kind (--links)"),
        ] {
            let expected = format!("a machine in modelled time cannot have {what} so far");
            assert_eq!(case.error(args), expected);
        }
        let until = |plan: Plan| plan.modelled.and_then(|time| time.until);
        let time = case.plan(&["--until", "1.5ms"]).unwrap();
        assert_eq!(until(time), Some(Until::Time(1_500_000_000)));
        let command = Until::Command { node: 1, number: 7 };
        assert_eq!(until(case.plan(&["--until", "node 1 command 7"]).unwrap()), Some(command));
        let message = case.error(&["--until", "node 2 command 7"]);
        assert_eq!(message, "--until: the machine has no node 2; it has 2, and the first one is 0");
        let message = Case::new(&format!("{file}\nuntil = \"soon\"")).error(&[]);
        assert!(message.contains(":5:") && message.contains("such as 250ms, 1.5s"), "{message}");
        let message = case.error(&["--time", "host", "--until", "1s"]);
        assert!(message.starts_with("--until is for machines in modelled time"), "{message}");
        let plan = case.plan(&["--record", "x"]).unwrap();
        assert_eq!(plan.input, Some(InputLog::Record("x".into())));
        let both = Case::new(&format!("{file}\nrecord = \"x\"\nreplay = \"y\""));
        let message = both.error(&[]);
        assert!(message.ends_with("a run that is replayed has its record; leave one out"));
        let message = case.error(&["--time", "host", "--replay", "x"]);
        assert!(message.starts_with("--replay is for machines in modelled time"), "{message}");
        let message = Case::new("guest = \"one.elf\"").error(&["--time", "modelled"]);
        assert!(message.contains("small guests; add --linux"), "{message}");
        let message = case.error(&["--shape", "rack"]);
        assert!(message.ends_with("at most 64 nodes, and this shape has 384"), "{message}");
        let arm64 = ["--arch", "arm64", "--ns-per-instruction"];
        for (ns, kept) in [("0.2", false), ("0.25", true), ("1", true), ("1.5", false)] {
            let args = [&arm64[..], &[ns]].concat();
            let expected =
                "--ns-per-instruction: an instruction of nodes for arm64 takes 0.25 to 1 ns";
            match kept {
                true => assert!(case.plan(&args).is_ok(), "{ns}"),
                false => assert_eq!(case.error(&args), expected, "{ns}"),
            }
        }
        assert!(case.plan(&["--time", "host"]).unwrap().modelled.is_none());
        let message = case.error(&["--time", "host", "--ns-per-instruction", "1"]);
        assert!(message.starts_with("--ns-per-instruction is for machines in"), "{message}");
    }

    #[test]
    fn served_machines_refuse_guest_settings() {
        let served = |text: &str| Plan::served(&MachineSpec::parse(Path::new("m.toml"), text)?);
        let plan = served("shape = \"2x1x1x1x1x1\"\nfaults = \"loss=1%\"\nmtu = 9000").unwrap();
        assert_eq!((plan.nodes.len(), plan.doorbell), (2, Doorbell::Trapped));
        assert!(plan.faults.is_some());
        let node = "[[node]]\nat = [0, 0, 0, 0, 0, 0]\n";
        for (text, line, field) in [
            ("linux = true", 1, "linux"),
            ("mtu = 9000\ntimeout = 30", 2, "timeout"),
            ("fail_with_guest = false", 1, "fail_with_guest"),
            ("boot_server = [0, 0, 0, 0, 0, 1]", 1, "boot_server"),
            (&format!("{node}cpus = 2"), 3, "cpus"),
            (&format!("{node}gateway = true"), 3, "gateway"),
        ] {
            let message = served(text).unwrap_err().to_string();
            let why = "has no effect here, where no guests are started; leave it out";
            assert_eq!(message, format!("m.toml:{line}: {field} {why}"));
        }
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
