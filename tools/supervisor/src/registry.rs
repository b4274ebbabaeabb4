//! What is known about a machine outside of the thread that runs it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use anyhow::{Context, bail};
use tofu_abi::Coords;
use tofu_fabric::NodeId;
use tofu_gateway::{Connector, LinkStats};
use tofu_machine::Machine;
use tofu_sync::lock;
use tofu_vmm::Holder;

use crate::event::Event;
use crate::gateway::GatewayInfo;
use crate::node::AgentNode;
use crate::plan::Network;

/// What is known about a machine outside of the thread that runs it: by those who serve `tofu ps`
/// and the like.
pub struct Registry {
    pub(crate) network: Network,
    pub(crate) started: Instant,
    pub(crate) events: Sender<Event>,
    linux: OnceLock<Vec<Arc<dyn AgentNode>>>,
    built: OnceLock<Built>,
    /// Nodes without Linux, and what they are doing, in a word.
    others: Mutex<HashMap<NodeId, &'static str>>,
    /// The virtual machines of small guests.
    holders: Mutex<HashMap<NodeId, Holder>>,
    cancelled: AtomicBool,
}

/// A machine that has been built.
struct Built {
    network: tofu_machine::Network,
    gateway: Option<GatewayInfo>,
}

impl Registry {
    /// Of a machine that is not built yet; `events` are its own.
    pub fn new(network: &Network, events: Sender<Event>) -> Self {
        Self {
            network: network.clone(),
            started: Instant::now(),
            events,
            linux: OnceLock::new(),
            built: OnceLock::new(),
            others: Mutex::default(),
            holders: Mutex::default(),
            cancelled: AtomicBool::new(false),
        }
    }

    /// The machine's gateway, if it has one that works.
    pub(crate) fn gateway(&self) -> Option<&Connector> {
        Some(&self.built.get()?.gateway.as_ref()?.connector)
    }

    /// What the gateway's link counts, if it is at this place.
    pub(crate) fn gateway_link(&self, at: Coords) -> Option<&LinkStats> {
        let gateway = self.built.get()?.gateway.as_ref()?;
        (gateway.at == at).then_some(&gateway.stats)
    }

    /// The Linux nodes; none before they were started.
    pub fn linux(&self) -> &[Arc<dyn AgentNode>] {
        self.linux.get().map_or(&[], Vec::as_slice)
    }

    /// The network of a machine that has been built.
    pub(crate) fn running(&self) -> Option<&tofu_machine::Network> {
        self.built.get().map(|built| &built.network)
    }

    /// Tells of the machine that was built, and its gateway.
    ///
    /// # Errors
    ///
    /// If there is one already.
    pub fn built(&self, machine: &Machine, gateway: Option<GatewayInfo>) -> anyhow::Result<()> {
        let built = Built { network: machine.network().clone(), gateway };
        if self.built.set(built).is_err() {
            bail!("a machine can be started once only");
        }
        Ok(())
    }

    /// Tells of the Linux nodes, which are about to start.
    ///
    /// # Errors
    ///
    /// If there are some already.
    pub fn with_linux(&self, nodes: Vec<Arc<dyn AgentNode>>) -> anyhow::Result<()> {
        if self.linux.set(nodes).is_err() {
            bail!("a machine can be started once only");
        }
        if self.cancelled.load(SeqCst) {
            self.cancel();
        }
        Ok(())
    }

    /// Tells of the virtual machine of a small guest.
    pub(crate) fn with_guest(&self, node: NodeId, holder: Holder) {
        lock(&self.holders).insert(node, holder);
    }

    /// Stops the processors of a node, or lets them go on. Its device works on.
    ///
    /// # Errors
    ///
    /// If the node has none that run.
    pub(crate) fn hold(&self, node: NodeId, on: bool) -> anyhow::Result<()> {
        if let Some(linux) = self.linux().iter().find(|linux| linux.id() == node) {
            return linux.hold(on);
        }
        let holder = lock(&self.holders).get(&node).cloned();
        let holder = holder.context("the node has no virtual machine")?;
        if !on {
            holder.resume();
        } else if !holder.pause() {
            bail!("the node's guest has ended, or does not stop");
        }
        Ok(())
    }

    /// Nodes without Linux, and what they are doing, in a word.
    pub fn others(&self) -> MutexGuard<'_, HashMap<NodeId, &'static str>> {
        lock(&self.others)
    }

    /// Ends a start under way.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, SeqCst);
        for node in self.linux() {
            node.stop();
        }
    }
}
