//! A machine in parts, each of which is in a process of its own.

use std::fmt;

use tofu_abi::Coords;
use tofu_abi::topology::{Axis, NodeId, Port, Shape};

/// Number of a part of a machine, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId(pub u16);

impl PartId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A box of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The node with the lowest coordinates.
    pub at: Coords,
    /// Lengths along X, Y, Z, A, B and C.
    pub lengths: [u8; 6],
}

impl Block {
    /// Its nodes.
    pub fn nodes(&self) -> u32 {
        self.lengths.iter().map(|&length| u32::from(length)).product()
    }
}

impl fmt::Display for Block {
    /// As `(0,0,0,0,0,0) to (1,0,0,1,2,1)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.at;
        for axis in Axis::ALL {
            last[axis] += self.lengths[axis.index()].saturating_sub(1);
        }
        write!(f, "{} to {last}", self.at)
    }
}

/// The machine cannot be cut into that many parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the shape {shape} cannot be cut into {parts} parts; give a product of numbers, one for each \
     axis and no more than its length"
)]
pub struct BadParts {
    /// The machine.
    pub shape: Shape,
    /// The parts that were asked for.
    pub parts: u32,
}

/// The division of a machine into parts: boxes of nodes, in a grid.
///
/// Each axis is cut into stretches such that the largest part is as small as possible and, among
/// such cuts, has as few links to others as possible (*ours*). Parts are numbered as nodes are:
/// along C first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    shape: Shape,
    blocks: Vec<Block>,
    /// By node.
    owners: Box<[PartId]>,
}

impl Parts {
    /// The most parts that a machine can have.
    pub const MOST: u32 = 4096;

    /// Cuts a machine into that many parts.
    ///
    /// # Errors
    ///
    /// [`BadParts`] if one of them would be empty, or there are more than [`Parts::MOST`].
    pub fn new(shape: Shape, parts: u32) -> Result<Self, BadParts> {
        let bad = BadParts { shape, parts };
        if parts == 0 || parts > shape.nodes() || parts > Self::MOST {
            return Err(bad);
        }
        let cuts = cuts(&shape, parts).ok_or(bad)?;
        let blocks: Vec<Block> = (0..parts).map(|part| block(&shape, cuts, part)).collect();
        let owners = shape.iter().map(|node| part_of(&shape, cuts, node)).collect();
        Ok(Self { shape, blocks, owners })
    }

    /// The machine.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Their number.
    pub const fn count(&self) -> usize {
        self.blocks.len()
    }

    /// All parts.
    pub fn all(&self) -> impl Iterator<Item = PartId> + use<> {
        (0..self.blocks.len() as u16).map(PartId)
    }

    /// The nodes of a part; `None` if there is no such part.
    pub fn block(&self, part: PartId) -> Option<&Block> {
        self.blocks.get(part.index())
    }

    /// The part that a node belongs to; `None` if the machine has no such node.
    pub fn of(&self, node: NodeId) -> Option<PartId> {
        self.owners.get(node.index()).copied()
    }

    /// The nodes of a part.
    pub fn nodes(&self, part: PartId) -> impl Iterator<Item = NodeId> + '_ {
        let owners = (0..).map(NodeId).zip(&self.owners);
        owners.filter(move |(_, owner)| **owner == part).map(|(id, _)| id)
    }

    /// The other parts that a part has links to.
    pub fn neighbors(&self, part: PartId) -> Vec<PartId> {
        let mut found = Vec::new();
        for node in self.nodes(part) {
            let Some(at) = self.shape.coords(node) else { continue };
            let behind = Port::ALL.into_iter().filter_map(|port| self.shape.neighbor(at, port));
            let owners = behind.filter_map(|node| self.of(self.shape.node_id(node)?));
            found.extend(owners.filter(|owner| *owner != part));
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// The number of stretches of each axis for that many parts.
fn cuts(shape: &Shape, parts: u32) -> Option<[u32; 6]> {
    let lengths = shape.lengths().map(u32::from);
    let mut best = None;
    let mut cuts = [1; 6];
    choose(&lengths, parts, 0, &mut cuts, &mut best);
    best.map(|(_, cuts)| cuts)
}

/// Tries each number of stretches for the axes from `axis` on, for `left` parts.
fn choose(
    lengths: &[u32; 6],
    left: u32,
    axis: usize,
    cuts: &mut [u32; 6],
    best: &mut Option<((u64, u64), [u32; 6])>,
) {
    let Some(&length) = lengths.get(axis) else {
        if left == 1 {
            let cost = cost(lengths, cuts);
            if best.is_none_or(|(least, _)| cost < least) {
                *best = Some((cost, *cuts));
            }
        }
        return;
    };
    // The largest number first: of two equally good cuts, the one of the earlier axis is kept.
    for cut in (1..=length.min(left)).rev().filter(|cut| left.is_multiple_of(*cut)) {
        cuts[axis] = cut;
        choose(lengths, left / cut, axis + 1, cuts, best);
    }
}

/// The nodes of the largest part, and its links to others on one side.
fn cost(lengths: &[u32; 6], cuts: &[u32; 6]) -> (u64, u64) {
    let longest = |axis: usize| u64::from(lengths[axis].div_ceil(cuts[axis]));
    let nodes = (0..6).map(longest).product();
    let faces = (0..6).filter(|&axis| cuts[axis] > 1).map(|axis| nodes / longest(axis)).sum();
    (nodes, faces)
}

/// A part, by its number.
fn block(shape: &Shape, cuts: [u32; 6], part: u32) -> Block {
    let (mut at, mut lengths) = (Coords::default(), [1; 6]);
    let mut left = part;
    for axis in Axis::ALL.into_iter().rev() {
        let (length, cut) = (u32::from(shape.len(axis)), cuts[axis.index()]);
        let place = left % cut;
        left /= cut;
        let [from, to] = [place, place + 1].map(|place| place * length / cut);
        // Lengths of axes fit in a byte.
        (at[axis], lengths[axis.index()]) = (from as u8, (to - from) as u8);
    }
    Block { at, lengths }
}

/// The part that has a node.
fn part_of(shape: &Shape, cuts: [u32; 6], node: Coords) -> PartId {
    let part = Axis::ALL.into_iter().fold(0, |part, axis| {
        let (length, cut) = (u32::from(shape.len(axis)), cuts[axis.index()]);
        // The last stretch that begins at the node or before it.
        let place = ((u32::from(node[axis]) + 1) * cut - 1) / length;
        part * cut + place
    });
    PartId(part as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(shape: &str, parts: u32) -> Result<Parts, BadParts> {
        Parts::new(shape.parse().unwrap(), parts)
    }

    #[test]
    fn parts_are_boxes_of_similar_size() {
        let shapes = ["unit", "shelf", "half-rack", "rack", "5x3x7x1x1x1", "3x1x1x1x1x1", "k"];
        for shape in shapes {
            for count in [1, 2, 3, 4, 5, 7, 8, 12] {
                let Ok(parts) = parts(shape, count) else { continue };
                assert_eq!(parts.count(), count as usize);
                let sizes: Vec<_> = parts.blocks.iter().map(Block::nodes).collect();
                assert_eq!(sizes.iter().sum::<u32>(), parts.shape().nodes(), "{shape} {count}");
                for (part, size) in parts.all().zip(&sizes) {
                    let Block { at, lengths } = *parts.block(part).unwrap();
                    assert_eq!(parts.nodes(part).count(), *size as usize);
                    let inside = |node: Coords| {
                        Axis::ALL.into_iter().all(|axis| {
                            let from = at[axis];
                            (from..from + lengths[axis.index()]).contains(&node[axis])
                        })
                    };
                    let shape = parts.shape();
                    assert!(parts.nodes(part).all(|id| inside(shape.coords(id).unwrap())));
                }
                let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
                assert!(most / least <= 4, "{shape} {count}: {least} to {most}");
                assert!(*least > 0);
            }
        }
        let k = parts("k", 432).unwrap();
        assert!(k.blocks.iter().all(|block| block.nodes() == 192));
    }

    #[test]
    fn longest_axis_is_cut() {
        let parts = parts("4x1x1x1x1x1", 2).unwrap();
        let of = |x| parts.of(NodeId(x));
        assert_eq!([0, 1, 2, 3].map(of), [0, 0, 1, 1].map(|part| Some(PartId(part))));
        assert_eq!(of(4), None);
        assert_eq!(parts.block(PartId(1)).unwrap().to_string(), "(2,0,0,0,0,0) to (3,0,0,0,0,0)");
        assert_eq!(parts.neighbors(PartId(0)), [PartId(1)]);
    }

    #[test]
    fn uncuttable_shapes_are_refused() {
        for (shape, count) in [("unit", 0), ("unit", 5), ("unit", 13), ("k", 5000)] {
            let error = parts(shape, count).unwrap_err().to_string();
            assert!(error.contains(&format!("cannot be cut into {count} parts")), "{error}");
        }
        assert_eq!(parts("unit", 12).unwrap().count(), 12);
    }
}
