//! A modelled network that is kept busy, for what measures it.

use tofu_abi::{Coords, TniId};
use tofu_fabric::{DiscardReason, NodeId, Port, Ps, Shape};
use tofu_netmodel::{Message, Network, Sink};

/// TNIs of a node that send.
const TNIS: usize = 4;

/// TLPs of a long message: those of a burst of a device.
const STREAM_TLPS: u32 = 137;

/// The traffic pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Everyone to anyone.
    Uniform,
    /// Everyone to those next to it.
    Neighbour,
    /// Node 0 to those next to it, in long messages through one TNI.
    Stream,
}

/// Keeps TNIs busy: a TNI that has sent a message is given another.
#[derive(Debug)]
pub struct Traffic {
    pattern: Pattern,
    shape: Shape,
    nodes: Vec<Coords>,
    random: u64,
    left: Vec<(NodeId, TniId)>,
    fingerprint: u64,
}

impl Traffic {
    /// Traffic of all nodes of a machine.
    pub fn new(shape: Shape, pattern: Pattern) -> Self {
        let (senders, tnis) =
            if pattern == Pattern::Stream { (1, 1) } else { (shape.nodes(), TNIS) };
        let tnis = |node| TniId::ALL[..tnis].iter().flat_map(move |tni| [(NodeId(node), *tni); 4]);
        let left = (0..senders).flat_map(tnis).collect();
        let nodes = shape.iter().collect();
        Self { pattern, shape, nodes, random: 1, left, fingerprint: 0 }
    }

    /// A hash of all arrivals and departures with their times.
    pub const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Gives a message to each TNI that has room for one.
    ///
    /// # Panics
    ///
    /// If the network is not of the machine's shape.
    pub fn refill(&mut self, network: &mut Network) {
        for (node, src_tni) in std::mem::take(&mut self.left) {
            let src = self.nodes[node.index()];
            let dst = self.target(src);
            let tlps = if self.pattern == Pattern::Stream { STREAM_TLPS } else { 1 };
            let message = Message { src_tni, dst_tni: src_tni, tlps, ..Message::longest(src, dst) };
            network.inject(&message).expect("a message has left");
        }
    }

    fn target(&mut self, from: Coords) -> Coords {
        match self.pattern {
            Pattern::Uniform => {
                let n = self.below(self.nodes.len());
                self.nodes[n]
            }
            Pattern::Neighbour | Pattern::Stream => loop {
                let port = Port::ALL[self.below(Port::COUNT)];
                if let Some(to) = self.shape.neighbor(from, port) {
                    return to;
                }
            },
        }
    }

    const fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (((self.random >> 32) * n as u64) >> 32) as usize
    }

    const fn note(&mut self, what: u64) {
        self.fingerprint = (self.fingerprint ^ what).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.fingerprint ^= self.fingerprint >> 29;
    }
}

impl Sink for Traffic {
    fn delivered(&mut self, at: Ps, node: NodeId, tni: TniId, _: u64) {
        self.note(at << 24 ^ u64::from(node.0) << 4 ^ u64::from(tni.get()));
    }

    fn left(&mut self, at: Ps, node: NodeId, tni: TniId, _: u64) {
        self.note(!(at << 24 ^ u64::from(node.0) << 4 ^ u64::from(tni.get())));
        self.left.push((node, tni));
    }

    fn lost(&mut self, _: Ps, _: NodeId, _: Option<Port>, _: DiscardReason, _: u64) {}

    fn wants_hops(&self) -> bool {
        false
    }
}
