//! Barriers of a machine in shards.

use tofu_abi::reduce::Op;
use tofu_driver::{Channel, Device};
use tofu_machine::MachineConfig;
use tofu_tests::shards::InShards;

use crate::group::{
    Algorithm, BCH, Group, config, doubling, expected, gate_at, inputs, profile, ring, tni, tni_id,
    tree,
};

/// Signals cross cables, and results are bit for bit those of a machine without shards: values are
/// combined in the order of the gates, regardless of their shards.
#[test]
fn shards_compute_the_bits_of_one_machine() {
    let shape = "1x1x1x2x3x2".parse().unwrap();
    let shards = InShards::new(&MachineConfig { engines: 2, ..tofu_tests::machine(shape) }, 6);
    let devices: Vec<_> = shards
        .attach(1 << 16)
        .into_iter()
        .map(|platform| {
            let device = Device::probe(platform).unwrap();
            device.tni(tni_id()).enable().unwrap();
            device
        })
        .collect();
    let algorithms: [(Algorithm, usize); 3] = [(doubling, 8), (tree, 12), (ring, 12)];
    for (algorithm, n) in algorithms {
        let address = |device: &Device<_>| gate_at(device.coords(), tni(), BCH);
        let members: Vec<_> = devices[..n].iter().map(address).collect();
        let open = |(rank, device)| {
            Channel::open(device, &config(7, 0), &algorithm(&members, rank)).unwrap()
        };
        let channels = devices[..n].iter().enumerate().map(open).collect();
        let mut group = Group { members: members.clone(), channels };
        for op in Op::ALL {
            let inputs = inputs(op, n, 21);
            let value = group.reduce(op, &inputs, profile().max_elements(op));
            assert_eq!(value, expected(op, &inputs), "{op:?} of {n}");
        }
        for _ in 0..100 {
            group.barrier();
        }
    }
}
