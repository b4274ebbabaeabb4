//! MPI programs on this host: their process manager, and the transport of their messages. If their
//! MPI library uses libfabric, for which there is a provider, that is Tofu.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use tempfile::TempDir;
use tofu_control::node_name;
use tofu_image::Arch;
use tofu_pmix::{Away, Layout, Server};

use crate::elf::Family;
use crate::job::{Event, Teller};
use crate::libraries::{self, PROVIDER};
use crate::place::Placement;
use crate::spec::JobSpec;
use crate::{closure, elf};

/// The variable with which a user chooses providers.
pub(crate) const CHOICE: &str = "FI_PROVIDER";
/// The library of PMIx. The number is that of its interface since version 2.
const PMIX: &str = "libpmix.so.2";
/// The plugin of Open MPI that sends by libfabric, if it is no part of a library.
const PLUGIN: &str = "mca_mtl_ofi.so";

/// The variable that names the MPI library of a program that is not linked with it, as Python.
const LIBRARY: &str = "TOFU_MPI_LIBRARY";

/// The MPI library of a program, and the way of its messages.
#[derive(Debug)]
pub(crate) struct Way {
    /// A line for the user, unless the user has chosen the way.
    pub(crate) text: Option<String>,
    family: Family,
    /// The library of PMIx that the program loads.
    pmix: PathBuf,
    /// The folder with the provider, and one that was made for it.
    provider: Option<(PathBuf, Option<TempDir>)>,
}

impl Way {
    /// Finds the MPI library of a program, whose libraries are on `search`. `chosen` is true if the
    /// user has chosen providers. Returns `None` for a program without an MPI library, or with
    /// missing libraries.
    pub(crate) fn of(
        program: &Path,
        bytes: &[u8],
        search: &OsStr,
        chosen: bool,
    ) -> anyhow::Result<Option<Self>> {
        let Some((files, library)) = library_of(program, bytes, search)? else { return Ok(None) };
        let Library { name, file, family } = library;
        let pmix = files.get(PMIX).cloned().unwrap_or_else(|| PMIX.into());
        let (text, provider) = match uses_libfabric(family, &file, &files) {
            _ if chosen || env::var_os(CHOICE).is_some() => (None, None),
            false => (Some(other_way(&format!("{name} does not use libfabric"))), None),
            true => match provider() {
                Ok(provider) => {
                    let text = format!("MPI's messages go over Tofu, by libfabric of {name}");
                    (Some(text), Some(provider))
                }
                Err(error) => (Some(other_way(&format!("{error:#}"))), None),
            },
        };
        Ok(Some(Self { text, family, pmix, provider }))
    }

    /// Starts the process manager that the program's ranks need in addition to that for PMI-1, if
    /// any.
    ///
    /// # Errors
    ///
    /// If it does not start: ranks would take themselves for the only ones.
    pub(crate) fn manager(
        &self,
        placement: &Placement,
        job: &str,
        search: &OsStr,
        events: Teller,
    ) -> anyhow::Result<Option<Server>> {
        let Family::OpenMpi { .. } = self.family else { return Ok(None) };
        let mut command = command();
        command.env("LD_LIBRARY_PATH", search);
        let layout = layout(placement, job, self.pmix.clone());
        start(command, &layout, events).map(Some)
    }

    /// The variables that start the MPI library and select this transport, except for those that
    /// the user has set.
    pub(crate) fn variables(&self) -> Vec<(&'static str, &OsStr)> {
        let folder = self.provider.as_ref().map(|(folder, _)| folder.as_os_str());
        let mut all = variables(self.family, folder);
        all.retain(|(name, _)| env::var_os(name).is_none());
        all
    }
}

/// The variables by which an MPI library starts, and sends by the provider in a folder, if there is
/// one.
pub(crate) fn variables(family: Family, provider: Option<&OsStr>) -> Vec<(&'static str, &OsStr)> {
    let mut all: Vec<(_, &OsStr)> = Vec::new();
    if let Some(folder) = provider {
        all.extend([("FI_PROVIDER_PATH", folder), (CHOICE, "tofu".as_ref())]);
    }
    let by_libfabric = provider.is_some();
    match family {
        // mpich 4.3 and later would take UCX if they have both.
        Family::Mpich if by_libfabric => all.push(("MPIR_CVAR_CH4_NETMOD", "ofi".as_ref())),
        Family::Mpich => {}
        Family::OpenMpi { version } => {
            // Windows by UCX are none without its devices, and Debian's settings exclude those by
            // messages, without which version 4 has none between nodes.
            all.push(("OMPI_MCA_osc", "^ucx".as_ref()));
            if version < 5 {
                // It believes in PMIx only if a resource manager that it knows is there. This one
                // adds nothing.
                all.push(("JSM_JSRUN_PORT", "0".as_ref()));
            }
            if by_libfabric {
                // Debian's settings exclude it. Windows of version 5 need a BTL, and those of 4 are
                // made of messages.
                let btl = if version < 5 { "self" } else { "ofi,self" };
                all.extend([
                    ("OMPI_MCA_mtl", "ofi".as_ref()),
                    ("OMPI_MCA_pml", "^ucx".as_ref()),
                    ("OMPI_MCA_btl", btl.as_ref()),
                ]);
            }
        }
    }
    all
}

/// Starts a PMIx server on this host for ranks that are elsewhere, or here.
///
/// # Errors
///
/// If it does not start.
pub(crate) fn serve(
    placement: &Placement,
    job: &str,
    away: Option<Away>,
    events: Teller,
) -> anyhow::Result<Server> {
    let layout = Layout { away, ..layout(placement, job, PMIX.into()) };
    start(command(), &layout, events)
}

/// Describes a job to a PMIx server.
fn layout(placement: &Placement, job: &str, library: PathBuf) -> Layout {
    let ranks = |at| placement.info.job.ranks_at(at).to_vec();
    let nodes = placement.nodes().into_iter().map(|at| (node_name(at), ranks(at))).collect();
    Layout { job: job.to_owned(), nodes, library, away: None }
}

fn command() -> Command {
    // By this path it is the same program, even if its file has been replaced.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tofu").arg(tofu_pmix::COMMAND);
    command
}

fn start(command: Command, layout: &Layout, events: Teller) -> anyhow::Result<Server> {
    let server = Server::start(command, layout, move |report| events.tell(Event::Reported(report)));
    server.context("Open MPI's ranks need a PMIx server (Debian: libpmix2)")
}

/// Returns the family of the MPI library that the user names for programs of nodes, which are not
/// linked with it, as Python.
///
/// # Errors
///
/// If it is none.
pub(crate) fn named(spec: &JobSpec) -> anyhow::Result<Option<Family>> {
    let own = spec.env.iter().find(|own| own.name == LIBRARY).map(|own| own.value.clone().into());
    let file = own.or_else(|| env::var_os(LIBRARY)).filter(|file| !file.is_empty());
    file.map(|file| family_named(Path::new(&file))).transpose()
}

/// Returns the family of a library that the user names, by its file's name.
fn family_named(file: &Path) -> anyhow::Result<Family> {
    let what = || format!("{LIBRARY}={}", file.display());
    let name = libraries::name(file).with_context(what)?;
    Family::of(name).with_context(|| {
        format!("{}: not libmpi.so.40 of Open MPI, libmpich.so.12 or libmpi.so.12", what())
    })
}

/// An MPI library.
struct Library {
    name: String,
    file: PathBuf,
    family: Family,
}

/// Finds the MPI library of a program, and all libraries that are loaded with it.
///
/// # Errors
///
/// If the user names one that is none.
fn library_of(
    program: &Path,
    bytes: &[u8],
    search: &OsStr,
) -> anyhow::Result<Option<(BTreeMap<String, PathBuf>, Library)>> {
    if let Some(file) = env::var_os(LIBRARY).filter(|file| !file.is_empty()) {
        let file = PathBuf::from(file);
        let what = || format!("{LIBRARY}={}", file.display());
        let family = family_named(&file)?;
        let name = libraries::name(&file).with_context(what)?.to_owned();
        // The loader lists no libraries of one that is missing.
        let file = fs::canonicalize(&file).with_context(what)?;
        let own = fs::read("/proc/self/exe").context("cannot read this program")?;
        let loader = elf::loader(&own)?.context("this program has no loader")?;
        let files = closure::list(&loader, &file, search).with_context(what)?.files;
        let family = family.with(&files);
        return Ok(Some((files, Library { name, file, family })));
    }
    if Arch::of_elf(bytes) != Arch::own() {
        return Ok(None);
    }
    let Ok(Some(loader)) = elf::loader(bytes) else { return Ok(None) };
    let Ok(list) = closure::list(&loader, program, search) else { return Ok(None) };
    let files = list.files;
    let found = files.iter().find_map(|(name, file)| {
        let family = Family::of(name)?.with(&files);
        Some(Library { name: name.clone(), file: file.clone(), family })
    });
    Ok(found.map(|library| (files, library)))
}

fn other_way(why: &str) -> String {
    format!("MPI's messages go over shared memory and TCP: {why}")
}

/// Returns true if an MPI library can use libfabric. `files` are all files that its program loads.
fn uses_libfabric(family: Family, library: &Path, files: &BTreeMap<String, PathBuf>) -> bool {
    match family {
        Family::Mpich => is_linked_with_libfabric(library),
        // One of its libraries may be, as libopen-pal; or it loads a plugin, from a folder beside
        // the library that is named after the version.
        Family::OpenMpi { .. } => {
            files.keys().any(|name| name.starts_with("libfabric.so")) || has_plugin(library)
        }
    }
}

/// Returns whether a library is linked with libfabric.
pub(crate) fn is_linked_with_libfabric(library: &Path) -> bool {
    let library = tofu_input::read(library, tofu_input::PROGRAM).ok();
    let links = library.and_then(|library| elf::links(&library).ok());
    links.is_some_and(|links| links.needed.iter().any(|name| name.starts_with("libfabric.so")))
}

/// Returns whether Open MPI's plugin for libfabric is in a folder below its library, as
/// `openmpi/mca_mtl_ofi.so`, or Debian's `openmpi/lib/openmpi3/mca_mtl_ofi.so`.
fn has_plugin(library: &Path) -> bool {
    let Ok(library) = fs::canonicalize(library) else { return false };
    let folders = |of: &Path| {
        let all = fs::read_dir(of).into_iter().flatten().flatten();
        let named =
            all.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"openmpi"));
        named.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let beside = library.parent().map(folders).unwrap_or_default();
    let mut below = beside.iter().flat_map(|folder| folders(&folder.join("lib")));
    beside.iter().any(|folder| folder.join(PLUGIN).is_file())
        || below.any(|folder| folder.join(PLUGIN).is_file())
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
