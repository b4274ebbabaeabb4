//! The frequency of the processor's time stamp counter.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// The duration of the measurement: long compared with the time to read a clock.
const WATCH: Duration = Duration::from_millis(25);
/// The number of readings of both clocks; the least disturbed one is used.
const LOOKS: usize = 20;

/// Returns the frequency of this host's time stamp counter in kHz, measured once against the
/// system's clock, in 25 ms. Its error is some parts in 100,000. `None` if the counter does not
/// count.
///
/// For guests that have the host's counter. They could measure it themselves only with timers,
/// which an emulator may serve late.
pub fn host_tsc_khz() -> Option<u32> {
    static KHZ: OnceLock<Option<u32>> = OnceLock::new();
    *KHZ.get_or_init(|| {
        let (first, start) = look()?;
        thread::sleep(WATCH);
        let (last, end) = look()?;
        let nanoseconds = end.duration_since(start).as_nanos();
        let ticks = u128::from(last.checked_sub(first)?);
        u32::try_from(ticks * 1_000_000 / nanoseconds.max(1)).ok().filter(|khz| *khz > 0)
    })
}

/// The counter, and the clock at the same time.
fn look() -> Option<(u64, Instant)> {
    let looks = (0..LOOKS).map(|_| {
        let before = counter();
        let now = Instant::now();
        let after = counter();
        let took = after.saturating_sub(before);
        (took, before + took / 2, now)
    });
    looks.min_by_key(|(took, ..)| *took).map(|(_, ticks, now)| (ticks, now))
}

#[expect(unsafe_code, reason = "the counter is read by a special instruction")]
fn counter() -> u64 {
    // SAFETY: it reads a register. Where the kernel forbade it, no program would run: the system's
    // own clock reads it, too.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_speed_is_stable() {
        let khz = host_tsc_khz().expect("a counter");
        // From the slowest to the fastest that processors have.
        assert!((100_000..10_000_000).contains(&khz), "{khz}");
        assert_eq!(host_tsc_khz(), Some(khz));
    }
}
