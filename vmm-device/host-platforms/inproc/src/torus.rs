//! A node of a torus of TNW as the driver's device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use tofu_abi::Coords;
use tofu_abi::tnw::{REGISTER_BAR, WINDOW_BAR, WINDOW_SIZE, vector};
use tofu_machine::{SharedWindows, Torus, TorusNode, TorusParts, WindowBackend};
use tofu_pci::{EndpointDevice, PciFunction};
use vm_memory::MmapRegion;

use crate::node::{node_memory, set_up};
use crate::{AttachError, Backend, InProcess};

impl InProcess {
    /// Puts a network processor with `size` bytes of private memory at `coords` of `torus`, does
    /// firmware's work, and returns the platform that drives it.
    ///
    /// # Errors
    ///
    /// See [`AttachError`].
    pub fn attach_nwp(
        torus: &Arc<Torus>,
        coords: Coords,
        size: usize,
    ) -> Result<Self, AttachError> {
        Self::attach_nwp_of(torus, coords, size, None)
    }

    /// The same of a network processor whose windows can be memory.
    ///
    /// # Errors
    ///
    /// See [`AttachError`].
    pub fn attach_sharing_nwp(
        torus: &Arc<Torus>,
        coords: Coords,
        size: usize,
    ) -> Result<Self, AttachError> {
        let region = MmapRegion::new(SharedWindows::SIZE).map_err(AttachError::Windows)?;
        let windows = SharedWindows::new(Arc::new(region));
        Self::attach_nwp_of(torus, coords, size, windows)
    }

    fn attach_nwp_of(
        torus: &Arc<Torus>,
        coords: Coords,
        size: usize,
        windows: Option<SharedWindows>,
    ) -> Result<Self, AttachError> {
        let (memory, arena) = node_memory(size)?;
        let mapped =
            windows.map(|windows| Arc::new(MappedWindows { windows, mapped: AtomicU64::new(0) }));
        let parts = TorusParts {
            windows: mapped.as_ref().map(|mapped| mapped.windows.clone()),
            backend: mapped.clone().map(|mapped| mapped as Arc<dyn WindowBackend>),
            ..TorusParts::new(memory)
        };
        let node = torus.add_node_of(coords, parts)?;
        let interrupts = set_up(&*node, EndpointDevice::endpoint(&*node), vector::COUNT);
        let backend = NwpNode { torus: Arc::clone(torus), node, mapped };
        Ok(Self::new(Arc::new(backend), arena, interrupts))
    }
}

struct NwpNode {
    torus: Arc<Torus>,
    node: Arc<TorusNode>,
    mapped: Option<Arc<MappedWindows>>,
}

/// Windows that can be memory. Like a guest's page tables, it directs stores to the windows that
/// are memory, and other stores to the device.
struct MappedWindows {
    windows: SharedWindows,
    /// Windows that are memory, one bit each.
    mapped: AtomicU64,
}

impl MappedWindows {
    fn is_mapped(&self, offset: u64) -> bool {
        let bit = 1u64.checked_shl((offset / WINDOW_SIZE) as u32).unwrap_or(0);
        self.mapped.load(SeqCst) & bit != 0
    }
}

impl WindowBackend for MappedWindows {
    fn attach_window(
        &self,
        offset: u64,
        _: &Arc<MmapRegion<()>>,
        _: usize,
        _: usize,
    ) -> Result<(), String> {
        self.mapped.fetch_or(1 << (offset / WINDOW_SIZE), SeqCst);
        Ok(())
    }

    fn detach_window(&self, offset: u64) {
        self.mapped.fetch_and(!(1 << (offset / WINDOW_SIZE)), SeqCst);
    }
}

impl Backend for NwpNode {
    fn bar_read(&self, offset: u64, data: &mut [u8]) {
        self.node.bar_read(REGISTER_BAR, offset, data);
    }

    fn bar_write(&self, offset: u64, data: &[u8]) {
        self.node.bar_write(REGISTER_BAR, offset, data);
    }

    fn bar_store(&self, bar: u8, offset: u64, data: &[u8]) {
        match self.mapped.as_ref().filter(|mapped| mapped.is_mapped(offset)) {
            Some(mapped) if bar == WINDOW_BAR => mapped.windows.store(offset, data),
            _ => self.node.bar_write(bar, offset, data),
        }
    }

    fn window_load(&self, offset: u64) -> Option<u64> {
        self.mapped.as_ref().map(|mapped| mapped.windows.load(offset))
    }

    fn now_ns(&self) -> u64 {
        self.torus.now_ns()
    }

    fn pump(&self) -> bool {
        let alone = !self.torus.has_engine();
        if alone {
            self.torus.run_pending();
        }
        alone
    }
}
