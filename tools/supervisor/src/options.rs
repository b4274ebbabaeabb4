//! Options of machines: what the command line says of one, whichever command it is.

use std::path::PathBuf;

use clap::{Args, Parser, ValueEnum};
use tofu_control::{MachineName, NodeAt};
use tofu_fabric::Shape;
use tofu_image::Arch;
use tofu_netboot::Fault;

use crate::faults::FaultSpec;
use crate::units::{
    ArmCpu, BootFrom, Cpus, Doorbell, Driver, Engines, GuestArgs, ImageName, Interconnect,
    IpNumber, LinkMode, MemorySize, MetricsAddress, Mtu, Timeout,
};

/// A machine: its nodes, and what goes on in it.
#[derive(Debug, Clone, Default, Parser)]
pub struct MachineArgs {
    /// Which machine.
    #[command(flatten)]
    pub shape: ShapeArgs,

    /// Whether its threads give up rights.
    #[command(flatten)]
    pub sandbox: SandboxArgs,

    /// What joins the nodes: k, fx10, fx100 or fugaku, which are generations of Tofu, or tnw
    ///
    /// tnw is the torus network of QPACE and AuroraScience, whose shapes have three axes.
    /// [default: fugaku]
    #[arg(long, value_name = "GENERATION")]
    pub generation: Option<Interconnect>,

    /// Guest program: a shipped one (see `tofu guest ls`) or the path of an ELF file
    ///
    /// A path has a / or ends in .elf. [default: allpairs, tnw-allpairs with tnw]
    #[arg(long, value_name = "NAME|FILE")]
    pub guest: Option<String>,

    /// Text to append to every guest's command line
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub args: Option<GuestArgs>,

    /// Boot VMs on the first N nodes only
    ///
    /// Nodes are numbered with X slowest and C fastest; I/O nodes do not count. The
    /// others are there as devices without a VM: they forward packets and answer what their reset
    /// state answers. [default: all]
    #[arg(long, value_name = "N")]
    pub nodes: Option<u32>,

    /// Guest memory of each node, such as 16MiB [default: 16MiB, 256MiB with Linux]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<MemorySize>,

    /// End guests that still run after this time, such as 30s [default: 60s]
    ///
    /// Counted from when all have booted. Linux nodes without --guest stay up.
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Timeout>,

    /// How doorbells reach the devices [default: auto]
    #[arg(long, value_name = "MODE")]
    pub doorbell: Option<Doorbell>,

    /// Number of engine threads that move data, 1 to 256 [default: from the host's cores]
    #[arg(long, value_name = "N")]
    pub engines: Option<Engines>,

    /// Serve what devices have counted to Prometheus, at http://ADDRESS/metrics
    ///
    /// An IP address of this host and a port, such as 127.0.0.1:9400. Nobody is asked who they are.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<MetricsAddress>,

    /// How packets go over links: at once, or as frames with credits in modelled time
    ///
    /// Over modelled links, queues wait for room, and counters of links and crossbars count what
    /// happens. Their time goes on with the host's, or more slowly if the host does not keep up.
    /// [default: direct]
    #[arg(long, value_name = "LINKS", hide_possible_values = true)]
    pub links: Option<LinkMode>,

    /// Have a node fail when its guest crashes or its virtual machine dies
    ///
    /// As by `tofu node down`: all of its links go down. It works again when its Linux guest is
    /// ready again (`tofu restart`), or by `tofu node up`. Otherwise a node without a guest still
    /// carries others' packets.
    #[arg(long)]
    pub fail_with_guest: bool,

    /// Faults on all links, such as loss=1%,duplicate=0.5%,reorder=2%,corrupt=1%,seed=7
    ///
    /// What happens to raw and system packets on each link, which are what IP over Tofu uses.
    /// `undetected` damages packets and makes their check sequence fit. With `commands`, loss is
    /// for Puts, Gets and the like as well. `tofu fault` changes it while the machine runs.
    #[arg(long, value_name = "FAULTS")]
    pub faults: Option<FaultSpec>,

    /// Capture what goes through a node, from start to end, into a file for Wireshark
    ///
    /// NODE is an index, coordinates X,Y,Z,A,B,C or a name t-X-Y-Z-A-B-C. See `tofu capture` for
    /// more.
    #[arg(long, value_name = "NODE=FILE")]
    pub capture: Vec<String>,

    /// Network boot.
    #[command(flatten)]
    pub boot: BootArgs,

    /// IP over Tofu.
    #[command(flatten)]
    pub ip: GatewayArgs,

    /// Linux nodes.
    #[command(flatten)]
    pub linux: LinuxArgs,
}

/// Which machine.
#[derive(Debug, Clone, Default, Args)]
pub struct ShapeArgs {
    /// Shape of the machine: unit, shelf, half-rack, rack, k-racks, k, or six lengths
    ///
    /// Six lengths are XxYxZxAxBxC: X, Y and Z 1 to 32, A and C 1 to 2, B 1 to 3. Three, XxYxZ,
    /// leave A, B and C at 1.
    /// unit is 1x1x1x2x3x2 (12 nodes), shelf 1x1x4x2x3x2 (48), half-rack 2x2x4x2x3x2
    /// (192), rack 2x2x8x2x3x2 (384); k is the K computer, 24x18x16x2x3x2 with Y a mesh;
    /// k-racks two racks of it, 1x1x17x2x3x2 (204), with I/O nodes.
    /// [default: unit]
    #[arg(long, value_name = "SHAPE")]
    pub shape: Option<Shape>,

    /// Nodes with Z = 0 are I/O nodes, as in the K computer
    ///
    /// They run no guests unless the machine file says so of one of them, and jobs leave them
    /// out. A gateway (--gateway without a node) and a boot server are at one of them. The shape
    /// k-racks has them without this option.
    #[arg(long)]
    pub io_nodes: bool,

    /// Machine file (TOML)
    ///
    /// Options on the command line win over the file's machine-wide settings.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Whether the machine's threads give up rights.
#[derive(Debug, Clone, Default, Args)]
pub struct SandboxArgs {
    /// Do without the sandbox
    ///
    /// Each thread that serves a guest gives up the system calls that it does not need (seccomp),
    /// and the process access to files (Landlock), so that a guest that takes over its monitor
    /// has little of it. Of use to find out whether the sandbox is at fault, and under debuggers.
    #[arg(long = "no-sandbox")]
    pub off: bool,
}

/// Linux nodes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Linux nodes")]
pub struct LinuxArgs {
    /// Boot Linux on the nodes; two nodes unless a shape is given
    ///
    /// The machine stays up until Ctrl-C or `tofu down`; with --guest, until that program has
    /// ended on all nodes. What is needed is fetched into a cache on the first run.
    #[arg(long)]
    pub linux: bool,

    /// Which monitor runs Linux nodes
    #[arg(long, value_name = "VMM", default_value = "auto")]
    pub vmm: Vmm,

    /// Virtual processors of each Linux node, 1 to 16 [default: 1]
    #[arg(long, value_name = "N")]
    pub cpus: Option<Cpus>,

    /// What the processors of Linux nodes are: x86-64, or arm64 as in Fugaku, under QEMU
    ///
    /// Nodes for arm64 boot the image arm64, which is made if need be: Debian's kernel, and our
    /// programs. [default: x86-64]
    #[arg(long, value_name = "ARCH")]
    pub arch: Option<Arch>,

    /// Processor of nodes for arm64: that of Fugaku, with SVE of 512 bits, or all that QEMU has
    /// [default: a64fx]
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<ArmCpu>,

    /// Image to boot: see `tofu image` [default: see --driver]
    #[arg(long, value_name = "NAME")]
    pub image: Option<ImageName>,

    /// Who has the device in the nodes: the kernel driver (tofu), programs (vfio), or auto
    ///
    /// `tofu` takes the image driver-cloud, driver-generic or driver, the first one that is there,
    /// and `vfio` the image default, which is made if need be. `auto` takes one of the former if
    /// there is one, in machines that stay up and run under QEMU, and the latter otherwise. With
    /// --image, `tofu` wants the driver in that image, and `vfio` keeps it from the device.
    /// [default: auto]
    #[arg(long, value_name = "DRIVER", hide_possible_values = true)]
    pub driver: Option<Driver>,

    /// Kernel to boot instead of the image's: a bzImage or vmlinux
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,

    /// Initrd to boot instead of the image's
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,

    /// Text to append to the kernel's command line
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub append: Option<GuestArgs>,

    /// An Ethernet between the Linux nodes, 10.84.0.1 and up, or none
    #[arg(long, value_name = "NET", default_value = "none")]
    pub net: Net,

    /// How long a node may take to boot
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub boot_timeout: Timeout,

    /// Name of the machine [default: tofu, tofu-2, ...]
    #[arg(long, value_name = "NAME")]
    pub name: Option<MachineName>,

    /// Return when the nodes are ready, and leave the machine running
    #[arg(short, long, conflicts_with = "guest")]
    pub detach: bool,

    /// This process is the one that runs a detached machine
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// A monitor for Linux nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Vmm {
    /// Our own with hardware virtualisation and without --net; QEMU otherwise
    #[default]
    Auto,
    /// Our own; needs hardware virtualisation
    Tofu,
    /// QEMU; emulates the processor where there is no hardware virtualisation
    Qemu,
}

/// A network between Linux nodes besides Tofu.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Net {
    /// None
    #[default]
    None,
    /// All Linux nodes in an Ethernet of their own
    Lan,
}

/// How the machine's network is joined to the host.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "IP over Tofu")]
pub struct GatewayArgs {
    /// Node that joins the machine to the host, and has no guest: X,Y,Z,A,B,C
    ///
    /// Without coordinates, the first I/O node, in machines that have any (see --io-nodes).
    /// `tofu forward` makes ports of nodes ports of the host. With CAP_NET_ADMIN the host also has
    /// a network interface there, so that ping, ssh and the like reach all nodes.
    #[arg(long, value_name = "NODE", num_args = 0..=1)]
    pub(crate) gateway: Option<Option<NodeAt>>,

    /// Whether the host has a network interface at the gateway; auto: if it may be made
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) tap: TapWhen,

    /// Let nodes reach the networks of the host, with its address; needs the interface
    #[arg(long)]
    pub(crate) nat: bool,

    /// Number of the machine, 0 to 7, a part of its nodes' IP addresses [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) ip_number: Option<IpNumber>,

    /// Largest IP packet between nodes in bytes, 1280 to 65521 [default: 1500]
    #[arg(long, value_name = "BYTES")]
    pub(crate) mtu: Option<Mtu>,
}

/// Whether there is an interface on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TapWhen {
    /// If this process has CAP_NET_ADMIN
    #[default]
    Auto,
    /// Always; it is an error if there cannot be one
    On,
    /// Never
    Off,
}

/// What a server does wrong, for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BootFault {
    /// Changes a byte of each file
    Corrupt,
    /// Answers no more half-way
    Silent,
}

/// Network boot.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Network boot")]
pub struct BootArgs {
    /// Where guests and kernels come from [default: monitor]
    #[arg(long, value_name = "FROM")]
    pub boot: Option<BootFrom>,

    /// Node of the boot server, which runs nothing else: X,Y,Z,A,B,C
    ///
    /// [default: the last I/O node; without those, the last node without a VM; the last node if all
    /// have one]
    #[arg(long, value_name = "NODE")]
    pub boot_server: Option<NodeAt>,

    /// How long the boot server may be silent until a node gives up [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub boot_patience: Option<Timeout>,

    /// Lets the boot server make mistakes
    #[arg(long, value_name = "FAULT", hide = true)]
    pub boot_fault: Option<BootFault>,
}

impl BootArgs {
    /// What the boot server does wrong.
    pub(crate) fn fault(&self) -> Fault {
        match self.boot_fault {
            None => Fault::None,
            Some(BootFault::Corrupt) => Fault::Corrupt,
            Some(BootFault::Silent) => Fault::Silent(50),
        }
    }
}
