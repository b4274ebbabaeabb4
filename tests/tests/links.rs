//! Networks, interfaces and queues that are absent or refuse.

use tofu_abi::Rcode;
use tofu_abi::desc::ArmwOp;
use tofu_abi::irq::vector;
use tofu_abi::irq::{PortRequest, TnrIrqs};
use tofu_abi::queue::MrqId;
use tofu_abi::regs::{CqsMode, Register, TniReg};
use tofu_abi::topology::{Port, Shape};
use tofu_abi::{Path, StagOffset, TniId};
use tofu_driver::{CqConfig, Order, Platform};
use tofu_tests::{Cluster, Endpoint, config, description};

#[test]
fn downed_link_is_a_command_and_port_error() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let mut b = cluster.endpoint(1, 0, 0);
    cluster.device(0).tnr_irq().reset(TnrIrqs::ALL);
    cluster.set_link(0, 0, false);
    let orders = [
        (Order::put(b.target(), b.at(0), a.at(0), 5000), MrqId::PutLastRemoteError),
        (Order::get(b.target(), b.at(0), a.at(0), 5000), MrqId::GetLastRemoteError),
        (Order::armw8(b.target(), ArmwOp::Add, b.at(0), 1), MrqId::ArmwRemoteError),
    ];
    let kinds = if description().atomics { 3 } else { 2 };
    let orders = &orders[..kinds];
    let port_error = TnrIrqs::of(Port::A, PortRequest::PortError);
    for &(order, id) in orders {
        // It was sent, which is all that its completion reports.
        assert_eq!(a.run(&order).rcode, Rcode::SUCCESS);
        let [notice] = a.notices()[..] else { panic!("one notice") };
        assert_eq!((notice.id(), notice.word0().rcode()), (Some(id), Rcode::LINK_DOWN));
        assert_eq!(cluster.device(0).tnr_irq().pending(), port_error);
        assert!(cluster.device(0).platform().irq_wait(vector::TNR, 0));
        cluster.device(0).tnr_irq().clear(port_error);
    }
    assert_eq!(
        cluster.device(1).tnr_irq().pending(),
        TnrIrqs::NONE,
        "only the node at the dead link knows"
    );
    assert_eq!(b.notices(), []);
    cluster.set_link(0, 0, true);
    for (order, _) in orders {
        assert_eq!(a.run(order).rcode, Rcode::SUCCESS);
    }
}

#[test]
fn failed_boards_reports_agree() {
    let cluster = Cluster::new("1x1x1x2x3x2");
    let shape: Shape = "1x1x1x2x3x2".parse().unwrap();
    let all: Vec<_> = shape.iter().collect();
    let mut ends: Vec<_> = (0..12).map(|rank| cluster.endpoint(rank, 0, 0)).collect();
    (0..12).for_each(|rank| cluster.device(rank).tnr_irq().reset(TnrIrqs::ALL));
    // A board of Fugaku: two neighbours on C.
    let board = [2, 3].map(|rank| all[rank]);
    for down in [true, false] {
        (2..4).for_each(|rank| cluster.set_node(rank, !down));
        for (rank, at) in (0u32..).zip(&all) {
            let irqs = cluster.device(rank).tnr_irq();
            for port in Port::ALL {
                let Some(next) = shape.neighbor(*at, port) else { continue };
                let is_dead = down && (board.contains(at) || board.contains(&next));
                let target = &ends[all.iter().position(|node| *node == next).unwrap()];
                let order = Order::put(target.target(), target.at(0), ends[0].at(0), 64);
                let n = port.index();
                let before = cluster.port_counters(rank, n);
                let end = ends[rank as usize].end_of(&order);
                assert_eq!(end == Rcode::LINK_DOWN, is_dead, "{at} {port}: {end:?}");
                let expected = match is_dead {
                    true => TnrIrqs::of(port, PortRequest::PortError),
                    false => TnrIrqs::NONE,
                };
                assert_eq!(irqs.pending(), expected, "{at} {port}");
                let after = cluster.port_counters(rank, n);
                let discarded = after.tx_discard_normal - before.tx_discard_normal;
                assert_eq!(discarded, u64::from(is_dead), "{at} {port}");
                assert_eq!(after.send_tlp > before.send_tlp, !is_dead, "{at} {port}");
                irqs.clear(TnrIrqs::ALL);
            }
        }
    }
}

#[test]
fn another_path_goes_around_a_dead_link() {
    let cluster = Cluster::new("1x1x1x2x3x2");
    let mut a = cluster.endpoint(0, 0, 0);
    // Rank 2 is the neighbour on B+ (port 3).
    let b = cluster.endpoint(2, 0, 0);
    assert_eq!(b.node.to_array(), [0, 0, 0, 0, 1, 0]);
    cluster.set_link(0, 3, false);
    let order = Order::put(b.target(), b.at(0), a.at(0), 64);
    assert_eq!(a.end_of(&order), Rcode::LINK_DOWN);
    assert_eq!(a.run(&order.path(Path::new(0, 2, 0))).rcode, Rcode::SUCCESS);
}

#[test]
fn request_lost_halfway_is_an_error() {
    // 0 - 1 - 2 along X, a mesh: the second link is down.
    let cluster = Cluster::new("3x1x1x1x1x1");
    cluster.set_link(1, 5, false);
    cluster.set_link(0, 4, false);
    let mut a = cluster.endpoint(0, 0, 0);
    let c = cluster.endpoint(2, 0, 0);
    let order = Order::put(c.target(), c.at(0), a.at(0), 64);
    assert_eq!(a.end_of(&order), Rcode::LINK_DOWN);
    let pending = |rank| cluster.device(rank).tnr_irq().pending().raw();
    let pending: u64 = (0..3).map(pending).sum();
    assert_eq!(pending.count_ones(), 1, "{pending:#x}");
}

#[test]
fn disabled_interface_refuses_arrivals() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let b = cluster.endpoint(1, 2, 0);
    let order = Order::put(b.target(), b.at(0), a.at(0), 8);
    cluster.device(1).tni(TniId::ALL[2]).disable().unwrap();
    assert_eq!(a.end_of(&order), Rcode::TNI_DISABLED);
    let exceptions = Register::Tni { tni: TniId::ALL[2], reg: TniReg::RxNumExceptionTlp };
    assert_eq!(cluster.device(1).read(exceptions), 1);
    cluster.device(1).tni(TniId::ALL[2]).enable().unwrap();
    assert_eq!(a.run(&order).rcode, Rcode::SUCCESS);
}

#[test]
fn disabled_interface_sends_after_enabling() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    cluster.device(0).tni(TniId::ALL[0]).disable().unwrap();
    a.cq.post_and_ring(&Order::nop(), 7).unwrap();
    cluster.settle();
    assert_eq!(a.cq.poll_tcq(), None);
    cluster.device(0).tni(TniId::ALL[0]).enable().unwrap();
    a.cq.doorbell();
    assert_eq!(a.complete().cookie, 7);
}

#[test]
fn absent_or_closed_queues_refuse() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let b = cluster.endpoint(1, 0, 0);
    let beyond = description().cqs;
    let codes =
        [1, beyond, 63].into_iter().zip([Rcode::CQ_DISABLED, Rcode::NO_SUCH_CQ, Rcode::NO_SUCH_CQ]);
    for (cq, code) in codes {
        let order = Order::put(b.target(), StagOffset(0).with_cqid(cq), a.at(0), 8);
        assert_eq!(a.end_of(&order), code, "CQ {cq}");
    }
    let order = Order::put(b.target(), b.at(0), a.at(0), 8);
    assert_eq!(a.run(&order).rcode, Rcode::SUCCESS);
    b.cq.close().unwrap();
    assert_eq!(a.end_of(&order), Rcode::CQ_DISABLED);
}

#[test]
fn queues_of_different_processes_are_apart() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let open = |rank, cq, gpid| cluster.endpoint_with(rank, &CqConfig { gpid, ..config(0, cq) });
    let mut a = open(0, 0, 5);
    let mut b = open(1, 0, 5);
    let c = open(1, 1, 6);
    let put = |from: &Endpoint, to: &Endpoint| Order::put(to.target(), to.at(0), from.at(0), 8);
    assert_eq!(a.run(&put(&a, &b)).rcode, Rcode::SUCCESS);
    assert_eq!(a.end_of(&put(&a, &c)), Rcode::GPID);
    assert_eq!(b.end_of(&put(&b, &c)), Rcode::GPID, "not even on the same node");
}

/// A subnet of one axis: X, `start` and `len` on a ring of `size`.
fn subnet(size: u8, start: u8, len: u8) -> CqsMode {
    CqsMode(0).with_nx(size).with_sx(start).with_lx(len)
}

#[test]
fn subnets_are_checked_at_both_ends() {
    let cluster = Cluster::new("4x1x1x1x1x1");
    let open = |rank, cq, mode| cluster.endpoint_with(rank, &CqConfig { mode, ..config(0, cq) });
    // Nodes 3 and 0: a partition that wraps around.
    let mut narrow = open(0, 0, subnet(4, 3, 2));
    let mut wide = [0, 1, 2, 3].map(|rank| open(rank, 1, CqsMode(0)));
    for (rank, peer) in wide.iter_mut().enumerate() {
        let inside = rank == 0 || rank == 3;
        let out = narrow.run(&Order::put(peer.target(), peer.at(0), narrow.at(0), 8));
        let back = peer.end_of(&Order::put(narrow.target(), narrow.at(0), peer.at(0), 8));
        let expected =
            if inside { [Rcode::SUCCESS; 2] } else { [Rcode::SUBNET, Rcode::REMOTE_SUBNET] };
        assert_eq!([out.rcode, back], expected, "node {rank}");
    }
}

#[test]
fn without_bus_mastering_nothing_moves() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let mut b = cluster.endpoint(1, 0, 0);
    let order = Order::put(b.target(), b.at(0), a.at(0), 8);
    cluster.set_bus_master(1, false);
    assert_eq!(a.end_of(&order), Rcode::TARGET_DMA_OFF);
    b.cq.post_and_ring(&Order::nop(), 0).unwrap();
    cluster.settle();
    assert_eq!(b.cq.poll_tcq(), None);
    cluster.set_bus_master(1, true);
    b.cq.doorbell();
    assert_eq!(b.complete().rcode, Rcode::SUCCESS);
    assert_eq!(a.run(&order).rcode, Rcode::SUCCESS);
}
