//! The state that all parts of a machine share.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use tofu_fabric::{Fabric, NodeId, Wires};
use tofu_icc::Body;

use crate::cables::Cables;
use crate::clock::Clock;
use crate::config::LinkFailed;
use crate::courier::Courier;
use crate::inbox::Inbox;
use crate::node::Node;
use crate::trace::Recorder;

/// The state that all parts of a machine share.
pub(crate) struct Shared {
    pub(crate) wires: Arc<Wires<Body>>,
    pub(crate) nodes: Vec<OnceLock<Arc<Node>>>,
    /// What each engine is to do.
    pub(crate) engines: Vec<Arc<Inbox>>,
    /// Drives the links, if they are modelled.
    pub(crate) courier: Courier,
    /// The cables to the parts in other processes, if the machine is divided into parts.
    pub(crate) cables: Option<Arc<Cables>>,
    pub(crate) clock: Clock,
    pub(crate) spin_ns: u64,
    pub(crate) stopping: AtomicBool,
    /// Is told when a modelled link has failed.
    pub(crate) link_failed: Option<LinkFailed>,
    pub(crate) recorder: Arc<Recorder>,
}

impl Shared {
    pub(crate) fn now_ns(&self) -> u64 {
        let now_ns = self.clock.now_ns();
        match self.clock {
            Clock::Host(_) if self.wires.is_modelled() => self.courier.clock(now_ns),
            _ => now_ns,
        }
    }

    pub(crate) fn fabric(&self) -> &Arc<Fabric> {
        self.wires.fabric()
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<&Arc<Node>> {
        self.nodes.get(id.index())?.get()
    }

    pub(crate) fn engine_of(&self, id: NodeId) -> &Arc<Inbox> {
        &self.engines[id.index() % self.engines.len()]
    }
}
