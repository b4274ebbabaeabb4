//! The state of a machine's links and crossbars.

use std::collections::BTreeSet;
use std::sync::atomic::{
    AtomicBool, AtomicU16, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, Mutex, OnceLock};

use tofu_abi::{Coords, TniId};
use tofu_sync::lock;

use tofu_links::Parameters;

use crate::counters::{PortCounters, XbCounters, XbCycles};
use crate::ecc::RouterErrors;
use crate::link::{BadErrors, LinkErrors, NoSuchLink, NoSuchNode};
use crate::shard::{ShardId, Shards};
use crate::ways::MachineId;
use crate::{Hop, Link, ModelledLinks, NodeId, Port, Ps, Shape, TNIS};

/// Bytes that a crossbar moves in a cycle: TofuD's data path has 128 bits (TofuD paper).
const XB_BYTES_PER_CYCLE: u64 = 16;

/// The reason why link errors are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorsRefused {
    /// Direct links have no bits that could be wrong.
    #[error("the machine's links are direct; errors need links = \"modelled\"")]
    Direct,
    /// The devices correct the errors of these links, without a data link layer below them.
    #[error("links of TNW have bit errors only")]
    BitsOnly,
    /// There is no such link or lane.
    #[error(transparent)]
    Bad(#[from] BadErrors),
}

/// The links of a machine: their state, and what they have carried.
///
/// Any number of threads may use one concurrently. Sending takes no lock, except for the first
/// packet that a node sends. Such a node takes about 730 bytes, any other 24, so the largest
/// machine starts with 9 MiB.
///
/// Counters never go back. A device whose counters can be cleared keeps the value at
/// that time and subtracts.
#[derive(Debug)]
pub struct Fabric {
    id: MachineId,
    shape: Shape,
    nodes: Box<[NodeState]>,
    /// Held while the two ends of a link change together, or all links of a node.
    link_change: Mutex<()>,
    /// Goes up after each change of a link, so that it can be remembered that links were open.
    epoch: AtomicU64,
    /// The links themselves, if they are modelled. They then count instead of the nodes.
    modelled: Option<Arc<dyn ModelledLinks>>,
    /// The shard in this process, if the machine is in shards. Of the nodes of other shards, only
    /// links to this shard count.
    own: Option<Own>,
    routers: Arc<RouterErrors>,
}

/// The shard of a machine that is in this process.
#[derive(Debug)]
struct Own {
    shards: Arc<Shards>,
    id: ShardId,
}

/// The outcome of a packet's hop over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// It has arrived at the other end.
    Crossed,
    /// It is on its way to the other end, which is in another shard of the machine.
    Beyond(ShardId),
    /// The link is down.
    Down,
}

#[derive(Debug, Default)]
struct NodeState {
    /// Bit n is set while the link at port n is down. Both ends of a link have a bit,
    /// so that a sender looks only at its own node.
    down: AtomicU16,
    /// Bit n is set while the link at port n itself is taken down, regardless of its nodes' state.
    cut: AtomicU16,
    /// Bit n is set if the link at port n is down or leads to another shard of the machine: a
    /// sender looks at this first.
    special: AtomicU16,
    /// The router has failed: every link of the node is down.
    dead: AtomicBool,
    /// The node's shard of the machine is absent: every link of the node is down, too.
    absent: AtomicBool,
    /// Allocated when the node first sends, as most nodes of a huge machine never do.
    tx: OnceLock<Box<NodeTx>>,
}

/// The packets that a node sent.
#[derive(Debug, Default)]
struct NodeTx {
    ports: [PortTx; Port::COUNT],
    tnis: TniTx,
}

/// The packets that a port sent. The other end received the same, so it is not counted
/// again: an atomic addition is the greater part of the cost of a hop.
///
/// A cache line each, since different threads send through different ports.
#[derive(Debug, Default)]
#[repr(align(64))]
struct PortTx {
    tlps: AtomicU64,
    bytes: AtomicU64,
    system_tlps: AtomicU64,
    nullified: AtomicU64,
    discarded_normal: AtomicU64,
    discarded_system: AtomicU64,
}

impl PortTx {
    /// Counts TLPs that cross the link.
    #[inline(always)]
    fn count(&self, system: bool, tlps: u32, bytes: u64) {
        self.tlps.fetch_add(tlps.into(), Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        if system {
            self.system_tlps.fetch_add(tlps.into(), Relaxed);
        }
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct TniTx {
    bytes: [AtomicU64; TNIS],
}

impl NodeState {
    #[inline]
    fn tx(&self) -> &NodeTx {
        self.tx.get_or_init(Box::default)
    }

    /// The node's port, if the node ever sent anything.
    fn sent(&self, port: Port) -> Option<&PortTx> {
        self.tx.get().map(|tx| &tx.ports[port.index()])
    }
}

fn set_bit(bits: &AtomicU16, bit: u16, on: bool) {
    if on {
        bits.fetch_or(bit, Relaxed);
    } else {
        bits.fetch_and(!bit, Relaxed);
    }
}

impl Fabric {
    /// Creates the fabric of a machine of this shape, with all links up and all counters 0.
    pub fn new(shape: Shape) -> Self {
        let nodes = (0..shape.nodes()).map(|_| NodeState::default()).collect();
        let (id, link_change) = (MachineId::new(), Mutex::new(()));
        let (routers, epoch) = (Arc::new(RouterErrors::new(shape)), AtomicU64::new(1));
        Self { id, shape, nodes, link_change, epoch, modelled: None, own: None, routers }
    }

    /// Creates the fabric of one shard of a machine and of its links to other shards. Returns
    /// `None` if there is no such shard.
    pub fn of_shard(shards: Arc<Shards>, id: ShardId) -> Option<Self> {
        shards.block(id)?;
        let mut fabric = Self::new(*shards.shape());
        fabric.own = Some(Own { shards, id });
        for node in fabric.own.iter().flat_map(|own| own.shards.nodes(own.id)) {
            let Some(at) = fabric.shape.coords(node) else { continue };
            for port in Port::ALL {
                // Ports without a link have no state to update.
                let _ = fabric.settle(at, port);
            }
        }
        Some(fabric)
    }

    /// The shards of the machine, and the one in this process; `None` if it is not in shards.
    pub fn shard(&self) -> Option<(&Arc<Shards>, ShardId)> {
        self.own.as_ref().map(|own| (&own.shards, own.id))
    }

    /// The shard of the machine that has a node, if that is not this one.
    pub fn elsewhere(&self, node: NodeId) -> Option<ShardId> {
        let own = self.own.as_ref()?;
        own.shards.of(node).filter(|shard| *shard != own.id)
    }

    /// Creates the fabric of a machine over links in modelled time.
    pub fn modelled(shape: Shape, links: Arc<dyn ModelledLinks>) -> Self {
        Self { modelled: Some(links), ..Self::new(shape) }
    }

    /// The time that modelled links have reached, in picoseconds; `None` for direct ones.
    pub fn modelled_ps(&self) -> Option<Ps> {
        self.modelled.as_ref().map(|links| links.now())
    }

    /// The errors that its routers find in packets.
    pub(crate) const fn routers(&self) -> &Arc<RouterErrors> {
        &self.routers
    }

    /// Tells it from all others of this process.
    pub(crate) const fn id(&self) -> &MachineId {
        &self.id
    }

    /// The machine's shape.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    fn ends(&self, node: Coords, port: Port) -> Option<[(&NodeState, u16); 2]> {
        let near = self.shape.node_id(node)?;
        let far = self.shape.node_id(self.shape.neighbor(node, port)?)?;
        Some([
            (&self.nodes[near.index()], 1 << port.index()),
            (&self.nodes[far.index()], 1 << port.opposite().index()),
        ])
    }

    /// Takes the link at a port up or down, in both directions. A link is up unless it or one of
    /// its two nodes is down.
    ///
    /// A packet that is being sent at the same time may still see the former state.
    ///
    /// # Errors
    /// [`NoSuchLink`] if the machine has no such node or nothing is at that port.
    pub fn set_link(&self, node: Coords, port: Port, up: bool) -> Result<(), NoSuchLink> {
        let ends = self.ends(node, port).ok_or(NoSuchLink { node, port })?;
        let _guard = lock(&self.link_change);
        for (end, bit) in ends {
            set_bit(&end.cut, bit, !up);
        }
        self.settle(node, port)
    }

    /// Makes a node's router fail or work again. While it has failed, each of its links is down,
    /// regardless of [`Fabric::set_link`]; afterwards each is as last set. Returns whether that
    /// changes anything.
    ///
    /// A packet to the node itself crosses no link and still arrives (ours).
    ///
    /// # Errors
    /// [`NoSuchNode`] if the machine has no such node.
    pub fn set_node(&self, node: Coords, up: bool) -> Result<bool, NoSuchNode> {
        let dead = &self.state(node)?.dead;
        Ok(self.set_links_of(node, dead, !up))
    }

    /// Marks a node present or absent, when its shard of the machine connects or disconnects. All
    /// links of an absent node are down, regardless of [`Fabric::set_link`] and
    /// [`Fabric::set_node`]; afterwards these apply again.
    ///
    /// # Errors
    /// [`NoSuchNode`] if the machine has no such node.
    pub fn set_there(&self, node: Coords, there: bool) -> Result<(), NoSuchNode> {
        let absent = &self.state(node)?.absent;
        self.set_links_of(node, absent, !there);
        Ok(())
    }

    /// Sets or clears a reason for which the links of a node are down. Returns whether that changes
    /// anything.
    fn set_links_of(&self, node: Coords, why: &AtomicBool, down: bool) -> bool {
        let _guard = lock(&self.link_change);
        if why.swap(down, Relaxed) == down {
            return false;
        }
        for port in Port::ALL {
            // Ports without a link have no state to update.
            let _ = self.settle(node, port);
        }
        true
    }

    /// Returns true if a node's router works, as far as this process knows.
    ///
    /// # Errors
    /// [`NoSuchNode`] if the machine has no such node.
    pub fn node_up(&self, node: Coords) -> Result<bool, NoSuchNode> {
        Ok(!self.state(node)?.dead.load(Relaxed))
    }

    fn state(&self, node: Coords) -> Result<&NodeState, NoSuchNode> {
        let id = self.shape.node_id(node).ok_or(NoSuchNode(node))?;
        Ok(&self.nodes[id.index()])
    }

    /// Updates the state of a link from its own and its nodes'. `link_change` must be held.
    fn settle(&self, node: Coords, port: Port) -> Result<(), NoSuchLink> {
        let ends = self.ends(node, port).ok_or(NoSuchLink { node, port })?;
        let down = ends.iter().any(|(end, bit)| {
            let of_node = end.dead.load(Relaxed) || end.absent.load(Relaxed);
            of_node || end.cut.load(Relaxed) & bit != 0
        });
        if let Some(links) = &self.modelled {
            links.set_link(node, port, !down)?;
        }
        let far = self.shape.neighbor(node, port).ok_or(NoSuchLink { node, port })?;
        let beyond = [node, far]
            .map(|end| self.shape.node_id(end).and_then(|id| self.elsewhere(id)))
            .iter()
            .any(Option::is_some);
        for (end, bit) in ends {
            set_bit(&end.down, bit, down);
            set_bit(&end.special, bit, down || beyond);
        }
        self.epoch.fetch_add(1, Release);
        Ok(())
    }

    /// Sets the errors of a link, in both directions, if links are modelled.
    ///
    /// # Errors
    /// [`ErrorsRefused`] if they are not, or there is no such link or lane.
    pub fn set_link_errors(
        &self,
        node: Coords,
        port: Port,
        errors: &LinkErrors,
    ) -> Result<(), ErrorsRefused> {
        let links = self.modelled.as_ref().ok_or(ErrorsRefused::Direct)?;
        Ok(links.set_errors(node, port, errors)?)
    }

    /// Models all links of these nodes in full, if links are modelled: see
    /// [`ModelledLinks::look_at`].
    pub(crate) fn look_at(&self, nodes: &BTreeSet<NodeId>) {
        if let Some(links) = &self.modelled {
            links.look_at(nodes);
        }
    }

    /// The parameters of the links, if they are modelled.
    pub fn parameters(&self) -> Option<Parameters> {
        self.modelled.as_ref().map(|links| links.parameters())
    }

    /// Returns true if the link at a port is up; `None` if there is no link.
    pub fn link_up(&self, node: Coords, port: Port) -> Option<bool> {
        let [(near, bit), _] = self.ends(node, port)?;
        if let Some(links) = &self.modelled {
            return links.link_up(node, port);
        }
        Some(near.down.load(Relaxed) & bit == 0)
    }

    /// All links of the machine, each once, and whether each is up.
    pub fn links(&self) -> impl Iterator<Item = (Link, bool)> + '_ {
        Link::all(&self.shape)
            .map(|link| (link, self.link_up(link.from, link.port).unwrap_or_default()))
    }

    /// The counters of a port; `None` if the machine has no such node. A port without
    /// a link counts nothing.
    pub fn port_counters(&self, node: NodeId, port: Port) -> Option<PortCounters> {
        let mut counters = match &self.modelled {
            Some(links) => links.port_counters(node, port)?,
            None => self.counted(node, port)?,
        };
        self.routers.add_to(&mut counters, node, port);
        Some(counters)
    }

    /// The counters of a port of direct links.
    fn counted(&self, node: NodeId, port: Port) -> Option<PortCounters> {
        let near = self.nodes.get(node.index())?;
        let mut counters = PortCounters::default();
        if let Some(sent) = near.sent(port) {
            counters.send_tlp = sent.tlps.load(Relaxed);
            counters.send_bytes = sent.bytes.load(Relaxed);
            counters.send_system = sent.system_tlps.load(Relaxed);
            counters.send_nullified = sent.nullified.load(Relaxed);
            counters.tx_discard_normal = sent.discarded_normal.load(Relaxed);
            counters.tx_discard_system = sent.discarded_system.load(Relaxed);
            counters.cut_through = counters.send_tlp;
            counters.recv_dllp = counters.send_tlp;
        }
        if let Some(received) = self.received(node, port) {
            counters.recv_tlp = received.tlps.load(Relaxed);
            counters.recv_bytes = received.bytes.load(Relaxed);
            counters.recv_system = received.system_tlps.load(Relaxed);
            counters.recv_nullified = received.nullified.load(Relaxed);
            counters.send_dllp = counters.recv_tlp;
        }
        Some(counters)
    }

    /// The sending port at the other end of a port's link.
    fn received(&self, node: NodeId, port: Port) -> Option<&PortTx> {
        let far = self.shape.neighbor(self.shape.coords(node)?, port)?;
        self.nodes[self.shape.node_id(far)?.index()].sent(port.opposite())
    }

    /// The counters of a node's crossbar; `None` if the machine has no such node.
    pub fn xb_counters(&self, node: NodeId) -> Option<XbCounters> {
        if let Some(links) = &self.modelled {
            return links.xb_counters(node);
        }
        let tx = self.nodes.get(node.index())?.tx.get();
        let cycles = |bytes: &AtomicU64| XbCycles {
            data: bytes.load(Relaxed) / XB_BYTES_PER_CYCLE,
            wait: 0,
        };
        Some(XbCounters {
            tni: std::array::from_fn(|tni| {
                tx.map_or_else(XbCycles::default, |tx| cycles(&tx.tnis.bytes[tni]))
            }),
            port: Port::ALL.map(|port| {
                self.received(node, port)
                    .map_or_else(XbCycles::default, |received| cycles(&received.bytes))
            }),
        })
    }

    /// Counts what a TNI hands to its node's crossbar.
    #[inline]
    pub(crate) fn count_injected(&self, node: NodeId, tni: TniId, bytes: u64) {
        self.nodes[node.index()].tx().tnis.bytes[tni.index()].fetch_add(bytes, Relaxed);
    }

    /// Counts TLPs that were marked as bad when they were sent over a hop's link.
    pub(crate) fn count_nullified(&self, hop: Hop, tlps: u32) {
        let port = &self.nodes[hop.from.index()].tx().ports[hop.port.index()];
        port.nullified.fetch_add(tlps.into(), Relaxed);
    }

    /// Returns true if the link of a hop is up and leads to no other shard of the machine.
    #[inline]
    pub(crate) fn is_open(&self, hop: Hop) -> bool {
        self.nodes[hop.from.index()].special.load(Relaxed) & 1 << hop.port.index() == 0
    }

    /// The number of changes of links so far, and 1. A link that is open after this was read stays
    /// open until it is another.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// Counts TLPs other than system ones that a TNI of a node sends over these hops.
    #[inline(always)]
    pub(crate) fn count_way(
        &self,
        (from, tni): (NodeId, TniId),
        hops: &[Hop],
        tlps: u32,
        bytes: u64,
    ) {
        let mut tx = self.nodes[from.index()].tx();
        tx.tnis.bytes[tni.index()].fetch_add(bytes, Relaxed);
        let mut at = from;
        for hop in hops {
            if hop.from != at {
                (at, tx) = (hop.from, self.nodes[hop.from.index()].tx());
            }
            tx.ports[hop.port.index()].count(false, tlps, bytes);
        }
    }

    /// Sends over a hop's link and counts that for both ends. If the link is down, the packet
    /// counts as discarded at the sending port.
    #[inline]
    pub(crate) fn send(&self, hop: Hop, system: bool, tlps: u32, bytes: u64) -> Passage {
        if !self.is_open(hop) {
            return self.send_over_special(hop, system, tlps, bytes);
        }
        let port = &self.nodes[hop.from.index()].tx().ports[hop.port.index()];
        port.count(system, tlps, bytes);
        Passage::Crossed
    }

    /// The same for a link that is down or leads to another shard of the machine.
    #[cold]
    fn send_over_special(&self, hop: Hop, system: bool, tlps: u32, bytes: u64) -> Passage {
        let node = &self.nodes[hop.from.index()];
        let port = &node.tx().ports[hop.port.index()];
        if node.down.load(Relaxed) & 1 << hop.port.index() != 0 {
            let discarded = if system { &port.discarded_system } else { &port.discarded_normal };
            discarded.fetch_add(tlps.into(), Relaxed);
            return Passage::Down;
        }
        port.count(system, tlps, bytes);
        self.elsewhere(hop.to).map_or(Passage::Crossed, Passage::Beyond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The promises of the documentation of [`Fabric`].
    #[test]
    fn node_takes_bounded_memory() {
        assert!(size_of::<NodeState>() <= 24);
        assert!(size_of::<NodeTx>() <= 710);
    }

    #[test]
    fn ports_do_not_share_cache_lines() {
        assert_eq!(size_of::<PortTx>(), 64);
        assert_eq!(align_of::<PortTx>(), 64);
    }
}
