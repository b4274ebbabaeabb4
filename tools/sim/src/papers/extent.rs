//! How much of the papers' measurements is run.

use std::ops::Range;

/// Seeds with which values that depend on chance are run.
pub(super) const SEEDS: u64 = 10;

/// How much is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(super) seeds: u64,
    /// Whether there are as many messages as in the papers.
    pub(super) full: bool,
}

impl Extent {
    pub(crate) const fn new(full: bool) -> Self {
        // One takes a quarter of an hour of a processor with all messages.
        Self { seeds: if full { 1 } else { SEEDS }, full }
    }

    pub(super) fn seeds(self, first: u64) -> Range<u64> {
        first..first + self.seeds
    }
}
