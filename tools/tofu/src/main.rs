//! The `tofu` command: runs machines of virtual machines linked by an emulated
//! Tofu interconnect.
//!
//! Every error is one line on stderr and exit code 2.

#![forbid(unsafe_code)]

mod cli;
mod commands;
mod fault_plan;
mod logging;
mod options;

use std::env;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use cli::{Cli, Command};
use commands::{
    bench, capture, completions, console, cp, doctor, down, events, exec, failing, fault, forward,
    gdb, guest, hosts, image, inspect, link, manual, map, node, pjm, prove, ps, regs, run, sdk,
    serve, sim, stats, time, top, topo, trace, up, view,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::SIGXFSZ;
use tofu_supervisor::janitor;
use tofu_ui::{exit, tell};

fn main() -> ExitCode {
    // The descriptors that this process was started with are for no other.
    if !becomes_another() {
        tofu_sandbox::keep_from_children(&[]);
    }
    // A file above the limit of `ulimit -f` is an error of its writer, and ends nothing else. A
    // handler, as a signal that is ignored would be so in programs that are started, too.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    let cli = match Cli::try_parse_from(pjm::words(env::args_os().collect())) {
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
        Command::Sim(args) => sim::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Prove(args) => prove::run(args),
        Command::Guest(command) => guest::run(command),
        Command::Run(args) => run::run(args),
        Command::Script(command) => pjm::run(command),
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
        Command::Time(args) => time::run(args),
        Command::Regs(args) => regs::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Events(args) => events::run(args),
        Command::Capture(args) => capture::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Image(command) => image::run(command),
        Command::Completions(args) => completions::run(args, &Cli::command()),
        Command::Man(args) => manual::run(args, Cli::command()),
        Command::Internal { task, program } => janitor::run(task, program),
        Command::PmixServer => tofu_pmix::serve(),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        // As in `tofu topo | head`. The command's work may be incomplete.
        Err(error) if is_broken_pipe(&error) && is_unread() => ExitCode::from(exit::UNREAD),
        Err(error) => {
            tell!("tofu: {}", in_one_line(&error));
            ExitCode::from(exit::BAD_INPUT)
        }
    }
}

/// Returns true if this process is about to become a program that its caller has passed descriptors
/// to: by `tofu internal`, `tofu image qemu` or `tofu image chromium`.
fn becomes_another() -> bool {
    let mut words = env::args_os().skip(1);
    match words.next() {
        Some(command) if command == janitor::INTERNAL => true,
        Some(command) if command == "image" => {
            words.next().is_some_and(|program| program == "qemu" || program == "chromium")
        }
        _ => false,
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

/// Returns true if the reader of standard output has gone. Sockets break, too.
fn is_unread() -> bool {
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::OUT)];
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().intersects(gone)
}

/// Prints help as it is, and errors about the command line in one line.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return match error.print() {
            Ok(()) => ExitCode::from(if error.use_stderr() { exit::BAD_INPUT } else { 0 }),
            Err(_) if is_unread() => ExitCode::from(exit::UNREAD),
            Err(error) => {
                tell!("tofu: {error}");
                ExitCode::from(exit::BAD_INPUT)
            }
        };
    }
    let args = env::args_os().filter_map(|arg| arg.into_string().ok()).collect::<Vec<_>>();
    tell!("tofu: {}", usage_line(error, &args));
    ExitCode::from(exit::BAD_INPUT)
}

/// The message of a clap error, without the usage that follows it, and with what was probably
/// meant.
fn usage_line(error: &clap::Error, args: &[String]) -> String {
    let rendered = error.render().to_string();
    let message = rendered.split("\n\nUsage:").next().unwrap_or_default();
    let message = message.split("\n\nFor more information").next().unwrap_or_default();
    let words: Vec<_> = message.split_whitespace().collect();
    let line = words.join(" ");
    let hint = hint(error, args).map_or(String::new(), |hint| format!("; {hint}"));
    format!("{}{hint}; see --help", line.strip_prefix("error: ").unwrap_or(&line))
}

/// A suggestion from the options of the command.
fn hint(error: &clap::Error, args: &[String]) -> Option<String> {
    let all = Cli::command();
    let command = args.iter().skip(1).find_map(|arg| all.find_subcommand(arg))?;
    let name = command.get_name();
    if error.kind() == ErrorKind::InvalidSubcommand {
        let known: Vec<_> = command.get_subcommands().map(|known| known.get_name()).collect();
        return (!known.is_empty()).then(|| format!("after {name} comes {}", known.join(" or ")));
    }
    let behind = command.get_arguments().find(|arg| arg.is_last_set());
    let misplaced = matches!(
        error.kind(),
        ErrorKind::UnknownArgument
            | ErrorKind::ArgumentConflict
            | ErrorKind::MissingRequiredArgument
    );
    if let Some(behind) = behind.filter(|_| misplaced && !args.iter().any(|arg| arg == "--")) {
        let what = behind.get_value_names().and_then(<[_]>::first)?;
        return Some(format!("{what} comes after --, as in: tofu {name} ... -- {what}"));
    }
    let word = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::UnknownArgument => word,
        _ => return None,
    };
    let meant = [
        ("machine", "a running machine is --machine="),
        ("shape", "a shape is --shape "),
        ("config", "a machine file is -c "),
    ];
    let meant: Vec<_> = meant
        .into_iter()
        .filter(|(id, _)| command.get_arguments().any(|arg| arg.get_id() == *id))
        .map(|(_, means)| format!("{means}{word}"))
        .collect();
    (!word.starts_with('-') && !meant.is_empty()).then(|| meant.join(", "))
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
        let args: Vec<_> = ["tofu"].iter().chain(args).map(ToString::to_string).collect();
        let error = Cli::try_parse_from(&args).unwrap_err();
        let line = usage_line(&error, &args);
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

    #[test]
    fn mistakes_have_a_hint() {
        let after = "CMD comes after --, as in: tofu exec ... -- CMD";
        let cases: [(&[&str], &str); 10] = [
            (&["exec", "0", "uname"], after),
            (&["exec", "0", "uname", "-a"], after),
            (&["exec", "--all", "uname"], after),
            (&["exec", "0"], after),
            (&["gdb", "0", "x"], "ARG comes after --, as in: tofu gdb ... -- ARG"),
            (&["topo", "demo"], "a running machine is --machine=demo, a shape is --shape demo"),
            (&["map", "demo"], "a running machine is --machine=demo, a shape is --shape demo"),
            (&["up", "rack"], "a shape is --shape rack, a machine file is -c rack"),
            (&["serve", "m.toml"], "a machine file is -c m.toml"),
            (&["node", "0"], "after node comes down or up"),
        ];
        for (args, expected) in cases {
            let line = message(args);
            assert!(line.contains(expected), "{args:?}: {line}");
        }
        // Nothing is guessed of options, or where the separator is there.
        for args in [&["topo", "--shpae", "k"][..], &["exec", "--al", "--", "x"]] {
            let line = message(args);
            assert!(!line.contains("comes after") && !line.contains(" is -"), "{line}");
        }
    }
}
