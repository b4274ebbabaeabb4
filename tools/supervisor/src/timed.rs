//! Machines in modelled time, for guests whose instructions QEMU counts.
//!
//! Each guest has two connections: one for its device, by vfio-user, and one for its pace. On the
//! latter, a plugin of its QEMU reports the guest's time, and gets the time until which the guest
//! may run. The protocol is that of [`tofu_pace`].

mod between;
mod network;
mod observed;
pub mod outside;
pub(crate) mod pace;
pub(crate) mod until;

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;

use anyhow::Context;
use tofu_abi::topology::{NodeId, Port, Shape};
use tofu_abi::{Coords, Generation};
use tofu_control::protocol::{EventKind, Request, StandsInfo};
use tofu_fabric::Fabric;
use tofu_machine::{AnyNetwork, Interconnect};
use tofu_netmodel::Arbiter;
use tofu_pace::LONGEST_STEP;
use tofu_pace::pages::Pages;
use tofu_sandbox::Role;
use tofu_spec::plan::TimePlan;
use tofu_sync::lock;
use tofu_timed::{EventEngine, Function, Interrupt, Turns};
use tofu_vfio_user::{Backing, ClientMemory, Limits, Server};

use crate::changes::Changed;
use crate::confine::Confinement;
use crate::event::{Event, EventSender};
use crate::timed::between::Between;
use crate::timed::network::TimedNetwork;
use crate::timed::outside::{InputFile, Outside};
use crate::timed::pace::{Pace, Paces, Pending};
use crate::timed::until::Stop;

/// A machine in modelled time.
pub struct TimedMachine {
    network: Arc<TimedNetwork>,
    memories: Vec<Arc<ClientMemory>>,
    paces: Arc<Paces>,
}

impl TimedMachine {
    /// Makes the devices of a machine in which these nodes have guests. Time begins when the
    /// plugins of all of them have connected.
    ///
    /// # Errors
    ///
    /// If the host has no memory left.
    pub fn new(
        (generation, shape): (Generation, Shape),
        guests: &[NodeId],
        backing: Backing,
        time: TimePlan,
    ) -> anyhow::Result<Arc<Self>> {
        let ids: Vec<_> = (0..shape.nodes()).map(NodeId).collect();
        let memory = |_: &NodeId| Arc::new(ClientMemory::new(backing, Limits::DEFAULT));
        let memories: Vec<_> = ids.iter().map(memory).collect();
        let pending: Pending = Arc::new(ids.iter().map(|_| Mutex::default()).collect());
        let interrupts = Arc::clone(&pending);
        let engine = EventEngine::new(
            generation,
            shape,
            Arbiter::InTurn,
            memories.iter().map(|memory| Arc::clone(memory) as _),
            Box::new(move |Interrupt { node, vector, .. }| {
                // Once each, as a node whose guest has gone may get any number.
                let mut pending = lock(&interrupts[node.index()]);
                if !pending.contains(&vector) {
                    pending.push(vector);
                }
            }),
        )?;
        let functions = ids
            .iter()
            .map(|id| Ok(Arc::new(Function::new(&engine, *id)?.context("a node of the machine")?)));
        let functions = functions.collect::<anyhow::Result<_>>()?;
        let instruction = time.instruction.ps();
        let quantum = time.quantum.map_or(0, |quantum| quantum.0.saturating_mul(1000));
        let pages = Pages::new(guests.len(), instruction, quantum);
        let pages = pages.context("the pages of the guests")?;
        let between =
            Arc::new(Between { pages, longest_step: LONGEST_STEP.saturating_mul(instruction) });
        let turns = Turns::start_away(&engine, guests, Arc::clone(&between) as _);
        let ahead = engine.longest_lookahead().max(quantum).saturating_add(instruction);
        let stop = Stop::new(&engine, turns.first(), time.until, ahead);
        let turns = guests.iter().zip(turns);
        let paces = Arc::new(Paces {
            guests: Mutex::new(guests.iter().map(|_| None).collect()),
            pending,
            between: Arc::clone(&between),
            quantum,
            instruction,
            seed: time.seed,
            outside: OnceLock::new(),
            stop,
        });
        let network = TimedNetwork {
            recorder: observed::observe(&engine),
            captures: observed::captures(&engine),
            interconnect: Interconnect::Tofu(generation),
            fabric: Arc::new(Fabric::modelled(shape, Arc::clone(&engine) as _)),
            functions,
            engine,
            guests: turns.map(|(node, turn)| Arc::new(Pace::new(*node, turn))).collect(),
            between,
            instruction,
            paces: Arc::clone(&paces),
        };
        Ok(Arc::new(Self { network: Arc::new(network), memories, paces }))
    }

    /// Has the input of guests come through the machine, by [`TimedMachine::attach`], at boundaries
    /// of its time. It is recorded, or replayed, as `input` says. Call it before time begins.
    ///
    /// # Errors
    ///
    /// If a record cannot be written, or is not one of such a machine.
    pub fn let_in(&self, input: Option<&InputFile>) -> anyhow::Result<()> {
        let TimedNetwork { interconnect, fabric, guests, instruction, engine, .. } = &*self.network;
        let nodes = guests.iter().map(|pace| Some((pace.node, fabric.shape().coords(pace.node)?)));
        let nodes: Vec<_> = nodes.collect::<Option<_>>().context("nodes of the machine")?;
        let machine = format!(
            "{} {} with {} guests, {instruction} ps an instruction, quantum {} ps",
            interconnect.name(),
            fabric.shape(),
            nodes.len(),
            self.paces.quantum
        );
        let between = Arc::clone(&self.paces.between);
        let network = Arc::downgrade(&self.network) as Weak<dyn AnyNetwork>;
        let outside = Arc::new(Outside::new(nodes, between, network, input, machine)?);
        if self.paces.outside.set(Arc::clone(&outside)).is_ok() {
            engine.let_in(outside::PERIOD, Box::new(move |at| outside.take(at)));
        }
        Ok(())
    }

    /// Takes links down. Call it before time begins.
    ///
    /// # Errors
    ///
    /// If there is no such link.
    pub fn take_down(&self, links: &BTreeSet<(Coords, Port)>) -> anyhow::Result<()> {
        for &(at, port) in links {
            self.network.fabric.set_link(at, port, false)?;
        }
        Ok(())
    }

    /// Sends an event when time stands still, as the plan says, and when the network has changed.
    pub(crate) fn tell(&self, events: &EventSender) {
        let [stands, changes] = [events.clone(), events.clone()];
        self.on_stand(move |info| stands.send(Event::TimeStands(info)));
        self.on_change(move |(node, what)| changes.send(Event::Changed(node, what)));
    }

    /// Calls this when time stands still, as the plan says.
    pub(crate) fn on_stand(&self, hears: impl Fn(StandsInfo) + Send + Sync + 'static) {
        self.paces.stop.tell(Box::new(hears));
    }

    /// Calls this when the network has changed, as commands or a record say. It must not call back.
    pub(crate) fn on_change(&self, hears: impl Fn(Changed) + Send + Sync + 'static) {
        let hears = Arc::new(hears);
        if let Some(outside) = self.paces.outside.get() {
            let hears = Arc::clone(&hears);
            outside.on_change(Box::new(move |changed| hears(changed)));
        }
        self.network.engine.on_link_failed(Box::new(move |node, port| {
            hears((Some(node), EventKind::LinkFailed { port: port.name().to_owned() }));
        }));
    }

    /// Changes the network at the next boundary of its time, and waits for that unless time stands
    /// still.
    ///
    /// # Errors
    ///
    /// One line for the user.
    pub(crate) fn change(&self, request: Request) -> anyhow::Result<()> {
        let outside = self.paces.outside.get();
        let outside = outside.context("nothing comes from outside to devices that are served")?;
        outside.change(request, self.stands())
    }

    /// The number of changes that wait for a boundary.
    #[cfg(test)]
    pub(crate) fn waiting_changes(&self) -> usize {
        self.paces.outside.get().map_or(0, |outside| outside.waiting())
    }

    /// True if time stands still.
    pub fn stands(&self) -> bool {
        self.network.stands().is_some()
    }

    /// Takes the sources of the input of a node's guest, its console's and its agent's, before its
    /// virtual machine starts.
    ///
    /// # Errors
    ///
    /// If the node has no guest, or input does not come through the machine.
    pub fn attach(&self, at: Coords, sources: [UnixStream; 2]) -> anyhow::Result<()> {
        let outside = self.paces.outside.get().context("input from outside is not enabled")?;
        outside.attach(self.id(at)?, sources)
    }

    /// Its network, for inspection.
    pub fn network(&self) -> Arc<dyn AnyNetwork> {
        Arc::clone(&self.network) as _
    }

    fn id(&self, at: Coords) -> anyhow::Result<NodeId> {
        self.network.fabric.shape().node_id(at).context("there is no such node")
    }

    fn pace(&self, node: NodeId) -> anyhow::Result<&Arc<Pace>> {
        let mut all = self.network.guests.iter();
        all.find(|pace| pace.node == node).context("the node has no guest")
    }

    /// Makes a server of a node's device.
    ///
    /// # Errors
    ///
    /// If there is no such node.
    pub(crate) fn server(&self, at: Coords) -> anyhow::Result<Server> {
        let index = self.id(at)?.index();
        let function = Arc::clone(&self.network.functions[index]);
        Ok(Server::in_modelled_time(function, Arc::clone(&self.memories[index])))
    }

    /// Keeps the time of the guest of a node, to whose plugin this is a connection, until the
    /// plugin hangs up. The guest of a node can be started again then.
    ///
    /// # Errors
    ///
    /// If the node has no guest, or the host has no threads left.
    pub fn keep(
        self: &Arc<Self>,
        at: Coords,
        plugin: UnixStream,
        confinement: &Confinement,
    ) -> anyhow::Result<()> {
        let pace = Arc::clone(self.pace(self.id(at)?)?);
        let (this, first) = (Arc::clone(self), confinement.hook(Role::VfioUser));
        let run = move || {
            first();
            // The node exists.
            let _ = this.keep_here(at, plugin);
            // Other guests do not wait for one that has not begun.
            this.paces.give_up(&pace);
        };
        // Not joined: it ends with the plugin, or with the machine.
        let thread = thread::Builder::new().name(format!("pace{at}")).spawn(run);
        thread.map(drop).context("no threads left")
    }

    /// The same in this thread. Returns false if the machine has ended.
    pub(crate) fn keep_here(&self, at: Coords, plugin: UnixStream) -> anyhow::Result<bool> {
        let pace = self.pace(self.id(at)?)?;
        match self.paces.keep(pace, plugin) {
            Ok(()) => Ok(true),
            Err(_) if pace.is_stopped() => Ok(false),
            Err(error) => {
                log::warn!("node {at}: its guest is out of modelled time: {error}");
                Ok(true)
            }
        }
    }

    /// Ends the time of all guests.
    pub(crate) fn stop(&self) {
        for pace in &self.network.guests {
            pace.stop();
        }
    }
}

impl Drop for TimedMachine {
    fn drop(&mut self) {
        self.stop();
    }
}
