//! The shape of a machine: text, numbers, neighbours, distances.

use proptest::prelude::*;
use tofu_abi::Coords;
use tofu_abi::topology::{Axis, LEGS, NodeId, Port, Shape, ShapeError, Stage};

fn shape(len: [u8; 6]) -> Shape {
    Shape::new(len).expect("lengths are within limits")
}

/// Any shape that a machine can have.
fn any_shape() -> impl Strategy<Value = Shape> {
    let lengths = (1..=32u8, 1..=32u8, 1..=32u8, 1..=2u8, 1..=3u8, 1..=2u8);
    (lengths, any::<[bool; 3]>())
        .prop_map(|((x, y, z, a, b, c), torus)| shape([x, y, z, a, b, c]).with_torus(torus))
}

fn any_coords(shape: &Shape) -> impl Strategy<Value = Coords> + use<> {
    let len = shape.lengths();
    any::<[u8; 6]>()
        .prop_map(move |raw| Coords::from_array(std::array::from_fn(|i| raw[i] % len[i])))
}

/// Any shape, and nodes of it.
fn any_nodes() -> impl Strategy<Value = (Shape, [Coords; 3])> {
    any_shape().prop_flat_map(|shape| {
        let node = || any_coords(&shape);
        (Just(shape), [node(), node(), node()])
    })
}

#[test]
fn ports_have_the_public_numbers() {
    let names = Port::ALL.map(|port| port.to_string());
    assert_eq!(names, ["A", "C", "B-", "B+", "X-", "X+", "Y-", "Y+", "Z-", "Z+"]);
    for (number, port) in Port::ALL.into_iter().enumerate() {
        assert_eq!(port.index(), number);
        assert_eq!(Port::from_index(number), Some(port));
        assert_eq!(port.opposite().opposite(), port);
        assert_eq!(port.opposite().axis(), port.axis());
        assert_eq!(port.opposite().direction(), -port.direction());
        assert_eq!(port.axis().port(port.direction() > 0), port);
    }
    assert_eq!(Port::from_index(10), None);
}

#[test]
fn presets_and_lengths_parse() {
    for (text, nodes, long) in [
        ("unit", 12, "1x1x1x2x3x2"),
        ("shelf", 48, "1x1x4x2x3x2"),
        ("half-rack", 192, "2x2x4x2x3x2"),
        ("rack", 384, "2x2x8x2x3x2"),
        ("k-racks", 204, "1x1x17x2x3x2"),
        ("k", 82_944, "24x18x16x2x3x2"),
        ("32x32x32x2x3x2", 393_216, "32x32x32x2x3x2"),
        ("1x1x1x2x1x1", 2, "1x1x1x2x1x1"),
    ] {
        let shape: Shape = text.parse().expect(text);
        assert_eq!(shape.nodes(), nodes);
        assert_eq!(shape.to_string(), long);
    }
    assert_eq!(Shape::RACK.torus(), [true; 3]);
    assert_eq!(Shape::K.torus(), [true, false, true]);
}

#[test]
fn io_nodes_are_those_with_z_0() {
    let racks = Shape::K_RACKS;
    assert!(racks.has_io_nodes() && !Shape::K.has_io_nodes() && !Shape::RACK.has_io_nodes());
    assert_eq!((racks.compute_nodes(), racks.io_nodes().count()), (192, 12));
    assert!(racks.io_nodes().all(|at| at.z == 0 && racks.is_io_node(at)));
    assert!(!racks.is_io_node(Coords::new(0, 0, 1, 0, 0, 0)));
    assert!(!racks.is_io_node(Coords::new(1, 0, 0, 0, 0, 0)));
    // They stay when other axes lose their rings, and are removed on request.
    assert!(racks.with_torus([false; 3]).has_io_nodes());
    assert_eq!(racks.with_io_nodes(false).compute_nodes(), 204);
    let wide = Shape::new([2, 3, 4, 1, 2, 2]).unwrap().with_io_nodes(true);
    assert_eq!((wide.compute_nodes(), wide.io_nodes().count()), (72, 24));
    assert!(!Shape::UNIT.with_io_nodes(true).has_io_nodes());
}

#[test]
fn refused_shape_names_the_allowed_values() {
    for (text, hint) in [
        ("33x1x1x2x3x2", "axis X may have length 1 to 32"),
        ("1x1x0x2x3x2", "axis Z may have length 1 to 32"),
        ("1x1x1x2x4x2", "axis B may have length 1 to 3"),
        ("1x1x1x2x3x99999", "axis C may have length 1 to 2"),
        ("", "XxYxZxAxBxC"),
        ("1x1x1x2x3", "XxYxZxAxBxC"),
        ("1x1x1x2x3x2x1", "XxYxZxAxBxC"),
        ("1x1x1x2x3x+2", "XxYxZxAxBxC"),
        ("racks", "XxYxZxAxBxC"),
    ] {
        let message = text.parse::<Shape>().expect_err(text).to_string();
        assert!(message.contains(&format!("\"{text}\"")), "{message}");
        assert!(message.contains(hint), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
    let error = Shape::new([1, 40, 1, 2, 3, 2]).unwrap_err();
    assert_eq!(error, ShapeError::Length { axis: Axis::Y, len: 40 });
    assert_eq!(error.to_string(), "axis Y has length 40, but may have 1 to 32");
    let long = "2x2x4x2x3x2 and more that is not read".parse::<Shape>().unwrap_err();
    assert!(
        long.to_string().starts_with("shape \"2x2x4x2x3x2 and more that is not\"..."),
        "{long}"
    );
}

#[test]
fn tori_are_named_by_letters() {
    let shape = shape([2, 3, 4, 2, 3, 2]);
    assert_eq!(shape.torus(), [true; 3]);
    for (letters, torus) in
        [("xyz", [true; 3]), ("ZX", [true, false, true]), ("y", [false, true, false])]
    {
        assert_eq!(shape.with_torus_letters(letters), shape.with_torus(torus), "{letters}");
        assert_eq!(shape.with_torus_letters(letters).torus(), torus, "{letters}");
    }
    for letters in ["", "none"] {
        assert_eq!(shape.with_torus_letters(letters).torus(), [false; 3], "{letters}");
    }
    assert_eq!(Shape::UNIT.torus(), [false; 3], "an axis of length 1 has no links");
}

#[test]
fn node_numbers_are_dense_with_c_fastest() {
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
fn torus_of_two_has_two_links_and_mesh_one() {
    let (zero, one) = (Coords::default(), Coords::new(1, 0, 0, 0, 0, 0));
    let torus = shape([2, 1, 1, 1, 1, 1]);
    for port in [Port::XMinus, Port::XPlus] {
        assert_eq!(torus.neighbor(zero, port), Some(one));
        assert_eq!(torus.neighbor(one, port), Some(zero));
    }
    let mesh = torus.with_torus([false; 3]);
    assert_eq!(mesh.neighbor(zero, Port::XPlus), Some(one));
    assert_eq!(mesh.neighbor(zero, Port::XMinus), None);
    assert_eq!(mesh.neighbor(one, Port::XPlus), None);
}

#[test]
fn b_axis_is_ring_of_three_or_cut_mesh() {
    let node = |b| Coords::new(0, 0, 0, 0, b, 0);
    let ring = shape([1, 1, 1, 1, 3, 1]);
    assert_eq!(ring.neighbor(node(2), Port::BPlus), Some(node(0)));
    assert_eq!(ring.neighbor(node(0), Port::BMinus), Some(node(2)));
    let mesh = shape([1, 1, 1, 1, 2, 1]);
    assert_eq!(mesh.neighbor(node(1), Port::BPlus), None);
    assert_eq!(mesh.neighbor(node(0), Port::BPlus), Some(node(1)));
}

proptest! {
    #[test]
    fn link_leads_there_and_back(
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

    #[test]
    fn numbers_and_coordinates_are_inverse(shape in any_shape(), number: u32) {
        let id = NodeId(number % shape.nodes());
        let coords = shape.coords(id).unwrap();
        prop_assert!(shape.contains(coords));
        prop_assert_eq!(shape.node_id(coords), Some(id));
        prop_assert_eq!(shape.coords(NodeId(shape.nodes())), None);
    }

    #[test]
    fn lengths_survive_as_text(shape in any_shape()) {
        let parsed: Shape = shape.to_string().parse().unwrap();
        prop_assert_eq!(parsed.with_torus(shape.torus()), shape);
    }

    #[test]
    fn route_takes_the_shorter_way((shape, [from, to, _]) in any_nodes()) {
        for axis in Axis::ALL {
            let (from, to) = (from[axis], to[axis]);
            let hops = shape.way(axis, from, to);
            prop_assert_eq!(shape.walk(axis, from, hops), Some(to));
            let straight = from.abs_diff(to);
            let round = shape.len(axis) - straight;
            let tie = shape.wraps(axis) && straight == round;
            let least = if shape.wraps(axis) { straight.min(round) } else { straight };
            prop_assert_eq!(hops.unsigned_abs(), least);
            prop_assert!(!tie || hops > 0);
        }
    }

    #[test]
    fn legs_follow_the_papers_order(
        (shape, [from, to, via]) in any_nodes(),
    ) {
        let path = via.default_path();
        let mut at = from;
        let mut order = LEGS.iter();
        for leg in shape.legs(from, to, path) {
            prop_assert!(order.any(|next| *next == (leg.stage, leg.axis)));
            if leg.stage == Stage::Xyz {
                prop_assert_eq!(at.default_path(), path);
            }
            prop_assert_eq!(leg.from, at[leg.axis]);
            for _ in 0..leg.hops.unsigned_abs() {
                at = shape.neighbor(at, leg.port()).unwrap();
            }
        }
        prop_assert_eq!(at, to);
    }

    #[test]
    fn distance_is_that_of_the_default_path(
        (shape, [from, to, via]) in any_nodes(),
    ) {
        let distance = shape.distance(from, to);
        prop_assert_eq!(shape.distance(to, from), distance);
        prop_assert_eq!(shape.hops(from, to, to.default_path()), distance);
        prop_assert!(shape.hops(from, to, via.default_path()) >= distance);
        prop_assert!(distance <= shape.distance(from, via) + shape.distance(via, to));
        prop_assert_eq!(distance == 0, from == to);
        let mut reached = shape.neighbors(from);
        prop_assert_eq!(reached.any(|(_, near)| near == to), shape.adjacent(from, to));
        for (_, near) in shape.neighbors(from) {
            prop_assert!(shape.adjacent(from, near) && shape.adjacent(near, from));
        }
    }

    #[test]
    fn coordinates_outside_never_panic(
        shape in any_shape(),
        raw in any::<[[u8; 6]; 3]>(),
        hops: i8,
    ) {
        let [from, to, via] = raw.map(Coords::from_array);
        let _ = shape.hops(from, to, via.default_path());
        let _ = shape.distance(from, to);
        for axis in Axis::ALL {
            let end = shape.walk(axis, from[axis], hops);
            prop_assert!(end.is_none_or(|end| end < shape.len(axis)));
        }
    }
}

#[test]
fn every_node_is_in_one_block() {
    for (shape, lengths, sizes) in [
        ("2x2x4x2x3x2", [1, 1, 1, 2, 1, 2], [4].as_slice()),
        ("2x2x4x2x3x2", [1, 1, 1, 1, 1, 2], &[2]),
        ("1x2x4x2x3x2", [1, 1, 3, 1, 1, 1], &[1, 3]),
        ("3x1x1x2x1x1", [2, 2, 2, 2, 2, 2], &[2, 4]),
        ("3x1x1x2x1x1", [0; 6], &[1]),
    ] {
        let shape: Shape = shape.parse().unwrap();
        let mut found = Vec::new();
        for at in shape.iter() {
            let block: Vec<_> = shape.block(at, lengths).collect();
            assert!(block.contains(&at) && block.is_sorted());
            assert!(sizes.contains(&block.len()), "{shape} {at}: {block:?}");
            assert!(block.iter().all(|node| shape.block(*node, lengths).eq(block.iter().copied())));
            if block[0] == at {
                found.extend(block);
            }
        }
        found.sort();
        assert!(found.into_iter().eq(shape.iter()));
        assert_eq!(shape.block(Coords::new(0, 3, 0, 0, 0, 0), lengths).count(), 0);
    }
}
