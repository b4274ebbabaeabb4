//! One vCPU: its thread's loop.

use std::sync::Arc;

use super::boot::Entry;
use super::bus::Bus;
use super::control::{Control, Next};
use crate::Error;
use crate::outcome::{Fault, Outcome, Registers};
use kvm_bindings::{CpuId, Msrs, kvm_msr_entry};
use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};

/// A vCPU that has not started yet.
pub(crate) struct Vcpu {
    fd: VcpuFd,
    id: u8,
    bus: Arc<Bus>,
    control: Arc<Control>,
    /// Guest kernels' breakpoints are delivered here, as KVM cannot.
    breakpoints: bool,
}

impl Vcpu {
    /// Creates vCPU `id` of `vm` in its reset state.
    pub(crate) fn new(
        vm: &VmFd,
        id: u8,
        cpuid: &CpuId,
        bus: Arc<Bus>,
        control: Arc<Control>,
    ) -> Result<Self, Error> {
        let fd = vm.create_vcpu(id.into()).map_err(Error::kvm("creating a vCPU"))?;
        fd.set_cpuid2(cpuid).map_err(Error::kvm("setting CPUID"))?;
        Ok(Self { fd, id, bus, control, breakpoints: false })
    }

    /// Frequency of the time stamp counter in kHz, if KVM knows it.
    pub(crate) fn tsc_khz(&self) -> Option<u32> {
        self.fd.get_tsc_khz().ok()
    }

    /// Makes `entry` the first instruction.
    pub(crate) fn enter(&self, entry: Entry) -> Result<(), Error> {
        let mut sregs = self.fd.get_sregs().map_err(Error::kvm("reading system registers"))?;
        entry.enter_mode(&mut sregs);
        self.fd.set_sregs(&sregs).map_err(Error::kvm("setting system registers"))?;
        self.fd.set_regs(&entry.registers()).map_err(Error::kvm("setting registers"))
    }

    /// Sets what firmware leaves behind for an operating system: caching of all
    /// memory by default, the two local interrupt inputs wired as on a PC. On a host
    /// whose KVM emulates guest kernels without INT3, `breakpoints` adds that.
    pub(crate) fn prepare_for_linux(&mut self, breakpoints: bool) -> Result<(), Error> {
        const MISC_ENABLE: u32 = 0x1a0;
        const FAST_STRINGS: u64 = 1 << 0;
        const MTRR_DEFAULT_TYPE: u32 = 0x2ff;
        const MTRRS_ON_WRITE_BACK: u64 = 1 << 11 | 6;
        // The time stamp counter counts at one speed: an AMD processor's firmware says so.
        const HWCR: u32 = 0xc001_0015;
        const TSC_FREQ_SEL: u64 = 1 << 24;
        const LINT0: usize = 0x350;
        const LINT1: usize = 0x360;
        const EXTERNAL: u32 = 0b111 << 8;
        const NMI: u32 = 0b100 << 8;
        let entry = |index, data| kvm_msr_entry { index, data, ..Default::default() };
        let msrs = [
            entry(MTRR_DEFAULT_TYPE, MTRRS_ON_WRITE_BACK),
            entry(MISC_ENABLE, FAST_STRINGS),
            entry(HWCR, TSC_FREQ_SEL),
        ];
        let msrs = Msrs::from_entries(&msrs).map_err(|_| Error::State("out of room for MSRs"))?;
        // Returns how many were set; a KVM that lacks one is no reason to fail.
        self.fd.set_msrs(&msrs).map_err(Error::kvm("setting MSRs"))?;
        let mut lapic = self.fd.get_lapic().map_err(Error::kvm("reading the local APIC"))?;
        for (register, value) in [(LINT0, EXTERNAL), (LINT1, NMI)] {
            for (to, from) in lapic.regs[register..].iter_mut().zip(value.to_le_bytes()) {
                *to = from as libc::c_char;
            }
        }
        self.fd.set_lapic(&lapic).map_err(Error::kvm("setting the local APIC"))?;
        self.breakpoints = breakpoints;
        Ok(())
    }

    /// Runs until the VM ends. Tells `control` how, unless it said so itself.
    pub(crate) fn run(self) -> Result<(), Error> {
        let Self { fd, id, bus, control, breakpoints } = self;
        let mut attached = control.kicker(usize::from(id)).attach(fd)?;
        loop {
            attached.acknowledge();
            let fd = attached.vcpu();
            if control.service(usize::from(id), || registers(fd)) == Next::Leave {
                return Ok(());
            }
            if let Some(outcome) = run_until_kicked(fd, id, &bus, breakpoints) {
                control.keep(usize::from(id), registers(fd));
                control.end(outcome);
                return Ok(());
            }
        }
    }
}

/// Runs the guest and serves its exits until it ends or someone kicks.
fn run_until_kicked(fd: &mut VcpuFd, id: u8, bus: &Bus, breakpoints: bool) -> Option<Outcome> {
    let fault = |fd: &VcpuFd, reason: String| {
        Box::new(Fault { reason, vcpu: id, registers: registers(fd) })
    };
    let mut lifts = 0;
    loop {
        let ended = match fd.run() {
            Ok(VcpuExit::IoOut(port, data)) => bus.port_write(port, data),
            Ok(VcpuExit::IoIn(port, data)) => {
                bus.port_read(port, data);
                None
            }
            Ok(VcpuExit::MmioWrite(address, data)) => {
                bus.memory_write(address, data);
                None
            }
            Ok(VcpuExit::MmioRead(address, data)) => {
                bus.memory_read(address, data);
                None
            }
            Ok(VcpuExit::Intr) => return None,
            Ok(VcpuExit::Shutdown) => {
                Some(Outcome::TripleFault(fault(fd, "triple fault".to_owned())))
            }
            Ok(VcpuExit::InternalError) => {
                if breakpoints && deliver_breakpoint(fd, bus) {
                    None
                } else {
                    let reason = internal_error(fd, bus);
                    Some(Outcome::InternalError(fault(fd, reason)))
                }
            }
            Ok(VcpuExit::FailEntry(reason, cpu)) => {
                let reason = format!("guest state refused by CPU {cpu}, reason {reason:#x}");
                Some(Outcome::InternalError(fault(fd, reason)))
            }
            Ok(exit) => {
                let reason = format!("exit that this VMM does not know: {exit:?}");
                Some(Outcome::InternalError(fault(fd, reason)))
            }
            Err(error) => match error.errno() {
                libc::EINTR => return None,
                // KVM must be called again, for instance after an INIT.
                libc::EAGAIN => None,
                libc::EFAULT if lifted_since(&mut lifts, bus) => None,
                _ => Some(Outcome::InternalError(fault(fd, format!("KVM_RUN failed: {error}")))),
            },
        };
        if ended.is_some() {
            return ended;
        }
    }
}

/// Serves a guest write to memory that this process may not write to: a watched
/// page, else the host ran out of memory. Trying again makes sense if a
/// protection was lifted since the last time, here or by another thread.
fn lifted_since(lifts: &mut u64, bus: &Bus) -> bool {
    let now = bus.pci.lift_all();
    std::mem::replace(lifts, now) != now
}

/// Does what INT3 does if that is the instruction that KVM could not emulate: a
/// breakpoint exception with RIP behind it. False if it is another one.
fn deliver_breakpoint(fd: &VcpuFd, bus: &Bus) -> bool {
    const INT3: u8 = 0xcc;
    const BREAKPOINT: u8 = 3;
    let deliver = || {
        let mut registers = fd.get_regs().ok()?;
        if code_at_rip(fd, bus).first() != Some(&INT3) {
            return None;
        }
        registers.rip = registers.rip.wrapping_add(1);
        let mut events = fd.get_vcpu_events().ok()?;
        // Another exception on its way would be lost.
        if events.exception.injected != 0 {
            return None;
        }
        events.exception.injected = 1;
        events.exception.nr = BREAKPOINT;
        events.exception.has_error_code = 0;
        fd.set_regs(&registers).ok()?;
        fd.set_vcpu_events(&events).ok()
    };
    deliver().is_some()
}

/// The bytes that the vCPU would execute next, as many as an instruction may have;
/// fewer where they are not in RAM.
fn code_at_rip(fd: &VcpuFd, bus: &Bus) -> Vec<u8> {
    const INSTRUCTION_MAX: u64 = 15;
    let Ok(registers) = fd.get_regs() else { return Vec::new() };
    let byte = |at: u64| {
        let at = fd.translate_gva(registers.rip.wrapping_add(at)).ok()?;
        (at.valid != 0).then(|| bus.memory_byte(at.physical_address))?
    };
    (0..INSTRUCTION_MAX).map_while(byte).collect()
}

/// Says what an internal error is about.
#[allow(unsafe_code)]
fn internal_error(fd: &mut VcpuFd, bus: &Bus) -> String {
    const EMULATION: u32 = 1;
    // SAFETY: the exit reason was KVM_EXIT_INTERNAL_ERROR, which fills this member;
    // it consists of integers.
    let internal = unsafe { fd.get_kvm_run().__bindgen_anon_1.internal };
    match internal.suberror {
        EMULATION => {
            let code = code_at_rip(fd, bus);
            let bytes: String = code.iter().map(|byte| format!(" {byte:02x}")).collect();
            format!("KVM cannot emulate the instruction{bytes}")
        }
        other => format!("KVM internal error {other}"),
    }
}

/// Reads the registers; one that cannot be read is 0.
fn registers(vcpu: &VcpuFd) -> Registers {
    let r = vcpu.get_regs().unwrap_or_default();
    let s = vcpu.get_sregs().unwrap_or_default();
    Registers {
        rip: r.rip,
        rflags: r.rflags,
        general: [
            r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11,
            r.r12, r.r13, r.r14, r.r15,
        ],
        cs: s.cs.selector,
        cr0: s.cr0,
        cr2: s.cr2,
        cr3: s.cr3,
        cr4: s.cr4,
        efer: s.efer,
    }
}
