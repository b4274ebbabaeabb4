//! Freedom from deadlock: the graph that shows which channel waits for which other one has no
//! cycle.
//!
//! A channel is a virtual channel of a link in one direction. A packet that holds one waits for
//! the next channel of its route. A request at its target holds its last channel until the target
//! has taken it in, and the target may first need to send a response. So the target's interface is
//! in the graph too, after the requests that end there and before the responses that begin there.
//! If no chain of waits closes to a cycle, some packet can always move (Dally and Seitz, 1987).
//! None closes, because channels can be ranked so that ranks rise along every route:
//!
//! - *Legs.* Number the legs of a route: B, C, A of stage 1 (0 to 2), X, Y, Z (3 to 5), A, C, B of
//!   stage 3 (6 to 8). A channel belongs to one leg only: the VC tells apart the legs on A, B and
//!   C, the axis those on X, Y and Z. A route visits legs in rising order.
//! - *Within a leg.* On A, B and C a leg is a single hop. On X, Y and Z, number the nodes 0 to
//!   n - 1 in the direction of travel. The first VC of the link out of node i gets the rank i, the
//!   second VC the rank n + ((i + 1) mod n). A packet on the first VC passes rising i and never
//!   the date line, which is the link out of node n - 1. When it changes to the second VC, it goes
//!   to rank n or above: it has either crossed the date line, which has the lowest of these ranks,
//!   n, or it is on its last hop. After crossing, it continues through rising ranks. No way leads
//!   once round the ring, so the packet never reaches the date line again.
//! - *Between classes.* A target may hold a request until it has sent a response; it takes in
//!   responses without waiting for anything. System packets are on the requests' channels, but a
//!   target takes them in or throws them away without waiting for anything. Requests and responses
//!   share no channel.
//!
//! Leg and rank depend on the channel alone, and nothing in this depends on the other axes'
//! lengths, so it holds for every shape.

use proptest::prelude::*;
use tofu_abi::{Coords, Path};
use tofu_fabric::{Axis, Class, Port, Route, Shape};

use crate::common::{Step, is_xyz, trace};
use crate::shapes::{any_journey, shape, tori_and_meshes};

const VCS: usize = 4;
/// Vertices of a node: one for each port and channel by which packets leave, and one for its
/// interface.
const SLOTS: usize = Port::COUNT * VCS + 1;
const INTERFACE: usize = SLOTS - 1;

/// Which vertex waits for which others.
struct Graph {
    /// For each vertex, the node with all vertices that it waits for.
    head: Vec<u32>,
    /// For each vertex, a set of slots of that node.
    waits_for: Vec<u64>,
}

impl Graph {
    /// The graph of all routes of a shape, for all classes, with channels given to
    /// hops by `vc`.
    fn build(shape: &Shape, vc: impl Fn(&Step) -> u8) -> Self {
        let vertices = shape.nodes() as usize * SLOTS;
        let mut graph = Self { head: vec![0; vertices], waits_for: vec![0; vertices] };
        let mut steps = Vec::new();
        for from in shape.iter() {
            for to in shape.iter() {
                for path in shape.paths() {
                    for class in Class::ALL {
                        let route = Route::new(shape, from, to, path, class).expect("a route");
                        trace(shape, route, path, class, &mut steps);
                        graph.add(shape, from, class, &steps, &vc);
                    }
                }
            }
        }
        graph
    }

    fn add(
        &mut self,
        shape: &Shape,
        from: Coords,
        class: Class,
        steps: &[Step],
        vc: impl Fn(&Step) -> u8,
    ) {
        let mut holds = None;
        if class == Class::Response {
            let node = shape.node_id(from).expect("a node");
            let vertex = node.index() * SLOTS + INTERFACE;
            self.head[vertex] = node.0;
            holds = Some(vertex);
        }
        for step in steps {
            let slot = step.hop.port.index() * VCS + usize::from(vc(step));
            let vertex = step.hop.from.index() * SLOTS + slot;
            self.head[vertex] = step.hop.to.0;
            if let Some(before) = holds.replace(vertex) {
                self.waits_for[before] |= 1 << slot;
            }
        }
        if let (Class::Request, Some(last)) = (class, holds) {
            self.waits_for[last] |= 1 << INTERFACE;
        }
    }

    fn successors(&self, vertex: usize) -> impl Iterator<Item = usize> + use<> {
        let (head, set) = (self.head[vertex] as usize * SLOTS, self.waits_for[vertex]);
        (0..SLOTS).filter(move |slot| set >> slot & 1 != 0).map(move |slot| head + slot)
    }

    /// Kahn's algorithm: removes vertices that no other one waits for, until none is left, or only
    /// cycles and the vertices behind them.
    fn is_acyclic(&self) -> bool {
        let mut waiting = vec![0u32; self.head.len()];
        for vertex in 0..self.head.len() {
            for next in self.successors(vertex) {
                waiting[next] += 1;
            }
        }
        let mut free: Vec<usize> = (0..waiting.len()).filter(|&v| waiting[v] == 0).collect();
        let mut taken = 0;
        while let Some(vertex) = free.pop() {
            taken += 1;
            for next in self.successors(vertex) {
                waiting[next] -= 1;
                if waiting[next] == 0 {
                    free.push(next);
                }
            }
        }
        taken == self.head.len()
    }
}

/// Date-line scheduling without look-ahead, to which look-ahead must not be inferior.
fn date_line_only(step: &Step) -> u8 {
    step.class.first_vc() + u8::from(step.stage == 2 || step.stage == 1 && step.crossed)
}

fn assert_free_of_deadlock(shape: &Shape) {
    assert!(Graph::build(shape, |step| step.hop.vc).is_acyclic(), "{shape:?}");
    assert!(Graph::build(shape, date_line_only).is_acyclic(), "{shape:?}, date line only");
}

#[test]
fn no_cycle_in_any_xyz_box_up_to_5x5x5() {
    for (x, y, z) in
        (1..=5).flat_map(|x| (1..=5).flat_map(move |y| (1..=5).map(move |z| (x, y, z))))
    {
        for shape in tori_and_meshes([x, y, z, 1, 1, 1]) {
            assert_free_of_deadlock(&shape);
        }
    }
}

#[test]
fn small_abc_blocks_have_no_cycle() {
    for abc in 0..12 {
        let (a, b, c) = (1 + abc % 2, 1 + abc / 4, 1 + abc / 2 % 2);
        for xyz in 0..8 {
            let (x, y, z) = (1 + xyz % 2, 1 + xyz / 2 % 2, 1 + xyz / 4);
            for shape in tori_and_meshes([x, y, z, a, b, c]) {
                assert_free_of_deadlock(&shape);
            }
        }
    }
}

#[test]
fn no_cycle_on_any_single_axis() {
    for n in 1..=32 {
        for len in [[n, 1, 1, 1, 1, 1], [1, n, 1, 1, 1, 1], [1, 1, n, 1, 1, 1]] {
            for shape in tori_and_meshes(len) {
                assert_free_of_deadlock(&shape);
            }
        }
    }
}

#[test]
fn no_cycle_in_larger_machines() {
    for len in [[2, 2, 4, 2, 3, 2], [1, 1, 16, 2, 3, 2], [8, 6, 4, 1, 1, 1]] {
        assert_free_of_deadlock(&shape(len));
    }
}

#[test]
fn broken_rules_give_cycles() {
    // The shortest ring on which a packet continues after a hop has four nodes.
    let ring = shape([4, 1, 1, 1, 1, 1]);
    let one_channel_on_rings = |step: &Step| step.class.first_vc() + u8::from(step.stage == 2);
    assert!(!Graph::build(&ring, one_channel_on_rings).is_acyclic());
    let mesh = ring.with_torus([false; 3]);
    assert!(Graph::build(&mesh, one_channel_on_rings).is_acyclic(), "a mesh has no ring");

    // With look-ahead alone, three hops in a row are the first to wait for each other in a circle.
    let look_ahead_only = |step: &Step| {
        step.class.first_vc() + u8::from(step.stage == 2 || step.stage == 1 && step.last_on_axis)
    };
    assert!(!Graph::build(&shape([6, 1, 1, 1, 1, 1]), look_ahead_only).is_acyclic());

    let one_channel_on_abc = |step: &Step| match step.stage {
        2 => step.class.first_vc(),
        _ => step.hop.vc,
    };
    assert!(!Graph::build(&shape([2, 1, 1, 2, 1, 1]), one_channel_on_abc).is_acyclic());

    let classes_together = |step: &Step| step.hop.vc % 2;
    assert!(!Graph::build(&shape([2, 1, 1, 1, 1, 1]), classes_together).is_acyclic());
}

/// Numbers the channels so that every route passes them in strictly rising order: by the leg of the
/// route, then by the position on the axis. The second virtual channel's positions begin at the
/// date line, after the last one of the first.
fn rank(shape: &Shape, step: &Step) -> (u8, usize) {
    let axis = step.hop.port.axis();
    let second = step.hop.vc % 2 == 1;
    let leg = match (axis, second) {
        (Axis::B, false) => 0,
        (Axis::C, false) => 1,
        (Axis::A, false) => 2,
        (Axis::X, _) => 3,
        (Axis::Y, _) => 4,
        (Axis::Z, _) => 5,
        (Axis::A, true) => 6,
        (Axis::C, true) => 7,
        (Axis::B, true) => 8,
    };
    let len = usize::from(shape.len(axis));
    let at = shape.coords(step.hop.from).expect("a node").to_array()[axis.index()].into();
    let along = if step.hop.port == axis.port(true) { at } else { len - 1 - at };
    (leg, if second { len + (along + 1) % len } else { along })
}

fn assert_ranks_rise(shape: &Shape, from: Coords, to: Coords, path: Path) {
    let mut steps = Vec::new();
    for class in Class::ALL {
        let route = Route::new(shape, from, to, path, class).expect("a route");
        trace(shape, route, path, class, &mut steps);
        assert!(
            steps.is_sorted_by(|a, b| rank(shape, a) < rank(shape, b)),
            "{shape:?}: {from} to {to} by {path:?}"
        );
        for step in &steps {
            assert_eq!(step.hop.vc / 2, class.first_vc() / 2, "classes stay apart");
        }
    }
}

/// The same for routes by distances, which need not be the shortest.
fn assert_ranks_rise_by_distances(shape: &Shape, from: Coords, distances: [i8; 3], path: Path) {
    let mut steps = Vec::new();
    let class = Class::System;
    let Ok((to, route)) = Route::by_distances(shape, from, from, distances, path, class) else {
        return;
    };
    let hops = distances.iter().map(|d| usize::from(d.unsigned_abs())).sum::<usize>();
    assert_eq!(route.clone().filter(|hop| is_xyz(hop.port.axis())).count(), hops);
    let end = route.clone().last().map_or(from, |hop| shape.coords(hop.to).expect("a node"));
    assert_eq!(end, to);
    trace(shape, route, path, class, &mut steps);
    assert!(
        steps.is_sorted_by(|a, b| rank(shape, a) < rank(shape, b)),
        "{shape:?}: {distances:?} from {from} by {path:?}"
    );
}

/// The complete argument for one axis of any length; see the reference manual.
#[test]
fn ranks_rise_along_every_leg_of_every_axis() {
    for axis in [Axis::X, Axis::Y, Axis::Z] {
        for n in 2..=axis.max_len() {
            let mut len = [1; 6];
            len[axis.index()] = n;
            for shape in tori_and_meshes(len) {
                for from in shape.iter() {
                    for to in shape.iter() {
                        assert_ranks_rise(&shape, from, to, Path::default());
                    }
                    for hops in 1 - n as i8..n as i8 {
                        let mut distances = [0; 3];
                        distances[axis.index()] = hops;
                        assert_ranks_rise_by_distances(&shape, from, distances, Path::default());
                    }
                }
            }
        }
    }
    for from in Shape::UNIT.iter() {
        for to in Shape::UNIT.iter() {
            for path in Shape::UNIT.paths() {
                assert_ranks_rise(&Shape::UNIT, from, to, path);
            }
        }
    }
}

proptest! {
    /// With this, no leg depends on another: an axis behaves in any machine as it did alone.
    #[test]
    fn xyz_legs_are_as_on_a_single_axis(
        (shape, from, to, path) in any_journey(),
    ) {
        let class = Class::Request;
        let hops: Vec<_> = Route::new(&shape, from, to, path, class).unwrap().collect();
        for axis in [Axis::X, Axis::Y, Axis::Z] {
            let mut len = [1; 6];
            len[axis.index()] = shape.len(axis);
            let alone = Shape::new(len).unwrap().with_torus([shape.wraps(axis); 3]);
            let project = |coords: Coords| {
                let mut only = [0; 6];
                only[axis.index()] = coords.to_array()[axis.index()];
                Coords::from_array(only)
            };
            let (start, end) = (project(from), project(to));
            let route = Route::new(&alone, start, end, Path::default(), class).unwrap();
            let expected: Vec<_> = route.map(|hop| (hop.port, hop.vc)).collect();
            let found: Vec<_> = hops
                .iter()
                .filter(|hop| hop.port.axis() == axis)
                .map(|hop| (hop.port, hop.vc))
                .collect();
            prop_assert_eq!(found, expected);
        }
        for hop in hops {
            prop_assert!(is_xyz(hop.port.axis()) || shape.len(hop.port.axis()) > 1);
        }
    }

    #[test]
    fn ranks_rise_along_any_route((shape, from, to, path) in any_journey()) {
        assert_ranks_rise(&shape, from, to, path);
    }

    #[test]
    fn ranks_rise_along_any_route_by_distances(
        (shape, from, _, path) in any_journey(),
        distances in any::<[i8; 3]>(),
    ) {
        let within = |i: usize, axis| distances[i] % shape.len(axis) as i8;
        let short = [within(0, Axis::X), within(1, Axis::Y), within(2, Axis::Z)];
        assert_ranks_rise_by_distances(&shape, from, short, path);
        assert_ranks_rise_by_distances(&shape, from, distances, path);
    }
}
