//! The clock of a machine.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use tofu_sync::Monotonic;

/// The machine's clock.
#[derive(Debug)]
pub(crate) enum Clock {
    Host(Monotonic),
    /// Advances only by [`Clock::advance`].
    Manual(AtomicU64),
}

impl Clock {
    /// The time since the machine began, in nanoseconds.
    pub(crate) fn now_ns(&self) -> u64 {
        match self {
            Self::Host(clock) => clock.now_ns(),
            Self::Manual(now) => now.load(SeqCst),
        }
    }

    /// Advances a manual clock. Has no effect on the host's clock, which runs
    /// by itself.
    pub(crate) fn advance(&self, ns: u64) {
        if let Self::Manual(now) = self {
            now.fetch_add(ns, SeqCst);
        }
    }
}
