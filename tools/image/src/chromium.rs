//! Headless Chromium, with which tests view pages: Debian's, in the cache.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::apt;
use crate::cache::Cache;
use crate::error::{IoContext, Result};
use crate::fetched::{LIBRARIES, LOADER};
use crate::progress::Progress;
use crate::run;

const NAME: &str = "chromium-headless-shell";
/// Chromium's folder in its package.
const FOLDER: &str = "usr/lib/chromium";

/// Returns a command for the Chromium in `root`. Chromium searches for its data beside the program
/// that the kernel has started, which is the loader, and would start its other processes with the
/// loader. So it runs as a single process.
fn in_root(root: &Path) -> Command {
    let libraries = root.join(LIBRARIES);
    let mut path = libraries.clone().into_os_string();
    path.push(":");
    path.push(libraries.join("pulseaudio"));
    let folder = root.join(FOLDER);
    let mut command = run::command(&folder.join(LOADER));
    command
        .arg("--library-path")
        .arg(path)
        .arg(folder.join(NAME))
        .args(["--no-sandbox", "--disable-gpu", "--single-process", "--no-zygote"])
        // Settings, such as those of fonts, come from the packages.
        .env("FONTCONFIG_PATH", root.join("etc/fonts"))
        .env("XDG_DATA_DIRS", root.join("usr/share"));
    command
}

impl Cache {
    /// Returns a command that runs headless Chromium, to which arguments can be added. Fetches it
    /// into the cache if it is missing.
    ///
    /// # Errors
    /// Everything that can go wrong with fetching.
    pub fn chromium(&self, progress: &dyn Progress) -> Result<Command> {
        let packages = [NAME, "fonts-dejavu-core"];
        self.fetch_program(NAME, &packages, apt::From::Release, false, progress, |root| {
            let (from, to) = (root.join(LIBRARIES).join(LOADER), root.join(FOLDER).join(LOADER));
            fs::copy(&from, &to).on("copy", &from)?;
            let mut command = in_root(root);
            command.arg("--version");
            let said = run::must(command, "asking Chromium for its version", root, progress)?;
            Ok(said.lines().next().unwrap_or_default().trim().to_owned())
        })?;
        Ok(in_root(&self.root_of(NAME)))
    }
}
