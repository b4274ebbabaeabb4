//! The configuration of a VM and of its boot, as plain data.

/// The configuration of a VM.
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// Names the VM in the log and its thread, whose name keeps the first 15
    /// bytes.
    pub name: String,
    /// Guest memory in bytes, a multiple of 4096. The host gives pages as the
    /// guest touches them.
    pub memory: u64,
    /// Number of vCPUs, 1 to [`crate::layout::VCPUS_MAX`]. The first one starts at the
    /// guest's entry, the others when it sends them INIT and SIPI.
    pub vcpus: u8,
    /// Back the memory with a file in memory, which [`crate::Vm::memory`] names (region
    /// by region: `file_offset`), so that it can be shared with another process.
    pub shared_memory: bool,
}

impl Default for VmConfig {
    /// 16 MiB of private memory and one vCPU, named "vm".
    fn default() -> Self {
        Self { name: "vm".to_owned(), memory: 16 << 20, vcpus: 1, shared_memory: false }
    }
}

/// The slot of a function: its device number on bus 0, 1 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub(crate) u8);

impl Slot {
    /// The device number.
    pub fn device(self) -> u8 {
        self.0
    }

    /// Bus, device and function number in one, as in a requester ID: what an IOMMU
    /// calls the function.
    pub fn requester_id(self) -> u16 {
        u16::from(self.0) << 3
    }
}

/// A Linux kernel and what it is given. See [`crate::Vm::boot_linux`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LinuxBoot<'a> {
    /// The kernel image: a bzImage, or an ELF file (`vmlinux`).
    pub kernel: &'a [u8],
    /// The initial RAM disk, if any: a cpio archive, compressed or not.
    pub initrd: Option<&'a [u8]>,
    /// The kernel's command line, at most [`crate::layout::COMMAND_LINE_MAX`] bytes and what
    /// the kernel allows.
    pub command_line: &'a str,
    /// True if the guest gets ACPI tables. Without them a kernel finds neither CPUs
    /// beside the first nor the ECAM window, and cannot power off.
    pub acpi: bool,
    /// The kernel's entry point.
    pub entry: KernelEntry,
    /// The IOMMU, if the machine has one; said by ACPI only.
    pub viot: Option<Viot<'a>>,
}

/// The boot protocol of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelEntry {
    /// By what the image is: a bzImage in 64-bit mode; an ELF file by its PVH note
    /// if it has one, else in 64-bit mode.
    #[default]
    Auto,
    /// In 64-bit mode: a bzImage 512 bytes after its start, an ELF file at its entry
    /// point.
    Bits64,
    /// In 32-bit mode without paging, where the PVH note of an ELF file says.
    Pvh,
}

/// A virtio-iommu and the functions that it translates for. A function's endpoint has its
/// [`Slot::requester_id`] as number.
#[derive(Clone, Copy, Debug)]
pub struct Viot<'a> {
    /// The slot of the virtio-iommu.
    pub iommu: Slot,
    /// The functions behind it. Others, and the virtio-iommu itself, are not.
    pub behind: &'a [Slot],
}
