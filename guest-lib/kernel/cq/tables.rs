// SPDX-License-Identifier: GPL-2.0

//! The tables of a queue: the STags for the device, the STags for the process, and the state of
//! each.

use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::Arc;

use tofu_abi::table::{MemoryBlock, Steering};

use crate::charge::{table_pages, Charge};
use crate::device::Device;
use crate::dma::Table;
use crate::opener::Opener;
use crate::shim;
use crate::uapi::SPECIAL_STAGS;

/// The state of an STag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StagState {
    Free,
    /// ALLOC_STAG is in progress.
    Pending,
    /// Its memory was unmapped before ALLOC_STAG was complete.
    Aborted,
    /// The device uses it.
    Live,
    /// Its memory was unmapped; its resources are still to be freed.
    Dead,
}

/// An STag's entries in the tables.
pub(super) struct StagEntry {
    pub(super) block: MemoryBlock,
    /// Page table entries of the memory block.
    pub(super) pages: u64,
    pub(super) steering: Steering,
    /// Bytes of the STag's address space.
    pub(super) bytes: u64,
    /// The entry for the process: see [`UserTable`].
    pub(super) user: u64,
}

/// The tables of a queue.
pub(super) struct Tables {
    steering: Table,
    blocks: Table,
    user: Arc<UserTable>,
    states: KVVec<StagState>,
    _charge: Charge,
}

impl Tables {
    /// Tables of `stags` unregistered STags for a process.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(device: &Arc<Device>, opener: &Arc<Opener>, stags: u32) -> Result<Self> {
        let n = stags as usize;
        // The three tables, and the driver's records of each STag: its state and its place.
        let pages = 3 * table_pages(16 * n) + (9 * n).div_ceil(kernel::page::PAGE_SIZE);
        let charge = Charge::new(device, opener, pages)?;
        Ok(Self {
            steering: Table::for_process(device, n * 2)?,
            blocks: Table::for_process(device, n * 2)?,
            user: Arc::new(UserTable::new(n)?, GFP_KERNEL_ACCOUNT)?,
            states: KVVec::from_elem(StagState::Free, n, GFP_KERNEL_ACCOUNT)?,
            _charge: charge,
        })
    }

    /// The steering table, which the device reads.
    pub(super) fn steering(&self) -> &Table {
        &self.steering
    }

    /// The memory block table, which the device reads.
    pub(super) fn blocks(&self) -> &Table {
        &self.blocks
    }

    /// The table that the process may map.
    pub(super) fn user(&self) -> &Arc<UserTable> {
        &self.user
    }

    pub(super) fn state(&self, stag: u32) -> StagState {
        self.states
            .get(stag as usize)
            .copied()
            .unwrap_or(StagState::Dead)
    }

    pub(super) fn set_state(&mut self, stag: u32, state: StagState) {
        if let Some(known) = self.states.get_mut(stag as usize) {
            *known = state;
        }
    }

    /// The first free STag that may be allocated.
    pub(super) fn first_free(&self, read_only: bool) -> Option<u32> {
        given_out(self.states.len() as u32, read_only)
            .find(|stag| self.state(*stag) == StagState::Free)
    }

    /// Enables an STag in the device's tables.
    pub(super) fn enable(&mut self, stag: u32, entry: &StagEntry) {
        let i = stag as usize;
        self.blocks.store_entry(i, [entry.block.0, entry.pages]);
        self.steering
            .store_entry(i, [entry.steering.0, entry.bytes]);
        self.user.set(stag, entry.user);
        self.set_state(stag, StagState::Live);
    }

    /// Clears an STag's entries. The cache must be flushed afterwards.
    pub(super) fn disable(&mut self, stag: u32) {
        self.steering.store(stag as usize * 2, 0);
        self.blocks.store(stag as usize * 2, 0);
        self.user.set(stag, 0);
    }
}

/// The STags below `end` that may be allocated: even ones for memory that others may write, odd
/// ones otherwise.
pub(super) fn given_out(end: u32, read_only: bool) -> impl Iterator<Item = u32> {
    (SPECIAL_STAGS + u32::from(read_only)..end).step_by(2)
}

/// The translation table that a process may map to read: 16 bytes for each STag.
pub(super) struct UserTable {
    table: *mut u64,
    qwords: usize,
}

// SAFETY: the table belongs to this object, and is written under the lock of `Tables`.
unsafe impl Send for UserTable {}
// SAFETY: `set` is called only under the lock of `Tables`; other holders of a reference only map
// the table into a process.
unsafe impl Sync for UserTable {}

impl UserTable {
    fn new(stags: usize) -> Result<Self> {
        let qwords = stags * 2;
        let table = shim::tofu_shim_table_alloc(qwords * 8);
        if table.is_null() {
            return Err(ENOMEM);
        }
        Ok(Self {
            table: table.cast(),
            qwords,
        })
    }

    fn set(&self, stag: u32, entry: u64) {
        for i in [stag as usize * 2, stag as usize * 2 + 1] {
            if i < self.qwords {
                // SAFETY: in the table; processes that have mapped it may read it at the same time.
                unsafe { self.table.add(i).write_volatile(entry) };
            }
        }
    }

    /// Maps the first `len` bytes into a process.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the end of the table.
    ///
    /// # Safety
    ///
    /// `vma` must be an area of `len` bytes that the kernel is setting up.
    pub(super) unsafe fn map(&self, vma: *mut bindings::vm_area_struct, len: u64) -> Result {
        if len > self.qwords as u64 * 8 {
            return Err(EINVAL);
        }
        // SAFETY: `vma` has `len` bytes and is being set up. The table is at least as long, and in
        // memory that users may map; mapped pages stay until they are unmapped.
        kernel::error::to_result(unsafe { shim::tofu_shim_map_table(vma, self.table.cast()) })
    }
}

impl Drop for UserTable {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`. Mapped pages stay until they are unmapped.
        unsafe { shim::tofu_shim_table_free(self.table.cast()) };
    }
}
