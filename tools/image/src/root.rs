//! A Debian root file system with packages of the user's choice, as an ext4 image.
//!
//! dpkg-deb unpacks the packages, and they are entered in a dpkg database as unpacked. Then dpkg in
//! the new root runs their own set-up scripts. That takes a root user: the real one, or the one in
//! a user namespace, which ordinary users may create on most hosts. Where neither is available, the
//! scripts do not run; see [`RootAccess::Bare`].
//!
//! The scripts of packages for another architecture run in a guest, which needs only QEMU on the
//! host.

mod guest;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::apt::{self, Apt};
use crate::arch::{self, Arch};
use crate::cache::{Cache, remove_folder};
use crate::error::{Error, IoContext, Result};
use crate::fetched::{LIBRARIES, LOADER};
use crate::hash::hex;
use crate::initramfs::SETUP;
use crate::manifest::Manifest;
use crate::progress::{Phase, Progress};
use crate::run;

pub(crate) use guest::Guest;

/// Packages in every root, in addition to Debian's essential ones.
const BASE: &[&str] = &["iproute2", "iputils-ping", "kmod", "mount", "pciutils", "procps"];
/// The folder with the files for setting the packages up.
const BUILD: &str = "tofu-build";
/// Folders that a guest does not need.
const WASTE: &[&str] = &[
    BUILD,
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/bug",
    "var/cache/apt",
    "var/lib/apt/lists",
];
/// ext4 without the features that only a writable disk needs.
const FEATURES: &str = "none,dir_index,dir_nlink,ext_attr,extent,extra_isize,filetype,flex_bg,\
                        large_file,sparse_super";
/// The file system's label, with which init finds the disk.
const LABEL: &str = "tofu-root";

const CONFIGURE: &str = include_str!("../init/configure");
const ENTER: &str = include_str!("../init/enter");
/// Identifies what is done to the packages.
pub(crate) const RECIPE: &str =
    concat!("3\n", include_str!("../init/configure"), include_str!("../init/enter"));

/// Room in an image in addition to what its files take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Guests only read it.
    Little,
    /// The packages' scripts have yet to run there. They mostly write compiled Python.
    ForScripts,
}

/// The way to run packages' scripts on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RootAccess {
    /// As root, in their own namespaces.
    Root,
    /// As root with chroot only, as in a container that may not mount.
    Chroot,
    /// As the root user of a user namespace.
    UserNamespace,
    /// Not at all: users, groups and libraries are set up, but alternatives and the rest are not.
    Bare,
}

impl RootAccess {
    /// Returns the words before the command that runs there.
    fn prefix(self) -> Option<Vec<OsString>> {
        let user: &[&str] = match self {
            RootAccess::Root => &[],
            RootAccess::UserNamespace => &["--user", "--map-root-user"],
            RootAccess::Chroot => return Some(Vec::new()),
            RootAccess::Bare => return None,
        };
        let apart = ["--mount", "--pid", "--fork", "--kill-child"];
        let mut words = vec![run::find("unshare")?.into_os_string()];
        words.extend(user.iter().chain(&apart).map(OsString::from));
        Some(words)
    }

    /// Returns a command that runs `program` in this way.
    fn command(self, program: &Path) -> Option<Command> {
        let prefix = self.prefix()?;
        Some(match prefix.split_first() {
            None => run::command(program),
            Some((first, rest)) => {
                let mut command = run::command(Path::new(first));
                command.args(rest).arg(program);
                command
            }
        })
    }

    /// Returns a command that runs the script `tofu-build/configure` in `root` with an argument.
    ///
    /// # Errors
    /// [`Error::NoTool`] if the host does not permit that.
    pub(crate) fn enter(self, root: &Path, argument: &str) -> Result<Command> {
        let shell = run::find("sh").unwrap_or_else(|| "/bin/sh".into());
        let mut command = self.command(&shell).ok_or_else(|| Error::NoTool {
            tool: "a root user, real or in a user namespace,".into(),
            purpose: "run programs in a separate root file system",
            remedy: "allow user namespaces on this host, or run this as root",
        })?;
        command.args(["-c", ENTER, "enter"]).arg(root).arg(argument);
        Ok(command)
    }

    /// Returns the best access that the host allows.
    pub(crate) fn find(progress: &dyn Progress) -> Result<Self> {
        let ways: &[RootAccess] = match rustix::process::geteuid().is_root() {
            true => &[RootAccess::Root, RootAccess::Chroot],
            false => &[RootAccess::UserNamespace],
        };
        for &way in ways {
            let probe = if way == RootAccess::Chroot { "chroot" } else { "true" };
            let Some(program) = run::find(probe) else { continue };
            let Some(mut command) = way.command(&program) else { continue };
            if way == RootAccess::Chroot {
                command.args(["/", "true"]);
            }
            match run::run(command, "looking for namespaces", progress, || {}) {
                Ok(output) if output.ok => return Ok(way),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                _ => {}
            }
        }
        Ok(RootAccess::Bare)
    }
}

/// Copies a file or folder out of a root image into the folder `to`.
pub(crate) fn copy_out(
    cache: &Cache,
    image: &Path,
    from: &str,
    to: &Path,
    progress: &dyn Progress,
) -> Result<()> {
    Tools::find(cache, progress)?.copy_out(image, from, to, progress)
}

/// Makes the part with the root image for `packages` if it does not exist yet. `guest` is for
/// packages of another architecture than the host's. The caller holds the lock.
pub(crate) fn part(
    cache: &Cache,
    packages: &[String],
    guest: Option<Guest<'_>>,
    refresh: bool,
    progress: &dyn Progress,
) -> Result<(String, Manifest)> {
    let arch = guest.as_ref().map_or(Arch::default(), |guest| guest.arch);
    let mut recipe = RECIPE.to_owned();
    if guest.is_some() {
        recipe.push_str(SETUP);
    }
    let hash = Sha256::digest(format!("{recipe}\n{}", packages.join("\n")));
    let key = format!("root-{}{}", &hex(&hash)[..12], arch::suffix(arch));
    let manifest = cache.make_part(&key, refresh, |folder, manifest| {
        let apt = cache.apt_for(arch, progress)?;
        let tools = Tools::find(cache, progress)?;
        let mut wanted = vec!["?essential"];
        wanted.extend(BASE);
        wanted.extend(packages.iter().map(String::as_str));
        let mut debs = apt.closure(&wanted, apt::From::Release)?;
        // base-files has the links /bin, /lib and so on, which must exist before anything else.
        debs.sort_by_key(|deb| deb.name() != "base-files");
        let files = apt.fetch(&debs, apt::From::Release)?;
        let root = folder.join("root");
        unpack(&apt, &files, &root, progress)?;
        prepare(&root)?;
        let mut waste = WASTE.to_vec();
        match &guest {
            None => configure(&root, manifest, progress)?,
            // The guest removes the files that the scripts need.
            Some(_) => waste.retain(|&folder| folder != BUILD),
        }
        for folder in waste {
            remove_folder(&root.join(folder))?;
        }
        progress.update(Phase::Root, 0, 1);
        let image = folder.join("root.ext4");
        let room = if guest.is_some() { Room::ForScripts } else { Room::Little };
        tools.make_image(&root, &image, room, progress)?;
        remove_folder(&root)?;
        if let Some(guest) = guest {
            guest.configure(cache, &image, (ENTER, debs.len() as u64), progress)?;
            tools.copy_out(&image, "/var/lib/dpkg/status", folder, progress)?;
            let path = folder.join("status");
            let status = fs::read_to_string(&path).on("read", &path)?;
            fs::remove_file(&path).on("remove", &path)?;
            tell_unconfigured(&status, manifest, progress);
        }
        manifest.add_file(folder, "root.ext4")?;
        manifest.packages = apt::packages(&debs, &files)?;
        progress.update(Phase::Root, 1, 1);
        Ok(())
    })?;
    Ok((key, manifest))
}

/// Unpacks packages and enters them in the dpkg database of `root`.
fn unpack(apt: &Apt<'_>, files: &[PathBuf], root: &Path, progress: &dyn Progress) -> Result<()> {
    let database = root.join("var/lib/dpkg");
    let info = database.join("info");
    let build = root.join(BUILD);
    for folder in [&info, &database.join("updates"), &database.join("triggers"), &build] {
        fs::create_dir_all(folder).on("create", folder)?;
    }
    let mut status = String::new();
    let control = build.join("control");
    for (index, file) in files.iter().enumerate() {
        progress.update(Phase::Unpack, index as u64, files.len() as u64);
        let listing = apt.unpack_listed(file, root)?;
        apt.control(file, &control)?;
        let path = control.join("control");
        let description = fs::read_to_string(&path).on("read", &path)?;
        let stanza = Stanza::parse(&description);
        status.push_str(&stanza.status);
        let list = info.join(format!("{}.list", stanza.file_name));
        fs::write(&list, paths_of(&listing)).on("write", &list)?;
        for entry in fs::read_dir(&control).on("read", &control)?.flatten() {
            let name = entry.file_name();
            if name != "control" {
                let name = format!("{}.{}", stanza.file_name, name.to_string_lossy());
                let path = entry.path();
                fs::rename(&path, info.join(name)).on("move", &path)?;
            }
        }
        remove_folder(&control)?;
    }
    progress.update(Phase::Unpack, files.len() as u64, files.len() as u64);
    let write = |path: PathBuf, text: &str| fs::write(&path, text).on("write", &path);
    write(database.join("status"), &status)?;
    write(database.join("available"), "")?;
    // The format of the database that has the architecture in some names.
    write(info.join("format"), "1\n")
}

struct Stanza {
    /// The entry in the status file.
    status: String,
    /// The base of its file names in dpkg's info folder.
    file_name: String,
}

impl Stanza {
    /// Turns a package's control file into an entry of an unpacked package.
    fn parse(control: &str) -> Self {
        let field = |name: &str| {
            control
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .unwrap_or_default()
                .trim()
        };
        let package = field("Package");
        let file_name = match field("Multi-Arch") {
            "same" => format!("{package}:{}", field("Architecture")),
            _ => package.into(),
        };
        let mut status = String::new();
        for line in control.lines().filter(|line| !line.is_empty()) {
            status.push_str(line);
            status.push('\n');
            if line.starts_with("Package:") {
                status.push_str("Status: install ok unpacked\n");
            }
        }
        status.push('\n');
        Self { status, file_name }
    }
}

/// Returns the paths in tar's listing (`mode owner size date time ./path`, links with ` ->
/// target`), in dpkg's format.
fn paths_of(listing: &str) -> String {
    let mut list = String::new();
    for line in listing.lines() {
        let Some(at) = line.find(" ./") else { continue };
        let path = &line[at + 2..];
        let path = path.split(" -> ").next().unwrap_or(path);
        let path = path.split(" link to ").next().unwrap_or(path).trim_end_matches('/');
        list.push_str(if path.is_empty() { "/." } else { path });
        list.push('\n');
    }
    list
}

/// Adds files that the scripts of the unpacked packages expect.
fn prepare(root: &Path) -> Result<()> {
    let copy = |from: &str, to: &str| {
        let (from, to) = (root.join(from), root.join(to));
        fs::copy(&from, &to).on("copy", &from)
    };
    copy("usr/share/base-passwd/passwd.master", "etc/passwd")?;
    copy("usr/share/base-passwd/group.master", "etc/group")?;
    for (name, text) in
        [("etc/hostname", "tofu\n"), ("etc/fstab", ""), ("etc/resolv.conf", ""), ("etc/mtab", "")]
    {
        let path = root.join(name);
        fs::write(&path, text).on("write", &path)?;
    }
    let build = root.join(BUILD);
    fs::create_dir_all(&build).on("create", &build)?;
    let script = build.join("configure");
    fs::write(&script, CONFIGURE).on("write", &script)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).on("write", &script)
}

/// Configures the unpacked packages, as far as the host permits.
fn configure(root: &Path, manifest: &mut Manifest, progress: &dyn Progress) -> Result<()> {
    let way = RootAccess::find(progress)?;
    let shell = run::find("sh").unwrap_or_else(|| "/bin/sh".into());
    let Some(mut command) = way.command(&shell) else {
        return bare(root, manifest, progress);
    };
    let kind = if way == RootAccess::UserNamespace { "mapped" } else { "root" };
    command.args(["-c", ENTER, "enter"]).arg(root).arg(kind);
    let database = root.join("var/lib/dpkg/status");
    let installed = || {
        let status = fs::read_to_string(&database).unwrap_or_default();
        let done = status.matches("\nStatus: install ok installed\n").count();
        (done as u64, status.matches("\nStatus: ").count() as u64, status)
    };
    let total = installed().1;
    let mut ticks = 0u32;
    let output = run::run(command, "configuring packages", progress, || {
        // dpkg first records its work in small files, so this lags behind.
        ticks += 1;
        if ticks.is_multiple_of(20) {
            progress.update(Phase::Configure, installed().0, total);
        }
    })?;
    for device in ["null", "zero", "full", "random", "urandom"] {
        let _ = fs::remove_file(root.join("dev").join(device));
    }
    let (done, _, status) = installed();
    progress.update(Phase::Configure, done, total);
    if done == 0 || (!output.ok && output.stderr.contains("No space left")) {
        return Err(run::failure(&output, "dpkg".into(), "configuring packages", root));
    }
    if done < total {
        log::debug!("{}\n{}", output.stdout, output.stderr);
        tell_unconfigured(&status, manifest, progress);
    }
    Ok(())
}

/// Reports which packages could not be configured.
fn tell_unconfigured(status: &str, manifest: &mut Manifest, progress: &dyn Progress) {
    for name in unconfigured(status) {
        let text = format!("package {name} could not be set up on this host");
        progress.note(&text);
        manifest.notes.push(text);
    }
}

/// Returns the packages in a dpkg status file that are not fully installed.
fn unconfigured(status: &str) -> Vec<String> {
    let bad = |stanza: &str| {
        let name = stanza.lines().find_map(|line| line.strip_prefix("Package: "))?;
        let state = stanza.lines().find_map(|line| line.strip_prefix("Status: "))?;
        (!state.ends_with(" installed")).then(|| name.to_owned())
    };
    status.split("\n\n").filter_map(bad).collect()
}

/// Does those parts of the set-up that need no root user.
fn bare(root: &Path, manifest: &mut Manifest, progress: &dyn Progress) -> Result<()> {
    let text = "this host allows neither root nor user namespaces: the packages' set-up scripts \
                did not run, so names that are alternatives (awk, mpirun) are missing";
    progress.note(text);
    manifest.notes.push(text.into());
    // Folders that the scripts of base-files make, and that nearly every program expects.
    for folder in ["root", "home", "mnt", "opt", "srv", "var/tmp", "usr/local/bin"] {
        let path = root.join(folder);
        fs::create_dir_all(&path).on("create", &path)?;
    }
    // Debian's ldconfig is static, so it runs on any host.
    let mut command = run::command(&root.join("usr/sbin/ldconfig"));
    command.arg("-r").arg(root);
    run::must(command, "listing libraries", root, progress)?;
    Ok(())
}

/// The host's mke2fs, or one in the cache.
struct Tools {
    mke2fs: PathBuf,
    /// The root that contains it, unless it is the host's.
    root: Option<PathBuf>,
}

impl Tools {
    fn find(cache: &Cache, progress: &dyn Progress) -> Result<Self> {
        if let Some(mke2fs) = run::find("mke2fs") {
            return Ok(Self { mke2fs, root: None });
        }
        cache.make_part("tools", false, |folder, manifest| {
            let apt = cache.apt(progress)?;
            let debs = apt.closure(&["e2fsprogs"], apt::From::Release)?;
            let files = apt.fetch(&debs, apt::From::Release)?;
            apt.unpack(&files, &folder.join("root"))?;
            manifest.packages = apt::packages(&debs, &files)?;
            Ok(())
        })?;
        let root = cache.part_folder("tools").join("root");
        Ok(Self { mke2fs: root.join("usr/sbin/mke2fs"), root: Some(root) })
    }

    /// Returns a command of e2fsprogs, preceded by the words in `prefix`.
    fn command(&self, name: &str, prefix: &[OsString]) -> Command {
        let mut words = prefix.to_vec();
        if let Some(root) = &self.root {
            let libraries = root.join(LIBRARIES);
            words.push(libraries.join(LOADER).into());
            words.extend(["--library-path".into(), libraries.into()]);
        }
        words.push(self.mke2fs.with_file_name(name).into());
        let mut command = run::command(Path::new(&words[0]));
        command.args(&words[1..]);
        command
    }

    /// Makes an ext4 image of the tree `from`. All files in it belong to root, unless this process
    /// is root and they have other owners.
    fn make_image(
        &self,
        from: &Path,
        image: &Path,
        room: Room,
        progress: &dyn Progress,
    ) -> Result<()> {
        let (mut bytes, files) = measure(from)?;
        let mut inodes = files;
        if room == Room::ForScripts {
            bytes += bytes / 4 + (64 << 20);
            inodes += inodes / 2 + 1000;
        }
        // Guests write elsewhere, so apart from ext4's own data little room is needed.
        let blocks = (bytes + bytes / 10 + inodes * 300 + (16 << 20)) / 1024;
        let ordinary = !rustix::process::geteuid().is_root();
        let mut prefix: Vec<OsString> = Vec::new();
        if ordinary
            && RootAccess::find(progress)? == RootAccess::UserNamespace
            && let Some(unshare) = run::find("unshare")
        {
            // mke2fs copies owners. In the namespace this user is root, so the files belong to
            // root.
            prefix.extend([unshare.into(), "--user".into(), "--map-root-user".into()]);
        }
        let mut command = self.command("mke2fs", &prefix);
        command
            .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-L", LABEL])
            // Features are named, because the defaults differ between versions.
            .args(["-O", FEATURES, "-E", "root_owner=0:0"])
            .arg("-N")
            .arg((inodes + inodes / 20 + 100).to_string())
            .arg("-d")
            .arg(from)
            .arg(image)
            .arg(format!("{blocks}k"));
        run::must(command, "making the root file system", image, progress)?;
        if ordinary && prefix.is_empty() {
            self.give_to_root(image, files, progress)?;
        }
        Ok(())
    }

    /// Copies a file or folder out of an image into the folder `to`. Symbolic links remain links.
    fn copy_out(&self, image: &Path, from: &str, to: &Path, progress: &dyn Progress) -> Result<()> {
        let mut command = self.command("debugfs", &[]);
        command.arg("-R").arg(format!("rdump \"{from}\" \"{}\"", to.display())).arg(image);
        // debugfs prints failures, but still exits with success.
        run::must(command, "reading a root file system", to, progress)?;
        let name = from.rsplit('/').next().unwrap_or(from);
        if to.join(name).symlink_metadata().is_err() {
            return Err(Error::NotInImage { image: image.into(), path: from.into() });
        }
        Ok(())
    }

    /// Makes root the owner of all files in an image with `count` of them. mke2fs numbers inodes
    /// from 12. Files with several names use fewer inodes, which does no harm.
    fn give_to_root(&self, image: &Path, count: u64, progress: &dyn Progress) -> Result<()> {
        let script = image.with_file_name("owners");
        let mut text = String::new();
        for inode in 12..12 + count {
            for field in ["uid", "gid"] {
                text.push_str(&format!("sif <{inode}> {field} 0\n"));
            }
        }
        fs::write(&script, text).on("write", &script)?;
        let mut command = self.command("debugfs", &[]);
        command.arg("-w").arg("-f").arg(&script).arg(image);
        run::must(command, "making the root file system", image, progress)?;
        fs::remove_file(&script).on("remove", &script)
    }
}

/// Returns the room that the files below a folder take, in bytes, and their number.
fn measure(folder: &Path) -> Result<(u64, u64)> {
    let (mut bytes, mut count) = (0, 0);
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).on("read", &next)? {
            let entry = entry.on("read", &next)?;
            let data = entry.metadata().on("look at", &entry.path())?;
            count += 1;
            bytes += (data.size() / data.nlink().max(1)).next_multiple_of(4096);
            if data.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok((bytes, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_files_become_status_entries() {
        let control = "Package: libc6\nVersion: 2.41\nArchitecture: amd64\nMulti-Arch: same\n\
                       Description: x\n long\n .\n text\n";
        let stanza = Stanza::parse(control);
        assert_eq!(stanza.file_name, "libc6:amd64");
        assert!(stanza.status.starts_with("Package: libc6\nStatus: install ok unpacked\nVersion"));
        assert!(stanza.status.ends_with(" text\n\n"));
        assert_eq!(Stanza::parse("Package: bash\nMulti-Arch: foreign\n").file_name, "bash");
    }

    #[test]
    fn listings_become_paths() {
        let listing = "drwxr-xr-x root/root         0 2025-01-01 10:00 ./\n\
                       drwxr-xr-x root/root         0 2025-01-01 10:00 ./usr/bin/\n\
                       -rwxr-xr-x root/root      1234 2025-01-01 10:00 ./usr/bin/a b\n\
                       lrwxrwxrwx root/root         0 2025-01-01 10:00 ./bin -> usr/bin\n\
                       hrwxr-xr-x root/root 0 2025-01-01 10:00 ./usr/bin/c link to ./usr/bin/d\n";
        assert_eq!(paths_of(listing), "/.\n/usr/bin\n/usr/bin/a b\n/bin\n/usr/bin/c\n");
    }

    #[test]
    fn packages_left_unconfigured_are_named() {
        let status = "Package: a\nStatus: install ok installed\n\nPackage: b\n\
                      Status: install ok half-configured\n\nPackage: c\n\
                      Status: install ok unpacked\n\n";
        assert_eq!(unconfigured(status), ["b", "c"]);
    }
}
