//! The six axes and the ten link ports of a node.

use core::fmt;
use core::ops::{Index, IndexMut};

use crate::addr::Coords;

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

    /// The axes that the machine sizes.
    pub const XYZ: [Self; 3] = [Self::X, Self::Y, Self::Z];

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

    /// The name, `X` to `C`.
    pub const fn letter(self) -> char {
        b"XYZABC"[self as usize] as char
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
    /// `X` to `C`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.letter().fmt(f)
    }
}

impl Index<Axis> for Coords {
    type Output = u8;

    #[inline]
    fn index(&self, axis: Axis) -> &u8 {
        match axis {
            Axis::X => &self.x,
            Axis::Y => &self.y,
            Axis::Z => &self.z,
            Axis::A => &self.a,
            Axis::B => &self.b,
            Axis::C => &self.c,
        }
    }
}

impl IndexMut<Axis> for Coords {
    #[inline]
    fn index_mut(&mut self, axis: Axis) -> &mut u8 {
        match axis {
            Axis::X => &mut self.x,
            Axis::Y => &mut self.y,
            Axis::Z => &mut self.z,
            Axis::A => &mut self.a,
            Axis::B => &mut self.b,
            Axis::C => &mut self.c,
        }
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

    /// The public name: `A`, `C`, `B-`, `X+` and so on.
    pub const fn name(self) -> &'static str {
        ["A", "C", "B-", "B+", "X-", "X+", "Y-", "Y+", "Z-", "Z+"][self as usize]
    }

    /// The port with this [`Port::name`], if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|port| port.name() == name)
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

    /// The direction of the port: -1 to lower coordinates, 1 to higher ones; 0 for A and C, whose
    /// port leads to the other node of the two.
    pub const fn direction(self) -> i8 {
        match self {
            Self::A | Self::C => 0,
            Self::BMinus | Self::XMinus | Self::YMinus | Self::ZMinus => -1,
            Self::BPlus | Self::XPlus | Self::YPlus | Self::ZPlus => 1,
        }
    }

    /// The port at the other end of the link: X+ for X-, A for A.
    #[must_use]
    pub const fn opposite(self) -> Self {
        self.axis().port(self.direction() < 0)
    }
}

impl fmt::Display for Port {
    /// [`Port::name`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
