//! Random schedules of failures and repairs.

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
