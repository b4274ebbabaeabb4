// SPDX-License-Identifier: GPL-2.0

//! Memory of processes for the device: pinned, and mapped for DMA.

use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;
use kernel::uaccess::{UserPtr, UserSlice};

use tofu_abi::table::PageSize;

use crate::charge::Charge;
use crate::device::Device;
use crate::opener::Opener;
use crate::shim;

/// Bytes of a page of the CPU, which is one or several pages of the device.
pub(crate) const PAGE: u64 = kernel::page::PAGE_SIZE as u64;
/// Bytes of the smallest page of the device's tables.
pub(crate) const DEVICE_PAGE: u64 = PageSize::Size4K.bytes();
// An address that is aligned to the device's larger pages is also aligned to the CPU's.
const _: () = assert!(PAGE % DEVICE_PAGE == 0 && PageSize::Size64K.bytes() % PAGE == 0);

/// The access with which pages are mapped for the device.
enum Map {
    /// One range of device addresses: there is an IOMMU. The pages begin `lead` bytes into it.
    Range {
        state: bindings::dma_iova_state,
        lead: usize,
    },
    /// Each page has an address.
    Pages(KVVec<u64>),
}

/// Pages of a process, pinned and mapped for the device. Dropping it unmaps and unpins them; the
/// device must have stopped using them.
pub(crate) struct Pinned {
    device: Arc<Device>,
    opener: Arc<Opener>,
    pages: KVVec<*mut bindings::page>,
    map: Map,
    write: bool,
    _charge: Charge,
}

// SAFETY: the pages are ours until `drop`, which may run in any thread.
unsafe impl Send for Pinned {}
// SAFETY: shared references only read what was set at creation.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Pins the pages of the calling process from `start` to `end`, both multiples of a page.
    ///
    /// With an IOMMU they are one range of device addresses. `align` is a power of two and at least
    /// a page: device addresses are then equal to the process's addresses modulo `align`.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the memory is not mapped, or not writable although `write` is set. `ENOMEM`,
    /// also if the process may not have so much ([`Charge::new`]).
    pub(crate) fn new(
        device: &Arc<Device>,
        opener: &Arc<Opener>,
        (start, end): (u64, u64),
        write: bool,
        align: u64,
    ) -> Result<Self> {
        let count = ((end - start) / PAGE) as usize;
        // The records of a page take two words.
        let noted = count * 2 * size_of::<u64>() / PAGE as usize;
        let charge = Charge::new(device, opener, count + noted)?;
        let mut pinned = Self {
            device: device.clone(),
            opener: opener.clone(),
            pages: KVVec::new(),
            map: Map::Pages(KVVec::new()),
            write,
            _charge: charge,
        };
        pinned
            .pages
            .reserve(count, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
        pinned.pin(start, count)?;
        pinned.map((start & (align - 1)) as usize)?;
        Ok(pinned)
    }

    fn pin(&mut self, start: u64, count: usize) -> Result {
        let flags = bindings::FOLL_LONGTERM | if self.write { bindings::FOLL_WRITE } else { 0 };
        while self.pages.len() < count {
            let done = self.pages.len();
            let step = (count - done).min(4096);
            let spare = self.pages.spare_capacity_mut();
            // SAFETY: there is room for `step` pointers: the capacity was reserved.
            let got = unsafe {
                bindings::pin_user_pages_fast(
                    (start + done as u64 * PAGE) as usize,
                    step as i32,
                    flags,
                    spare.as_mut_ptr().cast(),
                )
            };
            if got <= 0 {
                return Err(if got == 0 {
                    EFAULT
                } else {
                    Error::from_errno(got)
                });
            }
            // SAFETY: the kernel has written `got` pointers.
            unsafe { self.pages.inc_len(got as usize) };
            self.account(got as isize);
        }
        Ok(())
    }

    fn account(&self, pages: isize) {
        if pages >= 0 {
            self.device.pinned.fetch_add(pages as usize, Relaxed);
        } else {
            self.device.pinned.fetch_sub(pages.unsigned_abs(), Relaxed);
        }
        // SAFETY: we hold a reference to it.
        unsafe { shim::tofu_shim_pinned_account(self.opener.mm().as_raw(), pages) };
    }

    fn direction(&self) -> bindings::dma_data_direction {
        if self.write {
            bindings::dma_data_direction::DMA_BIDIRECTIONAL
        } else {
            bindings::dma_data_direction::DMA_TO_DEVICE
        }
    }

    fn phys(&self, index: usize) -> u64 {
        let Some(page) = self.pages.get(index) else {
            return 0;
        };
        // SAFETY: the page is pinned.
        unsafe { shim::tofu_shim_page_phys(*page) }
    }

    /// The number of pages from `index` on that are physically contiguous.
    fn run(&self, index: usize) -> usize {
        let first = self.phys(index);
        let mut n = 1;
        while index + n < self.pages.len() && self.phys(index + n) == first + n as u64 * PAGE {
            n += 1;
        }
        n
    }

    fn map(&mut self, lead: usize) -> Result {
        let dev = self.device.raw();
        let direction = self.direction();
        let size = lead + self.pages.len() * PAGE as usize;
        let mut state = bindings::dma_iova_state::default();
        // SAFETY: the device is bound.
        if !unsafe { bindings::dma_iova_try_alloc(dev, &mut state, 0, size) } {
            return self.map_pages();
        }
        let mut done = 0;
        let mut result = Ok(());
        while done < self.pages.len() {
            let n = self.run(done);
            let offset = lead + done * PAGE as usize;
            let len = n * PAGE as usize;
            // SAFETY: the range lies in what was allocated, the pages are pinned.
            result = kernel::error::to_result(unsafe {
                bindings::dma_iova_link(dev, &mut state, self.phys(done), offset, len, direction, 0)
            });
            if result.is_err() {
                break;
            }
            done += n;
        }
        let linked = done * PAGE as usize;
        if result.is_ok() {
            // SAFETY: exactly this was linked, in what was allocated.
            result = kernel::error::to_result(unsafe {
                bindings::dma_iova_sync(dev, &mut state, lead, linked)
            });
        }
        if let Err(error) = result {
            Self::unmap_range(&self.device, &mut state, lead, linked, direction);
            return Err(error);
        }
        self.map = Map::Range { state, lead };
        Ok(())
    }

    fn unmap_range(
        device: &Device,
        state: &mut bindings::dma_iova_state,
        lead: usize,
        linked: usize,
        direction: bindings::dma_data_direction,
    ) {
        let dev = device.raw();
        // SAFETY: exactly this was linked, and the device no longer uses it.
        unsafe {
            if linked > 0 {
                bindings::dma_iova_unlink(dev, state, lead, linked, direction, 0);
            }
            bindings::dma_iova_free(dev, state);
        }
    }

    fn map_pages(&mut self) -> Result {
        let mut addrs = KVVec::with_capacity(self.pages.len(), GFP_KERNEL_ACCOUNT)?;
        for index in 0..self.pages.len() {
            // SAFETY: the page is pinned and the device bound.
            let addr = unsafe {
                bindings::dma_map_phys(
                    self.device.raw(),
                    self.phys(index),
                    PAGE as usize,
                    self.direction(),
                    0,
                )
            };
            if addr == u64::MAX {
                self.unmap_pages(&addrs);
                return Err(ENOMEM);
            }
            addrs.push(addr, GFP_KERNEL_ACCOUNT)?;
        }
        self.map = Map::Pages(addrs);
        Ok(())
    }

    fn unmap_pages(&self, addrs: &[u64]) {
        for addr in addrs {
            // SAFETY: mapped in `map_pages` with these figures.
            unsafe {
                bindings::dma_unmap_phys(
                    self.device.raw(),
                    *addr,
                    PAGE as usize,
                    self.direction(),
                    0,
                )
            };
        }
    }

    /// The device address of page `index`.
    pub(crate) fn addr(&self, index: usize) -> u64 {
        match &self.map {
            Map::Range { state, lead } => state.addr + *lead as u64 + index as u64 * PAGE,
            Map::Pages(addrs) => addrs.get(index).copied().unwrap_or(0),
        }
    }

    /// Returns the device address of each page, in the device's smallest page size.
    pub(crate) fn device_pages(&self) -> impl Iterator<Item = u64> + '_ {
        let parts = (0..PAGE).step_by(DEVICE_PAGE as usize);
        (0..self.pages.len())
            .flat_map(move |index| parts.clone().map(move |part| self.addr(index) + part))
    }

    /// Returns true if the pages are one range of device addresses.
    pub(crate) fn is_contiguous(&self) -> bool {
        match &self.map {
            Map::Range { .. } => true,
            Map::Pages(addrs) => {
                let first = addrs.first().copied().unwrap_or(0);
                addrs
                    .iter()
                    .enumerate()
                    .all(|(i, addr)| *addr == first + i as u64 * PAGE)
            }
        }
    }

    /// The start of the range of device addresses, if there is one. The pages begin in it at the
    /// offset that `align` requires.
    pub(crate) fn range(&self) -> Option<u64> {
        match &self.map {
            Map::Range { state, .. } => Some(state.addr),
            Map::Pages(_) => None,
        }
    }

    /// Copies `len` bytes from byte `offset` on to a user's address.
    ///
    /// # Errors
    ///
    /// `EINVAL` beyond the pages, `EFAULT`.
    pub(crate) fn copy_to(&self, mut offset: u64, mut len: u64, user: u64) -> Result {
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if end > self.pages.len() as u64 * PAGE {
            return Err(EINVAL);
        }
        let mut out = UserSlice::new(UserPtr::from_addr(user as usize), len as usize).writer();
        let mut bounce = KBox::new([0u8; 512], GFP_KERNEL)?;
        while len > 0 {
            let page = self.pages.get((offset / PAGE) as usize).ok_or(EINVAL)?;
            let at = (offset % PAGE) as usize;
            let n = (PAGE as usize - at).min(bounce.len()).min(len as usize);
            // SAFETY: the page is pinned, and has an address: there is no high memory on 64-bit
            // machines.
            let from = unsafe { shim::tofu_shim_page_address(*page) }.cast::<u8>();
            for (i, byte) in bounce.iter_mut().take(n).enumerate() {
                // SAFETY: within the page. The load is volatile because the device or the process
                // may write it at the same time.
                *byte = unsafe { from.add(at + i).read_volatile() };
            }
            out.write_slice(bounce.get(..n).ok_or(EINVAL)?)?;
            offset += n as u64;
            len -= n as u64;
        }
        Ok(())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let direction = self.direction();
        let len = self.pages.len() * PAGE as usize;
        match core::mem::replace(&mut self.map, Map::Pages(KVVec::new())) {
            Map::Range { mut state, lead } => {
                Self::unmap_range(&self.device, &mut state, lead, len, direction);
            }
            Map::Pages(addrs) => self.unmap_pages(&addrs),
        }
        if !self.pages.is_empty() {
            // SAFETY: these were pinned, once each.
            unsafe {
                bindings::unpin_user_pages_dirty_lock(
                    self.pages.as_mut_ptr(),
                    self.pages.len(),
                    self.write,
                )
            };
        }
        self.account(-(self.pages.len() as isize));
    }
}
