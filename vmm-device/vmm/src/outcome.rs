//! Outcomes of VMs, and where their vCPUs were then.

use std::fmt;

use serde::Serialize;

/// The registers that show where a vCPU is and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Registers {
    /// Instruction pointer.
    pub rip: u64,
    /// Flags.
    pub rflags: u64,
    /// RAX, RBX, RCX, RDX, RSI, RDI, RBP, RSP, R8 to R15, in this order.
    pub general: [u64; 16],
    /// Code segment selector; its low two bits are the ring.
    pub cs: u16,
    /// Control register 0.
    pub cr0: u64,
    /// Address of the last page fault.
    pub cr2: u64,
    /// Page table root.
    pub cr3: u64,
    /// Control register 4.
    pub cr4: u64,
    /// Extended feature enable register.
    pub efer: u64,
}

impl Registers {
    /// Names of [`Registers::general`].
    pub(crate) const GENERAL_NAMES: [&'static str; 16] = [
        "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15",
    ];
}

impl fmt::Display for Registers {
    /// One line: rip first, then everything else.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rip={:#x} rflags={:#x} cs={:#x}", self.rip, self.rflags, self.cs)?;
        for (name, value) in Self::GENERAL_NAMES.iter().zip(self.general) {
            write!(f, " {name}={value:#x}")?;
        }
        let Self { cr0, cr2, cr3, cr4, efer, .. } = self;
        write!(f, " cr0={cr0:#x} cr2={cr2:#x} cr3={cr3:#x} cr4={cr4:#x} efer={efer:#x}")
    }
}

/// A VM that could not continue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// KVM's report, in words.
    pub reason: String,
    /// Which vCPU.
    pub vcpu: u8,
    /// Its registers then.
    pub registers: Registers,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on vCPU {}: {}", self.reason, self.vcpu, self.registers)
    }
}

/// The end of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// The guest wrote this code to [`crate::layout::PORT_EXIT`].
    Exited(u32),
    /// The guest reset the machine through [`crate::layout::PORT_I8042`] or
    /// [`crate::layout::PORT_RESET`].
    Reset,
    /// The guest switched the machine off through ACPI.
    PoweredOff,
    /// The guest failed to handle an exception, which resets a real machine.
    TripleFault(Box<Fault>),
    /// KVM could not run the guest: an instruction it cannot emulate, a state it
    /// cannot enter, or an exit unknown to this crate.
    InternalError(Box<Fault>),
    /// [`crate::Vm::stop`] ended it.
    Stopped,
    /// [`crate::Holder::end`] ended it, for this reason.
    Ended(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Reset => f.write_str("reset the machine"),
            Self::PoweredOff => f.write_str("switched the machine off"),
            Self::TripleFault(fault) | Self::InternalError(fault) => fault.fmt(f),
            Self::Stopped => f.write_str("was stopped"),
            Self::Ended(reason) => f.write_str(reason),
        }
    }
}
