//! Programs in a job's folder, which ranks may start by themselves: a shell does, or a script, or a
//! tool with a program behind it.
//!
//! Such a program names its loader by an absolute path, which nodes without a C library lack.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tofu_image::{Arch, Progress};

use crate::closure::closure;
use crate::elf::Family;
use crate::libraries::Closure;
use crate::spec::{JobSpec, Libs};
use crate::{closure, cross_arch, elf, mpi};

/// The variable with the folders in which loaders look for libraries.
pub(crate) const SEARCH: &str = "LD_LIBRARY_PATH";
/// The most programs whose libraries are looked for.
const MOST: usize = 256;
/// The longest script whose words are read, in bytes.
const MOST_SCRIPT: usize = 1 << 20;
/// Programs of the image `default` that run another one.
const RUNNERS: [&str; 8] = ["sh", "env", "nice", "nohup", "setsid", "taskset", "time", "timeout"];

/// A dynamically linked program.
#[derive(Debug)]
pub(crate) struct Program {
    path: PathBuf,
    arch: Arch,
    /// The path at which it expects its loader.
    loader: PathBuf,
    links: elf::Links,
}

/// The needs of a folder's programs on nodes.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// The path at which they expect their loader.
    pub(crate) loader: Option<PathBuf>,
    /// Their libraries and the loader, by name.
    pub(crate) files: BTreeMap<String, PathBuf>,
}

/// Returns the programs in the folder and the files that a job copies; none if programs are run
/// with the nodes' libraries.
pub(crate) fn programs(spec: &JobSpec) -> Vec<Program> {
    if spec.libs == Libs::Node {
        return Vec::new();
    }
    let is_program = |(_, metadata): &(PathBuf, Metadata)| metadata.mode() & 0o111 != 0;
    let mut all = files(spec).filter(is_program).filter_map(|(path, _)| Program::read(path));
    let found = all.by_ref().take(MOST).collect();
    if all.next().is_some() {
        log::warn!("the job's folder has more than {MOST} programs; others are left out");
    }
    found
}

/// Returns the files in the folder and those that a job copies.
fn files(spec: &JobSpec) -> impl Iterator<Item = (PathBuf, Metadata)> {
    let mut left: Vec<PathBuf> = spec.cwd.iter().chain(&spec.copy).cloned().collect();
    std::iter::from_fn(move || {
        loop {
            let path = left.pop()?;
            // Files that cannot be read are reported when they are copied.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if !metadata.is_dir() {
                return Some((path, metadata));
            }
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            // Links are not followed: there may be cycles.
            let entries =
                entries.filter(|entry| entry.file_type().is_ok_and(|it| !it.is_symlink()));
            left.extend(entries.map(|entry| entry.path()));
        }
    })
}

/// Returns whether a job brings an mpich that can use libfabric, as PyPI's, and has loaders look
/// for it.
pub(crate) fn brings_mpich(spec: &JobSpec) -> bool {
    let is_mpich = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.and_then(Family::of) == Some(Family::Mpich) && mpi::is_linked_with_libfabric(path)
    };
    spec.env.iter().any(|own| own.name == SEARCH) && files(spec).any(|(path, _)| is_mpich(&path))
}

impl Program {
    fn read(path: PathBuf) -> Option<Self> {
        let mut head = [0; 64];
        let mut file = tofu_input::open(&path, tofu_input::PROGRAM).ok()?;
        file.read_exact(&mut head).ok()?;
        let arch = Arch::of_elf(&head)?;
        let bytes = tofu_input::read(&path, tofu_input::PROGRAM).ok()?;
        let loader = elf::loader(&bytes).ok()??;
        let links = elf::links(&bytes).ok()?;
        Some(Self { path, arch, loader, links })
    }

    /// Returns whether it is linked with an MPI library, itself or through another one.
    fn uses_mpi(&self, spec: &JobSpec, ours: &[PathBuf]) -> bool {
        let itself = self.links.needed.iter().any(|name| elf::is_mpi(name));
        let with_host = || closure(&self.loader, &self.path, ours, spec);
        itself || Arch::own() == Some(self.arch) && !matches!(with_host(), Ok(Some(_)))
    }

    fn closure(
        &self,
        ours: &[PathBuf],
        spec: &JobSpec,
        progress: &dyn Progress,
    ) -> anyhow::Result<Option<Closure>> {
        if Arch::own() == Some(self.arch) {
            return closure(&self.loader, &self.path, ours, spec);
        }
        let (_, found) = cross_arch::closure(&self.loader, &self.path, progress)?;
        Ok(closure::without_mpis(found, spec))
    }
}

/// Returns what programs for this architecture need. One whose libraries are not all here, or that
/// uses the nodes' MPI, is left to the nodes' libraries.
pub(crate) fn needs(
    programs: &[Program],
    arch: Arch,
    ours: &[PathBuf],
    spec: &JobSpec,
    progress: &dyn Progress,
) -> Needs {
    let mut needs = Needs::default();
    // Programs of a folder mostly have the same libraries.
    let mut known = BTreeSet::new();
    for program in programs.iter().filter(|program| program.arch == arch) {
        let mut key = program.links.clone();
        key.needed.sort();
        if !known.insert((program.loader.clone(), key)) {
            continue;
        }
        match program.closure(ours, spec, progress) {
            Ok(Some(found)) => {
                needs.loader.get_or_insert_with(|| program.loader.clone());
                for (name, path) in found.files {
                    needs.files.entry(name).or_insert(path);
                }
            }
            Ok(None) => {}
            Err(error) => log::info!("{}: {error:#}", program.path.display()),
        }
    }
    needs
}

/// Returns the family of MPI that programs of a folder are linked with, unless there are several.
pub(crate) fn family(programs: &[Program]) -> Option<Family> {
    let mut all = programs.iter().filter_map(|program| elf::family(&program.links.needed));
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

/// Returns whether a program of the nodes, or a script of which this is the text, uses MPI as far
/// as can be told: a shell or a tool of each image that starts programs of the folder does if one
/// of these does. Anything else may, as Python.
pub(crate) fn may_use_mpi(
    words: &[String],
    script: Option<&[u8]>,
    (programs, ours): (&[Program], &[PathBuf]),
    spec: &JobSpec,
) -> bool {
    let runner = match script {
        Some(text) => text.starts_with(b"#!/bin/sh\n"),
        None => words.first().is_some_and(|name| {
            RUNNERS.contains(&&**name) || spec.tools.iter().any(|(tool, _)| tool == name)
        }),
    };
    if !runner {
        return true;
    }
    let script = script.map(beginning);
    let names: BTreeSet<&str> =
        parts(words, script.as_deref()).filter_map(|word| Some(word.rsplit_once('/')?.1)).collect();
    let named = |program: &&Program| {
        let name = program.path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| names.contains(name))
    };
    let mut named = programs.iter().filter(named).peekable();
    named.peek().is_none() || named.any(|program| program.uses_mpi(spec, ours))
}

/// The beginning of a script.
fn beginning(text: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(&text[..text.len().min(MOST_SCRIPT)])
}

/// Returns the words of a command line and of a script's text, as a shell may separate them.
fn parts<'a>(words: &'a [String], script: Option<&'a str>) -> impl Iterator<Item = &'a str> {
    let between = |letter: char| letter.is_whitespace() || "'\"`;|&()<>={}".contains(letter);
    words.iter().map(String::as_str).chain(script).flat_map(move |text| text.split(between))
}

/// Returns the Python that a command line or script starts, by its name or path.
pub(crate) fn python(words: &[String], script: Option<&[u8]>) -> Option<String> {
    let is_python = |word: &&str| {
        let name = word.rsplit('/').next().unwrap_or_default();
        let version = name.strip_prefix("python");
        version.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
    };
    let script = script.map(beginning);
    parts(words, script.as_deref()).find(is_python).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn python_of_a_command_is_found() {
        let of = |text: &str, script: Option<&str>| {
            let words: Vec<_> = text.split('_').map(str::to_owned).collect();
            python(&words, script.map(str::as_bytes))
        };
        for (text, script, expected) in [
            ("python3_a.py", None, Some("python3")),
            ("/opt/venv/bin/python3.13_-u_a.py", None, Some("/opt/venv/bin/python3.13")),
            ("sh_-c_cd x && exec python a.py", None, Some("python")),
            ("run.sh", Some("#!/bin/sh\nexport A=1;python3 $1\n"), Some("python3")),
            ("./a_pythonic.py", None, None),
            ("python3-config_python.sh", None, None),
        ] {
            assert_eq!(of(text, script).as_deref(), expected, "{text}");
        }
    }

    /// Writes this program to `path`, linked with a library of another name if one is given.
    fn put(path: PathBuf, library: Option<&str>) {
        let mut bytes = fs::read("/proc/self/exe").unwrap();
        if let Some(name) = library {
            let old = b"\0libgcc_s.so.1\0";
            let at = bytes.windows(old.len()).position(|window| window == old).unwrap() + 1;
            bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
            bytes[at + name.len()] = 0;
        }
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn programs_of_a_folder_and_their_libraries_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("deep")).unwrap();
        put(at("deep/a"), None);
        put(at("mpi"), Some("libmpi.so.12"));
        put(at("data"), None);
        fs::set_permissions(at("data"), fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(at("script"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(at("script"), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(".", at("cycle")).unwrap();
        let mut spec = JobSpec { mpi: true, cwd: Some(folder.path().into()), ..JobSpec::default() };
        let found = programs(&spec);
        let mut names: Vec<_> =
            found.iter().map(|program| program.path.file_name().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["a", "mpi"]);
        assert_eq!(family(&found), Some(Family::Mpich));

        // The one with MPI, which this host lacks, is left to the nodes.
        let own = Arch::own().unwrap();
        let needs = needs(&found, own, &[], &spec, &tofu_image::Silent);
        let loader = needs.loader.unwrap();
        let names: Vec<_> = needs.files.keys().map(String::as_str).collect();
        let loader = loader.file_name().unwrap().to_str().unwrap();
        assert!(names.contains(&"libc.so.6") && names.contains(&loader), "{names:?}");
        assert!(!names.contains(&"libmpi.so.12"), "{names:?}");

        let may = |text: &str, script: Option<&str>| {
            let words: Vec<_> = text.split('_').map(str::to_owned).collect();
            let script = script.map(str::as_bytes);
            may_use_mpi(&words, script, (&found, &[]), &spec)
        };
        assert!(!may("sh_-c_cd deep && exec ./a", None));
        assert!(may("sh_-c_./mpi;./deep/a", None) && may("env_A=1_./mpi", None));
        assert!(!may("env_A=1_./deep/a", None) && may("python3_./deep/a", None));
        assert!(may("sh_-c_./made_later", None));
        assert!(!may("1", Some("#!/bin/sh\nexec './deep/a' $1\n")));
        assert!(may("1", Some("#!/usr/bin/python3\nrun('./deep/a')\n")));
        // An mpich is only used if loaders are told where it is.
        fs::create_dir(at("lib")).unwrap();
        put(at("lib/libmpi.so.12"), Some("libfabric.so"));
        assert!(!brings_mpich(&spec));
        spec.env.push("LD_LIBRARY_PATH=lib".parse().unwrap());
        assert!(brings_mpich(&spec));
        put(at("lib/libmpi.so.12"), Some("libucp.so.0"));
        assert!(!brings_mpich(&spec));
        spec.libs = Libs::Node;
        assert!(programs(&spec).is_empty());
    }
}
