use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use kvm_bindings::{KVM_PIT_SPEAKER_DUMMY, kvm_pit_config};
use kvm_ioctls::VmFd;
use log::{debug, error};
use tofu_pci::{MsiSink, PciFunction};
use tofu_sync::lock;
use vm_memory::{FileOffset, GuestAddress};

use super::bus::Bus;
use super::control::Control;
use super::msi::{FunctionMsi, Routes};
use super::pci_host::PciHost;
use super::platform::Platform;
use super::serial::SerialPort;
use super::slots::Slots;
use super::vcpu::Vcpu;
use super::windows::Windows;
use super::{Hypervisor, boot, cpuid, linux, pages};
use crate::outcome::{Fault, Outcome, Registers};
use crate::support::Virtualisation;
use crate::{Error, GuestMemory, LinuxBoot, Slot, VmConfig, layout};

/// Called on a vCPU's thread with its number.
type ThreadStart = Arc<dyn Fn(u8) + Send + Sync>;
/// Called once, by the last vCPU thread.
type Ended = Arc<Mutex<Option<Box<dyn FnOnce(&Outcome) + Send>>>>;

const PAGE: u64 = 4096;
/// Boot data and an image at [`layout::IMAGE_START`] fit.
const MEMORY_MIN: u64 = 2 << 20;
/// KVM's own three pages (Intel without "unrestricted guest"), below the
/// firmware window of a PC.
const TSS_ADDRESS: usize = 0xfffb_d000;
/// Address space, not memory: pages are taken as the stack grows.
const THREAD_STACK: usize = 256 << 10;
/// The time limit for a vCPU to answer [`Vm::pause`] and [`Vm::registers`]. It
/// answers within microseconds unless a device keeps it or the host is
/// overloaded.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Holds the vCPUs of a VM. It may outlive the VM.
#[derive(Clone)]
pub struct Holder(Arc<Control>);

impl Holder {
    /// As [`Vm::pause`].
    pub fn pause(&self) -> bool {
        self.0.pause(ANSWER_TIMEOUT)
    }

    /// Pauses without waiting for the vCPUs, which halt as soon as they run in the guest again.
    /// False if the VM is paused already, or has ended.
    pub fn hold(&self) -> bool {
        self.0.hold()
    }

    /// As [`Vm::resume`].
    pub fn resume(&self) {
        self.0.resume();
    }

    /// As [`Vm::registers`].
    pub fn registers(&self) -> Option<Registers> {
        self.0.registers(0, ANSWER_TIMEOUT)
    }

    /// Ends the VM if it still runs. Does not wait for it.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// The same, with a reason, which is the outcome.
    pub fn end(&self, reason: String) {
        self.0.end(Outcome::Ended(reason));
    }
}

/// A virtual machine.
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
    thread_start: Mutex<Option<ThreadStart>>,
    virtualisation: Virtualisation,
    linux_command_line: &'static str,
    /// Window of 64-bit BARs.
    mmio64: Range<u64>,
}

enum Life {
    New(Vec<Vcpu>),
    Booted(Vec<Vcpu>),
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
        let memory = allocate(config, hypervisor.mmio64_start())?;
        Self::around(memory, hypervisor, config, serial)
    }

    /// Creates a new VM with the memory of this one, which must have ended: for devices that were
    /// built around that memory. The memory is zeroed. Everything else is new, including sinks and
    /// windows, to which devices must be connected again. `config` must be this VM's.
    ///
    /// # Errors
    /// [`Error::State`] if this one still runs, or shares its memory with another process;
    /// [`Error::Kvm`], [`Error::Host`].
    pub fn renew(
        &self,
        hypervisor: &Hypervisor,
        config: &VmConfig,
        serial: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        if self.wait(Duration::ZERO).is_none() {
            return Err(Error::State("still running"));
        }
        // Its threads have left, or are about to.
        self.stop();
        pages::empty(&self.memory)?;
        Self::around(self.memory.clone(), hypervisor, config, serial)
    }

    fn around(
        memory: GuestMemory,
        hypervisor: &Hypervisor,
        config: &VmConfig,
        serial: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
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
        let control = Arc::new(Control::new(config.vcpus.into()));
        let vcpu = |id| {
            let cpuid = cpuid::for_vcpu(&hypervisor.cpuid, id, config.vcpus)?;
            Vcpu::new(&vm, id, &cpuid, bus.clone(), control.clone())
        };
        let vcpus = (0..config.vcpus).map(vcpu).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            name: config.name.clone(),
            life: Mutex::new(Life::New(vcpus)),
            thread_start: Mutex::new(None),
            virtualisation: hypervisor.virtualisation(),
            linux_command_line: hypervisor.linux_command_line(),
            mmio64: hypervisor.mmio64_start()..hypervisor.mmio64_end(),
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

    /// The bytes of guest memory that take memory of the host's now.
    ///
    /// # Errors
    /// [`Error::Host`] if the host does not report it.
    pub fn resident(&self) -> Result<u64, Error> {
        pages::resident(&self.memory)
    }

    /// Gives the memory of a VM that has ended back to the host. Who reads it finds zeros.
    ///
    /// # Errors
    /// [`Error::State`] if it still runs, or shares its memory with another process;
    /// [`Error::Host`].
    pub fn give_back(&self) -> Result<(), Error> {
        match self.wait(Duration::ZERO) {
            Some(_) => pages::empty(&self.memory),
            None => Err(Error::State("still running")),
        }
    }

    /// Puts a function in the next free slot of bus 0, from 1 on, and assigns its
    /// BARs: 64-bit prefetchable ones high, all others below 4 GiB.
    ///
    /// # Errors
    /// [`Error::BusFull`], [`Error::BarSpace`].
    pub fn add_function(&self, function: Arc<dyn PciFunction>) -> Result<Slot, Error> {
        self.add_function_with(function, self.new_windows())
    }

    /// The same, for a function that needs to know what is attached to its BARs before it is on
    /// the bus.
    ///
    /// # Errors
    /// As [`Vm::add_function`].
    pub fn add_function_with(
        &self,
        function: Arc<dyn PciFunction>,
        windows: Windows,
    ) -> Result<Slot, Error> {
        self.bus.pci.add(function, windows)
    }

    /// The attachments for the BARs of a function that is not on the bus yet.
    pub fn new_windows(&self) -> Windows {
        Windows::new(self.vm.clone(), self.slots.clone())
    }

    /// A receiver for one function's MSI-X messages, to be connected to its
    /// table. Each vector that the guest unmasks takes one file descriptor.
    pub fn msi_sink(&self) -> Arc<dyn MsiSink> {
        Arc::new(FunctionMsi::new(self.routes.clone()))
    }

    /// The attachments of the BARs of the function in `slot`.
    pub fn windows(&self, slot: Slot) -> Option<Windows> {
        self.bus.pci.windows(slot).cloned()
    }

    /// Loads an ELF image at its physical addresses and prepares its entry according to the 64-bit
    /// Linux/x86 boot protocol: long mode, the first 4 GiB mapped one to one, RSI pointing to the
    /// boot parameters with memory map and command line. Words that small guests need are added to
    /// `command_line`: `tsc_khz=` (frequency of the time stamp counter), `ecam=`
    /// ([`layout::ECAM_START`]) and `print=` ([`layout::PORT_PRINT`]).
    ///
    /// # Errors
    /// [`Error::Image`], [`Error::CommandLine`], [`Error::Kvm`]; [`Error::State`]
    /// if that happened before.
    pub fn boot(&self, image: &[u8], command_line: &str) -> Result<(), Error> {
        let mut life = lock(&self.life);
        let Life::New(vcpus) = &*life else { return Err(Error::State("booted already")) };
        let Some(first) = vcpus.first() else { return Err(Error::State("without vCPUs")) };
        let mut command_line = command_line.to_owned();
        command_line += &format!(" ecam={:#x} print={:#x}", layout::ECAM_START, layout::PORT_PRINT);
        if let Some(khz) = first.tsc_khz() {
            command_line += &format!(" tsc_khz={khz}");
        }
        let entry = boot::load(&self.memory, image, command_line.trim_start())?;
        first.enter(entry)?;
        life.booted();
        Ok(())
    }

    /// Loads a Linux kernel, and adds the devices that Linux expects in a PC: real-time clock,
    /// timer (PIT), reset register and, if requested, ACPI tables and registers. Functions on the
    /// bus may be added before or after.
    ///
    /// On a PVM host, the parameters that a kernel needs there precede the command line, and the
    /// monitor delivers breakpoint exceptions of the kernel, which KVM does not emulate. See
    /// [`crate::LinuxSupport`] for the limits.
    ///
    /// # Errors
    /// [`Error::Kernel`], [`Error::Kvm`]; [`Error::State`] if the VM was booted
    /// before.
    pub fn boot_linux(&self, boot: &LinuxBoot<'_>) -> Result<(), Error> {
        let mut life = lock(&self.life);
        let Life::New(vcpus) = &mut *life else { return Err(Error::State("booted already")) };
        let command_line = format!("{} {}", self.linux_command_line, boot.command_line);
        let count = vcpus.len() as u8;
        let entry =
            linux::load(&self.memory, boot, command_line.trim(), count, self.mmio64.clone())?;
        // It includes port 0x61, through which Linux reads the timer's output.
        let pit = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
        self.vm.create_pit2(pit).map_err(Error::kvm("creating the timer"))?;
        for vcpu in &mut *vcpus {
            vcpu.prepare_for_linux(self.virtualisation == Virtualisation::Pvm)?;
        }
        let Some(first) = vcpus.first() else { return Err(Error::State("without vCPUs")) };
        first.enter(entry)?;
        self.bus.set_platform(Platform::new(boot.acpi));
        life.booted();
        Ok(())
    }

    /// Also passes the guest's output to `sink`, byte by byte, on the vCPU's thread: for consoles
    /// that show unfinished lines and control sequences. Replaces an earlier sink.
    pub fn set_console(&self, sink: impl Fn(&[u8]) + Send + Sync + 'static) {
        self.bus.set_console(Arc::new(sink));
    }

    /// A writer whose bytes arrive at the guest's serial port. It may outlive the VM.
    pub fn console_input(&self) -> ConsoleInput {
        ConsoleInput(self.bus.clone())
    }

    /// Sets a function that each vCPU's thread calls with the vCPU's number before it runs the
    /// guest, for instance to sandbox the thread. It takes effect at the next [`Vm::start`].
    pub fn on_thread_start(&self, hook: impl Fn(u8) + Send + Sync + 'static) {
        *lock(&self.thread_start) = Some(Arc::new(hook));
    }

    /// Starts the vCPUs. `ended` is called once, on the last vCPU thread to leave,
    /// after everything printed has been handed out; it must not wait for this
    /// VM. [`Vm::wait`] may return a little earlier.
    ///
    /// # Errors
    /// [`Error::State`] if not booted or started already, [`Error::Host`] if no thread can be
    /// created.
    pub fn start(&self, ended: impl FnOnce(&Outcome) + Send + 'static) -> Result<(), Error> {
        let mut life = lock(&self.life);
        let vcpus = match std::mem::replace(&mut *life, Life::None) {
            Life::Booted(vcpus) => vcpus,
            other => {
                let early = matches!(other, Life::New(_));
                *life = other;
                return Err(Error::State(if early { "not booted" } else { "started already" }));
            }
        };
        let count = vcpus.len();
        let ended: Ended = Arc::new(Mutex::new(Some(Box::new(ended))));
        let hook = lock(&self.thread_start).clone();
        self.control.begin();
        let mut threads = Vec::with_capacity(count);
        for (id, vcpu) in vcpus.into_iter().enumerate() {
            match self.spawn(id as u8, vcpu, ended.clone(), hook.clone()) {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    // The caller gets the error from here, not from `ended`.
                    lock(&ended).take();
                    (id..count).for_each(|id| drop(self.control.leave(id)));
                    self.control.stop();
                    *life = Life::Started(threads);
                    let what = "starting a vCPU thread (raise ulimit -u)";
                    return Err(Error::Host { what, source });
                }
            }
        }
        *life = Life::Started(threads);
        Ok(())
    }

    fn spawn(
        &self,
        id: u8,
        vcpu: Vcpu,
        ended: Ended,
        hook: Option<ThreadStart>,
    ) -> std::io::Result<JoinHandle<()>> {
        let (bus, control, name) = (self.bus.clone(), self.control.clone(), self.name.clone());
        let body = move || {
            let run = catch_unwind(AssertUnwindSafe(|| {
                if let Some(hook) = hook {
                    hook(id);
                }
                vcpu.run()
            }));
            let broken = match run {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("a device panicked".to_owned()),
            };
            if let Some(reason) = broken {
                error!("{name}: {reason}");
                let registers = Registers::default();
                let fault = Fault { reason, vcpu: id, registers };
                control.end(Outcome::InternalError(Box::new(fault)));
            }
            bus.finish();
            if let Some(outcome) = control.leave(id.into()) {
                debug!("{name}: {outcome}");
                let ended = lock(&ended).take();
                if let Some(ended) = ended {
                    ended(&outcome);
                }
            }
        };
        let name = match id {
            0 => self.name.clone(),
            _ => format!("{id} {}", self.name),
        };
        std::thread::Builder::new().name(name).stack_size(THREAD_STACK).spawn(body)
    }

    /// Waits for the VM to end, at most for `timeout`. A VM that was never
    /// started counts as stopped.
    pub fn wait(&self, timeout: Duration) -> Option<Outcome> {
        self.control.wait(timeout)
    }

    /// Holds all vCPUs between two instructions until [`Vm::resume`]; returns when
    /// they are held. False if the VM has ended, or a vCPU did not answer within
    /// 5 s.
    pub fn pause(&self) -> bool {
        self.control.pause(ANSWER_TIMEOUT)
    }

    /// Lets paused vCPUs continue.
    pub fn resume(&self) {
        self.control.resume();
    }

    /// A way to do that from elsewhere.
    pub fn holder(&self) -> Holder {
        Holder(self.control.clone())
    }

    /// The first vCPU's registers as of now, for finding out where a guest hangs; or as they were
    /// when that vCPU ended the VM. `None` if the VM was stopped or did not run, or the vCPU did
    /// not answer within 5 s.
    pub fn registers(&self) -> Option<Registers> {
        self.registers_of(0)
    }

    /// The same of vCPU `vcpu`. `None` also if there is none of that number.
    pub fn registers_of(&self, vcpu: u8) -> Option<Registers> {
        self.control.registers(vcpu.into(), ANSWER_TIMEOUT)
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

impl Life {
    /// From new to booted.
    fn booted(&mut self) {
        *self = match std::mem::replace(self, Life::None) {
            Life::New(vcpus) => Life::Booted(vcpus),
            other => other,
        };
    }
}

/// Types on a guest's serial port. See [`Vm::console_input`].
#[derive(Clone)]
pub struct ConsoleInput(Arc<Bus>);

impl std::io::Write for ConsoleInput {
    /// Takes as much as there is room for: 4 KiB wait for a guest that does not
    /// read. Never waits.
    ///
    /// # Errors
    /// [`std::io::ErrorKind::WouldBlock`] if there is no room.
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        match self.0.console_input(data) {
            0 if !data.is_empty() => Err(std::io::ErrorKind::WouldBlock.into()),
            taken => Ok(taken),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn allocate(config: &VmConfig, end: u64) -> Result<GuestMemory, Error> {
    if !(1..=layout::VCPUS_MAX).contains(&config.vcpus) {
        return Err(Error::Vcpus { count: config.vcpus });
    }
    let size = config.memory;
    let max = end - (layout::HIGH_RAM_START - layout::LOW_RAM_END);
    if !(MEMORY_MIN..=max).contains(&size) || !size.is_multiple_of(PAGE) {
        return Err(Error::MemorySize { size, min: MEMORY_MIN, max });
    }
    let low = size.min(layout::LOW_RAM_END);
    let mut ranges = vec![(GuestAddress(0), low as usize, None)];
    if size > low {
        ranges.push((GuestAddress(layout::HIGH_RAM_START), (size - low) as usize, None));
    }
    if config.shared_memory {
        let file = Arc::new(pages::memory_file("tofu-guest", size)?);
        let mut offset = 0;
        for (_, len, place) in &mut ranges {
            *place = Some(FileOffset::from_arc(file.clone(), offset));
            offset += *len as u64;
        }
    }
    GuestMemory::from_ranges_with_files(&ranges)
        .map_err(|error| Error::Memory { size, reason: error.to_string() })
}
