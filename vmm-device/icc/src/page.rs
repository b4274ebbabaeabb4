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

/// Where the pages are in their region.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// One after the other.
    Packed,
    /// Where they are in BAR0.
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

    /// Likewise with each page at its offset in BAR0, for a `region` of a file that another process
    /// maps. It must be at least [`SharedPages::SIZE_AS_IN_BAR`] bytes long, most of which are
    /// never touched.
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

const REGISTERS: usize = CqReg::ALL.len();

/// The registers of one control queue page.
#[derive(Debug)]
pub(crate) struct Page {
    /// The registers of a private page. In a shared page, a stand-in for a register that the
    /// mapping does not have (which cannot happen, but need not be fatal either).
    own: [AtomicU64; REGISTERS],
    shared: Option<(SharedPages, usize)>,
}

impl Page {
    pub(crate) fn new(tni: TniId, cq: CqId, shared: Option<&SharedPages>) -> Self {
        Self {
            own: [const { AtomicU64::new(0) }; REGISTERS],
            shared: shared.map(|s| (s.clone(), s.offset_of(tni, cq.into()))),
        }
    }

    /// Whether the guest can write the page without an exit.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    #[inline]
    pub(crate) fn reg(&self, reg: CqReg) -> &AtomicU64 {
        let own = &self.own[(reg.offset() / 8) as usize % REGISTERS];
        match &self.shared {
            Some((pages, base)) => {
                pages.region.get_atomic_ref(base + reg.offset() as usize).unwrap_or(own)
            }
            None => own,
        }
    }

    pub(crate) fn load(&self, reg: CqReg) -> u64 {
        self.reg(reg).load(Ordering::Acquire)
    }

    pub(crate) fn store(&self, reg: CqReg, value: u64) {
        self.reg(reg).store(value, Ordering::Release);
    }

    /// Adds to a counter. Only for counters with one writer at a time: a guest that scribbles over
    /// a shared page changes only what it reads itself.
    pub(crate) fn add(&self, reg: CqReg, n: u64) {
        self.reg(reg).fetch_add(n, Ordering::Relaxed);
    }

    /// Sets all registers to 0, and in a shared page also the memory between them: the next user of
    /// the queue must not find what the former one has left there.
    pub(crate) fn clear(&self) {
        for &reg in CqReg::ALL {
            self.store(reg, 0);
        }
        if let Some((pages, base)) = &self.shared
            && let Ok(page) = pages.region.get_slice(*base, PAGE_SIZE as usize)
        {
            page.copy_from(&[0u8; PAGE_SIZE as usize]);
        }
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
