//! The platform of a device whose registers and address space this process has, alone or shared.

use std::fmt;
use std::io;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use tofu_driver::{DmaError, IrqError, Platform};
use tofu_tnw::{STORE, Windows};

use crate::bar::Region;
use crate::dma::{Buffer, MapError, Pool, UserMemory};

/// The way a process came by a device, which says what interrupts it has.
pub trait Tenure: fmt::Debug {
    /// See [`Platform::irq_enable`].
    ///
    /// # Errors
    ///
    /// If there is no such vector, or the system has no interrupt left.
    fn irq_enable(&self, vector: u16) -> io::Result<()>;

    /// See [`Platform::irq_wait`].
    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool;

    /// See [`Platform::irq_fd`].
    fn irq_fd(&self, vector: u16) -> Option<i32>;
}

/// A device that this process drives: [`VfioPlatform`](crate::VfioPlatform) if it has the
/// device alone, [`SharedPlatform`](crate::broker::SharedPlatform) if others use it too.
pub struct MappedPlatform<T> {
    pub(crate) registers: Region,
    /// Injection windows of TNW; none of Tofu.
    pub(crate) windows: Option<Region>,
    pub(crate) memory: Pool,
    start: Instant,
    /// Ends last, as others may have the device then.
    pub(crate) tenure: T,
}

impl<T: Tenure> MappedPlatform<T> {
    pub(crate) fn new(registers: Region, memory: Pool, tenure: T) -> Self {
        Self { registers, windows: None, memory, start: Instant::now(), tenure }
    }

    /// The same with the injection windows of TNW.
    pub(crate) fn with_windows(self, windows: Option<Region>) -> Self {
        Self { windows, ..self }
    }

    /// Maps memory of this process for the device, in whole pages, until the result and its clones
    /// are dropped. Memory that is already mapped as a part of a larger range costs nothing.
    ///
    /// # Errors
    ///
    /// If the memory is not mapped, or is read-only, or if there are too many mappings or too much
    /// memory is pinned; see [`MapError`].
    ///
    /// # Safety
    ///
    /// Until the mapping is dropped, the pages that hold the `len` bytes at `memory` stay mapped as
    /// they are, and there are no Rust references to memory that the device writes (the steering
    /// tags under which the memory is registered decide what it writes). Remapping the addresses
    /// during this time would leave the device with the old pages.
    #[allow(unsafe_code)]
    pub unsafe fn map_user(&self, memory: *mut u8, len: usize) -> Result<UserMemory, MapError> {
        // SAFETY: as promised to this function.
        unsafe { self.memory.map_user(memory, len) }
    }
}

impl<T: Tenure> fmt::Debug for MappedPlatform<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tenure.fmt(f)
    }
}

impl<T: Tenure> Platform for MappedPlatform<T> {
    type Dma = Buffer;

    #[inline]
    fn bar0_read64(&self, offset: u64) -> u64 {
        self.registers.read64(offset)
    }

    #[inline]
    fn bar0_write64(&self, offset: u64, value: u64) {
        self.registers.write64(offset, value);
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<Buffer, DmaError> {
        self.memory.alloc(size, align)
    }

    fn irq_enable(&self, vector: u16) -> Result<(), IrqError> {
        self.tenure.irq_enable(vector).map_err(|error| {
            log::warn!("MSI-X vector {vector}: {error}");
            IrqError { vector }
        })
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        self.tenure.irq_wait(vector, timeout_ns)
    }

    fn irq_fd(&self, vector: u16) -> Option<i32> {
        self.tenure.irq_fd(vector)
    }

    fn yield_processor(&self) {
        std::thread::yield_now();
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

impl<T: Tenure> Windows for MappedPlatform<T> {
    /// Eight bytes at a time: VFIO maps windows as it maps registers, so nothing combines them.
    fn store(&self, offset: u64, data: &[u8; STORE]) {
        let Some(windows) = &self.windows else { return };
        for (at, word) in (offset..).step_by(8).zip(data.as_chunks::<8>().0) {
            windows.write64(at, u64::from_le_bytes(*word));
        }
    }

    fn can_share(&self) -> bool {
        self.windows.is_some()
    }

    fn publish(&self, offset: u64, word: u64) {
        if let Some(windows) = &self.windows {
            windows.write64(offset, word);
        }
    }

    fn load_after_stores(&self, offset: u64) -> u64 {
        fence(Ordering::SeqCst);
        self.windows.as_ref().map_or(0, |windows| windows.read64(offset))
    }
}
