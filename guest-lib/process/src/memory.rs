//! Files of memory.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// The ways in which the size of a memory file can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// Not at all.
    Never,
    /// It can grow.
    Grow,
}

/// Makes a memory file of zeros. It never shrinks: memory beyond the end of a file that another
/// process had truncated would end this process by a signal.
///
/// # Errors
///
/// The error of the system.
pub fn memory_file(name: &str, size: u64, resize: Resize) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, size)?;
    let seals = match resize {
        Resize::Never => SealFlags::SHRINK | SealFlags::GROW,
        Resize::Grow => SealFlags::SHRINK,
    };
    fcntl_add_seals(&file, seals | SealFlags::SEAL)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_resizes_as_asked() {
        let fixed = memory_file("fixed", 4096, Resize::Never).unwrap();
        let growing = memory_file("growing", 4096, Resize::Grow).unwrap();
        assert!(ftruncate(&fixed, 0).is_err() && ftruncate(&fixed, 8192).is_err());
        assert!(ftruncate(&growing, 0).is_err() && ftruncate(&growing, 8192).is_ok());
        assert!(fcntl_add_seals(&fixed, SealFlags::WRITE).is_err());
    }
}
