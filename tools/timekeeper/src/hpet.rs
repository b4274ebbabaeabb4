//! The period of the guest's HPET.
//!
//! QEMU's HPET ticks every 10 ns of its virtual clock, which counts each instruction as a
//! nanosecond, and its capability register says 10 ns. Where an instruction takes another time, a
//! tick does as well, and timers would fire early or late. It is set to the real period.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;

/// The capability register of QEMU's HPET, with a period of 10,000,000 fs, but for the number of
/// timers.
const CAPABILITY: u64 = 10_000_000 << 32 | 0x8086_a001;
const TIMERS: u64 = 0x1f00;
/// Instructions in a tick.
const TICK: u64 = 10;
/// The periods that Linux takes for those of an HPET, in femtoseconds.
const PERIODS: std::ops::RangeInclusive<u64> = 100_000..=100_000_000;

/// `object_resolve_path_type`
pub(crate) type Resolve =
    unsafe extern "C" fn(*const c_char, *const c_char, *mut bool) -> *mut c_void;

/// Sets the period of the guest's HPET, if it has one, for instructions that take so many
/// picoseconds. An object without the register as QEMU 11.1 has it, or a period that no HPET has,
/// is left as it is.
///
/// # Safety
///
/// `resolve` is QEMU's function. All devices exist, and no other thread uses the HPET meanwhile:
/// the caller holds QEMU's big lock.
pub(crate) unsafe fn set_period(resolve: Resolve, instruction_ps: u64) {
    // SAFETY: promised by the caller; both texts end with a zero, and there are no flags.
    let hpet = unsafe { resolve(c"".as_ptr(), c"hpet".as_ptr(), null_mut()) };
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
    if let Some(at) = place(words) {
        words[at] = period << 32 | words[at] & u64::from(u32::MAX);
    }
}

/// Finds the register, if one word alone is like it.
fn place(words: &[u64]) -> Option<usize> {
    let mut found = (0..words.len()).filter(|at| words[*at] & !TIMERS == CAPABILITY);
    found.next().filter(|_| found.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::{CAPABILITY, place};

    #[test]
    fn register_is_found_if_it_is_the_only_one() {
        let register = CAPABILITY | 0x200;
        assert_eq!(place(&[1, register, CAPABILITY << 32]), Some(1));
        assert_eq!(place(&[register, register]), None);
        assert_eq!(place(&[CAPABILITY | 1 << 16]), None);
    }
}
