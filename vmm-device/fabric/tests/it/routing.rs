use std::collections::VecDeque;

use proptest::prelude::*;
use tofu_abi::{Coords, Path};
use tofu_fabric::{Axis, Class, NodeId, Port, Route, RouteError, Shape};

use crate::common::{is_xyz, trace};
use crate::shapes::{any_journey, shape, tori_and_meshes};

/// Hops from `from` to every node over links of some axes only, by a breadth-first search of the
/// graph; `None` for nodes that these links do not reach.
fn distances(shape: &Shape, from: NodeId, use_axis: fn(Axis) -> bool) -> Vec<Option<u32>> {
    let mut distance = vec![None; shape.nodes() as usize];
    distance[from.index()] = Some(0);
    let mut queue = VecDeque::from([(from, 0)]);
    while let Some((node, hops)) = queue.pop_front() {
        let coords = shape.coords(node).expect("a node");
        for port in Port::ALL.into_iter().filter(|port| use_axis(port.axis())) {
            let Some(next) = shape.neighbor(coords, port) else { continue };
            let next = shape.node_id(next).expect("a node");
            if distance[next.index()].is_none() {
                distance[next.index()] = Some(hops + 1);
                queue.push_back((next, hops + 1));
            }
        }
    }
    distance
}

/// Every route of the shape arrives over links that exist, and each of its three
/// stages is as short as the breadth-first search finds.
fn check_against_search(shape: &Shape) {
    let by_node = |use_axis| -> Vec<_> {
        (0..shape.nodes()).map(|id| distances(shape, NodeId(id), use_axis)).collect()
    };
    let abc = by_node(|axis| !is_xyz(axis));
    let xyz = by_node(is_xyz);
    let mut steps = Vec::new();
    for from in shape.iter() {
        for to in shape.iter() {
            for path in shape.paths() {
                let class = Class::Request;
                let route = Route::new(shape, from, to, path, class).expect("all in the machine");
                trace(shape, route, path, class, &mut steps);
                let mut at = from;
                for step in &steps {
                    assert_eq!(shape.node_id(at), Some(step.hop.from));
                    at = shape.neighbor(at, step.hop.port).expect("a link");
                    assert_eq!(shape.node_id(at), Some(step.hop.to));
                }
                assert_eq!(at, to, "{shape}: {from} to {to} by {path:?}");

                let enter = Coords { a: path.a, b: path.b, c: path.c, ..from };
                let leave = Coords { a: path.a, b: path.b, c: path.c, ..to };
                let id = |coords| shape.node_id(coords).expect("a node").index();
                let shortest =
                    [abc[id(from)][id(enter)], xyz[id(enter)][id(leave)], abc[id(leave)][id(to)]];
                let taken = [0, 1, 2]
                    .map(|stage| Some(steps.iter().filter(|s| s.stage == stage).count() as u32));
                assert_eq!(taken, shortest, "{shape}: {from} to {to} by {path:?}");
            }
        }
    }
}

#[test]
fn small_machines_match_a_search() {
    for len in [
        [1, 1, 1, 2, 3, 2],
        [1, 1, 4, 2, 3, 2],
        [2, 3, 1, 2, 3, 1],
        [3, 2, 4, 1, 2, 2],
        [5, 4, 1, 1, 1, 2],
        [1, 8, 1, 1, 3, 1],
        [7, 1, 6, 1, 1, 1],
    ] {
        for shape in tori_and_meshes(len) {
            check_against_search(&shape);
        }
    }
}

#[test]
fn long_axes_match_breadth_first_search() {
    for n in [2, 3, 16, 31, 32] {
        for len in [[n, 1, 1, 1, 1, 1], [1, n, 1, 1, 1, 1], [1, 1, n, 1, 1, 1]] {
            for shape in tori_and_meshes(len) {
                check_against_search(&shape);
            }
        }
    }
}

#[test]
fn ties_go_towards_higher_coordinates() {
    let shape = shape([4, 1, 1, 1, 1, 1]);
    let node = |x| Coords::new(x, 0, 0, 0, 0, 0);
    for (from, to) in [(0, 2), (2, 0), (3, 1)] {
        let route = Route::new(&shape, node(from), node(to), Path::default(), Class::Request);
        let ports: Vec<Port> = route.expect("a route").map(|hop| hop.port).collect();
        assert_eq!(ports, [Port::XPlus, Port::XPlus]);
    }
}

#[test]
fn route_follows_the_papers() {
    // By hand: one hop on each leg, then a leg of three hops over the date line.
    let shape = shape([4, 4, 7, 2, 3, 2]);
    let from = Coords::new(0, 3, 5, 0, 0, 0);
    let to = Coords::new(1, 1, 1, 0, 2, 0);
    let path = Path::new(1, 1, 1);
    let hops = |class| -> Vec<(Port, u8)> {
        let route = Route::new(&shape, from, to, path, class).expect("a route");
        route.map(|hop| (hop.port, hop.vc)).collect()
    };
    let expected = [
        (Port::BPlus, 0),
        (Port::C, 0),
        (Port::A, 0),
        // One hop is the last hop.
        (Port::XPlus, 1),
        // A tie, so upwards: first over the date line, then the last hop.
        (Port::YPlus, 1),
        (Port::YPlus, 1),
        // 5, 6, over the date line to 0, and to 1.
        (Port::ZPlus, 0),
        (Port::ZPlus, 1),
        (Port::ZPlus, 1),
        (Port::A, 1),
        (Port::C, 1),
        (Port::BPlus, 1),
    ];
    assert_eq!(hops(Class::Request), expected);
    assert_eq!(hops(Class::Response), expected.map(|(port, vc)| (port, vc + 2)));
}

#[test]
fn packet_to_itself_stays_by_default() {
    let shape = Shape::UNIT;
    for node in shape.iter() {
        for path in shape.paths() {
            let route = Route::new(&shape, node, node, path, Class::Request).expect("a route");
            assert_eq!(route.count() == 0, path == node.default_path());
        }
    }
}

#[test]
fn places_outside_have_no_route() {
    let shape = shape([2, 1, 1, 2, 1, 1]);
    let (inside, outside) = (Coords::default(), Coords::new(2, 0, 0, 0, 0, 0));
    let route = |from, to, path| Route::new(&shape, from, to, path, Class::Request).err();
    let here = inside.default_path();
    assert_eq!(route(inside, inside, here), None);
    assert_eq!(route(outside, inside, here), Some(RouteError::Source(outside)));
    assert_eq!(route(inside, outside, here), Some(RouteError::Target(outside)));
    let cut_off = Path::new(0, 1, 0);
    assert_eq!(route(inside, inside, cut_off), Some(RouteError::Path(cut_off)));
}

proptest! {
    #[test]
    fn routes_are_shortest_on_each_axis(
        (shape, from, to, path) in any_journey(),
    ) {
        let mut steps = Vec::new();
        let route = Route::new(&shape, from, to, path, Class::Response).unwrap();
        trace(&shape, route, path, Class::Response, &mut steps);
        let mut at = from;
        for step in &steps {
            at = shape.neighbor(at, step.hop.port).expect("a link");
            prop_assert_eq!(shape.node_id(at), Some(step.hop.to));
        }
        prop_assert_eq!(at, to);

        let shortest = |axis: Axis, from: u8, to: u8| {
            let straight = from.abs_diff(to);
            if shape.wraps(axis) { straight.min(shape.len(axis) - straight) } else { straight }
        };
        let (from, to) = (from.to_array(), to.to_array());
        let via = Coords::new(0, 0, 0, path.a, path.b, path.c).to_array();
        for axis in Axis::ALL {
            let i = axis.index();
            let expected = if is_xyz(axis) {
                [0, shortest(axis, from[i], to[i]), 0]
            } else {
                [shortest(axis, from[i], via[i]), 0, shortest(axis, via[i], to[i])]
            };
            let taken = [0, 1, 2].map(|stage| {
                let hops = steps.iter().filter(|s| s.stage == stage && s.hop.port.axis() == axis);
                hops.count() as u8
            });
            prop_assert_eq!(taken, expected, "axis {}", axis);
        }
    }
}
