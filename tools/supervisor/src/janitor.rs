//! The janitor, which cleans up no matter how this process ends.
//!
//! The janitor is a small process that waits on a pipe whose other end this process holds. When the
//! pipe closes, for whatever reason, it removes the machine's files and kills its own process
//! group, to which all virtual machine monitors of the machine belong. If the janitor itself is
//! gone, the kernel kills each monitor together with the thread that started it ([`wrapped`]).

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};
use clap::Subcommand;
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tofu_control::rundir::{self, RunDir};

use crate::gateway::nat;
use crate::limits::ProgramLimits;

/// Processes that tofu starts for itself
#[derive(Debug, Clone, Subcommand)]
pub enum InternalCommand {
    /// Remove a machine's files when standard input ends; standard output is its lock file
    Janitor {
        /// Undo the address translation of this name
        #[arg(long)]
        nat: Option<String>,
        /// The run directory
        dir: PathBuf,
        /// Other files
        files: Vec<PathBuf>,
    },
    /// Become a program that dies with its parent
    Child {
        /// What the program is limited to
        #[command(flatten)]
        limits: ProgramLimits,
        /// Process id of the parent
        parent: u32,
        /// The program and its arguments
        #[arg(last = true)]
        program: Vec<OsString>,
    },
}

impl InternalCommand {
    /// The subcommand's name on the command line.
    pub const NAME: &str = "internal";
}

/// Sent to the janitor after an orderly end: the files have been removed, and any that exist now
/// belong to others.
const ORDERLY: &[u8] = b"done";

/// The janitor process. Dropping this makes it clean up.
pub struct Janitor {
    child: Child,
    /// Closing it tells the janitor to clean up.
    pipe: Option<ChildStdin>,
    group: i32,
}

impl Janitor {
    /// Starts the janitor for a run directory and some other files.
    pub fn start(dir: &RunDir, files: &[PathBuf]) -> anyhow::Result<Self> {
        Self::start_with(dir, files, None)
    }

    /// Starts the janitor like [`Janitor::start`]. It also removes the address translation of the
    /// table `nat`.
    pub fn start_with(dir: &RunDir, files: &[PathBuf], nat: Option<&str>) -> anyhow::Result<Self> {
        let mut command = own_command()?;
        command.arg("janitor");
        command.args(nat.iter().flat_map(|nat| ["--nat", nat]));
        command.arg(dir.path()).args(files);
        let mark = dir.mark();
        command.stdout(mark.with_context(|| format!("cannot open {}", dir.path().display()))?);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> anyhow::Result<Self> {
        command.process_group(0);
        // Otherwise a reader of our output would wait for the janitor, too.
        command.stdin(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn();
        let mut child = child.context("cannot start the process that tidies up")?;
        let (group, pipe) = (child.id() as i32, child.stdin.take());
        Ok(Self { child, pipe, group })
    }

    /// Returns the process group that the janitor kills in the end.
    pub fn group(&self) -> i32 {
        self.group
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // If it cannot be told, it is dead.
            let _ = pipe.write_all(ORDERLY);
        }
        // It kills itself last.
        let _ = self.child.wait();
    }
}

/// Returns a command that runs the hidden subcommand of this program.
fn own_command() -> anyhow::Result<Command> {
    // /proc/self/exe works even if the file has been replaced in the meantime, for example by a new
    // build.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tofu").arg(InternalCommand::NAME).env_remove("RUST_LOG");
    Ok(command)
}

/// Returns a command that runs `program` in the janitor's group and dies with the calling thread.
pub fn wrapped(group: i32, program: &Path) -> anyhow::Result<Command> {
    wrapped_with(group, program, &ProgramLimits::default())
}

/// Returns the same with limits, for a program that serves a guest. If it is confined, standard
/// input must be a socket ([`ProgramLimits`]).
pub fn wrapped_with(group: i32, program: &Path, limits: &ProgramLimits) -> anyhow::Result<Command> {
    let mut command = own_command()?;
    command.arg("child").args(limits.arguments());
    command.arg(std::process::id().to_string()).arg("--").arg(program);
    command.process_group(group).stdin(Stdio::null());
    Ok(command)
}

/// Runs a hidden subcommand.
pub fn run(command: &InternalCommand) -> anyhow::Result<u8> {
    match command {
        InternalCommand::Janitor { nat, dir, files } => tidy(dir, nat.as_deref(), files),
        InternalCommand::Child { limits, parent, program } => {
            become_child(limits, *parent, program)
        }
    }
}

fn tidy(dir: &Path, table: Option<&str>, files: &[PathBuf]) -> anyhow::Result<u8> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let mut said = Vec::new();
    // A read error means the same as the end of the stream.
    let _ = io::stdin().read_to_end(&mut said);
    if said != ORDERLY {
        for file in files {
            // It may not have been made yet.
            let _ = fs::remove_file(file);
        }
    }
    if let (Some(table), Some(base)) = (table, dir.parent()) {
        nat::undo(table, base);
    }
    // Another machine may have taken the name by now.
    let lock = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    rundir::remove_own(dir, &lock.context("cannot have the lock file")?)?;
    let group = rustix::process::getpgrp();
    kill_process_group(group, Signal::KILL).context("cannot kill the machine's processes")?;
    Ok(0)
}

fn become_child(limits: &ProgramLimits, parent: u32, program: &[OsString]) -> anyhow::Result<u8> {
    let [program, args @ ..] = program else { bail!("no program named") };
    let mut command = Command::new(program);
    command.args(args);
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    limits.enter(&mut command)?;
    // The parent may have died before the kernel watched it.
    if rustix::process::getppid().map(Pid::as_raw_nonzero).map(|pid| pid.get())
        != i32::try_from(parent).ok()
    {
        bail!("the process that wanted it is gone");
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}
