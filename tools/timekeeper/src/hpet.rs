//! The period of the guest's HPET.
//!
//! QEMU's HPET ticks every 10 ns of its virtual clock, which counts each instruction as a
//! nanosecond, and its capability register says 10 ns. Where an instruction takes another time, a
//! tick does as well, and timers would fire early or late. It is set to the real period.

use std::ffi::c_void;

/// The capability register of QEMU's HPET with three timers and a period of 10,000,000 fs.
const CAPABILITY: u64 = 10_000_000 << 32 | 0x8086_a201;
/// Instructions in a tick.
const TICK: u64 = 10;
/// The periods that Linux takes for those of an HPET, in femtoseconds.
const PERIODS: std::ops::RangeInclusive<u64> = 100_000..=100_000_000;

/// Sets the period for instructions that take so many picoseconds. An object without the register
/// as QEMU 11.1 has it, or a period that no HPET has, is left as it is.
///
/// # Safety
///
/// `hpet` is null, or an object of QEMU that holds an HPET's state, which no other thread uses
/// meanwhile: the caller holds QEMU's big lock.
pub(crate) unsafe fn set_period(hpet: *mut c_void, instruction_ps: u64) {
    let period = instruction_ps.saturating_mul(1000 * TICK);
    if hpet.is_null() || !PERIODS.contains(&period) {
        return;
    }
    // SAFETY: QEMU allocates its objects with malloc, and promised by the caller. The words are
    // within the allocation, and aligned as it is.
    let words = unsafe {
        let length = libc::malloc_usable_size(hpet) / size_of::<u64>();
        std::slice::from_raw_parts_mut(hpet.cast::<u64>(), length)
    };
    if let Some(capability) = words.iter_mut().find(|word| **word == CAPABILITY) {
        *capability = period << 32 | CAPABILITY & u64::from(u32::MAX);
    }
}
