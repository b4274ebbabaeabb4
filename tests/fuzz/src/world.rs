//! A machine of four nodes: two that the input controls and two bystanders.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use tofu_abi::desc::{Command, DESC_SIZE, Descriptor, Header1, Header2};
use tofu_abi::queue::{PACKET_BUFFER_SIZE, PBQ_ENTRY_SIZE, PbqEntry, TCQ_ENTRY_SIZE, TcqEntry};
use tofu_abi::regs::{CqReg, CqsMode, CqsReg, Register, TniReg};
use tofu_abi::table::{
    MEMORY_BLOCK_ENTRY_SIZE, MemoryBlock, PAGE_ENTRY_SIZE, PageEntry, PageSize,
    STEERING_ENTRY_SIZE, Steering,
};
use tofu_abi::{Coords, CqId, Generation, Rcode, StagOffset, TniId, pci};
use tofu_machine::{Machine, MachineConfig, Node};
use tofu_pci::{PciFunction, regs};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Memory that tables can name, at [`LOW`]: tables and data.
pub(crate) const LOW: u64 = 0x10_0000;
pub(crate) const LOW_SIZE: usize = 0x4_0000;
/// Memory beyond the 40 bits of an address in a table: queues. So no command, with any tables, can
/// write to its own queue.
pub(crate) const HIGH: u64 = 1 << 41;
pub(crate) const HIGH_SIZE: usize = 0x3_0000;

/// Queues of the smallest size: 2048 entries.
pub(crate) const TOQ: u64 = HIGH;
pub(crate) const TCQ: u64 = HIGH + 0x1_0000;
pub(crate) const MRQ: u64 = HIGH + 0x2_0000;
pub(crate) const TCQ_RANGE: Range<u64> = TCQ..TCQ + 2048 * 8;
pub(crate) const MRQ_RANGE: Range<u64> = MRQ..MRQ + 2048 * 32;

/// Packet queues of the smallest size, and buffers for them, which have addresses of 40 bits.
pub(crate) const PBQ: u64 = HIGH + 0x1_4000;
pub(crate) const PRQ: u64 = HIGH + 0x1_8000;
pub(crate) const PRQ_RANGE: Range<u64> = PRQ..PRQ + 2048 * 8;
pub(crate) const BUFFERS: u64 = LOW + 0x3_0000;
pub(crate) const BUFFERS_RANGE: Range<u64> = BUFFERS..BUFFERS + BUFFER_COUNT * 2048;
const BUFFER_COUNT: u64 = 32;

pub(crate) const STEERING: u64 = LOW;
pub(crate) const BLOCKS: u64 = LOW + 0x1000;
pub(crate) const PAGES: u64 = LOW + 0x2000;
/// Entries of the steering and the memory block table.
pub(crate) const TABLE_ENTRIES: u64 = 16;
/// Data, aligned to 64 KiB.
pub(crate) const DATA: u64 = LOW + 0x1_0000;
pub(crate) const DATA_SIZE: u64 = 0x1_0000;
pub(crate) const DATA_RANGE: Range<u64> = DATA..DATA + DATA_SIZE;
/// Data that tables name as read-only.
pub(crate) const READ_ONLY: u64 = LOW + 0x2_0000;

/// The start of STag 3.
const STAG_3: u64 = DATA + 0x300;
/// The place in STag 3 to which the bystanders put their data, and the number of bytes.
const BYSTANDER_TARGET: u64 = 0x4000;
const BYSTANDER_LENGTH: usize = 61;

/// The queue that the world sets up on every node.
pub(crate) const TNI: TniId = TniId::ALL[0];
pub(crate) const CQ: CqId = CqId::ALL[0];

/// Bytes that are compared at a time.
const PIECE: usize = 0x1000;

/// Bytes that differ between places in a page.
const PATTERN: [u8; 0x1000] = {
    let mut page = [0; 0x1000];
    let mut i = 0;
    while i < page.len() {
        page[i] = (i as u8) ^ ((i >> 8) as u8).wrapping_mul(31);
        i += 1;
    }
    page
};

thread_local! {
    /// Memory of former worlds: to map new memory takes longer than to run most inputs.
    static SPARE: RefCell<Vec<GuestMemoryMmap<()>>> = const { RefCell::new(Vec::new()) };
}

/// The memory of a node, zeroed at first.
pub(crate) struct Memory(pub(crate) GuestMemoryMmap<()>);

impl Drop for Memory {
    fn drop(&mut self) {
        SPARE.with_borrow_mut(|spare| spare.push(self.0.clone()));
    }
}

/// The contents of a memory at some time.
#[derive(Clone)]
pub(crate) struct Snapshot {
    low: Vec<u8>,
    high: Vec<u8>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        if let Some(spare) = SPARE.with_borrow_mut(Vec::pop) {
            let memory = Self(spare);
            for (base, size) in [(LOW, LOW_SIZE), (HIGH, HIGH_SIZE)] {
                for at in (base..base + size as u64).step_by(PIECE) {
                    memory.write(at, &[0; PIECE]);
                }
            }
            return memory;
        }
        let ranges = [(GuestAddress(LOW), LOW_SIZE), (GuestAddress(HIGH), HIGH_SIZE)];
        Self(GuestMemoryMmap::from_ranges(&ranges).expect("the host has this much memory"))
    }

    pub(crate) fn read(&self, at: u64, data: &mut [u8]) {
        self.0.read_slice(data, GuestAddress(at)).expect("the range is memory");
    }

    pub(crate) fn write(&self, at: u64, data: &[u8]) {
        self.0.write_slice(data, GuestAddress(at)).expect("the range is memory");
    }

    pub(crate) fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    pub(crate) fn set_word(&self, at: u64, value: u64) {
        self.write(at, &value.to_le_bytes());
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot { low: vec![0; LOW_SIZE], high: vec![0; HIGH_SIZE] };
        self.read(LOW, &mut snapshot.low);
        self.read(HIGH, &mut snapshot.high);
        snapshot
    }

    /// Panics if anything outside of the `allowed` ranges has changed.
    pub(crate) fn assert_unchanged(&self, before: &Snapshot, allowed: &[Range<u64>]) {
        let mut now = [0; PIECE];
        for (base, before) in [(LOW, &before.low), (HIGH, &before.high)] {
            for (at, before) in (base..).step_by(PIECE).zip(before.chunks_exact(PIECE)) {
                let covered = |r: &Range<u64>| r.start <= at && r.end >= at + PIECE as u64;
                if allowed.iter().any(covered) {
                    continue;
                }
                self.read(at, &mut now);
                if before == now {
                    continue;
                }
                for (at, (old, new)) in (at..).zip(before.iter().zip(now)) {
                    let may = allowed.iter().any(|range| range.contains(&at));
                    assert!(*old == new || may, "{at:#x} changed from {old:#x} to {new:#x}");
                }
            }
        }
    }

    /// Fills data and read-only data with bytes that differ between places.
    pub(crate) fn fill(&self, seed: u8) {
        // The first bytes of a page hold its number and the seed; the others depend on their place
        // in it.
        let mut page: [u8; 0x1000] = PATTERN;
        for i in 0..DATA_SIZE / 0x1000 {
            page[0] = i as u8;
            page[1] = seed;
            self.write(DATA + i * 0x1000, &page);
            if i < 4 {
                self.write(READ_ONLY + i * 0x1000, &page);
            }
        }
    }

    /// Tables with an STag for each case that translation knows:
    ///
    /// 0 data in shuffled pages of 4 KiB, 1 read-only data, 2 disabled, 3 part of the data in a
    /// page of 64 KiB, 4 a reserved page size, 5 a disabled memory block, 6 data with a
    /// disabled page and one that is not memory, 7 a memory block beyond the table.
    pub(crate) fn set_tables(&self) {
        let steering = |stag: u64, entry: Steering, length: u64| {
            self.set_word(STEERING + stag * STEERING_ENTRY_SIZE + 8, length);
            self.set_word(STEERING + stag * STEERING_ENTRY_SIZE, entry.0);
        };
        let block = |id: u64, entry: MemoryBlock, pages: u64| {
            self.set_word(BLOCKS + id * MEMORY_BLOCK_ENTRY_SIZE + 8, pages);
            self.set_word(BLOCKS + id * MEMORY_BLOCK_ENTRY_SIZE, entry.0);
        };
        let on = Steering(0).with_enable(true);
        steering(0, on.with_mbid(0), DATA_SIZE);
        steering(1, on.with_mbid(1).with_readonly(true), 0x4000);
        steering(2, Steering(0), DATA_SIZE);
        steering(3, on.with_mbid(2).with_mbva_units(3), 0x8001);
        steering(4, on.with_mbid(3), DATA_SIZE);
        steering(5, on.with_mbid(4), DATA_SIZE);
        steering(6, on.with_mbid(5), DATA_SIZE);
        steering(7, on.with_mbid(TABLE_ENTRIES as u16), DATA_SIZE);
        let table = |n: u64| PAGES + n * 0x100;
        let size = |ps: u8| MemoryBlock(0).with_enable(true).with_ps(ps);
        let small = size(PageSize::Size4K as u8);
        block(0, small.with_ipa(table(0)), 16);
        block(1, small.with_ipa(table(1)), 4);
        block(2, size(PageSize::Size64K as u8).with_ipa(table(2)), 1);
        block(3, size(3).with_ipa(table(0)), 16);
        block(4, small.with_enable(false).with_ipa(table(0)), 16);
        block(5, small.with_ipa(table(3)), 16);
        let page = |table: u64, index: u64, entry: PageEntry| {
            self.set_word(table + index * PAGE_ENTRY_SIZE, entry.0);
        };
        let at = |address| PageEntry(0).with_enable(true).with_ipa(address);
        for i in 0..16 {
            page(table(0), i, at(DATA + (i * 7 % 16) * 0x1000));
            page(table(3), i, at(DATA + i * 0x1000));
        }
        for i in 0..4 {
            page(table(1), i, at(READ_ONLY + i * 0x1000));
        }
        page(table(2), 0, at(DATA));
        page(table(3), 3, at(DATA).with_enable(false));
        page(table(3), 9, at(LOW + LOW_SIZE as u64));
    }
}

/// Four nodes: 0 and 1 at X = 0 for the input, 2 and 3 at X = 1 to look on.
pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) memory: Vec<Memory>,
    bystanders: Bystanders,
}

/// The events of nodes 2 and 3.
struct Bystanders {
    posted: u64,
    before: [Snapshot; 2],
}

pub(crate) fn coords(node: usize) -> Coords {
    Coords::new((node / 2) as u8, 0, 0, (node % 2) as u8, 0, 0)
}

/// The generation that TOFU_TEST_GENERATION names, by default Fugaku. Targets and their corpora are
/// the same for all generations.
pub(crate) fn generation() -> Generation {
    let Ok(name) = std::env::var("TOFU_TEST_GENERATION") else { return Generation::Fugaku };
    Generation::from_name(&name).expect("the name of a generation")
}

impl World {
    /// All nodes are on the bus and may do DMA. Each bystander has a queue that communicates only
    /// within its own X.
    pub(crate) fn new() -> Self {
        let shape = "2x1x1x2x1x1".parse().expect("a shape within the limits");
        let config = MachineConfig::of(generation(), shape);
        let machine = Machine::with_manual_clock(config).expect("the host has eventfds");
        let memory: Vec<_> = (0..4).map(|_| Memory::new()).collect();
        let nodes: Vec<_> = (0..4)
            .map(|node| {
                let memory = Arc::new(memory[node].0.clone());
                machine.add_node(coords(node), memory).expect("the place is free")
            })
            .collect();
        for node in [2, 3] {
            memory[node].fill(node as u8);
            memory[node].set_tables();
        }
        let before = [memory[2].snapshot(), memory[3].snapshot()];
        let bystanders = Bystanders { posted: 0, before };
        let world = Self { machine, nodes, memory, bystanders };
        for node in 0..4 {
            world.allow_dma(node);
        }
        let mode = CqsMode(0).with_nx(2).with_sx(1).with_lx(1);
        for node in [2, 3] {
            world.open(node, mode, 7);
        }
        world
    }

    /// Turns memory decoding and bus mastering of a node on.
    pub(crate) fn allow_dma(&self, node: usize) {
        let command = regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER;
        self.nodes[node].config_write(regs::COMMAND, &command.to_le_bytes());
    }

    pub(crate) fn write(&self, node: usize, register: Register, value: u64) {
        self.nodes[node].bar_write(pci::REGISTER_BAR, register.offset(), &value.to_le_bytes());
    }

    pub(crate) fn write_cqs(&self, node: usize, reg: CqsReg, value: u64) {
        self.write(node, Register::Cqs { tni: TNI, cq: CQ, reg }, value);
    }

    pub(crate) fn write_cq(&self, node: usize, reg: CqReg, value: u64) {
        self.write(node, Register::Cq { tni: TNI, cq: CQ, reg }, value);
    }

    /// Enables the queue of a node.
    pub(crate) fn open(&self, node: usize, mode: CqsMode, gpid: u64) {
        self.write(node, Register::Tni { tni: TNI, reg: TniReg::Enable }, 1);
        self.write_cqs(node, CqsReg::Mode, mode.0);
        self.write_cqs(node, CqsReg::Gpid, gpid);
        open_queue(&mut |reg, value| self.write_cqs(node, reg, value));
    }

    /// Lets engines work, for a bounded time.
    pub(crate) fn run(&self, turns: u32) {
        for _ in 0..turns {
            if !self.machine.run_turn() {
                return;
            }
        }
    }

    /// One bystander puts some data into the other one's memory.
    pub(crate) fn bystanders_transfer(&mut self) {
        let slot = self.bystanders.posted;
        self.bystanders.posted += 1;
        let (from, to) = (slot * 64, BYSTANDER_TARGET + slot * 64);
        let put = Descriptor::transfer(
            Command::Put,
            Header1(0).with_target(coords(3)).with_path(coords(3).default_path()),
            Header2(0),
            StagOffset::new(CQ, 3, to),
            StagOffset::new(CQ, 3, from),
            BYSTANDER_LENGTH as u32,
        );
        self.memory[2].write(TOQ + slot * DESC_SIZE as u64, &put.with_flip(true).to_bytes());
        self.write_cq(2, CqReg::FetchStart, 1);
        self.run(64);
        let done = TcqEntry(self.memory[2].word(TCQ + slot * TCQ_ENTRY_SIZE as u64));
        assert!(done.flip(), "the bystanders' Put has not completed");
        assert_eq!((done.rcode(), done.length()), (Rcode::SUCCESS, BYSTANDER_LENGTH as u32));
        let mut data = [[0; BYSTANDER_LENGTH]; 2];
        self.memory[2].read(STAG_3 + from, &mut data[0]);
        self.memory[3].read(STAG_3 + to, &mut data[1]);
        assert_eq!(data[0], data[1]);
    }

    /// Does another transfer. Nothing but the transfers may have affected the bystanders.
    pub(crate) fn end(mut self) {
        self.bystanders_transfer();
        let Bystanders { posted, before } = &self.bystanders;
        let toq = TOQ..TOQ + posted * DESC_SIZE as u64;
        let tcq = TCQ..TCQ + posted * TCQ_ENTRY_SIZE as u64;
        self.memory[2].assert_unchanged(&before[0], &[toq, tcq, MRQ_RANGE]);
        let target = STAG_3 + BYSTANDER_TARGET;
        let target = target..target + posted * 64;
        self.memory[3].assert_unchanged(&before[1], std::slice::from_ref(&target));
    }
}

/// Posts all buffers and sets up the packet queues of a TNI, through `write`.
pub(crate) fn open_packet_queues(memory: &Memory, write: &mut dyn FnMut(TniReg, u64)) {
    for n in 0..BUFFER_COUNT {
        let entry = PbqEntry::post(BUFFERS + n * PACKET_BUFFER_SIZE as u64, true);
        memory.set_word(PBQ + n * PBQ_ENTRY_SIZE as u64, entry.0);
    }
    for (reg, value) in
        [(TniReg::PbqSize, 0), (TniReg::PbqPa, PBQ), (TniReg::PrqSize, 0), (TniReg::PrqPa, PRQ)]
    {
        write(reg, value);
    }
}

/// Programs and enables a queue with the world's layout, through `write`.
pub(crate) fn open_queue(write: &mut dyn FnMut(CqsReg, u64)) {
    for (reg, value) in [
        (CqsReg::ToqIpa, TOQ),
        (CqsReg::ToqSize, 0),
        (CqsReg::TcqIpa, TCQ),
        (CqsReg::MrqIpa, MRQ),
        (CqsReg::MrqSize, 0),
        (CqsReg::MemoryBlockTableIpa, BLOCKS),
        (CqsReg::MemoryBlockTableSize, TABLE_ENTRIES),
        (CqsReg::MemoryBlockTableEnable, 1),
        (CqsReg::SteeringTableIpa, STEERING),
        (CqsReg::SteeringTableSize, TABLE_ENTRIES),
        (CqsReg::SteeringTableEnable, 1),
        (CqsReg::Enable, 1),
    ] {
        write(reg, value);
    }
}
