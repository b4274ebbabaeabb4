//! `--detach`: a background process runs the machine, and the command returns when that is ready.
//!
//! The process is started with the same arguments, the same terminal, and the writing end of a pipe
//! as its standard input. It closes all three when the machine is ready, so the command gets the
//! end of the pipe.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use anyhow::Context;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal, setsid};
use tofu_input::STDIN;
use tofu_ui::{TomlFile, signals};

/// The command's side: returns its exit code.
pub(crate) fn run(config: Option<&Path>) -> anyhow::Result<u8> {
    let (mut ready, hold) = io::pipe().context("no pipes left")?;
    let mut command = Command::new("/proc/self/exe");
    command.args(std::env::args_os().skip(1)).arg("--detached").stdin(Stdio::from(hold));
    // That process has another standard input. It reads this before the command ends.
    let read = config.filter(|path| *path == Path::new(STDIN)).map(keep).transpose()?;
    if let Some(file) = &read {
        command.arg("--stdin").arg(format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd()));
    }
    let mut child = command.spawn().context("cannot start a process for the machine")?;
    // It would keep the pipe open.
    drop(command);
    let pid = Pid::from_child(&child);
    let ended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ended);
    let _signals = signals::forward(signals::CLEANING, move |signal| {
        if !seen.load(SeqCst)
            && let Some(signal) = Signal::from_named_raw(signal)
        {
            let _ = kill_process(pid, signal);
        }
    })?;
    let mut byte = [0];
    while matches!(ready.read(&mut byte), Err(error) if error.kind() == io::ErrorKind::Interrupted)
    {
    }
    // Either it is ready, or it ends and has reported why.
    let status = match child.try_wait()? {
        None if parent_pipe_only_closed(pid) => None,
        None => Some(child.wait()?),
        status => status,
    };
    ended.store(true, SeqCst);
    Ok(match status {
        None => 0,
        Some(status) => status.code().map_or(2, |code| code as u8),
    })
}

/// Returns a file with the machine file that was read from standard input.
fn keep(path: &Path) -> anyhow::Result<File> {
    let text = TomlFile::read(path, "machine file")?;
    let file = memfd_create("machine.toml", MemfdFlags::CLOEXEC).context("no memory left")?;
    let mut file = File::from(file);
    file.write_all(text.as_bytes()).context("no memory left")?;
    Ok(file)
}

/// Returns true if the process keeps running: a process that ends closes all its files a moment
/// before it can be waited for.
fn parent_pipe_only_closed(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let state = stat.ok().and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
    // Its standard input is /dev/null if it has detached from us.
    let stdin = std::fs::read_link(format!("/proc/{}/fd/0", pid.as_raw_nonzero()));
    !matches!(state, None | Some('Z' | 'X'))
        && stdin.is_ok_and(|path| path == Path::new("/dev/null"))
}

/// Standard output of a machine that continues without a reader of it.
struct Unread(io::Stdout);

/// Takes what was written as written if there is no reader.
fn unread<T>(result: io::Result<T>, written: T) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(written),
        result => result,
    }
}

impl Write for Unread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        unread(self.0.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        unread(self.0.flush(), ())
    }
}

/// The destination of a machine's output.
pub(crate) fn output(detached: bool) -> Box<dyn Write> {
    if detached { Box::new(Unread(io::stdout())) } else { Box::new(io::stdout()) }
}

/// The machine's side.
pub(crate) struct Parent {
    /// Opened before this process gives up the right to.
    null: File,
    left: bool,
}

impl Parent {
    /// The process ends with the waiting command, until [`Parent::leave`].
    pub(crate) fn new() -> anyhow::Result<Self> {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        setsid().context("cannot leave the session")?;
        let null = File::open("/dev/null").context("cannot open /dev/null")?;
        Ok(Self { null, left: false })
    }

    /// Detaches from the command and its terminal. From now on `log` gets the output.
    pub(crate) fn leave(&mut self, log: &Path) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.left, true) {
            return Ok(());
        }
        let cannot = || format!("cannot write {}", log.display());
        let mut options = OpenOptions::new();
        let log = options.create(true).append(true).mode(0o600).open(log).with_context(cannot)?;
        set_parent_process_death_signal(None)?;
        rustix::stdio::dup2_stdout(&log)?;
        rustix::stdio::dup2_stderr(&log)?;
        rustix::stdio::dup2_stdin(&self.null)?;
        Ok(())
    }
}
