//! The cache: a user's folder with images, the parts that they share, and apt's own files.
//!
//! ```text
//! lock                 held by the process that builds or removes
//! apt/                 apt's configuration, lists and fetched packages; apt-arm64/ those for
//!                      guests with such processors
//! parts/KEY/           a kernel, busybox, a root file system, QEMU; shared by images
//! images/NAME/         manifest.toml, vmlinux, vmlinuz, initrd, root.ext4
//! templates/KEY/       manifest.toml, memory, state, clock: a node to be cloned
//! ```
//! A folder below `parts`, `images` and `templates` is made beside its place and renamed when it is
//! complete.

mod build;

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::apt::Apt;
use crate::arch::{self, Arch};
use crate::error::{Error, IoContext, Result};
use crate::manifest::Manifest;
use crate::progress::{Phase, Progress};
use crate::spec::check_name;

/// The prefix of the names of incomplete build roots.
pub(crate) const WORK: &str = ".work-";
/// The lock of the process that makes a build root. It is separate, so that others can use the
/// cache at the same time.
pub(crate) const COMPILER_LOCK: &str = "driver-lock";
/// The prefix of the names of parts that [`Cache::packages`] makes.
const PACKAGES: &str = "packages-";
/// The time to wait for a lock before a message says which one it is.
const TELL_AFTER: Duration = Duration::from_secs(1);
const NEW: &str = ".new-";
const OLD: &str = ".old-";

/// A complete image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Its name.
    pub name: String,
    /// The kernel as an ELF file, which boots fastest. Debian's kernels have a PVH entry.
    pub kernel_elf: PathBuf,
    /// The same kernel as a bzImage; `None` if it was made from an ELF file.
    pub kernel_bz: Option<PathBuf>,
    /// The initial RAM file system, an uncompressed cpio archive.
    pub initrd: PathBuf,
    /// A raw ext4 disk image, to be attached read-only as a virtio block device. Several guests may
    /// share it.
    pub root: Option<PathBuf>,
    /// Its specification.
    pub manifest: Manifest,
}

impl Image {
    fn in_folder(folder: &Path, manifest: Manifest) -> Self {
        let optional = |name: &str| manifest.files.contains_key(name).then(|| folder.join(name));
        Self {
            name: manifest.name.clone(),
            kernel_elf: folder.join("vmlinux"),
            kernel_bz: optional("vmlinuz"),
            initrd: folder.join("initrd"),
            root: optional("root.ext4"),
            manifest,
        }
    }
}

/// A cache folder. Creating the value changes no files.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
    mirror: Option<String>,
}

impl Cache {
    /// Returns the user's cache, `$TOFU_CACHE`, `$XDG_CACHE_HOME/tofu` or `$HOME/.cache/tofu`, with
    /// the mirror in `$TOFU_MIRROR`.
    ///
    /// # Errors
    /// [`Error::NoCache`] if none of them is set.
    pub fn from_env() -> Result<Self> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let folder = variable("TOFU_CACHE")
            .map(PathBuf::from)
            .or_else(|| variable("XDG_CACHE_HOME").map(|base| PathBuf::from(base).join("tofu")))
            .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".cache/tofu")))
            .ok_or(Error::NoCache)?;
        let mirror = variable("TOFU_MIRROR").map(|value| value.to_string_lossy().into_owned());
        Ok(Self::at(folder).mirror(mirror))
    }

    /// Returns the cache in `folder`, which need not exist yet.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        // Programs that run in other folders use the path, too.
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        Self { folder, mirror: None }
    }

    /// Fetches from this Debian mirror instead of the host's; `None` changes nothing.
    #[must_use]
    pub fn mirror(mut self, mirror: Option<String>) -> Self {
        self.mirror = mirror.or(self.mirror);
        self
    }

    /// Returns the cache's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn image_folder(&self, name: &str) -> PathBuf {
        self.folder.join("images").join(name)
    }

    pub(crate) fn part_folder(&self, key: &str) -> PathBuf {
        self.folder.join("parts").join(key)
    }

    /// Returns the manifest of a part, if it exists and is complete.
    pub(crate) fn part(&self, key: &str) -> Result<Option<Manifest>> {
        let folder = self.part_folder(key);
        Ok(Manifest::read(&folder)?.filter(|manifest| manifest.files_are_whole(&folder)))
    }

    /// Opens apt for packages for the host, which guests of the same architecture use, too.
    pub(crate) fn apt<'a>(&self, progress: &'a dyn Progress) -> Result<Apt<'a>> {
        self.apt_for(Arch::host(), progress)
    }

    /// Opens apt for packages for guests of this architecture.
    pub(crate) fn apt_for<'a>(&self, arch: Arch, progress: &'a dyn Progress) -> Result<Apt<'a>> {
        Apt::open(&self.apt_folder(arch), arch, self.mirror.as_deref(), progress)
    }

    fn apt_folder(&self, arch: Arch) -> PathBuf {
        self.folder.join(format!("apt{}", arch::suffix(arch)))
    }

    /// Makes apt fetch new lists the next time it is opened.
    pub(crate) fn forget_lists(&self) {
        Arch::ALL.iter().for_each(|arch| Apt::forget_lists(&self.apt_folder(*arch)));
    }

    /// Takes the lock of this name, and waits for others that hold it. It is held until the file is
    /// dropped.
    pub(crate) fn lock_file(&self, name: &str, progress: &dyn Progress) -> Result<File> {
        let since = Instant::now();
        let mut told = false;
        loop {
            if let Some(file) = self.try_lock_file(name)? {
                return Ok(file);
            }
            if progress.cancelled() {
                return Err(Error::Interrupted);
            }
            progress.update(Phase::Waiting, 0, 0);
            if !told && since.elapsed() >= TELL_AFTER {
                told = true;
                let path = self.folder.join(name);
                progress.note(&format!("another process builds, and has {}", path.display()));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Takes the lock without waiting. Returns `None` if another process holds it.
    fn try_lock_file(&self, name: &str) -> Result<Option<File>> {
        fs::create_dir_all(&self.folder).on("create", &self.folder)?;
        let path = self.folder.join(name);
        let file = File::options().create(true).append(true).open(&path).on("open", &path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).on("lock", &path),
        }
    }

    /// Waits until no other process builds, takes the lock, and removes what an interrupted build
    /// left behind.
    pub(crate) fn lock(&self, progress: &dyn Progress) -> Result<File> {
        let file = self.lock_file("lock", progress)?;
        for sub in ["parts", "images"] {
            let folder = self.folder.join(sub);
            fs::create_dir_all(&folder).on("create", &folder)?;
            for entry in fs::read_dir(&folder).on("read", &folder)?.flatten() {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                if name.starts_with(NEW) || name.starts_with(OLD) {
                    remove_folder(&entry.path())?;
                }
            }
        }
        Ok(file)
    }

    /// Makes a part with `make`, unless it exists already and `refresh` is not set. The caller
    /// holds the lock.
    pub(crate) fn make_part(
        &self,
        key: &str,
        refresh: bool,
        make: impl FnOnce(&Path, &mut Manifest) -> Result<()>,
    ) -> Result<Manifest> {
        if !refresh && let Some(manifest) = self.part(key)? {
            return Ok(manifest);
        }
        make_folder(&self.part_folder(key), key, "", make)
    }

    /// Returns the image called `name`, if there is one.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn find(&self, name: &str) -> Result<Option<Image>> {
        check_name("image name", name)?;
        let folder = self.image_folder(name);
        let Some(manifest) = Manifest::read(&folder)? else { return Ok(None) };
        if !manifest.files_are_whole(&folder) {
            let path = folder.join(Manifest::FILE);
            let reason = "a file of the image is missing or of another length".into();
            return Err(Error::Manifest { path, reason });
        }
        Ok(Some(Image::in_folder(&folder, manifest)))
    }

    /// Returns all images by name. Damaged ones are left out, with a warning in the log.
    ///
    /// # Errors
    /// If the cache cannot be read; a cache that does not exist has no images.
    pub fn list(&self) -> Result<Vec<Image>> {
        let folder = self.folder.join("images");
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).on("read", &folder),
        };
        let mut images = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') {
                continue;
            }
            match self.find(&name) {
                Ok(Some(image)) => images.push(image),
                Ok(None) => log::warn!("{} is no image", entry.path().display()),
                Err(error) => log::warn!("{error}"),
            }
        }
        images.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(images)
    }

    /// Removes an image, damaged or not, and the parts that no other image uses. QEMU stays.
    ///
    /// # Errors
    /// [`Error::NoImage`] if there is none of that name.
    pub fn remove(&self, name: &str, progress: &dyn Progress) -> Result<()> {
        check_name("image name", name)?;
        let folder = self.image_folder(name);
        let none = || Error::NoImage(name.into());
        if !folder.is_dir() {
            return Err(none());
        }
        let _lock = self.lock(progress)?;
        let old = self.image_folder(&format!("{OLD}{name}"));
        match fs::rename(&folder, &old) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(none()),
            result => result.on("remove", &folder)?,
        }
        remove_folder(&old)?;

        let images = self.list()?;
        let used: BTreeSet<&String> =
            images.iter().flat_map(|image| &image.manifest.parts).collect();
        let parts = self.folder.join("parts");
        let compiles = self.try_lock_file(COMPILER_LOCK)?.is_none();
        for entry in fs::read_dir(&parts).on("read", &parts)?.flatten() {
            let key = entry.file_name().to_string_lossy().into_owned();
            let kept = ["qemu", "qemu-arm64", "gcc-arm64", "rust-arm64", "tools"]
                .contains(&key.as_str())
                || key.starts_with(PACKAGES);
            let busy = compiles && is_work(&key);
            if !kept && !busy && !used.contains(&key) {
                remove_folder(&entry.path())?;
            }
        }
        if images.is_empty() {
            for arch in Arch::ALL {
                remove_folder(&self.apt_folder(arch))?;
            }
            remove_folder(&self.folder.join("templates"))?;
        }
        Ok(())
    }
}

/// Makes `folder` from the files that `fill` puts into a new folder, with a manifest. `folder` does
/// not change until everything is complete, and nothing is left behind on failure.
pub(crate) fn make_folder(
    folder: &Path,
    name: &str,
    fingerprint: &str,
    fill: impl FnOnce(&Path, &mut Manifest) -> Result<()>,
) -> Result<Manifest> {
    let new = folder.with_file_name(format!("{NEW}{name}"));
    remove_folder(&new)?;
    fs::create_dir_all(&new).on("create", &new)?;
    let mut manifest = Manifest::new(name, fingerprint);
    let filled = fill(&new, &mut manifest)
        .and_then(|()| manifest.write(&new))
        .and_then(|()| replace(&new, folder));
    match filled {
        Ok(()) => Ok(manifest),
        Err(error) => {
            let _ = remove_folder(&new);
            Err(error)
        }
    }
}

/// Replaces `folder` with the folder `new`, and removes the old one.
fn replace(new: &Path, folder: &Path) -> Result<()> {
    if !folder.exists() {
        return fs::rename(new, folder).on("rename", new);
    }
    let exchange = rustix::fs::renameat_with(
        rustix::fs::CWD,
        new,
        rustix::fs::CWD,
        folder,
        rustix::fs::RenameFlags::EXCHANGE,
    );
    if exchange.is_ok() {
        return remove_folder(new);
    }
    // This file system cannot exchange names, so for a moment neither folder exists.
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let old = folder.with_file_name(format!("{OLD}{name}"));
    fs::rename(folder, &old).on("rename", folder)?;
    fs::rename(new, folder).on("rename", new)?;
    remove_folder(&old)
}

/// Returns whether a folder among the parts is an incomplete build root.
pub(crate) fn is_work(name: &str) -> bool {
    name.starts_with(WORK)
}

/// Removes a folder that may not exist.
pub(crate) fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).on("remove", folder),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;
    use crate::spec::{Kernel, Spec};

    fn cache() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache"));
        (folder, cache)
    }

    fn put(cache: &Cache, name: &str, parts: &[&str]) {
        make_folder(&cache.image_folder(name), name, "f", |new, manifest| {
            for file in ["vmlinux", "initrd"] {
                fs::write(new.join(file), file).unwrap();
                manifest.add_file(new, file)?;
            }
            manifest.parts = parts.iter().map(|&part| part.into()).collect();
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn images_are_listed_found_and_removed() {
        let (_folder, cache) = cache();
        assert_eq!(cache.list().unwrap(), []);
        assert_eq!(cache.find("default").unwrap(), None);
        put(&cache, "b", &["kernel-x"]);
        put(&cache, "a", &["kernel-x", "root-y"]);
        for part in ["kernel-x", "root-y", "qemu"] {
            cache.make_part(part, false, |_, _| Ok(())).unwrap();
        }
        let names =
            || -> Vec<String> { cache.list().unwrap().into_iter().map(|i| i.name).collect() };
        assert_eq!(names(), ["a", "b"]);
        let image = cache.find("a").unwrap().unwrap();
        assert_eq!(fs::read(&image.initrd).unwrap(), b"initrd");
        assert_eq!((image.kernel_bz, image.root), (None, None));

        cache.remove("a", &Silent).unwrap();
        assert_eq!(names(), ["b"]);
        assert!(cache.part("kernel-x").unwrap().is_some());
        assert!(!cache.part_folder("root-y").exists());
        cache.remove("b", &Silent).unwrap();
        assert!(!cache.part_folder("kernel-x").exists());
        assert!(cache.part("qemu").unwrap().is_some(), "QEMU belongs to no image");
        let error = cache.remove("b", &Silent).unwrap_err().to_string();
        assert_eq!(error, "no image named \"b\": `tofu image ls` shows what there is");
        assert!(cache.remove("../x", &Silent).is_err());
    }

    #[test]
    fn damaged_image_is_named_and_removable() {
        let (_folder, cache) = cache();
        put(&cache, "a", &[]);
        fs::write(cache.image_folder("a").join("initrd"), "short").unwrap();
        let error = cache.find("a").unwrap_err().to_string();
        assert!(error.contains("tofu image rm"), "{error}");
        assert_eq!(cache.list().unwrap(), []);
        fs::write(cache.image_folder("a").join(Manifest::FILE), "garbage").unwrap();
        assert!(cache.find("a").is_err());
        cache.remove("a", &Silent).unwrap();
        assert!(!cache.image_folder("a").exists());
    }

    #[test]
    fn failed_build_leaves_the_old_folder_only() {
        let (_folder, cache) = cache();
        put(&cache, "a", &[]);
        let result = make_folder(&cache.image_folder("a"), "a", "g", |new, _| {
            fs::write(new.join("half"), "x").unwrap();
            Err(Error::Interrupted)
        });
        assert!(matches!(result, Err(Error::Interrupted)));
        assert_eq!(cache.find("a").unwrap().unwrap().manifest.fingerprint, "f");
        let left = fs::read_dir(cache.folder().join("images")).unwrap().count();
        assert_eq!(left, 1);
    }

    #[test]
    fn remains_of_a_killed_build_are_removed() {
        let (_folder, cache) = cache();
        put(&cache, "a", &[]);
        let remains = cache.image_folder(".new-b");
        fs::create_dir_all(remains.join("x/y")).unwrap();
        fs::create_dir_all(cache.part_folder(".old-c")).unwrap();
        let _lock = cache.lock(&Silent).unwrap();
        assert!(!remains.exists() && !cache.part_folder(".old-c").exists());
        assert!(cache.find("a").unwrap().is_some());
    }

    #[test]
    fn new_folder_replaces_the_old() {
        let (_folder, cache) = cache();
        put(&cache, "a", &["old"]);
        put(&cache, "a", &["new"]);
        assert_eq!(cache.find("a").unwrap().unwrap().manifest.parts, ["new"]);
        assert_eq!(fs::read_dir(cache.folder().join("images")).unwrap().count(), 1);
    }

    #[test]
    fn builder_waits_for_another_and_can_stop() {
        struct Stop;
        impl Progress for Stop {
            fn update(&self, phase: Phase, _: u64, _: u64) {
                assert_eq!(phase, Phase::Waiting);
            }
            fn cancelled(&self) -> bool {
                true
            }
        }
        let (_folder, cache) = cache();
        let lock = cache.lock(&Silent).unwrap();
        assert!(matches!(cache.lock(&Stop), Err(Error::Interrupted)));
        drop(lock);
        assert!(cache.lock(&Stop).is_ok());
    }

    #[test]
    fn users_kernel_is_checked_first() {
        let (folder, cache) = cache();
        cache
            .make_part("busybox", false, |new, manifest| {
                fs::write(new.join("busybox"), "b").unwrap();
                manifest.add_file(new, "busybox")
            })
            .unwrap();
        let file = folder.path().join("kernel");
        let build = || {
            let spec = Spec::new("own").unwrap().kernel(Kernel::File(file.clone()));
            cache.build(&spec, &Silent)
        };
        assert!(matches!(build(), Err(Error::Io { .. })));
        fs::write(&file, "#!/bin/sh").unwrap();
        let error = build().unwrap_err();
        assert!(matches!(&error, Error::Kernel { path, .. } if *path == file), "{error}");
        assert_eq!(cache.list().unwrap(), []);
    }
}
