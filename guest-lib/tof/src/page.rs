//! A page of registers that the process has.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use tofu_abi::regs::PAGE_SIZE;

const SIZE: usize = PAGE_SIZE as usize;

/// A mapped page of registers.
#[derive(Debug)]
pub(crate) struct Page(NonNull<u8>);

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Page {}
// SAFETY: it is accessed by volatile accesses only.
unsafe impl Sync for Page {}

impl Page {
    /// Maps the page of a queue's or channel's file.
    ///
    /// # Errors
    ///
    /// The kernel's answer.
    pub(crate) fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.as_raw_fd();
        // SAFETY: a new mapping, at an address that the kernel chooses, overlaps nothing.
        let page =
            unsafe { libc::mmap(std::ptr::null_mut(), SIZE, protection, libc::MAP_SHARED, fd, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(page.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn register(&self, offset: u64) -> Option<*mut u64> {
        let at = usize::try_from(offset).ok().filter(|at| at % 8 == 0 && *at < SIZE)?;
        // SAFETY: inside the mapping.
        Some(unsafe { self.0.as_ptr().add(at) }.cast())
    }

    /// Reads the register at a byte of the page; what is not there reads as ones.
    pub(crate) fn read(&self, offset: u64) -> u64 {
        let Some(register) = self.register(offset) else { return u64::MAX };
        // SAFETY: in the mapping and aligned; volatile, as the device may change it.
        let value = u64::from_le(unsafe { register.read_volatile() });
        fence(Ordering::Acquire);
        value
    }

    /// Writes a register. The device sees it after all earlier writes to memory.
    pub(crate) fn write(&self, offset: u64, value: u64) {
        let Some(register) = self.register(offset) else { return };
        fence(Ordering::Release);
        // SAFETY: in the mapping and aligned. The device then accesses only memory that was
        // registered with the kernel for it, under the promises made there.
        unsafe { register.write_volatile(value.to_le()) };
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, and there are no pointers to it.
        unsafe { libc::munmap(self.0.as_ptr().cast(), SIZE) };
    }
}
