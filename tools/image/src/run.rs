//! Child processes that end when they should: with this process, on Ctrl-C, or when they take too
//! long.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, IoContext, Result};
use crate::progress::Progress;

/// The time limit for programs other than compilers.
const TIME_LIMIT: Duration = Duration::from_secs(3600);
/// Bytes of a child's output that are kept. apt's list of some thousand packages fits.
const OUTPUT_LIMIT: usize = 16 << 20;

/// Finds the program `name` in `PATH`, or in the folders of system programs, which an ordinary
/// user's `PATH` may lack.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| {
            rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file()
        })
}

/// Returns a command for `program` that the kernel ends when this process dies for any reason, if
/// the host has util-linux's setpriv.
pub(crate) fn command(program: &Path) -> Command {
    match find("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "TERM", "--"]).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// The output of a child.
pub(crate) struct Output {
    pub(crate) ok: bool,
    pub(crate) stdout: String,
    /// The ends of stdout and stderr, because programs report failures on either.
    pub(crate) stderr: String,
    pub(crate) signal: Option<i32>,
}

/// A child that is ended together with all its children when dropped.
struct Group(Child);

impl Group {
    fn end(&mut self) {
        if matches!(self.0.try_wait(), Ok(Some(_))) {
            return;
        }
        if let Some(pid) = rustix::process::Pid::from_raw(self.0.id() as i32) {
            // The child leads its group and has not been reaped, so the number is still its own.
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::TERM);
            for _ in 0..50 {
                if matches!(self.0.try_wait(), Ok(Some(_))) {
                    return;
                }
                thread::sleep(Duration::from_millis(10));
            }
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

fn collect(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut kept = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if kept.len() < OUTPUT_LIMIT {
                kept.extend_from_slice(&buffer[..count]);
            }
        }
        String::from_utf8_lossy(&kept).into_owned()
    })
}

/// Runs `command` to its end, and calls `tick` several times a second. The caller decides whether
/// it succeeded.
///
/// # Errors
/// If the program cannot be started or takes over an hour, or the caller cancels.
pub(crate) fn run(
    command: Command,
    purpose: &'static str,
    progress: &dyn Progress,
    tick: impl FnMut(),
) -> Result<Output> {
    run_for(TIME_LIMIT, command, purpose, progress, tick)
}

/// Runs `command` with another time limit.
///
/// # Errors
/// As [`run`], after `limit`.
pub(crate) fn run_for(
    limit: Duration,
    mut command: Command,
    purpose: &'static str,
    progress: &dyn Progress,
    mut tick: impl FnMut(),
) -> Result<Output> {
    let program = command.get_program().to_owned();
    log::debug!("{purpose}: {command:?}");
    command
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // It gets its own group, so that all of its children can be ended with it.
        .process_group(0);
    let child = command.spawn().on("run", Path::new(&program))?;
    let mut group = Group(child);
    let stdout = group.0.stdout.take().map(collect);
    let stderr = group.0.stderr.take().map(collect);
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = group.0.try_wait().on("wait for", Path::new(&program))? {
            break status;
        }
        if progress.cancelled() {
            return Err(Error::Interrupted);
        }
        if began.elapsed() > limit {
            return Err(Error::Child {
                program: program.to_string_lossy().into_owned(),
                purpose,
                reason: format!("no end within {} minutes", limit.as_secs() / 60),
            });
        }
        tick();
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    let text = |thread: Option<thread::JoinHandle<String>>| {
        thread.and_then(|thread| thread.join().ok()).unwrap_or_default()
    };
    Ok(Output {
        ok: status.success(),
        stdout: text(stdout),
        stderr: text(stderr),
        signal: status.signal(),
    })
}

/// Runs `command`, fails unless it succeeds, and returns its stdout. `writes` is where it writes,
/// for the error message if the disk is full.
///
/// # Errors
/// As [`run`], and if the command fails.
pub(crate) fn must(
    command: Command,
    purpose: &'static str,
    writes: &Path,
    progress: &dyn Progress,
) -> Result<String> {
    let name = display_name(&command);
    let output = run(command, purpose, progress, || {})?;
    if output.ok { Ok(output.stdout) } else { Err(failure(&output, name, purpose, writes)) }
}

/// Returns the name of the program that a command made by [`command`] runs.
pub(crate) fn display_name(command: &Command) -> String {
    let mut names = vec![command.get_program()];
    names.extend(command.get_args());
    let name = match names.iter().position(|argument| *argument == "--") {
        Some(at) if names[0].to_string_lossy().ends_with("setpriv") => names.get(at + 1),
        _ => names.first(),
    };
    let name = name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.rsplit('/').next().unwrap_or_default().to_owned()
}

/// Returns the error of a child that failed: a full disk is named, otherwise the child's last
/// message.
pub(crate) fn failure(
    output: &Output,
    program: String,
    purpose: &'static str,
    writes: &Path,
) -> Error {
    let all = format!("{}\n{}", output.stdout, output.stderr);
    if all.contains("No space left on device") || all.contains("enough free space in") {
        return Error::DiskFull { path: writes.into() };
    }
    let mut reason = last_words(&output.stderr);
    if reason.is_empty() {
        reason = last_words(&output.stdout);
    }
    if let Some(signal) = output.signal {
        reason = format!("ended by signal {signal} {reason}");
    }
    Error::Child { program, purpose, reason: reason.trim().to_owned() }
}

/// Returns the most informative lines about a failure: those that apt and dpkg mark as errors, or
/// else the last one.
pub(crate) fn last_words(text: &str) -> String {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let marked: Vec<&str> = lines()
        .filter_map(|line| {
            line.strip_prefix("E: ")
                .or_else(|| line.strip_prefix("dpkg: error: "))
                .or_else(|| line.starts_with("tar: ").then_some(line))
        })
        .take(2)
        .collect();
    let mut words = if marked.is_empty() {
        lines().next_back().unwrap_or_default().to_owned()
    } else {
        marked.join("; ")
    };
    if words.len() > 400 {
        let end = (0..=400).rev().find(|&at| words.is_char_boundary(at)).unwrap_or(0);
        words.truncate(end);
        words.push_str("...");
    }
    words
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::progress::{Phase, Silent};

    #[test]
    fn output_and_failure_are_reported() {
        let mut sh = command(Path::new("/bin/sh"));
        sh.args(["-c", "echo out; echo 'E: broken' >&2; exit 3"]);
        assert_eq!(display_name(&sh), "sh");
        let error = must(sh, "testing", Path::new("/x"), &Silent).unwrap_err();
        assert_eq!(error.to_string(), "sh failed while testing: broken");

        let mut sh = command(Path::new("/bin/sh"));
        sh.args(["-c", "echo out; echo noise >&2"]);
        assert_eq!(must(sh, "testing", Path::new("/x"), &Silent).unwrap(), "out\n");
    }

    #[test]
    fn full_disk_is_named() {
        let mut sh = command(Path::new("/bin/sh"));
        sh.args(["-c", "echo 'tar: x: Cannot write: No space left on device' >&2; exit 1"]);
        let error = must(sh, "unpacking", Path::new("/cache/x"), &Silent).unwrap_err();
        assert!(matches!(&error, Error::DiskFull { path } if path == Path::new("/cache/x")));
        assert!(error.to_string().contains("TOFU_CACHE"), "{error}");
    }

    struct StopAfter(Cell<u32>);
    impl Progress for StopAfter {
        fn update(&self, _: Phase, _: u64, _: u64) {}
        fn cancelled(&self) -> bool {
            self.0.set(self.0.get().saturating_sub(1));
            self.0.get() == 0
        }
    }

    #[test]
    fn cancelling_ends_child_and_grandchildren() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let mut sh = command(Path::new("/bin/sh"));
        sh.args(["-c", "sleep 1000 & echo $! >$0; wait"]).arg(&pids);
        let began = Instant::now();
        assert!(matches!(
            run(sh, "testing", &StopAfter(Cell::new(20)), || {}),
            Err(Error::Interrupted)
        ));
        assert!(began.elapsed() < Duration::from_secs(20));
        let pid = std::fs::read_to_string(&pids).unwrap();
        let gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        let limit = Instant::now() + Duration::from_secs(10);
        while !gone() {
            assert!(Instant::now() < limit, "the grandchild lives");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn last_words_prefer_errors_and_are_short() {
        assert_eq!(last_words("W: x\nE: a\nE: b\nE: c\nfoo\n"), "a; b");
        assert_eq!(last_words("first\nlast\n\n"), "last");
        assert!(last_words(&"\u{e4}".repeat(5000)).len() < 410);
    }
}
