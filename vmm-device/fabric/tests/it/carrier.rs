use std::sync::Arc;

use proptest::prelude::*;
use tofu_abi::{Coords, Path, TniId};
use tofu_fabric::{
    Carrier, Class, Direct, DiscardReason, Fabric, NoSuchLink, NodeId, Packet, Port, PortCounters,
    Route, Shape, Timing, Way,
};

use crate::common::{self, Log};
use crate::shapes::{any_journey, shape};

fn direct(shape: Shape) -> Direct {
    Direct::new(Arc::new(Fabric::new(shape)), Timing::TOFUD)
}

/// A burst of 3 TLPs and 600 bytes to a node, by its default path.
fn packet(src: Coords, dst: Coords) -> Packet<u32> {
    let one = common::packet(Class::Request, src, dst, 77);
    Packet { src_tni: TniId::ALL[4], tlps: 3, bytes: 600, model_ps: 1_000, ..one }
}

fn node(x: u8) -> Coords {
    Coords::new(x, 0, 0, 0, 0, 0)
}

#[test]
fn burst_is_counted_at_both_ends_of_links() {
    let carrier = direct(shape([5, 1, 1, 1, 1, 1]));
    let mut log = Log::default();
    carrier.inject(packet(node(0), node(2)), &mut log);

    // Two hops of 100 ns and 600 bytes at 6.8 GB/s.
    let arrived = Packet { model_ps: 1_000 + 200_000 + 88_235, ..packet(node(0), node(2)) };
    assert_eq!(log, Log { arrived: vec![(NodeId(2), arrived)], discarded: vec![] });

    let sent = PortCounters {
        send_tlp: 3,
        send_bytes: 600,
        cut_through: 3,
        recv_dllp: 3,
        ..PortCounters::default()
    };
    let received =
        PortCounters { recv_tlp: 3, recv_bytes: 600, send_dllp: 3, ..PortCounters::default() };
    for (id, port, expected) in [
        (0, Port::XPlus, sent),
        (0, Port::XMinus, PortCounters::default()),
        (1, Port::XMinus, received),
        (1, Port::XPlus, sent),
        (2, Port::XMinus, received),
        (2, Port::XPlus, PortCounters::default()),
        (2, Port::A, PortCounters::default()),
    ] {
        let found = carrier.fabric().port_counters(NodeId(id), port);
        assert_eq!(found, Some(expected), "node {id} port {port}");
    }
    assert_eq!(carrier.fabric().port_counters(NodeId(5), Port::A), None);
}

#[test]
fn system_tlps_are_counted_apart() {
    let carrier = direct(shape([2, 1, 1, 1, 1, 1]).with_torus([false; 3]));
    let mut log = Log::default();
    carrier.inject(Packet { system: true, ..packet(node(0), node(1)) }, &mut log);
    carrier.inject(packet(node(0), node(1)), &mut log);
    let sender = carrier.fabric().port_counters(NodeId(0), Port::XPlus).unwrap();
    assert_eq!((sender.send_tlp, sender.send_system), (6, 3));
    let receiver = carrier.fabric().port_counters(NodeId(1), Port::XMinus).unwrap();
    assert_eq!((receiver.recv_tlp, receiver.recv_system), (6, 3));

    carrier.fabric().set_link(node(1), Port::XMinus, false).unwrap();
    carrier.inject(Packet { system: true, ..packet(node(0), node(1)) }, &mut log);
    let sender = carrier.fabric().port_counters(NodeId(0), Port::XPlus).unwrap();
    assert_eq!((sender.tx_discard_system, sender.tx_discard_normal), (3, 0));
    assert_eq!((sender.send_tlp, sender.send_system), (6, 3));
}

#[test]
fn dead_link_loses_packets_both_ways() {
    let carrier = direct(shape([5, 1, 1, 1, 1, 1]));
    let fabric = carrier.fabric();
    fabric.set_link(node(1), Port::XPlus, false).unwrap();
    assert_eq!(fabric.link_up(node(1), Port::XPlus), Some(false));
    assert_eq!(fabric.link_up(node(2), Port::XMinus), Some(false));
    assert_eq!(fabric.link_up(node(1), Port::XMinus), Some(true));
    let down: Vec<_> = fabric.links().filter(|(_, up)| !up).map(|(link, _)| link.from).collect();
    assert_eq!(down, [node(1)]);

    let mut log = Log::default();
    carrier.inject(packet(node(0), node(2)), &mut log);
    carrier.inject(packet(node(2), node(1)), &mut log);
    assert_eq!(log.arrived, []);
    let lost: Vec<_> = log.discarded.iter().map(|&(at, port, why, _)| (at, port, why)).collect();
    assert_eq!(
        lost,
        [
            (NodeId(1), Some(Port::XPlus), DiscardReason::LinkDown),
            (NodeId(2), Some(Port::XMinus), DiscardReason::LinkDown),
        ]
    );
    assert_eq!(log.discarded[0].3.body, 77, "the packet is handed back");
    let at_dead_end = fabric.port_counters(NodeId(1), Port::XPlus).unwrap();
    assert_eq!(
        at_dead_end,
        PortCounters { tx_discard_normal: 3, ..PortCounters::default() },
        "discarded, not sent"
    );
    assert_eq!(fabric.port_counters(NodeId(1), Port::XMinus).unwrap().recv_tlp, 3);
    assert_eq!(fabric.port_counters(NodeId(2), Port::XMinus).unwrap().recv_tlp, 0);

    fabric.set_link(node(2), Port::XMinus, true).unwrap();
    let mut log = Log::default();
    carrier.inject(packet(node(0), node(2)), &mut log);
    assert_eq!(log.arrived.len(), 1);
}

#[test]
fn another_path_goes_round_a_dead_link() {
    let carrier = direct(Shape::UNIT);
    let (src, dst) = (Coords::default(), Coords::new(0, 0, 0, 0, 1, 0));
    carrier.fabric().set_link(src, Port::BPlus, false).unwrap();
    let mut log = Log::default();
    for path in carrier.fabric().shape().paths() {
        carrier.inject(Packet { path, ..packet(src, dst) }, &mut log);
    }
    // B comes first on the way out and last on the way in, so the link is on the four
    // paths with b = 1 and on the four with b = 0; those with b = 2 go around the ring.
    assert_eq!((log.arrived.len(), log.discarded.len()), (4, 8));
    assert!(log.arrived.iter().all(|(_, packet)| packet.path.b == 2));
}

#[test]
fn unroutable_packet_is_lost_at_its_source() {
    let carrier = direct(shape([2, 1, 1, 2, 1, 1]));
    let outside = node(2);
    let mut log = Log::default();
    carrier.inject(packet(node(1), outside), &mut log);
    let bad_path = Path::new(0, 0, 1);
    carrier.inject(Packet { path: bad_path, ..packet(node(1), node(0)) }, &mut log);
    carrier.inject(packet(outside, node(0)), &mut log);
    let lost: Vec<_> = log.discarded.iter().map(|&(at, port, why, _)| (at, port, why)).collect();
    assert_eq!(
        lost,
        [
            (NodeId(2), None, DiscardReason::NoSuchNode),
            (NodeId(2), None, DiscardReason::NoSuchPath),
            (NodeId::NOWHERE, None, DiscardReason::NoSuchNode),
        ]
    );
    assert_eq!(log.arrived, []);
}

#[test]
fn packet_to_its_own_node_uses_no_port() {
    let carrier = direct(Shape::UNIT);
    let src = Coords::new(0, 0, 0, 1, 2, 1);
    let id = Shape::UNIT.node_id(src).unwrap();
    for port in Port::ALL {
        if carrier.fabric().link_up(src, port).is_some() {
            carrier.fabric().set_link(src, port, false).unwrap();
        }
    }
    let mut log = Log::default();
    carrier.inject(packet(src, src), &mut log);
    assert_eq!(log.arrived.len(), 1);
    for port in Port::ALL {
        let counters = carrier.fabric().port_counters(id, port);
        assert_eq!(counters, Some(PortCounters::default()));
    }
    assert_eq!(carrier.fabric().xb_counters(id).unwrap().tni[4].data, 600 / 16);
}

#[test]
fn crossbars_count_by_interface_and_port() {
    let carrier = direct(shape([3, 1, 1, 1, 1, 1]));
    let mut log = Log::default();
    carrier.inject(Packet { bytes: 1_600, ..packet(node(0), node(1)) }, &mut log);
    assert_eq!(log.arrived.len(), 1);
    let sender = carrier.fabric().xb_counters(NodeId(0)).unwrap();
    assert_eq!(sender.tni.map(|cycles| cycles.data), [0, 0, 0, 0, 100, 0]);
    assert_eq!(sender.port.map(|cycles| cycles.data), [0; 10]);
    let receiver = carrier.fabric().xb_counters(NodeId(1)).unwrap();
    assert_eq!(receiver.tni.map(|cycles| cycles.data), [0; 6]);
    let mut ports = [0; 10];
    ports[Port::XMinus.index()] = 100;
    assert_eq!(receiver.port.map(|cycles| cycles.data), ports);
    assert!(receiver.port.iter().all(|cycles| cycles.wait == 0));
    assert_eq!(carrier.fabric().xb_counters(NodeId(3)), None);
}

#[test]
fn only_links_that_exist_can_be_set() {
    let fabric = Fabric::new(shape([2, 1, 1, 1, 1, 1]).with_torus([false; 3]));
    for (node, port) in [(node(0), Port::XMinus), (node(0), Port::A), (node(2), Port::XMinus)] {
        assert_eq!(fabric.set_link(node, port, false), Err(NoSuchLink { node, port }));
        assert_eq!(fabric.link_up(node, port), None);
    }
}

#[test]
fn modelled_time_saturates() {
    let carrier = direct(Shape::UNIT);
    let (src, dst) = (Coords::default(), Coords::new(0, 0, 0, 1, 0, 0));
    let mut log = Log::default();
    let endless = Packet { bytes: u64::MAX, model_ps: u64::MAX - 1, ..packet(src, dst) };
    carrier.inject(endless, &mut log);
    assert_eq!(log.arrived[0].1.model_ps, u64::MAX);
}

#[test]
fn threads_share_a_fabric_and_its_counts() {
    const THREADS: u8 = 4;
    const PACKETS: u32 = 2_000;
    let carrier = direct(shape([8, 1, 1, 1, 1, 1]));
    // All threads send over the link from 3 to 4.
    let lost: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|from| {
                let carrier = &carrier;
                scope.spawn(move || {
                    let mut log = Log::default();
                    for n in 0..PACKETS {
                        if from == 0 && n % 100 == 0 {
                            let up = n % 200 != 0;
                            carrier.fabric().set_link(node(3), Port::XPlus, up).unwrap();
                        }
                        carrier.inject(packet(node(from), node(4)), &mut log);
                    }
                    assert_eq!(log.arrived.len() + log.discarded.len(), PACKETS as usize);
                    log.discarded.len() as u64
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    let counters = carrier.fabric().port_counters(NodeId(3), Port::XPlus).unwrap();
    assert_eq!(counters.tx_discard_normal, 3 * lost);
    let all = u64::from(THREADS) * u64::from(PACKETS);
    assert_eq!(counters.send_tlp, 3 * (all - lost));
    let received = carrier.fabric().port_counters(NodeId(4), Port::XMinus).unwrap();
    assert_eq!(received.recv_tlp, counters.send_tlp);
}

#[test]
fn largest_machine_is_cheap_until_used() {
    let largest = shape([32, 32, 32, 2, 3, 2]);
    let carrier = direct(largest);
    let mut log = Log::default();
    let far = Coords::new(16, 16, 16, 1, 1, 1);
    carrier.inject(packet(node(0), far), &mut log);
    assert_eq!(log.arrived[0].0, largest.node_id(far).unwrap());
    // 16 hops on each of X, Y, Z and one on each of A, B, C.
    assert_eq!(log.arrived[0].1.model_ps, 1_000 + 51 * 100_000 + 88_235);
}

proptest! {
    #[test]
    fn packets_are_reported_once_with_all_hops(
        (shape, src, dst, path) in any_journey(),
        raw in any::<[u8; 6]>(),
    ) {
        // Small machines only: each case makes a fabric.
        prop_assume!(shape.nodes() < 5_000);
        let carrier = direct(shape);
        let mut log = Log::default();
        carrier.inject(Packet { path, ..packet(src, dst) }, &mut log);
        prop_assert_eq!(log.arrived.len(), 1);
        prop_assert_eq!(shape.coords(log.arrived[0].0), Some(dst));

        let fabric = carrier.fabric();
        let all = (0..shape.nodes()).flat_map(|id| {
            Port::ALL.map(|port| fabric.port_counters(NodeId(id), port).unwrap())
        });
        let (sent, received) =
            all.fold((0, 0), |(s, r), port| (s + port.send_tlp, r + port.recv_tlp));
        let hops = Route::new(&shape, src, dst, path, Class::Request).unwrap().count() as u64;
        prop_assert_eq!((sent, received), (3 * hops, 3 * hops));

        // A guest may write anything as a target: the packet arrives or is discarded.
        let mut log = Log::default();
        carrier.inject(packet(src, Coords::from_array(raw)), &mut log);
        prop_assert_eq!(log.arrived.len() + log.discarded.len(), 1);
    }
}

#[test]
fn distances_lead_both_ways_round_a_ring() {
    let carrier = direct(shape([5, 1, 1, 2, 1, 1]));
    for (hops, x) in [(0, 0), (1, 1), (4, 4), (-1, 4), (-4, 1)] {
        let way = Way::Distances([hops, 0, 0]);
        let target = Coords { a: 1, ..node(9) };
        let mut log = Log::default();
        carrier.inject(Packet { way, path: Path::default(), ..packet(node(0), target) }, &mut log);
        let (at, arrived) = &log.arrived[0];
        assert_eq!(arrived.dst, Coords { a: 1, ..node(x) }, "{hops} hops");
        assert_eq!(carrier.fabric().shape().coords(*at), Some(arrived.dst));
        let sent = Packet { way, path: Path::default(), ..packet(node(0), target) };
        assert_eq!(Route::end_of(carrier.fabric().shape(), &sent), Some(arrived.dst));
    }
    // All the way round, and beyond.
    for hops in [5, -5, 127, -128] {
        let way = Way::Distances([hops, 0, 0]);
        let mut log = Log::default();
        carrier.inject(Packet { way, ..packet(node(0), node(0)) }, &mut log);
        assert_eq!(log.discarded[0].2, DiscardReason::NoSuchNode, "{hops} hops");
        assert_eq!(log.discarded[0].1, None);
    }
}

#[test]
fn distances_do_not_lead_out_of_a_mesh() {
    let carrier = direct(shape([5, 1, 1, 1, 1, 1]).with_torus([false; 3]));
    let mut log = Log::default();
    for hops in [-2, 4, 3] {
        let way = Way::Distances([hops, 0, 0]);
        carrier.inject(Packet { way, ..packet(node(1), node(0)) }, &mut log);
    }
    assert_eq!(log.discarded.len(), 2);
    assert_eq!(log.arrived[0].1.dst, node(4));
}

#[test]
fn hop_uses_its_port_and_counts_bad_frames() {
    let carrier = direct(shape([3, 1, 1, 1, 1, 1]));
    let send = |port, nullified| {
        let way = Way::Hop { port, vc: 3, nullified };
        let mut log = Log::default();
        carrier.inject(Packet { way, ..packet(node(0), node(0)) }, &mut log);
        log
    };
    assert_eq!(send(Port::XMinus, true).arrived[0].1.dst, node(2));
    assert_eq!(send(Port::XMinus, false).arrived[0].1.dst, node(2));
    let fabric = carrier.fabric();
    let counters = |x, port| {
        let id = fabric.shape().node_id(node(x)).unwrap();
        fabric.port_counters(id, port).unwrap()
    };
    let sent = counters(0, Port::XMinus);
    assert_eq!((sent.send_tlp, sent.send_nullified), (6, 3));
    let received = counters(2, Port::XPlus);
    assert_eq!((received.recv_tlp, received.recv_nullified), (6, 3));
    // No link there, and one that is down.
    let lost = send(Port::A, false).discarded.remove(0);
    assert_eq!((lost.1, lost.2), (Some(Port::A), DiscardReason::NoSuchNode));
    fabric.set_link(node(0), Port::XPlus, false).unwrap();
    let lost = send(Port::XPlus, false).discarded.remove(0);
    assert_eq!((lost.1, lost.2), (Some(Port::XPlus), DiscardReason::LinkDown));
}

#[test]
fn failed_routers_links_recover_unchanged() {
    let carrier = direct(shape([5, 1, 1, 1, 1, 1]));
    let fabric = carrier.fabric();
    let down = || {
        let down = fabric.links().filter(|(_, up)| !up);
        down.map(|(link, _)| link.from.x).collect::<Vec<_>>()
    };
    fabric.set_link(node(1), Port::XPlus, false).unwrap();
    assert_eq!(fabric.set_node(node(2), false), Ok(true));
    assert_eq!(fabric.set_node(node(2), false), Ok(false), "it is already");
    assert_eq!((fabric.node_up(node(2)), fabric.node_up(node(3))), (Ok(false), Ok(true)));
    assert_eq!(down(), [1, 2]);
    let mut log = Log::default();
    for (src, dst) in [(1, 3), (3, 2), (2, 3), (0, 2)] {
        carrier.inject(packet(node(src), node(dst)), &mut log);
    }
    let lost: Vec<_> = log.discarded.iter().map(|&(at, port, ..)| (at.0, port)).collect();
    let (plus, minus) = (Some(Port::XPlus), Some(Port::XMinus));
    assert_eq!(lost, [(1, plus), (3, minus), (2, plus), (1, plus)]);

    // A link stays down while one of its ends is down, even if the link itself is set to up.
    fabric.set_link(node(1), Port::XPlus, true).unwrap();
    fabric.set_link(node(3), Port::XPlus, false).unwrap();
    assert_eq!(fabric.set_node(node(3), false), Ok(true));
    assert_eq!(down(), [1, 2, 3]);
    assert_eq!(fabric.set_node(node(2), true), Ok(true));
    assert_eq!(down(), [2, 3]);
    assert_eq!(fabric.set_node(node(3), true), Ok(true));
    assert_eq!(down(), [3], "as it was set meanwhile");

    // A node is absent. While it is, its router fails and recovers.
    fabric.set_there(node(1), false).unwrap();
    assert_eq!(fabric.set_node(node(1), false), Ok(true));
    assert_eq!(down(), [0, 1, 3]);
    fabric.set_there(node(1), true).unwrap();
    assert_eq!((down(), fabric.node_up(node(1))), (vec![0, 1, 3], Ok(false)));
    fabric.set_there(node(1), false).unwrap();
    assert_eq!(fabric.set_node(node(1), true), Ok(true));
    assert_eq!((down(), fabric.node_up(node(1))), (vec![0, 1, 3], Ok(true)));
    fabric.set_there(node(1), true).unwrap();
    assert_eq!(down(), [3]);
    let outside = Coords::new(5, 0, 0, 0, 0, 0);
    let error = fabric.set_node(outside, false).unwrap_err();
    assert_eq!(error.to_string(), "the machine has no node (5,0,0,0,0,0)");
}
