// SPDX-License-Identifier: GPL-2.0

//! Memory of the kernel that the device reads: its tables.

use core::ptr::NonNull;

use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::barrier::{dma_mb, Write};
use kernel::sync::Arc;
use tofu_ipotofu::wire::{Sum, Words};

use crate::device::Device;

/// Zeroed memory, contiguous for the device, page aligned, made of qwords.
pub(crate) struct Table {
    device: Arc<Device>,
    cpu: NonNull<u64>,
    addr: u64,
    qwords: usize,
}

// SAFETY: the memory belongs to this object alone, whichever thread has it.
unsafe impl Send for Table {}
// SAFETY: all accesses are volatile ones of aligned qwords.
unsafe impl Sync for Table {}

impl Table {
    /// A table of `qwords` zeros.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(device: &Arc<Device>, qwords: usize) -> Result<Self> {
        let mut addr = 0;
        let size = qwords.checked_mul(8).ok_or(EINVAL)?;
        // SAFETY: the device is bound as long as there are files, and only files have tables.
        let cpu = unsafe {
            bindings::dma_alloc_attrs(
                device.raw(),
                size,
                &mut addr,
                bindings::GFP_KERNEL | bindings::__GFP_ZERO | bindings::__GFP_NOWARN,
                0,
            )
        };
        let cpu = NonNull::new(cpu.cast()).ok_or(ENOMEM)?;
        Ok(Self {
            device: device.clone(),
            cpu,
            addr,
            qwords,
        })
    }

    /// Where the device sees it.
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    /// Stores one qword, after all that was stored before.
    ///
    /// An index beyond the table is a mistake of the driver's and stores nothing.
    pub(crate) fn store(&self, index: usize, value: u64) {
        if index >= self.qwords {
            return;
        }
        dma_mb(Write);
        // SAFETY: the index was checked; the memory is ours until `drop`.
        unsafe { self.cpu.add(index).write_volatile(value.to_le()) };
    }

    /// Where the bytes from `at` to `at + len` are; nowhere beyond the table.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> Option<*mut [u8]> {
        let end = at.checked_add(len).filter(|end| *end <= self.qwords * 8)?;
        // SAFETY: the bytes before `end` are in the table.
        let start = unsafe { self.cpu.as_ptr().cast::<u8>().add(at) };
        Some(core::ptr::slice_from_raw_parts_mut(start, end - at))
    }

    /// Copies what is in the table from qword `first` on, which others may be writing meanwhile,
    /// and adds it to `sum`: looking at it once more would take half as long as that. False if
    /// that is beyond the table.
    pub(crate) fn copy(&self, first: usize, to: &mut [u8], sum: &mut Sum) -> bool {
        let end = first.checked_add(to.len().div_ceil(8));
        if end.is_none_or(|end| end > self.qwords) {
            return false;
        }
        // SAFETY: these qwords are in the table, and the memory is ours until `drop`.
        unsafe { copy(self.cpu.as_ptr().add(first), to, 0, sum) };
        true
    }

    /// Loads one qword; 0 beyond the table.
    pub(crate) fn load(&self, index: usize) -> u64 {
        if index >= self.qwords {
            return 0;
        }
        // SAFETY: as in `store`.
        u64::from_le(unsafe { self.cpu.add(index).read_volatile() })
    }
}

/// Copies bytes that others may be writing meanwhile, and adds them to `sum` as they are in the
/// copy, as its bytes from `at` on.
///
/// # Safety
///
/// So many bytes can be read at `from`, filled up to whole qwords.
pub(crate) unsafe fn copy(from: *const u64, to: &mut [u8], at: usize, sum: &mut Sum) {
    let (qwords, rest) = to.as_chunks_mut();
    let whole = qwords.len();
    let mut words = Words::default();
    for (i, qword) in qwords.iter_mut().enumerate() {
        // SAFETY: by the function's own contract.
        let value = unsafe { from.add(i).read_volatile() };
        *qword = value.to_ne_bytes();
        words.add(u64::from_le(value));
    }
    sum.add_words(at, words);
    if !rest.is_empty() {
        // SAFETY: by the function's own contract.
        let value = unsafe { from.add(whole).read_volatile() };
        rest.copy_from_slice(&value.to_ne_bytes()[..rest.len()]);
        sum.add_at(at + 8 * whole, rest);
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with these figures.
        unsafe {
            bindings::dma_free_attrs(
                self.device.raw(),
                self.qwords * 8,
                self.cpu.as_ptr().cast(),
                self.addr,
                0,
            )
        };
    }
}
