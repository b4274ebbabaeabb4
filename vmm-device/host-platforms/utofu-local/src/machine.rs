//! A machine whose nodes are created on demand.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use thiserror::Error;
use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_driver::{Device, DeviceError};
use tofu_inproc::Arena;
use tofu_machine::{Generation, Machine, MachineConfig};
use tofu_pci::{MsiSink, PciFunction, regs};
use tofu_utofu::DriverProvider;
use vm_memory::{GuestAddress, GuestMemoryMmap};

use crate::events::Events;
use crate::memory::{NodeMemory, RING_BASE};
use crate::{LocalMemory, LocalPlatform};

/// Memory for the queues and tables of a node, in bytes. Only what is used takes memory.
const RING_MEMORY: usize = 512 << 20;
/// Size code of message receive queues: 32768 notices.
const MRQ_SIZE: u8 = 2;

/// Gives out the control queues of a node of a [`LocalMachine`].
pub type LocalProvider = DriverProvider<LocalPlatform, LocalMemory>;

/// The reason why a machine or a node cannot be had.
#[derive(Debug, Error)]
pub enum LocalError {
    /// The host has no memory.
    #[error("memory of a node: {0}")]
    Memory(#[from] vm_memory::mmap::FromRangesError),
    /// The machine could not be built.
    #[error(transparent)]
    Machine(#[from] tofu_machine::Error),
    /// The device does not answer.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A machine in this process.
pub struct LocalMachine {
    machine: Arc<Machine>,
    stepped: bool,
    nodes: Mutex<HashMap<Coords, Arc<LocalProvider>>>,
}

impl LocalMachine {
    /// A machine of this shape, with one engine thread.
    ///
    /// # Errors
    ///
    /// If the host has no threads or descriptors left.
    pub fn new(shape: Shape) -> Result<Self, LocalError> {
        Self::of(Generation::Fugaku, shape)
    }

    /// The same with the links and barrier gates of a generation of Tofu.
    ///
    /// # Errors
    ///
    /// As [`LocalMachine::new`].
    pub fn of(generation: Generation, shape: Shape) -> Result<Self, LocalError> {
        let machine = Machine::new(MachineConfig::of(generation, shape))?;
        machine.start()?;
        Ok(Self::with(machine, false))
    }

    /// A machine without threads, whose clock advances only while the driver waits for a device.
    /// Work is done in [`Machine::run_turn`], in the same order each time.
    ///
    /// # Errors
    ///
    /// If the host has no descriptors left.
    pub fn stepped(config: MachineConfig) -> Result<Self, LocalError> {
        Ok(Self::with(Machine::with_manual_clock(config)?, true))
    }

    fn with(machine: Machine, stepped: bool) -> Self {
        Self { machine: Arc::new(machine), stepped, nodes: Mutex::new(HashMap::new()) }
    }

    /// The machine.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// The platform of the device of the node at `coords`, which must be the only one.
    ///
    /// # Errors
    ///
    /// If there is no such node, it has a device already, or the host has no memory left.
    pub fn platform(&self, coords: Coords) -> Result<LocalPlatform, LocalError> {
        let rings = GuestMemoryMmap::from_ranges(&[(GuestAddress(RING_BASE), RING_MEMORY)])?;
        let arena = Arena::new(rings.clone()).expect("the memory has a region");
        let memory = Arc::new(NodeMemory::new(rings));
        let node = self.machine.add_node(coords, Arc::clone(&memory) as _)?;
        let command = regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER;
        node.config_write(regs::COMMAND, &command.to_le_bytes());
        let events = Arc::new(Events::default());
        if let Some(msix) = node.endpoint().msix() {
            msix.connect(Arc::clone(&events) as Arc<dyn MsiSink>);
            msix.set_control(true, false);
        }
        let machine = Arc::clone(&self.machine);
        Ok(LocalPlatform::new(machine, node, arena, memory, events, self.stepped))
    }

    /// The source of queues for processes on the node at `coords`.
    ///
    /// # Errors
    ///
    /// If there is no such node, or the host has no memory left.
    pub fn node(&self, coords: Coords) -> Result<Arc<LocalProvider>, LocalError> {
        let mut nodes = tofu_sync::lock(&self.nodes);
        if let Some(node) = nodes.get(&coords) {
            return Ok(Arc::clone(node));
        }
        let device = Device::probe(self.platform(coords)?)?;
        let provider = Arc::new(DriverProvider::new(device, LocalMemory, MRQ_SIZE, 0));
        nodes.insert(coords, Arc::clone(&provider));
        Ok(provider)
    }
}
