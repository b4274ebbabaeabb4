//! QEMU with `vfio-user-pci`: the host's own, or one from Debian's backports in the cache.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::apt;
use crate::arch::{self, Arch};
use crate::cache::Cache;
use crate::error::{Error, IoContext, Result};
use crate::fetched::{LIBRARIES, start};
use crate::progress::{Progress, Silent};
use crate::run;

/// The first version with `vfio-user-pci`.
pub const MINIMUM: (u32, u32) = (10, 1);

/// The names for one QEMU: its program, its package, its part of the cache, and the variable with
/// which a user selects another one.
struct Names {
    program: &'static str,
    package: &'static str,
    part: &'static str,
    variable: &'static str,
}

/// Returns the names for the QEMU of this architecture.
const fn names(arch: Arch) -> Names {
    match arch {
        Arch::X86_64 => Names {
            program: "qemu-system-x86_64",
            package: "qemu-system-x86",
            part: "qemu",
            variable: "TOFU_QEMU",
        },
        Arch::Arm64 => Names {
            program: "qemu-system-aarch64",
            package: "qemu-system-arm",
            part: "qemu-arm64",
            variable: "TOFU_QEMU_ARM64",
        },
    }
}

/// The source of a QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The user named it.
    Named,
    /// It is installed on the host.
    Host,
    /// It is in the cache.
    Fetched,
}

/// A QEMU and how to start it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qemu {
    /// The program to run: QEMU, or the dynamic loader that comes with its libraries.
    pub program: PathBuf,
    /// Arguments that come before all others.
    pub args_prefix: Vec<OsString>,
    /// Variables to add to the environment.
    pub envs: Vec<(OsString, OsString)>,
    /// Its version, such as `11.1.3`.
    pub version: String,
    /// Its source.
    pub origin: Origin,
    /// True if it can give up system calls by itself (`-sandbox`).
    pub sandbox: bool,
    /// The folder with the program, its loader and its libraries, if it is in the cache.
    pub root: Option<PathBuf>,
}

impl Qemu {
    /// The arguments that make QEMU give up system calls that our nodes do not need.
    pub const SANDBOX: [&str; 2] =
        ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"];

    /// Returns the same QEMU, if it is in the cache, for a process that reaches its folder by
    /// another path.
    #[must_use]
    pub fn reached_by(&self, root: &Path, arch: Arch) -> Self {
        Self::in_root(root, arch, self.version.clone())
    }

    /// Returns a command that runs it, to which QEMU's own arguments can be added.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args_prefix).envs(self.envs.iter().map(|(name, value)| (name, value)));
        unnamed(&mut command);
        command
    }

    fn plain(program: PathBuf, known: Known, origin: Origin) -> Self {
        let Known { version, sandbox, .. } = known;
        let (args_prefix, envs) = (Vec::new(), Vec::new());
        Self { program, args_prefix, envs, version, origin, sandbox, root: None }
    }

    /// Returns the QEMU in `root`, which runs with its own loader and libraries, independently of
    /// the host's.
    fn in_root(root: &Path, arch: Arch, version: String) -> Self {
        let (program, mut args_prefix) = start(root, names(arch).program);
        for folder in ["usr/share/qemu", "usr/share/seabios"] {
            args_prefix.extend(["-L".into(), root.join(folder).into()]);
        }
        let modules = root.join(LIBRARIES).join("qemu");
        Self {
            program,
            args_prefix,
            envs: vec![("QEMU_MODULE_DIR".into(), modules.into())],
            version,
            origin: Origin::Fetched,
            // Debian's has it.
            sandbox: true,
            root: Some(root.to_owned()),
        }
    }
}

/// Parses the version that `--version` prints: "QEMU emulator version 11.1.3 (Debian ...)".
fn parse_version(text: &str) -> Option<(String, (u32, u32))> {
    let version = text.split_once("version ")?.1.split([' ', '\n', '(', ',']).next()?;
    let mut numbers = version.split('.').map(|number| number.parse::<u32>());
    let pair = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some((version.to_owned(), pair))
}

/// Properties of a host's program. They are stored, because asking the program takes a tenth of a
/// second.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    program: PathBuf,
    size: u64,
    modified: i64,
    version: String,
    /// True if it has `-sandbox`.
    sandbox: bool,
    /// The reason why it cannot be used.
    problem: Option<String>,
}

impl Known {
    fn fits(&self, program: &Path) -> bool {
        fs::metadata(program).is_ok_and(|data| {
            self.program == program && self.size == data.size() && self.modified == data.mtime()
        })
    }
}

/// Hides the variables that name a QEMU from a program that may be one. A script that runs `tofu
/// image qemu` would otherwise run itself again and again.
fn unnamed(command: &mut Command) {
    for arch in Arch::ALL {
        command.env_remove(names(arch).variable);
    }
}

/// Asks `program` for its version and device. An error means that it could not be run.
fn probe(program: &Path, progress: &dyn Progress) -> Result<Known> {
    let data = fs::metadata(program).on("look at", program)?;
    let mut command = run::command(program);
    unnamed(command.arg("--version"));
    let output = run::run(command, "asking QEMU for its version", progress, || {})?;
    let mut known = Known {
        program: program.into(),
        size: data.size(),
        modified: data.mtime(),
        version: String::new(),
        sandbox: false,
        problem: None,
    };
    match parse_version(&output.stdout) {
        None => known.problem = Some("it does not say that it is QEMU".into()),
        Some((version, pair)) if pair < MINIMUM => {
            let (major, minor) = MINIMUM;
            known.problem = Some(format!("QEMU {version} is older than {major}.{minor}"));
            known.version = version;
        }
        Some((version, _)) => {
            known.version = version;
            let mut command = run::command(program);
            unnamed(command.args(["-device", "vfio-user-pci,help"]));
            if !run::run(command, "asking QEMU for its devices", progress, || {})?.ok {
                known.problem = Some(format!(
                    "this QEMU {} was built without the vfio-user-pci device",
                    known.version
                ));
            }
            let mut command = run::command(program);
            unnamed(command.args(Qemu::SANDBOX).arg("--version"));
            known.sandbox = run::run(command, "asking QEMU for its sandbox", progress, || {})?.ok;
        }
    }
    Ok(known)
}

impl Cache {
    /// Returns a QEMU that can be used: the one that `named` or the variable `TOFU_QEMU` gives,
    /// else the host's if it is 10.1 or later and has `vfio-user-pci`, else the one in the cache,
    /// which is fetched (37 MB of packages) if it is missing.
    ///
    /// # Errors
    /// [`Error::Qemu`] if the named one cannot be used, and everything that can go wrong with
    /// fetching.
    pub fn qemu(&self, named: Option<&Path>, progress: &dyn Progress) -> Result<Qemu> {
        self.qemu_for(Arch::default(), named, progress)
    }

    /// Returns a QEMU for this architecture in the same way. The variable for arm64 is
    /// `TOFU_QEMU_ARM64` (38 MB of packages).
    ///
    /// # Errors
    /// As for [`Cache::qemu`].
    pub fn qemu_for(
        &self,
        arch: Arch,
        named: Option<&Path>,
        progress: &dyn Progress,
    ) -> Result<Qemu> {
        let Names { program: name, variable, .. } = names(arch);
        let variable = std::env::var_os(variable).filter(|value| !value.is_empty());
        if let Some(named) = named.map(Path::to_owned).or(variable.map(PathBuf::from)) {
            let bad = |reason| Error::Qemu { program: named.clone(), reason };
            let program = match named.components().count() {
                1 => run::find(&named.to_string_lossy()),
                _ => named.exists().then(|| named.clone()),
            };
            let program = program.ok_or_else(|| bad("there is no such program".into()))?;
            let known = self.probe_once(arch, &program, progress)?;
            return match &known.problem {
                None => Ok(Qemu::plain(program, known, Origin::Named)),
                Some(problem) => {
                    Err(bad(format!("{problem}; QEMU 10.1 or later with vfio-user-pci is needed")))
                }
            };
        }
        if let Some(program) = run::find(name) {
            match self.probe_once(arch, &program, progress) {
                Ok(known) if known.problem.is_none() => {
                    return Ok(Qemu::plain(program, known, Origin::Host));
                }
                Ok(known) => log::debug!("{}: {:?}", program.display(), known.problem),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => log::debug!("{error}"),
            }
        }
        self.fetched_qemu(arch, false, progress)
    }

    /// Returns what [`Cache::qemu_for`] would return now without fetching anything, for `tofu
    /// doctor`.
    pub fn present_qemu(&self, arch: Arch) -> Option<Qemu> {
        let Names { program, part, variable, .. } = names(arch);
        if std::env::var_os(variable).is_some_and(|value| !value.is_empty()) {
            // If one is named, nothing is fetched.
            return self.qemu_for(arch, None, &Silent).ok();
        }
        if let Some(program) = run::find(program)
            && let Ok(known) = self.probe_once(arch, &program, &Silent)
            && known.problem.is_none()
        {
            return Some(Qemu::plain(program, known, Origin::Host));
        }
        let manifest = self.part(part).ok()??;
        Some(Qemu::in_root(&self.root_of(part), arch, manifest.kernel))
    }

    fn probe_once(&self, arch: Arch, program: &Path, progress: &dyn Progress) -> Result<Known> {
        let file = self.folder().join(format!("host-qemu{}.toml", arch::suffix(arch)));
        let remembered = fs::read_to_string(&file).ok();
        if let Some(known) = remembered.and_then(|text| toml::from_str::<Known>(&text).ok())
            && known.fits(program)
        {
            return Ok(known);
        }
        let known = probe(program, progress)?;
        // The file only saves time: if it cannot be written, the program is queried again.
        if let Ok(text) = toml::to_string(&known) {
            let _ = fs::create_dir_all(self.folder()).and_then(|()| fs::write(&file, text));
        }
        Ok(known)
    }

    /// Returns the QEMU in the cache, and fetches it if it is missing or `refresh` is set.
    pub(crate) fn fetched_qemu(
        &self,
        arch: Arch,
        refresh: bool,
        progress: &dyn Progress,
    ) -> Result<Qemu> {
        let Names { package, part, .. } = names(arch);
        let from = apt::From::Backports;
        let manifest = self.fetch_program(part, &[package], from, refresh, progress, |root| {
            let mut command = Qemu::in_root(root, arch, String::new()).command();
            command.arg("--version");
            let said = run::must(command, "asking QEMU for its version", root, progress)?;
            let version = parse_version(&said).map(|(version, _)| version);
            Ok(version.unwrap_or_default())
        })?;
        Ok(Qemu::in_root(&self.root_of(part), arch, manifest.kernel))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn script(folder: &Path, text: &str) -> PathBuf {
        let path = folder.join("qemu");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn versions_are_parsed() {
        let parse = |text: &str| parse_version(text).map(|(_, pair)| pair);
        assert_eq!(
            parse("QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1~bpo13+1)\nCopyright"),
            Some((11, 1))
        );
        assert_eq!(parse("QEMU emulator version 9.2.50 (v9.2.0-1)"), Some((9, 2)));
        for bad in ["", "version", "version x.y", "GNU bash, version "] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn unfit_named_qemu_is_refused_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache"));
        let refusal = |text: &str| {
            let program = script(folder.path(), text);
            let error = cache.qemu(Some(&program), &Silent).unwrap_err().to_string();
            assert!(!error.contains('\n'), "{error}");
            let _ = fs::remove_file(folder.path().join("cache/host-qemu.toml"));
            error
        };
        let error = refusal("echo 'QEMU emulator version 7.2.22 (Debian)'");
        assert!(error.contains("QEMU 7.2.22 is older than 10.1"), "{error}");
        let error = refusal("echo hello");
        assert!(error.contains("does not say that it is QEMU"), "{error}");
        let error = refusal("[ \"$1\" = --version ] && echo 'QEMU emulator version 10.1.0'");
        assert!(error.contains("without the vfio-user-pci device"), "{error}");
        let missing = cache.qemu(Some(Path::new("/nonexistent/qemu")), &Silent).unwrap_err();
        assert!(missing.to_string().contains("no such program"), "{missing}");
    }

    #[test]
    fn fit_named_qemu_is_asked_once() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache"));
        let count = folder.path().join("count");
        let program = script(
            folder.path(),
            &format!("echo x >>{}; echo 'QEMU emulator version 10.2.0'", count.display()),
        );
        for _ in 0..3 {
            let qemu = cache.qemu(Some(&program), &Silent).unwrap();
            assert_eq!((qemu.version.as_str(), qemu.origin), ("10.2.0", Origin::Named));
            let command = qemu.command();
            assert_eq!(command.get_program(), program);
            assert!(command.get_envs().any(|env| env == (OsStr::new("TOFU_QEMU"), None)));
        }
        assert_eq!(fs::read_to_string(count).unwrap().lines().count(), 3);
    }
}
