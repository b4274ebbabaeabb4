//! Drives an emulated device in the same process, without a VM, KVM or privileges.
//!
//! [`InProcess`] is the driver's platform. Behind it is a [`Backend`]: a node of a machine, or a
//! device that a test owns.
#![forbid(unsafe_code)]

mod interrupts;
mod memory;
mod node;
mod pair;
mod torus;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tofu_abi::tnw::WINDOW_BAR;
use tofu_driver::{DmaError, IrqError, Platform};
use tofu_tnw::{STORE, Windows};

pub use interrupts::Interrupts;
pub use memory::{Arena, Buffer};
pub use node::AttachError;
pub use pair::{Pair, PairError, nwp_pair};

/// A device that is in this process.
pub trait Backend: Send + Sync {
    /// Reads `data.len()` bytes at `offset` of BAR0.
    fn bar_read(&self, offset: u64, data: &mut [u8]);

    /// Writes `data.len()` bytes at `offset` of BAR0.
    fn bar_write(&self, offset: u64, data: &[u8]);

    /// Stores `data` at `offset` of another BAR. A device with one alone has no use for it.
    fn bar_store(&self, bar: u8, offset: u64, data: &[u8]) {
        let _ = (bar, offset, data);
    }

    /// Loads a word at `offset` of windows that are memory, after all stores before; `None` if none
    /// can be memory.
    fn window_load(&self, offset: u64) -> Option<u64> {
        let _ = offset;
        None
    }

    /// A monotonic clock in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Lets the device do its pending work in this thread, and advances time. Returns false
    /// immediately if the device has threads.
    fn pump(&self) -> bool;
}

/// The driver's platform for a device in this process.
#[derive(Clone)]
pub struct InProcess {
    backend: Arc<dyn Backend>,
    memory: Arena,
    interrupts: Arc<Interrupts>,
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl InProcess {
    /// A platform for `backend`, with DMA memory from `memory`. The backend's MSI-X messages
    /// must arrive at `interrupts`.
    pub fn new(backend: Arc<dyn Backend>, memory: Arena, interrupts: Arc<Interrupts>) -> Self {
        Self { backend, memory, interrupts }
    }

    /// The memory that buffers come from.
    pub fn memory(&self) -> &Arena {
        &self.memory
    }
}

impl Windows for InProcess {
    fn store(&self, offset: u64, data: &[u8; STORE]) {
        self.backend.bar_store(WINDOW_BAR, offset, data);
    }

    fn can_share(&self) -> bool {
        self.backend.window_load(0).is_some()
    }

    fn publish(&self, offset: u64, word: u64) {
        self.backend.bar_store(WINDOW_BAR, offset, &word.to_le_bytes());
    }

    fn load_after_stores(&self, offset: u64) -> u64 {
        self.backend.window_load(offset).unwrap_or(0)
    }
}

impl Platform for InProcess {
    type Dma = Buffer;

    fn bar0_read64(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.backend.bar_read(offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn bar0_write64(&self, offset: u64, value: u64) {
        self.backend.bar_write(offset, &value.to_le_bytes());
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<Buffer, DmaError> {
        self.memory.alloc(size, align)
    }

    fn irq_enable(&self, _: u16) -> Result<(), IrqError> {
        Ok(())
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        if self.interrupts.wait(vector, Duration::ZERO) {
            return true;
        }
        // Where this thread is the device's only one, sleeping would be for ever.
        let start = self.backend.now_ns();
        while self.backend.pump() {
            if self.interrupts.wait(vector, Duration::ZERO) {
                return true;
            }
            if self.backend.now_ns().saturating_sub(start) >= timeout_ns {
                return false;
            }
        }
        self.interrupts.wait(vector, Duration::from_nanos(timeout_ns))
    }

    fn now_ns(&self) -> u64 {
        self.backend.now_ns()
    }

    fn relax(&self) {
        if !self.backend.pump() {
            // The device's threads may need this processor.
            std::thread::yield_now();
        }
    }
}
