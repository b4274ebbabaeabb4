//! Runs the command with its own run directory.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tofu_linux_tests::{Running, Said};

/// Longest time for anything here, on a busy host.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// Longest time for a command that runs a whole machine or job.
const LONGEST: Duration = Duration::from_secs(900);

/// The place of pictures; those of the manual are made with the variable.
pub(crate) fn artefact(name: &str) -> PathBuf {
    let folder = std::env::var_os("TOFU_PICTURES").map(PathBuf::from);
    folder.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR"))).join(name)
}

/// A place for machines. Those that still run at the end are stopped.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tofu"));
        command.args(args).env("XDG_RUNTIME_DIR", self.path()).env_remove("RUST_LOG");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Said {
        self.run_with(args, b"")
    }

    /// Runs the command with something on its standard input.
    pub(crate) fn run_with(&self, args: &[&str], input: &[u8]) -> Said {
        Running::start(self.command(args), input).end(LONGEST)
    }

    /// Runs a command that was made of one of [`Place::command`].
    pub(crate) fn run_command(&self, command: Command) -> Said {
        Running::start(command, b"").end(LONGEST)
    }

    /// Starts a command whose first line is JSON.
    pub(crate) fn start(&self, args: &[&str]) -> (Process, Value) {
        Process::start(self.command(args))
    }

    /// Returns true if small guests run on this host; if not, prints that.
    pub(crate) fn can_boot(&self, test: &str) -> bool {
        let runs = self.run(&["doctor"]).code == Some(0);
        if !runs {
            eprintln!("SKIP {test}: `tofu doctor` says that machines do not run here");
        }
        runs
    }

    /// Waits until a machine can be asked, which is a moment after its first line.
    pub(crate) fn wait_for_machine(&self) {
        let end = Instant::now() + PATIENCE;
        // It reports its generation once its devices exist.
        while self.ps()[0]["generation"].is_null() {
            assert!(Instant::now() < end, "no machine is there");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn ps(&self) -> Value {
        serde_json::from_str(&self.run(&["ps", "--json"]).ok()).unwrap()
    }

    /// Processes that have this place in their arguments.
    pub(crate) fn processes(&self) -> Vec<String> {
        let wanted = self.path().to_str().unwrap();
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        entries
            .filter_map(|entry| {
                let read = |name| {
                    let bytes = std::fs::read(entry.path().join(name)).ok()?;
                    Some(String::from_utf8_lossy(&bytes).replace('\0', " "))
                };
                let line = read("cmdline")?;
                // The QEMU of a clone says in its environment which node it runs.
                let environment = read("environ").unwrap_or_default();
                let node = environment.split("QEMU_TOFU_NODE=").nth(1).unwrap_or_default();
                (line.contains(wanted) || node.starts_with(wanted)).then_some(line)
            })
            .collect()
    }

    fn machines(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path().join("tofu")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
    }

    /// Nothing of a machine is left, a moment after its end.
    #[track_caller]
    pub(crate) fn is_clean(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        while !self.processes().is_empty() || !self.machines().is_empty() {
            let left = (self.processes(), self.machines());
            assert!(Instant::now() < end, "left behind: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.command(&["down", "--all"]).stderr(Stdio::null()).status();
    }
}

/// A command that runs, until it is dropped.
pub(crate) struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a command whose first line is JSON.
    pub(crate) fn start(mut command: Command) -> (Self, Value) {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let process = Self { child, out };
        let value = serde_json::from_str(&line);
        (process, value.unwrap_or_else(|error| panic!("{line:?}: {error}")))
    }

    pub(crate) fn id(&self) -> u64 {
        self.child.id().into()
    }

    /// Reads what it prints after its first line, until its end.
    pub(crate) fn rest(&mut self) -> String {
        std::io::read_to_string(&mut self.out).unwrap()
    }

    /// Waits for its end; `None` if a signal ended it.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Waits for its end, which must be a success. Returns what it prints after its first line.
    #[track_caller]
    pub(crate) fn ok(&mut self) -> String {
        let said = self.rest();
        assert_eq!(self.wait(), Some(0), "{said}");
        said
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Addresses of this host at which nothing listens.
pub(crate) fn free_addresses<const COUNT: usize>() -> [String; COUNT] {
    let free = [(); COUNT].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    free.map(|free| free.local_addr().unwrap().to_string())
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn wait_for(what: &str, condition: impl FnMut() -> bool) {
    tofu_linux_tests::wait_for(what, PATIENCE, condition);
}
