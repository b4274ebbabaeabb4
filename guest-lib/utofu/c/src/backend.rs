//! Where the process's device comes from: chosen by environment variables, which the manual lists.

mod apart;
mod broker;
mod gates;
mod inproc;
mod local;
mod outside;
mod tof;
mod vfio;

use std::env;
use std::sync::Arc;

use tofu_utofu::{Code, DeviceShare, Error};

use crate::provider::AnyProvider;

/// Where devices come from.
pub(crate) enum Backend {
    /// A machine in this process.
    InProcess(inproc::InProcess),
    /// Nodes in another process of this host.
    Served(local::Served),
    /// A device of this computer's, by the kernel driver.
    Tof(tof::Tof),
    /// A device of this computer's, by VFIO.
    Vfio(vfio::Vfio),
}

impl Backend {
    /// Processes in the sense of uTofu that are in this process.
    pub(crate) fn processes(&self) -> usize {
        match self {
            Self::InProcess(machine) => machine.processes(),
            Self::Served(nodes) => nodes.processes(),
            Self::Tof(_) | Self::Vfio(_) => 1,
        }
    }

    /// The one with this number.
    pub(crate) fn process(&self, index: usize) -> Result<(Arc<AnyProvider>, DeviceShare), Error> {
        match self {
            Self::InProcess(machine) => machine.process(index),
            Self::Served(nodes) => nodes.process(index),
            Self::Tof(device) => device.process(),
            Self::Vfio(device) => device.process(),
        }
    }
}

/// What the environment asks for.
pub(crate) fn choose() -> Result<Backend, Error> {
    match env::var("TOFU_PROVIDER").as_deref() {
        Ok("inproc") => inproc::InProcess::new().map(Backend::InProcess),
        Ok("local") => local::Served::new().map(Backend::Served),
        Ok("tof") => tof::Tof::open().map(Backend::Tof),
        Ok("vfio") => vfio::Vfio::open().map(Backend::Vfio),
        // A program in a guest finds its device by itself.
        Err(env::VarError::NotPresent) if tof::Tof::is_there() => {
            tof::Tof::open().map(Backend::Tof)
        }
        Err(env::VarError::NotPresent) => vfio::Vfio::open().map(Backend::Vfio),
        _ => {
            let hint = "the environment variable is not `inproc`, `local`, `tof` or `vfio`";
            Err(Error::new(Code::NotAvailable, "TOFU_PROVIDER", hint))
        }
    }
}
