//! Address translation tables: STags and their memory.
//!
//! STag n uses memory block n, as in the public kernel driver, so a queue has at most
//! 65536 STags here although the field could name 2^18: a memory block id has 16 bits.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::sync::atomic::Ordering;

use thiserror::Error;
use tofu_abi::addr::OFFSET_BITS;
use tofu_abi::table::{
    IPA_BITS, MEMORY_BLOCK_ENTRY_SIZE, MemoryBlock, PAGE_ENTRY_SIZE, PageEntry, PageSize,
    STEERING_ENTRY_SIZE, Steering, TABLE_ALIGN,
};
use tofu_abi::{CqId, StagOffset};

use crate::device::TimedOut;
use crate::platform::{DmaBuffer, DmaError, Platform};

/// The most STags of a queue.
pub(crate) const MAX_STAGS: u32 = 1 << 16;

/// Granularity of the start of an STag's address space, in bytes. The mbva field of a steering
/// entry lacks the low bits.
const MBVA_UNIT: u64 = 256;

/// Rights of remote and local commands on an STag's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and write.
    ReadWrite,
    /// Read only: a write ends with an error.
    ReadOnly,
}

/// A contiguous range of device addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// First address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
}

impl MemoryRange {
    /// The whole of a DMA buffer.
    pub fn of<D: DmaBuffer>(buffer: &D) -> Self {
        Self { addr: buffer.device_addr(), len: buffer.len() as u64 }
    }
}

/// Memory registered with a control queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stag {
    base: StagOffset,
    len: u64,
}

impl Stag {
    /// The steering tag.
    pub const fn stag(self) -> u32 {
        self.base.stag()
    }

    /// Size of the registered memory, in bytes.
    pub const fn len(self) -> u64 {
        self.len
    }

    /// Returns true if no memory is registered. This is never the case for an STag made by a queue.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The address word of the byte at `offset` of the registered memory, as in a command.
    pub const fn at(self, offset: u64) -> StagOffset {
        self.base.advanced(offset)
    }
}

/// The reason why memory cannot be registered or unregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StagError {
    /// All STags are in use.
    #[error("no STag is free")]
    NoneFree,
    /// The requested STag is in use.
    #[error("STag {0} is in use")]
    InUse(u32),
    /// The STag is beyond the queue's steering table.
    #[error("STag {0} is beyond the steering table")]
    OutOfRange(u32),
    /// The STag is not registered.
    #[error("STag {0} is not registered")]
    NotRegistered(u32),
    /// There are no ranges, or one of them is empty.
    #[error("no memory to register")]
    Empty,
    /// The ranges do not consist of pages of the requested size: each but the first must start at a
    /// page boundary, and each but the last must end at one.
    #[error("memory range {range} is not made of pages")]
    NotPages {
        /// Index of the invalid range.
        range: usize,
    },
    /// An address does not fit into a table: addresses there have 40 bits.
    #[error("address {0:#x} is beyond {IPA_BITS} bits")]
    Address(u64),
    /// The memory cannot have this offset: the lowest eight bits differ from those of the address,
    /// or the end would be beyond 40 bits.
    #[error("memory cannot start at offset {0:#x}")]
    Offset(u64),
    /// No memory for the page table.
    #[error(transparent)]
    Memory(DmaError),
    /// The translation cache could not be emptied. The STag stays in use, because the device might
    /// still use its page table.
    #[error(transparent)]
    Flush(TimedOut),
}

/// The steering and memory block tables of one queue, with their page tables.
#[derive(Debug)]
pub(crate) struct Tables<P: Platform> {
    cq: CqId,
    /// Steering table and memory block table.
    entries: Arc<[P::Dma; 2]>,
    /// Page table of each STag in use.
    pages: Vec<Option<P::Dma>>,
    /// The STag at which the search for a free one starts.
    next: u32,
}

impl<P: Platform> Tables<P> {
    /// Tables for `stags` STags of control queue `cq`, all disabled.
    pub(crate) fn new(platform: &P, cq: CqId, stags: u32) -> Result<Self, DmaError> {
        let align = TABLE_ALIGN as usize;
        let n = stags as usize;
        let steering = platform.alloc_dma(n * STEERING_ENTRY_SIZE as usize, align)?;
        let blocks = platform.alloc_dma(n * MEMORY_BLOCK_ENTRY_SIZE as usize, align)?;
        let entries = Arc::new([steering, blocks]);
        Ok(Self { cq, entries, pages: (0..n).map(|_| None).collect(), next: 0 })
    }

    pub(crate) fn steering(&self) -> &P::Dma {
        &self.entries[0]
    }

    pub(crate) fn blocks(&self) -> &P::Dma {
        &self.entries[1]
    }

    /// Keeps all tables from ever being freed, for a device that may still read them.
    pub(crate) fn leak(&mut self) {
        mem::forget(Arc::clone(&self.entries));
        mem::forget(mem::take(&mut self.pages));
    }

    /// Number of entries of each table.
    pub(crate) fn len(&self) -> u32 {
        self.pages.len() as u32
    }

    fn choose(&mut self, wanted: Option<u32>) -> Result<u32, StagError> {
        let n = self.len();
        if let Some(stag) = wanted {
            return match self.pages.get(stag as usize) {
                Some(None) => Ok(stag),
                Some(Some(_)) => Err(StagError::InUse(stag)),
                None => Err(StagError::OutOfRange(stag)),
            };
        }
        let stag = (0..n)
            .map(|i| (self.next + i) % n)
            .find(|stag| self.pages[*stag as usize].is_none())
            .ok_or(StagError::NoneFree)?;
        self.next = (stag + 1) % n;
        Ok(stag)
    }

    /// Fills the entries of an STag in the order page table, memory block, steering, so that the
    /// device never follows an enabled entry to an incomplete one.
    pub(crate) fn register(
        &mut self,
        platform: &P,
        memory: &Memory<'_>,
        wanted: Option<u32>,
    ) -> Result<Stag, StagError> {
        let layout = Layout::new(memory.ranges, memory.page)?;
        let stag = self.choose(wanted)?;
        self.fill(platform, memory, stag, layout)
    }

    /// Like [`Tables::register`], with a given STag and a given offset of the first byte.
    pub(crate) fn register_at(
        &mut self,
        platform: &P,
        memory: &Memory<'_>,
        stag: u32,
        offset: u64,
    ) -> Result<Stag, StagError> {
        let layout = Layout::at(memory.ranges, memory.page, offset)?;
        let stag = self.choose(Some(stag))?;
        self.fill(platform, memory, stag, layout)
    }

    fn fill(
        &mut self,
        platform: &P,
        memory: &Memory<'_>,
        stag: u32,
        layout: Layout,
    ) -> Result<Stag, StagError> {
        let Memory { ranges, page, access } = *memory;
        let size = (layout.pages * PAGE_ENTRY_SIZE) as usize;
        let table = platform.alloc_dma(size, TABLE_ALIGN as usize).map_err(StagError::Memory)?;
        // Buffers are zeroed, so the entries before the first page stay disabled.
        let mut index = (layout.skipped * PAGE_ENTRY_SIZE) as usize;
        for range in ranges {
            let mut addr = range.addr & !(page.bytes() - 1);
            while addr < range.addr + range.len {
                let entry = PageEntry(0).with_ipa(addr).with_enable(true);
                table.store_u64(index, entry.0, Ordering::Release);
                index += PAGE_ENTRY_SIZE as usize;
                addr += page.bytes();
            }
        }

        let at = stag as usize * MEMORY_BLOCK_ENTRY_SIZE as usize;
        let block =
            MemoryBlock(0).with_ps(page as u8).with_ipa(table.device_addr()).with_enable(true);
        self.blocks().store_u64(at + 8, layout.pages, Ordering::Relaxed);
        self.blocks().store_u64(at, block.0, Ordering::Release);

        let at = stag as usize * STEERING_ENTRY_SIZE as usize;
        let steering = Steering(0)
            .with_readonly(access == Access::ReadOnly)
            .with_mbva_units(layout.mbva / MBVA_UNIT)
            .with_mbid(stag as u16)
            .with_enable(true);
        self.steering().store_u64(at + 8, layout.offset + layout.len, Ordering::Relaxed);
        self.steering().store_u64(at, steering.0, Ordering::Release);

        self.pages[stag as usize] = Some(table);
        Ok(Stag { base: StagOffset::new(self.cq, stag, layout.offset), len: layout.len })
    }

    /// Clears the enable bits of an STag's entries. The caller flushes the device's cache and
    /// then calls [`Tables::release`].
    pub(crate) fn disable(&mut self, stag: u32) -> Result<(), StagError> {
        match self.pages.get(stag as usize) {
            Some(Some(_)) => {}
            Some(None) => return Err(StagError::NotRegistered(stag)),
            None => return Err(StagError::OutOfRange(stag)),
        }
        self.steering().store_u64(
            stag as usize * STEERING_ENTRY_SIZE as usize,
            0,
            Ordering::Release,
        );
        self.blocks().store_u64(
            stag as usize * MEMORY_BLOCK_ENTRY_SIZE as usize,
            0,
            Ordering::Release,
        );
        Ok(())
    }

    /// Frees the page table of a disabled STag.
    pub(crate) fn release(&mut self, stag: u32) {
        self.pages[stag as usize] = None;
    }
}

/// Memory that is to be registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory<'a> {
    /// Its parts in order.
    pub(crate) ranges: &'a [MemoryRange],
    /// The size of its pages.
    pub(crate) page: PageSize,
    /// The access that peers have.
    pub(crate) access: Access,
}

/// The pages and offsets of a list of ranges.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    /// Number of entries of the page table.
    pages: u64,
    /// Number of unused entries before the first page.
    skipped: u64,
    /// Start of the address space in the memory block.
    mbva: u64,
    /// Offset of the first byte in the address space.
    offset: u64,
    len: u64,
}

impl Layout {
    fn new(ranges: &[MemoryRange], page: PageSize) -> Result<Self, StagError> {
        let mask = page.bytes() - 1;
        let (mut pages, mut len) = (0, 0);
        for (i, range) in ranges.iter().enumerate() {
            let end = range.addr.checked_add(range.len).filter(|end| *end <= 1 << IPA_BITS);
            let end = end.ok_or(StagError::Address(range.addr))?;
            let inner_start = i > 0 && range.addr & mask != 0;
            let inner_end = i + 1 < ranges.len() && end & mask != 0;
            if range.len == 0 {
                return Err(StagError::Empty);
            }
            if inner_start || inner_end {
                return Err(StagError::NotPages { range: i });
            }
            pages += ((end - 1) >> page.bits()) - (range.addr >> page.bits()) + 1;
            len += range.len;
        }
        let start = ranges.first().ok_or(StagError::Empty)?.addr & mask;
        // Peers can reach at most 255 bytes before the memory: the start in a steering entry has no
        // finer granularity.
        let (mbva, offset) = (start & !(MBVA_UNIT - 1), start % MBVA_UNIT);
        Ok(Self { pages, skipped: 0, mbva, offset, len })
    }

    /// The layout that gives the first byte this offset.
    fn at(ranges: &[MemoryRange], page: PageSize, offset: u64) -> Result<Self, StagError> {
        let plain = Self::new(ranges, page)?;
        let addr = ranges.first().ok_or(StagError::Empty)?.addr;
        let fits = offset.checked_add(plain.len).is_some_and(|end| end <= 1 << OFFSET_BITS);
        if !fits || offset % MBVA_UNIT != addr % MBVA_UNIT {
            return Err(StagError::Offset(offset));
        }
        // In the memory block the byte must have the same offset in its page as in memory.
        let mbva = addr.wrapping_sub(offset) & (page.bytes() - 1);
        let skipped = (mbva + offset) >> page.bits();
        Ok(Self { pages: plain.pages + skipped, skipped, mbva, offset, len: plain.len })
    }
}
