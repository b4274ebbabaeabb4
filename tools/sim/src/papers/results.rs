//! The model's results, which become the report.

use std::collections::BTreeMap;

use crate::plot::Curves;

/// The model's results.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// By the name of the value.
    pub(super) values: BTreeMap<&'static str, f64>,
    pub(super) curves: Vec<Curves>,
}

impl Results {
    pub(super) fn set(&mut self, name: &'static str, ours: f64) {
        let old = self.values.insert(name, ours);
        debug_assert!(old.is_none(), "{name} twice");
    }
}
