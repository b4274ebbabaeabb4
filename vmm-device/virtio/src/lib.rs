//! virtio 1.2 devices over PCI: [`Block`], [`Rng`], [`Console`] and [`iommu::Iommu`].
//!
//! A [`Virtio`] is a function as a bus sees it: it offers one [`Device`] through the modern
//! virtio-pci transport, with split rings. It is independent of the VMM: guest memory, the
//! destination of its MSI-X messages ([`Virtio::endpoint`]) and a way to receive notifications
//! without an exit ([`Doorbells`]) are passed to it.
//!
//! The vCPU that accesses a register serves it. A thread of the device serves requests; it sleeps
//! until the guest notifies it or the host's side of a console port has data.
//!
//! "1.2" followed by a section number names a section of the Virtual I/O Device
//! Specification, version 1.2; where that leaves a choice the item says "ours".
//!
//! A guest is untrusted. An invalid ring (a loop, an index or an address that does not exist) makes
//! the device ask for a reset, as 2.1.2 says, and do nothing until it gets one. An invalid request
//! fails. Both take bounded time and memory, and a reset works in every state.
//!
//! # What a guest can cause
//!
//! Each device has its own thread, which serves a bounded number of requests in a turn. A reset,
//! from either side, waits for the request in progress and for nothing else.
//!
//! An invalid ring or chain (outside of memory, not aligned, a loop, an index out of range, more
//! buffers than the queue has entries, a table in a table, readable behind writable buffers, an
//! available index that runs ahead, a request without header or status) sets `DEVICE_NEEDS_RESET`,
//! raises the configuration interrupt, and stops the device until the driver resets it. A request
//! that is well-formed but asks for something impossible fails alone. The first complaint about a
//! device is logged as a warning, later ones for debugging only.
#![forbid(unsafe_code)]

mod blk;
mod console;
mod device;
mod function;
pub mod iommu;
mod memory;
pub mod regs;
mod ring;
mod rng;
mod shared;
mod worker;

use std::io;
use std::path::PathBuf;

use thiserror::Error;
use vmm_sys_util::eventfd::EventFd;

pub use crate::blk::{Block, BlockConfig, MAX_REQUEST, SECTOR};
pub use crate::console::{Console, MAX_PORTS, PortConfig, PortHandle};
pub use crate::device::{ConfigFields, Device, Identity, Interest, Io, Work};
pub use crate::function::{Options, ThreadStart, Virtio};
pub use crate::memory::DeviceMemory;
pub use crate::ring::{Broken, Chain};
pub use crate::rng::Rng;

/// Guest memory as all devices see it.
pub type GuestMemory = vm_memory::GuestMemoryMmap<()>;

/// A way for notifications that needs no exit, offered by the VMM behind a
/// function.
pub trait Doorbells {
    /// From now on guest writes at `offset` of BAR `bar`, of any length and value, signal `event`
    /// instead of reaching the function.
    ///
    /// # Errors
    /// A text for the log; notifications then reach the function as writes.
    fn attach(&self, bar: u8, offset: u64, event: EventFd) -> Result<(), String>;
}

/// The reason why a device cannot be had.
#[derive(Debug, Error)]
pub enum Error {
    /// The image of a block device cannot be used.
    #[error("disk image {path}: {reason}")]
    Image {
        /// The image.
        path: PathBuf,
        /// The problem, in words.
        reason: String,
    },
    /// The ports of a console are not as they can be.
    #[error("console: {0}")]
    Ports(String),
    /// The endpoint could not be built.
    #[error("PCI endpoint: {0}")]
    Pci(#[from] tofu_pci::Error),
    /// The host has no threads or descriptors left.
    #[error("{what}: {source}")]
    Host {
        /// The operation that failed.
        what: &'static str,
        /// The host's error.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn host(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Host { what, source }
    }
}
