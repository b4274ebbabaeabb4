//! `tofu exec`.

use std::io::{self, IsTerminal};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, Parser};
use rustix::termios::tcgetwinsize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use tofu_agent::wire::{Exec, Program, Status, ToProgram, WindowSize};
use tofu_control::protocol::NodeInfo;
use tofu_control::{Found, MachineName, RemoteProgram, find_machine, find_node, info};
use tofu_jobs::{Silence, run_on_all};
use tofu_spec::units::Timeout;
use tofu_ui::signals::{self, SAME};
use tofu_ui::{exit, printable};

use crate::commands::terminal::Raw;

/// Run a command on a Linux node
///
/// Standard input, output and error are those of the command, and so is the exit code. Ctrl-C and
/// SIGTERM are passed on to it. It is killed if it has not ended after --grace, or immediately on a
/// second signal. If the node does not answer, for example because it is paused, a message says so
/// after some seconds, and the command is abandoned after --silence.
#[derive(Debug, Clone, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExecArgs {
    /// Node: an index, coordinates X,Y,Z,A,B,C or a name t-X-Y-Z-A-B-C, with MACHINE/ in front
    /// if several machines run
    #[arg(value_name = "NODE", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) node: Option<String>,

    /// Run the command on all Linux nodes, without input; each line of output begins with its node
    #[arg(long)]
    pub(crate) all: bool,

    /// Machine to use with --all
    #[arg(long, value_name = "NAME", requires = "all")]
    pub(crate) machine: Option<MachineName>,

    /// Give the command a terminal, which vi and top need; Ctrl-] three times in a row ends it
    #[arg(short = 't', long, conflicts_with = "all")]
    pub(crate) terminal: bool,

    /// End the command after this time, with exit code 124
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Timeout>,

    /// The time limit for a command to end after a signal or --timeout; with --all, also for the
    /// other commands when one has failed
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub(crate) grace: Timeout,

    #[command(flatten)]
    pub(crate) silence: SilenceArgs,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

/// The longest silence of a node.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct SilenceArgs {
    /// Give up if the node answers nothing for this long; a command that is merely silent may run
    /// on, also on a node that was paused later
    #[arg(long, value_name = "TIME", default_value = "30s")]
    silence: Timeout,
}

impl SilenceArgs {
    /// Starts a program on a node, which is given up after this time.
    pub(crate) fn start(&self, node: &Found, exec: Exec) -> anyhow::Result<RemoteProgram> {
        RemoteProgram::start_within(&node.control, node.node.index, exec, self.silence.0)
    }
}

const EXAMPLES: &str = "\
Examples:
  tofu exec 0 -- uname -a
  tofu exec 1,0,0,0,0,0 -- sh -c 'echo $HOSTNAME; cat' < file
  tofu exec -t 0 -- vi /etc/fstab
  tofu exec --all -- allpairs

Exit codes: that of the command (128 plus the signal if a signal ended it), with --all of the first
that failed; 124 after --timeout, 130 after Ctrl-C, 143 after SIGTERM, 126 after --silence, 2 for
mistakes.";

/// The exit code after `--timeout`, as with timeout(1).
const EXIT_TIMEOUT: u8 = 124;
/// Ctrl-], which leaves when typed this often in a row.
const ESCAPE: u8 = 0x1d;
const ESCAPES: usize = 3;

/// Runs `tofu exec` and returns the exit code.
pub(crate) fn run(args: &ExecArgs) -> anyhow::Result<u8> {
    let exec = Exec {
        program: Program::Named,
        args: args.command.clone(),
        env: Vec::new(),
        stdin: !args.all,
    };
    if args.all {
        let (name, control) = find_machine(args.machine.as_ref())?;
        let nodes = info(&control)?.nodes;
        let nodes: Vec<NodeInfo> = nodes.into_iter().filter(NodeInfo::is_linux).collect();
        if nodes.is_empty() {
            bail!("the machine {name} has no Linux nodes");
        }
        let timeout = args.timeout.map(|timeout| timeout.0);
        return run_on_all(&control, &nodes, &exec, timeout, args.grace.0, args.silence.silence.0);
    }
    let Some(node) = &args.node else { bail!("name a node, or give --all") };
    run_on(node, exec, args)
}

/// An event that ends a command from here.
#[derive(Default)]
struct Ends {
    /// Its time was over.
    timeout: AtomicBool,
    /// The terminal as it was.
    raw: Option<Raw>,
}

impl Ends {
    /// Ends this process, which ends the command, whether its node answers or not.
    fn now(&self, code: u8) -> ! {
        if let Some(raw) = &self.raw {
            raw.leave();
        }
        process::exit(code.into())
    }

    /// Ends this process if the command has not ended within the time limit after a signal.
    fn late(&self, signal: i32, grace: Duration) -> ! {
        if let Some(raw) = &self.raw {
            raw.leave();
        }
        let grace = grace.as_secs_f64();
        tofu_ui::tell!(
            "tofu: the command has not ended {grace} s after signal {signal}; killing it"
        );
        self.now(exit::of_signal(signal))
    }
}

/// Runs a command on a node.
fn run_on(node: &str, mut exec: Exec, args: &ExecArgs) -> anyhow::Result<u8> {
    let found = find_node(node)?;
    let mut ends = Ends::default();
    if args.terminal {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            bail!("-t: standard input and output are not a terminal; leave out -t");
        }
        exec.program = Program::OnTerminal(window_size()?);
        let kind = std::env::var("TERM").unwrap_or_else(|_| "vt100".to_owned());
        exec.env.push(("TERM".to_owned(), kind));
        ends.raw = Some(Raw::enter()?);
    }
    let ends = Arc::new(ends);
    let program = args.silence.start(&found, exec)?;
    forward_signals(&program, &ends, args)?;
    if let Some(Timeout(timeout)) = args.timeout {
        end_after(timeout, args.grace.0, &program, &ends)?;
    }
    let (from, feeding) = (program.clone(), Arc::clone(&ends));
    match args.terminal {
        true => thread::spawn(move || from.feed(Typed { ends: feeding, escapes: 0 })),
        false => thread::spawn(move || from.feed(io::stdin())),
    };
    let silence = Silence::watch(&found.control, found.node.index, format!("node {node}"));
    let status = program.follow(|output, bytes| {
        silence.end();
        tofu_jobs::write(output, bytes)
    });
    silence.end();
    if let Some(raw) = &ends.raw {
        raw.leave();
    }
    let status = status?;
    if ends.timeout.load(SeqCst) {
        return Ok(EXIT_TIMEOUT);
    }
    if let Status::NotRun { why, .. } = &status {
        tofu_ui::tell!("tofu: node {node}: {}", printable(why));
    }
    Ok(status.exit_code())
}

fn window_size() -> anyhow::Result<WindowSize> {
    let size = tcgetwinsize(io::stdout()).context("the terminal's size")?;
    Ok(WindowSize { rows: size.ws_row, columns: size.ws_col })
}

/// Terminal input, until the user wants to leave.
struct Typed {
    ends: Arc<Ends>,
    escapes: usize,
}

impl io::Read for Typed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = io::stdin().read(buffer)?;
        for byte in &buffer[..n] {
            self.escapes = if *byte == ESCAPE { self.escapes + 1 } else { 0 };
            if self.escapes == ESCAPES {
                self.ends.now(exit::INTERRUPTED);
            }
        }
        Ok(n)
    }
}

/// Forwards signals of this process to a program. The process ends some time after the first one,
/// and immediately on a second one.
fn forward_signals(
    program: &RemoteProgram,
    ends: &Arc<Ends>,
    args: &ExecArgs,
) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
    if args.terminal {
        signals.add_signal(SIGWINCH)?;
    }
    let (program, ends, grace) = (program.clone(), Arc::clone(ends), args.grace.0);
    thread::spawn(move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            if signal == SIGWINCH {
                if let Ok(size) = window_size() {
                    say(&program, ToProgram::Resize(size));
                }
                continue;
            }
            match first {
                Some(first) if first.elapsed() < SAME => continue,
                Some(_) => ends.now(exit::of_signal(signal)),
                None => first = Some(Instant::now()),
            }
            say(&program, ToProgram::Signal(signal));
            let late = Arc::clone(&ends);
            signals::after(grace, move || late.late(signal, grace));
        }
    });
    Ok(())
}

/// Sends a message to a program on its own thread: the machine may not read, and the next
/// signal must still be seen.
fn say(program: &RemoteProgram, what: ToProgram) {
    let program = program.clone();
    // If this fails, the program has ended.
    signals::after(Duration::ZERO, move || drop(program.say(what)));
}

/// Asks a program to end after a time, and ends it by force after `grace`.
fn end_after(
    timeout: Duration,
    grace: Duration,
    program: &RemoteProgram,
    ends: &Arc<Ends>,
) -> anyhow::Result<()> {
    let (program, ends) = (program.clone(), Arc::clone(ends));
    let end = move || {
        thread::sleep(timeout);
        ends.timeout.store(true, SeqCst);
        say(&program, ToProgram::Signal(SIGTERM));
        thread::sleep(grace);
        ends.now(EXIT_TIMEOUT);
    };
    thread::Builder::new().name("timeout".into()).spawn(end).context("no threads left")?;
    Ok(())
}
