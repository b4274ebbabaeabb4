//! tshark, with which tests and users read captures: the host's, or Debian's in the cache.

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
/// The file in which this tshark looks for Lua settings when root runs it, because it then ignores
/// the environment. The settings permit scripts on root's command line, too.
const INIT: &str = "plugins/init.lua";
const SCRIPTS_FOR_ALL: &str = "run_user_scripts_when_superuser = true\n";

/// Returns a command for the tshark in `root`.
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
    /// Returns a command that runs tshark, to which arguments can be added. If the host has none,
    /// fetches it into the cache unless it is there already.
    ///
    /// # Errors
    /// Everything that can go wrong with fetching.
    pub fn tshark(&self, progress: &dyn Progress) -> Result<Command> {
        match run::find(NAME) {
            Some(program) => Ok(Command::new(program)),
            None => self.fetched_tshark(progress),
        }
    }

    /// Returns a command for the tshark in the cache, whether or not the host has one.
    ///
    /// # Errors
    /// Everything that can go wrong with fetching.
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
