//! The way of a packet through the network, and the virtual channel of each hop.

use std::iter::FusedIterator;

use tofu_abi::topology::{Axis, Leg, Legs, NodeId, Port, Shape, Stage};
use tofu_abi::{Coords, Path};

use crate::packet::{Class, Packet, Way};

/// One hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The node that sends.
    pub from: NodeId,
    /// The port it sends from; the receiver's is its [`Port::opposite`].
    pub port: Port,
    /// The node that receives.
    pub to: NodeId,
    /// Virtual channel: 0 and 1 for requests and system packets, 2 and 3 for responses.
    pub vc: u8,
}

/// The rule by which a packet on X, Y and Z changes to its class's second virtual channel (IEEE
/// Micro 2012).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheduler {
    /// From the hop that crosses the date line onwards.
    DateLine,
    /// Also for the last hop on the axis, by one-hop look-ahead.
    #[default]
    LookAhead,
}

impl Scheduler {
    /// Returns true if a hop on X, Y or Z takes the second channel.
    #[inline]
    pub const fn second(self, crossed: bool, last: bool) -> bool {
        match self {
            Self::DateLine => crossed,
            Self::LookAhead => crossed || last,
        }
    }
}

/// The reason why there is no route.
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
    /// That many hops lead out of a mesh, or all the way round a ring.
    #[error("the machine does not have {} hops along {}", .hops, .axis)]
    Distance {
        /// The axis.
        axis: Axis,
        /// Hops along it.
        hops: i8,
    },
}

/// The hops from one node to another, computed one by one without allocating. They follow
/// [`Shape::legs`].
///
/// A class has two virtual channels. A hop on A, B or C takes the first before X, Y and Z, and the
/// second after. On each of X, Y and Z a packet starts on the first. It changes to the second at
/// the hop that crosses the date line, the link between the last coordinate and 0 (its place is
/// ours). By one-hop look-ahead it also takes the second for the last hop on the axis (IEEE Micro
/// 2012).
#[derive(Clone, Debug)]
pub struct Route<'a> {
    shape: &'a Shape,
    legs: Legs<'a>,
    /// Number of the node where the packet is.
    id: u32,
    /// First virtual channel of the class.
    vc_base: u8,
    scheduler: Scheduler,
    /// The current leg: its stage, axis and direction, the packet's place on the axis, the hops
    /// left.
    stage: Stage,
    axis: Axis,
    plus: bool,
    at: u8,
    left: u8,
    crossed: bool,
}

impl<'a> Route<'a> {
    /// The route of a packet in a machine.
    ///
    /// # Errors
    /// A [`RouteError`] if the source, the target or the path is not in the machine.
    #[inline]
    pub fn new(
        shape: &'a Shape,
        from: Coords,
        to: Coords,
        path: Path,
        class: Class,
    ) -> Result<Self, RouteError> {
        let source = shape.node_id(from).ok_or(RouteError::Source(from))?;
        if !shape.contains(to) {
            return Err(RouteError::Target(to));
        }
        if !shape.contains_path(path) {
            return Err(RouteError::Path(path));
        }
        Ok(Self {
            shape,
            legs: shape.legs(from, to, path),
            id: source.0,
            vc_base: class.first_vc(),
            scheduler: Scheduler::LookAhead,
            stage: Stage::ToPath,
            axis: Axis::X,
            plus: true,
            at: 0,
            left: 0,
            crossed: false,
        })
    }

    /// Returns the route of a packet that takes these hops on X, Y and Z, towards higher
    /// coordinates if positive, and then goes to the A, B and C of `to`. Also returns its
    /// destination.
    ///
    /// It need not be the shortest, but must not lead all the way round a ring, so that virtual
    /// channels rise along it as along others.
    ///
    /// # Errors
    /// A [`RouteError`] if the source, the target or the path is not in the machine, or an axis
    /// does not have that many hops.
    pub fn by_distances(
        shape: &'a Shape,
        from: Coords,
        to: Coords,
        distances: [i8; 3],
        path: Path,
        class: Class,
    ) -> Result<(Coords, Self), RouteError> {
        if !shape.contains(from) {
            return Err(RouteError::Source(from));
        }
        let mut to = to;
        for (axis, hops) in Axis::XYZ.into_iter().zip(distances) {
            let end = shape.walk(axis, from[axis], hops);
            to[axis] = end.ok_or(RouteError::Distance { axis, hops })?;
        }
        let route = Self::new(shape, from, to, path, class)?;
        Ok((to, Self { legs: route.legs.with_distances(distances), ..route }))
    }

    /// Returns the destination of a packet that takes more than one given hop, and its route.
    ///
    /// # Errors
    /// As [`Route::new`] and [`Route::by_distances`].
    pub fn of<B>(shape: &'a Shape, packet: &Packet<B>) -> Result<(Coords, Self), RouteError> {
        let Packet { src, dst, path, class, .. } = *packet;
        if let Way::Distances(distances) = packet.way {
            return Self::by_distances(shape, src, dst, distances, path, class);
        }
        Ok((dst, Self::new(shape, src, dst, path, class)?))
    }

    /// Returns the destination of a packet, computed from its way and from its target, which may be
    /// incomplete. Returns `None` if there is no such node.
    pub fn end_of<B>(shape: &Shape, packet: &Packet<B>) -> Option<Coords> {
        match packet.way {
            Way::Shortest => Some(packet.dst),
            Way::Distances(_) => Some(Route::of(shape, packet).ok()?.0),
            Way::Hop { port, .. } => shape.neighbor(packet.src, port),
        }
    }

    /// The same route, with virtual channels by this scheduler instead of [`Scheduler::LookAhead`].
    #[must_use]
    pub const fn with_scheduler(self, scheduler: Scheduler) -> Self {
        Self { scheduler, ..self }
    }

    /// The legs not yet begun.
    #[inline]
    pub fn legs(&self) -> Legs<'a> {
        self.legs.clone()
    }

    /// The node that the hops taken so far have led to.
    #[inline]
    pub const fn node(&self) -> NodeId {
        NodeId(self.id)
    }
}

/// Returns true if a hop from this coordinate of an axis crosses the ring's date line.
#[inline]
pub const fn is_date_line(shape: &Shape, axis: Axis, plus: bool, from: u8) -> bool {
    from == if plus { shape.len(axis) - 1 } else { 0 }
}

impl Iterator for Route<'_> {
    type Item = Hop;

    #[inline(always)]
    fn next(&mut self) -> Option<Hop> {
        if self.left == 0 {
            let Leg { stage, axis, from, hops } = self.legs.next()?;
            (self.stage, self.axis, self.at) = (stage, axis, from);
            (self.plus, self.left) = (hops > 0, hops.unsigned_abs());
            self.crossed = false;
        }
        let last = self.shape.len(self.axis) - 1;
        let stride = self.shape.stride(self.axis);
        let from = NodeId(self.id);
        let over = is_date_line(self.shape, self.axis, self.plus, self.at);
        self.crossed |= over;
        (self.at, self.id) = match (self.plus, over) {
            (true, false) => (self.at + 1, self.id + stride),
            (true, true) => (0, self.id - stride * u32::from(last)),
            (false, false) => (self.at - 1, self.id - stride),
            (false, true) => (last, self.id + stride * u32::from(last)),
        };
        let second = match self.stage {
            Stage::ToPath => false,
            Stage::Xyz => self.scheduler.second(self.crossed, self.left == 1),
            Stage::ToTarget => true,
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
