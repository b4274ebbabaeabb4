//! The route of a packet, and which of the twelve paths lead to a node.

use tofu_abi::{Coords, Path};

use crate::System;
/// The reason why there are no paths.
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
    /// Length of the route in hops; 0 to the node itself.
    pub hops: u32,
}

impl System {
    /// Returns the nodes that a packet visits after `from`, ending with the target. Empty if it is
    /// there already.
    pub(crate) fn route(&self, from: Coords, to: Coords, path: Path) -> Vec<Coords> {
        self.shape().legs(from, to, path).links().map(|(_, _, next)| next).collect()
    }

    /// Returns the length of the route if all nodes and links on it work.
    fn working_route(&self, from: Coords, to: Coords, path: Path) -> Option<u32> {
        let mut at = from;
        let route = self.route(from, to, path);
        for &next in &route {
            // Whether the two ends work does not concern the path.
            if (next != to && next != from && self.is_failed(next)) || !self.link_up(at, next) {
                return None;
            }
            at = next;
        }
        Some(route.len() as u32)
    }

    fn paths(&self, from: Coords, to: Coords, both_ways: bool) -> Result<Vec<PathTo>, RouteError> {
        for node in [from, to] {
            if !self.shape().contains(node) {
                return Err(RouteError::NoSuchNode(node));
            }
        }
        let mut paths: Vec<_> = self
            .shape()
            .paths()
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

    /// Returns the paths for one-sided communication between two nodes, shortest first. Among the
    /// shortest, the target's own A, B, C come first, which is the default path. A path is left out
    /// if a request or its answer (which takes the same path coordinates) would meet a failed node
    /// or link, so there may be none.
    ///
    /// # Errors
    /// [`RouteError::NoSuchNode`] if the machine lacks one of the nodes.
    pub fn onesided_paths(&self, from: Coords, to: Coords) -> Result<Vec<PathTo>, RouteError> {
        self.paths(from, to, true)
    }

    /// Returns the paths for a signal of a barrier gate, in the same order. Nothing answers a
    /// signal, so only the forward route counts.
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
    use crate::system::system;
    use proptest::prelude::*;
    use tofu_abi::topology::{NodeId, Shape};
    use tofu_fabric::{Class, Route};

    fn machine() -> impl Strategy<Value = Shape> {
        let size = (1..=6u8, 1..=5u8, 1..=4u8, 1..=2u8, 1..=3u8, 1..=2u8);
        (size, any::<[bool; 3]>()).prop_map(|((x, y, z, a, b, c), torus)| {
            Shape::new([x, y, z, a, b, c]).unwrap().with_torus(torus)
        })
    }

    fn node(seed: u32, shape: &Shape) -> Coords {
        shape.coords(NodeId(seed % shape.nodes())).unwrap()
    }

    proptest! {
        #[test]
        fn routes_are_those_of_the_fabric(shape in machine(), from: u32, to: u32) {
            let system = System::new(shape);
            let (from, to) = (node(from, &shape), node(to, &shape));
            for path in shape.paths() {
                let theirs: Vec<_> = Route::new(&shape, from, to, path, Class::Request)
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
            shape in machine(), from: u32, to: u32,
            failed in proptest::collection::vec(any::<u32>(), 0..5),
        ) {
            let (from, to) = (node(from, &shape), node(to, &shape));
            let failed: Vec<_> = failed.into_iter().map(|seed| node(seed, &shape)).collect();
            let system = System::new(shape).with_failed(failed.clone()).unwrap();
            // The same condition, from the fabric's own routes.
            let clear = |from, to, path| {
                Route::new(&shape, from, to, path, Class::Request).unwrap().all(|hop| {
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
    fn route_avoids_a_failed_neighbour() {
        let row = system([4, 1, 1, 2, 3, 2], [false; 3]);
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
