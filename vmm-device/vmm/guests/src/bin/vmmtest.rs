//! Does what `test=` on the command line says; see `vmm-device/vmm/tests/kvm.rs`.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::format;
use alloc::vec;
use core::arch::asm;
use core::hint::black_box;

use tofu_bare::{irq, mmio, pci, print, println, time};

tofu_bare::entry!(main);

const SCRATCH: usize = 0x0;
const TRIGGER: usize = 0x10;
const DOORBELL: usize = 0x1000;
const PAGE: usize = 0x2000;
const BAR_SIZE: u64 = 256 << 20;
const BAR_MOVED: u64 = 0x20_0000_0000;

fn main() -> i32 {
    match tofu_bare::option("test") {
        Some("hello") => hello(),
        Some("exit") => tofu_bare::option("code").and_then(|code| code.parse().ok()).unwrap_or(1),
        Some("panic") => panic!("told to"),
        Some("page-fault") => page_fault(),
        Some("null") => null(),
        Some("stack-overflow") => i32::from(overflow(1) == 0),
        Some("triple-fault") => triple_fault(),
        Some("unemulated") => unemulated(),
        Some("reset") => reset(),
        Some("power-off") => power_off(),
        Some("echo") => echo(),
        Some("hang") => hang(),
        Some("sleep") => sleep(),
        Some("memory") => memory(),
        Some("time") => clock(),
        Some("stray") => stray(),
        Some("ports") => ports(),
        Some("bars") => bars().unwrap_or_else(|error| {
            println!("{error}");
            1
        }),
        Some("device") => device().unwrap_or_else(|error| {
            println!("{error}");
            1
        }),
        other => {
            println!("no such test: {other:?}");
            2
        }
    }
}

fn hello() -> i32 {
    println!("hello from {}", tofu_bare::option("who").unwrap_or("nobody"));
    println!();
    println!("{}", "long ".repeat(100));
    for device in pci::devices() {
        let (vendor, id) = device.id();
        println!("00:{:02x}.0 {vendor:04x}:{id:04x}", device.number());
    }
    print!("no line end");
    0
}

fn page_fault() -> i32 {
    // SAFETY: the page is not mapped, so nothing is read; the program ends there.
    unsafe { (0x20_1238 as *const u64).read_volatile() as i32 }
}

/// A write through a null pointer, to a member of what it should point to.
#[inline(never)]
fn null() -> i32 {
    let null = black_box(core::ptr::null_mut::<[u64; 8]>());
    // SAFETY: the page is not mapped, so nothing is written; the program ends there.
    unsafe { (&raw mut (*null)[2]).write_volatile(7) };
    0
}

#[expect(unconditional_recursion, reason = "that is the test")]
fn overflow(depth: u64) -> u64 {
    let frame = [depth; 64];
    black_box(&frame);
    overflow(depth + 1) + black_box(frame)[0]
}

/// Makes the IDT unreadable for the CPU, then raises an exception.
fn triple_fault() -> i32 {
    let table = [0u8; 16];
    let pointer = [0u16; 5];
    // SAFETY: none of this can be survived, on purpose: service_gate is instructed to run `load`,
    // which takes the IDT away, and then #UD has nowhere to go.
    unsafe {
        asm!(
            "lea rax, [2f]", "int3", "ud2",
            "2: lidt [rdi]", "ud2",
            in("rdi") pointer.as_ptr(), in("rsi") table.as_ptr(), options(noreturn),
        );
    }
}

/// An instruction in ring 0 that KVM's emulator does not know; fine on hardware.
fn unemulated() -> i32 {
    let mut count = 3u64;
    // SAFETY: as above, ring 0 code that changes rbx only, and returns.
    unsafe {
        asm!(
            "lea rax, [2f]", "int3", "jmp 3f",
            "2: popcnt {n}, {n}", "iretq",
            "3:",
            n = inout(reg) count, out("rax") _, options(nostack),
        );
    }
    i32::from(count != 2)
}

fn reset() -> i32 {
    // SAFETY: ends the machine.
    unsafe {
        asm!("lea rax, [2f]", "int3", "2: mov al, 0xfe", "out 0x64, al", "hlt", options(noreturn),);
    }
}

/// Linux's last action on a machine with ACPI: sleep type 5 and the sleep bit.
fn power_off() -> i32 {
    // SAFETY: ends the machine.
    unsafe {
        asm!(
            "lea rax, [2f]",
            "int3",
            "2: mov dx, 0x604",
            "mov ax, 0x3400",
            "out dx, ax",
            "hlt",
            options(noreturn),
        );
    }
}

/// Reads the serial port until a line ends, and prints how long that line is and
/// its sum.
fn echo() -> i32 {
    println!("reading");
    let (mut count, mut sum) = (0u64, 0u64);
    loop {
        match serial_read() {
            None => core::hint::spin_loop(),
            Some(b'\n') => break,
            Some(byte) => {
                count += 1;
                sum += u64::from(byte);
            }
        }
    }
    println!("{count} bytes, sum {sum}");
    0
}

/// A received byte, if there is one.
fn serial_read() -> Option<u8> {
    let (status, byte): (u32, u32);
    // SAFETY: as in `port`; reads the line status, and the data if it says so.
    unsafe {
        asm!(
            "lea rax, [2f]", "int3", "jmp 4f",
            "2: mov dx, 0x3fd", "in al, dx", "movzx ecx, al", "and ecx, 1", "jz 3f",
            "mov dx, 0x3f8", "in al, dx",
            "3: movzx esi, al", "iretq",
            "4:",
            out("rax") _, out("rdx") _, lateout("ecx") status, lateout("esi") byte,
            options(nostack),
        );
    }
    (status != 0).then_some(byte as u8)
}

fn hang() -> ! {
    println!("spinning");
    loop {
        core::hint::spin_loop();
    }
}

fn sleep() -> i32 {
    println!("sleeping");
    match irq::alloc_vector() {
        Some(vector) => irq::wait(vector, 0, None) as i32,
        None => 1,
    }
}

fn memory() -> i32 {
    let free = tofu_bare::heap_free();
    println!("{free}");
    let block = vec![0xa5u8; free / 2];
    let aligned = tofu_bare::dma_alloc(12345, 1 << 16).map_or(1, |at| at.as_ptr() as usize);
    let text = format!("{}", block.iter().map(|&byte| u64::from(byte)).sum::<u64>());
    let sum_is_right = text.parse() == Ok(free as u64 / 2 * 0xa5);
    let none_left = tofu_bare::dma_alloc(free, 1).is_none();
    // Overlapping moves in both directions.
    let mut bytes = *b"0123456789abcdef";
    bytes.copy_within(0..12, 2);
    let right = &bytes == b"010123456789abef";
    bytes.copy_within(4..16, 1);
    let left = &bytes == b"023456789abefbef";
    i32::from(!(sum_is_right && none_left && aligned.is_multiple_of(1 << 16) && right && left))
}

/// A wait of 20 ms takes about that long.
fn clock() -> i32 {
    let Some(vector) = irq::alloc_vector() else { return 1 };
    let begin = time::now_ns();
    let count = irq::wait(vector, 0, Some(20_000_000));
    println!("{} us", (time::now_ns() - begin) / 1000);
    count as i32
}

/// Accesses to nothing read ones.
fn stray() -> i32 {
    // SAFETY: nothing is there.
    let values = unsafe {
        mmio::write64(0xd000_0000, 1);
        [mmio::read64(0xd000_0000), mmio::read64(0xe010_0000), mmio::read64(0xe000_8000)]
    };
    println!("{values:x?}");
    i32::from(values != [u64::MAX; 3])
}

/// Runs `out dx, eax` and `in eax, dx` in ring 0.
fn port(number: u16, value: Option<u32>) -> u32 {
    let mut eax = value.unwrap_or(0);
    // SAFETY: ports of the host bridge; the code returns by `iretq` and changes
    // rax only.
    unsafe {
        asm!(
            "lea rax, [2f]", "int3", "jmp 4f",
            "2: mov eax, esi", "test ecx, ecx", "jz 3f", "out dx, eax", "iretq",
            "3: in eax, dx", "iretq",
            "4:",
            in("dx") number, in("ecx") u32::from(value.is_some()), in("esi") eax,
            lateout("eax") eax, options(nostack),
        );
    }
    eax
}

/// The serial port and the PCI configuration ports, which the library does not
/// use here.
fn ports() -> i32 {
    let text = b"through the serial port\r\n";
    // SAFETY: as in `port`; reads `text`.
    unsafe {
        asm!(
            "lea rax, [2f]", "int3", "jmp 3f",
            "2: rep outsb", "iretq",
            "3:",
            in("dx") 0x3f8u16, inout("rsi") text.as_ptr() => _,
            inout("rcx") text.len() => _, out("rax") _, options(nostack),
        );
    }
    port(0xcf8, Some(0x8000_0000));
    println!("address {:#x}, bridge {:#x}", port(0xcf8, None), port(0xcfc, None));
    port(0xcf8, Some(0x8000_f800));
    println!("device 31 {:#x}", port(0xcfc, None));
    // Another bus, and the enable bit off.
    port(0xcf8, Some(0x8001_0000));
    println!("bus 1 {:#x}", port(0xcfc, None));
    port(0xcf8, Some(0));
    println!("disabled {:#x}", port(0xcfc, None));
    // Text that lies nowhere.
    port(0xf8, Some(0xf000_0000));
    0
}

/// Puts the BAR where it must not be, and back.
fn bars() -> Result<i32, pci::Error> {
    let device = pci::find(0x10cf, 0x1ccd).ok_or(pci::Error::NoBar(0))?;
    let bar = device.map_bar(0, BAR_SIZE)?;
    device.enable();
    let place = |address: u64| {
        device.config_write(0x10, address as u32);
        device.config_write(0x14, (address >> 32) as u32);
    };
    // Over this program, the local APIC, configuration space, and at both ends.
    for address in [0, 0xf000_0000, 0xe000_0000, 0xffff_ffff_f000_0000, 1 << 45] {
        place(address);
    }
    // SAFETY: registers of the test function, which does no DMA.
    unsafe {
        // Nothing is left where it was.
        println!("gone {:#x}", mmio::read64(bar + PAGE + 8));
        place(bar as u64);
        println!("back {:#x}", mmio::read64(bar + PAGE + 8));
        mmio::write64(bar + PAGE, 0x1234);
        // Memory decoding off and on.
        let command = device.config_read(4) & 0xffff;
        device.config_write(4, command & !2);
        println!("off {:#x}", mmio::read64(bar + PAGE + 8));
        device.config_write(4, command);
        println!("on {:#x}", mmio::read64(bar + PAGE + 8));
    }
    Ok(0)
}

/// Registers, interrupts, doorbell, shared page and moving the BAR.
fn device() -> Result<i32, pci::Error> {
    let device = pci::find(0x10cf, 0x1ccd).ok_or(pci::Error::NoBar(0))?;
    let bar = device.map_bar(0, BAR_SIZE)?;
    device.enable();
    println!("bar {bar:#x}");
    // SAFETY: registers of the test function, which does no DMA.
    unsafe {
        mmio::write64(bar + SCRATCH, 0x1122_3344_5566_7788);
        println!("scratch {:#x}", mmio::read64(bar + SCRATCH));

        let vectors = [irq::alloc_vector(), irq::alloc_vector()];
        let msix = device.msix()?;
        msix.enable();
        for (index, vector) in (3..).zip(vectors.into_iter().flatten()) {
            msix.set(index, vector)?;
            mmio::write64(bar + TRIGGER, u64::from(index));
            let count = irq::wait(vector, 0, Some(5_000_000_000));
            println!("vector {index}: {count}");
        }
        // Many waits, to find lost wake-ups: the host raises vector 4 for each
        // ring of the doorbell.
        if let Some(vector) = vectors[1] {
            for round in 1..=200 {
                mmio::write64(bar + DOORBELL, round);
                if irq::wait(vector, round, Some(5_000_000_000)) != round + 1 {
                    println!("no interrupt in round {round}");
                    return Ok(1);
                }
            }
        }
        println!("rounds done");

        // The host sees these without an exit, and we see its word.
        println!("page {:#x}", mmio::read64(bar + PAGE + 8));
        mmio::write64(bar + PAGE, 0x1234);
        // Marks where the host protects the page, then releases it again.
        mmio::write64(bar + 0x18, 1);
        mmio::write64(bar + PAGE + 16, 0x5678);
        println!("protected {:#x}", mmio::read64(bar + PAGE + 16));
        mmio::write64(bar + 0x18, 0);
        mmio::write64(bar + PAGE + 24, 0x9abc);

        device.config_write(0x10, BAR_MOVED as u32);
        device.config_write(0x14, (BAR_MOVED >> 32) as u32);
        let bar = device.map_bar(0, BAR_SIZE)?;
        println!("bar {bar:#x}");
        println!("scratch {:#x}", mmio::read64(bar + SCRATCH));
        mmio::write64(bar + PAGE + 32, 0xdef0);
        mmio::write64(bar + DOORBELL, 201);
        if let Some(vector) = vectors[1] {
            println!("moved {}", irq::wait(vector, 201, Some(5_000_000_000)));
        }
    }
    Ok(0)
}
