// SPDX-License-Identifier: GPL-2.0

//! Registered memory: which pages an STag stands for, and how the device's tables describe them.

use kernel::prelude::*;
use kernel::sync::Arc;

use tofu_abi::table::{MemoryBlock, PageEntry, PageSize, Steering};

use crate::charge::{table_pages, Charge};
use crate::device::Device;
use crate::dma::Table;
use crate::opener::Opener;
use crate::pin::{pages_around, Pinned, DEVICE_PAGE, MAX_SPAN};
use crate::uapi::{self, AllocStag};
use crate::unmap::{MemoryUser, UnmapNotifier, UsedMemory};

use super::tables::{StagEntry, SPECIAL_STAGS};

/// Where the address space of an STag begins: at a multiple of this, as on machines whose pages
/// are so large. Programs rely on an offset having the same low bits as the address.
const BASE_ALIGN: u64 = 1 << 16;
/// Pages that the driver's and the kernel's objects of an STag take at most.
const OBJECTS: usize = 1;
const HUGE: u64 = PageSize::Size2M.bytes();

/// What an STag stands for: pages of the process, and how they are mapped.
#[derive(Clone, Copy)]
pub(super) struct Span {
    /// First byte that the process asked for.
    va: u64,
    /// First byte of the first page, and the one behind the last.
    start: u64,
    end: u64,
    /// Where the address space begins, unless the STag is of the process's own choice.
    base: u64,
    large: bool,
    pub(super) read_only: bool,
}

impl Span {
    /// # Errors
    ///
    /// `EINVAL` if there are no such addresses, or more than an offset can say.
    pub(super) fn new(a: &AllocStag) -> Result<Self> {
        let (start, end) = pages_around(a.va, a.len)?;
        let large = a.flags & uapi::LARGE_PAGES != 0 && end - start >= HUGE;
        let base = start & !(if large { HUGE } else { BASE_ALIGN } - 1);
        if end - base > MAX_SPAN {
            return Err(EINVAL);
        }
        Ok(Self {
            va: a.va,
            start,
            end,
            base,
            large,
            read_only: a.flags & uapi::READ_ONLY != 0,
        })
    }

    /// Whether the public interface has one STag for both: it counts in pages of 64 KiB.
    fn serves(&self, other: &Self) -> bool {
        let properties = |span: &Self| (span.base, span.large, span.read_only);
        properties(self) == properties(other)
            && self.end.div_ceil(BASE_ALIGN) == other.end.div_ceil(BASE_ALIGN)
            && (self.start..=self.end).contains(&other.start)
            && other.end <= self.end
    }

    /// Where the address space of `stag` begins. One of the process's own choice begins at the
    /// memory itself.
    fn origin(&self, stag: u32) -> u64 {
        if stag < SPECIAL_STAGS {
            self.va & !0xff
        } else {
            self.base
        }
    }

    /// The offset by which `stag` names the first byte that the process asked for.
    pub(super) fn offset(&self, stag: u32) -> u64 {
        self.va - self.origin(stag)
    }

    /// Pages that the device has the memory in if it sees one range.
    fn range_page(&self) -> PageSize {
        if self.end - self.start >= HUGE {
            PageSize::Size2M
        } else {
            PageSize::Size64K
        }
    }
}

/// The pages by which the device reaches a span.
struct Pages {
    size: PageSize,
    /// Address of the process that the first entry stands for.
    first: u64,
    table: Table,
    entries: u64,
    _charge: Charge,
}

impl Pages {
    /// # Errors
    ///
    /// `ENOMEM`.
    fn new(
        device: &Arc<Device>,
        opener: &Arc<Opener>,
        span: &Span,
        pinned: &Pinned,
    ) -> Result<Self> {
        let large = span.range_page();
        let range = pinned.range().filter(|addr| addr % large.bytes() == 0);
        let (size, first) = match range {
            Some(_) => (large, span.start & !(large.bytes() - 1)),
            None => (PageSize::Size4K, span.base),
        };
        let entries = (span.end - first).div_ceil(size.bytes());
        let bytes = entries as usize * size_of::<PageEntry>();
        let charge = Charge::new(device, opener, table_pages(bytes) + OBJECTS)?;
        let table = Table::for_process(device, entries as usize)?;
        let entry = |addr: u64| PageEntry(0).with_ipa(addr).with_enable(true).0;
        match range {
            Some(addr) => {
                for i in 0..entries {
                    table.store(i as usize, entry(addr + i * size.bytes()));
                }
            }
            None => {
                // Entries in front of the first page stay disabled.
                let skipped = ((span.start - first) / DEVICE_PAGE) as usize;
                for (i, addr) in pinned.device_pages().enumerate() {
                    table.store(skipped + i, entry(addr));
                }
            }
        }
        Ok(Self {
            size,
            first,
            table,
            entries,
            _charge: charge,
        })
    }
}

/// Registered memory. The order of fields is that of taking it down.
pub(super) struct Stag {
    number: u32,
    span: Span,
    notifier: Pin<KBox<UnmapNotifier>>,
    _pinned: Pinned,
    pages: Pages,
}

impl Stag {
    /// Pins a span of the calling process's memory and makes its page table.
    ///
    /// # Errors
    ///
    /// Those of [`Pinned::new`].
    pub(super) fn new(
        user: Arc<dyn MemoryUser>,
        device: &Arc<Device>,
        opener: &Arc<Opener>,
        number: u32,
        span: &Span,
    ) -> Result<Self> {
        let range = (span.start, span.end);
        // First of all: what is unmapped while it is being pinned is noticed.
        let notifier = UnmapNotifier::new(user, UsedMemory::Stag(number), opener.mm(), range)?;
        // In step with huge pages, should the memory have some: then the IOMMU has them too.
        let align = span.range_page().bytes();
        let pinned = Pinned::new(device, opener, range, !span.read_only, align)?;
        let pages = Pages::new(device, opener, span, &pinned)?;
        Ok(Self {
            number,
            span: *span,
            notifier,
            _pinned: pinned,
            pages,
        })
    }

    /// Whether this STag can be given out for `span` too, whose pages are the process's still.
    pub(super) fn serves(&self, span: &Span) -> bool {
        self.span.serves(span) && self.notifier.is_untouched()
    }

    /// What the device's tables and the process's say of it.
    pub(super) fn entry(&self) -> StagEntry {
        let Span { end, base, .. } = self.span;
        let mbva = self.span.origin(self.number) - self.pages.first;
        let units = (end - base).div_ceil(BASE_ALIGN);
        let large = self.span.large && self.pages.size == PageSize::Size2M;
        StagEntry {
            block: MemoryBlock(0)
                .with_ps(self.pages.size as u8)
                .with_ipa(self.pages.table.addr())
                .with_enable(true),
            pages: self.pages.entries,
            steering: Steering(0)
                .with_readonly(self.span.read_only)
                .with_mbva_units(mbva >> 8)
                .with_mbid(self.number as u16)
                .with_enable(true),
            bytes: end - self.pages.first - mbva,
            user: base >> 16 & ((1 << 36) - 1)
                | (units & ((1 << 27) - 1)) << 36
                | u64::from(large) << 63,
        }
    }
}
