//! The interrupt registers of a unit.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::Host;

/// IRR, IMR and ICL of one unit (CQS, BGS, TNI or TNR).
#[derive(Debug)]
pub(crate) struct IrqUnit {
    vector: u16,
    /// Bits that exist in this unit.
    bits: u64,
    pending: AtomicU64,
    mask: AtomicU64,
    level: AtomicU64,
}

impl IrqUnit {
    /// A unit whose requests go to `vector`. After reset all is masked.
    pub(crate) const fn new(vector: u16, bits: u64) -> Self {
        Self {
            vector,
            bits,
            pending: AtomicU64::new(0),
            mask: AtomicU64::new(u64::MAX),
            level: AtomicU64::new(0),
        }
    }

    pub(crate) fn reset(&self) {
        self.pending.store(0, SeqCst);
        self.mask.store(u64::MAX, SeqCst);
        self.level.store(0, SeqCst);
    }

    /// Raises requests; a message is sent if one of them is new and not masked.
    pub(crate) fn request(&self, host: &dyn Host, bits: u64) {
        let bits = bits & self.bits;
        if bits == 0 {
            return;
        }
        // SeqCst here and in `clear_mask`: of a request and an unmasking at the same time, at
        // least one must see the other.
        let new = bits & !self.pending.fetch_or(bits, SeqCst);
        if new & !self.mask.load(SeqCst) != 0 {
            host.interrupt(self.vector);
        }
    }

    /// IRR.
    pub(crate) fn pending(&self) -> u64 {
        self.pending.load(SeqCst)
    }

    /// IMR.
    pub(crate) fn mask(&self) -> u64 {
        self.mask.load(SeqCst)
    }

    /// ICL.
    pub(crate) fn level(&self) -> u64 {
        self.level.load(SeqCst)
    }

    /// A write to IMR.
    pub(crate) fn set_mask(&self, bits: u64) {
        self.mask.fetch_or(bits, SeqCst);
    }

    /// A write to IRC.
    pub(crate) fn clear_pending(&self, bits: u64) {
        self.pending.fetch_and(!bits, SeqCst);
    }

    /// A write to IMC: unmasks, and sends a message for what is still pending.
    pub(crate) fn clear_mask(&self, host: &dyn Host, bits: u64) {
        let unmasked = bits & self.mask.fetch_and(!bits, SeqCst);
        if unmasked & self.pending.load(SeqCst) != 0 {
            host.interrupt(self.vector);
        }
    }

    /// A write to ICL.
    pub(crate) fn set_level(&self, value: u64) {
        self.level.store(value, SeqCst);
    }
}
