use std::path::PathBuf;

use vmm_sys_util::errno;

/// The reason why a VM could not be made or controlled. Each message is one line and says
/// how to fix it where the user can.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This monitor runs no guests on the host's processor, even if KVM can.
    #[error(
        "our own monitor, and small guests with it, needs KVM on x86-64, and this host is {}, \
         where it does not run: boot Linux nodes under QEMU (tofu up --linux)",
        std::env::consts::ARCH
    )]
    OtherHost,
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
        /// The kernel's error.
        source: errno::Error,
    },
    /// KVM has another API than version 12, the only one in use since 2007.
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
        /// The kernel's error.
        source: errno::Error,
    },
    /// The guest memory size is not possible.
    #[error(
        "{size} bytes of guest memory: need a multiple of 4096, at least {min} and at most {max}"
    )]
    MemorySize {
        /// The requested size, in bytes.
        size: u64,
        /// Smallest size in bytes.
        min: u64,
        /// Largest size in bytes on this host.
        max: u64,
    },
    /// The host did not give the guest memory.
    #[error("cannot reserve {size} bytes of guest memory: {reason}")]
    Memory {
        /// The requested size, in bytes.
        size: u64,
        /// The host's error.
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
        /// The requested number.
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
        /// The device to attach.
        what: &'static str,
        /// BAR index.
        bar: u8,
        /// Offset in the BAR in bytes.
        offset: u64,
        /// The problem, in words.
        reason: &'static str,
    },
    /// A call out of order, such as starting a VM twice.
    #[error("the VM is {0}")]
    State(&'static str),
    /// A host resource other than KVM: threads, files, memory.
    #[error("{what}: {source}")]
    Host {
        /// The operation that failed.
        what: &'static str,
        /// The host's error.
        source: std::io::Error,
    },
}

/// The reason why a kernel cannot be booted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The image is neither of the kinds known.
    #[error(
        "neither an ELF file nor a bzImage: take vmlinux or bzImage (/boot/vmlinuz-*) of an \
         x86-64 kernel"
    )]
    UnknownFormat,
    /// The image ends too early.
    #[error("the kernel image ends after {size} bytes, within its {part}: is the file complete?")]
    Truncated {
        /// Size of the image in bytes.
        size: usize,
        /// The truncated part.
        part: &'static str,
    },
    /// An ELF file that is not an x86-64 one.
    #[error(
        "an ELF file of class {class} for machine {machine}: needed is class 2 (64-bit), machine \
         62 (x86-64)"
    )]
    OtherMachine {
        /// `EI_CLASS`.
        class: u8,
        /// `e_machine`.
        machine: u16,
    },
    /// An ELF file with impossible contents.
    #[error("a broken ELF file: {0}")]
    Elf(String),
    /// A bzImage of a kernel that cannot be entered in 64-bit mode.
    #[error("a bzImage without a 64-bit entry: needed is an x86-64 kernel of Linux 3.8 or later")]
    Only32Bit,
    /// A kernel of a boot protocol before 2.12.
    #[error(
        "a bzImage of boot protocol {}.{:02}: needed is 2.12 or later (Linux 3.8)",
        version >> 8,
        version & 0xff
    )]
    TooOld {
        /// Major version in the high byte, minor version in the low one.
        version: u16,
    },
    /// The PVH entry was requested and the image has none.
    #[error("no PVH entry in this image: needed is an ELF file of a kernel with CONFIG_PVH")]
    NoPvhEntry,
    /// The kernel does not fit into guest memory at the place it wants.
    #[error(
        "the kernel needs guest memory from {start:#x} to {end:#x}: give the guest more memory \
         than {} MiB",
        end.div_ceil(1 << 20)
    )]
    NoRoom {
        /// First guest-physical address needed.
        start: u64,
        /// First guest-physical address not needed.
        end: u64,
    },
    /// The initial RAM disk does not fit beside the kernel.
    #[error(
        "an initrd of {size} bytes does not fit beside the kernel, where {room} bytes are free: \
         give the guest more memory"
    )]
    InitrdTooLarge {
        /// Its size in bytes.
        size: usize,
        /// Bytes that are free for it.
        room: u64,
    },
    /// The command line is longer than this kernel allows, or has a NUL.
    #[error("a kernel command line of {len} bytes: at most {max}, without NUL bytes")]
    CommandLine {
        /// Its length in bytes, additions for this host included.
        len: usize,
        /// The kernel's limit, in bytes.
        max: usize,
    },
}

fn hint(source: &errno::Error) -> &'static str {
    match source.errno() {
        libc::EMFILE => " (raise the open file limit: ulimit -n)",
        libc::ENOMEM => " (free host memory, or use fewer or smaller nodes)",
        _ => "",
    }
}
