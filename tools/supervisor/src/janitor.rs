//! The janitor, which cleans up no matter how this process ends.
//!
//! The janitor is a small process that waits on a pipe whose other end this process holds. When the
//! pipe closes, for any reason, it removes the machine's files and kills its own process group, to
//! which all virtual machine monitors of the machine belong. If the janitor itself is gone, the
//! kernel kills each monitor together with the thread that started it ([`wrapped`]).

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tofu_control::rundir::{self, RunDir};

use crate::gateway::nat;
use crate::limits::ProgramLimits;
use crate::namespaces::{self, Entrance, Maker, Namespace};

/// The command with which this program starts itself as another process: `internal TASK [PROGRAM
/// ARGUMENTS]`. The task is JSON.
pub const INTERNAL: &str = "internal";

/// The task of a process that this program starts for itself.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Task {
    /// Remove a machine's files when standard input ends. Standard output is its lock file.
    Janitor {
        /// Undo the address translation of this name.
        nat: Option<String>,
        /// The run directory. Paths are as the host has them, which need not be text.
        dir: OsString,
    },
    /// Become a program that dies with its parent.
    Child {
        /// The limits of the program.
        limits: ProgramLimits,
        /// Process id of the parent.
        parent: u32,
        /// The namespace to enter.
        namespace: Option<Entrance>,
    },
    /// Make namespaces until standard input ends.
    Namespaces,
}

/// Sent to the janitor after an orderly end: the files have been removed, and any that exist now
/// belong to others. No absolute path is equal to it.
const ORDERLY: &[u8] = b"done";
/// Ends each message to the janitor. No path has it.
const END: u8 = 0;

/// The janitor process. Dropping this makes it clean up.
pub struct Janitor {
    child: Child,
    /// Closing it makes the janitor clean up.
    pipe: Option<ChildStdin>,
    group: i32,
}

impl Janitor {
    /// Starts the janitor for a run directory, and for the address translation of the table `nat`.
    pub fn start(dir: &RunDir, nat: Option<&str>) -> anyhow::Result<Self> {
        let nat = nat.map(str::to_owned);
        let mut command = own_command(&Task::Janitor { nat, dir: dir.path().into() })?;
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

    /// Has the janitor remove this file, too, if this process does not end in order.
    ///
    /// # Errors
    ///
    /// If the janitor has ended.
    pub fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let pipe = self.pipe.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        pipe.write_all(path.as_os_str().as_bytes())?;
        pipe.write_all(&[END])
    }

    /// Returns the process group that the janitor kills in the end.
    pub fn group(&self) -> i32 {
        self.group
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // If the write fails, the janitor is dead.
            let _ = pipe.write_all(ORDERLY);
        }
        // It kills itself last.
        let _ = self.child.wait();
    }
}

/// Returns a command that runs this program for a task.
fn own_command(task: &Task) -> anyhow::Result<Command> {
    // /proc/self/exe works even if the file has been replaced in the meantime, for example by a new
    // build.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tofu").arg(INTERNAL).arg(serde_json::to_string(task)?).env_remove("RUST_LOG");
    Ok(command)
}

/// Returns a command that runs `program` in the janitor's group and dies with the calling thread.
pub fn wrapped(group: i32, program: &Path) -> anyhow::Result<Command> {
    wrapped_with(group, program, &ProgramLimits::default())
}

/// Returns the same in a namespace, which must exist until the command has been started.
pub fn wrapped_in(group: i32, program: &Path, namespace: &Namespace) -> anyhow::Result<Command> {
    child_command(group, program, &ProgramLimits::default(), Some(namespace.entrance()))
}

/// Returns the same with limits, for a program that serves a guest. If it is confined, standard
/// input must be a socket ([`ProgramLimits`]).
pub fn wrapped_with(group: i32, program: &Path, limits: &ProgramLimits) -> anyhow::Result<Command> {
    child_command(group, program, limits, None)
}

fn child_command(
    group: i32,
    program: &Path,
    limits: &ProgramLimits,
    namespace: Option<Entrance>,
) -> anyhow::Result<Command> {
    let (limits, parent) = (limits.clone(), std::process::id());
    let mut command = own_command(&Task::Child { limits, parent, namespace })?;
    command.arg("--").arg(program);
    command.process_group(group).stdin(Stdio::null());
    Ok(command)
}

/// Starts a process in a group that makes namespaces.
///
/// # Errors
///
/// If no process can be started.
pub fn namespaces(group: i32) -> anyhow::Result<Maker> {
    let mut command = own_command(&Task::Namespaces)?;
    command.process_group(group);
    Maker::start(command)
}

/// Runs this program for a task, with the arguments behind it.
///
/// # Errors
///
/// If the task is none, or cannot be done.
pub fn run(task: &str, program: &[OsString]) -> anyhow::Result<u8> {
    match serde_json::from_str(task).context("not a task of this version")? {
        Task::Janitor { nat, dir } => tidy(Path::new(&dir), nat.as_deref()),
        Task::Child { limits, parent, namespace } => {
            become_child(&limits, parent, namespace.as_ref(), program)
        }
        Task::Namespaces => namespaces::make(),
    }
}

fn tidy(dir: &Path, table: Option<&str>) -> anyhow::Result<u8> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let mut said = Vec::new();
    // A read error means the same as the end of the stream.
    let _ = io::stdin().read_to_end(&mut said);
    let (files, last) = match said.iter().rposition(|byte| *byte == END) {
        Some(end) => (&said[..end], &said[end + 1..]),
        None => (&[][..], &said[..]),
    };
    if last != ORDERLY {
        for file in files.split(|byte| *byte == END) {
            // It may have been removed already.
            let _ = fs::remove_file(OsStr::from_bytes(file));
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

fn become_child(
    limits: &ProgramLimits,
    parent: u32,
    namespace: Option<&Entrance>,
    program: &[OsString],
) -> anyhow::Result<u8> {
    let [program, args @ ..] = program else { bail!("no program named") };
    let mut command = Command::new(program);
    command.args(args);
    if let Some(namespace) = namespace {
        namespace.enter().context("cannot enter the node's namespace")?;
    }
    // A change of user namespace resets it.
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
