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
//! It runs x86-64 guests on x86-64 hosts. On others it is an empty monitor: [`probe`] says so, and
//! there is nothing else.
//!
//! `unsafe` is confined to the modules `kick` (signals to vCPU threads), `slots`
//! (KVM memory slots), `pages` (their write protection) and `limits` (resource
//! limits), one union read in `vcpu`, and one instruction in `tsc`.

#![deny(unsafe_code)]

mod support;

#[cfg(not(target_arch = "x86_64"))]
mod absent;
#[cfg(target_arch = "x86_64")]
mod acpi;
#[cfg(target_arch = "x86_64")]
mod boot;
#[cfg(target_arch = "x86_64")]
mod bus;
#[cfg(target_arch = "x86_64")]
mod control;
#[cfg(target_arch = "x86_64")]
mod cpuid;
#[cfg(target_arch = "x86_64")]
mod error;
#[cfg(target_arch = "x86_64")]
mod host;
#[cfg(target_arch = "x86_64")]
mod kick;
#[cfg(target_arch = "x86_64")]
pub mod layout;
#[cfg(target_arch = "x86_64")]
mod limits;
#[cfg(target_arch = "x86_64")]
mod linux;
#[cfg(target_arch = "x86_64")]
mod msi;
#[cfg(target_arch = "x86_64")]
mod outcome;
#[cfg(target_arch = "x86_64")]
mod pages;
#[cfg(target_arch = "x86_64")]
mod pci_host;
#[cfg(target_arch = "x86_64")]
mod platform;
#[cfg(target_arch = "x86_64")]
mod probe;
#[cfg(target_arch = "x86_64")]
mod serial;
#[cfg(target_arch = "x86_64")]
mod slots;
#[cfg(target_arch = "x86_64")]
mod tsc;
#[cfg(target_arch = "x86_64")]
mod vcpu;
#[cfg(target_arch = "x86_64")]
mod vm;
#[cfg(target_arch = "x86_64")]
mod windows;

#[cfg(not(target_arch = "x86_64"))]
pub use absent::probe;
#[cfg(target_arch = "x86_64")]
pub use acpi::Viot;
#[cfg(target_arch = "x86_64")]
pub use error::{Error, KernelError};
#[cfg(target_arch = "x86_64")]
pub use host::Hypervisor;
#[cfg(target_arch = "x86_64")]
pub use linux::{KernelEntry, LinuxBoot};
#[cfg(target_arch = "x86_64")]
pub use outcome::{Fault, Outcome, Registers};
#[cfg(target_arch = "x86_64")]
pub use pages::shared_region;
#[cfg(target_arch = "x86_64")]
pub use pci_host::Slot;
#[cfg(target_arch = "x86_64")]
pub use probe::probe;
pub use support::{HostSupport, LinuxSupport, Virtualisation};
#[cfg(target_arch = "x86_64")]
pub use tsc::host_tsc_khz;
#[cfg(target_arch = "x86_64")]
pub use vm::{ConsoleInput, Holder, Vm, VmConfig};
#[cfg(target_arch = "x86_64")]
pub use windows::{Attachment, Windows};

/// Guest memory, shared between VMM and devices; cloning it clones references, not memory.
pub type GuestMemory = vm_memory::GuestMemoryMmap<()>;
