//! A Linux node, which starts its virtual machine, follows it to its end, and restarts it on
//! request.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use tofu_abi::Coords;
use tofu_fabric::NodeId;
use tofu_image::{Arch, Template};
use tofu_sandbox::Role;
use tofu_supervisor::agent::{Agent, CloneStart};
use tofu_supervisor::console::Console;
use tofu_supervisor::event::{Event, EventSender};
use tofu_supervisor::node::{AgentNode, NodeStatus};
use tofu_sync::{lock, wait, wait_timeout};

use crate::monitor::{End, Killer, Monitor, MonitorKind, NotReady, Running};
use crate::qemu::{self, Boot};
use crate::setup::VmSetup;
use crate::template::{self, Maker, Templates};

/// The least number of nodes that start at the same time. More than there are cores would only slow
/// each other down.
const LEAST_STARTS: usize = 2;
/// The interval at which a booting node is checked.
const OFTEN: Duration = Duration::from_millis(20);
/// The interval at which a ready node is checked. Its end is noticed without that.
const SELDOM: Duration = Duration::from_secs(3600);
/// The time limit for a monitor to end after the request.
const PATIENCE: Duration = Duration::from_secs(2);

/// The state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for its turn to start.
    Waiting,
    /// Its virtual machine runs, its agent has not answered yet.
    Booting,
    /// Programs can be run.
    Ready,
    /// Its virtual machine has ended.
    Off,
}

impl Phase {
    const fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Booting => "booting",
            Self::Ready => "ready",
            Self::Off => "off",
        }
    }
}

/// Ends a virtual machine, without waiting for it.
fn kill(state: &State, force: bool) {
    if let Some(killer) = &state.killer {
        killer.kill(force);
    }
}

/// The settings that all nodes of a machine share.
pub(crate) struct Common {
    /// The time limit for a node to boot.
    pub(crate) boot_timeout: Duration,
    /// The receiver of events.
    pub(crate) events: EventSender,
    /// The templates of those that are clones.
    templates: Templates,
    starts: Mutex<usize>,
    start_free: Condvar,
}

impl Common {
    pub(crate) fn new(boot_timeout: Duration, events: EventSender, templates: Templates) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let starts = Mutex::new(cores.max(LEAST_STARTS) * 2);
        Self { boot_timeout, events, templates, starts, start_free: Condvar::new() }
    }

    /// Lets so many nodes start at the same time.
    pub(crate) fn start_at_once(&mut self, nodes: usize) {
        self.starts = Mutex::new(nodes);
    }
}

/// A node with a Linux guest.
pub(crate) struct LinuxNode {
    id: NodeId,
    at: Coords,
    setup: VmSetup,
    kind: MonitorKind,
    common: Arc<Common>,
    console: Console,
    agent: Arc<Agent>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    phase: Phase,
    /// Ends its virtual machine, if there is one.
    killer: Option<Killer>,
    since: Instant,
    /// The reason why it is off, in one line.
    why: String,
    /// True if a virtual machine should be started.
    start: bool,
    /// True if a virtual machine has been started before.
    again: bool,
    /// True if it has failed to become ready as a clone.
    cold: bool,
    /// True if it has ever been ready.
    was_ready: bool,
    /// The reason why its virtual machine was ended on request, if it was.
    ended: Option<&'static str>,
    /// True if the node must stop permanently.
    stop: bool,
}

impl State {
    /// Returns true if the requested virtual machine is no longer wanted.
    fn is_cancelled(&self) -> bool {
        self.stop || !self.start
    }

    /// Returns true if no virtual machine is to be started any more, or a different one.
    fn is_unwanted(&self) -> bool {
        self.stop || self.start || self.ended.is_some()
    }
}

impl LinuxNode {
    /// Creates a node whose virtual machine will be started.
    pub(crate) fn new(
        (id, at): (NodeId, Coords),
        setup: VmSetup,
        kind: MonitorKind,
        log: std::path::PathBuf,
        common: Arc<Common>,
    ) -> Self {
        let state = State {
            phase: Phase::Waiting,
            killer: None,
            since: Instant::now(),
            why: String::new(),
            start: true,
            again: false,
            cold: false,
            was_ready: false,
            ended: None,
            stop: false,
        };
        let agent = match &setup.time {
            Some(time) => Agent::in_modelled_time(time.replays),
            None => Agent::default(),
        };
        Self {
            id,
            at,
            setup,
            kind,
            common,
            console: Console::new(log),
            agent: Arc::new(agent),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits until the node is ready.
    ///
    /// # Errors
    ///
    /// If it ends instead, with the reason in one line.
    pub(crate) fn wait_ready(&self) -> Result<(), String> {
        let mut state = self.state();
        loop {
            match state.phase {
                Phase::Ready => return Ok(()),
                Phase::Off if !state.start => return Err(state.why.clone()),
                _ if state.stop => return Err("stopped".into()),
                // A guest whose time is stopped can be inspected, and become ready later.
                _ => match &self.setup.time {
                    Some(time) if time.machine.stands() => return Ok(()),
                    Some(_) => state = wait_timeout(&self.changed, state, OFTEN),
                    None => state = wait(&self.changed, state),
                },
            }
        }
    }

    fn set(&self, phase: Phase) {
        let mut state = self.state();
        (state.phase, state.since) = (phase, Instant::now());
        state.was_ready |= phase == Phase::Ready;
        self.changed.notify_all();
    }

    /// Wakes the threads that wait for the node, or for its turn to start. Must be called when its
    /// state has changed.
    fn wake(&self) {
        self.changed.notify_all();
        let _starts = lock(&self.common.starts);
        self.common.start_free.notify_all();
    }

    fn send(&self, event: Event) {
        self.common.events.send(event);
    }

    /// Runs virtual machines, one after another, until [`AgentNode::stop`].
    ///
    /// Monitors die with the thread that runs this.
    pub(crate) fn supervise(self: &Arc<Self>) {
        loop {
            {
                let mut state = self.state();
                while !state.start && !state.stop {
                    state = wait(&self.changed, state);
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
            (state.phase, state.killer, state.since) = (Phase::Off, None, Instant::now());
            let why = state.ended.take().map_or(why, str::to_owned);
            state.why.clone_from(&why);
            let wanted = state.start || state.stop;
            self.changed.notify_all();
            drop(state);
            if !wanted {
                self.send(Event::Died(self.id, why));
            }
        }
    }

    /// Runs one virtual machine. Returns why it has ended.
    fn run(self: &Arc<Self>) -> anyhow::Result<String> {
        self.set(Phase::Waiting);
        let cancelled = || self.state().is_cancelled();
        let turn = Turn::take(&self.common, cancelled);
        let Some(started) = self.start()? else { return Ok("stopped".into()) };
        let (Running { monitor, ends: [console, agent], .. }, is_clone) = started;
        let again = std::mem::replace(&mut self.state().again, true);
        let why = thread::scope(|scope| {
            let first = self.setup.confinement.hook(Role::Reader);
            let (of_console, of_agent) = (Arc::clone(&first), first);
            scope.spawn(move || {
                of_console();
                self.console.follow(console);
            });
            scope.spawn(move || {
                of_agent();
                let clone = CloneStart {
                    identity: &|| template::identity(&self.setup),
                    failed: &|why| self.boot_instead(why),
                };
                let clone = is_clone.then_some(&clone);
                self.agent.follow(agent, &self.setup.name, clone, || {
                    self.set(Phase::Ready);
                    let event = if again { Event::Rebooted } else { Event::Booted };
                    self.send(event(self.id));
                });
            });
            let end = self.wait(&monitor, turn);
            let was_ready = self.state().phase == Phase::Ready;
            // Once a process has been reaped, its number may belong to another one.
            self.state().killer = None;
            let words = monitor.finish();
            if is_clone && matches!(end, Ok(End::Exit)) {
                self.boot_instead(&words);
            }
            Ok(match end? {
                End::Exit if was_ready => words,
                end => {
                    let limit = self.common.boot_timeout;
                    NotReady::new(&end, &words, limit, &self.console).to_string()
                }
            })
        });
        self.kind.clean_up();
        why
    }

    /// Starts a virtual machine, as a clone if possible. Returns it, and whether it is a clone;
    /// `None` if the node must stop.
    fn start(&self) -> anyhow::Result<Option<(Running, bool)>> {
        // A guest that does not boot is not started again by itself.
        let template = self.template().inspect_err(|_| self.state().start = false)?;
        {
            let mut state = self.state();
            if state.is_cancelled() {
                return Ok(None);
            }
            state.start = false;
        }
        if let Some(template) = template {
            match self.start_clone(&template) {
                Ok(started) => return Ok(started.map(|started| (started, true))),
                Err(error) if !self.state().is_unwanted() => {
                    log::warn!("{}: no clone, it boots: {error:#}", self.setup.name);
                }
                Err(_) => return Ok(None),
            }
        }
        Ok(self.start_by(Boot::Cold)?.map(|started| (started, false)))
    }

    fn start_clone(&self, template: &Template) -> anyhow::Result<Option<Running>> {
        let Some(started) = self.start_by(Boot::Clone(template))? else { return Ok(None) };
        match qemu::resume(&self.setup, template) {
            Ok(()) => Ok(Some(started)),
            Err(error) => {
                self.state().killer = None;
                Err(error.context(started.monitor.finish()))
            }
        }
    }

    /// Ends a clone that has not become ready, and has the node boot from its kernel.
    fn boot_instead(&self, why: &str) {
        let mut state = self.state();
        if state.phase == Phase::Ready || state.is_unwanted() {
            return;
        }
        log::warn!("{}: no clone, it boots: {why}", self.setup.name);
        (state.start, state.cold, state.again) = (true, true, state.was_ready);
        kill(&state, true);
    }

    /// Starts a virtual machine in this way; `None` if the node must stop.
    fn start_by(&self, boot: Boot<'_>) -> anyhow::Result<Option<Running>> {
        // The lock is held so that a machine that is about to start is not missed by a stop.
        let mut state = self.state();
        if state.is_unwanted() {
            return Ok(None);
        }
        let started = self.kind.start(&self.setup, boot)?;
        state.killer = Some(started.monitor.killer());
        (state.phase, state.since) = (Phase::Booting, Instant::now());
        self.changed.notify_all();
        Ok(Some(started))
    }

    /// Returns the template of which this node can be a clone. It is made if necessary.
    fn template(&self) -> Result<Option<Template>, NotReady> {
        let MonitorKind::Qemu { qemu, .. } = &self.kind else { return Ok(None) };
        let template = self.setup.template.clone().filter(|_| !self.state().cold);
        let Some(command_line) = template else { return Ok(None) };
        let setup = VmSetup {
            name: "template".into(),
            command_line,
            qmp: self.setup.qmp.with_extension("template"),
            ..self.setup.clone()
        };
        let is_stopped = || self.state().is_cancelled();
        let started = |killer: Option<Killer>| {
            let mut state = self.state();
            if killer.is_some() {
                (state.phase, state.since) = (Phase::Booting, Instant::now());
                self.changed.notify_all();
            }
            state.killer = killer;
            if state.is_cancelled() {
                kill(&state, true);
            }
        };
        let maker = Maker {
            kind: &self.kind,
            setup,
            log: self.console.log().with_extension("template.log"),
            limit: self.common.boot_timeout,
            is_stopped: &is_stopped,
            started: &started,
        };
        self.common.templates.get(qemu, &maker)
    }

    /// Waits for a virtual machine to end, or to miss its time limit to get ready. Gives `turn`
    /// back as soon as it is ready.
    fn wait(&self, monitor: &Monitor, turn: Turn) -> anyhow::Result<End> {
        let deadline = Instant::now() + self.common.boot_timeout;
        let mut turn = Some(turn);
        loop {
            let booting = self.state().phase != Phase::Ready;
            if !booting {
                turn = None;
            }
            // Readiness is checked often enough to start the next node in time.
            let often = booting || turn.is_some();
            if monitor.wait(if often { OFTEN } else { SELDOM })? {
                return Ok(End::Exit);
            }
            if booting && Instant::now() > deadline && self.state().phase != Phase::Ready {
                return Ok(End::Timeout);
            }
        }
    }
}

impl AgentNode for LinuxNode {
    fn id(&self) -> NodeId {
        self.id
    }

    fn at(&self) -> Coords {
        self.at
    }

    fn arch(&self) -> Arch {
        self.setup.boot_files.arch
    }

    fn status(&self) -> NodeStatus {
        let state = self.state();
        NodeStatus {
            state: state.phase.word(),
            vmm: self.kind.name(),
            pid: state.killer.as_ref().and_then(Killer::pid),
            since: state.since.elapsed(),
        }
    }

    fn agent(&self) -> &Arc<Agent> {
        &self.agent
    }

    fn console(&self) -> &Console {
        &self.console
    }

    fn restart(&self) -> anyhow::Result<()> {
        let mut state = self.state();
        if state.stop {
            bail!("the machine is going down");
        }
        state.start = true;
        kill(&state, false);
        self.changed.notify_all();
        let end = Instant::now() + PATIENCE;
        while state.start {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                kill(&state, true);
            }
            let wait = left.max(PATIENCE / 10);
            (state, _) =
                self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner);
            if state.phase == Phase::Waiting {
                // Others start first.
                break;
            }
        }
        Ok(())
    }

    fn power_off(&self, why: &'static str) -> anyhow::Result<()> {
        let mut state = self.state();
        if !state.was_ready {
            bail!("it is still booting for the first time");
        }
        if state.phase == Phase::Off && !state.start {
            return Ok(());
        }
        (state.start, state.ended) = (false, Some(why));
        kill(&state, true);
        drop(state);
        self.wake();
        Ok(())
    }

    fn hold(&self, on: bool) -> anyhow::Result<()> {
        let state = self.state();
        let killer = state.killer.clone();
        let held = match killer {
            // Its processors may take seconds to stop, and others need the state.
            Some(killer @ Killer::Own(_)) => {
                drop(state);
                killer.hold(on)
            }
            // The number of a process may belong to another one once it has been reaped.
            Some(killer) => killer.hold(on),
            None => false,
        };
        if !held {
            bail!("the node's virtual machine is not running");
        }
        self.agent.hold(on);
        Ok(())
    }

    fn stop(&self) {
        let mut state = self.state();
        state.stop = true;
        kill(&state, true);
        drop(state);
        self.wake();
    }
}

/// The right to start a virtual machine.
struct Turn {
    common: Arc<Common>,
}

impl Turn {
    /// Waits for a turn, or until `cancelled` returns true.
    fn take(common: &Arc<Common>, cancelled: impl Fn() -> bool) -> Self {
        let mut starts = lock(&common.starts);
        while *starts == 0 && !cancelled() {
            starts = wait(&common.start_free, starts);
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
