//! A node that another process of this host serves: `tofu run --local`.

use std::env;
use std::sync::Arc;

use tofu_driver::Device;
use tofu_utofu::{Code, DeviceShare, DriverProvider, Error, MapUser, Mapped};
use tofu_utofu_local::{Rights, rights};
use tofu_vfio_user_client::{ConnectError, Loan, LoanError, SocketPlatform};

use crate::provider::AnyProvider;

/// Where the node is served: a path, or the name of an abstract socket behind an `@`. Several,
/// with commas, are several processes in the sense of uTofu.
const SOCKET: &str = "TOFU_LOCAL_SOCKET";
/// Size code of message receive queues: 32768 notices.
const MRQ_SIZE: u8 = 2;

/// Nodes that are served, each of which the process has for itself: one, but for tests.
pub(crate) struct Served {
    sockets: Vec<String>,
}

impl Served {
    /// The nodes that the environment names.
    pub(crate) fn new() -> Result<Self, Error> {
        let sockets = env::var(SOCKET).map_err(|_| {
            let hint = "TOFU_PROVIDER=local needs it; `tofu run --local` sets it";
            Error::new(Code::NotAvailable, SOCKET, hint)
        })?;
        Ok(Self { sockets: sockets.split(',').map(str::to_owned).collect() })
    }

    pub(crate) fn processes(&self) -> usize {
        self.sockets.len()
    }

    /// Attaches a node.
    pub(crate) fn process(&self, index: usize) -> Result<(AnyProvider, DeviceShare), Error> {
        let hint = "there is no such process";
        let none = Error::with_value(Code::NotAvailable, "process", index as u64, hint);
        let socket = self.sockets.get(index).ok_or(none)?;
        let platform = SocketPlatform::connect(socket).map_err(connect_error)?;
        let device = Device::probe(platform)
            .map_err(|_| Error::new(Code::Fatal, "Tofu device", "it does not answer"))?;
        let provider = DriverProvider::new(device, Memory, MRQ_SIZE, 0);
        Ok((AnyProvider::new(Arc::new(provider)), DeviceShare::new(0, 1)?))
    }
}

fn connect_error(error: ConnectError) -> Error {
    let code = match &error {
        ConnectError::Memory(_) => Code::OutOfMemory,
        _ => Code::NotAvailable,
    };
    Error::with_text(code, "Tofu device", None, error.to_string())
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
        let writable = match rights(addr, len) {
            Rights::None => return Err(lend_error(LoanError::NoMemory)),
            Rights::Read => false,
            Rights::ReadWrite => true,
        };
        let mapping = platform.lend(addr, len, writable).map_err(lend_error)?;
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
        LoanError::NoMemory => {
            let hint = "it is not mapped, not all of it, or may not be read";
            Error::new(Code::InvalidAddress, what, hint)
        }
        LoanError::NotAllowed => {
            let hint = "`tofu run` may not reach this process's memory: the host restricts ptrace";
            Error::new(Code::NotAvailable, what, hint)
        }
        LoanError::Server(_) => Error::new(Code::Fatal, what, "`tofu run` does not answer"),
    }
}
