//! Types and constants of QEMU's functions for clocks and timers, as of version 11.1.

use std::ffi::{c_char, c_int, c_void};

/// `QEMU_CLOCK_VIRTUAL`: with instruction counting, the clock of the guest.
pub(crate) const CLOCK_VIRTUAL: c_int = 1;
/// Nanoseconds.
pub(crate) const SCALE_NS: c_int = 1;
/// Bytes for a `QEMUTimer`, which has 48.
const TIMER: usize = 256;

pub(crate) type ClockGet = unsafe extern "C" fn(c_int) -> i64;
pub(crate) type TimerInit = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    unsafe extern "C" fn(*mut c_void),
    *mut c_void,
);
pub(crate) type TimerMod = unsafe extern "C" fn(*mut c_void, i64);
pub(crate) type Changed = unsafe extern "C" fn(*mut c_void, bool, c_int);
pub(crate) type OnChange = unsafe extern "C" fn(Changed, *mut c_void) -> *mut c_void;
pub(crate) type Resolve =
    unsafe extern "C" fn(*const c_char, *const c_char, *mut bool) -> *mut c_void;
pub(crate) type VcpuInit =
    unsafe extern "C" fn(u64, unsafe extern "C" fn(u32, *mut c_void), *mut c_void);

/// Memory for a timer, which is never freed.
pub(crate) fn new_timer() -> usize {
    Box::leak(Box::new([0u64; TIMER / 8])).as_mut_ptr() as usize
}
