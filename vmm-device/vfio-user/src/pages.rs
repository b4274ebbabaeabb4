//! Pages of control queues and barrier channels that a client maps: doorbells without a message.
//!
//! Unsafe, as it puts another file's memory where the device looks.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use tofu_abi::regs::{NUM_TNI, PAGE_SIZE};
use tofu_abi::{Doorbell, TniId};
use tofu_icc::SharedPages;
use tofu_sync::lock;
use vm_memory::{FileOffset, MmapRegion};

const SIZE: usize = SharedPages::SIZE_AS_IN_BAR;

/// Memory for the pages of a node's control queues and barrier channels, which the node's client
/// maps too.
///
/// Give [`ClientPages::shared`] to the node when it is made, and this to its
/// [`Server`](crate::Server). Each client gets memory of its own, so that one that has left but
/// keeps its mapping reaches nothing of the next one's.
pub struct ClientPages {
    region: Arc<MmapRegion<()>>,
    /// What is mapped there now.
    file: Mutex<Arc<OwnedFd>>,
}

impl ClientPages {
    /// Pages for one node: 95 MiB of addresses, of which 672 KiB are ever used.
    ///
    /// # Errors
    ///
    /// If the host has no memory or descriptors left.
    pub fn new() -> io::Result<Self> {
        let file = memory_file()?;
        let start = FileOffset::new(File::from(file.try_clone()?), 0);
        let region = MmapRegion::from_file(start, SIZE).map_err(io::Error::other)?;
        Ok(Self { region: Arc::new(region), file: Mutex::new(Arc::new(file)) })
    }

    /// The pages, as a node wants them.
    pub fn shared(&self) -> SharedPages {
        SharedPages::as_in_bar(Arc::clone(&self.region)).expect("the region has this size")
    }

    /// Where the pages are in BAR0, in bytes: first and size of each.
    pub(crate) fn areas() -> impl ExactSizeIterator<Item = (u64, u64)> {
        (0..NUM_TNI * Doorbell::COUNT).map(|page| {
            let (tni, bell) = (page / Doorbell::COUNT, page % Doorbell::COUNT);
            (Doorbell::ALL[bell].page(TniId::ALL[tni]), PAGE_SIZE)
        })
    }

    /// The file that the client maps; an offset in it is one in BAR0.
    pub(crate) fn file(&self) -> Arc<OwnedFd> {
        Arc::clone(&lock(&self.file))
    }

    /// Puts new memory in the place of the old. The queues must be disabled.
    pub(crate) fn renew(&self) -> io::Result<()> {
        let new = memory_file()?;
        let (rights, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        let mut file = lock(&self.file);
        // SAFETY: the range is just the one that `region` has mapped and keeps mapped as long as
        // `self` lives, so nothing else is overwritten; it stays readable and writable. Whoever
        // accesses it meanwhile does so with volatile or atomic accesses, as it is shared with
        // other processes anyway, and finds the old memory or the new. The new file is as long as
        // the range and sealed, so no access faults.
        unsafe {
            mmap(self.region.as_ptr().cast(), SIZE, rights, flags | MapFlags::FIXED, &new, 0)
        }?;
        *file = Arc::new(new);
        Ok(())
    }
}

/// A memory file whose size nobody can change: who cut it off would end this process.
fn memory_file() -> io::Result<OwnedFd> {
    let file = memfd_create("tofu-pages", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, SIZE as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}
