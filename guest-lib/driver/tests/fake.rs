//! The driver with a fake device, made of a register map and memory. The tests check exactly what
//! the driver writes, and in which order. Tests of the device cover its reaction.

mod words;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use tofu_abi::desc::{Descriptor, Header1, source_type};
use tofu_abi::irq::{CqsIrqs, vector};
use tofu_abi::queue::{MrqEntry, MrqId, MrqWord0, TcqEntry};
use tofu_abi::regs::{
    CACHE_INJECTION, CqReg, CqsReg, CqsStatus, NodeAddress, Register, TniReg, TniState, TofuReg,
};
use tofu_abi::table::PageSize;
use tofu_abi::{Coords, CqId, Rcode, StagOffset, TniId};
use tofu_driver::{
    Access, Cq, CqConfig, Device, DeviceError, DmaError, Full, IrqError, MemoryRange, OpenError,
    Order, Platform, StagError, Target, WaitError,
};

use words::Memory;

const NODE: Coords = Coords::new(3, 2, 1, 1, 2, 0);
const TNI: TniId = TniId::ALL[2];
const CQ: CqId = CqId::ALL[5];

#[derive(Debug, Default)]
struct State {
    registers: HashMap<u64, u64>,
    writes: Vec<(Register, u64)>,
    reads: usize,
    memory: Vec<Memory>,
    next_addr: u64,
    now: u64,
    fired: bool,
    /// Called during the next sleep.
    on_sleep: Option<fn(&mut State)>,
    /// True if CQ_ENABLE and CACHE_FLUSH_BUSY stay set in STATUS, regardless of what is written.
    stuck: bool,
    /// True if the device lacks the register by which interrupts are requested.
    old: bool,
}

#[derive(Clone, Debug)]
struct Fake(Arc<Mutex<State>>);

impl Fake {
    fn new() -> Self {
        let mut state = State { next_addr: 0x10_0000, ..State::default() };
        let address = NodeAddress::from_coords(NODE).0;
        state.registers.insert(Register::Tofu(TofuReg::NodeAddress).offset(), address);
        let present = Register::Tni { tni: TNI, reg: TniReg::CqPresent };
        state.registers.insert(present.offset(), 0xfff);
        Self(Arc::new(Mutex::new(state)))
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }

    /// The register writes since the last call.
    fn take_writes(&self) -> Vec<(Register, u64)> {
        self.with(|s| std::mem::take(&mut s.writes))
    }

    fn memory_at(&self, register: CqsReg) -> Memory {
        self.with(|s| {
            let addr = s.registers[&cqs_reg(register).offset()] & !CACHE_INJECTION;
            s.memory.iter().find(|m| m.addr == addr).unwrap().clone()
        })
    }
}

impl Platform for Fake {
    type Dma = Memory;

    fn bar0_read64(&self, offset: u64) -> u64 {
        self.with(|s| {
            s.reads += 1;
            s.registers.get(&offset).copied().unwrap_or(0)
        })
    }

    fn bar0_write64(&self, offset: u64, value: u64) {
        let register = Register::decode(offset).expect("the driver writes registers only");
        self.with(|s| {
            s.writes.push((register, value));
            s.registers.insert(offset, value);
            match register {
                Register::Cqs { reg: CqsReg::InterruptArmIpa, .. } if s.old => {
                    s.registers.remove(&offset);
                }
                Register::Cqs { reg: CqsReg::Enable, .. } if !s.stuck => {
                    let status = CqsStatus(0).with_cq_enable(value & 1 != 0).0;
                    s.registers.insert(cqs_reg(CqsReg::Status).offset(), status);
                }
                Register::Cqs { reg: CqsReg::CacheFlush, .. } if s.stuck => {
                    let status = CqsStatus(0).with_cq_enable(true).with_cache_flush_busy(true).0;
                    s.registers.insert(cqs_reg(CqsReg::Status).offset(), status);
                }
                Register::Tni { tni, reg: TniReg::Enable } => {
                    let state = if value & 1 != 0 { TniState::Normal } else { TniState::Disable };
                    let reg = Register::Tni { tni, reg: TniReg::State };
                    s.registers.insert(reg.offset(), state as u64);
                }
                _ => {}
            }
        });
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<Memory, DmaError> {
        self.with(|s| {
            if size > 32 << 20 {
                return Err(DmaError { size, align });
            }
            let addr = s.next_addr.next_multiple_of(align as u64);
            s.next_addr = addr + size as u64;
            let memory = Memory::new(addr, size);
            s.memory.push(memory.clone());
            Ok(memory)
        })
    }

    fn irq_enable(&self, _: u16) -> Result<(), IrqError> {
        Ok(())
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        assert_eq!(vector, vector::cq(TNI, CQ));
        self.with(|s| {
            if timeout_ns > 0 {
                match s.on_sleep.take() {
                    Some(event) if !s.fired => event(s),
                    _ if !s.fired => s.now += timeout_ns,
                    event => s.on_sleep = event,
                }
            }
            std::mem::take(&mut s.fired)
        })
    }

    fn now_ns(&self) -> u64 {
        self.with(|s| s.now)
    }

    fn relax(&self) {
        self.with(|s| s.now += 1_000_000);
    }
}

fn cqs_reg(reg: CqsReg) -> Register {
    Register::Cqs { tni: TNI, cq: CQ, reg }
}

fn cq_reg(reg: CqReg) -> Register {
    Register::Cq { tni: TNI, cq: CQ, reg }
}

fn open() -> (Fake, Cq<Fake>) {
    let fake = Fake::new();
    let device = Device::probe(fake.clone()).unwrap();
    let cq = Cq::open(&device, &CqConfig::new(TNI, CQ)).unwrap();
    (fake, cq)
}

fn complete(fake: &Fake, count: u64, rcode: Rcode) {
    let entry = TcqEntry(0).with_flip((count / 2048) & 1 == 0).with_rcode(rcode).with_length(7);
    fake.memory_at(CqsReg::TcqIpa).set((count % 2048) as usize, entry.0);
}

fn notify(fake: &Fake, count: u64) {
    let mrq = fake.memory_at(CqsReg::MrqIpa);
    let at = (count % 2048) as usize * 4;
    let word0 = MrqWord0(0).with_flip((count / 2048) & 1 == 0).with_id(MrqId::PutLast as u8);
    mrq.set(at + 2, count);
    mrq.set(at, word0.0);
}

#[test]
fn probe_refuses_other_devices() {
    let fake = Fake::new();
    assert_eq!(Device::probe(fake.clone()).unwrap().coords(), NODE);
    let address = Register::Tofu(TofuReg::NodeAddress).offset();
    fake.with(|s| s.registers.insert(address, u64::MAX));
    let error = Device::probe(fake).unwrap_err();
    assert_eq!(error, DeviceError::NotPresent { node_address: u64::MAX });
}

#[test]
fn tni_enables_and_disables() {
    let device = Device::probe(Fake::new()).unwrap();
    device.tni(TNI).enable().unwrap();
    let state = Register::Tni { tni: TNI, reg: TniReg::State };
    assert_eq!(device.read(state), TniState::Normal as u64);
    device.tni(TNI).disable().unwrap();
    assert_eq!(device.read(state), TniState::Disable as u64);
}

#[test]
fn open_sets_up_before_it_enables() {
    let (fake, cq) = open();
    let writes = fake.take_writes();
    assert_eq!(writes.last(), Some(&(cqs_reg(CqsReg::Enable), 1)));
    assert!(writes.len() <= 25, "each write may be an exit: {}", writes.len());
    let at = |reg| writes.iter().position(|(r, _)| *r == cqs_reg(reg)).unwrap();
    assert!(at(CqsReg::Imr) < at(CqsReg::Irc) && at(CqsReg::Irc) < at(CqsReg::Imc));
    assert!(at(CqsReg::SteeringTableIpa) < at(CqsReg::SteeringTableEnable));
    for reg in [CqsReg::MemoryBlockTableIpa, CqsReg::SteeringTableIpa, CqsReg::ToqIpa] {
        assert_eq!(fake.memory_at(reg).addr % 256, 0, "{reg:?}");
    }
    cq.close().unwrap();
    assert_eq!(fake.take_writes()[0], (cqs_reg(CqsReg::Enable), 0));
}

#[test]
fn open_refuses_what_cannot_be() {
    let fake = Fake::new();
    let device = Device::probe(fake.clone()).unwrap();
    let try_open = |change: fn(&mut CqConfig)| {
        let mut config = CqConfig::new(TNI, CQ);
        change(&mut config);
        Cq::open(&device, &config).map(drop).unwrap_err()
    };
    let tni = TniId::ALL[0];
    assert_eq!(try_open(|c| c.tni = TniId::ALL[0]), OpenError::NoSuchCq { tni, cq: CQ });
    assert_eq!(try_open(|c| c.toq_size = 6), OpenError::QueueSize(6));
    assert_eq!(try_open(|c| c.stags = 0), OpenError::Stags(0));
    assert_eq!(try_open(|c| c.stags = 65537), OpenError::Stags(65537));
    assert!(matches!(try_open(|c| c.toq_size = 5), OpenError::Memory(_)));
    assert_eq!(fake.take_writes(), [], "nothing is written for a queue that is not opened");
    let first = Cq::open(&device, &CqConfig::new(TNI, CQ)).unwrap();
    assert!(matches!(try_open(|_| ()), OpenError::Busy(_)));
    drop(first);
    Cq::open(&device, &CqConfig::new(TNI, CQ)).unwrap();
}

#[test]
fn missing_interrupt_word_is_reported() {
    let fake = Fake::new();
    fake.with(|s| s.old = true);
    let device = Device::probe(fake.clone()).unwrap();
    let mut config = CqConfig::new(TNI, CQ);
    config.interrupts = CqsIrqs::NONE;
    drop(Cq::open(&device, &config).expect("none is asked for"));
    config.interrupts = CqsIrqs::MRQ_WRITE_ACKNOWLEDGE;
    let error = Cq::open(&device, &config).unwrap_err();
    assert_eq!(error, OpenError::OldDevice("INTERRUPT_ARM_IPA"));
    assert!(error.to_string().contains("older than this driver"), "{error}");
    assert!(fake.take_writes().contains(&(cqs_reg(CqsReg::Enable), 0)), "it is stopped");
}

#[test]
fn unstoppable_queue_keeps_its_memory() {
    let (fake, cq) = open();
    let toq = fake.memory_at(CqsReg::ToqIpa);
    let owners = Arc::strong_count(&toq.words);
    fake.with(|s| s.stuck = true);
    cq.close().unwrap_err();
    assert_eq!(Arc::strong_count(&toq.words), owners);

    let (fake, cq) = open();
    let toq = fake.memory_at(CqsReg::ToqIpa);
    let owners = Arc::strong_count(&toq.words);
    drop(cq);
    assert_eq!(Arc::strong_count(&toq.words), owners - 1);
}

#[test]
fn unowned_queues_are_stopped() {
    let (fake, cq) = open();
    let device = cq.device().clone();
    // The previous owner has ended without closing the queue.
    std::mem::forget(cq);
    fake.take_writes();
    let other = CqId::ALL[CQ.index() + 1];
    assert_eq!(device.stop_queues(&[(TNI, CQ), (TNI, other)]), []);
    let writes = fake.take_writes();
    let stop = |cq| (Register::Cqs { tni: TNI, cq, reg: CqsReg::Enable }, 0);
    assert_eq!(writes[..2], [stop(CQ), stop(other)], "both before either is waited for");
    assert!(writes.contains(&(cqs_reg(CqsReg::SteeringTableEnable), 0)));
    let mut again = Cq::open(&device, &CqConfig::new(TNI, CQ)).unwrap();
    assert!(again.post(&Order::nop(), 0).is_ok());
    fake.with(|s| s.stuck = true);
    assert_eq!(device.stop_queues(&[(TNI, CQ), (TNI, other)]), [(TNI, CQ)]);
}

#[test]
fn table_entries_are_the_golden_words() {
    let (fake, mut cq) = open();
    // Two pages of 64 KiB: the memory starts 0x1234 bytes into the first one.
    let range = MemoryRange { addr: 0x12_3401_1234, len: 0x1_0000 };
    let stag = cq.register(&[range], PageSize::Size64K, Access::ReadOnly, Some(7)).unwrap();
    assert_eq!((stag.stag(), stag.len()), (7, 0x1_0000));
    // The address space starts at the last multiple of 256 before the memory.
    assert_eq!(stag.at(0), StagOffset::new(CQ, 7, 0x34));
    assert_eq!(stag.at(16), StagOffset::new(CQ, 7, 0x44));
    let steering = fake.memory_at(CqsReg::SteeringTableIpa);
    assert_eq!([steering.word(14), steering.word(15)], [0x0007_0000_0000_12c0, 0x1_0034]);
    let blocks = fake.memory_at(CqsReg::MemoryBlockTableIpa);
    let pages = fake.with(|s| s.memory.last().unwrap().clone());
    assert_eq!([blocks.word(14), blocks.word(15)], [pages.addr | 0x84, 2]);
    assert_eq!([pages.word(0), pages.word(1)], [0x12_3401_0080, 0x12_3402_0080]);

    fake.take_writes();
    cq.unregister(stag).unwrap();
    assert_eq!([steering.word(14) & 0x80, blocks.word(14) & 0x80], [0, 0]);
    assert_eq!(fake.take_writes(), [(cqs_reg(CqsReg::CacheFlush), 1)]);
    assert_eq!(cq.unregister(stag), Err(StagError::NotRegistered(7)));
}

#[test]
fn memory_can_be_given_an_offset() {
    let (fake, mut cq) = open();
    let range = MemoryRange { addr: 0x12_3401_1234, len: 0x1_0000 };
    let access = Access::ReadWrite;
    let stag = cq.register_at(range, PageSize::Size4K, access, 7, 0xf234).unwrap();
    assert_eq!(stag.at(1), StagOffset::new(CQ, 7, 0xf235));
    let steering = fake.memory_at(CqsReg::SteeringTableIpa);
    // The address space starts at (address - offset) modulo the page size.
    assert_eq!([steering.word(14), steering.word(15)], [0x0007_0000_0000_0080, 0x1_f234]);
    let blocks = fake.memory_at(CqsReg::MemoryBlockTableIpa);
    let pages = fake.with(|s| s.memory.last().unwrap().clone());
    assert_eq!(blocks.word(15), 0xf + 17);
    assert_eq!([pages.word(0xe), pages.word(0xf)], [0, 0x12_3401_1080]);
    assert_eq!(pages.word(0xf + 16), 0x12_3402_1080);

    let stag = cq.register_at(range, PageSize::Size2M, access, 8, 0x34).unwrap();
    assert_eq!(stag.at(0), StagOffset::new(CQ, 8, 0x34));
    let [word, len] = [steering.word(16), steering.word(17)];
    assert_eq!([word, len], [0x0008_0000_0001_1280, 0x1_0034]);

    let bad = cq.register_at(range, PageSize::Size4K, access, 9, 0x35);
    assert_eq!(bad, Err(StagError::Offset(0x35)));
    let bad = cq.register_at(range, PageSize::Size4K, access, 9, (1 << 40) - 0xcc);
    assert_eq!(bad, Err(StagError::Offset((1 << 40) - 0xcc)));
    let taken = cq.register_at(range, PageSize::Size4K, access, 7, 0x34);
    assert_eq!(taken, Err(StagError::InUse(7)));
}

#[test]
fn stags_are_given_out_once_and_taken_back() {
    let fake = Fake::new();
    let device = Device::probe(fake.clone()).unwrap();
    let config = CqConfig { stags: 3, ..CqConfig::new(TNI, CQ) };
    let mut cq = Cq::open(&device, &config).unwrap();
    let range = [MemoryRange { addr: 0x1000, len: 100 }];
    let add = |cq: &mut Cq<Fake>, wanted| {
        cq.register(&range, PageSize::Size4K, Access::ReadWrite, wanted)
    };
    let one = add(&mut cq, Some(1)).unwrap();
    assert_eq!(add(&mut cq, Some(1)), Err(StagError::InUse(1)));
    assert_eq!(add(&mut cq, Some(3)), Err(StagError::OutOfRange(3)));
    let mut rest = [add(&mut cq, None).unwrap().stag(), add(&mut cq, None).unwrap().stag()];
    rest.sort_unstable();
    assert_eq!(rest, [0, 2]);
    assert_eq!(add(&mut cq, None), Err(StagError::NoneFree));
    cq.unregister(one).unwrap();
    assert_eq!(add(&mut cq, None).unwrap().stag(), 1);
    // A flush that does not end leaves the STag taken.
    fake.with(|s| s.stuck = true);
    assert!(matches!(cq.unregister(one), Err(StagError::Flush(_))));
    assert_eq!(add(&mut cq, Some(1)), Err(StagError::InUse(1)));
}

#[test]
fn memory_must_be_made_of_pages() {
    let (_fake, mut cq) = open();
    let mut add = |ranges: &[(u64, u64)]| {
        let ranges: Vec<_> = ranges.iter().map(|&(addr, len)| MemoryRange { addr, len }).collect();
        cq.register(&ranges, PageSize::Size4K, Access::ReadWrite, None).map(|s| s.len())
    };
    assert_eq!(add(&[]), Err(StagError::Empty));
    assert_eq!(add(&[(0x1000, 0)]), Err(StagError::Empty));
    assert_eq!(add(&[(0x1800, 0x800), (0x9000, 0x1000), (0x4000, 5)]), Ok(0x1805));
    assert_eq!(add(&[(0x1000, 0x800), (0x9000, 1)]), Err(StagError::NotPages { range: 0 }));
    assert_eq!(add(&[(0x1000, 0x1000), (0x9001, 1)]), Err(StagError::NotPages { range: 1 }));
    assert_eq!(add(&[(u64::MAX, 2)]), Err(StagError::Address(u64::MAX)));
    assert_eq!(add(&[((1 << 40) - 1, 2)]), Err(StagError::Address((1 << 40) - 1)));
}

#[test]
fn posting_stops_when_the_ring_is_full() {
    let (fake, mut cq) = open();
    let toq = fake.memory_at(CqsReg::ToqIpa);
    let mut posted = 0u64;
    for lap in 0..3u64 {
        let flip = (lap & 1) ^ 1;
        for _ in 0..2048 {
            cq.post(&Order::nop(), posted).unwrap();
            let word = toq.word((posted % 2048) as usize * 4);
            assert_eq!(word, flip << 7);
            posted += 1;
        }
        assert_eq!(cq.free_slots(), 0);
        assert_eq!(cq.post(&Order::nop(), 0), Err(Full));
        for count in lap * 2048..posted {
            assert_eq!(cq.poll_tcq(), None);
            complete(&fake, count, Rcode::SUCCESS);
            let done = cq.poll_tcq().unwrap();
            assert_eq!((done.cookie, done.rcode, done.length), (count, Rcode::SUCCESS, 7));
        }
        assert_eq!(cq.free_slots(), 2048);
    }
    fake.take_writes();
    cq.doorbell();
    assert_eq!(fake.take_writes(), [(cq_reg(CqReg::FetchStart), 1)]);
}

#[test]
fn delayed_commands_wait_for_the_next() {
    let (fake, mut cq) = open();
    let toq = fake.memory_at(CqsReg::ToqIpa);
    let two =
        Order::cswap8(Target::new(NODE, TniId::ALL[1]), StagOffset::new(CqId::ALL[0], 1, 8), 3, 4);
    let flip = |slot: usize| toq.word(slot * 4) & 0x80 != 0;
    cq.post_delayed(&two, 0).unwrap();
    cq.post_delayed(&Order::nop(), 1).unwrap();
    assert!(!flip(0), "the device stops at a blank entry");
    assert_eq!(toq.word(1), 4, "but the entry is there");
    assert_eq!(cq.free_slots(), 2048 - 3);
    cq.post(&Order::nop(), 2).unwrap();
    assert!((0..4).all(flip) && !flip(4));
    cq.post_delayed(&Order::nop(), 3).unwrap();
    assert!(!flip(4));
    cq.post_direct(&Order::nop(), 4).unwrap();
    assert!((0..6).all(flip));
}

#[test]
fn two_descriptor_command_completes_once() {
    let (fake, mut cq) = open();
    let order =
        Order::cswap8(Target::new(NODE, TniId::ALL[1]), StagOffset::new(CqId::ALL[0], 1, 8), 3, 4);
    for i in 0..2047 {
        cq.post(&Order::nop(), i).unwrap();
    }
    assert_eq!(cq.post(&order, 0), Err(Full));
    complete(&fake, 0, Rcode::SUCCESS);
    assert_eq!(cq.poll_tcq().unwrap().cookie, 0);
    // The command wraps around: its halves have different flip bits.
    cq.post(&order, 99).unwrap();
    let toq = fake.memory_at(CqsReg::ToqIpa);
    assert_eq!([toq.word(2047 * 4), toq.word(2047 * 4 + 1)], [0x280, 4]);
    assert_eq!(toq.word(0) & 0xff80, 0x0e00);
    for count in 1..2048 {
        complete(&fake, count, Rcode::SUCCESS);
    }
    for cookie in 1..2047 {
        assert_eq!(cq.poll_tcq().unwrap().cookie, cookie);
    }
    assert_eq!(cq.poll_tcq(), None);
    assert!(!cq.is_ready());
    complete(&fake, 2048, Rcode::LINK_DOWN);
    assert!(cq.is_ready());
    let done = cq.poll_tcq().unwrap();
    assert_eq!((done.cookie, done.rcode), (99, Rcode::LINK_DOWN));
}

#[test]
fn direct_descriptors_keep_their_place() {
    let (fake, mut cq) = open();
    let toq = fake.memory_at(CqsReg::ToqIpa);
    cq.post(&Order::nop(), 0).unwrap();
    let order = Order::put_piggyback(
        Target::new(NODE, TniId::ALL[1]),
        StagOffset::new(CqId::ALL[0], 1, 8),
        &[5; 20],
    );
    let order = order.unwrap();
    fake.take_writes();
    cq.post_direct(&order, 1).unwrap();
    let direct = Header1(0).with_source_type(source_type::DIRECT).with_flip(true).0;
    assert_eq!([toq.word(4), toq.word(8)], [direct, direct]);
    assert_eq!([toq.word(5), toq.word(9)], [0, 0]);
    let writes = fake.take_writes();
    assert_eq!(writes.len(), 8);
    assert_eq!(writes[7].0, cq_reg(CqReg::DirectDescriptor0), "the first qword goes last");
    let mut words = [0; 8];
    for (register, value) in writes {
        words[(register.offset() % 0x40 / 8) as usize] = value;
    }
    let [d0, d1] = [0, 4].map(|i| Descriptor(words[i..i + 4].try_into().unwrap()));
    assert_eq!(d0.0[0], order.descriptors()[0].0[0] | direct);
    assert_eq!(d0.0[1..], order.descriptors()[0].0[1..]);
    assert_eq!(d1.0[0], order.descriptors()[1].0[0] | direct);

    // The register is free again only when the command is complete.
    cq.post_direct(&Order::nop(), 2).unwrap();
    assert_eq!(fake.take_writes(), [(cq_reg(CqReg::FetchStart), 1)]);
    assert_eq!(toq.word(12), 0x80);
    complete(&fake, 2, Rcode::SUCCESS);
    cq.post_direct(&Order::nop(), 3).unwrap();
    assert_eq!(fake.take_writes().len(), 4);
}

#[test]
fn notices_are_acknowledged_by_quarters() {
    let (fake, mut cq) = open();
    fake.take_writes();
    for count in 0..2048 * 3u64 {
        assert_eq!(cq.poll_mrq(), None);
        notify(&fake, count);
        let notice: MrqEntry = cq.poll_mrq().unwrap();
        assert_eq!(notice.old_value(), count);
        assert_eq!(notice.id(), Some(MrqId::PutLast));
        let expected = if (count + 1) % 512 == 0 {
            vec![(cq_reg(CqReg::MrqFullPointer), count + 1)]
        } else {
            vec![]
        };
        assert_eq!(fake.take_writes(), expected);
    }
}

/// Checks that the driver has requested an interrupt, and clears the request, as the device does.
fn take_ask(state: &State) {
    let addr = state.registers[&cqs_reg(CqsReg::InterruptArmIpa).offset()];
    let arm = state.memory.iter().find(|m| m.addr == addr).unwrap();
    assert_eq!(arm.word(0), 1, "who sleeps has asked to be woken");
    arm.set(0, 0);
}

/// Puts a notice into the MRQ and raises the interrupt, as the device does on request.
fn notice_while_asleep(state: &mut State) {
    take_ask(state);
    let addr = state.registers[&cqs_reg(CqsReg::MrqIpa).offset()] & !CACHE_INJECTION;
    let mrq = state.memory.iter().find(|m| m.addr == addr).unwrap();
    mrq.set(0, MrqWord0(0).with_flip(true).with_id(MrqId::PutLast as u8).0);
    state.fired = true;
}

#[test]
fn wait_ends_by_notice_exception_or_timeout() {
    let (fake, mut cq) = open();
    fake.take_writes();
    fake.with(|s| s.reads = 0);
    assert_eq!(cq.wait(50_000_000), Err(WaitError::TimedOut));

    fake.with(|s| s.on_sleep = Some(notice_while_asleep));
    assert_eq!(cq.wait_mrq(u64::MAX).unwrap().id(), Some(MrqId::PutLast));
    // Each access would be an exit or a message, and the guest would wait for the answer to a read.
    assert_eq!(
        (fake.take_writes(), fake.with(|s| s.reads)),
        (vec![], 0),
        "no access to a register"
    );

    fake.with(|s| {
        s.on_sleep = Some(|s| {
            take_ask(s);
            let irr = cqs_reg(CqsReg::Irr).offset();
            s.registers.insert(irr, CqsIrqs::MRQ_OVERFLOW.raw());
            s.fired = true;
        });
    });
    let Err(WaitError::Exception(exception)) = cq.wait(u64::MAX) else { panic!("no exception") };
    assert_eq!(exception.irr, CqsIrqs::MRQ_OVERFLOW);
    assert!(exception.to_string().contains(": MRQ overflow ("), "{exception}");
    assert_eq!(fake.take_writes(), []);
}

#[test]
fn queue_without_interrupts_polls() {
    let fake = Fake::new();
    let device = Device::probe(fake.clone()).unwrap();
    let config = CqConfig { interrupts: CqsIrqs::NONE, ..CqConfig::new(TNI, CQ) };
    let mut cq = Cq::open(&device, &config).unwrap();
    // `irq_wait` would call this function.
    fake.with(|s| s.on_sleep = Some(|_| panic!("a polled queue must not sleep")));
    assert_eq!(cq.wait(5_000_000), Err(WaitError::TimedOut));
    notify(&fake, 0);
    cq.wait(0).unwrap();
    fake.with(|s| s.on_sleep = None);
}

proptest! {
    /// For any ranges, a walk of the tables like the device's finds each byte of the memory at its
    /// offset.
    #[test]
    fn tables_lead_to_the_memory(
        size in prop::sample::select(PageSize::ALL.to_vec()),
        start in 0u64..4096,
        pages in prop::collection::vec((1u64..64, 1u64..4), 1..5),
        tail in 1u64..4096,
        probe: prop::sample::Index,
    ) {
        let mut ranges: Vec<MemoryRange> = pages
            .iter()
            .map(|(page, n)| MemoryRange { addr: page * size.bytes(), len: n * size.bytes() })
            .collect();
        ranges[0].addr += start % size.bytes();
        ranges[0].len -= start % size.bytes();
        let last = ranges.last_mut().unwrap();
        last.len = last.len.saturating_sub(tail).max(1);
        let total: u64 = ranges.iter().map(|r| r.len).sum();

        let (fake, mut cq) = open();
        let stag = cq.register(&ranges, size, Access::ReadWrite, None).unwrap();
        prop_assert_eq!(stag.len(), total);
        let position = probe.index(total as usize) as u64;
        let mut rest = position;
        let expected = ranges
            .iter()
            .find_map(|r| {
                if rest < r.len { Some(r.addr + rest) } else { rest -= r.len; None }
            })
            .unwrap();

        let offset = stag.at(position).offset();
        let entry = fake.memory_at(CqsReg::SteeringTableIpa);
        let at = stag.stag() as usize * 2;
        prop_assert!(offset < entry.word(at + 1));
        let mbva = entry.word(at) & 0xff_ffff_ff00;
        let block = fake.memory_at(CqsReg::MemoryBlockTableIpa);
        let table = fake.with(|s| s.memory.last().unwrap().clone());
        prop_assert_eq!(block.word(at) & 0xff_ffff_ff00, table.addr);
        let page = (mbva + offset) >> size.bits();
        prop_assert!(page < block.word(at + 1));
        let ipa = table.word(page as usize) & 0xff_ffff_f000;
        prop_assert_eq!(ipa + ((mbva + offset) & (size.bytes() - 1)), expected);
    }
}
