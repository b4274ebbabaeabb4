//! The monitor itself: for x86-64 guests, on KVM of x86-64 hosts.

mod acpi;
mod boot;
mod bus;
mod control;
mod cpuid;
mod host;
mod kick;
mod limits;
mod linux;
mod msi;
mod pages;
mod pci_host;
mod platform;
mod probe;
mod serial;
mod slots;
mod tsc;
mod vcpu;
mod vm;
mod windows;

use vmm_sys_util::errno;

pub use host::Hypervisor;
pub use limits::{run_soon, share_heap};
pub use pages::shared_region;
pub use probe::probe;
pub use tsc::host_tsc_khz;
pub use vm::{ConsoleInput, Holder, Vm};
pub use windows::{Attachment, Windows};

use crate::Error;

impl Error {
    pub(crate) fn kvm(what: &'static str) -> impl FnOnce(errno::Error) -> Self {
        move |source| Self::Kvm { what, source }
    }

    pub(crate) fn host(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Host { what, source }
    }
}
