//! Requesting an interrupt through a word in memory, without an access to a register.

use core::sync::atomic::{Ordering, fence};

use crate::platform::{DmaBuffer, DmaError, Platform};

/// A word that the device reads when it has written an entry. The driver gets an interrupt only if
/// it has asked through this word, and just one.
#[derive(Debug)]
pub(crate) struct Arm<D>(D);

impl<D: DmaBuffer> Arm<D> {
    /// A word by which nobody has asked yet.
    pub(crate) fn new<P: Platform<Dma = D>>(platform: &P) -> Result<Self, DmaError> {
        let word = platform.alloc_dma(size_of::<u64>(), align_of::<u64>())?;
        word.store_u64(0, 0, Ordering::Relaxed);
        Ok(Self(word))
    }

    /// Where the device sees it.
    pub(crate) fn addr(&self) -> u64 {
        self.0.device_addr()
    }

    /// Requests an interrupt for the next entry. Look for existing entries afterwards: the device
    /// writes an entry first and then reads the word, so one of the two sees the other.
    pub(crate) fn ask(&self) {
        self.0.store_u64(0, 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Asks no more. An interrupt may be on its way.
    pub(crate) fn withdraw(&self) {
        self.0.store_u64(0, 0, Ordering::Release);
    }
}
