//! Programs from Debian's packages that run on any host, because they bring their loader and
//! libraries.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::apt;
use crate::cache::Cache;
use crate::error::Result;
use crate::manifest::Manifest;
use crate::progress::Progress;

/// The folder in which Debian keeps libraries of the host's architecture, and the loader among
/// them.
#[cfg(not(target_arch = "aarch64"))]
mod names {
    pub(crate) const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
    pub(crate) const LOADER: &str = "ld-linux-x86-64.so.2";
}
#[cfg(target_arch = "aarch64")]
mod names {
    pub(crate) const LIBRARIES: &str = "usr/lib/aarch64-linux-gnu";
    pub(crate) const LOADER: &str = "ld-linux-aarch64.so.1";
}
pub(crate) use names::{LIBRARIES, LOADER};

/// Returns how to run `name` from the packages in `root`, independently of the host's libraries:
/// the loader, and the arguments before the program's own.
pub(crate) fn start(root: &Path, name: &str) -> (PathBuf, Vec<OsString>) {
    let libraries = root.join(LIBRARIES);
    let mut path = OsString::from(&libraries);
    path.push(":");
    // Packages of Debian 12 have some libraries here.
    path.push(root.join(LIBRARIES.trim_start_matches("usr/")));
    let program = root.join("usr/bin").join(name).into();
    (libraries.join(LOADER), vec!["--library-path".into(), path, program])
}

impl Cache {
    /// Returns the folder with a fetched program's packages.
    pub(crate) fn root_of(&self, part: &str) -> PathBuf {
        self.part_folder(part).join("root")
    }

    /// Returns the manifest of packages with all of their dependencies in this part of the cache,
    /// and fetches them if the part does not exist or `refresh` is set. `version` queries the
    /// program in the folder for its version.
    pub(crate) fn fetch_program(
        &self,
        part: &str,
        packages: &[&str],
        from: apt::From,
        refresh: bool,
        progress: &dyn Progress,
        version: impl FnOnce(&Path) -> Result<String>,
    ) -> Result<Manifest> {
        if !refresh && let Some(manifest) = self.part(part)? {
            return Ok(manifest);
        }
        let _lock = self.lock(progress)?;
        self.make_part(part, refresh, |folder, manifest| {
            let apt = self.apt(progress)?;
            let debs = apt.closure(packages, from)?;
            let files = apt.fetch(&debs, from)?;
            let root = folder.join("root");
            apt.unpack(&files, &root)?;
            for waste in ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/icons"] {
                let _ = fs::remove_dir_all(root.join(waste));
            }
            manifest.packages = apt::packages(&debs, &files)?;
            manifest.kernel = version(&root)?;
            apt::discard(&files);
            Ok(())
        })
    }
}
