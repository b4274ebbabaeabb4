//! The source of the process's device, chosen by environment variables that the manual lists.

mod broker;
mod gates;
mod halves;
mod hosted;
mod inproc;
mod isolated;
mod local;
mod notices;
mod outside;
mod tof;
mod vfio;

use std::env;
use std::sync::Arc;

use tofu_utofu::{Code, DeviceShare, Error};

use crate::provider::AnyProvider;

/// A source of devices.
pub(crate) enum Backend {
    /// A machine in this process.
    InProcess(inproc::InProcess),
    /// Nodes that another process of this host serves.
    Served(local::Served),
    /// A device of this computer, through the kernel driver.
    Tof(tof::Tof),
    /// A device of this computer, through VFIO.
    Vfio(vfio::Vfio),
}

impl Backend {
    /// Returns how many processes in the sense of uTofu this process represents.
    pub(crate) fn processes(&self) -> usize {
        match self {
            Self::InProcess(machine) => machine.processes(),
            Self::Served(nodes) => nodes.processes(),
            Self::Tof(_) | Self::Vfio(_) => 1,
        }
    }

    /// Returns the process of this number.
    pub(crate) fn process(&self, index: usize) -> Result<(Arc<AnyProvider>, DeviceShare), Error> {
        match self {
            Self::InProcess(machine) => machine.process(index),
            Self::Served(nodes) => nodes.process(index),
            Self::Tof(device) => device.process(),
            Self::Vfio(device) => device.process(),
        }
    }
}

/// Returns the backend that the environment selects, also to a child of a process that has used it.
pub(crate) fn choose(is_child: bool) -> Result<Backend, Error> {
    match env::var("TOFU_PROVIDER").as_deref() {
        Ok("inproc") => inproc::InProcess::new().map(Backend::InProcess),
        // The server would have it wait until its parent has ended.
        Ok("local") if is_child => {
            let hint = "its node belongs to the process that has forked this one";
            Err(Error::new(Code::NotAvailable, "Tofu device", hint))
        }
        Ok("local") => local::Served::new().map(Backend::Served),
        Ok("tof") => tof::Tof::open()?.map(Backend::Tof).ok_or_else(|| {
            let hint = "the node has more processes than control queues, which only tofud shares";
            Error::new(Code::NotAvailable, "TOFU_PROVIDER", hint)
        }),
        Ok("vfio") => vfio::Vfio::open().map(Backend::Vfio),
        // A program in a guest finds its device by itself.
        Err(env::VarError::NotPresent) if tof::Tof::is_there() => match tof::Tof::open()? {
            Some(device) => Ok(Backend::Tof(device)),
            None => vfio::Vfio::open().map(Backend::Vfio),
        },
        Err(env::VarError::NotPresent) => vfio::Vfio::open().map(Backend::Vfio),
        _ => {
            let hint = "the environment variable is not `inproc`, `local`, `tof` or `vfio`";
            Err(Error::new(Code::NotAvailable, "TOFU_PROVIDER", hint))
        }
    }
}
