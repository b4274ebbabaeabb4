//! Debian packages, through the host's apt-get, which resolves dependencies and checks signatures.
//! State, cache, sources and configuration are our own, so nothing on the host is changed, and root
//! is not needed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::arch::{self, Arch};
use crate::error::{Error, IoContext, Result};
use crate::hash::sha256_file;
use crate::manifest::Package;
use crate::mirror;
use crate::progress::{Phase, Progress};
use crate::run;

/// The release of kernels and packages: Debian 13.
pub(crate) const RELEASE: &str = "trixie";
/// Newer versions of some packages for that release. QEMU comes from here, because the release's
/// own is too old.
pub(crate) const BACKPORTS: &str = "trixie-backports";
/// The age beyond which package lists are fetched again before a build.
const LISTS_AGE: Duration = Duration::from_secs(24 * 3600);

/// The most room that the lists take, in bytes, together with apt's cache of them. The cache is a
/// file, because rebuilding it would cost each command a second of processor time.
const LISTS_ROOM: u64 = 96 << 20;

/// A file that is as old as the lists.
const STAMP: &str = "lists.stamp";

const PURPOSE: &str = "fetch Debian packages";
const REMEDY: &str = "install it (Debian, Ubuntu: apt and dpkg; Fedora: dnf install apt dpkg; \
                      Arch: pacman -S apt dpkg)";

/// The suites that a package may be taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    Release,
    Backports,
}

impl From {
    pub(crate) fn suite(self) -> &'static str {
        match self {
            From::Release => RELEASE,
            From::Backports => BACKPORTS,
        }
    }
}

/// A package file to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Deb {
    /// The name in apt's archive folder: `name_version_architecture.deb`, with `:` written as
    /// `%3a`.
    pub(crate) file: String,
    /// Size in bytes.
    pub(crate) size: u64,
}

impl Deb {
    pub(crate) fn name(&self) -> &str {
        self.file.split('_').next().unwrap_or_default()
    }

    pub(crate) fn version(&self) -> String {
        self.file.split('_').nth(1).unwrap_or_default().replace("%3a", ":")
    }
}

/// apt, with all of its files in one folder. The caller holds the cache's lock.
pub(crate) struct Apt<'a> {
    folder: PathBuf,
    progress: &'a dyn Progress,
    apt_get: PathBuf,
    apt_cache: PathBuf,
    dpkg_deb: PathBuf,
    mirror: String,
}

fn tool(name: &str) -> Result<PathBuf> {
    run::find(name).ok_or(Error::NoTool { tool: name.into(), purpose: PURPOSE, remedy: REMEDY })
}

/// Returns the keys of the Debian archive on this host, as a `signed-by` value.
fn keyring() -> Result<String> {
    let absolute = |path: &Path| fs::canonicalize(path).ok()?.to_str().map(str::to_owned);
    if let Some(named) = std::env::var_os("TOFU_KEYRING").filter(|value| !value.is_empty()) {
        let named = Path::new(&named);
        tofu_input::open(named, tofu_input::DESCRIPTION).on("read", named)?;
        return absolute(named).ok_or(Error::NoKeyring);
    }
    for name in ["debian-archive-keyring.pgp", "debian-archive-keyring.gpg"] {
        if let Some(path) = absolute(&Path::new("/usr/share/keyrings").join(name)) {
            return Ok(path);
        }
    }
    // Debian systems have single keys here, one for each purpose.
    let mut keys: Vec<String> = fs::read_dir("/etc/apt/trusted.gpg.d")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("debian-archive-") && name.contains(RELEASE)
        })
        .filter_map(|path| absolute(&path))
        .collect();
    keys.sort();
    if keys.is_empty() { Err(Error::NoKeyring) } else { Ok(keys.join(",")) }
}

impl<'a> Apt<'a> {
    /// Prepares apt in `folder` for packages of `arch`, and makes sure that its package lists are
    /// fresh enough. `mirror` is the user's choice; without it, the host's apt configuration
    /// decides.
    pub(crate) fn open(
        folder: &Path,
        arch: Arch,
        mirror: Option<&str>,
        progress: &'a dyn Progress,
    ) -> Result<Self> {
        let (apt_get, apt_cache) = (tool("apt-get")?, tool("apt-cache")?);
        let dpkg_deb = tool("dpkg-deb")?;
        let keyring = keyring()?;
        let candidates = match mirror {
            Some(mirror) => {
                let fit = mirror.contains(":/") && !mirror.contains(|c: char| c.is_whitespace());
                if !fit {
                    return Err(Error::Invalid {
                        what: "mirror",
                        value: mirror.into(),
                        allowed: "an address of a Debian archive, like http://HOST/debian",
                    });
                }
                vec![mirror.trim_end_matches('/').to_owned()]
            }
            None => mirror::of_host(Path::new("/etc/apt")),
        };
        let Some(first) = candidates.first() else { return Err(Error::NoMirror) };
        // The path is written to files whose formats use quotes and brackets.
        if folder.to_string_lossy().contains(['"', '\n', '[', ']', ';', '\u{fffd}']) {
            return Err(Error::Invalid {
                what: "cache folder",
                value: folder.display().to_string(),
                allowed: "apt takes no path with quotes, brackets, semicolons or line ends; set \
                          TOFU_CACHE to another",
            });
        }
        for sub in ["lists/partial", "archives/partial", "none/partial"] {
            let path = folder.join(sub);
            fs::create_dir_all(&path).on("create", &path)?;
        }
        let mut apt = Self {
            folder: folder.into(),
            progress,
            apt_get,
            apt_cache,
            dpkg_deb,
            mirror: first.clone(),
        };
        apt.configure(arch)?;

        // Older lists are good enough if they come from a mirror that would be used now.
        let sources = folder.join("sources.list");
        let present = fs::read_to_string(&sources).unwrap_or_default();
        for mirror in &candidates {
            if present == sources_list(mirror, &keyring) && apt.lists_are_fresh() {
                apt.mirror.clone_from(mirror);
                return Ok(apt);
            }
        }
        let mut problem = None;
        for mirror in candidates {
            apt.mirror = mirror;
            fs::write(&sources, sources_list(&apt.mirror, &keyring)).on("write", &sources)?;
            match apt.update() {
                Ok(()) => return Ok(apt),
                Err(error @ (Error::Mirror { .. } | Error::Signature { .. })) => {
                    // The user knows the first address.
                    problem.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(problem.unwrap_or(Error::NoMirror))
    }

    /// Writes our apt.conf. From the host's it takes only the settings for reaching a mirror,
    /// because the others (hooks, pins, folders) must not apply here.
    fn configure(&self, arch: Arch) -> Result<()> {
        let mut dump = run::command(&tool("apt-config")?);
        dump.arg("dump");
        let dump = run::run(dump, "reading apt's configuration", self.progress, || {})?.stdout;
        let (folder, arch) = (self.folder.display(), arch::debian(arch));
        let text = format!(
            "{}Dir::Etc::main \"/dev/null\";\n\
             Dir::Etc::parts \"/dev/null\";\n\
             Dir::Etc::preferences \"/dev/null\";\n\
             Dir::Etc::preferencesparts \"/dev/null\";\n\
             Dir::Etc::sourcelist \"{folder}/sources.list\";\n\
             Dir::Etc::sourceparts \"/dev/null\";\n\
             Dir::State \"{folder}\";\n\
             Dir::State::lists \"{folder}/lists\";\n\
             Dir::State::status \"{folder}/status\";\n\
             Dir::Cache \"{folder}\";\n\
             Dir::Cache::archives \"{folder}/archives\";\n\
             Dir::Cache::pkgcache \"packages.bin\";\n\
             Dir::Cache::srcpkgcache \"\";\n\
             Dir::Log \"{folder}\";\n\
             Acquire::GzipIndexes \"true\";\n\
             Acquire::Languages \"none\";\n\
             Acquire::Retries \"2\";\n\
             APT::Architecture \"{arch}\";\n\
             APT::Architectures {{ \"{arch}\"; }};\n\
             APT::Install-Recommends \"false\";\n\
             APT::Install-Suggests \"false\";\n\
             APT::Update::Error-Mode \"any\";\n\
             APT::Sandbox::User \"root\";\n",
            mirror::transport_settings(&dump),
        );
        // apt's cache of the lists is valid only if the status file has not changed since.
        let write = |name: &str, text: &str| {
            let path = self.folder.join(name);
            if fs::read_to_string(&path).is_ok_and(|before| before == text) {
                return Ok(());
            }
            fs::write(&path, text).on("write", &path)
        };
        write("apt.conf", &text)?;
        // As far as this apt knows, no package is installed.
        write("status", "")
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = run::command(program);
        command.env("APT_CONFIG", self.folder.join("apt.conf"));
        command
    }

    fn stamp(&self) -> PathBuf {
        self.folder.join(STAMP)
    }

    /// Makes the apt in `folder` fetch new lists the next time it is opened.
    pub(crate) fn forget_lists(folder: &Path) {
        let _ = fs::remove_file(folder.join(STAMP));
    }

    fn lists_are_fresh(&self) -> bool {
        let changed = fs::metadata(self.stamp()).and_then(|data| data.modified());
        // A stamp from the future comes from a wrong clock, and is not fresh.
        changed
            .is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < LISTS_AGE))
    }

    fn mirror_error(&self, output: &run::Output) -> Error {
        let failure =
            run::failure(output, "apt-get".into(), "fetching from the mirror", &self.folder);
        let Error::Child { reason, .. } = failure else { return failure };
        let mirror = self.mirror.clone();
        if output.stderr.contains(" is not signed") || output.stderr.contains("NO_PUBKEY") {
            return Error::Signature { mirror };
        }
        // One cause is enough: the second one is usually the same error for the other list.
        let cause = reason.split("; ").next().unwrap_or_default();
        // The message begins with the address already.
        let cause = match cause.strip_prefix("Failed to fetch ") {
            Some(rest) => rest.split_once("  ").map_or(rest, |(_, cause)| cause),
            None => cause,
        };
        Error::Mirror { mirror, reason: cause.trim().trim_end_matches(':').to_owned() }
    }

    /// Fetches the package lists and checks their signatures.
    fn update(&self) -> Result<()> {
        self.progress.update(Phase::Lists, 0, 0);
        must_have_room(&self.folder, LISTS_ROOM)?;
        let _ = fs::remove_file(self.stamp());
        let mut command = self.command(&self.apt_get);
        command.args(["-q", "update"]);
        let output = run::run(command, "fetching package lists", self.progress, || {})?;
        if !output.ok {
            return Err(self.mirror_error(&output));
        }
        let stamp = self.stamp();
        fs::write(&stamp, &self.mirror).on("write", &stamp)?;
        self.progress.update(Phase::Lists, 1, 1);
        Ok(())
    }

    /// Returns `packages` and everything that they depend on.
    pub(crate) fn closure(&self, packages: &[&str], from: From) -> Result<Vec<Deb>> {
        self.uris(&["install"], packages, from)
    }

    /// Returns `packages` only.
    pub(crate) fn alone(&self, packages: &[&str], from: From) -> Result<Vec<Deb>> {
        self.uris(&["download"], packages, from)
    }

    fn uris(&self, action: &[&str], packages: &[&str], from: From) -> Result<Vec<Deb>> {
        let mut command = self.command(&self.apt_get);
        command
            .args(["-qq", "-y", "--print-uris", "-t", from.suite()])
            // Existing files would not be listed, so this names a folder without any.
            .arg("-o")
            .arg(format!("Dir::Cache::archives={}/none", self.folder.display()))
            .args(action)
            .arg("--")
            .args(packages);
        let output = run::run(command, "resolving packages", self.progress, || {})?;
        if output.ok {
            return Ok(parse_uris(&output.stdout));
        }
        let unknown = output.stderr.lines().find_map(|line| {
            let rest = line.split_once("Unable to locate package ").map(|(_, rest)| rest);
            let rest = rest.or_else(|| {
                line.strip_prefix("E: Package '")
                    .and_then(|rest| rest.split_once("' has no installation candidate"))
                    .map(|(name, _)| name)
            });
            rest.map(|name| name.trim().to_owned())
        });
        Err(match unknown {
            Some(name) => Error::NoPackage { name, release: from.suite() },
            None => run::failure(&output, "apt-get".into(), "resolving packages", &self.folder),
        })
    }

    /// Returns the names in a package's `Depends`.
    pub(crate) fn depends(&self, package: &str, from: From) -> Result<Vec<String>> {
        let mut command = self.command(&self.apt_cache);
        command.arg("-o").arg(format!("APT::Default-Release={}", from.suite()));
        command.args(["show", "--no-all-versions", "--", package]);
        let output = run::run(command, "asking for a package", self.progress, || {})?;
        if !output.ok {
            return Err(Error::NoPackage { name: package.into(), release: from.suite() });
        }
        Ok(parse_depends(&output.stdout))
    }

    /// Fetches the missing files of `debs`, and returns the path of each. Resumes partial downloads
    /// of an interrupted run.
    pub(crate) fn fetch(&self, debs: &[Deb], from: From) -> Result<Vec<PathBuf>> {
        let archives = self.folder.join("archives");
        let present = |deb: &Deb| {
            fs::metadata(archives.join(&deb.file)).is_ok_and(|data| data.len() == deb.size)
        };
        let total: u64 = debs.iter().map(|deb| deb.size).sum();
        let missing: Vec<&Deb> = debs.iter().filter(|deb| !present(deb)).collect();
        if !missing.is_empty() {
            let done = || -> u64 {
                debs.iter()
                    .map(|deb| {
                        [archives.join(&deb.file), archives.join("partial").join(&deb.file)]
                            .iter()
                            .filter_map(|path| fs::metadata(path).ok())
                            .map(|data| data.len())
                            .max()
                            .unwrap_or(0)
                            .min(deb.size)
                    })
                    .sum()
            };
            self.progress.update(Phase::Download, done(), total);
            must_have_room(&archives, total.saturating_sub(done()))?;
            let mut command = self.command(&self.apt_get);
            // `download` writes to the current folder, resumes partial files there, and finally
            // checks each against the signed lists. Only complete files leave that folder.
            command
                .args(["-q", "-t", from.suite(), "download", "--"])
                .args(missing.iter().map(|deb| format!("{}={}", deb.name(), deb.version())))
                .current_dir(archives.join("partial"));
            let output = run::run(command, "fetching packages", self.progress, || {
                self.progress.update(Phase::Download, done(), total);
            })?;
            if !output.ok {
                // Lists that name files which the mirror no longer has would fail again.
                let _ = fs::remove_file(self.stamp());
                return Err(self.mirror_error(&output));
            }
            for deb in &missing {
                let (here, there) =
                    (archives.join("partial").join(&deb.file), archives.join(&deb.file));
                fs::rename(&here, &there).on("rename", &here)?;
            }
        }
        self.progress.update(Phase::Download, total, total);
        let paths: Vec<PathBuf> = debs.iter().map(|deb| archives.join(&deb.file)).collect();
        Ok(paths)
    }

    /// Unpacks package files into `to`, one over another, without running any of their scripts.
    pub(crate) fn unpack(&self, files: &[PathBuf], to: &Path) -> Result<()> {
        fs::create_dir_all(to).on("create", to)?;
        for (index, file) in files.iter().enumerate() {
            self.progress.update(Phase::Unpack, index as u64, files.len() as u64);
            let mut command = run::command(&self.dpkg_deb);
            command.arg("-x").arg(file).arg(to);
            run::must(command, "unpacking a package", to, self.progress)?;
        }
        self.progress.update(Phase::Unpack, files.len() as u64, files.len() as u64);
        Ok(())
    }

    /// Unpacks the control files of a package (its description and scripts) into `to`.
    pub(crate) fn control(&self, file: &Path, to: &Path) -> Result<()> {
        let mut command = run::command(&self.dpkg_deb);
        command.arg("-e").arg(file).arg(to);
        run::must(command, "unpacking a package", to, self.progress)?;
        Ok(())
    }

    /// Unpacks a package file into `to`, and returns tar's listing of it.
    pub(crate) fn unpack_listed(&self, file: &Path, to: &Path) -> Result<String> {
        let mut command = run::command(&self.dpkg_deb);
        command.arg("-X").arg(file).arg(to);
        run::must(command, "unpacking a package", to, self.progress)
    }
}

/// Removes package files that are no longer needed.
pub(crate) fn discard(files: &[PathBuf]) {
    for file in files {
        let _ = fs::remove_file(file);
    }
}

fn sources_list(mirror: &str, keyring: &str) -> String {
    [RELEASE, BACKPORTS]
        .map(|suite| format!("deb [signed-by={keyring}] {mirror} {suite} main\n"))
        .concat()
}

/// Parses `apt-get --print-uris`, with `'address' file size hash` in each line.
fn parse_uris(text: &str) -> Vec<Deb> {
    let deb = |line: &str| {
        let rest = line.strip_prefix('\'')?.split_once("' ")?.1;
        let mut words = rest.split_whitespace();
        let file = words.next()?.to_owned();
        // Names come from the mirror's signed lists, but they become paths.
        let fit = file.ends_with(".deb") && !file.contains('/') && !file.starts_with('.');
        fit.then_some(())?;
        Some(Deb { file, size: words.next()?.parse().ok()? })
    };
    text.lines().filter_map(deb).collect()
}

/// Returns the names in the `Depends` of the first stanza, without versions, and the first one of
/// alternatives.
fn parse_depends(text: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("Depends: ")).unwrap_or_default();
    line.split(',')
        .filter_map(|depends| depends.split('|').next()?.split_whitespace().next())
        .map(|name| name.split(':').next().unwrap_or_default().to_owned())
        .collect()
}

/// Returns the manifest's entries for package files.
pub(crate) fn packages(debs: &[Deb], files: &[PathBuf]) -> Result<BTreeMap<String, Package>> {
    debs.iter()
        .zip(files)
        .map(|(deb, file)| {
            let package = Package { version: deb.version(), sha256: sha256_file(file)? };
            Ok((deb.name().to_owned(), package))
        })
        .collect()
}

/// Checks that a folder's file system has this many bytes free. On a full one, apt has been seen to
/// wait for ever for what it cannot write.
fn must_have_room(folder: &Path, bytes: u64) -> Result<()> {
    let data = rustix::fs::statvfs(folder).map_err(io::Error::from).on("look at", folder)?;
    if data.f_bavail.saturating_mul(data.f_frsize) < bytes {
        return Err(Error::DiskFull { path: folder.into() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disk_is_seen_before_apt_writes() {
        let folder = tempfile::tempdir().unwrap();
        must_have_room(folder.path(), 0).unwrap();
        let error = must_have_room(folder.path(), u64::MAX).unwrap_err().to_string();
        assert!(error.starts_with("disk full while writing "), "{error}");
    }

    #[test]
    fn uris_are_parsed_and_bad_ones_dropped() {
        let text = "'http://a.example/p/x_1%3a2.0-1_amd64.deb' x_1%3a2.0-1_amd64.deb 955316 \
                    SHA256:598a\n\
                    'http://a.example/p/y_1_all.deb' y_1_all.deb 12 MD5Sum:00\n\
                    'http://a.example/p/e.deb' ../../etc/e.deb 12 MD5Sum:00\n\
                    Reading package lists...\n'x\n";
        let debs = parse_uris(text);
        assert_eq!(debs.len(), 2);
        assert_eq!((debs[0].name(), debs[0].version()), ("x", "1:2.0-1".to_owned()));
        assert_eq!((debs[1].name(), debs[1].size), ("y", 12));
    }

    #[test]
    fn depends_are_parsed() {
        let text = "Package: linux-image-amd64\nDepends: linux-image-6.12 (= 1), kmod, \
                    dracut | initramfs-tools (>= 0.1), perl:any\n\nPackage: x\nDepends: y\n";
        assert_eq!(parse_depends(text), ["linux-image-6.12", "kmod", "dracut", "perl"]);
        assert_eq!(parse_depends("Package: x\n"), Vec::<String>::new());
    }

    #[test]
    fn sources_name_keys_and_both_suites() {
        let text = sources_list("http://a.example/debian", "/k.gpg");
        assert_eq!(
            text,
            "deb [signed-by=/k.gpg] http://a.example/debian trixie main\n\
             deb [signed-by=/k.gpg] http://a.example/debian trixie-backports main\n"
        );
    }
}
