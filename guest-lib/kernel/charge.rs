// SPDX-License-Identifier: GPL-2.0

//! Limits on the memory of a node that processes use: pinned pages, and tables and objects in the
//! kernel. Memory is charged before it is allocated.

use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;

use crate::device::Device;
use crate::opener::Opener;
use crate::shim;

/// Bytes of a page of the CPU.
const PAGE: usize = kernel::page::PAGE_SIZE;

/// Pages that are charged to a process's user, until this is dropped.
pub(crate) struct Charge {
    device: Arc<Device>,
    opener: Arc<Opener>,
    pages: usize,
}

/// The number of pages for a table of this size, which may be allocated as a power of two of pages.
pub(crate) const fn table_pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE).next_power_of_two()
}

impl Charge {
    /// Charges this number of pages to the user who opened a file. All users together may have half
    /// of the node's memory, and one user 63/64 of that. A user may also not exceed RLIMIT_MEMLOCK,
    /// which counts the user's pages in all processes. The two limits per user do not apply with
    /// CAP_IPC_LOCK.
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
