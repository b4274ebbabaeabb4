//! Confining a program that this process is about to become, such as another monitor.
//!
//! The program need not cooperate: everything is given up before it starts. It cannot create
//! processes, signal others, create sockets other than streams, or open files that are not in its
//! [`Policy`]. It connects to what its starter connects it to ([`hold_connects`]).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use landlock::Scope;
use seccompiler::SeccompAction;

use crate::files;
use crate::filter::Condition::{Bits, Is, IsThisProcess, Null};
use crate::filter::{self, Entry};
use crate::policy::{Error, Policy};
use crate::support::Support;

/// The name of the filter in errors.
const NAME: &str = "program";

/// The user that a program becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// Its user and group.
    pub id: u32,
    /// A second group, for a device that only a group may open.
    pub group: Option<u32>,
}

/// System calls of monitors such as QEMU besides [`filter::EVERYWHERE`] and the lists of roles.
/// They may map executable memory, because they translate guests' code.
const CALLS: &[Entry] = &[
    (libc::SYS_execve, &[]),
    (libc::SYS_clone, &[Bits(0, libc::CLONE_THREAD as u64, libc::CLONE_THREAD as u64)]),
    // Refused by [`NO_CLONE3`].
    (libc::SYS_clone3, &[]),
    (libc::SYS_mmap, &[]),
    (libc::SYS_mprotect, &[]),
    (libc::SYS_ioctl, &[]),
    (libc::SYS_fcntl, &[]),
    (libc::SYS_openat, &[]),
    (libc::SYS_newfstatat, &[]),
    (libc::SYS_statx, &[]),
    (libc::SYS_statfs, &[]),
    (libc::SYS_fstatfs, &[]),
    (libc::SYS_faccessat, &[]),
    (libc::SYS_faccessat2, &[]),
    (libc::SYS_readlinkat, &[]),
    (libc::SYS_getdents64, &[]),
    (libc::SYS_getcwd, &[]),
    (libc::SYS_lseek, &[]),
    (libc::SYS_pread64, &[]),
    (libc::SYS_pwrite64, &[]),
    (libc::SYS_preadv, &[]),
    (libc::SYS_pwritev, &[]),
    (libc::SYS_preadv2, &[]),
    (libc::SYS_pwritev2, &[]),
    (libc::SYS_fsync, &[]),
    (libc::SYS_fdatasync, &[]),
    (libc::SYS_ftruncate, &[]),
    (libc::SYS_fallocate, &[]),
    (libc::SYS_fadvise64, &[]),
    (libc::SYS_flock, &[]),
    (libc::SYS_dup, &[]),
    (libc::SYS_dup3, &[]),
    (libc::SYS_pipe2, &[]),
    (libc::SYS_close_range, &[]),
    (libc::SYS_memfd_create, &[]),
    (libc::SYS_msync, &[]),
    (libc::SYS_mincore, &[]),
    (libc::SYS_mlock, &[]),
    (libc::SYS_mlock2, &[]),
    (libc::SYS_munlock, &[]),
    (libc::SYS_mbind, &[]),
    (libc::SYS_set_mempolicy, &[]),
    (libc::SYS_get_mempolicy, &[]),
    (libc::SYS_membarrier, &[]),
    (libc::SYS_set_tid_address, &[]),
    (libc::SYS_get_robust_list, &[]),
    (libc::SYS_sched_getparam, &[]),
    (libc::SYS_sched_getscheduler, &[]),
    (libc::SYS_sched_setaffinity, &[]),
    (libc::SYS_getcpu, &[]),
    (libc::SYS_clock_getres, &[]),
    (libc::SYS_timer_create, &[]),
    (libc::SYS_timer_settime, &[]),
    (libc::SYS_timer_gettime, &[]),
    (libc::SYS_timer_getoverrun, &[]),
    (libc::SYS_timer_delete, &[]),
    (libc::SYS_getitimer, &[]),
    (libc::SYS_setitimer, &[]),
    (libc::SYS_signalfd4, &[]),
    (libc::SYS_pselect6, &[]),
    (libc::SYS_epoll_pwait2, &[]),
    (libc::SYS_rt_sigaction, &[]),
    (libc::SYS_rt_sigpending, &[]),
    (libc::SYS_rt_sigsuspend, &[]),
    (libc::SYS_rt_sigtimedwait, &[]),
    (libc::SYS_kill, &[IsThisProcess(0)]),
    (libc::SYS_prlimit64, &[Is(0, 0), Null(2)]),
    (libc::SYS_getrusage, &[]),
    (libc::SYS_times, &[]),
    (libc::SYS_sysinfo, &[]),
    (libc::SYS_uname, &[]),
    (libc::SYS_umask, &[]),
    (libc::SYS_getuid, &[]),
    (libc::SYS_geteuid, &[]),
    (libc::SYS_getgid, &[]),
    (libc::SYS_getegid, &[]),
    (libc::SYS_getresuid, &[]),
    (libc::SYS_getresgid, &[]),
    (libc::SYS_getgroups, &[]),
    (libc::SYS_getppid, &[]),
    (libc::SYS_getpgid, &[]),
    (libc::SYS_getsid, &[]),
    (libc::SYS_capget, &[]),
    // It may give up more by itself.
    (libc::SYS_seccomp, &[]),
    (libc::SYS_prctl, &[Is(0, libc::PR_SET_NO_NEW_PRIVS as u64)]),
    (libc::SYS_prctl, &[Is(0, libc::PR_GET_NO_NEW_PRIVS as u64)]),
    (libc::SYS_prctl, &[Is(0, libc::PR_GET_SECCOMP as u64)]),
    (libc::SYS_prctl, &[Is(0, libc::PR_SET_TIMERSLACK as u64)]),
    (libc::SYS_prctl, &[Is(0, libc::PR_GET_NAME as u64)]),
    // Stream sockets only. Other kinds of sockets can send to any address, even when they are
    // connected.
    (libc::SYS_socket, &[Is(0, libc::AF_UNIX as u64), Is(1, STREAM)]),
    (libc::SYS_socketpair, &[Is(0, libc::AF_UNIX as u64), Is(1, STREAM)]),
    (libc::SYS_connect, &[]),
    (libc::SYS_listen, &[]),
    (libc::SYS_accept4, &[]),
    (libc::SYS_getsockname, &[]),
    (libc::SYS_getpeername, &[]),
    (libc::SYS_getsockopt, &[]),
    (libc::SYS_setsockopt, &[]),
    (libc::SYS_sendmsg, &[]),
    (libc::SYS_recvmsg, &[]),
    (libc::SYS_sendto, &[Null(4)]),
    (libc::SYS_recvfrom, &[]),
    (libc::SYS_shutdown, &[]),
];

const STREAM: u64 = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64;

/// Fails with ENOSYS, because its flags are in memory, where a filter cannot read them. The C
/// library then uses clone(2).
const NO_CLONE3: &[Entry] = &[(libc::SYS_clone3, &[])];

#[cfg(target_arch = "x86_64")]
const OLDER: &[Entry] = &[
    (libc::SYS_open, &[]),
    (libc::SYS_stat, &[]),
    (libc::SYS_lstat, &[]),
    (libc::SYS_access, &[]),
    (libc::SYS_readlink, &[]),
    (libc::SYS_dup2, &[]),
    (libc::SYS_pipe, &[]),
    (libc::SYS_select, &[]),
    (libc::SYS_accept, &[]),
    (libc::SYS_eventfd, &[]),
    (libc::SYS_signalfd, &[]),
    (libc::SYS_getrlimit, &[]),
    (libc::SYS_getpgrp, &[]),
    (libc::SYS_arch_prctl, &[]),
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[Entry] = &[];

/// Permanently confines this process, which must have no other threads: files to those of `policy`,
/// and system calls to those of a monitor; others fail with EPERM. It loses all capabilities. With
/// `user` it becomes that user.
///
/// Features that the kernel lacks are left out ([`Support`]).
///
/// # Errors
/// [`Error::Path`], [`Error::Files`], [`Error::Filter`], or [`Error::User`] if it cannot become
/// the user.
pub fn confine_program(policy: &Policy, user: Option<User>) -> Result<(), Error> {
    let support = Support::probe();
    // Paths are opened with the rights that this process still has.
    if support.landlock.is_ok() {
        files::restrict(policy, Scope::AbstractUnixSocket | Scope::Signal)?;
    }
    become_user(user).map_err(Error::User)?;
    if support.seccomp.is_err() {
        return Ok(());
    }
    let lists = [CALLS, OLDER, filter::EVERYWHERE, filter::EVENTS];
    let lists = [&lists[..], &filter::older_lists()].concat();
    let allowed = filter::program(NAME, &lists, eperm(), SeccompAction::Allow)?;
    let enosys = SeccompAction::Errno(libc::ENOSYS as u32);
    let refused = filter::program(NAME, &[NO_CLONE3], SeccompAction::Allow, enosys)?;
    for program in [refused, allowed] {
        seccompiler::apply_filter(&program)
            .map_err(|error| Error::Filter { role: NAME, reason: error.to_string() })?;
    }
    Ok(())
}

fn eperm() -> SeccompAction {
    SeccompAction::Errno(libc::EPERM as u32)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives up all capabilities, memory dumps, and, with `user`, this process's own user.
fn become_user(user: Option<User>) -> io::Result<()> {
    let mut signal: libc::c_int = 0;
    // SAFETY: the kernel writes the signal to the place that is given.
    check(unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut signal) })?;
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel reads the limit. A memory dump would be the user's file.
    check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) })?;
    // SAFETY: takes numbers only. Fails for a number that is no capability, and for unprivileged
    // users, who have none to drop.
    (0..64).for_each(|capability| unsafe {
        libc::prctl(libc::PR_CAPBSET_DROP, capability);
    });
    if let Some(User { id, group }) = user {
        let group: Vec<_> = group.into_iter().collect();
        // SAFETY: the kernel reads as many groups as are said to be there.
        check(unsafe { libc::setgroups(group.len(), group.as_ptr()) })?;
        // SAFETY: takes numbers only.
        check(unsafe { libc::setresgid(id, id, id) })?;
        // SAFETY: as above.
        check(unsafe { libc::setresuid(id, id, id) })?;
    }
    /// `_LINUX_CAPABILITY_VERSION_3` of linux/capability.h.
    const VERSION: u32 = 0x2008_0522;
    let (header, nothing) = ([VERSION, 0], [0_u32; 6]);
    // SAFETY: the kernel reads a header of two words, and three words of sets twice.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), nothing.as_ptr()) };
    check(result as libc::c_int)?;
    // SAFETY: takes numbers only. Becoming another user has cleared it.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) })
}

/// Makes connect(2) in this process, and in the program that it executes, wait until another
/// process answers it. That process must hold the returned descriptor and call [`answer_connect`].
///
/// # Errors
/// If the kernel cannot do it (Linux before 5.9), or another filter of this process does so.
pub fn hold_connects() -> io::Result<OwnedFd> {
    const ARCH: u32 = if cfg!(target_arch = "aarch64") { 0xc000_00b7 } else { 0xc000_003e };
    let code = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let (equal, give) = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::BPF_RET | libc::BPF_K);
    // Of `struct seccomp_data`: the architecture is at 4, the call's number at 0.
    let mut program = [
        code(load, 0, 0, 4),
        code(equal, 1, 0, ARCH),
        code(give, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        code(load, 0, 0, 0),
        code(equal, 0, 1, libc::SYS_connect as u32),
        code(give, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        code(give, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the kernel reads the program, whose length is right.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    match libc::c_int::try_from(listener) {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(listener @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(listener) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `SECCOMP_IOCTL_NOTIF_RECV`, `_SEND` and `_ADDFD` of linux/seccomp.h.
const RECEIVE: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;
const ADD: libc::c_ulong = 0x4018_2103;
/// `SECCOMP_ADDFD_FLAG_SETFD`.
const REPLACE: u32 = 1;

/// Waits for the first connect(2) of a process with [`hold_connects`], and makes its socket a
/// duplicate of what `connect` returns, for any address that it has given. Returns when that is
/// done or the process has ended. Once `listener` is closed, later ones fail.
///
/// # Errors
/// As `connect`, whose error the process gets too, and errors of the kernel.
pub fn answer_connect(
    listener: BorrowedFd<'_>,
    connect: impl FnOnce() -> io::Result<OwnedFd>,
) -> io::Result<()> {
    let fd = listener.as_raw_fd();
    let mut wait = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the kernel reads and writes one structure.
    while unsafe { libc::poll(&raw mut wait, 1, -1) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    if wait.revents & libc::POLLIN == 0 {
        return Ok(());
    }
    // SAFETY: all zeroes is a valid value, and the one that the kernel requires.
    let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes the structure that this request is for.
    match check(unsafe { libc::ioctl(fd, RECEIVE, &raw mut asked) }) {
        // The process was killed in the meantime.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
        result => result?,
    }
    let done = connect().and_then(|stream| {
        let added = libc::seccomp_notif_addfd {
            id: asked.id,
            flags: REPLACE,
            srcfd: stream.as_raw_fd() as u32,
            newfd: asked.data.args[0] as u32,
            newfd_flags: libc::O_CLOEXEC as u32,
        };
        // SAFETY: the kernel reads the structure that this request is for. It returns the number.
        match unsafe { libc::ioctl(fd, ADD, &raw const added) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    });
    let error = done.as_ref().err().map_or(0, |error| -error.raw_os_error().unwrap_or(libc::EIO));
    let answer = libc::seccomp_notif_resp { id: asked.id, val: 0, error, flags: 0 };
    // SAFETY: the kernel reads the structure that this request is for.
    match check(unsafe { libc::ioctl(fd, SEND, &raw const answer) }) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => done,
        result => done.and(result),
    }
}
