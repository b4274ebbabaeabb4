//! The clock of a guest in QEMU, and its timers.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use crate::symbols::function;

/// `QEMU_CLOCK_VIRTUAL`: with instruction counting, the clock of the guest.
pub(crate) const CLOCK_VIRTUAL: c_int = 1;
/// Nanoseconds.
const SCALE_NS: c_int = 1;
/// Bytes for a `QEMUTimer`, which has 48.
const TIMER: usize = 256;

type Get = unsafe extern "C" fn(c_int) -> i64;
type Init = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    unsafe extern "C" fn(*mut c_void),
    *mut c_void,
);
type Modify = unsafe extern "C" fn(*mut c_void, i64);

/// QEMU's functions for the guest's clock.
pub(crate) struct Clock {
    get: Get,
    init: Init,
    modify: Modify,
}

/// A timer, which never moves and is never freed.
pub(crate) struct Timer(usize);

impl Timer {
    /// Memory for a timer, which [`Clock::prepare`] makes one.
    pub(crate) fn new() -> Self {
        Self(Box::leak(Box::new([0u64; TIMER / 8])).as_mut_ptr() as usize)
    }
}

impl Clock {
    /// Finds the functions.
    pub(crate) fn find() -> Self {
        // SAFETY: the functions have these types in QEMU 11.1.
        unsafe {
            Self {
                get: function(c"qemu_clock_get_ns"),
                init: function(c"timer_init_full"),
                modify: function(c"timer_mod_ns"),
            }
        }
    }

    /// The guest's time in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        // SAFETY: QEMU's function of this signature, which any thread may call.
        u64::try_from(unsafe { (self.get)(CLOCK_VIRTUAL) }).unwrap_or(0)
    }

    /// Prepares a timer, which calls this when it is due. QEMU has a processor by then.
    pub(crate) fn prepare(&self, timer: &Timer, run: unsafe extern "C" fn(*mut c_void)) {
        let timer = timer.0 as *mut c_void;
        // SAFETY: the memory is large enough for a timer, and zeroed; a null group means QEMU's
        // main one.
        unsafe { (self.init)(timer, null_mut(), CLOCK_VIRTUAL, SCALE_NS, 0, run, null_mut()) };
    }

    /// Has a timer that was prepared call at a time, in nanoseconds.
    pub(crate) fn set(&self, timer: &Timer, ns: u64) {
        let ns = i64::try_from(ns).unwrap_or(i64::MAX);
        // SAFETY: the timer was initialised when the processor was, and never moves.
        unsafe { (self.modify)(timer.0 as *mut c_void, ns) };
    }
}
