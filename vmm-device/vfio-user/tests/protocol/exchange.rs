//! A Put from one device to another, as every client does it.

use tofu_abi::irq::vector;
use tofu_abi::table::PageSize;
use tofu_abi::{Coords, CqId, TniId};
use tofu_driver::{Access, Cq, CqConfig, Device, DmaBuffer, MemoryRange, Order, Platform, Target};

const PATIENCE_NS: u64 = 20_000_000_000;

/// Puts `sent` from the first platform's memory to the second's, whose node is `to`, by this queue
/// of each. Both sleep until their interrupts arrive, before anything has polled the queues.
/// Returns the queues and their memory.
pub(crate) fn put<P: Platform>(
    platforms: [P; 2],
    to: Coords,
    (tni, cq): (TniId, CqId),
    sent: &[u8],
) -> [(Cq<P>, P::Dma); 2] {
    let ends = platforms.map(|platform| {
        let buffer = platform.alloc_dma(sent.len(), 4096).unwrap();
        let range = MemoryRange { addr: buffer.device_addr(), len: sent.len() as u64 };
        let device = Device::probe(platform).unwrap();
        device.tni(tni).enable().unwrap();
        let mut queue = Cq::open(&device, &CqConfig::new(tni, cq)).unwrap();
        let stag = queue.register(&[range], PageSize::Size4K, Access::ReadWrite, None);
        (queue, stag.unwrap(), buffer)
    });
    let [(mut from, stag, buffer), (mut other, its_stag, its_buffer)] = ends;
    buffer.write(0, sent);
    let target = Target::new(to, tni);
    let order = Order::put(target, its_stag.at(0), stag.at(0), sent.len() as u32);
    for queue in [&from, &other] {
        queue.ask_interrupt();
    }
    from.post_and_ring(&order.remote_notice().interrupt(), 0).unwrap();
    for queue in [&from, &other] {
        assert!(queue.device().platform().irq_wait(vector::cq(tni, cq), PATIENCE_NS));
    }
    assert!(from.wait_tcq(PATIENCE_NS).unwrap().is_success());
    other.wait_mrq(PATIENCE_NS).unwrap();
    let mut received = vec![0; sent.len()];
    its_buffer.read(0, &mut received);
    assert_eq!(received, sent);
    [(from, buffer), (other, its_buffer)]
}
