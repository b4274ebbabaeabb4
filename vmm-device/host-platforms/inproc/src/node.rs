//! A node of a machine as the driver's device.

use std::sync::Arc;

use thiserror::Error;
use tofu_abi::pci::{MSIX_BAR, REGISTER_BAR};
use tofu_abi::{Coords, irq::vector};
use tofu_machine::{Machine, Node};
use tofu_pci::{Endpoint, MsiSink, PciFunction, regs};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use crate::{Arena, Backend, InProcess, Interrupts};

/// Memory of a node starts here, so that address 0 is no memory.
const MEMORY_BASE: u64 = 0x1000;
/// Bytes of an entry of the MSI-X table.
const MSIX_ENTRY_SIZE: u64 = 16;

/// The reason why a node cannot be added.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The host has no memory.
    #[error("memory of {size} bytes: {source}")]
    Memory {
        /// The requested bytes.
        size: usize,
        /// The host's error.
        source: vm_memory::mmap::FromRangesError,
    },
    /// The host has no memory for windows.
    #[error("memory for windows: {0}")]
    Windows(vm_memory::mmap::MmapRegionError),
    /// The machine refuses the node.
    #[error(transparent)]
    Machine(#[from] tofu_machine::Error),
}

impl InProcess {
    /// Puts a device with `size` bytes of private memory at `coords` of `machine`, does firmware's
    /// work, and returns the platform that drives it.
    ///
    /// # Errors
    ///
    /// See [`AttachError`].
    pub fn attach(
        machine: &Arc<Machine>,
        coords: Coords,
        size: usize,
    ) -> Result<Self, AttachError> {
        let (memory, arena) = node_memory(size)?;
        let node = machine.add_node(coords, memory)?;
        let interrupts = set_up(&*node, node.endpoint(), vector::COUNT);
        let backend = MachineNode { machine: Arc::clone(machine), node };
        Ok(Self::new(Arc::new(backend), arena, interrupts))
    }
}

/// Memory of a node, and an allocator over it.
pub(crate) fn node_memory(size: usize) -> Result<(Arc<GuestMemoryMmap<()>>, Arena), AttachError> {
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(MEMORY_BASE), size)])
        .map_err(|source| AttachError::Memory { size, source })?;
    let arena = Arena::new(memory.clone()).expect("the memory has a region");
    Ok((Arc::new(memory), arena))
}

/// Does what firmware and an operating system would do with a function of so many vectors.
pub(crate) fn set_up(
    function: &dyn PciFunction,
    endpoint: &Endpoint,
    vectors: u16,
) -> Arc<Interrupts> {
    let interrupts = Arc::new(Interrupts::default());
    let command = regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER;
    function.config_write(regs::COMMAND, &command.to_le_bytes());
    if let Some(msix) = endpoint.msix() {
        msix.connect(Arc::clone(&interrupts) as Arc<dyn MsiSink>);
        msix.set_control(true, false);
    }
    for index in 0..vectors {
        // The last word of an entry: not masked. Where its message goes does not matter, as the
        // sink is notified of the vector.
        function.bar_write(MSIX_BAR, u64::from(index) * MSIX_ENTRY_SIZE + 12, &[0; 4]);
    }
    interrupts
}

impl MsiSink for Interrupts {
    fn notify(&self, vector: u16, _: u64, _: u32) {
        self.fire(vector);
    }

    fn update(&self, _: u16, _: u64, _: u32, _: bool) {}
}

struct MachineNode {
    machine: Arc<Machine>,
    node: Arc<Node>,
}

impl Backend for MachineNode {
    fn bar_read(&self, offset: u64, data: &mut [u8]) {
        self.node.bar_read(REGISTER_BAR, offset, data);
    }

    fn bar_write(&self, offset: u64, data: &[u8]) {
        self.node.bar_write(REGISTER_BAR, offset, data);
    }

    fn now_ns(&self) -> u64 {
        self.machine.now_ns()
    }

    fn pump(&self) -> bool {
        false
    }
}
