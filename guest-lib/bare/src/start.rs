//! From the boot stub to `main`.

use core::arch::global_asm;

use crate::boot_params::{self, BootParams};
use crate::exit::exit;
use crate::{cmdline, console, irq, mem, pci, time};

global_asm!(include_str!("boot.s"));

unsafe extern "C" {
    static mut idt: [[u64; 2]; 256];
    static exception_stubs: u8;
    static irq_stubs: u8;
    static spurious_stub: u8;
    static service_gate: u8;
}

unsafe extern "Rust" {
    fn tofu_bare_main() -> i32;
}

const EXCEPTIONS: usize = 32;
const BREAKPOINT: usize = 3;
const EXCEPTION_STUB_SIZE: usize = 16;
const IRQ_STUB_SIZE: usize = 32;
const SPURIOUS: u8 = 255;

const KERNEL_CS: u64 = 0x10;
const GATE: u64 = 0x8e00;
const GATE_RING3: u64 = 0xee00;

/// The first code in ring 3.
#[unsafe(no_mangle)]
extern "C" fn ring3_start() -> ! {
    fill_idt();
    boot_params::convert_start_info();
    cmdline::set(BootParams::of_this_program().command_line());
    let heap = boot_params::loader_heap().unwrap_or_else(boot_params::heap);
    // SAFETY: RAM that nothing else uses; runs once, before anyone allocates.
    unsafe { mem::init(heap.start, heap.end) };
    console::init();
    pci::init();
    time::init();
    irq::init();
    // SAFETY: `entry!` defines it with this type.
    exit(unsafe { tofu_bare_main() })
}

fn fill_idt() {
    let set = |vector: usize, handler: usize, flags: u64| {
        let handler = handler as u64;
        let low = handler & 0xffff | KERNEL_CS << 16 | flags << 32 | (handler & 0xffff_0000) << 32;
        // SAFETY: in bounds, and the CPU reads it only upon an interrupt.
        unsafe { (&raw mut idt[vector]).write_volatile([low, handler >> 32]) };
    };
    for vector in 0..EXCEPTIONS {
        set(vector, (&raw const exception_stubs) as usize + vector * EXCEPTION_STUB_SIZE, GATE);
    }
    for (at, vector) in (irq::TIMER..SPURIOUS).enumerate() {
        set(vector.into(), (&raw const irq_stubs) as usize + at * IRQ_STUB_SIZE, GATE);
    }
    set(SPURIOUS.into(), (&raw const spurious_stub) as usize, GATE);
    set(BREAKPOINT, (&raw const service_gate) as usize, GATE_RING3);
}
