//! Random schedules of failures and repairs.

use std::collections::BTreeSet;

use tofu_abi::Coords;
use tofu_abi::topology::{NodeId, Shape};

/// An element that fails, or is repaired if the flag is set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// A link, by its number among all.
    Link(usize, bool),
    /// A node's router, by the node's number.
    Node(u32, bool),
    /// The board of a node.
    Board(u32, bool),
}

/// The links and nodes that are down in a machine.
pub(crate) struct Down {
    shape: Shape,
    /// Lengths of a board.
    board: [u8; 6],
    pub(crate) links: BTreeSet<usize>,
    pub(crate) nodes: BTreeSet<u32>,
}

impl Down {
    /// Nothing yet.
    pub(crate) fn new(shape: Shape, board: [u8; 6]) -> Self {
        Self { shape, board, links: BTreeSet::new(), nodes: BTreeSet::new() }
    }

    /// Takes note of a change; returns the nodes that it is about, none if it is about a link.
    pub(crate) fn note(&mut self, change: Change) -> Vec<u32> {
        let (nodes, up) = match change {
            Change::Link(link, up) => {
                _ = if up { self.links.remove(&link) } else { self.links.insert(link) };
                return Vec::new();
            }
            Change::Node(node, up) => (vec![node], up),
            Change::Board(node, up) => {
                let at = self.shape.coords(NodeId(node)).unwrap();
                let board = self.shape.block(at, self.board);
                (board.map(|at| self.node(at)).collect(), up)
            }
        };
        for node in &nodes {
            _ = if up { self.nodes.remove(node) } else { self.nodes.insert(*node) };
        }
        nodes
    }

    /// The number of a node.
    pub(crate) fn node(&self, at: Coords) -> u32 {
        self.shape.node_id(at).unwrap().0
    }

    /// The changes that repair everything.
    pub(crate) fn repairs(&self) -> Vec<Change> {
        let links = self.links.iter().map(|link| Change::Link(*link, true));
        links.chain(self.nodes.iter().map(|node| Change::Node(*node, true))).collect()
    }
}

/// Numbers of a series.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    /// The next entry of a schedule for a machine of this number of nodes and links.
    pub(crate) fn change(&mut self, nodes: u32, links: usize) -> Change {
        let node = self.below(nodes.into()) as u32;
        let up = self.below(2) == 0;
        match self.below(4) {
            0 | 1 => Change::Link(self.below(links as u64) as usize, up),
            2 => Change::Node(node, up),
            _ => Change::Board(node, up),
        }
    }
}
