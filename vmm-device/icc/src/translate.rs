//! Address translation: steering table, memory block table, page table.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use tofu_abi::regs::CqsReg;
use tofu_abi::table::{
    MEMORY_BLOCK_ENTRY_SIZE, MemoryBlock, PAGE_ENTRY_SIZE, PageEntry, PageSize,
    STEERING_ENTRY_SIZE, Steering,
};
use tofu_abi::{Rcode, StagOffset};
use tofu_inspect::{Hex, Inspect, Sparse, Visit};
use tofu_sync::Epochs;

use crate::fault::Fault;
use crate::mappings::{Mapping, Mappings};
use crate::memory::{Access, DmaMemory, Reach, Segment, Segments};

/// The places of a range in memory, as far as it could be translated.
pub(crate) struct Translation {
    /// The memory of the first `len` bytes.
    pub(crate) segments: Segments,
    /// Bytes that could be translated.
    pub(crate) len: u32,
    /// The reason why the rest could not.
    pub(crate) fault: Option<Fault>,
}

impl Translation {
    /// A translation that failed from the start.
    pub(crate) fn failed(fault: Fault) -> Self {
        Self { segments: Segments::new(), len: 0, fault: Some(fault) }
    }
}

/// The tables of one control queue, and what is cached of them.
pub(crate) struct Tables {
    /// The memory that they translate to.
    memory: Arc<Reach>,
    steering_enable: AtomicBool,
    steering_ipa: AtomicU64,
    steering_size: AtomicU64,
    block_enable: AtomicBool,
    block_ipa: AtomicU64,
    block_size: AtomicU64,
    /// Bursts in progress whose addresses were translated. Cached mappings of an older generation
    /// are not used any more.
    epochs: Epochs,
    cache: Mappings,
}

impl Inspect for Tables {
    fn inspect(&self, visit: Visit<'_>) {
        let Self {
            memory: _,
            steering_enable,
            steering_ipa,
            steering_size,
            block_enable,
            block_ipa,
            block_size,
            epochs: _,
            cache,
        } = self;
        let cached = cache.all();
        visit.tree(|tree| {
            let mut table = |name, enable: &AtomicBool, ipa: &AtomicU64, size: &AtomicU64| {
                tree.add_with(name, |visit| {
                    visit.tree(|tree| {
                        tree.add("enabled", enable);
                        tree.add("address", &Hex(ipa.load(SeqCst)));
                        tree.add("entries", size);
                    });
                });
            };
            table("steering", steering_enable, steering_ipa, steering_size);
            table("memory_block", block_enable, block_ipa, block_size);
            tree.add("flush_busy", &self.flush_busy());
            tree.add("cached", &Sparse(&cached));
        });
    }
}

/// Keeps translations in force: a cache flush is busy until all older pins are gone.
pub struct Pin {
    tables: Arc<Tables>,
    generation: u64,
}

impl Pin {
    /// The memory that the translations lead to.
    pub fn memory(&self) -> &impl DmaMemory {
        &*self.tables.memory
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        self.tables.epochs.leave(self.generation);
    }
}

impl Pin {
    /// The generation that the pin keeps in force.
    pub(crate) fn in_force(&self) -> InForce<'_> {
        InForce(self.generation, PhantomData)
    }
}

/// A [`Pin`] for as long as a borrow of the tables.
pub(crate) struct Use<'a> {
    tables: &'a Arc<Tables>,
    generation: u64,
}

impl Use<'_> {
    /// The generation that the use keeps in force.
    pub(crate) fn in_force(&self) -> InForce<'_> {
        InForce(self.generation, PhantomData)
    }

    /// Goes on with the use beyond the borrow.
    pub(crate) fn keep(self) -> Pin {
        let pin = Pin { tables: Arc::clone(self.tables), generation: self.generation };
        // The pin ends the use.
        mem::forget(self);
        pin
    }
}

impl Drop for Use<'_> {
    #[inline]
    fn drop(&mut self) {
        self.tables.epochs.leave(self.generation);
    }
}

/// The generation of the tables that is in force.
#[derive(Clone, Copy)]
pub(crate) struct InForce<'a>(u64, PhantomData<&'a ()>);

impl Tables {
    pub(crate) fn new(memory: Arc<Reach>) -> Self {
        Self {
            memory,
            steering_enable: AtomicBool::new(false),
            steering_ipa: AtomicU64::new(0),
            steering_size: AtomicU64::new(0),
            block_enable: AtomicBool::new(false),
            block_ipa: AtomicU64::new(0),
            block_size: AtomicU64::new(0),
            epochs: Epochs::new(),
            cache: Mappings::new(),
        }
    }

    /// A table register; registers of other kinds read 0.
    pub(crate) fn read(&self, reg: CqsReg) -> u64 {
        match reg {
            CqsReg::SteeringTableEnable => self.steering_enable.load(SeqCst).into(),
            CqsReg::SteeringTableIpa => self.steering_ipa.load(SeqCst),
            CqsReg::SteeringTableSize => self.steering_size.load(SeqCst),
            CqsReg::MemoryBlockTableEnable => self.block_enable.load(SeqCst).into(),
            CqsReg::MemoryBlockTableIpa => self.block_ipa.load(SeqCst),
            CqsReg::MemoryBlockTableSize => self.block_size.load(SeqCst),
            _ => 0,
        }
    }

    /// Writes a table register, and drops what was cached of the former tables.
    pub(crate) fn write(&self, reg: CqsReg, value: u64) {
        match reg {
            CqsReg::SteeringTableEnable => self.steering_enable.store(value & 1 != 0, SeqCst),
            CqsReg::SteeringTableIpa => self.steering_ipa.store(value, SeqCst),
            CqsReg::SteeringTableSize => self.steering_size.store(value, SeqCst),
            CqsReg::MemoryBlockTableEnable => self.block_enable.store(value & 1 != 0, SeqCst),
            CqsReg::MemoryBlockTableIpa => self.block_ipa.store(value, SeqCst),
            CqsReg::MemoryBlockTableSize => self.block_size.store(value, SeqCst),
            _ => return,
        }
        self.flush();
    }

    /// Starts to empty the cache.
    pub(crate) fn flush(&self) {
        self.epochs.flush();
    }

    /// Returns true if a flush is still waiting for bursts in flight.
    pub(crate) fn flush_busy(&self) -> bool {
        self.epochs.busy()
    }

    /// The number of cached mappings that the tables in memory do not give any more.
    pub(crate) fn stale(self: &Arc<Self>, memory: &dyn DmaMemory) -> u64 {
        self.stale_with(memory, |_| true)
    }

    /// The number of those whose page table is no memory of the device any more.
    pub(crate) fn lost(self: &Arc<Self>, memory: &dyn DmaMemory) -> u64 {
        let is_there = |m: &Mapping| memory.contains(m.table, size_of::<u64>(), Access::Read);
        self.stale_with(memory, |m| !is_there(m))
    }

    fn stale_with(
        self: &Arc<Self>,
        memory: &dyn DmaMemory,
        counts: impl Fn(&Mapping) -> bool,
    ) -> u64 {
        let tables = self.enter();
        let in_force = tables.in_force();
        let cached = self.cache.all();
        let used = cached.iter().flatten().filter(|m| m.generation == in_force.0);
        let differs = |m: &&Mapping| self.read_mapping(memory, in_force, m.stag).ok() != Some(**m);
        used.filter(differs).filter(|m| counts(m)).count() as u64
    }

    /// Begins a use of the tables.
    #[inline]
    pub(crate) fn enter(self: &Arc<Self>) -> Use<'_> {
        Use { tables: self, generation: self.epochs.enter() }
    }

    fn mapping(
        &self,
        memory: &dyn DmaMemory,
        in_force: InForce<'_>,
        stag: u32,
    ) -> Result<Mapping, Fault> {
        if !self.steering_enable.load(SeqCst) {
            return Err(Fault::steering(Rcode::STEERING_TABLE_DISABLED));
        }
        if let Some(known) = self.cache.get(stag, in_force.0) {
            return Ok(known);
        }
        let mapping = self.read_mapping(memory, in_force, stag)?;
        self.cache.remember(&mapping);
        Ok(mapping)
    }

    fn read_mapping(
        &self,
        memory: &dyn DmaMemory,
        in_force: InForce<'_>,
        stag: u32,
    ) -> Result<Mapping, Fault> {
        if u64::from(stag) >= self.steering_size.load(SeqCst) {
            return Err(Fault::steering(Rcode::STAG_RANGE));
        }
        let unreadable = |_| Fault::steering(Rcode::STEERING_UNREADABLE);
        let at = entry_address(&self.steering_ipa, u64::from(stag), STEERING_ENTRY_SIZE)
            .ok_or(Fault::steering(Rcode::STEERING_UNREADABLE))?;
        let steering = Steering(memory.load(at).map_err(unreadable)?);
        if !steering.enable() {
            return Err(Fault::steering(Rcode::STAG_DISABLED));
        }
        let length = memory.load(at + 8).map_err(unreadable)?;

        if !self.block_enable.load(SeqCst) {
            return Err(Fault::memory_block(Rcode::MEMORY_BLOCK_TABLE_DISABLED));
        }
        let mbid = u64::from(steering.mbid());
        if mbid >= self.block_size.load(SeqCst) {
            return Err(Fault::memory_block(Rcode::MEMORY_BLOCK_RANGE));
        }
        let unreadable = |_| Fault::memory_block(Rcode::MEMORY_BLOCK_UNREADABLE);
        let at = entry_address(&self.block_ipa, mbid, MEMORY_BLOCK_ENTRY_SIZE)
            .ok_or(Fault::memory_block(Rcode::MEMORY_BLOCK_UNREADABLE))?;
        let block = MemoryBlock(memory.load(at).map_err(unreadable)?);
        if !block.enable() {
            return Err(Fault::memory_block(Rcode::MEMORY_BLOCK_DISABLED));
        }
        let page =
            PageSize::from_code(block.ps()).ok_or(Fault::memory_block(Rcode::BAD_PAGE_SIZE))?;
        let pages = memory.load(at + 8).map_err(unreadable)?;
        Ok(Mapping {
            stag,
            generation: in_force.0,
            readonly: steering.readonly(),
            mbva: steering.mbva(),
            length,
            page_bits: page.bits(),
            pages,
            table: block.ipa(),
        })
    }

    /// Where `len` bytes from `at` on are, if their mapping is cached, allows an access of this
    /// kind, and has them on one page, which may not be memory. What is not found here,
    /// [`Tables::translate`] finds, or the reason why not.
    #[inline]
    pub(crate) fn on_a_page(
        &self,
        in_force: InForce<'_>,
        at: StagOffset,
        len: u32,
        access: Access,
    ) -> Option<u64> {
        if !self.steering_enable.load(SeqCst) {
            return None;
        }
        let m = self.cache.get(at.stag(), in_force.0)?;
        let (offset, len) = (at.offset(), u64::from(len));
        if m.readonly && access.writes() || len == 0 || offset + len > m.length {
            return None;
        }
        // Both terms are 40 bits wide, so the sum fits.
        let address = m.mbva + offset;
        let (index, in_page) = (address >> m.page_bits, address & m.mask());
        if index >= m.pages || len > m.mask() + 1 - in_page {
            return None;
        }
        let entry = PageEntry(self.memory.load(m.table + index * PAGE_ENTRY_SIZE).ok()?);
        entry.enable().then(|| (entry.ipa() >> m.page_bits << m.page_bits) + in_page)
    }

    /// Translates `len` bytes from `at` on, for an access of this kind.
    ///
    /// Page table entries are read each time; steering and memory block entries are cached
    /// until a flush.
    #[inline(always)]
    pub(crate) fn translate(
        &self,
        memory: &Reach,
        in_force: InForce<'_>,
        at: StagOffset,
        len: u32,
        access: Access,
    ) -> Translation {
        if let Some(addr) = self.on_a_page(in_force, at, len, access)
            && memory.contains(addr, len as usize, access)
        {
            let segments = Segments::from_buf_and_len([Segment { addr, len }; 2], 1);
            return Translation { segments, len, fault: None };
        }
        self.translate_any(memory, in_force, at, len, access)
    }

    /// [`Tables::translate`] of what may be on any number of pages, or have a fault.
    #[cold]
    fn translate_any(
        &self,
        memory: &dyn DmaMemory,
        in_force: InForce<'_>,
        at: StagOffset,
        len: u32,
        access: Access,
    ) -> Translation {
        let m = match self.mapping(memory, in_force, at.stag()) {
            Ok(m) => m,
            Err(fault) => return Translation::failed(fault),
        };
        if access.writes() && m.readonly {
            return Translation::failed(Fault::steering(Rcode::READ_ONLY));
        }
        let offset = at.offset();
        if offset > m.length {
            return Translation::failed(Fault::steering(Rcode::OFFSET_RANGE));
        }
        let within = u64::from(len).min(m.length - offset) as u32;
        let beyond = (within < len).then(|| Fault::steering(Rcode::OFFSET_RANGE));
        // Both terms are 40 bits wide, so the sum fits.
        let address = m.mbva + offset;
        pages(memory, &m, address, within, access, beyond)
    }
}

/// [`Tables::translate`] of `len` bytes of a block, which are on any number of pages. `beyond` is
/// the fault of what follows.
fn pages(
    memory: &dyn DmaMemory,
    m: &Mapping,
    mut address: u64,
    len: u32,
    access: Access,
    beyond: Option<Fault>,
) -> Translation {
    let mut t = Translation { segments: Segments::new(), len: 0, fault: None };
    let mask = m.mask();
    while t.len < len {
        let in_page = address & mask;
        let n = u64::from(len - t.len).min(mask + 1 - in_page) as u32;
        let start = match page(memory, m, address >> m.page_bits) {
            Ok(start) => start + in_page,
            Err(fault) => {
                t.fault = Some(fault);
                return t;
            }
        };
        if !memory.contains(start, n as usize, access) {
            t.fault = Some(Fault::payload(access.writes()));
            return t;
        }
        match t.segments.last_mut() {
            Some(last) if last.addr + u64::from(last.len) == start => last.len += n,
            _ => t.segments.push(Segment { addr: start, len: n }),
        }
        t.len += n;
        address += u64::from(n);
    }
    t.fault = beyond;
    t
}

/// Address of entry `index` of a table; `None` if it is beyond the address space.
fn entry_address(base: &AtomicU64, index: u64, size: u64) -> Option<u64> {
    let end = base.load(SeqCst).checked_add(index * size)?;
    end.checked_add(size).map(|_| end)
}

/// Address of page `index` of a memory block.
fn page(memory: &dyn DmaMemory, m: &Mapping, index: u64) -> Result<u64, Fault> {
    if index >= m.pages {
        return Err(Fault::memory_block(Rcode::PAGE_RANGE));
    }
    let entry = memory
        .load(m.table + index * PAGE_ENTRY_SIZE)
        .map_err(|_| Fault::memory_block(Rcode::PAGE_UNREADABLE))?;
    let entry = PageEntry(entry);
    if !entry.enable() {
        return Err(Fault::memory_block(Rcode::PAGE_DISABLED));
    }
    // Address bits below the page size are ignored (ours).
    Ok(entry.ipa() >> m.page_bits << m.page_bits)
}
