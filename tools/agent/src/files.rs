//! Files and folders as tar archives.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

fn context(path: &Path, what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

/// The name under which `path` travels: its last part.
///
/// # Errors
///
/// If it has none, as `/` and `..`.
pub fn name_of(path: &Path) -> io::Result<&OsStr> {
    match path.components().next_back() {
        Some(Component::Normal(name)) => Ok(name),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} has no name of its own; name a file or folder", path.display()),
        )),
    }
}

/// Writes the file or folder at `path` to `out` as an archive. Symbolic links in a folder stay
/// links; one named as `path` itself is followed. What is neither file, folder nor link is left
/// out; returns how many such there were.
///
/// # Errors
///
/// If something cannot be read, or `out` not written.
pub fn pack(path: &Path, out: impl Write) -> io::Result<usize> {
    let name = name_of(path)?;
    let real = fs::canonicalize(path).map_err(|error| context(path, "cannot read", &error))?;
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    // Holes of files become zeros: `unpack` takes no holes, as a few bytes would make any number
    // of others.
    archive.sparse(false);
    let skipped = add(&mut archive, &real, Path::new(name))?;
    archive.into_inner()?.flush()?;
    Ok(skipped)
}

fn add<W: Write>(archive: &mut tar::Builder<W>, from: &Path, name: &Path) -> io::Result<usize> {
    let failed = |error: io::Error| context(from, "cannot read", &error);
    let kind = fs::symlink_metadata(from).map_err(failed)?.file_type();
    if kind.is_dir() {
        archive.append_dir(name, from)?;
        let mut skipped = 0;
        for entry in fs::read_dir(from).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            skipped += add(archive, &entry.path(), &name.join(entry.file_name()))?;
        }
        Ok(skipped)
    } else if kind.is_file() {
        let mut file = File::open(from).map_err(failed)?;
        archive.append_file(name, &mut file)?;
        Ok(0)
    } else if kind.is_symlink() {
        archive.append_path_with_name(from, name)?;
        Ok(0)
    } else {
        Ok(1)
    }
}

/// Unpacks an archive made by [`pack`] to `to`: into it, if it is a folder or ends with a slash,
/// otherwise under its name. Permissions are kept, owners and set-user bits are not.
///
/// # Errors
///
/// If the archive is damaged or holds anything outside of its own folder, or something cannot be
/// written.
pub fn unpack(archive: impl Read, to: &Path) -> io::Result<()> {
    let into = to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/");
    let folder = if into { to } else { to.parent().unwrap_or(Path::new("")) };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if !folder.is_dir() {
        let message = format!("there is no folder {}", folder.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    // First to a place of its own: an archive that is cut off leaves nothing half done, and
    // links in it cannot lead what follows to other places.
    let place = TemporaryFolder::new(folder)?;
    let mut archive = tar::Archive::new(archive);
    let mut dirs = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        let known = kind.is_file() || kind.is_dir() || kind.is_symlink();
        // A folder that may not be written could not be filled: its mode comes last.
        if kind.is_dir() {
            dirs.push((place.0.join(entry.path()?), entry.header().mode()? & 0o777));
            entry.set_mask(0);
        }
        if !known || !entry.unpack_in(&place.0)? {
            let message =
                format!("the archive holds {}, which is refused", entry.path()?.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        if let Some((path, _)) = dirs.last().filter(|_| kind.is_dir()) {
            set_mode(path, 0o700)?;
        }
    }
    // The padding at the end, without which the sender could not finish.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    let mut names = fs::read_dir(&place.0)?;
    let (Some(entry), None) = (names.next(), names.next()) else {
        let message = "the archive does not hold one file or folder";
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    };
    let from = entry?.path();
    let target = match from.file_name().filter(|_| into) {
        Some(name) => to.join(name),
        None => to.to_owned(),
    };
    let moved: Vec<_> = dirs
        .into_iter()
        .filter_map(|(path, mode)| Some((target.join(path.strip_prefix(&from).ok()?), mode)))
        .collect();
    merge(&from, &target)?;
    for (path, mode) in moved.iter().rev() {
        set_mode(path, *mode)?;
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Moves a file, or what is in a folder, over what is there.
fn merge(from: &Path, to: &Path) -> io::Result<()> {
    let is_dir = fs::symlink_metadata(from)?.is_dir();
    if is_dir && to.is_dir() {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            merge(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    fs::rename(from, to).map_err(|error| context(to, "cannot write", &error))
}

/// A folder that is removed again.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new(folder: &Path) -> io::Result<Self> {
        for attempt in 0..100u32 {
            let path = folder.join(format!(".tofu-cp-{}-{attempt}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(context(folder, "cannot write to", &error)),
            }
        }
        Err(context(folder, "cannot write to", &io::ErrorKind::AlreadyExists.into()))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // Nothing is left to be done about a folder that cannot be removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes an archive of one file with these contents to `out`, as [`pack`] would.
///
/// # Errors
///
/// If `out` cannot be written.
pub fn pack_bytes(name: &str, mode: u32, contents: &[u8], out: impl Write) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(contents.len() as u64);
    header.set_mode(mode);
    let mut archive = tar::Builder::new(out);
    archive.append_data(&mut header, name, contents)?;
    archive.into_inner()?.flush()
}

/// What is put into a folder that is packed.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file or folder of this computer.
    Path(PathBuf),
    /// A file with this mode and these contents.
    File(u32, Vec<u8>),
    /// An empty folder.
    Folder,
}

/// Writes an archive of a folder `name` to `out`, as [`pack`] would, with these things in it by
/// their paths there. Returns how many were left out.
///
/// # Errors
///
/// If something cannot be read, or `out` not written.
pub fn pack_folder(
    name: &str,
    contents: &[(PathBuf, Source)],
    out: impl Write,
) -> io::Result<usize> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    let folder = |archive: &mut tar::Builder<_>, path: &Path| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        header.set_mode(0o755);
        archive.append_data(&mut header, path, io::empty())
    };
    folder(&mut archive, Path::new(name))?;
    let mut skipped = 0;
    for (path, source) in contents {
        let path = Path::new(name).join(path);
        match source {
            Source::Path(from) => {
                let real =
                    fs::canonicalize(from).map_err(|error| context(from, "cannot read", &error))?;
                skipped += add(&mut archive, &real, &path)?;
            }
            Source::File(mode, bytes) => {
                let mut header = tar::Header::new_gnu();
                header.set_size(bytes.len() as u64);
                header.set_mode(*mode);
                archive.append_data(&mut header, &path, bytes.as_slice())?;
            }
            Source::Folder => folder(&mut archive, &path)?,
        }
    }
    archive.into_inner()?.flush()?;
    Ok(skipped)
}
