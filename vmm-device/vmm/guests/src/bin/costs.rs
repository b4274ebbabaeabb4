//! Measures what exits, interrupts and calls of ring 0 cost, against the test
//! function of `vmm-device/vmm/examples/kvm-costs.rs`.
#![no_std]
#![no_main]

use core::hint::black_box;

use tofu_bare::{irq, mmio, pci, print, println, time};

tofu_bare::entry!(main);

const SCRATCH: usize = 0x0;
const TRIGGER: usize = 0x10;
const PROTECT: usize = 0x18;
const DOORBELL: usize = 0x1000;
const PAGE: usize = 0x2000;
const BAR_SIZE: u64 = 256 << 20;

fn main() -> i32 {
    match run() {
        Ok(()) => 0,
        Err(error) => {
            println!("{error}");
            1
        }
    }
}

fn run() -> Result<(), pci::Error> {
    let device = pci::find(0x10cf, 0x1ccd).ok_or(pci::Error::NoBar(0))?;
    let bar = device.map_bar(0, BAR_SIZE)?;
    device.enable();
    let vectors = [irq::alloc_vector(), irq::alloc_vector()].map(|v| v.ok_or(pci::Error::NoMsix));
    let [inline, thread] = [vectors[0]?, vectors[1]?];
    let msix = device.msix()?;
    msix.set(0, inline)?;
    msix.set(1, thread)?;
    msix.enable();
    let Some(idle) = irq::alloc_vector() else { return Err(pci::Error::NoMsix) };
    exits(bar);
    interrupts(bar, [inline, thread, idle]);
    protection(bar);
    translations(bar)
}

/// Exits to the monitor and within the guest.
fn exits(bar: usize) {
    // SAFETY: registers of the test function, which does no DMA.
    unsafe {
        measure("ring 3: read the time stamp counter", 10_000, || {
            black_box(time::ticks());
        });
        measure("ring 3 -> ring 0 -> ring 3 (int3, 2 instructions)", 500, || {
            core::arch::asm!("lea rax, [2f]", "int3", "jmp 3f", "2: iretq", "3:",
                out("rax") _, options(nostack));
        });
        measure("MMIO write exit", 500, || mmio::write64(bar + SCRATCH, 1));
        measure("MMIO read exit", 500, || {
            mmio::read64(bar + SCRATCH);
        });
        measure("ioeventfd write", 500, || mmio::write64(bar + DOORBELL, 0));
        measure("shared page write", 10_000, || mmio::write64(bar + PAGE, 1));
        measure("print a line of 64 bytes", 10, || {
            println!("{:<63}", "|");
        });
    }
}

/// Interrupts by MSI, from the processor's own thread and from another one, and waiting for none.
fn interrupts(bar: usize, [inline, thread, idle]: [irq::Vector; 3]) {
    // SAFETY: registers of the test function, which does no DMA.
    unsafe {
        measure("MSI out of an MMIO write, spinning in ring 3", 200, || {
            let seen = irq::count(inline);
            mmio::write64(bar + TRIGGER, 0);
            while !irq::pending(inline, seen) {
                core::hint::spin_loop();
            }
        });
        mmio::write64(bar + SCRATCH, 0x7ead);
        measure("doorbell -> host thread -> MSI, spinning in ring 3", 200, || {
            let seen = irq::count(thread);
            mmio::write64(bar + DOORBELL, 0);
            while !irq::pending(thread, seen) {
                core::hint::spin_loop();
            }
        });
        measure("doorbell -> host thread -> MSI, halted in ring 0", 200, || {
            let seen = irq::count(thread);
            mmio::write64(bar + DOORBELL, 0);
            irq::wait(thread, seen, None);
        });
        mmio::write64(bar + SCRATCH, 0);
        measure("wait with a time limit of 100 us", 100, || {
            irq::wait(idle, 0, Some(100_000));
        });
    }
}

/// Accesses to a page that is read-only at times.
fn protection(bar: usize) {
    // SAFETY: registers of the test function, which does no DMA.
    unsafe {
        mmio::write64(bar + PROTECT, 1);
        measure("write to a read-only shared page", 200, || mmio::write64(bar + PAGE, 1));
        measure("write-protect a shared page and write to it", 100, || {
            mmio::write64(bar + PROTECT, 1);
            mmio::write64(bar + PAGE, 1);
        });
        measure("read of a read-only shared page", 10_000, || {
            mmio::read64(bar + PAGE);
        });
        mmio::write64(bar + PROTECT, 0);
        measure("write-protect and lift by MMIO writes, 1 page touched", 100, || {
            mmio::write64(bar + PROTECT, 1);
            mmio::write64(bar + PROTECT, 0);
        });
    }
}

/// The indirect cost of a change of memory slots: all translations of the VM must be rebuilt.
fn translations(bar: usize) -> Result<(), pci::Error> {
    // SAFETY: registers of the test function, which does no DMA, and memory that is not used
    // otherwise.
    unsafe {
        let memory = tofu_bare::dma_alloc(4 << 20, 4096).ok_or(pci::Error::NoMemory)?;
        let touch = || {
            for page in 0..1024 {
                memory.add(page * 4096).cast::<u64>().write_volatile(1);
            }
        };
        touch();
        measure("touch 1024 mapped pages", 20, touch);
        measure("the same after write-protecting a shared page", 20, || {
            mmio::write64(bar + PROTECT, 1);
            mmio::write64(bar + PROTECT, 0);
            touch();
        });
    }
    Ok(())
}

fn measure(name: &str, times: u32, mut what: impl FnMut()) {
    let (mut best, begin) = (u64::MAX, time::now_ns());
    for _ in 0..times {
        let one = time::now_ns();
        what();
        best = best.min(time::now_ns() - one);
    }
    let mean = (time::now_ns() - begin) / u64::from(times);
    print!("{name:<58} mean {mean:>8} ns  best {best:>8} ns\n");
}
