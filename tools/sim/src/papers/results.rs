//! The extent of a run, and the model's results, which become the report.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::plot::Curves;

/// Seeds with which values that depend on chance are run.
pub(super) const SEEDS: u64 = 10;

/// The extent of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(super) seeds: u64,
    /// True if there are as many messages as in the papers.
    pub(super) full: bool,
}

impl Extent {
    pub(crate) const fn new(full: bool) -> Self {
        Self { seeds: SEEDS, full }
    }

    pub(super) fn seeds(self, first: u64) -> Range<u64> {
        first..first + self.seeds
    }
}

/// The model's results.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// By the name of the value: one result, or that of each seed.
    pub(super) values: BTreeMap<&'static str, Vec<f64>>,
    pub(super) curves: Vec<Curves>,
}

impl Results {
    pub(super) fn set(&mut self, name: &'static str, ours: f64) {
        self.set_of_seeds(name, [ours]);
    }

    /// Sets a value that depends on a seed, to its result with each seed.
    pub(super) fn set_of_seeds(&mut self, name: &'static str, ours: impl IntoIterator<Item = f64>) {
        let old = self.values.insert(name, ours.into_iter().collect());
        debug_assert!(old.is_none(), "{name} twice");
    }
}
