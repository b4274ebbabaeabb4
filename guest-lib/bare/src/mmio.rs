//! Device registers.
//!
//! On a PVM host an access that exits to the VMM costs about seven times as much
//! from ring 3 as from ring 0, calling gate included, so the plain functions go
//! through ring 0. Where the register is really shared memory, which never
//! exits, the `_direct` ones cost what a store costs.
//!
//! Volatile and atomic; ordinary memory accesses are not moved across them by
//! the compiler, nor by x86 except that a later load may pass a direct write.

use core::arch::asm;

/// Reads 64 bits.
///
/// # Safety
/// `address` is a device register whose read has no effect on the program's
/// memory that Rust does not know of.
pub unsafe fn read64(address: usize) -> u64 {
    let value;
    // SAFETY: promised by the caller; the service changes rax only.
    unsafe {
        asm!("lea rax, [service_read64]", "int3", in("rdi") address, out("rax") value,
            options(nostack));
    }
    value
}

/// Writes 64 bits.
///
/// # Safety
/// `address` is a device register, and what the device does upon this write
/// (DMA) touches no memory that the program holds references to.
pub unsafe fn write64(address: usize, value: u64) {
    // SAFETY: promised by the caller; the service changes rax only.
    unsafe {
        asm!("lea rax, [service_write64]", "int3", in("rdi") address, in("rsi") value,
            out("rax") _, options(nostack));
    }
}

/// Reads 32 bits.
///
/// # Safety
/// As [`read64`].
pub unsafe fn read32(address: usize) -> u32 {
    let value;
    // SAFETY: promised by the caller; the service changes rax only.
    unsafe {
        asm!("lea rax, [service_read32]", "int3", in("rdi") address, out("eax") value,
            options(nostack));
    }
    value
}

/// Writes 32 bits.
///
/// # Safety
/// As [`write64`].
pub unsafe fn write32(address: usize, value: u32) {
    // SAFETY: promised by the caller; the service changes rax only.
    unsafe {
        asm!("lea rax, [service_write32]", "int3", in("rdi") address, in("esi") value,
            out("rax") _, options(nostack));
    }
}

/// Reads 64 bits without the way through ring 0.
///
/// # Safety
/// As [`read64`].
pub unsafe fn read64_direct(address: usize) -> u64 {
    let value;
    // SAFETY: promised by the caller. Assembly keeps this one plain MOV, the form
    // of access that every emulator of devices knows.
    unsafe {
        asm!("mov {}, [{}]", out(reg) value, in(reg) address, options(nostack, preserves_flags));
    }
    value
}

/// Writes 64 bits without the way through ring 0.
///
/// # Safety
/// As [`write64`].
pub unsafe fn write64_direct(address: usize, value: u64) {
    // SAFETY: as in `read64_direct`.
    unsafe {
        asm!("mov [{}], {}", in(reg) address, in(reg) value, options(nostack, preserves_flags));
    }
}
