//! The abilities of a host, as plain data.

use serde::Serialize;

/// The virtualisation that KVM uses on a host.
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

/// The kinds of Linux that can run as guests of this monitor.
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

/// The result of [`probe`](crate::probe).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostSupport {
    /// `/dev/kvm` exists.
    pub present: bool,
    /// `/dev/kvm` could be opened.
    pub openable: bool,
    /// The virtualisation of guests.
    pub virtualisation: Virtualisation,
    /// KVM's API version; 12 in practice.
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
    /// `KVM_RUN` supports `immediate_exit`.
    pub immediate_exit: bool,
    /// The reason why KVM cannot be used and how to fix it, one line; `None` if it can.
    pub problem: Option<String>,
}

impl HostSupport {
    /// The support of a host about which nothing is known but whether it has `/dev/kvm`.
    pub(crate) const fn none(present: bool) -> Self {
        Self {
            present,
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
        }
    }

    /// The kinds of Linux that can run here under this monitor.
    pub fn linux(&self) -> LinuxSupport {
        match self.virtualisation {
            _ if self.problem.is_some() => LinuxSupport::None,
            Virtualisation::Hardware => LinuxSupport::Full,
            Virtualisation::Pvm => LinuxSupport::KernelOnly,
            Virtualisation::None => LinuxSupport::None,
        }
    }
}
