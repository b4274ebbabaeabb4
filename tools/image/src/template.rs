//! Templates: the memory and the devices of nodes that have booted, from which others are cloned.
//!
//! A template is a folder of the cache below `templates`, which is made beside its place and
//! renamed when it is complete. Its files are only read from then on: each clone has a copy of the
//! memory.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{SeekFrom, ftruncate, seek};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::cache::{Cache, make_folder, remove_folder};
use crate::error::{IoContext, Result};
use crate::hash::hex;
use crate::manifest::{FileInfo, Manifest};
use crate::progress::Progress;

/// Version of what a template has.
const FORMAT: u32 = 1;
/// The most templates that are kept, of about 90 MB each.
const MOST: usize = 32;
const MEMORY: &str = "memory";
const STATE: &str = "state";
const CLOCK: &str = "clock";
/// Bytes that are checked together for zeros.
const PAGE: usize = 4096;

/// Identifies a template: the nodes that can be cloned from it differ in nothing else than their
/// names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateKey(String);

impl TemplateKey {
    /// Makes the key of nodes that start with these words, of these files. A file counts as the
    /// same as long as it is at the same place and has not been written to.
    ///
    /// # Errors
    ///
    /// If a file does not exist.
    pub fn new<'a>(
        words: impl IntoIterator<Item = &'a OsStr>,
        files: impl IntoIterator<Item = &'a Path>,
    ) -> Result<Self> {
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        add(&FORMAT.to_le_bytes());
        words.into_iter().for_each(|word| add(word.as_encoded_bytes()));
        for path in files {
            let data = fs::metadata(path).on("look at", path)?;
            add(path.as_os_str().as_encoded_bytes());
            add(&data.len().to_le_bytes());
            add(&data.ino().to_le_bytes());
            add(&data.mtime().to_le_bytes());
            add(&data.mtime_nsec().to_le_bytes());
        }
        Ok(Self(hex(&hash.finalize()[..16])))
    }

    /// Returns it as the name of a folder.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A complete template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    folder: PathBuf,
    /// The frequency of the host's time stamp counter, in kHz; 0 if the clones do not use it.
    pub clock: u32,
}

impl Template {
    /// Opens the state of the devices.
    ///
    /// # Errors
    ///
    /// If that fails, for example because it has been removed.
    pub fn state(&self) -> Result<File> {
        let path = self.folder.join(STATE);
        File::open(&path).on("open", &path)
    }

    /// Copies the memory into an empty file of the same size. Pages of zeros stay holes.
    ///
    /// # Errors
    ///
    /// If there is no room, or the template has been removed.
    pub fn copy_memory(&self, to: &File) -> Result<()> {
        let path = self.folder.join(MEMORY);
        let from = File::open(&path).on("open", &path)?;
        for_each_extent(&from, |start, end| {
            seek(&from, SeekFrom::Start(start))?;
            seek(to, SeekFrom::Start(start))?;
            let copied = io::copy(&mut io::Read::take(&from, end - start), &mut &*to)?;
            if copied == end - start { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        })
        .on("copy", &path)
    }
}

impl Cache {
    /// Returns the folder of templates, which is made if it does not exist.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn templates(&self) -> Result<PathBuf> {
        let folder = self.folder().join("templates");
        fs::create_dir_all(&folder).on("create", &folder)?;
        Ok(folder)
    }

    /// Returns a template if there is a complete one, and notes that it was used.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn template(&self, key: &TemplateKey) -> Result<Option<Template>> {
        let folder = self.templates()?.join(&key.0);
        // One that is damaged is made again.
        let manifest = Manifest::read(&folder).ok().flatten();
        if manifest.is_none_or(|manifest| !manifest.files_are_whole(&folder)) {
            return Ok(None);
        }
        let path = folder.join(CLOCK);
        let clock = fs::read_to_string(&path).on("read", &path)?.parse().unwrap_or(0);
        // Only the order in which templates are removed depends on it.
        let _ = File::open(&folder).and_then(|folder| folder.set_modified(SystemTime::now()));
        Ok(Some(Template { folder, clock }))
    }

    /// Waits until no other process makes a template, and keeps others from that until the file is
    /// dropped.
    ///
    /// # Errors
    ///
    /// If it cannot be locked.
    pub fn lock_templates(&self, progress: &dyn Progress) -> Result<File> {
        self.templates()?;
        self.lock_file("templates/lock", progress)
    }

    /// Makes a template from the memory and the state of a node. If there are too many, removes the
    /// least recently used one. The caller holds the lock.
    ///
    /// # Errors
    ///
    /// If there is no room, or something cannot be read or written. Nothing is left behind then.
    pub fn save_template(
        &self,
        key: &TemplateKey,
        (memory, state): (&File, &File),
        clock: u32,
    ) -> Result<Template> {
        let base = self.templates()?;
        let folder = base.join(&key.0);
        tidy(&base, &folder)?;
        make_folder(&folder, &key.0, "", |new, manifest| {
            let path = new.join(MEMORY);
            let sparse = File::create_new(&path).on("create", &path)?;
            copy_without_zeros(memory, &sparse).on("write", &path)?;
            let path = new.join(STATE);
            let mut copy = File::create_new(&path).on("create", &path)?;
            seek(state, SeekFrom::Start(0)).map_err(io::Error::from).on("read", &path)?;
            io::copy(&mut &*state, &mut copy).on("write", &path)?;
            let path = new.join(CLOCK);
            fs::write(&path, clock.to_string()).on("write", &path)?;
            for name in [MEMORY, STATE, CLOCK] {
                let path = new.join(name);
                let size = fs::metadata(&path).on("look at", &path)?.len();
                fs::set_permissions(&path, Permissions::from_mode(0o400)).on("seal", &path)?;
                manifest.files.insert(name.into(), FileInfo { size, sha256: String::new() });
            }
            Ok(())
        })?;
        Ok(Template { folder, clock })
    }
}

/// Removes incomplete templates, and old ones until there is room for another one at `keep`.
fn tidy(base: &Path, keep: &Path) -> Result<()> {
    let mut known = Vec::new();
    for entry in fs::read_dir(base).on("read", base)?.flatten() {
        let path = entry.path();
        let Ok(data) = entry.metadata() else { continue };
        if !data.is_dir() || path == keep {
            continue;
        }
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            remove_folder(&path)?;
        } else {
            known.push((data.modified().unwrap_or(SystemTime::UNIX_EPOCH), path));
        }
    }
    known.sort();
    let old = (known.len() + 1).saturating_sub(MOST);
    known.into_iter().take(old).try_for_each(|(_, path)| remove_folder(&path))
}

/// Calls `f` with the start and the end of each stretch of a file that is not a hole.
fn for_each_extent(file: &File, mut f: impl FnMut(u64, u64) -> io::Result<()>) -> io::Result<()> {
    let mut end = 0;
    loop {
        let start = match seek(file, SeekFrom::Data(end)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        end = seek(file, SeekFrom::Hole(start))?;
        f(start, end)?;
    }
}

/// Copies what a file has into an empty one, which gets the same size. Pages of zeros become holes.
fn copy_without_zeros(from: &File, to: &File) -> io::Result<()> {
    ftruncate(to, from.metadata()?.len())?;
    let mut buffer = vec![0; 1 << 20];
    for_each_extent(from, |start, end| {
        let mut at = start;
        while at < end {
            let length = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
            let piece = &mut buffer[..length];
            from.read_exact_at(piece, at)?;
            for page in piece.chunks(PAGE) {
                if page.iter().any(|byte| *byte != 0) {
                    to.write_all_at(page, at)?;
                }
                at += page.len() as u64;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::progress::Silent;

    fn memory(size: u64) -> File {
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(size).unwrap();
        file
    }

    fn key(word: &str) -> TemplateKey {
        TemplateKey::new([OsStr::new(word)], []).unwrap()
    }

    #[test]
    fn template_has_what_is_not_zero() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let (from, mut state) = (memory(1 << 20), memory(0));
        from.write_all_at(b"first", 100).unwrap();
        from.write_all_at(&[0; 64 << 10], 8 << 10).unwrap();
        from.write_all_at(b"last", (1 << 20) - 4).unwrap();
        state.write_all(b"devices").unwrap();
        assert_eq!(cache.template(&key("a")).unwrap(), None);
        let _lock = cache.lock_templates(&Silent).unwrap();
        let made = cache.save_template(&key("a"), (&from, &state), 7).unwrap();
        let found = cache.template(&key("a")).unwrap().unwrap();
        assert_eq!((&found, found.clock), (&made, 7));
        assert_eq!(io::read_to_string(found.state().unwrap()).unwrap(), "devices");
        let copy = memory(1 << 20);
        found.copy_memory(&copy).unwrap();
        // Of 18 pages that were written to, 16 have only zeros.
        assert_eq!(copy.metadata().unwrap().blocks(), 2 * PAGE as u64 / 512);
        let (mut is, mut was) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        copy.read_exact_at(&mut is, 0).unwrap();
        from.read_exact_at(&mut was, 0).unwrap();
        assert!(is == was);
    }

    #[test]
    fn truncated_template_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        for file in [MEMORY, STATE, Manifest::FILE] {
            let made = cache.save_template(&key("a"), (&memory(8192), &memory(10)), 0).unwrap();
            let path = made.folder.join(file);
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            let length = fs::metadata(&path).unwrap().len();
            File::options().write(true).open(&path).unwrap().set_len(length / 2).unwrap();
            assert_eq!(cache.template(&key("a")).unwrap(), None, "{file}");
        }
        assert!(cache.save_template(&key("a"), (&memory(8192), &memory(10)), 0).is_ok());
        assert!(cache.template(&key("a")).unwrap().is_some());
    }

    #[test]
    fn old_and_incomplete_templates_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let base = cache.templates().unwrap();
        fs::create_dir(base.join(".new-half")).unwrap();
        let name = |n: usize| key(&n.to_string());
        for n in 0..MOST {
            cache.save_template(&name(n), (&memory(0), &memory(0)), 0).unwrap();
        }
        assert!(!base.join(".new-half").exists());
        // Its use makes it the last to go.
        assert!(cache.template(&name(0)).unwrap().is_some());
        cache.save_template(&name(MOST), (&memory(0), &memory(0)), 0).unwrap();
        let left = |n| cache.template(&name(n)).unwrap().is_some();
        assert_eq!([left(0), left(1), left(2), left(MOST)], [true, false, true, true]);
    }

    #[test]
    fn keys_depend_on_words_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernel");
        fs::write(&path, "1").unwrap();
        let of = |words: &[&str]| {
            TemplateKey::new(words.iter().map(OsStr::new), [path.as_path()]).unwrap()
        };
        let first = of(&["a", "bc"]);
        assert_eq!(of(&["a", "bc"]), first);
        assert_ne!(of(&["ab", "c"]), first);
        fs::write(&path, "12").unwrap();
        assert_ne!(of(&["a", "bc"]), first);
        fs::remove_file(&path).unwrap();
        assert!(TemplateKey::new([], [path.as_path()]).is_err());
    }
}
