//! `tofu completions`: the shell's completion of the command line.

use std::io::{self, Write};

use clap::{Args, Command};
use clap_complete::Shell;

/// Print a completion script for a shell
///
/// The script completes commands, options and the names that an option allows.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  tofu completions bash > ~/.local/share/bash-completion/completions/tofu
  tofu completions zsh > ~/.zfunc/_tofu                     # with ~/.zfunc in $fpath
  tofu completions fish > ~/.config/fish/completions/tofu.fish";

/// Runs `tofu completions` for this command line and returns the exit code.
pub(crate) fn run(args: &CompletionsArgs, command: &Command) -> anyhow::Result<u8> {
    // `generate` panics if its output is not read.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible(command), "tofu", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(0)
}

/// The command without hidden ones, which `generate` would offer.
fn visible(command: &Command) -> Command {
    Command::new("tofu")
        .args(command.get_arguments().cloned())
        .subcommands(command.get_subcommands().filter(|command| !command.is_hide_set()).cloned())
}
