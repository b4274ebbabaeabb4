use tofu_virtio::Rng;
use tofu_virtio::regs::feature;
use vm_memory::{Bytes, GuestAddress};

use crate::driver::{BUFFERS, Guest, HIGH_START, from_device, wait};

fn function() -> tofu_virtio::Virtio {
    crate::driver::virtio(Rng::new())
}

tofu_pci::testing::law_tests!(function);

#[test]
fn random_bytes_come_and_differ() {
    let guest = Guest::new(Rng::new());
    let mut queues = guest.start(0, 1, 8);
    let mut seen = Vec::new();
    for _ in 0..20 {
        let len = queues[0].call(&[from_device(BUFFERS, 24), from_device(HIGH_START, 40)]);
        assert_eq!(len, 64);
        let mut bytes = [0u8; 64];
        guest.memory.read_slice(&mut bytes[..24], GuestAddress(BUFFERS)).unwrap();
        guest.memory.read_slice(&mut bytes[24..], GuestAddress(HIGH_START)).unwrap();
        assert!(!seen.contains(&bytes));
        seen.push(bytes);
    }
    wait("the interrupts", || guest.sink.notified() == [1; 20]);
}

#[test]
fn request_is_bounded() {
    let guest = Guest::new(Rng::new());
    let mut queues = guest.start(feature::EVENT_IDX, 1, 8);
    // Most of it lies outside of memory, which the device cannot reach.
    assert_eq!(queues[0].call(&[from_device(BUFFERS, u32::MAX)]), 4096);
    let mut behind = [0u8; 64];
    guest.memory.read_slice(&mut behind, GuestAddress(BUFFERS + 4096)).unwrap();
    assert_eq!(behind, [0; 64]);
}
