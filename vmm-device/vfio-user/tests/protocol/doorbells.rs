//! Doorbells that need no message, and writes that arrive in one.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::client::*;
use crate::remote::Remote;
use tofu_abi::barrier::BchReady;
use tofu_abi::irq::BgsIrqs;
use tofu_abi::reduce::Op;
use tofu_abi::regs::{BchReg, CqReg, CqsReg, Register, bch_page, cq_page};
use tofu_abi::table::PageSize;
use tofu_abi::{BchId, CqId, TniId};
use tofu_driver::{
    Access, Channel, ChannelConfig, Cq, CqConfig, Device, DmaBuffer, Gate, MemoryRange, Order,
    Platform, Target,
};
use tofu_icc::SharedPages;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

const SECONDS: u64 = 1_000_000_000;
const QUEUES: usize = 72;
/// Pages that are memory: also those of barrier channels.
const PAGES: usize = QUEUES + 96;
/// Answer to GET_REGION_INFO with all areas.
const WHOLE: u32 = 32 + 16 + 16 * PAGES as u32;

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn queue_pages() -> Vec<u64> {
    TniId::ALL.into_iter().flat_map(|tni| CqId::ALL.map(|cq| cq_page(tni, cq))).collect()
}

fn all_pages() -> Vec<u64> {
    let of_tni = |tni| {
        let channels = BchId::ALL.map(|bch| bch_page(tni, bch));
        CqId::ALL.map(|cq| cq_page(tni, cq)).into_iter().chain(channels)
    };
    TniId::ALL.into_iter().flat_map(of_tni).collect()
}

/// Maps the pages of BAR0 as QEMU does.
fn map_pages(client: &mut Client) -> MmapRegion<()> {
    let (short, fds) = client.call_for_fds(GET_REGION_INFO, &words(&[32, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(short[..16], words(&[WHOLE, 3, 0, 0]), "neither areas nor a descriptor yet");
    assert!(short.len() == 32 && fds.is_empty());
    let (info, fds) = client.call_for_fds(GET_REGION_INFO, &words(&[WHOLE, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(info[..16], words(&[WHOLE, 15, 0, 32]));
    assert_eq!(info.len(), WHOLE as usize);
    assert_eq!(long(&info, 24), 0);
    assert_eq!(info[32..48], words(&[1 | 1 << 16, 0, PAGES as u32, 0]));
    let areas: Vec<_> = info[48..].chunks(16).map(|a| (long(a, 0), long(a, 8))).collect();
    assert_eq!(areas, all_pages().into_iter().map(|at| (at, 4096)).collect::<Vec<_>>());
    let [file] = <[_; 1]>::try_from(fds).unwrap();
    let file = File::from(file);
    assert!(file.set_len(0).is_err() && file.set_len(1 << 30).is_err(), "sealed");
    MmapRegion::from_file(FileOffset::new(file, 0), SharedPages::SIZE_AS_IN_BAR).unwrap()
}

/// A word of BAR0 in a client's mapping.
fn word_at(pages: &MmapRegion<()>, offset: u64) -> &AtomicU64 {
    pages.get_atomic_ref(offset as usize).unwrap()
}

/// A register of a queue of TNI 2.
fn register(cq: usize, reg: CqReg) -> u64 {
    Register::Cq { tni: TniId::ALL[2], cq: CqId::ALL[cq], reg }.offset()
}

/// The doorbell of a queue of TNI 2.
fn fetch_start(cq: usize) -> u64 {
    register(cq, CqReg::FetchStart)
}

/// A queue of a client, with which it puts to itself.
struct Looped {
    cq: Cq<Remote>,
    stag: tofu_driver::Stag,
    buffer: tofu_inproc::Buffer,
    to: Target,
}

impl Looped {
    fn new(host: &Host, remote: Remote) -> Self {
        let buffer = remote.alloc_dma(8192, 4096).unwrap();
        let range = MemoryRange { addr: buffer.device_addr(), len: 8192 };
        let device = Device::probe(remote).unwrap();
        device.tni(TniId::ALL[2]).enable().unwrap();
        let mut cq = Cq::open(&device, &CqConfig::new(TniId::ALL[2], CqId::ALL[3])).unwrap();
        let stag = cq.register(&[range], PageSize::Size4K, Access::ReadWrite, None).unwrap();
        Self { cq, stag, buffer, to: Target::new(host.servers[0].coords(), TniId::ALL[2]) }
    }

    /// The same with the pages of BAR0 mapped.
    fn mapped(host: &Host, mut client: Client) -> Self {
        let pages = map_pages(&mut client);
        let mut remote = Remote::new(client);
        remote.pages = Some(pages);
        Self::new(host, remote)
    }

    /// Puts a byte from one page to the other; returns how long that took.
    fn put(&mut self, byte: u8) -> Duration {
        self.buffer.write(0, &[byte]);
        let order = Order::put(self.to, self.stag.at(4096), self.stag.at(0), 1);
        let start = Instant::now();
        self.cq.post_and_ring(&order, 0).unwrap();
        assert!(self.cq.wait_tcq(20 * SECONDS).unwrap().is_success());
        let time = start.elapsed();
        let mut got = [0];
        self.buffer.read(4096, &mut got);
        assert_eq!(got, [byte]);
        time
    }
}

#[test]
fn mapped_doorbell_is_heard_after_quiet() {
    let host = Host::polled();
    let (client, thread) = host.attach(0);
    let mut looped = Looped::mapped(&host, client);
    looped.put(1);
    // Longer than engines poll, than they nap, and than they wait before they doze.
    for (byte, quiet) in [(2, 1), (3, 40), (4, 1200)] {
        sleep(Duration::from_millis(quiet));
        let time = looped.put(byte);
        println!("after {quiet} ms: {time:?}");
    }
    // The device counts in the same page.
    let counter = register(3, CqReg::TxPayloadByte);
    assert_eq!(looped.cq.device().platform().bar0_read64(counter), 4);
    drop(looped);
    thread.join().unwrap().unwrap();
}

/// A barrier channel whose rounds are started in a mapped page, and by messages.
#[test]
fn mapped_barrier_starts_after_quiet() {
    for polled in [true, false] {
        let host = if polled { Host::polled() } else { Host::sealed() };
        let (mut client, thread) = host.attach(0);
        let pages = polled.then(|| map_pages(&mut client));
        let mut remote = Remote::new(client);
        remote.pages = pages;
        let device = Device::probe(remote).unwrap();
        device.tni(TniId::ALL[4]).enable().unwrap();
        let (tni, bch) = (TniId::ALL[4], BchId::ALL[9]);
        let start = Some(bch.gate());
        let gate = Gate { src_local: start, dst_local: start, ..Gate::new(tni, bch.gate()) };
        let config = ChannelConfig { interrupts: BgsIrqs::NONE, ..ChannelConfig::new(tni, bch) };
        let mut channel = Channel::open(&device, &config, &[gate]).unwrap();
        for (round, quiet) in [(1, 0), (2, 1), (3, 40), (4, 1200)] {
            sleep(Duration::from_millis(quiet));
            let input = [round, 10 * round, 0, 0, 0, 0, 0, 0];
            let outcome = channel.run(Op::Max, &input, 2, 20 * SECONDS).unwrap();
            assert_eq!(outcome.value[..3], [round, 10 * round, 0]);
        }
        // Closed, the page is memory again, and starts nothing.
        channel.close().unwrap();
        let ready =
            Register::Bch { tni: TniId::ALL[4], bch: BchId::ALL[9], reg: BchReg::Ready }.offset();
        device.platform().bar0_write64(ready, BchReady(0).with_op(1).with_start(true).0);
        sleep(Duration::from_millis(30));
        let rounds =
            host.servers[0].node().unwrap().icc().barrier_time(TniId::ALL[4], BchId::ALL[9]).rounds;
        assert_eq!(rounds, 4);
        drop(device);
        thread.join().unwrap().unwrap();
    }
}

#[test]
fn disabled_queues_page_is_plain_memory() {
    let host = Host::polled();
    let (mut client, thread) = host.attach(0);
    let mut remote = Remote::new({
        let pages = map_pages(&mut client);
        for at in all_pages() {
            // Doorbell, direct descriptor and what lies behind the registers.
            for word in 0..512 {
                word_at(&pages, at + 8 * word).store(0x1234_5678_9abc_def0, SeqCst);
            }
        }
        drop(pages);
        client
    });
    remote.pages = Some(map_pages(&mut remote.client.lock().unwrap()));
    let disabled = fetch_start(7);
    assert_eq!(remote.word(disabled).unwrap().load(SeqCst), 0x1234_5678_9abc_def0);
    let mut looped = Looped::new(&host, remote);
    // Enabling has cleared the page, including the earlier descriptor and doorbell.
    for _ in 0..10 {
        looped.put(9);
    }
    let platform = looped.cq.device().platform();
    let pages = platform.pages.as_ref().unwrap();
    assert_eq!(word_at(pages, cq_page(TniId::ALL[2], CqId::ALL[3]) + 4088).load(SeqCst), 0);
    // By message the disabled queue's page is the same memory.
    let value = platform.client.lock().unwrap().read(
        0,
        cq_page(TniId::ALL[2], CqId::ALL[7]) + CqReg::MrqFullPointer.offset(),
        8,
    );
    assert_eq!(value, 0x1234_5678_9abc_def0u64.to_le_bytes());
    assert!(
        !host.servers[0].node().unwrap().icc().queue_is_enabled(TniId::ALL[2], CqId::ALL[7].into())
    );
    drop(looped);
    thread.join().unwrap().unwrap();
}

#[test]
fn next_client_has_separate_pages() {
    let host = Host::polled();
    let (mut client, thread) = host.attach(0);
    let kept = map_pages(&mut client);
    drop(client);
    thread.join().unwrap().unwrap();
    let (client, thread) = host.attach(0);
    let mut looped = Looped::mapped(&host, client);
    looped.put(1);
    let word = |offset: u64| word_at(&kept, offset);
    let counter = register(3, CqReg::TxPayloadByte);
    assert_eq!(word(counter).load(SeqCst), 0);
    word(fetch_start(3)).store(1, SeqCst);
    looped.put(2);
    assert_eq!(word(fetch_start(3)).load(SeqCst), 1, "it was not taken");
    drop(looped);
    thread.join().unwrap().unwrap();
}

#[test]
fn mapping_needs_polling_and_a_descriptor() {
    let ask = words(&[WHOLE, 0, 0, 0, 0, 0, 0, 0]);
    let (mut trapped, _thread) = Host::sealed().attach(0);
    let (info, fds) = trapped.call_for_fds(GET_REGION_INFO, &ask);
    assert_eq!(info[..16], words(&[32, 3, 0, 0]));
    assert!(info.len() == 32 && fds.is_empty());
    let host = Host::polled();
    let (mut client, _thread) = host.connect(0);
    client.negotiate_for(0);
    assert_eq!(client.call_for_fds(GET_REGION_INFO, &ask).0[..16], words(&[32, 3, 0, 0]));
    // Other regions have no areas in any case.
    let (mut client, _thread) = host.attach(1);
    for index in 1..9 {
        let (info, fds) =
            client.call_for_fds(GET_REGION_INFO, &words(&[WHOLE, 0, index, 0, 0, 0, 0, 0]));
        assert!(info.len() == 32 && fds.is_empty());
    }
    // Polled queues have no event descriptors.
    let (answer, fds) = client.call_for_fds(GET_REGION_IO_FDS, &words(&[4096, 0, 0, 0]));
    assert_eq!(answer, words(&[16, 0, 0, 0]));
    assert!(fds.is_empty());
}

#[test]
fn doorbell_rings_by_its_event_descriptor() {
    let host = Host::sealed();
    let mut former: Vec<std::os::fd::OwnedFd> = Vec::new();
    for _ in 0..2 {
        let (mut client, thread) = host.connect(0);
        client.negotiate_for(200);
        let (places, mut fds) = all_doorbells(&mut client);
        // It rang before there was a queue.
        let mine = places.iter().position(|&place| place == fetch_start(3)).unwrap();
        let bell = fds.swap_remove(mine);
        rustix::io::write(&bell, &5u64.to_ne_bytes()).unwrap();
        let mut remote = Remote::new(client);
        remote.bells.insert(fetch_start(3), bell.try_clone().unwrap());
        let mut looped = Looped::new(&host, remote);
        for byte in 0..20 {
            looped.put(byte);
        }
        let rings = || {
            let mut bytes = [0; 8];
            rustix::io::read(&bell, &mut bytes).map(|_| u64::from_ne_bytes(bytes))
        };
        assert_eq!(rings(), Ok(20), "what was before is gone, the rest is not read");
        // When the queue is enabled again, it has the same descriptor, and ignores earlier rings:
        // entries that are still in the transmit queue are not sent again.
        rustix::io::write(&bell, &9u64.to_ne_bytes()).unwrap();
        let enable =
            Register::Cqs { tni: TniId::ALL[2], cq: CqId::ALL[3], reg: CqsReg::Enable }.offset();
        let platform = looped.cq.device().platform();
        platform.bar0_write64(enable, 0);
        rustix::io::write(&bell, &9u64.to_ne_bytes()).unwrap();
        platform.bar0_write64(enable, 1);
        assert_eq!(platform.bar0_read64(enable), 1);
        // Nor does the former client's descriptor ring it.
        for former in &former {
            rustix::io::write(former, &9u64.to_ne_bytes()).unwrap();
        }
        sleep(Duration::from_millis(20));
        let sent = register(3, CqReg::TxPayloadByte);
        assert_eq!(platform.bar0_read64(sent), 0);
        rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while platform.bar0_read64(sent) < 20 {
            assert!(Instant::now() < end, "the doorbell of the second life is not heard");
        }
        former.push(bell);
        drop(looped);
        thread.join().unwrap().unwrap();
    }
}

/// Asks for the descriptors of all doorbells, which are described as expected; returns where they
/// are, too.
fn all_doorbells(client: &mut Client) -> (Vec<u64>, Vec<std::os::fd::OwnedFd>) {
    let needed = 16 + 40 * QUEUES as u32;
    let (short, fds) = client.call_for_fds(GET_REGION_IO_FDS, &words(&[16, 0, 0, 0]));
    assert_eq!(short, words(&[needed, 0, 0, QUEUES as u32]));
    assert!(fds.is_empty());
    let (answer, fds) = client.call_for_fds(GET_REGION_IO_FDS, &words(&[needed, 0, 0, 0]));
    assert_eq!((answer.len(), fds.len()), (needed as usize, QUEUES));
    let mut places = Vec::new();
    for (number, part) in answer[16..].chunks(40).enumerate() {
        // Any size, an eventfd, any value.
        assert_eq!(long(part, 8), 0);
        assert_eq!(word(part, 16), number as u32);
        assert_eq!(part[20..], [0; 20]);
        places.push(long(part, 0));
    }
    let mut expected = queue_pages();
    let mut sorted: Vec<u64> =
        places.iter().map(|place| place - CqReg::FetchStart.offset()).collect();
    sorted.sort_unstable();
    expected.sort_unstable();
    assert_eq!(sorted, expected);
    (places, fds)
}

#[test]
fn event_descriptors_fit_the_clients_limit() {
    let host = Host::sealed();
    let (mut client, thread) = host.connect(0);
    client.negotiate_for(8);
    let (answer, fds) = client.call_for_fds(GET_REGION_IO_FDS, &words(&[4096, 0, 0, 0]));
    assert_eq!((word(&answer, 0), word(&answer, 12), fds.len()), (16 + 40 * 8, 8, 8));
    let firsts = (0..8).map(|n| long(&answer, 16 + 40 * n) - CqReg::FetchStart.offset());
    let expected = [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (0, 1), (1, 1)];
    assert!(firsts.eq(expected.map(|(tni, cq)| cq_page(TniId::ALL[tni], CqId::ALL[cq]))));
    for (request, errno) in
        [([16, 0, 9, 0], EINVAL), ([16, 1, 0, 0], EINVAL), ([15, 0, 0, 0], EINVAL)]
    {
        assert_eq!(client.try_call(GET_REGION_IO_FDS, &words(&request), &[]), Err(errno));
    }
    assert_eq!(client.call(GET_REGION_IO_FDS, &words(&[16, 0, 7, 0])), words(&[16, 0, 7, 0]));
    drop(client);
    thread.join().unwrap().unwrap();
}

#[test]
fn writes_in_one_message_are_done_in_order() {
    let host = Host::sealed();
    let (mut client, _thread) = host.attach(0);
    let write = |offset: u64, region: u32, count: u32, data: u64| {
        let mut one = access(region, offset, count);
        one.extend(data.to_ne_bytes());
        one
    };
    let gathered = |writes: &[Vec<u8>]| {
        let mut body = (writes.len() as u64).to_ne_bytes().to_vec();
        writes.iter().for_each(|one| body.extend(one));
        body
    };
    let body = gathered(&[
        write(0x3c, CONFIG, 1, 1),
        write(4, CONFIG, 2, 6),
        // Not possible: no such place, no such region, too long.
        write(4096, CONFIG, 1, 1),
        write(0, 9, 1, 1),
        write(0x3c, CONFIG, 9, 1),
        write(0x3c, CONFIG, 1, 2),
    ]);
    assert_eq!(client.call(WRITE_MULTI, &body), 3u64.to_ne_bytes());
    assert_eq!(client.read(CONFIG, 0x3c, 1), [2]);
    assert_eq!(client.read(CONFIG, 4, 2), [6, 0]);
    client.post(WRITE_MULTI, &gathered(&[write(0x3c, CONFIG, 1, 3)]));
    assert_eq!(client.read(CONFIG, 0x3c, 1), [3]);
    assert_eq!(client.call(WRITE_MULTI, &gathered(&[])), 0u64.to_ne_bytes());
    for count in [2, u64::MAX, u64::MAX / 24 + 1] {
        let mut body = gathered(&[write(0x3c, CONFIG, 1, 4)]);
        body[..8].copy_from_slice(&count.to_ne_bytes());
        assert_eq!(client.try_call(WRITE_MULTI, &body, &[]), Err(EINVAL));
    }
    assert_eq!(client.read(CONFIG, 0x3c, 1), [3]);
}
