//! Machines and devices of all kinds, and why there is none.

use std::any::Any;
use std::sync::Arc;

use tofu_abi::{Coords, Generation};
use tofu_driver::{DmaError, IrqError, Platform};
use tofu_hosted::Refused;
use tofu_hosted::table::{Kind, Start};
use tofu_inproc::{AttachError, Buffer, InProcess};
use tofu_machine::{Error as MachineError, Torus, TorusConfig};
use tofu_tnw::{STORE, Windows};
use tofu_utofu_local::{
    LocalError, LocalMachine, LocalPlatform, MapError as LocalMapError, Rights, rights,
};
use tofu_vfio_user_client::{ConnectError, MapError, SocketPlatform};

/// Memory of a network processor in this process, in bytes. Only what is used takes memory.
const NWP_MEMORY: usize = 512 << 20;

/// A machine in this process.
pub(crate) enum Machine {
    Tofu(LocalMachine),
    Tnw(Arc<Torus>),
}

impl Machine {
    pub(crate) fn start(what: &Start) -> Result<Self, Refused> {
        let unknown = |what| Refused::new(Kind::Unavailable, what);
        let shape = what.shape().ok_or_else(|| unknown("no machine has this shape"))?;
        if what.interconnect == Start::TNW {
            let torus = Torus::new(TorusConfig::new(shape)).map_err(|error| no_machine(&error))?;
            torus.start().map_err(|error| no_machine(&error))?;
            return Ok(Self::Tnw(Arc::new(torus)));
        }
        let generation = Generation::from_number(what.interconnect)
            .ok_or_else(|| unknown("there is no such generation of Tofu"))?;
        LocalMachine::of(generation, shape).map(Self::Tofu).map_err(|error| no_node(&error))
    }

    pub(crate) fn attach(&self, coords: Coords) -> Result<Device, Refused> {
        match self {
            Self::Tofu(machine) => {
                machine.platform(coords).map(Device::Node).map_err(|error| no_node(&error))
            }
            Self::Tnw(torus) => {
                let platform = InProcess::attach_nwp(torus, coords, NWP_MEMORY);
                platform.map(Device::Nwp).map_err(|error| match error {
                    AttachError::Machine(error) => no_machine(&error),
                    error => Refused::new(Kind::Memory, error),
                })
            }
        }
    }
}

fn no_machine(error: &MachineError) -> Refused {
    let kind = match error {
        MachineError::Host { .. } => Kind::Resources,
        _ => Kind::Unavailable,
    };
    Refused::new(kind, error)
}

fn no_node(error: &LocalError) -> Refused {
    match error {
        LocalError::Memory(error) => Refused::new(Kind::Memory, error),
        LocalError::Machine(error) => no_machine(error),
        LocalError::Device(error) => Refused::new(Kind::Broken, error),
    }
}

/// A device that is attached.
pub(crate) enum Device {
    /// A node of Tofu in this process.
    Node(LocalPlatform),
    /// A node of TNW in this process.
    Nwp(InProcess),
    /// A node of either kind in another process.
    Served(Box<SocketPlatform>),
}

/// Memory of the process that is mapped until this is dropped.
pub(crate) struct Mapped {
    pub(crate) device_addr: u64,
    _mapping: Box<dyn Any + Send + Sync>,
}

/// Does the same for all kinds.
macro_rules! each {
    ($self:ident, $platform:ident => $what:expr) => {
        match $self {
            Self::Node($platform) => $what,
            Self::Nwp($platform) => $what,
            Self::Served($platform) => $what,
        }
    };
}

impl Device {
    pub(crate) fn connect(socket: &str, index: u16, count: u16) -> Result<Self, Refused> {
        let platform = SocketPlatform::connect_shared(socket, index, count);
        let platform = platform.map_err(|error| {
            let kind = match &error {
                ConnectError::Memory(_) => Kind::Memory,
                _ => Kind::Unavailable,
            };
            Refused::new(kind, error)
        })?;
        Ok(Self::Served(Box::new(platform)))
    }

    pub(crate) fn read(&self, offset: u64) -> u64 {
        each!(self, platform => platform.bar0_read64(offset))
    }

    pub(crate) fn write(&self, offset: u64, value: u64) {
        each!(self, platform => platform.bar0_write64(offset, value));
    }

    pub(crate) fn store(&self, offset: u64, data: &[u8; STORE]) {
        match self {
            // It has no windows.
            Self::Node(_) => {}
            Self::Nwp(platform) => platform.store(offset, data),
            Self::Served(platform) => platform.store(offset, data),
        }
    }

    pub(crate) fn alloc(&self, size: usize, align: usize) -> Result<Buffer, DmaError> {
        each!(self, platform => platform.alloc_dma(size, align))
    }

    pub(crate) fn enable(&self, vector: u16) -> Result<(), IrqError> {
        each!(self, platform => platform.irq_enable(vector))
    }

    pub(crate) fn wait(&self, vector: u16, timeout_ns: u64) -> bool {
        each!(self, platform => platform.irq_wait(vector, timeout_ns))
    }

    pub(crate) fn descriptor(&self, vector: u16) -> Option<i32> {
        each!(self, platform => platform.irq_fd(vector))
    }

    pub(crate) fn now(&self) -> u64 {
        each!(self, platform => platform.now_ns())
    }

    /// Lets the device access memory of the process.
    ///
    /// # Safety
    ///
    /// Until the mapping is dropped, the memory stays mapped, and the process treats it as memory
    /// that others may change at any time.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn map(&self, addr: usize, len: usize) -> Result<Mapped, Refused> {
        match self {
            Self::Node(platform) => {
                // SAFETY: guaranteed by the caller.
                let mapping = unsafe { platform.map(addr, len) }.map_err(|error| {
                    let kind = match error {
                        LocalMapError::NoMemory => Kind::Address,
                        LocalMapError::NoAddresses => Kind::Resources,
                    };
                    Refused::new(kind, error)
                })?;
                Ok(Mapped { device_addr: mapping.device_addr(), _mapping: Box::new(mapping) })
            }
            Self::Nwp(_) => Err(Refused::new(
                Kind::Unavailable,
                "a network processor in this process has its own",
            )),
            Self::Served(platform) => {
                let writable = match rights(addr, len) {
                    Rights::None => return Err(refused(&MapError::NoMemory)),
                    Rights::Read => false,
                    Rights::ReadWrite => true,
                };
                let mapping = platform.map(addr, len, writable).map_err(|error| refused(&error))?;
                Ok(Mapped { device_addr: mapping.device_addr(), _mapping: Box::new(mapping) })
            }
        }
    }
}

fn refused(error: &MapError) -> Refused {
    match error {
        MapError::NoAddresses(_) => Refused::new(Kind::Resources, LocalMapError::NoAddresses),
        MapError::NoMemory => Refused::new(Kind::Address, LocalMapError::NoMemory),
        MapError::NotAllowed => {
            let why = "`tofu run` may not reach this process's memory: the host restricts ptrace";
            Refused::new(Kind::Unavailable, why)
        }
        MapError::Server(_) => Refused::new(Kind::Broken, "`tofu run` does not answer"),
    }
}
