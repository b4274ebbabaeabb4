//! The counts of rules, read from the devices.

use std::collections::BTreeMap;

use tofu_inspect::Value;
use tofu_rules::Rule;

use crate::nodes::{NODES, Nodes};

/// The counts of a rule on both nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) kept: u64,
    pub(crate) broken: u64,
}

/// The counts by rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts(BTreeMap<&'static str, Count>);

impl Counts {
    /// Those of both devices.
    pub(crate) fn of(nodes: &Nodes) -> anyhow::Result<Self> {
        let mut counts = Self::default();
        for node in NODES {
            counts.add(&nodes.inspect(node, "device/rules")?);
        }
        Ok(counts)
    }

    #[cfg(test)]
    pub(crate) fn broken_once(rules: &[Rule]) -> Self {
        Self(rules.iter().map(|rule| (rule.id(), Count { kept: 0, broken: 1 })).collect())
    }

    fn add(&mut self, tree: &Value) {
        for (id, value) in part(tree, "kept").iter().chain(part(tree, "broken")) {
            let Some(rule) = Rule::from_id(id) else { continue };
            let count = self.0.entry(rule.id()).or_default();
            match value {
                Value::Number(kept) => count.kept += kept,
                broken => {
                    count.kept += number(broken, "kept");
                    count.broken += number(broken, "times");
                }
            }
        }
    }

    pub(crate) fn get(&self, rule: Rule) -> Count {
        self.0.get(rule.id()).copied().unwrap_or_default()
    }

    /// The counts since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let grown = |rule: &Rule| {
            let (now, before) = (self.get(*rule), before.get(*rule));
            let kept = now.kept.saturating_sub(before.kept);
            (rule.id(), Count { kept, broken: now.broken.saturating_sub(before.broken) })
        };
        let grown = Rule::ALL.iter().map(grown);
        Self(grown.filter(|(_, count)| *count != Count::default()).collect())
    }

    /// The rules that were broken, and how often.
    pub(crate) fn broken(&self) -> impl Iterator<Item = (Rule, u64)> + '_ {
        let rules = Rule::ALL.iter().map(|rule| (*rule, self.get(*rule).broken));
        rules.filter(|(_, broken)| *broken > 0)
    }
}

/// The parts of a part of a tree.
pub(crate) fn part<'a>(tree: &'a Value, name: &str) -> &'a [(String, Value)] {
    match find(tree, name) {
        Some(Value::Tree(parts)) => parts,
        _ => &[],
    }
}

/// A part of a tree.
pub(crate) fn find<'a>(tree: &'a Value, name: &str) -> Option<&'a Value> {
    let Value::Tree(parts) = tree else { return None };
    parts.iter().find(|(found, _)| found == name).map(|(_, value)| value)
}

fn number(tree: &Value, name: &str) -> u64 {
    match find(tree, name) {
        Some(Value::Number(number)) => *number,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_inspect::{Query, look};
    use tofu_rules::{Device, Point, Rules};

    fn seen(rules: &Rules) -> Counts {
        let query = Query { path: &[], depth: 9, limit: 1000 };
        let mut counts = Counts::default();
        counts.add(&look(&rules.report(), &query).unwrap().value);
        counts
    }

    #[test]
    fn counts_are_those_of_the_device() {
        let rules = Rules::new(Device::Tofu);
        rules.kept(Point::Ended);
        let before = seen(&rules);
        assert_eq!(before.get(Rule::Mtu), Count { kept: 1, broken: 0 });
        rules.kept(Point::Ended);
        rules.broke(Rule::Mtu);
        rules.broke(Rule::MrqRoom);
        let grown = seen(&rules).since(&before);
        assert_eq!(grown.get(Rule::Mtu), Count { kept: 1, broken: 1 });
        assert_eq!(grown.get(Rule::MrqRoom), Count { kept: 0, broken: 1 });
        assert_eq!(grown.broken().count(), 2);
        assert_eq!(seen(&rules).since(&seen(&rules)), Counts::default());
    }
}
