//! Requesting an interrupt through a word in memory, without an access to a register.

use core::sync::atomic::{Ordering, fence};

use crate::platform::{DmaBuffer, DmaError, Platform};

/// A word that the device reads after it has written an entry. The driver gets an interrupt only if
/// it has requested one through this word, and only one for each request.
#[derive(Debug)]
pub struct Arm<D>(D);

impl<D: DmaBuffer> Arm<D> {
    /// The bytes of the word.
    pub const SIZE: usize = size_of::<u64>();

    /// Allocates a word without a request.
    pub(crate) fn new<P: Platform<Dma = D>>(platform: &P) -> Result<Self, DmaError> {
        let word = platform.alloc_dma(Self::SIZE, align_of::<u64>())?;
        word.store_u64(0, 0, Ordering::Relaxed);
        Ok(Self(word))
    }

    /// The word at the beginning of this memory, which is zeroed.
    pub const fn of(memory: D) -> Self {
        Self(memory)
    }

    /// The device address of the word.
    pub(crate) fn addr(&self) -> u64 {
        self.0.device_addr()
    }

    /// Requests an interrupt for the next entry. The caller must check for existing entries
    /// afterwards. The device writes an entry first and then reads the word, so either the device
    /// sees the request or the caller sees the entry.
    pub fn ask(&self) {
        self.0.store_u64(0, 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Withdraws the request. An interrupt may already be in flight.
    pub fn withdraw(&self) {
        self.0.store_u64(0, 0, Ordering::Release);
    }

    /// Takes a request, on the side that has written an entry. The interrupt must come after this.
    pub(crate) fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        let asked = self.0.load_u64(0, Ordering::Acquire) != 0;
        if asked {
            self.withdraw();
        }
        asked
    }
}
