//! Dead links: what nodes know about them, how they report them, and how they avoid them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use tofu_abi::topology::{NodeId, Port, Shape};
use tofu_abi::{Coords, PacketTarget, Rcode, TniId};
use tofu_ipotofu::neighbor::LocalNode;
use tofu_ipotofu::testing::TestQueue;
use tofu_ipotofu::{Health, Heap, Outbound, REPORT_NS, Report, Reporter, Sending};

const SECOND: u64 = 1_000_000_000;

fn health(shape: Shape, me: Coords) -> Health<Heap> {
    let Ok(health) = Health::new(shape, me);
    health
}

fn shape() -> impl Strategy<Value = Shape> {
    let size = (1..=4u8, 1..=3u8, 1..=2u8, 1..=2u8, 1..=3u8, 1..=2u8);
    (size, any::<[bool; 3]>()).prop_map(|((x, y, z, a, b, c), torus)| {
        Shape::new([x, y, z, a, b, c]).unwrap().with_torus(torus)
    })
}

fn node(shape: &Shape, seed: u32) -> Coords {
    shape.coords(NodeId(seed % shape.nodes())).unwrap()
}

/// Links given by one of their ends, listed for both ends.
fn both_ends(shape: &Shape, links: &[(Coords, Port)]) -> BTreeSet<(Coords, Port)> {
    let other = |(at, port): &(Coords, Port)| Some((shape.neighbor(*at, *port)?, port.opposite()));
    let real = links.iter().filter(|link| other(link).is_some());
    real.flat_map(|link| [Some(*link), other(link)]).flatten().collect()
}

/// The links of a packet's route, hop by hop.
fn links_of(shape: &Shape, from: Coords, target: &PacketTarget) -> Vec<(Coords, Port)> {
    let mut at = from;
    let legs = shape.legs(from, target.node, target.path).with_distances(target.distances);
    legs.flat_map(|leg| (0..leg.hops.unsigned_abs()).map(move |_| leg.port()))
        .map(|port| {
            let link = (at, port);
            at = shape.neighbor(at, port).unwrap();
            link
        })
        .collect()
}

/// The sending side of a node on the first TNI.
fn outbound(health: Arc<Health<Heap>>, me: Coords) -> Outbound<Heap> {
    let node = LocalNode { shape: *health.shape(), machine: 0, me };
    let Ok(outbound) = Outbound::new(Sending::new(node, TniId::ALL[0]), health, 0);
    outbound
}

/// Lets every node of a machine report to the others for some time. Returns what each node knows
/// afterwards.
fn tell_all(
    shape: Shape,
    dead: &BTreeSet<(Coords, Port)>,
    rounds: u64,
) -> BTreeMap<Coords, Health<Heap>> {
    let all: BTreeMap<_, _> = shape.iter().map(|node| (node, health(shape, node))).collect();
    let own = |node: &Coords| {
        let mine = dead.iter().filter(|(at, _)| at == node);
        mine.fold(0, |mask, (_, port)| mask | 1u16 << port.index())
    };
    let mut reporters: Vec<_> = shape.iter().map(|node| (node, Reporter::new(node, 7))).collect();
    all.iter().for_each(|(node, health)| health.set_own(own(node)));
    for round in 0..rounds {
        for (me, reporter) in &mut reporters {
            let mut sent = Vec::new();
            reporter.step(&all[me], round * SECOND / 100, |to, header| {
                sent.push((to, *header));
                true
            });
            for (to, header) in sent {
                assert_ne!(to, *me);
                let report = Report::parse(*me, &header).unwrap();
                all[&to].learn(&report, round * SECOND / 100);
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_nodes_learn_exactly_the_dead_links(
        shape in shape(),
        links in prop::collection::vec((any::<u32>(), 0..10usize), 0..6),
    ) {
        let links: Vec<_> = links
            .into_iter()
            .map(|(seed, port)| (node(&shape, seed), Port::from_index(port).unwrap()))
            .collect();
        let dead = both_ends(&shape, &links);
        // 144 nodes at most, 32 each 10 ms.
        let all = tell_all(shape, &dead, 10);
        for (me, health) in &all {
            // A node that is cut off receives nothing.
            if all.values().any(|other| other.is_cut_off(*me, SECOND)) {
                continue;
            }
            for at in shape.iter() {
                let mask = health.dead_ports(at, SECOND);
                let expected = dead.iter().filter(|(node, _)| *node == at);
                let expected = expected.fold(0u16, |mask, (_, port)| mask | 1 << port.index());
                prop_assert_eq!(mask, expected, "{} of {}", me, at);
            }
        }
    }

    /// Reports that no node sent have no effect, and neither have reports about other nodes.
    #[test]
    fn node_reports_for_itself_only(
        shape in shape(),
        (from, me) in any::<(u32, u32)>(),
        header in any::<[u8; 20]>(),
        dead in 0..1u16 << 10,
    ) {
        let (from, me) = (node(&shape, from), node(&shape, me));
        let known = health(shape, me);
        let forged = Report { origin: from, number: 1, dead }.emit();
        for header in [header, forged] {
            for claimed in shape.iter() {
                if let Some(report) = Report::parse(claimed, &header) {
                    prop_assert_eq!(report.origin, claimed);
                    known.learn(&report, 0);
                }
            }
        }
        for at in shape.iter() {
            for port in Port::ALL.into_iter().filter(|port| known.is_dead(at, *port, 0)) {
                let other = shape.neighbor(at, port);
                prop_assert!(from != me && (at == from || other == Some(from)), "{} {}", at, port);
            }
        }
    }

    /// A route without dead links is taken if there is one; otherwise all routes are tried.
    #[test]
    fn packets_avoid_dead_links(
        shape in shape(),
        (from, to) in any::<(u32, u32)>(),
        links in prop::collection::vec((any::<u32>(), 0..10usize), 0..8),
        lies in any::<bool>(),
    ) {
        let (from, to) = (node(&shape, from), node(&shape, to));
        prop_assume!(from != to);
        let known = Arc::new(health(shape, from));
        let mut dead = BTreeSet::new();
        for (seed, port) in links {
            let (at, port) = (node(&shape, seed), Port::from_index(port).unwrap());
            known.note(at, 1 << port.index());
            // The last report about a node counts.
            dead.retain(|(node, _)| *node != at);
            dead.insert((at, port));
        }
        let dead = both_ends(&shape, &dead.into_iter().collect::<Vec<_>>());
        let tni = TniId::ALL[0];
        let mut outbound = outbound(Arc::clone(&known), from);
        let all: Vec<_> = (0..=u8::MAX)
            .map_while(|n| tofu_ipotofu::routes::route(&shape, from, to, tni, n))
            .collect();
        let is_clear =
            |way: &PacketTarget| links_of(&shape, from, way).iter().all(|l| !dead.contains(l));
        let mut queue = TestQueue::default();
        outbound.post(&mut queue, to, &[&[1]], 0);
        let posted = queue.take_posted().pop().unwrap();
        let (first, mut tag) = (posted.target, posted.tag());
        prop_assert_eq!(is_clear(&first), all.iter().any(is_clear));
        if !all.iter().any(is_clear) {
            prop_assert_eq!(first, all[0]);
        }
        // If all reports are false and all other routes are dead, the packet takes one of the
        // reported routes.
        let works = |way: &PacketTarget| lies && !is_clear(way);
        let mut tried = vec![first];
        while !works(tried.last().unwrap()) {
            let Some((way, next)) = outbound.lost(tag, Rcode::LINK_DOWN, 0) else { break };
            prop_assert!(tried.len() < 2 * all.len(), "it does not end");
            tried.push(way);
            tag = next;
        }
        if !tried.last().is_some_and(works) {
            let tried: Vec<_> = all.iter().filter(|way| tried.contains(way)).collect();
            prop_assert_eq!(tried.len(), all.len(), "not all ways");
        }
    }

    #[test]
    fn commands_take_paths_that_work_both_ways(
        shape in shape(),
        (from, to) in any::<(u32, u32)>(),
        links in prop::collection::vec((any::<u32>(), 0..10usize), 0..8),
    ) {
        let (from, to) = (node(&shape, from), node(&shape, to));
        let known = health(shape, from);
        for (seed, port) in links {
            known.note(node(&shape, seed), 1 << port);
        }
        let works = |path| {
            [(from, to), (to, from)].into_iter().all(|(from, to)| {
                let mut at = from;
                shape.legs(from, to, path).all(|leg| {
                    (0..leg.hops.unsigned_abs()).all(|_| {
                        let dead = known.is_dead(at, leg.port(), 0);
                        at = shape.neighbor(at, leg.port()).unwrap();
                        !dead
                    })
                })
            })
        };
        let path = known.path(to, 0);
        if shape.paths().any(works) {
            prop_assert!(works(path));
            let shorter = |other| shape.hops(from, to, other) < shape.hops(from, to, path);
            prop_assert!(!works(to.default_path()) || path == to.default_path());
            prop_assert!(!shape.paths().any(|other| works(other) && shorter(other)));
        } else {
            prop_assert_eq!(path, to.default_path());
        }
    }
}

#[test]
fn reports_expire_and_late_ones_are_ignored() {
    let shape: Shape = "1x1x1x2x3x2".parse().unwrap();
    let (me, other) = (Coords::default(), Coords::new(0, 0, 0, 1, 0, 0));
    let known = health(shape, me);
    let report = |number, dead| Report { origin: other, number, dead };
    assert!(known.is_quiet(0));
    assert!(!known.learn(&report(9, 0), 0), "nothing is wrong");
    assert!(known.is_quiet(0));
    assert!(known.learn(&report(u32::MAX, 1), 0));
    assert_eq!(known.dead_ports(other, 0), 1);
    assert_eq!(known.dead_ports(me, 0), 1, "the other end of the same link");
    assert!(!known.learn(&report(u32::MAX - 1, 6), 0), "late");
    assert!(!known.learn(&report(u32::MAX, 1), SECOND), "once more");
    assert_eq!(known.dead_ports(other, SECOND + REPORT_NS), 1);
    assert_eq!(known.dead_ports(other, SECOND + REPORT_NS + 1), 0);
    assert!(known.is_quiet(SECOND + REPORT_NS + 1));
    assert!(known.learn(&report(0, 2), SECOND), "numbers begin again after the last one");
    assert!(known.learn(&report(1, 0), SECOND));
    assert_eq!(known.dead_ports(other, SECOND), 0);
    // The node restarts with an old number: it is believed once its last report has expired.
    assert!(!known.learn(&report(u32::MAX - 100, 2), 2 * SECOND));
    assert!(known.learn(&report(u32::MAX - 100, 2), 3 * SECOND + REPORT_NS));
}

#[test]
fn node_reports_changed_ports_rate_limited() {
    let shape: Shape = "1x1x1x2x3x2".parse().unwrap();
    let known = health(shape, Coords::default());
    let mut reporter = Reporter::new(Coords::default(), 0);
    let mut step = |now_ns| {
        let mut sent = Vec::new();
        reporter.step(&known, now_ns, |to, header| {
            sent.push((to, Report::parse(Coords::default(), header).unwrap().dead));
            true
        });
        sent
    };
    assert_eq!(step(0), []);
    assert_eq!(step(100 * SECOND), [], "a node whose ports work says nothing");
    known.set_own(0b100);
    let sent = step(100 * SECOND);
    assert_eq!(sent.len(), 11);
    assert!(sent.iter().all(|(_, dead)| *dead == 0b100));
    assert_eq!(step(100 * SECOND + 1), []);
    // The port flaps ten times in a second, and is reported once more.
    let mut count = 0;
    for n in 0..20u64 {
        known.set_own(if n % 2 == 0 { 0 } else { 0b100 });
        count += step(100 * SECOND + 50_000_000 * n).len();
    }
    assert!(count <= 11, "{count} reports");
    known.set_own(0b100);
    let mut count = 0;
    for n in 0..600u64 {
        count += step(200 * SECOND + n * SECOND / 10).len();
    }
    assert!((5 * 11..=8 * 11).contains(&count), "{count} reports in a minute");
    known.set_own(0);
    let sent: Vec<_> = (0..600u64).map(|n| step(300 * SECOND + n * SECOND / 10)).collect();
    let sent = sent.concat();
    assert!(sent.iter().all(|(_, dead)| *dead == 0));
    assert_eq!(sent.len(), 22, "twice that all is well, and then nothing");
}

#[test]
fn unreachable_nodes_get_no_reports() {
    let shape: Shape = "3x1x1x1x1x1".parse().unwrap();
    let at = |x| Coords::new(x, 0, 0, 0, 0, 0);
    let known = health(shape, at(0));
    known.set_own(1 << Port::XPlus.index());
    known.learn(&Report { origin: at(2), number: 1, dead: 1 << Port::XMinus.index() }, 0);
    assert!(known.is_cut_off(at(1), 0) && !known.is_cut_off(at(2), 0));
    let mut told = Vec::new();
    Reporter::new(at(0), 0).step(&known, 0, |to, _| {
        told.push(to);
        true
    });
    assert_eq!(told, [at(2)]);
    let text = "shape 3x1x1x1x1x1 torus x\n0 0 0 0 0 0 X+\n2 0 0 0 0 0 X-\n";
    assert_eq!(known.known(0).to_string(), text);
    let all: BTreeMap<_, _> = known.iter(0).collect();
    assert_eq!(all.len(), 2);
    assert_eq!(all[&at(0)], 1 << Port::XPlus.index());
}
