//! Descriptors that are sent to a client, and their later fate.
#![allow(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::{ReadWriteFlags, preadv2};
use vmm_sys_util::eventfd::EventFd;

/// A descriptor for a client.
pub(crate) enum SentFd {
    Pages(Arc<OwnedFd>),
    Doorbell(Arc<EventFd>),
}

impl AsFd for SentFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Pages(file) => file.as_fd(),
            Self::Doorbell(event) => descriptor(event),
        }
    }
}

fn descriptor(event: &EventFd) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is open as long as `event`, which lives as long as what is returned.
    unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) }
}

/// Resets the counter of an eventfd. Does not block, even if the client has made the eventfd a
/// blocking one.
pub(crate) fn set_back(event: &EventFd) {
    /// The file's current offset, which an eventfd has not.
    const HERE: u64 = u64::MAX;
    let mut count = [0; 8];
    // The only error is that there is nothing to read.
    let _ = preadv2(
        descriptor(event),
        &mut [IoSliceMut::new(&mut count)],
        HERE,
        ReadWriteFlags::NOWAIT,
    );
}
