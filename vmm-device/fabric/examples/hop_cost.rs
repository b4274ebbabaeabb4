//! Prints what a packet within its node costs, and each further hop, in nanoseconds of wall time:
//! with the direct carrier, with unobserved wires, and with a tap that does nothing.
//!
//! `cargo run --release -p tofu-fabric --example hop_cost`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tofu_abi::Coords;
use tofu_fabric::{
    Carrier, Class, Deliver, Direct, DiscardReason, Fabric, NodeId, Observation, Packet, Port,
    Shape, Tap, Timing, Wires,
};

const PACKETS: u32 = 2_000_000;

struct Sink;

impl Deliver<u64> for Sink {
    fn arrived(&mut self, node: NodeId, packet: Packet<u64>) {
        black_box((node, packet));
    }

    fn discarded(
        &mut self,
        _: NodeId,
        _: Option<Port>,
        reason: DiscardReason,
        packet: Packet<u64>,
    ) {
        unreachable!("{reason:?}: {packet:?}");
    }
}

struct Idle;

impl Tap<u64> for Idle {
    fn observe(&self, observation: Observation, _: &Packet<u64>) {
        black_box(observation);
    }
}

/// The best of five runs, in nanoseconds for each packet.
fn cost(carrier: &dyn Carrier<u64>, dst: Coords) -> f64 {
    let packet = Packet::shortest(Class::Request, Coords::default(), dst, 0);
    let run = |_| {
        let start = Instant::now();
        for _ in 0..PACKETS {
            carrier.inject(black_box(packet.clone()), &mut Sink);
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(PACKETS)
    };
    (0..5).map(run).fold(f64::INFINITY, f64::min)
}

fn main() {
    let shape = Shape::new([8, 8, 8, 2, 3, 2]).expect("within limits");
    let direct = Direct::new(Arc::new(Fabric::new(shape)), Timing::TOFUD);
    let [wires, tapped] = [(); 2].map(|()| Wires::new(Fabric::new(shape), Timing::TOFUD));
    tapped.set_tap(Some(Arc::new(Idle)));
    println!("{:24}{:>10}{:>10}{:>10}", "ns", "direct", "wires", "tapped");
    for (name, dst) in [
        ("own node, 0 hops", Coords::default()),
        ("neighbour on X, 1 hop", Coords::new(1, 0, 0, 0, 0, 0)),
        ("neighbour on A, 1 hop", Coords::new(0, 0, 0, 1, 0, 0)),
        ("far on X, 4 hops", Coords::new(4, 0, 0, 0, 0, 0)),
        ("far corner, 15 hops", Coords::new(4, 4, 4, 1, 1, 1)),
    ] {
        let carriers: [&dyn Carrier<u64>; 3] = [&direct, &wires, &tapped];
        let [direct, wires, tapped] = carriers.map(|carrier| cost(carrier, dst));
        println!("{name:24}{direct:10.1}{wires:10.1}{tapped:10.1}");
    }
}
