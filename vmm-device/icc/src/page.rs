//! Storage of the pages of control queues and barrier channels.
//!
//! With trapped doorbells a page is private to the device, and every access of the guest comes
//! through the BAR. With polled doorbells it is memory that the guest has mapped, and the device
//! polls it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tofu_abi::regs::{CqReg, NUM_BCH, NUM_CQ, NUM_TNI, PAGE_SIZE, bch_page};
use tofu_abi::{BchId, CqId, Doorbell, TniId};
use vm_memory::{MmapRegion, VolatileMemory};

/// Pages that are shared with the guest: one of 4 KiB for each control queue and barrier channel.
#[derive(Clone, Debug)]
pub struct SharedPages {
    region: Arc<MmapRegion<()>>,
    layout: Layout,
}

/// The layout of the pages in their region.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// One after the other.
    Packed,
    /// As in BAR 0.
    AsInBar,
}

impl SharedPages {
    /// Bytes of the pages of all control queues and, behind them, all barrier channels.
    pub const SIZE: usize = NUM_TNI * (NUM_CQ + NUM_BCH) * PAGE_SIZE as usize;

    /// Bytes of BAR0 up to the end of the last barrier channel's page.
    pub const SIZE_AS_IN_BAR: usize =
        (bch_page(TniId::ALL[NUM_TNI - 1], BchId::ALL[NUM_BCH - 1]) + PAGE_SIZE) as usize;

    /// Uses `region`, which must be at least [`SharedPages::SIZE`] bytes long.
    pub fn new(region: Arc<MmapRegion<()>>) -> Option<Self> {
        (region.len() >= Self::SIZE).then_some(Self { region, layout: Layout::Packed })
    }

    /// As [`SharedPages::new`], but each page is at its offset in BAR0: for a `region` of a file
    /// that another process maps. It must be at least [`SharedPages::SIZE_AS_IN_BAR`] bytes long;
    /// most of it is never touched.
    pub fn as_in_bar(region: Arc<MmapRegion<()>>) -> Option<Self> {
        let fits = region.len() >= Self::SIZE_AS_IN_BAR;
        fits.then_some(Self { region, layout: Layout::AsInBar })
    }

    /// Byte offset of the page of one doorbell in a packed region ([`SharedPages::new`]).
    pub const fn page_offset(tni: TniId, doorbell: Doorbell) -> usize {
        let page = match doorbell {
            Doorbell::Cq(cq) => tni.index() * NUM_CQ + cq.index(),
            Doorbell::Channel(bch) => NUM_TNI * NUM_CQ + tni.index() * NUM_BCH + bch.index(),
        };
        page * PAGE_SIZE as usize
    }

    /// Byte offset in this region of the page of one doorbell.
    pub const fn offset_of(&self, tni: TniId, doorbell: Doorbell) -> usize {
        match self.layout {
            Layout::Packed => Self::page_offset(tni, doorbell),
            Layout::AsInBar => doorbell.page(tni) as usize,
        }
    }

    /// The region.
    pub fn region(&self) -> &Arc<MmapRegion<()>> {
        &self.region
    }
}

/// The `N` registers of a page, in the device's own memory or in memory that the guest has mapped.
/// They are at successive offsets.
#[derive(Debug)]
pub(crate) struct PageRegisters<const N: usize> {
    /// The registers of a private page. In a shared page, a substitute for a register outside of
    /// the mapping, which cannot happen, but need not be fatal.
    own: [AtomicU64; N],
    shared: Option<(SharedPages, usize)>,
}

impl<const N: usize> PageRegisters<N> {
    pub(crate) fn new(tni: TniId, doorbell: Doorbell, shared: Option<&SharedPages>) -> Self {
        Self {
            own: [const { AtomicU64::new(0) }; N],
            shared: shared.map(|pages| (pages.clone(), pages.offset_of(tni, doorbell))),
        }
    }

    /// Returns true if the guest can write the page without an exit.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The register at an offset in bytes from the start of the page.
    #[inline]
    pub(crate) fn at(&self, offset: u64) -> &AtomicU64 {
        let own = &self.own[(offset / 8) as usize % N];
        match &self.shared {
            Some((pages, base)) => {
                pages.region.get_atomic_ref(base + offset as usize).unwrap_or(own)
            }
            None => own,
        }
    }

    /// Sets all registers to 0, and in a shared page also the memory between them: the next user of
    /// the page must not find data of the former one.
    pub(crate) fn clear(&self) {
        for own in &self.own {
            own.store(0, Ordering::Release);
        }
        if let Some((pages, base)) = &self.shared
            && let Ok(page) = pages.region.get_slice(*base, PAGE_SIZE as usize)
        {
            page.copy_from(&[0u8; PAGE_SIZE as usize]);
        }
    }
}

/// The page of a control queue.
#[derive(Debug)]
pub(crate) struct Page(PageRegisters<{ CqReg::ALL.len() }>);

impl Page {
    pub(crate) fn new(tni: TniId, cq: CqId, shared: Option<&SharedPages>) -> Self {
        Self(PageRegisters::new(tni, cq.into(), shared))
    }

    /// Returns true if the guest can write the page without an exit.
    pub(crate) fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    #[inline]
    pub(crate) fn reg(&self, reg: CqReg) -> &AtomicU64 {
        self.0.at(reg.offset())
    }

    pub(crate) fn load(&self, reg: CqReg) -> u64 {
        self.reg(reg).load(Ordering::Acquire)
    }

    pub(crate) fn store(&self, reg: CqReg, value: u64) {
        self.reg(reg).store(value, Ordering::Release);
    }

    /// Adds to a counter. Only for counters with one writer at a time: a guest that overwrites a
    /// shared page changes only values that it reads itself.
    #[inline(always)]
    pub(crate) fn add(&self, reg: CqReg, n: u64) {
        self.reg(reg).fetch_add(n, Ordering::Relaxed);
    }

    /// Sets all registers to 0.
    pub(crate) fn clear(&self) {
        self.0.clear();
    }
}

/// The eight registers of the direct descriptor.
pub(crate) const DIRECT: [CqReg; 8] = [
    CqReg::DirectDescriptor0,
    CqReg::DirectDescriptor1,
    CqReg::DirectDescriptor2,
    CqReg::DirectDescriptor3,
    CqReg::DirectDescriptor4,
    CqReg::DirectDescriptor5,
    CqReg::DirectDescriptor6,
    CqReg::DirectDescriptor7,
];

/// The three registers of the piggyback buffer.
pub(crate) const PIGGYBACK: [CqReg; 3] =
    [CqReg::PiggybackBuffer0, CqReg::PiggybackBuffer1, CqReg::PiggybackBuffer2];

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a control queue, and of a barrier channel.
    #[test]
    fn cleared_page_has_nothing_of_its_user() {
        let pages = SharedPages::new(Arc::new(MmapRegion::new(SharedPages::SIZE).unwrap()));
        let pages = pages.unwrap();
        for doorbell in [Doorbell::from(CqId::ALL[3]), Doorbell::from(BchId::ALL[2])] {
            let page = PageRegisters::<4>::new(TniId::ALL[1], doorbell, Some(&pages));
            let base = SharedPages::page_offset(TniId::ALL[1], doorbell);
            let memory = pages.region().get_slice(base, PAGE_SIZE as usize).unwrap();
            memory.copy_from(&[0xa5u8; PAGE_SIZE as usize]);
            assert_eq!(page.at(0x18).load(Ordering::Relaxed), 0xa5a5_a5a5_a5a5_a5a5);
            page.clear();
            let mut left = [1u8; PAGE_SIZE as usize];
            memory.copy_to(&mut left);
            assert!(left.iter().all(|byte| *byte == 0), "{doorbell:?}");
        }
    }
}
