//! The cache: a folder of the user's with images, the parts they share, and apt's own files.
//!
//! ```text
//! lock                 held by whoever builds or removes
//! apt/                 apt's configuration, lists and fetched packages
//! parts/KEY/           a kernel, busybox, a root file system, QEMU; shared by images
//! images/NAME/         manifest.toml, vmlinux, vmlinuz, initrd, root.ext4
//! ```
//! A folder below `parts` and `images` is made beside its place and renamed when it is whole.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::apt::{self, Apt, hex};
use crate::error::{Error, IoContext, Result};
use crate::manifest::{self, Manifest};
use crate::modules::Tree;
use crate::progress::{Phase, Progress};
use crate::spec::{Kernel, Spec, check_name, check_package};
use crate::{driver, initramfs, kernel, root};

/// Modules that a guest loads at boot.
pub(crate) const LOAD: [&str; 2] = ["vfio-pci", "vfio_iommu_type1"];
/// Modules that one with our own driver loads instead.
const DRIVER: [&str; 1] = ["tofu"];
/// Modules that it loads when it finds such a device.
pub(crate) const DEVICES: [&str; 5] =
    ["virtio_blk", "virtio_net", "virtio-rng", "virtio_console", "virtio-iommu"];
/// Modules for what the kernel makes by itself: a network interface of a program's.
const OWN: [&str; 1] = ["tun"];
/// Modules that it needs for a root disk.
const ROOT: [&str; 4] = ["ext4", "overlay", "crc32c_generic", "crc32c_intel"];

/// How the parts begin that [`Cache::packages`] makes.
const PACKAGES: &str = "packages-";
/// Whoever waits for a lock for so long is told which it is.
const TELL_AFTER: Duration = Duration::from_secs(1);
const NEW: &str = ".new-";
const OLD: &str = ".old-";

/// An image that is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Its name.
    pub name: String,
    /// The kernel as an ELF file: boots fastest. Debian's have a PVH entry.
    pub kernel_elf: PathBuf,
    /// The same kernel as a bzImage; `None` if it was made of an ELF file.
    pub kernel_bz: Option<PathBuf>,
    /// The initial RAM file system, an uncompressed cpio archive.
    pub initrd: PathBuf,
    /// A raw disk image, ext4, to be attached read-only as a virtio block device; several guests
    /// may share it.
    pub root: Option<PathBuf>,
    /// What it was made of.
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

/// A cache folder. Making one touches nothing.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
    mirror: Option<String>,
}

impl Cache {
    /// The user's: `$TOFU_CACHE`, `$XDG_CACHE_HOME/tofu` or `$HOME/.cache/tofu`, and the mirror in
    /// `$TOFU_MIRROR`.
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

    /// The cache in `folder`, which need not exist.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        // Programs run in other folders use it, too.
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        Self { folder, mirror: None }
    }

    /// Fetches from this Debian mirror instead of the host's own; `None` changes nothing.
    #[must_use]
    pub fn mirror(mut self, mirror: Option<String>) -> Self {
        self.mirror = mirror.or(self.mirror);
        self
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn image_folder(&self, name: &str) -> PathBuf {
        self.folder.join("images").join(name)
    }

    pub(crate) fn part_folder(&self, key: &str) -> PathBuf {
        self.folder.join("parts").join(key)
    }

    /// The manifest of a part that is there and whole.
    pub(crate) fn part(&self, key: &str) -> Result<Option<Manifest>> {
        let folder = self.part_folder(key);
        Ok(Manifest::read(&folder)?.filter(|manifest| manifest.files_are_whole(&folder)))
    }

    pub(crate) fn apt<'a>(&self, progress: &'a dyn Progress) -> Result<Apt<'a>> {
        Apt::open(&self.folder.join("apt"), self.mirror.as_deref(), progress)
    }

    /// Waits until nobody else has the lock of this name, which is held until the file is dropped.
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

    /// The same without waiting; `None` if somebody has it.
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

    /// Waits until nobody else builds, and removes what an interrupted build left.
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

    /// Makes a part with `make`, unless it is there already and `refresh` is off. The caller holds
    /// the lock.
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

    /// Makes the image that `spec` asks for, or returns it if it is there already, which takes
    /// some milliseconds. Everything else that is in the cache and fits is used.
    ///
    /// # Errors
    /// See [`Error`]. Whatever happens, an image of that name is the old one or the new one, whole,
    /// and what was fetched is kept for the next try.
    pub fn build(&self, spec: &Spec, progress: &dyn Progress) -> Result<Image> {
        let folder = self.image_folder(&spec.name);
        let fingerprint = spec.fingerprint();
        // A damaged manifest is a reason to build as well.
        let ready = || {
            let manifest = Manifest::read(&folder).ok().flatten()?;
            let fit = manifest.fingerprint == fingerprint && manifest.files_are_whole(&folder);
            fit.then(|| Image::in_folder(&folder, manifest))
        };
        if let (Some(image), false) = (ready(), spec.refresh) {
            return Ok(image);
        }
        if let Some(flavour) = spec.kernel.driver() {
            // Minutes, in which others can make their images.
            driver::compile(self, flavour, spec.refresh, progress)?;
        }
        let _lock = self.lock(progress)?;
        if let (Some(image), false) = (ready(), spec.refresh) {
            return Ok(image);
        }
        if spec.refresh {
            Apt::forget_lists(&self.folder.join("apt"));
        }
        let manifest = make_folder(&folder, &spec.name, &fingerprint, |new, manifest| {
            self.fill(spec, new, manifest, progress)
        })?;
        Ok(Image::in_folder(&folder, manifest))
    }

    /// Puts all files of an image into `new`.
    fn fill(
        &self,
        spec: &Spec,
        new: &Path,
        manifest: &mut Manifest,
        progress: &dyn Progress,
    ) -> Result<()> {
        let own_release = match &spec.kernel {
            Kernel::File(path) => Some(user_kernel(path, new, manifest)?),
            _ => None,
        };
        let mut take = |part: Manifest, key: &str, names: &[&str]| -> Result<()> {
            let from = self.part_folder(key);
            for name in names {
                if let Some(info) = part.files.get(*name) {
                    link_or_copy(&from.join(name), &new.join(name))?;
                    manifest.files.insert((*name).into(), info.clone());
                }
            }
            manifest.parts.push(key.into());
            manifest.packages.extend(part.packages);
            manifest.notes.extend(part.notes);
            Ok(())
        };

        // What may be wrong with the user's wishes comes out first, before much is fetched.
        let mut tree = None;
        let mut release = String::new();
        if !spec.with.is_empty() {
            let (key, part) = root::part(self, &spec.with, spec.refresh, progress)?;
            take(part, &key, &["root.ext4"])?;
        }
        let kernel = spec.chosen_kernel();
        match &kernel {
            Kernel::File(_) => {}
            Kernel::Driver | Kernel::DriverDebug => {
                let flavour = kernel.driver().unwrap_or(driver::Flavour::Plain);
                let (root, key, part) = driver::part(self, flavour, spec.refresh, progress)?;
                release.clone_from(&part.kernel);
                tree = Some(Tree::open(&self.part_folder(&key).join("modules"), &release)?);
                take(part, &key, &["vmlinux", "vmlinuz"])?;
                take(Manifest::new(&root, ""), &root, &[])?;
            }
            named => {
                let key = format!("kernel-{named}");
                let part = self.kernel_part(named, &key, spec.refresh, progress)?;
                release.clone_from(&part.kernel);
                tree = Some(Tree::open(&self.part_folder(&key).join("modules"), &release)?);
                take(part, &key, &["vmlinux", "vmlinuz"])?;
            }
        }
        let busybox = self.busybox_part(spec.refresh, progress)?;
        take(busybox, "busybox", &[])?;

        progress.update(Phase::Initramfs, 0, 1);
        let mut modules = Vec::new();
        let mut load: Vec<&str> = Vec::new();
        if let Some(tree) = tree {
            let first = if spec.kernel.driver().is_some() { &DRIVER[..] } else { &LOAD[..] };
            let mut names: Vec<&str> = first.to_vec();
            names.extend(spec.extra_modules());
            let optional = DEVICES.iter().chain(&OWN).chain(spec.optional_modules());
            let for_root = if spec.with.is_empty() { &[][..] } else { &ROOT[..] };
            names.extend(optional.chain(for_root).copied().filter(|name| tree.has(name)));
            modules = tree.closure(&names)?;
            load.extend(first);
            load.extend(spec.modules.iter().map(String::as_str));
        }
        let busybox = self.part_folder("busybox").join("busybox");
        let busybox = fs::read(&busybox).on("read", &busybox)?;
        let archive = initramfs::build(&busybox, &release, &modules, &load, &spec.programs)?;
        let initrd = new.join("initrd");
        fs::write(&initrd, archive).on("write", &initrd)?;
        manifest.add_file(new, "initrd")?;
        manifest.kernel = own_release.unwrap_or(release);
        manifest.with.clone_from(&spec.with);
        manifest.asked_kernel = spec.kernel.to_string();
        manifest.modules.clone_from(&spec.modules);
        progress.update(Phase::Initramfs, 1, 1);
        Ok(())
    }

    /// One of Debian's kernels: vmlinux, vmlinuz, config and modules.
    fn kernel_part(
        &self,
        kernel: &Kernel,
        key: &str,
        refresh: bool,
        progress: &dyn Progress,
    ) -> Result<Manifest> {
        let (package, from) = match kernel {
            Kernel::Generic => ("linux-image-amd64", apt::From::Release),
            Kernel::CloudBackports => ("linux-image-cloud-amd64", apt::From::Backports),
            Kernel::GenericBackports => ("linux-image-amd64", apt::From::Backports),
            _ => ("linux-image-cloud-amd64", apt::From::Release),
        };
        self.make_part(key, refresh, |folder, manifest| {
            let apt = self.apt(progress)?;
            let packages = kernel_packages(&apt, package, from)?;
            let names: Vec<&str> = packages.iter().map(String::as_str).collect();
            let debs = apt.alone(&names, from)?;
            let files = apt.fetch(&debs, from)?;
            let unpacked = folder.join("unpacked");
            apt.unpack(&files, &unpacked)?;
            progress.update(Phase::Kernel, 0, 1);
            let release = take_kernel(&unpacked, folder)?;
            fs::remove_dir_all(&unpacked).on("remove", &unpacked)?;
            for name in ["vmlinux", "vmlinuz", "config"] {
                manifest.add_file(folder, name)?;
            }
            manifest.kernel = release;
            manifest.packages = apt::packages(&debs, &files)?;
            apt::discard(&files);
            progress.update(Phase::Kernel, 1, 1);
            Ok(())
        })
    }

    fn busybox_part(&self, refresh: bool, progress: &dyn Progress) -> Result<Manifest> {
        self.make_part("busybox", refresh, |folder, manifest| {
            let apt = self.apt(progress)?;
            let debs = apt.alone(&["busybox-static"], apt::From::Release)?;
            let files = apt.fetch(&debs, apt::From::Release)?;
            let unpacked = folder.join("unpacked");
            apt.unpack(&files, &unpacked)?;
            let from = unpacked.join("usr/bin/busybox");
            fs::rename(&from, folder.join("busybox")).on("move", &from)?;
            fs::remove_dir_all(&unpacked).on("remove", &unpacked)?;
            manifest.add_file(folder, "busybox")?;
            manifest.packages = apt::packages(&debs, &files)?;
            apt::discard(&files);
            Ok(())
        })
    }

    /// A folder with these Debian packages unpacked over one another, without those they depend on
    /// and without running any of their scripts; fetched if it is not there yet. For sources and
    /// headers that a test is built of. `backports` takes the newest versions for Debian 13.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn packages<S: AsRef<str>>(
        &self,
        names: &[S],
        backports: bool,
        progress: &dyn Progress,
    ) -> Result<PathBuf> {
        let from = if backports { apt::From::Backports } else { apt::From::Release };
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        for name in &names {
            check_package(name)?;
        }
        let text = format!("{}\n{}", from.suite(), names.join("\n"));
        let key = format!("{PACKAGES}{}", &hex(&Sha256::digest(text))[..12]);
        let folder = self.part_folder(&key).join("root");
        if self.part(&key)?.is_some() {
            return Ok(folder);
        }
        let _lock = self.lock(progress)?;
        self.make_part(&key, false, |new, manifest| {
            let apt = self.apt(progress)?;
            let debs = apt.alone(&names, from)?;
            let files = apt.fetch(&debs, from)?;
            apt.unpack(&files, &new.join("root"))?;
            manifest.packages = apt::packages(&debs, &files)?;
            apt::discard(&files);
            Ok(())
        })?;
        Ok(folder)
    }

    /// Copies a file or folder of an image's root file system into the folder `to`. Symbolic links
    /// stay links.
    ///
    /// # Errors
    ///
    /// If the image has no root file system or that does not have it, or the copy cannot be
    /// written. The host needs e2fsprogs, or else it is fetched.
    pub fn copy_out(
        &self,
        image: &Image,
        from: &str,
        to: &Path,
        progress: &dyn Progress,
    ) -> Result<()> {
        let Some(root) = &image.root else {
            let folder = self.image_folder(&image.name);
            return Err(Error::NotInImage { image: folder, path: from.into() });
        };
        crate::root::copy_out(self, root, from, to, progress)
    }

    /// The image called `name`, if there is one.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn find(&self, name: &str) -> Result<Option<Image>> {
        check_name("image name", name)?;
        let folder = self.image_folder(name);
        let Some(manifest) = Manifest::read(&folder)? else { return Ok(None) };
        if !manifest.files_are_whole(&folder) {
            let path = folder.join(manifest::FILE);
            let reason = "a file of the image is missing or of another length".into();
            return Err(Error::Manifest { path, reason });
        }
        Ok(Some(Image::in_folder(&folder, manifest)))
    }

    /// All images by name. Damaged ones are left out, with a warning in the log.
    ///
    /// # Errors
    /// If the cache cannot be read; one that is not there has no images.
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

    /// Removes an image, whole or damaged, and the parts that no other image uses. QEMU stays.
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
        let compiles = self.try_lock_file(driver::LOCK)?.is_none();
        for entry in fs::read_dir(&parts).on("read", &parts)?.flatten() {
            let key = entry.file_name().to_string_lossy().into_owned();
            let kept = ["qemu", "tools"].contains(&key.as_str()) || key.starts_with(PACKAGES);
            let busy = compiles && driver::is_work(&key);
            if !kept && !busy && !used.contains(&key) {
                remove_folder(&entry.path())?;
            }
        }
        if images.is_empty() {
            remove_folder(&self.folder.join("apt"))?;
        }
        Ok(())
    }
}

/// Makes `folder` of what `fill` puts into a new one, with a manifest. Nothing of `folder` changes
/// before all is there, and nothing is left when it fails.
fn make_folder(
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

/// Puts folder `new` in the place of `folder`, and removes what was there.
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
    // A file system that cannot exchange: for a moment there is neither.
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let old = folder.with_file_name(format!("{OLD}{name}"));
    fs::rename(folder, &old).on("rename", folder)?;
    fs::rename(new, folder).on("rename", new)?;
    remove_folder(&old)
}

/// Removes a folder that may not be there.
pub(crate) fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).on("remove", folder),
        _ => Ok(()),
    }
}

fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    if fs::hard_link(from, to).is_err() {
        fs::copy(from, to).on("write", to)?;
    }
    Ok(())
}

/// The packages with a kernel's files: the one that `package`, which is empty, stands for, and
/// those it is split into.
fn kernel_packages(apt: &Apt<'_>, package: &str, from: apt::From) -> Result<Vec<String>> {
    let mut found: Vec<String> = Vec::new();
    let mut ask = vec![package.to_owned()];
    while let Some(next) = ask.pop() {
        for name in apt.depends(&next, from)? {
            let kernel = ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"]
                .iter()
                .filter_map(|prefix| name.strip_prefix(prefix))
                .any(|version| version.starts_with(|c: char| c.is_ascii_digit()));
            if kernel && !found.contains(&name) {
                found.push(name.clone());
                ask.push(name);
            }
        }
    }
    if found.is_empty() {
        return Err(Error::NoPackage { name: package.into(), release: from.suite() });
    }
    Ok(found)
}

/// Takes the kernel's files out of unpacked packages into `folder`, and returns its release.
fn take_kernel(unpacked: &Path, folder: &Path) -> Result<String> {
    let modules = ["usr/lib/modules", "lib/modules"]
        .iter()
        .map(|sub| unpacked.join(sub))
        .find(|path| path.is_dir())
        .unwrap_or_else(|| unpacked.join("usr/lib/modules"));
    let entry = fs::read_dir(&modules).on("read", &modules)?.next();
    let release = entry
        .and_then(io::Result::ok)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .unwrap_or_default();
    let source = modules.join(&release);
    for name in ["vmlinuz", "config"] {
        // Older packages have them in /boot, newer ones beside the modules.
        let boot = unpacked.join("boot").join(format!("{name}-{release}"));
        let from = if boot.exists() { boot } else { source.join(name) };
        fs::rename(&from, folder.join(name)).on("move", &from)?;
    }
    let bz = folder.join("vmlinuz");
    let elf = kernel::unpack(&bz, &fs::read(&bz).on("read", &bz)?)?;
    let path = folder.join("vmlinux");
    fs::write(&path, elf).on("write", &path)?;
    fs::rename(&source, folder.join("modules")).on("move", &source)?;
    Ok(release)
}

/// Takes a kernel file of the user's into `new`, and returns its release if it says it.
fn user_kernel(path: &Path, new: &Path, manifest: &mut Manifest) -> Result<String> {
    let bytes = fs::read(path).on("read", path)?;
    let write = |name: &str, bytes: &[u8]| {
        let to = new.join(name);
        fs::write(&to, bytes).on("write", &to)
    };
    if kernel::inspect(path, &bytes)? == kernel::Kind::BzImage {
        write("vmlinux", &kernel::unpack(path, &bytes)?)?;
        write("vmlinuz", &bytes)?;
        manifest.add_file(new, "vmlinuz")?;
    } else {
        write("vmlinux", &bytes)?;
    }
    manifest.add_file(new, "vmlinux")?;
    Ok(kernel::release(&bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

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
    fn a_damaged_image_is_named_and_can_be_removed() {
        let (_folder, cache) = cache();
        put(&cache, "a", &[]);
        fs::write(cache.image_folder("a").join("initrd"), "short").unwrap();
        let error = cache.find("a").unwrap_err().to_string();
        assert!(error.contains("tofu image rm"), "{error}");
        assert_eq!(cache.list().unwrap(), []);
        fs::write(cache.image_folder("a").join(manifest::FILE), "garbage").unwrap();
        assert!(cache.find("a").is_err());
        cache.remove("a", &Silent).unwrap();
        assert!(!cache.image_folder("a").exists());
    }

    #[test]
    fn a_failed_build_leaves_the_old_folder_and_no_other() {
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
    fn a_new_folder_takes_the_place_of_the_old() {
        let (_folder, cache) = cache();
        put(&cache, "a", &["old"]);
        put(&cache, "a", &["new"]);
        assert_eq!(cache.find("a").unwrap().unwrap().manifest.parts, ["new"]);
        assert_eq!(fs::read_dir(cache.folder().join("images")).unwrap().count(), 1);
    }

    #[test]
    fn one_builder_waits_for_another_and_can_be_stopped() {
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
    fn a_kernel_of_the_users_is_checked_first() {
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
