use std::path::PathBuf;

use vmm_sys_util::errno;

use crate::KernelError;

/// Why a VM could not be made or controlled. Each message is one line and says
/// how to mend it where the user can.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no KVM device node.
    #[error(
        "no {} on this host: load the kvm module (kvm_intel, kvm_amd or kvm_pvm), or enable \
         virtualisation in the firmware or nested virtualisation in the surrounding VM",
        path.display()
    )]
    NoKvm {
        /// The device node looked for.
        path: PathBuf,
    },
    /// The device node exists and this user may not open it.
    #[error(
        "no permission to open {}: add this user to the group that owns it (usually `kvm`) and \
         log in again",
        path.display()
    )]
    NoPermission {
        /// The device node.
        path: PathBuf,
    },
    /// Opening the device node failed in another way.
    #[error("cannot open {}: {source}", path.display())]
    OpenKvm {
        /// The device node.
        path: PathBuf,
        /// What the kernel said.
        source: errno::Error,
    },
    /// KVM speaks another API than version 12, the only one in use since 2007.
    #[error("KVM API version {0} found, 12 needed: update the host kernel")]
    ApiVersion(i32),
    /// KVM lacks a capability.
    #[error("KVM on this host lacks {0}: use a newer host kernel")]
    MissingCapability(&'static str),
    /// A KVM call failed.
    #[error("{what} failed: {source}{}", hint(source))]
    Kvm {
        /// The call.
        what: &'static str,
        /// What the kernel said.
        source: errno::Error,
    },
    /// The guest memory size is not possible.
    #[error(
        "{size} bytes of guest memory: need a multiple of 4096, at least {min} and at most {max}"
    )]
    MemorySize {
        /// The size asked for, in bytes.
        size: u64,
        /// Smallest size in bytes.
        min: u64,
        /// Largest size in bytes on this host.
        max: u64,
    },
    /// The host did not give the guest memory.
    #[error("cannot reserve {size} bytes of guest memory: {reason}")]
    Memory {
        /// The size asked for, in bytes.
        size: u64,
        /// What the host said.
        reason: String,
    },
    /// The image cannot be booted.
    #[error("not a bootable guest program: {0}")]
    Image(String),
    /// The command line is longer than the boot protocol allows or has a NUL.
    #[error(
        "guest command line of {0} bytes: at most {max} without NUL bytes",
        max = crate::layout::COMMAND_LINE_MAX
    )]
    CommandLine(usize),
    /// The kernel, its initrd or its command line cannot be booted.
    #[error("cannot boot this kernel: {0}")]
    Kernel(#[from] KernelError),
    /// The number of vCPUs is not possible.
    #[error("{count} vCPUs: need 1 to {max}", max = crate::layout::VCPUS_MAX)]
    Vcpus {
        /// The number asked for.
        count: u8,
    },
    /// All slots of the bus are taken, or the function is.
    #[error("no free slot on PCI bus 0 (32 devices)")]
    BusFull,
    /// The BARs do not fit the windows of [`crate::layout`].
    #[error("no room for a BAR of {size} bytes of the function in slot {slot}")]
    BarSpace {
        /// Size of the BAR in bytes.
        size: u64,
        /// Device number.
        slot: u8,
    },
    /// A page or doorbell was attached at a bad place.
    #[error("cannot attach {what} at offset {offset:#x} of BAR {bar}: {reason}")]
    Attach {
        /// What was to be attached.
        what: &'static str,
        /// BAR index.
        bar: u8,
        /// Offset in the BAR in bytes.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// A call out of order, such as starting a VM twice.
    #[error("the VM is {0}")]
    State(&'static str),
    /// A host resource other than KVM: threads, files, memory.
    #[error("{what}: {source}")]
    Host {
        /// What was tried.
        what: &'static str,
        /// What the host said.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn kvm(what: &'static str) -> impl FnOnce(errno::Error) -> Self {
        move |source| Self::Kvm { what, source }
    }

    pub(crate) fn host(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Host { what, source }
    }
}

fn hint(source: &errno::Error) -> &'static str {
    match source.errno() {
        libc::EMFILE => " (raise the open file limit: ulimit -n)",
        libc::ENOMEM => " (free host memory, or use fewer or smaller nodes)",
        _ => "",
    }
}
