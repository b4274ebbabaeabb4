//! Device registers.
//!
//! Accesses are plain MOVs from ring 3. On a PVM host, too, that costs less than a call of ring 0
//! and an access from there. Where the register is really memory shared with the VMM, it costs no
//! more than a store.
//!
//! Volatile and atomic. The compiler moves no memory access across them, nor does
//! x86, except that a later load may pass a write.

use core::arch::asm;

/// Reads 64 bits.
///
/// # Safety
/// `address` is a mapped device register whose read has no effect on the
/// program's memory that Rust does not know of.
pub unsafe fn read64(address: usize) -> u64 {
    let value;
    // SAFETY: promised by the caller. Assembly keeps this one plain MOV, the form
    // of access that every emulator of devices knows.
    unsafe {
        asm!("mov {}, [{}]", out(reg) value, in(reg) address, options(nostack, preserves_flags));
    }
    value
}

/// Writes 64 bits.
///
/// # Safety
/// `address` is a mapped device register, and what the device does upon this
/// write (DMA) touches no memory that the program holds references to.
pub unsafe fn write64(address: usize, value: u64) {
    // SAFETY: as in `read64`.
    unsafe {
        asm!("mov [{}], {}", in(reg) address, in(reg) value, options(nostack, preserves_flags));
    }
}

/// Reads 32 bits.
///
/// # Safety
/// As [`read64`].
pub unsafe fn read32(address: usize) -> u32 {
    let value;
    // SAFETY: as in `read64`.
    unsafe {
        asm!("mov {:e}, [{}]", out(reg) value, in(reg) address, options(nostack, preserves_flags));
    }
    value
}

/// Writes 32 bits.
///
/// # Safety
/// As [`write64`].
pub unsafe fn write32(address: usize, value: u32) {
    // SAFETY: as in `read64`.
    unsafe {
        asm!("mov [{}], {:e}", in(reg) address, in(reg) value, options(nostack, preserves_flags));
    }
}
