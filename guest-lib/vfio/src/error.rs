//! The reason why the device cannot be used, with a hint at what to do.

use std::io;
use std::path::PathBuf;

use vfio_ioctls::VfioError;

use crate::bdf::{BadAddress, Bdf};

/// The reason why the device cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such device on any bus.
    #[error("there is no Tofu device (PCI 10cf:1cc1, 1cc2 or 1ccd) in this system")]
    NoDevice,
    /// There is nothing at the address given.
    #[error("there is no PCI device {0}")]
    NoSuchDevice(Bdf),
    /// The device at the address given is another one.
    #[error(
        "PCI device {bdf} is {vendor:04x}:{device:04x}, not a Tofu device (10cf:1cc1, 1cc2 or 1ccd)"
    )]
    NotTofu {
        /// Address of the device.
        bdf: Bdf,
        /// Its vendor id.
        vendor: u16,
        /// Its device id.
        device: u16,
    },
    /// There is no network processor of TNW.
    #[error("no TNW device (PCI 10cf:1cce): is the machine one of TNW?")]
    NoNwp,
    /// The device at the address given is another one.
    #[error("PCI device {bdf} is {vendor:04x}:{device:04x}, not a TNW device (10cf:1cce)")]
    NotTnw {
        /// Address of the device.
        bdf: Bdf,
        /// Its vendor id.
        vendor: u16,
        /// Its device id.
        device: u16,
    },
    /// The address is not one of PCI.
    #[error(transparent)]
    BadAddress(#[from] BadAddress),
    /// Another driver has the device.
    #[error("{bdf} belongs to the driver {driver}; `tofu-guest bind` gives it to vfio-pci")]
    Driver {
        /// Address of the device.
        bdf: Bdf,
        /// The driver to which it is bound.
        driver: String,
    },
    /// The kernel does not have the driver `vfio-pci`.
    #[error("the kernel has no vfio-pci driver; load it with `modprobe vfio-pci`")]
    NoVfioPci,
    /// The device cannot be given to `vfio-pci`, or taken from it.
    #[error("cannot {what} {bdf}: {source}; this needs root")]
    Bind {
        /// Address of the device.
        bdf: Bdf,
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// `vfio-pci` did not take the device.
    #[error("vfio-pci did not take {bdf}; the kernel's log (dmesg) says why")]
    NotTaken {
        /// Address of the device.
        bdf: Bdf,
    },
    /// There is no IOMMU in front of the device.
    #[error(
        "{0} has no IOMMU, which VFIO needs: give the machine one (QEMU: -device intel-iommu,\
         caching-mode=on) and boot the kernel with intel_iommu=on"
    )]
    NoIommu(Bdf),
    /// Another process has the device.
    #[error("{0} is in use by another process; a device serves one at a time")]
    Busy(Bdf),
    /// The kernel keeps the registers for the process that uses the device.
    #[error(
        "{0} is in use, and the kernel shows its registers to no other process; boot it with \
         iomem=relaxed to look at them meanwhile"
    )]
    InUse(Bdf),
    /// Other devices of the group still have drivers.
    #[error(
        "IOMMU group {group} is not viable: give every device in /sys/kernel/iommu_groups/{group}\
         /devices to vfio-pci, or take its driver away"
    )]
    NotViable {
        /// Number of the group.
        group: u32,
    },
    /// The IOMMU does not keep interrupts apart.
    #[error(
        "the IOMMU does not remap interrupts: have it do so, or, where the device is trusted, load \
         vfio_iommu_type1 with allow_unsafe_interrupts=1"
    )]
    UnsafeInterrupts,
    /// This user may not use the device.
    #[error("no permission for {}: run as root or have it opened to your user", .0.display())]
    Permission(PathBuf),
    /// A part of VFIO is not in the kernel.
    #[error("{} does not exist; load the module {module} (`modprobe {module}`)", path.display())]
    NoModule {
        /// The missing file.
        path: PathBuf,
        /// The module that makes it.
        module: &'static str,
    },
    /// The device has no register space of the size expected.
    #[error("{bdf}: BAR 0 has {size} bytes instead of {expected}")]
    RegisterSpace {
        /// Address of the device.
        bdf: Bdf,
        /// Its size in bytes.
        size: u64,
        /// The size for a Tofu device.
        expected: u64,
    },
    /// VFIO refused something else.
    #[error("{bdf}: {source}")]
    Vfio {
        /// Address of the device.
        bdf: Bdf,
        /// The text that it said.
        source: VfioError,
    },
    /// The system refused something else.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
