//! The processes of a job: how they are found and ended.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process};

use crate::environment::MARK;

/// The time for which processes may run after the first signal.
const GRACE: Duration = Duration::from_secs(5);
/// The time between two looks for processes.
const PAUSE: Duration = Duration::from_millis(20);

/// Returns the processes that have a job's mark in their environment.
pub(crate) fn marked(mark: &str) -> Vec<Pid> {
    let wanted = format!("{MARK}={mark}");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let has = environment.split(|byte| *byte == 0).any(|item| item == wanted.as_bytes());
        has.then(|| Pid::from_raw(pid)).flatten()
    });
    pids.collect()
}

/// Returns the processes of the job that this process runs: all descendants, and those with the
/// job's variable.
fn of_job(mark: &str) -> Vec<Pid> {
    let own = rustix::process::getpid();
    let mut found = tofu_jobs::descendants(own);
    found.extend(marked(mark).into_iter().filter(|pid| *pid != own));
    found.sort_by_key(|pid| pid.as_raw_nonzero());
    found.dedup();
    found.retain(|pid| !is_zombie(*pid));
    found
}

fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    // The name, which may have anything in it, is in brackets.
    stat.is_ok_and(|stat| {
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
    })
}

/// The kinds of processes in a job.
#[derive(PartialEq, Eq)]
enum Kind {
    /// A script or a program of the user.
    Theirs,
    /// A command of ours, which ends what it has started.
    Command,
    /// A process that tidies up behind a command, and ends by itself.
    Janitor,
}

fn kind(pid: Pid) -> Kind {
    let place = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let own = fs::read_link("/proc/self/exe").ok();
    if fs::read_link(place.join("exe")).ok() != own {
        return Kind::Theirs;
    }
    let words = fs::read(place.join("cmdline")).unwrap_or_default();
    let second = words.split(|byte| *byte == 0).nth(1).unwrap_or_default();
    if second == b"internal" { Kind::Janitor } else { Kind::Command }
}

/// Ends a job: its processes get `signal`, our commands among them SIGTERM. Those that remain after
/// a while are killed.
pub(crate) fn end(mark: &str, signal: Signal, reap: &mut dyn FnMut()) {
    for pid in of_job(mark) {
        let signal = match kind(pid) {
            Kind::Theirs => signal,
            Kind::Command => Signal::TERM,
            Kind::Janitor => continue,
        };
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }
    if gone(mark, GRACE, reap) {
        return;
    }
    for pid in of_job(mark).into_iter().filter(|pid| kind(*pid) != Kind::Janitor) {
        let _ = kill_process(pid, Signal::KILL);
    }
    if !gone(mark, GRACE, reap) {
        for pid in of_job(mark) {
            let _ = kill_process(pid, Signal::KILL);
        }
        gone(mark, GRACE, reap);
    }
}

fn gone(mark: &str, time: Duration, reap: &mut dyn FnMut()) -> bool {
    let end = Instant::now() + time;
    loop {
        reap();
        if of_job(mark).is_empty() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        sleep(PAUSE);
    }
}

/// Takes the results of children that have ended. Returns that of `wanted`, if it is among them.
pub(crate) fn reap(wanted: Pid) -> Option<WaitStatus> {
    let mut result = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == wanted {
            result = Some(status);
        }
    }
    result
}

/// Returns the processor time of children whose results have been taken, in milliseconds: of the
/// user, and of the system.
pub(crate) fn processor_time() -> (u64, u64) {
    let stat = fs::read("/proc/self/stat").unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    // The fields that proc(5) numbers 16 and 17; the first one here has the number 3.
    let field = |number: usize| {
        let field = rest.split_whitespace().nth(number - 3);
        field.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    };
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    (field(16) * 1000 / ticks, field(17) * 1000 / ticks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn processes_are_found_by_their_mark() {
        let mark = format!("/test/{}", std::process::id());
        let mut child = Command::new("sleep").arg("100").env(MARK, &mark).spawn().unwrap();
        let pid = Pid::from_child(&child);
        // The child is a copy of this process until it has become the program.
        let end = Instant::now() + GRACE;
        while marked(&mark) != [pid] {
            assert!(Instant::now() < end, "it is not found");
            sleep(PAUSE);
        }
        assert!(kind(pid) == Kind::Theirs);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(marked(&mark).is_empty());
    }
}
