//! `tofu exec`.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use tofu_abi::Coords;
use tofu_agent::wire::{
    Exec, FromProgram, MAX_DATA, Output, Program, Status, ToProgram, WINDOW, encode,
};

use super::{Connection, find_machine, find_node, info};
use crate::cli::ExecArgs;
use crate::linux::control::{NodeInfo, Reply, Request};
use crate::linux::flow::Credit;

/// Runs `tofu exec` and returns the exit code.
pub(crate) fn run(args: &ExecArgs) -> anyhow::Result<u8> {
    let exec = Exec {
        program: Program::Named,
        args: args.command.clone(),
        env: Vec::new(),
        stdin: !args.all,
    };
    if args.all {
        return run_on_all(args, &exec);
    }
    let Some(node) = &args.node else { bail!("name a node, or give --all") };
    let found = find_node(node)?;
    let program = Remote::start(&found.control, found.node.index, exec)?;
    program.forward_signals()?;
    let from = program.clone();
    thread::spawn(move || from.feed(io::stdin()));
    let status = program.follow(|output, bytes| match output {
        Output::Out => {
            let mut out = io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }
        Output::Err => io::stderr().lock().write_all(bytes),
    })?;
    if let Status::NotRun { why, .. } = &status {
        eprintln!("tofu: node {node}: {}", crate::ui::printable(why));
    }
    Ok(status.exit_code())
}

/// A program on a node, as seen from a command.
#[derive(Clone)]
pub(crate) struct Remote {
    out: Arc<Mutex<UnixStream>>,
    input: Arc<Mutex<Option<Connection>>>,
    credit: Arc<Credit>,
}

impl Remote {
    /// Starts it.
    pub(crate) fn start(control: &Path, node: u32, exec: Exec) -> anyhow::Result<Self> {
        let connection = Connection::open(control, &Request::Exec { node, exec })?;
        let out = Arc::new(Mutex::new(connection.out.try_clone()?));
        let input = Arc::new(Mutex::new(Some(connection)));
        Ok(Self { out, input, credit: Arc::new(Credit::new(WINDOW)) })
    }

    /// Tells it something.
    pub(crate) fn say(&self, what: ToProgram) -> anyhow::Result<()> {
        let frame = encode(&Request::To(what))?;
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(&frame).context("the machine has ended")
    }

    /// Gives it everything that can be read.
    pub(crate) fn feed(&self, mut input: impl Read) {
        let mut buffer = vec![0; MAX_DATA];
        loop {
            let most = self.credit.wait(MAX_DATA);
            match input.read(&mut buffer[..most]) {
                Ok(0) => break,
                Ok(n) => {
                    self.credit.spend(n);
                    if self.say(ToProgram::Input(buffer[..n].to_vec())).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // As at a closed terminal.
                Err(_) => break,
            }
        }
        // If it cannot be told, it has ended.
        let _ = self.say(ToProgram::InputEnd);
    }

    /// Lets [`Remote::feed`] end by finding out that the program has.
    pub(crate) fn give_up(&self) {
        self.credit.grant(u32::MAX);
    }

    /// Passes signals of this process on, until the process ends.
    fn forward_signals(&self) -> anyhow::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
        let remote = self.clone();
        thread::spawn(move || {
            for signal in signals.forever() {
                if remote.say(ToProgram::Signal(signal)).is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    /// Takes its output until it ends.
    ///
    /// # Errors
    ///
    /// If the node or machine is gone; or `output` fails, upon which the program is killed.
    pub(crate) fn follow(
        &self,
        mut output: impl FnMut(Output, &[u8]) -> io::Result<()>,
    ) -> anyhow::Result<Status> {
        let connection = self.input.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut connection) = connection else { bail!("the program is followed already") };
        loop {
            match connection.answer()? {
                Reply::Program(FromProgram::Output(stream, bytes)) => {
                    output(stream, &bytes)?;
                    // If it has ended, it has said so, which comes next.
                    let _ = self.say(ToProgram::Credit(stream, bytes.len() as u32));
                }
                Reply::Program(FromProgram::Credit(bytes)) => self.credit.grant(bytes),
                Reply::Program(FromProgram::Ended(status)) => return Ok(status),
                _ => bail!("not an answer"),
            }
        }
    }
}

/// Runs a command on all Linux nodes at the same time; the exit code is the first that is not 0.
fn run_on_all(args: &ExecArgs, exec: &Exec) -> anyhow::Result<u8> {
    let (name, control) = find_machine(args.machine.as_ref())?;
    let (_, nodes) = info(&control)?;
    let nodes: Vec<NodeInfo> = nodes.into_iter().filter(is_linux).collect();
    if nodes.is_empty() {
        bail!("the machine {name} has no Linux nodes");
    }
    let results: Vec<anyhow::Result<Status>> = thread::scope(|scope| {
        let running: Vec<_> = nodes
            .iter()
            .map(|node| scope.spawn(|| run_prefixed(&control, node, exec.clone())))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(join).collect()
    });
    let mut code = 0;
    for (node, result) in nodes.iter().zip(results) {
        let at = Coords::from_array(node.at);
        let own = match result {
            Ok(Status::NotRun { missing, why }) => {
                eprintln!("tofu: node {at}: {}", crate::ui::printable(&why));
                Status::NotRun { missing, why }.exit_code()
            }
            Ok(status) => status.exit_code(),
            Err(error) => {
                eprintln!("tofu: node {at}: {error:#}");
                2
            }
        };
        if code == 0 {
            code = own;
        }
    }
    Ok(code)
}

pub(crate) fn is_linux(node: &NodeInfo) -> bool {
    matches!(node.state.as_str(), "ready" | "booting" | "waiting" | "off")
}

/// A line is shown in pieces of this size, in bytes.
const MAX_LINE: usize = 64 << 10;

fn run_prefixed(control: &Path, node: &NodeInfo, exec: Exec) -> anyhow::Result<Status> {
    let prefix = Coords::from_array(node.at).to_string();
    let mut lines = [Vec::new(), Vec::new()];
    let show = |output: Output, line: &[u8]| {
        let line = [prefix.as_bytes(), b" ", line, b"\n"].concat();
        match output {
            Output::Out => io::stdout().lock().write_all(&line),
            Output::Err => io::stderr().lock().write_all(&line),
        }
    };
    let program = Remote::start(control, node.index, exec)?;
    program.forward_signals()?;
    let status = program.follow(|output, bytes| {
        let line: &mut Vec<u8> = &mut lines[output as usize];
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(piece);
            let whole = line.ends_with(b"\n");
            if whole || line.len() > MAX_LINE {
                show(output, &line[..line.len() - usize::from(whole)])?;
                line.clear();
            }
        }
        Ok(())
    })?;
    for (output, line) in [Output::Out, Output::Err].into_iter().zip(&lines) {
        if !line.is_empty() {
            show(output, line)?;
        }
    }
    Ok(status)
}
