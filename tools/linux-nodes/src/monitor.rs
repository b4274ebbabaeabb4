//! A running virtual machine, under either of the monitors.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tofu_image::Qemu;
use tofu_sandbox::Role;
use tofu_supervisor::console::Console;
use tofu_supervisor::duplex::Duplex;
use tofu_vmm::{Outcome, Vm};

use crate::own::{self, Own};
use crate::qemu::{self, Boot};
use crate::setup::VmSetup;

/// Lines of the console that an error shows.
const LAST_LINES: usize = 8;

/// The monitor of a node's virtual machines.
pub(crate) enum MonitorKind {
    /// QEMU, in the janitor's process group.
    Qemu { group: i32, qemu: Arc<Qemu> },
    /// Our own monitor.
    Own(Own),
}

impl MonitorKind {
    /// Returns its name.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Qemu { .. } => "qemu",
            Self::Own(_) => "tofu",
        }
    }

    /// Starts a virtual machine. It may die with the calling thread.
    pub(crate) fn start(&self, setup: &VmSetup, boot: Boot<'_>) -> anyhow::Result<Running> {
        match self {
            Self::Qemu { group, qemu } => {
                let (errors, stderr) = std::io::pipe().context("no pipes left")?;
                let started = qemu::start(qemu, setup, boot, *group, stderr.into())?;
                let watched = pidfd_open(Pid::from_child(&started.child), PidfdFlags::empty());
                let first = setup.confinement.hook(Role::Reader);
                // For a single message.
                let (sender, last) = mpsc::sync_channel(1);
                thread::Builder::new()
                    .name("stderr".into())
                    .spawn(move || {
                        first();
                        // Without a waiter the result is not needed.
                        let _ = sender.send(last_error(errors));
                    })
                    .context("no threads left")?;
                let monitor = Monitor::Qemu {
                    child: started.child,
                    watched: watched.context("cannot watch QEMU's process")?,
                    errors: last,
                };
                let (ends, memory) = ([started.console, started.agent], Some(started.memory));
                Ok(Running { monitor, ends, memory })
            }
            Self::Own(own) => {
                let started = own::start(own, setup)?;
                let streams = [started.console.try_clone()?, started.agent.try_clone()?];
                let ends = [Duplex::on(started.console)?, Duplex::on(started.agent)?];
                let monitor = Monitor::Own { vm: started.vm, streams };
                Ok(Running { monitor, ends, memory: None })
            }
        }
    }

    /// Reclaims a virtual machine's resources after it has ended.
    pub(crate) fn clean_up(&self) {
        if let Self::Own(own) = self {
            own::end(own);
        }
    }
}

/// The end of a virtual machine that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It has ended.
    Exit,
    /// Its guest did not become ready before the time limit.
    Timeout,
}

/// The reason why a guest has not become ready, in one line.
#[derive(Debug)]
pub(crate) struct NotReady(String);

impl NotReady {
    /// Of a virtual machine that has ended as `words` say, or has missed its time `limit`.
    pub(crate) fn new(end: &End, words: &str, limit: Duration, console: &Console) -> Self {
        let what = match end {
            End::Timeout => format!("did not come up within {} s", limit.as_secs_f64()),
            End::Exit => words.to_owned(),
        };
        Self(match console.last_lines(LAST_LINES) {
            lines if lines.is_empty() => format!("{what}; its console is empty"),
            lines => format!("{what}; the last lines of its console: {}", lines.join(" | ")),
        })
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotReady {}

/// A virtual machine that was started.
pub(crate) struct Running {
    pub(crate) monitor: Monitor,
    /// Our ends of its console and of its agent's port.
    pub(crate) ends: [Duplex; 2],
    /// Its memory, if that is shared.
    pub(crate) memory: Option<File>,
}

/// A running virtual machine.
pub(crate) enum Monitor {
    Qemu {
        child: Child,
        watched: OwnedFd,
        errors: Receiver<String>,
    },
    Own {
        vm: Arc<Vm>,
        /// Shutting these down ends the threads that follow the console and the agent.
        streams: [UnixStream; 2],
    },
}

/// Ends a virtual machine from another thread. Must not be used after [`Monitor::finish`].
#[derive(Clone)]
pub(crate) enum Killer {
    Process(u32),
    Own(Arc<Vm>),
}

impl Killer {
    /// Ends the virtual machine, by force or by a signal that QEMU obeys, without waiting for it.
    pub(crate) fn kill(&self, force: bool) {
        match self {
            Self::Process(pid) => {
                let signal = if force { Signal::KILL } else { Signal::TERM };
                if let Some(pid) = Pid::from_raw(*pid as i32) {
                    // It may have ended without having been reaped.
                    let _ = kill_process(pid, signal);
                }
            }
            Self::Own(vm) => vm.holder().stop(),
        }
    }

    /// Stops its processors, or lets them continue. Returns whether that was possible.
    pub(crate) fn hold(&self, on: bool) -> bool {
        match self {
            Self::Process(pid) => {
                let signal = if on { Signal::STOP } else { Signal::CONT };
                Pid::from_raw(*pid as i32).is_some_and(|pid| kill_process(pid, signal).is_ok())
            }
            Self::Own(vm) if on => vm.pause(),
            Self::Own(vm) => {
                vm.resume();
                true
            }
        }
    }

    /// Returns the monitor's process, if it is a separate process.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Process(pid) => Some(*pid),
            Self::Own(_) => None,
        }
    }
}

impl Monitor {
    pub(crate) fn killer(&self) -> Killer {
        match self {
            Self::Qemu { child, .. } => Killer::Process(child.id()),
            Self::Own { vm, .. } => Killer::Own(Arc::clone(vm)),
        }
    }

    /// Waits for the virtual machine to end, but at most for `timeout`. Returns whether it has
    /// ended.
    pub(crate) fn wait(&self, timeout: Duration) -> anyhow::Result<bool> {
        match self {
            Self::Qemu { watched, .. } => {
                let timeout = Timespec::try_from(timeout).context("too long a time")?;
                match poll(&mut [PollFd::new(watched, PollFlags::IN)], Some(&timeout)) {
                    Ok(n) => Ok(n > 0),
                    Err(rustix::io::Errno::INTR) => Ok(false),
                    Err(error) => Err(error).context("cannot watch QEMU's process"),
                }
            }
            Self::Own { vm, .. } => Ok(vm.wait(timeout).is_some()),
        }
    }

    /// Ends the virtual machine if it still runs, and frees everything. Returns in a few words how
    /// it ended.
    pub(crate) fn finish(self) -> String {
        match self {
            Self::Qemu { mut child, errors, .. } => {
                // This fails if it has ended already.
                let _ = child.kill();
                let status = child.wait();
                // A process that it has left behind may keep its standard error open for ever.
                let errors = errors.recv_timeout(LAST_WORDS).unwrap_or_default();
                let colon = if errors.is_empty() { "" } else { ": " };
                format!("{}{colon}{errors}", exit_words(status.ok()))
            }
            Self::Own { vm, streams } => {
                let outcome = vm.stop();
                for stream in streams {
                    // It may have been shut down already.
                    let _ = stream.shutdown(Shutdown::Both);
                }
                match outcome {
                    Outcome::Stopped => "it was stopped".into(),
                    Outcome::Reset => SWITCHED_OFF.into(),
                    other => format!("its virtual machine ended: {other}"),
                }
            }
        }
    }
}

/// The time for which the error messages of a QEMU that has ended are waited for.
const LAST_WORDS: Duration = Duration::from_secs(1);
const SWITCHED_OFF: &str = "the guest has switched itself off";

/// Returns the last error messages of a monitor.
fn last_error(errors: PipeReader) -> String {
    const MOST: usize = 3;
    const LONGEST: u64 = 4 << 10;
    let (mut last, mut line) = (VecDeque::new(), Vec::new());
    let mut errors = BufReader::new(errors);
    while let Ok(1..) = errors.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
        let bytes = std::mem::take(&mut line);
        let line = tofu_ui::printable(String::from_utf8_lossy(&bytes).trim());
        // QEMU reports the signals that it gets. We report those ourselves.
        if line.is_empty() || line.contains("terminating on signal") {
            continue;
        }
        last.push_back(line.chars().take(300).collect::<String>());
        if last.len() > MOST {
            last.pop_front();
        }
    }
    Vec::from(last).join(" | ")
}

fn exit_words(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(0), _)) => SWITCHED_OFF.into(),
        Some((Some(code), _)) => format!("QEMU ended with code {code}"),
        Some((None, Some(signal))) => format!("QEMU was ended by signal {signal}"),
        _ => "QEMU has ended".into(),
    }
}
