//! In the place of the monitor, on hosts whose processors it runs no guests on: the same names, of
//! which nothing can be made.
//!
//! KVM on arm64 would be a third module (`Vm`, `Windows`, `Slot`, `Outcome`). It needs the GICv3
//! with its ITS for MSI-X (`KVM_DEV_TYPE_ARM_VGIC_ITS`; `KVM_SIGNAL_MSI` with the device's number),
//! PSCI instead of INIT and SIPI, a device tree instead of ACPI and the zero page, PL011 instead of
//! ports, and small guests for arm64.
#![expect(missing_docs, reason = "each method is the monitor's of that name")]

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tofu_pci::{MsiSink, PciFunction};
use vm_memory::MmapRegion;
use vmm_sys_util::eventfd::EventFd;

use crate::support::{HostSupport, Virtualisation};
use crate::{Error, GuestMemory, LinuxBoot, Outcome, Registers, Slot, VmConfig};

/// Checks the host without changing anything: it can run no guests.
pub fn probe() -> HostSupport {
    let problem = Some(Error::OtherHost.to_string());
    HostSupport { problem, ..HostSupport::none(Path::new("/dev/kvm").exists()) }
}

/// `None`: the host has no time stamp counter that guests could use.
pub fn host_tsc_khz() -> Option<u32> {
    None
}

/// No memory, as there is no guest that could share it.
///
/// # Errors
/// [`Error::OtherHost`], always.
pub fn shared_region(_: usize) -> Result<Arc<MmapRegion<()>>, Error> {
    Err(Error::OtherHost)
}

/// Leaves the thread alone, as there are no guests that compete with it.
pub fn run_soon() {}

/// Leaves the heap alone, because KVM is not used.
pub fn share_heap() {}

/// KVM, which is not used here.
pub struct Hypervisor(Infallible);

impl Hypervisor {
    /// Fails.
    ///
    /// # Errors
    /// [`Error::OtherHost`], always.
    pub fn open() -> Result<Self, Error> {
        Err(Error::OtherHost)
    }

    /// The virtualisation of guests on this host.
    pub fn virtualisation(&self) -> Virtualisation {
        match self.0 {}
    }

    /// Width of guest-physical addresses in bits.
    pub fn physical_address_bits(&self) -> u8 {
        match self.0 {}
    }
}

/// Names something attached to a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attachment(Infallible);

/// The attachments of one function.
#[derive(Clone)]
pub struct Windows(Infallible);

impl Windows {
    pub fn attach_doorbell(&self, _: u8, _: u64, _: EventFd) -> Result<Attachment, Error> {
        match self.0 {}
    }

    pub fn attach_page(
        &self,
        _: u8,
        _: u64,
        _: Arc<MmapRegion<()>>,
        _: usize,
    ) -> Result<Attachment, Error> {
        match self.0 {}
    }

    pub fn attach_pages(
        &self,
        _: u8,
        _: u64,
        _: Arc<MmapRegion<()>>,
        _: (usize, usize),
    ) -> Result<Attachment, Error> {
        match self.0 {}
    }

    pub fn attach_watched_page(
        &self,
        _: u8,
        _: u64,
        _: &MmapRegion<()>,
        _: usize,
        _: impl Fn() + Send + Sync + 'static,
    ) -> Result<Attachment, Error> {
        match self.0 {}
    }

    pub fn set_read_only(&self, _: Attachment, _: bool) -> Result<(), Error> {
        match self.0 {}
    }

    pub fn detach(&self, _: Attachment) {
        match self.0 {}
    }
}

/// Holds the vCPUs of a VM.
#[derive(Clone)]
pub struct Holder(Infallible);

impl Holder {
    pub fn pause(&self) -> bool {
        match self.0 {}
    }

    pub fn hold(&self) -> bool {
        match self.0 {}
    }

    pub fn resume(&self) {
        match self.0 {}
    }

    pub fn registers(&self) -> Option<Registers> {
        match self.0 {}
    }

    pub fn stop(&self) {
        match self.0 {}
    }

    pub fn end(&self, _: String) {
        match self.0 {}
    }
}

/// Types on a guest's serial port.
#[derive(Clone)]
pub struct ConsoleInput(Infallible);

impl io::Write for ConsoleInput {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}

/// A virtual machine.
pub struct Vm(Infallible);

impl Vm {
    pub fn new(
        hypervisor: &Hypervisor,
        _: &VmConfig,
        _: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        match hypervisor.0 {}
    }

    pub fn renew(
        &self,
        _: &Hypervisor,
        _: &VmConfig,
        _: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        match self.0 {}
    }

    pub fn name(&self) -> &str {
        match self.0 {}
    }

    pub fn memory(&self) -> &GuestMemory {
        match self.0 {}
    }

    pub fn resident(&self) -> Result<u64, Error> {
        match self.0 {}
    }

    pub fn give_back(&self) -> Result<(), Error> {
        match self.0 {}
    }

    pub fn add_function(&self, _: Arc<dyn PciFunction>) -> Result<Slot, Error> {
        match self.0 {}
    }

    pub fn add_function_with(&self, _: Arc<dyn PciFunction>, _: Windows) -> Result<Slot, Error> {
        match self.0 {}
    }

    pub fn new_windows(&self) -> Windows {
        match self.0 {}
    }

    pub fn msi_sink(&self) -> Arc<dyn MsiSink> {
        match self.0 {}
    }

    pub fn windows(&self, _: Slot) -> Option<Windows> {
        match self.0 {}
    }

    pub fn boot(&self, _: &[u8], _: &str) -> Result<(), Error> {
        match self.0 {}
    }

    pub fn boot_linux(&self, _: &LinuxBoot<'_>) -> Result<(), Error> {
        match self.0 {}
    }

    pub fn set_console(&self, _: impl Fn(&[u8]) + Send + Sync + 'static) {
        match self.0 {}
    }

    pub fn console_input(&self) -> ConsoleInput {
        match self.0 {}
    }

    pub fn on_thread_start(&self, _: impl Fn(u8) + Send + Sync + 'static) {
        match self.0 {}
    }

    pub fn start(&self, _: impl FnOnce(&Outcome) + Send + 'static) -> Result<(), Error> {
        match self.0 {}
    }

    pub fn wait(&self, _: Duration) -> Option<Outcome> {
        match self.0 {}
    }

    pub fn pause(&self) -> bool {
        match self.0 {}
    }

    pub fn resume(&self) {
        match self.0 {}
    }

    pub fn holder(&self) -> Holder {
        match self.0 {}
    }

    pub fn registers(&self) -> Option<Registers> {
        match self.0 {}
    }

    pub fn registers_of(&self, _: u8) -> Option<Registers> {
        match self.0 {}
    }

    pub fn stop(&self) -> Outcome {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::LinuxSupport;

    #[test]
    fn absent_monitor_says_why() {
        let support = probe();
        assert_eq!(support.linux(), LinuxSupport::None);
        let problem = support.problem.unwrap();
        assert!(problem.contains("needs KVM on x86-64, and this host is"), "{problem}");
        assert_eq!(Hypervisor::open().err().unwrap().to_string(), problem);
    }
}
