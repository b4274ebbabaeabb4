//! The host's monotonic clock, in nanoseconds.
#![allow(unsafe_code, reason = "the host's clock")]

/// The time since its creation, in whole nanoseconds.
///
/// It is [`Instant`](std::time::Instant)'s clock. That one keeps seconds and nanoseconds apart and
/// checks them with each difference, which takes longer than the reading.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic {
    start_ns: u64,
}

impl Default for Monotonic {
    fn default() -> Self {
        Self::new()
    }
}

impl Monotonic {
    /// Creates a clock.
    pub fn new() -> Self {
        Self { start_ns: read() }
    }

    /// The time, in nanoseconds.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        read().saturating_sub(self.start_ns)
    }
}

#[inline]
fn read() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes a `timespec` of this function. It fails only for clocks that a host
    // does not have, and every Linux has this one.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn monotonic_clock_is_that_of_instants() {
        let (before, clock) = (Instant::now(), Monotonic::new());
        let within = Instant::now();
        while within.elapsed().as_micros() < 2000 {}
        let now_ns = u128::from(clock.now_ns());
        assert!(now_ns >= 2_000_000 && now_ns <= before.elapsed().as_nanos(), "{now_ns} ns");
    }
}
