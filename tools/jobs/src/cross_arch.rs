//! The shared libraries of a program for arm64 nodes. Its loader cannot run on this host, so the
//! libraries are searched for here, in the loader's order.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tofu_image::{Arch, Progress, Sysroot};

use crate::libraries::Closure;
use crate::{elf, libraries};

/// A user's folder, laid out as a root file system, whose loader and libraries take precedence over
/// Debian's.
const SYSROOT: &str = "TOFU_ARM64_SYSROOT";
/// Folders of libraries in the root file systems of Debian, and of Red Hat, which Fugaku uses.
const FOLDERS: [&str; 6] =
    ["usr/lib/aarch64-linux-gnu", "lib/aarch64-linux-gnu", "usr/lib64", "lib64", "usr/lib", "lib"];
/// The largest library that is read, in bytes.
const MAX_LIBRARY: u64 = 1 << 30;

/// Returns our libraries for a program, and the other libraries that it is run with, including
/// their loader.
///
/// # Errors
///
/// If something is missing, with its name and where it was searched for.
pub(crate) fn closure(
    loader: &Path,
    program: &Path,
    progress: &dyn Progress,
) -> anyhow::Result<(Vec<PathBuf>, Closure)> {
    let shown = program.display();
    let (ours, sysroot) = libraries::find_arm64(progress)?;
    let mut roots = Vec::new();
    if let Some(named) = env::var_os(SYSROOT).filter(|value| !value.is_empty()) {
        let named = PathBuf::from(named);
        fs::read_dir(&named)
            .with_context(|| format!("{SYSROOT} {}: cannot read it", named.display()))?;
        roots.push(named);
    }
    roots.push(sysroot.root);
    let theirs = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let search = Search::new(&theirs, &ours, &roots);
    let files = search
        .closure(loader, program, &ours)
        .with_context(|| format!("cannot run {shown} on nodes for arm64"))?;
    let name = libraries::name(loader)?.to_owned();
    Ok((ours, Closure { loader: name, files }))
}

/// The places to search for libraries.
struct Search {
    /// The user's folders, then the folder of our libraries, then folders of root file systems.
    folders: Vec<PathBuf>,
    roots: Vec<PathBuf>,
}

impl Search {
    fn new(theirs: &OsStr, ours: &[PathBuf], roots: &[PathBuf]) -> Self {
        let theirs = env::split_paths(theirs).filter(|path| !path.as_os_str().is_empty());
        let own = ours.first().and_then(|library| library.parent()).map(Path::to_owned);
        let of_roots = roots.iter().flat_map(|root| {
            FOLDERS.iter().chain(&Sysroot::FOLDERS).map(|folder| root.join(folder))
        });
        Self { folders: theirs.chain(own).chain(of_roots).collect(), roots: roots.to_vec() }
    }

    /// Returns all libraries that `program` and our libraries are linked with, by name. The loader
    /// is included, and our libraries are not.
    fn closure(
        &self,
        loader: &Path,
        program: &Path,
        ours: &[PathBuf],
    ) -> anyhow::Result<BTreeMap<String, PathBuf>> {
        let mut files = BTreeMap::new();
        let found = self.loader(loader)?;
        files.insert(libraries::name(loader)?.to_owned(), found);
        // A program may open our libraries by name, without being linked to them.
        let mut left: Vec<PathBuf> = ours.to_vec();
        left.push(program.to_owned());
        while let Some(path) = left.pop() {
            let links = links(&path)?;
            for name in links.needed {
                if files.contains_key(&name) || ours.iter().any(|own| own.ends_with(&name)) {
                    continue;
                }
                let library = self.find(&name, &path, &links.folders).with_context(|| {
                    format!(
                        "{} needs {name}, which is not here; name its folder by LD_LIBRARY_PATH, \
                         or a root file system with it by {SYSROOT}",
                        path.display()
                    )
                })?;
                left.push(library.clone());
                files.insert(name, library);
            }
        }
        Ok(files)
    }

    /// Returns the loader in the first root that has it.
    fn loader(&self, path: &Path) -> anyhow::Result<PathBuf> {
        let inside = path.strip_prefix("/").unwrap_or(path);
        let mut places = self.roots.iter().map(|root| root.join(inside));
        places
            .find(|place| is_library(place))
            .with_context(|| format!("its loader {} is not here", path.display()))
    }

    /// Returns a library that the file `of` needs. `said` are the folders that the file names,
    /// which are searched first.
    fn find(&self, name: &str, of: &Path, said: &[String]) -> Option<PathBuf> {
        let origin = of.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
        let said = said.iter().filter(|folder| !folder.is_empty()).map(|folder| {
            PathBuf::from(folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin))
        });
        let places = said.chain(self.folders.iter().cloned());
        // A name may be a path.
        places.map(|folder| folder.join(name)).find(|place| is_library(place))
    }
}

/// Returns whether a file is a library for arm64. Others may have the same name.
fn is_library(path: &Path) -> bool {
    let mut head = [0; 64];
    let read = tofu_input::open(path, MAX_LIBRARY).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && Arch::of_elf(&head) == Some(Arch::Arm64)
}

/// Returns what a file is linked with.
fn links(path: &Path) -> anyhow::Result<elf::Links> {
    let shown = path.display();
    let cannot = || format!("cannot read {shown}");
    let bytes = tofu_input::read(path, MAX_LIBRARY).with_context(cannot)?;
    elf::links(&bytes).with_context(|| format!("cannot tell which libraries {shown} needs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADER: &str = "/lib/ld-linux-aarch64.so.1";

    /// Writes this program to `path` as if it were for `arch`.
    fn put(path: &Path, arch: Arch) {
        let mut bytes = fs::read("/proc/self/exe").unwrap();
        bytes[18..20].copy_from_slice(&arch.elf_number().to_le_bytes());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn libraries_are_found_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        put(&at("program"), Arch::Arm64);
        let needed = links(&at("program")).unwrap().needed;
        assert!(needed.contains(&"libc.so.6".to_owned()), "{needed:?}");
        let search = Search::new(at("theirs").as_os_str(), &[], &[at("first"), at("second")]);
        let find = || search.closure(Path::new(LOADER), &at("program"), &[]);
        let why = || format!("{:#}", find().unwrap_err());
        assert_eq!(why(), format!("its loader {LOADER} is not here"));
        put(&at("second/lib/ld-linux-aarch64.so.1"), Arch::Arm64);
        for name in needed.iter().filter(|name| *name != "libc.so.6") {
            put(&at("second/usr/lib64").join(name), Arch::Arm64);
        }
        put(&at("first/lib64/libc.so.6"), Arch::X86_64);
        let expected = "needs libc.so.6, which is not here; name its folder by LD_LIBRARY_PATH";
        assert!(why().contains(expected), "{}", why());
        put(&at("second/usr/lib/aarch64-linux-gnu/libc.so.6"), Arch::Arm64);
        let files = find().unwrap();
        assert_eq!(files["libc.so.6"], at("second/usr/lib/aarch64-linux-gnu/libc.so.6"));
        assert_eq!(files["ld-linux-aarch64.so.1"], at("second/lib/ld-linux-aarch64.so.1"));
        put(&at("first/lib64/libc.so.6"), Arch::Arm64);
        assert_eq!(find().unwrap()["libc.so.6"], at("first/lib64/libc.so.6"));
        put(&at("theirs/libc.so.6"), Arch::Arm64);
        assert_eq!(find().unwrap()["libc.so.6"], at("theirs/libc.so.6"));
    }
}
