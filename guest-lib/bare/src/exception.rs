//! Panics and exceptions: they are printed, and end the program.

use core::panic::PanicInfo;

use crate::exit::{EXIT_EXCEPTION, EXIT_PANIC, exit};
use crate::println;

/// Filled in by ring 0.
#[repr(C)]
struct State {
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rsp: u64,
    cr2: u64,
}

unsafe extern "C" {
    static exception_state: State;
}

const NAMES: [&str; 22] = [
    "divide error",
    "debug",
    "NMI",
    "breakpoint",
    "overflow",
    "bound range",
    "invalid opcode",
    "device not available",
    "double fault",
    "",
    "invalid TSS",
    "segment not present",
    "stack fault",
    "general protection",
    "page fault",
    "",
    "x87 error",
    "alignment check",
    "machine check",
    "SIMD error",
    "virtualisation",
    "control protection",
];

/// Entered from ring 0 on its own stack, interrupts off.
#[unsafe(no_mangle)]
extern "C" fn report_exception() -> ! {
    // SAFETY: ring 0 filled it in before it came here, and nothing changes it.
    let State { vector, error, rip, cs, rsp, cr2 } = unsafe { &exception_state };
    let name = NAMES.get(*vector as usize).unwrap_or(&"");
    println!(
        "\nexception {vector} ({name}) rip={rip:#x} cr2={cr2:#x} error={error:#x} \
         cs={cs:#x} rsp={rsp:#x}"
    );
    exit(EXIT_EXCEPTION)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    println!("\n{info}");
    exit(EXIT_PANIC)
}
