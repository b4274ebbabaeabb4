//! A node that another process of this host serves: `tofu run --local`.

use std::env;
use std::sync::Arc;

use tofu_driver::Device;
use tofu_utofu::{Code, DriverProvider, Error, MapUser, Mapped, Place};
use tofu_vfio_user_client::{ConnectError, Loan, LoanError, SocketPlatform};

use super::AnyProvider;

/// Where the node is served: a path, or the name of an abstract socket behind an `@`.
pub(crate) const SOCKET: &str = "TOFU_LOCAL_SOCKET";
/// Size code of message receive queues: 32768 notices.
const MRQ_SIZE: u8 = 2;

pub(crate) struct Served {
    provider: Arc<DriverProvider<SocketPlatform, Memory>>,
    place: Place,
}

impl Served {
    /// The node that the environment names; the process has it for itself.
    pub(crate) fn open() -> Result<Self, Error> {
        let socket = env::var(SOCKET).map_err(|_| {
            let hint = "TOFU_PROVIDER=local needs it; `tofu run --local` sets it";
            Error::new(Code::NotAvailable, SOCKET, hint)
        })?;
        let platform = SocketPlatform::connect(&socket).map_err(connect_error)?;
        let device = Device::probe(platform)
            .map_err(|_| Error::new(Code::Fatal, "Tofu device", "it does not answer"))?;
        let provider = Arc::new(DriverProvider::new(device, Memory, MRQ_SIZE, 0));
        Ok(Self { provider, place: Place::new(0, 1)? })
    }

    pub(crate) fn process(&self) -> Result<(AnyProvider, Place), Error> {
        Ok((AnyProvider::new(Arc::clone(&self.provider)), self.place.clone()))
    }
}

fn connect_error(error: ConnectError) -> Error {
    let code = match &error {
        ConnectError::Memory(_) => Code::OutOfMemory,
        _ => Code::NotAvailable,
    };
    // Errors have texts that live as long as the program; there is one of this kind.
    Error::new(code, "Tofu device", error.to_string().leak())
}

/// The memory of this process.
#[derive(Clone, Copy)]
struct Memory;

impl MapUser<SocketPlatform> for Memory {
    type Mapping = Loan;

    unsafe fn map_user(
        &self,
        platform: &SocketPlatform,
        addr: usize,
        len: usize,
    ) -> Result<Mapped<Loan>, Error> {
        let mapping = platform.lend(addr, len, true).map_err(lend_error)?;
        let device_addr = mapping.device_addr();
        Ok(Mapped { mapping, device_addr, isolated: true })
    }
}

fn lend_error(error: LoanError) -> Error {
    let what = "memory to be registered";
    match &error {
        LoanError::NoAddresses(_) => {
            Error::new(Code::OutOfResource, what, "the device has no addresses left for it")
        }
        LoanError::NoMemory => Error::new(Code::InvalidAddress, what, "it is not mapped"),
        LoanError::NotAllowed => {
            let hint = "the launcher may not reach this process's memory: the host restricts \
                        ptrace (see docs/src/user/run-local.md)";
            Error::new(Code::NotAvailable, what, hint)
        }
        LoanError::Server(_) => Error::new(Code::Fatal, what, "`tofu run` does not answer"),
    }
}
