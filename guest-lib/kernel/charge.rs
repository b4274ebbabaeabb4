// SPDX-License-Identifier: GPL-2.0

//! Limits on what processes take of a node's memory: pages that are pinned for them, and the
//! tables and objects that the kernel has for them. It is charged before it is taken.

use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;

use crate::device::Device;
use crate::opener::Opener;
use crate::shim;

/// Bytes of a page of the processor's.
const PAGE: usize = kernel::page::PAGE_SIZE;

/// Pages that are charged to a process's user, until this is dropped.
pub(crate) struct Charge {
    device: Arc<Device>,
    opener: Arc<Opener>,
    pages: usize,
}

/// The pages that hold so many bytes of a table, which may be allocated as a power of two of them.
pub(crate) const fn table_pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE).next_power_of_two()
}

impl Charge {
    /// Charges so many pages to the user who opened a file. All users together have half of the
    /// node's memory, one of them 63 of 64 parts of that; and not more than RLIMIT_MEMLOCK,
    /// which counts what a user has in all processes. The latter two are not for CAP_IPC_LOCK.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(device: &Arc<Device>, opener: &Arc<Opener>, pages: usize) -> Result<Self> {
        let limit = shim::tofu_shim_total_pages() / 2;
        take(&device.charged, pages, limit)?;
        // SAFETY: the opener has a reference.
        let code = unsafe { shim::tofu_shim_charge(opener.cred(), pages, limit / 64 * 63) };
        if let Err(error) = kernel::error::to_result(code) {
            device.charged.fetch_sub(pages, Relaxed);
            return Err(error);
        }
        Ok(Self {
            device: device.clone(),
            opener: opener.clone(),
            pages,
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // SAFETY: charged in `new`.
        unsafe { shim::tofu_shim_uncharge(self.opener.cred(), self.pages) };
        self.device.charged.fetch_sub(self.pages, Relaxed);
    }
}

/// Adds to a sum unless it would be above the limit.
fn take(sum: &Atomic<usize>, count: usize, limit: usize) -> Result {
    let mut before = sum.load(Relaxed);
    loop {
        let after = before.checked_add(count).filter(|after| *after <= limit);
        match sum.cmpxchg(before, after.ok_or(ENOMEM)?, Relaxed) {
            Ok(_) => return Ok(()),
            Err(now) => before = now,
        }
    }
}
