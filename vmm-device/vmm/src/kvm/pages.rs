//! Host memory that guests and devices share, and its write protection.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::sync::Arc;

use tofu_process::Resize;
use vm_memory::{FileOffset, GuestMemoryBackend, MmapRegion};

use crate::{Error, GuestMemory};

/// Anonymous shared memory of `size` bytes, rounded up to whole pages, that
/// [`crate::Windows::attach_watched_page`] can use: backed by a memory file.
///
/// # Errors
/// [`Error::Host`] if the host has no memory or descriptors left.
pub fn shared_region(size: usize) -> Result<Arc<MmapRegion<()>>, Error> {
    let size = size.next_multiple_of(4096);
    let file = memory_file("tofu-pages", size as u64)?;
    MmapRegion::from_file(FileOffset::new(file, 0), size)
        .map(Arc::new)
        .map_err(|error| Error::host("creating shared memory")(io::Error::other(error)))
}

/// A file of `size` zero bytes that exists in memory only.
pub(crate) fn memory_file(name: &str, size: u64) -> Result<File, Error> {
    let file = tofu_process::memory_file(name, size, Resize::Never);
    file.map(File::from).map_err(Error::host("creating shared memory"))
}

/// Another mapping of one page of `region`, for a guest: protecting it does not
/// keep the device from writing. `None` if `region` has no file behind it.
pub(crate) fn alias(
    region: &MmapRegion<()>,
    offset: usize,
    len: usize,
) -> Option<Result<Arc<MmapRegion<()>>, Error>> {
    let file = region.file_offset()?;
    let place = FileOffset::from_arc(file.arc().clone(), file.start() + offset as u64);
    let mapped = MmapRegion::from_file(place, len).map_err(io::Error::other);
    Some(mapped.map(Arc::new).map_err(Error::host("mapping a shared page")))
}

/// Takes the right to write to `alias` away, or gives it back. While it is away,
/// `KVM_RUN` fails with EFAULT when the guest writes there.
pub(crate) fn protect(alias: &MmapRegion<()>, read_only: bool) -> Result<(), Error> {
    let rights = libc::PROT_READ | if read_only { 0 } else { libc::PROT_WRITE };
    // SAFETY: the mapping is alive and belongs to this crate alone, which never
    // writes to it; only KVM does, which copes with the missing right.
    let result = unsafe { libc::mprotect(alias.as_ptr().cast(), alias.size(), rights) };
    if result != 0 {
        return Err(Error::host("protecting a shared page")(io::Error::last_os_error()));
    }
    Ok(())
}

/// The bytes of guest memory that are resident on the host. Swapped pages are not counted.
pub(crate) fn resident(memory: &GuestMemory) -> Result<u64, Error> {
    const PAGE: usize = 4096;
    const STEP: usize = 1 << 30;
    let mut present = Vec::new();
    let mut pages = 0;
    for region in memory.iter() {
        for at in (0..region.size()).step_by(STEP) {
            let len = STEP.min(region.size() - at);
            present.clear();
            present.resize(len.div_ceil(PAGE), 0u8);
            // SAFETY: the mapping is alive and the range lies in it; there is a byte for each of
            // its pages.
            let result =
                unsafe { libc::mincore(region.as_ptr().add(at).cast(), len, present.as_mut_ptr()) };
            if result != 0 {
                return Err(Error::host("looking at guest memory")(io::Error::last_os_error()));
            }
            pages += present.iter().filter(|byte| **byte & 1 != 0).count() as u64;
        }
    }
    Ok(pages * PAGE as u64)
}

/// Gives the pages of guest memory back to the host: it is all zeros then.
///
/// # Errors
/// [`Error::State`] if there is a file behind it, [`Error::Host`] if the host refuses.
pub(crate) fn empty(memory: &GuestMemory) -> Result<(), Error> {
    for region in memory.iter() {
        if region.file_offset().is_some() {
            return Err(Error::State("shared with another process"));
        }
        // SAFETY: the mapping is alive, private and anonymous. There are no references into guest
        // memory: guests and devices may write to it at any time.
        let result =
            unsafe { libc::madvise(region.as_ptr().cast(), region.size(), libc::MADV_DONTNEED) };
        if result != 0 {
            return Err(Error::host("emptying guest memory")(io::Error::last_os_error()));
        }
    }
    Ok(())
}
