//! Makes images and parts.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{Cache, Image, PACKAGES, make_folder};
use crate::apt::{self, Apt};
use crate::arch::{self, Arch};
use crate::error::{Error, IoContext, Result};
use crate::hash::hex;
use crate::manifest::{self, Manifest};
use crate::modules::{Module, Tree};
use crate::progress::{Phase, Progress};
use crate::qemu::Qemu;
use crate::root::Guest;
use crate::spec::{DriverFor, Kernel, Spec, check_package};
use crate::{driver, initramfs, kernel, root};

/// Modules that a guest loads at boot.
const LOAD: [&str; 2] = ["vfio-pci", "vfio_iommu_type1"];
/// Modules that an arm64 guest loads before these: VFIO needs the IOMMU, which is a virtio device.
/// Some kernels have them built in.
const ARM64: [&str; 2] = ["virtio_pci", "virtio-iommu"];
/// Modules that a guest with our own driver loads instead.
const DRIVER: [&str; 1] = ["tofu"];
/// Modules that a guest loads when it finds such a device.
const DEVICES: [&str; 5] =
    ["virtio_blk", "virtio_net", "virtio-rng", "virtio_console", "virtio-iommu"];
/// Modules for devices that programs create: virtual network interfaces.
const OWN: [&str; 1] = ["tun"];
/// Modules with which programs make networks: all folders of the kernel's sources that are about
/// protocols, filters and virtual interfaces rather than about hardware.
const NET: [&str; 39] = [
    "net/802",
    "net/8021q",
    "net/bridge",
    "net/core",
    "net/ipv4",
    "net/ipv6",
    "net/key",
    "net/l2tp",
    "net/llc",
    "net/mpls",
    "net/mptcp",
    "net/netfilter",
    "net/netlink",
    "net/nsh",
    "net/openvswitch",
    "net/packet",
    "net/psample",
    "net/sched",
    "net/sctp",
    "net/tls",
    "net/unix",
    "net/xdp",
    "net/xfrm",
    "drivers/net/bonding",
    "drivers/net/dummy.ko",
    "drivers/net/geneve.ko",
    "drivers/net/ifb.ko",
    "drivers/net/ipvlan",
    "drivers/net/macsec.ko",
    "drivers/net/macvlan.ko",
    "drivers/net/macvtap.ko",
    "drivers/net/nlmon.ko",
    "drivers/net/tap.ko",
    "drivers/net/team",
    "drivers/net/tun.ko",
    "drivers/net/veth.ko",
    "drivers/net/vrf.ko",
    "drivers/net/vxlan",
    "drivers/net/wireguard",
];
/// Modules that a guest needs for a root disk.
const ROOT: [&str; 4] = ["ext4", "overlay", "crc32c_generic", "crc32c_intel"];

impl Cache {
    /// Makes the image that `spec` describes. If it exists already, returns it, which takes some
    /// milliseconds. Uses everything in the cache that matches.
    ///
    /// # Errors
    /// See [`Error`]. On failure, an image of that name is either the complete old one or the
    /// complete new one, and fetched files are kept for the next attempt.
    pub fn build(&self, spec: &Spec, progress: &dyn Progress) -> Result<Image> {
        spec.check_arch()?;
        let folder = self.image_folder(&spec.name);
        let fingerprint = spec.fingerprint();
        // A damaged manifest is a reason to build, too.
        let ready = || {
            let manifest = Manifest::read(&folder).ok().flatten()?;
            let fit = manifest.fingerprint == fingerprint && manifest.files_are_whole(&folder);
            fit.then(|| Image::in_folder(&folder, manifest))
        };
        if let (Some(image), false) = (ready(), spec.refresh) {
            return Ok(image);
        }
        if let Some(wanted) = spec.driver() {
            // This takes minutes, during which others can make their images.
            driver::compile(self, wanted, spec.refresh, progress)?;
        }
        // Packages are configured on this architecture. Fetching its emulator takes the lock, too.
        let emulator = match spec.arch {
            Arch::X86_64 => None,
            _ if spec.with.is_empty() => None,
            arch => Some(self.qemu_for(arch, None, progress)?),
        };
        let _lock = self.lock(progress)?;
        if let (Some(image), false) = (ready(), spec.refresh) {
            return Ok(image);
        }
        if spec.refresh {
            self.forget_lists();
        }
        let manifest = make_folder(&folder, &spec.name, &fingerprint, |new, manifest| {
            self.fill(spec, emulator.as_ref(), new, manifest, progress)
        })?;
        Ok(Image::in_folder(&folder, manifest))
    }

    /// Returns whether an image has the driver tofu.ko, and the cache has everything to compile it.
    /// Updating the image then takes seconds, and fetches nothing.
    pub fn has_driver_ready(&self, image: &Image) -> bool {
        let wanted = image.manifest.spec().ok().and_then(|spec| spec.driver());
        wanted.is_some_and(|wanted| driver::has_root(self, wanted).unwrap_or(false))
    }

    /// Puts all files of an image into the folder `new`.
    fn fill(
        &self,
        spec: &Spec,
        emulator: Option<&Qemu>,
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

        // Errors in the user's request are found before much is fetched.
        let mut tree = None;
        let mut release = String::new();
        let kernel = spec.chosen_kernel();
        if !spec.with.is_empty() {
            let guest = emulator.map(|qemu| Guest { arch: spec.arch, qemu, kernel: &kernel });
            let (key, part) = root::part(self, &spec.with, guest, spec.refresh, progress)?;
            take(part, &key, &["root.ext4"])?;
        }
        let driver = spec.driver();
        if let Some(named) = debian_kernel(&kernel, driver) {
            // With a driver, the kernel has been fetched again before the driver's build root was
            // made.
            let refresh = spec.refresh && driver.is_none();
            let (key, part) = self.kernel_part(&named, spec.arch, refresh, progress)?;
            release.clone_from(&part.kernel);
            tree = Some(Tree::open(&self.part_folder(&key).join("modules"), &release)?);
            take(part, &key, &["vmlinux", "vmlinuz"])?;
        }
        if let Some(wanted) = driver {
            let (root, key, part) = driver::part(self, wanted, spec.refresh, progress)?;
            let modules = self.part_folder(&key).join("modules");
            if let Some(tree) = &mut tree {
                tree.add(&modules)?;
            } else {
                release.clone_from(&part.kernel);
                tree = Some(Tree::open(&modules, &release)?);
            }
            take(part, &key, &["vmlinux", "vmlinuz"])?;
            take(Manifest::new(&root, ""), &root, &[])?;
        }
        let (key, busybox) = self.busybox_part(spec.arch, spec.refresh, progress)?;
        take(busybox, &key, &[])?;
        let busybox = self.part_folder(&key).join("busybox");

        progress.update(Phase::Initramfs, 0, 1);
        let found = tree.as_ref().map(|tree| modules_of(tree, spec)).transpose()?;
        let (modules, load) = found.unwrap_or_default();
        let busybox = fs::read(&busybox).on("read", &busybox)?;
        let archive = initramfs::build(&busybox, &release, &modules, &load, &spec.programs)?;
        let initrd = new.join("initrd");
        fs::write(&initrd, archive).on("write", &initrd)?;
        manifest.add_file(new, "initrd")?;
        manifest.kernel = own_release.unwrap_or(release);
        describe(manifest, spec);
        progress.update(Phase::Initramfs, 1, 1);
        Ok(())
    }

    /// Makes the part with one of Debian's kernels: vmlinux, vmlinuz, config and modules. Returns
    /// the part's key and its manifest. The caller holds the lock.
    pub(crate) fn kernel_part(
        &self,
        kernel: &Kernel,
        arch: Arch,
        refresh: bool,
        progress: &dyn Progress,
    ) -> Result<(String, Manifest)> {
        let (before, behind, from) = match kernel {
            Kernel::Generic => ("", "", apt::From::Release),
            Kernel::CloudBackports => ("cloud-", "", apt::From::Backports),
            Kernel::GenericBackports => ("", "", apt::From::Backports),
            Kernel::Pages16K => ("", "-16k", apt::From::Release),
            Kernel::Pages16KBackports => ("", "-16k", apt::From::Backports),
            _ => ("cloud-", "", apt::From::Release),
        };
        let package = format!("linux-image-{before}{}{behind}", arch::debian(arch));
        let key = kernel.part_key(arch);
        let part = self.make_part(&key, refresh, |folder, manifest| {
            let apt = self.apt_for(arch, progress)?;
            let packages = kernel_packages(&apt, &package, from)?;
            let names: Vec<&str> = packages.iter().map(String::as_str).collect();
            let debs = apt.alone(&names, from)?;
            let files = apt.fetch(&debs, from)?;
            let unpacked = folder.join("unpacked");
            apt.unpack(&files, &unpacked)?;
            progress.update(Phase::Kernel, 0, 1);
            let release = take_kernel(arch, &unpacked, folder)?;
            fs::remove_dir_all(&unpacked).on("remove", &unpacked)?;
            for name in ["vmlinux", "vmlinuz", "config"] {
                if folder.join(name).exists() {
                    manifest.add_file(folder, name)?;
                }
            }
            manifest.kernel = release;
            manifest.packages = apt::packages(&debs, &files)?;
            apt::discard(&files);
            progress.update(Phase::Kernel, 1, 1);
            Ok(())
        })?;
        Ok((key, part))
    }

    /// Makes the part with busybox. Returns the part's key and its manifest. The caller holds the
    /// lock.
    pub(crate) fn busybox_part(
        &self,
        arch: Arch,
        refresh: bool,
        progress: &dyn Progress,
    ) -> Result<(String, Manifest)> {
        let key = format!("busybox{}", arch::suffix(arch));
        let part = self.make_part(&key, refresh, |folder, manifest| {
            let apt = self.apt_for(arch, progress)?;
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
        })?;
        Ok((key, part))
    }

    /// Returns a folder with these Debian packages unpacked over one another, and fetches them if
    /// it does not exist yet. Neither their dependencies nor their scripts are used. For sources
    /// and headers that a test is built from. `backports` takes the newest versions for Debian 13.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn packages<S: AsRef<str>>(
        &self,
        names: &[S],
        backports: bool,
        progress: &dyn Progress,
    ) -> Result<PathBuf> {
        self.packages_for(Arch::default(), names, backports, progress)
    }

    /// Returns such a folder for packages for another architecture.
    pub(crate) fn packages_for<S: AsRef<str>>(
        &self,
        arch: Arch,
        names: &[S],
        backports: bool,
        progress: &dyn Progress,
    ) -> Result<PathBuf> {
        let from = if backports { apt::From::Backports } else { apt::From::Release };
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        for name in &names {
            check_package(name)?;
        }
        let key = packages_key(arch, &names, from);
        let folder = self.part_folder(&key).join("root");
        if self.part(&key)?.is_some() {
            return Ok(folder);
        }
        let _lock = self.lock(progress)?;
        self.make_part(&key, false, |new, manifest| {
            let apt = self.apt_for(arch, progress)?;
            let debs = apt.alone(&names, from)?;
            let files = apt.fetch(&debs, from)?;
            let root = new.join("root");
            apt.unpack(&files, &root)?;
            // As on every Debian system: loaders are found through these links.
            let lib = root.join("lib");
            if root.join("usr/lib").is_dir() && !lib.exists() {
                symlink("usr/lib", &lib).on("create", &lib)?;
            }
            manifest.packages = apt::packages(&debs, &files)?;
            apt::discard(&files);
            Ok(())
        })?;
        Ok(folder)
    }

    /// Returns the folder in which [`Self::packages_for`] has put these packages of the release, if
    /// it exists.
    pub(crate) fn present_packages(&self, arch: Arch, names: &[&str]) -> Option<PathBuf> {
        let key = packages_key(arch, names, apt::From::Release);
        self.part(&key).ok()??;
        Some(self.part_folder(&key).join("root"))
    }

    /// Copies a file or folder of an image's root file system into the folder `to`. Symbolic links
    /// remain links.
    ///
    /// # Errors
    ///
    /// If the image has no root file system, the file is not in it, or the copy cannot be written.
    /// If e2fsprogs is missing on the host, it is fetched, which may fail as well.
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
        root::copy_out(self, root, from, to, progress)
    }
}

/// Returns the key of the part with these packages.
fn packages_key(arch: Arch, names: &[&str], from: apt::From) -> String {
    let text = format!("{}\n{}", from.suite(), names.join("\n"));
    let hash = hex(&Sha256::digest(text));
    format!("{PACKAGES}{}{}", &hash[..12], arch::suffix(arch))
}

impl Spec {
    /// Returns a hash of everything that affects the image, except newer packages.
    pub(crate) fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        add(&manifest::FORMAT.to_le_bytes());
        add(arch::suffix(self.arch).as_bytes());
        add(self.chosen_kernel().to_string().as_bytes());
        if let Kernel::File(path) = &self.kernel
            && let Ok(data) = std::fs::metadata(path)
        {
            for number in [data.size() as i64, data.mtime(), data.mtime_nsec()] {
                add(&number.to_le_bytes());
            }
        }
        if let Some(wanted) = self.driver() {
            add(driver::recipe(wanted).as_bytes());
        }
        if self.has_net_modules() {
            NET.iter().for_each(|place| add(place.as_bytes()));
        }
        for list in [&self.with, &self.modules] {
            add(&(list.len() as u64).to_le_bytes());
            list.iter().for_each(|name| add(name.as_bytes()));
        }
        initramfs::scripts().iter().for_each(|script| add(script.as_bytes()));
        loads(self.arch, self.driver())
            .iter()
            .chain(&DEVICES)
            .for_each(|name| add(name.as_bytes()));
        add(root::RECIPE.as_bytes());
        if self.arch != Arch::default() && !self.with.is_empty() {
            add(initramfs::SETUP.as_bytes());
        }
        for program in &self.programs {
            add(program.name.as_bytes());
            add(&program.mode.to_le_bytes());
            add(&program.bytes);
        }
        hex(&hash.finalize())
    }
}

/// Notes in the manifest what the image was made for.
fn describe(manifest: &mut Manifest, spec: &Spec) {
    manifest.arch = spec.arch;
    manifest.with.clone_from(&spec.with);
    manifest.asked_kernel = spec.kernel.to_string();
    manifest.modules.clone_from(&spec.modules);
}

/// The kernel of Debian's that an image has, if it has one.
fn debian_kernel(kernel: &Kernel, driver: Option<DriverFor>) -> Option<Kernel> {
    match (kernel, driver) {
        (Kernel::File(_), _) => None,
        (_, Some(wanted)) => wanted.flavour.debian(),
        (named, None) => Some(named.clone()),
    }
}

/// The modules that go into an initramfs, and the names of those that its `init` loads.
fn modules_of<'a>(tree: &Tree, spec: &'a Spec) -> Result<(Vec<Module>, Vec<&'a str>)> {
    let mut load: Vec<&str> = loads(spec.arch, spec.driver());
    load.retain(|name| tree.has_file(name) || !ARM64.contains(name));
    let mut names = load.clone();
    names.extend(spec.extra_modules());
    let optional = DEVICES.iter().chain(&OWN).chain(spec.optional_modules());
    let for_root = if spec.with.is_empty() { &[][..] } else { &ROOT[..] };
    names.extend(optional.chain(for_root).copied().filter(|name| tree.has(name)));
    let more = if spec.has_net_modules() { tree.within(&NET) } else { Vec::new() };
    load.extend(spec.loaded_modules());
    Ok((tree.closure_with(&names, &more)?, load))
}

/// Returns the modules that a guest loads at boot. The kernels built here for the driver have VFIO
/// built in, which takes the device on nodes that do without the driver (`module_blacklist=tofu`).
fn loads(arch: Arch, driver: Option<DriverFor>) -> Vec<&'static str> {
    let iommu = if arch == Arch::Arm64 { &ARM64[..] } else { &[] };
    let (own, vfio) = match driver.map(|wanted| wanted.flavour.debian()) {
        None => (&[][..], &LOAD[..]),
        Some(Some(_)) => (&DRIVER[..], &LOAD[..]),
        Some(None) => (&DRIVER[..], &[][..]),
    };
    [iommu, own, vfio].concat()
}

fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    if fs::hard_link(from, to).is_err() {
        fs::copy(from, to).on("write", to)?;
    }
    Ok(())
}

/// Returns the packages with a kernel's files: the one to which the empty package `package` refers,
/// and those into which that is split.
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

/// Copies a kernel's files from unpacked packages to `folder`, and returns its release.
fn take_kernel(arch: Arch, unpacked: &Path, folder: &Path) -> Result<String> {
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
        // Older packages have these files in /boot, newer ones beside the modules.
        let boot = unpacked.join("boot").join(format!("{name}-{release}"));
        let from = if boot.exists() { boot } else { source.join(name) };
        fs::rename(&from, folder.join(name)).on("move", &from)?;
    }
    let (bz, path) = (folder.join("vmlinuz"), folder.join("vmlinux"));
    let bytes = fs::read(&bz).on("read", &bz)?;
    if arch == Arch::Arm64 {
        // Debian's kernel for arm64 is not compressed.
        kernel::inspect_arm64(&bz, &bytes)?;
        fs::rename(&bz, &path).on("move", &bz)?;
    } else {
        fs::write(&path, kernel::unpack(&bz, &bytes)?).on("write", &path)?;
    }
    fs::rename(&source, folder.join("modules")).on("move", &source)?;
    Ok(release)
}

/// Copies a user's kernel file to `new`, and returns its release if the file names it.
fn user_kernel(path: &Path, new: &Path, manifest: &mut Manifest) -> Result<String> {
    let bytes = tofu_input::read(path, tofu_input::BOOT).on("read", path)?;
    let write = |name: &str, bytes: &[u8]| {
        let to = new.join(name);
        fs::write(&to, bytes).on("write", &to)
    };
    if kernel::inspect(path, &bytes)? == kernel::KernelKind::BzImage {
        write("vmlinux", &kernel::unpack(path, &bytes)?)?;
        write("vmlinuz", &bytes)?;
        manifest.add_file(new, "vmlinuz")?;
    } else {
        write("vmlinux", &bytes)?;
    }
    manifest.add_file(new, "vmlinux")?;
    Ok(kernel::release(&bytes).unwrap_or_default())
}
