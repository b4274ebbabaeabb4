//! Each rule that a device checks by itself is counted under its id when a driver keeps or breaks
//! it. The wrong drivers here are a few register writes or one descriptor each.

mod common;

use std::cell::Cell;
use std::sync::Arc;

use common::{PEER, Quiet, SELF, Sent};
use tofu_abi::desc::{Command, Descriptor, Header1, Header2};
use tofu_abi::regs::{BchReg, BgsReg, CqReg, CqsMode, CqsReg, Register, TniReg};
use tofu_abi::{BchId, BgId, CqId, StagOffset, TniId};
use tofu_icc::{Config, Icc, Tally};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const TNI: TniId = TniId::ALL[0];
const CQ: CqId = CqId::ALL[0];
const TOQ: u64 = 0x1_0000;
const TCQ: u64 = 0x2_0000;
const MRQ: u64 = 0x3_0000;
const STEERING: u64 = 0x4_0000;
const BLOCKS: u64 = 0x5_0000;
const PAGES: u64 = 0x6_0000;

struct Driver {
    icc: Icc,
    memory: GuestMemoryMmap,
    /// Commands posted.
    posted: Cell<u64>,
}

fn cqs(reg: CqsReg) -> Register {
    Register::Cqs { tni: TNI, cq: CQ, reg }
}

fn tni(reg: TniReg) -> Register {
    Register::Tni { tni: TNI, reg }
}

impl Driver {
    fn probe() -> Self {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x10_0000)]).unwrap();
        let quiet = Arc::new(Quiet::default());
        let icc = Icc::new(Config::tofud(SELF), quiet, Arc::new(memory.clone()));
        icc.set_bus_master(true);
        Self { icc, memory, posted: Cell::new(0) }
    }

    fn write(&self, register: Register, value: u64) {
        self.icc.bar_write(register.offset(), &value.to_le_bytes());
    }

    fn store(&self, at: u64, words: &[u64]) {
        for (at, word) in (at..).step_by(8).zip(words) {
            self.memory.write_obj(*word, GuestAddress(at)).unwrap();
        }
    }

    /// Does what the guide says, up to a queue that is enabled and has STag 1, of 64 KiB.
    fn open() -> Self {
        let driver = Self::probe();
        driver.enable();
        for page in 0..16 {
            driver.store(PAGES + 8 * page, &[(0x8_0000 + 0x1000 * page) | 1 << 7]);
        }
        driver.store(BLOCKS + 16, &[PAGES | 1 << 7, 16]);
        driver.store(STEERING + 16, &[1 << 48 | 1 << 7, 0x1_0000]);
        driver
    }

    /// Enables the interface and the queue.
    fn enable(&self) {
        self.write(tni(TniReg::Enable), 1);
        for (reg, value) in [
            (CqsReg::ToqIpa, TOQ),
            (CqsReg::TcqIpa, TCQ),
            (CqsReg::MrqIpa, MRQ),
            (CqsReg::MemoryBlockTableIpa, BLOCKS),
            (CqsReg::MemoryBlockTableSize, 4),
            (CqsReg::MemoryBlockTableEnable, 1),
            (CqsReg::SteeringTableIpa, STEERING),
            (CqsReg::SteeringTableSize, 4),
            (CqsReg::SteeringTableEnable, 1),
            (CqsReg::Enable, 1),
        ] {
            self.write(cqs(reg), value);
        }
    }

    /// Posts a command in the next slot and rings the doorbell.
    fn post(&self, descriptor: Descriptor) {
        let bytes = descriptor.with_flip(true).to_bytes();
        let slot = self.posted.replace(self.posted.get() + 1);
        self.memory.write_slice(&bytes, GuestAddress(TOQ + 32 * slot)).unwrap();
        self.write(Register::Cq { tni: TNI, cq: CQ, reg: CqReg::FetchStart }, 1);
        while self.icc.run_queue(TNI, CQ.into(), &mut Sent::default()) {}
    }

    fn tally(&self, id: &str) -> Tally {
        let report = self.icc.rules();
        *report.0.iter().find(|tally| tally.rule.id() == id).expect(id)
    }

    /// The ids of broken rules.
    fn broken(&self) -> Vec<&'static str> {
        let report = self.icc.rules();
        let broken = report.0.iter().filter(|tally| tally.broken > 0);
        broken.map(|tally| tally.rule.id()).collect()
    }
}

fn put(header1: Header1, header2: Header2, stag: u32, length: u32) -> Descriptor {
    let header1 = header1.with_target(PEER).with_path(PEER.default_path());
    let (to, from) = (StagOffset::new(CQ, 7, 0), StagOffset::new(CQ, stag, 0));
    Descriptor::transfer(Command::Put, header1, header2, to, from, length)
}

/// A Put of the STag that is registered.
fn good_put() -> Descriptor {
    put(Header1(0), Header2(0), 1, 64)
}

/// A driver after it has done something wrong.
type Wrong = fn() -> Driver;

/// The wrong drivers, each with the rule that it breaks.
const WRONG: &[(&str, Wrong)] = &[
    ("T-REG-001", || {
        let driver = Driver::open();
        driver.icc.bar_write(tni(TniReg::Enable).offset(), &[1, 0]);
        driver
    }),
    ("T-REG-002", || {
        let driver = Driver::open();
        driver.icc.bar_read(0x7ff_fff8, &mut [0; 8]);
        driver
    }),
    ("T-REG-003", || {
        let driver = Driver::open();
        driver.write(cqs(CqsReg::Irr), 1);
        driver
    }),
    ("T-CQ-001", || {
        let driver = Driver::probe();
        driver.icc.set_bus_master(false);
        driver.write(cqs(CqsReg::Enable), 1);
        driver
    }),
    ("T-CQ-002", || {
        let driver = Driver::probe();
        driver.write(cqs(CqsReg::MrqSize), 6);
        driver.write(cqs(CqsReg::Enable), 1);
        driver
    }),
    ("T-CQ-003", || {
        let driver = Driver::probe();
        driver.write(cqs(CqsReg::TcqIpa), 0x2_0004);
        driver.write(cqs(CqsReg::Enable), 1);
        driver
    }),
    ("T-CQ-005", || {
        let driver = Driver::open();
        driver.write(cqs(CqsReg::ToqSize), 1);
        driver
    }),
    ("T-CQ-006", || {
        let driver = Driver::open();
        driver.write(cqs(CqsReg::Enable), 0);
        driver.post(good_put());
        driver
    }),
    ("T-CQ-007", || {
        let driver = Driver::open();
        driver.write(Register::Cq { tni: TNI, cq: CQ, reg: CqReg::FetchStart }, 2);
        driver
    }),
    ("T-CQ-008", || {
        let driver = Driver::open();
        driver.write(cqs(CqsReg::Enable), 0);
        driver.icc.set_bus_master(false);
        driver
    }),
    ("T-CQ-008", || {
        let driver = Driver::open();
        driver.write(cqs(CqsReg::Enable), 0);
        driver.write(cqs(CqsReg::Enable), 1);
        driver
    }),
    ("T-TOQ-001", || {
        let driver = Driver::probe();
        driver.write(tni(TniReg::Enable), 1);
        driver.write(cqs(CqsReg::ToqIpa), 0x4000_0000);
        driver.write(cqs(CqsReg::Enable), 1);
        driver.post(good_put());
        driver
    }),
    ("T-TOQ-002", || {
        let driver = Driver::open();
        driver.post(put(Header1(0).with_source_type(2), Header2(0), 1, 64));
        driver
    }),
    ("T-TOQ-003", || {
        let driver = Driver::open();
        for offset in (0..0x40).step_by(8).map(|at| at % 0x20) {
            let page = Register::Cq { tni: TNI, cq: CQ, reg: CqReg::FetchStart }.offset() & !0xfff;
            driver.icc.bar_write(page + offset, &[0; 8]);
        }
        driver
    }),
    // The rings are those of an earlier life, or were never cleared.
    ("T-TCQ-002", || {
        let driver = Driver::probe();
        driver.store(TCQ + 8 * 2047, &[1 << 7]);
        driver.enable();
        driver
    }),
    ("T-MRQ-004", || {
        let driver = Driver::probe();
        driver.store(MRQ + 32 * 1000, &[1 << 7]);
        driver.enable();
        driver
    }),
    // A notice is taken twice, before which none came.
    ("T-MRQ-003", || {
        let driver = Driver::open();
        driver.write(Register::Cq { tni: TNI, cq: CQ, reg: CqReg::MrqFullPointer }, 1);
        driver
    }),
    ("T-CMD-001", || {
        let driver = Driver::open();
        driver.post(Descriptor([0x7f00, 0, 0, 0]));
        driver
    }),
    ("T-CMD-003", || {
        let driver = Driver::open();
        driver.post(put(Header1(0).with_mtu(241), Header2(0), 1, 64));
        driver
    }),
    ("T-CMD-006", || {
        let driver = Driver::open();
        driver.post(put(Header1(0).with_ri(7), Header2(0), 1, 64));
        driver
    }),
    ("T-CMD-008", || {
        let driver = Driver::open();
        driver.post(Descriptor([0x1200, 64 << 32, 0, 0x8_0000]));
        driver
    }),
    ("T-CMD-007", || {
        let driver = Driver::open();
        driver.write(cqs(CqsReg::Mode), CqsMode(0).with_nx(12).with_sx(9).with_lx(1).0);
        driver.post(good_put());
        driver
    }),
    ("T-AT-001", || {
        let driver = Driver::open();
        driver.write(cqs(CqsReg::SteeringTableEnable), 0);
        driver.post(good_put());
        driver
    }),
    ("T-AT-002", || {
        let driver = Driver::open();
        driver.post(put(Header1(0), Header2(0), 4, 64));
        driver
    }),
    ("T-AT-004", || {
        let driver = Driver::open();
        driver.post(put(Header1(0), Header2(0), 2, 64));
        driver
    }),
    ("T-AT-005", || {
        let driver = Driver::open();
        driver.post(put(Header1(0), Header2(0), 1, 0x1_0001));
        driver
    }),
    ("T-AT-010", || {
        let driver = Driver::open();
        driver.store(BLOCKS + 16, &[PAGES, 16]);
        driver.post(good_put());
        driver
    }),
    ("T-AT-011", || {
        let driver = Driver::open();
        driver.store(BLOCKS + 16, &[PAGES | 1 << 7 | 3, 16]);
        driver.post(good_put());
        driver
    }),
    ("T-AT-012", || {
        let driver = Driver::open();
        driver.store(BLOCKS + 16, &[PAGES | 1 << 7, 0]);
        driver.post(good_put());
        driver
    }),
    ("T-AT-014", || {
        let driver = Driver::open();
        driver.store(PAGES, &[0x8_0000]);
        driver.post(good_put());
        driver
    }),
    ("T-AT-015", || {
        let driver = Driver::open();
        driver.store(PAGES, &[0x8000_0000 | 1 << 7]);
        driver.post(good_put());
        driver
    }),
    ("T-CQ-009", || {
        let driver = Driver::open();
        driver.icc.set_bus_master(false);
        driver
    }),
    // An STag is unregistered and its memory freed, without a flush.
    ("T-AT-017", || {
        let driver = Driver::open();
        driver.post(good_put());
        driver.store(STEERING + 16, &[0, 0]);
        driver
    }),
    ("T-PKT-005", || {
        let driver = Driver::open();
        driver.write(tni(TniReg::PrqPa), 0x7_0004);
        driver
    }),
    ("T-PKT-006", || {
        let driver = Driver::open();
        driver.write(tni(TniReg::PrqPa), 0x7_0000);
        driver.write(tni(TniReg::PrqFullPointer), 1);
        driver
    }),
    ("T-PKT-007", || {
        let driver = Driver::open();
        driver.store(0x7_0008, &[1 << 7]);
        driver.write(tni(TniReg::PrqPa), 0x7_0000);
        driver
    }),
    ("T-BG-001", || {
        let driver = Driver::open();
        let gate = |reg| Register::Bgs { tni: TNI, bg: BgId::ALL[0], reg };
        driver.write(gate(BgsReg::LocalLink), u64::MAX);
        driver.write(gate(BgsReg::Enable), 1);
        driver
    }),
    ("T-BG-003", || {
        let driver = Driver::open();
        let bch = BchId::ALL[0];
        driver.write(Register::Bch { tni: TNI, bch, reg: BchReg::Ready }, 1 << 62);
        driver.icc.run_queue(TNI, bch.into(), &mut Sent::default());
        driver
    }),
];

#[test]
fn wrong_drivers_are_named_by_their_rules() {
    for (id, wrong) in WRONG {
        assert_eq!(wrong().broken(), [*id], "{id}");
    }
}

/// Drivers that do things in the wrong order, each with the rule that reports it.
const MISTAKES: &[(&str, &str, Wrong)] = &[
    ("no barrier before the flip bit: the device sees half of the descriptor", "T-AT-004", || {
        let driver = Driver::open();
        let Descriptor([first, second, ..]) = good_put();
        driver.post(Descriptor([first, second, 0, 0]));
        driver
    }),
    ("an STag is freed before its command ends", "T-AT-004", || {
        let driver = Driver::open();
        driver.store(STEERING + 16, &[0, 0]);
        driver.write(cqs(CqsReg::CacheFlush), 1);
        driver.post(good_put());
        driver
    }),
    ("memory is unmapped before its command ends", "T-AT-014", || {
        let driver = Driver::open();
        driver.post(good_put());
        driver.store(PAGES, &[0]);
        driver.post(good_put());
        driver
    }),
    ("an error path frees an STag without a flush", "T-AT-017", || {
        let driver = Driver::open();
        driver.post(good_put());
        driver.post(put(Header1(0), Header2(0), 4, 64));
        driver.store(STEERING + 16, &[0, 0]);
        driver
    }),
    ("entries of a table have the wrong stride", "T-AT-004", || {
        let driver = Driver::open();
        driver.store(STEERING + 16, &[0, 0]);
        driver.store(STEERING + 8, &[1 << 48 | 1 << 7, 0x1_0000]);
        driver.post(good_put());
        driver
    }),
    ("the last byte is one beyond the region", "T-AT-005", || {
        let driver = Driver::open();
        let mut descriptor = good_put();
        descriptor.0[3] = StagOffset::new(CQ, 1, 0x1_0000 - 63).0;
        driver.post(descriptor);
        driver
    }),
    ("the doorbell has the index of the entry", "T-CQ-007", || {
        let driver = Driver::open();
        driver.write(Register::Cq { tni: TNI, cq: CQ, reg: CqReg::FetchStart }, 5);
        driver
    }),
    ("a ring is replaced by a larger one without a stop", "T-CQ-005", || {
        let driver = Driver::open();
        driver.post(good_put());
        driver.write(cqs(CqsReg::MrqIpa), 0x7_0000);
        driver
    }),
    ("a queue is used after a reset", "T-CQ-006", || {
        let driver = Driver::open();
        driver.icc.reset();
        driver.icc.set_bus_master(true);
        driver.post(good_put());
        driver
    }),
    ("a queue is made anew after a reset without its tables", "T-AT-001", || {
        let driver = Driver::open();
        driver.icc.reset();
        driver.icc.set_bus_master(true);
        driver.write(tni(TniReg::Enable), 1);
        for (reg, value) in [(CqsReg::ToqIpa, TOQ), (CqsReg::TcqIpa, TCQ), (CqsReg::MrqIpa, MRQ)] {
            driver.write(cqs(reg), value);
        }
        driver.write(cqs(CqsReg::Enable), 1);
        driver.post(good_put());
        driver
    }),
    (
        "a queue is opened again on rings that still have the entries of its last life",
        "T-TCQ-002",
        || {
            let driver = Driver::open();
            driver.post(put(Header1(0), Header2(0), 2, 64));
            driver.write(cqs(CqsReg::Enable), 0);
            driver.icc.bar_read(cqs(CqsReg::Status).offset(), &mut [0; 8]);
            driver.write(cqs(CqsReg::Enable), 1);
            driver
        },
    ),
    ("a ring has fewer entries than its size says", "T-TOQ-001", || {
        let driver = Driver::probe();
        driver.write(cqs(CqsReg::ToqSize), 3);
        driver.enable();
        driver
    }),
    ("memory of packet queues is freed while they are in use", "T-PKT-004", || {
        let driver = Driver::open();
        driver.write(tni(TniReg::PrqPa), 0x10_0000);
        driver
    }),
    ("the page table of an STag is freed before the queue is closed", "T-AT-017", || {
        let driver = Driver::open();
        driver.store(BLOCKS + 16, &[0x10_0000 | 1 << 7, 16]);
        driver.post(good_put());
        driver.store(STEERING + 16, &[0, 0]);
        driver.write(cqs(CqsReg::SteeringTableEnable), 0);
        driver
    }),
    ("a queue is made anew after a suspend without Bus Master Enable", "T-CQ-001", || {
        let driver = Driver::open();
        driver.write(cqs(CqsReg::Enable), 0);
        driver.icc.set_bus_master(false);
        driver.write(cqs(CqsReg::Enable), 1);
        driver
    }),
];

#[test]
fn mistakes_are_named_by_their_rules() {
    for (mistake, id, wrong) in MISTAKES {
        let broken = wrong().broken();
        assert!(broken.contains(id), "{mistake}: {id}, not {broken:?}");
    }
}

#[test]
fn good_driver_breaks_nothing() {
    let driver = Driver::open();
    driver.post(good_put());
    // A flush before the memory is used for something else.
    driver.store(STEERING + 16, &[0, 0]);
    driver.write(cqs(CqsReg::CacheFlush), 1);
    driver.write(cqs(CqsReg::Enable), 0);
    driver.icc.bar_read(cqs(CqsReg::Status).offset(), &mut [0; 8]);
    driver.write(cqs(CqsReg::ToqSize), 1);
    driver.icc.set_bus_master(false);
    assert_eq!(driver.broken(), [""; 0]);
    for id in ["T-REG-003", "T-CQ-001", "T-CQ-008", "T-TCQ-002", "T-CQ-005", "T-CQ-007", "T-AT-004"]
    {
        assert!(driver.tally(id).kept > 0, "{id}");
    }
    assert!(driver.tally("T-BG-001").never_met());
}

#[test]
fn counts_outlive_a_reset() {
    let driver = Driver::open();
    driver.post(put(Header1(0), Header2(0), 2, 64));
    let before = driver.tally("T-AT-004");
    driver.icc.reset();
    assert_eq!((before.broken, driver.tally("T-AT-004")), (1, before));
}
