//! A device of this computer, through VFIO. Other processes share it through `tofud`; without
//! `tofud`, only this process uses it.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tofu_abi::CqId;
use tofu_driver::Device;
use tofu_utofu::{Code, DeviceShare, DriverProvider, Error, MapUser, Mapped};
use tofu_vfio::broker::{Broker, Joined, socket_path};
use tofu_vfio::pci::Bus;
use tofu_vfio::{Bdf, MapError, MappedPlatform, Tenure, UserMemory, VfioPlatform};

use super::broker::{Claims, broker_error};
use super::isolated::IsolatedProvider;
use super::notices::MRQ_SIZE;
use crate::environment;
use crate::provider::{AnyProvider, any};

/// The subject of errors.
const WHAT: &str = "Tofu device";

pub(crate) struct Vfio {
    provider: Arc<AnyProvider>,
    share: DeviceShare,
}

impl Vfio {
    /// Opens the device that `TOFU_DEVICE` names, such as `0000:00:03.0`, or the first one. The
    /// share is that of process `TOFU_LOCAL_RANK` of `TOFU_PPN` or, if these are not set, what
    /// `tofud` assigns.
    pub(crate) fn open() -> Result<Self, Error> {
        let wanted = match env::var("TOFU_DEVICE") {
            Err(env::VarError::NotPresent) => None,
            text => Some(text.unwrap_or_default().parse().map_err(|_| {
                let hint = "the environment variable is not an address, as in 0000:00:03.0";
                Error::new(Code::NotAvailable, "TOFU_DEVICE", hint)
            })?),
        };
        let number = environment::number;
        let rank = (number("TOFU_LOCAL_RANK", 0)?, number("TOFU_PPN", 1)?);
        let is_counted = env::var_os("TOFU_PPN").is_some();
        let bdf = Bus::default().find(wanted).map_err(no_device)?.bdf;
        let named = env::var_os("TOFUD_SOCKET").map(PathBuf::from);
        let path = named.clone().unwrap_or_else(|| socket_path(bdf));
        let broker = Broker::connect(&path).map_err(|error| {
            let hint = format!("tofud at {}: {error}", path.display());
            Error::with_text(Code::NotAvailable, WHAT, None, hint)
        })?;
        match broker {
            Some(broker) => Self::shared(broker, is_counted.then_some(rank)),
            None if named.is_some() => Err(no_broker(&path)),
            None => Self::alone(bdf, rank),
        }
    }

    fn alone(bdf: Bdf, (index, processes): (u16, u16)) -> Result<Self, Error> {
        let platform = VfioPlatform::open_at(Some(bdf)).map_err(|error| match error {
            tofu_vfio::Error::Busy(_) => {
                no_device(format_args!("{error}, unless tofud runs and shares it"))
            }
            error => no_device(error),
        })?;
        let device = Device::probe(platform).map_err(|_| no_answer())?;
        let share = DeviceShare::of(device.generation(), index, processes)?;
        let provider = DriverProvider::new(device, Memory, MRQ_SIZE, environment::group()?)
            .with_subnet(environment::subnet()?)
            .with_direct_descriptors(environment::direct_descriptors()?);
        Ok(Self { provider: any(provider), share })
    }

    fn shared(broker: Broker, rank: Option<(u16, u16)>) -> Result<Self, Error> {
        let broker = Arc::new(broker);
        let (index, processes) = rank.unwrap_or((0, 1));
        let share_of = |generation, own: Option<CqId>| match own {
            Some(cq) => DeviceShare::of_queue(generation, cq),
            None => DeviceShare::joint(generation, index, processes),
        };
        let joined = Arc::clone(&broker).join_any(rank);
        let platform = match joined.map_err(|error| broker_error(WHAT, error))? {
            Joined::Shared(platform) => *platform,
            Joined::Isolated(device) => {
                let share = share_of(device.generation(), device.cq())?;
                let claims = Claims::new(broker, share.clone());
                let provider = any(IsolatedProvider::new(device, claims));
                return Ok(Self { provider, share });
            }
        };
        let own = platform.cq();
        let device = Device::probe(platform).map_err(|_| no_answer())?;
        let share = share_of(device.generation(), own)?;
        let claims = Claims::new(broker, share.clone());
        let provider = DriverProvider::new(device, Memory, MRQ_SIZE, environment::group()?)
            .with_subnet(environment::subnet()?)
            .with_direct_descriptors(environment::direct_descriptors()?)
            .with_claims(claims);
        Ok(Self { provider: any(provider), share })
    }

    pub(crate) fn process(&self) -> Result<(Arc<AnyProvider>, DeviceShare), Error> {
        Ok((self.provider.clone(), self.share.clone()))
    }
}

fn no_device(why: impl std::fmt::Display) -> Error {
    let hint = format!("{why}; TOFU_PROVIDER=inproc would be a machine in this process");
    Error::with_text(Code::NotAvailable, WHAT, None, hint)
}

fn no_broker(path: &Path) -> Error {
    let hint = format!("no tofud listens at {}, which TOFUD_SOCKET names", path.display());
    Error::with_text(Code::NotAvailable, WHAT, None, hint)
}

const fn no_answer() -> Error {
    Error::new(Code::Fatal, WHAT, "it does not answer")
}

/// The memory of this process.
#[derive(Clone, Copy)]
struct Memory;

impl<T: Tenure> MapUser<MappedPlatform<T>> for Memory {
    type Mapping = UserMemory;

    unsafe fn map_user(
        &self,
        platform: &MappedPlatform<T>,
        addr: usize,
        len: usize,
    ) -> Result<Mapped<UserMemory>, Error> {
        // SAFETY: guaranteed by the caller.
        let mapping = unsafe { platform.map_user(addr as *mut u8, len) }.map_err(map_error)?;
        let (device_addr, isolated) = (mapping.device_addr(), mapping.is_isolated());
        Ok(Mapped { mapping, device_addr, isolated })
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
