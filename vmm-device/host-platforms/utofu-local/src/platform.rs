//! A node in this process as the driver's platform.

use std::sync::Arc;

use tofu_abi::pci::{MSIX_BAR, REGISTER_BAR};
use tofu_driver::{DmaError, IrqError, Platform};
use tofu_inproc::{Arena, Buffer};
use tofu_machine::{Machine, Node};
use tofu_pci::PciFunction;
use tofu_utofu::{Code, Error, MapUser, Mapped};

use crate::events::{self, Events};
use crate::memory::{MapError, Mapping, NodeMemory};

/// The driver's platform for a node of a [`LocalMachine`](crate::LocalMachine).
pub struct LocalPlatform {
    machine: Arc<Machine>,
    node: Arc<Node>,
    rings: Arena,
    memory: Arc<NodeMemory>,
    events: Arc<Events>,
    /// The machine has no threads: it advances when a caller waits for it.
    stepped: bool,
}

/// Time that passes while a caller waits for a machine without threads, in nanoseconds.
const STEP_NS: u64 = 1000;

impl LocalPlatform {
    pub(crate) const fn new(
        machine: Arc<Machine>,
        node: Arc<Node>,
        rings: Arena,
        memory: Arc<NodeMemory>,
        events: Arc<Events>,
        stepped: bool,
    ) -> Self {
        Self { machine, node, rings, memory, events, stepped }
    }

    /// Lets the device access `len` bytes of the process's memory at `addr`. Memory that the
    /// process may only read is not written.
    ///
    /// # Errors
    ///
    /// See [`MapError`].
    ///
    /// # Safety
    ///
    /// Until the mapping is dropped, the memory stays mapped, and the process treats it as memory
    /// that others may change at any time.
    #[allow(unsafe_code)]
    pub unsafe fn map(&self, addr: usize, len: usize) -> Result<Mapping, MapError> {
        // SAFETY: as promised to this function.
        unsafe { NodeMemory::map(&self.memory, addr, len) }
    }
}

impl Platform for LocalPlatform {
    type Dma = Buffer;

    fn bar0_read64(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.node.bar_read(REGISTER_BAR, offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn bar0_write64(&self, offset: u64, value: u64) {
        self.node.bar_write(REGISTER_BAR, offset, &value.to_le_bytes());
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<Buffer, DmaError> {
        self.rings.alloc(size, align)
    }

    fn irq_enable(&self, vector: u16) -> Result<(), IrqError> {
        // A machine without threads does nothing while its only thread sleeps.
        if self.stepped || !self.events.enable(vector) {
            return Err(IrqError { vector });
        }
        self.node.bar_write(MSIX_BAR, events::control(vector), &0u32.to_le_bytes());
        Ok(())
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        self.events.wait(vector, timeout_ns)
    }

    fn irq_fd(&self, vector: u16) -> Option<i32> {
        self.events.descriptor(vector)
    }

    fn now_ns(&self) -> u64 {
        self.machine.now_ns()
    }

    fn relax(&self) {
        if self.stepped {
            self.machine.run_turn();
            self.machine.advance(STEP_NS);
        } else {
            std::thread::yield_now();
        }
    }
}

/// Memory of the process, mapped for a node of its machine.
#[derive(Clone, Copy, Debug)]
pub struct LocalMemory;

impl MapUser<LocalPlatform> for LocalMemory {
    type Mapping = Mapping;

    #[allow(unsafe_code)]
    unsafe fn map_user(
        &self,
        platform: &LocalPlatform,
        addr: usize,
        len: usize,
    ) -> Result<Mapped<Mapping>, Error> {
        // SAFETY: as promised to this function.
        let mapping = unsafe { platform.map(addr, len) }.map_err(|error| {
            let (code, what, value) = match error {
                MapError::NoMemory => (Code::InvalidAddress, "memory to be registered, at", addr),
                MapError::NoAddresses => (Code::OutOfResource, "memory of size", len),
            };
            Error::with_text(code, what, Some(value as u64), error.to_string())
        })?;
        let device_addr = mapping.device_addr();
        Ok(Mapped { mapping, device_addr, isolated: true })
    }
}
