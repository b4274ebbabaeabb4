//! Values that follow from the shape of a machine alone.

use tofu_fabric::{Shape, bisection_links};
use tofu_machine::{Capacity, Generation};

use super::results::Results;

/// The virtual torus of the K computer: each of X, Y, Z folded with one of A, B, C.
const VIRTUAL_K: [(u32, bool); 3] = [(48, true), (36, true), (48, true)];

pub(super) fn measure(results: &mut Results) {
    let k = Capacity::of(Generation::K, &Shape::K);
    results.set("injection", k.injection as f64 / 1e15);
    results.set("bisection", k.bisection as f64 / 1e12);
    let virtual_links =
        bisection_links(&VIRTUAL_K) * Generation::K.description().link.bytes_per_s();
    results.set("bisection-virtual", virtual_links as f64 / 1e12);
    // Several blocks of either generation on each axis, closed into rings.
    let optical = |generation| {
        let shape = Shape::new([4, 4, 12, 2, 3, 2]).unwrap_or(Shape::RACK);
        Capacity::of(generation, &shape).optical * 100.0
    };
    results.set("optical-tofu2", optical(Generation::Fx100));
    results.set("optical-tofud", optical(Generation::Fugaku));
}
