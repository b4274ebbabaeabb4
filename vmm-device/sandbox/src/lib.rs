//! What the threads of a monitor may ask of the host.
//!
//! Code that a guest can reach is written not to be taken over; this crate limits
//! what follows if it is all the same. Two means of the kernel's are used:
//!
//! - *seccomp* filters ([`Sandbox::enter_thread`]): each thread gives up the
//!   system calls that its [`Role`] does not need. One that it makes anyway ends
//!   the whole process, after one line on standard error that names role and
//!   call, with exit status [`EXIT_VIOLATION`]. (One made while all signals are
//!   blocked, as when the C library creates a thread, ends it by SIGSYS itself,
//!   without the line.)
//! - *Landlock* ([`Sandbox::enter_process`]): once everything is open, no file
//!   can be opened but those that the [`Policy`] lists, and no TCP port be bound
//!   or connected to.
//!
//! Neither needs root, and neither can be undone. What a kernel lacks is left
//! out, with a line in the log and in [`Entered`]; [`Support`] tells beforehand.
//!
//! A thread inherits what its creator had given up. So the process is entered
//! before there are other threads, threads are created by ones that have not
//! entered a role, and the main thread enters its own last.

#![deny(unsafe_code)]

mod files;
mod filter;
mod support;
mod violation;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use seccompiler::BpfProgram;
use thiserror::Error;

pub use crate::support::Support;

/// Exit status of a process that was ended for a system call: 128 + SIGSYS.
pub const EXIT_VIOLATION: i32 = 128 + libc::SIGSYS;

/// What a thread is for, which decides on its system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs a vCPU and serves its exits.
    Vcpu,
    /// Runs queues of devices (`tofu_machine`'s engines).
    Engine,
    /// Serves a device to a client over a UNIX socket that is there already.
    VfioUser,
    /// Serves a virtio device's requests from files and streams that are open.
    Virtio,
    /// Starts and ends the others; may open files and UNIX sockets and create threads, but not
    /// run programs.
    Main,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 5] = [Self::Vcpu, Self::Engine, Self::VfioUser, Self::Virtio, Self::Main];

    /// The role's name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vcpu => "vcpu",
            Self::Engine => "engine",
            Self::VfioUser => "vfio-user",
            Self::Virtio => "virtio",
            Self::Main => "main",
        }
    }
}

/// How a path may be used after [`Sandbox::enter_process`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read a file, or everything below a folder.
    Read,
    /// Read and write an existing file, or those below a folder.
    Write,
    /// Read, write and control a device such as /dev/kvm.
    Device,
    /// Everything below a folder: create, write, rename and remove files, folders and sockets.
    Folder,
    /// Read and run a program, or those below a folder.
    Execute,
}

/// What a sandbox allows.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    paths: Vec<(PathBuf, Access)>,
    hint: String,
}

impl Policy {
    /// Nothing can be opened.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows `access` to `path`, which must exist.
    #[must_use]
    pub fn allow(mut self, path: impl Into<PathBuf>, access: Access) -> Self {
        self.paths.push((path.into(), access));
        self
    }

    /// The same, but a path that does not exist is left out.
    #[must_use]
    pub fn allow_if_present(self, path: impl AsRef<Path>, access: Access) -> Self {
        let path = path.as_ref();
        if path.exists() { self.allow(path, access) } else { self }
    }

    /// Allows reading what the run-time library and a panic's backtrace look at: facts about
    /// this process and the host's processors, this program and its libraries.
    #[must_use]
    pub fn allow_runtime(mut self) -> Self {
        const PATHS: [&str; 8] = [
            "/proc/self",
            "/proc/meminfo",
            "/proc/cpuinfo",
            "/proc/sys/vm/overcommit_memory",
            "/sys/devices/system/cpu",
            "/sys/fs/cgroup",
            "/lib",
            "/usr/lib",
        ];
        for path in PATHS {
            self = self.allow_if_present(path, Access::Read);
        }
        match std::env::current_exe() {
            Ok(exe) => self.allow_if_present(exe, Access::Read),
            Err(_) => self,
        }
    }

    /// What to tell a user whose process was ended: how to report it or to go without, at most
    /// 200 bytes on one line.
    #[must_use]
    pub fn with_hint(mut self, hint: &str) -> Self {
        self.hint = hint.to_owned();
        self
    }
}

/// Why a sandbox cannot be had or entered.
#[derive(Debug, Error)]
pub enum Error {
    /// A path of the policy cannot be opened.
    #[error("sandbox: {path}: {source}")]
    Path {
        /// The path.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// A filter could not be made or installed.
    #[error("sandbox: system call filter of role {role}: {reason}")]
    Filter {
        /// Whose filter.
        role: &'static str,
        /// What was said.
        reason: String,
    },
    /// Landlock refused.
    #[error("sandbox: restricting files: {0}")]
    Files(String),
}

/// What of a sandbox is in effect for the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Files are restricted.
    pub files: bool,
    /// What the kernel lacks, if anything, in one line each.
    pub missing: Vec<String>,
}

/// A sandbox, ready to be entered.
pub struct Sandbox {
    policy: Policy,
    support: Support,
    /// By role, in the order of [`Role::ALL`]; empty where the kernel has no filters. What a
    /// thread may do, and what it is told is forbidden without ending the process.
    filters: Vec<(BpfProgram, BpfProgram)>,
}

impl Sandbox {
    /// Prepares a sandbox; nothing is restricted yet.
    ///
    /// # Errors
    /// [`Error::Path`] if a path of the policy cannot be opened, [`Error::Filter`] if a filter
    /// cannot be compiled.
    pub fn new(policy: Policy) -> Result<Self, Error> {
        let support = Support::probe();
        files::check(&policy.paths)?;
        let filters = match support.seccomp {
            Ok(()) => Role::ALL.into_iter().map(filter::compile).collect::<Result<_, _>>()?,
            Err(_) => Vec::new(),
        };
        Ok(Self { policy, support, filters })
    }

    /// From now on this thread, and those that it creates from now on, cannot open files but
    /// those of the policy, bind or connect to TCP ports, or gain rights by running a program.
    ///
    /// Threads that exist already are left alone on kernels before 7.0, with a line in
    /// [`Entered::missing`].
    ///
    /// # Errors
    /// [`Error::Path`], [`Error::Files`]. What the kernel lacks is no error.
    pub fn enter_process(&self) -> Result<Entered, Error> {
        let mut entered = Entered { files: false, missing: Vec::new() };
        let mut before = None;
        match &self.support.landlock {
            Ok(abi) => {
                files::restrict(&self.policy.paths)?;
                entered.files = true;
                entered.missing.extend(self.support.landlock_gaps());
                let others = support::threads().saturating_sub(1);
                if others > 0 && *abi < support::ABI_ALL_THREADS {
                    before =
                        Some(format!("{others} threads that were there before may open any file"));
                }
            }
            Err(reason) => entered.missing.push(format!("files can be opened: {reason}")),
        }
        if let Err(reason) = &self.support.seccomp {
            entered.missing.push(format!("system calls are not filtered: {reason}"));
        }
        for missing in &entered.missing {
            log::warn!("sandbox: {missing}");
        }
        if let Some(before) = before {
            // The caller's doing, not the host's.
            log::info!("sandbox: {before}");
            entered.missing.push(before);
        }
        Ok(entered)
    }

    /// Gives up the system calls that `role` does not need, for the calling thread. Returns
    /// whether it did: the kernel may have no filters.
    ///
    /// # Errors
    /// [`Error::Filter`] if the kernel refuses, as for want of memory.
    pub fn enter_thread(&self, role: Role) -> Result<bool, Error> {
        let at = Role::ALL.iter().position(|known| *known == role);
        let Some((allowed, refused)) = at.and_then(|at| self.filters.get(at)) else {
            return Ok(false);
        };
        violation::report_as(role, &self.policy.hint).map_err(|error| Error::Filter {
            role: role.name(),
            reason: format!("installing the handler of SIGSYS: {error}"),
        })?;
        for filter in [refused, allowed] {
            seccompiler::apply_filter(filter)
                .map_err(|error| Error::Filter { role: role.name(), reason: error.to_string() })?;
        }
        Ok(true)
    }

    /// A hook for whoever creates threads: enters `role` on the thread that calls it, and ends the
    /// process with one line where that fails, as such a thread must not run.
    pub fn thread_start(self: &Arc<Self>, role: Role) -> Arc<dyn Fn() + Send + Sync> {
        let this = Arc::clone(self);
        Arc::new(move || {
            if let Err(error) = this.enter_thread(role) {
                log::error!("{error}");
                std::process::exit(EXIT_VIOLATION);
            }
        })
    }
}
