//! The way of a packet through the network, and the virtual channel of each hop.

use std::iter::FusedIterator;

use tofu_abi::{Coords, Path};

use crate::{Axis, Class, NodeId, Port, Shape};

/// The order in which a route visits the axes: to the path's A, B, C, along X, Y, Z,
/// to the target's A, B, C. The stages are those of IEEE Micro 2012, the order within
/// them that of Fujitsu's slides "Tofu: A 6D mesh/torus interconnect".
const LEGS: [Axis; 9] =
    [Axis::B, Axis::C, Axis::A, Axis::X, Axis::Y, Axis::Z, Axis::A, Axis::C, Axis::B];
const FIRST_XYZ_LEG: usize = 3;
const FIRST_LAST_ABC_LEG: usize = 6;

/// One hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The node that sends.
    pub from: NodeId,
    /// The port it sends from; the receiver's is its [`Port::opposite`].
    pub port: Port,
    /// The node that receives.
    pub to: NodeId,
    /// Virtual channel: 0 and 1 for requests, 2 and 3 for responses, 4 and 5 for system packets.
    pub vc: u8,
}

/// Why there is no route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The machine does not have the source.
    #[error("the machine has no node {0}")]
    Source(Coords),
    /// The machine does not have the target.
    #[error("the machine has no node {0}")]
    Target(Coords),
    /// The machine is cut down and does not have the path's A, B, C coordinates.
    #[error("the machine has no path through ({}, {}, {})", .0.a, .0.b, .0.c)]
    Path(Path),
    /// So many hops lead out of a mesh, or all the way round a ring.
    #[error("the machine does not have {} hops along {}", .hops, .axis)]
    Distance {
        /// The axis.
        axis: Axis,
        /// Hops along it.
        hops: i8,
    },
}

/// The hops from one node to another, found one by one without allocating.
///
/// Each leg goes the shorter way round its axis and, where both are as long, towards
/// higher coordinates (ours). The route of a packet to its own node has no hops,
/// unless its path leads elsewhere: then it goes there and comes back.
///
/// The virtual channels of a class are two. A hop in A, B, C takes the first before
/// X, Y, Z and the second after. On each of X, Y and Z a packet starts on the first
/// and takes the second from the hop that crosses the date line on, which is the link
/// between the last coordinate and 0 (its place is ours); and, by one-hop look-ahead,
/// also for the last hop on the axis (IEEE Micro 2012).
#[derive(Clone, Debug)]
pub struct Route<'a> {
    shape: &'a Shape,
    /// Where the packet is, and the number of that node.
    at: [u8; 6],
    id: u32,
    /// Where the legs of the first stage end.
    path: Path,
    target: [u8; 6],
    /// Hops on X, Y and Z, if they were given.
    distances: Option<[i8; 3]>,
    /// First virtual channel of the class.
    vc_base: u8,
    /// The leg after the current one.
    next_leg: usize,
    /// The current leg: its axis, its way, what is left of it.
    axis: Axis,
    plus: bool,
    left: u8,
    crossed: bool,
}

impl<'a> Route<'a> {
    pub(crate) fn new(
        shape: &'a Shape,
        source: NodeId,
        from: Coords,
        to: Coords,
        path: Path,
        class: Class,
    ) -> Self {
        Self {
            shape,
            at: from.to_array(),
            id: source.0,
            path,
            target: to.to_array(),
            distances: None,
            vc_base: class.first_vc(),
            next_leg: 0,
            axis: LEGS[0],
            plus: true,
            left: 0,
            crossed: false,
        }
    }

    /// The node that the hops taken so far have led to.
    #[inline]
    pub const fn node(&self) -> NodeId {
        NodeId(self.id)
    }

    /// Starts the next leg that has hops; false if there is none.
    #[inline]
    fn start_leg(&mut self) -> bool {
        while let Some(&axis) = LEGS.get(self.next_leg) {
            let to = match (self.next_leg, axis) {
                (0..FIRST_XYZ_LEG, Axis::A) => self.path.a,
                (0..FIRST_XYZ_LEG, Axis::B) => self.path.b,
                (0..FIRST_XYZ_LEG, Axis::C) => self.path.c,
                _ => self.target[axis.index()],
            };
            self.next_leg += 1;
            if let (Axis::X | Axis::Y | Axis::Z, Some(distances)) = (axis, self.distances) {
                let distance = distances[axis.index()];
                if distance == 0 {
                    continue;
                }
                (self.plus, self.left) = (distance > 0, distance.unsigned_abs());
                self.axis = axis;
                self.crossed = false;
                return true;
            }
            let from = self.at[axis.index()];
            if from == to {
                continue;
            }
            let straight = to.abs_diff(from);
            (self.plus, self.left) = (to > from, straight);
            if self.shape.wraps(axis) {
                let round = self.shape.len(axis) - straight;
                // A tie goes towards higher coordinates, whichever way that is.
                if round < straight || (round == straight && !self.plus) {
                    (self.plus, self.left) = (!self.plus, round);
                }
            }
            self.axis = axis;
            self.crossed = false;
            return true;
        }
        false
    }
}

impl Iterator for Route<'_> {
    type Item = Hop;

    #[inline]
    fn next(&mut self) -> Option<Hop> {
        if self.left == 0 && !self.start_leg() {
            return None;
        }
        let last = self.shape.len(self.axis) - 1;
        let stride = self.shape.stride(self.axis);
        let at = &mut self.at[self.axis.index()];
        let from = NodeId(self.id);
        match (self.plus, *at) {
            (true, c) if c == last => {
                self.crossed = true;
                *at = 0;
                self.id -= stride * u32::from(last);
            }
            (true, _) => {
                *at += 1;
                self.id += stride;
            }
            (false, 0) => {
                self.crossed = true;
                *at = last;
                self.id += stride * u32::from(last);
            }
            (false, _) => {
                *at -= 1;
                self.id -= stride;
            }
        }
        let second = match self.next_leg {
            0..=FIRST_XYZ_LEG => false,
            // `next_leg` is one ahead of the current leg.
            leg if leg > FIRST_LAST_ABC_LEG => true,
            _ => self.crossed || self.left == 1,
        };
        self.left -= 1;
        Some(Hop {
            from,
            port: self.axis.port(self.plus),
            to: NodeId(self.id),
            vc: self.vc_base + u8::from(second),
        })
    }
}

impl FusedIterator for Route<'_> {}

impl Shape {
    /// The route of a packet.
    ///
    /// # Errors
    /// A [`RouteError`] if the source, the target or the path is not in the machine.
    #[inline]
    pub fn route(
        &self,
        from: Coords,
        to: Coords,
        path: Path,
        class: Class,
    ) -> Result<Route<'_>, RouteError> {
        let source = self.node_id(from).ok_or(RouteError::Source(from))?;
        if !self.contains(to) {
            return Err(RouteError::Target(to));
        }
        if !self.contains_path(path) {
            return Err(RouteError::Path(path));
        }
        Ok(Route::new(self, source, from, to, path, class))
    }

    /// The route of a packet that takes so many hops on X, Y and Z, towards higher coordinates
    /// if positive, and goes to the A, B and C of `to`. Returns where it leads, too.
    ///
    /// It need not be the shortest way, but it must not lead all the way round a ring: then
    /// virtual channels rise along it as they do along others.
    ///
    /// # Errors
    /// A [`RouteError`] if the source, the target or the path is not in the machine, or an axis
    /// does not have so many hops.
    pub fn route_by_distances(
        &self,
        from: Coords,
        to: Coords,
        distances: [i8; 3],
        path: Path,
        class: Class,
    ) -> Result<(Coords, Route<'_>), RouteError> {
        if !self.contains(from) {
            return Err(RouteError::Source(from));
        }
        let mut target = to.to_array();
        for (axis, hops) in [Axis::X, Axis::Y, Axis::Z].into_iter().zip(distances) {
            let len = i16::from(self.len(axis));
            let end = i16::from(from.to_array()[axis.index()]) + i16::from(hops);
            let inside = (0..len).contains(&end);
            if i16::from(hops).abs() >= len || !(inside || self.wraps(axis)) {
                return Err(RouteError::Distance { axis, hops });
            }
            target[axis.index()] = end.rem_euclid(len) as u8;
        }
        let to = Coords::from_array(target);
        let mut route = self.route(from, to, path, class)?;
        route.distances = Some(distances);
        Ok((to, route))
    }
}
