//! From the boot stub to `main`.

use core::arch::global_asm;

use crate::{cmdline, console, exit, irq, mem, pci, time};

global_asm!(include_str!("boot.s"));

unsafe extern "C" {
    static boot_params: *const u8;
    static mut idt: [[u64; 2]; 256];
    static __image_end: u8;
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

// Offsets in the Linux boot parameters.
const E820_ENTRIES: usize = 0x1e8;
const CMD_LINE_PTR: usize = 0x228;
const E820_TABLE: usize = 0x2d0;
const E820_ENTRY_SIZE: usize = 20;
const E820_MAX: usize = 128;
const E820_RAM: u32 = 1;
/// The page tables map this much.
const RAM_END: u64 = 0xc000_0000;
const COMMAND_LINE_MAX: usize = 2048;

/// The first code in ring 3.
#[unsafe(no_mangle)]
extern "C" fn ring3_start() -> ! {
    fill_idt();
    // SAFETY: the boot stub stored what the VMM passed; runs once, before anyone
    // allocates.
    unsafe {
        cmdline::set(read_command_line());
        let start = (&raw const __image_end) as usize;
        mem::init(start, ram_end_above(start));
    }
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

/// # Safety
/// The boot parameters are those of the Linux boot protocol.
unsafe fn read_command_line() -> &'static str {
    // SAFETY: promised by the caller; the line ends with a NUL and stays where it
    // is, below the heap.
    unsafe {
        let start = boot_params.add(CMD_LINE_PTR).cast::<u32>().read_unaligned() as *const u8;
        if start.is_null() {
            return "";
        }
        let len = (0..COMMAND_LINE_MAX).find(|&at| start.add(at).read() == 0).unwrap_or(0);
        str::from_utf8(core::slice::from_raw_parts(start, len)).unwrap_or("")
    }
}

/// End of the RAM that holds `address`, as far as it is mapped.
///
/// # Safety
/// The boot parameters are those of the Linux boot protocol.
unsafe fn ram_end_above(address: usize) -> usize {
    // SAFETY: promised by the caller.
    let entries = unsafe { boot_params.add(E820_ENTRIES).read() };
    (0..usize::from(entries).min(E820_MAX))
        .find_map(|at| {
            // SAFETY: promised by the caller.
            let (start, size, kind) = unsafe {
                let entry = boot_params.add(E820_TABLE + at * E820_ENTRY_SIZE);
                (
                    entry.cast::<u64>().read_unaligned(),
                    entry.add(8).cast::<u64>().read_unaligned(),
                    entry.add(16).cast::<u32>().read_unaligned(),
                )
            };
            let end = start.saturating_add(size).min(RAM_END);
            let inside = kind == E820_RAM && (start..end).contains(&(address as u64));
            inside.then_some(end as usize)
        })
        .unwrap_or(address)
}
