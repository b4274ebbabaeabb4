//! A device that this host emulates, by `libtofulocal.so`.

use tofu_driver::Device;
use tofu_hosted::table::Kind;
use tofu_hosted::{HostPlatform, Library, Mapping, Refused};
use tofu_utofu::{Code, DriverProvider, Error, MapUser, Mapped};

/// The subject of errors.
const WHAT: &str = "Tofu device";
/// Size code of message receive queues: 32768 notices.
pub(super) const MRQ_SIZE: u8 = 2;

/// Gives out the control queues of such a device.
pub(super) type HostProvider = DriverProvider<HostPlatform, Memory>;

/// Loads the library.
pub(super) fn load() -> Result<Library, Error> {
    Library::load()
        .map_err(|error| Error::with_text(Code::NotAvailable, WHAT, None, error.to_string()))
}

/// Returns the source of a device's queues.
pub(super) fn provider(platform: HostPlatform) -> Result<HostProvider, Error> {
    let device =
        Device::probe(platform).map_err(|_| Error::new(Code::Fatal, WHAT, "it does not answer"))?;
    Ok(DriverProvider::new(device, Memory, MRQ_SIZE, 0))
}

/// Returns the error for something that the library refuses.
pub(super) fn refused(what: &'static str, value: Option<u64>, why: Refused) -> Error {
    let code = match why.kind {
        Kind::Memory => Code::OutOfMemory,
        Kind::Resources => Code::OutOfResource,
        Kind::Unavailable => Code::NotAvailable,
        Kind::Address => Code::InvalidAddress,
        Kind::Broken => Code::Fatal,
    };
    Error::with_text(code, what, value, why.text)
}

/// The memory of this process.
#[derive(Clone, Copy)]
pub(super) struct Memory;

impl MapUser<HostPlatform> for Memory {
    type Mapping = Mapping;

    unsafe fn map_user(
        &self,
        platform: &HostPlatform,
        addr: usize,
        len: usize,
    ) -> Result<Mapped<Mapping>, Error> {
        // SAFETY: guaranteed by the caller.
        let mapping = unsafe { platform.map(addr, len) }.map_err(|why| {
            let (what, value) = match why.kind {
                Kind::Address => ("memory to be registered, at", Some(addr as u64)),
                _ => ("memory to be registered", None),
            };
            refused(what, value, why)
        })?;
        let device_addr = mapping.device_addr();
        Ok(Mapped { mapping, device_addr, isolated: true })
    }
}
