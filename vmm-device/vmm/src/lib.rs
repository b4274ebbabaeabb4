//! A small virtual machine monitor on KVM: many one-purpose VMs in one process.
//!
//! A [`Vm`] is one node: guest memory, a thread for each vCPU, in-kernel interrupt
//! controllers, a serial port, and a PCI Express bus 0 with functions that talk
//! [`tofu_pci::PciFunction`]. The life of a VM:
//!
//! 1. [`Hypervisor::open`] once per process; [`Vm::new`] per node.
//! 2. Devices are built around [`Vm::memory`], placed on the bus by
//!    [`Vm::add_function`] (which does firmware's job and assigns their BARs), and
//!    given [`Vm::msi_sink`] for interrupts and [`Vm::windows`] for doorbells that
//!    need no exit.
//! 3. [`Vm::boot`] loads a small guest, [`Vm::boot_linux`] Linux with all that it
//!    expects of a PC; [`Vm::start`] runs it.
//! 4. [`Vm::wait`] or the callback of [`Vm::start`] tells the [`Outcome`];
//!    [`Vm::stop`] ends it early, [`Vm::registers`] looks at it meanwhile.
//!
//! Guests are untrusted: nothing that a guest does ends or blocks this process or another VM.
//! [`layout`] has the guest's address map.
//!
//! `unsafe` is confined to the modules `kick` (signals to vCPU threads), `slots`
//! (KVM memory slots), `pages` (their write protection) and `limits` (resource
//! limits), one union read in `vcpu`, and one instruction in `tsc`.

#![deny(unsafe_code)]

#[cfg(not(target_arch = "x86_64"))]
compile_error!("tofu-vmm runs x86-64 guests on x86-64 hosts only");

mod acpi;
mod boot;
mod bus;
mod control;
mod cpuid;
mod error;
mod host;
mod kick;
pub mod layout;
mod limits;
mod linux;
mod msi;
mod outcome;
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

pub use acpi::Viot;
pub use error::{Error, KernelError};
pub use host::Hypervisor;
pub use linux::{KernelEntry, LinuxBoot};
pub use outcome::{Fault, Outcome, Registers};
pub use pages::shared_region;
pub use pci_host::Slot;
pub use probe::{HostSupport, LinuxSupport, Virtualisation, probe};
pub use tsc::host_tsc_khz;
pub use vm::{ConsoleInput, Holder, Vm, VmConfig};
pub use windows::{Attachment, Windows};

/// Guest memory, shared between VMM and devices; cloning it clones references, not memory.
pub type GuestMemory = vm_memory::GuestMemoryMmap<()>;
