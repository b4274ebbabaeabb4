//! The routes of a packet to a node: 12 paths, and both directions of each ring.

use tofu_abi::topology::{Axis, Shape};
use tofu_abi::{Coords, PacketTarget, TniId};

/// Route number `attempt` from one node to another. Number 0 is the default path by the shortest
/// way. `None` if the number is too high, or a node is not in the machine.
///
/// The first routes differ in the path. The later ones go in the opposite direction on X, Y or Z.
/// There are at most 96.
pub fn route(
    shape: &Shape,
    from: Coords,
    to: Coords,
    tni: TniId,
    attempt: u8,
) -> Option<PacketTarget> {
    if !shape.contains(from) || !shape.contains(to) {
        return None;
    }
    let paths = shape.path_count();
    // A plain division could panic, which the kernel's objtool cannot cope with.
    let (mut turn, path) = (attempt.checked_div(paths)?, attempt.checked_rem(paths)?);
    // The default path comes first.
    let first = shape.path_number(to.default_path());
    let path = shape.path((first + path).checked_rem(paths)?)?;
    let mut distances = [0; 3];
    for (axis, distance) in Axis::XYZ.into_iter().zip(&mut distances) {
        let (start, end) = (from[axis], to[axis]);
        if start == end {
            continue;
        }
        *distance = shape.way(axis, start, end);
        if shape.wraps(axis) {
            if turn & 1 != 0 {
                *distance -= shape.len(axis) as i8 * distance.signum();
            }
            turn >>= 1;
        }
    }
    (turn == 0).then_some(PacketTarget { distances, node: to, path, tni })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(shape: &str, from: Coords, to: Coords) -> usize {
        let shape = shape.parse().unwrap();
        let mut seen = alloc::vec::Vec::new();
        while let Some(route) = route(&shape, from, to, TniId::ALL[0], seen.len() as u8) {
            assert!(!seen.contains(&route), "{route:?} comes twice");
            seen.push(route);
        }
        assert_eq!(seen.first().map_or(to.default_path(), |r| r.path), to.default_path());
        seen.len()
    }

    #[test]
    fn every_way_comes_once() {
        let at = |x, y, a, b| Coords::new(x, y, 0, a, b, 0);
        assert_eq!(all("1x1x1x2x3x2", at(0, 0, 0, 0), at(0, 0, 1, 2)), 12);
        assert_eq!(all("3x1x1x1x1x1", at(0, 0, 0, 0), at(2, 0, 0, 0)), 2);
        assert_eq!(all("3x4x1x2x3x2", at(0, 0, 0, 0), at(2, 2, 0, 0)), 48);
        assert_eq!(all("3x4x1x2x3x2", at(0, 0, 0, 0), at(2, 0, 0, 0)), 24);
        assert_eq!(all("3x4x1x2x3x2", at(0, 0, 0, 0), at(3, 0, 0, 0)), 0, "not in the machine");
        let far = Coords::new(16, 16, 16, 1, 2, 1);
        assert_eq!(all("32x32x32x2x3x2", Coords::default(), far), 96);
    }
}
