//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tofu_control::MachineName;
use tofu_supervisor::janitor::InternalCommand;
use tofu_supervisor::options::{MachineArgs, SandboxArgs, ShapeArgs};
use tofu_supervisor::units::{Engines, ImageName};

use crate::client::capture::CaptureArgs;
use crate::client::fault::FaultCommand;
use crate::client::forward::ForwardArgs;
use crate::client::link::LinkCommand;
use crate::client::stats::StatsArgs;
use crate::map::MapArgs;
use crate::run::RunArgs;
use crate::sdk::SdkArgs;

/// Run a Tofu machine of virtual machines
///
/// tofu builds a machine out of virtual machines: each is a node with an emulated
/// TofuD interface controller on its PCI Express bus, and the controllers are
/// linked into the 6D mesh/torus that the K computer and Fugaku use. Programs in
/// the guests move data between each other's memory by RDMA.
#[derive(Debug, Parser)]
#[command(name = "tofu", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Start here:
  tofu doctor                     what this host can do
  tofu up                         12 VMs, one Tofu unit, every pair exchanges data
  tofu up --linux                 2 Linux VMs; then tofu exec, console, cp, down
  tofu run -n 2 ./program         a program of yours, as a job on Linux nodes; see tofu sdk
  tofu topo                       the same machine on paper
  tofu up --help                  shapes, guests, machine files

Exit codes: 0 all guests succeeded; 1 a guest failed; 2 bad input or the host
cannot run this; 130 interrupted. `tofu exec` returns that of the program.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(Box<UpArgs>),
    Run(Box<RunArgs>),
    Sdk(SdkArgs),
    Serve(ServeArgs),
    Ps(PsArgs),
    Hosts(HostsArgs),
    Exec(ExecArgs),
    Console(ConsoleArgs),
    Cp(CpArgs),
    Forward(ForwardArgs),
    Restart(RestartArgs),
    Pause(PauseArgs),
    Resume(ResumeArgs),
    Down(DownArgs),
    #[command(subcommand)]
    Link(LinkCommand),
    #[command(subcommand)]
    Fault(FaultCommand),
    Stats(StatsArgs),
    Capture(CaptureArgs),
    #[command(subcommand)]
    Image(ImageCommand),
    Doctor(DoctorArgs),
    Topo(TopoArgs),
    Map(MapArgs),
    Bench(BenchArgs),
    #[command(subcommand)]
    Guest(GuestCommand),
    #[command(subcommand, hide = true)]
    Internal(InternalCommand),
}

/// Boot a machine and run a guest program on every node
///
/// Boots one VM per node, shows what the guests print with the coordinates of
/// their nodes, and ends when all guests have ended, the time is over, or you
/// press Ctrl-C. A guest succeeds if it exits with code 0.
#[derive(Debug, Clone, Parser)]
#[command(after_help = UP_EXAMPLES)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) machine: MachineArgs,

    /// Print one JSON object per event and a summary at the end
    #[arg(long)]
    pub(crate) json: bool,
}

/// Serve the devices of a machine to other virtual machine monitors
///
/// Each node's device is on a UNIX socket, by the vfio-user protocol. QEMU (10.1 or later) and
/// Cloud Hypervisor attach, detach and restart as they like, while the others run on. Prints how
/// to attach them. Runs until Ctrl-C.
#[derive(Debug, Clone, Parser)]
#[command(after_help = SERVE_EXAMPLES)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,

    /// Folder for the sockets, node-X-Y-Z-A-B-C.sock [default: the machine's run directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) socket_dir: Option<PathBuf>,

    /// Number of engine threads that move data, 1 to 256 [default: from the host's cores]
    #[arg(long, value_name = "N")]
    pub(crate) engines: Option<Engines>,

    /// Also serve clients whose memory is not sealed against shrinking, as Cloud Hypervisor's
    ///
    /// Such a client can end this process.
    #[arg(long)]
    pub(crate) any_memory: bool,

    /// Name of the machine [default: tofu, tofu-2, ...]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<MachineName>,

    /// Print one JSON object with the sockets
    #[arg(long)]
    pub(crate) json: bool,
}

const SERVE_EXAMPLES: &str = "\
Examples:
  tofu serve --shape 2x1x1x1x1x1
  tofu serve -c machine.toml --socket-dir /tmp/sockets --json";

/// List the machines that stay up, and their nodes
#[derive(Debug, Clone, Args)]
pub(crate) struct PsArgs {
    /// Print the list as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the names and addresses of a machine's nodes, as lines of /etc/hosts
///
/// On the host they are of use where there is a gateway to the machine; Linux nodes have them.
#[derive(Debug, Clone, Args)]
pub(crate) struct HostsArgs {
    /// Machine; not needed if only one runs
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<MachineName>,

    /// The number that the machine was given by `tofu up --ip-number N`, a part of its addresses
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=7))]
    pub(crate) machine: u8,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Run a command on a Linux node
///
/// Standard input, output and error are those of the command, and so is the exit code. Ctrl-C
/// and SIGTERM reach it.
#[derive(Debug, Clone, Parser)]
#[command(after_help = EXEC_EXAMPLES)]
pub(crate) struct ExecArgs {
    /// Node: an index, coordinates X,Y,Z,A,B,C or a name t-X-Y-Z-A-B-C, with MACHINE/ in front
    /// if several machines run
    #[arg(value_name = "NODE", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) node: Option<String>,

    /// Run it on all Linux nodes; lines have the node in front, there is no input
    #[arg(long)]
    pub(crate) all: bool,

    /// Machine, with --all
    #[arg(long, value_name = "NAME", requires = "all")]
    pub(crate) machine: Option<MachineName>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

const EXEC_EXAMPLES: &str = "\
Examples:
  tofu exec 0 -- uname -a
  tofu exec 1,0,0,0,0,0 -- sh -c 'echo $HOSTNAME; cat' < file
  tofu exec --all -- allpairs";

/// Look at a Linux node's console and type on it
///
/// Shows the last lines first. Ctrl-] leaves, and so does ~. at the beginning of a line; the node
/// runs on.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConsoleArgs {
    /// Node, as for `tofu exec`
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
}

/// Copy a file or folder to a Linux node or from it
///
/// One of the two is NODE:PATH. If the target is a folder that exists, the copy goes into it.
/// Permissions are kept.
#[derive(Debug, Clone, Parser)]
#[command(after_help = CP_EXAMPLES)]
pub(crate) struct CpArgs {
    /// What to copy: PATH or NODE:PATH
    #[arg(value_name = "SRC")]
    pub(crate) from: String,

    /// Where to: NODE:PATH or PATH
    #[arg(value_name = "DST")]
    pub(crate) to: String,
}

const CP_EXAMPLES: &str = "\
Examples:
  tofu cp ./mine 0:/usr/local/bin/
  tofu cp 1,0,0,0,0,0:/var/log ./logs";

/// Restart the virtual machine of a Linux node
///
/// Its device is reset; all other nodes run on.
#[derive(Debug, Clone, Args)]
pub(crate) struct RestartArgs {
    /// Node, as for `tofu exec`
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
}

/// Stop the processors of a node
///
/// Its device works on: memory that others may reach, and barrier gates. `tofu resume` lets them
/// go on.
#[derive(Debug, Clone, Args)]
pub(crate) struct PauseArgs {
    /// Node, as for `tofu exec`
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
}

/// Let the processors of a node go on that `tofu pause` has stopped
#[derive(Debug, Clone, Args)]
pub(crate) struct ResumeArgs {
    /// Node, as for `tofu exec`
    #[arg(value_name = "NODE")]
    pub(crate) node: String,
}

/// End a machine
#[derive(Debug, Clone, Args)]
pub(crate) struct DownArgs {
    /// Machine; not needed if only one runs
    #[arg(value_name = "NAME", conflicts_with = "all")]
    pub(crate) name: Option<MachineName>,

    /// End all machines
    #[arg(long)]
    pub(crate) all: bool,
}

/// Make, list and remove images for Linux nodes
///
/// An image has a kernel, a small user land with our programs, and if wanted a Debian root with
/// more packages. Images are made from Debian's packages, in a cache; nothing on the host changes.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ImageCommand {
    /// Make an image, and fetch QEMU if this host has none that will do
    Build {
        /// Debian packages to install, in a root file system for the guest
        #[arg(long, value_name = "PACKAGE,...", value_delimiter = ',')]
        with: Vec<String>,
        /// Name of the image [default: default, or made of the packages]
        #[arg(long, value_name = "NAME")]
        name: Option<ImageName>,
        /// Kernel: auto, cloud, generic, cloud-backports, generic-backports, driver, driver-debug,
        /// or a file
        #[arg(long, value_name = "KERNEL", default_value = "auto")]
        kernel: String,
        /// Build a kernel with the driver tofu.ko, which takes minutes the first time: the same as
        /// --kernel driver, with `driver` as the default name
        #[arg(long, conflicts_with = "kernel")]
        kernel_driver: bool,
        /// Kernel modules to add, with what they need
        #[arg(long, value_name = "MODULE,...", value_delimiter = ',')]
        modules: Vec<String>,
        /// Debian mirror to fetch from [default: that of this host's apt]
        #[arg(long, value_name = "URL")]
        mirror: Option<String>,
        /// Ask Debian for newer packages even if nothing else has changed
        #[arg(long)]
        refresh: bool,
    },
    /// Compile a kernel module for nodes with the kernel of the image `driver`
    ///
    /// Sources in FOLDER, with a Kbuild file; C or Rust. What the compiler says is printed, and
    /// modules (*.ko) are left in FOLDER. The kernel is built first if it is not there yet, which
    /// takes minutes. Then: tofu up --linux --image driver, tofu cp FOLDER/mine.ko 0:/tmp,
    /// tofu exec 0 -- insmod /tmp/mine.ko.
    Module {
        /// Folder with the sources and Kbuild
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
        /// Folder around it with more files that it needs [default: FOLDER]
        #[arg(long, value_name = "BASE")]
        base: Option<PathBuf>,
        /// Where to leave the modules [default: FOLDER]
        #[arg(long, short, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// For the kernel of `--kernel driver-debug`
        #[arg(long)]
        debug: bool,
        /// Arguments of make, such as W=1 or CLIPPY=1
        #[arg(value_name = "ARG", last = true)]
        args: Vec<String>,
    },
    /// List the images
    Ls {
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run the QEMU that Linux nodes run under, fetched if need be
    ///
    /// For machines of your own beside `tofu serve`: tofu image qemu -- -M q35 ...
    Qemu {
        /// QEMU's arguments
        #[arg(value_name = "ARG", last = true)]
        args: Vec<OsString>,
    },
    /// Run the host's tshark, or one that is fetched, to look at captures
    ///
    /// tofu image tshark -- -X lua_script:tools/wireshark/tofu.lua -r file.pcapng
    Tshark {
        /// Not the host's, even if there is one
        #[arg(long)]
        fetched: bool,
        /// tshark's arguments
        #[arg(value_name = "ARG", last = true)]
        args: Vec<OsString>,
    },
    /// Remove an image
    Rm {
        /// The image
        #[arg(value_name = "NAME")]
        name: ImageName,
    },
}

const UP_EXAMPLES: &str = "\
Examples:
  tofu up
      a Tofu unit, every node exchanges data with every other
  tofu up --shape half-rack --guest ring
      192 VMs pass a token around
  tofu up --shape 4x1x1x1x1x1 --guest pingpong --args 'max=4096'
      four nodes on a ring
  tofu up --guest ./target/release/mine.elf --nodes 2 --timeout 10s
      your own program on two nodes
  tofu up -c machine.toml --json
      a machine file; output for scripts
  tofu up --linux --detach
      two Linux nodes; then tofu exec 0 -- uname -a, tofu console 1, tofu down
  tofu up --linux --shape unit --guest allpairs
      a program on twelve Linux nodes

A machine file:
  shape = \"2x1x1x2x3x2\"
  torus = { x = false }
  guest = \"ring\"

  [[link]]                          # this link starts down
  at = [0, 0, 0, 0, 0, 0]
  port = \"B+\"
  down = true";

/// Say what this host can and cannot do
///
/// Looks at KVM, processors, memory and limits, and says in plain words what they
/// mean. Exits with 0 if machines can run here and with 1 if not.
#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show a machine's nodes and links as text or as a picture
#[derive(Debug, Clone, Args)]
#[command(after_help = TOPO_EXAMPLES)]
pub(crate) struct TopoArgs {
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,

    /// Write a picture of the 6D box to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Print the machine as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const TOPO_EXAMPLES: &str = "\
Examples:
  tofu topo
  tofu topo --shape half-rack --svg half-rack.svg
  tofu topo -c machine.toml --json";

/// Measure this emulation on this host
///
/// Each figure stands beside a baseline that was measured in the same run, as the
/// host may be busy: compare ratios rather than times.
#[derive(Debug, Clone, Args)]
#[command(after_help = BENCH_EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Measure only this part
    #[arg(long, value_name = "PART")]
    pub(crate) only: Option<BenchPart>,

    /// Measure briefly, and no large machines
    #[arg(long)]
    pub(crate) quick: bool,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// utofu-perf, linked statically, to measure uTofu on the driver and on VFIO; the manual's
    /// page on uTofu says how to build it
    #[arg(long, value_name = "FILE")]
    pub(crate) utofu_perf: Option<PathBuf>,

    /// Write a picture of the barriers' figures to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// A part of `tofu bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchPart {
    /// Puts in this process by size, and commands a second, against a memory copy
    Put,
    /// Latency between two guests in each doorbell mode
    Guests,
    /// Barriers and sums of twelve guests, by gates and by Puts, and modelled ones of up to 768
    /// nodes
    Barrier,
    /// Machines of 1 to 192 nodes from start to end, and their memory
    Boot,
    /// Two Linux nodes, against an Ethernet and soft RoCE between the same guests
    Linux,
    /// IP between two nodes, against virtio-net on a bridge, and TCP/IP stacks on a veth pair
    Ip,
    /// The kernel driver, against VFIO and tofu-net on the same device, and virtio-net; needs its
    /// kernel (tofu image build --kernel-driver)
    Driver,
}

const BENCH_EXAMPLES: &str = "\
Examples:
  tofu bench                      everything, some minutes
  tofu bench --only put --quick   a first impression
  tofu bench --json > host.json   for scripts";

/// List the shipped guest programs, or start one of your own
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum GuestCommand {
    /// List the shipped guest programs
    Ls {
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a new guest program from a template
    ///
    /// Creates the folder DIR with a crate that builds into an ELF file for
    /// `tofu up --guest`. The last part of DIR is the crate's name.
    New {
        /// The folder to create
        dir: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help() {
        let mut command = Cli::command();
        command.build();
        for sub in command.get_subcommands() {
            assert!(sub.get_about().is_some(), "{}", sub.get_name());
            for argument in sub.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", sub.get_name(), argument.get_id());
            }
        }
    }
}
