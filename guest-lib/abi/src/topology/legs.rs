//! The order in which a packet goes along the axes.

use core::iter::FusedIterator;
use core::ops::Range;

use super::port::{Axis, Port};
use super::shape::Shape;
use crate::addr::{Coords, Path};

/// A part of a packet's way (IEEE Micro 2012).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// To the path's A, B, C.
    ToPath,
    /// To the target's X, Y, Z.
    Xyz,
    /// To the target's A, B, C.
    ToTarget,
}

/// The axes that a packet goes along, in order. The stages are those of IEEE Micro 2012, the
/// order within them that of Fujitsu's slides "Tofu: A 6D mesh/torus interconnect".
pub const LEGS: [(Stage, Axis); 9] = [
    (Stage::ToPath, Axis::B),
    (Stage::ToPath, Axis::C),
    (Stage::ToPath, Axis::A),
    (Stage::Xyz, Axis::X),
    (Stage::Xyz, Axis::Y),
    (Stage::Xyz, Axis::Z),
    (Stage::ToTarget, Axis::A),
    (Stage::ToTarget, Axis::C),
    (Stage::ToTarget, Axis::B),
];

/// A part of a packet's way that lies on one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leg {
    /// Which part of the way it belongs to.
    pub stage: Stage,
    /// The axis.
    pub axis: Axis,
    /// The coordinate on the axis where it starts.
    pub from: u8,
    /// Its hops, towards higher coordinates if positive; never 0.
    pub hops: i8,
}

impl Leg {
    /// The port that it leaves nodes through, which on A and C is the same either way.
    #[inline]
    pub const fn port(&self) -> Port {
        self.axis.port(self.hops > 0)
    }
}

/// The legs of a packet's way that have hops, found one by one. See [`Shape::legs`].
#[derive(Clone, Debug)]
pub struct Legs<'a> {
    shape: &'a Shape,
    /// The places as [`Coords::to_word`] gives them.
    from: u64,
    /// The target's X, Y, Z and the path's A, B, C.
    via: u64,
    to: u64,
    /// Hops on X, Y and Z, if they were given.
    distances: Option<[i8; 3]>,
    /// A bit for each of [`LEGS`] that is still to come: most ways have one or two.
    left: u16,
}

impl<'a> Legs<'a> {
    /// The same way, but with so many hops on X, Y and Z. They must lead to the same target.
    #[must_use]
    pub const fn with_distances(self, distances: [i8; 3]) -> Self {
        Self { distances: Some(distances), ..self }
    }

    /// The links of the way: the node that each begins at, the port, and the node that it leads to.
    pub fn links(self) -> impl Iterator<Item = (Coords, Port, Coords)> + use<'a> {
        let (shape, mut at) = (self.shape, Coords::from_word(self.from));
        self.flat_map(|leg| (0..leg.hops.unsigned_abs()).map(move |_| leg.port())).map_while(
            move |port| {
                let from = at;
                at = shape.neighbor(from, port)?;
                Some((from, port, at))
            },
        )
    }

    /// The coordinates between which a stage lies.
    #[inline]
    const fn ends(&self, stage: Stage) -> (u64, u64) {
        match stage {
            Stage::ToPath => (self.from, self.via),
            Stage::Xyz => (self.from, self.to),
            Stage::ToTarget => (self.via, self.to),
        }
    }
}

impl Iterator for Legs<'_> {
    type Item = Leg;

    #[inline]
    fn next(&mut self) -> Option<Leg> {
        let &(stage, axis) = LEGS.get(self.left.trailing_zeros() as usize)?;
        self.left &= self.left - 1;
        let (start, end) = self.ends(stage);
        let at = 8 * axis.index();
        let (from, to) = ((start >> at) as u8, (end >> at) as u8);
        let hops = match (self.distances, axis) {
            (Some([x, ..]), Axis::X) => x,
            (Some([_, y, _]), Axis::Y) => y,
            (Some([.., z]), Axis::Z) => z,
            _ => self.shape.way(axis, from, to),
        };
        Some(Leg { stage, axis, from, hops })
    }
}

impl FusedIterator for Legs<'_> {}

/// The legs up to the target's X, Y and Z, as bits, for each set of axes on which the start and the
/// path of a way differ.
const BEFORE: [u16; 64] = legs_of(0..6);
/// The legs after that, for each set of axes on which path and target differ.
const AFTER: [u16; 64] = legs_of(6..9);

/// The legs among these that are on an axis of a set, for each set.
const fn legs_of(legs: Range<usize>) -> [u16; 64] {
    let mut of = [0; 64];
    let mut set = 0;
    while set < of.len() {
        let mut leg = legs.start;
        while leg < legs.end {
            if set >> LEGS[leg].1.index() & 1 != 0 {
                of[set] |= 1 << leg;
            }
            leg += 1;
        }
        set += 1;
    }
    of
}

/// The set of axes on which two places of a machine differ, a bit for each: those of X lowest.
#[inline]
const fn differing(one: u64, other: u64) -> usize {
    // No coordinate has the highest bit of its byte, so the sum does not overflow the byte, and has
    // that bit unless they are equal.
    let differ = ((one ^ other) & 0x7f7f_7f7f_7f7f) + 0x7f7f_7f7f_7f7f;
    // Bit 8n times bit 40 - 7n of the factor is bit 40 + n. The other products are elsewhere, and
    // no two are the same bit.
    let gathered = (differ >> 7 & 0x0101_0101_0101).wrapping_mul(0x0102_0408_1020);
    (gathered >> 40) as usize & 63
}

impl Shape {
    /// The legs of a packet's way. Each is the shorter way round its axis; if both are equally
    /// long, it is the one towards higher coordinates (ours).
    ///
    /// A packet to its own node has no legs, unless its path leads elsewhere: then it goes there
    /// and comes back. Nodes and path must be in the machine.
    #[inline]
    pub const fn legs(&self, from: Coords, to: Coords, path: Path) -> Legs<'_> {
        let via = Coords { a: path.a, b: path.b, c: path.c, ..to };
        let (from, via, to) = (from.to_word(), via.to_word(), to.to_word());
        // On X, Y and Z the path is where the target is.
        let left = BEFORE[differing(from, via)] | AFTER[differing(via, to)];
        Legs { shape: self, from, via, to, distances: None, left }
    }

    /// Hops of a packet's way. Nodes and path must be in the machine.
    pub fn hops(&self, from: Coords, to: Coords, path: Path) -> u32 {
        self.legs(from, to, path).map(|leg| u32::from(leg.hops.unsigned_abs())).sum()
    }
}
