// SPDX-License-Identifier: GPL-2.0

//! Rings of a queue, in the process's memory.

use kernel::prelude::*;
use kernel::sync::Arc;

use tofu_abi::table::PageSize;

use crate::device::Device;
use crate::opener::Opener;
use crate::pin::{Pinned, PAGE};
use crate::uapi::pages_around;
use crate::unmap::{MemoryUser, UnmapNotifier, UsedMemory};

/// A ring. The notifier is dropped before the memory.
pub(super) struct Ring {
    notifier: Option<Pin<KBox<UnmapNotifier>>>,
    pinned: Pinned,
    /// Offset of its first byte in the first page.
    at: u64,
    bytes: u64,
}

impl Ring {
    /// Ends the notification of the process's changes to the memory, which stays pinned.
    pub(super) fn remove_notifier(&mut self) {
        self.notifier = None;
    }

    /// Pins `entries` entries of `entry_size` bytes each at the calling process's address `addr`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the address is 0 or not aligned to an entry, `EOPNOTSUPP` if the memory is not
    /// contiguous for the device, and those of [`Pinned::new`].
    pub(super) fn new(
        user: Arc<dyn MemoryUser>,
        device: &Arc<Device>,
        opener: &Arc<Opener>,
        addr: u64,
        (entries, entry_size): (u32, usize),
    ) -> Result<Self> {
        let bytes = u64::from(entries) * entry_size as u64;
        if addr == 0 || addr % entry_size as u64 != 0 {
            return Err(EINVAL);
        }
        let (start, end) = pages_around(addr, bytes, PAGE).ok_or(EINVAL)?;
        let notifier = UnmapNotifier::new(user, UsedMemory::Ring, opener.mm(), (start, end))?;
        let huge = PageSize::Size2M.bytes();
        // Aligned with huge pages, if the memory has any, so that the IOMMU can use them too.
        let align = if end - start >= huge { huge } else { PAGE };
        let pinned = Pinned::new(device, opener, (start, end), true, align)?;
        if !pinned.is_contiguous() {
            dev_dbg!(
                device.pdev(),
                "queues must be contiguous for the device: turn on the IOMMU, or use huge pages\n"
            );
            return Err(EOPNOTSUPP);
        }
        Ok(Self {
            notifier: Some(notifier),
            pinned,
            at: addr - start,
            bytes,
        })
    }

    /// Its device address.
    pub(super) fn addr(&self) -> u64 {
        self.pinned.addr(0) + self.at
    }

    /// Copies `len` bytes from byte `offset` on to a user's address.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the ring, `EFAULT`.
    pub(super) fn copy_to(&self, offset: u64, len: u64, user: u64) -> Result {
        if offset.checked_add(len).ok_or(EINVAL)? > self.bytes {
            return Err(EINVAL);
        }
        self.pinned.copy_to(self.at + offset, len, user)
    }
}
