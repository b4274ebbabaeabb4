use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use kvm_ioctls::VmFd;
use log::{debug, error};
use tofu_pci::{MsiSink, PciFunction};
use vm_memory::GuestAddress;

use crate::boot;
use crate::bus::Bus;
use crate::control::Control;
use crate::msi::{FunctionMsi, Routes};
use crate::pci_host::{PciHost, Slot};
use crate::serial::SerialPort;
use crate::slots::Slots;
use crate::vcpu::{Fault, Outcome, Registers, Vcpu};
use crate::windows::Windows;
use crate::{Error, GuestMemory, Hypervisor, cpuid, layout, lock};

const PAGE: u64 = 4096;
/// Boot data and an image at [`layout::IMAGE_START`] fit.
const MEMORY_MIN: u64 = 2 << 20;
/// KVM's own three pages (Intel without "unrestricted guest"), below the
/// firmware window of a PC.
const TSS_ADDRESS: usize = 0xfffb_d000;
/// Address space, not memory: pages are taken as the stack grows.
const THREAD_STACK: usize = 256 << 10;
/// How long a vCPU may take to answer [`Vm::pause`] and [`Vm::registers`]. It
/// answers within microseconds unless a device keeps it or the host is
/// overloaded.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What a VM is made of.
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// Names the VM in the log and its thread, whose name keeps the first 15
    /// bytes.
    pub name: String,
    /// Guest memory in bytes, a multiple of 4096. The host gives pages as the
    /// guest touches them.
    pub memory: u64,
}

impl Default for VmConfig {
    /// 16 MiB of memory, named "vm".
    fn default() -> Self {
        Self { name: "vm".to_owned(), memory: 16 << 20 }
    }
}

/// A virtual machine with one vCPU.
///
/// Methods may be called from any thread. Dropping it stops it and gives
/// everything back.
pub struct Vm {
    name: String,
    // Fields are dropped in this order: threads first (in `Drop`), then the
    // devices, and guest memory last.
    life: Mutex<Life>,
    bus: Arc<Bus>,
    control: Arc<Control>,
    routes: Arc<Routes>,
    vm: Arc<VmFd>,
    slots: Arc<Slots>,
    memory: GuestMemory,
}

enum Life {
    New(Box<Vcpu>),
    Booted(Box<Vcpu>),
    /// In the hands of a call that changes it, or lost to a host without threads.
    None,
    Started(Vec<JoinHandle<()>>),
}

impl Vm {
    /// Creates a VM with memory, interrupt controllers and serial port.
    ///
    /// `serial` receives each line the guest prints, on the vCPU's thread; lines
    /// are cut at 1024 bytes.
    ///
    /// # Errors
    /// [`Error::MemorySize`], [`Error::Memory`], [`Error::Kvm`].
    pub fn new(
        hypervisor: &Hypervisor,
        config: &VmConfig,
        serial: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let memory = allocate(config.memory, hypervisor.mmio64_start())?;
        let vm = hypervisor.kvm.create_vm().map_err(Error::kvm("creating a VM"))?;
        let vm = Arc::new(vm);
        vm.set_tss_address(TSS_ADDRESS).map_err(Error::kvm("setting the TSS address"))?;
        vm.create_irq_chip().map_err(Error::kvm("creating the interrupt controllers"))?;
        let slots = Arc::new(Slots::new(vm.clone()));
        slots.map_ram(&memory)?;
        let pci = PciHost::new(
            hypervisor.mmio64_start(),
            hypervisor.mmio64_end(),
            Windows::new(vm.clone(), slots.clone()),
        );
        let serial = SerialPort::new(vm.clone(), Arc::new(serial));
        let bus = Arc::new(Bus::new(config.name.clone(), pci, serial, memory.clone()));
        let control = Arc::new(Control::new(1));
        let cpuid = cpuid::for_vcpu(&hypervisor.cpuid, 0, 1);
        let vcpu = Vcpu::new(&vm, 0, &cpuid, bus.clone(), control.clone())?;
        Ok(Self {
            name: config.name.clone(),
            life: Mutex::new(Life::New(Box::new(vcpu))),
            bus,
            control,
            routes: Arc::new(Routes::new(vm.clone())),
            vm,
            slots,
            memory,
        })
    }

    /// The VM's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Guest memory, for devices. The references returned may outlive the VM.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Puts a function in the next free slot of bus 0, from 1 on, and assigns its
    /// BARs: 64-bit prefetchable ones high, all others below 4 GiB.
    ///
    /// # Errors
    /// [`Error::BusFull`], [`Error::BarSpace`].
    pub fn add_function(&self, function: Arc<dyn PciFunction>) -> Result<Slot, Error> {
        let windows = Windows::new(self.vm.clone(), self.slots.clone());
        self.bus.pci.add(function, windows)
    }

    /// A receiver for one function's MSI-X messages, to be connected to its
    /// table. Each vector that the guest unmasks takes one file descriptor.
    pub fn msi_sink(&self) -> Arc<dyn MsiSink> {
        Arc::new(FunctionMsi::new(self.routes.clone()))
    }

    /// What is attached to the BARs of the function in `slot`.
    pub fn windows(&self, slot: Slot) -> Option<Windows> {
        self.bus.pci.windows(slot).cloned()
    }

    /// Loads an ELF image at its physical addresses and prepares its entry as the
    /// 64-bit Linux/x86 boot protocol says: long mode, the first 4 GiB mapped
    /// one to one, RSI pointing to the boot parameters with memory map and
    /// command line. Added to `command_line` is what small guests cannot find out
    /// themselves: `tsc_khz=` (frequency of the time stamp counter), `ecam=`
    /// ([`layout::ECAM_START`]) and `print=` ([`layout::PORT_PRINT`]).
    ///
    /// # Errors
    /// [`Error::Image`], [`Error::CommandLine`], [`Error::Kvm`]; [`Error::State`]
    /// if that happened before.
    pub fn boot(&self, image: &[u8], command_line: &str) -> Result<(), Error> {
        let mut life = lock(&self.life);
        let Life::New(vcpu) = &*life else { return Err(Error::State("booted already")) };
        let mut command_line = command_line.to_owned();
        command_line += &format!(" ecam={:#x} print={:#x}", layout::ECAM_START, layout::PORT_PRINT);
        if let Some(khz) = vcpu.tsc_khz() {
            command_line += &format!(" tsc_khz={khz}");
        }
        let entry = boot::load(&self.memory, image, command_line.trim_start())?;
        vcpu.enter(entry)?;
        *life = match std::mem::replace(&mut *life, Life::None) {
            Life::New(vcpu) => Life::Booted(vcpu),
            other => other,
        };
        Ok(())
    }

    /// Starts the vCPU. `ended` is called once, on the last vCPU thread to leave,
    /// after everything printed has been handed out; it must not wait for this
    /// VM. [`Vm::wait`] may return a little earlier.
    ///
    /// # Errors
    /// [`Error::State`] if not booted or started already, [`Error::Host`] if there
    /// is no thread to be had.
    pub fn start(&self, ended: impl FnOnce(&Outcome) + Send + 'static) -> Result<(), Error> {
        let mut life = lock(&self.life);
        let vcpu = match std::mem::replace(&mut *life, Life::None) {
            Life::Booted(vcpu) => vcpu,
            other => {
                let early = matches!(other, Life::New(_));
                *life = other;
                return Err(Error::State(if early { "not booted" } else { "started already" }));
            }
        };
        let (bus, control, name) = (self.bus.clone(), self.control.clone(), self.name.clone());
        control.begin();
        let body = move || {
            let run = catch_unwind(AssertUnwindSafe(|| vcpu.run()));
            let broken = match run {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("a device panicked".to_owned()),
            };
            if let Some(reason) = broken {
                error!("{name}: {reason}");
                let registers = Registers::default();
                let fault = Fault { reason, vcpu: 0, registers };
                control.end(Outcome::InternalError(Box::new(fault)));
            }
            bus.finish();
            if let Some(outcome) = control.leave(0) {
                debug!("{name}: {outcome}");
                ended(&outcome);
            }
        };
        let thread = std::thread::Builder::new()
            .name(self.name.clone())
            .stack_size(THREAD_STACK)
            .spawn(body)
            .map_err(|source| {
                self.control.leave(0);
                Error::Host { what: "starting a vCPU thread (raise ulimit -u)", source }
            })?;
        *life = Life::Started(vec![thread]);
        Ok(())
    }

    /// Waits for the VM to end, at most for `timeout`. A VM that was never
    /// started counts as stopped.
    pub fn wait(&self, timeout: Duration) -> Option<Outcome> {
        self.control.wait(timeout)
    }

    /// Holds the vCPU between two instructions until [`Vm::resume`]; returns when
    /// it is held. False if the VM has ended, or the vCPU did not answer within
    /// 5 s.
    pub fn pause(&self) -> bool {
        self.control.pause(ANSWER_TIMEOUT)
    }

    /// Lets a paused vCPU go on.
    pub fn resume(&self) {
        self.control.resume();
    }

    /// The vCPU's registers as of now, for finding out where a guest hangs.
    /// `None` if the VM does not run, or the vCPU did not answer within 5 s.
    pub fn registers(&self) -> Option<Registers> {
        self.control.registers(0, ANSWER_TIMEOUT)
    }

    /// Ends the VM if it still runs and waits for its threads, which takes as
    /// long as the device access in progress. Tells how the VM ended: by this or
    /// earlier in its own way.
    pub fn stop(&self) -> Outcome {
        self.control.stop();
        let threads = match &mut *lock(&self.life) {
            Life::Started(threads) => std::mem::take(threads),
            _ => Vec::new(),
        };
        let this = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != this) {
            // Panics are caught inside.
            let _ = thread.join();
        }
        self.control.wait(Duration::ZERO).unwrap_or(Outcome::Stopped)
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.stop();
    }
}

fn allocate(size: u64, end: u64) -> Result<GuestMemory, Error> {
    let max = end - (layout::HIGH_RAM_START - layout::LOW_RAM_END);
    if !(MEMORY_MIN..=max).contains(&size) || !size.is_multiple_of(PAGE) {
        return Err(Error::MemorySize { size, min: MEMORY_MIN, max });
    }
    let low = size.min(layout::LOW_RAM_END);
    let mut ranges = vec![(GuestAddress(0), low as usize)];
    if size > low {
        ranges.push((GuestAddress(layout::HIGH_RAM_START), (size - low) as usize));
    }
    GuestMemory::from_ranges(&ranges)
        .map_err(|error| Error::Memory { size, reason: error.to_string() })
}
