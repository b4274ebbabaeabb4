//! The way of a local MPI program's messages: over Tofu if its MPI library sends by libfabric, for
//! which there is a provider.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;
use tofu_image::Arch;

use crate::libraries::{self, PROVIDER};
use crate::{bundle, elf};

/// The variable by which a user chooses providers.
const CHOICE: &str = "FI_PROVIDER";

/// The way of an MPI program's messages.
#[derive(Debug)]
pub(crate) struct Way {
    /// A line for the user.
    pub(crate) text: String,
    /// The folder with the provider, and one that was made for it.
    provider: Option<(PathBuf, Option<TempDir>)>,
}

impl Way {
    /// Finds the way of a program's messages, whose libraries are on `search`. Returns `None` for a
    /// program that is not linked with an MPI library that speaks PMI-1, or that lacks libraries,
    /// and if the user has chosen providers.
    pub(crate) fn of(program: &Path, bytes: &[u8], search: &OsStr) -> Option<Self> {
        if env::var_os(CHOICE).is_some() || Arch::of_elf(bytes) != Arch::own() {
            return None;
        }
        let loader = elf::loader(bytes).ok()??;
        let files = bundle::list(&loader, program, search).ok()?.files;
        let (name, library) = files.iter().find(|(name, _)| elf::is_mpich(name))?;
        let library = tofu_input::read(library, tofu_input::PROGRAM).ok()?;
        let needed = elf::links(&library).ok()?.needed;
        let without = |why: &str| Self {
            text: format!("MPI's messages go over shared memory and TCP: {why}"),
            provider: None,
        };
        if !needed.iter().any(|name| name.starts_with("libfabric.so")) {
            return Some(without(&format!("{name} does not use libfabric")));
        }
        Some(match provider() {
            Ok(provider) => Self {
                text: format!("MPI's messages go over Tofu, by libfabric of {name}"),
                provider: Some(provider),
            },
            Err(error) => without(&format!("{error:#}")),
        })
    }

    /// The variables by which the MPI library takes this way.
    pub(crate) fn variables(&self) -> Vec<(&'static str, &OsStr)> {
        let Some((folder, _)) = &self.provider else { return Vec::new() };
        vec![
            ("FI_PROVIDER_PATH", folder.as_os_str()),
            (CHOICE, OsStr::new("tofu")),
            // mpich 4.3 and later would take UCX if they have both.
            ("MPIR_CVAR_CH4_NETMOD", OsStr::new("ofi")),
        ]
    }
}

/// Returns a folder with the provider under its name. It is a new one if cargo has built the
/// provider.
fn provider() -> anyhow::Result<(PathBuf, Option<TempDir>)> {
    let found = libraries::find_provider()?;
    if found.file_name() == Some(OsStr::new(PROVIDER)) {
        return Ok((found.parent().context("it has no folder")?.to_owned(), None));
    }
    let folder = tempfile::Builder::new().prefix("tofu-fi-").tempdir()?;
    std::os::unix::fs::symlink(std::path::absolute(found)?, folder.path().join(PROVIDER))?;
    Ok((folder.path().to_owned(), Some(folder)))
}
