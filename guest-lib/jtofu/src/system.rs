//! The machine as its programs know it: sizes, tori, and what has failed.

use std::fmt;
use std::str::FromStr;

use tofu_abi::Coords;

/// Names of the six axes in the order of [`Coords::to_array`].
pub const AXIS_NAMES: [char; 6] = ['X', 'Y', 'Z', 'A', 'B', 'C'];

/// The greatest length of each axis: what a node address holds.
const MAX: [u8; 6] = [32, 32, 32, 2, 3, 2];

/// Place of B in [`Coords::to_array`].
pub(crate) const B: usize = 4;

/// Why a machine, or something said of it, is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SystemError {
    /// An axis is too short or too long.
    #[error("axis {} has length {len}, but may have 1 to {}", AXIS_NAMES[*.axis], MAX[*.axis])]
    Length {
        /// The axis, 0 to 5.
        axis: usize,
        /// The length asked for.
        len: u8,
    },
    /// The text is no shape.
    #[error(
        "\"{0}\" is no machine shape: six lengths XxYxZxAxBxC, at most 32x32x32x2x3x2, \
         such as 2x2x4x2x3x2"
    )]
    Syntax(String),
    /// A node that is said to have failed is not in the machine.
    #[error("the machine {size} has no node {node}", size = show(.size))]
    NoSuchNode {
        /// The node.
        node: Coords,
        /// Lengths of the machine's axes.
        size: [u8; 6],
    },
    /// A link that is said to be down joins two nodes that are no neighbours.
    #[error("the machine {size} has no link between {from} and {to}", size = show(.size))]
    NoSuchLink {
        /// One end.
        from: Coords,
        /// The other end.
        to: Coords,
        /// Lengths of the machine's axes.
        size: [u8; 6],
    },
}

fn show(size: &[u8; 6]) -> String {
    size.map(|n| n.to_string()).join("x")
}

/// A 6D mesh/torus, and the nodes and links of it that jobs must not use.
///
/// A and C are meshes of at most 2; B is a ring when it is 3 long and otherwise a mesh; an
/// axis of length 1 has no links (the fabric's rules).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    size: [u8; 6],
    torus: [bool; 6],
    /// Sorted, each once.
    failed: Vec<Coords>,
    /// Pairs of neighbours, smaller end first; sorted, each once.
    down: Vec<(Coords, Coords)>,
}

impl System {
    /// A machine with axes of these lengths, in the order X Y Z A B C. `xyz_torus` says
    /// which of X, Y and Z wrap round.
    ///
    /// # Errors
    /// [`SystemError::Length`] if a length is 0 or more than 32, 32, 32, 2, 3, 2.
    pub fn new(size: [u8; 6], xyz_torus: [bool; 3]) -> Result<Self, SystemError> {
        for (axis, (&len, max)) in size.iter().zip(MAX).enumerate() {
            if len == 0 || len > max {
                return Err(SystemError::Length { axis, len });
            }
        }
        let [x, y, z] = xyz_torus;
        let torus =
            [x && size[0] > 1, y && size[1] > 1, z && size[2] > 1, false, size[B] == 3, false];
        Ok(Self { size, torus, failed: Vec::new(), down: Vec::new() })
    }

    /// The same machine with these nodes out of order: no map uses them and no path goes
    /// through them.
    ///
    /// # Errors
    /// [`SystemError::NoSuchNode`] for a node that the machine does not have.
    pub fn with_failed(
        mut self,
        nodes: impl IntoIterator<Item = Coords>,
    ) -> Result<Self, SystemError> {
        for node in nodes {
            if !self.contains(node) {
                return Err(SystemError::NoSuchNode { node, size: self.size });
            }
            self.failed.push(node);
        }
        self.failed.sort_unstable();
        self.failed.dedup();
        Ok(self)
    }

    /// The same machine with the links between these neighbours out of order. Where two
    /// links join the same two nodes (a torus of length 2), neither is used.
    ///
    /// # Errors
    /// [`SystemError::NoSuchLink`] for nodes that are no neighbours.
    pub fn with_links_down(
        mut self,
        links: impl IntoIterator<Item = (Coords, Coords)>,
    ) -> Result<Self, SystemError> {
        for (from, to) in links {
            if !self.adjacent(from, to) {
                return Err(SystemError::NoSuchLink { from, to, size: self.size });
            }
            self.down.push((from.min(to), from.max(to)));
        }
        self.down.sort_unstable();
        self.down.dedup();
        Ok(self)
    }

    /// Lengths of the axes in nodes, in the order X Y Z A B C.
    pub const fn size(&self) -> [u8; 6] {
        self.size
    }

    /// Which axes wrap round, in the order X Y Z A B C.
    pub const fn torus(&self) -> [bool; 6] {
        self.torus
    }

    /// Nodes that are out of order, in ascending order.
    pub fn failed(&self) -> &[Coords] {
        &self.failed
    }

    /// Neighbours whose link is out of order, the smaller coordinates first.
    pub fn links_down(&self) -> &[(Coords, Coords)] {
        &self.down
    }

    /// Number of nodes, failed ones included; at most 393,216.
    pub fn nodes(&self) -> u32 {
        self.size.iter().map(|n| u32::from(*n)).product()
    }

    /// Whether the machine has a node at these coordinates.
    pub fn contains(&self, node: Coords) -> bool {
        node.to_array().iter().zip(self.size).all(|(c, n)| *c < n)
    }

    /// Whether the node is out of order.
    pub fn is_failed(&self, node: Coords) -> bool {
        self.failed.binary_search(&node).is_ok()
    }

    /// Whether a link joins the two nodes, be it in order or not.
    pub fn adjacent(&self, one: Coords, other: Coords) -> bool {
        if !self.contains(one) || !self.contains(other) {
            return false;
        }
        let mut links = 0;
        for (axis, (a, b)) in one.to_array().into_iter().zip(other.to_array()).enumerate() {
            match a.abs_diff(b) {
                0 => {}
                1 => links += 1,
                d if self.torus[axis] && d == self.size[axis] - 1 => links += 1,
                _ => return false,
            }
        }
        links == 1
    }

    /// Whether the link between two neighbours is in order.
    pub(crate) fn link_up(&self, one: Coords, other: Coords) -> bool {
        self.down.binary_search(&(one.min(other), one.max(other))).is_err()
    }

    /// Whether nothing is out of order.
    pub(crate) fn is_whole(&self) -> bool {
        self.failed.is_empty() && self.down.is_empty()
    }
}

impl fmt::Display for System {
    /// The six lengths, `2x2x4x2x3x2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(&self.size))
    }
}

impl FromStr for System {
    type Err = SystemError;

    /// Six lengths as in `2x2x4x2x3x2`. X, Y and Z are tori.
    fn from_str(text: &str) -> Result<Self, SystemError> {
        let syntax = || SystemError::Syntax(text.to_owned());
        let mut size = [0; 6];
        let mut parts = text.split('x');
        for len in &mut size {
            let part = parts.next().ok_or_else(syntax)?;
            // `parse` alone takes a sign.
            if !part.bytes().all(|b| b.is_ascii_digit()) {
                return Err(syntax());
            }
            *len = part.parse().map_err(|_| syntax())?;
        }
        if parts.next().is_some() {
            return Err(syntax());
        }
        Self::new(size, [true; 3])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_fabric::{Axis, Shape};

    #[test]
    fn neighbours_are_those_of_the_fabric() {
        let cases = [
            ([1, 1, 1, 2, 3, 2], [true; 3]),
            ([3, 2, 1, 2, 2, 1], [true, true, false]),
            ([4, 1, 2, 1, 3, 2], [false; 3]),
        ];
        for (size, torus) in cases {
            let system = System::new(size, torus).unwrap();
            let shape = Shape::new(size).unwrap().with_torus(torus);
            assert_eq!(system.nodes(), shape.nodes());
            assert_eq!(system.torus(), Axis::ALL.map(|axis| shape.wraps(axis)));
            for one in shape.iter() {
                let reached: Vec<_> = tofu_fabric::Port::ALL
                    .into_iter()
                    .filter_map(|p| shape.neighbor(one, p))
                    .collect();
                for other in shape.iter() {
                    assert_eq!(
                        system.adjacent(one, other),
                        reached.contains(&other),
                        "{one} {other}"
                    );
                }
            }
        }
    }

    #[test]
    fn shapes_and_failures_are_checked() {
        assert_eq!("2x2x4x2x3x2".parse::<System>().unwrap().nodes(), 192);
        for bad in ["", "2x2", "1x1x1x2x3x2x1", "+1x1x1x2x3x2", "999x1x1x1x1x1"] {
            assert_eq!(bad.parse::<System>(), Err(SystemError::Syntax(bad.to_owned())));
        }
        let error = "1x1x1x3x3x2".parse::<System>().unwrap_err();
        assert_eq!(error.to_string(), "axis A has length 3, but may have 1 to 2");
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
        assert!(!cut.link_up(near, zero) && cut.adjacent(near, zero));
    }
}
