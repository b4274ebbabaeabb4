//! MSI-X vectors of clients: eventfds.

use std::fs;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, write};
use tofu_pci::{MsiSink, MsixTable};
use tofu_sync::lock;

/// Bytes of an entry of the MSI-X table.
const ENTRY_SIZE: u64 = 16;
/// The word of an entry whose lowest bit masks the vector.
const VECTOR_CONTROL: u64 = 12;

/// The eventfds that clients have bound to a device's vectors.
///
/// As with VFIO, the server owns the device's MSI-X table and the client keeps one for its guest: a
/// vector is unmasked in the device's table while it has an eventfd. An interrupt that comes while
/// it has none is pending until it has one.
pub(crate) struct Vectors(Box<[Mutex<Option<Bound>>]>);

struct Bound {
    client: u16,
    event: OwnedFd,
}

impl Vectors {
    pub(crate) fn new(count: u16) -> Self {
        Self((0..count).map(|_| Mutex::new(None)).collect())
    }

    fn slot(&self, vector: u16) -> Option<MutexGuard<'_, Option<Bound>>> {
        let slot = self.0.get(usize::from(vector))?;
        Some(lock(slot))
    }

    /// Signals a vector's eventfd, if it has one, of this client if one is given.
    fn signal(&self, vector: u16, client: Option<u16>) {
        let Some(slot) = self.slot(vector) else {
            return;
        };
        let whose = |bound: &&Bound| client.is_none_or(|client| client == bound.client);
        let Some(Bound { event, .. }) = slot.as_ref().filter(whose) else {
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

/// The vectors as one client has them. Of a device that several share, each has those of the
/// queues that it has opened: a vector is its client's from the first eventfd to the last.
pub(crate) struct ClientVectors {
    all: Arc<Vectors>,
    client: u16,
}

impl ClientVectors {
    pub(crate) const fn new(all: Arc<Vectors>, client: u16) -> Self {
        Self { all, client }
    }

    pub(crate) fn len(&self) -> u32 {
        self.all.0.len() as u32
    }

    fn each(&self) -> Range<u16> {
        0..self.all.0.len() as u16
    }

    /// Binds an eventfd to a vector, or none, and unmasks or masks the vector. After this the
    /// former eventfd is not signalled any more.
    ///
    /// The caller has checked the descriptor ([`check_eventfd`]).
    ///
    /// # Errors
    ///
    /// [`Errno::BUSY`] if the vector is another client's.
    pub(crate) fn bind(
        &self,
        table: &MsixTable,
        vector: u16,
        event: Option<OwnedFd>,
    ) -> Result<(), Errno> {
        let masked = event.is_none();
        if let Some(mut slot) = self.all.slot(vector) {
            if slot.as_ref().is_some_and(|bound| bound.client != self.client) {
                return if masked { Ok(()) } else { Err(Errno::BUSY) };
            }
            *slot = event.map(|event| Bound { client: self.client, event });
        }
        mask(table, vector, masked);
        Ok(())
    }

    /// Unmasks all vectors with an eventfd, as a reset of the device has masked them.
    pub(crate) fn restore(&self, table: &MsixTable) {
        for vector in self.each() {
            if self.all.slot(vector).is_some_and(|slot| slot.is_some()) {
                mask(table, vector, false);
            }
        }
    }

    /// Unbinds all vectors of the client. Returns whether none of another client's is left.
    pub(crate) fn clear(&self, table: &MsixTable) -> bool {
        let mut all = true;
        for vector in self.each() {
            // Others' stay, without an error.
            let _ = self.bind(table, vector, None);
            all &= self.all.slot(vector).is_none_or(|slot| slot.is_none());
        }
        all
    }

    /// Signals a vector's eventfd, if the client has bound one.
    pub(crate) fn signal(&self, vector: u16) {
        self.all.signal(vector, Some(self.client));
    }
}

impl MsiSink for Vectors {
    fn notify(&self, vector: u16, _: u64, _: u32) {
        self.signal(vector, None);
    }

    fn update(&self, _: u16, _: u64, _: u32, _: bool) {}
}

fn mask(table: &MsixTable, vector: u16, masked: bool) {
    let at = u64::from(vector) * ENTRY_SIZE + VECTOR_CONTROL;
    table.table_write(at, &u32::from(masked).to_le_bytes());
}

/// Makes sure that a write to a descriptor does not block: it must be an eventfd, and non-blocking.
pub(crate) fn check_eventfd(event: &OwnedFd) -> Result<(), Errno> {
    // Writing to a file in a file system of the client could block forever, and poll(2) does not
    // detect that.
    let name = fs::read_link(format!("/proc/self/fd/{}", event.as_raw_fd()))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
    if name.as_os_str() != "anon_inode:[eventfd]" {
        return Err(Errno::INVAL);
    }
    fcntl_setfl(event, fcntl_getfl(event)? | OFlags::NONBLOCK)
}
