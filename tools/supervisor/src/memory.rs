//! Memory of this host that programs can still use.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the bytes of memory that this process can still use, swap included: those of the host,
/// or those of one of its control groups if that has fewer. `None` if the kernel does not report
/// it.
pub fn available() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let swap = meminfo_bytes(&meminfo, "SwapFree").unwrap_or(0);
    let host = meminfo_bytes(&meminfo, "MemAvailable")? + swap;
    let left = groups().into_iter().filter_map(|group| group.left());
    Some(left.fold(host, u64::min))
}

/// Returns the bytes of the host's physical memory.
pub fn total() -> Option<u64> {
    meminfo_bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")
}

fn meminfo_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A control group that may limit memory: its files' contents.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    /// The limit; `max` is none.
    limit: String,
    used: String,
    stat: String,
}

impl Group {
    /// Reads a group of either version of control groups.
    fn read(folder: &Path) -> Option<Self> {
        let file = |names: [&str; 2]| {
            names.iter().find_map(|name| fs::read_to_string(folder.join(name)).ok())
        };
        Some(Self {
            limit: file(["memory.max", "memory.limit_in_bytes"])?,
            used: file(["memory.current", "memory.usage_in_bytes"])?,
            stat: file(["memory.stat", "memory.stat"])?,
        })
    }

    /// The bytes that are left until the limit, if there is one. Pages of files count as left: the
    /// kernel takes them back first.
    fn left(&self) -> Option<u64> {
        let limit: u64 = self.limit.trim().parse().ok()?;
        let used: u64 = self.used.trim().parse().ok()?;
        // Of the group and those in it; version 1 has another name for that.
        let stat = |name: &str| {
            let value = |name: &str| {
                let words = self.stat.lines().filter_map(|line| line.split_once(' '));
                words.filter(|(word, _)| *word == name).find_map(|(_, n)| n.parse::<u64>().ok())
            };
            value(&format!("total_{name}")).or_else(|| value(name)).unwrap_or(0)
        };
        let files = stat("inactive_file").saturating_add(stat("active_file"));
        Some(limit.saturating_sub(used.saturating_sub(files)))
    }
}

/// The control groups of this process that may limit its memory.
fn groups() -> Vec<Group> {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    folders(&text).iter().filter_map(|folder| Group::read(folder)).collect()
}

/// The folders of the groups in text like that of /proc/self/cgroup, with the groups around them.
fn folders(text: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let root = match controllers {
            "" => Path::new("/sys/fs/cgroup"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                Path::new("/sys/fs/cgroup/memory")
            }
            _ => continue,
        };
        // In a container the path may be the host's, which is not visible; the root is.
        let own = root.join(path.trim_start_matches('/'));
        folders.extend(own.ancestors().take_while(|at| at.starts_with(root)).map(Path::to_owned));
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_understood() {
        let text = "MemTotal:       24689748 kB\nMemFree:  1 kB\nMemAvailable:    2048 kB\nX: y\n";
        assert_eq!(meminfo_bytes(text, "MemAvailable"), Some(2 << 20));
        assert_eq!(meminfo_bytes(text, "MemTotal"), Some(24689748 * 1024));
        assert_eq!(meminfo_bytes(text, "Mem"), None);
        assert_eq!(meminfo_bytes(text, "X"), None);
    }

    #[test]
    fn this_host_answers() {
        assert!(total() >= available().map(|_| 1));
    }

    #[test]
    fn limits_of_groups_are_understood() {
        let group = |limit: &str, used: &str, stat: &str| Group {
            limit: format!("{limit}\n"),
            used: format!("{used}\n"),
            stat: stat.to_owned(),
        };
        let second = group("1000", "900", "anon 600\ninactive_file 50\nactive_file 100\n");
        assert_eq!(second.left(), Some(250));
        let first = group("1000", "900", "inactive_file 1\ntotal_inactive_file 200\n");
        assert_eq!(first.left(), Some(300));
        assert_eq!(group("1000", "1200", "").left(), Some(0));
        assert_eq!(group("max", "900", "").left(), None);
    }

    #[test]
    fn groups_are_found_with_those_around_them() {
        let text = "9:name=systemd:/a\n4:cpu,memory:/a/b\n3:cpuset:/c\n0::/d\nx\n";
        let names = ["memory/a/b", "memory/a", "memory", "d", ""].map(|name| {
            let root = Path::new("/sys/fs/cgroup");
            if name.is_empty() { root.to_owned() } else { root.join(name) }
        });
        assert_eq!(folders(text), names);
        assert_eq!(folders("0::/../x\n")[0], Path::new("/sys/fs/cgroup/../x"));
    }
}
