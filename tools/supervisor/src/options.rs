//! Options of machines: the common command-line options that describe one.

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

    /// Interconnect of the machine: k, fx10, fx100 or fugaku, which are generations of Tofu, or tnw
    ///
    /// tnw is the torus network of QPACE and AuroraScience, whose shapes have three axes.
    /// [default: k for the shapes k and k-racks, else fugaku]
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
    /// Nodes are numbered with X slowest and C fastest; I/O nodes do not count. The others are
    /// devices without a VM: they forward packets, and answer commands like a device after reset.
    /// [default: all]
    #[arg(long, value_name = "N")]
    pub nodes: Option<u32>,

    /// Memory of each guest, such as 16MiB [default: 16MiB, 256MiB with Linux]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<MemorySize>,

    /// Stop guests that are still running after this time, such as 30s [default: 60s]
    ///
    /// The time starts when all guests have booted. Linux nodes without --guest stay up.
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Timeout>,

    /// How doorbells reach the devices [default: auto]
    #[arg(long, value_name = "MODE")]
    pub doorbell: Option<Doorbell>,

    /// Number of engine threads that move data, 1 to 256 [default: from the host's cores]
    #[arg(long, value_name = "N")]
    pub engines: Option<Engines>,

    /// Serve the devices' counters to Prometheus, at http://ADDRESS/metrics
    ///
    /// An IP address of this host and a port, such as 127.0.0.1:9400. There is no authentication.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<MetricsAddress>,

    /// How packets cross links: at once (direct), or as frames with credits in modelled time
    /// (modelled)
    ///
    /// Over modelled links, queues wait for room, and the counters of links and crossbars work.
    /// Modelled time advances with the host's time, or more slowly if the host cannot keep up.
    /// [default: direct]
    #[arg(long, value_name = "LINKS", hide_possible_values = true)]
    pub links: Option<LinkMode>,

    /// Make a node fail when its guest crashes or its virtual machine dies
    ///
    /// As with `tofu node down`, all of its links go down, and the other nodes go on. The node
    /// works again after `tofu node up`, or when its Linux guest is ready again (`tofu restart`).
    /// Without this option, a node whose guest has crashed still forwards the packets of others,
    /// and a small guest that fails ends the machine.
    #[arg(long)]
    pub fail_with_guest: bool,

    /// Faults on all links, such as loss=1%,duplicate=0.5%,reorder=2%,corrupt=1%,seed=7
    ///
    /// They apply to raw and system packets, which IP over Tofu uses. `undetected` damages packets
    /// and makes their check sequence fit. With `commands`, loss also applies to commands such as
    /// Puts and Gets. `tofu fault` changes the faults while the machine runs.
    #[arg(long, value_name = "FAULTS")]
    pub faults: Option<FaultSpec>,

    /// Capture the packets of a node, from start to end, into a file for Wireshark
    ///
    /// NODE is an index, coordinates X,Y,Z,A,B,C or a name t-X-Y-Z-A-B-C. See `tofu capture` for
    /// more.
    #[arg(long, value_name = "NODE=FILE")]
    pub capture: Vec<String>,

    /// Whether the machine is only checked, so that nothing is written.
    #[arg(skip)]
    pub only_check: bool,

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
    /// They run no guests, except those to which the machine file gives one, and jobs do not use
    /// them. A gateway (--gateway without a node) and a boot server are placed on one of them. The
    /// shape k-racks has them without this option.
    #[arg(long)]
    pub io_nodes: bool,

    /// Machine file (TOML), or - for standard input
    ///
    /// Options on the command line override the file's machine-wide settings.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// What standard input had, for the process that runs a detached machine
    #[arg(long, value_name = "FILE", hide = true)]
    pub stdin: Option<PathBuf>,
}

/// Whether the machine's threads give up rights.
#[derive(Debug, Clone, Default, Args)]
pub struct SandboxArgs {
    /// Turn the sandbox off
    ///
    /// In the sandbox, each thread that serves a guest gives up the system calls that it does not
    /// need (seccomp), and the process gives up access to files (Landlock), so a guest that takes
    /// over its monitor gains little. Turn it off to find out whether it causes a problem, and for
    /// debuggers.
    #[arg(long = "no-sandbox")]
    pub off: bool,
}

/// Linux nodes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Linux nodes")]
pub struct LinuxArgs {
    /// Boot Linux on the nodes; two nodes unless a shape is given
    ///
    /// The machine stays up until Ctrl-C or `tofu down`; with --guest, until that program has ended
    /// on all nodes. The first run downloads what is needed into a cache.
    #[arg(long)]
    pub linux: bool,

    /// Which monitor runs Linux nodes
    #[arg(long, value_name = "VMM", default_value = "auto")]
    pub vmm: Vmm,

    /// Virtual processors of each Linux node, 1 to 16 [default: 1]
    #[arg(long, value_name = "N")]
    pub cpus: Option<Cpus>,

    /// Architecture of Linux nodes: x86-64, or arm64 as in Fugaku, under QEMU
    ///
    /// arm64 nodes boot the image arm64, with Debian's kernel and our programs, which is made if it
    /// does not exist. [default: the host's]
    #[arg(long, value_name = "ARCH")]
    pub arch: Option<Arch>,

    /// Processor of arm64 nodes [default: a64fx]
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<ArmCpu>,

    /// Image to boot: see `tofu image` [default: see --driver]
    #[arg(long, value_name = "NAME")]
    pub image: Option<ImageName>,

    /// Who owns the device in the nodes: the kernel driver (tofu), programs (vfio), or auto
    ///
    /// `tofu` boots the first image that exists of driver-cloud, driver-generic and driver. `vfio`
    /// boots the image default, which is made if it does not exist. `auto` acts like `tofu` in
    /// machines that stay up and run under QEMU, if there is such an image, and otherwise like
    /// `vfio`. With --image, `tofu` requires the driver in that image, and `vfio` keeps the driver
    /// away from the device. [default: auto]
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

    /// Ethernet between the Linux nodes, with the addresses 10.84.0.1 and up
    #[arg(long, value_name = "NET", default_value = "none")]
    pub net: Net,

    /// Time within which a node must be ready
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub boot_timeout: Timeout,

    /// Name of the machine [default: tofu, tofu-2, ...]
    #[arg(long, value_name = "NAME")]
    pub name: Option<MachineName>,

    /// Return when the nodes are ready, and leave the machine running
    #[arg(short, long)]
    pub detach: bool,

    /// This process is the one that runs a detached machine
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// A monitor for Linux nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Vmm {
    /// Our own, with hardware virtualisation and without --net; otherwise QEMU
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
    /// All Linux nodes are on one Ethernet
    Lan,
}

/// How the machine's network is joined to the host.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "IP over Tofu")]
pub struct GatewayArgs {
    /// Node that connects the machine to the host, and has no guest: X,Y,Z,A,B,C
    ///
    /// Without coordinates it is the first I/O node, in machines that have any (see --io-nodes).
    /// `tofu forward` makes ports of nodes available on the host. With CAP_NET_ADMIN the host also
    /// gets a network interface, so that ping, ssh and other programs reach all nodes.
    #[arg(long, value_name = "NODE", num_args = 0..=1)]
    pub(crate) gateway: Option<Option<NodeAt>>,

    /// Whether the host gets a network interface to the gateway
    #[arg(long, value_name = "WHEN", default_value = "auto")]
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

/// Whether there is an interface on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TapWhen {
    /// If this process has CAP_NET_ADMIN
    #[default]
    Auto,
    /// Always; it is an error if it cannot be created
    On,
    /// Never
    Off,
}

/// Faults of a server, for tests.
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

    /// The time for which a node waits for an answer from the boot server before it gives up
    /// [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub boot_patience: Option<Timeout>,

    /// Lets the boot server make mistakes
    #[arg(long, value_name = "FAULT", hide = true)]
    pub boot_fault: Option<BootFault>,
}

impl BootArgs {
    /// Faults of the boot server.
    pub(crate) fn fault(&self) -> Fault {
        match self.boot_fault {
            None => Fault::None,
            Some(BootFault::Corrupt) => Fault::Corrupt,
            Some(BootFault::Silent) => Fault::Silent(50),
        }
    }
}
