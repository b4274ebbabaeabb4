//! The state that all parts of a machine share.
//!
//! Cycle: `super::node`, because a node reaches the others by what is here.
//! Cycle: `super::engine`, because an engine reaches the nodes by what is here.
//! Cycle: `super::links`, because the thread of the links does so, too.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tofu_fabric::{Fabric, NodeId, Wires};
use tofu_icc::Body;

use crate::cables::Cables;
use crate::config::LinkFailed;
use crate::engine::Engine;
use crate::links::Courier;
use crate::node::Node;
use crate::trace::Recorder;

/// The machine's clock.
#[derive(Debug)]
pub(crate) enum Clock {
    Host(Instant),
    /// Advances only by [`crate::Machine::advance`].
    Manual(AtomicU64),
}

/// The state that all parts of a machine share.
pub(crate) struct Shared {
    pub(crate) wires: Arc<Wires<Body>>,
    pub(crate) nodes: Vec<OnceLock<Arc<Node>>>,
    pub(crate) engines: Vec<Arc<Engine>>,
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
        match &self.clock {
            Clock::Host(start) => {
                let host_ns = start.elapsed().as_nanos() as u64;
                if self.wires.is_modelled() { self.courier.clock(host_ns) } else { host_ns }
            }
            Clock::Manual(now) => now.load(SeqCst),
        }
    }

    pub(crate) fn fabric(&self) -> &Arc<Fabric> {
        self.wires.fabric()
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<&Arc<Node>> {
        self.nodes.get(id.index())?.get()
    }

    pub(crate) fn engine_of(&self, id: NodeId) -> &Arc<Engine> {
        &self.engines[id.index() % self.engines.len()]
    }
}
