//! Descriptors that a process was started with.
#![allow(unsafe_code)]

/// Keeps the descriptors of this process's caller, other than the standard ones and `passed`, from
/// the programs that this process will start. A process that outlives its caller would otherwise
/// hold the caller's locks and pipes.
pub fn keep_from_children(passed: &[i32]) {
    const FIRST: i32 = 3;
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    for fd in open.filter_map(|entry| entry.file_name().to_str()?.parse::<libc::c_int>().ok()) {
        if fd >= FIRST && !passed.contains(&fd) {
            // SAFETY: sets a flag of a descriptor, which may be closed by now.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}
