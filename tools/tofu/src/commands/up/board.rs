//! The progress of nodes that boot over the torus, for people.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tofu_abi::Coords;
use tofu_fabric::NodeId;
use tofu_netboot::wire::FileRole;
use tofu_supervisor::event::BootStage;

struct BootingNode {
    since: Instant,
    /// The file that it fetches, and how much of it has arrived, in percent.
    at: Option<(FileRole, u8)>,
    done: bool,
}

/// The nodes that boot.
pub(crate) struct Board {
    /// The number of nodes to boot.
    wanted: usize,
    nodes: HashMap<NodeId, BootingNode>,
    /// Since the first one has begun.
    since: Option<Instant>,
    times: Vec<Duration>,
}

/// An event that gets a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// So many percent of a file.
    Progress(FileRole, u8),
    /// It starts what it has fetched, after this time.
    Started(Duration),
    /// It gives up, and why.
    Failed(String),
}

/// The steps in which progress is printed, in percent.
const STEP: u8 = 25;

impl Board {
    /// A board for so many nodes.
    pub(crate) fn new(wanted: usize) -> Self {
        Self { wanted, nodes: HashMap::new(), since: None, times: Vec::new() }
    }

    /// Takes news; returns a line if it is worth one.
    pub(crate) fn take(&mut self, id: NodeId, stage: BootStage) -> Option<Line> {
        let now = Instant::now();
        self.since.get_or_insert(now);
        let node =
            self.nodes.entry(id).or_insert(BootingNode { since: now, at: None, done: false });
        match stage {
            BootStage::Begun => {
                *node = BootingNode { since: now, at: None, done: false };
                None
            }
            BootStage::Fetching(role, percent) => {
                let before = node.at.filter(|(former, _)| *former == role).map_or(0, |(_, p)| p);
                node.at = Some((role, percent));
                (percent / STEP > before / STEP).then_some(Line::Progress(role, percent))
            }
            BootStage::Starting => {
                node.done = true;
                let took = now.duration_since(node.since);
                self.times.push(took);
                Some(Line::Started(took))
            }
            BootStage::Failed(why) => {
                node.done = true;
                Some(Line::Failed(why))
            }
        }
    }

    /// The slowest booting node, for a single line: the number of booting nodes, and its file.
    pub(crate) fn slowest(&self) -> Option<String> {
        let booting = || self.nodes.values().filter(|node| !node.done);
        let at = booting().min_by_key(|node| node.at.map_or((0, 0), rank));
        let (role, percent) = at?.at?;
        Some(format!("boot: {} nodes, {role} {percent} %", booting().count()))
    }

    /// The times of all nodes, returned once, when the last one has started.
    pub(crate) fn summary(&mut self) -> Option<String> {
        if self.times.len() < self.wanted.max(1) {
            return None;
        }
        let mut times = std::mem::take(&mut self.times);
        times.sort_unstable();
        let since = self.since.take()?;
        let (first, last) = (times.first()?, times.last()?);
        let median = times.get(times.len() / 2)?;
        let seconds = |time: &Duration| format!("{:.2} s", time.as_secs_f64());
        Some(format!(
            "boot: {} nodes over the torus in {}; a node took {} to {}, the median {}",
            times.len(),
            seconds(&since.elapsed()),
            seconds(first),
            seconds(last),
            seconds(median)
        ))
    }
}

fn rank((role, percent): (FileRole, u8)) -> (u8, u8) {
    (role as u8, percent)
}

/// A line about a node.
pub(crate) fn words(at: Coords, line: &Line) -> String {
    match line {
        Line::Progress(role, percent) => format!("{at} boot: {role} {percent} %"),
        Line::Started(took) => format!("{at} boot: starts after {:.2} s", took.as_secs_f64()),
        Line::Failed(why) => format!("{at} boot: failed: {why}"),
    }
}
