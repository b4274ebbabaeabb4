//! Facts about this host that the standard library does not offer.

use std::path::PathBuf;
use std::{env, fs};

/// The path of a program from which other processes are started, in a folder of `PATH`.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_answers() {
        assert!(open_files().0.is_none_or(|limit| limit > 0));
    }
}
