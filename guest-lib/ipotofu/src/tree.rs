//! The relaying of broadcasts: along a tree over the torus that each node computes for itself.
//!
//! The tree of an origin reaches a node by the axes in the order X, Y, Z, A, B, C: from the origin
//! along X, from there along Y, and so on. On each axis it takes the shorter direction, or that of
//! increasing coordinates if both are equally long. Every edge is one hop.

use tofu_abi::Coords;
use tofu_abi::topology::{Axis, Port, Shape};

/// The most children of a node: one at each port.
pub(crate) const MAX_CHILDREN: usize = Port::COUNT;
/// More hops than the longest path down a tree: the lengths of all axes.
pub(crate) const MAX_DEPTH: usize = {
    let [x, y, z, a, b, c] = Shape::LARGEST.lengths();
    x as usize + y as usize + z as usize + a as usize + b as usize + c as usize
};

/// The nodes that a node relays a broadcast to.
#[derive(Clone, Debug, Default)]
pub struct Children {
    nodes: [Coords; MAX_CHILDREN],
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

/// The last axis on which two nodes differ.
fn last_axis(a: Coords, b: Coords) -> Option<Axis> {
    Axis::ALL.into_iter().rev().find(|axis| a[*axis] != b[*axis])
}

/// The nodes that `node` relays broadcasts of `origin` to. There are none unless both nodes are in
/// the machine.
pub fn children(shape: &Shape, origin: Coords, node: Coords) -> Children {
    let mut children = Children::default();
    if !shape.contains(origin) || !shape.contains(node) {
        return children;
    }
    let last = last_axis(origin, node).unwrap_or(Axis::X);
    for axis in Axis::ALL.into_iter().filter(|axis| *axis >= last) {
        for step in [1, -1] {
            let Some(next) = shape.walk(axis, node[axis], step) else { continue };
            // A child is one hop further away on the same axis, in the same direction.
            let before = shape.way(axis, origin[axis], node[axis]);
            if shape.way(axis, origin[axis], next) == before + step
                && before * step >= 0
                && children.len < MAX_CHILDREN
            {
                let mut to = node;
                to[axis] = next;
                children.nodes[children.len] = to;
                children.len += 1;
            }
        }
    }
    children
}

/// The node that relays broadcasts of `origin` to `node`; `None` for the origin itself.
pub fn parent(shape: &Shape, origin: Coords, node: Coords) -> Option<Coords> {
    let axis = last_axis(origin, node)?;
    let back = -shape.way(axis, origin[axis], node[axis]).signum();
    let mut parent = node;
    parent[axis] = shape.walk(axis, node[axis], back)?;
    Some(parent)
}

/// Returns true if `node` is on the way from `origin` to `to`, or is `origin`.
pub fn is_ancestor(shape: &Shape, origin: Coords, node: Coords, to: Coords) -> bool {
    let mut at = to;
    for _ in 0..MAX_DEPTH {
        match parent(shape, origin, at) {
            Some(parent) if parent == node => return true,
            Some(parent) => at = parent,
            None => return false,
        }
    }
    false
}
