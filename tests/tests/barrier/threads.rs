//! A machine with engine threads, whose nodes synchronise from their own threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tofu_abi::irq::BgsIrqs;
use tofu_abi::reduce::{self, Op};
use tofu_abi::{BchId, BgId};
use tofu_driver::{Channel, ChannelConfig, Device};
use tofu_fabric::Shape;
use tofu_inproc::InProcess;
use tofu_inspect::Value;
use tofu_machine::MachineConfig;
use tofu_tests::seen::{at, number, parts, see};
use tofu_tests::shards::InShards;

use crate::group::{
    Algorithm, BCH, config, doubling, gate_at, profile, renumber, ring, tni, tni_id, tree,
};

/// Longer than anything here takes, in nanoseconds.
const LONG_NS: u64 = 30_000_000_000;
const NODES: usize = 12;
const ROUNDS: u64 = 300;

/// The devices of a machine in this number of shards.
fn devices(shards: u32) -> (InShards, Vec<Device<InProcess>>) {
    let shape: Shape = "1x1x1x2x3x2".parse().unwrap();
    let config = MachineConfig { engines: 2, ..tofu_tests::machine(shape) };
    let device = |platform| {
        let device = Device::probe(platform).unwrap();
        device.tni(tni_id()).enable().unwrap();
        device
    };
    let machine = InShards::new(&config, shards);
    let devices = machine.attach(1 << 20).into_iter().map(device).collect();
    (machine, devices)
}

/// Three groups of the same nodes, each with another algorithm, with two threads for each node:
/// they run rounds at the same time, and the host decides how late threads are.
#[test]
fn threads_of_all_nodes_share_rounds() {
    let (_machine, devices) = devices(1);
    rounds(&devices, ROUNDS);
}

/// The same across cables, to the last bit.
#[test]
fn nodes_of_all_shards_share_rounds() {
    let (_machine, devices) = devices(3);
    rounds(&devices, ROUNDS / 3);
}

/// Inspected under load, gates and channels are consistent with each other and with earlier
/// inspections.
#[test]
fn loaded_gates_stay_consistent() {
    let (machine, devices) = devices(1);
    let machine = &machine.machines()[0];
    let node = |rank: usize| machine.node(devices[rank].coords()).unwrap();
    let interface = format!("device/tni/{}", tni());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut last = [0; NODES];
            let mut looks = 0;
            while !done.load(Ordering::Relaxed) {
                for (rank, last) in last.iter_mut().enumerate() {
                    let seen = see(&**node(rank), &interface);
                    // There are none before the first register is written.
                    if parts(at(&seen, "channel")).is_empty() {
                        continue;
                    }
                    let time = |part: &str| number(&seen, &format!("channel/0/time/{part}"));
                    assert!((*last..=ROUNDS).contains(&time("rounds")), "{last} to {seen:?}");
                    assert!(time("last_ps") <= time("total_ps"), "{seen:?}");
                    assert!(parts(at(&seen, "gate")).len() <= BgId::ALL.len());
                    *last = time("rounds");
                    looks += 1;
                }
            }
            looks
        });
        rounds(&devices, ROUNDS);
        done.store(true, Ordering::Relaxed);
        assert!(looks.join().unwrap() > 0);
    });
    for rank in 0..NODES {
        let channel = see(&**node(rank), &format!("{interface}/channel/0"));
        assert_eq!(number(&channel, "time/rounds"), ROUNDS);
        assert_eq!(at(&channel, "running"), &Value::Flag(false));
    }
}

fn rounds(devices: &[Device<InProcess>], rounds: u64) {
    let groups: [(Algorithm, u8, usize); 3] =
        [(tree, 0, NODES), (ring, BCH, NODES), (doubling, BCH + 1, 8)];
    let mut channels = Vec::new();
    for (algorithm, bch, n) in groups {
        let members: Vec<_> =
            devices[..n].iter().map(|d| gate_at(d.coords(), tni(), bch)).collect();
        for (rank, device) in devices[..n].iter().enumerate() {
            let mut gates = algorithm(&members, rank);
            // Separate relays for each group.
            renumber(&mut gates, |bg| if bg < 16 { bg } else { bg + 6 * bch });
            // Some sleep until the interrupt, some only poll.
            let interrupts = if rank % 3 == 0 { BgsIrqs::ALL } else { BgsIrqs::NONE };
            let config = ChannelConfig {
                bch: BchId::new(bch).unwrap(),
                interrupts,
                spin_ns: 20_000,
                ..config(bch.into(), 0)
            };
            channels.push((n as u64, rank as u64, Channel::open(device, &config, &gates).unwrap()));
        }
    }
    thread::scope(|scope| {
        for (n, rank, channel) in &mut channels {
            scope.spawn(move || {
                for round in 0..rounds {
                    let input = reduce::integers(&[*rank + round, round]).unwrap();
                    let count = profile().integers.min(2);
                    let outcome = channel.run(Op::Sum, &input, count, LONG_NS).unwrap();
                    let sum = *n * round + *n * (*n - 1) / 2;
                    let second = if count == 2 { *n * round } else { 0 };
                    assert_eq!(outcome.value[..3], [sum, second, 0]);
                    assert_eq!(outcome.op, Some(Op::Sum));
                }
                assert_eq!(channel.exceptions(), BgsIrqs::NONE);
            });
        }
    });
}
