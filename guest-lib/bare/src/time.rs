//! Time by the time stamp counter.

use core::arch::x86_64::_rdtsc;
use core::cell::Cell;

struct Clock {
    start: Cell<u64>,
    khz: Cell<u64>,
}

// SAFETY: one CPU, one thread.
unsafe impl Sync for Clock {}

static CLOCK: Clock = Clock { start: Cell::new(0), khz: Cell::new(DEFAULT_KHZ) };

/// Taken if the VMM does not tell; wrong by some factor, never zero.
const DEFAULT_KHZ: u64 = 2_000_000;

/// Nanoseconds since the program started, by the frequency given as `tsc_khz=`
/// on the command line.
pub fn now_ns() -> u64 {
    let ticks = ticks().wrapping_sub(CLOCK.start.get());
    (u128::from(ticks) * 1_000_000 / u128::from(CLOCK.khz.get())) as u64
}

/// The time stamp counter.
pub fn ticks() -> u64 {
    // SAFETY: RDTSC is there on every x86-64 CPU and allowed in ring 3.
    unsafe { _rdtsc() }
}

pub(crate) fn init() {
    CLOCK.start.set(ticks());
    if let Some(khz) = crate::number("tsc_khz")
        && khz != 0
    {
        CLOCK.khz.set(khz);
    }
}
