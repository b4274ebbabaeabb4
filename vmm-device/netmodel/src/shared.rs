//! A modelled network that one thread drives and others look into.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use tofu_abi::Coords;
use tofu_fabric::{
    BadErrors, LinkErrors, ModelledLinks, NoSuchLink, NodeId, Port, PortCounters, Ps, XbCounters,
};
use tofu_links::Parameters;
use tofu_sync::lock;

use crate::network::Network;

/// A network that one thread drives, turn by turn. Other threads may access it between two turns.
#[derive(Debug)]
pub(crate) struct SharedNetwork {
    network: Mutex<Network>,
    /// The number of visitors that wait. Without it, a driver that unlocks and immediately locks
    /// again would always win.
    visitors: AtomicU32,
}

impl SharedNetwork {
    pub(crate) const fn new(network: Network) -> Self {
        Self { network: Mutex::new(network), visitors: AtomicU32::new(0) }
    }

    /// Locks the network for the thread that drives it, once no visitor waits.
    pub(crate) fn drive(&self) -> MutexGuard<'_, Network> {
        while self.visitors.load(SeqCst) > 0 {
            thread::yield_now();
        }
        lock(&self.network)
    }

    /// Locks the network for any other thread.
    pub(crate) fn visit(&self) -> MutexGuard<'_, Network> {
        self.visitors.fetch_add(1, SeqCst);
        let network = lock(&self.network);
        self.visitors.fetch_sub(1, SeqCst);
        network
    }
}

impl ModelledLinks for SharedNetwork {
    fn now(&self) -> Ps {
        self.visit().now()
    }

    fn parameters(&self) -> Parameters {
        *self.visit().parameters()
    }

    fn set_link(&self, node: Coords, port: Port, up: bool) -> Result<(), NoSuchLink> {
        self.visit().set_link(node, port, up)
    }

    fn link_up(&self, node: Coords, port: Port) -> Option<bool> {
        self.visit().link_up(node, port)
    }

    fn set_errors(&self, node: Coords, port: Port, errors: &LinkErrors) -> Result<(), BadErrors> {
        let mut network = self.visit();
        network.set_errors(node, port, errors)?;
        let far = network.shape().neighbor(node, port).ok_or(NoSuchLink { node, port })?;
        network.set_errors(far, port.opposite(), errors)
    }

    fn look_at(&self, nodes: &BTreeSet<NodeId>) {
        self.visit().look_at(nodes);
    }

    fn port_counters(&self, node: NodeId, port: Port) -> Option<PortCounters> {
        self.visit().port_counters(node, port)
    }

    fn xb_counters(&self, node: NodeId) -> Option<XbCounters> {
        self.visit().xb_counters(node)
    }
}
