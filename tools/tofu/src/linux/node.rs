//! A Linux node: starts its virtual machine, follows it to its end, and starts it again if asked.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::{Deserialize, Serialize};
use tofu_abi::Coords;
use tofu_fabric::NodeId;

use super::agent::Agent;
use super::console::Console;
use super::qemu::{self, Setup};
use crate::runner::Event;

/// How many nodes start at the same time, at least: more would only slow each other down.
const LEAST_STARTS: usize = 2;
/// Lines of the console in an error.
const LAST_LINES: usize = 8;
/// How long a monitor may take to end when told to.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// Waits for its turn to start.
    Waiting,
    /// Its virtual machine runs, its agent has not answered yet.
    Booting,
    /// Programs can be run.
    Ready,
    /// Its virtual machine has ended.
    Off,
}

/// What is the same for all nodes of a machine.
pub(crate) struct Common {
    /// Process group of the janitor.
    pub(crate) group: i32,
    /// How long a node may boot.
    pub(crate) boot_timeout: Duration,
    /// Where news goes.
    pub(crate) events: Sender<Event>,
    starts: Mutex<usize>,
    start_free: Condvar,
}

impl Common {
    pub(crate) fn new(group: i32, boot_timeout: Duration, events: Sender<Event>) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let starts = Mutex::new(cores.max(LEAST_STARTS));
        Self { group, boot_timeout, events, starts, start_free: Condvar::new() }
    }
}

/// A node with a Linux guest.
pub(crate) struct LinuxNode {
    pub(crate) id: NodeId,
    pub(crate) at: Coords,
    setup: Setup,
    common: Arc<Common>,
    console: Console,
    agent: Arc<Agent>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    phase: Phase,
    pid: Option<u32>,
    since: Instant,
    /// Why it is off, in one line.
    why: String,
    /// The virtual machine is to be started.
    start: bool,
    /// The end of everything.
    stop: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LinuxNode {
    /// A node whose virtual machine is to be started.
    pub(crate) fn new(
        (id, at): (NodeId, Coords),
        setup: Setup,
        log: std::path::PathBuf,
        common: Arc<Common>,
    ) -> Self {
        let state = State {
            phase: Phase::Waiting,
            pid: None,
            since: Instant::now(),
            why: String::new(),
            start: true,
            stop: false,
        };
        Self {
            id,
            at,
            setup,
            common,
            console: Console::new(log),
            agent: Arc::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn console(&self) -> &Console {
        &self.console
    }

    pub(crate) fn agent(&self) -> &Arc<Agent> {
        &self.agent
    }

    pub(crate) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// What it is doing, the process of its monitor, and for how long already.
    pub(crate) fn phase(&self) -> (Phase, Option<u32>, Duration) {
        let state = self.state();
        (state.phase, state.pid, state.since.elapsed())
    }

    /// Waits until the node is ready.
    ///
    /// # Errors
    ///
    /// If it ends instead: why, in one line.
    pub(crate) fn wait_ready(&self) -> Result<(), String> {
        let mut state = self.state();
        loop {
            match state.phase {
                Phase::Ready => return Ok(()),
                Phase::Off if !state.start => return Err(state.why.clone()),
                _ if state.stop => return Err("stopped".into()),
                _ => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Ends the virtual machine if one runs, and starts one.
    pub(crate) fn restart(&self) -> anyhow::Result<()> {
        let mut state = self.state();
        if state.stop {
            bail!("the machine is going down");
        }
        state.start = true;
        self.kill(&state, Signal::TERM);
        self.changed.notify_all();
        let end = Instant::now() + PATIENCE;
        while state.start {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.kill(&state, Signal::KILL);
            }
            let wait = left.max(PATIENCE / 10);
            (state, _) =
                self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner);
            if state.phase == Phase::Waiting {
                // Others start before it.
                break;
            }
        }
        Ok(())
    }

    /// Ends the virtual machine for good. Does not wait for it.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.stop = true;
        self.kill(&state, Signal::KILL);
        self.changed.notify_all();
        drop(state);
        // Whoever waits for a turn sees it, too.
        let _starts = lock(&self.common.starts);
        self.common.start_free.notify_all();
    }

    fn kill(&self, state: &State, signal: Signal) {
        // Not waited for as long as the number is there, so it is no other process.
        if let Some(pid) = state.pid.and_then(|pid| Pid::from_raw(pid as i32)) {
            let _ = kill_process(pid, signal);
        }
    }

    fn set(&self, phase: Phase, pid: Option<u32>) {
        let mut state = self.state();
        (state.phase, state.pid, state.since) = (phase, pid, Instant::now());
        self.changed.notify_all();
    }

    fn send(&self, event: Event) {
        // The receiver is gone only when the run is over.
        let _ = self.common.events.send(event);
    }

    /// Runs virtual machines, one after the other, until [`LinuxNode::stop`].
    ///
    /// Monitors die with the thread that is in here.
    pub(crate) fn supervise(self: &Arc<Self>) {
        loop {
            {
                let mut state = self.state();
                while !state.start && !state.stop {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                if state.stop {
                    return;
                }
            }
            let why = match self.run() {
                Ok(why) => why,
                Err(error) => format!("{error:#}"),
            };
            let mut state = self.state();
            (state.phase, state.pid, state.since) = (Phase::Off, None, Instant::now());
            state.why.clone_from(&why);
            let wanted = state.start || state.stop;
            self.changed.notify_all();
            drop(state);
            if !wanted {
                self.send(Event::Died(self.id, why));
            }
        }
    }

    /// Runs one virtual machine; returns why it has ended.
    fn run(self: &Arc<Self>) -> anyhow::Result<String> {
        self.set(Phase::Waiting, None);
        let turn = Turn::take(&self.common, || self.state().stop);
        let (errors, stderr) = std::io::pipe().context("no pipes left")?;
        let started = {
            // Under the lock, so that nobody stops a machine that is about to start.
            let mut state = self.state();
            if state.stop {
                return Ok("stopped".into());
            }
            state.start = false;
            let started = qemu::start(&self.setup, self.common.group, stderr.into())?;
            (state.phase, state.pid) = (Phase::Booting, Some(started.child.id()));
            state.since = Instant::now();
            self.changed.notify_all();
            started
        };
        let mut child = started.child;
        thread::scope(|scope| {
            let errors = scope.spawn(|| last_error(BufReader::new(errors)));
            scope.spawn(|| self.console.follow(started.console));
            scope.spawn(|| {
                self.agent.follow(started.agent, &self.setup.name, || {
                    self.set_ready();
                });
            });
            let end = self.wait(&mut child, turn);
            let was_ready = self.phase().0 == Phase::Ready;
            // Its number is not to be used any more once it was waited for.
            self.state().pid = None;
            let status = child.wait();
            let errors = errors.join().unwrap_or_default();
            let why = match end? {
                End::Timeout => format!(
                    "did not come up within {} s{}",
                    self.common.boot_timeout.as_secs_f64(),
                    self.last_lines()
                ),
                End::Exit => {
                    let what = exit_words(status.ok());
                    let errors = if errors.is_empty() { errors } else { format!(": {errors}") };
                    let lines = if was_ready { String::new() } else { self.last_lines() };
                    format!("{what}{errors}{lines}")
                }
            };
            Ok(why)
        })
    }

    fn set_ready(&self) {
        let pid = self.state().pid;
        self.set(Phase::Ready, pid);
        self.send(Event::Booted(self.id));
        // Ends the wait for it in `wait`.
    }

    fn last_lines(&self) -> String {
        match self.console.last_lines(LAST_LINES) {
            lines if lines.is_empty() => "; its console is empty".into(),
            lines => format!("; the last lines of its console: {}", lines.join(" | ")),
        }
    }

    /// Waits for a monitor to end, or kills it if it does not get ready in time. `turn` is given
    /// back as soon as it is ready.
    fn wait(&self, child: &mut Child, turn: Turn) -> anyhow::Result<End> {
        let watched = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
        let watched = watched.context("cannot watch the monitor's process")?;
        let deadline = Instant::now() + self.common.boot_timeout;
        let mut turn = Some(turn);
        loop {
            let booting = self.state().phase != Phase::Ready;
            if !booting {
                turn = None;
            }
            // Readiness is looked for often enough to start the next node in time.
            let timeout = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let timeout = (booting || turn.is_some()).then_some(&timeout);
            let ended = poll(&mut [PollFd::new(&watched, PollFlags::IN)], timeout);
            match ended {
                Ok(0) => {}
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(End::Exit),
                Err(error) => return Err(error).context("cannot watch the monitor's process"),
            }
            if booting && Instant::now() > deadline {
                child.kill().context("cannot end the monitor")?;
                return Ok(End::Timeout);
            }
        }
    }
}

enum End {
    Exit,
    Timeout,
}

/// The right to start a virtual machine now.
struct Turn {
    common: Arc<Common>,
}

impl Turn {
    /// Waits for a turn, or for `cancelled`.
    fn take(common: &Arc<Common>, cancelled: impl Fn() -> bool) -> Self {
        let mut starts = lock(&common.starts);
        while *starts == 0 && !cancelled() {
            starts = common.start_free.wait(starts).unwrap_or_else(PoisonError::into_inner);
        }
        *starts = starts.saturating_sub(1);
        Self { common: Arc::clone(common) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *lock(&self.common.starts) += 1;
        self.common.start_free.notify_one();
    }
}

/// What a monitor has to say last.
fn last_error(errors: impl BufRead) -> String {
    const MOST: usize = 3;
    let mut last = VecDeque::new();
    for line in errors.split(b'\n').map_while(Result::ok) {
        let line = crate::ui::printable(String::from_utf8_lossy(&line).trim());
        // It says so when it is sent a signal, which we say ourselves.
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
        Some((Some(0), _)) => "the guest has switched itself off".into(),
        Some((Some(code), _)) => format!("QEMU ended with code {code}"),
        Some((None, Some(signal))) => format!("QEMU was ended by signal {signal}"),
        _ => "QEMU has ended".into(),
    }
}
