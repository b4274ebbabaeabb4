//! Shapes and journeys in them, for the tests of `tofu-netmodel`, too.

use proptest::prelude::*;
use tofu_abi::{Coords, Path};
use tofu_fabric::{Axis, Shape};

pub(crate) fn shape(len: [u8; 6]) -> Shape {
    Shape::new(len).expect("lengths are within limits")
}

/// The shapes with these lengths of X, Y and Z, where each of the three is a torus or a mesh.
/// Duplicates due to axes of length 1 are left out.
pub(crate) fn tori_and_meshes(len: [u8; 6]) -> impl Iterator<Item = Shape> {
    (0..8u8)
        .map(|bits| [0, 1, 2].map(|axis| bits >> axis & 1 != 0))
        .filter(move |torus| (0..3).all(|axis| len[axis] > 1 || torus[axis]))
        .map(move |torus| shape(len).with_torus(torus))
}

/// Any shape a machine can have.
pub(crate) fn any_shape() -> impl Strategy<Value = Shape> {
    let lengths = (1..=32u8, 1..=32u8, 1..=32u8, 1..=2u8, 1..=3u8, 1..=2u8);
    (lengths, any::<[bool; 3]>())
        .prop_map(|((x, y, z, a, b, c), torus)| shape([x, y, z, a, b, c]).with_torus(torus))
}

pub(crate) fn any_coords(shape: &Shape) -> impl Strategy<Value = Coords> + use<> {
    let len = Axis::ALL.map(|axis| shape.len(axis));
    any::<[u8; 6]>()
        .prop_map(move |raw| Coords::from_array(std::array::from_fn(|i| raw[i] % len[i])))
}

/// Any shape, two of its nodes and one of its paths.
pub(crate) fn any_journey() -> impl Strategy<Value = (Shape, Coords, Coords, Path)> {
    any_shape().prop_flat_map(|shape| {
        let via = any_coords(&shape).prop_map(|coords| coords.default_path());
        (Just(shape), any_coords(&shape), any_coords(&shape), via)
    })
}
