//! A program that the host has started.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tofu_sync::lock;

use crate::credit::Credit;
use crate::cross_arch;
use crate::port::Reports;
use crate::terminal::{self, Terminal};
use crate::wire::{Exec, FromProgram, MAX_DATA, Output, Program, Status, WINDOW, WindowSize};

/// The time for which output is awaited once the program itself has ended, because its children may
/// hold its output open for ever.
const AFTER_THE_END: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The agent's own program.
const AGENT: &str = "/proc/self/exe";
/// The folders that are searched for programs if the agent was started without PATH.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A running program and its children.
pub(crate) struct Job {
    /// Its process group: a new one, from the start or as soon as it has its terminal.
    group: Pid,
    terminal: Option<Terminal>,
    input: Mutex<Option<Sender<Vec<u8>>>>,
    /// Bytes of input that wait for the program.
    waiting: Arc<Mutex<usize>>,
    credits: [Credit; 2],
    /// The program has been waited for, so its group may belong to others by now.
    gone: Mutex<bool>,
    /// An eventfd that can be read from then on.
    over: OwnedFd,
    killed: AtomicBool,
}

impl Job {
    /// Starts a program in a new process group.
    ///
    /// # Errors
    ///
    /// True if there is no such program, and the reason for which it cannot be run.
    pub(crate) fn spawn(exec: &Exec) -> Result<(Arc<Self>, Child), (bool, String)> {
        let mut args = exec.args.iter();
        let mut terminal = None;
        let (mut command, name) = match exec.program {
            Program::Named => {
                let name = args.next().ok_or((true, "no program named".to_owned()))?;
                (Command::new(name), name.as_str())
            }
            Program::Agent => (Command::new(AGENT), "the agent"),
            Program::OnTerminal(size) => {
                let opened = Terminal::open(size)
                    .map_err(|error| (false, format!("no terminal for it: {error}")))?;
                let mut command = Command::new(AGENT);
                command.args([terminal::WORD, &opened.path]);
                terminal = Some(opened);
                (command, "the agent")
            }
        };
        command.args(args);
        if terminal.is_none() {
            command.process_group(0);
        }
        if std::env::var_os("PATH").is_none() {
            command.env("PATH", PATH);
        }
        command.envs(exec.env.iter().map(|(name, value)| (name, value)));
        let pipe = |wanted| if wanted { Stdio::piped() } else { Stdio::null() };
        command.stdin(pipe(exec.stdin && terminal.is_none()));
        command.stdout(pipe(terminal.is_none())).stderr(pipe(terminal.is_none()));
        let over = eventfd(0, EventfdFlags::CLOEXEC)
            .map_err(|error| (false, format!("no descriptor for its end: {error}")))?;
        let spawned = cross_arch::check(&command).and_then(|()| command.spawn());
        let child = spawned.map_err(|error| {
            (error.kind() == io::ErrorKind::NotFound, format!("cannot run {name}: {error}"))
        })?;
        let group = Pid::from_child(&child);
        let job = Self {
            group,
            terminal,
            input: Mutex::new(None),
            waiting: Arc::default(),
            credits: [Credit::new(WINDOW), Credit::new(WINDOW)],
            gone: Mutex::new(false),
            over,
            killed: AtomicBool::new(false),
        };
        Ok((Arc::new(job), child))
    }

    /// Moves the program's streams and waits for it, on separate threads. `end` is called once the
    /// program has ended, and returns true if the host must be notified.
    pub(crate) fn attend(
        self: &Arc<Self>,
        mut child: Child,
        reports: Reports,
        end: impl FnOnce(&Arc<Self>) -> bool + Send + 'static,
    ) {
        let (job, reports) = (Arc::clone(self), Arc::new(reports));
        let (stdin, mut out) = match &self.terminal {
            Some(terminal) => (stream(terminal), stream(terminal)),
            None => (None, None),
        };
        let stdin: Option<Box<dyn Write + Send>> = match (stdin, child.stdin.take()) {
            (Some(terminal), _) => Some(Box::new(terminal)),
            (None, Some(pipe)) => Some(Box::new(pipe)),
            (None, None) => None,
        };
        if let Some(stdin) = stdin {
            let (sender, receiver) = mpsc::channel();
            *lock(&job.input) = Some(sender);
            let (waiting, reports) = (Arc::clone(&job.waiting), Arc::clone(&reports));
            thread::spawn(move || feed(stdin, &receiver, &waiting, &reports));
        }
        let out = match (out.take(), child.stdout.take()) {
            (Some(terminal), _) => Some(job.drain(terminal, Output::Out, &reports)),
            (None, pipe) => pipe.map(|pipe| job.drain(pipe, Output::Out, &reports)),
        };
        let err = child.stderr.take().map(|pipe| job.drain(pipe, Output::Err, &reports));
        thread::spawn(move || {
            let status = child.wait();
            // Input that is no longer read.
            job.input_end();
            *lock(&job.gone) = true;
            if let Err(error) = rustix::io::write(&job.over, &1u64.to_ne_bytes()) {
                log::warn!("the end of a program: {error}");
            }
            for pipe in [out, err].into_iter().flatten() {
                // It has nothing to return.
                let _ = pipe.join();
            }
            if end(&job) {
                reports.say(FromProgram::Ended(status_of(status)));
            }
        });
    }

    /// Sends the output of a pipe to the host.
    fn drain(
        self: &Arc<Self>,
        pipe: impl Read + AsFd + Send + 'static,
        output: Output,
        reports: &Arc<Reports>,
    ) -> thread::JoinHandle<()> {
        let (job, reports) = (Arc::clone(self), Arc::clone(reports));
        thread::spawn(move || {
            if let Err(error) = job.copy(pipe, output, &reports) {
                log::warn!("output of program {}: {error}", reports.id);
            }
        })
    }

    fn copy(
        &self,
        mut pipe: impl Read + AsFd,
        output: Output,
        reports: &Reports,
    ) -> io::Result<()> {
        const IN: PollFlags = PollFlags::IN;
        let mut buffer = vec![0; MAX_DATA];
        loop {
            loop {
                // Checked before reading: a program's last output is written before it is gone.
                let gone = *lock(&self.gone);
                let mut both =
                    [pipe.as_fd(), self.over.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, IN));
                match gone {
                    true => poll(&mut both[..1], Some(&AFTER_THE_END))?,
                    false => poll(&mut both, None)?,
                };
                if !both[0].revents().is_empty() {
                    break;
                }
                if gone {
                    return Ok(());
                }
            }
            let most = self.credits[output as usize].take(MAX_DATA);
            let n = match pipe.read(&mut buffer[..most]) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                // The other side of the terminal is closed.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::IO) => return Ok(()),
                Err(error) => return Err(error),
            };
            if self.killed.load(SeqCst) {
                // The output is not wanted, but the program must not wait for a reader either.
                continue;
            }
            self.credits[output as usize].grant((most - n) as u32);
            if n > 0 {
                reports.say(FromProgram::Output(output, buffer[..n].to_vec()));
            }
        }
    }

    pub(crate) fn input(&self, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let mut waiting = lock(&self.waiting);
        *waiting += bytes.len();
        if *waiting > WINDOW as usize {
            drop(waiting);
            log::warn!("the host sends more input than it may");
            return self.kill();
        }
        drop(waiting);
        if let Some(input) = lock(&self.input).as_ref() {
            // A program that has closed its input: as with a pipe, the rest is lost.
            let _ = input.send(bytes);
        }
    }

    pub(crate) fn input_end(&self) {
        *lock(&self.input) = None;
    }

    pub(crate) fn credit(&self, output: Output, bytes: u32) {
        self.credits[output as usize].grant(bytes);
    }

    pub(crate) fn signal(&self, number: i32) {
        let gone = lock(&self.gone);
        if let (false, Some(signal)) = (*gone, Signal::from_named_raw(number)) {
            // It may have ended and not been waited for; then the signal has no target.
            if kill_process_group(self.group, signal).is_err() && self.terminal.is_some() {
                // Before it has its terminal, it is still in our group.
                let _ = kill_process(self.group, signal);
            }
        }
    }

    /// Gives its terminal, if it has one, another size.
    pub(crate) fn resize(&self, size: WindowSize) {
        if let Some(Err(error)) = self.terminal.as_ref().map(|terminal| terminal.resize(size)) {
            log::warn!("a terminal's size: {error}");
        }
    }

    /// Kills the program and its children, and discards its output.
    pub(crate) fn kill(&self) {
        self.killed.store(true, SeqCst);
        self.input_end();
        self.signal(Signal::KILL.as_raw());
        for credit in &self.credits {
            credit.grant(u32::MAX);
        }
    }
}

fn stream(terminal: &Terminal) -> Option<File> {
    terminal.stream().inspect_err(|error| log::warn!("a terminal: {error}")).ok()
}

/// Writes the host's input to a program.
fn feed(
    mut stdin: Box<dyn Write + Send>,
    input: &Receiver<Vec<u8>>,
    waiting: &Mutex<usize>,
    reports: &Reports,
) {
    let mut closed = false;
    for bytes in input {
        // A program that does not read its input may still run for long, and the host must not
        // wait.
        closed |= !closed && stdin.write_all(&bytes).is_err();
        *lock(waiting) -= bytes.len();
        reports.say(FromProgram::Credit(bytes.len() as u32));
    }
}

fn status_of(status: io::Result<ExitStatus>) -> Status {
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => Status::Code(code),
            (None, signal) => Status::Signal(signal.unwrap_or_default()),
        },
        Err(error) => Status::NotRun { missing: false, why: format!("lost sight of it: {error}") },
    }
}
