//! The model's results, which become the report.

use std::collections::BTreeMap;

use crate::plot::Curves;

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
