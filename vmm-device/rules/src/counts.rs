//! The counts of a device.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tofu_inspect::{Inspect, Visit};

use crate::table::{Device, Point, Rule};

/// Number of lanes. Threads that drive different interfaces or links count in different ones, so
/// they do not share a line of the processor's cache.
const LANES: usize = 6;
const POINTS: usize = Point::ALL.len();

/// The counts of points in one part of a device.
#[derive(Debug)]
pub struct Lane([AtomicU64; POINTS]);

impl Lane {
    /// Counts that a point was passed.
    #[inline]
    pub fn kept(&self, point: Point) {
        self.0[point as usize].fetch_add(1, Relaxed);
    }
}

/// The counts of a device: what its drivers did, since the device was made. A reset of the function
/// leaves them.
#[derive(Debug)]
pub struct Rules {
    device: Device,
    lanes: [Lane; LANES],
    /// Times that each rule was broken. There is none as long as none was.
    broken: OnceLock<Box<[AtomicU64; Rule::COUNT]>>,
    watcher: OnceLock<Watcher>,
}

/// A function that is called for each broken rule.
struct Watcher(Box<dyn Fn(Rule) + Send + Sync>);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

impl Rules {
    /// Counts for a device of this kind.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            lanes: [const { Lane([const { AtomicU64::new(0) }; POINTS]) }; LANES],
            broken: OnceLock::new(),
            watcher: OnceLock::new(),
        }
    }

    /// Calls `watcher` whenever a rule is broken, on the thread that finds it and with locks of the
    /// device held, so that it must not use the device. Only the first watcher is called.
    pub fn watch(&self, watcher: impl Fn(Rule) + Send + Sync + 'static) {
        // The first one stays.
        let _ = self.watcher.set(Watcher(Box::new(watcher)));
    }

    /// The counts of an interface or a link.
    #[inline]
    pub fn lane(&self, index: usize) -> &Lane {
        &self.lanes[if index < LANES { index } else { index % LANES }]
    }

    /// Counts a pass of a point that is seldom passed, or whose part is not known.
    #[inline]
    pub fn kept(&self, point: Point) {
        self.lanes[0].kept(point);
    }

    /// Counts that a rule was broken.
    #[cold]
    pub fn broke(&self, rule: Rule) {
        let broken =
            self.broken.get_or_init(|| Box::new([const { AtomicU64::new(0) }; Rule::COUNT]));
        broken[rule as usize].fetch_add(1, Relaxed);
        if let Some(Watcher(watcher)) = self.watcher.get() {
            watcher(rule);
        }
    }

    /// The counts of all rules that this kind of device has.
    pub fn report(&self) -> Report {
        let at = |point: &Point| {
            let counts = self.lanes.iter().map(|lane| lane.0[*point as usize].load(Relaxed));
            counts.fold(0, u64::wrapping_add)
        };
        let broken = self.broken.get();
        let rules = Rule::ALL.iter().filter(|rule| rule.device() == self.device);
        let tally = |&rule: &Rule| Tally {
            rule,
            kept: rule.kept_at().iter().map(at).fold(0, u64::wrapping_add),
            broken: broken.map_or(0, |broken| broken[rule as usize].load(Relaxed)),
        };
        Report(rules.map(tally).collect())
    }
}

/// The counts of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// The rule.
    pub rule: Rule,
    /// Times that it was kept.
    pub kept: u64,
    /// Times that it was broken.
    pub broken: u64,
}

impl Tally {
    /// Returns true if it never mattered.
    pub const fn never_met(&self) -> bool {
        self.kept == 0 && self.broken == 0
    }
}

/// The counts of all rules of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report(pub Vec<Tally>);

impl Report {
    /// Adds what the device counts elsewhere.
    pub fn add(&mut self, rule: Rule, kept: u64, broken: u64) {
        if let Some(tally) = self.0.iter_mut().find(|tally| tally.rule == rule) {
            tally.kept = tally.kept.saturating_add(kept);
            tally.broken = tally.broken.saturating_add(broken);
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.rule, self.rule.says(), self.rule.source().letter())
    }
}

/// A broken rule with what it says.
struct Broken(Tally);

impl Inspect for Broken {
    fn inspect(&self, visit: Visit<'_>) {
        let Tally { rule, kept, broken } = self.0;
        visit.tree(|tree| {
            tree.add("times", &broken);
            tree.add("kept", &kept);
            tree.add_with("source", |visit| visit.text(rule.source().letter()));
            tree.add_with("rule", |visit| visit.text(rule.says()));
        });
    }
}

impl Inspect for Report {
    fn inspect(&self, visit: Visit<'_>) {
        visit.tree(|tree| {
            tree.add_with("broken", |visit| {
                visit.tree(|tree| {
                    for tally in self.0.iter().filter(|tally| tally.broken > 0) {
                        tree.add(tally.rule, &Broken(*tally));
                    }
                });
            });
            tree.add_with("kept", |visit| {
                visit.tree(|tree| {
                    let kept = self.0.iter().filter(|tally| tally.kept > 0 && tally.broken == 0);
                    kept.for_each(|tally| tree.add(tally.rule, &tally.kept));
                });
            });
            tree.add_with("never_met", |visit| {
                visit.tree(|tree| {
                    for tally in self.0.iter().filter(|tally| tally.never_met()) {
                        tree.add_with(tally.rule, |visit| visit.text(tally.rule.says()));
                    }
                });
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn tally(rules: &Rules, rule: Rule) -> Tally {
        *rules.report().0.iter().find(|tally| tally.rule == rule).unwrap()
    }

    #[test]
    fn points_count_for_all_their_rules() {
        let rules = Rules::new(Device::Tofu);
        assert!(rules.report().0.iter().all(Tally::never_met));
        rules.lane(3).kept(Point::Ended);
        rules.lane(4).kept(Point::Ended);
        rules.broke(Rule::Mtu);
        assert_eq!(tally(&rules, Rule::TargetNode).kept, 2);
        assert_eq!(tally(&rules, Rule::Mtu), Tally { rule: Rule::Mtu, kept: 2, broken: 1 });
        assert!(tally(&rules, Rule::MrqRoom).never_met());
    }

    #[test]
    fn watcher_is_told_of_each_broken_rule() {
        let (rules, (told, broken)) = (Rules::new(Device::Tofu), mpsc::channel());
        rules.broke(Rule::Mtu);
        rules.watch(move |rule| told.send(rule).unwrap());
        rules.kept(Point::Ended);
        rules.broke(Rule::Mtu);
        rules.broke(Rule::Length);
        assert_eq!(broken.try_iter().collect::<Vec<_>>(), [Rule::Mtu, Rule::Length]);
    }

    #[test]
    fn report_has_the_rules_of_its_device() {
        for device in [Device::Tofu, Device::Tnw] {
            let report = Rules::new(device).report();
            assert!(report.0.iter().all(|tally| tally.rule.device() == device));
        }
    }
}
