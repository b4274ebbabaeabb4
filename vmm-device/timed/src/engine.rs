//! The event engine.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use tofu_abi::topology::{NodeId, Port, Shape};
use tofu_abi::{Coords, Doorbell, Generation, TniId};
use tofu_dma::DmaMemory;
use tofu_fabric::{
    BadErrors, Deliver, Direction, DiscardReason, Equipment, FaultCounters, FaultPlan, LinkErrors,
    MemoryErrors, ModelledLinks, NoSuchLink, Packet, PortCounters, Ps, TNIS, Tap, TapPoint, Tapped,
    XbCounters,
};
use tofu_icc::device_faults::{DeviceFaults, Fate, Injector};
use tofu_icc::{Body, CommandTiming, Config, Event, Host, Icc, Net, Subject, discard_rcode};
use tofu_links::Parameters;
use tofu_netmodel::{Arbiter, BadOption, Network, Options};
use tofu_sync::lock;

use crate::state::{Due, InFlight, Loss, Met, State, TLPS_AHEAD, Wrong};

/// An MSI-X message of a node's controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// When it is sent.
    pub at: Ps,
    /// The node.
    pub node: NodeId,
    /// Its vector (see [`tofu_abi::irq::vector`]).
    pub vector: u16,
}

/// A machine of controllers in modelled time.
///
/// Any thread may call it, but the results are the same in each run only if the calls are in the
/// same order.
pub struct EventEngine {
    generation: Generation,
    shape: Shape,
    timing: CommandTiming,
    nodes: Vec<Arc<Icc>>,
    /// The faults of each node's device.
    device_faults: Vec<Arc<Injector>>,
    state: Mutex<State>,
    now: Arc<AtomicU64>,
    equipment: Arc<Equipment<Body>>,
    /// When the modelled times that devices count start.
    epoch: AtomicU64,
    /// When the last packet arrived.
    arrival: AtomicU64,
    /// The number of events that have happened at each node.
    events: Vec<AtomicU64>,
    /// When each node first enabled a queue, rang a doorbell or sent a packet.
    active: Vec<OnceLock<Ps>>,
    /// The number of commands that each node has started, once they are counted.
    commands: Vec<AtomicU64>,
    awaited: OnceLock<Awaited>,
    /// The time for which commands of each node have been in flight.
    flights: Vec<Mutex<Flights>>,
    /// The number of barrier channels that are in use at each node.
    channels: Vec<AtomicU64>,
    interrupt: Box<dyn Fn(Interrupt) + Send + Sync>,
    outside: OnceLock<(Ps, Box<Outside>)>,
    observer: OnceLock<Box<dyn Observer>>,
}

/// Hears of what devices do, for traces: in the thread that executes an event or an access, one at
/// a time. It must not call back, except for [`EventEngine::now`].
pub trait Observer: Send + Sync {
    /// As [`Host::observe`].
    fn step(&self, node: NodeId, event: &Event);

    /// As [`Host::explain`].
    fn explain(&self, by: Coords, subject: &Subject, why: &str);

    /// A device sends the message of a vector.
    fn interrupt(&self, node: NodeId, vector: u16);

    /// A guest accesses a register of BAR0.
    fn access(&self, node: NodeId, offset: u64, write: bool);

    /// As [`Host::stamp`].
    fn stamp(&self) -> u64;
}

/// Accepts input from outside the machine at a time. Returns the nodes that receive it.
pub type Outside = dyn Fn(Ps) -> Vec<NodeId> + Send + Sync;

/// The commands of a node that are in flight, once they are counted.
#[derive(Clone, Copy, Default)]
struct Flights {
    count: u64,
    /// When the first of them began.
    since: Ps,
    /// The time in which there were any, up to then.
    before: Ps,
}

impl Flights {
    fn begin(&mut self, now: Ps) {
        if self.count == 0 {
            self.since = now;
        }
        self.count += 1;
    }

    /// Ends some of them.
    fn end(&mut self, count: u64, now: Ps) {
        let left = self.count.saturating_sub(count);
        if left == 0 {
            self.before = self.time(now);
        }
        self.count = left;
    }

    /// The time in which there were any.
    const fn time(&self, now: Ps) -> Ps {
        let present = if self.count > 0 { now.saturating_sub(self.since) } else { 0 };
        self.before.saturating_add(present)
    }
}

/// A command of a node that is waited for.
struct Awaited {
    node: NodeId,
    count: u64,
    /// When it started, once it has.
    at: OnceLock<Ps>,
}

impl fmt::Debug for EventEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, now, .. } = self;
        f.debug_struct("EventEngine")
            .field("shape", shape)
            .field("now", now)
            .finish_non_exhaustive()
    }
}

impl EventEngine {
    /// Creates the controllers of a machine, which reach these memories, node by node. `interrupt`
    /// is called for each MSI-X message, in the thread that executes its event; it must not call
    /// back.
    ///
    /// # Errors
    /// [`BadOption`] as [`Network::new`].
    pub fn new(
        generation: Generation,
        shape: Shape,
        arbiter: Arbiter,
        memories: impl IntoIterator<Item = Arc<dyn DmaMemory>>,
        interrupt: Box<dyn Fn(Interrupt) + Send + Sync>,
    ) -> Result<Arc<Self>, BadOption> {
        let timing = CommandTiming::of(generation);
        let options = Options { arbiter, backlog: TLPS_AHEAD, ..Options::default() };
        let network = Network::new(shape, Parameters::of(generation), &options)?;
        Ok(Arc::new_cyclic(|engine| {
            let nodes = (0..).map(NodeId).zip(shape.iter().zip(memories));
            let nodes = nodes.map(|(node, (coords, memory))| {
                let host = NodeHost { engine: Weak::clone(engine), node };
                let config = Config::of(generation, coords);
                let icc = Icc::new(config, Arc::new(host), Arc::clone(&memory));
                let faults = Arc::<Injector>::default();
                faults.refuse_accesses(&icc, memory);
                (Arc::new(icc), faults)
            });
            let (nodes, device_faults): (Vec<_>, _) = nodes.unzip();
            let (equipment, now) = (Arc::new(Equipment::modelled(shape)), Arc::default());
            let (equips, clock) = (Arc::clone(&equipment), Arc::clone(&now));
            let state = State::new(network, timing, nodes.clone(), equips, clock);
            Self {
                generation,
                shape,
                timing,
                state: Mutex::new(state),
                nodes,
                device_faults,
                now,
                equipment,
                epoch: AtomicU64::new(0),
                arrival: AtomicU64::new(0),
                events: shape.iter().map(|_| AtomicU64::new(0)).collect(),
                active: shape.iter().map(|_| OnceLock::new()).collect(),
                commands: shape.iter().map(|_| AtomicU64::new(0)).collect(),
                awaited: OnceLock::new(),
                flights: shape.iter().map(|_| Mutex::default()).collect(),
                channels: shape.iter().map(|_| AtomicU64::new(0)).collect(),
                interrupt,
                outside: OnceLock::new(),
                observer: OnceLock::new(),
            }
        }))
    }

    /// Admits input from outside the machine, such as that of a console, every `period` picoseconds
    /// from now on, and at no other time. The thread that executes the event calls `outside`, which
    /// must not call back. Only the first call has an effect.
    pub fn let_in(&self, period: Ps, outside: Box<Outside>) {
        let period = period.max(1);
        if self.outside.set((period, outside)).is_ok() {
            self.state().push(self.now().saturating_add(period), Due::Outside);
        }
    }

    /// Counts the commands that nodes start from now on.
    pub fn count_commands(&self) {
        self.nodes.iter().for_each(|icc| icc.set_traced(true));
    }

    /// Has what devices do observed. Only the first call has an effect.
    pub fn observe(&self, observer: Box<dyn Observer>) {
        if self.observer.set(observer).is_ok() {
            self.count_commands();
        }
    }

    /// The observer of devices.
    pub(crate) fn observer(&self) -> Option<&dyn Observer> {
        self.observer.get().map(|observer| &**observer)
    }

    /// Calls this when a link has failed by itself, because too little got through. It is called in
    /// the thread that executes the event, and must not call back.
    pub fn on_link_failed(&self, hears: Box<dyn Fn(NodeId, Port) + Send + Sync>) {
        self.state().failed = Some(hears);
    }

    /// The number of commands that a node has started, if they are [counted](Self::count_commands).
    pub fn commands(&self, node: NodeId) -> u64 {
        self.commands.get(node.index()).map_or(0, |commands| commands.load(SeqCst))
    }

    /// The time in which any command of a node was in flight, if they are
    /// [counted](Self::count_commands): from when its descriptor is read until its notice is
    /// written.
    pub fn in_flight(&self, node: NodeId) -> Ps {
        self.flights.get(node.index()).map_or(0, |flights| lock(flights).time(self.now()))
    }

    /// Notes that a node's device is reset, with all of its commands.
    pub(crate) fn reset(&self, node: NodeId) {
        if let Some(flights) = self.flights.get(node.index()) {
            lock(flights).end(u64::MAX, self.now());
        }
    }

    /// Notes when a node starts the command of this number, counted from 1. Only the first call has
    /// an effect.
    pub fn await_command(&self, node: NodeId, count: u64) {
        self.count_commands();
        // Only the first call counts: this fails if a command is awaited already.
        let _ = self.awaited.set(Awaited { node, count, at: OnceLock::new() });
    }

    /// When the command that is [waited for](Self::await_command) started, once it has, and when
    /// its node has become [active](Self::is_active).
    pub fn awaited(&self) -> Option<(Ps, Ps)> {
        let Awaited { node, at, .. } = self.awaited.get()?;
        let at = *at.get()?;
        Some((at, self.active_since(*node).unwrap_or(at)))
    }

    /// Notes that a node has started a command.
    fn command_starts(&self, node: NodeId) {
        let Some(commands) = self.commands.get(node.index()) else { return };
        let number = commands.fetch_add(1, SeqCst) + 1;
        if let Some(awaited) = self.awaited.get()
            && awaited.node == node
            && number >= awaited.count
        {
            awaited.at.get_or_init(|| self.now());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The generation of its devices.
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// The time that the machine has reached.
    pub fn now(&self) -> Ps {
        self.now.load(SeqCst)
    }

    /// A node's controller. An access to its registers happens now: [`EventEngine::run_until`] its
    /// time first.
    pub fn icc(&self, node: NodeId) -> Option<&Arc<Icc>> {
        self.nodes.get(node.index())
    }

    /// Makes the modelled times that devices count start from now.
    pub fn begin_epoch(&self) {
        self.epoch.store(self.now(), SeqCst);
    }

    /// When the last packet arrived. `now` may be later, because timers run after it.
    pub fn last_arrival(&self) -> Ps {
        self.arrival.load(SeqCst)
    }

    /// Rings a doorbell of a node at a time, or now if that has passed. Events of the same time
    /// happen in the order in which they were scheduled, so callers must sort doorbells of several
    /// nodes by time and node.
    pub fn doorbell(&self, node: NodeId, tni: TniId, bell: Doorbell, at: Ps) {
        if self.icc(node).is_some() {
            self.activate(node);
            self.state().push(at.max(self.now()), Due::Doorbell(node, tni, bell));
        }
    }

    /// The lookahead: the least time from anything at a node to an effect at another.
    pub fn lookahead(&self) -> Ps {
        self.state().network.parameters().hop_ps()
    }

    /// The least time from a doorbell of a node to an effect at another. A command takes its time
    /// in the interface first, and only the signals of gates do not.
    pub fn doorbell_lookahead(&self, node: NodeId) -> Ps {
        self.lookahead() + self.issue_ps(node)
    }

    /// The longest [`EventEngine::doorbell_lookahead`] that a node has.
    pub fn longest_lookahead(&self) -> Ps {
        self.lookahead() + self.timing.issue_ps
    }

    /// The least time from a doorbell of a node to its first packet in the network.
    fn issue_ps(&self, node: NodeId) -> Ps {
        let signals = self.channels.get(node.index()).is_none_or(|used| used.load(SeqCst) > 0);
        if signals { 0 } else { self.timing.issue_ps }
    }

    /// The earliest time at which anything may happen to a node: neither its memory nor its
    /// registers change before, and it sends no interrupt. `None` if that takes another doorbell
    /// first.
    pub fn next(&self, node: NodeId) -> Option<Ps> {
        let hop = self.lookahead();
        self.state().next_of(node, |from| hop + self.issue_ps(from))
    }

    /// True if anything is in flight or scheduled, except for input from [outside](Self::let_in).
    pub fn is_busy(&self) -> bool {
        self.state().is_busy()
    }

    /// Executes all events up to and including `until`, which is then the time. A time that has
    /// passed changes nothing.
    pub fn run_until(&self, until: Ps) {
        while self.step_until(until) {}
        self.now.fetch_max(until, SeqCst);
    }

    /// Executes the next event, whenever that is. Returns false if there is none.
    pub fn step(&self) -> bool {
        self.step_until(Ps::MAX)
    }

    /// The number of events that have happened at a node. Its memory, registers and interrupts are
    /// as they were while this is the same, unless its own process changes them.
    pub fn events_at(&self, node: NodeId) -> u64 {
        self.events.get(node.index()).map_or(0, |events| events.load(SeqCst))
    }

    /// True if a node has ever enabled a queue, rung a doorbell or sent a packet. Before that it
    /// had no effect on others.
    pub fn is_active(&self, node: NodeId) -> bool {
        self.active_since(node).is_some()
    }

    /// The time since which [`Self::is_active`] has been true.
    fn active_since(&self, node: NodeId) -> Option<Ps> {
        self.active.get(node.index())?.get().copied()
    }

    fn activate(&self, node: NodeId) {
        if let Some(active) = self.active.get(node.index()) {
            active.get_or_init(|| self.now());
        }
    }

    fn happens_at(&self, node: NodeId) {
        if let Some(events) = self.events.get(node.index()) {
            events.fetch_add(1, SeqCst);
        }
    }

    /// Executes the next event if it is due until `limit`. Returns false if there is none.
    pub fn step_until(&self, limit: Ps) -> bool {
        let due = {
            let mut state = self.state();
            let (now, due) = state.next(limit);
            self.now.fetch_max(now, SeqCst);
            due
        };
        let Some(due) = due else { return false };
        match due {
            Due::Doorbell(node, tni, bell) => {
                self.happens_at(node);
                if self.nodes[node.index()].run_queue(tni, bell, &mut Wire { engine: self }) {
                    self.state().push(self.now(), due);
                }
            }
            Due::Room(interface) => {
                self.happens_at(NodeId((interface / TNIS) as u32));
                self.nodes[interface / TNIS].room(TniId::ALL[interface % TNIS]);
            }
            Due::Arrive(index) => {
                let arrived = self.state().take(index);
                if let Some(InFlight { packet, lost, fate, .. }) = arrived {
                    self.arrive(packet, lost, fate);
                }
            }
            Due::Sent(node, tni, tag) => {
                if self.state().detach(node, tni, tag) {
                    self.happens_at(node);
                    self.nodes[node.index()].put_sent(tni, tag, self.now() / 1000);
                }
            }
            Due::Expire(node) => {
                self.happens_at(node);
                self.nodes[node.index()].expire(self.now() / 1000);
                self.send_delayed(node, self.now() / 1000);
            }
            Due::Outside => {
                self.equipment.release(&mut Hands { engine: self });
                if let Some((period, outside)) = self.outside.get() {
                    outside(self.now()).into_iter().for_each(|node| self.happens_at(node));
                    self.state().push(self.now().saturating_add(*period), Due::Outside);
                }
            }
        }
        true
    }

    /// Hands a packet to its target, or reports its loss.
    fn arrive(&self, mut packet: Packet<Body>, lost: Option<Loss>, met: Met) {
        // The sender does not notice this loss: its command ends as if the packet had arrived.
        if met.swallowed {
            return;
        }
        if let Some(how) = lost {
            self.lose(&packet, how);
            return;
        }
        let Some(node) = self.shape.node_id(packet.dst) else { return };
        let icc = &self.nodes[node.index()];
        let deliver = match TniId::new(packet.dst_tni) {
            Some(tni) => icc.deliver_ps(tni, &packet.body),
            None => self.timing.deliver(&packet.body),
        };
        let arrived = self.now().saturating_sub(deliver);
        packet.model_ps = arrived.saturating_sub(self.epoch.load(SeqCst));
        self.arrival.store(self.now(), SeqCst);
        let mut hands = Hands { engine: self };
        if !self.equipment.is_on() {
            hands.hand(node, &packet);
            return;
        }
        let (model_ps, dst) = (packet.model_ps, packet.dst);
        self.equipment.with(|equipped| {
            equipped.arrive(node, packet, met.held, &mut hands);
            if let Some(double) = met.double {
                equipped.arrive(node, Packet { model_ps, dst, ..*double }, None, &mut hands);
            }
        });
    }

    /// Reports the loss of a packet to the router that lost it, and to the node that sent it.
    fn lose(&self, packet: &Packet<Body>, (node, port, reason): Loss) {
        if self.equipment.is_on() {
            let point = port.map_or(TapPoint::Tni(packet.src_tni.get()), TapPoint::Port);
            let lost = Direction::Lost(reason);
            self.equipment.with(|equipped| equipped.observe(node, point, lost, packet));
        }
        if let Some(icc) = self.icc(node) {
            self.happens_at(node);
            icc.router_event(port, reason);
        }
        if let Some(source) = self.shape.node_id(packet.src) {
            let now_ns = self.now() / 1000;
            self.happens_at(source);
            self.nodes[source.index()].undeliverable(packet, discard_rcode(reason), now_ns);
        }
    }
}

impl EventEngine {
    /// Sets the faults that packets meet from now on, or none. Like links, they may change only in
    /// what comes from [outside](Self::let_in) if guests run by themselves. Packets that a fault
    /// holds back are released there, if not before.
    ///
    /// # Errors
    ///
    /// If a link that is named does not exist. Nothing changes then.
    pub fn set_faults(&self, plan: Option<FaultPlan>) -> Result<(), NoSuchLink> {
        self.equipment.set_faults(&self.shape, plan)
    }

    /// The faults, and how often they have happened since they were set.
    pub fn faults(&self) -> Option<(FaultPlan, FaultCounters)> {
        self.equipment.faults()
    }

    /// Makes packets meet these errors where they leave the router of a node, from now on. The same
    /// holds as for [`set_faults`](Self::set_faults).
    pub fn set_router_errors(&self, node: NodeId, errors: Arc<MemoryErrors>) {
        self.equipment.set_router_errors(node, errors);
    }

    /// Sets the faults of a node's device from now on. Returns false if there is no such node. The
    /// same holds as for [`set_faults`](Self::set_faults).
    pub fn set_device_faults(&self, node: NodeId, faults: DeviceFaults) -> bool {
        let Some((icc, injector)) = self.icc(node).zip(self.device_faults(node)) else {
            return false;
        };
        injector.set_of(icc, faults);
        if faults == DeviceFaults::default() {
            self.send_delayed(node, u64::MAX);
        }
        true
    }

    /// The faults of a node's device.
    pub fn device_faults(&self, node: NodeId) -> Option<&Arc<Injector>> {
        self.device_faults.get(node.index())
    }

    /// Sends interrupts that a fault has delayed until a time, in nanoseconds.
    fn send_delayed(&self, node: NodeId, until_ns: u64) {
        if let Some(faults) = self.device_faults(node) {
            faults.send_due(until_ns, |vector| self.send_interrupt(node, vector));
        }
    }

    fn send_interrupt(&self, node: NodeId, vector: u16) {
        (self.interrupt)(Interrupt { at: self.now(), node, vector });
    }
}

/// During an observation, [`EventEngine::now`] is its time. A tap must not call back otherwise.
impl Tapped<Body> for EventEngine {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn look_at(&self, nodes: &BTreeSet<NodeId>) {
        ModelledLinks::look_at(self, nodes);
    }

    fn set_tap(&self, tap: Option<Arc<dyn Tap<Body>>>) {
        self.equipment.set_tap(tap);
    }
}

/// Hands packets to the devices of their targets.
struct Hands<'a> {
    engine: &'a EventEngine,
}

impl Hands<'_> {
    fn hand(&self, node: NodeId, packet: &Packet<Body>) {
        let engine = self.engine;
        engine.happens_at(node);
        engine.nodes[node.index()].arrive(packet, &mut Wire { engine });
    }
}

impl Deliver<Body> for Hands<'_> {
    fn arrived(&mut self, node: NodeId, packet: Packet<Body>) {
        self.hand(node, &packet);
    }

    fn discarded(
        &mut self,
        at: NodeId,
        port: Option<Port>,
        reason: DiscardReason,
        packet: Packet<Body>,
    ) {
        self.engine.lose(&packet, (at, port, reason));
    }
}

/// Links change at the time that the engine has reached. Guests that run by themselves may be ahead
/// of that, so in a machine that has them links change only in what comes from
/// [outside](EventEngine::let_in).
impl ModelledLinks for EventEngine {
    fn now(&self) -> Ps {
        self.now()
    }

    fn parameters(&self) -> Parameters {
        *self.state().network.parameters()
    }

    fn set_link(&self, node: Coords, port: Port, up: bool) -> Result<(), NoSuchLink> {
        let mut state = self.state();
        state.catch_up(self.now()).set_link(node, port, up)?;
        if let Some(node) = self.shape.node_id(node) {
            state.set_wrong(node, port, Wrong::Down, !up);
        }
        Ok(())
    }

    fn link_up(&self, node: Coords, port: Port) -> Option<bool> {
        self.state().network.link_up(node, port)
    }

    fn set_errors(&self, node: Coords, port: Port, errors: &LinkErrors) -> Result<(), BadErrors> {
        let mut state = self.state();
        let network = state.catch_up(self.now());
        network.set_errors(node, port, errors)?;
        let far = self.shape.neighbor(node, port).ok_or(NoSuchLink { node, port })?;
        network.set_errors(far, port.opposite(), errors)?;
        if let Some(node) = self.shape.node_id(node) {
            state.set_wrong(node, port, Wrong::Errors, *errors != LinkErrors::default());
        }
        Ok(())
    }

    fn look_at(&self, nodes: &BTreeSet<NodeId>) {
        let mut state = self.state();
        state.catch_up(self.now()).look_at(nodes);
    }

    fn port_counters(&self, node: NodeId, port: Port) -> Option<PortCounters> {
        let mut counters = self.state().network.port_counters(node, port)?;
        self.equipment.count_router_errors(&mut counters, node, port);
        Some(counters)
    }

    fn xb_counters(&self, node: NodeId) -> Option<XbCounters> {
        self.state().network.xb_counters(node)
    }
}

/// The network as a device sees it.
struct Wire<'a> {
    engine: &'a EventEngine,
}

impl Net for Wire<'_> {
    fn has_room(&self, node: Coords, tni: TniId) -> bool {
        let Some(node) = self.engine.shape.node_id(node) else { return false };
        self.engine.state().has_room(node, tni, self.engine.now())
    }

    fn inject(&mut self, packet: Packet<Body>) {
        if let Some(node) = self.engine.shape.node_id(packet.src) {
            self.engine.activate(node);
        }
        let (now, epoch) = (self.engine.now(), self.engine.epoch.load(SeqCst));
        self.engine.state().inject(packet, now, epoch);
    }

    fn progress(&mut self) {}

    fn now_ns(&self) -> u64 {
        self.engine.now() / 1000
    }
}

/// The host as a device sees it. A device exists longer than its engine only while it is being
/// dropped.
struct NodeHost {
    engine: Weak<EventEngine>,
    node: NodeId,
}

impl NodeHost {
    fn with<T: Default>(&self, f: impl FnOnce(&EventEngine) -> T) -> T {
        self.engine.upgrade().map(|engine| f(&engine)).unwrap_or_default()
    }
}

impl Host for NodeHost {
    fn interrupt(&self, vector: u16) {
        let node = self.node;
        self.with(|engine| {
            if let Some(observer) = engine.observer() {
                observer.interrupt(node, vector);
            }
            let Some(faults) = engine.device_faults(node) else { return };
            match faults.message(vector) {
                Fate::Lost => {}
                Fate::Sent => engine.send_interrupt(node, vector),
                Fate::Doubled => (0..2).for_each(|_| engine.send_interrupt(node, vector)),
                Fate::Delayed => match faults.delay(vector, engine.now() / 1000) {
                    Some(due_ns) => self.timer(due_ns),
                    None => engine.send_interrupt(node, vector),
                },
            }
        });
    }

    fn doorbell(&self, tni: TniId, doorbell: Doorbell) {
        self.with(|engine| engine.doorbell(self.node, tni, doorbell, engine.now()));
    }

    fn queue_enabled(&self, _: TniId, queue: Doorbell, on: bool) {
        self.with(|engine| {
            engine.activate(self.node);
            if let (Doorbell::Channel(_), Some(used)) =
                (queue, engine.channels.get(self.node.index()))
            {
                match on {
                    true => used.fetch_add(1, SeqCst),
                    false => used.fetch_sub(1, SeqCst),
                };
            }
        });
    }

    fn timer(&self, deadline_ns: u64) {
        let at = deadline_ns.saturating_mul(1000);
        self.with(|engine| engine.state().push(at, Due::Expire(self.node)));
    }

    fn now_ns(&self) -> u64 {
        self.with(|engine| engine.now() / 1000)
    }

    fn port_counters(&self, port: Port) -> PortCounters {
        self.with(|engine| ModelledLinks::port_counters(engine, self.node, port))
            .unwrap_or_default()
    }

    fn xb_counters(&self) -> XbCounters {
        self.with(|engine| ModelledLinks::xb_counters(engine, self.node)).unwrap_or_default()
    }

    fn observe(&self, event: &Event) {
        self.with(|engine| {
            let flights = engine.flights.get(self.node.index());
            match event {
                Event::Begun { .. } => {
                    engine.command_starts(self.node);
                    flights.inspect(|flights| lock(flights).begin(engine.now()));
                }
                Event::AtOnce { .. } => engine.command_starts(self.node),
                Event::Ended { .. } => {
                    flights.inspect(|flights| lock(flights).end(1, engine.now()));
                }
                Event::Served { .. } | Event::Answered { .. } => {}
            }
            if let Some(observer) = engine.observer() {
                observer.step(self.node, event);
            }
        });
    }

    fn explain(&self, subject: &Subject, why: &str) {
        self.with(|engine| {
            if let (Some(observer), Some(by)) = (engine.observer(), engine.shape.coords(self.node))
            {
                observer.explain(by, subject, why);
            }
        });
    }

    fn stamp(&self) -> u64 {
        self.with(|engine| engine.observer().map(Observer::stamp)).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_commands_in_flight_is_counted_once() {
        let mut flights = Flights::default();
        flights.begin(100);
        flights.begin(150);
        assert_eq!(flights.time(160), 60);
        flights.end(1, 170);
        flights.end(1, 200);
        assert_eq!((flights.time(200), flights.time(900)), (100, 100));
        // A command that a reset has ended before.
        flights.end(1, 950);
        flights.begin(1000);
        flights.begin(1001);
        flights.end(u64::MAX, 1010);
        assert_eq!(flights.time(2000), 110);
    }
}
