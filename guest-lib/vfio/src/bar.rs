//! The device's registers, mapped into this process.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde::{Deserialize, Serialize};
use tofu_abi::pci::REGISTER_BAR;
use tofu_abi::regs::BAR0_SIZE;
use tofu_abi::tnw;
use vfio_bindings::bindings::vfio::VFIO_REGION_INFO_FLAG_MMAP;
use vfio_ioctls::{VfioDevice, VfioRegionInfoCap};

use crate::error::Error;
use crate::pci::{Awake, PciDevice};

/// One region of a VFIO device. Parts that can be mapped are mapped; others are accessed by system
/// calls.
pub(crate) struct Region {
    /// In the order of their offsets.
    areas: Vec<Area>,
    file: Arc<dyn AsRawFd + Send + Sync>,
    /// The offset of the region in the device's file.
    start: u64,
    size: u64,
}

/// The place of a region in its device's file, and the parts of it that can be mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    start: u64,
    size: u64,
    /// Offset in the region and length, in the order of offsets.
    parts: Vec<(u64, u64)>,
}

impl Layout {
    /// A region of `size` bytes that begins at `start` of its file and can be mapped as a whole.
    pub fn whole(start: u64, size: u64) -> Self {
        Self { start, size, parts: vec![(0, size)] }
    }

    /// The placement of region `index` of a device.
    pub(crate) fn of(device: &VfioDevice, index: u32) -> Self {
        let (start, size) = (device.get_region_offset(index), device.get_region_size(index));
        let mappable = device.get_region_flags(index) & VFIO_REGION_INFO_FLAG_MMAP != 0;
        let sparse = device.get_region_caps(index).into_iter().find_map(|cap| match cap {
            VfioRegionInfoCap::SparseMmap(sparse) => Some(sparse.areas),
            _ => None,
        });
        let mut parts: Vec<(u64, u64)> = match sparse {
            _ if !mappable => Vec::new(),
            Some(areas) => areas.into_iter().map(|area| (area.offset, area.size)).collect(),
            None => vec![(0, size)],
        };
        parts.retain(|(_, len)| *len > 0);
        parts.sort_unstable();
        Self { start, size, parts }
    }

    /// Size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }
}

/// A mapped part of a region.
struct Area {
    offset: u64,
    len: usize,
    memory: NonNull<u8>,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Area {}
// SAFETY: it is accessed by volatile accesses only.
unsafe impl Sync for Area {}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: mapped by `Area::map`, and there are no pointers to it.
        let unmapped = unsafe { munmap(self.memory.as_ptr().cast(), self.len) };
        if let Err(error) = unmapped {
            log::error!("unmapping registers: {error}");
        }
    }
}

impl Area {
    /// Maps `len` bytes from `start` of a file, for a part that begins at `offset`.
    fn map(
        file: BorrowedFd<'_>,
        start: u64,
        offset: u64,
        len: usize,
        protection: ProtFlags,
    ) -> io::Result<Self> {
        let flags = MapFlags::SHARED;
        // SAFETY: a new mapping, at an address that the kernel chooses, overlaps nothing.
        let memory = unsafe { mmap(std::ptr::null_mut(), len, protection, flags, file, start)? };
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { offset, len, memory })
    }

    /// The address of the `T` at `offset` in the mapping, if it is aligned and exists.
    fn pointer<T>(&self, offset: u64) -> Option<*mut T> {
        let at = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        if at.checked_add(size_of::<T>())? > self.len {
            return None;
        }
        // SAFETY: inside the mapping.
        let pointer = unsafe { self.memory.as_ptr().add(at) }.cast::<T>();
        pointer.is_aligned().then_some(pointer)
    }
}

/// A view of the registers of a device that another process may be using.
pub struct Window {
    area: Area,
    _awake: Awake,
}

impl Window {
    /// Maps the register space of a device through sysfs, without VFIO: the device is not reset,
    /// and its users are not disturbed. This needs root and, while the device is in use, a kernel
    /// that was booted with `iomem=relaxed`.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if the kernel does not allow it, or [`Error::Permission`].
    pub fn open(device: &PciDevice) -> Result<Self, Error> {
        let path = device.path.join(format!("resource{REGISTER_BAR}"));
        let explain = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => Error::Permission(path.clone()),
            io::ErrorKind::InvalidInput => Error::InUse(device.bdf),
            _ => Error::system("mapping the registers by sysfs")(error),
        };
        let awake = device.wake();
        let file = File::open(&path).map_err(explain)?;
        // Both kinds of devices have them in the same BAR.
        let size = if device.is_tnw() { tnw::REGISTER_BAR_SIZE } else { BAR0_SIZE };
        let area = Area::map(file.as_fd(), 0, 0, size as usize, ProtFlags::READ);
        Ok(Self { area: area.map_err(explain)?, _awake: awake })
    }

    /// Reads the register at byte `offset` of BAR 0; what is not there reads as ones.
    pub fn read64(&self, offset: u64) -> u64 {
        match self.area.pointer::<u64>(offset) {
            // SAFETY: in the mapping and aligned; volatile, as the device may change it.
            Some(register) => u64::from_le(unsafe { register.read_volatile() }),
            None => u64::MAX,
        }
    }
}

impl Region {
    /// Maps a region of the device behind `file` as far as VFIO allows.
    pub(crate) fn new(file: Arc<dyn AsRawFd + Send + Sync>, layout: &Layout) -> io::Result<Self> {
        let &Layout { start, size, ref parts } = layout;
        let map = |&(offset, len): &(u64, u64)| {
            let start = start.checked_add(offset).ok_or(io::ErrorKind::InvalidInput)?;
            let len = usize::try_from(len).map_err(io::Error::other)?;
            // SAFETY: open as long as `file`.
            let file = unsafe { BorrowedFd::borrow_raw(file.as_raw_fd()) };
            Area::map(file, start, offset, len, ProtFlags::READ | ProtFlags::WRITE)
        };
        let areas = parts.iter().map(map).collect::<io::Result<_>>()?;
        Ok(Self { areas, file, start, size })
    }

    /// Size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns true if all of the region is mapped.
    pub(crate) fn is_mapped(&self) -> bool {
        self.areas.iter().map(|area| area.len as u64).sum::<u64>() == self.size
    }

    /// The address of the `T` at `offset` in the mapping, if it is aligned and exists.
    fn mapped<T>(&self, offset: u64) -> Option<*mut T> {
        let after = self.areas.partition_point(|area| area.offset <= offset);
        self.areas.get(after.checked_sub(1)?)?.pointer(offset)
    }

    fn file(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as `file`.
        unsafe { BorrowedFd::borrow_raw(self.file.as_raw_fd()) }
    }

    /// Reads by a system call. What cannot be read reads as ones, as on a bus.
    #[cold]
    fn read_slow(&self, offset: u64, bytes: &mut [u8]) {
        let len = bytes.len();
        let inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.size);
        let read = inside.then(|| rustix::io::pread(self.file(), &mut *bytes, self.start + offset));
        if !matches!(read, Some(Ok(n)) if n == len) {
            bytes.fill(0xff);
        }
    }

    /// Writes by a system call. A failed write is lost, as on a bus.
    #[cold]
    fn write_slow(&self, offset: u64, bytes: &[u8]) {
        if offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.size) {
            let _ = rustix::io::pwrite(self.file(), bytes, self.start + offset);
        }
    }
}

/// Accesses to registers of one width.
macro_rules! accesses {
    ($read:ident, $write:ident, $int:ty) => {
        impl Region {
            /// Reads a register. Memory accesses that follow come after it.
            #[inline]
            pub(crate) fn $read(&self, offset: u64) -> $int {
                let value = match self.mapped::<$int>(offset) {
                    // SAFETY: in the mapping and aligned; volatile, as the device may change it.
                    Some(register) => <$int>::from_le(unsafe { register.read_volatile() }),
                    None => {
                        let mut bytes = [0; size_of::<$int>()];
                        self.read_slow(offset, &mut bytes);
                        <$int>::from_le_bytes(bytes)
                    }
                };
                fence(Ordering::Acquire);
                value
            }

            /// Writes a register. The device sees it after all earlier writes to memory.
            #[inline]
            pub(crate) fn $write(&self, offset: u64, value: $int) {
                fence(Ordering::Release);
                match self.mapped::<$int>(offset) {
                    // SAFETY: in the mapping and aligned. The device then accesses only memory that
                    // is mapped for it, to which there are no references (see `dma`).
                    Some(register) => unsafe { register.write_volatile(value.to_le()) },
                    None => self.write_slow(offset, &value.to_le_bytes()),
                }
            }
        }
    };
}

accesses!(read64, write64, u64);
accesses!(read32, write32, u32);
