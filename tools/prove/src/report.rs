//! The report about a driver.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tofu_rules::{Device, Rule};

use crate::leftovers::Kept;
use crate::rules::Counts;
use crate::stacks::Stack;

/// Most kernel warnings that are kept.
const MOST_WARNINGS: usize = 40;
/// Words that mark lines of a kernel's log about accesses that an IOMMU has refused.
pub(crate) const IOMMU_SIGNS: [&str; 3] = ["DMAR: [DMA", "IO_PAGE_FAULT", " fault from EP "];
/// Most call stacks of a rule that are kept.
const MOST_STACKS: usize = 3;

/// The result of a scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The driver did what it should.
    Passed,
    /// It did not.
    Failed,
    /// It was not played, because of one before.
    NotRun,
}

/// A scene after it was played.
#[derive(Clone, Debug, Serialize)]
pub struct SceneReport {
    /// Its name.
    pub name: &'static str,
    /// Its result.
    pub outcome: Outcome,
    /// Its duration.
    pub seconds: f64,
    /// Observations, in one line.
    pub says: String,
    /// Ids of the rules that were broken in it, with how often.
    pub broken: Vec<(&'static str, u64)>,
}

/// A rule after all scenes.
#[derive(Clone, Debug, Serialize)]
pub struct RuleReport {
    /// Its id.
    pub id: &'static str,
    /// P, I or O, as in the manual.
    pub source: char,
    /// Its text.
    pub rule: &'static str,
    /// Times that it was kept.
    pub kept: u64,
    /// Times that it was broken.
    pub broken: u64,
    /// Times that it was broken because a scene took away the other end, which is no fault.
    pub excused: u64,
    /// The code that has broken it, the first few times.
    pub stacks: Vec<Stack>,
}

impl RuleReport {
    fn never_met(&self) -> bool {
        self.kept == 0 && self.broken == 0 && self.excused == 0
    }
}

/// The report about a driver.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The driver.
    pub driver: String,
    /// The monitor that ran the nodes.
    pub monitor: String,
    /// True if nothing broke.
    pub ok: bool,
    /// The scenes, in order.
    pub scenes: Vec<SceneReport>,
    /// All rules of the device.
    pub rules: Vec<RuleReport>,
    /// Things that the driver has left behind.
    pub left: Vec<String>,
    /// Observations that are worth a look, but are no faults.
    pub notes: Vec<String>,
    /// Lines of the kernels' logs that report faults.
    pub warnings: Vec<String>,
    /// The duration, with the boot of the nodes.
    pub seconds: f64,
    /// A node did not answer any more.
    #[serde(skip)]
    pub(crate) lost_node: bool,
    /// A kernel has more things than before.
    #[serde(skip)]
    pub(crate) is_changed: bool,
    /// The things that the nodes keep after the driver.
    #[serde(skip)]
    pub(crate) kept: Option<[Kept; 2]>,
}

impl Report {
    pub(crate) fn new(driver: String, monitor: &str) -> Self {
        let rules = Rule::ALL.iter().filter(|rule| rule.device() == Device::Tofu);
        let row = |rule: &Rule| RuleReport {
            id: rule.id(),
            source: rule.source().letter(),
            rule: rule.says(),
            kept: 0,
            broken: 0,
            excused: 0,
            stacks: Vec::new(),
        };
        Self {
            driver,
            monitor: monitor.to_owned(),
            ok: false,
            scenes: Vec::new(),
            rules: rules.map(row).collect(),
            left: Vec::new(),
            notes: Vec::new(),
            warnings: Vec::new(),
            seconds: 0.0,
            lost_node: false,
            is_changed: false,
            kept: None,
        }
    }

    /// Returns true if the nodes' kernels may not be as they were before. A device that is left on
    /// is reset, and an IOMMU that has refused an access is none the worse.
    pub(crate) fn is_untidy(&self) -> bool {
        let of_iommu = |line: &String| IOMMU_SIGNS.iter().any(|sign| line.contains(sign));
        self.lost_node || self.is_changed || !self.warnings.iter().all(of_iommu)
    }

    /// Returns true if a node was lost, or already the first scene has failed.
    pub(crate) fn has_not_begun(&self) -> bool {
        let first = self.scenes.first();
        self.lost_node || first.is_some_and(|scene| scene.outcome == Outcome::Failed)
    }

    /// Adds what was counted in a scene.
    pub(crate) fn count(&mut self, counts: &Counts, excuse: Excuse) {
        for row in &mut self.rules {
            let Some(rule) = Rule::from_id(row.id) else { continue };
            let count = counts.get(rule);
            // The device whose driver has gone still counts the other end's accesses to its memory.
            let excused = match excuse {
                _ if excuse.covers(rule) => count.broken,
                Excuse::Taken | Excuse::Reset if rule == Rule::StagEnabled => {
                    count.broken.min(counts.get(Rule::RemoteMemory).broken)
                }
                _ => 0,
            };
            row.kept += count.kept;
            row.excused += excused;
            row.broken += count.broken - excused;
        }
    }

    /// Adds the code that has broken rules.
    pub(crate) fn locate(&mut self, stacks: Vec<(Rule, Stack)>) {
        for (rule, stack) in stacks {
            let row = self.rules.iter_mut().find(|row| row.id == rule.id());
            if let Some(row) = row.filter(|row| row.broken > 0 && row.stacks.len() < MOST_STACKS) {
                row.stacks.push(stack);
            }
        }
    }

    /// Notes why rules were never met.
    pub(crate) fn explain(&mut self, reasons: &[(Rule, &str)]) {
        for (rule, why) in reasons {
            if self.rules.iter().any(|row| row.id == rule.id() && row.never_met()) {
                self.notes.push(format!("{} is never met: {why}", rule.id()));
            }
        }
    }

    pub(crate) fn warn(&mut self, line: String) {
        if self.warnings.len() < MOST_WARNINGS {
            self.warnings.push(line);
        }
    }

    /// Notes the duration, and decides if the driver has passed.
    pub(crate) fn finish(&mut self, took: Duration) {
        self.seconds = took.as_secs_f64();
        let played = self.scenes.iter().all(|scene| scene.outcome == Outcome::Passed);
        let kept = self.rules.iter().all(|rule| rule.broken == 0);
        self.ok = played && kept && self.left.is_empty() && self.warnings.is_empty();
    }

    /// The rules that were broken, and not excused.
    pub(crate) fn broken(&self) -> impl Iterator<Item = &RuleReport> {
        self.rules.iter().filter(|rule| rule.broken > 0)
    }

    /// The names of the scenes in which a rule was broken.
    pub(crate) fn scenes_of(&self, id: &str) -> String {
        let broke = |scene: &&SceneReport| scene.broken.iter().any(|(broken, _)| *broken == id);
        let names: Vec<_> = self.scenes.iter().filter(broke).map(|scene| scene.name).collect();
        names.join(", ")
    }
}

/// The rules that a driver cannot keep in a scene, because of what happens to the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excuse {
    /// It can keep all.
    None,
    /// The other end starts and stops independently.
    Starts,
    /// The other end is taken away.
    Taken,
    /// The same, and Bus Master Enable is cleared before the driver can do anything.
    Reset,
    /// The same, and accesses to memory fail, which looks as if there were no memory.
    Aborted,
}

impl Excuse {
    /// Returns true if it cannot keep a rule.
    pub(crate) fn covers(self, rule: Rule) -> bool {
        let presence = [Rule::RemoteMastering, Rule::RemoteInterface, Rule::RemoteEnabled];
        match self {
            Self::None => false,
            // VFIO clears it when the program leaves the device.
            Self::Starts => presence.contains(&rule) || rule == Rule::MasteringLast,
            Self::Taken => {
                let of_gates = [Rule::GateInactive, Rule::GateSource];
                rule.id().starts_with("T-RMT-") || of_gates.contains(&rule)
            }
            Self::Reset => rule == Rule::MasteringLast || Self::Taken.covers(rule),
            Self::Aborted => {
                let of_memory = [
                    Rule::ToqMemory,
                    Rule::TcqMemory,
                    Rule::MrqMemory,
                    Rule::SteeringMemory,
                    Rule::BlockMemory,
                    Rule::PageMemory,
                    Rule::PayloadMemory,
                    Rule::ArmWord,
                    Rule::PbqMemory,
                    Rule::PacketMemory,
                    Rule::NoticeArea,
                    Rule::StatisticsQueue,
                ];
                of_memory.contains(&rule) || Self::Reset.covers(rule)
            }
        }
    }
}

impl fmt::Display for SceneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, outcome, seconds, says, .. } = self;
        let outcome = match outcome {
            Outcome::Passed => "ok",
            Outcome::Failed => "FAILED",
            Outcome::NotRun => "not run",
        };
        write!(f, "  {name:24} {outcome:8} {seconds:5.1} s  {says}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let never = self.rules.iter().filter(|rule| rule.never_met()).count();
        let broken = self.broken().count();
        let kept = self.rules.len() - never - broken;
        writeln!(f, "rules: {kept} kept, {broken} broken, {never} never met")?;
        for rule in self.broken() {
            let RuleReport { id, broken, source, rule, stacks, .. } = rule;
            writeln!(
                f,
                "  broken {id}, {broken} times, in {}: {rule} ({source})",
                self.scenes_of(id)
            )?;
            stacks.iter().try_for_each(|stack| writeln!(f, "    {stack}"))?;
        }
        for RuleReport { id, excused, .. } in self.rules.iter().filter(|rule| rule.excused > 0) {
            writeln!(f, "  excused {id}, {excused} times: not of the driver's doing")?;
        }
        for RuleReport { id, rule, .. } in self.rules.iter().filter(|rule| rule.never_met()) {
            writeln!(f, "  never met {id}: {rule}")?;
        }
        list(f, "left behind", &self.left)?;
        list(f, "kernel warnings", &self.warnings)?;
        list(f, "notes", &self.notes)?;
        let verdict = if self.ok { "nothing broke" } else { "NOT PROVED" };
        writeln!(f, "{}: {verdict}, after {:.1} s", self.driver, self.seconds)
    }
}

fn list(f: &mut fmt::Formatter<'_>, title: &str, lines: &[String]) -> fmt::Result {
    if lines.is_empty() {
        return writeln!(f, "{title}: none");
    }
    writeln!(f, "{title}:")?;
    lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_stay_after_what_a_reset_mends() {
        let mut report = Report::new("x".into(), "y");
        report.left.push("node 0: Bus Master Enable is set".into());
        report.warn("node 0, in load: DMAR: [DMA Read] Request device [01:00.0]".into());
        assert!(!report.is_untidy());
        report.warn("node 0, in unload: WARNING: CPU: 0 PID: 1 at x.c".into());
        assert!(report.is_untidy());
    }
}
