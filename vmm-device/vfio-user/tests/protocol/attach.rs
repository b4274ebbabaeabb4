//! Clients that keep to the protocol.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::client::*;
use tofu_abi::irq::vector;
use tofu_abi::pci::{DEVICE_TOFUD, VENDOR_ID};
use tofu_abi::regs::BAR0_SIZE;
use tofu_abi::table::PageSize;
use tofu_driver::{
    Access, Cq, CqConfig, Device, DmaBuffer, DmaError, IrqError, MemoryRange, Order, Platform,
    Target,
};
use tofu_icc::DmaMemory;
use tofu_inproc::{Arena, Buffer};
use tofu_vfio_user::Limits;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

/// Guest memory starts here.
const BASE: u64 = 0x10_0000;
const MEMORY: u64 = 16 << 20;

/// The driver's platform over a socket.
struct Remote {
    client: Mutex<Client>,
    memory: Arena,
    events: Mutex<HashMap<u16, Arc<Event>>>,
    start: Instant,
    /// Whether an interrupt has come that the driver was told of.
    woken: AtomicBool,
}

impl Remote {
    /// Attaches as a VMM would.
    fn new(mut client: Client) -> Self {
        let file = sealed(MEMORY);
        client.try_map(Some(&file), [0, BASE, MEMORY]).unwrap();
        client.enable();
        let range = (GuestAddress(BASE), MEMORY as usize, Some(FileOffset::new(file, 0)));
        let memory = GuestMemoryMmap::<()>::from_ranges_with_files([range]).unwrap();
        Self {
            client: Mutex::new(client),
            memory: Arena::new(memory).unwrap(),
            events: Mutex::default(),
            start: Instant::now(),
            woken: AtomicBool::new(false),
        }
    }
}

impl Platform for Remote {
    type Dma = Buffer;

    fn bar0_read64(&self, offset: u64) -> u64 {
        let bytes = self.client.lock().unwrap().read(0, offset, 8);
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    fn bar0_write64(&self, offset: u64, value: u64) {
        self.client.lock().unwrap().post_write(0, offset, &value.to_le_bytes());
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<Buffer, DmaError> {
        self.memory.alloc(size, align)
    }

    fn irq_enable(&self, vector: u16) -> Result<(), IrqError> {
        let event = Event::new();
        let bound = self.client.lock().unwrap().try_bind(u32::from(vector), &[&event]);
        bound.map_err(|_| IrqError { vector })?;
        self.events.lock().unwrap().insert(vector, Arc::new(event));
        Ok(())
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        let event = Arc::clone(&self.events.lock().unwrap()[&vector]);
        let woken = event.wait_for(Duration::from_nanos(timeout_ns)) > 0;
        self.woken.fetch_or(woken, SeqCst);
        woken
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

#[test]
fn a_put_between_two_clients() {
    const LEN: usize = 100_000;
    let host = Host::sealed();
    let coords = host.servers[1].node().coords();
    let ends: Vec<_> = (0..2)
        .map(|index| {
            let (client, thread) = host.attach(index);
            let platform = Remote::new(client);
            let buffer = platform.alloc_dma(LEN, 4096).unwrap();
            let range = MemoryRange { addr: buffer.device_addr(), len: LEN as u64 };
            let device = Device::probe(platform).unwrap();
            device.tni(1).unwrap().enable().unwrap();
            let mut cq = Cq::open(&device, &CqConfig::new(1, 2)).unwrap();
            let stag = cq.register(&[range], PageSize::Size4K, Access::ReadWrite, None).unwrap();
            (cq, stag, buffer, thread)
        })
        .collect();
    let [(mut cq, stag, buffer, thread), (mut cq2, stag2, buffer2, thread2)] =
        <[_; 2]>::try_from(ends).map_err(|_| "two ends").unwrap();

    let sent: Vec<u8> = (0..LEN).map(|i| (i * 7 + i / 251) as u8).collect();
    buffer.write(0, &sent);
    let order = Order::put(Target::new(coords, 1), stag2.at(0), stag.at(0), LEN as u32);
    cq.post_and_ring(&order.remote_notice().interrupt(), 5).unwrap();
    let done = cq.wait_tcq(20_000_000_000).unwrap();
    assert!(done.is_success(), "{done:?}");
    cq2.wait_mrq(20_000_000_000).unwrap();
    let mut received = vec![0; LEN];
    buffer2.read(0, &mut received);
    assert_eq!(received, sent);
    // The driver has slept until the interrupts came, or found the entries before it could.
    for end in [&cq, &cq2] {
        let platform = end.device().platform();
        let interrupted = platform.woken.load(SeqCst);
        assert!(interrupted || platform.irq_wait(vector::cq(1, 2), 20_000_000_000));
    }

    drop((cq, cq2));
    thread.join().unwrap().unwrap();
    thread2.join().unwrap().unwrap();
    // Nothing is left of the clients.
    for (server, memory) in host.servers.iter().zip(&host.memories) {
        assert_eq!(memory.mapped_ranges(), 0);
        assert!(!server.node().icc().queue_is_enabled(1, 2));
        assert!(!server.node().endpoint().bus_master());
    }
}

#[test]
fn what_a_client_finds() {
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
    // QEMU wants to be told of errors, of which there are none.
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
fn posted_writes_are_done_in_order_and_resets_undo_them() {
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
fn interrupts_wait_for_their_eventfd_and_follow_a_new_one() {
    let host = Host::sealed();
    let (mut client, thread) = host.attach(0);
    let endpoint = host.servers[0].node().endpoint();
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
    // The table is the server's.
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
    // The client's own test of its eventfds.
    client.call(SET_IRQS, &words(&[20, 0x21, MSIX, 6, 1]));
    assert_eq!(first.wait(), 1);
    let mut chosen = words(&[20, 0x22, MSIX, 5, 2]);
    chosen.extend([0, 1]);
    client.call(SET_IRQS, &chosen);
    assert_eq!(first.wait(), 1);
    assert_eq!(other.take(), 0);
    // A reset masks all vectors; they are the client's all the same.
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
fn memory_page_by_page_as_a_viommu_maps_it() {
    const PAGES: u64 = 20_000;
    const STRIDE: u64 = 2 * 4096;
    let host = Host::sealed();
    let (mut client, _thread) = host.attach(0);
    let file = sealed(PAGES * 4096);
    let memory = Arc::clone(&host.memories[0]);
    // Every other page, backwards.
    for page in 0..PAGES {
        let place = [(PAGES - 1 - page) * 4096, BASE + page * STRIDE, 4096];
        client.try_map(Some(&file), place).unwrap();
    }
    memory.write(BASE + STRIDE, b"second").unwrap();
    let mut bytes = [0; 6];
    let at = (PAGES - 2) * 4096;
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, at).unwrap();
    assert_eq!(&bytes, b"second");
    assert!(memory.contains(BASE, 4096));
    assert!(!memory.contains(BASE, 4097), "a hole follows");
    assert!(!memory.contains(BASE - 1, 2));
    assert_eq!(client.try_unmap(BASE, STRIDE * (PAGES - 1)), Ok((PAGES - 1) * 4096));
    assert_eq!(memory.mapped_ranges(), 1);
    assert!(memory.write(BASE, &[1]).is_err());
    assert_eq!(client.try_unmap(0, u64::MAX), Ok(4096));
    assert_eq!(client.try_unmap(0, u64::MAX), Ok(0), "as VFIO, nothing is no error");
}

#[test]
fn ranges_that_touch_are_one_for_the_device() {
    let host = Host::sealed();
    let (mut client, _thread) = host.attach(0);
    let (a, b) = (sealed(8192), sealed(8192));
    client.try_map(Some(&a), [4096, BASE, 4096]).unwrap();
    client.try_map(Some(&b), [0, BASE + 4096, 8192]).unwrap();
    // A range without memory.
    client.try_map(None::<&std::fs::File>, [0, BASE + 12288, 4096]).unwrap();
    let memory = &host.memories[0];
    let data: Vec<u8> = (0..6000).map(|i| i as u8).collect();
    memory.write(BASE + 3000, &data).unwrap();
    let mut back = vec![0; 6000];
    memory.read(BASE + 3000, &mut back).unwrap();
    assert_eq!(back, data);
    let mut part = [0; 10];
    std::os::unix::fs::FileExt::read_exact_at(&b, &mut part, 0).unwrap();
    assert_eq!(part, data[1096..1106]);
    assert!(!memory.contains(BASE + 8192, 4097));
    // A whole range or none.
    assert_eq!(client.try_unmap(BASE, 8192), Err(EINVAL));
    assert_eq!(client.try_unmap(BASE + 4096, 4096), Err(EINVAL));
    assert_eq!(memory.mapped_ranges(), 3);
    assert_eq!(client.try_unmap(BASE, 16384), Ok(16384));
    // All at once.
    client.try_map(Some(&a), [0, BASE, 8192]).unwrap();
    let reply = client.call(DMA_UNMAP, &words(&[24, 2, 0, 0, 0, 0]));
    assert_eq!(reply, words(&[24, 2, 0, 0, 8192, 0]));
    assert_eq!(memory.mapped_ranges(), 0);
}

#[test]
fn unmapping_waits_for_the_transfers_that_use_a_range() {
    let host = Host::sealed();
    let (mut client, _thread) = host.attach(0);
    let file = sealed(8192);
    client.try_map(Some(&file), [0, BASE, 8192]).unwrap();
    let memory = Arc::clone(&host.memories[0]);
    let (inside, entered) = std::sync::mpsc::channel();
    let (done, end) = std::sync::mpsc::channel();
    let transfer = std::thread::spawn(move || {
        memory
            .access(BASE, 8, &mut |piece| {
                inside.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(50));
                piece.copy_from(&[7u8; 8]);
                done.send(()).unwrap();
            })
            .unwrap();
    });
    entered.recv().unwrap();
    assert_eq!(client.try_unmap(BASE, 8192), Ok(8192));
    end.try_recv().expect("the answer came before the transfer's end");
    transfer.join().unwrap();
    assert!(host.memories[0].read(BASE, &mut [0]).is_err());
}

#[test]
fn limits_are_kept_and_given_back() {
    let limits = Limits { ranges: 4, files: 2, bytes: 64 << 10 };
    let host = Host::new(tofu_vfio_user::Backing::Sealed, limits);
    for _ in 0..2 {
        let (mut client, thread) = host.attach(0);
        let files = [sealed(16 << 10), sealed(16 << 10), sealed(16 << 10)];
        assert_eq!(client.try_map(Some(&sealed(65 << 10)), [0, BASE, 4096]), Err(ENOSPC));
        client.try_map(Some(&files[0]), [0, 0, 4096]).unwrap();
        client.try_map(Some(&files[1]), [0, 4096, 4096]).unwrap();
        assert_eq!(client.try_map(Some(&files[2]), [0, 8192, 4096]), Err(ENOSPC));
        client.try_unmap(0, 4096).unwrap();
        client.try_map(Some(&files[2]), [0, 8192, 4096]).unwrap();
        client.try_map(Some(&files[2]), [8192, 0x10000, 4096]).unwrap();
        client.try_map(Some(&files[2]), [4096, 0x20000, 4096]).unwrap();
        assert_eq!(client.try_map(Some(&files[2]), [4096, 0x30000, 4096]), Err(ENOSPC));
        drop(client);
        thread.join().unwrap().unwrap();
    }
}

#[test]
fn clients_come_and_go_until_the_server_is_stopped() {
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
