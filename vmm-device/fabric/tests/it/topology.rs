use std::collections::HashSet;

use proptest::prelude::*;
use tofu_abi::Coords;
use tofu_fabric::{Axis, NodeId, Port, Shape, ShapeError};

use crate::common::{any_coords, any_shape, shape, tori_and_meshes};

#[test]
fn ports_have_the_public_numbers() {
    let names = Port::ALL.map(|port| port.to_string());
    assert_eq!(names, ["A", "C", "B-", "B+", "X-", "X+", "Y-", "Y+", "Z-", "Z+"]);
    for (number, port) in Port::ALL.into_iter().enumerate() {
        assert_eq!(port.index(), number);
        assert_eq!(Port::from_index(number), Some(port));
        assert_eq!(port.opposite().opposite(), port);
        assert_eq!(port.opposite().axis(), port.axis());
    }
    assert_eq!(Port::from_index(10), None);
}

#[test]
fn presets_and_lengths_parse() {
    for (text, nodes, long) in [
        ("unit", 12, "1x1x1x2x3x2"),
        ("shelf", 48, "1x1x4x2x3x2"),
        ("half-rack", 192, "2x2x4x2x3x2"),
        ("32x32x32x2x3x2", 393_216, "32x32x32x2x3x2"),
        ("1x1x1x2x1x1", 2, "1x1x1x2x1x1"),
    ] {
        let shape: Shape = text.parse().expect(text);
        assert_eq!(shape.nodes(), nodes);
        assert_eq!(shape.to_string(), long);
    }
}

#[test]
fn a_refused_shape_is_named_with_what_is_allowed() {
    for (text, hint) in [
        ("33x1x1x2x3x2", "axis X may have length 1 to 32"),
        ("1x1x0x2x3x2", "axis Z may have length 1 to 32"),
        ("1x1x1x2x4x2", "axis B may have length 1 to 3"),
        ("1x1x1x2x3x99999", "axis C may have length 1 to 2"),
        ("", "XxYxZxAxBxC"),
        ("1x1x1x2x3", "XxYxZxAxBxC"),
        ("1x1x1x2x3x2x1", "XxYxZxAxBxC"),
        ("1x1x1x2x3x+2", "XxYxZxAxBxC"),
        ("rack", "XxYxZxAxBxC"),
    ] {
        let message = text.parse::<Shape>().expect_err(text).to_string();
        assert!(message.contains(&format!("\"{text}\"")), "{message}");
        assert!(message.contains(hint), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
    assert_eq!(Shape::new([1, 40, 1, 2, 3, 2]), Err(ShapeError::Length { axis: Axis::Y, len: 40 }));
}

#[test]
fn node_numbers_run_without_gaps_with_c_fastest() {
    let shape = shape([2, 1, 3, 2, 3, 2]);
    let all: Vec<Coords> = shape.iter().collect();
    assert_eq!(all.len(), shape.nodes() as usize);
    assert!(all.is_sorted(), "X slowest, C fastest");
    for (number, coords) in all.into_iter().enumerate() {
        let id = NodeId(number as u32);
        assert_eq!(shape.node_id(coords), Some(id));
        assert_eq!(shape.coords(id), Some(coords));
    }
    assert_eq!(shape.coords(NodeId(shape.nodes())), None);
    assert_eq!(shape.coords(NodeId::NOWHERE), None);
}

#[test]
fn a_torus_of_two_has_two_links_and_a_mesh_of_two_one() {
    let (zero, one) = (Coords::default(), Coords::new(1, 0, 0, 0, 0, 0));
    let torus = shape([2, 1, 1, 1, 1, 1]);
    for port in [Port::XMinus, Port::XPlus] {
        assert_eq!(torus.neighbor(zero, port), Some(one));
        assert_eq!(torus.neighbor(one, port), Some(zero));
    }
    assert_eq!(torus.links().map(|link| link.wrap).collect::<Vec<_>>(), [false, true]);
    let mesh = torus.with_torus([false; 3]);
    assert_eq!(mesh.neighbor(zero, Port::XPlus), Some(one));
    assert_eq!(mesh.neighbor(zero, Port::XMinus), None);
    assert_eq!(mesh.neighbor(one, Port::XPlus), None);
    assert_eq!(mesh.links().count(), 1);
}

#[test]
fn b_is_a_ring_of_three_and_a_mesh_when_cut_down() {
    let node = |b| Coords::new(0, 0, 0, 0, b, 0);
    let ring = shape([1, 1, 1, 1, 3, 1]);
    assert_eq!(ring.neighbor(node(2), Port::BPlus), Some(node(0)));
    assert_eq!(ring.neighbor(node(0), Port::BMinus), Some(node(2)));
    let mesh = shape([1, 1, 1, 1, 2, 1]);
    assert_eq!(mesh.neighbor(node(1), Port::BPlus), None);
    assert_eq!(mesh.neighbor(node(0), Port::BPlus), Some(node(1)));
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
            for link in shape.links() {
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

proptest! {
    #[test]
    fn a_link_leads_there_and_back(
        (shape, node) in any_shape().prop_flat_map(|shape| (Just(shape), any_coords(&shape))),
    ) {
        for port in Port::ALL {
            let Some(other) = shape.neighbor(node, port) else { continue };
            prop_assert!(shape.contains(other));
            prop_assert_ne!(node, other);
            prop_assert_eq!(shape.neighbor(other, port.opposite()), Some(node));
        }
    }

    #[test]
    fn coordinates_of_any_bytes_are_checked(shape in any_shape(), raw in any::<[u8; 6]>()) {
        let coords = Coords::from_array(raw);
        let inside = Axis::ALL.into_iter().all(|axis| raw[axis.index()] < shape.len(axis));
        prop_assert_eq!(shape.node_id(coords).is_some(), inside);
        if !inside {
            for port in Port::ALL {
                prop_assert_eq!(shape.neighbor(coords, port), None);
            }
        }
    }

    #[test]
    fn parsing_never_panics(text in "[0-9x ]{0,20}|\\PC{0,20}") {
        if let Ok(shape) = text.parse::<Shape>() {
            prop_assert!((1..=393_216).contains(&shape.nodes()));
        }
    }
}
