//! Address translation: page sizes, rights, bounds, damaged tables, the cache.

use std::sync::atomic::Ordering;

use tofu_abi::desc::{ArmwOp, Descriptor};
use tofu_abi::irq::CqsIrqs;
use tofu_abi::queue::MrqId;
use tofu_abi::regs::{CqsReg, Register};
use tofu_abi::table::{MemoryBlock, PageEntry, PageSize, Steering};
use tofu_abi::{CqId, Rcode, StagOffset, TniId, desc::MAX_MESSAGE};
use tofu_driver::{Access, CqConfig, DmaBuffer, MemoryRange, Order};
use tofu_icc::Access as Use;
use tofu_inproc::Buffer;
use tofu_inspect::{Query, look};
use tofu_tests::{Cluster, Endpoint, description, pattern};

/// A queue whose tables the test writes itself, so that they can be wrong. STag 5 maps through
/// memory block 9 to `buffer`, by pages of 4 KiB.
struct Handmade {
    end: Endpoint,
    steering: Buffer,
    blocks: Buffer,
    pages: Buffer,
    buffer: Buffer,
}

const STAG: u32 = 5;
const BLOCK: usize = 9;
const ENTRIES: u64 = 16;
const PAGES: u64 = 4;

impl Handmade {
    fn new(cluster: &Cluster, rank: u32) -> Self {
        let end = cluster.endpoint(rank, 0, 0);
        let alloc = |size| cluster.alloc(rank, size, 4096);
        let (steering, blocks, pages) = (alloc(4096), alloc(4096), alloc(4096));
        let buffer = alloc(PAGES as usize * 4096);
        let this = Self { end, steering, blocks, pages, buffer };
        this.repair();
        this.set(CqsReg::SteeringTableIpa, this.steering.device_addr());
        this.set(CqsReg::SteeringTableSize, ENTRIES);
        this.set(CqsReg::MemoryBlockTableIpa, this.blocks.device_addr());
        this.set(CqsReg::MemoryBlockTableSize, ENTRIES);
        this
    }

    fn set(&self, reg: CqsReg, value: u64) {
        self.end.device().write(self.end.cqs_register(reg), value);
    }

    fn flush(&self) {
        self.end.cq.flush_cache().unwrap();
    }

    fn steering(&self, entry: Steering, len: u64) {
        let at = STAG as usize * 16;
        self.steering.store_u64(at + 8, len, Ordering::Relaxed);
        self.steering.store_u64(at, entry.0, Ordering::Release);
        self.flush();
    }

    fn block(&self, entry: MemoryBlock, pages: u64) {
        self.blocks.store_u64(BLOCK * 16 + 8, pages, Ordering::Relaxed);
        self.blocks.store_u64(BLOCK * 16, entry.0, Ordering::Release);
        self.flush();
    }

    fn page(&self, index: u64, entry: PageEntry) {
        self.pages.store_u64(index as usize * 8, entry.0, Ordering::Release);
    }

    fn good_steering() -> Steering {
        Steering(0).with_enable(true).with_mbid(BLOCK as u16)
    }

    fn good_block(&self) -> MemoryBlock {
        MemoryBlock(0).with_enable(true).with_ipa(self.pages.device_addr())
    }

    fn good_page(&self, index: u64) -> PageEntry {
        PageEntry(0).with_enable(true).with_ipa(self.buffer.device_addr() + index * 4096)
    }

    fn repair(&self) {
        for i in 0..PAGES {
            self.page(i, self.good_page(i));
        }
        self.block(self.good_block(), PAGES);
        self.steering(Self::good_steering(), PAGES * 4096);
    }

    fn at(&self, offset: u64) -> StagOffset {
        StagOffset::new(CqId::ALL[0], STAG, offset)
    }
}

/// The damage, the code of the answer and the exception that accompanies it.
type Fault = (&'static str, fn(&Handmade), Rcode, CqsIrqs);

const FAR: u64 = 0xff_0000_0000;

const MB: CqsIrqs = CqsIrqs::MB_READ_EXCEPTION;
const PAYLOAD_READ_EXCEPTION: CqsIrqs = CqsIrqs::PAYLOAD_READ_EXCEPTION;
const ST: CqsIrqs = CqsIrqs::STEERING_READ_EXCEPTION;

const FAULTS: &[Fault] = &[
    ("table off", |h| h.set(CqsReg::SteeringTableEnable, 0), Rcode::STEERING_TABLE_DISABLED, ST),
    ("table short", |h| h.set(CqsReg::SteeringTableSize, 5), Rcode::STAG_RANGE, ST),
    ("table gone", |h| h.set(CqsReg::SteeringTableIpa, FAR), Rcode::STEERING_UNREADABLE, ST),
    (
        "table at the end",
        |h| h.set(CqsReg::SteeringTableIpa, u64::MAX - 80),
        Rcode::STEERING_UNREADABLE,
        ST,
    ),
    (
        "entry off",
        |h| h.steering(Handmade::good_steering().with_enable(false), 1 << 14),
        Rcode::STAG_DISABLED,
        ST,
    ),
    ("entry short", |h| h.steering(Handmade::good_steering(), 0x1007), Rcode::OFFSET_RANGE, ST),
    (
        "blocks off",
        |h| h.set(CqsReg::MemoryBlockTableEnable, 0),
        Rcode::MEMORY_BLOCK_TABLE_DISABLED,
        MB,
    ),
    ("blocks short", |h| h.set(CqsReg::MemoryBlockTableSize, 9), Rcode::MEMORY_BLOCK_RANGE, MB),
    (
        "blocks gone",
        |h| h.set(CqsReg::MemoryBlockTableIpa, FAR),
        Rcode::MEMORY_BLOCK_UNREADABLE,
        MB,
    ),
    (
        "block off",
        |h| h.block(h.good_block().with_enable(false), PAGES),
        Rcode::MEMORY_BLOCK_DISABLED,
        MB,
    ),
    ("page size 3", |h| h.block(h.good_block().with_ps(3), PAGES), Rcode::BAD_PAGE_SIZE, MB),
    ("page size 6", |h| h.block(h.good_block().with_ps(6), PAGES), Rcode::BAD_PAGE_SIZE, MB),
    ("page size 7", |h| h.block(h.good_block().with_ps(7), PAGES), Rcode::BAD_PAGE_SIZE, MB),
    ("block short", |h| h.block(h.good_block(), 1), Rcode::PAGE_RANGE, MB),
    ("pages gone", |h| h.block(h.good_block().with_ipa(FAR), PAGES), Rcode::PAGE_UNREADABLE, MB),
    ("page off", |h| h.page(1, h.good_page(1).with_enable(false)), Rcode::PAGE_DISABLED, MB),
    (
        "page gone",
        |h| h.page(1, PageEntry(0).with_enable(true).with_ipa(FAR)),
        Rcode::PAYLOAD_ACCESS,
        PAYLOAD_READ_EXCEPTION,
    ),
];

/// The result of a walk through the tables of TNI 0 CQ 0, and the reason.
fn walk(cluster: &Cluster, rank: u32, at: StagOffset, length: u32, access: Use) -> [String; 2] {
    let icc = cluster.icc(rank);
    let walk = icc.translation(TniId::ALL[0], CqId::ALL[0], at, length, access).unwrap();
    ["result", "why"].map(|part| {
        let seen = look(&walk, &Query { path: &[part], depth: 1, limit: 1 });
        seen.map_or_else(|_| String::new(), |seen| format!("{:?}", seen.value))
    })
}

fn assert_walk(said: &[String; 2], code: Rcode, name: &str) {
    assert!(said[0].contains(&format!("{code:?}")), "{name}: {said:?}");
    assert_eq!(said[1].is_empty(), code.is_success(), "{name}: {said:?}");
}

fn restore(h: &Handmade) {
    h.repair();
    h.set(CqsReg::SteeringTableEnable, 1);
    h.set(CqsReg::SteeringTableIpa, h.steering.device_addr());
    h.set(CqsReg::SteeringTableSize, ENTRIES);
    h.set(CqsReg::MemoryBlockTableEnable, 1);
    h.set(CqsReg::MemoryBlockTableIpa, h.blocks.device_addr());
    h.set(CqsReg::MemoryBlockTableSize, ENTRIES);
}

#[test]
fn initiators_fault_is_reported_there_alone() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = Handmade::new(&cluster, 0);
    let mut b = cluster.endpoint(1, 0, 0);
    for &(name, damage, code, exception) in FAULTS {
        damage(&a);
        assert_walk(&walk(&cluster, 0, a.at(0x1000), 8, Use::Read), code, name);
        let put = Order::put(b.target(), b.at(0), a.at(0x1000), 8).remote_notice();
        let done = a.end.run(&put);
        assert_eq!(done.rcode, code, "{name}");
        assert_eq!(a.end.ids(), [MrqId::PutLastRemoteError], "{name}");
        assert_eq!(a.end.cq.exception().unwrap().irr, exception, "{name}");
        a.end.cq.clear_exceptions();
        assert_eq!(b.notices(), [], "{name}");
        assert_eq!(b.cq.exception(), None, "{name}");
        restore(&a);
        assert_walk(&walk(&cluster, 0, a.at(0x1000), 8, Use::Read), Rcode::SUCCESS, name);
        assert_eq!(a.end.run(&put).rcode, Rcode::SUCCESS, "{name} repaired");
        assert_eq!((a.end.ids(), b.ids()), (vec![MrqId::PutLast], vec![MrqId::PutLastHalfway]));
    }
}

#[test]
fn targets_fault_is_reported_to_both() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let mut b = Handmade::new(&cluster, 1);
    type Make = fn(&Endpoint, &Handmade) -> Order;
    let orders: [(Make, MrqId, MrqId); 3] = [
        (
            |a, b| Order::put(b.end.target(), b.at(0x1000), a.at(0), 8),
            MrqId::PutLastRemoteError,
            MrqId::PutLastHalfway,
        ),
        (
            |a, b| Order::get(b.end.target(), b.at(0x1000), a.at(0), 8),
            MrqId::GetLastRemoteError,
            MrqId::GetLastHalfway,
        ),
        (
            |_, b| Order::armw8(b.end.target(), ArmwOp::Add, b.at(0x1000), 1),
            MrqId::ArmwRemoteError,
            MrqId::ArmwHalfway,
        ),
    ];
    for &(name, damage, code, exception) in FAULTS {
        let code = code.remote();
        let kinds = if description().atomics { 3 } else { 2 };
        for (order, error, halfway) in orders.into_iter().take(kinds) {
            damage(&b);
            let order = order(&a, &b).remote_notice();
            assert_eq!(a.run(&order).rcode, Rcode::SUCCESS, "{name}: it was sent");
            let [notice] = a.notices()[..] else { panic!("{name}: one notice") };
            assert_eq!((notice.id(), notice.word0().rcode()), (Some(error), code), "{name}");
            assert_eq!(a.cq.exception(), None, "{name}");
            assert_eq!(b.end.notices(), [], "{name}");
            let seen = b.end.cq.exception().unwrap().irr;
            // Payload is read for a Get and written for a Put or an atomic.
            let writes = error != MrqId::GetLastRemoteError;
            let expected = match exception {
                CqsIrqs::PAYLOAD_READ_EXCEPTION if writes => CqsIrqs::PAYLOAD_WRITE_EXCEPTION,
                other => other,
            };
            assert_eq!(seen, expected, "{name}");
            b.end.cq.clear_exceptions();
            restore(&b);
            assert_eq!(a.run(&order).rcode, Rcode::SUCCESS, "{name} repaired");
            assert_eq!(b.end.ids(), [halfway]);
            a.notices();
        }
    }
}

#[test]
fn failed_message_lands_in_whole_tlps() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let mut b = Handmade::new(&cluster, 1);
    a.fill(0, &[0x77; 0x3000]);
    b.page(2, b.good_page(2).with_enable(false));
    // TLPs of 1024 bytes: seven complete ones lie below page 2; the eighth would cross into it.
    let order = Order::put(b.end.target(), b.at(512), a.at(0), 0x2800).mtu(1024);
    assert_eq!(a.end_of(&order), Rcode::PAGE_DISABLED.remote());
    let mut bytes = vec![0; 0x4000];
    b.buffer.read(0, &mut bytes);
    assert!(bytes[..512].iter().all(|x| *x == 0));
    assert!(bytes[512..512 + 7 * 1024].iter().all(|x| *x == 0x77));
    assert!(bytes[512 + 7 * 1024..].iter().all(|x| *x == 0));
    b.end.notices();

    // The same when every TLP has a notice: what landed is noticed, the rest is not.
    let order = order.packet_response().remote_notice();
    assert_eq!(a.end_of(&order), Rcode::PAGE_DISABLED.remote());
    assert_eq!(b.end.ids(), [MrqId::PutHalfway; 7]);
    b.page(0, b.good_page(0).with_enable(false));
    assert_eq!(a.end_of(&order), Rcode::PAGE_DISABLED.remote());
    assert_eq!(b.end.notices(), [], "nothing landed");
}

#[test]
fn read_only_memory_is_not_written() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let mut b = cluster.endpoint(1, 0, 0);
    b.fill(0, &[3; 64]);
    let range = [MemoryRange::of(&b.buffer)];
    let ro = b.cq.register(&range, PageSize::Size4K, Access::ReadOnly, None).unwrap();
    let code = Rcode::READ_ONLY.remote();
    assert_walk(&walk(&cluster, 1, ro.at(0), 8, Use::Write), Rcode::READ_ONLY, "a write");
    assert_walk(&walk(&cluster, 1, ro.at(0), 8, Use::Read), Rcode::SUCCESS, "a read");
    assert_eq!(a.end_of(&Order::put(b.target(), ro.at(0), a.at(0), 8)), code);
    let piggyback = Order::put_piggyback(b.target(), ro.at(0), &[9]).unwrap();
    assert_eq!(a.end_of(&piggyback), code);
    if description().atomics {
        let armw = Order::armw8(b.target(), ArmwOp::Or, ro.at(0), 0);
        assert_eq!(a.end_of(&armw), code, "an atomic that changes nothing is a write all the same");
    }
    assert_eq!(a.run(&Order::get(b.target(), ro.at(0), a.at(0), 64)).rcode, Rcode::SUCCESS);
    assert_eq!(a.bytes(0, 64), [3; 64]);
    assert_eq!(b.bytes(0, 64), [3; 64]);
    // The own Put may read from read-only memory; the own Get may not write to it.
    assert_eq!(b.run(&Order::put(a.target(), a.at(0), ro.at(0), 8)).rcode, Rcode::SUCCESS);
    assert_eq!(b.run(&Order::get(a.target(), a.at(0), ro.at(0), 8)).rcode, Rcode::READ_ONLY);
}

#[test]
fn offset_and_length_are_checked_by_byte() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let b = Handmade::new(&cluster, 1);
    let len = 5000;
    b.steering(Handmade::good_steering(), len);
    for (offset, n, fits) in [
        (0, 5000, true),
        (4999, 1, true),
        (5000, 0, true),
        (4999, 2, false),
        (5000, 1, false),
        (5001, 0, false),
        (0, 5001, false),
        ((1 << 40) - 1, 1, false),
        ((1 << 40) - 1, 2, false),
    ] {
        let order = Order::get(b.end.target(), b.at(offset), a.at(0), n);
        let expected = if fits { Rcode::SUCCESS } else { Rcode::OFFSET_RANGE.remote() };
        assert_eq!(a.end_of(&order), expected, "{offset} + {n}");
        let said = walk(&cluster, 1, b.at(offset), n, Use::Read);
        assert_walk(&said, expected.local(), &format!("{offset} + {n}"));
    }
}

#[test]
fn start_address_is_in_units_of_256() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let b = Handmade::new(&cluster, 1);
    b.steering(Handmade::good_steering().with_mbva_units(0x11), 4096);
    a.fill(0, &pattern(8, 100));
    assert_eq!(a.run(&Order::put(b.end.target(), b.at(3), a.at(0), 100)).rcode, Rcode::SUCCESS);
    let mut bytes = [0; 100];
    b.buffer.read(0x1103, &mut bytes);
    assert_eq!(bytes[..], pattern(8, 100));
}

#[test]
fn page_sizes_work_in_any_order() {
    let cluster = Cluster::with_memory("1x1x1x2x1x1", 16 << 20);
    let mut a = cluster.endpoint(0, 0, 0);
    let mut b = cluster.endpoint(1, 0, 0);
    a.fill(0, &pattern(9, 16384));
    for size in [PageSize::Size4K, PageSize::Size64K, PageSize::Size2M] {
        let n = size.bytes();
        let block = cluster.alloc(1, 3 * n as usize, n as usize);
        let base = block.device_addr();
        // The second page of the address space lies below the first one.
        let ranges =
            [MemoryRange { addr: base + 2 * n, len: n }, MemoryRange { addr: base, len: n }];
        let stag = b.cq.register(&ranges, size, Access::ReadWrite, None).unwrap();
        let order = Order::put(b.target(), stag.at(n - 1000), a.at(0), 3000);
        assert_eq!(a.run(&order).rcode, Rcode::SUCCESS, "{size:?}");
        let mut low = vec![0; 2000];
        let mut high = vec![0; 1000];
        block.read(3 * n as usize - 1000, &mut high);
        block.read(0, &mut low);
        assert_eq!([high, low].concat(), pattern(9, 3000), "{size:?}");
        b.cq.unregister(stag).unwrap();
    }
}

#[test]
fn huge_pages_reach_to_the_memorys_end() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let mut b = cluster.endpoint(1, 0, 0);
    a.fill(0, &pattern(10, 64));
    for size in [PageSize::Size512M, PageSize::Size1G] {
        let range = [MemoryRange::of(&b.buffer)];
        let stag = b.cq.register(&range, size, Access::ReadWrite, None).unwrap();
        b.buffer.fill(0);
        let order = Order::put(b.target(), stag.at(40), a.at(0), 64);
        assert_eq!(a.run(&order).rcode, Rcode::SUCCESS, "{size:?}");
        assert_eq!(b.bytes(40, 64), pattern(10, 64), "{size:?}");
        b.cq.unregister(stag).unwrap();
    }
}

#[test]
fn piece_beyond_memory_is_no_memory() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let mut b = cluster.endpoint(1, 0, 0);
    let end = cluster.memory_end(1);
    let range = [MemoryRange { addr: end - 4096, len: 8192 }];
    let stag = b.cq.register(&range, PageSize::Size64K, Access::ReadWrite, None).unwrap();
    let code = Rcode::PAYLOAD_ACCESS.remote();
    assert_eq!(a.end_of(&Order::put(b.target(), stag.at(4090), a.at(0), 7)), code);
    assert_eq!(a.run(&Order::put(b.target(), stag.at(4090), a.at(0), 6)).rcode, Rcode::SUCCESS);
    assert_eq!(a.end_of(&Order::put(b.target(), stag.at(4096), a.at(0), 1)), code);
}

#[test]
fn unregistered_stag_is_disabled_at_once() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let mut b = cluster.endpoint(1, 0, 0);
    let range = [MemoryRange::of(&b.buffer)];
    let stag = b.cq.register(&range, PageSize::Size4K, Access::ReadWrite, Some(100)).unwrap();
    let order = Order::put(b.target(), stag.at(0), a.at(0), 8);
    assert_eq!(a.run(&order).rcode, Rcode::SUCCESS);
    b.cq.unregister(stag).unwrap();
    assert_eq!(a.end_of(&order), Rcode::STAG_DISABLED.remote());
    b.cq.register(&range, PageSize::Size4K, Access::ReadWrite, Some(100)).unwrap();
    assert_eq!(a.run(&order).rcode, Rcode::SUCCESS);
}

#[test]
fn tables_are_cached_until_flushed() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let b = Handmade::new(&cluster, 1);
    let order = Order::put(b.end.target(), b.at(0), a.at(0), 8);
    assert_eq!(a.run(&order).rcode, Rcode::SUCCESS);
    b.steering.store_u64(STAG as usize * 16, 0, Ordering::Release);
    let cached = a.end_of(&order);
    assert!(cached == Rcode::SUCCESS || cached == Rcode::STAG_DISABLED.remote(), "{cached:#x}");
    b.flush();
    assert_eq!(a.end_of(&order), Rcode::STAG_DISABLED.remote());
}

#[test]
fn stags_share_blocks_and_may_be_large() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let b = cluster
        .endpoint_with(1, &CqConfig { stags: 65536, ..CqConfig::new(TniId::ALL[0], CqId::ALL[1]) });
    let mut b = b;
    let range = [MemoryRange::of(&b.buffer)];
    let stag = b.cq.register(&range, PageSize::Size64K, Access::ReadWrite, Some(65535)).unwrap();
    assert_eq!(a.run(&Order::put(b.target(), stag.at(0), a.at(0), 8)).rcode, Rcode::SUCCESS);
    // 18 bits of STag: one that the table does not have.
    let beyond = StagOffset::new(CqId::ALL[1], 65536, 0);
    let code = Rcode::STAG_RANGE.remote();
    assert_eq!(a.end_of(&Order::put(b.target(), beyond, a.at(0), 8)), code);
}

#[test]
fn page_table_may_be_its_own_page() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let b = Handmade::new(&cluster, 1);
    // The page table is its own page: the Put overwrites the entries that it is walking.
    b.page(0, PageEntry(0).with_enable(true).with_ipa(b.pages.device_addr()));
    b.block(b.good_block(), u64::MAX);
    b.steering(Handmade::good_steering(), u64::MAX);
    a.fill(0, &[0xff; 16384]);
    let order = Order::put(b.end.target(), b.at(0), a.at(0), 16384);
    assert_eq!(a.run(&order).rcode, Rcode::SUCCESS);
    // It wrote enabled entries there that point outside of the memory.
    assert_eq!(a.end_of(&order), Rcode::PAYLOAD_ACCESS.remote());
    let mut long = Order::get(b.end.target(), b.at(0), a.at(0), MAX_MESSAGE).descriptors()[0];
    long = Descriptor([long.0[0], long.0[1], b.at(1 << 39).0, long.0[3]]);
    assert_ne!(a.end_of(&Order::raw(&[long])), Rcode::SUCCESS);
    let status = Register::Cqs { tni: TniId::ALL[0], cq: CqId::ALL[0], reg: CqsReg::Status };
    assert_ne!(cluster.device(1).read(status), 0, "the queue is alive");
}
