//! MSI-X vectors of a client: eventfds.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, write};
use tofu_pci::{MsiSink, MsixTable};
use tofu_sync::lock;

/// Bytes of an entry of the MSI-X table.
const ENTRY_SIZE: u64 = 16;
/// The word of an entry whose lowest bit masks the vector.
const VECTOR_CONTROL: u64 = 12;

/// The eventfds that a client has bound to a device's vectors.
///
/// As with VFIO, the server owns the device's MSI-X table and the client keeps one for its guest: a
/// vector is unmasked in the device's table while it has an eventfd. An interrupt that comes while
/// it has none is pending until it has one.
pub(crate) struct Vectors(Box<[Mutex<Option<OwnedFd>>]>);

impl Vectors {
    pub(crate) fn new(count: u16) -> Self {
        Self((0..count).map(|_| Mutex::new(None)).collect())
    }

    pub(crate) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    fn slot(&self, vector: u16) -> Option<MutexGuard<'_, Option<OwnedFd>>> {
        let slot = self.0.get(usize::from(vector))?;
        Some(lock(slot))
    }

    /// Binds an eventfd to a vector, or none, and unmasks or masks the vector. After this the
    /// former eventfd is not signalled any more.
    ///
    /// The caller has checked the descriptor ([`check_eventfd`]).
    pub(crate) fn bind(&self, table: &MsixTable, vector: u16, event: Option<OwnedFd>) {
        let masked = event.is_none();
        if let Some(mut slot) = self.slot(vector) {
            *slot = event;
        }
        mask(table, vector, masked);
    }

    /// Unmasks all vectors with an eventfd, as a reset of the device has masked them.
    pub(crate) fn restore(&self, table: &MsixTable) {
        for vector in 0..self.0.len() as u16 {
            if self.slot(vector).is_some_and(|slot| slot.is_some()) {
                mask(table, vector, false);
            }
        }
    }

    /// Unbinds all vectors.
    pub(crate) fn clear(&self, table: &MsixTable) {
        for vector in 0..self.0.len() as u16 {
            self.bind(table, vector, None);
        }
    }

    /// Signals a vector's eventfd, if it has one.
    pub(crate) fn signal(&self, vector: u16) {
        let Some(slot) = self.slot(vector) else {
            return;
        };
        let Some(event) = slot.as_ref() else {
            return;
        };
        // The client can make the descriptor block again; see the crate's documentation.
        let mut ready = [PollFd::new(event, PollFlags::OUT)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut ready, Some(&at_once)).is_ok_and(|ready| ready > 0) {
            // A full counter has signalled the client already.
            let _ = write(event, &1u64.to_ne_bytes());
        }
    }
}

impl MsiSink for Vectors {
    fn notify(&self, vector: u16, _: u64, _: u32) {
        self.signal(vector);
    }

    fn update(&self, _: u16, _: u64, _: u32, _: bool) {}
}

fn mask(table: &MsixTable, vector: u16, masked: bool) {
    let at = u64::from(vector) * ENTRY_SIZE + VECTOR_CONTROL;
    table.table_write(at, &u32::from(masked).to_le_bytes());
}

/// Makes sure that a write to a descriptor does not block: it must be an eventfd, and non-blocking.
pub(crate) fn check_eventfd(event: &OwnedFd) -> Result<(), Errno> {
    // A file of a file system that the client runs could take for ever; poll(2) does not tell.
    let name = fs::read_link(format!("/proc/self/fd/{}", event.as_raw_fd()))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
    if name.as_os_str() != "anon_inode:[eventfd]" {
        return Err(Errno::INVAL);
    }
    fcntl_setfl(event, fcntl_getfl(event)? | OFlags::NONBLOCK)
}
