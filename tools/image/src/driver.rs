//! The kernel driver, tofu.ko: a kernel with Rust and the module, built from Debian's sources by
//! Debian's compilers in a root of their own.
//!
//! Two parts of the cache: the build root with the kernel, which takes some gigabytes and minutes
//! and is made once; and what guests need of it, made anew when the driver's sources change.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::apt::{self, hex};
use crate::cache::{Cache, remove_folder};
use crate::error::{IoContext, Result};
use crate::kernel;
use crate::manifest::Manifest;
use crate::progress::{Phase, Progress};
use crate::root::Way;
use crate::run;

/// What builds a kernel with Rust. The driver is written for this version's interfaces, which the
/// kernel does not keep from one to the next.
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
/// What a kernel that looks after itself needs besides: KASAN wants the same compiler for C and Rust.
const CLANG: &[&str] = &["clang", "lld", "llvm"];
/// Lines that a build of this kernel says, about, to tell how far it is.
const LINES: u64 = 2300;

/// Ten minutes on two idle processors, but hours on a busy host.
const COMPILE_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// How the names of build roots begin, and of those that are not complete yet.
const ROOT: &str = "driver-root-";
const WORK: &str = ".work-";

const CONFIG: &str = include_str!("../../../guest-lib/kernel/tofu.config");
const DEBUG_CONFIG: &str = include_str!("../../../guest-lib/kernel/tofu-debug.config");
const SCRIPT: &str = include_str!("../init/driver");

/// Files by their paths below `guest-lib`.
macro_rules! sources {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../guest-lib/", $path)))),*]
    };
}

/// All that the module is made of.
const SOURCES: &[(&str, &str)] = sources![
    "abi/src/addr.rs",
    "abi/src/barrier.rs",
    "abi/src/bits.rs",
    "abi/src/desc.rs",
    "abi/src/frame.rs",
    "abi/src/irq.rs",
    "abi/src/lib.rs",
    "abi/src/pci.rs",
    "abi/src/queue.rs",
    "abi/src/rcode.rs",
    "abi/src/reduce/fpsum.rs",
    "abi/src/reduce/mod.rs",
    "abi/src/regs.rs",
    "abi/src/table.rs",
    "driver/src/target.rs",
    "driver/src/topology.rs",
    "ipotofu/src/addr.rs",
    "ipotofu/src/neighbor.rs",
    "ipotofu/src/offload.rs",
    "ipotofu/src/routes.rs",
    "ipotofu/src/tree.rs",
    "ipotofu/src/wire.rs",
    "kernel/Kbuild",
    "kernel/bch.rs",
    "kernel/cq.rs",
    "kernel/device.rs",
    "kernel/dma.rs",
    "kernel/ipotofu.rs",
    "kernel/netdev.c",
    "kernel/netdev.h",
    "kernel/netdev.rs",
    "kernel/node.rs",
    "kernel/packets.rs",
    "kernel/pin.rs",
    "kernel/shim.c",
    "kernel/shim.h",
    "kernel/shim.rs",
    "kernel/stats.rs",
    "kernel/tofu_main.rs",
    "kernel/trace.h",
    "kernel/uapi.rs",
    "kernel/users.rs",
    "kernel/watch.rs",
];

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Small and fast.
    Plain,
    /// Looks after itself: locks, memory, leaks.
    Debug,
}

impl Flavour {
    fn packages(self) -> Vec<&'static str> {
        let more = if self == Self::Debug { CLANG } else { &[] };
        PACKAGES.iter().chain(more).copied().collect()
    }

    fn config(self) -> String {
        if self == Self::Debug { CONFIG.to_owned() + DEBUG_CONFIG } else { CONFIG.into() }
    }
}

/// Changes with the driver's sources and the way that it is built.
pub(crate) fn recipe(flavour: Flavour) -> String {
    let mut hash = Sha256::new();
    hash.update(root_recipe(flavour));
    for (path, text) in SOURCES {
        for part in [path, text] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    hex(&hash.finalize())
}

fn root_recipe(flavour: Flavour) -> String {
    let parts = [SCRIPT, &flavour.config(), &flavour.packages().join(" ")];
    hex(&Sha256::digest(parts.join("\n")))
}

/// The part with vmlinux, vmlinuz, config and modules, as those of Debian's kernels; and the build
/// root's key, which the image has to keep.
pub(crate) fn part(
    cache: &Cache,
    flavour: Flavour,
    refresh: bool,
    progress: &dyn Progress,
) -> Result<(String, String, Manifest)> {
    let root_key = format!("{ROOT}{}", &root_recipe(flavour)[..12]);
    cache.make_part(&root_key, refresh, |folder, manifest| {
        // What takes so long is not begun anew after an interruption.
        let work = folder.with_file_name(format!("{WORK}{root_key}"));
        forget_others(&work)?;
        if refresh {
            remove_folder(&work)?;
        }
        make_root(cache, flavour, &work, manifest, progress)?;
        fs::rename(work.join("root"), folder.join("root")).on("move", &work)?;
        remove_folder(&work)
    })?;
    let key = format!("driver-{}", &recipe(flavour)[..12]);
    let root = cache.part_folder(&root_key).join("root");
    let manifest = cache.make_part(&key, refresh, |folder, manifest| {
        make_module(flavour, &root, folder, manifest, progress)
    })?;
    Ok((root_key, key, manifest))
}

/// Removes what is left of root folders of other recipes, whose making was interrupted.
fn forget_others(work: &Path) -> Result<()> {
    let Some(parts) = work.parent() else { return Ok(()) };
    for entry in fs::read_dir(parts).on("read", parts)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&format!("{WORK}{ROOT}"))
            && entry.path() != work
        {
            remove_folder(&entry.path())?;
        }
    }
    Ok(())
}

/// Makes the build root in `work`, or goes on where it was interrupted.
fn make_root(
    cache: &Cache,
    flavour: Flavour,
    work: &Path,
    manifest: &mut Manifest,
    progress: &dyn Progress,
) -> Result<()> {
    let root = work.join("root");
    let apt = cache.apt(progress)?;
    let mut debs = apt.closure(&flavour.packages(), apt::From::Backports)?;
    // It has the links /bin, /lib and so on, which have to be there before anything else.
    debs.sort_by_key(|deb| deb.name() != "base-files");
    let files = apt.fetch(&debs, apt::From::Backports)?;
    manifest.packages = apt::packages(&debs, &files)?;
    let unpacked = work.join("unpacked");
    let these = format!("{:?}", manifest.packages);
    if fs::read_to_string(&unpacked).is_ok_and(|those| those == these) {
        progress.note("going on with a build that was interrupted");
    } else {
        remove_folder(work)?;
        apt.unpack(&files, &root)?;
        prepare(&root, &flavour.config())?;
        write(&unpacked, &these)?;
    }
    build(flavour, &root, "kernel", LINES, progress)?;
    apt.discard(&files);
    // The sources are unpacked; the rest is what modules are built of.
    remove_folder(&root.join("usr/src"))
}

/// What a root of unpacked packages lacks.
fn prepare(root: &Path, config: &str) -> Result<()> {
    for name in ["build", "src", "tofu-build", "dev", "proc", "tmp"] {
        let path = root.join(name);
        fs::create_dir_all(&path).on("create", &path)?;
    }
    // What the packages' own scripts would have made.
    for (name, target) in [("awk", "mawk"), ("cc", "gcc"), ("sh", "dash")] {
        let link = root.join("usr/bin").join(name);
        if link.symlink_metadata().is_err() {
            symlink(target, &link).on("create", &link)?;
        }
    }
    write(&root.join("build/config"), config)
}

fn make_module(
    flavour: Flavour,
    root: &Path,
    folder: &Path,
    manifest: &mut Manifest,
    progress: &dyn Progress,
) -> Result<()> {
    remove_folder(&root.join("src"))?;
    for (path, text) in SOURCES {
        write(&root.join("src/guest-lib").join(path), text)?;
    }
    build(flavour, root, "module", 10, progress)?;
    let built = root.join("build");
    let copy = |from: &str, to: &str| {
        let to = folder.join(to);
        let from = built.join(from);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).on("create", parent)?;
        }
        fs::copy(&from, &to).on("copy", &from).map(drop)
    };
    copy("bzImage", "vmlinuz")?;
    copy("linux/.config", "config")?;
    copy("modules.builtin", "modules/modules.builtin")?;
    copy("out/tofu.ko", "modules/kernel/tofu/tofu.ko")?;
    // Without symbols, which would be in the guest's memory.
    let bz = folder.join("vmlinuz");
    let elf = kernel::unpack(&bz, &fs::read(&bz).on("read", &bz)?)?;
    let vmlinux = folder.join("vmlinux");
    fs::write(&vmlinux, elf).on("write", &vmlinux)?;
    for name in ["vmlinux", "vmlinuz", "config"] {
        manifest.add_file(folder, name)?;
    }
    let release = built.join("release");
    manifest.kernel = fs::read_to_string(&release).on("read", &release)?.trim().into();
    Ok(())
}

/// Runs our script in the root.
fn build(
    flavour: Flavour,
    root: &Path,
    what: &str,
    lines: u64,
    progress: &dyn Progress,
) -> Result<()> {
    write(&root.join("tofu-build/configure"), SCRIPT)?;
    let log = root.join("build/log");
    // That of a kernel goes on when its build does.
    if what != "kernel" || !log.exists() {
        write(&log, "")?;
    }
    let mut command = Way::find(progress)?.enter(root, what)?;
    command.env("HOME", "/root");
    if flavour == Flavour::Debug {
        command.env("LLVM", "1");
    }
    let said = || fs::read_to_string(&log).unwrap_or_default();
    let mut ticks = 0u32;
    progress.update(Phase::Compile, 0, lines);
    let output =
        run::run_for(COMPILE_LIMIT, command, "building the kernel driver", progress, || {
            ticks += 1;
            if ticks.is_multiple_of(20) {
                let done = said().lines().count() as u64;
                progress.update(Phase::Compile, done.min(lines), lines);
            }
        })?;
    if !output.ok {
        let output = run::Output { stderr: said(), ..output };
        return Err(run::failure(&output, "make".into(), "building the kernel driver", &log));
    }
    progress.update(Phase::Compile, lines, lines);
    Ok(())
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
    fn every_source_file_is_there() {
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-lib");
        let mut found = Vec::new();
        for (folder, prefix) in
            [("abi/src", "abi/src/"), ("abi/src/reduce", "abi/src/reduce/"), ("kernel", "kernel/")]
        {
            for entry in fs::read_dir(base.join(folder)).unwrap().flatten() {
                let name = entry.file_name().into_string().unwrap();
                let source = [".rs", ".c", ".h"].iter().any(|end| name.ends_with(end));
                if (source && name != "tests.rs") || name == "Kbuild" {
                    found.push(format!("{prefix}{name}"));
                }
            }
        }
        // Files of other crates, which it names by their paths.
        let shared = fs::read_to_string(base.join("kernel/ipotofu.rs")).unwrap();
        let paths = shared.lines().filter_map(|line| line.strip_prefix("#[path = \"../"));
        found.extend(paths.map(|path| path.trim_end_matches("\"]").to_owned()));
        found.sort();
        let known: Vec<&str> = SOURCES.iter().map(|(path, _)| *path).collect();
        assert_eq!(known, found);
    }
}
