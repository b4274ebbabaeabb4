//! Descriptors that a daemon was started with.
#![allow(unsafe_code)]

/// Closes all descriptors but the standard ones: a daemon outlives its caller, whose locks and
/// pipes it would hold. For the start of `main`, before anything has been opened.
pub fn close_inherited() {
    // SAFETY: takes numbers only. Nothing in this process owns these descriptors yet. Linux before
    // 5.9 has no such call, and they stay open there.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}
