//! The way of a packet, and which of the twelve paths lead to a node.

use tofu_abi::{Coords, Path};

use crate::System;
use crate::system::B;

const A: usize = 3;
const C: usize = 5;
/// The order of the axes: to the path's A, B, C, along X, Y, Z, to the target's A, B, C
/// (the routing rule of the interconnect).
const LEGS: [usize; 9] = [B, C, A, 0, 1, 2, A, C, B];

/// Why there are no paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The machine does not have the node.
    #[error("the machine has no node {0}")]
    NoSuchNode(Coords),
}

/// A path to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathTo {
    /// The A, B, C coordinates at which packets enter X, Y, Z.
    pub path: Path,
    /// Length of the way in hops; 0 to the node itself.
    pub hops: u32,
}

impl System {
    /// The nodes that a packet visits after `from`, the target last. Empty if it is there.
    ///
    /// Each leg goes the shorter way round its axis, and towards higher coordinates where
    /// both are as long, as the fabric does.
    pub(crate) fn route(&self, from: Coords, to: Coords, path: Path) -> Vec<Coords> {
        let mut at = from.to_array();
        let target = to.to_array();
        let by = [0, 0, 0, path.a, path.b, path.c];
        let mut visited = Vec::new();
        for (leg, axis) in LEGS.into_iter().enumerate() {
            let goal = if leg < 3 { by[axis] } else { target[axis] };
            let len = self.size()[axis];
            let ahead = (goal + len - at[axis]) % len;
            let plus = if self.torus()[axis] { ahead <= len - ahead } else { goal > at[axis] };
            while at[axis] != goal {
                at[axis] = if plus { (at[axis] + 1) % len } else { (at[axis] + len - 1) % len };
                visited.push(Coords::from_array(at));
            }
        }
        visited
    }

    /// Length of the way if all nodes and links on it are in order.
    fn working_route(&self, from: Coords, to: Coords, path: Path) -> Option<u32> {
        let mut at = from;
        let route = self.route(from, to, path);
        for &next in &route {
            // Whether the ends work is not the path's business.
            if (next != to && next != from && self.is_failed(next)) || !self.link_up(at, next) {
                return None;
            }
            at = next;
        }
        Some(route.len() as u32)
    }

    fn paths(&self, from: Coords, to: Coords, both_ways: bool) -> Result<Vec<PathTo>, RouteError> {
        for node in [from, to] {
            if !self.contains(node) {
                return Err(RouteError::NoSuchNode(node));
            }
        }
        let [.., a, b, c] = self.size();
        let all =
            (0..a).flat_map(|a| (0..b).flat_map(move |b| (0..c).map(move |c| Path { a, b, c })));
        let mut paths: Vec<_> = all
            .filter_map(|path| {
                let hops = self.working_route(from, to, path)?;
                if both_ways {
                    self.working_route(to, from, path)?;
                }
                Some(PathTo { path, hops })
            })
            .collect();
        paths.sort_by_key(|way| (way.hops, way.path != to.default_path(), way.path));
        Ok(paths)
    }

    /// Paths for one-sided communication from a node to another: the shortest first, and
    /// among the shortest the target's own A, B, C first, which is the default path. Paths
    /// are left out if a request or its answer (which takes the same path coordinates)
    /// would meet a failed node or link; so there may be none.
    ///
    /// # Errors
    /// [`RouteError::NoSuchNode`] if the machine lacks one of the nodes.
    pub fn onesided_paths(&self, from: Coords, to: Coords) -> Result<Vec<PathTo>, RouteError> {
        self.paths(from, to, true)
    }

    /// Paths for a signal of a barrier gate, in the same order. Nothing answers a signal,
    /// so just the way there counts.
    ///
    /// # Errors
    /// [`RouteError::NoSuchNode`] if the machine lacks one of the nodes.
    pub fn barrier_paths(&self, from: Coords, to: Coords) -> Result<Vec<PathTo>, RouteError> {
        self.paths(from, to, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tofu_fabric::{Class, Shape};

    fn machine() -> impl Strategy<Value = ([u8; 6], [bool; 3])> {
        let size = (1..=6u8, 1..=5u8, 1..=4u8, 1..=2u8, 1..=3u8, 1..=2u8);
        (size, any::<[bool; 3]>())
            .prop_map(|((x, y, z, a, b, c), torus)| ([x, y, z, a, b, c], torus))
    }

    fn node(seed: u64, size: [u8; 6]) -> Coords {
        let mut rest = seed;
        Coords::from_array(size.map(|n| {
            let c = rest % u64::from(n);
            rest /= u64::from(n);
            c as u8
        }))
    }

    proptest! {
        #[test]
        fn routes_are_those_of_the_fabric((size, torus) in machine(), from: u64, to: u64) {
            let system = System::new(size, torus).unwrap();
            let shape = Shape::new(size).unwrap().with_torus(torus);
            let (from, to) = (node(from, size), node(to, size));
            for path in shape.paths() {
                let theirs: Vec<_> = shape
                    .route(from, to, path, Class::Request)
                    .unwrap()
                    .map(|hop| shape.coords(hop.to).unwrap())
                    .collect();
                prop_assert_eq!(system.route(from, to, path), theirs);
            }
            let paths = system.onesided_paths(from, to).unwrap();
            prop_assert_eq!(paths.len(), shape.paths().count());
            prop_assert_eq!(paths[0].path, to.default_path());
            prop_assert!(paths.is_sorted_by_key(|way| way.hops));
            prop_assert_eq!(&paths, &system.barrier_paths(from, to).unwrap());
        }

        #[test]
        fn paths_avoid_what_has_failed(
            (size, torus) in machine(), from: u64, to: u64,
            failed in proptest::collection::vec(any::<u64>(), 0..5),
        ) {
            let (from, to) = (node(from, size), node(to, size));
            let failed: Vec<_> = failed.into_iter().map(|seed| node(seed, size)).collect();
            let system = System::new(size, torus).unwrap().with_failed(failed.clone()).unwrap();
            let shape = Shape::new(size).unwrap().with_torus(torus);
            // The same said with the fabric's own routes.
            let clear = |from, to, path| {
                shape.route(from, to, path, Class::Request).unwrap().all(|hop| {
                    let at = shape.coords(hop.to).unwrap();
                    at == to || at == from || !failed.contains(&at)
                })
            };
            let one_sided = system.onesided_paths(from, to).unwrap();
            let barrier = system.barrier_paths(from, to).unwrap();
            for path in shape.paths() {
                let offered = |paths: &[PathTo]| paths.iter().any(|way| way.path == path);
                prop_assert_eq!(offered(&barrier), clear(from, to, path));
                let both = clear(from, to, path) && clear(to, from, path);
                prop_assert_eq!(offered(&one_sided), both);
            }
        }
    }

    #[test]
    fn a_failed_neighbour_is_passed_by() {
        let row = System::new([4, 1, 1, 2, 3, 2], [false; 3]).unwrap();
        let (from, to) = (Coords::default(), Coords::new(2, 0, 0, 0, 0, 0));
        let between = Coords::new(1, 0, 0, 0, 0, 0);
        let system = row.clone().with_failed([between]).unwrap();
        let paths = system.onesided_paths(from, to).unwrap();
        assert_eq!(paths.len(), 11, "all but the straight one");
        assert_eq!(paths[0].hops, 4);
        assert_eq!(system.barrier_paths(from, to).unwrap(), paths);
        let cut = row.with_links_down([(from, between)]).unwrap();
        assert_eq!(cut.onesided_paths(from, to).unwrap().len(), 11);
        let outside = Coords::new(4, 0, 0, 0, 0, 0);
        assert_eq!(system.onesided_paths(from, outside), Err(RouteError::NoSuchNode(outside)));
    }
}
