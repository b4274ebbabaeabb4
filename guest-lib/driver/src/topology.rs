//! The shape of the machine, as guest programs are told it.
//!
//! The device knows its own coordinates and nothing of the others; a program learns the
//! shape from its command line (`shape=2x2x4x2x3x2`, `torus=xyz`, both ours).

use core::fmt;
use core::str::FromStr;

use tofu_abi::Coords;

/// The greatest lengths of the six axes: what a node address holds.
const MAX: [u8; 6] = [32, 32, 32, 2, 3, 2];

/// Public names of the ten link ports, in the order of their numbers.
pub const PORT_NAMES: [&str; 10] = ["A", "C", "B-", "B+", "X-", "X+", "Y-", "Y+", "Z-", "Z+"];

/// Axis (0 to 5) and direction of each port.
const PORTS: [(usize, bool); 10] = [
    (3, true),
    (5, true),
    (4, false),
    (4, true),
    (0, false),
    (0, true),
    (1, false),
    (1, true),
    (2, false),
    (2, true),
];

/// Text that is no shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadShape;

impl fmt::Display for BadShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a shape is six lengths XxYxZxAxBxC, at most 32x32x32x2x3x2, such as 1x1x1x2x3x2",
        )
    }
}

impl core::error::Error for BadShape {}

/// Lengths of the six axes, and which of them wrap around.
///
/// X, Y and Z are tori unless told otherwise ([`Shape::with_torus`]); B is a ring when it
/// is 3 long; A and C do not wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    len: [u8; 6],
    torus: [bool; 3],
}

impl FromStr for Shape {
    type Err = BadShape;

    fn from_str(text: &str) -> Result<Self, BadShape> {
        let mut len = [0; 6];
        let mut parts = text.split('x');
        for (n, max) in len.iter_mut().zip(MAX) {
            let part = parts.next().ok_or(BadShape)?;
            // `parse` alone takes a sign.
            if !part.bytes().all(|b| b.is_ascii_digit()) {
                return Err(BadShape);
            }
            *n = part.parse().map_err(|_| BadShape)?;
            if *n == 0 || *n > max {
                return Err(BadShape);
            }
        }
        if parts.next().is_some() {
            return Err(BadShape);
        }
        Ok(Self { len, torus: [true; 3] })
    }
}

impl Shape {
    /// A copy with the axes of X, Y and Z that wrap around named by letters, as in `xz`;
    /// others are meshes.
    #[must_use]
    pub fn with_torus(self, axes: &str) -> Self {
        let has = |axis: char| axes.chars().any(|c| c.eq_ignore_ascii_case(&axis));
        Self { torus: [has('x'), has('y'), has('z')], ..self }
    }

    /// Lengths of the axes, in the order X Y Z A B C.
    pub fn lengths(&self) -> [u8; 6] {
        self.len
    }

    /// Whether the last node of an axis (0 to 5, in the order X Y Z A B C) is linked to the first.
    pub fn wraps(&self, axis: usize) -> bool {
        match axis {
            0..=2 => self.torus[axis] && self.len[axis] > 1,
            4 => self.len[4] == 3,
            _ => false,
        }
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.len.iter().map(|n| u32::from(*n)).product()
    }

    /// Coordinates of node `rank`. Ranks run with X slowest and C fastest.
    pub fn coords(&self, rank: u32) -> Option<Coords> {
        if rank >= self.nodes() {
            return None;
        }
        let mut rest = rank;
        let mut coords = [0; 6];
        for (c, n) in coords.iter_mut().zip(self.len).rev() {
            *c = (rest % u32::from(n)) as u8;
            rest /= u32::from(n);
        }
        Some(Coords::from_array(coords))
    }

    /// Rank of a node, if it is in the machine.
    pub fn rank(&self, node: Coords) -> Option<u32> {
        let mut rank = 0;
        for (c, n) in node.to_array().into_iter().zip(self.len) {
            if c >= n {
                return None;
            }
            rank = rank * u32::from(n) + u32::from(c);
        }
        Some(rank)
    }

    /// The node at the other end of the link at `port` (0 to 9), if there is a link.
    pub fn neighbor(&self, node: Coords, port: usize) -> Option<Coords> {
        self.rank(node)?;
        let (axis, plus) = *PORTS.get(port)?;
        let n = self.len[axis];
        let wraps = self.wraps(axis);
        let mut to = node.to_array();
        let c = &mut to[axis];
        *c = match axis {
            // A and C have one port, which leads to the other node of the two.
            3 | 5 if n == 2 => 1 - *c,
            3 | 5 => return None,
            _ if plus && *c + 1 < n => *c + 1,
            _ if plus && wraps => 0,
            _ if !plus && *c > 0 => *c - 1,
            _ if !plus && wraps => n - 1,
            _ => return None,
        };
        Some(Coords::from_array(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_parsed_strictly() {
        let shape: Shape = "2x1x4x2x3x2".parse().unwrap();
        assert_eq!(shape.nodes(), 96);
        for bad in ["", "1x1x1x2x3", "1x1x1x2x3x2x1", "0x1x1x2x3x2", "33x1x1x2x3x2", "1x1x1x3x3x2"]
        {
            assert_eq!(bad.parse::<Shape>(), Err(BadShape), "{bad}");
        }
        assert_eq!("+1x1x1x2x3x2".parse::<Shape>(), Err(BadShape));
        assert_eq!("999x1x1x2x3x2".parse::<Shape>(), Err(BadShape));
    }

    #[test]
    fn ranks_and_coordinates_are_inverse_with_c_fastest() {
        let shape: Shape = "2x3x4x2x3x2".parse().unwrap();
        for rank in 0..shape.nodes() {
            assert_eq!(shape.rank(shape.coords(rank).unwrap()), Some(rank));
        }
        assert_eq!(shape.coords(1), Some(Coords::new(0, 0, 0, 0, 0, 1)));
        assert_eq!(shape.coords(12), Some(Coords::new(0, 0, 1, 0, 0, 0)));
        assert_eq!(shape.coords(shape.nodes()), None);
        assert_eq!(shape.rank(Coords::new(2, 0, 0, 0, 0, 0)), None);
    }

    #[test]
    fn links_lead_back() {
        for (text, torus) in [("1x1x1x2x3x2", "xyz"), ("3x2x1x2x3x2", "xyz"), ("3x4x1x1x2x1", "y")]
        {
            let shape = text.parse::<Shape>().unwrap().with_torus(torus);
            for node in (0..shape.nodes()).map(|rank| shape.coords(rank).unwrap()) {
                for port in 0..10 {
                    // Ports 0 and 1 are their own opposites, then - and + alternate.
                    let back = if port < 2 { port } else { port ^ 1 };
                    if let Some(to) = shape.neighbor(node, port) {
                        assert_eq!(shape.neighbor(to, back), Some(node), "{text} {node} {port}");
                    }
                }
            }
        }
        let unit: Shape = "1x1x1x2x3x2".parse().unwrap();
        let zero = Coords::default();
        let links = (0..10).filter(|port| unit.neighbor(zero, *port).is_some()).count();
        assert_eq!(links, 4, "a node of a lone unit has A, C, B- and B+");
        let mesh = "3x1x1x2x3x2".parse::<Shape>().unwrap().with_torus("");
        assert_eq!(mesh.neighbor(zero, 4), None);
        assert_eq!(mesh.neighbor(zero, 5), Some(Coords::new(1, 0, 0, 0, 0, 0)));
    }
}
