//! A page of shared memory, as words.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::futex::{self, Flags};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

/// Bytes of a page.
pub(crate) const SIZE: usize = 4096;

/// A mapped page, and its words by their bytes. Both sides are processes of one host, so that words
/// have its order of bytes.
#[derive(Debug)]
pub(crate) struct Words(MmapRegion);

fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// The same memory for those who may only read it.
pub(crate) fn read_only(file: impl AsFd) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

impl Words {
    /// Maps a page.
    pub(crate) fn map(file: OwnedFd, writable: bool) -> io::Result<Self> {
        Self::map_some(file, SIZE, writable)
    }

    /// Maps so many bytes.
    pub(crate) fn map_some(file: OwnedFd, size: usize, writable: bool) -> io::Result<Self> {
        let file = File::from(file);
        // Beyond the end of a file there is no memory, but a signal.
        let bytes = file.metadata()?.len();
        if bytes < size as u64 {
            return Err(failed(format!("a page of {bytes} bytes")));
        }
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let region = MmapRegionBuilder::new(size)
            .with_file_offset(FileOffset::new(file, 0))
            .with_mmap_prot(protection)
            .with_mmap_flags(libc::MAP_SHARED)
            .build();
        region.map(Self).map_err(failed)
    }

    /// A word. It must be written only if the page was mapped for that.
    fn word(&self, at: usize) -> &AtomicU64 {
        // Only constants of this crate and numbers that were checked come here.
        self.0.get_atomic_ref(at).unwrap_or_else(|_| unreachable!("word {at}"))
    }

    fn short(&self, at: usize) -> &AtomicU32 {
        self.0.get_atomic_ref(at).unwrap_or_else(|_| unreachable!("word {at}"))
    }

    pub(crate) fn get(&self, at: usize) -> u64 {
        self.word(at).load(SeqCst)
    }

    pub(crate) fn set(&self, at: usize, value: u64) {
        self.word(at).store(value, SeqCst);
    }

    pub(crate) fn add(&self, at: usize, value: u64) {
        self.word(at).fetch_add(value, SeqCst);
    }

    /// The number of a bell of 4 bytes.
    pub(crate) fn bell(&self, at: usize) -> u32 {
        self.short(at).load(SeqCst)
    }

    /// Gives a bell its next number.
    pub(crate) fn ring(&self, at: usize) {
        self.short(at).fetch_add(1, SeqCst);
    }

    /// Wakes all waiters of a bell.
    pub(crate) fn wake(&self, at: usize) {
        // Fails for no reason that the caller could mend.
        let _ = futex::wake(self.short(at), Flags::empty(), i32::MAX as u32);
    }

    /// Waits until a bell has another number than this, or a while.
    pub(crate) fn wait(&self, at: usize, number: u32) {
        let a_while = futex::Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        let _ = futex::wait(self.short(at), Flags::empty(), number, Some(&a_while));
    }
}
