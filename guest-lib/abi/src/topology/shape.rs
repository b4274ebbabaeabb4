//! The lengths of a machine's axes, and what follows from them.

use core::fmt;
use core::str::FromStr;

use super::port::{Axis, Port};
use crate::addr::{Coords, Path};

/// Index of a node within its machine, from 0 without gaps.
///
/// Numbers run through the coordinates with X slowest and C fastest, so that a Tofu
/// unit has consecutive numbers (ours).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// No node of any machine: the reported place of a packet whose source the machine does not
    /// have.
    pub const NOWHERE: Self = Self(u32::MAX);

    /// The number as an index into a table of nodes.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The beginning of a text, for a message: up to 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Excerpt {
    bytes: [u8; 32],
    len: usize,
    whole: bool,
}

impl Excerpt {
    fn new(text: &str) -> Self {
        let mut bytes = [0; 32];
        let mut len = text.len().min(bytes.len());
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self { bytes, len, whole: len == text.len() }
    }
}

impl fmt::Display for Excerpt {
    /// The text in quotation marks, its control characters escaped; dots show that it continues.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = core::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default();
        write!(f, "{text:?}{}", if self.whole { "" } else { "..." })
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The reason why a shape is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeError {
    /// An axis is shorter than 1 or longer than the node address allows.
    Length {
        /// The axis at fault.
        axis: Axis,
        /// The requested length.
        len: u8,
    },
    /// The text has a length that is out of range.
    TextLength {
        /// The text.
        text: Excerpt,
        /// The axis at fault.
        axis: Axis,
    },
    /// The text is neither six lengths, nor three, nor a known name.
    Syntax {
        /// The text.
        text: Excerpt,
    },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { axis, len } => {
                write!(f, "axis {axis} has length {len}, but may have 1 to {}", axis.max_len())
            }
            Self::TextLength { text, axis } => {
                write!(f, "shape {text}: axis {axis} may have length 1 to {}", axis.max_len())
            }
            Self::Syntax { text } => write!(
                f,
                "shape {text} is neither unit, shelf, half-rack, rack, k-racks, k nor six lengths \
                 XxYxZxAxBxC such as 2x2x4x2x3x2 (X, Y, Z 1 to 32; A, C 1 to 2; B 1 to 3) nor \
                 three, XxYxZ"
            ),
        }
    }
}

impl core::error::Error for ShapeError {}

/// The shape of a machine: the lengths of its six axes and which of them wrap round.
///
/// X, Y and Z are tori unless [`Shape::with_torus`] makes them meshes: both exist in the papers. A
/// torus of length 2 has two links between its two nodes, an axis of length 1 has none. A and C are
/// meshes of at most 2. B is a ring of 3; shortened to 2 it is a mesh (ours). Shortening A, B and C
/// is itself ours.
///
/// In a machine [with I/O nodes](Shape::with_io_nodes) these are the nodes with Z = 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    len: [u8; 6],
    wraps: [bool; 6],
    /// The number that a step along the axis adds to the node's number.
    stride: [u32; 6],
    /// True if the nodes with Z = 0 are I/O nodes.
    io: bool,
}

impl Shape {
    /// A Tofu unit: the 12 nodes of one ABC block.
    pub const UNIT: Self = Self::build([1, 1, 1, 2, 3, 2], [true; 3]);
    /// A shelf of Fugaku: four units in a row, 48 nodes.
    pub const SHELF: Self = Self::build([1, 1, 4, 2, 3, 2], [true; 3]);
    /// Half a rack of Fugaku: four shelves, 192 nodes.
    pub const HALF_RACK: Self = Self::build([2, 2, 4, 2, 3, 2], [true; 3]);
    /// A rack of Fugaku: 384 nodes. That its halves are neighbours on Z is ours.
    pub const RACK: Self = Self::build([2, 2, 8, 2, 3, 2], [true; 3]);
    /// Two racks of the K computer: 17 units on Z, where the one with Z = 0 has the I/O nodes (IEEE
    /// Micro; the journal article). 192 compute nodes, 12 I/O nodes.
    pub const K_RACKS: Self = Self::build([1, 1, 17, 2, 3, 2], [true; 3]).with_io_nodes(true);
    /// The compute nodes of the K computer, 82,944. Y is a mesh (TofuD paper).
    pub const K: Self = Self::build([24, 18, 16, 2, 3, 2], [true, false, true]);
    /// The largest machine: 393,216 nodes.
    pub const LARGEST: Self = Self::build([32, 32, 32, 2, 3, 2], [true; 3]);

    /// A shape with these lengths, in the order X Y Z A B C, and X, Y and Z tori.
    ///
    /// # Errors
    /// [`ShapeError::Length`] if a length is 0 or above [`Axis::max_len`].
    pub fn new(len: [u8; 6]) -> Result<Self, ShapeError> {
        for axis in Axis::ALL {
            let len = len[axis.index()];
            if len == 0 || len > axis.max_len() {
                return Err(ShapeError::Length { axis, len });
            }
        }
        Ok(Self::build(len, [true; 3]))
    }

    /// The same lengths, with each of X, Y and Z a torus or, where `false`, a mesh.
    #[must_use]
    pub const fn with_torus(self, xyz: [bool; 3]) -> Self {
        Self::build(self.len, xyz).with_io_nodes(self.io)
    }

    /// The same nodes and links, where the nodes with Z = 0 are I/O nodes, as in the K computer
    /// (journal article), or all are compute nodes. A machine with a single Z has no I/O nodes,
    /// because it would have no other nodes (ours).
    #[must_use]
    pub const fn with_io_nodes(mut self, io: bool) -> Self {
        self.io = io && self.len(Axis::Z) > 1;
        self
    }

    /// The same lengths. The letters name those of X, Y and Z that are tori, as in `xz`. Other
    /// characters are ignored, so `none` is a mesh.
    #[must_use]
    pub fn with_torus_letters(self, letters: &str) -> Self {
        let named = |axis: Axis| letters.chars().any(|c| c.eq_ignore_ascii_case(&axis.letter()));
        self.with_torus(Axis::XYZ.map(named))
    }

    const fn build(len: [u8; 6], xyz: [bool; 3]) -> Self {
        let mut stride = [1; 6];
        let mut i = 5;
        while i > 0 {
            stride[i - 1] = stride[i] * len[i] as u32;
            i -= 1;
        }
        let wraps = [
            xyz[0] && len[0] > 1,
            xyz[1] && len[1] > 1,
            xyz[2] && len[2] > 1,
            false,
            len[Axis::B as usize] == 3,
            false,
        ];
        Self { len, wraps, stride, io: false }
    }

    /// Length of an axis in nodes.
    #[inline]
    pub const fn len(&self, axis: Axis) -> u8 {
        self.len[axis.index()]
    }

    /// Lengths of the axes in nodes, in the order X Y Z A B C.
    #[inline]
    pub const fn lengths(&self) -> [u8; 6] {
        self.len
    }

    /// Returns true if the axis has links from its last coordinate back to its first.
    ///
    /// Never so for an axis of length 1.
    #[inline]
    pub const fn wraps(&self, axis: Axis) -> bool {
        self.wraps[axis.index()]
    }

    /// Which of X, Y and Z wrap round.
    pub const fn torus(&self) -> [bool; 3] {
        let [x, y, z, ..] = self.wraps;
        [x, y, z]
    }

    /// Returns true if the nodes with Z = 0 are I/O nodes.
    pub const fn has_io_nodes(&self) -> bool {
        self.io
    }

    /// Returns true if the machine has an I/O node at these coordinates.
    pub fn is_io_node(&self, at: Coords) -> bool {
        self.io && at[Axis::Z] == 0 && self.contains(at)
    }

    /// Coordinates of the I/O nodes, in the order of their numbers.
    pub fn io_nodes(&self) -> impl Iterator<Item = Coords> + use<> {
        let shape = *self;
        self.iter().filter(move |at| shape.is_io_node(*at))
    }

    /// Number of nodes that are no I/O nodes.
    pub const fn compute_nodes(&self) -> u32 {
        let [x, y, z, a, b, c] = self.len;
        let z = if self.io { z - 1 } else { z };
        x as u32 * y as u32 * z as u32 * a as u32 * b as u32 * c as u32
    }

    /// Number of nodes, at most 393,216.
    pub const fn nodes(&self) -> u32 {
        self.stride[0] * self.len[0] as u32
    }

    /// The number that one step along `axis` adds to a node's number.
    #[inline]
    pub const fn stride(&self, axis: Axis) -> u32 {
        self.stride[axis.index()]
    }

    /// Returns true if the machine has a node at these coordinates.
    #[inline]
    pub const fn contains(&self, coords: Coords) -> bool {
        // All axes in parallel: the highest bit of a byte remains if the rest of the coordinate is
        // not below the length, which is at most 32.
        const HIGH: u64 = 0x8080_8080_8080;
        let coords = coords.to_word();
        let [x, y, z, a, b, c] = self.len;
        let len = u64::from_le_bytes([x, y, z, a, b, c, 0, 0]);
        (((coords | HIGH) - len) | coords) & HIGH == 0
    }

    /// Returns true if the machine has the A, B, C coordinates that the path goes through.
    #[inline]
    pub const fn contains_path(&self, path: Path) -> bool {
        path.a < self.len(Axis::A) && path.b < self.len(Axis::B) && path.c < self.len(Axis::C)
    }

    /// The number of the node at these coordinates, if the machine has it.
    #[inline]
    pub fn node_id(&self, coords: Coords) -> Option<NodeId> {
        if !self.contains(coords) {
            return None;
        }
        let id = coords.to_array().iter().zip(&self.stride).map(|(c, s)| u32::from(*c) * s).sum();
        Some(NodeId(id))
    }

    /// The coordinates of a node, if the machine has it.
    pub fn coords(&self, node: NodeId) -> Option<Coords> {
        if node.0 >= self.nodes() {
            return None;
        }
        let mut rest = node.0;
        let mut coords = [0; 6];
        for (c, stride) in coords.iter_mut().zip(self.stride) {
            // No stride is 0, but a panic for that is more than the kernel's objtool understands.
            *c = rest.checked_div(stride)? as u8;
            rest %= stride;
        }
        Some(Coords::from_array(coords))
    }

    /// Coordinates of all nodes, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = Coords> + use<> {
        let shape = *self;
        (0..self.nodes()).filter_map(move |id| shape.coords(NodeId(id)))
    }

    /// All paths the machine has: 12, or fewer if its A, B or C is cut down.
    pub fn paths(&self) -> impl Iterator<Item = Path> + use<> {
        let shape = *self;
        (0..self.path_count()).filter_map(move |number| shape.path(number))
    }

    /// Number of paths that the machine has.
    pub const fn path_count(&self) -> u8 {
        let [.., a, b, c] = self.len;
        a * b * c
    }

    /// A path by its number, in the order of [`Shape::paths`].
    pub fn path(&self, number: u8) -> Option<Path> {
        let [.., a, b, c] = self.len;
        // No length is 0, but the kernel's objtool cannot cope with the panic of a plain division.
        let (rest, of_c) = (number.checked_div(c)?, number.checked_rem(c)?);
        let (of_a, of_b) = (rest.checked_div(b)?, rest.checked_rem(b)?);
        (of_a < a).then_some(Path::new(of_a, of_b, of_c))
    }

    /// The number of a path, which the machine must have.
    pub const fn path_number(&self, path: Path) -> u8 {
        let [.., b, c] = self.len;
        (path.a * b + path.b) * c + path.c
    }

    /// The steps from one coordinate on an axis up to another. They are counted round the end of
    /// the axis, whether it has a link there or not. Both must be below the axis's length.
    pub const fn steps_up(&self, axis: Axis, from: u8, to: u8) -> u8 {
        if to >= from { to - from } else { to + self.len(axis) - from }
    }

    /// The coordinate at this many steps up from another one, see [`Shape::steps_up`]. There must
    /// be fewer than the axis is long.
    pub const fn step_up(&self, axis: Axis, from: u8, steps: u8) -> u8 {
        let (at, len) = (from + steps, self.len(axis));
        if at < len { at } else { at - len }
    }

    /// The coordinate on an axis at this many hops from another one, towards higher coordinates if
    /// positive.
    ///
    /// `None` if the hops lead out of a mesh, or all the way round a ring.
    #[inline]
    pub const fn walk(&self, axis: Axis, from: u8, hops: i8) -> Option<u8> {
        let len = self.len(axis);
        let end = from as i16 + hops as i16;
        let inside = 0 <= end && end < len as i16;
        if hops.unsigned_abs() >= len || !(inside || self.wraps(axis)) {
            return None;
        }
        Some(end.rem_euclid(len as i16) as u8)
    }

    /// The hops of the shorter way from one coordinate on an axis to another, towards higher
    /// coordinates if positive. If both ways are equally long, it is that one (ours).
    ///
    /// Both must be below the axis's length.
    #[inline]
    pub const fn way(&self, axis: Axis, from: u8, to: u8) -> i8 {
        let straight = to.wrapping_sub(from) as i8;
        if !self.wraps(axis) {
            return straight;
        }
        let len = self.len(axis) as i8;
        let ahead = if straight < 0 { straight + len } else { straight };
        if ahead > len / 2 { ahead - len } else { ahead }
    }

    /// Hops of the shortest way from one node to another, which is the default path's. Both must
    /// be in the machine.
    pub fn distance(&self, from: Coords, to: Coords) -> u32 {
        let hops = |axis| u32::from(self.way(axis, from[axis], to[axis]).unsigned_abs());
        Axis::ALL.into_iter().map(hops).sum()
    }

    /// The node at the other end of a port's link.
    ///
    /// `None` if the machine has no such node or nothing is at that port.
    pub fn neighbor(&self, from: Coords, port: Port) -> Option<Coords> {
        if !self.contains(from) {
            return None;
        }
        let axis = port.axis();
        let hops = match (port.direction(), from[axis]) {
            (0, 0) => 1,
            (0, _) => -1,
            (direction, _) => direction,
        };
        let mut to = from;
        to[axis] = self.walk(axis, from[axis], hops)?;
        Some(to)
    }

    /// The ports of a node that have a link, and the nodes at the other ends.
    pub fn neighbors(&self, from: Coords) -> impl Iterator<Item = (Port, Coords)> + use<> {
        let shape = *self;
        Port::ALL.into_iter().filter_map(move |port| Some((port, shape.neighbor(from, port)?)))
    }

    /// Returns the nodes of a node's block, in the order of their numbers, if the machine is
    /// divided into blocks of these lengths from coordinate 0 on. Blocks at the end of an axis may
    /// be shorter. Empty if the machine has no such node.
    pub fn block(&self, at: Coords, lengths: [u8; 6]) -> impl Iterator<Item = Coords> + use<> {
        let (at, ends) = (at.to_array(), self.len);
        let mut first = at;
        let mut count = self.contains(Coords::from_array(at)) as u32;
        let mut sizes = [1; 6];
        for axis in 0..6 {
            // A length of 0 counts as 1. No remainder that could panic: the kernel compiles this.
            let within = at[axis].checked_rem(lengths[axis]).unwrap_or_default();
            first[axis] = at[axis] - within;
            sizes[axis] = lengths[axis].clamp(1, ends[axis].saturating_sub(first[axis]).max(1));
            count *= u32::from(sizes[axis]);
        }
        (0..count).map(move |mut rest| {
            let mut node = first;
            for axis in (0..6).rev() {
                let size = u32::from(sizes[axis]);
                node[axis] += rest.checked_rem(size).unwrap_or_default() as u8;
                rest = rest.checked_div(size).unwrap_or_default();
            }
            Coords::from_array(node)
        })
    }

    /// Returns true if a link joins two nodes.
    pub fn adjacent(&self, one: Coords, other: Coords) -> bool {
        self.contains(one) && self.contains(other) && self.distance(one, other) == 1
    }
}

impl fmt::Display for Shape {
    /// The six lengths, `2x2x4x2x3x2`; which axes are tori is not shown, nor I/O nodes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z, a, b, c] = self.len;
        write!(f, "{x}x{y}x{z}x{a}x{b}x{c}")
    }
}

impl FromStr for Shape {
    type Err = ShapeError;

    /// Six lengths as in `2x2x4x2x3x2`, those of X, Y and Z as in `4x2x2` where A, B and C are 1,
    /// or `unit`, `shelf`, `half-rack`, `rack`, `k-racks` or `k`. X, Y and Z are tori, except for Y
    /// of `k`. `k-racks` has I/O nodes.
    fn from_str(text: &str) -> Result<Self, ShapeError> {
        match text {
            "unit" => return Ok(Self::UNIT),
            "shelf" => return Ok(Self::SHELF),
            "half-rack" => return Ok(Self::HALF_RACK),
            "rack" => return Ok(Self::RACK),
            "k-racks" => return Ok(Self::K_RACKS),
            "k" => return Ok(Self::K),
            _ => {}
        }
        let syntax = || ShapeError::Syntax { text: Excerpt::new(text) };
        let mut len = [1u8; 6];
        let mut parts = text.split('x');
        for axis in Axis::ALL {
            let part = match parts.next() {
                Some(part) => part,
                None if axis == Axis::A => break,
                None => return Err(syntax()),
            };
            // `parse` alone would let a sign through.
            if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
                return Err(syntax());
            }
            // Digits that do not fit are out of range too.
            let n = part.parse().unwrap_or(u8::MAX);
            if n == 0 || n > axis.max_len() {
                return Err(ShapeError::TextLength { text: Excerpt::new(text), axis });
            }
            len[axis.index()] = n;
        }
        match parts.next() {
            Some(_) => Err(syntax()),
            None => Self::new(len),
        }
    }
}
