//! Files and folders as tar archives.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
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
/// links; one named as `path` itself is followed. Entries that are neither file, folder nor link
/// are left out; returns how many these were.
///
/// # Errors
///
/// If something cannot be read, or `out` not written.
pub fn pack(path: &Path, out: impl Write) -> io::Result<usize> {
    pack_since(path, None, out)
}

/// The same with only the entries that have changed since the folder at `since` was made or last
/// moved: files and links that are new, written or renamed, and folders with new contents.
///
/// # Errors
///
/// As of [`pack`], and if there is no such folder.
pub fn pack_changed(path: &Path, since: &Path, out: impl Write) -> io::Result<usize> {
    let since = fs::metadata(since).map_err(|error| context(since, "cannot read", &error))?;
    pack_since(path, Some((since.ctime(), since.ctime_nsec())), out)
}

fn pack_since(path: &Path, since: Option<Time>, out: impl Write) -> io::Result<usize> {
    let name = name_of(path)?;
    let real = fs::canonicalize(path).map_err(|error| context(path, "cannot read", &error))?;
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    // Holes of files become zeros: `unpack` accepts no holes, because a few bytes could then become
    // any number of others.
    archive.sparse(false);
    if since.is_some() {
        // There is always something to unpack.
        archive.append_dir(name, &real)?;
    }
    let skipped = add(&mut archive, &real, Path::new(name), since)?;
    archive.into_inner()?.flush()?;
    Ok(skipped)
}

/// Seconds and nanoseconds, as files have them.
type Time = (i64, i64);

fn add<W: Write>(
    archive: &mut tar::Builder<W>,
    from: &Path,
    name: &Path,
    since: Option<Time>,
) -> io::Result<usize> {
    let failed = |error: io::Error| context(from, "cannot read", &error);
    let metadata = fs::symlink_metadata(from).map_err(failed)?;
    let kind = metadata.file_type();
    let old = |time: Time| since.is_some_and(|since| time <= since);
    if kind.is_dir() {
        if !old((metadata.mtime(), metadata.mtime_nsec())) {
            archive.append_dir(name, from)?;
        }
        let mut skipped = 0;
        for entry in fs::read_dir(from).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            skipped += add(archive, &entry.path(), &name.join(entry.file_name()), since)?;
        }
        Ok(skipped)
    } else if old((metadata.ctime(), metadata.ctime_nsec())) {
        Ok(0)
    } else if kind.is_file() {
        add_file(archive, from, name).map_err(failed)?;
        Ok(0)
    } else if kind.is_symlink() {
        archive.append_path_with_name(from, name)?;
        Ok(0)
    } else {
        Ok(1)
    }
}

/// Bytes of a file that are read before its header is written. They count, whatever size the file
/// has according to its metadata: files of `/sys` say 4096, and files of users may grow.
const READ_FIRST: u64 = 1 << 20;
/// The same for files without a size, as those of `/proc`. Their rest could not be announced.
const MOST_WITHOUT_SIZE: u64 = 64 << 20;

/// Adds a file: all of it, or as much as it had when it was opened if it is long.
fn add_file<W: Write>(archive: &mut tar::Builder<W>, from: &Path, name: &Path) -> io::Result<()> {
    let file = File::open(from)?;
    let metadata = file.metadata()?;
    let first = if metadata.len() == 0 { MOST_WITHOUT_SIZE } else { READ_FIRST };
    let mut start = Vec::new();
    (&file).take(first + 1).read_to_end(&mut start)?;
    let read = start.len() as u64;
    if read > first && metadata.len() == 0 {
        let limit = MOST_WITHOUT_SIZE >> 20;
        return Err(io::Error::other(format!("it has no size, and more than {limit} MiB")));
    }
    let size = if read > first { metadata.len().max(read) } else { read };
    let mut header = tar::Header::new_gnu();
    header.set_metadata(&metadata);
    header.set_size(size);
    let mut contents = start.chain(file).take(size);
    archive.append_data(&mut header, name, &mut contents)?;
    match contents.limit() {
        0 => Ok(()),
        _ => Err(io::Error::other("it became shorter meanwhile")),
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
    unpack_to(archive, to, into).map(drop)
}

/// Unpacks an archive made by [`pack`] over the contents of `to`, whatever its name. Returns the
/// files and links in it, by their paths there.
///
/// # Errors
///
/// As of [`unpack`].
pub fn unpack_over(archive: impl Read, to: &Path) -> io::Result<Vec<PathBuf>> {
    unpack_to(archive, to, false)
}

fn unpack_to(archive: impl Read, to: &Path, into: bool) -> io::Result<Vec<PathBuf>> {
    let folder = if into { to } else { to.parent().unwrap_or(Path::new("")) };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if !folder.is_dir() {
        let message = format!("there is no folder {}", folder.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    // First to a place of its own, so that a truncated archive leaves nothing half done, and links
    // in it cannot redirect later entries.
    let place = TemporaryFolder::new(folder)?;
    let mut archive = tar::Archive::new(archive);
    let (mut dirs, mut files) = (Vec::new(), Vec::new());
    for entry in archive.entries()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        let known = kind.is_file() || kind.is_dir() || kind.is_symlink();
        // A read-only folder could not be filled, so its mode comes last.
        if kind.is_dir() {
            dirs.push((place.0.join(entry.path()?), entry.header().mode()? & 0o777));
            entry.set_mask(0);
        }
        if !known || !entry.unpack_in(&place.0)? {
            let message =
                format!("the archive holds {}, which is refused", entry.path()?.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        match dirs.last().filter(|_| kind.is_dir()) {
            Some((path, _)) => set_mode(path, 0o700)?,
            None => files.push(entry.path()?.components().skip(1).collect()),
        }
    }
    // Reads the padding at the end, without which the sender could not finish.
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
    Ok(files)
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Moves a file, or the contents of a folder, over existing entries. Existing folders may be links
/// only at the top: links below may come from another archive, and may lead anywhere.
fn merge(from: &Path, to: &Path) -> io::Result<()> {
    let is_dir = fs::symlink_metadata(from)?.is_dir();
    merge_into(from, to, is_dir && to.is_dir())
}

fn merge_into(from: &Path, to: &Path, both_are_dirs: bool) -> io::Result<()> {
    if both_are_dirs {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            let is_dir = |path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
            merge_into(&from, &to, is_dir(&from) && is_dir(&to))?;
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
        // Nothing more can be done about a folder that cannot be removed.
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

/// An entry of a folder that is packed.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file or folder of this computer.
    Path(PathBuf),
    /// A file with this mode and these contents.
    File(u32, Vec<u8>),
    /// A symbolic link to this path.
    Link(PathBuf),
    /// An empty folder.
    Folder,
}

/// Writes an archive of a folder `name` to `out`, as [`pack`] would, with these entries by their
/// paths in it. Returns how many were left out.
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
    // As in `pack`.
    archive.sparse(false);
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
                skipped += add(&mut archive, &real, &path, None)?;
            }
            Source::File(mode, bytes) => {
                let mut header = tar::Header::new_gnu();
                header.set_size(bytes.len() as u64);
                header.set_mode(*mode);
                archive.append_data(&mut header, &path, bytes.as_slice())?;
            }
            Source::Link(to) => {
                let mut header = tar::Header::new_gnu();
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                archive.append_link(&mut header, &path, to)?;
            }
            Source::Folder => folder(&mut archive, &path)?,
        }
    }
    archive.into_inner()?.flush()?;
    Ok(skipped)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn archive(of: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        pack(of, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn files_without_a_size_are_read_to_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("version");
        assert_eq!(fs::metadata("/proc/version").unwrap().len(), 0);
        unpack(&archive(Path::new("/proc/version"))[..], &to).unwrap();
        let text = fs::read_to_string(to).unwrap();
        assert_eq!(text, fs::read_to_string("/proc/version").unwrap());
        assert!(text.starts_with("Linux version "), "{text}");
    }

    /// An archive, upon whose first bytes something happens.
    struct Then<F>(Vec<u8>, Option<F>);

    impl<F: FnOnce()> Write for Then<F> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if let Some(then) = self.1.take() {
                then();
            }
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_file_that_grows_or_shrinks_on_the_way_breaks_no_archive() {
        let folder = tempfile::tempdir().unwrap();
        let (path, to) = (folder.path().join("file"), folder.path().join("copy"));
        for length in [10, READ_FIRST, READ_FIRST + 1, 3 * READ_FIRST + 17] {
            let contents: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            fs::write(&path, &contents).unwrap();
            let open = || fs::OpenOptions::new().append(true).open(&path).unwrap();
            let grow = || open().write_all(b"and more").unwrap();
            let mut grown = Then(Vec::new(), Some(grow));
            pack(&path, &mut grown).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), length + 8);
            unpack(&grown.0[..], &to).unwrap();
            assert!(fs::read(&to).unwrap() == contents, "{length}");
        }
        let cut = || fs::write(&path, b"short").unwrap();
        let error = pack(&path, Then(Vec::new(), Some(cut))).unwrap_err().to_string();
        assert!(error.ends_with("file: it became shorter meanwhile"), "{error}");
    }

    #[test]
    fn what_one_archive_brings_leads_no_other_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["one", "other/trap/deeper", "home", "back"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        symlink(at("home"), at("one/trap")).unwrap();
        fs::write(at("other/trap/file"), "got out").unwrap();
        unpack_over(&archive(&at("one"))[..], &at("back")).unwrap();
        assert!(unpack_over(&archive(&at("other"))[..], &at("back")).is_err());
        assert_eq!(fs::read_dir(at("home")).unwrap().count(), 0);
        // The folder itself may be reached by a link, and links in it go as they came.
        symlink(at("back"), at("by link")).unwrap();
        fs::remove_file(at("back/trap")).unwrap();
        unpack_over(&archive(&at("other"))[..], &at("by link")).unwrap();
        assert_eq!(fs::read_to_string(at("back/trap/file")).unwrap(), "got out");
    }
}
