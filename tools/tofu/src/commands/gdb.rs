//! `tofu gdb`: a debugger for the kernel of a node under QEMU.

mod monitor;
mod symbols;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tofu_abi::Coords;
use tofu_agent::wire::{Exec, Output, Status};
use tofu_control::protocol::NodeInfo;
use tofu_control::rundir::node_file;
use tofu_control::{RemoteProgram, find_node, info};
use tofu_image::Arch;
use tofu_sync::lock;

use self::monitor::Monitor;
use crate::commands::host;

/// Attach gdb to the kernel of a Linux node under QEMU
///
/// While gdb stops the node, its processors and its driver stand still; its device and the rest of
/// the machine keep running. The names of functions and variables, including those of modules, come
/// from the node's own /proc/kallsyms. Types and line numbers are those of files that gdb is given,
/// by `add-symbol-file` for a module of your own. When gdb ends, the node continues.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GdbArgs {
    /// Node: an index, coordinates X,Y,Z,A,B,C or a name t-X-Y-Z-A-B-C, with MACHINE/ in front if
    /// several machines run
    #[arg(value_name = "NODE")]
    pub(crate) node: String,

    /// Debugger [default: gdb; gdb-multiarch for arm64]
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) gdb: Option<PathBuf>,

    /// Further arguments for gdb, after those that attach it
    #[arg(value_name = "ARG", last = true)]
    pub(crate) args: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  tofu gdb 0
  tofu gdb 0 -- -batch -ex 'info threads' -ex bt
      backtraces of node 0's processors; then the node continues";

/// Most bytes of a node's list of symbols.
const MOST: usize = 128 << 20;
/// A node that is silent for this long, even on a busy host, does not send its symbols at all.
const SILENCE: Duration = Duration::from_secs(30);

/// Runs `tofu gdb` and returns gdb's exit code.
pub(crate) fn run(args: &GdbArgs) -> anyhow::Result<u8> {
    let found = find_node(&args.node)?;
    let node = &found.node;
    refuse(node)?;
    let gdb = debugger(args, node)?;
    let folder = found.control.parent().context("a socket without a folder")?;
    let at = Coords::from_array(node.at);
    let monitor = folder.join(node_file("qmp", at, "sock"));
    if !monitor.exists() {
        bail!(
            "node {}: QEMU's monitor is not here; of a machine in shards, ask the shard's own host",
            node.index
        );
    }
    let scratch = Scratch::take(folder, at, node.index)?;
    let stage = Arc::new(Mutex::new(Stage::Before));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let (of_signals, files) = (Arc::clone(&stage), scratch.paths());
    thread::spawn(move || {
        signals.forever().for_each(|signal| lock(&of_signals).signal(signal, &files))
    });

    // The node no longer answers once gdb holds it, or if time stands still.
    let stands = info(&found.control)?.time.is_some_and(|time| time.stands.is_some());
    let list = match stands {
        true => Err(anyhow!("time stands still for the node")),
        false => list(&found.control, node.index),
    };
    let names = match list.and_then(|list| {
        symbols::elf(&list, node.processors()).context("its /proc/kallsyms has no addresses")
    }) {
        Ok(elf) => {
            (&scratch.symbols).write_all(&elf).context("cannot write the names of functions")?;
            true
        }
        Err(error) => {
            tofu_ui::tell!("tofu: no names of functions: {error:#}");
            false
        }
    };
    let mut monitor = Monitor::connect(&monitor)?;
    let [file, socket] = scratch.paths();
    let mut command = Command::new(&gdb);
    command.args(["-q", "-ex", "set confirm off", "-ex", "set pagination off"]);
    if names {
        command.arg("-ex").arg(format!("file {}", file.display()));
    }
    command.arg("-ex").arg(format!("target remote {}", socket.display()));
    command.args(&args.args);
    let ended = debug(&mut monitor, &socket, &mut command, &stage)
        .with_context(|| format!("cannot run {}", gdb.display()));
    Ok(ended?.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
/// Makes QEMU wait for gdb, runs gdb, and lets the node continue.
fn debug(
    monitor: &mut Monitor,
    socket: &Path,
    command: &mut Command,
    stage: &Mutex<Stage>,
) -> anyhow::Result<ExitStatus> {
    let running = monitor.is_running()?;
    let listener =
        UnixListener::bind(socket).with_context(|| format!("cannot make {}", socket.display()))?;
    let mut now = lock(stage);
    monitor.serve_gdb(&listener)?;
    let child = command.spawn();
    if let Ok(child) = &child {
        *now = Stage::Under(Pid::from_child(child));
    }
    drop(now);
    let ended = child.and_then(|mut child| child.wait());
    *lock(stage) = Stage::After;
    // The node continues even if gdb was killed.
    let given_back = monitor.end_gdb();
    if running {
        monitor.go_on()?;
    }
    given_back?;
    Ok(ended?)
}

/// The stage of `tofu gdb`, for signals.
enum Stage {
    Before,
    Under(Pid),
    After,
}

impl Stage {
    /// While gdb runs, it gets Ctrl-C, because it has the same terminal. Signals that must end this
    /// command end gdb, after which the node continues.
    fn signal(&self, signal: i32, files: &[PathBuf]) {
        match *self {
            Self::Before => {
                files.iter().for_each(|file| drop(fs::remove_file(file)));
                std::process::exit(128 + signal);
            }
            Self::Under(gdb) if signal != SIGINT => drop(kill_process(gdb, Signal::KILL)),
            Self::Under(_) | Self::After => {}
        }
    }
}

/// The files in the machine's folder, which are removed in the end.
struct Scratch {
    /// The process that has locked it has the node.
    symbols: File,
    /// The paths of the symbols, and of the socket for gdb.
    paths: [PathBuf; 2],
}

impl Scratch {
    fn take(folder: &Path, at: Coords, node: u32) -> anyhow::Result<Self> {
        let paths = ["symbols", "sock"].map(|kind| folder.join(node_file("gdb", at, kind)));
        let symbols = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&paths[0])
            .with_context(|| format!("cannot write {}", paths[0].display()))?;
        if flock(&symbols, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("node {node}: another tofu gdb holds it");
        }
        // Removes what a killed process has left.
        symbols.set_len(0)?;
        let _ = fs::remove_file(&paths[1]);
        Ok(Self { symbols, paths })
    }

    fn paths(&self) -> [PathBuf; 2] {
        self.paths.clone()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.paths.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

/// The error for a node without a kernel for gdb.
fn refuse(node: &NodeInfo) -> anyhow::Result<()> {
    let number = node.index;
    match node.vmm.as_str() {
        "qemu" if node.state == "off" => bail!("node {number} is off; `tofu restart` starts it"),
        "qemu" if node.state == "paused" => bail!("node {number} is paused; see `tofu resume`"),
        "qemu" if node.state == "waiting" => bail!("node {number} has not begun to boot"),
        "qemu" => Ok(()),
        "tofu" if node.is_linux() => bail!(
            "node {number} runs under this project's own monitor, which gdb cannot attach to; \
             `tofu up --linux --vmm qemu` has nodes that it can"
        ),
        "tofu" => bail!("node {number} is a small guest; tofu gdb is for Linux nodes under QEMU"),
        _ => bail!("node {number} has no virtual machine ({})", node.kind),
    }
}

/// The debugger for a node's processor.
fn debugger(args: &GdbArgs, node: &NodeInfo) -> anyhow::Result<PathBuf> {
    if let Some(named) = &args.gdb {
        return Ok(named.clone());
    }
    let (name, package) = match node.processors() {
        Arch::Arm64 => ("gdb-multiarch", "gdb-multiarch"),
        Arch::X86_64 => ("gdb", "gdb"),
    };
    host::program(name).with_context(|| {
        format!("{name} is not installed; `apt install {package}` brings it, --gdb names another")
    })
}

/// The node's list of symbols.
fn list(control: &Path, node: u32) -> anyhow::Result<Vec<u8>> {
    let exec = Exec::named(["cat", "/proc/kallsyms"]);
    let remote = RemoteProgram::start(control, node, exec)?;
    let (out, input) = channel();
    // A kernel that hangs never answers, and the thread ends with the process.
    thread::spawn(move || {
        let ended = remote.follow(|stream, bytes| {
            let bytes = if stream == Output::Out { bytes.to_vec() } else { Vec::new() };
            let _ = out.send(Ok(bytes));
            Ok(())
        });
        let _ = out.send(Err(ended));
    });
    let mut list = Vec::new();
    loop {
        match input.recv_timeout(SILENCE) {
            Ok(Ok(more)) if list.len() + more.len() <= MOST => list.extend(more),
            Ok(Ok(_)) => bail!("its /proc/kallsyms has more than {MOST} bytes"),
            Ok(Err(ended)) => match ended? {
                Status::Code(0) => return Ok(list),
                _ => bail!("it has no /proc/kallsyms"),
            },
            Err(RecvTimeoutError::Timeout) => {
                bail!("it has not answered for {} s", SILENCE.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the connection to it has ended"),
        }
    }
}
