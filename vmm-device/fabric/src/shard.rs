//! The division of a machine into shards, each in a separate process.
//!
//! # A machine in shards
//!
//! A machine can be cut into *shards*, boxes of nodes that run in their own processes. `Shards`
//! makes the largest shard as small as possible and, among such cuts, gives it as few links to
//! others as possible. All of this is *ours*.
//!
//! - Where a link leaves the shard, the sending port counts the packet, faults apply, and the
//!   packet goes over a *cable* to the shard beyond, with the number of links that it has passed.
//!   That shard counts it as received and takes it on, to its target or to the next shard.
//! - Packets, times, counters and discards are those of the machine in one piece, which a property
//!   test checks.
//! - A cable keeps the order of packets, and loses only the last ones before it breaks. Therefore
//!   packets of one class with the same source, target and path arrive in order, and each once.
//! - A shard trusts no other. It derives the link that a packet came over from source, target,
//!   path, class and the number of links, and takes the packet only if that link leads from the
//!   sender's shard to its own. `tofu_icc::wire` refuses packets that no device sends. Refused
//!   packets are counted and dropped.
//! - If a packet of another shard's node is lost, or meets a place without a device, the shard of
//!   its source is notified, and ends the command with the code that it would have in one piece.
//!   Reports are accepted only about own packets whose way leads through the shard that reports.
//! - A link between two shards is down if either end says so, and so are all links of a shard that
//!   is absent. When it is back, each link is as it was, or as it was set meanwhile. A command that
//!   was in flight to the shard ends by its timeout.
//! - While more than a few MiB wait for a cable, interfaces take no more requests, here and in the
//!   shard whose requests pass through or are answered. Answers and signals are always taken, so no
//!   two shards wait for each other.
//! - Modelled links are in one process: time between shards is not modelled.
//!
//! The crate `tofu-cables` has the transport between processes and hosts.

use std::fmt;

use tofu_abi::Coords;
use tofu_abi::topology::{Axis, NodeId, Port, Shape};

/// Number of a shard of a machine, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

impl ShardId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ShardId {
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

/// The machine cannot be cut into that many shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the shape {shape} cannot be cut into {shards} shards; give a product of numbers, one for each \
     axis and no more than its length"
)]
pub struct BadShards {
    /// The machine.
    pub shape: Shape,
    /// The requested shards.
    pub shards: u32,
}

/// The division of a machine into shards: boxes of nodes, in a grid.
///
/// Each axis is cut into stretches such that the largest shard is as small as possible and, among
/// such cuts, has as few links to others as possible (*ours*). Shards are numbered as nodes are:
/// along C first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    shape: Shape,
    blocks: Vec<Block>,
    /// By node.
    owners: Box<[ShardId]>,
}

impl Shards {
    /// The most shards that a machine can have.
    pub const MOST: u32 = 4096;

    /// Cuts a machine into that many shards.
    ///
    /// # Errors
    ///
    /// [`BadShards`] if one of them would be empty, or there are more than [`Shards::MOST`].
    pub fn new(shape: Shape, shards: u32) -> Result<Self, BadShards> {
        let bad = BadShards { shape, shards };
        if shards == 0 || shards > shape.nodes() || shards > Self::MOST {
            return Err(bad);
        }
        let cuts = cuts(&shape, shards).ok_or(bad)?;
        let blocks: Vec<Block> = (0..shards).map(|shard| block(&shape, cuts, shard)).collect();
        let owners = shape.iter().map(|node| shard_of(&shape, cuts, node)).collect();
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

    /// All shards.
    pub fn all(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.blocks.len() as u16).map(ShardId)
    }

    /// The nodes of a shard; `None` if there is no such shard.
    pub fn block(&self, shard: ShardId) -> Option<&Block> {
        self.blocks.get(shard.index())
    }

    /// The shard that a node belongs to; `None` if the machine has no such node.
    pub fn of(&self, node: NodeId) -> Option<ShardId> {
        self.owners.get(node.index()).copied()
    }

    /// The nodes of a shard.
    pub fn nodes(&self, shard: ShardId) -> impl Iterator<Item = NodeId> + '_ {
        let owners = (0..).map(NodeId).zip(&self.owners);
        owners.filter(move |(_, owner)| **owner == shard).map(|(id, _)| id)
    }

    /// The other shards that a shard has links to.
    pub fn neighbors(&self, shard: ShardId) -> Vec<ShardId> {
        let mut found = Vec::new();
        for node in self.nodes(shard) {
            let Some(at) = self.shape.coords(node) else { continue };
            let behind = Port::ALL.into_iter().filter_map(|port| self.shape.neighbor(at, port));
            let owners = behind.filter_map(|node| self.of(self.shape.node_id(node)?));
            found.extend(owners.filter(|owner| *owner != shard));
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// The number of stretches of each axis for that many shards.
fn cuts(shape: &Shape, shards: u32) -> Option<[u32; 6]> {
    let lengths = shape.lengths().map(u32::from);
    let mut best = None;
    let mut cuts = [1; 6];
    choose(&lengths, shards, 0, &mut cuts, &mut best);
    best.map(|(_, cuts)| cuts)
}

/// Tries each number of stretches for the axes from `axis` on, for `left` shards.
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

/// The nodes of the largest shard, and its links to others on one side.
fn cost(lengths: &[u32; 6], cuts: &[u32; 6]) -> (u64, u64) {
    let longest = |axis: usize| u64::from(lengths[axis].div_ceil(cuts[axis]));
    let nodes = (0..6).map(longest).product();
    let faces = (0..6).filter(|&axis| cuts[axis] > 1).map(|axis| nodes / longest(axis)).sum();
    (nodes, faces)
}

/// A shard, by its number.
fn block(shape: &Shape, cuts: [u32; 6], shard: u32) -> Block {
    let (mut at, mut lengths) = (Coords::default(), [1; 6]);
    let mut left = shard;
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

/// The shard that has a node.
fn shard_of(shape: &Shape, cuts: [u32; 6], node: Coords) -> ShardId {
    let shard = Axis::ALL.into_iter().fold(0, |shard, axis| {
        let (length, cut) = (u32::from(shape.len(axis)), cuts[axis.index()]);
        // The last stretch that begins at the node or before it.
        let place = ((u32::from(node[axis]) + 1) * cut - 1) / length;
        shard * cut + place
    });
    ShardId(shard as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(shape: &str, shards: u32) -> Result<Shards, BadShards> {
        Shards::new(shape.parse().unwrap(), shards)
    }

    #[test]
    fn shards_are_boxes_of_similar_size() {
        let shapes = ["unit", "shelf", "half-rack", "rack", "5x3x7x1x1x1", "3x1x1x1x1x1", "k"];
        for shape in shapes {
            for count in [1, 2, 3, 4, 5, 7, 8, 12] {
                let Ok(shards) = shards(shape, count) else { continue };
                assert_eq!(shards.count(), count as usize);
                let sizes: Vec<_> = shards.blocks.iter().map(Block::nodes).collect();
                assert_eq!(sizes.iter().sum::<u32>(), shards.shape().nodes(), "{shape} {count}");
                for (shard, size) in shards.all().zip(&sizes) {
                    let Block { at, lengths } = *shards.block(shard).unwrap();
                    assert_eq!(shards.nodes(shard).count(), *size as usize);
                    let inside = |node: Coords| {
                        Axis::ALL.into_iter().all(|axis| {
                            let from = at[axis];
                            (from..from + lengths[axis.index()]).contains(&node[axis])
                        })
                    };
                    let shape = shards.shape();
                    assert!(shards.nodes(shard).all(|id| inside(shape.coords(id).unwrap())));
                }
                let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
                assert!(most / least <= 4, "{shape} {count}: {least} to {most}");
                assert!(*least > 0);
            }
        }
        let k = shards("k", 432).unwrap();
        assert!(k.blocks.iter().all(|block| block.nodes() == 192));
    }

    #[test]
    fn longest_axis_is_cut() {
        let shards = shards("4x1x1x1x1x1", 2).unwrap();
        let of = |x| shards.of(NodeId(x));
        assert_eq!([0, 1, 2, 3].map(of), [0, 0, 1, 1].map(|shard| Some(ShardId(shard))));
        assert_eq!(of(4), None);
        assert_eq!(shards.block(ShardId(1)).unwrap().to_string(), "(2,0,0,0,0,0) to (3,0,0,0,0,0)");
        assert_eq!(shards.neighbors(ShardId(0)), [ShardId(1)]);
    }

    #[test]
    fn uncuttable_shapes_are_refused() {
        for (shape, count) in [("unit", 0), ("unit", 5), ("unit", 13), ("k", 5000)] {
            let error = shards(shape, count).unwrap_err().to_string();
            assert!(error.contains(&format!("cannot be cut into {count} shards")), "{error}");
        }
        assert_eq!(shards("unit", 12).unwrap().count(), 12);
    }
}
