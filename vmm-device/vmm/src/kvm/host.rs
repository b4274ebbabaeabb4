use kvm_bindings::CpuId;
use kvm_ioctls::Kvm;
use log::{info, warn};

use super::probe;
use super::{cpuid, limits};
use crate::support::Virtualisation;
use crate::{Error, layout};

/// KVM opened and checked: what all VMs of a process share.
pub struct Hypervisor {
    pub(crate) kvm: Kvm,
    pub(crate) cpuid: CpuId,
    virtualisation: Virtualisation,
    physical_address_bits: u8,
}

impl Hypervisor {
    /// Opens `/dev/kvm`, checks its abilities, and raises the soft limit of open
    /// files to the hard one (a VM takes two descriptors plus one for each
    /// interrupt vector and doorbell in use).
    ///
    /// # Errors
    /// [`Error::NoKvm`], [`Error::NoPermission`], [`Error::OpenKvm`],
    /// [`Error::ApiVersion`], [`Error::MissingCapability`].
    pub fn open() -> Result<Self, Error> {
        let kvm = probe::open()?;
        probe::require(&kvm)?;
        let virtualisation = probe::virtualisation();
        let cpuid = cpuid::template(&kvm, virtualisation)?;
        let physical_address_bits = cpuid::physical_address_bits(&cpuid);
        if let Err(error) = limits::raise_open_files() {
            warn!("cannot raise the open file limit: {error}");
        }
        info!("KVM: {virtualisation:?}, {physical_address_bits} physical address bits");
        Ok(Self { kvm, cpuid, virtualisation, physical_address_bits })
    }

    /// The virtualisation of guests on this host.
    pub fn virtualisation(&self) -> Virtualisation {
        self.virtualisation
    }

    /// Width of guest-physical addresses in bits.
    pub fn physical_address_bits(&self) -> u8 {
        self.physical_address_bits
    }

    /// Returns the parameters that must precede a Linux guest's own command line on this host. KVM
    /// on PVM cannot emulate XSAVE, SMAP's CLAC and STAC (308) and POPCNT (151), its timers are not
    /// precise enough for the kernel's checks and calibrations, and mitigations are of no use
    /// there.
    pub(crate) fn linux_command_line(&self) -> &'static str {
        match self.virtualisation {
            Virtualisation::Pvm => {
                "nokaslr noxsave mitigations=off lpj=1000000 tsc=reliable no_timer_check nopti \
                 clearcpuid=308,151"
            }
            Virtualisation::Hardware | Virtualisation::None => "",
        }
    }

    /// First address of the window of 64-bit BARs, which ends at the end of the
    /// physical address space.
    pub(crate) fn mmio64_start(&self) -> u64 {
        layout::MMIO64_START.min(self.mmio64_end() / 2)
    }

    /// End of the window of 64-bit BARs.
    pub(crate) fn mmio64_end(&self) -> u64 {
        1 << self.physical_address_bits.clamp(34, 46)
    }
}
