//! Files of memory.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// Bytes of a page of the processor, as the kernel has them: 4 KiB, and on Arm perhaps 16 or 64.
pub(crate) fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// Makes a memory file that can grow, but not shrink: a process that has mapped it keeps it.
///
/// # Errors
///
/// The error of the system.
pub(crate) fn new_file(name: &str, size: u64) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, size)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file)
}
