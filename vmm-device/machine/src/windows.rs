//! The parts of a node of TNW, whose injection windows can be memory.

use std::sync::Arc;

use tofu_dma::DmaMemory;
use tofu_tnw_device::SharedWindows;
use vm_memory::MmapRegion;

/// Services that the VMM behind a node of TNW provides for windows that are memory. Offsets are in
/// the BAR of windows; all offsets and sizes are multiples of 4 KiB.
///
/// Any thread that writes to TX_MODE or resets the device calls the methods.
pub trait WindowBackend: Send + Sync {
    /// Maps the memory at `at` of `region` as the `len` bytes at `offset`.
    ///
    /// # Errors
    ///
    /// A text for the log; stores then reach the device, which puts them there.
    fn attach_window(
        &self,
        offset: u64,
        region: &Arc<MmapRegion<()>>,
        at: usize,
        len: usize,
    ) -> Result<(), String>;

    /// Removes the memory that was attached at `offset`.
    fn detach_window(&self, offset: u64);
}

/// The parts that a node of TNW is made from.
pub struct TorusParts {
    /// Memory that the device reaches by DMA.
    pub memory: Arc<dyn DmaMemory>,
    /// Memory for the windows.
    pub windows: Option<SharedWindows>,
    /// Maps that memory into the guest at the windows. Without it each store reaches the device.
    pub backend: Option<Arc<dyn WindowBackend>>,
}

impl TorusParts {
    /// Parts of a node whose windows are registers.
    pub const fn new(memory: Arc<dyn DmaMemory>) -> Self {
        Self { memory, windows: None, backend: None }
    }
}
