//! `tofu man`: the manual pages of the commands.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};

/// Write the commands' manual pages to a folder
///
/// There is one page for tofu, and one for each command: tofu.1, tofu-up.1, tofu-link-down.1 and so
/// on. They have the same text as --help.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArgs {
    /// The folder, which is created if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  tofu man ~/.local/share/man/man1
  man tofu-up";

/// Runs `tofu man` for this command line and returns the exit code.
pub(crate) fn run(args: &ManArgs, command: Command) -> anyhow::Result<u8> {
    let cannot = || format!("cannot write to {}", args.dir.display());
    fs::create_dir_all(&args.dir).with_context(cannot)?;
    clap_mangen::generate_to(command, &args.dir).with_context(cannot)?;
    Ok(0)
}
