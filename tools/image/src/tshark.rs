//! tshark, with which tests and users read captures: the host's own, or Debian's in the cache.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::apt;
use crate::cache::Cache;
use crate::error::{IoContext, Result};
use crate::fetched::{LIBRARIES, start};
use crate::progress::Progress;
use crate::run;

const NAME: &str = "tshark";
/// Where tshark of these packages looks for Lua settings when root runs it, for whom it ignores the
/// environment. The settings permit scripts on its command line for root, too.
const INIT: &str = "plugins/init.lua";
const SCRIPTS_FOR_ALL: &str = "run_user_scripts_when_superuser = true\n";

/// The one in `root`.
fn in_root(root: &Path) -> Command {
    let (loader, args) = start(root, NAME);
    let mut command = run::command(&loader);
    let plugins = root.join(LIBRARIES).join("wireshark");
    command
        .args(args)
        .env("WIRESHARK_DATA_DIR", root.join("usr/share/wireshark"))
        .env("WIRESHARK_PLUGIN_DIR", plugins.join("plugins"))
        .env("WIRESHARK_EXTCAP_DIR", plugins.join("extcap"));
    command
}

impl Cache {
    /// A command that runs tshark; its arguments are to be added. If the host has none, it is
    /// fetched into the cache unless it is there already.
    ///
    /// # Errors
    /// All that can go wrong with fetching.
    pub fn tshark(&self, progress: &dyn Progress) -> Result<Command> {
        match run::find(NAME) {
            Some(program) => Ok(Command::new(program)),
            None => self.fetched_tshark(progress),
        }
    }

    /// The same without considering the host's own.
    ///
    /// # Errors
    /// All that can go wrong with fetching.
    pub fn fetched_tshark(&self, progress: &dyn Progress) -> Result<Command> {
        self.fetch_program(NAME, &[NAME], apt::From::Release, false, progress, |root| {
            let init = root.join(LIBRARIES).join(INIT);
            fs::create_dir_all(init.parent().unwrap_or(root)).on("make", &init)?;
            fs::write(&init, SCRIPTS_FOR_ALL).on("write", &init)?;
            let mut command = in_root(root);
            command.arg("--version");
            let said = run::must(command, "asking tshark for its version", root, progress)?;
            Ok(said.lines().next().unwrap_or_default().to_owned())
        })?;
        Ok(in_root(&self.root_of(NAME)))
    }
}
