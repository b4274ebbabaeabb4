//! Time by the time stamp counter.

use core::arch::x86_64::_rdtsc;
use core::cell::Cell;

use crate::service::in32;
use crate::{boot_params, cmdline};

struct Clock {
    start: Cell<u64>,
    khz: Cell<u64>,
}

// SAFETY: one CPU, one thread.
unsafe impl Sync for Clock {}

static CLOCK: Clock = Clock { start: Cell::new(0), khz: Cell::new(DEFAULT_KHZ) };

/// Used if the VMM does not give the frequency; wrong by some factor, never zero.
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
    let told = cmdline::number("tsc_khz").filter(|khz| *khz != 0);
    if let Some(khz) = told.or_else(|| boot_params::is_pvh().then(measure).flatten()) {
        CLOCK.khz.set(khz);
    }
    CLOCK.start.set(ticks());
}

/// Frequency of the time stamp counter in kHz, by the ACPI timer of a Q35 machine. `None` if there
/// is none, which reads as a constant.
fn measure() -> Option<u64> {
    const PORT: u16 = 0x608;
    const HZ: u64 = 3_579_545;
    /// The counter has 24 bits at least.
    const MASK: u32 = 0xff_ffff;
    /// About 5 ms.
    const WANTED: u32 = 17_898;
    const TRIES: u32 = 10_000_000;
    let (first, start) = (in32(PORT), ticks());
    for _ in 0..TRIES {
        let passed = in32(PORT).wrapping_sub(first) & MASK;
        if passed >= WANTED {
            let counted = ticks().wrapping_sub(start);
            return Some(counted * (HZ / 1000) / u64::from(passed)).filter(|khz| *khz != 0);
        }
        if passed == 0 && ticks().wrapping_sub(start) > STUCK_TICKS {
            return None;
        }
    }
    None
}

/// No timer stands still for so long.
const STUCK_TICKS: u64 = 100_000_000;
