//! What this host can do.

use std::path::{Path, PathBuf};

use kvm_ioctls::{Cap, Kvm};
use serde::Serialize;

use crate::Error;

/// How KVM runs guests on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Virtualisation {
    /// Intel VT-x or AMD-V: guests run natively in every ring.
    Hardware,
    /// PVM, KVM in software: ring 3 runs natively, ring 0 is emulated.
    Pvm,
    /// No KVM, or KVM of a kind not known here.
    None,
}

/// What of Linux can run as a guest of this monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinuxSupport {
    /// Any x86-64 Linux, at full speed.
    Full,
    /// A kernel made for it boots as far as its init program, slowly; system calls
    /// by SYSCALL do not work, so user space does not. For tests of the machine.
    KernelOnly,
    /// Nothing.
    None,
}

impl LinuxSupport {
    /// The same in words: one line.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Full => "Linux guests run under KVM",
            Self::KernelOnly => {
                "KVM on this host emulates guest kernels (PVM): a Linux kernel boots slowly, its \
                 user space does not run; use QEMU for Linux guests"
            }
            Self::None => "Linux guests do not run under KVM here; use QEMU for them",
        }
    }
}

/// The result of [`probe`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostSupport {
    /// `/dev/kvm` exists.
    pub present: bool,
    /// `/dev/kvm` could be opened.
    pub openable: bool,
    /// How guests run.
    pub virtualisation: Virtualisation,
    /// KVM's API version; 12 is what everybody has.
    pub api_version: Option<i32>,
    /// Most vCPUs a VM may have.
    pub max_vcpus: usize,
    /// Most memory slots a VM may have.
    pub memory_slots: usize,
    /// Interrupts through eventfds.
    pub irqfd: bool,
    /// Doorbells through eventfds.
    pub ioeventfd: bool,
    /// Memory that guests can read and whose writes exit.
    pub readonly_memory: bool,
    /// Per-VM interrupt controllers in the kernel.
    pub irqchip: bool,
    /// `KVM_RUN` can be asked to return at once.
    pub immediate_exit: bool,
    /// Why KVM cannot be used and how to fix it, one line; `None` if it can.
    pub problem: Option<String>,
}

impl HostSupport {
    /// What of Linux can run here under this monitor.
    pub fn linux(&self) -> LinuxSupport {
        match self.virtualisation {
            _ if self.problem.is_some() => LinuxSupport::None,
            Virtualisation::Hardware => LinuxSupport::Full,
            Virtualisation::Pvm => LinuxSupport::KernelOnly,
            Virtualisation::None => LinuxSupport::None,
        }
    }
}

pub(crate) const DEVICE: &str = "/dev/kvm";

/// Looks at the host without changing anything. Never fails: what is missing is
/// in the result.
pub fn probe() -> HostSupport {
    let mut support = HostSupport {
        present: Path::new(DEVICE).exists(),
        openable: false,
        virtualisation: Virtualisation::None,
        api_version: None,
        max_vcpus: 0,
        memory_slots: 0,
        irqfd: false,
        ioeventfd: false,
        readonly_memory: false,
        irqchip: false,
        immediate_exit: false,
        problem: None,
    };
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

/// Checks that KVM has all that this crate uses.
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

/// How KVM runs guests, from the CPU's flags and the modules loaded (those built
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

    #[test]
    fn linux_runs_where_kvm_is_usable_and_of_a_known_kind() {
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
