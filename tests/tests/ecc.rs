//! Wrong bits in a device's memory: what its codes correct, and what is lost.

use tofu_abi::Rcode;
use tofu_abi::irq::CqsIrqs;
use tofu_abi::regs::{PortReg, Register, TniReg};
use tofu_driver::Order;
use tofu_fabric::{EccErrors, Port};
use tofu_icc::EccPlace;
use tofu_machine::Links;
use tofu_tests::{Cluster, Endpoint, tni};

fn pair() -> (Cluster, Endpoint, Endpoint) {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let (a, b) = (cluster.endpoint(0, 0, 0), cluster.endpoint(1, 0, 0));
    (cluster, a, b)
}

fn count(cluster: &Cluster, rank: u32, name: &str) -> u64 {
    let counts = cluster.icc(rank).ecc_counts();
    counts.iter().find(|(counted, _)| *counted == name).unwrap().1
}

#[test]
fn corrected_errors_do_no_harm() {
    let (cluster, mut a, b) = pair();
    for place in [EccPlace::Tables, EccPlace::Buffers, EccPlace::Router] {
        cluster.inject_ecc(0, place, EccErrors::Correctable(2));
        cluster.inject_ecc(1, place, EccErrors::Correctable(1));
    }
    for _ in 0..3 {
        a.fill(0, &[7; 100]);
        assert_eq!(a.end_of(&Order::put(b.target(), b.at(0), a.at(0), 100)), Rcode::SUCCESS);
        assert_eq!(b.bytes(0, 100), [7; 100]);
    }
    let all = ["ECC_TABLES_CORRECTED", "ECC_BUFFERS_CORRECTED", "ECC_ROUTER_CORRECTED"];
    assert_eq!(all.map(|name| count(&cluster, 0, name)), [2, 2, 2]);
    // The second node fetches nothing.
    assert_eq!(all.map(|name| count(&cluster, 1, name)), [1, 0, 1]);
}

#[test]
fn damaged_descriptor_stops_its_queue_alone() {
    let (cluster, mut a, b) = pair();
    let mut other = cluster.endpoint(0, 0, 1);
    cluster.inject_ecc(0, EccPlace::Buffers, EccErrors::Fatal);
    a.cq.post_and_ring(&Order::nop(), 0).unwrap();
    cluster.settle();
    assert_eq!(a.cq.exception().unwrap().irr, CqsIrqs::TOQ_MARKED_UE);
    assert!(a.cq.poll_tcq().is_none());
    let put = Order::put(b.target(), b.at(0), other.at(0), 8);
    assert_eq!(other.end_of(&put), Rcode::SUCCESS);
    assert_eq!(count(&cluster, 0, "ECC_BUFFERS_LOST"), 1);
}

#[test]
fn packet_marked_as_bad_is_dropped() {
    let (cluster, mut a, b) = pair();
    cluster.inject_ecc(1, EccPlace::Router, EccErrors::Fatal);
    a.fill(0, &[9; 8]);
    let put = Order::put(b.target(), b.at(0), a.at(0), 8);
    assert_eq!(a.end_of(&put), Rcode::TIMEOUT);
    assert_eq!(b.bytes(0, 8), [0; 8]);
    let bad = Register::Tni { tni: tni(0), reg: TniReg::NumReceiveNullifiedTlp };
    assert_eq!((cluster.device(1).read(bad), count(&cluster, 1, "ECC_ROUTER_LOST")), (1, 1));
    assert_eq!(a.end_of(&put), Rcode::SUCCESS);
    assert_eq!(b.bytes(0, 8), [9; 8]);
}

/// Seven nodes in a ring, and queues of the first and the fourth: packets between them pass the
/// second and the third.
fn ring(links: Links) -> (Cluster, Endpoint, Endpoint) {
    let cluster = Cluster::with_links("7x1x1x1x1x1", 4 << 20, links);
    let (a, d) = (cluster.endpoint(0, 0, 0), cluster.endpoint(3, 0, 0));
    (cluster, a, d)
}

/// The value of a port's register.
fn at_port(cluster: &Cluster, rank: u32, port: Port, reg: PortReg) -> u64 {
    cluster.device(rank).read(Register::Port { port, reg })
}

#[test]
fn passing_packet_is_marked_by_the_router_it_passes() {
    for links in [Links::Direct, Links::Modelled] {
        let (cluster, mut a, d) = ring(links);
        cluster.inject_ecc(1, EccPlace::Router, EccErrors::Fatal);
        // Two packets: all of the command is bad.
        a.fill(0, &[9; 3000]);
        let put = Order::put(d.target(), d.at(0), a.at(0), 3000);
        assert_eq!(a.end_of(&put), Rcode::TIMEOUT, "{links:?}");
        assert_eq!(d.bytes(0, 3000), [0; 3000]);
        let nullified = |rank| {
            let reg = TniReg::NumReceiveNullifiedTlp;
            cluster.device(rank).read(Register::Tni { tni: tni(0), reg })
        };
        assert_eq!([0, 1, 2, 3].map(nullified), [0, 0, 0, 2]);
        let marks = |rank| {
            let (sent, marked) = (PortReg::NumSendNullifiedTlp, PortReg::NumGenerateNullifiedTlp);
            let got = at_port(&cluster, rank, Port::XMinus, PortReg::NumReceiveNullifiedTlp);
            [got, at_port(&cluster, rank, Port::XPlus, sent), {
                at_port(&cluster, rank, Port::XPlus, marked).min(1)
            }]
        };
        assert_eq!([0, 1, 2, 3].map(marks), [[0; 3], [0, 2, 1], [2, 2, 0], [2, 0, 0]]);
        let lost = [0, 1, 2, 3].map(|rank| count(&cluster, rank, "ECC_ROUTER_LOST"));
        assert_eq!(lost, [0, 1, 0, 0]);
        assert_eq!(a.end_of(&put), Rcode::SUCCESS, "{links:?}");
        assert_eq!(d.bytes(0, 3000), [9; 3000]);
    }
}

#[test]
fn corrected_bits_of_passing_packets_are_counted_by_ports() {
    for links in [Links::Direct, Links::Modelled] {
        let (cluster, mut a, d) = ring(links);
        cluster.inject_ecc(2, EccPlace::Router, EccErrors::Correctable(2));
        a.fill(0, &[9; 8]);
        for _ in 0..2 {
            let put = Order::put(d.target(), d.at(0), a.at(0), 8);
            assert_eq!(a.end_of(&put), Rcode::SUCCESS, "{links:?}");
        }
        // One in the request, and one in its answer.
        let ports = [Port::XPlus, Port::XMinus];
        let corrected = ports.map(|port| at_port(&cluster, 2, port, PortReg::XbCeCount));
        assert_eq!(corrected, [1, 1]);
        assert_eq!(count(&cluster, 2, "ECC_ROUTER_CORRECTED"), 2);
        assert_eq!(at_port(&cluster, 1, Port::XPlus, PortReg::XbCeCount), 0);
    }
}
