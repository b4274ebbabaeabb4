use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tofu_virtio::iommu::{
    DOMAIN_LAST, Endpoint, F_BYPASS_CONFIG, F_DOMAIN_RANGE, F_INPUT_RANGE, F_MAP_UNMAP, F_PROBE,
    INPUT_LAST, Iommu, MSI_WINDOW,
};
use tofu_virtio::regs::{cap, feature};
use tofu_virtio::{Block, BlockConfig, DeviceMemory, Options, Rng, Virtio};
use vm_memory::{Bytes, GuestAddress, Permissions};

use crate::driver::{BUFFERS, Guest, LOW, QUEUES, Queue, from_device, memory, to_device, wait};

const ALL: u64 = F_INPUT_RANGE | F_DOMAIN_RANGE | F_MAP_UNMAP | F_PROBE | F_BYPASS_CONFIG;

const OK: u8 = 0;
const UNSUPP: u8 = 2;
const INVAL: u8 = 4;
const RANGE: u8 = 5;
const NOENT: u8 = 6;

const READ: u32 = 1;
const WRITE: u32 = 2;

/// The place for answers.
const ANSWER: u64 = BUFFERS + 0x1000;
/// The place of the driver's buffers for events.
const EVENT_BUFFERS: u64 = BUFFERS + 0x2000;

fn function() -> Virtio {
    crate::driver::virtio(Iommu::new())
}

tofu_pci::testing::law_tests!(function);

/// A guest that drives an IOMMU.
struct Driver {
    guest: Guest,
    requests: Queue,
    events: Queue,
}

impl Driver {
    fn new(iommu: &Iommu, features: u64) -> Self {
        Self::start(Guest::new(iommu.clone()), features)
    }

    fn start(guest: Guest, features: u64) -> Self {
        let [requests, events] = guest.start(features, 2, 8).try_into().ok().unwrap();
        Self { guest, requests, events }
    }

    /// Sends a request with room for an answer of `room` bytes; returns the answer.
    fn send(&mut self, request: &[u8], room: u32) -> Vec<u8> {
        let memory = &self.guest.memory;
        memory.write_slice(request, GuestAddress(BUFFERS)).unwrap();
        memory.write_slice(&vec![0xee; room as usize], GuestAddress(ANSWER)).unwrap();
        let buffers = [to_device(BUFFERS, request.len() as u32), from_device(ANSWER, room)];
        let written = self.requests.call(&buffers[usize::from(request.is_empty())..]);
        assert!((4..=room).contains(&written), "{written} of {room}");
        let mut answer = vec![0; room as usize];
        memory.read_slice(&mut answer, GuestAddress(ANSWER)).unwrap();
        answer
    }

    /// Sends a request; returns its status.
    fn call(&mut self, request: &[u8]) -> u8 {
        let answer = self.send(request, 4);
        assert_eq!(answer[1..], [0; 3]);
        answer[0]
    }

    fn attach(&mut self, domain: u32, endpoint: u32, flags: u32) -> u8 {
        self.call(&words(1, &[domain, endpoint, flags, 0]))
    }

    fn detach(&mut self, domain: u32, endpoint: u32) -> u8 {
        self.call(&words(2, &[domain, endpoint, 0, 0]))
    }

    fn map(&mut self, domain: u32, range: (u64, u64), to: u64, flags: u32) -> u8 {
        self.call(&map(domain, range, to, flags))
    }

    fn unmap(&mut self, domain: u32, range: (u64, u64)) -> u8 {
        self.call(&unmap(domain, range))
    }

    /// Gives the device a buffer for an event.
    fn offer(&mut self, n: u64) {
        self.events.add(&[from_device(EVENT_BUFFERS + 32 * n, 24)]);
        self.events.kick();
    }

    /// The event in the `n`th buffer: reason, flags, endpoint and address.
    fn event(&mut self, n: u64) -> (u8, u32, u32, u64) {
        assert_eq!(self.events.wait().1, 24);
        let mut event = [0; 24];
        self.guest.memory.read_slice(&mut event, GuestAddress(EVENT_BUFFERS + 32 * n)).unwrap();
        let word = |at: usize| u32::from_le_bytes(event[at..at + 4].try_into().unwrap());
        let address = u64::from_le_bytes(event[16..].try_into().unwrap());
        (event[0], word(4), word(8), address)
    }

    fn set_bypass(&self, bypass: u8) {
        self.guest.write(cap::DEVICE, 40, &[bypass]);
    }
}

fn words(kind: u32, words: &[u32]) -> Vec<u8> {
    [&[kind], words].concat().iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn map(domain: u32, (first, last): (u64, u64), to: u64, flags: u32) -> Vec<u8> {
    let mut request = words(3, &[domain]);
    request.extend([first, last, to].iter().flat_map(|quad| quad.to_le_bytes()));
    request.extend(flags.to_le_bytes());
    request
}

fn unmap(domain: u32, (first, last): (u64, u64)) -> Vec<u8> {
    let mut request = words(4, &[domain]);
    request.extend([first, last].iter().flat_map(|quad| quad.to_le_bytes()));
    request.extend([0; 4]);
    request
}

fn probe(endpoint: u32) -> Vec<u8> {
    let mut request = words(5, &[endpoint]);
    request.resize(72, 0);
    request
}

/// The addresses at which an endpoint finds `len` bytes; none if it may not access them in this
/// way.
fn find(
    endpoint: &Endpoint,
    at: u64,
    len: usize,
    access: Permissions,
) -> Option<Vec<(u64, usize)>> {
    let mut ranges = Vec::new();
    let result = endpoint.begin().translate(at, len, access, &mut |at, len| ranges.push((at, len)));
    result.is_ok().then_some(ranges)
}

#[test]
fn function_describes_itself() {
    let guest = Guest::new(Iommu::new());
    let identity: [u8; 4] = {
        use tofu_pci::PciFunction;
        let mut id = [0; 4];
        guest.function.config_read(0, &mut id);
        id
    };
    assert_eq!(identity, [0xf4, 0x1a, 0x57, 0x10]);
    assert_eq!(guest.offered() & 0xff, ALL);
    assert_eq!(guest.offered() & feature::ACCESS_PLATFORM, 0, "it is behind nothing itself");
    let config: [u8; 48] = guest.read(cap::DEVICE, 0);
    let quad = |at: usize| u64::from_le_bytes(config[at..at + 8].try_into().unwrap());
    assert_eq!((quad(0), quad(8), quad(16)), (!0xfff, 0, INPUT_LAST));
    assert_eq!((quad(24) >> 32, quad(24) as u32), (DOMAIN_LAST.into(), 0));
    // Size of the properties, and that all is passed through so far.
    assert_eq!((quad(32), quad(40)), (64, 1));
}

#[test]
fn endpoint_reaches_only_its_mappings() {
    use Permissions::{Read, ReadWrite, Write};
    let iommu = Iommu::new();
    let (one, two) = (iommu.endpoint(8), iommu.endpoint(16));
    let mut driver = Driver::new(&iommu, ALL);
    // Without a domain it reaches everything, unless the driver says otherwise.
    assert_eq!(find(&one, 0x1234, 8, ReadWrite).unwrap(), [(0x1234, 8)]);
    driver.set_bypass(0);
    assert_eq!(driver.guest.read::<1>(cap::DEVICE, 40), [0]);
    assert_eq!(find(&one, 0x1234, 8, Read), None);
    // Other values and other widths have no effect.
    driver.set_bypass(2);
    driver.guest.write(cap::DEVICE, 40, &[1, 0]);
    driver.guest.write(cap::DEVICE, 36, &[1; 8]);
    assert_eq!(driver.guest.read::<1>(cap::DEVICE, 40), [0]);

    assert_eq!(driver.map(3, (0x1000, 0x1fff), 0x5000, READ), NOENT, "there is no domain yet");
    assert_eq!(driver.attach(3, 8, 0), OK);
    assert_eq!(driver.map(3, (0x1000, 0x2fff), 0x5000, READ | WRITE), OK);
    assert_eq!(driver.map(3, (0x3000, 0x3fff), 0x9000, WRITE), OK);
    assert_eq!(find(&one, 0x1ffc, 8, ReadWrite).unwrap(), [(0x5ffc, 8)]);
    assert_eq!(find(&one, 0x2ffc, 8, Write).unwrap(), [(0x6ffc, 4), (0x9000, 4)]);
    assert_eq!(find(&one, 0x2ffc, 8, Read), None, "the second half is for writing only");
    assert_eq!(find(&one, 0x0ffc, 8, Read), None);
    assert_eq!(find(&one, 0x3ffc, 8, Write), None);
    assert_eq!(find(&two, 0x1000, 8, Read), None, "that is another endpoint");
    // It sees the same in the same domain.
    assert_eq!(driver.attach(3, 16, 0), OK);
    assert_eq!(find(&two, 0x1000, 8, Read).unwrap(), [(0x5000, 8)]);
    assert_eq!(driver.unmap(3, (0x1000, 0x2fff)), OK);
    assert_eq!((find(&one, 0x1000, 8, Read), find(&two, 0x1000, 8, Read)), (None, None));
    assert_eq!(find(&one, 0x3000, 8, Write).unwrap(), [(0x9000, 8)]);
    // To another domain, in which everything is passed through.
    assert_eq!(driver.attach(4, 16, 1), OK);
    assert_eq!(find(&two, 0x3000, 8, ReadWrite).unwrap(), [(0x3000, 8)]);
    assert_eq!(driver.map(4, (0x1000, 0x1fff), 0x5000, READ), INVAL);
    assert_eq!(driver.unmap(4, (0x1000, 0x1fff)), INVAL);
    assert_eq!(driver.attach(4, 8, 0), INVAL, "it is a domain of another kind");
    assert_eq!(driver.detach(4, 16), OK);
    assert_eq!(find(&two, 0x3000, 8, Read), None);
    assert_eq!(driver.detach(3, 8), OK);
    assert_eq!(driver.unmap(3, (0, u64::MAX)), NOENT, "the domain is empty");
    assert_eq!(iommu.mappings(), 0);
}

#[test]
fn probe_reports_the_interrupt_window() {
    let iommu = Iommu::new();
    iommu.endpoint(8);
    let mut driver = Driver::new(&iommu, ALL);
    let answer = driver.send(&probe(8), 68);
    assert_eq!(answer[..8], [1, 0, 20, 0, 1, 0, 0, 0]);
    assert_eq!(answer[8..16], MSI_WINDOW.0.to_le_bytes());
    assert_eq!(answer[16..24], MSI_WINDOW.1.to_le_bytes());
    // No more properties, and the status behind them.
    assert_eq!(answer[24..], [0; 44]);
    assert_eq!(driver.send(&probe(9), 68)[64..], [NOENT, 0, 0, 0]);
    assert_eq!(driver.call(&probe(8)), INVAL, "no room for the properties");
    assert_eq!(driver.send(&probe(8), 36)[32], INVAL);
    assert_eq!(driver.send(&words(1, &[1, 8, 0, 0]), 68)[64], INVAL, "that is no probe");
    assert_eq!(driver.attach(1, 8, 0), OK);
    for range in [(0xfee0_0000, 0xfee0_0fff), (0xfed0_0000, 0xffff_ffff)] {
        assert_eq!(driver.map(1, range, 0, READ), INVAL);
    }
}

#[test]
fn requests_that_cannot_be_change_nothing() {
    let iommu = Iommu::new();
    let endpoint = iommu.endpoint(8);
    let mut driver = Driver::new(&iommu, ALL);
    assert_eq!(driver.attach(1, 8, 0), OK);
    assert_eq!(driver.map(1, (0x1_0000, 0x1_ffff), 0, READ), OK);
    let page = (0x1000, 0x1fff);
    for (what, request, status) in [
        ("unknown type", words(6, &[1, 8, 0, 0]), UNSUPP),
        ("type 0", words(0, &[1, 8, 0, 0]), UNSUPP),
        ("nothing to read", Vec::new(), INVAL),
        ("a type alone", vec![1], INVAL),
        ("one byte less", words(1, &[1, 8, 0, 0])[..19].to_vec(), INVAL),
        ("more than there is", words(1, &[1, 8, 0, 0, 0]), INVAL),
        ("much more", map(1, page, 0, READ).repeat(100), INVAL),
        ("unknown endpoint", words(1, &[1, 9, 0, 0]), NOENT),
        ("unknown flag", words(1, &[1, 8, 2, 0]), INVAL),
        ("reserved field", words(1, &[1, 8, 0, 1]), INVAL),
        ("domain of a number too high", words(1, &[DOMAIN_LAST + 1, 8, 0, 0]), RANGE),
        ("another kind of domain", words(1, &[1, 8, 1, 0]), INVAL),
        ("detach from another domain", words(2, &[2, 8, 0, 0]), INVAL),
        ("detach no endpoint", words(2, &[1, 9, 0, 0]), NOENT),
        ("map in no domain", map(2, page, 0, READ), NOENT),
        ("backwards", map(1, (0x2000, 0x1000), 0, READ), INVAL),
        ("start not aligned", map(1, (0x1001, 0x1fff), 0, READ), RANGE),
        ("end not aligned", map(1, (0x1000, 0x1ffe), 0, READ), RANGE),
        ("target not aligned", map(1, page, 0x800, READ), RANGE),
        ("all there is", map(1, (0, u64::MAX), 0, READ), RANGE),
        ("beyond the range", map(1, (INPUT_LAST + 1, INPUT_LAST + 0x1000), 0, READ), RANGE),
        ("target wraps", map(1, (0x2000, 0x3fff), !0xfff, READ), RANGE),
        ("memory of a device", map(1, page, 0, READ | 4), INVAL),
        ("mapped already", map(1, (0x1_f000, 0x2_0fff), 0, READ), INVAL),
        ("around what is mapped", map(1, (0, 0xf_ffff), 0, READ), INVAL),
        ("unmap a part", unmap(1, (0x1_0000, 0x1_0fff)), RANGE),
        ("unmap the other part", unmap(1, (0x1_1000, u64::MAX)), RANGE),
        ("unmap the middle", unmap(1, (0x1_1000, 0x1_1fff)), RANGE),
        ("unmap backwards", unmap(1, (0x1000, 0)), INVAL),
        ("unmap in no domain", unmap(2, page), NOENT),
    ] {
        assert_eq!(driver.call(&request), status, "{what}");
        assert_eq!(iommu.mappings(), 1, "{what}");
        assert!(find(&endpoint, 0x1_0000, 0x1_0000, Permissions::Read).is_some(), "{what}");
    }
    // Unmapping a range without mappings succeeds.
    assert_eq!(driver.unmap(1, (0x2_0000, u64::MAX)), OK);
    assert_eq!(driver.attach(1, 8, 0), OK, "it is there already");
    assert_eq!(iommu.mappings(), 1);
    // No room for a status, so no answer is possible.
    driver.requests.add(&[to_device(BUFFERS, 20), from_device(ANSWER, 3)]);
    driver.requests.kick();
    driver.guest.needs_reset();
}

#[test]
fn features_not_negotiated_do_not_work() {
    let iommu = Iommu::new();
    iommu.endpoint(8);
    let mut driver = Driver::new(&iommu, F_INPUT_RANGE);
    assert_eq!(driver.attach(1, 8, 1), INVAL);
    assert_eq!(driver.attach(1, 8, 0), OK);
    assert_eq!(driver.map(1, (0, 0xfff), 0, READ), UNSUPP);
    assert_eq!(driver.unmap(1, (0, 0xfff)), UNSUPP);
    assert_eq!(driver.send(&probe(8), 68)[64], UNSUPP);
}

#[test]
fn reset_detaches_all_and_keeps_bypass() {
    let iommu = Iommu::new();
    let endpoint = iommu.endpoint(8);
    for bypass in [1, 0] {
        let mut driver = Driver::new(&iommu, ALL);
        driver.set_bypass(bypass);
        assert_eq!(driver.attach(1, 8, 0), OK);
        assert_eq!(driver.map(1, (0, 0xfff), 0x5000, READ), OK);
        driver.guest.reset();
        assert_eq!(iommu.mappings(), 0);
        assert_eq!(driver.guest.read::<1>(cap::DEVICE, 40), [bypass]);
        let expected = (bypass == 1).then(|| vec![(0, 8)]);
        assert_eq!(find(&endpoint, 0, 8, Permissions::Read), expected);
        let mut driver = Driver::start(driver.guest, ALL);
        assert_eq!(driver.map(1, (0, 0xfff), 0x5000, READ), NOENT);
    }
}

#[test]
fn refused_accesses_are_told() {
    const ADDRESS: u32 = 1 << 8;
    let iommu = Iommu::new();
    let endpoint = iommu.endpoint(8);
    let mut driver = Driver::new(&iommu, ALL);
    driver.set_bypass(0);
    // Before there is a buffer, and after.
    assert_eq!(find(&endpoint, 0x1234, 8, Permissions::Write), None);
    driver.offer(0);
    assert_eq!(driver.event(0), (1, WRITE | ADDRESS, 8, 0x1234));
    assert_eq!(driver.attach(1, 8, 0), OK);
    assert_eq!(driver.map(1, (0x1000, 0x1fff), 0, READ), OK);
    driver.offer(1);
    std::thread::sleep(Duration::from_millis(5));
    assert!(driver.events.poll().is_none(), "there is nothing to tell");
    assert_eq!(find(&endpoint, 0x1ffc, 8, Permissions::Read), None);
    assert_eq!(driver.event(1), (2, READ | ADDRESS, 8, 0x2000));
    wait("the interrupts", || driver.guest.sink.notified().ends_with(&[2]));
    driver.offer(2);
    assert_eq!(find(&endpoint, 0x1000, 4, Permissions::ReadWrite), None);
    assert_eq!(driver.event(2), (2, READ | WRITE | ADDRESS, 8, 0x1000));
    // A buffer that holds no event.
    driver.events.add(&[from_device(EVENT_BUFFERS, 23)]);
    driver.events.kick();
    assert_eq!(find(&endpoint, 0, 1, Permissions::Read), None);
    driver.guest.needs_reset();
}

/// Each request is answered and the device survives, no matter which bytes a driver sends.
#[test]
fn garbage_is_answered() {
    let iommu = Iommu::new();
    iommu.endpoint(1);
    let mut driver = Driver::new(&iommu, ALL);
    let mut runner = TestRunner::new(Config { cases: 400, ..Config::default() });
    let small = prop_oneof![Just(0u8), Just(1), Just(0xff), any::<u8>()];
    let bytes = prop::collection::vec(small, 1..90);
    let room = prop_oneof![Just(4u32), Just(68), 4u32..200];
    let driver = std::cell::RefCell::new(&mut driver);
    runner
        .run(&(0u8..8, bytes, room), |(kind, mut bytes, room)| {
            bytes[0] = kind;
            let answer = driver.borrow_mut().send(&bytes, room);
            let status = answer[room as usize - 4];
            prop_assert!([OK, UNSUPP, INVAL, RANGE, NOENT].contains(&status), "{}", status);
            Ok(())
        })
        .unwrap();
}

/// A device behind the IOMMU: its rings and buffers are at the addresses that the driver mapped.
#[test]
fn disk_behind_iommu_works_through_mappings() {
    // Far above all memory.
    const AT: u64 = 1 << 40;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let sector: Vec<u8> = (0..512u32).map(|n| (n * 7) as u8).collect();
    std::fs::write(&path, sector.repeat(8)).unwrap();
    let config = BlockConfig { path, read_only: true, id: "test".to_owned() };
    let iommu = Iommu::new();
    let endpoint = iommu.endpoint(8);
    let guest_memory = memory();
    let make = |device| {
        let function = Virtio::new(device, Options::default(), guest_memory.clone()).unwrap();
        Guest::of(Arc::new(function), guest_memory.clone())
    };
    let mut driver = Driver::start(make(iommu.clone()), ALL);
    let options = Options { endpoint: Some(endpoint), ..Options::default() };
    let disk = Virtio::new(Block::open(&config).unwrap(), options, guest_memory.clone()).unwrap();
    let disk = Guest::of(Arc::new(disk), guest_memory.clone());
    assert_ne!(disk.offered() & feature::ACCESS_PLATFORM, 0);
    assert!(!disk.negotiate(feature::VERSION_1), "a driver must know of the IOMMU");

    // The ring of the disk is the third one, so as not to overlap those of the IOMMU.
    let ring = QUEUES + 2 * 0x1_0000;
    guest_memory.write_slice(&[0; 0x1_0000], GuestAddress(ring)).unwrap();
    assert_eq!(driver.attach(1, 8, 0), OK);
    assert_eq!(driver.map(1, (AT, AT + 0xffff), ring, READ | WRITE), OK);
    // Two pages, each mapped to another place, the second one write-only.
    let (first, second) = (0x30_0000, 0x31_0000);
    let page = |n: u64| (AT + 0x10_0000 + n * 0x1000, AT + 0x10_0fff + n * 0x1000);
    assert_eq!(driver.map(1, page(0), first, READ | WRITE), OK);
    assert_eq!(driver.map(1, page(1), second, WRITE), OK);

    assert!(disk.negotiate(feature::VERSION_1 | feature::ACCESS_PLATFORM));
    disk.describe(0, 8, [AT, AT + 0x4000, AT + 0x8000]);
    disk.go();
    // The tests' driver writes its rings at addresses of memory.
    let mut queue = disk.queue_at(0, 8, ring);
    let at = page(0).0;
    let request = |queue: &mut Queue, to: u64| {
        guest_memory.write_slice(&[0; 16], GuestAddress(first)).unwrap();
        guest_memory.write_slice(&[0xee; 4096], GuestAddress(second)).unwrap();
        let buffers = [to_device(at, 16), from_device(to, 512), from_device(at + 16, 1)];
        queue.add(&buffers);
        queue.kick();
        queue.wait().1
    };
    // From 256 bytes before the end of the first page on.
    assert_eq!(request(&mut queue, at + 0xf00), 513);
    let mut found = vec![0; 512];
    guest_memory.read_slice(&mut found[..256], GuestAddress(first + 0xf00)).unwrap();
    guest_memory.read_slice(&mut found[256..], GuestAddress(second)).unwrap();
    assert_eq!(found, sector);
    // The page is unmapped: this request fails, and nothing is written to the page.
    assert_eq!(driver.unmap(1, page(1)), OK);
    request(&mut queue, at + 0xf00);
    assert_eq!(guest_memory.read_obj::<u8>(GuestAddress(first + 16)).unwrap(), 1, "I/O error");
    guest_memory.read_slice(&mut found[256..], GuestAddress(second)).unwrap();
    assert_eq!(found[256..], [0xee; 256]);
    driver.offer(0);
    let (reason, flags, endpoint, address) = driver.event(0);
    assert_eq!((reason, flags & 3, endpoint, address), (2, WRITE, 8, page(1).0));
    // Its ring is unmapped, too: it requests a reset and does not access memory that is not mapped
    // for it.
    assert_eq!(driver.unmap(1, (AT, AT + 0xffff)), OK);
    queue.add(&[to_device(at, 16)]);
    queue.kick();
    disk.needs_reset();
}

#[test]
fn unmapped_ring_is_refused() {
    let iommu = Iommu::new();
    let endpoint = iommu.endpoint(8);
    let mut driver = Driver::new(&iommu, ALL);
    assert_eq!(driver.attach(1, 8, 0), OK);
    assert_eq!(driver.map(1, (0, LOW - 1), 0, READ), OK);
    let memory = driver.guest.memory.clone();
    let options = Options { endpoint: Some(endpoint), ..Options::default() };
    let rng = Virtio::new(Rng::new(), options, memory.clone()).unwrap();
    let guest = Guest::of(Arc::new(rng), memory);
    // The used ring is read-only.
    assert!(guest.negotiate(feature::VERSION_1 | feature::ACCESS_PLATFORM));
    let ring = QUEUES + 2 * 0x1_0000;
    guest.describe(0, 8, [ring, ring + 0x4000, ring + 0x8000]);
    guest.go();
    guest.needs_reset();
}

/// As a device other than a virtio device uses it.
#[test]
fn access_covers_a_whole_range_or_nothing() {
    let iommu = Iommu::new();
    let endpoint = iommu.endpoint(8);
    let mut driver = Driver::new(&iommu, ALL);
    let memory = DeviceMemory::new(driver.guest.memory.clone(), Some(endpoint));
    assert_eq!(driver.attach(1, 8, 0), OK);
    // The third page is mapped to a place without memory.
    assert_eq!(driver.map(1, (0x1000, 0x1fff), 0x30_0000, READ), OK);
    assert_eq!(driver.map(1, (0x2000, 0x2fff), 0x38_0000, READ), OK);
    assert_eq!(driver.map(1, (0x3000, 0x3fff), LOW, READ), OK);
    driver.guest.memory.write_slice(b"far", GuestAddress(0x30_0ffd)).unwrap();
    driver.guest.memory.write_slice(b"away", GuestAddress(0x38_0000)).unwrap();
    let read = |at: u64, len: usize, access: Permissions| {
        let mut bytes = Vec::new();
        let done = memory.access(at, len, access, &mut |slice| {
            let from = bytes.len();
            bytes.resize(from + slice.len(), 0);
            slice.copy_to(&mut bytes[from..]);
        });
        done.then_some(bytes.clone()).ok_or(bytes)
    };
    assert_eq!(read(0x1ffd, 7, Permissions::Read).unwrap(), b"faraway");
    for (at, len, access) in [
        (0x1ffd, 7, Permissions::Write),
        (0x1ffd, 7, Permissions::ReadWrite),
        (0x2ffd, 7, Permissions::Read),
        (0x0ffd, 7, Permissions::Read),
    ] {
        assert_eq!(read(at, len, access).unwrap_err(), b"", "{at:#x}");
    }
}
