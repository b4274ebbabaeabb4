//! Nodes, ports and the shape of a machine.

use std::fmt;
use std::str::FromStr;

use tofu_abi::{Coords, Path};

/// An axis of the 6D mesh/torus.
///
/// The discriminant is the axis's place in [`Coords::to_array`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Axis {
    /// X: sized by the machine, torus or mesh.
    X,
    /// Y: sized by the machine, torus or mesh.
    Y,
    /// Z: sized by the machine, torus or mesh.
    Z,
    /// A: a mesh of two.
    A,
    /// B: a ring of three.
    B,
    /// C: a mesh of two.
    C,
}

impl Axis {
    /// All axes in the usual order.
    pub const ALL: [Self; 6] = [Self::X, Self::Y, Self::Z, Self::A, Self::B, Self::C];

    /// Place of the axis in [`Coords::to_array`], 0 to 5.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The greatest length an axis can have: what its field in a node address holds.
    pub const fn max_len(self) -> u8 {
        match self {
            Self::X | Self::Y | Self::Z => 32,
            Self::A | Self::C => 2,
            Self::B => 3,
        }
    }

    /// The port that leads along this axis, towards higher coordinates if `plus`.
    ///
    /// A and C have a single port each, which is the answer for either direction.
    #[inline]
    pub const fn port(self, plus: bool) -> Port {
        match (self, plus) {
            (Self::A, _) => Port::A,
            (Self::C, _) => Port::C,
            (Self::B, false) => Port::BMinus,
            (Self::B, true) => Port::BPlus,
            (Self::X, false) => Port::XMinus,
            (Self::X, true) => Port::XPlus,
            (Self::Y, false) => Port::YMinus,
            (Self::Y, true) => Port::YPlus,
            (Self::Z, false) => Port::ZMinus,
            (Self::Z, true) => Port::ZPlus,
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::X => "X",
            Self::Y => "Y",
            Self::Z => "Z",
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
        })
    }
}

/// One of the ten link ports of a node.
///
/// The discriminants are the port numbers of the TofuD register map, where port n
/// also owns the interrupt bits from 6 n on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Port {
    /// The other node on A.
    A = 0,
    /// The other node on C.
    C = 1,
    /// Towards lower B.
    BMinus = 2,
    /// Towards higher B.
    BPlus = 3,
    /// Towards lower X.
    XMinus = 4,
    /// Towards higher X.
    XPlus = 5,
    /// Towards lower Y.
    YMinus = 6,
    /// Towards higher Y.
    YPlus = 7,
    /// Towards lower Z.
    ZMinus = 8,
    /// Towards higher Z.
    ZPlus = 9,
}

impl Port {
    /// Number of ports of a node.
    pub const COUNT: usize = 10;

    /// All ports, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::A,
        Self::C,
        Self::BMinus,
        Self::BPlus,
        Self::XMinus,
        Self::XPlus,
        Self::YMinus,
        Self::YPlus,
        Self::ZMinus,
        Self::ZPlus,
    ];

    /// The port's number, 0 to 9.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The port with this number, if there is one.
    pub fn from_index(index: usize) -> Option<Self> {
        Self::ALL.get(index).copied()
    }

    /// The axis along which the port's link lies.
    pub const fn axis(self) -> Axis {
        match self {
            Self::A => Axis::A,
            Self::C => Axis::C,
            Self::BMinus | Self::BPlus => Axis::B,
            Self::XMinus | Self::XPlus => Axis::X,
            Self::YMinus | Self::YPlus => Axis::Y,
            Self::ZMinus | Self::ZPlus => Axis::Z,
        }
    }

    /// The port at the other end of the link: X+ for X-, A for A.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::A => Self::A,
            Self::C => Self::C,
            Self::BMinus => Self::BPlus,
            Self::BPlus => Self::BMinus,
            Self::XMinus => Self::XPlus,
            Self::XPlus => Self::XMinus,
            Self::YMinus => Self::YPlus,
            Self::YPlus => Self::YMinus,
            Self::ZMinus => Self::ZPlus,
            Self::ZPlus => Self::ZMinus,
        }
    }
}

impl fmt::Display for Port {
    /// `A`, `C`, `B-`, `X+` and so on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "A",
            Self::C => "C",
            Self::BMinus => "B-",
            Self::BPlus => "B+",
            Self::XMinus => "X-",
            Self::XPlus => "X+",
            Self::YMinus => "Y-",
            Self::YPlus => "Y+",
            Self::ZMinus => "Z-",
            Self::ZPlus => "Z+",
        })
    }
}

/// Index of a node within its machine, from 0 without gaps.
///
/// Numbers run through the coordinates with X slowest and C fastest, so that a Tofu
/// unit has consecutive numbers (ours).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// No node of any machine: where a packet is said to be whose source the
    /// machine does not have.
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

/// Why a shape is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// An axis is shorter than 1 or longer than the node address allows.
    #[error("axis {axis} has length {len}, but may have 1 to {}", axis.max_len())]
    Length {
        /// The axis at fault.
        axis: Axis,
        /// The length asked for.
        len: u32,
    },
    /// The text has a length that is out of range.
    #[error("shape \"{text}\": axis {axis} may have length 1 to {}", axis.max_len())]
    TextLength {
        /// The whole text.
        text: String,
        /// The axis at fault.
        axis: Axis,
    },
    /// The text is neither six lengths nor a known name.
    #[error(
        "shape \"{text}\" is neither unit, shelf, half-rack nor six lengths XxYxZxAxBxC \
         such as 2x2x4x2x3x2 (X, Y, Z 1 to 32; A, C 1 to 2; B 1 to 3)"
    )]
    Syntax {
        /// The whole text.
        text: String,
    },
}

/// The shape of a machine: the lengths of its six axes and which of them wrap round.
///
/// X, Y and Z are tori unless [`Shape::with_torus`] makes them meshes: both exist in
/// the papers. A torus of length 2 has two links between its two nodes, an axis of
/// length 1 has none. A and C are meshes of at most 2. B is a ring of 3; cut down to
/// 2 it is a mesh (ours), as is the cutting down of A, B and C itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    len: [u8; 6],
    wraps: [bool; 6],
    /// What a step along the axis adds to the node's number.
    stride: [u32; 6],
}

impl Shape {
    /// A Tofu unit: the 12 nodes of one ABC block.
    pub const UNIT: Self = Self::build([1, 1, 1, 2, 3, 2], [true; 3]);
    /// A shelf of Fugaku: four units in a row, 48 nodes.
    pub const SHELF: Self = Self::build([1, 1, 4, 2, 3, 2], [true; 3]);
    /// Half a rack of Fugaku: four shelves, 192 nodes.
    pub const HALF_RACK: Self = Self::build([2, 2, 4, 2, 3, 2], [true; 3]);

    /// A shape with these lengths, in the order X Y Z A B C, and X, Y and Z tori.
    ///
    /// # Errors
    /// [`ShapeError::Length`] if a length is 0 or above [`Axis::max_len`].
    pub fn new(len: [u8; 6]) -> Result<Self, ShapeError> {
        for axis in Axis::ALL {
            let n = len[axis.index()];
            if n == 0 || n > axis.max_len() {
                return Err(ShapeError::Length { axis, len: n.into() });
            }
        }
        Ok(Self::build(len, [true; 3]))
    }

    /// The same lengths, with each of X, Y and Z a torus or, where `false`, a mesh.
    #[must_use]
    pub const fn with_torus(self, xyz: [bool; 3]) -> Self {
        Self::build(self.len, xyz)
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
        Self { len, wraps, stride }
    }

    /// Length of an axis in nodes.
    #[inline]
    pub const fn len(&self, axis: Axis) -> u8 {
        self.len[axis.index()]
    }

    /// Whether the axis has links from its last coordinate back to its first.
    ///
    /// Never so for an axis of length 1.
    #[inline]
    pub const fn wraps(&self, axis: Axis) -> bool {
        self.wraps[axis.index()]
    }

    /// Number of nodes, at most 393,216.
    pub const fn nodes(&self) -> u32 {
        self.stride[0] * self.len[0] as u32
    }

    /// What one step along `axis` adds to a node's number.
    #[inline]
    pub(crate) const fn stride(&self, axis: Axis) -> u32 {
        self.stride[axis.index()]
    }

    /// Whether the machine has a node at these coordinates.
    #[inline]
    pub fn contains(&self, coords: Coords) -> bool {
        coords.to_array().iter().zip(&self.len).all(|(c, len)| c < len)
    }

    /// Whether the machine has the A, B, C coordinates that the path goes through.
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
        Some(Coords::from_array(self.stride.map(|stride| {
            let c = rest / stride;
            rest %= stride;
            c as u8
        })))
    }

    /// Coordinates of all nodes, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = Coords> + use<> {
        let shape = *self;
        (0..self.nodes()).filter_map(move |id| shape.coords(NodeId(id)))
    }

    /// All paths the machine has: 12, or fewer if its A, B or C is cut down.
    pub fn paths(&self) -> impl Iterator<Item = Path> + use<> {
        let [.., a, b, c] = self.len;
        (0..a).flat_map(move |a| (0..b).flat_map(move |b| (0..c).map(move |c| Path::new(a, b, c))))
    }

    /// The node at the other end of a port's link, and whether that link wraps round.
    ///
    /// `None` if the machine has no such node or nothing is at that port.
    fn step(&self, from: Coords, port: Port) -> Option<(Coords, bool)> {
        if !self.contains(from) {
            return None;
        }
        let axis = port.axis();
        let (len, wraps) = (self.len(axis), self.wraps(axis));
        let mut to = from.to_array();
        let c = &mut to[axis.index()];
        let plus = match port {
            Port::A | Port::C => *c == 0,
            _ => port == axis.port(true),
        };
        let edge = if plus { *c == len - 1 } else { *c == 0 };
        match (edge, plus) {
            (true, _) if !wraps => return None,
            (true, true) => *c = 0,
            (true, false) => *c = len - 1,
            (false, true) => *c += 1,
            (false, false) => *c -= 1,
        }
        Some((Coords::from_array(to), edge))
    }

    /// The node at the other end of a port's link.
    ///
    /// `None` if the machine has no such node or nothing is at that port.
    pub fn neighbor(&self, from: Coords, port: Port) -> Option<Coords> {
        self.step(from, port).map(|(to, _)| to)
    }

    /// All links, each once: from the end whose port is the + one, or on A and C
    /// from coordinate 0.
    pub fn links(&self) -> impl Iterator<Item = Link> + use<> {
        const PLUS: [Port; 6] =
            [Port::XPlus, Port::YPlus, Port::ZPlus, Port::A, Port::BPlus, Port::C];
        let shape = *self;
        self.iter().flat_map(move |from| {
            PLUS.into_iter().filter_map(move |port| {
                let (to, wrap) = shape.step(from, port)?;
                let twice = port == port.opposite() && to < from;
                (!twice).then_some(Link { from, port, to, wrap })
            })
        })
    }
}

impl fmt::Display for Shape {
    /// The six lengths, `2x2x4x2x3x2`; which axes are tori is not shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z, a, b, c] = self.len;
        write!(f, "{x}x{y}x{z}x{a}x{b}x{c}")
    }
}

impl FromStr for Shape {
    type Err = ShapeError;

    /// Six lengths as in `2x2x4x2x3x2`, or `unit`, `shelf` or `half-rack`. X, Y and Z
    /// are tori.
    fn from_str(text: &str) -> Result<Self, ShapeError> {
        match text {
            "unit" => return Ok(Self::UNIT),
            "shelf" => return Ok(Self::SHELF),
            "half-rack" => return Ok(Self::HALF_RACK),
            _ => {}
        }
        let syntax = || ShapeError::Syntax { text: text.to_owned() };
        let mut len = [0u8; 6];
        let mut parts = text.split('x');
        for axis in Axis::ALL {
            let part = parts.next().ok_or_else(syntax)?;
            // `parse` alone would let a sign through.
            if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
                return Err(syntax());
            }
            // Digits that do not fit are out of range too.
            let n = part.parse().unwrap_or(u8::MAX);
            if n == 0 || n > axis.max_len() {
                return Err(ShapeError::TextLength { text: text.to_owned(), axis });
            }
            len[axis.index()] = n;
        }
        match parts.next() {
            Some(_) => Err(syntax()),
            None => Self::new(len),
        }
    }
}

/// A link between two nodes, in no particular direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// One end.
    pub from: Coords,
    /// The port at `from`; the other end's is its [`Port::opposite`].
    pub port: Port,
    /// The other end.
    pub to: Coords,
    /// Whether the link closes its axis to a ring, from the last coordinate to the first.
    pub wrap: bool,
}
