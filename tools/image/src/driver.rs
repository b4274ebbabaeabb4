//! The kernel driver, tofu.ko, built from its sources by Debian's compilers in their own root,
//! either for a kernel with Rust that is built there as well, or for one of Debian's own kernels.
//!
//! There are two parts in the cache: the build root with what modules are compiled against, which
//! takes some gigabytes and minutes and is made once; and the files of it that guests need, which
//! are made again when the driver's sources change.

mod stock;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::apt;
use crate::arch::Arch;
use crate::cache::{COMPILER_LOCK, Cache, WORK, is_work, remove_folder};
use crate::error::{Error, IoContext, Result};
use crate::hash::hex;
use crate::kernel;
use crate::manifest::Manifest;
use crate::progress::{Phase, Progress};
use crate::root::RootAccess;
use crate::run;
use crate::spec::{DriverFor, Flavour, Kernel};

use stock::Stock;

/// The packages that build a kernel with Rust. The driver is written for the interfaces of this
/// version, which change from one version to the next.
const PACKAGES: &[&str] = &[
    "base-files",
    "bash",
    "bc",
    "bindgen",
    "bison",
    "bzip2",
    "coreutils",
    "cpio",
    "dash",
    "diffutils",
    "findutils",
    "flex",
    "gawk",
    "gcc",
    "grep",
    "gzip",
    "kmod",
    "libc6-dev",
    "libelf-dev",
    "linux-source-7.3",
    "make",
    "mawk",
    "perl-base",
    "python3-minimal",
    "rust-clippy",
    "rust-src",
    "rustc",
    "rustfmt",
    "sed",
    "tar",
    "xz-utils",
];
/// Additional packages for a kernel that checks itself: KASAN needs the same compiler for C and
/// Rust.
const CLANG: &[&str] = &["clang", "lld", "llvm"];
/// Packages that compile for arm64.
const CROSS: &[&str] = &["gcc-aarch64-linux-gnu"];
/// Approximate number of lines that building this kernel prints, to estimate progress.
const LINES: u64 = 2300;

/// The build takes ten minutes on two idle processors, but hours on a busy host.
const COMPILE_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// The prefix of the names of build roots.
const ROOT: &str = "driver-root-";

const CONFIG: &str = include_str!("../../../guest-lib/kernel/tofu.config");
const DEBUG_CONFIG: &str = include_str!("../../../guest-lib/kernel/tofu-debug.config");
const ARM64_CONFIG: &str = include_str!("../../../guest-lib/kernel/tofu-arm64.config");
const SCRIPT: &str = include_str!("../init/driver");
const OWN_SCRIPT: &str = include_str!("../init/module");
/// The copy of the sources in the build root, as the compiler names it.
const OWN_FOLDER: &str = "/src/own/";

/// Lists files with their paths below `guest-lib`.
macro_rules! sources {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../guest-lib/", $path)))),*]
    };
}

/// The sources of the module.
const SOURCES: &[(&str, &str)] = sources![
    "abi/src/addr.rs",
    "abi/src/barrier.rs",
    "abi/src/bits.rs",
    "abi/src/cq.rs",
    "abi/src/desc.rs",
    "abi/src/frame.rs",
    "abi/src/generation.rs",
    "abi/src/group.rs",
    "abi/src/ids.rs",
    "abi/src/irq.rs",
    "abi/src/lib.rs",
    "abi/src/packets.rs",
    "abi/src/pci.rs",
    "abi/src/queue.rs",
    "abi/src/rcode.rs",
    "abi/src/reduce.rs",
    "abi/src/reduce/fpsum.rs",
    "abi/src/reduce/value.rs",
    "abi/src/regs.rs",
    "abi/src/subnet.rs",
    "abi/src/table.rs",
    "abi/src/tnw.rs",
    "abi/src/tof.rs",
    "abi/src/topology.rs",
    "abi/src/topology/legs.rs",
    "abi/src/topology/port.rs",
    "abi/src/topology/shape.rs",
    "ipotofu/src/addr.rs",
    "ipotofu/src/counters.rs",
    "ipotofu/src/health.rs",
    "ipotofu/src/hosts.rs",
    "ipotofu/src/inbound.rs",
    "ipotofu/src/lib.rs",
    "ipotofu/src/neighbor.rs",
    "ipotofu/src/nodes.rs",
    "ipotofu/src/offload.rs",
    "ipotofu/src/outbound.rs",
    "ipotofu/src/outbound/frames.rs",
    "ipotofu/src/outbound/queue.rs",
    "ipotofu/src/outbound/relay.rs",
    "ipotofu/src/outbound/ways.rs",
    "ipotofu/src/ports.rs",
    "ipotofu/src/reassembly.rs",
    "ipotofu/src/rendezvous.rs",
    "ipotofu/src/rendezvous/fetches.rs",
    "ipotofu/src/rendezvous/message.rs",
    "ipotofu/src/rendezvous/requests.rs",
    "ipotofu/src/routes.rs",
    "ipotofu/src/storage.rs",
    "ipotofu/src/tree.rs",
    "ipotofu/src/wire.rs",
    "kernel/Kbuild",
    "kernel/bch.rs",
    "kernel/bch/gate.rs",
    "kernel/bch/interrupt.rs",
    "kernel/charge.rs",
    "kernel/control.rs",
    "kernel/cq.rs",
    "kernel/cq/interrupt.rs",
    "kernel/cq/queue.rs",
    "kernel/cq/registration.rs",
    "kernel/cq/ring.rs",
    "kernel/cq/stag.rs",
    "kernel/cq/tables.rs",
    "kernel/device.rs",
    "kernel/dma.rs",
    "kernel/engine.rs",
    "kernel/files.rs",
    "kernel/ids.rs",
    "kernel/kept.rs",
    "kernel/netdev.c",
    "kernel/netdev.h",
    "kernel/netdev.rs",
    "kernel/netdev/ethtool.rs",
    "kernel/netdev/interface.rs",
    "kernel/netdev/link.rs",
    "kernel/netdev/rx.rs",
    "kernel/netdev/tx.rs",
    "kernel/netdev/tx/gets.rs",
    "kernel/netdev/tx/poll.rs",
    "kernel/netdev/tx/rendezvous.rs",
    "kernel/netdev/tx/xmit.rs",
    "kernel/opened.rs",
    "kernel/opener.rs",
    "kernel/packets.rs",
    "kernel/pin.rs",
    "kernel/registers.rs",
    "kernel/rendezvous.rs",
    "kernel/reset.rs",
    "kernel/shim.c",
    "kernel/shim.h",
    "kernel/shim.rs",
    "kernel/signal.rs",
    "kernel/skb.rs",
    "kernel/stats.rs",
    "kernel/text.rs",
    "kernel/tofu_main.rs",
    "kernel/trace.h",
    "kernel/tx_queue.rs",
    "kernel/uapi.rs",
    "kernel/unmap.rs",
    "kernel/users.rs",
];

impl DriverFor {
    /// Returns all combinations of flavour and architecture.
    fn all() -> impl Iterator<Item = Self> {
        let of = |arch| Flavour::ALL.into_iter().map(move |flavour| Self { flavour, arch });
        Arch::ALL.into_iter().flat_map(of)
    }

    /// Returns the packages of the build root, except for those that are named by a kernel's
    /// release.
    fn packages(self) -> Vec<&'static str> {
        let cross = if self.arch == Arch::Arm64 { CROSS } else { &[] };
        let lists = match self.flavour {
            Flavour::Plain => [PACKAGES, cross],
            Flavour::Debug => [PACKAGES, CLANG],
            Flavour::Cloud | Flavour::Generic | Flavour::Pages16K => [stock::PACKAGES, cross],
        };
        lists.concat()
    }

    /// Returns path and content of a file for the script in the build root: the kernel's
    /// configuration, or the script that makes the tree for a Debian kernel.
    fn file(self) -> (&'static str, String) {
        let config = |more: &str| ("build/config", CONFIG.to_owned() + more);
        match (self.flavour, self.arch) {
            (Flavour::Plain, Arch::X86_64) => config(""),
            (Flavour::Plain, Arch::Arm64) => config(ARM64_CONFIG),
            (Flavour::Debug, _) => config(DEBUG_CONFIG),
            (Flavour::Cloud | Flavour::Generic | Flavour::Pages16K, _) => {
                ("tofu-build/kdir", stock::KDIR.into())
            }
        }
    }

    fn script(self) -> &'static str {
        if self.debian().is_some() { stock::SCRIPT } else { SCRIPT }
    }

    /// Returns the Debian kernel that it is for, or `None` if the kernel is built here.
    fn debian(self) -> Option<Kernel> {
        self.flavour.debian()
    }

    /// Returns the suite to prefer if Debian has several versions of a package.
    fn from(self) -> apt::From {
        if self.debian().is_some() { apt::From::Release } else { apt::From::Backports }
    }

    /// Returns the variables that set the architecture for the kernel's makefiles and our scripts.
    fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self.arch {
            Arch::X86_64 => &[],
            Arch::Arm64 => &[("ARCH", "arm64"), ("CROSS_COMPILE", "aarch64-linux-gnu-")],
        }
    }

    /// Returns the name of the file of a kernel that is built here.
    fn kernel_file(self) -> &'static str {
        match self.arch {
            Arch::X86_64 => "bzImage",
            Arch::Arm64 => "Image",
        }
    }
}

/// The purpose of a build root.
struct Target {
    wanted: DriverFor,
    /// One of Debian's kernels; `None` if the root builds its own.
    stock: Option<Stock>,
}

impl Target {
    /// Finds the target. Returns `None` if it is for a Debian kernel that is not in the cache.
    fn find(cache: &Cache, wanted: DriverFor) -> Result<Option<Self>> {
        let Some(debian) = wanted.debian() else { return Ok(Some(Self { wanted, stock: None })) };
        let Some(part) = cache.part(&debian.part_key(wanted.arch))? else { return Ok(None) };
        Ok(Some(Self { wanted, stock: Some(Stock::of(&part)?) }))
    }

    /// Finds the target, and fetches its Debian kernel if necessary. The caller holds the lock.
    fn fetch(
        cache: &Cache,
        wanted: DriverFor,
        refresh: bool,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let Some(debian) = wanted.debian() else { return Ok(Self { wanted, stock: None }) };
        let (_, part) = cache.kernel_part(&debian, wanted.arch, refresh, progress)?;
        Ok(Self { wanted, stock: Some(Stock::of(&part)?) })
    }

    /// Returns the key of the part with the build root.
    fn key(&self) -> String {
        format!("{ROOT}{}", &self.mark(root_recipe(self.wanted))[..12])
    }

    /// Returns a hash of the recipe and the kernel that it is for.
    fn mark(&self, recipe: String) -> String {
        match &self.stock {
            None => recipe,
            Some(stock) => hex(&Sha256::digest(format!("{recipe}\n{}", stock.key()))),
        }
    }

    /// Returns the folder in which a build root is made. It is kept after an interruption, so that
    /// a long build need not start again.
    fn work_folder(&self, cache: &Cache) -> PathBuf {
        cache.part_folder(&format!("{WORK}{}", self.key()))
    }
}

/// Returns a hash of the driver's sources and of how it is built.
pub(crate) fn recipe(wanted: DriverFor) -> String {
    let mut hash = Sha256::new();
    hash.update(root_recipe(wanted));
    for (path, text) in SOURCES {
        for part in [path, text] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    hex(&hash.finalize())
}

fn root_recipe(wanted: DriverFor) -> String {
    let parts = [wanted.script(), &wanted.file().1, &wanted.packages().join(" ")];
    hex(&Sha256::digest(parts.join("\n")))
}

/// Makes the build root with its kernel, unless it exists; [`part`] takes the kernel from there.
/// The caller must not hold the cache's lock. It is taken only briefly, so that others can use the
/// cache while the compiler runs.
pub(crate) fn compile(
    cache: &Cache,
    wanted: DriverFor,
    refresh: bool,
    progress: &dyn Progress,
) -> Result<()> {
    // A process that makes another root holds the lock for long.
    if !refresh && has_root(cache, wanted)? {
        return Ok(());
    }
    let _lock = cache.lock_file(COMPILER_LOCK, progress)?;
    let target = {
        let _lock = cache.lock(progress)?;
        if refresh {
            cache.forget_lists();
        }
        Target::fetch(cache, wanted, refresh, progress)?
    };
    let work = target.work_folder(cache);
    if !refresh && (cache.part(&target.key())?.is_some() || Manifest::read(&work)?.is_some()) {
        return Ok(());
    }
    forget_others(cache)?;
    if refresh {
        remove_folder(&work)?;
    }
    make_root(cache, &target, &work, progress)?.write(&work)
}

/// Returns whether the build root of the current recipe exists, in which case [`part`] takes
/// seconds and fetches nothing.
pub(crate) fn has_root(cache: &Cache, wanted: DriverFor) -> Result<bool> {
    let Some(target) = Target::find(cache, wanted)? else { return Ok(false) };
    Ok(cache.part(&target.key())?.is_some()
        || Manifest::read(&target.work_folder(cache))?.is_some())
}

/// Makes the part with vmlinux, vmlinuz, config and modules, like those of Debian's kernels. For
/// one of Debian's kernels, it contains only the driver. Also returns the build root's key, which
/// the image must keep. The build root must exist already, for example made by [`compile`].
pub(crate) fn part(
    cache: &Cache,
    wanted: DriverFor,
    refresh: bool,
    progress: &dyn Progress,
) -> Result<(String, String, Manifest)> {
    let (target, root) = take_root(cache, wanted)?;
    let key = format!("driver-{}", &target.mark(recipe(wanted))[..12]);
    let manifest = cache.make_part(&key, refresh, |folder, manifest| {
        make_module(&target, &root, folder, manifest, progress)
    })?;
    Ok((target.key(), key, manifest))
}

/// Returns the build root, after moving it from where it was made if necessary.
fn take_root(cache: &Cache, wanted: DriverFor) -> Result<(Target, PathBuf)> {
    let changed = |release: &str| Error::Stock {
        release: release.into(),
        reason: "another process has fetched or removed it in the meantime: try again".into(),
    };
    let Some(target) = Target::find(cache, wanted)? else { return Err(changed("")) };
    let key = target.key();
    let work = target.work_folder(cache);
    let made = Manifest::read(&work)?;
    if let (None, None, Some(stock)) = (&made, cache.part(&key)?, &target.stock) {
        return Err(changed(&stock.release));
    }
    // A new build root replaces the old one.
    cache.make_part(&key, made.is_some(), |folder, manifest| {
        manifest.packages = made.map(|made| made.packages).unwrap_or_default();
        fs::rename(work.join("root"), folder.join("root")).on("move", &work)?;
        remove_folder(&work)
    })?;
    let root = cache.part_folder(&key).join("root");
    Ok((target, root))
}

/// The result of making a [`Module`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// True if make succeeded.
    pub ok: bool,
    /// The output of make and the compiler.
    pub said: String,
    /// The modules, copied to the requested folder.
    pub modules: Vec<PathBuf>,
}

/// Sources of an out-of-tree kernel module, to be compiled for nodes with a kernel that `tofu.ko`
/// supports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    folder: PathBuf,
    base: PathBuf,
    wanted: DriverFor,
    arguments: Vec<String>,
}

impl Module {
    /// Returns the module in the folder with this Kbuild file.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        let wanted = DriverFor { flavour: Flavour::Plain, arch: Arch::default() };
        Self { base: folder.clone(), folder, wanted, arguments: Vec::new() }
    }

    /// Names a folder that contains the module and other files that it needs.
    #[must_use]
    pub fn base(mut self, base: Option<PathBuf>) -> Self {
        self.base = base.unwrap_or(self.base);
        self
    }

    /// Chooses this kernel instead of [`Kernel::Driver`], and this architecture.
    ///
    /// # Errors
    ///
    /// If modules cannot be compiled for that kernel: see [`Kernel::has_driver`].
    pub fn kernel(mut self, kernel: &Kernel, arch: Arch) -> Result<Self> {
        let flavour = kernel.driver().ok_or_else(|| Error::Invalid {
            what: "kernel of a module",
            value: kernel.to_string(),
            allowed: "driver, driver-debug, driver-cloud, driver-generic or driver-16k",
        })?;
        kernel.check_arch(arch)?;
        self.wanted = DriverFor { flavour, arch };
        Ok(self)
    }

    /// Adds arguments of make, words without blanks such as `CLIPPY=1` or `W=1`.
    #[must_use]
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = String>) -> Self {
        self.arguments.extend(arguments);
        self
    }

    /// Compiles the module, after its kernel if that does not exist yet (minutes), and copies
    /// `*.ko` to the folder `to`.
    ///
    /// # Errors
    ///
    /// If the kernel cannot be made, or files cannot be copied. Compiler errors are not errors
    /// here: see [`Made`].
    pub fn make(&self, cache: &Cache, to: &Path, progress: &dyn Progress) -> Result<Made> {
        let bad = |value, allowed| Error::Invalid { what: "kernel module", value, allowed };
        let folder = fs::canonicalize(&self.folder).on("read", &self.folder)?;
        let base = fs::canonicalize(&self.base).on("read", &self.base)?;
        let Ok(inside) = folder.strip_prefix(&base) else {
            return Err(bad(folder.display().to_string(), "must be in the folder of --base"));
        };
        if !["Kbuild", "Makefile"].iter().any(|name| folder.join(name).is_file()) {
            return Err(bad(folder.display().to_string(), "needs a Kbuild file or a Makefile"));
        }
        let words = || self.arguments.iter().map(String::as_str).chain(inside.to_str());
        if let Some(word) = words().find(|word| word.contains(char::is_whitespace)) {
            return Err(bad(word.to_owned(), "paths and arguments of make may not have blanks"));
        }
        fs::create_dir_all(to).on("create", to)?;
        compile(cache, self.wanted, false, progress)?;
        let _lock = cache.lock(progress)?;
        let (target, root) = take_root(cache, self.wanted)?;
        let own = root.join("src/own");
        remove_folder(&own)?;
        fs::create_dir_all(&own).on("create", &own)?;
        let mut copy = run::command(Path::new("cp"));
        copy.args(["-a", "--"]).arg(base.join(".")).arg(&own);
        run::must(copy, "copying the module's sources", &own, progress)?;
        let env = [
            ("TOFU_FOLDER", inside.to_string_lossy().into_owned()),
            ("TOFU_ARGUMENTS", self.arguments.join(" ")),
        ];
        progress.update(Phase::Module, 0, 0);
        let output = enter(&target, &root, (OWN_SCRIPT, "own"), &env, progress, |_| {
            progress.update(Phase::Module, 0, 0);
        })?;
        let log = root.join("build/log");
        let said = fs::read_to_string(&log).unwrap_or_default() + &output.stderr;
        // Messages name the files of the user, not their copies.
        let said = said.replace(OWN_FOLDER, &self.base.join("").to_string_lossy());
        let mut modules = Vec::new();
        if output.ok {
            let built = root.join("build/own");
            for entry in fs::read_dir(&built).on("read", &built)?.flatten() {
                let from = entry.path();
                if from.extension().is_some_and(|extension| extension == "ko") {
                    let to = to.join(entry.file_name());
                    fs::copy(&from, &to).on("write", &to)?;
                    modules.push(to);
                }
            }
        }
        Ok(Made { ok: output.ok, said, modules })
    }
}

/// Removes unfinished build roots of other recipes.
fn forget_others(cache: &Cache) -> Result<()> {
    let targets = DriverFor::all().filter_map(|wanted| Target::find(cache, wanted).ok()?);
    let ours: Vec<PathBuf> = targets.map(|target| target.work_folder(cache)).collect();
    let parts = cache.part_folder("");
    fs::create_dir_all(&parts).on("create", &parts)?;
    for entry in fs::read_dir(&parts).on("read", &parts)?.flatten() {
        if is_work(&entry.file_name().to_string_lossy()) && !ours.contains(&entry.path()) {
            remove_folder(&entry.path())?;
        }
    }
    Ok(())
}

/// Makes the build root in `work`, or resumes an interrupted build.
fn make_root(
    cache: &Cache,
    target: &Target,
    work: &Path,
    progress: &dyn Progress,
) -> Result<Manifest> {
    let root = work.join("root");
    let Target { wanted, stock } = target;
    let mut manifest = Manifest::new(&target.key(), "");
    let files = {
        let _lock = cache.lock(progress)?;
        let from = wanted.from();
        let (mut debs, foreign) = match stock {
            None => (cache.apt(progress)?.closure(&wanted.packages(), from)?, Vec::new()),
            Some(stock) => stock.find_packages(cache, *wanted, progress)?,
        };
        // base-files has the links /bin, /lib and so on, which must exist before anything else.
        debs.sort_by_key(|deb| deb.name() != "base-files");
        let apt = cache.apt(progress)?;
        let mut files = apt.fetch(&debs, from)?;
        if !foreign.is_empty() {
            files.extend(cache.apt_for(wanted.arch, progress)?.fetch(&foreign, from)?);
            debs.extend(foreign);
        }
        manifest.packages = apt::packages(&debs, &files)?;
        let unpacked = work.join("unpacked");
        let these = format!("{:?}", manifest.packages);
        if fs::read_to_string(&unpacked).is_ok_and(|those| those == these) {
            progress.note("going on with a build that was interrupted");
        } else {
            remove_folder(work)?;
            apt.unpack(&files, &root)?;
            prepare(&root)?;
            let (path, text) = wanted.file();
            write(&root.join(path), &text)?;
            write(&unpacked, &these)?;
        }
        files
    };
    let lines = if stock.is_some() { stock::LINES } else { LINES };
    build(target, &root, "kernel", lines, progress)?;
    // The sources are unpacked now. The rest is needed to build modules.
    apt::discard(&files);
    remove_folder(&root.join("usr/src"))?;
    Ok(manifest)
}

/// Adds what a root made of unpacked packages lacks.
fn prepare(root: &Path) -> Result<()> {
    for name in ["build", "src", "tofu-build", "dev", "proc", "tmp"] {
        let path = root.join(name);
        fs::create_dir_all(&path).on("create", &path)?;
    }
    // Links that the packages' own scripts would have made.
    for (name, target) in [("awk", "mawk"), ("cc", "gcc"), ("sh", "dash")] {
        let link = root.join("usr/bin").join(name);
        if link.symlink_metadata().is_err() {
            symlink(target, &link).on("create", &link)?;
        }
    }
    Ok(())
}

fn make_module(
    target: &Target,
    root: &Path,
    folder: &Path,
    manifest: &mut Manifest,
    progress: &dyn Progress,
) -> Result<()> {
    remove_folder(&root.join("src"))?;
    for (path, text) in SOURCES {
        write(&root.join("src/guest-lib").join(path), text)?;
    }
    build(target, root, "module", 10, progress)?;
    let built = root.join("build");
    let copy = |from: &str, to: &str| {
        let to = folder.join(to);
        let from = built.join(from);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).on("create", parent)?;
        }
        fs::copy(&from, &to).on("copy", &from).map(drop)
    };
    copy("out/tofu.ko", "modules/kernel/tofu/tofu.ko")?;
    if let Some(stock) = &target.stock {
        manifest.kernel.clone_from(&stock.release);
        return Ok(());
    }
    copy("linux/.config", "config")?;
    copy("modules.builtin", "modules/modules.builtin")?;
    let file = target.wanted.kernel_file();
    let vmlinux = folder.join("vmlinux");
    match target.wanted.arch {
        // The kernel for arm64 is not compressed.
        Arch::Arm64 => copy(file, "vmlinux")?,
        Arch::X86_64 => {
            copy(file, "vmlinuz")?;
            // Without symbols, which would take guest memory.
            let bz = folder.join("vmlinuz");
            let elf = kernel::unpack(&bz, &fs::read(&bz).on("read", &bz)?)?;
            fs::write(&vmlinux, elf).on("write", &vmlinux)?;
        }
    }
    for name in ["vmlinux", "vmlinuz", "config"] {
        if folder.join(name).exists() {
            manifest.add_file(folder, name)?;
        }
    }
    let release = built.join("release");
    manifest.kernel = fs::read_to_string(&release).on("read", &release)?.trim().into();
    Ok(())
}

/// Runs our script in the root, and fails unless it succeeds.
fn build(
    target: &Target,
    root: &Path,
    what: &str,
    lines: u64,
    progress: &dyn Progress,
) -> Result<()> {
    progress.update(Phase::Compile, 0, lines);
    let release = target.stock.iter().map(|stock| ("TOFU_RELEASE", stock.release.clone()));
    let env: Vec<_> = release.collect();
    let script = target.wanted.script();
    let output = enter(target, root, (script, what), &env, progress, |said| {
        progress.update(Phase::Compile, (said.lines().count() as u64).min(lines), lines);
    })?;
    if !output.ok {
        let log = root.join("build/log");
        let said = fs::read_to_string(&log).unwrap_or_default();
        // The compiler's errors come some lines before make's last ones. They are marked so that
        // they are reported.
        let errors = said.lines().filter(|line| line.contains("error")).take(2);
        let stderr = errors.map(|line| format!("E: {line}\n")).collect::<String>() + &said;
        let output = run::Output { stderr, ..output };
        return Err(run::failure(&output, "make".into(), "building the kernel driver", &log));
    }
    progress.update(Phase::Compile, lines, lines);
    Ok(())
}

/// Runs a script in the root with an argument, and reports its output about once a second.
fn enter(
    target: &Target,
    root: &Path,
    (script, what): (&str, &str),
    env: &[(&str, String)],
    progress: &dyn Progress,
    mut tell: impl FnMut(&str),
) -> Result<run::Output> {
    write(&root.join("tofu-build/configure"), script)?;
    let log = root.join("build/log");
    // Resuming the build of a kernel continues its log.
    if what != "kernel" || target.stock.is_some() || !log.exists() {
        write(&log, "")?;
    }
    let mut command = RootAccess::find(progress)?.enter(root, what)?;
    command.env("HOME", "/root").envs(env.iter().map(|(name, value)| (name, value)));
    command.envs(target.wanted.environment().iter().copied());
    command.env("TOFU_KERNEL", target.wanted.kernel_file());
    if target.wanted.flavour == Flavour::Debug {
        command.env("LLVM", "1");
    }
    let mut ticks = 0u32;
    run::run_for(COMPILE_LIMIT, command, "building the kernel driver", progress, || {
        ticks += 1;
        if ticks.is_multiple_of(20) {
            tell(&fs::read_to_string(&log).unwrap_or_default());
        }
    })
}

fn write(path: &PathBuf, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).on("create", parent)?;
    }
    fs::write(path, text).on("write", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_for_kernels_with_the_driver() {
        for name in Kernel::NAMES {
            let kernel: Kernel = name.parse().unwrap();
            let is_ok = |arch| Module::new("x").kernel(&kernel, arch).is_ok();
            let driver = name.starts_with("driver");
            assert_eq!(is_ok(Arch::X86_64), driver && name != "driver-16k", "{name}");
            assert_eq!(is_ok(Arch::Arm64), driver && name != "driver-debug", "{name}");
        }
        assert_eq!(
            Module::new("x").kernel(&Kernel::Cloud, Arch::X86_64).unwrap_err().to_string(),
            "kernel of a module \"cloud\": driver, driver-debug, driver-cloud, driver-generic or \
             driver-16k"
        );
    }

    #[test]
    fn debian_kernels_have_separate_build_roots() {
        let on = |flavour, arch| DriverFor { flavour, arch };
        let key = |flavour, release: &str, version: &str| {
            let arch = if release.ends_with("amd64") { Arch::X86_64 } else { Arch::Arm64 };
            let mut part = Manifest::new("", "");
            part.kernel = release.into();
            let package =
                crate::manifest::Package { version: version.into(), sha256: String::new() };
            part.packages.insert(format!("linux-binary-{release}"), package);
            Target { wanted: on(flavour, arch), stock: Some(Stock::of(&part).unwrap()) }.key()
        };
        let own = |arch| Target { wanted: on(Flavour::Plain, arch), stock: None }.key();
        let keys = [
            key(Flavour::Cloud, "7.3.4+deb13-cloud-amd64", "7.3.4-1~bpo13+1"),
            key(Flavour::Cloud, "7.3.5+deb13-cloud-amd64", "7.3.5-1~bpo13+1"),
            key(Flavour::Cloud, "7.3.4+deb13-cloud-amd64", "7.3.4-1~bpo13+2"),
            key(Flavour::Generic, "7.3.4+deb13-amd64", "7.3.4-1~bpo13+1"),
            key(Flavour::Cloud, "7.3.4+deb13-cloud-arm64", "7.3.4-1~bpo13+1"),
            key(Flavour::Pages16K, "7.3.4+deb13-arm64-16k", "7.3.4-1~bpo13+1"),
            own(Arch::X86_64),
            own(Arch::Arm64),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(key.starts_with(ROOT) && !keys[..at].contains(key), "{keys:?}");
        }
    }

    #[test]
    fn every_source_file_is_there() {
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-lib");
        let mut found = Vec::new();
        for folder in [
            "abi/src",
            "abi/src/reduce",
            "abi/src/topology",
            "ipotofu/src",
            "ipotofu/src/outbound",
            "ipotofu/src/rendezvous",
            "kernel",
            "kernel/bch",
            "kernel/cq",
            "kernel/netdev",
            "kernel/netdev/tx",
        ] {
            for entry in fs::read_dir(base.join(folder)).unwrap().flatten() {
                let name = entry.file_name().into_string().unwrap();
                let source = [".rs", ".c", ".h"].iter().any(|end| name.ends_with(end));
                if (source && name != "tests.rs") || name == "Kbuild" {
                    found.push(format!("{folder}/{name}"));
                }
            }
        }
        // The module does not compile these files, because they need features of their crate.
        let features = ["complete.rs", "frames.rs", "link.rs", "stack.rs", "testing.rs"];
        found.retain(|path| {
            !path.strip_prefix("ipotofu/src/").is_some_and(|name| features.contains(&name))
        });
        found.sort();
        let known: Vec<&str> = SOURCES.iter().map(|(path, _)| *path).collect();
        assert_eq!(known, found);
    }
}
