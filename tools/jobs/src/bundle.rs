//! Everything that a job needs on a node: the program and its files in one folder, and libraries in
//! others, which later jobs can reuse.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use object::FileKind;
use sha2::{Digest, Sha256};
use tofu_agent::files::{self, Source};
use tofu_image::{Arch, Progress};

use crate::libraries::Closure;
use crate::spec::{JobSpec, Libs};
use crate::{cross_arch, elf, libraries};

/// The most that is copied to nodes of a file or folder, in bytes.
const MAX_COPY: u64 = 256 << 20;
/// The loader that our libraries are built for.
#[cfg(not(target_arch = "aarch64"))]
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
#[cfg(target_arch = "aarch64")]
const LOADER: &str = "/lib/ld-linux-aarch64.so.1";

/// Folders in a job's folder. The last two are links to sets of libraries: the host's with their
/// loader, and ours.
const BIN: &str = "bin";
const LIB: &str = "lib";
const TOFU: &str = "tofu";
/// The folder of scripts that stand in for programs of the nodes.
const TOOLS: &str = "tools";
/// The folder in which ranks run.
pub(crate) const WORK: &str = "work";
/// The file with the mapinfo.
pub(crate) const MAP: &str = "map.json";

/// Starts a program in a folder, with another one at the end of the path.
const START: &str = r#"cd "$0" && PATH=$PATH:$1 && export PATH && shift && exec "$@""#;

/// Files, by their names in a folder.
type Files = Vec<(PathBuf, Source)>;

/// A job's files, and how its program is started.
#[derive(Debug)]
pub(crate) struct Bundle {
    contents: Vec<(PathBuf, Source)>,
    /// The program's libraries with their loader, unless the nodes' own are used.
    libraries: Option<Files>,
    /// Our libraries.
    ours: Vec<PathBuf>,
    start: Start,
    args: Vec<String>,
    /// A message for the user about the program and MPI.
    about_mpi: Option<String>,
    /// The architecture that the program is for, if its file says so.
    arch: Option<Arch>,
    /// True if the job has MPI and the program may use it: a file that is not linked with an MPI
    /// library does not.
    mpi: bool,
}

/// A set of libraries for a node.
#[derive(Debug)]
pub(crate) struct Set {
    link: &'static str,
    /// A name that identifies the contents.
    pub(crate) name: String,
    pub(crate) archive: Vec<u8>,
}

/// The start of the program, with names relative to the job's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Start {
    /// A program of the node.
    Named(String),
    /// A file, run with the node's own loader and libraries.
    File(String),
    /// A file, run by the given loader with the libraries in the job's folder.
    Loader { loader: String, file: String },
}

/// The working folder, with the files that are copied to it.
fn working_folder(spec: &JobSpec) -> anyhow::Result<Files> {
    let work = match &spec.cwd {
        Some(folder) => {
            check_size("--cwd", folder)?;
            Source::Path(folder.clone())
        }
        None => Source::Folder,
    };
    let mut contents: Files = vec![(WORK.into(), work)];
    for path in &spec.copy {
        let name = files::name_of(path).with_context(|| format!("--copy {}", path.display()))?;
        check_size("--copy", path)?;
        contents.push((Path::new(WORK).join(name), Source::Path(path.clone())));
    }
    let tools = spec.tools.iter().map(|(name, text)| {
        (Path::new(TOOLS).join(name), Source::File(0o755, text.clone().into_bytes()))
    });
    contents.extend(tools);
    Ok(contents)
}

impl Bundle {
    /// Creates the bundle that `args` asks for. Libraries for another architecture than the host's
    /// are built and fetched if necessary.
    ///
    /// # Errors
    ///
    /// If a file does not exist or cannot run on nodes.
    pub(crate) fn new(spec: &JobSpec, progress: &dyn Progress) -> anyhow::Result<Self> {
        let Some((program, words)) = spec.program.split_first() else { bail!("no program named") };
        let mut contents = working_folder(spec)?;
        let bundle = |start, contents, arch| Self {
            contents,
            libraries: None,
            ours: Vec::new(),
            start,
            args: words.to_vec(),
            about_mpi: None,
            arch,
            mpi: spec.mpi,
        };
        if !program.contains('/') && !matches!(program.as_str(), "." | "..") {
            if spec.libs == Libs::Host {
                bail!(
                    "--libs host: {program} is a program of the nodes; write ./{program} for a file"
                );
            }
            let ours = libraries::find()?;
            return Ok(Self { ours, ..bundle(Start::Named(program.clone()), contents, None) });
        }
        let path = Path::new(program);
        let (bytes, loader) = read(path)?;
        let about_mpi = elf::about_mpi(program, &bytes, spec.mpi);
        let without_mpi = elf::without_mpi(program, &bytes).filter(|_| !spec.mpi);
        let explain = |error: anyhow::Error| match without_mpi {
            Some(why) => error.context(why),
            None => error,
        };
        let uses_mpi = spec.mpi && elf::uses_mpi(&bytes);
        let arch = Arch::of_elf(&bytes);
        let name = libraries::name(path)?.to_owned();
        contents.push((Path::new(BIN).join(&name), Source::File(0o755, bytes)));
        let (ours, closure) = match (arch, loader) {
            // The nodes' own libraries are used, for example for MPI.
            (Some(Arch::Arm64), Some(_)) if spec.libs.are_the_nodes(uses_mpi) => {
                (libraries::find_arm64(progress)?.0, None)
            }
            (Some(Arch::Arm64), Some(loader)) => {
                let found = cross_arch::closure(&loader, path, progress);
                let (ours, closure) = found.map_err(explain)?;
                (ours, without_mpis(closure, spec))
            }
            // A static program uses no libraries.
            (Some(Arch::Arm64), None) => (Vec::new(), None),
            (_, loader) => {
                let ours = libraries::find()?;
                let loader = loader.filter(|_| !spec.libs.are_the_nodes(uses_mpi));
                let closure = loader.map(|loader| closure(&loader, path, &ours, spec));
                (ours, closure.transpose().map_err(explain)?.flatten())
            }
        };
        let (libraries, start) = match closure {
            Some(Closure { loader, files }) => {
                let files = files.into_iter();
                let set = files.map(|(name, path)| (name.into(), Source::Path(path)));
                (Some(set.collect()), Start::Loader { loader, file: name })
            }
            // A static program, a script, or a program with the nodes' own libraries.
            None => (None, Start::File(name)),
        };
        // Where the host's libraries are used, none of them is MPI's.
        let mpi = spec.mpi && (arch.is_none() || uses_mpi || libraries.is_none());
        Ok(Self { libraries, ours, about_mpi, mpi, ..bundle(start, contents, arch) })
    }

    /// Returns the architecture that the program is for, or `None` for scripts and for programs of
    /// the nodes.
    pub(crate) fn arch(&self) -> Option<Arch> {
        self.arch
    }

    /// Adapts the bundle to the architecture of a machine.
    ///
    /// # Errors
    ///
    /// If the program is for another architecture, or there are no libraries for this one.
    pub(crate) fn fit(&mut self, machine: Arch, progress: &dyn Progress) -> anyhow::Result<()> {
        match (self.arch, &self.start) {
            (Some(arch), Start::File(file) | Start::Loader { file, .. }) if arch != machine => {
                bail!("cannot run {file}: it is for {arch}, and the machine's nodes are {machine}")
            }
            // Programs that a script starts may use our libraries, so these must be for the nodes.
            (None, _) if machine == Arch::Arm64 => {
                self.ours = libraries::find_arm64(progress)?.0;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the nodes need an image with MPI.
    pub(crate) fn uses_mpi(&self) -> bool {
        self.mpi
    }

    /// Returns a message for the user about the program and MPI, if there is one.
    pub(crate) fn about_mpi(&self) -> Option<&str> {
        self.about_mpi.as_deref()
    }

    /// Packs the folder `name`, with `map` in it and links to sets of libraries in the folder
    /// `place`.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub(crate) fn pack(
        &self,
        name: &str,
        map: String,
        (place, sets): (&str, &[Set]),
    ) -> anyhow::Result<Vec<u8>> {
        let mut contents = self.contents.clone();
        contents.push((MAP.into(), Source::File(0o644, map.into_bytes())));
        let link = |set: &Set| {
            let to = Path::new(place).join(&set.name);
            (set.link.into(), Source::Link(to))
        };
        contents.extend(sets.iter().map(link));
        pack(name, &contents)
    }

    /// Returns the sets of libraries.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub(crate) fn sets(&self) -> anyhow::Result<Vec<Set>> {
        let set = |link, files: &Files| -> anyhow::Result<Set> {
            let archive = pack(link, files)?;
            let hash = Sha256::digest(&archive);
            let name = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
            Ok(Set { link, name, archive })
        };
        let ours = self
            .ours
            .iter()
            .map(|library| Ok((libraries::name(library)?.into(), Source::Path(library.clone()))));
        let mut sets = vec![set(TOFU, &ours.collect::<anyhow::Result<_>>()?)?];
        if let Some(libraries) = &self.libraries {
            sets.push(set(LIB, libraries)?);
        }
        Ok(sets)
    }

    /// Returns the command line that runs the program, if the job's folder is at `folder`.
    pub(crate) fn command(&self, folder: &str) -> Vec<String> {
        let words = match &self.start {
            Start::Named(name) => vec![name.clone()],
            Start::File(file) => vec![format!("{folder}/{BIN}/{file}")],
            Start::Loader { loader, file } => vec![
                format!("{folder}/{LIB}/{loader}"),
                "--library-path".to_owned(),
                format!("{folder}/{LIB}:{folder}/{TOFU}"),
                format!("{folder}/{BIN}/{file}"),
            ],
        };
        // The shell sets the working folder. Programs of the nodes come before ours.
        let shell = ["/bin/sh", "-c", START].map(str::to_owned);
        let folders = [format!("{folder}/{WORK}"), format!("{folder}/{TOOLS}")];
        [&shell[..], &folders, &words, &self.args].concat()
    }

    /// Returns the variables that let the program find the contents of the folder.
    pub(crate) fn variables(&self, folder: &str) -> Vec<(String, String)> {
        vec![
            (tofu_jtofu::vars::FILE.to_owned(), format!("{folder}/{MAP}")),
            ("LD_LIBRARY_PATH".to_owned(), format!("{folder}/{TOFU}")),
        ]
    }
}

fn pack(name: &str, contents: &[(PathBuf, Source)]) -> anyhow::Result<Vec<u8>> {
    let mut archive = Vec::new();
    let skipped = files::pack_folder(name, contents, &mut archive)?;
    if skipped > 0 {
        log::warn!("{skipped} that are neither files, folders nor links were left out");
    }
    Ok(archive)
}

/// Checks that what an option names can be copied to nodes: a file or folder, and not too large.
fn check_size(option: &str, path: &Path) -> anyhow::Result<()> {
    let cannot = |path: &Path| format!("{option} {}: cannot read it", path.display());
    let mut size = 0;
    let top = fs::metadata(path).with_context(|| cannot(path))?;
    if !top.is_file() && !top.is_dir() {
        bail!("{option} {}: it is neither a file nor a folder", path.display());
    }
    let mut left = vec![(path.to_owned(), top)];
    while let Some((next, metadata)) = left.pop() {
        size += metadata.len();
        if size > MAX_COPY {
            bail!(
                "{option} {}: it has more than {} MiB, and is copied to every node; name one with \
                 what the job needs",
                path.display(),
                MAX_COPY >> 20
            );
        }
        if metadata.is_dir() {
            for entry in fs::read_dir(&next).with_context(|| cannot(&next))? {
                let entry = entry?;
                left.push((entry.path(), entry.metadata()?));
            }
        }
    }
    Ok(())
}

/// Returns a program's bytes, and its loader if it is linked dynamically.
fn read(path: &Path) -> anyhow::Result<(Vec<u8>, Option<PathBuf>)> {
    let shown = path.display();
    let bytes = tofu_input::read(path, tofu_input::PROGRAM)
        .with_context(|| format!("cannot run {shown}"))?;
    if bytes.starts_with(b"#!") {
        return Ok((bytes, None));
    }
    let Ok(FileKind::Elf64) = FileKind::parse(&*bytes) else {
        bail!("cannot run {shown}: it is neither an ELF program of 64 bits nor a script with #!");
    };
    let loader = elf::loader(&bytes).with_context(|| format!("cannot run {shown}"))?;
    Ok((bytes, loader))
}

/// Returns the libraries that a program is run with, or `None` if the nodes' own are used.
fn closure(
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

/// Returns the libraries of a program, or `None` if the nodes' own are used because one of them is
/// an MPI library, which the program may be linked with through another one.
fn without_mpis(closure: Closure, spec: &JobSpec) -> Option<Closure> {
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

    #[test]
    fn programs_are_told_from_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, contents: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, contents).unwrap();
            path
        };
        let why = |path: &Path| format!("{:#}", read(path).unwrap_err());
        assert!(why(&folder.path().join("none")).contains("No such file"));
        assert!(why(folder.path()).contains("it is a folder"));
        assert!(why(&file("text", b"hello")).contains("neither an ELF program"));
        assert!(why(&file("empty", b"")).contains("neither an ELF program"));
        let own = fs::read("/proc/self/exe").unwrap();
        let mut other = own[..4096].to_vec();
        other[18..20].copy_from_slice(&183u16.to_le_bytes());
        let loader = read(&file("arm", &other)).unwrap().1;
        assert_eq!(loader, elf::loader(&own).unwrap());
        other[18..20].copy_from_slice(&243u16.to_le_bytes());
        assert!(why(&file("riscv", &other)).contains("another processor"));
        assert!(why(&file("cut", &own[..63])).contains("cannot run"));
        assert_eq!(read(&file("script", b"#!/bin/sh\n")).unwrap().1, None);
        // This test program is linked as the host's programs are.
        assert!(read(Path::new("/proc/self/exe")).unwrap().1.is_some());
    }
}
