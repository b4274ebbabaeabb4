use std::collections::HashSet;

use tofu_fabric::{Axis, Link, Port};

use crate::shapes::{shape, tori_and_meshes};

#[test]
fn torus_of_two_has_two_links_and_mesh_one() {
    let torus = shape([2, 1, 1, 1, 1, 1]);
    assert_eq!(Link::all(&torus).map(|link| link.wrap).collect::<Vec<_>>(), [false, true]);
    let mesh = torus.with_torus([false; 3]);
    assert_eq!(Link::all(&mesh).count(), 1);
}

#[test]
fn links_are_all_there_once() {
    for len in [[1, 1, 1, 2, 3, 2], [3, 2, 1, 2, 2, 1], [4, 1, 5, 1, 3, 2]] {
        for shape in tori_and_meshes(len) {
            let expected: u32 = Axis::ALL
                .into_iter()
                .map(|axis| {
                    let len = u32::from(shape.len(axis));
                    shape.nodes() / len * if shape.wraps(axis) { len } else { len - 1 }
                })
                .sum();
            let mut ends = HashSet::new();
            for link in Link::all(&shape) {
                assert_eq!(shape.neighbor(link.from, link.port), Some(link.to));
                assert!(ends.insert((link.from, link.port)));
                assert!(ends.insert((link.to, link.port.opposite())));
            }
            assert_eq!(ends.len() as u32, 2 * expected, "{shape}");
            let attached = shape
                .iter()
                .flat_map(|node| Port::ALL.map(|port| shape.neighbor(node, port)))
                .flatten();
            assert_eq!(attached.count(), ends.len(), "{shape}");
        }
    }
}
