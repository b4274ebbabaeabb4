//! The abilities of this host.

use std::path::{Path, PathBuf};

use kvm_ioctls::{Cap, Kvm};

use crate::Error;
use crate::support::{HostSupport, Virtualisation};

pub(crate) const DEVICE: &str = "/dev/kvm";

/// Looks at the host without changing anything. Never fails: what is missing is
/// in the result.
pub fn probe() -> HostSupport {
    let mut support = HostSupport::none(Path::new(DEVICE).exists());
    let kvm = match open() {
        Ok(kvm) => kvm,
        Err(error) => {
            support.problem = Some(error.to_string());
            return support;
        }
    };
    support.openable = true;
    support.virtualisation = virtualisation();
    support.api_version = Some(kvm.get_api_version());
    support.max_vcpus = kvm.get_max_vcpus();
    support.memory_slots = kvm.get_nr_memslots();
    support.irqfd = kvm.check_extension(Cap::Irqfd);
    support.ioeventfd = kvm.check_extension(Cap::Ioeventfd);
    support.readonly_memory = kvm.check_extension(Cap::ReadonlyMem);
    support.irqchip = kvm.check_extension(Cap::Irqchip);
    support.immediate_exit = kvm.check_extension(Cap::ImmediateExit);
    support.problem = require(&kvm).err().map(|error| error.to_string());
    support
}

/// Opens KVM, telling apart why it cannot be.
pub(crate) fn open() -> Result<Kvm, Error> {
    let path = PathBuf::from(DEVICE);
    Kvm::new().map_err(|source| match source.errno() {
        libc::ENOENT | libc::ENODEV | libc::ENXIO => Error::NoKvm { path },
        libc::EACCES | libc::EPERM => Error::NoPermission { path },
        _ => Error::OpenKvm { path, source },
    })
}

/// Checks that KVM has every feature that this crate uses.
pub(crate) fn require(kvm: &Kvm) -> Result<(), Error> {
    let version = kvm.get_api_version();
    if version != 12 {
        return Err(Error::ApiVersion(version));
    }
    for (capability, name) in [
        (Cap::UserMemory, "user memory regions"),
        (Cap::Irqchip, "in-kernel interrupt controllers"),
        (Cap::Irqfd, "irqfd"),
        (Cap::IrqRouting, "interrupt routing"),
        (Cap::Ioeventfd, "ioeventfd"),
        (Cap::SignalMsi, "MSI injection"),
        (Cap::ImmediateExit, "immediate exit"),
    ] {
        if !kvm.check_extension(capability) {
            return Err(Error::MissingCapability(name));
        }
    }
    Ok(())
}

/// The virtualisation that KVM uses, from the CPU's flags and the modules loaded (those built
/// into the kernel have the same folders).
pub(crate) fn virtualisation() -> Virtualisation {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let loaded = |name: &str| Path::new("/sys/module").join(name).exists();
    if flags.split_whitespace().any(|flag| matches!(flag, "vmx" | "svm")) {
        Virtualisation::Hardware
    } else if loaded("kvm_pvm") {
        Virtualisation::Pvm
    } else {
        Virtualisation::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::LinuxSupport;

    #[test]
    fn linux_runs_on_usable_known_kvm() {
        let host = |virtualisation, problem: Option<&str>| HostSupport {
            virtualisation,
            problem: problem.map(str::to_owned),
            ..probe()
        };
        assert_eq!(host(Virtualisation::Hardware, None).linux(), LinuxSupport::Full);
        assert_eq!(host(Virtualisation::Pvm, None).linux(), LinuxSupport::KernelOnly);
        assert_eq!(host(Virtualisation::None, None).linux(), LinuxSupport::None);
        let broken = host(Virtualisation::Hardware, Some("KVM lacks irqfd"));
        assert_eq!(broken.linux(), LinuxSupport::None);
    }
}
