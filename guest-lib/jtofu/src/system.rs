//! The machine as its programs know it: its lengths, which axes are tori, and what has failed.

use std::str::FromStr;

use tofu_abi::Coords;
use tofu_abi::topology::{Axis, Shape, ShapeError};

/// The reason why a description of a machine is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SystemError {
    /// The machine's shape is invalid.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A node reported as failed is not in the machine.
    #[error("the machine {shape} has no node {node}")]
    NoSuchNode {
        /// The node.
        node: Coords,
        /// The machine.
        shape: Shape,
    },
    /// A link reported as down connects two nodes that are not neighbours.
    #[error("the machine {shape} has no link between {from} and {to}")]
    NoSuchLink {
        /// One end.
        from: Coords,
        /// The other end.
        to: Coords,
        /// The machine.
        shape: Shape,
    },
}

/// A 6D mesh/torus, with the nodes and links that jobs must not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    shape: Shape,
    /// Sorted, without duplicates.
    failed: Vec<Coords>,
    /// Pairs of neighbours, smaller end first; sorted, without duplicates.
    down: Vec<(Coords, Coords)>,
}

impl System {
    /// Creates a machine of this shape, without failures.
    pub const fn new(shape: Shape) -> Self {
        Self { shape, failed: Vec::new(), down: Vec::new() }
    }

    /// Marks these nodes as failed: no map uses them, and no path passes through them.
    ///
    /// # Errors
    /// [`SystemError::NoSuchNode`] for a node that the machine does not have.
    pub fn with_failed(
        mut self,
        nodes: impl IntoIterator<Item = Coords>,
    ) -> Result<Self, SystemError> {
        for node in nodes {
            if !self.shape.contains(node) {
                return Err(SystemError::NoSuchNode { node, shape: self.shape });
            }
            self.failed.push(node);
        }
        self.failed.sort_unstable();
        self.failed.dedup();
        Ok(self)
    }

    /// Marks the links between these neighbours as failed. Where two links join the same two nodes
    /// (a torus of length 2), neither is used.
    ///
    /// # Errors
    /// [`SystemError::NoSuchLink`] for nodes that are not neighbours.
    pub fn with_links_down(
        mut self,
        links: impl IntoIterator<Item = (Coords, Coords)>,
    ) -> Result<Self, SystemError> {
        for (from, to) in links {
            if !self.shape.adjacent(from, to) {
                return Err(SystemError::NoSuchLink { from, to, shape: self.shape });
            }
            self.down.push((from.min(to), from.max(to)));
        }
        self.down.sort_unstable();
        self.down.dedup();
        Ok(self)
    }

    /// Marks nodes without a working link as failed: all of their links are down, as those of a
    /// node whose router has failed.
    #[must_use]
    pub fn with_cut_off_failed(mut self) -> Self {
        let shape = self.shape;
        let ends = self.down.iter().flat_map(|(from, to)| [*from, *to]);
        let cut_off = ends
            .filter(|node| shape.neighbors(*node).all(|(_, other)| !self.link_up(*node, other)));
        let cut_off: Vec<_> = cut_off.collect();
        self.failed.extend(cut_off);
        self.failed.sort_unstable();
        self.failed.dedup();
        self
    }

    /// Returns the machine's shape.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns which axes wrap around, in the order X Y Z A B C.
    pub fn wraps(&self) -> [bool; 6] {
        Axis::ALL.map(|axis| self.shape.wraps(axis))
    }

    /// Returns the failed nodes, in ascending order.
    pub fn failed(&self) -> &[Coords] {
        &self.failed
    }

    /// Returns the pairs of neighbours whose link has failed, smaller coordinates first.
    pub fn links_down(&self) -> &[(Coords, Coords)] {
        &self.down
    }

    /// Returns whether a node has failed.
    pub fn is_failed(&self, node: Coords) -> bool {
        self.failed.binary_search(&node).is_ok()
    }

    /// Returns whether the link between two neighbours works.
    pub(crate) fn link_up(&self, one: Coords, other: Coords) -> bool {
        self.down.binary_search(&(one.min(other), one.max(other))).is_err()
    }

    /// Returns whether nothing has failed.
    pub(crate) fn is_whole(&self) -> bool {
        self.failed.is_empty() && self.down.is_empty()
    }
}

impl FromStr for System {
    type Err = ShapeError;

    /// Parses a [`Shape`], for a machine without failures.
    fn from_str(text: &str) -> Result<Self, ShapeError> {
        text.parse().map(Self::new)
    }
}

#[cfg(test)]
/// Creates a machine without failures, for tests.
pub(crate) fn system(size: [u8; 6], torus: [bool; 3]) -> System {
    System::new(Shape::new(size).unwrap().with_torus(torus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_and_failures_are_checked() {
        assert_eq!("2x2x4x2x3x2".parse::<System>().unwrap().shape().nodes(), 192);
        for bad in ["", "2x2", "1x1x1x2x3x2x1", "+1x1x1x2x3x2", "999x1x1x1x1x1"] {
            let error = bad.parse::<System>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("shape \"{bad}\"")), "{error}");
        }
        let error = "1x1x1x3x3x2".parse::<System>().unwrap_err();
        assert_eq!(error.to_string(), "shape \"1x1x1x3x3x2\": axis A may have length 1 to 2");
        let unit: System = "1x1x1x2x3x2".parse().unwrap();
        let outside = Coords::new(1, 0, 0, 0, 0, 0);
        let error = unit.clone().with_failed([outside]).unwrap_err();
        assert_eq!(error.to_string(), "the machine 1x1x1x2x3x2 has no node (1,0,0,0,0,0)");
        let zero = Coords::default();
        let far = Coords::new(0, 0, 0, 1, 1, 0);
        assert!(unit.clone().with_links_down([(zero, far)]).is_err());
        let near = Coords::new(0, 0, 0, 0, 2, 0);
        let cut = unit.with_links_down([(near, zero), (zero, near)]).unwrap();
        assert_eq!(cut.links_down(), [(zero, near)]);
        assert!(!cut.link_up(near, zero) && cut.shape().adjacent(near, zero));
    }
}
