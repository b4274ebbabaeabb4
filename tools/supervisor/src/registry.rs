//! The state of a machine that can be read by threads other than the one that runs it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tofu_abi::Coords;
use tofu_control::protocol::{EventInfo, EventKind, JobInfo, NodeKind, StandsInfo};
use tofu_fabric::{NodeId, ShardId, Shards};
use tofu_gateway::{Connector, LinkStats};
use tofu_machine::{AnyNetwork, AnyNode, LinkFailed};
use tofu_sync::lock;
use tofu_sync::queue::{Receiver, Sender, WhenFull, queue};
use tofu_ui::printable;
use tofu_vfio_user::Server;
use tofu_vmm::Holder;

use crate::changes;
use crate::event::{BootStage, Event, EventSender, Outcome};
use crate::gateway::GatewayInfo;
use crate::jobs::Jobs;
use crate::machine::AnyMachine;
use crate::node::AgentNode;
use crate::served::Served;
use crate::settings::Settings;
use crate::shards::Others;
use crate::timed::TimedMachine;
use tofu_spec::plan::Network;
use tofu_spec::units::ShardOf;

/// The state of a machine, for the threads that serve `tofu ps` and similar commands.
pub struct Registry {
    pub(crate) network: Network,
    pub(crate) started: Instant,
    pub(crate) events: EventSender,
    linux: OnceLock<Vec<Arc<dyn AgentNode>>>,
    built: OnceLock<Built>,
    /// Nodes without Linux.
    others: Mutex<HashMap<NodeId, OtherNode>>,
    /// Devices that are served to clients.
    served: Mutex<HashMap<NodeId, Vec<Arc<Server>>>>,
    /// The virtual machines of small guests.
    holders: Mutex<HashMap<NodeId, Holder>>,
    /// Nodes whose processors are stopped.
    held: Mutex<HashSet<NodeId>>,
    /// Starts small guests again.
    guests: OnceLock<Weak<dyn SmallGuests>>,
    /// Which job holds which nodes.
    pub(crate) jobs: Jobs,
    /// The followers of events.
    followers: Mutex<Vec<Sender<Arc<EventInfo>>>>,
    /// Each follower holds a clone until it has passed on the last event.
    following: Arc<()>,
    /// Each capture and trace of a client holds a clone.
    observing: Arc<()>,
    cancelled: AtomicBool,
    /// True if a node fails with its guest.
    fail_with_guest: bool,
    /// The other shards of the machine, if it is in shards.
    rest: Option<Rest>,
    /// The settings that commands have changed, for shards that come back.
    settings: Mutex<Settings>,
}

/// The rest of a machine in shards.
pub(crate) struct Rest {
    pub(crate) own: ShardId,
    pub(crate) shards: Shards,
    pub(crate) others: Others,
    /// The shard with the gateway, if there is one.
    pub(crate) gateway: Option<ShardId>,
}

/// A node without Linux.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherNode {
    pub(crate) kind: NodeKind,
    /// Its state, as one word.
    pub(crate) state: &'static str,
    /// The time at which that state began.
    pub(crate) since: Instant,
}

/// Ends small guests, and starts them again.
pub(crate) trait SmallGuests: Send + Sync {
    /// Ends a node's small guest, if it has one; or starts it again, if it was ended in this way or
    /// has crashed.
    ///
    /// # Errors
    ///
    /// If the host lacks something, or the machine is going down.
    fn power(&self, node: NodeId, on: bool) -> anyhow::Result<()>;
}

/// The time limit for followers to pass on the end of the machine.
const LAST_WORD: Duration = Duration::from_millis(500);
/// Bytes of events by which a follower may lag.
const FOLLOWERS_QUEUE: usize = 4 << 20;

/// The most captures and traces of clients at the same time. Each has a buffer of some MiB.
const MOST_OBSERVERS: usize = 16;

/// A machine that has been built.
struct Built {
    network: Arc<dyn AnyNetwork>,
    /// The machine, if it is in modelled time.
    timed: Option<Arc<TimedMachine>>,
    gateway: Option<GatewayInfo>,
}

impl Registry {
    /// Creates the registry of a machine that is not built yet. `events` receives the machine's
    /// events.
    pub fn new(network: &Network, events: EventSender) -> Self {
        Self {
            network: network.clone(),
            started: Instant::now(),
            events,
            linux: OnceLock::new(),
            built: OnceLock::new(),
            others: Mutex::default(),
            served: Mutex::default(),
            holders: Mutex::default(),
            held: Mutex::default(),
            guests: OnceLock::new(),
            jobs: Jobs::default(),
            followers: Mutex::default(),
            following: Arc::default(),
            observing: Arc::default(),
            cancelled: AtomicBool::new(false),
            fail_with_guest: false,
            rest: None,
            settings: Mutex::default(),
        }
    }

    /// Makes this the registry of one shard of a machine, which queries the other shards.
    ///
    /// # Errors
    ///
    /// If the machine is not in shards.
    pub(crate) fn with_others(
        self,
        others: Option<Others>,
        gateway: Option<NodeId>,
    ) -> anyhow::Result<Self> {
        let Some(others) = others else { return Ok(self) };
        let ShardOf { shard: own, of } =
            self.network.shard.context("the machine is in no shards")?;
        let shards = Shards::new(self.network.shape, of)?;
        let gateway = gateway.and_then(|node| shards.of(node));
        Ok(Self { rest: Some(Rest { own, shards, others, gateway }), ..self })
    }

    /// Returns the other shards of the machine, if it is in shards.
    pub(crate) fn rest(&self) -> Option<&Rest> {
        self.rest.as_ref()
    }

    /// Returns the settings of the network that commands have changed.
    pub(crate) fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    /// Sends a shard that has come back the settings that commands have changed, without waiting
    /// for its answer.
    fn tell(&self, shard: ShardId) {
        let Some(rest) = &self.rest else { return };
        let (others, settings) = (rest.others.clone(), self.settings().clone());
        let tell = move || {
            if let Err(error) = settings.tell(&others, shard) {
                log::warn!("shard {shard} does not know what commands have set: {error:#}");
            }
        };
        if let Err(error) = thread::Builder::new().name("settings".into()).spawn(tell) {
            log::warn!("no threads left: {error}");
        }
    }

    /// With `on`, a node fails as by `tofu node down` when its guest crashes or its virtual machine
    /// dies, and works again when its Linux guest is ready again.
    #[must_use]
    pub fn fail_with_guest(self, on: bool) -> Self {
        Self { fail_with_guest: on, ..self }
    }

    /// Returns the coordinates of a node.
    ///
    /// # Errors
    ///
    /// One line for the user, if the machine has no such node.
    pub(crate) fn place(&self, id: NodeId) -> anyhow::Result<Coords> {
        changes::place(&self.network.shape, id)
    }

    /// Returns the device of a node, or `None` if it has none.
    ///
    /// # Errors
    ///
    /// One line for the user, if the machine does not exist or has no such node.
    pub(crate) fn device(&self, id: NodeId) -> anyhow::Result<Option<Arc<dyn AnyNode>>> {
        let machine = self.running().context("the machine has not started yet")?;
        self.place(id)?;
        Ok(machine.node(id))
    }

    /// Returns the connector of the machine's gateway, if one runs.
    pub(crate) fn gateway(&self) -> Option<&Connector> {
        Some(&self.built.get()?.gateway.as_ref()?.connector)
    }

    /// Returns the counters of the gateway's link, if the gateway is at this place.
    pub(crate) fn gateway_link(&self, at: Coords) -> Option<&LinkStats> {
        let gateway = self.built.get()?.gateway.as_ref()?;
        (gateway.at == at).then_some(&gateway.stats)
    }

    /// Returns the Linux nodes, or none before they have been started.
    pub fn linux(&self) -> &[Arc<dyn AgentNode>] {
        self.linux.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the network of a machine that has been built.
    pub(crate) fn running(&self) -> Option<&dyn AnyNetwork> {
        self.built.get().map(|built| &*built.network)
    }

    /// Returns the machine if it is in modelled time.
    pub(crate) fn timed(&self) -> Option<&TimedMachine> {
        self.built.get()?.timed.as_deref()
    }

    /// Returns what its machine is to tell when a modelled link has failed.
    pub fn link_failed(self: &Arc<Self>) -> LinkFailed {
        let registry = Arc::downgrade(self);
        Box::new(move |node, port| {
            if let Some(registry) = registry.upgrade() {
                let port = port.name().to_owned();
                registry.publish(Some(node), EventKind::LinkFailed { port });
            }
        })
    }

    /// Registers a machine that has been built, with its gateway.
    ///
    /// # Errors
    ///
    /// If one is registered already.
    pub fn built(&self, machine: &AnyMachine, gateway: Option<GatewayInfo>) -> anyhow::Result<()> {
        let timed = match machine {
            AnyMachine::Timed(timed) => Some(Arc::clone(timed)),
            AnyMachine::Tofu(_) | AnyMachine::Tnw(_) => None,
        };
        if self.built.set(Built { network: machine.network(), timed, gateway }).is_err() {
            bail!("a machine can be started once only");
        }
        Ok(())
    }

    /// Registers the Linux nodes, which are about to start.
    ///
    /// # Errors
    ///
    /// If some are registered already.
    pub fn with_linux(&self, nodes: Vec<Arc<dyn AgentNode>>) -> anyhow::Result<()> {
        if self.linux.set(nodes).is_err() {
            bail!("a machine can be started once only");
        }
        if self.cancelled.load(SeqCst) {
            self.cancel();
        }
        Ok(())
    }

    /// Registers the object that starts small guests.
    ///
    /// # Errors
    ///
    /// If one is registered already.
    pub(crate) fn with_guests(&self, guests: Weak<dyn SmallGuests>) -> anyhow::Result<()> {
        if self.guests.set(guests).is_err() {
            bail!("a machine can be started once only");
        }
        Ok(())
    }

    /// Registers the virtual machine of a small guest.
    pub(crate) fn with_guest(&self, node: NodeId, holder: Holder) {
        lock(&self.holders).insert(node, holder);
    }

    /// Stops the processors of a node, or lets them continue. Its device keeps working.
    ///
    /// # Errors
    ///
    /// If the node has no running processors.
    pub(crate) fn hold(&self, node: NodeId, on: bool) -> anyhow::Result<()> {
        match self.linux().iter().find(|linux| linux.id() == node) {
            Some(linux) => linux.hold(on)?,
            None => self.hold_guest(node, on)?,
        }
        let changed = match on {
            true => lock(&self.held).insert(node),
            false => lock(&self.held).remove(&node),
        };
        if changed {
            self.publish(Some(node), if on { EventKind::Paused } else { EventKind::Resumed });
        }
        Ok(())
    }

    fn hold_guest(&self, node: NodeId, on: bool) -> anyhow::Result<()> {
        let holder = lock(&self.holders).get(&node).cloned();
        let holder = holder.context("the node has no virtual machine")?;
        if !on {
            holder.resume();
        } else if !holder.pause() {
            bail!("the node's guest has ended, or does not stop");
        }
        Ok(())
    }

    /// Ends the guest of a node, or starts it again. Only a Linux node that is off, or a small
    /// guest that was ended in this way or has crashed, is started. Served devices are left alone.
    ///
    /// # Errors
    ///
    /// If the guest is booting for the first time or cannot be started, or the machine is going
    /// down.
    pub(crate) fn power(&self, node: NodeId, on: bool) -> anyhow::Result<()> {
        let linux = self.linux().iter().find(|linux| linux.id() == node);
        match linux {
            Some(linux) if !on => linux.power_off("the node was taken down")?,
            Some(linux) if linux.status().state == "off" => {
                linux.restart()?;
                self.goes_on(node);
            }
            Some(_) => {}
            None => {
                if let Some(guests) = self.guests.get().and_then(Weak::upgrade) {
                    guests.power(node, on)?;
                }
            }
        }
        Ok(())
    }

    /// Returns whether a node's processors are stopped.
    pub(crate) fn is_held(&self, node: NodeId) -> bool {
        lock(&self.held).contains(&node)
    }

    /// Records that a node has a new virtual machine, whose processors are not stopped.
    pub(crate) fn goes_on(&self, node: NodeId) {
        lock(&self.held).remove(&node);
    }

    /// Returns the nodes without Linux.
    pub(crate) fn others(&self) -> Vec<(NodeId, OtherNode)> {
        let served = lock(&self.served);
        let served = served.iter().map(|(id, servers)| {
            let attached = servers.iter().filter_map(|server| server.attached_since()).min();
            let state = if attached.is_some() { "attached" } else { "waiting" };
            let since = attached.unwrap_or(self.started);
            (*id, OtherNode { kind: NodeKind::Served, state, since })
        });
        served.chain(lock(&self.others).iter().map(|(id, node)| (*id, *node))).collect()
    }

    /// Returns a node without Linux.
    pub(crate) fn other(&self, node: NodeId) -> Option<OtherNode> {
        self.others().into_iter().find(|(id, _)| *id == node).map(|(_, other)| other)
    }

    /// Records the state of a node without Linux.
    pub(crate) fn note(&self, node: NodeId, kind: NodeKind, state: &'static str) {
        lock(&self.others).insert(node, OtherNode { kind, state, since: Instant::now() });
    }

    /// Registers a device that is served to one or more clients.
    pub fn with_served(self: &Arc<Self>, node: NodeId, served: &[Served]) {
        let servers: Vec<_> = served.iter().map(|served| Arc::clone(served.server())).collect();
        for server in &servers {
            let registry = Arc::downgrade(self);
            server.on_change(move |attached| {
                let what = if attached { EventKind::Attached } else { EventKind::Detached };
                if let Some(registry) = registry.upgrade() {
                    registry.publish(Some(node), what);
                }
            });
        }
        lock(&self.served).insert(node, servers);
    }

    /// Returns the events from now on. The second value must be dropped when the last event has
    /// been forwarded.
    pub(crate) fn follow(&self) -> (Receiver<Arc<EventInfo>>, Arc<()>) {
        let (sender, events) = queue(FOLLOWERS_QUEUE, WhenFull::Close);
        let mut followers = lock(&self.followers);
        followers.retain(|follower| !follower.is_closed());
        followers.push(sender);
        (events, Arc::clone(&self.following))
    }

    /// Makes room for another capture or trace of a client. The result must be dropped with it.
    ///
    /// # Errors
    ///
    /// If there are too many.
    pub(crate) fn observe(&self) -> anyhow::Result<Arc<()>> {
        let observing = Arc::clone(&self.observing);
        // The registry's own, and this one.
        if Arc::strong_count(&observing) > MOST_OBSERVERS + 1 {
            bail!("{MOST_OBSERVERS} captures and traces are running, the maximum");
        }
        Ok(observing)
    }

    /// Gives followers a moment to report the end before this process ends.
    fn wait_for_followers(&self) {
        let until = Instant::now() + LAST_WORD;
        while Arc::strong_count(&self.following) > 1 && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Tells followers that a job has come, taken nodes or ended.
    pub(crate) fn publish_job(&self, job: JobInfo) {
        let JobInfo { job, command, state, nodes, .. } = job;
        self.publish(None, EventKind::Job { job, state, command, nodes });
    }

    /// The modelled nanoseconds that have passed, in a machine in modelled time.
    pub(crate) fn modelled_ns(&self) -> Option<u64> {
        Some(self.running()?.passed()?.ns)
    }

    /// Sends an event to followers, and drops those that are too far behind. Wakes jobs that wait
    /// for nodes, which may be free now.
    pub(crate) fn publish(&self, node: Option<NodeId>, what: EventKind) {
        if !matches!(what, EventKind::Line { .. }) {
            self.jobs.wake();
        }
        let mut followers = lock(&self.followers);
        if followers.is_empty() {
            return;
        }
        let event = Arc::new(EventInfo {
            seconds: self.started.elapsed().as_secs_f64(),
            modelled_ns: self.modelled_ns(),
            node: node.map(|node| node.0),
            at: node.and_then(|node| Some(self.network.shape.coords(node)?.to_array())),
            what,
        });
        followers.retain(|follower| follower.send(Arc::clone(&event)).is_ok());
    }

    /// Tells followers about an event of the machine.
    pub fn on_event(&self, event: &Event) {
        let (node, what) = match event {
            Event::Booted(node) | Event::Rebooted(node) => {
                self.goes_on(*node);
                (Some(*node), EventKind::Booted)
            }
            Event::Netboot(node, stage) => (Some(*node), netboot(stage)),
            Event::Line(node, text) => (Some(*node), EventKind::Line { text: printable(text) }),
            Event::Frame(node, frame) => {
                let text = printable(&format!("    at {frame}"));
                (Some(*node), EventKind::Line { text })
            }
            Event::Ended(node, outcome) => (Some(*node), ended(outcome)),
            Event::Died(node, why) => {
                self.goes_on(*node);
                (Some(*node), EventKind::Died { why: printable(why) })
            }
            Event::TimeStands(StandsInfo { ps, text }) => {
                (None, EventKind::TimeStands { ps: *ps, text: text.clone() })
            }
            Event::Changed(node, what) => (*node, what.clone()),
            Event::Down | Event::Signal(_) => {
                self.publish(None, EventKind::Down);
                return self.wait_for_followers();
            }
            Event::ShardCame(shard) => return self.tell(*shard),
            Event::Started | Event::ShardWent(..) | Event::ShardEnded(..) => return,
        };
        self.publish(node, what);
        let works = match event {
            Event::Rebooted(_) => true,
            Event::Died(..) | Event::Ended(_, Outcome::Fault(_) | Outcome::Reset) => false,
            _ => return,
        };
        if let (true, Some(node), Some(machine)) = (self.fail_with_guest, node, self.running())
            && let Some(at) = self.network.shape.coords(node)
            && machine.fabric().set_node(at, works) == Ok(true)
        {
            self.publish(Some(node), EventKind::Router { up: works });
        }
    }

    /// Cancels a start in progress.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, SeqCst);
        for node in self.linux() {
            node.stop();
        }
    }
}

fn netboot(stage: &BootStage) -> EventKind {
    let (stage, file, percent, why) = match stage {
        BootStage::Begun => ("begun", None, None, None),
        BootStage::Fetching(role, percent) => {
            ("fetching", Some(role.to_string()), Some(*percent), None)
        }
        BootStage::Starting => ("starting", None, None, None),
        BootStage::Failed(why) => ("failed", None, None, Some(printable(why))),
    };
    EventKind::Netboot { stage: stage.to_owned(), file, percent, why }
}

fn ended(outcome: &Outcome) -> EventKind {
    let (outcome, code, detail) = match outcome {
        Outcome::Exited(code) => ("exited", Some(*code), None),
        Outcome::Reset => ("reset", None, None),
        Outcome::Fault(what) => ("fault", None, Some(printable(what))),
        Outcome::Stopped => ("stopped", None, None),
    };
    EventKind::Ended { outcome: outcome.to_owned(), code, detail }
}
