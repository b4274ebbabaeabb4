//! Clients that keep to the protocol.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::client::*;
use crate::remote::{BASE, Remote};
use tofu_abi::irq::vector;
use tofu_abi::pci::{DEVICE_TOFUD, VENDOR_ID};
use tofu_abi::regs::BAR0_SIZE;
use tofu_abi::table::PageSize;
use tofu_abi::{CqId, StagOffset, TniId};
use tofu_driver::{Access, Cq, CqConfig, Device, DmaBuffer, MemoryRange, Order, Platform, Target};
use tofu_inproc::Buffer;

#[test]
fn put_works_between_two_clients() {
    const LEN: usize = 100_000;
    let host = Host::sealed();
    let coords = host.servers[1].coords();
    let ends: Vec<_> = (0..2)
        .map(|index| {
            let (client, thread) = host.attach(index);
            let platform = Remote::new(client);
            let buffer = platform.alloc_dma(LEN, 4096).unwrap();
            let range = MemoryRange { addr: buffer.device_addr(), len: LEN as u64 };
            let device = Device::probe(platform).unwrap();
            device.tni(TniId::ALL[1]).enable().unwrap();
            let mut cq = Cq::open(&device, &CqConfig::new(TniId::ALL[1], CqId::ALL[2])).unwrap();
            let stag = cq.register(&[range], PageSize::Size4K, Access::ReadWrite, None).unwrap();
            (cq, stag, buffer, thread)
        })
        .collect();
    let [(mut cq, stag, buffer, thread), (mut cq2, stag2, buffer2, thread2)] =
        <[_; 2]>::try_from(ends).map_err(|_| "two ends").unwrap();

    let sent: Vec<u8> = (0..LEN).map(|i| (i * 7 + i / 251) as u8).collect();
    buffer.write(0, &sent);
    let order = Order::put(Target::new(coords, TniId::ALL[1]), stag2.at(0), stag.at(0), LEN as u32);
    for end in [&cq, &cq2] {
        end.ask_interrupt();
    }
    cq.post_and_ring(&order.remote_notice().interrupt(), 5).unwrap();
    let done = cq.wait_tcq(20_000_000_000).unwrap();
    assert!(done.is_success(), "{done:?}");
    cq2.wait_mrq(20_000_000_000).unwrap();
    let mut received = vec![0; LEN];
    buffer2.read(0, &mut received);
    assert_eq!(received, sent);
    // The driver has slept until the interrupts arrived, or they arrive now.
    for end in [&cq, &cq2] {
        let platform = end.device().platform();
        let interrupted = platform.woken.load(SeqCst);
        assert!(
            interrupted
                || platform.irq_wait(vector::cq(TniId::ALL[1], CqId::ALL[2]), 20_000_000_000)
        );
    }

    drop((cq, cq2));
    thread.join().unwrap().unwrap();
    thread2.join().unwrap().unwrap();
    // Nothing is left of the clients.
    for (server, memory) in host.servers.iter().zip(&host.memories) {
        assert_eq!(memory.mapped_ranges(), 0);
        assert!(!server.node().unwrap().icc().queue_is_enabled(TniId::ALL[1], CqId::ALL[2].into()));
        assert!(!server.node().unwrap().endpoint().bus_master());
    }
}

#[test]
fn client_finds_the_device() {
    let host = Host::sealed();
    let (mut client, thread) = host.connect(0);
    let version = client.negotiate();
    assert!(version.ends_with("}\0"));
    assert!(version.contains("\"max_msg_fds\":16") && version.contains("\"pgsizes\":4096"));
    // Reset and PCI; 9 regions, 5 interrupt indices.
    assert_eq!(client.call(GET_INFO, &words(&[16, 0, 0, 0])), words(&[16, 3, 9, 5]));
    let sizes: Vec<u64> = (0..9)
        .map(|index| {
            let reply = client.call(GET_REGION_INFO, &words(&[32, 0, index, 0, 0, 0, 0, 0]));
            let size = u64::from_ne_bytes(reply[16..24].try_into().unwrap());
            assert_eq!(reply[..16], words(&[32, if size > 0 { 3 } else { 0 }, index, 0]));
            size
        })
        .collect();
    assert_eq!(sizes, [BAR0_SIZE, 0, 8192, 0, 0, 0, 0, 4096, 0]);
    let counts: Vec<Vec<u8>> =
        (0..5).map(|index| client.call(GET_IRQ_INFO, &words(&[16, 0, index, 0]))).collect();
    assert_eq!(counts[2], words(&[16, 1, 2, u32::from(vector::COUNT)]));
    assert_eq!(counts[3], words(&[16, 1, 3, 1]));
    for index in [0u32, 1, 4] {
        assert_eq!(counts[index as usize], words(&[16, 0, index, 0]));
    }
    // QEMU registers for errors, which never occur.
    let errors = Event::new();
    let body = words(&[20, EVENTFDS, 3, 0, 1]);
    assert_eq!(client.try_call(SET_IRQS, &body, &[errors.as_fd()]), Ok(vec![]));
    let config = client.read(CONFIG, 0, 4096);
    assert_eq!(config[..4], [VENDOR_ID.to_le_bytes(), DEVICE_TOFUD.to_le_bytes()].concat());
    // The same in odd pieces.
    assert_eq!(client.read(CONFIG, 3, 17), config[3..20]);
    assert!(client.read(CONFIG, 0x10, 0).is_empty());
    drop(client);
    thread.join().unwrap().unwrap();
}

#[test]
fn posted_writes_are_ordered_and_reset() {
    let host = Host::sealed();
    let (mut client, _thread) = host.attach(0);
    for line in 0..=255 {
        client.post_write(CONFIG, 0x3c, &[line]);
    }
    assert_eq!(client.read(CONFIG, 0x3c, 1), [255]);
    // Errors of posted messages have no answer either.
    client.post_write(CONFIG, 4096, &[0]);
    client.post(99, &[1, 2, 3]);
    client.enable();
    assert!(client.call(RESET, &[]).is_empty());
    assert_eq!(client.read(CONFIG, 0x3c, 1), [0]);
    assert_eq!(client.read(CONFIG, 4, 2), [0, 0]);
}

#[test]
fn interrupts_follow_a_new_eventfd() {
    let host = Host::sealed();
    let (mut client, thread) = host.attach(0);
    let endpoint = host.servers[0].node().unwrap().endpoint();
    let (first, second, other) = (Event::new(), Event::new(), Event::new());
    client.enable();
    client.try_bind(7, &[&other]).unwrap();
    endpoint.trigger(6);
    client.try_bind(5, &[&other, &first]).unwrap();
    assert_eq!(first.wait(), 1, "was pending");
    assert!(endpoint.msix().unwrap().enabled());
    client.try_bind(6, &[&second]).unwrap();
    endpoint.trigger(6);
    assert_eq!(second.wait(), 1);
    // The server owns the table.
    client.write(2, 6 * 16, &[0xff; 16]);
    endpoint.trigger(6);
    assert_eq!(second.wait(), 1);
    // Without a descriptor: unbound, and pending from then on.
    client.try_bind(6, &[]).unwrap();
    endpoint.trigger(6);
    assert_eq!((first.take(), second.take()), (0, 0));
    assert!(endpoint.msix().unwrap().pending(6));
    client.try_bind(6, &[&first]).unwrap();
    assert_eq!(first.wait(), 1);
    // A client may test its eventfds itself.
    client.call(SET_IRQS, &words(&[20, 0x21, MSIX, 6, 1]));
    assert_eq!(first.wait(), 1);
    let mut chosen = words(&[20, 0x22, MSIX, 5, 2]);
    chosen.extend([0, 1]);
    client.call(SET_IRQS, &chosen);
    assert_eq!(first.wait(), 1);
    assert_eq!(other.take(), 0);
    // A reset masks all vectors; they still belong to the client.
    client.call(RESET, &[]);
    client.enable();
    client.try_bind(5, &[&other]).unwrap();
    endpoint.trigger(6);
    assert_eq!(first.wait(), 1);
    client.call(SET_IRQS, &words(&[20, 0x21, MSIX, 0, 0]));
    assert!(!endpoint.msix().unwrap().enabled());
    endpoint.trigger(6);
    assert_eq!(first.take(), 0);
    drop(client);
    thread.join().unwrap().unwrap();
}

#[test]
fn clients_come_and_go_until_server_stops() {
    let host = Host::sealed();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let server = Arc::clone(&host.servers[0]);
    let thread = std::thread::spawn(move || server.run(listener));
    let event = Event::new();
    for _ in 0..3 {
        let mut client = Client::new(UnixStream::connect(&path).unwrap());
        client.negotiate();
        assert_eq!(client.read(CONFIG, 4, 2), [0, 0], "in its reset state");
        client.enable();
        client.try_bind(3, &[&event]).unwrap();
        client.try_map(Some(&sealed(4096)), [0, BASE, 4096]).unwrap();
    }
    // One is connected, another waits.
    let mut client = Client::new(UnixStream::connect(&path).unwrap());
    client.negotiate();
    let _waiting = UnixStream::connect(&path).unwrap();
    host.servers[0].stop();
    thread.join().unwrap().unwrap();
    assert!(client.is_closed());
    // Nor is there another one.
    let (mut late, thread) = host.connect(0);
    thread.join().unwrap().unwrap();
    assert!(late.is_closed());
}

/// An end of a Put: its queue, an STag of its buffer, and the buffer.
struct End {
    cq: Cq<Remote>,
    stag: tofu_driver::Stag,
    buffer: Buffer,
}

impl End {
    const LEN: usize = 1 << 20;

    fn new(remote: Remote) -> Self {
        let buffer = remote.alloc_dma(Self::LEN, 4096).unwrap();
        let range = MemoryRange { addr: buffer.device_addr(), len: Self::LEN as u64 };
        let device = Device::probe(remote).unwrap();
        device.tni(TniId::ALL[1]).enable().unwrap();
        let mut cq = Cq::open(&device, &CqConfig::new(TniId::ALL[1], CqId::ALL[2])).unwrap();
        let stag = cq.register(&[range], PageSize::Size4K, Access::ReadWrite, None).unwrap();
        Self { cq, stag, buffer }
    }

    /// Puts the whole buffer to another one, `count` times, without waiting for the end.
    fn post(&mut self, host: &Host, to: usize, stag: StagOffset, count: usize) {
        let to = Target::new(host.servers[to].coords(), TniId::ALL[1]);
        for _ in 0..count {
            let order = Order::put(to, stag, self.stag.at(0), Self::LEN as u32);
            self.cq.post_and_ring(&order, 0).unwrap();
        }
    }

    /// Closes the socket, without any message.
    fn die(self) {
        let socket = self.cq.device().platform().client.lock().unwrap().socket.try_clone();
        socket.unwrap().shutdown(std::net::Shutdown::Both).unwrap();
        std::mem::forget(self.cq);
    }
}

/// Node 0's client dies in the middle of its Puts to node 1, then node 1's in the middle of those
/// to it. The survivor keeps working, and the next client finds everything in order.
#[test]
fn clients_killed_in_traffic_harm_no_other() {
    let host = Host::sealed();
    let directory = tempfile::tempdir().unwrap();
    // One server is run in each of the two ways.
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let server = Arc::clone(&host.servers[0]);
    let runner = std::thread::spawn(move || server.run(listener));
    let attach_first = || {
        let mut client = Client::new(UnixStream::connect(&path).unwrap());
        client.negotiate();
        End::new(Remote::new(client))
    };
    let attach_second = || {
        let (client, thread) = host.attach(1);
        (End::new(Remote::new(client)), thread)
    };
    let (mut second, mut thread) = attach_second();
    for round in 0..10u8 {
        let mut first = attach_first();
        first.buffer.write(0, &[round; 4096]);
        first.post(&host, 1, second.stag.at(0), 30);
        first.die();
        // The survivor's queue works, while the dead client's Puts are still on their way.
        second.buffer.write(0, &[round; 8]);
        second.post(&host, 1, second.stag.at(0), 1);
        assert!(second.cq.wait_tcq(20_000_000_000).unwrap().is_success());

        let mut first = attach_first();
        first.post(&host, 1, second.stag.at(0), 30);
        second.die();
        assert!(thread.join().unwrap().is_ok());
        assert_eq!(host.memories[1].mapped_ranges(), 0);
        // Puts that did not arrive end with an error, by themselves.
        let ends: Vec<bool> =
            (0..30).map(|_| first.cq.wait_tcq(20_000_000_000).unwrap().is_success()).collect();
        assert!(ends.is_sorted_by(|a, b| a >= b), "first those that arrived: {ends:?}");
        (second, thread) = attach_second();
        first.buffer.write(0, &[round + 100; 4096]);
        first.post(&host, 1, second.stag.at(0), 1);
        assert!(first.cq.wait_tcq(20_000_000_000).unwrap().is_success());
        let mut got = [0; 4096];
        second.buffer.read(0, &mut got);
        assert_eq!(got, [round + 100; 4096]);
        first.die();
    }
    second.die();
    assert!(thread.join().unwrap().is_ok());
    host.servers[0].stop();
    runner.join().unwrap().unwrap();
}
