//! Writes archives in the "newc" format, which Linux unpacks as its initial RAM file system
//! (Documentation/driver-api/early-userspace/buffer-format.rst of the Linux source).
//!
//! Equal entries give equal bytes: the host's times, owners and inode numbers are not included.

use std::io::Write;

use cpio::newc;

use crate::error::{Error, Result};

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
/// The longest path that Linux accepts.
const PATH_MAX: usize = 4096;

/// An archive being written.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a folder. Linux does not create parents, so they must be added first.
    pub(crate) fn folder(&mut self, path: &str, mode: u32) -> Result<()> {
        self.entry(path, FOLDER | (mode & 0o7777), (0, 0), &[])
    }

    /// Adds a file.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.entry(path, FILE | (mode & 0o7777), (0, 0), content)
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.entry(path, LINK | 0o777, (0, 0), target.as_bytes())
    }

    /// Adds a character device.
    pub(crate) fn device(&mut self, path: &str, mode: u32, major: u32, minor: u32) -> Result<()> {
        self.entry(path, CHARACTER_DEVICE | (mode & 0o7777), (major, minor), &[])
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> Result<()> {
        let name = path.trim_start_matches('/');
        if name.is_empty() || name.len() >= PATH_MAX || name.contains('\0') {
            return Err(Error::Invalid {
                what: "path in the initramfs",
                value: path.chars().take(80).collect(),
                allowed: "1 to 4095 bytes without NUL",
            });
        }
        self.entries += 1;
        self.record(self.entries, name, mode, device, content)
    }

    fn record(
        &mut self,
        inode: u32,
        name: &str,
        mode: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> Result<()> {
        let bad =
            |allowed| Error::Invalid { what: "file in the initramfs", value: name.into(), allowed };
        let size = u32::try_from(content.len()).map_err(|_| bad("less than 4 GiB"))?;
        let entry = newc::Builder::new(name)
            .ino(inode)
            .mode(mode)
            .nlink(if mode & 0o170_000 == FOLDER { 2 } else { 1 })
            .rdev_major(device.0)
            .rdev_minor(device.1);
        let mut writer = entry.write(&mut self.bytes, size);
        let written = writer.write_all(content).and_then(|()| writer.finish().map(drop));
        written.map_err(|_| bad("what memory has room for"))
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>> {
        newc::trailer(&mut self.bytes).map_err(|_| Error::Invalid {
            what: "initramfs",
            value: String::new(),
            allowed: "what memory has room for",
        })?;
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use proptest::prelude::*;

    use super::*;

    /// Path, mode, device, content.
    type Entry = (String, u32, (u32, u32), Vec<u8>);

    fn parse(mut bytes: &[u8]) -> Vec<Entry> {
        let mut entries = Vec::new();
        loop {
            let mut reader = newc::Reader::new(bytes).unwrap();
            let entry = reader.entry();
            if entry.is_trailer() {
                return entries;
            }
            let device = (entry.rdev_major(), entry.rdev_minor());
            let (name, mode) = (entry.name().to_owned(), entry.mode());
            let mut content = Vec::new();
            reader.read_to_end(&mut content).unwrap();
            entries.push((name, mode, device, content));
            bytes = reader.finish().unwrap();
        }
    }

    proptest! {
        #[test]
        fn archive_round_trips(
            files in prop::collection::vec(
                ("[a-z]{1,20}", 0u32..0o10000, prop::collection::vec(any::<u8>(), 0..50)), 0..10)
        ) {
            let mut archive = Archive::new();
            for (name, mode, content) in &files {
                archive.file(name, *mode, content).unwrap();
            }
            let read = parse(&archive.finish().unwrap());
            let expected: Vec<_> = files
                .into_iter()
                .map(|(name, mode, content)| (name, mode | 0o100_000, (0, 0), content))
                .collect();
            prop_assert_eq!(read, expected);
        }
    }

    #[test]
    fn kinds_of_entries() {
        let mut archive = Archive::new();
        archive.folder("/dev", 0o755).unwrap();
        archive.device("/dev/console", 0o600, 5, 1).unwrap();
        archive.link("/bin", "usr/bin").unwrap();
        let read = parse(&archive.finish().unwrap());
        assert_eq!(read[0], ("dev".into(), 0o40755, (0, 0), vec![]));
        assert_eq!(read[1], ("dev/console".into(), 0o20600, (5, 1), vec![]));
        assert_eq!(read[2], ("bin".into(), 0o120777, (0, 0), b"usr/bin".to_vec()));
    }

    #[test]
    fn hosts_cpio_agrees() {
        if crate::run::find("cpio").is_none() {
            eprintln!("SKIP hosts_cpio_agrees: no cpio on this host");
            return;
        }
        let mut archive = Archive::new();
        archive.folder("a", 0o755).unwrap();
        archive.file("a/b", 0o644, b"content").unwrap();
        let bytes = archive.finish().unwrap();
        let mut child = Command::new("cpio")
            .args(["-itv", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), &bytes).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success());
        assert!(text.lines().next().unwrap().starts_with("drwxr-xr-x"), "{text}");
        assert!(text.lines().nth(1).unwrap().starts_with("-rw-r--r--"), "{text}");
        assert!(text.contains("a/b"), "{text}");
    }

    #[test]
    fn bad_paths_are_refused() {
        for path in ["", "/", "a\0b", &"x".repeat(5000)] {
            assert!(Archive::new().file(path, 0o644, b"").is_err(), "{path:?}");
        }
    }
}
