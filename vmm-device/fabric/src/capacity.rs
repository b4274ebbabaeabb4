//! The capacity of a machine's links, found by counting them.

use tofu_abi::topology::{Axis, Shape};

use crate::Link;

/// Counts the links cut when a network is halved across the axis with the fewest, each direction
/// separately, as the papers count a bisection. An axis is its length and whether it is a ring; an
/// odd one is cut beside its middle.
///
/// It need not be a [`Shape`]: the virtual torus of a job has axes that are longer.
pub fn bisection_links(axes: &[(u32, bool)]) -> u64 {
    let nodes: u64 = axes.iter().map(|(len, _)| u64::from(*len)).product();
    let cut = |(len, ring): &(u32, bool)| nodes / u64::from(*len) * if *ring { 4 } else { 2 };
    axes.iter().filter(|(len, _)| *len > 1).map(cut).min().unwrap_or(0)
}

/// The axes of a machine, for [`bisection_links`].
pub fn axes_of(shape: &Shape) -> [(u32, bool); 6] {
    Axis::ALL.map(|axis| (u32::from(shape.len(axis)), shape.wraps(axis)))
}

/// Counts the links between the blocks of this shape that a machine is built of, and all links. The
/// blocks begin at coordinate 0 of each axis.
pub fn links_between(shape: &Shape, block: &Shape) -> (u64, u64) {
    let mut counts = (0, 0);
    for link in Link::all(shape) {
        let axis = link.port.axis();
        let block_of = |at: u8| at / block.len(axis);
        let leaves = block_of(link.from[axis]) != block_of(link.to[axis]);
        counts.0 += u64::from(leaves);
        counts.1 += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrowest_axis_is_cut_in_the_middle() {
        // Twelve nodes: six links on A or C.
        assert_eq!(bisection_links(&axes_of(&Shape::UNIT)), 12);
        assert_eq!(bisection_links(&[(1, false)]), 0);
        assert_eq!(bisection_links(&[(4, true), (2, false)]), 8);
        // Y of the K computer is a mesh.
        assert_eq!(bisection_links(&axes_of(&Shape::K)), 24 * 16 * 12 * 2);
    }

    #[test]
    fn links_leave_blocks_or_do_not() {
        let machine: Shape = "4x4x8x2x3x2".parse().unwrap();
        let (leaving, all) = links_between(&machine, &Shape::HALF_RACK);
        assert_eq!((leaving * 4, all), (all, 128 * 12 * 5));
        assert_eq!(links_between(&Shape::HALF_RACK, &Shape::HALF_RACK).0, 0);
    }
}
