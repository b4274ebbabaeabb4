//! Memory that this process and another one share through a file, and that the device reaches.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use tofu_process::{Resize, memory_file};

use crate::dma::{Buffer, CHUNK, Chunk, GRANULE, MapError, Mapping};
use crate::page_size;
use crate::platform::VfioPlatform;

impl VfioPlatform {
    /// Allocates memory for the device that another process can share: buffers of these sizes, each
    /// in whole pages of the file that is returned, one after the other. All of it is zeroed.
    ///
    /// # Errors
    ///
    /// See [`MapError`].
    pub fn alloc_file(&self, sizes: &[usize]) -> Result<(OwnedFd, Vec<Buffer>), MapError> {
        let whole = |size: usize| size.next_multiple_of(page_size() as usize);
        let len = sizes.iter().copied().map(whole).sum();
        let no_memory = |source| MapError::Memory { size: len, source };
        let file = memory_file("tofu", len as u64, Resize::Grow).map_err(no_memory)?;
        let mapped = File::from(file.try_clone().map_err(no_memory)?);
        let chunk = Arc::new(Chunk::of_file(&self.memory, mapped, len)?);
        let starts = sizes.iter().scan(0, |at, size| {
            let start = *at;
            *at += whole(*size);
            Some(start)
        });
        let buffers = starts.zip(sizes).map(|(start, size)| chunk.part(start, *size)).collect();
        Ok((file, buffers))
    }

    /// Maps for the device `len` bytes that another process has at `address`. They are in pages of
    /// a file: its `runs`, start and length in whole pages, hold them one after the other. The file
    /// is memory that cannot shrink; any process may have made it.
    ///
    /// # Errors
    ///
    /// [`MapError::Range`] if the runs have another number of pages, or they are of another file;
    /// see also the other variants.
    pub fn map_file(
        &self,
        file: BorrowedFd<'_>,
        runs: &[(u64, u64)],
        address: u64,
        len: u64,
    ) -> Result<FileMemory, MapError> {
        let bad = || MapError::Range { address: address as usize, len: len as usize };
        let first = address & (page_size() - 1);
        let size = first.checked_add(len).and_then(|end| end.checked_next_multiple_of(page_size()));
        let size = size.filter(|_| len > 0).ok_or_else(bad)?;
        // Only memory has seals, and what cannot shrink is there as long as it is mapped.
        let seals = fcntl_get_seals(file).map_err(|_| bad())?;
        let end = fstat(file).map_err(|_| bad())?.st_size as u64;
        let mut sum = 0u64;
        for &(start, run) in runs {
            let inside = start.checked_add(run).is_some_and(|at| at <= end);
            if run == 0 || (start | run) % page_size() != 0 || !inside {
                return Err(bad());
            }
            sum = sum.checked_add(run).ok_or_else(bad)?;
        }
        if !seals.contains(SealFlags::SHRINK) || sum != size {
            return Err(bad());
        }
        let size = size as usize;
        let no_memory = |source| MapError::Memory { size, source };
        let pages = Pages::map(file, runs, size).map_err(no_memory)?;
        // As for memory of this process's own: see `Pool::map_user`.
        let step = if size >= CHUNK { CHUNK } else { GRANULE } as u64;
        let phase = (address - first) & (step - 1);
        let memory = pages.0.as_ptr().cast();
        // SAFETY: the pages are mapped as long as the mapping is, and there are no references.
        let mapping =
            unsafe { self.memory.space().map(memory, size, step, phase, GRANULE as u64)? };
        let addr = mapping.addr() + first;
        Ok(FileMemory { mapping, pages: Some(pages), addr })
    }
}

/// Memory of another process's that the device can reach, until this is dropped.
pub struct FileMemory {
    mapping: Mapping,
    pages: Option<Pages>,
    addr: u64,
}

impl std::fmt::Debug for FileMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileMemory({:#x})", self.addr)
    }
}

impl FileMemory {
    /// The device's address of the first byte. It equals the address in the process, modulo 64 KiB,
    /// and nothing else is mapped in the 64 KiB in front of its page.
    pub fn device_addr(&self) -> u64 {
        self.addr
    }
}

impl Drop for FileMemory {
    fn drop(&mut self) {
        // Memory that the device might still reach stays.
        if !self.mapping.unmap() {
            std::mem::forget(self.pages.take());
        }
    }
}

/// Pages of a file in this process's address space.
struct Pages(NonNull<u8>, usize);

// SAFETY: a mapping belongs to the process, not to a thread, and is never accessed here.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(file: BorrowedFd<'_>, runs: &[(u64, u64)], size: usize) -> io::Result<Self> {
        let (none, all) = (ProtFlags::empty(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping, at an address that the kernel chooses, overlaps nothing.
        let memory = unsafe { mmap_anonymous(null_mut(), size, none, MapFlags::PRIVATE)? };
        let memory = NonNull::new(memory.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let pages = Self(memory, size);
        let mut at = 0;
        for &(start, run) in runs {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            // SAFETY: runs are as long as the mapping together, as the caller has made sure, and
            // that is not used yet.
            unsafe {
                let place = memory.as_ptr().add(at).cast();
                mmap(place, run as usize, all, flags, file.as_fd(), start)?;
            }
            at += run as usize;
        }
        Ok(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, and there are no pointers to it.
        let unmapped = unsafe { munmap(self.0.as_ptr().cast(), self.1) };
        if let Err(error) = unmapped {
            log::error!("unmapping memory of a process: {error}");
        }
    }
}
