//! Features of the running kernel.
#![allow(unsafe_code)]

use std::io;

/// Landlock ABI from which on a process can be restricted as a whole (Linux 7.0).
pub(crate) const ABI_ALL_THREADS: u32 = 8;

/// `LANDLOCK_CREATE_RULESET_VERSION` of linux/landlock.h.
const CREATE_RULESET_VERSION: libc::c_long = 1;

/// Features of the running kernel for a sandbox; missing ones come with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Support {
    /// System call filters.
    pub seccomp: Result<(), String>,
    /// Restricting files: the version of Landlock's interface.
    pub landlock: Result<u32, String>,
}

impl Support {
    /// Asks the kernel. Changes nothing.
    pub fn probe() -> Self {
        Self { seccomp: seccomp(), landlock: landlock() }
    }

    /// Missing features of a kernel with Landlock, in one line each.
    pub fn landlock_gaps(&self) -> Vec<String> {
        let Ok(abi) = self.landlock else { return Vec::new() };
        // By ABI: linux/landlock.h of each version.
        [
            (3, "open files can be truncated (Linux before 6.2)"),
            (4, "TCP ports can be bound and connected to (Linux before 6.7)"),
            (5, "devices below listed folders can be controlled (Linux before 6.10)"),
            (6, "abstract UNIX sockets of others can be reached (Linux before 6.12)"),
        ]
        .into_iter()
        .filter(|(since, _)| abi < *since)
        .map(|(_, gap)| gap.to_owned())
        .collect()
    }
}

fn seccomp() -> Result<(), String> {
    let action: u32 = libc::SECCOMP_RET_TRAP;
    // SAFETY: the kernel reads the action, which lives on the stack, and nothing else.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action)
    };
    match result {
        0 => Ok(()),
        _ => Err(match io::Error::last_os_error().raw_os_error() {
            Some(libc::ENOSYS | libc::EINVAL) => {
                "this kernel has no seccomp filters (CONFIG_SECCOMP_FILTER)".to_owned()
            }
            _ => format!("the kernel says: {}", io::Error::last_os_error()),
        }),
    }
}

fn landlock() -> Result<u32, String> {
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call only returns a number; it takes no structure.
    let result = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, CREATE_RULESET_VERSION)
    };
    u32::try_from(result).map_err(|_| match io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOSYS) => {
            "this kernel has no Landlock (Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK)"
                .to_owned()
        }
        Some(libc::EOPNOTSUPP) => {
            "Landlock is off; add landlock to lsm= on the kernel's command line".to_owned()
        }
        _ => format!("the kernel says: {}", io::Error::last_os_error()),
    })
}

/// The number of threads of this process; 1 if that is not known.
pub(crate) fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, |tasks| tasks.count())
}
