//! How a broadcast spreads: along a tree over the torus, which each node works out for itself.
//!
//! The tree of an origin reaches a node by the axes in the order X, Y, Z, A, B, C: from the origin
//! along X, from there along Y, and so on, on each axis the shorter way round and, where both are
//! as long, towards higher coordinates. Every edge is one hop.

use tofu_abi::Coords;
use tofu_driver::topology::Shape;

/// Axes of a machine.
const AXES: usize = 6;
/// Children of a node at most: two on each of X, Y, Z and B, one on A and C.
const CHILDREN: usize = 10;

/// The nodes that a node hands a broadcast on to.
#[derive(Clone, Debug, Default)]
pub struct Children {
    nodes: [Coords; CHILDREN],
    len: usize,
    next: usize,
}

impl Iterator for Children {
    type Item = Coords;

    fn next(&mut self) -> Option<Coords> {
        let node = self.nodes.get(self.next).filter(|_| self.next < self.len)?;
        self.next += 1;
        Some(*node)
    }
}

/// Hops from `from` to `to` on an axis and in which direction.
fn way(shape: &Shape, axis: usize, from: u8, to: u8) -> (u8, bool) {
    let straight = from.abs_diff(to);
    let plus = to > from;
    if !shape.wraps(axis) {
        return (straight, plus);
    }
    let round = shape.lengths()[axis] - straight;
    if straight != 0 && (round < straight || (round == straight && !plus)) {
        (round, !plus)
    } else {
        (straight, plus)
    }
}

/// The neighbour on an axis; `None` at the end of one that does not wrap.
fn step(shape: &Shape, axis: usize, at: u8, plus: bool) -> Option<u8> {
    let len = shape.lengths()[axis];
    let wraps = shape.wraps(axis);
    match plus {
        true if at + 1 < len => Some(at + 1),
        true if wraps => Some(0),
        false if at > 0 => Some(at - 1),
        false if wraps => Some(len - 1),
        _ => None,
    }
}

/// The last axis on which two nodes differ.
fn last_axis(a: Coords, b: Coords) -> Option<usize> {
    let (a, b) = (a.to_array(), b.to_array());
    (0..AXES).rev().find(|axis| a[*axis] != b[*axis])
}

/// The nodes to which `node` hands on what comes from `origin`. Both must be in the machine, else
/// there are none.
pub fn children(shape: &Shape, origin: Coords, node: Coords) -> Children {
    let mut children = Children::default();
    if shape.rank(origin).is_none() || shape.rank(node).is_none() {
        return children;
    }
    let (from, at) = (origin.to_array(), node.to_array());
    let last = last_axis(origin, node);
    for axis in last.unwrap_or(0)..AXES {
        for plus in [true, false] {
            let Some(next) = step(shape, axis, at[axis], plus) else { continue };
            // A child is one hop further away, and reached from here.
            let (hops, direction) = way(shape, axis, from[axis], next);
            let (before, _) = way(shape, axis, from[axis], at[axis]);
            if hops == before + 1 && direction == plus && children.len < CHILDREN {
                let mut to = at;
                to[axis] = next;
                children.nodes[children.len] = Coords::from_array(to);
                children.len += 1;
            }
        }
    }
    children
}

/// The node that hands on to `node` what comes from `origin`; `None` for the origin itself.
pub fn parent(shape: &Shape, origin: Coords, node: Coords) -> Option<Coords> {
    let axis = last_axis(origin, node)?;
    let mut at = node.to_array();
    let (_, plus) = way(shape, axis, origin.to_array()[axis], at[axis]);
    at[axis] = step(shape, axis, at[axis], !plus)?;
    Some(Coords::from_array(at))
}

/// Whether `node` is on the way from `origin` to `to`, or is `origin`.
pub fn is_ancestor(shape: &Shape, origin: Coords, node: Coords, to: Coords) -> bool {
    let mut at = to;
    // No way is longer than half of each ring, or a mesh from end to end.
    for _ in 0..AXES * 32 {
        match parent(shape, origin, at) {
            Some(parent) if parent == node => return true,
            Some(parent) => at = parent,
            None => return false,
        }
    }
    false
}
