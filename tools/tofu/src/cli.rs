//! The command line.

use std::ffi::OsString;

use clap::builder::Styles;
use clap::{Parser, Subcommand};

use crate::commands::bench::BenchArgs;
use crate::commands::run::RunArgs;
use crate::commands::sim::SimArgs;

use crate::commands::capture::CaptureArgs;
use crate::commands::completions::CompletionsArgs;
use crate::commands::console::ConsoleArgs;
use crate::commands::cp::CpArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::down::DownArgs;
use crate::commands::events::EventsArgs;
use crate::commands::exec::ExecArgs;
use crate::commands::failing::{BoardCommand, NodeCommand};
use crate::commands::fault::FaultCommand;
use crate::commands::forward::ForwardArgs;
use crate::commands::gdb::GdbArgs;
use crate::commands::guest::GuestCommand;
use crate::commands::hosts::HostsArgs;
use crate::commands::image::ImageCommand;
use crate::commands::inspect::InspectArgs;
use crate::commands::link::LinkCommand;
use crate::commands::manual::ManArgs;
use crate::commands::map::MapArgs;
use crate::commands::node::{PauseArgs, RestartArgs, ResumeArgs};
use crate::commands::pjm::ScriptCommand;
use crate::commands::prove::ProveArgs;
use crate::commands::ps::PsArgs;
use crate::commands::regs::RegsArgs;
use crate::commands::sdk::SdkArgs;
use crate::commands::serve::ServeArgs;
use crate::commands::stats::StatsArgs;
use crate::commands::time::TimeArgs;
use crate::commands::top::TopArgs;
use crate::commands::topo::TopoArgs;
use crate::commands::trace::TraceArgs;
use crate::commands::up::UpArgs;
use crate::commands::view::ViewArgs;
use crate::logging;

/// Run a Tofu machine of virtual machines
///
/// tofu builds a machine out of virtual machines: each is a node with an emulated
/// TofuD interface controller on its PCI Express bus, and the controllers are
/// linked into the 6D mesh/torus that the K computer and Fugaku use. Programs in
/// the guests move data between each other's memory by RDMA.
#[derive(Debug, Parser)]
#[command(name = "tofu", version, max_term_width = WIDTH, after_help = EXAMPLES)]
#[command(help_template = help())]
pub(crate) struct Cli {
    /// Log more to stderr: a level (error, warn, info, debug, trace), or TARGET=LEVEL; several are
    /// separated by commas. device=debug logs guests' violations of the devices' rules; for more
    /// targets see the manual, page Logging
    ///
    /// It is added to the levels in the environment variable RUST_LOG.
    #[arg(long, global = true, value_name = "LEVELS", value_parser = logging::levels)]
    pub(crate) log: Option<String>,

    /// Format of log lines: text, or json for one object per line
    #[arg(long, global = true, value_name = "FORMAT", value_enum, hide_possible_values = true)]
    #[arg(default_value = "text")]
    pub(crate) log_format: logging::Format,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The longest lines of help.
const WIDTH: usize = 100;

/// The commands by task, in the order in which help lists them.
const GROUPS: [(&str, &[&str]); 9] = [
    ("Machines", &["doctor", "up", "ps", "down", "image", "serve"]),
    ("Nodes", &["exec", "console", "cp", "forward", "hosts", "restart", "pause", "resume"]),
    ("Programs", &["run", "sdk", "map", "guest", "mpiexec"]),
    (
        "Jobs",
        &["pjsub", "pjstat", "pjdel", "pjwait", "pjhold", "pjrls", "pjalter", "pjshowrsc", "pjacl"],
    ),
    ("Drivers", &["prove", "regs", "inspect", "gdb"]),
    ("Failures", &["node", "board", "link", "fault"]),
    ("Watching", &["top", "view", "stats", "events", "capture", "trace"]),
    ("Topology, time and speed", &["topo", "sim", "time", "bench"]),
    ("This command", &["completions", "man", "help"]),
];

/// The template of the help of `tofu`: clap's own one, but with the commands in groups, for which
/// clap has no setting.
fn help() -> String {
    let all = clap::Command::new("tofu").max_term_width(WIDTH).help_template("{subcommands}");
    let listed = Command::augment_subcommands(all).render_help().to_string();
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut text = format!("{{about-with-newline}}\n{header}Usage:{header:#} {{usage}}\n");
    for (heading, names) in GROUPS {
        text += &format!("\n{header}{heading}:{header:#}\n");
        for name in names {
            // A line that continues another one has more space in front.
            let mut lines = listed.lines().skip_while(|line| {
                line.strip_prefix("  ").and_then(|line| line.split(' ').next()) != Some(name)
            });
            let Some(rest) = lines.next().and_then(|line| line.get(2 + name.len()..)) else {
                continue;
            };
            text += &format!("  {literal}{name}{literal:#}{rest}\n");
            for line in lines.take_while(|line| line.starts_with("   ")) {
                text += &format!("{line}\n");
            }
        }
    }
    text + &format!("\n{header}Options:{header:#}\n{{options}}{{after-help}}")
}

const EXAMPLES: &str = "\
Start here:
  tofu doctor                     what this host can do
  tofu up                         12 VMs, one Tofu unit, every pair exchanges data
  tofu up --linux                 2 Linux VMs; then tofu exec, console, cp, down
  tofu run -n 2 ./program         a program of yours, as a job on Linux nodes; see tofu sdk
  tofu topo                       the same machine on paper
  tofu up --help                  shapes, guests, machine files

Exit codes: 0 all guests succeeded; 1 a guest failed; 2 bad input or the host
cannot run this; 130 interrupted. `tofu exec` returns that of the program.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(Box<UpArgs>),
    Run(Box<RunArgs>),
    #[command(flatten)]
    Script(ScriptCommand),
    Sdk(SdkArgs),
    Serve(ServeArgs),
    Ps(PsArgs),
    Hosts(HostsArgs),
    Exec(ExecArgs),
    Console(ConsoleArgs),
    Cp(CpArgs),
    Forward(ForwardArgs),
    Restart(RestartArgs),
    Pause(PauseArgs),
    Resume(ResumeArgs),
    Down(DownArgs),
    #[command(subcommand)]
    Node(NodeCommand),
    #[command(subcommand)]
    Board(BoardCommand),
    #[command(subcommand)]
    Link(LinkCommand),
    #[command(subcommand)]
    Fault(FaultCommand),
    Top(TopArgs),
    View(ViewArgs),
    Stats(StatsArgs),
    Time(TimeArgs),
    Regs(RegsArgs),
    Inspect(InspectArgs),
    Gdb(GdbArgs),
    Events(EventsArgs),
    Capture(CaptureArgs),
    Trace(TraceArgs),
    #[command(subcommand)]
    Image(ImageCommand),
    Doctor(DoctorArgs),
    Topo(TopoArgs),
    Map(MapArgs),
    Sim(SimArgs),
    Bench(BenchArgs),
    Prove(ProveArgs),
    #[command(subcommand)]
    Guest(GuestCommand),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// Processes that tofu starts for itself
    #[command(hide = true)]
    Internal {
        /// The action of the process
        task: String,
        /// The program that it becomes, and its arguments
        #[arg(last = true)]
        program: Vec<OsString>,
    },
    /// The process that serves ranks by PMIx
    #[command(hide = true, name = tofu_pmix::COMMAND)]
    PmixServer,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The commands of the list of groups, and those that help shows.
    #[test]
    fn help_lists_each_command_in_a_group() {
        let mut command = Cli::command();
        command.build();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut shown: Vec<_> = shown.map(clap::Command::get_name).collect();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, shown, "GROUPS has each command that is not hidden once");
        let help = Cli::command().render_long_help().to_string();
        for name in shown {
            let lines = help.lines().filter(|line| line.starts_with(&format!("  {name} ")));
            assert_eq!(lines.count(), 1, "{name}: {help}");
        }
        for (heading, _) in GROUPS {
            assert!(help.contains(&format!("\n\n{heading}:\n  ")), "{heading}: {help}");
        }
        assert!(help.lines().all(|line| line.chars().count() <= WIDTH), "{help}");
    }

    #[test]
    fn every_command_has_help() {
        let mut command = Cli::command();
        command.build();
        for sub in command.get_subcommands() {
            assert!(sub.get_about().is_some(), "{}", sub.get_name());
            for argument in sub.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", sub.get_name(), argument.get_id());
            }
        }
    }
}
