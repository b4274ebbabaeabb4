//! Files that users name, on the command line, in another file or in a variable.
//!
//! Each is a regular file of limited size. A device or a pipe could have no end, or make its reader
//! wait for ever. The errors say what the file is and what is allowed; callers add its path.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{FileType, Mode, OFlags};

/// Most bytes of lists and certificates.
pub const LIST: u64 = 1 << 20;
/// Most bytes of a description of a machine or of its traffic.
pub const DESCRIPTION: u64 = 16 << 20;
/// Most bytes of what this project's commands have recorded.
pub const RECORD: u64 = 1 << 30;
/// Most bytes of a program or library.
pub const PROGRAM: u64 = 1 << 30;
/// Most bytes of a kernel or an initrd.
pub const BOOT: u64 = 4 << 30;

/// The name of standard input where a file may be named.
pub const STDIN: &str = "-";

/// Opens a regular file of at most `most` bytes. It may still grow.
///
/// # Errors
///
/// If there is no such file, or it is none that is allowed.
pub fn open(path: &Path, most: u64) -> io::Result<File> {
    // To open a device may have effects.
    check(FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode), 0, most)?;
    // It may have been replaced, and to open a pipe may take for ever.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = rustix::fs::fstat(&file)?;
    let size = u64::try_from(found.st_size).unwrap_or_default();
    check(FileType::from_raw_mode(found.st_mode), size, most)?;
    Ok(file)
}

/// Reads a file as [`open`] opens it.
///
/// # Errors
///
/// As of [`open`], and if it cannot be read.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path, most)?;
    let size = file.metadata()?.len();
    // A file of `/proc` has more than it says.
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    limited(file, most, &mut bytes)?;
    Ok(bytes)
}

/// Reads a file of text as [`open`] opens it.
///
/// # Errors
///
/// As of [`read`], and if it is no text.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    text(read(path, most)?)
}

/// Reads a file of text as [`read_text`], or standard input if the path is [`STDIN`]. Standard
/// input has the same text each time.
///
/// # Errors
///
/// As of [`read_text`].
pub fn read_text_or_stdin(path: &Path, most: u64) -> io::Result<String> {
    static INPUT: OnceLock<String> = OnceLock::new();
    if path != Path::new(STDIN) {
        return read_text(path, most);
    }
    if let Some(text) = INPUT.get() {
        return Ok(text.clone());
    }
    let mut bytes = Vec::new();
    limited(io::stdin().lock(), most, &mut bytes)?;
    let text = text(bytes)?;
    Ok(INPUT.get_or_init(|| text).clone())
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8"))
}

/// Reads everything, if that is not more than allowed.
fn limited(from: impl Read, most: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    from.take(most.saturating_add(1)).read_to_end(bytes)?;
    check(FileType::RegularFile, bytes.len() as u64, most)
}

fn check(kind: FileType, size: u64, most: u64) -> io::Result<()> {
    let is = match kind {
        FileType::RegularFile if size <= most => return Ok(()),
        FileType::RegularFile => "too large",
        FileType::Directory => "a folder",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "a device",
    };
    let most = match most {
        most if most.is_multiple_of(1 << 30) => format!("{} GiB", most >> 30),
        most if most.is_multiple_of(1 << 20) => format!("{} MiB", most >> 20),
        most => format!("{most} bytes"),
    };
    let message = format!("it is {is}; give a regular file of at most {most}");
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn why(path: &Path, most: u64) -> String {
        read(path, most).unwrap_err().to_string()
    }

    #[test]
    fn only_bounded_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let name = "; give a regular file of at most 1 MiB";
        assert_eq!(why(folder.path(), LIST), format!("it is a folder{name}"));
        assert_eq!(why(Path::new("/dev/zero"), LIST), format!("it is a device{name}"));
        // It may have no writer, and its reader would wait.
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), Mode::RWXU).unwrap();
        assert_eq!(why(&at("pipe"), LIST), format!("it is a pipe{name}"));
        let _socket = UnixListener::bind(at("socket")).unwrap();
        assert_eq!(why(&at("socket"), LIST), format!("it is a socket{name}"));
        File::create(at("sparse")).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(why(&at("sparse"), LIST), format!("it is too large{name}"));
        assert!(why(&at("none"), LIST).starts_with("No such file"));

        fs::write(at("file"), "text").unwrap();
        assert_eq!(read_text(&at("file"), 4).unwrap(), "text");
        assert!(why(&at("file"), 3).ends_with("at most 3 bytes"));
        fs::write(at("file"), b"\xff").unwrap();
        assert!(read_text(&at("file"), 4).is_err());
        // A file that does not say how much it has.
        assert_eq!(fs::metadata("/proc/self/smaps").unwrap().len(), 0);
        assert!(why(Path::new("/proc/self/smaps"), 100).ends_with("at most 100 bytes"));
    }
}
