//! Writes random values to registers, rings, descriptors and tables. None of this may harm the
//! machine or the other nodes; the program succeeds if it reaches its end.
//!
//! `steps=N`: how much (2000), `seed=N`: which. It keeps two rules, because a guest may break them
//! without any fault of the device: it lets the device write only to one arena in the node's
//! memory, and it does not use the group process id of the other programs.
#![cfg_attr(feature = "bare", no_std, no_main)]

use tofu_abi::desc::{Command, DESC_SIZE, Header1, Header2};
use tofu_abi::generation::Description;
use tofu_abi::regs::{
    BAR0_SIZE, BchReg, BgsReg, CqReg, CqsReg, PortReg, Register, TniReg, TofuReg, XbReg, cq_page,
};
use tofu_abi::table::{MemoryBlock, PageEntry, PageSize, Steering};
use tofu_abi::topology::Port;
use tofu_abi::{BchId, BgId, Coords, CqId, StagOffset, TniId};
use tofu_driver::{Device, DmaBuffer, Platform};
use tofu_guests::random::Random;
use tofu_guests::{Error, NodeBuffer, NodePlatform, find_device, number, println};

tofu_guests::entry!(garbage);

/// Memory that the device may write to: rings and payload.
const ARENA: usize = 1 << 20;
/// Room behind the start of a ring: the largest one used has 8192 entries of 32 bytes.
const RING: u64 = 256 << 10;
/// Entries of the steering and the memory block table.
const ENTRIES: u64 = 256;
const BLOCKS_AT: u64 = ENTRIES * 16;
const PAGES_AT: u64 = 2 * ENTRIES * 16;
/// Page entries of one memory block, and page tables.
const PAGES: u64 = 64;
const PAGE_TABLES: u64 = 32;
const TABLES: usize = (PAGES_AT + PAGE_TABLES * PAGES * 8) as usize;
/// An address bit beyond the memory of any guest.
const FAR: u64 = 1 << 38;

fn garbage() -> Result<(), Error> {
    let steps = number("steps", 2000)?;
    let seed = number("seed", 1)?;
    let platform = find_device()?;
    let arena = platform.alloc_dma(ARENA, 64 << 10)?;
    let tables = platform.alloc_dma(TABLES, 4096)?;
    let device = Device::probe(platform)?;
    let me = device.coords();
    let description = device.description();
    let mut vandal = Vandal { random: Random::new(seed), arena, tables, me, description };
    vandal.fill_tables();
    device.enable_tnis()?;
    for _ in 0..steps {
        match vandal.random.below(10) {
            0..4 => {
                let register = vandal.register();
                let value = vandal.value(register);
                device.write(register, value);
            }
            4 => {
                device.read(vandal.register());
            }
            5 => vandal.fill_arena(),
            6 => vandal.fill_tables(),
            7 => vandal.set_up(&device),
            8 => {
                let (tni, cq) = vandal.any_queue();
                device.write(Register::Cq { tni, cq, reg: CqReg::FetchStart }, 1);
            }
            _ => vandal.odd_access(device.platform()),
        }
    }
    println!("{steps} steps of garbage survived");
    Ok(())
}

struct Vandal {
    random: Random,
    arena: NodeBuffer,
    tables: NodeBuffer,
    me: Coords,
    description: &'static Description,
}

impl Vandal {
    /// An address at which there is no memory.
    fn nowhere(&mut self) -> u64 {
        self.random.next() | FAR
    }

    /// An address at which a ring may start.
    fn ring(&mut self) -> u64 {
        if self.random.one_in(4) {
            return self.nowhere();
        }
        let offset = self.random.below(ARENA as u64 - RING);
        let cache_injection = self.random.below(2) << 63;
        // Occasionally not aligned.
        let offset = if self.random.one_in(8) { offset } else { offset & !31 };
        (self.arena.device_addr() + offset) | cache_injection
    }

    /// An address for a steering table; memory blocks will do, too.
    fn steering_table(&mut self) -> u64 {
        match self.random.below(4) {
            0 => self.nowhere(),
            1 => self.block_table(),
            _ => self.tables.device_addr(),
        }
    }

    fn block_table(&mut self) -> u64 {
        if self.random.one_in(4) { self.nowhere() } else { self.tables.device_addr() + BLOCKS_AT }
    }

    /// A queue that the device has, or occasionally one that devices of some generation have.
    fn any_queue(&mut self) -> (TniId, CqId) {
        let Description { tnis, cqs, .. } = *self.description;
        let (tnis, cqs) = match self.random.one_in(4) {
            true => (TniId::ALL.len(), CqId::ALL.len()),
            false => (tnis.into(), cqs.into()),
        };
        (self.random.choose(&TniId::ALL[..tnis]), self.random.choose(&CqId::ALL[..cqs]))
    }

    /// Any register.
    fn register(&mut self) -> Register {
        let (tni, cq) = self.any_queue();
        let r = &mut self.random;
        match r.below(16) {
            0..5 => Register::Cqs { tni, cq, reg: r.choose(CqsReg::ALL) },
            5..9 => Register::Cq { tni, cq, reg: r.choose(CqReg::ALL) },
            9 | 10 => Register::Tni { tni, reg: r.choose(TniReg::ALL) },
            11 => Register::Bgs { tni, bg: r.choose(&BgId::ALL), reg: r.choose(BgsReg::ALL) },
            12 => Register::Bch { tni, bch: r.choose(&BchId::ALL), reg: r.choose(BchReg::ALL) },
            13 => Register::Xb(r.choose(XbReg::ALL)),
            14 => Register::Port { port: r.choose(&Port::ALL), reg: r.choose(PortReg::ALL) },
            _ => Register::Tofu(
                TofuReg::from_offset(r.below(0x700 / 8) * 8).unwrap_or(TofuReg::TnrImc),
            ),
        }
    }

    /// Any value for it, within the two rules.
    fn value(&mut self, register: Register) -> u64 {
        let any = self.random.next();
        match register {
            Register::Cqs { reg, .. } => match reg {
                CqsReg::ToqIpa | CqsReg::TcqIpa | CqsReg::MrqIpa => self.ring(),
                // Sizes that the arena has room for, and ones that do not exist.
                CqsReg::ToqSize | CqsReg::MrqSize => self.random.choose(&[0, 1, 6, 7, any | 8]),
                CqsReg::SteeringTableIpa => self.steering_table(),
                CqsReg::MemoryBlockTableIpa => self.block_table(),
                CqsReg::SteeringTableSize | CqsReg::MemoryBlockTableSize => any % (ENTRIES + 1),
                CqsReg::Gpid => self.gpid(),
                _ => any,
            },
            Register::Tni { reg, .. } => match reg {
                TniReg::Enable => u64::from(!self.random.one_in(4)),
                TniReg::PbqPa | TniReg::PrqPa => self.ring(),
                TniReg::PbqSize | TniReg::PrqSize => self.random.choose(&[0, 1, 6, any | 8]),
                _ => any,
            },
            Register::Bgs { reg: BgsReg::BchNoticeIpa, .. } => self.ring(),
            Register::Xb(XbReg::StqPa) => self.ring(),
            Register::Xb(XbReg::StqSize) => any % 256,
            _ => any,
        }
    }

    /// A group process id that no other program has: the others' ids do not use the highest bit,
    /// and are not 0.
    fn gpid(&mut self) -> u64 {
        if self.random.one_in(2) { 0 } else { self.random.next() | 1 << 63 }
    }

    /// Makes a queue that works, so that garbage gets further.
    fn set_up(&mut self, device: &Device<NodePlatform>) {
        let (tni, cq) = self.any_queue();
        let base = self.arena.device_addr();
        let place = |n: u64| base + n * RING;
        let tables = self.tables.device_addr();
        let writes = [
            (CqsReg::Enable, 0),
            (CqsReg::FetchStop, 0),
            (CqsReg::Mode, 0),
            (CqsReg::Gpid, 0),
            (CqsReg::ToqIpa, place(self.random.below(3))),
            (CqsReg::ToqSize, self.random.below(2)),
            (CqsReg::TcqIpa, place(self.random.below(3))),
            (CqsReg::MrqIpa, place(self.random.below(3))),
            (CqsReg::MrqSize, 0),
            (CqsReg::SteeringTableIpa, tables),
            (CqsReg::SteeringTableSize, ENTRIES),
            (CqsReg::SteeringTableEnable, 1),
            (CqsReg::MemoryBlockTableIpa, tables + BLOCKS_AT),
            (CqsReg::MemoryBlockTableSize, ENTRIES),
            (CqsReg::MemoryBlockTableEnable, 1),
            (CqsReg::Imc, u64::MAX),
            (CqsReg::Enable, 1),
        ];
        for (reg, value) in writes {
            device.write(Register::Cqs { tni, cq, reg }, value);
        }
    }

    /// Fills a part of the arena with descriptors, half of them plausible.
    fn fill_arena(&mut self) {
        let first = self.random.below((ARENA / DESC_SIZE) as u64 - 64) as usize;
        for slot in first..first + 64 {
            let mut words = [(); 4].map(|()| self.random.next());
            if !self.random.one_in(4) {
                let command = self.random.choose(&Command::ALL);
                let target = if self.random.one_in(2) {
                    self.me
                } else {
                    Coords { a: 1 - (self.me.a & 1), ..self.me }
                };
                let length = self.random.below(1 << 14) as u32;
                words[0] = Header1(words[0])
                    .with_command(command as u8)
                    .with_source_type(self.random.below(16).saturating_sub(13) as u8)
                    .with_target(target)
                    .with_path(target.default_path())
                    .with_ri(self.random.below(7) as u8)
                    .0;
                if !self.random.one_in(64) {
                    words[1] = Header2(words[1]).with_length(length).0;
                }
                for word in &mut words[2..] {
                    let (cq, stag) = (self.random.below(13), self.random.below(ENTRIES + 1));
                    let place = StagOffset(0).with_cqid(cq as u8).with_stag(stag as u32);
                    *word = place.with_offset(self.random.below(1 << 16)).0;
                }
            }
            for (i, word) in words.into_iter().enumerate() {
                self.arena.store_u64(slot * DESC_SIZE + i * 8, word, RELAXED);
            }
        }
    }

    /// Fills all tables. Every entry leads to the arena or to no memory at all.
    fn fill_tables(&mut self) {
        for i in 0..ENTRIES as usize {
            let steering = Steering(self.random.next())
                .with_enable(!self.random.one_in(8))
                .with_mbid(self.random.below(ENTRIES + 8) as u16)
                .with_mbva_units(self.random.below(64));
            self.store_entry(i * 16, steering.0);
            let length = if self.random.one_in(8) { u64::MAX } else { 1 << 17 };
            self.store_entry(i * 16 + 8, length);

            let block = MemoryBlock(self.random.next()).with_enable(!self.random.one_in(8));
            let block = if self.random.one_in(4) {
                block.with_ipa(self.nowhere())
            } else {
                // Larger pages than 64 KiB would reach beyond the arena.
                let small = PageSize::Size4K as u8;
                let size = self.random.choose(&[small, small, PageSize::Size64K as u8, 3, 7]);
                let table = PAGES_AT + self.random.below(PAGE_TABLES) * PAGES * 8;
                block.with_ps(size).with_ipa(self.tables.device_addr() + table)
            };
            self.store_entry(BLOCKS_AT as usize + i * 16, block.0);
            // Never more than a page table has, because the device may read this between two
            // stores.
            let pages = self.random.below(PAGES + 1);
            self.store_entry(BLOCKS_AT as usize + i * 16 + 8, pages);
        }
        for i in 0..(PAGE_TABLES * PAGES) as usize {
            let entry = PageEntry(self.random.next()).with_enable(!self.random.one_in(16));
            let address = if self.random.one_in(8) {
                self.nowhere()
            } else {
                self.arena.device_addr() + (self.random.below(ARENA as u64) & !0xfff)
            };
            self.store_entry(PAGES_AT as usize + i * 8, entry.with_ipa(address).0);
        }
    }

    fn store_entry(&self, offset: usize, word: u64) {
        self.tables.store_u64(offset, word, RELAXED);
    }

    /// An access that registers do not have, or half of one.
    fn odd_access(&mut self, platform: &NodePlatform) {
        let anywhere = self.random.below(BAR0_SIZE - 8);
        // Only registers of the user page: halves of addresses would break the rules.
        let (tni, cq) = self.any_queue();
        let half = cq_page(tni, cq) + self.random.below(0x88 / 4) * 4;
        let value = self.random.next();
        match self.random.below(3) {
            0 => {
                platform.bar0_read64_unaligned(anywhere);
            }
            1 => {
                platform.bar0_read32(anywhere);
            }
            _ => platform.bar0_write32(half, value as u32),
        }
    }
}

const RELAXED: core::sync::atomic::Ordering = core::sync::atomic::Ordering::Relaxed;
