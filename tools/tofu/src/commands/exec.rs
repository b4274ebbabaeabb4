//! `tofu exec`.

use std::io::{self, Write};
use std::path::Path;
use std::thread;

use anyhow::bail;
use clap::Parser;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use tofu_abi::Coords;
use tofu_agent::wire::{Exec, Output, Program, Status, ToProgram};
use tofu_control::protocol::NodeInfo;
use tofu_control::{MachineName, RemoteProgram, find_machine, find_node, info};
use tofu_ui::printable;

/// Run a command on a Linux node
///
/// Standard input, output and error are those of the command, and so is the exit code. Ctrl-C
/// and SIGTERM reach it.
#[derive(Debug, Clone, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExecArgs {
    /// Node: an index, coordinates X,Y,Z,A,B,C or a name t-X-Y-Z-A-B-C, with MACHINE/ in front
    /// if several machines run
    #[arg(value_name = "NODE", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) node: Option<String>,

    /// Run it on all Linux nodes; lines have the node in front, there is no input
    #[arg(long)]
    pub(crate) all: bool,

    /// Machine, with --all
    #[arg(long, value_name = "NAME", requires = "all")]
    pub(crate) machine: Option<MachineName>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  tofu exec 0 -- uname -a
  tofu exec 1,0,0,0,0,0 -- sh -c 'echo $HOSTNAME; cat' < file
  tofu exec --all -- allpairs";

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
    let program = RemoteProgram::start(&found.control, found.node.index, exec)?;
    forward_signals(&program)?;
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
        eprintln!("tofu: node {node}: {}", printable(why));
    }
    Ok(status.exit_code())
}

/// Passes signals of this process on to a program, until the process ends.
fn forward_signals(program: &RemoteProgram) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
    let program = program.clone();
    thread::spawn(move || {
        for signal in signals.forever() {
            if program.say(ToProgram::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Runs a command on all Linux nodes at the same time; the exit code is the first that is not 0.
fn run_on_all(args: &ExecArgs, exec: &Exec) -> anyhow::Result<u8> {
    let (name, control) = find_machine(args.machine.as_ref())?;
    let (_, nodes) = info(&control)?;
    let nodes: Vec<NodeInfo> = nodes.into_iter().filter(NodeInfo::is_linux).collect();
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
                eprintln!("tofu: node {at}: {}", printable(&why));
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

/// A line is shown in chunks of this size, in bytes.
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
    let program = RemoteProgram::start(control, node.index, exec)?;
    forward_signals(&program)?;
    let status = program.follow(|output, bytes| {
        let line: &mut Vec<u8> = &mut lines[output as usize];
        for chunk in bytes.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(chunk);
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
