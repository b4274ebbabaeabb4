//! Files that are passed to QEMU open. As another user, it could reach none of them by its path.

use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use command_fds::FdMapping;
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use tofu_image::Qemu;
use tofu_supervisor::limits::ProgramLimits;

use crate::setup::VmSetup;

/// The first descriptor of a file in QEMU.
const FIRST: i32 = 10;
/// Files of the host that every program reads, and the devices that it uses.
const RUNTIME: [&str; 9] = [
    "/proc/self",
    "/proc/meminfo",
    "/proc/cpuinfo",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/kernel/mm",
    "/dev/urandom",
    "/etc/ld.so.cache",
];
const DEVICES: [&str; 2] = ["/dev/null", "/dev/zero"];
const KVM: &str = "/dev/kvm";
/// The folders that have the libraries and files of installed programs.
const SYSTEM: [&str; 6] = ["/usr", "/lib", "/lib64", "/bin", "/nix/store", "/gnu/store"];
/// The same beside a program that is installed elsewhere, or not at all.
const BESIDE: [&str; 7] = [
    "../share/qemu",
    "../share/seabios",
    "../lib",
    "../lib64",
    "pc-bios",
    "qemu-bundle",
    "../pc-bios",
];

/// Descriptors for QEMU, and its limits.
pub(super) struct Passed {
    pub(super) mappings: Vec<FdMapping>,
    pub(super) limits: Option<ProgramLimits>,
    next: i32,
}

impl Passed {
    pub(super) fn new(limits: Option<ProgramLimits>) -> Self {
        Self { mappings: Vec::new(), limits, next: FIRST }
    }

    /// Passes a descriptor under this number.
    pub(super) fn at(&mut self, number: i32, fd: impl Into<OwnedFd>) {
        self.mappings.push(FdMapping { parent_fd: fd.into(), child_fd: number });
    }

    fn add(&mut self, fd: impl Into<OwnedFd>) -> i32 {
        let number = self.next;
        self.next += 1;
        self.at(number, fd);
        number
    }

    /// Passes a file for reading, and returns its number.
    pub(super) fn open(&mut self, path: &Path) -> anyhow::Result<i32> {
        Ok(self.add(open(path)?))
    }

    /// Passes a file for reading, and returns the path at which QEMU can open it.
    pub(super) fn file(&mut self, path: &Path) -> anyhow::Result<PathBuf> {
        let mut file = open(path)?;
        let read = |metadata: fs::Metadata| metadata.mode() & 0o004 != 0;
        let is_another = self.limits.as_ref().is_some_and(ProgramLimits::changes_user);
        let copy = is_another && !file.metadata().is_ok_and(read);
        if copy {
            let memory = memfd_create("tofu-file", MemfdFlags::CLOEXEC).map(File::from);
            let mut memory = memory.context("no shared memory")?;
            io::copy(&mut file, &mut memory).with_context(|| path.display().to_string())?;
            memory.rewind()?;
            file = memory;
        }
        let there = place(self.add(file));
        if let Some(limits) = self.limits.as_mut().filter(|_| !copy) {
            limits.read(&there);
        }
        Ok(there)
    }

    /// Passes what the program itself consists of, and returns it as QEMU's process reaches it.
    pub(super) fn program(&mut self, qemu: &Qemu, setup: &VmSetup) -> anyhow::Result<Qemu> {
        let mut qemu = qemu.clone();
        let mut folders: Vec<PathBuf> = Vec::new();
        if let Some(root) = &qemu.root {
            let there = place(self.add(locate(root)?));
            qemu = qemu.reached_by(&there, setup.boot_files.arch);
            folders.push(there);
        } else {
            let program = fs::canonicalize(&qemu.program).unwrap_or(qemu.program.clone());
            if let Some(folder) = program.parent() {
                folders.extend(BESIDE.map(|path| folder.join(path)));
            }
            folders.extend(SYSTEM.map(PathBuf::from));
            if !is_open_to_all(&program) {
                qemu.program = place(self.add(locate(&program)?));
            }
            folders.push(program);
        }
        let Some(limits) = &mut self.limits else { return Ok(qemu) };
        folders.into_iter().for_each(|path| limits.execute(path));
        RUNTIME.into_iter().for_each(|path| limits.read(path));
        DEVICES.into_iter().for_each(|path| limits.device(path));
        if setup.kvm {
            limits.device(KVM);
            let group = fs::metadata(KVM).ok().filter(|kvm| kvm.mode() & 0o006 == 0);
            group.into_iter().for_each(|kvm| limits.group(kvm.gid()));
        }
        Ok(qemu)
    }
}

/// The path of a descriptor in its process.
fn place(number: i32) -> PathBuf {
    format!("/proc/self/fd/{number}").into()
}

fn open(path: &Path) -> anyhow::Result<File> {
    File::open(path).with_context(|| format!("cannot read {}", path.display()))
}

/// A descriptor of a path (O_PATH), from which nothing can be read.
fn locate(path: &Path) -> anyhow::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("cannot open {}", path.display()))
}

/// Returns true if every user can enter the folders above a file.
fn is_open_to_all(file: &Path) -> bool {
    let enter = |folder: &Path| {
        fs::metadata(folder).is_ok_and(|folder| folder.permissions().mode() & 0o001 != 0)
    };
    file.ancestors().skip(1).all(enter)
}
