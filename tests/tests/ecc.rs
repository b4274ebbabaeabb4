//! Wrong bits in a device's memory: what its codes correct, and what is lost.

use tofu_abi::Rcode;
use tofu_abi::irq::CqsIrqs;
use tofu_abi::regs::{Register, TniReg};
use tofu_driver::Order;
use tofu_icc::{EccErrors, EccPlace};
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
        cluster.icc(0).inject_ecc(place, EccErrors::Correctable(2));
        cluster.icc(1).inject_ecc(place, EccErrors::Correctable(1));
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
    cluster.icc(0).inject_ecc(EccPlace::Buffers, EccErrors::Fatal);
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
    cluster.icc(1).inject_ecc(EccPlace::Router, EccErrors::Fatal);
    a.fill(0, &[9; 8]);
    let put = Order::put(b.target(), b.at(0), a.at(0), 8);
    assert_eq!(a.end_of(&put), Rcode::TIMEOUT);
    assert_eq!(b.bytes(0, 8), [0; 8]);
    let bad = Register::Tni { tni: tni(0), reg: TniReg::NumReceiveNullifiedTlp };
    assert_eq!((cluster.device(1).read(bad), count(&cluster, 1, "ECC_ROUTER_LOST")), (1, 1));
    assert_eq!(a.end_of(&put), Rcode::SUCCESS);
    assert_eq!(b.bytes(0, 8), [9; 8]);
}
