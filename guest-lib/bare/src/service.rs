//! Calls into ring 0: `int3` with the address of a service of `boot.s` in rax.

use core::arch::asm;

/// Sends `bytes` to a port.
pub(crate) fn out_bytes(port: u16, bytes: &[u8]) {
    // SAFETY: the service reads `bytes` and changes rsi and rcx only.
    unsafe {
        asm!(
            "lea rax, [service_out_bytes]", "int3",
            in("dx") port,
            inout("rsi") bytes.as_ptr() => _,
            inout("rcx") bytes.len() => _,
            out("rax") _,
            options(nostack),
        );
    }
}

pub(crate) fn out32(port: u16, value: u32) {
    // SAFETY: an OUT touches no memory of the program; ports of the devices that
    // this library drives have no DMA.
    unsafe {
        asm!("lea rax, [service_out32]", "int3", in("dx") port, in("edi") value, out("rax") _,
            options(nostack));
    }
}

pub(crate) fn in32(port: u16) -> u32 {
    let value;
    // SAFETY: as for `out32`.
    unsafe {
        asm!("lea rax, [service_in32]", "int3", in("dx") port, out("eax") value, options(nostack));
    }
    value
}

/// Sleeps until an interrupt comes, unless the count at `count` differs from
/// `seen`. `ticks` of the local APIC timer end the sleep too, if not 0.
///
/// # Safety
/// `count` points to a readable u64.
pub(crate) unsafe fn wait(count: *const u64, seen: u64, ticks: u32) {
    // SAFETY: the service reads `count`. Interrupts that arrive during the call change only their
    // counts, which are read as volatile.
    unsafe {
        if ticks == 0 {
            asm!("lea rax, [service_wait]", "int3", in("rdi") count, in("rsi") seen,
                out("rax") _, options(nostack));
        } else {
            asm!("lea rax, [service_wait_timer]", "int3", in("rdi") count, in("rsi") seen,
                in("edx") ticks, out("rax") _, options(nostack));
        }
    }
}

/// Enters an image in place of this program; see `service_start` in boot.s, whose address is
/// `service`.
///
/// # Safety
/// As for [`crate::loader::start`], whose tables have been written.
pub(crate) unsafe fn start(service: *const u8, entry: u64, boot_params: u64) -> ! {
    // SAFETY: promised by the caller; the service does not return.
    unsafe {
        asm!("fninit", "int3", in("rax") service, in("rdi") entry, in("rsi") boot_params,
            options(noreturn, nostack));
    }
}
