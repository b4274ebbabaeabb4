// SPDX-License-Identifier: GPL-2.0

//! Registered memory: the pages of an STag, and their entries in the device's tables.

use kernel::prelude::*;
use kernel::sync::Arc;

use tofu_abi::table::{MemoryBlock, PageEntry, PageSize, Steering};

use crate::charge::{table_pages, Charge};
use crate::device::Device;
use crate::dma::Table;
use crate::opener::Opener;
use crate::pin::{Pinned, DEVICE_PAGE};
use crate::uapi::Span;
use crate::unmap::{MemoryUser, UnmapNotifier, UsedMemory};

use super::tables::StagEntry;

/// The most pages for the objects of the driver and the kernel for an STag.
const OBJECTS: usize = 1;

/// The page table of a span for the device.
struct Pages {
    size: PageSize,
    /// The process's address of the first entry.
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
        let (start, end) = span.range();
        let large = span.range_page();
        let range = pinned.range().filter(|addr| addr % large.bytes() == 0);
        let size = range.map_or(PageSize::Size4K, |_| large);
        let first = span.first(range.is_some());
        let entries = (end - first).div_ceil(size.bytes());
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
                // Entries before the first page stay disabled.
                let skipped = ((start - first) / DEVICE_PAGE) as usize;
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

/// Registered memory. Fields are dropped in this order.
pub(super) struct Stag {
    number: u32,
    span: Span,
    /// `None` once the queue was closed.
    notifier: Option<Pin<KBox<UnmapNotifier>>>,
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
        let range = span.range();
        // The notifier comes first, so that unmapping during the pinning is noticed.
        let notifier = UnmapNotifier::new(user, UsedMemory::Stag(number), opener.mm(), range)?;
        // In step with huge pages, should the memory have some: then the IOMMU has them too.
        let align = span.range_page().bytes();
        let pinned = Pinned::new(device, opener, range, !span.is_read_only(), align)?;
        let pages = Pages::new(device, opener, span, &pinned)?;
        Ok(Self {
            number,
            span: *span,
            notifier: Some(notifier),
            _pinned: pinned,
            pages,
        })
    }

    /// Returns true if this STag can also be used for `span`, and the process still has its pages.
    pub(super) fn serves(&self, span: &Span) -> bool {
        let is_untouched = |notifier: &Pin<KBox<UnmapNotifier>>| notifier.is_untouched();
        self.span.serves(span) && self.notifier.as_ref().is_some_and(is_untouched)
    }

    /// Ends the notification of the process's changes to the memory, which stays pinned.
    pub(super) fn remove_notifier(&mut self) {
        self.notifier = None;
    }

    /// The state of the STag in the device's tables and in the process's.
    pub(super) fn entry(&self) -> StagEntry {
        let (_, end) = self.span.range();
        let mbva = self.span.origin(self.number) - self.pages.first;
        StagEntry {
            block: MemoryBlock(0)
                .with_ps(self.pages.size as u8)
                .with_ipa(self.pages.table.addr())
                .with_enable(true),
            pages: self.pages.entries,
            steering: Steering(0)
                .with_readonly(self.span.is_read_only())
                .with_mbva_units(mbva >> 8)
                .with_mbid(self.number as u16)
                .with_enable(true),
            bytes: end - self.pages.first - mbva,
            user: self.span.user_entry(self.pages.size == PageSize::Size2M),
        }
    }
}
