//! Addresses: node coordinates, paths, and the (CQ, STag, offset) words.

use core::fmt;
use core::str::FromStr;

use crate::{CqId, bitfield};

/// Coordinates of a node in the 6D mesh/torus.
///
/// X, Y, Z take 0 to 31, A and C 0 or 1, B 0 to 2 (TofuD register map: NODE_ADDRESS). The fields
/// are public and unchecked: a descriptor may carry any byte, and code that uses it must check the
/// coordinates against the machine's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Coords {
    /// X, 0 to 31.
    pub x: u8,
    /// Y, 0 to 31.
    pub y: u8,
    /// Z, 0 to 31.
    pub z: u8,
    /// A, 0 or 1.
    pub a: u8,
    /// B, 0 to 2.
    pub b: u8,
    /// C, 0 or 1.
    pub c: u8,
}

impl Coords {
    /// The coordinates as text: with a space between them for programs (`0 0 0 1 2 1`), with a dash
    /// in names.
    pub const fn separated(self, by: char) -> Separated {
        Separated { coords: self, by }
    }

    /// Coordinates from their six components, in the usual order X Y Z A B C.
    pub const fn new(x: u8, y: u8, z: u8, a: u8, b: u8, c: u8) -> Self {
        Self { x, y, z, a, b, c }
    }

    /// The six components in the order X Y Z A B C.
    pub const fn to_array(self) -> [u8; 6] {
        [self.x, self.y, self.z, self.a, self.b, self.c]
    }

    /// The six components as the bytes of a word, X in the lowest.
    #[inline]
    pub(crate) const fn to_word(self) -> u64 {
        u64::from_le_bytes([self.x, self.y, self.z, self.a, self.b, self.c, 0, 0])
    }

    /// Inverse of [`Coords::to_word`].
    pub(crate) const fn from_word(word: u64) -> Self {
        let [x, y, z, a, b, c, ..] = word.to_le_bytes();
        Self::new(x, y, z, a, b, c)
    }

    /// Inverse of [`Coords::to_array`].
    pub const fn from_array(v: [u8; 6]) -> Self {
        Self::new(v[0], v[1], v[2], v[3], v[4], v[5])
    }

    /// Coordinates from six [decimal numbers](decimal) in the usual order.
    pub fn from_decimals<'a>(numbers: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut numbers = numbers.into_iter();
        let mut all = [0; 6];
        for number in &mut all {
            *number = decimal(numbers.next()?)?;
        }
        numbers.next().is_none().then(|| Self::from_array(all))
    }

    /// Hops to another node without links that close a torus: a distance that holds in every
    /// machine, for callers that do not know the shape.
    pub fn straight_hops(self, other: Self) -> u32 {
        let pairs = self.to_array().into_iter().zip(other.to_array());
        pairs.map(|(one, other)| u32::from(one.abs_diff(other))).sum()
    }

    /// The default path to this node: through its own A, B and C coordinates, as
    /// decoded from real systems.
    pub const fn default_path(self) -> Path {
        Path { a: self.a, b: self.b, c: self.c }
    }

    /// Returns the paths for the parts of a long message to another node: four of the shortest if
    /// all of A, B and C differ, two if one or two of them do, and only the default path if none
    /// does (IEEE Micro 2012). The default path is the first one. *Ours*: the others are chosen to
    /// differ from it as much as possible.
    pub fn minimal_paths(self, to: Self) -> impl Iterator<Item = Path> + Clone {
        let differ = [self.a != to.a, self.b != to.b, self.c != to.c];
        // On which of A, B, C a part changes before it goes along X, Y, Z.
        let choices: &[[bool; 3]] = match differ.into_iter().filter(|d| *d).count() {
            0 => &[[true; 3]],
            1 | 2 => &[[true; 3], [false; 3]],
            _ => &[[true; 3], [true, false, false], [false, true, false], [false, false, true]],
        };
        choices.iter().map(move |&[a, b, c]| Path {
            a: if a { to.a } else { self.a },
            b: if b { to.b } else { self.b },
            c: if c { to.c } else { self.c },
        })
    }
}

impl fmt::Display for Coords {
    /// `(x,y,z,a,b,c)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{},{},{},{},{})", self.x, self.y, self.z, self.a, self.b, self.c)
    }
}

/// Coordinates as text, see [`Coords::separated`].
#[derive(Clone, Copy, Debug)]
pub struct Separated {
    coords: Coords,
    by: char,
}

impl fmt::Display for Separated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { coords: Coords { x, y, z, a, b, c }, by } = *self;
        write!(f, "{x}{by}{y}{by}{z}{by}{a}{by}{b}{by}{c}")
    }
}

/// A number of decimal digits alone: [`str::parse`] would take a sign as well.
pub fn decimal<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// A path: the A, B, C coordinates at which a packet enters XYZ routing.
///
/// The 2 x 3 x 2 choices are the 12 paths between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Path {
    /// A, 0 or 1.
    pub a: u8,
    /// B, 0 to 2.
    pub b: u8,
    /// C, 0 or 1.
    pub c: u8,
}

impl Path {
    /// A path through the given A, B, C coordinates.
    pub const fn new(a: u8, b: u8, c: u8) -> Self {
        Self { a, b, c }
    }
}

bitfield! {
    /// A *CQ-STag-offset* word: a place in a registered memory (TofuD transmit descriptors, qwords
    /// 2 and 3; the same bits as a uTofu STADD).
    pub struct StagOffset {
        /// Byte offset within the STag's address space.
        offset / with_offset: u64 @ 0..=39,
        /// Steering tag: index of the CQ's steering table.
        stag / with_stag: u32 @ 40..=57,
        /// Control queue of the TNI that owns the STag.
        cqid / with_cqid: u8 @ 58..=63,
    }
}

impl StagOffset {
    /// Builds the word from its parts. An STag or an offset that is too wide is truncated.
    pub const fn new(cq: CqId, stag: u32, offset: u64) -> Self {
        Self(0).with_cqid(cq.get()).with_stag(stag).with_offset(offset)
    }

    /// The same CQ and STag, `bytes` further on. The offset wraps at 2^40.
    #[must_use]
    pub const fn advanced(self, bytes: u64) -> Self {
        self.with_offset(self.offset().wrapping_add(bytes))
    }
}

/// Offsets within an STag are 40 bits wide.
pub const OFFSET_BITS: u32 = 40;
