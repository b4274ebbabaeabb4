//! Facts about this host that the standard library does not offer.

use std::path::PathBuf;
use std::{env, fs};

/// Where a program is that other processes are started from: in a folder of `PATH`.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Bytes of memory that programs can still use, swap included; `None` if the
/// kernel does not tell.
pub(crate) fn memory_available() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    Some(
        meminfo_bytes(&meminfo, "MemAvailable")? + meminfo_bytes(&meminfo, "SwapFree").unwrap_or(0),
    )
}

/// Bytes of physical memory.
pub(crate) fn memory_total() -> Option<u64> {
    meminfo_bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")
}

/// A soft and a hard limit on open files; `None` is unlimited or unknown.
pub(crate) fn open_files() -> (Option<u64>, Option<u64>) {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let mut numbers = line.unwrap_or_default().split_whitespace().map(|word| word.parse().ok());
    (numbers.next().flatten(), numbers.next().flatten())
}

/// The kernel's name and release.
pub(crate) fn kernel() -> Option<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(format!("Linux {}", release.trim()))
}

fn meminfo_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
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
        assert!(memory_total() >= memory_available().map(|_| 1));
        assert!(open_files().0.is_none_or(|limit| limit > 0));
    }
}
