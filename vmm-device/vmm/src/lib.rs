//! A small virtual machine monitor on KVM: many one-purpose VMs in one process.
//!
//! A [`Vm`] is one node: guest memory, a thread for each vCPU, in-kernel interrupt controllers, a
//! serial port, and a PCI Express bus 0 with functions that implement [`tofu_pci::PciFunction`].
//! The life of a VM:
//!
//! 1. [`Hypervisor::open`] once per process; [`Vm::new`] per node.
//! 2. Devices are built around [`Vm::memory`], placed on the bus by [`Vm::add_function`], which
//!    assigns their BARs as firmware does, and connected to [`Vm::msi_sink`] for interrupts and
//!    [`Vm::windows`] for doorbells without an exit.
//! 3. [`Vm::boot`] loads a small guest, [`Vm::boot_linux`] Linux with the devices that it expects
//!    in a PC; [`Vm::start`] runs it.
//! 4. [`Vm::wait`] or the callback of [`Vm::start`] gives the [`Outcome`]; [`Vm::stop`] ends it
//!    early, and [`Vm::registers`] reads the registers of a running VM.
//!
//! Guests are untrusted: nothing that a guest does ends or blocks this process or another VM.
//! [`layout`] has the guest's address map.
//!
//! It runs x86-64 guests on x86-64 hosts. On other hosts the same names exist, but [`probe`]
//! reports that nothing can be run, and [`Hypervisor::open`] fails.
//!
//! `unsafe` is confined to the modules of `kvm`: `kick` (signals to vCPU threads), `slots`
//! (KVM memory slots), `pages` (their write protection) and `limits` (resource
//! limits, the heap), one union read in `vcpu`, and one instruction in `tsc`.
//!
//! # The platform
//!
//! The platform is modelled on a PC with Intel's Q35 chipset. A *small guest* has memory, vCPUs,
//! interrupt controllers, serial port and PCI bus. A *Linux guest* has in addition what Linux
//! expects of a PC, and devices by virtio 1.2 (`tofu-virtio`): a disk, an entropy source, a console
//! with the channel to the agent, and an IOMMU. `kvm::linux` has how kernels are entered (bzImage,
//! or ELF with or without a PVH note), `kvm::acpi` the ACPI tables.
//!
//! - *vCPUs.* A VM has 1 to 16, each with a thread: cores of one socket, with equal APIC ID and
//!   number. The first one starts at the entry; the others wait for INIT and SIPI, which KVM's
//!   local APICs handle. Linux guests find all memory write-back by default (MTRR), LINT0 as
//!   external interrupt and LINT1 as NMI, as firmware leaves them. CPUID is the host's, with the
//!   TSC-deadline timer where KVM has it. On hardware virtualisation KVM's own leaves
//!   (`0x4000_0000`) are present.
//! - *PCI.* Bus 0 has a host bridge in slot 0 (1b36:0008, the generic PCIe host bridge) and
//!   functions in slots 1 to 31. Configuration space is reached by ECAM, with 4 KiB per function,
//!   and by the ports, with 256 bytes. 64-bit prefetchable BARs are above 4 GiB, all others below.
//!   The guest may move them anywhere; doorbells and shared pages follow. Interrupts are MSI-X
//!   only: no function has a pin, and there is no `_PRT`.
//! - *IOMMU.* A Linux node has a virtio-iommu with the controller alone behind it, because VFIO's
//!   type 1 needs one. A kernel that has the driver as a module (Debian's) does not touch the
//!   controller until the module is loaded. Images load it; an initrd of your own must load it
//!   itself. Interrupts are not remapped, so VFIO needs
//!   `vfio_iommu_type1.allow_unsafe_interrupts=1` on the command line, where `tofu up` puts it.
//!
//! # On a PVM host
//!
//! KVM without VT-x or AMD-V emulates ring 0, instruction by instruction, and implements fewer
//! instructions (`HostSupport::linux` is `KernelOnly`). For a Linux guest the monitor then
//!
//! - hides from CPUID what the emulator lacks: XSAVE and AVX, BMI, POPCNT, CMPXCHG16B; and the
//!   hypervisor's leaves, as a VMCALL hangs;
//! - puts before its command line `nokaslr noxsave mitigations=off lpj=1000000 tsc=reliable
//!   no_timer_check nopti clearcpuid=308,151` (308 is SMAP, 151 POPCNT);
//! - delivers the breakpoint exception when KVM gives up at an INT3, which the kernel's self-test
//!   executes.
//!
//! A kernel made for it (`ci/kernel/build-pvm-kernel`) then boots as far as its init program, by
//! all three entries, with several vCPUs, memory on both sides of the hole, ACPI, a virtio disk
//! with MSI-X, and a disk behind a virtio-iommu. System calls of the init program do not reach the
//! kernel, neither by SYSCALL nor by INT 0x80. So on such hosts Linux user space runs under QEMU.
//!
//! Hardware virtualisation is tested inside a QEMU that emulates AMD's SVM with nested paging
//! (`tests/linux/tests/virtualised.rs`): Debian's kernel, user space, VFIO on the virtio-iommu, and
//! bare guests, all under the sandbox. It was not run on Intel's VMX or on a real processor.

#![deny(unsafe_code)]

mod config;
mod error;
// The only code that depends on the host's architecture. Other hosts get a stub, so that users of
// this crate are the same everywhere.
#[cfg_attr(not(target_arch = "x86_64"), path = "absent.rs")]
mod kvm;
pub mod layout;
mod outcome;
mod support;

pub use config::{KernelEntry, LinuxBoot, Slot, Viot, VmConfig};
pub use error::{Error, KernelError};
pub use kvm::{
    Attachment, ConsoleInput, Holder, Hypervisor, Vm, Windows, host_tsc_khz, probe, run_soon,
    share_heap, shared_region,
};
pub use outcome::{Fault, Outcome, Registers};
pub use support::{HostSupport, LinuxSupport, Virtualisation};

/// Guest memory, shared between VMM and devices; cloning it clones references, not memory.
pub type GuestMemory = vm_memory::GuestMemoryMmap<()>;
