//! A clock that is cheap to read.
#![allow(unsafe_code, reason = "the processor's counter")]

use std::time::Instant;

/// A clock with its own unit: the processor's counter if it runs at a constant rate, and
/// nanoseconds otherwise. Reading the counter takes about a third of the time of reading
/// [`Instant`].
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    /// True if the clock is the processor's counter.
    counter: bool,
    /// The time of its creation, by both clocks.
    start: Instant,
    first: u64,
}

impl Default for Ticks {
    fn default() -> Self {
        Self::new()
    }
}

impl Ticks {
    /// Creates a clock.
    pub fn new() -> Self {
        let (counter, start) = (is_constant(), Instant::now());
        Self { counter, start, first: if counter { counted() } else { 0 } }
    }

    /// The time, in ticks.
    #[inline]
    pub fn now(&self) -> u64 {
        if self.counter { counted() } else { self.start.elapsed().as_nanos() as u64 }
    }

    /// Nanoseconds per tick, measured since the clock was created.
    pub fn rate(&self) -> f64 {
        if !self.counter {
            return 1.0;
        }
        let ns = self.start.elapsed().as_nanos() as f64;
        ns / counted().saturating_sub(self.first).max(1) as f64
    }

    /// The reading of the clock at its creation, in ticks.
    pub const fn first(&self) -> u64 {
        self.first
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counted() -> u64 {
    // SAFETY: RDTSC reads a counter and touches no memory; user programs may use it on Linux.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns true if the counter has the same rate in all states of the processor (invariant TSC).
#[cfg(target_arch = "x86_64")]
fn is_constant() -> bool {
    use core::arch::x86_64::__cpuid;
    const POWER: u32 = 0x8000_0007;
    __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx >> 8 & 1 != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn counted() -> u64 {
    0
}

#[cfg(not(target_arch = "x86_64"))]
fn is_constant() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_and_a_tick_has_a_length() {
        let ticks = Ticks::new();
        let (first, since) = (ticks.now(), Instant::now());
        while since.elapsed().as_micros() < 2000 {}
        let passed = (ticks.now() - first) as f64 * ticks.rate();
        assert!(ticks.first() <= first && passed >= 1_900_000.0, "{passed} ns");
    }
}
