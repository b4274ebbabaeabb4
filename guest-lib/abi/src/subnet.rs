//! Subnets: boxes of nodes to which control queues and barrier gates are confined.

use core::fmt;
use core::str::FromStr;

use crate::addr::{Coords, decimal};
use crate::regs::CqsMode;
use crate::topology::{Axis, Shape};

/// Largest size of a machine on X, Y and Z, in nodes.
const MAX_SIZE: u8 = 32;

/// The nodes that a queue may send to, or that a gate may be linked to: a box on X, Y and Z, which
/// may wrap round a torus. Nodes that differ only in A, B and C are either all in it or all
/// outside.
///
/// On each axis it has the size of the machine, the first coordinate, and the length. Length 0 is
/// no limit. As text it is these nine numbers, with commas, as in `8,6,4,4,0,4,1,0,1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subnet([[u8; 3]; 3]);

impl Subnet {
    /// Size, first coordinate and length on X, on Y and on Z.
    ///
    /// None if a size is above 32, or the part does not lie in it.
    pub fn new(parts: [[u8; 3]; 3]) -> Option<Self> {
        let fits = |&[n, s, l]: &[u8; 3]| n <= MAX_SIZE && l <= n && (s < n || (n == 0 && s == 0));
        parts.iter().all(fits).then_some(Self(parts))
    }

    /// The smallest box that contains these nodes of a machine; it may wrap round where the machine
    /// is a torus. No limit if there are no nodes.
    pub fn around<'a>(shape: &Shape, nodes: impl IntoIterator<Item = &'a Coords>) -> Self {
        // A bit for each coordinate that a node has.
        let mut taken = [0u32; 3];
        for node in nodes {
            for (taken, at) in taken.iter_mut().zip([node.x, node.y, node.z]) {
                *taken |= 1 << (at % MAX_SIZE);
            }
        }
        let mut parts = [[0; 3]; 3];
        for ((part, taken), axis) in parts.iter_mut().zip(taken).zip(Axis::XYZ) {
            let n = shape.len(axis);
            let is_taken = |at: &u8| taken >> at & 1 != 0;
            let wraps = shape.wraps(axis);
            // From each first coordinate to the last one in use, which comes before it on the way
            // round.
            let all = || (0..n).filter(is_taken);
            let firsts = all().take(if wraps { MAX_SIZE.into() } else { 1 });
            let from = |s: u8| all().map(|at| (at + n - s) % n + 1).max().map(|l| (l, s));
            let (l, s) = firsts.filter_map(from).min().unwrap_or_default();
            *part = [n, s, l];
        }
        Self(parts)
    }

    /// The fields of CQS MODE, and of BGS SUBNET_SIZE; the others are 0.
    pub const fn mode(self) -> CqsMode {
        let [[nx, sx, lx], [ny, sy, ly], [nz, sz, lz]] = self.0;
        let x = CqsMode(0).with_nx(nx).with_sx(sx).with_lx(lx);
        x.with_ny(ny).with_sy(sy).with_ly(ly).with_nz(nz).with_sz(sz).with_lz(lz)
    }

    /// The numbers that [`Subnet::new`] takes.
    pub const fn parts(self) -> [[u8; 3]; 3] {
        self.0
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, number) in self.0.as_flattened().iter().enumerate() {
            write!(f, "{}{number}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Text is no [`Subnet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSubnet;

impl fmt::Display for NoSubnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a subnet is nine numbers with commas: size of the machine, up to 32, first coordinate \
             and length of the part, on X, Y and Z",
        )
    }
}

impl core::error::Error for NoSubnet {}

impl FromStr for Subnet {
    type Err = NoSubnet;

    fn from_str(text: &str) -> Result<Self, NoSubnet> {
        let mut parts = [[0; 3]; 3];
        let mut words = text.split(',');
        for part in parts.as_flattened_mut() {
            *part = words.next().and_then(decimal).ok_or(NoSubnet)?;
        }
        if words.next().is_some() {
            return Err(NoSubnet);
        }
        Self::new(parts).ok_or(NoSubnet)
    }
}
