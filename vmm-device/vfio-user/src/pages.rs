//! Pages that a client maps: those of control queues and barrier channels, for doorbells without a
//! message, and injection windows of TNW, for stores without one.
//!
//! Unsafe, because it maps another file's memory where the device looks.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::mm::{MapFlags, ProtFlags, mmap};
use tofu_abi::pci::REGISTER_BAR;
use tofu_abi::regs::{NUM_TNI, PAGE_SIZE};
use tofu_abi::tnw::{WINDOW_BAR, WINDOW_SIZE};
use tofu_abi::{Doorbell, TniId};
use tofu_icc::SharedPages;
use tofu_machine::{SharedWindows, WindowBackend};
use tofu_process::{Resize, memory_file};
use tofu_sync::lock;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

/// Memory that a node's device polls and its client maps. Each client gets separate memory, so that
/// a disconnected client that keeps its mapping cannot reach the next client's memory.
struct ClientFile {
    region: Arc<MmapRegion<()>>,
    /// The current mapping.
    file: Mutex<Arc<OwnedFd>>,
}

impl ClientFile {
    fn new(size: usize) -> io::Result<Self> {
        let file = memory_file("tofu-pages", size as u64, Resize::Never)?;
        let start = FileOffset::new(File::from(file.try_clone()?), 0);
        let region = MmapRegion::from_file(start, size).map_err(io::Error::other)?;
        Ok(Self { region: Arc::new(region), file: Mutex::new(Arc::new(file)) })
    }

    fn renew(&self) -> io::Result<()> {
        let size = self.region.size();
        let new = memory_file("tofu-pages", size as u64, Resize::Never)?;
        let (rights, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        let mut file = lock(&self.file);
        // SAFETY: the range is just the one that `region` has mapped and keeps mapped as long as
        // `self` lives, so nothing else is overwritten; it stays readable and writable. Other
        // threads use volatile or atomic accesses, as it is shared with other processes anyway, and
        // find the old memory or the new. The new file is as long as the range and sealed, so no
        // access faults.
        unsafe {
            mmap(self.region.as_ptr().cast(), size, rights, flags | MapFlags::FIXED, &new, 0)
        }?;
        *file = Arc::new(new);
        Ok(())
    }
}

/// Memory for the pages of a node's control queues and barrier channels, which the node's client
/// maps too.
///
/// Give [`ClientPages::shared`] to the node when it is made, and this to its
/// [`Server`](crate::Server). Each client gets separate memory.
pub struct ClientPages(ClientFile);

impl ClientPages {
    /// Pages for one node: 95 MiB of addresses, with at most 672 KiB in use.
    ///
    /// # Errors
    ///
    /// If the host has no memory or descriptors left.
    pub fn new() -> io::Result<Self> {
        ClientFile::new(SharedPages::SIZE_AS_IN_BAR).map(Self)
    }

    /// The pages, as a node wants them.
    pub fn shared(&self) -> SharedPages {
        SharedPages::as_in_bar(Arc::clone(&self.0.region)).expect("the region has this size")
    }
}

/// Memory for the injection windows of a node of TNW, which the node's client maps too: such
/// windows cannot be registers.
pub struct ClientWindows(ClientFile);

impl ClientWindows {
    /// Windows for one node: 1.5 MiB of addresses; only channels that send use theirs.
    ///
    /// # Errors
    ///
    /// If the host has no memory or descriptors left.
    pub fn new() -> io::Result<Self> {
        ClientFile::new(SharedWindows::SIZE).map(Self)
    }

    /// The windows, as a node wants them.
    pub(crate) fn shared(&self) -> SharedWindows {
        let windows = SharedWindows::new(Arc::clone(&self.0.region));
        windows.expect("the region has this size").without_registers()
    }
}

impl WindowBackend for ClientWindows {
    fn attach_window(
        &self,
        _: u64,
        _: &Arc<MmapRegion<()>>,
        _: usize,
        _: usize,
    ) -> Result<(), String> {
        // The client has it mapped.
        Ok(())
    }

    /// Zeroes the window: it stays mapped, and the client's next program may read it.
    fn detach_window(&self, offset: u64) {
        if let Ok(window) = self.0.region.get_slice(offset as usize, WINDOW_SIZE as usize) {
            window.copy_from(&[0u8; WINDOW_SIZE as usize]);
        }
    }
}

/// The pages of a device that a client can map. An offset in the file is one in its BAR.
#[derive(Clone)]
pub(crate) enum Mappable {
    Pages(Arc<ClientPages>),
    Windows(Arc<ClientWindows>),
}

impl Mappable {
    /// The BAR.
    pub(crate) fn bar(&self) -> u8 {
        match self {
            Self::Pages(_) => REGISTER_BAR,
            Self::Windows(_) => WINDOW_BAR,
        }
    }

    /// The areas of it that can be mapped, in bytes: first and size of each.
    pub(crate) fn areas(&self) -> Vec<(u64, u64)> {
        match self {
            Self::Pages(_) => (0..NUM_TNI * Doorbell::COUNT)
                .map(|page| {
                    let (tni, bell) = (page / Doorbell::COUNT, page % Doorbell::COUNT);
                    (Doorbell::ALL[bell].page(TniId::ALL[tni]), PAGE_SIZE)
                })
                .collect(),
            Self::Windows(_) => vec![(0, SharedWindows::SIZE as u64)],
        }
    }

    fn memory(&self) -> &ClientFile {
        match self {
            Self::Pages(pages) => &pages.0,
            Self::Windows(windows) => &windows.0,
        }
    }

    /// The file that the client maps.
    pub(crate) fn file(&self) -> Arc<OwnedFd> {
        Arc::clone(&lock(&self.memory().file))
    }

    /// Puts new memory in the place of the old. Queues must be disabled, and windows unused.
    pub(crate) fn renew(&self) -> io::Result<()> {
        self.memory().renew()
    }
}
