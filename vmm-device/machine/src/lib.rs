//! A machine: a box of nodes, the fabric between them, and the engines that do their work.
//!
//! A [`Node`] is a device as a bus sees it: an ICC behind a PCI Express endpoint. It is independent
//! of the VMM: guest memory, the destination of its MSI-X messages and the delivery of its
//! doorbells are passed to it. The same node therefore serves our own VMM, a vfio-user client, and
//! a test without a VM.
//!
//! The work is done by engine threads ([`Machine::start`]), by the vCPU that rang a trapped
//! doorbell, or by the caller of [`Machine::run_pending`]. All of them drive devices through the
//! same [`Pump`].
#![forbid(unsafe_code)]

mod any;
mod cables;
pub mod capture;
mod clock;
mod config;
mod courier;
mod device;
mod drive;
mod engine;
mod error;
mod inbox;
mod interconnect;
mod links;
mod node;
mod pump;
mod shared;
mod torus;
pub mod trace;
mod wakeup;
mod windows;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use tofu_abi::Coords;
use tofu_fabric::{Fabric, NodeId, Port, Shape, ShardId, Shards, Timing, Wires};
use tofu_icc::{DmaMemory, Icc};
use tofu_links::Parameters;
use tofu_netmodel::HostBus;
use tofu_sync::{Monotonic, lock};

use crate::capture::{Capture, CaptureConfig, Captures, Hub, Recorded};
use crate::clock::Clock;
use crate::engine::Engine;
use crate::node::Parent;
use crate::pump::TofuShared;
use crate::shared::Shared;
use crate::trace::{Recorder, Trace};

pub use crate::any::{AnyNetwork, AnyNode, GuestPassed, Passed, Stands, StartedCommand};
pub use crate::cables::{CableCounters, Incoming, MAX_MESSAGE, Refused, Transport};
pub use crate::config::{
    Capacity, Doorbells, LinkFailed, Links, MachineConfig, Shard, Surroundings,
};
pub use crate::device::Device;
pub use crate::drive::{Drive, View};
pub use crate::error::Error;
pub use crate::interconnect::Interconnect;
pub use crate::node::{DoorbellBackend, Node, NodeParts};
pub use crate::pump::Pump;
pub use crate::torus::{TORUS_TIMING, TorusConfig, TorusNode};
pub use crate::windows::{TorusParts, WindowBackend};
pub use tofu_abi::Generation;
pub use tofu_fabric::EccErrors;
pub use tofu_icc::EccPlace;
pub use tofu_icc::device_faults::{DeviceFaults, Fate, MOST_PLANNED, Planned};
pub use tofu_tnw_device::{Nwp, SharedWindows, register_fields};

/// The network of a machine, for code that observes or disturbs it. It may outlive the machine.
pub struct NetworkOf<D: Device> {
    wires: Arc<Wires<D::Body>>,
    captures: Arc<dyn Captures>,
    machine: Weak<Shared<D>>,
    interconnect: Interconnect,
}

/// The network of a machine of Tofu.
pub type Network = NetworkOf<Icc>;

impl<D: Device> Clone for NetworkOf<D> {
    fn clone(&self) -> Self {
        let Self { wires, captures, machine, interconnect } = self;
        let (wires, captures) = (Arc::clone(wires), Arc::clone(captures));
        Self { wires, captures, machine: Weak::clone(machine), interconnect: *interconnect }
    }
}

impl<D: Device> NetworkOf<D> {
    /// The links, and their faults.
    pub const fn wires(&self) -> &Arc<Wires<D::Body>> {
        &self.wires
    }

    /// The kind of the machine's devices.
    pub const fn interconnect(&self) -> Interconnect {
        self.interconnect
    }

    /// A node; `None` if no device was added or the machine has been dropped.
    pub fn node(&self, id: NodeId) -> Option<Arc<D::Node>> {
        self.machine.upgrade()?.node(id).cloned()
    }

    /// Starts to record the packets that pass the given interfaces of a node.
    pub fn capture(&self, config: CaptureConfig) -> Capture {
        Arc::clone(&self.captures).begin(config.of(self.interconnect))
    }
}

impl<D: Drive> NetworkOf<D> {
    /// The shards of the machine and the shard in this process; `None` if all of it is in this
    /// process.
    pub fn shard(&self) -> Option<(&Arc<Shards>, ShardId)> {
        self.wires.fabric().shard()
    }

    /// Marks a shard as present: its nodes can be reached, except for links and nodes taken down.
    pub fn shard_came(&self, shard: ShardId) {
        self.set_shard(shard, true);
    }

    /// Marks a shard as gone: all of its links are down.
    pub fn shard_went(&self, shard: ShardId) {
        self.set_shard(shard, false);
    }

    fn set_shard(&self, shard: ShardId, there: bool) {
        let fabric = self.wires.fabric();
        let Some((shards, own)) = fabric.shard().filter(|(_, own)| *own != shard) else { return };
        for node in shards.nodes(shard) {
            let Some(at) = fabric.shape().coords(node) else { continue };
            let beside = |port| {
                let near = fabric.shape().neighbor(at, port);
                near.and_then(|near| shards.of(fabric.shape().node_id(near)?)) == Some(own)
            };
            // No other links of a shard are known here.
            if Port::ALL.into_iter().any(beside) {
                let _ = fabric.set_there(at, there);
            }
        }
    }

    /// Handles a message that a shard has sent over the transport. Exactly one thread for each
    /// shard must call this, in the order of arrival.
    ///
    /// # Errors
    ///
    /// [`Refused`] if no honest shard sends such a message. The message is counted and has no other
    /// effect.
    pub fn receive(&self, from: ShardId, message: &[u8]) -> Result<(), Refused> {
        let Some(shared) = self.machine.upgrade() else { return Ok(()) };
        let Some(cables) = &shared.cables else { return Err(Refused::Kind) };
        let incoming = cables.take(from, message);
        let taken = incoming.and_then(|incoming| D::view(&shared).take(from, incoming));
        cables.count(from, message.len(), &taken);
        taken
    }

    /// Tells all nodes that the transport accepts requests again.
    pub fn room(&self) {
        if let Some(shared) = self.machine.upgrade() {
            shared.nodes().for_each(|node| D::room(node));
        }
    }

    /// Traffic counters of the cables to and from a shard; `None` if there are no cables.
    pub fn cables(&self, shard: ShardId) -> Option<CableCounters> {
        self.machine.upgrade()?.cables.as_ref()?.counters(shard)
    }

    /// Starts to trace all commands; `None` if the machine has gone, or its devices have no
    /// commands.
    pub fn trace(&self) -> Option<Trace> {
        let shared = self.machine.upgrade()?;
        let (recorder, machine) = (D::recorder(&shared.extra)?, Weak::clone(&self.machine));
        let switch = move |on: bool| {
            if let Some(shared) = machine.upgrade() {
                shared.nodes().for_each(|node| D::set_traced(node, on));
            }
        };
        Some(recorder.begin(Box::new(switch)))
    }
}

/// A machine. Dropping it stops its engines.
pub struct MachineOf<D: Drive> {
    shared: Arc<Shared<D>>,
    network: NetworkOf<D>,
    config: D::Config,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The body of a thread of a machine.
type Run<D> = Box<dyn FnOnce(&Shared<D>) + Send>;

/// A machine of Tofu.
pub type Machine = MachineOf<Icc>;
/// A machine of TNW.
pub type Torus = MachineOf<tofu_tnw_device::Nwp>;

impl Machine {
    /// A machine without devices and with its engines at rest.
    ///
    /// # Errors
    ///
    /// [`Error::Host`] if the host has no descriptors left.
    pub fn new(config: MachineConfig) -> Result<Self, Error> {
        Self::within(config, Surroundings::default())
    }

    /// A machine with these surroundings, which may be a shard of one.
    ///
    /// # Errors
    ///
    /// As [`Machine::new`]. Also if there is no such shard, or links between shards would have to
    /// be modelled.
    pub fn within(config: MachineConfig, surroundings: Surroundings) -> Result<Self, Error> {
        Self::with_clock(config, surroundings, Clock::Host(Monotonic::new()))
    }

    /// A machine whose time advances only by [`Machine::advance`], for reproducible tests.
    ///
    /// # Errors
    ///
    /// As [`Machine::new`].
    pub fn with_manual_clock(config: MachineConfig) -> Result<Self, Error> {
        Self::with_clock(config, Surroundings::default(), Clock::Manual(AtomicU64::new(0)))
    }

    fn with_clock(
        config: MachineConfig,
        surroundings: Surroundings,
        clock: Clock,
    ) -> Result<Self, Error> {
        let wiring = Wiring {
            shape: config.shape,
            links: config.links,
            timing: config.timing(),
            parameters: config.parameters(),
            bus: config.bus(),
        };
        let extra = TofuShared { recorder: Arc::new(Recorder::new()) };
        let engines = (config.engines, config.spin_ns);
        let interconnect = Interconnect::Tofu(config.generation);
        Self::wired(wiring, clock, engines, surroundings, (extra, interconnect, config))
    }

    /// Adds a device at `coords`, with DMA to `memory`.
    ///
    /// # Errors
    ///
    /// If `coords` are outside the machine or in use, or the host has no memory left.
    pub fn add_node(&self, coords: Coords, memory: Arc<dyn DmaMemory>) -> Result<Arc<Node>, Error> {
        self.add_node_of(coords, NodeParts::new(memory))
    }

    /// Adds a device at `coords`, made from `parts`.
    ///
    /// # Errors
    ///
    /// As [`Machine::add_node`].
    pub fn add_node_of(&self, coords: Coords, mut parts: NodeParts) -> Result<Arc<Node>, Error> {
        parts.pages = parts.pages.filter(|_| self.config.doorbells == Doorbells::Polled);
        let recorder = &self.shared.extra.recorder;
        let node = self.shared.add(coords, |id, inbox| {
            let machine = Arc::downgrade(&self.shared) as Weak<dyn Parent>;
            Node::new(id, coords, machine, inbox, Arc::clone(recorder), &self.config, parts)
        })?;
        node.icc().set_traced(recorder.is_on());
        Ok(node)
    }
}

/// The links of a machine.
struct Wiring<B> {
    shape: Shape,
    links: Links,
    /// The time that direct links take.
    timing: Timing,
    /// The parameters of modelled links.
    parameters: &'static Parameters,
    /// The bus between memory and interfaces, if it slows modelled links down.
    bus: Option<HostBus<B>>,
}

impl<B: Send + 'static> Wiring<B> {
    fn wires(self, shard: Option<&Shard>) -> Result<Wires<B>, Error> {
        let Self { shape, links, timing, parameters, bus } = self;
        Ok(match (links, shard) {
            (Links::Direct, Some(Shard { count, own, .. })) => {
                let fabric = Fabric::of_shard(Arc::new(Shards::new(shape, *count)?), *own);
                let fabric = fabric.ok_or(Error::NoSuchShard { shard: *own, count: *count })?;
                Wires::new(fabric, timing)
            }
            (Links::Direct, None) => Wires::new(Fabric::new(shape), timing),
            (Links::Modelled, Some(_)) => return Err(Error::ModelledShards),
            (Links::Modelled, None) => tofu_netmodel::wires(shape, parameters, bus)?,
        })
    }
}

impl<D: Drive> MachineOf<D> {
    /// Creates a machine of these links, without devices. `kind` is the state that its devices
    /// share, their interconnect, and their configuration.
    fn wired(
        wiring: Wiring<D::Body>,
        clock: Clock,
        engines: (usize, u64),
        surroundings: Surroundings,
        kind: (D::Extra, Interconnect, D::Config),
    ) -> Result<Self, Error>
    where
        D::Body: Recorded,
    {
        let wires = wiring.wires(surroundings.shard.as_ref())?;
        let (extra, interconnect, config) = kind;
        let shared = Arc::new(Shared::new(wires, clock, engines, surroundings, extra)?);
        let network = NetworkOf {
            captures: Hub::new(&shared.wires),
            wires: Arc::clone(&shared.wires),
            machine: Arc::downgrade(&shared),
            interconnect,
        };
        if let Some((shards, own)) = network.shard() {
            let others: Vec<_> = shards.all().filter(|shard| *shard != own).collect();
            others.into_iter().for_each(|shard| network.shard_went(shard));
        }
        Ok(Self { shared, network, config, threads: Mutex::new(Vec::new()) })
    }

    /// The configuration of the machine.
    pub const fn config(&self) -> &D::Config {
        &self.config
    }

    /// The links between the nodes.
    pub fn fabric(&self) -> &Arc<Fabric> {
        self.shared.fabric()
    }

    /// The links: up or down, their counters, their faults.
    pub fn wires(&self) -> &Wires<D::Body> {
        &self.shared.wires
    }

    /// The network, which any thread may inspect and change.
    pub const fn network(&self) -> &NetworkOf<D> {
        &self.network
    }

    /// Time on the machine's clock, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// The device at `coords`; `None` if none was added.
    pub fn node(&self, coords: Coords) -> Option<&Arc<D::Node>> {
        self.shared.node(self.fabric().shape().node_id(coords)?)
    }

    /// Starts the engine threads, and the thread of the links if the links are modelled.
    ///
    /// # Errors
    ///
    /// [`Error::Host`] if the host has no threads left.
    pub fn start(&self) -> Result<(), Error> {
        self.start_with(|| ())
    }

    /// Like [`Machine::start`], but each thread first calls `first`, for example to drop
    /// privileges.
    ///
    /// # Errors
    ///
    /// As [`Machine::start`].
    pub fn start_with(
        &self,
        first: impl Fn() + Clone + Send + Sync + 'static,
    ) -> Result<(), Error> {
        let mut threads = lock(&self.threads);
        if !threads.is_empty() {
            return Ok(());
        }
        let mut spawn = |name: String, run: Run<D>| {
            let (shared, first) = (Arc::clone(&self.shared), first.clone());
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                first();
                run(&shared);
            });
            threads.push(thread.map_err(Error::host("starting an engine thread"))?);
            Ok::<_, Error>(())
        };
        for inbox in &self.shared.engines {
            let (name, inbox) = (format!("engine{}", inbox.index()), Arc::clone(inbox));
            spawn(name, Box::new(move |shared| Engine { shared, inbox: &inbox }.run()))?;
        }
        self.shared.running.store(true, SeqCst);
        if self.shared.wires.is_modelled() {
            spawn("links".to_owned(), Box::new(links::run::<D>))?;
        }
        Ok(())
    }

    /// True if the machine has engine threads.
    pub fn has_engine(&self) -> bool {
        self.shared.running.load(SeqCst)
    }

    /// Stops the engine threads after their current work.
    pub fn stop(&self) {
        self.shared.stopping.store(true, SeqCst);
        for engine in &self.shared.engines {
            engine.wake();
        }
        self.shared.courier.wake();
        for thread in lock(&self.threads).drain(..) {
            if thread.join().is_err() {
                log::error!("an engine thread has panicked");
            }
        }
    }

    /// Does all pending work in this thread. Returns whether there was any.
    ///
    /// For machines without engine threads. This may never return if the device's own writes feed a
    /// guest's queue; see [`Machine::run_turn`].
    pub fn run_pending(&self) -> bool {
        let mut worked = false;
        while self.run_turn() {
            worked = true;
        }
        worked
    }

    /// Gives every queue with pending work one turn of bounded length, in this thread. Returns
    /// whether there was any pending work.
    pub fn run_turn(&self) -> bool {
        let mut any = false;
        for inbox in &self.shared.engines {
            any |= Engine { shared: &self.shared, inbox }.turn(&mut D::view(&self.shared));
        }
        let Some(progress) = links::turn(&self.shared) else { return any };
        any | progress.next.is_some() | self.shared.wires.has_mail()
    }

    /// Advances a manual clock. Has no effect on a machine that uses the host's clock.
    pub fn advance(&self, ns: u64) {
        self.shared.clock.advance(ns);
    }
}

impl<D: Drive> Drop for MachineOf<D> {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn engine_threads_call_their_hook_first() {
        let shape = "unit".parse().unwrap();
        let machine = Machine::new(MachineConfig { engines: 3, ..MachineConfig::new(shape) });
        let machine = machine.unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        let first = Arc::clone(&calls);
        let call = move || {
            let name = std::thread::current().name().map(str::to_owned);
            assert!(name.is_some_and(|name| name.starts_with("engine")));
            first.fetch_add(1, SeqCst);
        };
        machine.start_with(call.clone()).unwrap();
        // A second call does not affect running threads.
        machine.start_with(call).unwrap();
        machine.stop();
        assert_eq!(calls.load(SeqCst), 3);
    }
}
