//! Unpacks archives of a sender that is not trusted.
//!
//! The receiver chooses a folder and a name in it; the archive's own name does not count. The
//! folder's descriptor stays open, and everything is created relative to it, by openat2(2) with
//! `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`. So neither links in this archive or an earlier one
//! nor changes by other processes lead out of the folder.
//!
//! An archive is first unpacked into a scratch folder, so a damaged one changes nothing.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use rustix::process::geteuid;
use tar::EntryType;

use crate::files::{context, name_of};

/// Most files, folders and links in an archive.
const MAX_ENTRIES: usize = 1 << 20;
/// Most bytes of all their names.
const MAX_NAMES: usize = 64 << 20;
/// Most bytes of a path, as in Linux.
const MAX_PATH: u64 = 4096;
/// Deepest nesting of folders. Each level takes descriptors when it is moved or removed.
const MAX_DEPTH: usize = 128;
/// Most bytes after the end of an archive.
const MAX_PADDING: u64 = 1 << 20;
/// Bytes of a block of an archive.
const BLOCK: u64 = 512;
/// The name of the archive's file or folder in the scratch folder.
const TOP: &str = "top";

/// The destination of an archive's file or folder.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// It gets this name. A folder is merged into an existing one.
    Merged(&'a OsStr),
    /// It gets this name, and replaces at most a file, a link or an empty folder.
    Alone(&'a OsStr),
    /// The contents of the archive's folder are merged into the folder that it is unpacked in.
    Contents,
}

/// A folder that archives are unpacked in, held open.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    /// Its path, for messages.
    path: PathBuf,
}

impl Folder {
    /// Opens a folder. Links on the way are followed, because the caller has chosen the path.
    ///
    /// # Errors
    ///
    /// If there is no such folder.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, path, flags, Mode::empty());
        let fd = opened.map_err(|error| match error {
            Errno::NOENT | Errno::NOTDIR => {
                let message = format!("there is no folder {}", path.display());
                io::Error::new(io::ErrorKind::NotFound, message)
            }
            error => context(path, "cannot write to", &error.into()),
        })?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Unpacks an archive. Permissions are kept, owners and set-user bits are not. Returns the
    /// files and links in it by their paths below the archive's file or folder.
    ///
    /// # Errors
    ///
    /// If the archive is damaged, exceeds a limit, or does not hold exactly one file or folder; if
    /// it holds something other than files, folders and links; or if something cannot be written.
    pub fn unpack(&self, archive: impl Read, place: Place<'_>) -> io::Result<Vec<PathBuf>> {
        let scratch = Scratch::new(self)?;
        let arrived = Arrived::unpack(archive, &scratch.fd)?;
        let top = Path::new(TOP);
        let at = match place {
            Place::Contents => {
                let from = open_folder(&scratch.fd, top)
                    .map_err(|_| invalid("the archive does not hold a folder"))?;
                merge_contents(&from, &self.fd, &self.path)?;
                Path::new("")
            }
            Place::Merged(name) => {
                let name = Path::new(name_of(Path::new(name))?);
                merge(&scratch.fd, top, &self.fd, name, &self.path.join(name))?;
                name
            }
            Place::Alone(name) => {
                let name = Path::new(name_of(Path::new(name))?);
                rename(&scratch.fd, top, &self.fd, name, &self.path.join(name))?;
                name
            }
        };
        for (path, mode) in arrived.folders.iter().rev() {
            let path = at.join(path);
            // The folder itself belongs to the receiver.
            if !path.as_os_str().is_empty() {
                let folder = open_folder(&self.fd, &path);
                let changed = folder.and_then(|folder| Ok(rustix::fs::fchmod(&folder, *mode)?));
                changed.map_err(|error| context(&self.path.join(path), "cannot change", &error))?;
            }
        }
        Ok(arrived.files)
    }
}

/// Unpacks an archive to `to`: as `name` in it, if it is a folder, otherwise under its own name.
///
/// # Errors
///
/// As of [`Folder::unpack`], and if there is no such folder.
pub fn unpack(archive: impl Read, to: &Path, name: &OsStr) -> io::Result<()> {
    let (folder, name) = match Folder::open(to) {
        Ok(folder) => (folder, name),
        Err(error) if to.as_os_str().as_bytes().ends_with(b"/") => return Err(error),
        Err(_) => parent(to)?,
    };
    folder.unpack(archive, Place::Merged(name)).map(drop)
}

/// Unpacks an archive to `to` as [`Place::Alone`].
///
/// # Errors
///
/// As of [`Folder::unpack`], and if there is no folder for it.
pub fn unpack_alone(archive: impl Read, to: &Path) -> io::Result<()> {
    let (folder, name) = parent(to)?;
    folder.unpack(archive, Place::Alone(name)).map(drop)
}

/// Opens the folder of a path, and returns the name in it.
fn parent(path: &Path) -> io::Result<(Folder, &OsStr)> {
    let name = name_of(path)?;
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((Folder::open(folder.unwrap_or(Path::new(".")))?, name))
}

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

/// Opens something beneath a folder. No part of the path may be a link.
fn open(folder: &OwnedFd, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(rustix::fs::openat2(folder, path, flags, mode, resolve)?)
}

fn open_folder(folder: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    open(folder, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// The unpacked entries of an archive.
#[derive(Default)]
struct Arrived {
    /// Folders with their modes, by their paths below the archive's top. A read-only folder could
    /// neither be filled nor moved, so modes are set at the end.
    folders: Vec<(PathBuf, Mode)>,
    /// Files and links.
    files: Vec<PathBuf>,
    /// The bytes of all paths.
    names: usize,
}

impl Arrived {
    /// Unpacks an archive as [`TOP`] in an empty folder.
    fn unpack(archive: impl Read, scratch: &OwnedFd) -> io::Result<Self> {
        let mut archive = tar::Archive::new(archive);
        let mut arrived = Self::default();
        let mut top = None;
        let (mut long_path, mut long_link) = (None, None);
        // The library's support for extensions would let a sender determine how much memory is
        // used. Our senders need only long names.
        for entry in archive.entries()?.raw(true) {
            let mut entry = entry?;
            match entry.header().entry_type() {
                EntryType::GNULongName => long_name(&mut entry, &mut long_path)?,
                EntryType::GNULongLink => long_name(&mut entry, &mut long_link)?,
                kind => {
                    let path = long_path.take().unwrap_or_else(|| path_of(&entry));
                    let below = below_top(&path, &mut top)?;
                    arrived.count(&below)?;
                    let link = long_link.take();
                    arrived.add(&mut entry, kind, below, link, scratch).map_err(|error| {
                        let path = path.display();
                        io::Error::new(error.kind(), format!("{path} in the archive: {error}"))
                    })?;
                }
            }
        }
        if top.is_none() {
            return Err(invalid("the archive does not hold one file or folder"));
        }
        // An archive has two empty blocks at its end, and the library has read one. Without reading
        // the rest, the sender could not finish.
        let padding = io::copy(&mut archive.into_inner().take(MAX_PADDING), &mut io::sink())?;
        if !(BLOCK..MAX_PADDING).contains(&padding) {
            return Err(invalid("the archive does not end where it should"));
        }
        Ok(arrived)
    }

    fn count(&mut self, path: &Path) -> io::Result<()> {
        self.names += path.as_os_str().len();
        if self.files.len() + self.folders.len() == MAX_ENTRIES || self.names > MAX_NAMES {
            return Err(invalid(format!(
                "the archive holds more than {MAX_ENTRIES} files, or {} MiB of names",
                MAX_NAMES >> 20
            )));
        }
        Ok(())
    }

    /// Creates what an entry describes, at a path below the archive's top.
    fn add<R: Read>(
        &mut self,
        entry: &mut tar::Entry<'_, R>,
        kind: EntryType,
        below: PathBuf,
        long_link: Option<PathBuf>,
        scratch: &OwnedFd,
    ) -> io::Result<()> {
        let path = Path::new(TOP).join(&below);
        // A trailing slash would require a folder.
        let path = path.components().as_path();
        let (folder, name) = (folder_of(scratch, path)?, Path::new(name_of(path)?));
        // A link has none.
        let mode = match kind.is_symlink() {
            true => Mode::empty(),
            false => Mode::from_raw_mode(entry.header().mode()? & 0o777),
        };
        if kind.is_dir() {
            match rustix::fs::mkdirat(&folder, name, Mode::RWXU) {
                Err(Errno::EXIST) => drop(open_folder(&folder, name)?),
                made => made?,
            }
            self.folders.push((below, mode));
            return Ok(());
        }
        if kind.is_file() {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let file = File::from(open(&folder, name, flags, Mode::RUSR | Mode::WUSR)?);
            write(entry, &file)?;
            rustix::fs::fchmod(&file, mode)?;
        } else if kind.is_symlink() && path != Path::new(TOP) {
            let to = match long_link {
                Some(to) => to,
                None => entry.link_name()?.ok_or_else(|| invalid("a link to nothing"))?.into(),
            };
            rustix::fs::symlinkat(&to, &folder, name)?;
        } else {
            // The sender follows a link that is requested by name.
            return Err(invalid("it is neither a file, nor a folder, nor a link in a folder"));
        }
        self.files.push(below);
        Ok(())
    }
}

/// Opens the folder of a path beneath another one. Creates it if necessary: an archive of changes
/// has no folders without changes.
fn folder_of(folder: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
        return folder.try_clone();
    };
    match open_folder(folder, parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = folder_of(folder, parent)?;
            rustix::fs::mkdirat(&above, name_of(parent)?, Mode::RWXU | Mode::RWXG | Mode::RWXO)?;
            open_folder(folder, parent)
        }
        found => found,
    }
}

/// Returns the path in the header of an entry.
fn path_of<R: Read>(entry: &tar::Entry<'_, R>) -> PathBuf {
    PathBuf::from(OsString::from_vec(entry.path_bytes().into_owned()))
}

/// Reads the path that is the contents of an entry, for the next one.
fn long_name<R: Read>(entry: &mut tar::Entry<'_, R>, path: &mut Option<PathBuf>) -> io::Result<()> {
    let mut name = Vec::new();
    entry.take(MAX_PATH + 1).read_to_end(&mut name)?;
    if name.len() as u64 > MAX_PATH {
        return Err(invalid(format!("the archive holds a name of more than {MAX_PATH} bytes")));
    }
    name.pop_if(|last| *last == 0);
    match path.replace(OsString::from_vec(name).into()) {
        None => Ok(()),
        Some(_) => Err(invalid("the archive holds two names for a file")),
    }
}

/// Returns the part of a path below the archive's top, whose name is that of the first entry.
fn below_top(path: &Path, top: &mut Option<OsString>) -> io::Result<PathBuf> {
    let refused = |why: &str| Err(invalid(format!("the archive holds {}, {why}", path.display())));
    let mut parts = path.components();
    let Some(Component::Normal(first)) = parts.next() else {
        return refused("outside the archive's folder");
    };
    if top.get_or_insert_with(|| first.to_owned()) != first {
        return refused("and more than one file or folder");
    }
    if parts.clone().count() > MAX_DEPTH {
        return refused(&format!("and more than {MAX_DEPTH} folders in each other"));
    }
    match parts.clone().all(|part| matches!(part, Component::Normal(_))) {
        true => Ok(parts.collect()),
        false => refused("which leads out of its folder"),
    }
}

/// Writes the contents of an entry, and its time.
fn write<R: Read>(entry: &mut tar::Entry<'_, R>, mut file: &File) -> io::Result<()> {
    let size = entry.header().entry_size()?;
    if io::copy(entry, &mut file)? != size {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends in it"));
    }
    // A time that the file system does not have is no reason to refuse the file.
    if let Some(seconds) = entry.header().mtime().ok().and_then(|time| time.try_into().ok()) {
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        let _ = rustix::fs::futimens(file, &times);
    }
    Ok(())
}

/// Returns the names in a folder.
fn names(folder: &OwnedFd) -> io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.into());
        }
    }
    Ok(names)
}

/// Moves a file, or the contents of a folder, over existing entries. `shown` is the path in
/// messages. Links are replaced, not followed.
fn merge(
    from: &OwnedFd,
    name: &Path,
    to: &OwnedFd,
    new_name: &Path,
    shown: &Path,
) -> io::Result<()> {
    let found = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(found.st_mode).is_dir() {
        match open_folder(to, new_name) {
            Ok(to) => return merge_contents(&open_folder(from, name)?, &to, shown),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(context(shown, "cannot write", &error));
            }
            Err(_) => {}
        }
    }
    rename(from, name, to, new_name, shown)
}

fn merge_contents(from: &OwnedFd, to: &OwnedFd, shown: &Path) -> io::Result<()> {
    names(from)?.iter().try_for_each(|name| merge(from, name, to, name, &shown.join(name)))
}

fn rename(
    from: &OwnedFd,
    name: &Path,
    to: &OwnedFd,
    new_name: &Path,
    shown: &Path,
) -> io::Result<()> {
    let moved = rustix::fs::renameat(from, name, to, new_name);
    moved.map_err(|error| context(shown, "cannot write", &error.into()))
}

/// A new folder in another one, which is removed again.
struct Scratch<'a> {
    of: &'a Folder,
    name: PathBuf,
    fd: OwnedFd,
}

impl<'a> Scratch<'a> {
    fn new(of: &'a Folder) -> io::Result<Self> {
        let failed = |error: io::Error| context(&of.path, "cannot write to", &error);
        // Other users of the folder cannot guess it.
        let name =
            PathBuf::from(format!(".tofu-{:016x}", RandomState::new().build_hasher().finish()));
        rustix::fs::mkdirat(&of.fd, &name, Mode::RWXU).map_err(|error| failed(error.into()))?;
        let fd = open_folder(&of.fd, &name).map_err(failed)?;
        let scratch = Self { of, name, fd };
        let found = rustix::fs::fstat(&scratch.fd)?;
        // A user who may rename it could have replaced it by another folder.
        if found.st_uid != geteuid().as_raw() || found.st_mode & 0o777 != 0o700 {
            return Err(failed(io::Error::other("another process changes it")));
        }
        Ok(scratch)
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // Nothing more can be done about a folder that cannot be removed.
        let _ = remove(&self.of.fd, &self.name);
    }
}

/// Removes a folder with its contents.
fn remove(folder: &OwnedFd, name: &Path) -> io::Result<()> {
    let inside = open_folder(folder, name)?;
    for name in names(&inside)? {
        if rustix::fs::unlinkat(&inside, &name, AtFlags::empty()).is_err() {
            remove(&inside, &name)?;
        }
    }
    Ok(rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)?)
}
