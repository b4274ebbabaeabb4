//! The `tofu` command: runs machines of virtual machines linked by an emulated
//! Tofu interconnect.
//!
//! Every error is one line on stderr and exit code 2.

#![forbid(unsafe_code)]

mod cli;
mod commands;
mod logging;

use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use cli::{Cli, Command};
use commands::{
    capture, completions, console, cp, doctor, down, events, exec, failing, fault, forward, gdb,
    guest, hosts, image, inspect, link, manual, map, node, ps, regs, sdk, serve, stats, top, topo,
    trace, up, view,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tofu_supervisor::janitor::InternalCommand;
use tofu_ui::exit;

fn main() -> ExitCode {
    // Those that this process was started with are for no other, except for a program that a tofu
    // has passed some to.
    if std::env::args_os().nth(1).is_none_or(|command| command != InternalCommand::NAME) {
        tofu_sandbox::keep_from_children();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    logging::start(cli.log.as_deref(), cli.log_format);
    let result = match &cli.command {
        Command::Up(args) => up::run(args),
        Command::Doctor(args) => doctor::run(args.json),
        Command::Gdb(args) => gdb::run(args),
        Command::Topo(args) => topo::run(args),
        Command::Map(args) => map::run(args),
        Command::Sim(args) => commands::sim::run(args),
        Command::Bench(args) => tofu_bench::run(args),
        Command::Guest(command) => guest::run(command),
        Command::Run(args) => tofu_jobs::run(args),
        Command::Sdk(args) => sdk::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Ps(args) => ps::run(args),
        Command::Hosts(args) => hosts::run(args),
        Command::Exec(args) => exec::run(args),
        Command::Console(args) => console::run(args),
        Command::Cp(args) => cp::run(args),
        Command::Forward(args) => forward::run(args),
        Command::Restart(args) => node::restart(args),
        Command::Pause(args) => node::hold(&args.node, true),
        Command::Resume(args) => node::hold(&args.node, false),
        Command::Down(args) => down::run(args),
        Command::Node(command) => failing::node(command),
        Command::Board(command) => failing::board(command),
        Command::Link(command) => link::run(command),
        Command::Fault(command) => fault::run(command),
        Command::Top(args) => top::run(args),
        Command::View(args) => view::run(args),
        Command::Stats(args) => stats::run(args),
        Command::Regs(args) => regs::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Events(args) => events::run(args),
        Command::Capture(args) => capture::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Image(command) => image::run(command),
        Command::Completions(args) => completions::run(args, &Cli::command()),
        Command::Man(args) => manual::run(args, Cli::command()),
        Command::Internal(command) => tofu_supervisor::janitor::run(command),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        // As in `tofu topo | head`. What was to be done may not have been done.
        Err(error) if is_broken_pipe(&error) && is_unread() => ExitCode::from(exit::UNREAD),
        Err(error) => {
            eprintln!("tofu: {}", in_one_line(&error));
            ExitCode::from(exit::BAD_INPUT)
        }
    }
}

/// An error with its causes. Errors of some libraries already include their cause. Names of files
/// and words of nodes may have anything in them.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !line.ends_with(&cause) {
            line += if line.is_empty() { "" } else { ": " };
            line += &cause;
        }
    }
    tofu_ui::printable(&line)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether the reader of standard output has gone. Sockets break, too.
fn is_unread() -> bool {
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::OUT)];
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().intersects(gone)
}

/// Prints help as it is, and errors about the command line in one line.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Nothing is left to do if even help cannot be printed.
        let _ = error.print();
        return ExitCode::from(if error.use_stderr() { exit::BAD_INPUT } else { 0 });
    }
    eprintln!("tofu: {}", usage_line(&error.render().to_string()));
    ExitCode::from(exit::BAD_INPUT)
}

/// The message of a rendered clap error, without the usage that follows it.
fn usage_line(rendered: &str) -> String {
    let message = rendered.split("\n\nUsage:").next().unwrap_or_default();
    let message = message.split("\n\nFor more information").next().unwrap_or_default();
    let words: Vec<_> = message.split_whitespace().collect();
    let line = words.join(" ");
    format!("{}; see --help", line.strip_prefix("error: ").unwrap_or(&line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_named_once() {
        let no_file = || io::Error::from(io::ErrorKind::NotFound);
        let path = "some/file".into();
        let error = tofu_image::Error::Io { what: "read", path, source: no_file() };
        let said = format!("cannot read some/file: {}", no_file());
        assert_eq!(in_one_line(&error.into()), said);
        let error = anyhow::Error::from(no_file()).context("cannot read some/file");
        assert_eq!(in_one_line(&error), said);
    }

    fn message(args: &[&str]) -> String {
        let error = Cli::try_parse_from(["tofu"].iter().chain(args)).unwrap_err();
        let line = usage_line(&error.render().to_string());
        assert!(!line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn command_line_errors_are_one_line() {
        let cases: [(&[&str], &str); 7] = [
            (
                &["up", "--shape", "3x3"],
                "invalid value '3x3' for '--shape <SHAPE>': shape \"3x3\" is neither",
            ),
            (
                &["up", "--memory", "lots"],
                "invalid value 'lots' for '--memory <SIZE>': a whole number",
            ),
            (
                &["up", "--timeout", "0s"],
                "'--timeout <TIME>': a whole number of seconds, or with ms",
            ),
            (&["up", "--doorbell", "loud"], "[possible values: trapped, polled, auto]"),
            (&["up", "--engines", "0"], "threads from 1 to 256"),
            (&["up", "--nodes", "-1"], "'-1'"),
            (&["fly"], "unrecognized subcommand 'fly'"),
        ];
        for (args, expected) in cases {
            let line = message(args);
            assert!(line.contains(expected), "{args:?}: {line}");
            assert!(line.ends_with("; see --help"), "{line}");
        }
    }
}
