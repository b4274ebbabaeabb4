//! A device of this computer's that the process has for itself, by VFIO.

use std::env;
use std::sync::Arc;

use tofu_driver::{Device, DmaError, IrqError, Platform};
use tofu_utofu::{Code, DriverProvider, Error, MapUser, Mapped, Place};
use tofu_vfio::{Buffer, MapError, UserMemory, VfioPlatform};

use super::AnyProvider;
use crate::process;

/// Size code of message receive queues, that of real systems: 131072 notices.
const MRQ_SIZE: u8 = 3;

pub(crate) struct Vfio {
    provider: Arc<DriverProvider<Shared>>,
    place: Place,
}

impl Vfio {
    /// The device that `TOFU_DEVICE` names, as in `0000:00:03.0`, or the first one; with the share
    /// of process `TOFU_LOCAL_RANK` of `TOFU_PPN`.
    pub(crate) fn open() -> Result<Self, Error> {
        let what = "Tofu device";
        let bdf = match env::var("TOFU_DEVICE") {
            Err(env::VarError::NotPresent) => None,
            text => Some(text.unwrap_or_default().parse().map_err(|_| {
                let hint = "the environment variable is not an address, as in 0000:00:03.0";
                Error::new(Code::NotAvailable, "TOFU_DEVICE", hint)
            })?),
        };
        let place =
            Place::new(process::number("TOFU_LOCAL_RANK", 0)?, process::number("TOFU_PPN", 1)?)?;
        let platform = VfioPlatform::open_at(bdf).map_err(|error| {
            // Errors have texts that live as long as the program; there is one of this kind.
            let hint = format!("{error}; TOFU_PROVIDER=inproc would be a machine in this process");
            Error::new(Code::NotAvailable, what, hint.leak())
        })?;
        let device = Device::probe(Shared(platform))
            .map_err(|_| Error::new(Code::Fatal, what, "it does not answer"))?;
        Ok(Self { provider: Arc::new(DriverProvider::new(device, MRQ_SIZE, 0)), place })
    }

    pub(crate) fn process(&self) -> Result<(AnyProvider, Place), Error> {
        Ok((AnyProvider::new(Arc::clone(&self.provider)), self.place.clone()))
    }
}

/// The platform, with the memory of this process.
struct Shared(VfioPlatform);

impl Platform for Shared {
    type Dma = Buffer;

    fn bar0_read64(&self, offset: u64) -> u64 {
        self.0.bar0_read64(offset)
    }

    fn bar0_write64(&self, offset: u64, value: u64) {
        self.0.bar0_write64(offset, value);
    }

    fn doorbell_write64(&self, offset: u64, value: u64) {
        self.0.doorbell_write64(offset, value);
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<Buffer, DmaError> {
        self.0.alloc_dma(size, align)
    }

    fn irq_enable(&self, vector: u16) -> Result<(), IrqError> {
        self.0.irq_enable(vector)
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        self.0.irq_wait(vector, timeout_ns)
    }

    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn relax(&self) {
        self.0.relax();
    }
}

impl MapUser for Shared {
    type Mapping = UserMemory;

    unsafe fn map_user(&self, addr: usize, len: usize) -> Result<Mapped<UserMemory>, Error> {
        // SAFETY: as promised to this function.
        let mapping = unsafe { self.0.map_user(addr as *mut u8, len) }.map_err(map_error)?;
        let device_addr = mapping.device_addr();
        Ok(Mapped { mapping, device_addr, isolated: false })
    }
}

fn map_error(error: MapError) -> Error {
    let what = "memory to be registered";
    match error {
        MapError::Memory { .. } => Error::new(Code::OutOfMemory, what, "no memory left"),
        MapError::NoAddresses(_) | MapError::TooMany => {
            Error::new(Code::OutOfResource, what, "the IOMMU has no room for it")
        }
        MapError::Limit(_) => {
            let hint = "it cannot be pinned: raise the limit of locked memory (ulimit -l)";
            Error::new(Code::OutOfResource, what, hint)
        }
        MapError::Range { .. } | MapError::Inaccessible { .. } => {
            Error::new(Code::InvalidAddress, what, "it is not mapped, or read-only")
        }
        _ => Error::new(Code::Fatal, what, "the kernel refuses to map it for the device"),
    }
}
