//! The state that all parts of a machine share.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use tofu_abi::{Coords, TniId};
use tofu_fabric::{Fabric, NodeId, Port, Wires};

use crate::cables::Cables;
use crate::clock::Clock;
use crate::config::{LinkFailed, Surroundings};
use crate::courier::Courier;
use crate::device::Device;
use crate::error::Error;
use crate::inbox::Inbox;

/// The engine that releases packets that faults hold back.
pub(crate) const RELEASES: usize = 0;

/// The state that all parts of a machine share.
pub struct Shared<D: Device> {
    pub(crate) wires: Arc<Wires<D::Body>>,
    /// The cables to the shards in other processes, if the machine is divided into shards.
    pub(crate) cables: Option<Arc<Cables>>,
    pub(crate) nodes: Vec<OnceLock<Arc<D::Node>>>,
    /// The work of each engine.
    pub(crate) engines: Vec<Arc<Inbox<D::Work>>>,
    /// Drives the links, if they are modelled.
    pub(crate) courier: Courier,
    pub(crate) clock: Clock,
    /// The time for which a page is polled without pause after it last had something new, in
    /// nanoseconds.
    pub(crate) spin_ns: u64,
    /// True if there are engine threads.
    pub(crate) running: AtomicBool,
    pub(crate) stopping: AtomicBool,
    /// Called when a modelled link has failed.
    pub(crate) link_failed: Option<LinkFailed>,
    pub(crate) extra: D::Extra,
}

impl<D: Device> Shared<D> {
    pub(crate) fn new(
        wires: Wires<D::Body>,
        clock: Clock,
        (engines, spin_ns): (usize, u64),
        surroundings: Surroundings,
        extra: D::Extra,
    ) -> Result<Self, Error> {
        let Surroundings { shard, link_failed } = surroundings;
        let cables = shard.zip(wires.fabric().shard()).map(|(shard, (shards, own))| {
            let cables = Arc::new(Cables::new(Arc::clone(shards), own, shard.transport));
            wires.set_cables(Some(Arc::clone(&cables) as _));
            cables
        });
        let nodes = wires.fabric().shape().nodes();
        let engines = (0..engines.max(1)).map(|index| Inbox::new(index).map(Arc::new));
        Ok(Self {
            engines: engines.collect::<Result<_, _>>()?,
            nodes: (0..nodes).map(|_| OnceLock::new()).collect(),
            wires: Arc::new(wires),
            cables,
            courier: Courier::new(),
            clock,
            spin_ns,
            running: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            link_failed,
            extra,
        })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        let now_ns = self.clock.now_ns();
        match self.clock {
            Clock::Host(_) if self.wires.is_modelled() => self.courier.clock(now_ns),
            _ => now_ns,
        }
    }

    /// True if an interface of a node may send another request.
    #[inline]
    pub(crate) fn has_room(&self, node: Coords, tni: TniId) -> bool {
        let cables = self.cables.as_ref();
        self.wires.has_room(node, tni) && cables.is_none_or(|cables| cables.has_room())
    }

    /// Reports that a modelled link has failed.
    pub(crate) fn link_failed(&self, node: NodeId, port: Port) {
        let at = self.fabric().shape().coords(node).unwrap_or_default();
        log::warn!("{at} port {}: link failed: no frame gets through; it is now down", port.name());
        if let Some(tell) = &self.link_failed {
            tell(node, port);
        }
    }

    pub(crate) fn fabric(&self) -> &Arc<Fabric> {
        self.wires.fabric()
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<&Arc<D::Node>> {
        self.nodes.get(id.index())?.get()
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Arc<D::Node>> {
        self.nodes.iter().filter_map(OnceLock::get)
    }

    pub(crate) fn engine_of(&self, id: NodeId) -> &Arc<Inbox<D::Work>> {
        &self.engines[id.index() % self.engines.len()]
    }

    /// Adds a node at coordinates, which is made from its number and its engine's inbox.
    pub(crate) fn add(
        &self,
        coords: Coords,
        make: impl FnOnce(NodeId, Arc<Inbox<D::Work>>) -> Result<D::Node, Error>,
    ) -> Result<Arc<D::Node>, Error> {
        let id = self.fabric().shape().node_id(coords).ok_or(Error::NoSuchNode(coords))?;
        let place = self.nodes.get(id.index()).ok_or(Error::NoSuchNode(coords))?;
        let inbox = self.engine_of(id);
        let node = Arc::new(make(id, Arc::clone(inbox))?);
        place.set(Arc::clone(&node)).map_err(|_| Error::NodeExists(coords))?;
        inbox.adopt(id);
        Ok(node)
    }
}
