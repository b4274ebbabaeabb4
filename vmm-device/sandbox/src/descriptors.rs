//! Descriptors that a process was started with.
#![allow(unsafe_code)]

/// Keeps the descriptors of this process's caller, other than the standard ones, from the programs
/// that this process will start. A process that outlives its caller would otherwise hold the
/// caller's locks and pipes.
pub fn keep_from_children() {
    const FIRST: libc::c_uint = 3;
    let (last, flag) = (libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: takes numbers only, and closes nothing in this process.
    let result = unsafe { libc::syscall(libc::SYS_close_range, FIRST, last, flag) };
    if result == 0 {
        return;
    }
    // Linux before 5.11.
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    for fd in open.filter_map(|entry| entry.file_name().to_str()?.parse::<libc::c_int>().ok()) {
        if fd >= FIRST as libc::c_int {
            // SAFETY: sets a flag of a descriptor, which may be closed by now.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}
