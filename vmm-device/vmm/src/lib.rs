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
