//! Limits of a program that serves a guest, such as QEMU.
//!
//! The process that becomes the program enters the limits before it starts it
//! ([`crate::janitor::wrapped`]). So a program that a guest has taken over is confined whether or
//! not it cooperates.
//!
//! # What QEMU may do
//!
//! QEMU is confined before it starts, by the process that becomes it (`tofu internal`,
//! `tools/supervisor/src/limits.rs`), so that a guest that takes it over gains little:
//!
//! 1. Every descriptor that it needs is passed to it open: the program's folder, kernel, initrd,
//!    disk, console, agent, Ethernet, guest memory, and the socket at which its monitor listens. It
//!    opens them as `/proc/self/fd/N`, because as another user it could enter no folder above them.
//!    A file that others may not read is copied into memory. The state of a clone and gdb's socket
//!    (`tofu gdb`) come over the monitor's socket.
//! 2. A filter with a listener takes over connect(2) (`hold_connects`), as QEMU's `vfio-user-pci`
//!    cannot take an open connection. The supervisor answers the first call by a connection to the
//!    node's device, regardless of the address, which could change after a check; later calls fail.
//! 3. Landlock: reading and running its own files, and reading what its loader reads. It writes
//!    nothing. It reaches neither abstract sockets nor processes outside.
//! 4. If this process is root's: a separate user, 0x6f000000 + its process id, or `nobody` where
//!    only that is mapped. All capabilities are dropped, those of the bounding set too.
//! 5. An allow-list of system calls; all others fail with EPERM (`program.rs`). Threads can be
//!    made, processes cannot. clone3 fails with ENOSYS, because a filter cannot see its flags. Only
//!    UNIX streams can be created: a datagram socket could send to any path. When a new QEMU needs
//!    a call, `strace -f` of `tofu up --linux` shows which one fails.
//! 6. QEMU's own `-sandbox`, if it has one.
//!
//! Of the environment it gets `PATH`, `HOME`, the language and what begins with `QEMU_`. A QEMU
//! that `TOFU_QEMU` names may be a script that ends in `exec`: `/usr` and the folders beside the
//! program can be read and run. If root uses it, all users must be able to read it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::process::Command;

use anyhow::Context;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};
use tofu_sandbox::{Access, Policy, User, confine_program, hold_connects, keep_from_children};

/// The first user of a range that systems leave unassigned; a program's process id is added, so
/// that each is another user.
const FIRST_USER: u32 = 0x6f00_0000;
/// There are no more process ids on Linux.
const USERS: u32 = 1 << 22;
/// The kernel's overflow user, for namespaces in which no other is mapped.
const NOBODY: u32 = 65534;
/// Environment variables that a program gets: those of its loader and its messages.
const ENVIRONMENT: [&str; 6] = ["PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "HOME"];

/// Limits of a program.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ProgramLimits {
    /// True if the program is confined. Standard input is then a socket for the descriptor with
    /// which its connect(2) is answered.
    confine: bool,
    /// The descriptors that it is passed.
    keep: Vec<i32>,
    /// Files and folders that it may read and run.
    execute: Vec<OsString>,
    /// Files and folders that it may read.
    read: Vec<OsString>,
    /// Devices that it may use.
    device: Vec<OsString>,
    /// The first user that it may become, and the number of users for it.
    users: Option<(u32, u32)>,
    /// A group that it needs for a device.
    group: Option<u32>,
}

impl ProgramLimits {
    /// Limits that allow nothing but to run. If this process is root's, the program becomes another
    /// user; what the host lacks for that is logged.
    pub fn new() -> Self {
        let users = match own_users() {
            Ok(users) => users,
            Err(lacking) => {
                log::warn!("sandbox: QEMU stays root, without capabilities: {lacking}");
                None
            }
        };
        Self { confine: true, users, ..Self::default() }
    }

    /// Passes a descriptor. Others do not reach the program.
    pub fn keep(&mut self, descriptor: i32) {
        self.keep.push(descriptor);
    }

    /// Allows reading and running a file, or those of a folder, if it exists.
    pub fn execute(&mut self, path: impl Into<OsString>) {
        self.execute.push(path.into());
    }

    /// Allows reading a file, or those of a folder, if it exists.
    pub fn read(&mut self, path: impl Into<OsString>) {
        self.read.push(path.into());
    }

    /// Allows the use of a device, if it exists.
    pub fn device(&mut self, path: impl Into<OsString>) {
        self.device.push(path.into());
    }

    /// Gives the program another group, which may open a device.
    pub fn group(&mut self, group: u32) {
        self.group = Some(group);
    }

    /// Returns whether the program becomes another user.
    pub fn changes_user(&self) -> bool {
        self.users.is_some()
    }

    /// Enters the limits permanently. `command` will replace this process.
    pub(crate) fn enter(&self, command: &mut Command) -> anyhow::Result<()> {
        keep_from_children(&self.keep);
        if !self.confine {
            return Ok(());
        }
        command.env_clear().envs(std::env::vars_os().filter(|(name, _)| {
            let name = name.to_string_lossy();
            ENVIRONMENT.contains(&name.as_ref()) || name.starts_with("QEMU_")
        }));
        // Without this the program must reach its socket by itself, as its starter's user.
        let held = self.hold_connects()?;
        let user = self.users.filter(|_| held).map(|(first, users)| User {
            id: first + std::process::id() % users,
            group: self.group,
        });
        let mut policy = Policy::new();
        let lists = [
            (&self.execute, Access::Execute),
            (&self.read, Access::Read),
            (&self.device, Access::Device),
        ];
        for (paths, access) in lists {
            for path in paths {
                policy = policy.allow_if_present(path, access);
            }
        }
        Ok(confine_program(&policy, user)?)
    }

    /// Has the starter answer connect(2). Returns whether the kernel can do that.
    fn hold_connects(&self) -> anyhow::Result<bool> {
        let null = File::open("/dev/null").context("cannot open /dev/null")?;
        let Ok(listener) = hold_connects() else {
            rustix::stdio::dup2_stdin(&null)?;
            return Ok(false);
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [listener.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(io::stdin(), &[IoSlice::new(b"c")], &mut control, SendFlags::NOSIGNAL)
            .context("the process that wanted it is gone")?;
        rustix::stdio::dup2_stdin(&null)?;
        Ok(true)
    }
}

/// The users, as the first one and how many, that programs of this process can become, if it is
/// root's. The error is in words.
fn own_users() -> Result<Option<(u32, u32)>, String> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    let has = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    if !has {
        return Err("this process may not change users (CAP_SETUID, CAP_SETGID)".into());
    }
    let read = |map: &str| fs::read_to_string(map).unwrap_or_default();
    let maps = [read("/proc/self/uid_map"), read("/proc/self/gid_map")];
    let mapped = |first, count| maps.iter().all(|map| is_mapped(map, first, count));
    [(FIRST_USER, USERS), (NOBODY, 1)]
        .into_iter()
        .find(|(first, count)| mapped(*first, *count))
        .map(Some)
        .ok_or_else(|| "this user namespace has no other user".into())
}

/// True if a user namespace's map has all of these ids.
fn is_mapped(map: &str, first: u32, count: u32) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let [start, _, len] = numbers[..] else { return false };
        start <= first.into() && u64::from(first) + u64::from(count) <= start + len
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_must_be_mapped() {
        let whole = "         0          0 4294967295\n";
        assert!(is_mapped(whole, FIRST_USER, USERS) && is_mapped(whole, NOBODY, 1));
        let container = "0 1000 1\n1 100000 65536\n";
        assert!(!is_mapped(container, FIRST_USER, USERS));
        assert!(is_mapped(container, NOBODY, 1));
        assert!(!is_mapped("0 1000 1\n", NOBODY, 1) && !is_mapped("", NOBODY, 1));
    }
}
