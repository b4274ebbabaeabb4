//! Resource limits of this process, and its heap.
#![allow(unsafe_code)]

use std::io;

/// Raises the soft limit of open files to the hard limit.
pub(crate) fn raise_open_files() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is valid for writing.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the structure is valid for reading.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Makes all threads that are created later share the first thread's heap. For processes that will
/// have hundreds of VMs; must be called before they have other threads.
///
/// The C library otherwise gives threads heaps that grow a page at a time, by mprotect(2), which
/// KVM reports to every VM of the process. The time for each VM would then grow with the number of
/// VMs. The first heap grows by brk(2), in larger steps and without such reports.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: this sets a parameter of the allocator, which accepts any value at any time.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Lets this thread run as soon as it wakes up, before vCPUs that compute: it says that it never
/// runs for long. Needs no rights; kernels before 6.12 take no notice.
pub fn run_soon() {
    /// The parts of `struct sched_attr` (linux/sched/types.h) that kernels have had from the start.
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        /// The thread's time slice in nanoseconds.
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const SHORTEST_NS: u64 = 100_000;
    // SAFETY: it only reads a number; 0 is the calling thread. It fails for no thread that exists.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        nice,
        runtime: SHORTEST_NS,
        ..Attributes::default()
    };
    // SAFETY: the structure has the size that it says; 0 is the calling thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}
