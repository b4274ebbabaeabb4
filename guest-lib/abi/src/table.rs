//! Address translation tables, which a driver keeps in memory and the device reads.
//!
//! A driver fills page table entries first, then the memory block entry, then the
//! steering entry, each with its enable bit last.

use crate::{bitfield, codes};

/// Bytes of a steering table entry.
pub const STEERING_ENTRY_SIZE: u64 = 16;
/// Bytes of a memory block table entry.
pub const MEMORY_BLOCK_ENTRY_SIZE: u64 = 16;
/// Bytes of a page table entry.
pub const PAGE_ENTRY_SIZE: u64 = 8;
/// Alignment of the tables, in bytes.
pub const TABLE_ALIGN: u64 = 256;

bitfield! {
    /// First qword of a steering table entry; the second one is the length in bytes.
    pub struct Steering {
        /// Writes are refused.
        readonly / with_readonly: bool @ 6..=6,
        /// The entry is valid.
        enable / with_enable: bool @ 7..=7,
        /// The start of the address space in the memory block, in units of 256 bytes.
        mbva_units / with_mbva_units: u64 @ 8..=39,
        /// Index of the memory block.
        mbid / with_mbid: u16 @ 48..=63,
    }
}

impl Steering {
    /// The start of the address space in the memory block, in bytes.
    pub const fn mbva(self) -> u64 {
        self.mbva_units() << 8
    }
}

bitfield! {
    /// First qword of a memory block table entry; the second one is the number of pages.
    pub struct MemoryBlock {
        /// Page size code, see [`PageSize`].
        ps / with_ps: u8 @ 0..=2,
        /// The entry is valid.
        enable / with_enable: bool @ 7..=7,
        /// Address of the page table, in units of 256 bytes.
        ipa_units / with_ipa_units: u64 @ 8..=39,
    }
}

impl MemoryBlock {
    /// Address of the page table.
    pub const fn ipa(self) -> u64 {
        self.ipa_units() << 8
    }

    /// A copy with the page table's address replaced; it must be a multiple of 256.
    #[must_use]
    pub const fn with_ipa(self, ipa: u64) -> Self {
        self.with_ipa_units(ipa >> 8)
    }
}

bitfield! {
    /// A page table entry.
    pub struct PageEntry {
        /// The entry is valid.
        enable / with_enable: bool @ 7..=7,
        /// Address of the page, in units of 4096 bytes.
        ipa_units / with_ipa_units: u64 @ 12..=39,
    }
}

impl PageEntry {
    /// Address of the page.
    pub const fn ipa(self) -> u64 {
        self.ipa_units() << 12
    }

    /// A copy with the page's address replaced; it must be a multiple of 4096.
    #[must_use]
    pub const fn with_ipa(self, ipa: u64) -> Self {
        self.with_ipa_units(ipa >> 12)
    }
}

/// Addresses in tables are 40 bits wide.
pub const IPA_BITS: u32 = 40;

codes! {
    /// Page sizes of a memory block.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum PageSize {
        /// 4 KiB.
        Size4K = 0,
        /// 2 MiB.
        Size2M = 1,
        /// 1 GiB.
        Size1G = 2,
        /// 64 KiB.
        Size64K = 4,
        /// 512 MiB.
        Size512M = 5,
    }
}

impl PageSize {
    /// log2 of the size in bytes.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Size4K => 12,
            Self::Size64K => 16,
            Self::Size2M => 21,
            Self::Size512M => 29,
            Self::Size1G => 30,
        }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.bits()
    }
}
