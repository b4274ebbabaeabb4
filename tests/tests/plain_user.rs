//! A user program that uses queues and registers correctly, but unlike our driver: it writes an
//! entry with the old flip bit and then flips the bit, rings the doorbell repeatedly while it
//! waits, and never reports its read position.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use tofu_abi::desc::{Command, Descriptor, Header1, Header2};
use tofu_abi::irq::CqsIrqs;
use tofu_abi::queue::{MrqEntry, MrqId, MrqWord0, TcqEntry};
use tofu_abi::regs::{CqReg, CqsReg, Register, TniReg};
use tofu_abi::table::{MemoryBlock, PageEntry, Steering};
use tofu_abi::{Coords, CqId, Rcode, StagOffset, TniId};
use tofu_driver::{DmaBuffer, Platform};
use tofu_fabric::Shape;
use tofu_inproc::{Buffer, InProcess};
use tofu_machine::{Machine, MachineConfig};

const ENTRIES: u64 = 2048;
const LONG: u64 = 20_000_000_000;
const TNI: TniId = TniId::ALL[2];
const CQ: CqId = CqId::ALL[1];

/// One process: its queue, and 64 KiB of memory as STag 0.
struct Process {
    platform: InProcess,
    coords: Coords,
    toq: Buffer,
    tcq: Buffer,
    mrq: Buffer,
    memory: Buffer,
    _tables: Buffer,
    posted: u64,
    received: u64,
}

impl Process {
    fn new(machine: &Arc<Machine>, coords: Coords) -> Self {
        let platform = InProcess::attach(machine, coords, 4 << 20).unwrap();
        let alloc = |size| {
            let buffer = platform.alloc_dma(size, 0x1_0000).unwrap();
            buffer.fill(0);
            buffer
        };
        let (toq, tcq) = (alloc(ENTRIES as usize * 32), alloc(ENTRIES as usize * 8));
        let (mrq, memory, tables) =
            (alloc(ENTRIES as usize * 32), alloc(0x1_0000), alloc(0x1_0000));
        let page = PageEntry(0).with_ipa(memory.device_addr());
        tables.store_u64(0x200, page.with_enable(true).0, Ordering::Release);
        // Page size code 4: 64 KiB.
        let block = MemoryBlock(0).with_ps(4).with_ipa(tables.device_addr() + 0x200);
        tables.store_u64(0x108, 1, Ordering::Release);
        tables.store_u64(0x100, block.with_enable(true).0, Ordering::Release);
        tables.store_u64(0x8, 0x1_0000, Ordering::Release);
        tables.store_u64(0x0, Steering(0).with_enable(true).0, Ordering::Release);
        let this = Self {
            platform,
            coords,
            toq,
            tcq,
            mrq,
            memory,
            _tables: tables,
            posted: 0,
            received: 0,
        };
        let tables = this._tables.device_addr();
        this.write(Register::Tni { tni: TNI, reg: TniReg::Enable }, 1);
        for (reg, value) in [
            (CqsReg::ToqIpa, this.toq.device_addr()),
            (CqsReg::TcqIpa, this.tcq.device_addr() | 1 << 63),
            (CqsReg::MrqIpa, this.mrq.device_addr() | 1 << 63),
            (CqsReg::SteeringTableIpa, tables),
            (CqsReg::SteeringTableSize, 1),
            (CqsReg::SteeringTableEnable, 1),
            (CqsReg::MemoryBlockTableIpa, tables + 0x100),
            (CqsReg::MemoryBlockTableSize, 1),
            (CqsReg::MemoryBlockTableEnable, 1),
            (CqsReg::Enable, 1),
        ] {
            this.write(Self::cqs(reg), value);
        }
        this
    }

    fn cqs(reg: CqsReg) -> Register {
        Register::Cqs { tni: TNI, cq: CQ, reg }
    }

    fn write(&self, register: Register, value: u64) {
        self.platform.bar0_write64(register.offset(), value);
    }

    fn read(&self, register: Register) -> u64 {
        self.platform.bar0_read64(register.offset())
    }

    /// Rings until `done` says so.
    fn ring_until<T>(&self, mut done: impl FnMut() -> Option<T>) -> T {
        let start = self.platform.now_ns();
        loop {
            if let Some(value) = done() {
                return value;
            }
            assert!(self.platform.now_ns() - start < LONG, "nothing came");
            self.write(Register::Cq { tni: TNI, cq: CQ, reg: CqReg::FetchStart }, 1);
            self.platform.relax();
        }
    }

    /// Puts a command in the queue and returns its slot and flip bit.
    fn post(&mut self, words: [u64; 4]) -> (usize, bool) {
        let slot = (self.posted % ENTRIES) as usize;
        let flip = (self.posted / ENTRIES) & 1 == 0;
        self.posted += 1;
        let entry = Descriptor(words).with_flip(!flip);
        self.toq.write(slot * 32, &entry.to_bytes());
        fence(Ordering::SeqCst);
        let word0 = Header1(words[0]).with_flip(flip).0;
        self.toq.store_u64(slot * 32, word0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        (slot, flip)
    }

    fn completion(&self, slot: usize, flip: bool) -> Option<TcqEntry> {
        let entry = TcqEntry(self.tcq.load_u64(slot * 8, Ordering::Acquire));
        (entry.flip() == flip).then_some(entry)
    }

    fn notice(&mut self) -> Option<MrqEntry> {
        let at = (self.received % ENTRIES) as usize * 32;
        let flip = (self.received / ENTRIES) & 1 == 0;
        let word0 = self.mrq.load_u64(at, Ordering::Acquire);
        if MrqWord0(word0).flip() != flip {
            return None;
        }
        self.received += 1;
        let rest = [8, 16, 24].map(|word| self.mrq.load_u64(at + word, Ordering::Relaxed));
        Some(MrqEntry([word0, rest[0], rest[1], rest[2]]))
    }

    fn wait_notice(&mut self) -> MrqEntry {
        let start = self.platform.now_ns();
        loop {
            if let Some(notice) = self.notice() {
                return notice;
            }
            assert!(self.platform.now_ns() - start < LONG, "no notice");
            self.platform.relax();
        }
    }
}

/// A Put of 8 bytes at 8 to 0 of the other side, over the path of the target's own A, B, C.
fn put(to: Coords, n: u64) -> [u64; 4] {
    let header1 = Header1(0)
        .with_command(Command::Put as u8)
        .with_mtu(240)
        .with_target(to)
        .with_path(to.default_path())
        .with_ri(TNI.get());
    let header2 = Header2(0).with_remote_notice(true).with_edata(n as u16).with_length(8);
    let (remote, local) = (StagOffset::new(CQ, 0, 0), StagOffset::new(CQ, 0, 8));
    [header1.0, header2.0, remote.0, local.0]
}

fn two(engines: usize) -> (Process, Process) {
    let shape: Shape = "1x1x1x2x3x2".parse().unwrap();
    let config = MachineConfig { engines, ..tofu_tests::machine(shape) };
    let machine = Arc::new(Machine::new(config).unwrap());
    let [first, last] = [shape.iter().next().unwrap(), shape.iter().last().unwrap()];
    let pair = (Process::new(&machine, first), Process::new(&machine, last));
    machine.start().unwrap();
    // The machine lives as long as its processes.
    pair
}

#[test]
fn puts_work_until_the_mrq_overflows() {
    let (mut a, mut b) = two(2);
    let overflow = |p: &Process| {
        CqsIrqs::from_raw(p.read(Process::cqs(CqsReg::Irr))).intersects(CqsIrqs::MRQ_OVERFLOW)
    };
    for n in 0..ENTRIES {
        a.memory.store_u64(8, n + 1, Ordering::Relaxed);
        let (slot, flip) = a.post(put(b.coords, n));
        let done = a.ring_until(|| a.completion(slot, flip));
        assert_eq!((done.rcode(), done.length()), (Rcode::SUCCESS, 8));
        let notice = a.wait_notice();
        assert_eq!((notice.id(), notice.word1().edata()), (Some(MrqId::PutLast), n as u16));
        let notice = b.wait_notice();
        assert_eq!((notice.id(), notice.word1().edata()), (Some(MrqId::PutLastHalfway), n as u16));
        assert_eq!(notice.word0().coords(), a.coords);
        assert_eq!(b.memory.load_u64(0, Ordering::Acquire), n + 1);
        assert!(!overflow(&a) && !overflow(&b), "after {n} entries");
    }
    // One more than there is room for, because no entries were reported as read.
    let (slot, flip) = a.post(put(b.coords, 0));
    let done = a.ring_until(|| a.completion(slot, flip));
    assert_eq!(done.rcode(), Rcode::SUCCESS);
    a.ring_until(|| (overflow(&a) && overflow(&b)).then_some(()));
    assert_eq!((a.notice(), b.notice()), (None, None));
    let status = tofu_abi::regs::CqsStatus(a.read(Process::cqs(CqsReg::Status)));
    assert_eq!(status.next_descriptor_offset_units(), 1);
    assert!(status.blank_entry_flip_bit() && status.cq_enable());
}

#[test]
fn own_completion_precedes_the_answer() {
    for engines in [1, 2, 3] {
        let (mut a, mut b) = two(engines);
        // Half of the ring each: an exchange has two notices on either side.
        let rounds = ENTRIES / 2;
        let (here, there) = (a.coords, b.coords);
        std::thread::scope(|s| {
            s.spawn(move || {
                for n in 0..rounds {
                    b.wait_notice();
                    let (slot, flip) = b.post(put(here, n));
                    b.ring_until(|| b.completion(slot, flip));
                    // Its own.
                    b.wait_notice();
                }
            });
            for n in 0..rounds {
                let (slot, flip) = a.post(put(there, n));
                a.write(Register::Cq { tni: TNI, cq: CQ, reg: CqReg::FetchStart }, 1);
                let mut ids = Vec::new();
                while ids.len() < 2 {
                    if let Some(notice) = a.notice() {
                        assert!(a.completion(slot, flip).is_some(), "round {n}");
                        ids.extend(notice.id());
                    }
                    a.platform.relax();
                }
                assert_eq!(ids, [MrqId::PutLast, MrqId::PutLastHalfway], "round {n}");
            }
        });
    }
}
