//! A device of this computer's that the process has for itself, by VFIO.

use std::env;
use std::sync::Arc;

use tofu_driver::Device;
use tofu_utofu::{Code, DriverProvider, Error, MapUser, Mapped, Place};
use tofu_vfio::{MapError, UserMemory, VfioPlatform};

use super::AnyProvider;
use crate::process;

/// Size code of message receive queues, that of real systems: 131072 notices.
const MRQ_SIZE: u8 = 3;

pub(crate) struct Vfio {
    provider: Arc<DriverProvider<VfioPlatform, Memory>>,
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
        let device = Device::probe(platform)
            .map_err(|_| Error::new(Code::Fatal, what, "it does not answer"))?;
        Ok(Self { provider: Arc::new(DriverProvider::new(device, Memory, MRQ_SIZE, 0)), place })
    }

    pub(crate) fn process(&self) -> Result<(AnyProvider, Place), Error> {
        Ok((AnyProvider::new(Arc::clone(&self.provider)), self.place.clone()))
    }
}

/// The memory of this process.
#[derive(Clone, Copy)]
struct Memory;

impl MapUser<VfioPlatform> for Memory {
    type Mapping = UserMemory;

    unsafe fn map_user(
        &self,
        platform: &VfioPlatform,
        addr: usize,
        len: usize,
    ) -> Result<Mapped<UserMemory>, Error> {
        // SAFETY: as promised to this function.
        let mapping = unsafe { platform.map_user(addr as *mut u8, len) }.map_err(map_error)?;
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
