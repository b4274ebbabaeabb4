//! The Tofu driver's platform in a Linux process: the device through VFIO.
//!
//! ```no_run
//! use tofu_abi::{CqId, TniId};
//! use tofu_driver::{Cq, CqConfig, Device};
//! use tofu_vfio::VfioPlatform;
//!
//! let device = Device::probe(VfioPlatform::find()?)?;
//! let cq = Cq::open(&device, &CqConfig::new(TniId::ALL[0], CqId::ALL[0]))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The kernel's `vfio-pci` driver gives the device to one process. [`VfioPlatform::find`] binds it
//! to that driver if it has none yet, and maps BAR 0, so that a doorbell is a store without a
//! system call. An IOMMU confines the device to the memory that this process allows. When the
//! process ends, normally or not, the kernel resets the device.
//!
//! Memory for the device comes from [`tofu_driver::Platform::alloc_dma`]: small pieces from
//! mappings of 2 MiB, large ones each from their own. Memory that exists already is mapped by
//! [`VfioPlatform::map_user`]. Device addresses are IOMMU addresses below 2^40, because the
//! device's tables have no more bits.
//!
//! Interrupts are eventfds. [`tofu_driver::Platform::irq_wait`] sleeps on one of them without a
//! thread in between; [`VfioPlatform::on_interrupt`] calls a function from an event loop instead.
//!
//! With [`broker`] several processes share a device that one of them has opened.
//!
//! [`pci`] lists devices and moves them between drivers, and [`Window`] reads the registers of a
//! device that is in use; they need no VFIO.
#![deny(unsafe_code)]

mod bar;
mod bdf;
pub mod broker;
mod dma;
mod error;
mod event;
mod file;
mod inherited;
mod iommu;
mod irq;
mod mapped;
pub mod pci;
mod platform;

pub use bar::{Layout, Window};
pub use bdf::{BadAddress, Bdf};
pub use dma::{Buffer, MapError, UserMemory};
pub use error::Error;
pub use file::FileMemory;
pub use inherited::close_inherited;
pub use mapped::{MappedPlatform, Tenure};
pub use platform::{Alone, VfioPlatform};

/// Bytes of a page of the processor, as the kernel has them: 4 KiB, and on Arm perhaps 16 or 64.
fn page_size() -> u64 {
    rustix::param::page_size() as u64
}
