//! Runs the built `tofu` command for tests of machines with Linux nodes.
//!
//! The command is that of the environment variable `TOFU`, or else the release build in cargo's
//! target folder. A test runs in a [`Place`]: its own run directory, and the processor for itself,
//! because guests are emulated on most hosts. [`Place::new`] skips a test that this host cannot
//! run, with a line `SKIP test: reason`.
#![forbid(unsafe_code)]

pub mod driver;
pub mod namespace;
pub mod net;
pub mod prove;
pub mod sdk;

use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tofu_abi::Generation;

pub use tofu_c_tests::skip;

/// Longest time for a command, on a busy host.
pub const PATIENCE: Duration = Duration::from_secs(150);
/// Longest time for something that takes a moment, on a busy host.
pub const MOMENT: Duration = Duration::from_secs(30);

/// The beginning of lines about the making of images.
const PROGRESS: &str = "tofu: image: ";

/// One machine at a time.
static ONE: Mutex<()> = Mutex::new(());

/// A place for machines. Those that still run at the end are stopped.
pub struct Place {
    folder: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// An image that a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// The image that `tofu up --linux` takes by default.
    Default,
    /// Debian's newest kernel, which the kernel's own tests need, and lspci.
    Newest,
    /// With the modules that make a node a host of virtual machines.
    Host,
    /// With Debian's programs for networks, file servers and MPI.
    Network,
    /// With Open MPI, and Python that loads it.
    OpenMpi,
}

impl Image {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Default, Self::Newest, Self::Host, Self::Network, Self::OpenMpi];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Newest => "tofu-tests",
            Self::Host => "tofu-tests-host",
            Self::Network => "tofu-tests-network",
            Self::OpenMpi => "openmpi",
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Default => &["image", "build"],
            Self::Newest => {
                &["image", "build", "--name", "tofu-tests", "--kernel", "cloud-backports"]
            }
            Self::Host => &["image", "build", "--name", "tofu-tests-host", "--modules", "kvm-amd"],
            Self::Network => &["image", "build", "--name", "tofu-tests-network"],
            Self::OpenMpi => &["image", "build", "--name", "openmpi"],
        }
    }

    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Default | Self::Host => &[],
            Self::Newest => &["--with", "pciutils"],
            Self::OpenMpi => &["--with", "openmpi-bin,python3-mpi4py"],
            Self::Network => &[
                "--modules",
                "nfsd,nfsv4",
                "--with",
                "ethtool,iperf3,iproute2,iputils-ping,mpich,nfs-kernel-server,nftables,\
                 openssh-client,openssh-server,python3-minimal,socat,tcpdump",
            ],
        }
    }
}

/// The folder with the kernel's own tests of VFIO, which are built if the cache has none; or
/// `None`, after the reason was printed for which they cannot be built.
pub fn vfio_selftests() -> Option<PathBuf> {
    let script = "../../ci/selftests/build-vfio-selftests";
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(script));
    // This program is target/debug/deps/NAME. Cargo might wait for another cargo, and would build
    // the crate with other features.
    let own = std::env::current_exe().unwrap();
    command.env("TOFU_IMAGE_EXAMPLE", own.ancestors().nth(2).unwrap().join("examples/image"));
    let build = command.output().unwrap();
    let error = String::from_utf8_lossy(&build.stderr);
    if !build.status.success() {
        let lacks = error.contains("no C compiler") || error.contains("mirror");
        assert!(lacks, "the selftests do not build: {error}");
        skip(error.lines().last().unwrap_or_default());
        return None;
    }
    Some(PathBuf::from(String::from_utf8(build.stdout).unwrap().trim()))
}

/// The output of a command.
pub struct Said {
    /// Its exit code, or `None` if a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
    what: String,
}

impl fmt::Debug for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, out, err, what } = self;
        write!(f, "{what}: exit code {code:?}\n--- stdout\n{out}\n--- stderr\n{err}")
    }
}

impl Said {
    /// Its output, if it has succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// Its output as JSON, if it has succeeded.
    #[track_caller]
    pub fn json(self) -> Value {
        let out = self.ok();
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{out:?}: {error}"))
    }

    /// The one line of a user's error, with exit code 2.
    #[track_caller]
    pub fn error(self) -> String {
        assert_eq!(self.code, Some(2), "{self:?}");
        // Progress of preparations comes before it.
        let mut lines = self.err.lines().filter(|line| !line.starts_with(PROGRESS));
        let line = lines.next().unwrap_or_default().to_owned();
        assert!(line.starts_with("tofu: ") && lines.next().is_none(), "{self:?}");
        line
    }
}

/// The command that is tested.
///
/// # Panics
///
/// If it has not been built.
pub fn tofu() -> PathBuf {
    let named = std::env::var_os("TOFU").map(PathBuf::from);
    let path = named.unwrap_or_else(|| {
        // This program is target/debug/deps/NAME.
        let own = std::env::current_exe().unwrap();
        own.ancestors().nth(3).unwrap().join("release/tofu")
    });
    assert!(path.is_file(), "{}: not there; cargo build --release makes it", path.display());
    path
}

impl Place {
    /// A new place with an image; or `None`, after the reason was printed for which
    /// this host cannot run Linux nodes or have the image.
    pub fn new(image: Image) -> Option<Self> {
        let place = Self::empty();
        let said = place.run_for(
            &[image.arguments(), image.packages()].concat(),
            Duration::from_secs(600),
            b"",
        );
        let why = match said.code {
            Some(0) => {
                let doctor = place.doctor();
                if doctor["linux"]["can_run"] == true {
                    return Some(place);
                }
                format!("no Linux nodes on this host: {}", doctor["linux"])
            }
            // The host lacks packages; every other error is a failure.
            _ if said.lacks_packages() => said.err.lines().last().unwrap_or_default().to_owned(),
            _ => panic!("{said:?}"),
        };
        skip(&why);
        None
    }

    /// A new place, regardless of what the host supports.
    pub fn empty() -> Self {
        // A failed test leaves nothing that affects the next one.
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        Self { folder: tempfile::tempdir().unwrap(), _alone: alone }
    }

    /// Its folder, which contains the run directory.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A file in it, as text.
    pub fn file(&self, name: &str) -> String {
        self.path().join(name).to_str().unwrap().to_owned()
    }

    /// The report of `tofu doctor`.
    pub fn doctor(&self) -> Value {
        let said = self.run(&["doctor", "--json"]);
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
    }

    /// A command in this place, not yet started.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(tofu());
        command.args(args).env("XDG_RUNTIME_DIR", self.path()).env_remove("RUST_LOG");
        command
    }

    /// The same in the checkout, where programs and libraries for other processors are built.
    pub fn command_in_checkout(&self, args: &[&str]) -> Command {
        let mut command = self.command(args);
        command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        command
    }

    /// Runs a command to its end.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> Said {
        self.run_for(args, PATIENCE, b"")
    }

    /// Runs a command with something on its standard input.
    #[track_caller]
    pub fn run_with(&self, args: &[&str], input: &[u8]) -> Said {
        self.run_for(args, PATIENCE, input)
    }

    /// Runs a command that takes long.
    #[track_caller]
    pub fn run_for(&self, args: &[&str], time: Duration, input: &[u8]) -> Said {
        Running::start(self.command(args), input).end(time)
    }

    /// Starts a command that runs beside the test.
    pub fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command(args), b"")
    }

    /// Boots a detached machine.
    #[track_caller]
    pub fn up(&self, args: &[&str]) {
        let up = ["up", "--linux", "--detach", "--boot-timeout", "140s"];
        self.run(&[&up, args].concat()).ok();
    }

    /// Runs a command on a node.
    #[track_caller]
    pub fn exec(&self, node: &str, args: &[&str]) -> Said {
        self.run(&[&["exec", node, "--"], args].concat())
    }

    /// Runs a command on all nodes; its lines, in order.
    #[track_caller]
    pub fn exec_all(&self, args: &[&str]) -> Vec<String> {
        let out = self.run(&[&["exec", "--all", "--"], args].concat()).ok();
        sorted(&out)
    }

    /// Runs `pingpong` between the two nodes of a machine; returns its output and the row of its
    /// table for 8 bytes.
    #[track_caller]
    pub fn pingpong(&self, time: Duration) -> (String, Value) {
        let talk = ["exec", "--all", "--", "pingpong", "shape=2x1x1x1x1x1", "nodes=2", "wait=poll"];
        let talk = [&talk[..], &["count=100", "max=8", "json=1"]].concat();
        let said = self.run_for(&talk, time, b"").ok();
        let line = said.lines().find_map(|line| Some(&line[line.find("{\"")?..])).unwrap();
        let table: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{said}"));
        eprintln!("{line}");
        let row = table["rows"][0].clone();
        (said, row)
    }

    /// Runs a line of shell on a node; returns its output.
    #[track_caller]
    pub fn shell(&self, node: impl fmt::Display, line: &str) -> String {
        self.exec(&node.to_string(), &["sh", "-c", line]).ok()
    }

    /// Runs `allpairs` on all of the machine's `nodes`, which verify the data that they exchange
    /// with each other and sum up their numbers.
    #[track_caller]
    pub fn all_pairs(&self, nodes: usize, rounds: u32) {
        let lines = self.exec_all(&["allpairs", &format!("rounds={rounds}")]);
        let (sums, pairs): (Vec<_>, Vec<_>) =
            lines.iter().partition(|line| line.contains(" allreduce over "));
        let what = match self.generation().description().atomics {
            true => "put, get and atomic",
            false => "put and get",
        };
        let expected = format!(" {} peers: {what} verified {rounds} times, ", nodes - 1);
        assert_eq!(pairs.len(), nodes, "{lines:?}");
        assert!(pairs.iter().all(|line| line.contains(&expected)), "{lines:?}");
        let sum = format!(": sum {}, ", nodes * (nodes + 1) / 2);
        assert!(sums.len() == 1 && sums[0].contains(&sum), "{lines:?}");
    }

    /// The machines, as `tofu ps` has them.
    #[track_caller]
    pub fn ps(&self) -> Value {
        self.run(&["ps", "--json"]).json()
    }

    /// The generation of the only machine.
    #[track_caller]
    pub fn generation(&self) -> Generation {
        let ps = self.ps();
        let name = ps[0]["generation"].as_str().unwrap();
        Generation::from_name(name).unwrap()
    }

    /// A node of the only machine, as `tofu ps` has it.
    #[track_caller]
    pub fn node(&self, index: usize) -> Value {
        self.ps()[0]["nodes"][index].clone()
    }

    /// Processes of this place's machines.
    pub fn processes(&self) -> Vec<String> {
        let wanted = self.path().to_str().unwrap();
        let own = std::process::id().to_string();
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        entries
            .filter(|entry| entry.file_name() != OsStr::new(&own))
            .filter_map(|entry| {
                let read = |name| std::fs::read(entry.path().join(name));
                let has = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(wanted);
                let line = read("cmdline").ok()?;
                // Every process that a machine starts inherits its environment.
                let ours = has(&line) || has(&read("environ").ok()?);
                let shown = String::from_utf8_lossy(&line).replace('\0', " ");
                ours.then(|| format!("{} {shown}", entry.file_name().display()))
            })
            .collect()
    }

    /// Sockets and files of this place's machines.
    pub fn files(&self) -> Vec<String> {
        let wanted = self.path().to_str().unwrap();
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let sockets = sockets.lines().filter(|line| line.contains(wanted)).map(str::to_owned);
        let machines = std::fs::read_dir(self.path().join("tofu")).into_iter().flatten();
        let machines = machines.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
        sockets.chain(machines.map(|path| path.display().to_string())).collect()
    }

    /// Nothing of a machine is left, a moment after its end.
    #[track_caller]
    pub fn is_clean(&self) {
        let end = Instant::now() + MOMENT;
        while !self.processes().is_empty() || !self.files().is_empty() {
            let left = (self.processes(), self.files());
            assert!(Instant::now() < end, "left behind: {left:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if thread::panicking() {
            // For the reader of a failed test's log.
            for machine in std::fs::read_dir(self.path().join("tofu")).into_iter().flatten() {
                for file in std::fs::read_dir(machine.unwrap().path()).into_iter().flatten() {
                    let path = file.unwrap().path();
                    if path.extension() == Some(OsStr::new("log")) || path.ends_with("log") {
                        let bytes = std::fs::read(&path).unwrap_or_default();
                        let end = &bytes[bytes.len().saturating_sub(2000)..];
                        eprintln!("--- {}\n{}", path.display(), String::from_utf8_lossy(end));
                    }
                }
            }
        }
        let _ = self.command(&["down", "--all"]).stderr(Stdio::null()).status();
    }
}

/// A process that runs; dropping it kills it.
pub struct Running {
    child: Child,
    what: String,
    since: Instant,
    lines: Receiver<String>,
    seen: String,
    err: Option<JoinHandle<String>>,
    out: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts a command, with something on its standard input.
    pub fn start(mut command: Command, input: &[u8]) -> Self {
        let words = [command.get_program()].into_iter().chain(command.get_args());
        let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
        let what = words.join(" ");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // It may not want it all.
        thread::spawn(move || stdin.write_all(&input));
        let (sender, lines) = channel();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let out = thread::spawn(move || {
            let mut line = Vec::new();
            while let Ok(1..) = stdout.read_until(b'\n', &mut line) {
                let text = String::from_utf8_lossy(&line).into_owned();
                if sender.send(text).is_err() {
                    break;
                }
                line.clear();
            }
        });
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let err = thread::spawn(move || {
            let mut bytes = Vec::new();
            let mut begin = 0;
            while let Ok(1..) = stderr.read_until(b'\n', &mut bytes) {
                // Shows why the test takes long and what it waits for, because the test's own
                // output is printed only at its end.
                if bytes[begin..].starts_with(PROGRESS.as_bytes()) {
                    let _ = std::io::stderr().write_all(&bytes[begin..]);
                }
                begin = bytes.len();
            }
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let since = Instant::now();
        Self { child, what, since, lines, seen: String::new(), err: Some(err), out: Some(out) }
    }

    /// Its process id.
    pub fn id(&self) -> u64 {
        self.child.id().into()
    }

    /// Returns true if it still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Its next line, with its line end.
    #[track_caller]
    pub fn line(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                self.seen.push_str(&line);
                line
            }
            Err(error) => panic!("{}: no further line ({error}) after: {}", self.what, self.seen),
        }
    }

    /// Its next line, if one has come.
    pub fn line_so_far(&mut self) -> Option<String> {
        let line = self.lines.try_recv().ok()?;
        self.seen.push_str(&line);
        Some(line)
    }

    /// Passes over the lines that have come so far.
    pub fn skip_lines(&mut self) {
        self.seen.extend(self.lines.try_iter());
    }

    /// Waits for its end, up to `time`.
    #[track_caller]
    pub fn end(mut self, time: Duration) -> Said {
        let end = Instant::now() + time;
        let status: Option<ExitStatus> = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if Instant::now() > end => break None,
                None => {}
            }
            // Its lines are read while it runs, because it must not block on a full pipe.
            match self.lines.recv_timeout(Duration::from_millis(5)) {
                Ok(line) => self.seen.push_str(&line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(5)),
            }
        };
        let Some(status) = status else {
            let _ = self.child.kill();
            panic!("{}: still runs after {time:?}; so far: {}", self.what, self.seen)
        };
        // Its end of the pipes is closed, unless a process that it has started keeps them open.
        self.out.take().unwrap().join().unwrap();
        self.seen.extend(self.lines.try_iter());
        let err = self.err.take().unwrap().join().unwrap();
        let (out, what) = (std::mem::take(&mut self.seen), std::mem::take(&mut self.what));
        // Shows in the log where a test's time goes.
        let shown: String = what.chars().take(160).collect();
        eprintln!("{:7.2} s  {shown}", self.since.elapsed().as_secs_f64());
        Said { code: status.code(), out, err, what }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of a text, in order.
pub fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// Kills a process by force.
#[track_caller]
pub fn kill(pid: u64) {
    signal(pid, Signal::KILL);
}

/// Kills a process that may have ended.
pub fn kill_if_there(pid: u64) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = kill_process(pid, Signal::KILL);
}

/// Sends SIGINT, as Ctrl-C does.
#[track_caller]
pub fn interrupt(pid: u64) {
    signal(pid, Signal::INT);
}

/// Sends a signal to a process.
#[track_caller]
pub fn signal(pid: u64, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// The process that tidies up after a machine, which may still be about to become it.
#[track_caller]
pub fn janitor(machine: u64) -> u64 {
    let mut found = None;
    wait_for("a machine has a janitor", MOMENT, || {
        found = janitor_now(machine);
        found.is_some()
    });
    found.unwrap()
}

fn janitor_now(machine: u64) -> Option<u64> {
    let children = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u64>().ok()?;
        let id = entry.file_name().to_str()?.parse::<u64>().ok()?;
        (parent == machine && line.contains("janitor")).then_some(id)
    });
    children.last()
}

/// Waits until a condition holds.
#[track_caller]
pub fn wait_for(what: &str, time: Duration, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + time;
    while !condition() {
        assert!(Instant::now() < end, "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A shell in a guest, on the console of its monitor.
pub struct Typed {
    child: Child,
    input: std::process::ChildStdin,
    output: Receiver<u8>,
    seen: Vec<u8>,
}

impl Typed {
    /// Starts a monitor with the console on its standard streams, and waits for the shell.
    #[track_caller]
    pub fn start(mut command: Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = child.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, output) = channel();
        thread::spawn(move || {
            for byte in BufReader::new(stdout).bytes().map_while(Result::ok) {
                if sender.send(byte).is_err() {
                    break;
                }
            }
        });
        let mut guest = Self { child, input, output, seen: Vec::new() };
        guest.until("# ");
        guest
    }

    /// The monitor's process id.
    pub fn id(&self) -> u64 {
        self.child.id().into()
    }

    /// Types a line.
    pub fn say(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Types a command, and returns what it prints.
    #[track_caller]
    pub fn run(&mut self, command: &str) -> String {
        // The terminal echoes what is typed, which must differ from the output.
        self.say(&format!("echo BEGIN$((1)); {command}; echo END$((1))"));
        self.until("BEGIN1\r\n");
        let output = self.until("END1\r\n");
        output.replace("\r\n", "\n").trim_end_matches("END1\n").to_owned()
    }

    /// Reads the output up to and including `text`.
    #[track_caller]
    fn until(&mut self, text: &str) -> String {
        self.seen.clear();
        let end = Instant::now() + PATIENCE;
        while !self.seen.ends_with(text.as_bytes()) {
            match self.output.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(byte) => self.seen.push(byte),
                Err(error) => {
                    let seen = String::from_utf8_lossy(&self.seen);
                    panic!("no {text:?} ({error}) in: {seen}")
                }
            }
        }
        String::from_utf8_lossy(&self.seen).into_owned()
    }
}

impl Drop for Typed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
