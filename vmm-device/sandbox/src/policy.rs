//! Policies for threads and the process, and the errors of applying them.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Exit status of a process that was ended for a system call: 128 + SIGSYS.
pub const EXIT_VIOLATION: i32 = 128 + libc::SIGSYS;

/// The role of a thread, which decides on its system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs a vCPU and serves its exits. It may read and set its vCPU's state, change memory slots,
    /// ioeventfds, irqfds and interrupt routes of its VM, and install the handler of the signal
    /// that kicks it.
    Vcpu,
    /// Runs queues of devices (`tofu_machine`'s engines). It may wait for events and timers, and
    /// change the same things of a VM.
    Engine,
    /// Serves a device to a client over a UNIX socket that is there already. It may wait for
    /// events, accept a client, exchange messages and descriptors with it, and map and seal its
    /// memory.
    VfioUser,
    /// Serves a virtio device's requests from files and streams that are open. It may wait for
    /// events, read, write, seek and sync these files, and read and write these streams. A
    /// gateway's thread has it, too, for its TAP and the streams of `tofu forward`.
    Virtio,
    /// Reads what guests write to streams (consoles, agents, QEMU's errors, the Ethernet), keeps it
    /// in files of the policy, and passes it on. It may open files to write, rename them, and
    /// create threads.
    Reader,
    /// Receives what other shards of a machine send over TCP connections, delivers it to devices,
    /// and turns away later connections. It may do what `Engine` may, take connections from a
    /// socket that listens already, set their options, and ask what was acknowledged.
    Cable,
    /// Starts and ends the others. It may open files of the policy, UNIX sockets and memory files,
    /// create threads, set up VMs, use the terminal, and signal processes, but not run programs.
    Main,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 7] = [
        Self::Vcpu,
        Self::Engine,
        Self::VfioUser,
        Self::Virtio,
        Self::Reader,
        Self::Cable,
        Self::Main,
    ];

    /// The role's name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vcpu => "vcpu",
            Self::Engine => "engine",
            Self::VfioUser => "vfio-user",
            Self::Virtio => "virtio",
            Self::Reader => "reader",
            Self::Cable => "cable",
            Self::Main => "main",
        }
    }
}

/// The access to a path after [`crate::Sandbox::enter_process`].
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

/// A sandbox's policy.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    pub(crate) paths: Vec<(PathBuf, Access)>,
    pub(crate) hint: String,
    pub(crate) listens: bool,
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

    /// Allows reading the files that the run-time library and a panic's backtrace need: facts about
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

    /// Allows listening at TCP ports that the kernel chooses.
    #[must_use]
    pub fn allow_listening(mut self) -> Self {
        self.listens = true;
        self
    }

    /// A hint for a user whose process was ended: how to report it or to go without, at most
    /// 200 bytes on one line.
    #[must_use]
    pub fn with_hint(mut self, hint: &str) -> Self {
        self.hint = hint.to_owned();
        self
    }
}

/// The reason why a sandbox cannot be had or entered.
#[derive(Debug, Error)]
pub enum Error {
    /// A path of the policy cannot be opened.
    #[error("sandbox: {path}: {source}")]
    Path {
        /// The path.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// A filter could not be made or installed.
    #[error("sandbox: system call filter of role {role}: {reason}")]
    Filter {
        /// The role of the threads with this filter.
        role: &'static str,
        /// The message.
        reason: String,
    },
    /// Landlock refused.
    #[error("sandbox: restricting files: {0}")]
    Files(String),
    /// A program cannot have another user.
    #[error("sandbox: giving up rights: {0}")]
    User(io::Error),
}
