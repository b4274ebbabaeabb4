//! The libraries that this host's loader finds for a program.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::libraries::Closure;
use crate::spec::{JobSpec, Libs};
use crate::{elf, libraries};

/// The loader that our libraries are built for.
#[cfg(not(target_arch = "aarch64"))]
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
#[cfg(target_arch = "aarch64")]
const LOADER: &str = "/lib/ld-linux-aarch64.so.1";

/// Returns the libraries that a program is run with, or `None` if the nodes' own are used.
pub(crate) fn closure(
    loader: &Path,
    program: &Path,
    ours: &[PathBuf],
    spec: &JobSpec,
) -> anyhow::Result<Option<Closure>> {
    let wanted = spec.libs;
    if !loader.exists() {
        return match wanted {
            Libs::Host => bail!(
                "cannot run {}: its loader {} is not on this host",
                program.display(),
                loader.display()
            ),
            _ => Ok(None),
        };
    }
    let mut files = BTreeMap::new();
    // A program may open our libraries by name, without being linked to them.
    let native = loader == Path::new(LOADER);
    let also = ours.iter().map(PathBuf::as_path).filter(|_| native);
    for path in [program].into_iter().chain(also) {
        let found = list(loader, path, &search(ours))?;
        if let Some(missing) = found.missing {
            if wanted == Libs::Host {
                bail!("cannot run {}: {missing} is not on this host", program.display());
            }
            log::debug!("{missing} is not on this host: the program gets the nodes' libraries");
            return Ok(None);
        }
        files.extend(found.files);
    }
    let name = libraries::name(loader)?.to_owned();
    files.insert(name.clone(), loader.to_owned());
    for library in ours {
        files.remove(libraries::name(library)?);
    }
    Ok(without_mpis(Closure { loader: name, files }, spec))
}

/// Returns the libraries of a program. Returns `None` if the nodes' own are used, because one of
/// them is an MPI library; the program may be linked with it indirectly.
pub(crate) fn without_mpis(closure: Closure, spec: &JobSpec) -> Option<Closure> {
    let has_mpi = spec.mpi && closure.files.keys().any(|name| elf::is_mpi(name));
    Some(closure).filter(|_| !spec.libs.are_the_nodes(has_mpi))
}

/// The libraries that a loader has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) files: BTreeMap<String, PathBuf>,
    missing: Option<String>,
}

/// Returns the path on which programs search for libraries, with ours first.
fn search(ours: &[PathBuf]) -> OsString {
    let mut search: OsString =
        ours.first().and_then(|library| library.parent()).unwrap_or(Path::new("")).into();
    if let Some(theirs) = std::env::var_os("LD_LIBRARY_PATH").filter(|path| !path.is_empty()) {
        search.push(":");
        search.push(theirs);
    }
    search
}

/// Asks a loader which libraries it would load for a file, without running the file.
pub(crate) fn list(loader: &Path, path: &Path, search: &OsStr) -> anyhow::Result<Found> {
    // A name without a folder would be that of a library.
    let path = &std::path::absolute(path).context("no folder to work in")?;
    let mut command = Command::new(loader);
    command.arg("--list").arg(path).env("LD_LIBRARY_PATH", search).env_remove("LD_PRELOAD");
    let output = command.output().with_context(|| format!("cannot run {}", loader.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut found = parse(&text);
    if let Some(name) = missing(&String::from_utf8_lossy(&output.stderr)) {
        found.missing.get_or_insert(name);
    }
    if !output.status.success() && found.missing.is_none() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let line = tofu_ui::printable(errors.lines().next().unwrap_or("no reason given"));
        bail!("cannot tell which libraries {} needs: {line}", path.display());
    }
    Ok(found)
}

/// Parses a loader's list: lines such as `libc.so.6 => /lib/libc.so.6 (0x00007f)`.
fn parse(text: &str) -> Found {
    let mut found = Found::default();
    for line in text.lines() {
        let Some((name, path)) = line.trim().split_once(" => ") else { continue };
        let path = path.rsplit_once(" (").map_or(path, |(path, _)| path);
        if path.starts_with('/') {
            // A name may be a path.
            let name = name.rsplit('/').next().unwrap_or(name);
            found.files.insert(name.to_owned(), path.into());
        } else {
            found.missing.get_or_insert_with(|| name.to_owned());
        }
    }
    found
}

/// Returns the library that a loader reports as missing. Some loaders stop there before they list
/// anything.
fn missing(errors: &str) -> Option<String> {
    let (_, what) = errors.split_once("error while loading shared libraries: ")?;
    let (name, _) = what.split_once(": cannot open shared object file")?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_this_folder_is_no_library() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let loader = crate::elf::loader(&own).unwrap().unwrap();
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        std::fs::write(file.path(), own).unwrap();
        let name = Path::new(file.path().file_name().unwrap());
        let found = list(&loader, name, OsStr::new("")).unwrap();
        assert!(found.files.contains_key("libc.so.6"), "{found:?}");
    }

    #[test]
    fn loaders_list_is_parsed() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\
                    \tlibtofucom.so => /a b/libtofucom.so (0x00007f1)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f2)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f3)\n";
        let found = parse(text);
        assert_eq!(found.missing, None);
        let files: Vec<_> = found.files.iter().map(|(name, path)| (&**name, &**path)).collect();
        let libc = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
        let ours = Path::new("/a b/libtofucom.so");
        assert_eq!(files, [("libc.so.6", libc), ("libtofucom.so", ours)]);
        let found = parse("\tlibmpich.so.12 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n");
        assert_eq!(found.missing.as_deref(), Some("libmpich.so.12"));
        let complaint = "./a: error while loading shared libraries: libmpich.so.12: cannot open \
                         shared object file: No such file or directory\n";
        assert_eq!(missing(complaint).as_deref(), Some("libmpich.so.12"));
        assert_eq!(missing("./a: no version information available"), None);
    }
}
