//! Which system calls each role may make.
//!
//! The lists were found by running machines under strace(1), and by reading what the code of each
//! thread can reach. Calls that are rare but harmless are in. Calls that lead out of the process
//! (programs, other processes, files, sockets, new mappings with code) are not.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use crate::policy::{Error, Role};

/// A system call with conditions on its arguments. The call is allowed if all conditions of one of
/// its entries hold.
pub(crate) type Entry = (libc::c_long, &'static [Condition]);

/// A condition on argument `.0` (from 0).
#[derive(Clone, Copy)]
pub(crate) enum Condition {
    /// It has this value.
    Is(u8, u64),
    /// Of these bits (second) it has these (third) set.
    Bits(u8, u64, u64),
    /// It is this process.
    IsThisProcess(u8),
    /// It is a null pointer.
    Null(u8),
}

use Condition::{Bits, Is, IsThisProcess, Null};

/// No code in new memory.
const NO_EXEC: &[Condition] = &[Bits(2, libc::PROT_EXEC as u64, 0)];
/// Opening for reading only.
const READ_ONLY: u64 = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64;

/// System calls of the run-time library in every thread, and harmless ones.
pub(crate) const EVERYWHERE: &[Entry] = &[
    (libc::SYS_read, &[]),
    (libc::SYS_write, &[]),
    (libc::SYS_readv, &[]),
    (libc::SYS_writev, &[]),
    (libc::SYS_close, &[]),
    (libc::SYS_fstat, &[]),
    (libc::SYS_eventfd2, &[]),
    (libc::SYS_fcntl, &[Is(1, libc::F_DUPFD_CLOEXEC as u64)]),
    (libc::SYS_fcntl, &[Is(1, libc::F_GETFD as u64)]),
    (libc::SYS_fcntl, &[Is(1, libc::F_GETFL as u64)]),
    (libc::SYS_futex, &[]),
    // Any thread that drives a device may have to interrupt any node: by an event descriptor, after
    // a check whether that would block, or by KVM_SIGNAL_MSI.
    (libc::SYS_ppoll, &[]),
    (libc::SYS_ioctl, &[Bits(1, 0xffff, KVM_TYPE | 0xa5)]),
    (libc::SYS_mmap, NO_EXEC),
    (libc::SYS_mprotect, NO_EXEC),
    (libc::SYS_munmap, &[]),
    (libc::SYS_mremap, &[]),
    (libc::SYS_madvise, &[]),
    (libc::SYS_brk, &[]),
    (libc::SYS_rt_sigprocmask, &[]),
    (libc::SYS_rt_sigreturn, &[]),
    (libc::SYS_sigaltstack, &[]),
    (libc::SYS_getpid, &[]),
    (libc::SYS_gettid, &[]),
    // Kicks of vCPUs, and abort(3).
    (libc::SYS_tgkill, &[IsThisProcess(0)]),
    (libc::SYS_sched_yield, &[]),
    (libc::SYS_sched_getaffinity, &[]),
    (libc::SYS_clock_gettime, &[]),
    (libc::SYS_clock_nanosleep, &[]),
    (libc::SYS_nanosleep, &[]),
    (libc::SYS_gettimeofday, &[]),
    (libc::SYS_getrandom, &[]),
    (libc::SYS_restart_syscall, &[]),
    (libc::SYS_set_robust_list, &[]),
    (libc::SYS_rseq, &[]),
    (libc::SYS_prctl, &[Is(0, libc::PR_SET_NAME as u64)]),
    (libc::SYS_prctl, &[Is(0, libc::PR_SET_VMA as u64)]),
    (libc::SYS_exit, &[]),
    (libc::SYS_exit_group, &[]),
];

/// Fail with EACCES in all roles but [`Role::Main`]. The run-time library itself sometimes reads
/// files of the host (for the number of processors, the overcommit setting, the symbols of a
/// panic), and copes if it cannot.
const REFUSED: &[Entry] = &[
    (libc::SYS_openat, &[Bits(2, READ_ONLY, 0)]),
    (libc::SYS_newfstatat, &[]),
    (libc::SYS_statx, &[]),
    (libc::SYS_getcwd, &[]),
    // Whether standard error is a terminal.
    (libc::SYS_ioctl, &[Is(1, libc::TCGETS)]),
];

/// Reading links; refused with an error to roles that do not need it.
const LINKS: &[Entry] = &[(libc::SYS_readlinkat, &[])];

/// Waiting for several things.
pub(crate) const EVENTS: &[Entry] = &[
    (libc::SYS_epoll_create1, &[]),
    (libc::SYS_epoll_ctl, &[]),
    (libc::SYS_epoll_pwait, &[]),
    (libc::SYS_timerfd_create, &[]),
    (libc::SYS_timerfd_settime, &[]),
    (libc::SYS_timerfd_gettime, &[]),
];

/// KVM's requests all have this type (linux/kvm.h); the number is below it.
const KVM_TYPE: u64 = 0xae << 8;

/// A request of KVM's by its number, for any size of its structure.
macro_rules! kvm {
    ($($number:literal),* $(,)?) => {
        &[$((libc::SYS_ioctl, &[Bits(1, 0xffff, KVM_TYPE | $number)])),*]
    };
}

/// Requests of devices to their VM when a guest enables a queue, moves a BAR, or unmasks an
/// interrupt: KVM_SET_USER_MEMORY_REGION (and 2), KVM_IRQ_LINE (and STATUS), KVM_SET_GSI_ROUTING,
/// KVM_IRQFD, KVM_IOEVENTFD.
const KVM_DEVICES: &[Entry] = kvm![0x46, 0x49, 0x61, 0x67, 0x6a, 0x76, 0x79];

/// Requests of a vCPU thread to its vCPU: KVM_RUN, registers (GET and SET of REGS, SREGS, MSRS,
/// FPU, LAPIC, MP_STATE, VCPU_EVENTS, DEBUGREGS, XSAVE, XCRS, SREGS2), KVM_INTERRUPT,
/// KVM_SET_CPUID2 and its GET, KVM_NMI, KVM_TRANSLATE, KVM_SET_GUEST_DEBUG, KVM_GET_TSC_KHZ,
/// KVM_KVMCLOCK_CTRL, KVM_GET_CLOCK.
const KVM_VCPU: &[Entry] = kvm![
    0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x88, 0x89, 0x8c, 0x8d, 0x8e, 0x8f, 0x90, 0x91, 0x98,
    0x99, 0x9a, 0x9b, 0x9f, 0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa6, 0xa7, 0xad, 0x7c, 0xcc, 0xcd,
];

/// The signal that kicks a vCPU, whose handler its thread installs.
const VCPU: &[Entry] = &[(libc::SYS_rt_sigaction, &[Is(0, 34)])];

/// An open image, and the streams of consoles.
const VIRTIO: &[Entry] = &[
    (libc::SYS_lseek, &[]),
    (libc::SYS_pread64, &[]),
    (libc::SYS_pwrite64, &[]),
    (libc::SYS_preadv, &[]),
    (libc::SYS_pwritev, &[]),
    (libc::SYS_fdatasync, &[]),
    (libc::SYS_fsync, &[]),
    (libc::SYS_recvfrom, &[]),
    (libc::SYS_sendto, &[]),
    (libc::SYS_shutdown, &[]),
];

/// The events that a client rings doorbells with are read without being trusted not to block.
const ENGINE: &[Entry] = &[(libc::SYS_preadv2, &[])];

/// A client that comes and goes, and its memory: files that must have been sealed.
const VFIO_USER: &[Entry] = &[
    (libc::SYS_fcntl, &[Is(1, libc::F_SETFL as u64)]),
    (libc::SYS_fcntl, &[Is(1, libc::F_GET_SEALS as u64)]),
    (libc::SYS_fcntl, &[Is(1, libc::F_ADD_SEALS as u64)]),
    (libc::SYS_fstatfs, &[]),
    (libc::SYS_accept4, &[]),
    (libc::SYS_recvmsg, &[]),
    (libc::SYS_sendmsg, &[]),
    (libc::SYS_recvfrom, &[]),
    (libc::SYS_sendto, &[]),
    (libc::SYS_shutdown, &[]),
    (libc::SYS_getsockopt, &[]),
    (libc::SYS_setsockopt, &[]),
    (libc::SYS_ioctl, &[Is(1, libc::FIONBIO)]),
    (libc::SYS_lseek, &[]),
    (libc::SYS_memfd_create, &[]),
    (libc::SYS_ftruncate, &[]),
];

/// Files, which Landlock restricts, and threads that write what a guest is to read.
const READER: &[Entry] = &[
    (libc::SYS_openat, &[]),
    (libc::SYS_renameat2, &[]),
    (libc::SYS_clone, &[Bits(0, libc::CLONE_THREAD as u64, libc::CLONE_THREAD as u64)]),
    // As for the main thread.
    (libc::SYS_clone3, &[]),
];

/// Connections to a listening socket, and their options.
const CABLE: &[Entry] = &[
    (libc::SYS_accept4, &[]),
    (libc::SYS_setsockopt, &[]),
    (libc::SYS_getsockopt, &[Is(1, libc::IPPROTO_TCP as u64), Is(2, libc::TCP_INFO as u64)]),
    (libc::SYS_shutdown, &[]),
    (libc::SYS_ioctl, &[Is(1, libc::FIONBIO)]),
];

/// Files (which Landlock restricts), threads, UNIX sockets, terminals, and all of KVM.
const MAIN: &[Entry] = &[
    (libc::SYS_openat, &[]),
    (libc::SYS_newfstatat, &[]),
    (libc::SYS_statx, &[]),
    (libc::SYS_statfs, &[]),
    (libc::SYS_fstatfs, &[]),
    (libc::SYS_faccessat, &[]),
    (libc::SYS_faccessat2, &[]),
    (libc::SYS_getdents64, &[]),
    (libc::SYS_lseek, &[]),
    (libc::SYS_pread64, &[]),
    (libc::SYS_pwrite64, &[]),
    (libc::SYS_fsync, &[]),
    (libc::SYS_fdatasync, &[]),
    (libc::SYS_ftruncate, &[]),
    (libc::SYS_flock, &[]),
    (libc::SYS_unlinkat, &[]),
    (libc::SYS_renameat2, &[]),
    (libc::SYS_mkdirat, &[]),
    (libc::SYS_fchmod, &[]),
    (libc::SYS_memfd_create, &[]),
    (libc::SYS_fcntl, &[]),
    (libc::SYS_dup, &[]),
    (libc::SYS_dup3, &[]),
    (libc::SYS_pipe2, &[]),
    (libc::SYS_socket, &[Is(0, libc::AF_UNIX as u64)]),
    (libc::SYS_socketpair, &[Is(0, libc::AF_UNIX as u64)]),
    (libc::SYS_bind, &[]),
    (libc::SYS_listen, &[]),
    (libc::SYS_connect, &[]),
    (libc::SYS_accept4, &[]),
    (libc::SYS_getsockname, &[]),
    (libc::SYS_getpeername, &[]),
    (libc::SYS_clone, &[Bits(0, libc::CLONE_THREAD as u64, libc::CLONE_THREAD as u64)]),
    // Its arguments are in memory, where a filter cannot see them. Without execve a new process is
    // confined to this code, and inherits all filters.
    (libc::SYS_clone3, &[]),
    (libc::SYS_rt_sigaction, &[]),
    (libc::SYS_rt_sigtimedwait, &[]),
    (libc::SYS_kill, &[]),
    (libc::SYS_wait4, &[]),
    (libc::SYS_waitid, &[]),
    (libc::SYS_prlimit64, &[]),
    (libc::SYS_getrusage, &[]),
    (libc::SYS_sysinfo, &[]),
    (libc::SYS_uname, &[]),
    (libc::SYS_getuid, &[]),
    (libc::SYS_geteuid, &[]),
    (libc::SYS_getgid, &[]),
    (libc::SYS_getegid, &[]),
    (libc::SYS_getppid, &[]),
    (libc::SYS_sched_setaffinity, &[]),
    (libc::SYS_prctl, &[Is(0, libc::PR_SET_NO_NEW_PRIVS as u64)]),
    (libc::SYS_seccomp, &[]),
    (libc::SYS_landlock_create_ruleset, &[]),
    (libc::SYS_landlock_add_rule, &[]),
    (libc::SYS_landlock_restrict_self, &[]),
    (libc::SYS_ioctl, &[Is(1, libc::TCSETS)]),
    (libc::SYS_ioctl, &[Is(1, libc::TCSETSW)]),
    (libc::SYS_ioctl, &[Is(1, libc::TCSETSF)]),
    (libc::SYS_ioctl, &[Is(1, libc::TIOCGWINSZ)]),
    (libc::SYS_ioctl, &[Is(1, libc::FIONBIO)]),
    (libc::SYS_ioctl, &[Is(1, libc::FIOCLEX)]),
    (libc::SYS_ioctl, &[Bits(1, 0xff00, KVM_TYPE)]),
];

/// System calls that fail with EACCES.
fn refused(role: Role) -> Vec<&'static [Entry]> {
    match role {
        Role::Main => vec![NONE],
        // It checks the kind of descriptor that a client has sent.
        Role::VfioUser => vec![REFUSED, older::REFUSED],
        _ => vec![REFUSED, older::REFUSED, LINKS, older::LINKS],
    }
}

/// System calls that do not end the process.
fn allowed(role: Role) -> Vec<&'static [Entry]> {
    let mut lists =
        vec![EVERYWHERE, older::EVERYWHERE, REFUSED, older::REFUSED, LINKS, older::LINKS];
    match role {
        Role::Vcpu => lists.extend([KVM_VCPU, KVM_DEVICES, VCPU]),
        Role::Engine => lists.extend([EVENTS, older::EVENTS, ENGINE, KVM_DEVICES]),
        Role::Virtio => lists.extend([EVENTS, older::EVENTS, VIRTIO]),
        Role::VfioUser => lists.extend([EVENTS, older::EVENTS, ENGINE, VFIO_USER]),
        // Console input interrupts the guest, and the last thread may take down its VM's devices.
        Role::Reader => {
            lists.extend([EVENTS, older::EVENTS, VIRTIO, READER, older::READER, KVM_DEVICES]);
        }
        Role::Cable => lists.extend([EVENTS, older::EVENTS, ENGINE, KVM_DEVICES, CABLE]),
        Role::Main => lists.extend([EVENTS, older::EVENTS, ENGINE, VFIO_USER, MAIN, older::MAIN]),
    }
    lists
}

/// Makes the filters of a role: which calls do not end the process, and which of these are
/// answered with EACCES.
pub(crate) fn compile(role: Role) -> Result<(BpfProgram, BpfProgram), Error> {
    let eacces = SeccompAction::Errno(libc::EACCES as u32);
    Ok((
        program(role.name(), &allowed(role), SeccompAction::Trap, SeccompAction::Allow)?,
        program(role.name(), &refused(role), SeccompAction::Allow, eacces)?,
    ))
}

/// The lists that x86-64 has besides [`EVERYWHERE`] and [`EVENTS`].
pub(crate) fn older_lists() -> [&'static [Entry]; 2] {
    [older::EVERYWHERE, older::EVENTS]
}

/// Makes a filter that answers the calls of these lists with `matched`, and others with `mismatch`.
pub(crate) fn program(
    name: &'static str,
    lists: &[&[Entry]],
    mismatch: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, Error> {
    let fail =
        |error: &dyn std::fmt::Display| Error::Filter { role: name, reason: error.to_string() };
    let rules = rules(lists).map_err(|error| fail(&error))?;
    let arch = std::env::consts::ARCH.try_into().map_err(|error| fail(&error))?;
    SeccompFilter::new(rules, mismatch, matched, arch)
        .and_then(BpfProgram::try_from)
        .map_err(|error| fail(&error))
}

/// For a role without calls that fail with EACCES: a call that does not exist.
const NONE: &[Entry] = &[(libc::SYS_nfsservctl, &[])];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn rules(lists: &[&[Entry]]) -> Result<Rules, seccompiler::BackendError> {
    let mut rules = Rules::new();
    // A call that is allowed without conditions must not have conditions from another list.
    let mut free = std::collections::BTreeSet::new();
    for (call, conditions) in lists.iter().copied().flatten() {
        let of_call = rules.entry(*call).or_default();
        if conditions.is_empty() {
            free.insert(*call);
            of_call.clear();
        } else if !free.contains(call) {
            let conditions = conditions.iter().map(Condition::compile).collect::<Result<_, _>>()?;
            of_call.push(SeccompRule::new(conditions)?);
        }
    }
    Ok(rules)
}

impl Condition {
    fn compile(&self) -> Result<SeccompCondition, seccompiler::BackendError> {
        // Numbers are int or unsigned int to the kernel, which ignores upper halves.
        let number = SeccompCmpArgLen::Dword;
        let (at, len, operator, value) = match *self {
            Is(at, value) => (at, number, SeccompCmpOp::Eq, value),
            Bits(at, mask, value) => (at, number, SeccompCmpOp::MaskedEq(mask), value),
            IsThisProcess(at) => (at, number, SeccompCmpOp::Eq, std::process::id().into()),
            Null(at) => (at, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0),
        };
        SeccompCondition::new(at, len, operator, value)
    }
}

/// Names of the calls that are in a list, and of those that attackers and mistakes make.
macro_rules! names {
    ($($name:ident = $number:ident),* $(,)?) => {
        &[$((libc::$number, stringify!($name))),*]
    };
}

/// The name of a system call, if it is one that is likely to end a process.
pub(crate) fn call_name(call: i64) -> Option<&'static str> {
    NAMES.iter().chain(older::NAMES).find(|(number, _)| *number == call).map(|(_, name)| *name)
}

const NAMES: &[(i64, &str)] = names![
    openat = SYS_openat,
    openat2 = SYS_openat2,
    statx = SYS_statx,
    newfstatat = SYS_newfstatat,
    ppoll = SYS_ppoll,
    lseek = SYS_lseek,
    mmap = SYS_mmap,
    mprotect = SYS_mprotect,
    rt_sigaction = SYS_rt_sigaction,
    ioctl = SYS_ioctl,
    pread64 = SYS_pread64,
    pwrite64 = SYS_pwrite64,
    pipe2 = SYS_pipe2,
    dup = SYS_dup,
    dup3 = SYS_dup3,
    fcntl = SYS_fcntl,
    fsync = SYS_fsync,
    fdatasync = SYS_fdatasync,
    ftruncate = SYS_ftruncate,
    getdents64 = SYS_getdents64,
    unlinkat = SYS_unlinkat,
    socket = SYS_socket,
    socketpair = SYS_socketpair,
    connect = SYS_connect,
    bind = SYS_bind,
    listen = SYS_listen,
    accept = SYS_accept,
    accept4 = SYS_accept4,
    sendto = SYS_sendto,
    recvfrom = SYS_recvfrom,
    sendmsg = SYS_sendmsg,
    recvmsg = SYS_recvmsg,
    clone = SYS_clone,
    clone3 = SYS_clone3,
    execve = SYS_execve,
    execveat = SYS_execveat,
    kill = SYS_kill,
    tkill = SYS_tkill,
    tgkill = SYS_tgkill,
    wait4 = SYS_wait4,
    ptrace = SYS_ptrace,
    process_vm_readv = SYS_process_vm_readv,
    process_vm_writev = SYS_process_vm_writev,
    pidfd_getfd = SYS_pidfd_getfd,
    setuid = SYS_setuid,
    setgid = SYS_setgid,
    prctl = SYS_prctl,
    seccomp = SYS_seccomp,
    prlimit64 = SYS_prlimit64,
    getuid = SYS_getuid,
    uname = SYS_uname,
    sysinfo = SYS_sysinfo,
    mount = SYS_mount,
    umount2 = SYS_umount2,
    chroot = SYS_chroot,
    pivot_root = SYS_pivot_root,
    unshare = SYS_unshare,
    setns = SYS_setns,
    bpf = SYS_bpf,
    perf_event_open = SYS_perf_event_open,
    userfaultfd = SYS_userfaultfd,
    io_uring_setup = SYS_io_uring_setup,
    init_module = SYS_init_module,
    finit_module = SYS_finit_module,
    kexec_load = SYS_kexec_load,
    reboot = SYS_reboot,
    keyctl = SYS_keyctl,
    memfd_create = SYS_memfd_create,
    timerfd_create = SYS_timerfd_create,
    timerfd_settime = SYS_timerfd_settime,
    epoll_create1 = SYS_epoll_create1,
    epoll_ctl = SYS_epoll_ctl,
    epoll_pwait = SYS_epoll_pwait,
    eventfd2 = SYS_eventfd2,
    shutdown = SYS_shutdown,
    flock = SYS_flock,
];

/// Calls that only older architectures have, such as x86-64. On others the C library makes newer
/// calls instead, which are in the lists above.
#[cfg(target_arch = "x86_64")]
mod older {
    use super::{Bits, Entry, READ_ONLY};

    pub(super) const EVERYWHERE: &[Entry] = &[(libc::SYS_poll, &[]), (libc::SYS_time, &[])];
    pub(super) const REFUSED: &[Entry] = &[
        (libc::SYS_open, &[Bits(1, READ_ONLY, 0)]),
        (libc::SYS_stat, &[]),
        (libc::SYS_access, &[]),
    ];
    pub(super) const LINKS: &[Entry] = &[(libc::SYS_readlink, &[])];
    pub(super) const EVENTS: &[Entry] = &[(libc::SYS_epoll_wait, &[])];
    pub(super) const READER: &[Entry] = &[(libc::SYS_rename, &[])];
    pub(super) const MAIN: &[Entry] = &[
        (libc::SYS_open, &[]),
        (libc::SYS_stat, &[]),
        (libc::SYS_lstat, &[]),
        (libc::SYS_access, &[]),
        (libc::SYS_unlink, &[]),
        (libc::SYS_rename, &[]),
        (libc::SYS_mkdir, &[]),
        (libc::SYS_rmdir, &[]),
        (libc::SYS_chmod, &[]),
        (libc::SYS_dup2, &[]),
        (libc::SYS_getrlimit, &[]),
    ];
    pub(super) const NAMES: &[(i64, &str)] = names![
        open = SYS_open,
        creat = SYS_creat,
        stat = SYS_stat,
        poll = SYS_poll,
        pipe = SYS_pipe,
        select = SYS_select,
        dup2 = SYS_dup2,
        unlink = SYS_unlink,
        rename = SYS_rename,
        mkdir = SYS_mkdir,
        chmod = SYS_chmod,
        chown = SYS_chown,
        fork = SYS_fork,
        vfork = SYS_vfork,
        arch_prctl = SYS_arch_prctl,
        epoll_wait = SYS_epoll_wait,
    ];
}
#[cfg(not(target_arch = "x86_64"))]
mod older {
    use super::Entry;

    pub(super) const EVERYWHERE: &[Entry] = &[];
    pub(super) const REFUSED: &[Entry] = &[];
    pub(super) const LINKS: &[Entry] = &[];
    pub(super) const EVENTS: &[Entry] = &[];
    pub(super) const READER: &[Entry] = &[];
    pub(super) const MAIN: &[Entry] = &[];
    pub(super) const NAMES: &[(i64, &str)] = &[];
}
