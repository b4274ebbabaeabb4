//! Everything that a job needs on a node: the program and its files in one folder, and libraries in
//! others, which later jobs can reuse.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use object::FileKind;
use sha2::{Digest, Sha256};
use tofu_agent::files::{self, Source};
use tofu_image::{Arch, Progress};
use tofu_linux_nodes::Preload;

use crate::closure::{closure, without_mpis};
use crate::elf::Family;
use crate::folder::SEARCH;
use crate::libraries::{Closure, PROVIDER};
use crate::machine::Machine;
use crate::mpi::CHOICE;
use crate::spec::{JobSpec, Libs};
use crate::{cross_arch, elf, folder, libraries, mpi, node_mpi};

/// The most that is copied to nodes of a file or folder, in bytes.
const MAX_COPY: u64 = 256 << 20;

/// Folders in a job's folder. The last two are links to sets of libraries: the host's with their
/// loader, and ours.
const BIN: &str = "bin";
const LIB: &str = "lib";
const TOFU: &str = "tofu";
/// The folder of a node with all sets of libraries, by their names. Jobs share the sets.
pub(crate) const LIBRARIES: &str = "/run/tofu-libraries";
/// The folder of scripts that replace programs of the nodes.
const TOOLS: &str = "tools";
/// The folder in which ranks run.
pub(crate) const WORK: &str = "work";
/// The file with the mapinfo.
pub(crate) const MAP: &str = "map.json";

/// Starts a program in a folder, with another one at the end of the path. Where the node's loader
/// is one that jobs have brought, programs that the program starts get the job's libraries.
const START: &str = r#"
cd "$0" && PATH=$PATH:$1 && export PATH || exit
if [ -n "$2" ] && [ "$(readlink "$2")" = "$3" ]; then
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$4
    export LD_LIBRARY_PATH
fi
shift 4
exec "$@"
"#;
/// Starts a script if the node has its interpreter, which images of few packages may lack.
const SCRIPT: &str = r#"
command -v "$0" > /dev/null && exec "$@"
echo "cannot run ${1##*/}: this node has no $0;" \
    "an image made with \`tofu image build --with ${0##*/}\` may have it" >&2
exit 127
"#;
/// The folder for the loader on nodes that lack one. It is a copy: sets of libraries
/// come and go.
const LOADERS: &str = "/run/tofu-loader";

/// Files, by their names in a folder.
type Files = Vec<(PathBuf, Source)>;

/// A job's files, and how its programs are started.
#[derive(Debug)]
pub(crate) struct Bundle {
    contents: Vec<(PathBuf, Source)>,
    /// Libraries of the programs with their loader, unless the nodes' own are used.
    libraries: Option<BTreeMap<String, PathBuf>>,
    /// Our libraries.
    ours: Vec<PathBuf>,
    /// At least one.
    programs: Vec<Started>,
    /// A message for the user about the program and MPI.
    about_mpi: Option<String>,
    /// The architecture that the programs are for, if their files say so.
    arch: Option<Arch>,
    /// True if the job has MPI and a program may use it: a file that is not linked with an MPI
    /// library does not.
    mpi: bool,
    /// The MPI that programs are linked with, or load.
    family: Option<Family>,
    /// A program that is itself linked with the MPI of the nodes.
    linked: Option<(String, Family)>,
    /// The Python of the nodes that programs run, if any.
    python: Option<String>,
    /// True if the job brings an mpich that can use libfabric.
    brings_mpich: bool,
    /// The provider of libfabric, if the programs' MPI is to use it.
    provider: Option<PathBuf>,
    /// Programs that ranks may start by themselves.
    folder: Vec<folder::Program>,
    /// The path at which they expect their loader.
    loader: Option<PathBuf>,
}

/// A program with its arguments.
#[derive(Debug)]
struct Started {
    start: Start,
    args: Vec<String>,
}

impl Started {
    /// The words of its command: the program or interpreter, and the arguments.
    fn words(&self) -> Vec<String> {
        let first = match &self.start {
            Start::Named(name) => name,
            Start::Script { interpreter, .. } => interpreter,
            Start::File(file) | Start::Loader { file, .. } => file,
        };
        std::iter::once(first).chain(&self.args).cloned().collect()
    }
}

/// A set of libraries for a node.
#[derive(Debug)]
pub(crate) struct Set {
    link: &'static str,
    /// A name that identifies the contents.
    pub(crate) name: String,
    pub(crate) archive: Vec<u8>,
}

impl Set {
    fn new(link: &'static str, files: &Files) -> anyhow::Result<Self> {
        let archive = pack(link, files)?;
        let hash = Sha256::digest(&archive);
        let name = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { link, name, archive })
    }

    /// Our libraries, with the provider of libfabric if a program's MPI uses it. Copies of them
    /// are the same set, whenever they were made.
    fn of_ours(ours: &[PathBuf], provider: Option<&Path>) -> anyhow::Result<Self> {
        let file = |name: &str, path: &Path| -> anyhow::Result<_> {
            let bytes = tofu_input::read(path, tofu_input::PROGRAM)
                .with_context(|| path.display().to_string())?;
            Ok((name.into(), Source::File(0o755, bytes)))
        };
        let ours = ours.iter().map(|library| file(libraries::name(library)?, library));
        let provider = provider.map(|path| file(PROVIDER, path));
        Self::new(TOFU, &ours.chain(provider).collect::<anyhow::Result<_>>()?)
    }
}

/// Returns our libraries for nodes that are clones, as jobs without an MPI need them.
///
/// # Errors
///
/// If the libraries do not exist.
pub fn preload() -> anyhow::Result<Preload> {
    let Set { name, archive, .. } = Set::of_ours(&libraries::find()?, None)?;
    Ok(Preload { folder: format!("{LIBRARIES}/{name}"), archive })
}

/// The start of the program, with names relative to the job's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Start {
    /// A program of the node.
    Named(String),
    /// A file, run with the node's own loader and libraries.
    File(String),
    /// A script, and its interpreter, which not all nodes have.
    Script { interpreter: String, file: String },
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

/// A program of a job and what it needs on nodes.
struct Needed {
    started: Started,
    /// The program's file, by its place in the job's folder.
    file: Option<(PathBuf, Source)>,
    ours: Vec<PathBuf>,
    libraries: Option<BTreeMap<String, PathBuf>>,
    about_mpi: Option<String>,
    arch: Option<Arch>,
    mpi: bool,
    family: Option<Family>,
}

impl Needed {
    /// Finds out what a program needs. Its file gets a place of this number.
    fn new(
        (number, words): (usize, &[String]),
        spec: &JobSpec,
        folder: &[folder::Program],
        progress: &dyn Progress,
    ) -> anyhow::Result<Self> {
        let Some((program, args)) = words.split_first() else { bail!("no program named") };
        if program.contains('/') || matches!(program.as_str(), "." | "..") {
            return Self::of_file((number, program, args), spec, folder, progress);
        }
        if spec.libs == Libs::Host {
            bail!("--libs host: {program} is a program of the nodes; write ./{program} for a file");
        }
        let ours = libraries::find()?;
        Ok(Self {
            mpi: spec.mpi && folder::may_use_mpi(words, None, (folder, &ours), spec),
            ours,
            started: Started { start: Start::Named(program.clone()), args: args.to_vec() },
            file: None,
            libraries: None,
            about_mpi: None,
            arch: None,
            family: None,
        })
    }

    fn of_file(
        (number, program, args): (usize, &str, &[String]),
        spec: &JobSpec,
        folder: &[folder::Program],
        progress: &dyn Progress,
    ) -> anyhow::Result<Self> {
        let path = Path::new(program);
        let (bytes, loader) = read(path)?;
        let uses_mpi = spec.mpi && elf::uses_mpi(&bytes);
        let arch = Arch::of_elf(&bytes);
        let (ours, closure) =
            find(path, (arch, loader, uses_mpi), spec, progress).map_err(|error| {
                match elf::without_mpi(program, &bytes).filter(|_| !spec.mpi) {
                    Some(why) => error.context(why),
                    None => error,
                }
            })?;
        let may_use = match arch {
            None => folder::may_use_mpi(args, Some(&bytes), (folder, &ours), spec),
            // Where the host's libraries are used, none of them is MPI's.
            Some(_) => uses_mpi || closure.is_none(),
        };
        let mut file = libraries::name(path)?.to_owned();
        if number > 0 {
            file = format!("{number}/{file}");
        }
        let about_mpi = elf::about_mpi(program, &bytes, spec.mpi);
        let family = elf::links(&bytes).ok().and_then(|links| elf::family(&links.needed));
        let interpreter = interpreter(&bytes);
        let contents = (Path::new(BIN).join(&file), Source::File(0o755, bytes));
        let (libraries, start) = match closure {
            Some(Closure { loader, files }) => (Some(files), Start::Loader { loader, file }),
            // A static program, or one with the nodes' own libraries.
            None => match interpreter {
                Some(interpreter) => (None, Start::Script { interpreter, file }),
                None => (None, Start::File(file)),
            },
        };
        Ok(Self {
            started: Started { start, args: args.to_vec() },
            file: Some(contents),
            ours,
            libraries,
            about_mpi,
            arch,
            mpi: spec.mpi && may_use,
            family,
        })
    }
}

/// Finds our libraries for a file, and those of the host that it is run with.
fn find(
    path: &Path,
    (arch, loader, uses_mpi): (Option<Arch>, Option<PathBuf>, bool),
    spec: &JobSpec,
    progress: &dyn Progress,
) -> anyhow::Result<(Vec<PathBuf>, Option<Closure>)> {
    Ok(match (arch, loader) {
        // The nodes' own libraries are used, for example for MPI.
        (Some(Arch::Arm64), Some(_)) if spec.libs.are_the_nodes(uses_mpi) => {
            (libraries::find_arm64(progress)?.0, None)
        }
        (Some(Arch::Arm64), Some(loader)) => {
            let (ours, closure) = cross_arch::closure(&loader, path, progress)?;
            (ours, without_mpis(closure, spec))
        }
        // A static program uses no libraries.
        (Some(Arch::Arm64), None) => (Vec::new(), None),
        (_, loader) => {
            let ours = libraries::find()?;
            let loader = loader.filter(|_| !spec.libs.are_the_nodes(uses_mpi));
            let closure = loader.map(|loader| closure(&loader, path, &ours, spec));
            (ours, closure.transpose()?.flatten())
        }
    })
}

/// Adds libraries to others. Those that are there already stay.
fn add(files: Option<BTreeMap<String, PathBuf>>, to: &mut Option<BTreeMap<String, PathBuf>>) {
    for (name, path) in files.into_iter().flatten() {
        to.get_or_insert_default().entry(name).or_insert(path);
    }
}

impl Bundle {
    /// Creates the bundle for `args`. Libraries for another architecture than the host's are built
    /// and fetched if necessary.
    ///
    /// # Errors
    ///
    /// If a file does not exist or cannot run on nodes.
    pub(crate) fn new(spec: &JobSpec, progress: &dyn Progress) -> anyhow::Result<Self> {
        let mut bundle = Self {
            contents: working_folder(spec)?,
            libraries: None,
            ours: Vec::new(),
            programs: Vec::new(),
            about_mpi: None,
            arch: None,
            mpi: false,
            family: None,
            linked: None,
            python: None,
            brings_mpich: false,
            provider: None,
            folder: folder::programs(spec),
            loader: None,
        };
        let others = spec.others.iter().map(|(_, words)| &**words);
        for program in std::iter::once(&*spec.program).chain(others).enumerate() {
            let needed = Needed::new(program, spec, &bundle.folder, progress)?;
            if let (Some(one), Some(other)) = (bundle.arch, needed.arch)
                && one != other
            {
                bail!("cannot run {}: it is for {other}, and others for {one}", program.1[0]);
            }
            if needed.libraries.is_none() && bundle.linked.is_none() {
                bundle.linked = needed.family.map(|family| (program.1[0].clone(), family));
            }
            let script = needed.file.as_ref().and_then(|(_, source)| script(source));
            let python = || folder::python(&needed.started.words(), script);
            bundle.python = bundle.python.or_else(python);
            bundle.contents.extend(needed.file);
            add(needed.libraries, &mut bundle.libraries);
            bundle.programs.push(needed.started);
            bundle.about_mpi = bundle.about_mpi.or(needed.about_mpi);
            bundle.family = bundle.family.or(needed.family);
            bundle.mpi |= needed.mpi;
            // Those of a program that says for which architecture they are count more.
            if needed.arch.is_some() || bundle.ours.is_empty() {
                bundle.ours = needed.ours;
            }
            bundle.arch = bundle.arch.or(needed.arch);
        }
        // A script may start programs that are.
        bundle.family = bundle.family.or_else(|| folder::family(&bundle.folder));
        bundle.brings_mpich = spec.mpi && folder::brings_mpich(spec);
        if bundle.brings_mpich {
            bundle.family = bundle.family.or(Some(Family::Mpich));
        }
        // The user names that of a program that loads it.
        if spec.mpi && bundle.family.is_none() {
            bundle.family = mpi::named(spec)?;
        }
        Ok(bundle)
    }

    /// Returns the architecture that the program is for, or `None` for scripts and for programs of
    /// the nodes.
    pub(crate) fn arch(&self) -> Option<Arch> {
        self.arch
    }

    /// Finds out which MPI Python of a machine's nodes has, and whether they have the one that a
    /// program is linked with.
    ///
    /// # Errors
    ///
    /// If they do not.
    pub(crate) fn look_for_mpi(&mut self, machine: &Machine, spec: &JobSpec) -> anyhow::Result<()> {
        if !self.mpi {
            return Ok(());
        }
        if let Some(python) = self.python.as_ref().filter(|_| self.family.is_none()) {
            self.family = node_mpi::of_python(machine, python, spec);
        }
        match &self.linked {
            // A folder of the user's may have it.
            Some(_) if spec.env.iter().any(|own| own.name == SEARCH) => Ok(()),
            Some((program, family)) => node_mpi::check(machine, program, *family),
            None => Ok(()),
        }
    }

    /// Adapts the bundle to the architecture of a machine.
    ///
    /// # Errors
    ///
    /// If the program is for another architecture, or there are no libraries for this one.
    pub(crate) fn fit(
        &mut self,
        machine: Arch,
        spec: &JobSpec,
        progress: &dyn Progress,
    ) -> anyhow::Result<()> {
        if let Some(arch) = self.arch.filter(|arch| *arch != machine) {
            let files = self.programs.iter().filter_map(|program| match &program.start {
                Start::File(file) | Start::Loader { file, .. } | Start::Script { file, .. } => {
                    Some(file.as_str())
                }
                Start::Named(_) => None,
            });
            let files = files.collect::<Vec<_>>().join(", ");
            bail!("cannot run {files}: it is for {arch}, and the machine's nodes are {machine}");
        }
        if self.arch.is_none() && machine == Arch::Arm64 {
            // Programs that a script starts may use our libraries, so these must be for the nodes.
            self.ours = libraries::find_arm64(progress)?.0;
        }
        let chosen = spec.env.iter().any(|variable| variable.name == CHOICE);
        let by_libfabric = match self.family {
            Some(Family::OpenMpi { .. }) => true,
            Some(Family::Mpich) => self.brings_mpich,
            None => false,
        };
        if by_libfabric && spec.mpi && Arch::own() == Some(machine) && !chosen {
            match libraries::find_provider() {
                Ok(provider) => self.provider = Some(provider),
                Err(error) => log::warn!("MPI's messages do not go over Tofu: {error:#}"),
            }
        }
        let needs = folder::needs(&self.folder, machine, &self.ours, spec, progress);
        self.loader = needs.loader;
        add(Some(needs.files).filter(|files| !files.is_empty()), &mut self.libraries);
        Ok(())
    }

    /// Returns the MPI that the nodes' image needs, if it needs any.
    pub(crate) fn mpi(&self) -> Option<Family> {
        self.mpi.then(|| self.family.unwrap_or(Family::Mpich))
    }

    /// Returns the MPI that programs are linked with.
    pub(crate) fn family(&self) -> Option<Family> {
        self.family
    }

    /// Returns a line that tells the way of MPI's messages, if it is not the image's.
    pub(crate) fn way(&self) -> Option<&'static str> {
        self.provider.as_ref().map(|_| match self.family {
            Some(Family::Mpich) => "MPI's messages go over Tofu, by libfabric of the job's mpich",
            _ => "MPI's messages go over Tofu, by libfabric of Open MPI",
        })
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
        let mut sets = vec![Set::of_ours(&self.ours, self.provider.as_deref())?];
        if let Some(libraries) = &self.libraries {
            let files = libraries.iter();
            let files = files.map(|(name, path)| (name.into(), Source::Path(path.clone())));
            sets.push(Set::new(LIB, &files.collect())?);
        }
        Ok(sets)
    }

    /// Returns what a node without a loader needs for programs that ranks start: where
    /// these expect the loader, its place among the given sets of libraries, and that of the copy.
    pub(crate) fn loader(&self, sets: &[Set]) -> Option<[String; 3]> {
        let expected = self.loader.as_ref()?;
        let name = libraries::name(expected).ok()?;
        let set = sets.iter().find(|set| set.link == LIB)?;
        Some([
            expected.to_string_lossy().into_owned(),
            format!("{}/{name}", set.name),
            format!("{LOADERS}/{name}"),
        ])
    }

    /// Returns the command line that runs the program of each of `ranks` ranks, if the job's folder
    /// is at `folder`. `of` returns the number of a rank's program.
    pub(crate) fn command(
        &self,
        folder: &str,
        ranks: u32,
        of: impl Fn(u32) -> usize,
    ) -> Vec<String> {
        let words = |program: &Started| {
            let mut words = match &program.start {
                Start::Named(name) => vec![name.clone()],
                Start::File(file) => vec![format!("{folder}/{BIN}/{file}")],
                Start::Script { interpreter, file } => vec![
                    "/bin/sh".to_owned(),
                    "-c".to_owned(),
                    SCRIPT.to_owned(),
                    interpreter.clone(),
                    format!("{folder}/{BIN}/{file}"),
                ],
                Start::Loader { loader, file } => vec![
                    format!("{folder}/{LIB}/{loader}"),
                    "--library-path".to_owned(),
                    format!("{folder}/{LIB}:{folder}/{TOFU}"),
                    format!("{folder}/{BIN}/{file}"),
                ],
            };
            words.extend(program.args.iter().cloned());
            words
        };
        let programs: Vec<_> = self.programs.iter().map(words).collect();
        let program = match &*programs {
            [program] => program.clone(),
            programs => dispatcher(programs, ranks, of),
        };
        let expected = self.loader.as_deref().unwrap_or(Path::new(""));
        let copy = Path::new(LOADERS).join(expected.file_name().unwrap_or_default());
        // The shell sets the working folder. Programs of the nodes come before ours.
        let start = [
            "/bin/sh".to_owned(),
            "-c".to_owned(),
            START.to_owned(),
            format!("{folder}/{WORK}"),
            format!("{folder}/{TOOLS}"),
            expected.to_string_lossy().into_owned(),
            copy.to_string_lossy().into_owned(),
            format!("{folder}/{LIB}"),
        ];
        [&start[..], &program].concat()
    }

    /// Returns the variables that let the program find the contents of the folder.
    pub(crate) fn variables(&self, folder: &str) -> Vec<(String, String)> {
        let ours = format!("{folder}/{TOFU}");
        let provider = self.provider.as_ref().map(|_| OsStr::new(&ours));
        let mpi = self.family.filter(|_| self.mpi).map(|family| mpi::variables(family, provider));
        let mpi = mpi.into_iter().flatten();
        let mut all: Vec<_> = mpi
            .map(|(name, value)| (name.to_owned(), value.to_string_lossy().into_owned()))
            .collect();
        all.extend([
            (tofu_jtofu::vars::FILE.to_owned(), format!("{folder}/{MAP}")),
            (SEARCH.to_owned(), ours.clone()),
        ]);
        all
    }

    /// Returns the user's variables. Loaders look for libraries of the folder behind the user's.
    pub(crate) fn given(&self, folder: &str, spec: &JobSpec) -> Vec<(String, String)> {
        let mut given = spec.variables();
        for (_, value) in given.iter_mut().filter(|(name, _)| name == SEARCH) {
            value.push_str(&format!(":{folder}/{TOFU}"));
        }
        given
    }
}

/// Returns a command of a shell that runs the program of its rank: on nodes all ranks of a job have
/// the same command.
fn dispatcher(programs: &[Vec<String>], ranks: u32, of: impl Fn(u32) -> usize) -> Vec<String> {
    let quoted = |word: &String| format!("'{}'", word.replace('\'', "'\\''"));
    let programs: Vec<String> = programs
        .iter()
        .map(|words| words.iter().map(quoted).collect::<Vec<_>>().join(" "))
        .collect();
    let line = |rank| format!("{rank}) exec {} ;;\n", programs[of(rank)]);
    let lines: String = (0..ranks).map(line).collect();
    vec!["sh".to_owned(), "-c".to_owned(), format!("case $TOFU_RANK in\n{lines}esac")]
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

/// Returns the text of a file if it is a script.
fn script(source: &Source) -> Option<&[u8]> {
    match source {
        Source::File(_, bytes) => Some(bytes.as_slice()).filter(|bytes| bytes.starts_with(b"#!")),
        _ => None,
    }
}

/// Returns the program that runs a script, by its first line. Returns `None` for other files, and
/// for scripts of the shell that all nodes have.
fn interpreter(bytes: &[u8]) -> Option<String> {
    let line = bytes.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let found = match first.rsplit('/').next() {
        Some("env") => words.find(|word| !word.starts_with('-') && !word.contains('=')),
        _ => Some(first),
    };
    found.filter(|name| !matches!(*name, "/bin/sh" | "sh")).map(str::to_owned)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_runs_its_program() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let programs = [words("./a 1"), words("./b it's"), words("./c")];
        let command = dispatcher(&programs, 4, |rank| [0, 1, 1, 2][rank as usize]);
        assert_eq!(&command[..2], ["sh", "-c"]);
        let lines: Vec<_> = command[2].lines().collect();
        let expected = [
            "case $TOFU_RANK in",
            "0) exec './a' '1' ;;",
            "1) exec './b' 'it'\\''s' ;;",
            "2) exec './b' 'it'\\''s' ;;",
            "3) exec './c' ;;",
            "esac",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn interpreters_of_scripts_are_found() {
        let of = |text: &str| interpreter(text.as_bytes());
        assert_eq!(of("#!/bin/bash -x\necho").as_deref(), Some("/bin/bash"));
        assert_eq!(of("#! /usr/bin/env -S A=1 python3 -u\n").as_deref(), Some("python3"));
        for text in ["#!/bin/sh\n", "#!/bin/sh -e", "#!/usr/bin/env sh", "#!", "", "\x7fELF"] {
            assert_eq!(of(text), None, "{text}");
        }
        let run = |interpreter: &str| {
            let mut command = std::process::Command::new("/bin/sh");
            let output = command.args(["-c", SCRIPT, interpreter, "/bin/echo", "a b"]).output();
            let output = output.unwrap();
            let text = [output.stdout, output.stderr].concat();
            (output.status.code(), String::from_utf8(text).unwrap())
        };
        assert_eq!(run("sh"), (Some(0), "a b\n".to_owned()));
        let (code, said) = run("/none/ksh");
        assert_eq!((code, said.lines().count()), (Some(127), 1), "{said}");
        assert!(said.starts_with("cannot run echo: this node has no /none/ksh;"), "{said}");
        assert!(said.contains("`tofu image build --with ksh`"), "{said}");
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
