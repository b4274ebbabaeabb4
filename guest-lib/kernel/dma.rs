// SPDX-License-Identifier: GPL-2.0

//! Coherent memory that the driver shares with the device: tables, rings, packet buffers.

use kernel::alloc::Flags;
use kernel::dma::{Coherent, CoherentView};
use kernel::io::{io_project, Io};
use kernel::prelude::*;
use kernel::sync::barrier::{dma_mb, Write};
use kernel::sync::Arc;
use tofu_ipotofu::wire::{Sum, Words};

use crate::device::Device;

/// Zeroed memory, contiguous for the device, page aligned, made of qwords.
pub(crate) struct Table(Coherent<[u64]>);

impl Table {
    /// A table of `qwords` zeros.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL` if `qwords` is 0.
    pub(crate) fn new(device: &Arc<Device>, qwords: usize) -> Result<Self> {
        Self::with(device, qwords, GFP_KERNEL)
    }

    /// The same for a process, which is charged for it.
    ///
    /// # Errors
    ///
    /// As [`Table::new`].
    pub(crate) fn for_process(device: &Arc<Device>, qwords: usize) -> Result<Self> {
        Self::with(device, qwords, GFP_KERNEL_ACCOUNT)
    }

    fn with(device: &Arc<Device>, qwords: usize, flags: Flags) -> Result<Self> {
        let flags = flags | __GFP_NOWARN;
        Coherent::<u64>::zeroed_slice(device.pdev().as_ref(), qwords, flags).map(Self)
    }

    /// Its device address.
    pub(crate) fn addr(&self) -> u64 {
        self.0.dma_address()
    }

    /// The device address of a qword.
    pub(crate) fn qword_addr(&self, index: usize) -> u64 {
        self.addr() + 8 * index as u64
    }

    /// Size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.0.size() as u64
    }

    fn qword(&self, index: usize) -> Result<CoherentView<'_, u64>> {
        Ok(io_project!(self.0, [try: index]))
    }

    /// Stores one qword, ordered after all earlier stores. Beyond the table nothing is stored.
    pub(crate) fn store(&self, index: usize, value: u64) {
        // The device may act on a qword with an enable bit as soon as it reads it, so everything
        // that it refers to must be visible before.
        dma_mb(Write);
        if let Ok(qword) = self.qword(index) {
            qword.write_val(value.to_le());
        }
    }

    /// Stores an entry of two qwords. The first one is stored last, because it has the enable bit.
    pub(crate) fn store_entry(&self, index: usize, [first, second]: [u64; 2]) {
        self.store(2 * index + 1, second);
        self.store(2 * index, first);
    }

    /// Loads one qword; 0 beyond the table.
    pub(crate) fn load(&self, index: usize) -> u64 {
        self.qword(index)
            .map_or(0, |qword| u64::from_le(qword.read_val()))
    }

    /// The bytes from `at` to `at + len`; `None` beyond the table.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> Option<*mut [u8]> {
        let end = at.checked_add(len).filter(|end| *end <= self.0.size())?;
        // SAFETY: the bytes before `end` are in the table.
        let start = unsafe { self.0.as_mut_ptr().cast::<u8>().add(at) };
        Some(core::ptr::slice_from_raw_parts_mut(start, end - at))
    }
}

/// Copies bytes that others may write at the same time. Updates the checksum `sum` with the copy,
/// as the bytes from `at` on.
///
/// # Safety
///
/// As many bytes as `to` has, rounded up to whole qwords, must be readable at `from`.
pub(crate) unsafe fn copy(from: *const u64, to: &mut [u8], at: usize, sum: &mut Sum) {
    let whole = to.len() / 8;
    let mut qwords = to.chunks_exact_mut(8);
    let mut words = Words::default();
    for (i, qword) in qwords.by_ref().enumerate() {
        // SAFETY: by the function's own contract.
        let value = unsafe { from.add(i).read_volatile() };
        qword.copy_from_slice(&value.to_ne_bytes());
        words.add(u64::from_le(value));
    }
    sum.add_words(at, words);
    let rest = qwords.into_remainder();
    if !rest.is_empty() {
        // SAFETY: by the function's own contract.
        let value = unsafe { from.add(whole).read_volatile() };
        // There are fewer than 8 bytes.
        rest.iter_mut()
            .zip(value.to_ne_bytes())
            .for_each(|(to, byte)| *to = byte);
        sum.add_at(at + 8 * whole, rest);
    }
}
