//! Packs files and folders as tar archives.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

pub(crate) fn context(path: &Path, what: &str, error: &io::Error) -> io::Error {
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
            format!("{} does not end in a name; name a file or folder", path.display()),
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
    // Holes of files become zeros: the receiver accepts no holes, because a few bytes could then
    // become any number of others.
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

/// Bytes of a file that are read before its header is written. They count regardless of the size
/// that the file has according to its metadata: files of `/sys` say 4096, and files of users may
/// grow.
const READ_FIRST: u64 = 1 << 20;
/// The same for files without a size, as those of `/proc`. Their rest could not be announced.
const MOST_WITHOUT_SIZE: u64 = 64 << 20;

/// Adds a file: all of it, or as much as it had when it was opened if it is long.
fn add_file<W: Write>(archive: &mut tar::Builder<W>, from: &Path, name: &Path) -> io::Result<()> {
    // Another process may have put something else in its place.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(from, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no file any more"));
    }
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
                header.set_mode(0o777);
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
    use super::*;
    use crate::unpack::unpack;

    fn archive(of: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        pack(of, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn files_without_a_size_are_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("version");
        assert_eq!(fs::metadata("/proc/version").unwrap().len(), 0);
        unpack(&archive(Path::new("/proc/version"))[..], &to, OsStr::new("version")).unwrap();
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
    fn changing_file_breaks_no_archive() {
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
            unpack(&grown.0[..], &to, OsStr::new("file")).unwrap();
            assert!(fs::read(&to).unwrap() == contents, "{length}");
        }
        let cut = || fs::write(&path, b"short").unwrap();
        let error = pack(&path, Then(Vec::new(), Some(cut))).unwrap_err().to_string();
        assert!(error.ends_with("file: it became shorter meanwhile"), "{error}");
    }
}
