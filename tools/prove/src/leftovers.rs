//! The things that a driver leaves behind: in the devices, as the host sees them, and in the nodes'
//! kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use tofu_inspect::Value;
use tofu_ui::printable;

use crate::nodes::{NODES, Nodes};
use crate::rules::{find as part_of, part};
use crate::subject::Subject;

/// The time after which something counts as left. Kernels sum the counts of their processors up
/// once a second, and free some memory later than they are told to.
const SETTLES: Duration = Duration::from_secs(4);
/// The first of the intervals at which things are looked for, each twice as long as the last.
const SOON: Duration = Duration::from_millis(250);

/// Lets a node's kernel look at its heap, and say in its log what is wrong there.
pub(crate) const CHECK_HEAP: &str =
    "for F in /sys/kernel/slab/kmalloc-*/validate; do echo 1 >$F; done 2>/dev/null; true";

/// Prints how many pages a kernel keeps pinned.
const PINNED: &str = "awk '/nr_foll_pin_acquired/ { n += $2 } /nr_foll_pin_released/ { n -= $2 } \
    END { print \"pinned\", n + 0 }' /proc/vmstat";
/// Prints how many frames there are in its network stack.
const FRAMES: &str = "awk '/^skbuff_(head|fclone)_cache/ { n += $2 } \
    END { print \"frames\", n + 0 }' /proc/slabinfo";
/// The frames by which the count may grow: a processor keeps up to 128.
const SPARE_FRAMES: u64 = 160;
/// Prints the names of its things.
const THINGS: &str = "for F in /proc/[!0-9]* /dev/* /sys/class/*/* /sys/kernel/debug/*; do \
    echo \"thing $F\"; done; while read -r L; do echo \"thing $L\"; done </proc/iomem";
/// Prints the first line of each trace of the heap's allocations: how many there are, and which
/// code has made them. The files are long, so they are read once.
const TRACES: &str = "grep -hsF ' age=' /sys/kernel/debug/slab/kmalloc-*/alloc_traces";
/// For awk, of these: the code that is not there any more. The kernel has no names for its
/// addresses.
const LEAKED: &str =
    "$2 ~ /^0x/ { print \"thing memory of the heap, which code at\", $2, \"took\" }";
/// The same: how many objects there are that the kernel allocates for drivers, by its function.
const OBJECTS: &str = "$2 ~ /^(alloc_netdev_mqs|_*devlink_alloc|pci_store_saved_state)/ { \
    sub(/[+].*/, \"\", $2); n[$2] += $1 } END { for (f in n) print \"object\", f, n[f] }";

/// The things that a node keeps for a driver, and those that it has anyway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Pages of programs that are pinned.
    pinned: i64,
    /// Bytes that the IOMMU lets the device reach.
    mapped: u64,
    /// Frames of the network stack.
    frames: u64,
    /// Network interfaces and the like, by the kernel's function that has allocated them.
    objects: BTreeMap<String, u64>,
    /// Files, devices, regions of memory, and code whose memory was not freed.
    things: BTreeSet<String>,
}

impl Kept {
    /// Those of both nodes.
    pub(crate) fn of(nodes: &Nodes, subject: &Subject) -> anyhow::Result<[Self; 2]> {
        // For a program the kernel's VFIO takes the device, and keeps it.
        let mut script = PINNED.to_owned();
        if subject.module().is_some() {
            script += &format!("; {THINGS}; {TRACES} | awk '{LEAKED} {OBJECTS}'; {FRAMES}");
        }
        let mut kept = nodes.both_must(&script)?.map(|said| Self::parse(&said.text));
        for (node, kept) in NODES.into_iter().zip(&mut kept) {
            if let Value::Number(bytes) = nodes.inspect(node, "device/mapped_bytes")? {
                kept.mapped = bytes;
            }
        }
        Ok(kept)
    }

    fn parse(text: &str) -> Self {
        let mut kept = Self::default();
        for (what, rest) in text.lines().filter_map(|line| line.split_once(' ')) {
            match what {
                "pinned" => kept.pinned = rest.parse().unwrap_or(0),
                "frames" => kept.frames = rest.parse().unwrap_or(0),
                "object" => {
                    let (function, count) = rest.split_once(' ').unwrap_or((rest, ""));
                    kept.objects.insert(function.to_owned(), count.parse().unwrap_or(0));
                }
                "thing" => drop(kept.things.insert(rest.to_owned())),
                _ => {}
            }
        }
        kept
    }

    /// Returns true if there are things that the next driver may meet: sockets cannot send while
    /// too many of their frames are kept, and a device address that is mapped cannot be mapped to
    /// anything else. It does not meet pinned pages.
    fn has_more(&self, before: &Self) -> bool {
        !self.things.is_subset(&before.things)
            || self.mapped > before.mapped
            || self.objects_since(before).next().is_some()
            || self.has_frames_since(before)
    }

    fn has_frames_since(&self, before: &Self) -> bool {
        self.frames > before.frames + SPARE_FRAMES
    }

    /// The functions that have allocated more objects than before, and how many more.
    fn objects_since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (&'a str, u64)> {
        self.objects.iter().filter_map(|(function, count)| {
            let more = count.saturating_sub(before.objects.get(function).copied().unwrap_or(0));
            (more > 0).then_some((function.as_str(), more))
        })
    }

    /// The things that were not there before.
    fn since(&self, before: &Self) -> Vec<String> {
        let mut left = Vec::new();
        if self.pinned > before.pinned {
            left.push(format!("{} pinned pages", self.pinned - before.pinned));
        }
        if self.mapped > before.mapped {
            left.push(format!("{} bytes are mapped for the device", self.mapped - before.mapped));
        }
        if self.has_frames_since(before) {
            left.push(format!("{} frames of the network stack", self.frames - before.frames));
        }
        for (function, more) in self.objects_since(before) {
            left.push(format!("{more} objects of {}", printable(function)));
        }
        left.extend(self.things.difference(&before.things).map(|thing| printable(thing)));
        left
    }
}

/// The things that a driver has left behind.
#[derive(Debug)]
pub(crate) struct Leftovers {
    /// In words.
    pub(crate) left: Vec<String>,
    /// A kernel has more things than before.
    pub(crate) is_changed: bool,
    /// The things that the nodes keep now.
    pub(crate) kept: [Kept; 2],
}

/// Finds what the driver has left.
///
/// # Errors
///
/// If a node does not answer.
pub(crate) fn find(
    nodes: &Nodes,
    subject: &Subject,
    before: &[Kept; 2],
) -> anyhow::Result<Leftovers> {
    let (until, mut interval) = (Instant::now() + SETTLES, SOON);
    let (of_nodes, kept) = loop {
        let now = Kept::of(nodes, subject)?;
        let left = [0, 1].map(|node: usize| now[node].since(&before[node]));
        if left.iter().all(Vec::is_empty) || Instant::now() + interval > until {
            break (left, now);
        }
        thread::sleep(interval);
        interval *= 2;
    };
    let is_changed = kept.iter().zip(before).any(|(now, before)| now.has_more(before));
    let mut left = Vec::new();
    for (node, things) in NODES.into_iter().zip(of_nodes) {
        left.extend(things.iter().map(|what| format!("node {node}: {what}")));
        on_in(node, &nodes.inspect(node, "device/tni")?, &mut left);
        let pci = nodes.inspect(node, "pci")?;
        if part_of(&pci, "msix").is_some_and(|msix| is_on(msix, "enabled")) {
            left.push(format!("node {node}: MSI-X is enabled"));
        }
        if is_on(&pci, "bus_master") {
            left.push(format!("node {node}: Bus Master Enable is set"));
        }
    }
    Ok(Leftovers { left, is_changed, kept })
}

/// Interfaces and queues of a device that are on.
fn on_in(node: u32, tnis: &Value, left: &mut Vec<String>) {
    let Value::Tree(tnis) = tnis else { return };
    for (tni, tree) in tnis {
        if is_on(tree, "enabled") {
            left.push(format!("node {node}: TNI {tni} is enabled"));
        }
        for (cq, queue) in part(tree, "cq").iter().filter(|(_, queue)| is_on(queue, "enabled")) {
            let stags = part(queue, "stags").len();
            let what = format!("node {node}: TNI {tni} CQ {cq} is enabled, with {stags} STags");
            left.push(what);
        }
        for (gate, _) in part(tree, "gate") {
            left.push(format!("node {node}: TNI {tni} gate {gate} is enabled"));
        }
    }
}

/// Returns true if a flag of a tree is set.
fn is_on(tree: &Value, name: &str) -> bool {
    part_of(tree, name) == Some(&Value::Flag(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_before_is_not_left() {
        let before = Kept::parse("pinned 3\nframes 90\nobject alloc 2\nthing /dev/null\n");
        let after = "pinned 4\nframes 251\nobject alloc 3\nthing /dev/null\n\
                     thing ff40-ff7f : x y\nnonsense\n";
        let after = Kept::parse(after);
        assert_eq!(before.since(&before), [""; 0]);
        let (pinned, frames) = ("1 pinned pages", "161 frames of the network stack");
        let left = [pinned, frames, "1 objects of alloc", "ff40-ff7f : x y"];
        assert_eq!(after.since(&before), left);
        assert_eq!(before.since(&after), [""; 0]);
        assert!(after.has_more(&before) && !before.has_more(&after));
    }
}
