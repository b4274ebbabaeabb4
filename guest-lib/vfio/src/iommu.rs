//! The abilities of the IOMMU in front of the device: its page sizes, and the addresses that can be
//! mapped. The kernel's interface wrapped by vfio-ioctls does not have this part.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use iommufd_bindings::iommufd::{
    IOMMUFD_CMD_IOAS_IOVA_RANGES, IOMMUFD_TYPE, iommu_ioas_iova_ranges, iommu_iova_range,
};
use iommufd_ioctls::{IommuFd, IommufdIoas};
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, VFIO_TYPE,
};
use vfio_ioctls::VfioContainer;
use vmm_sys_util::ioctl::{ioctl_with_mut_ptr, ioctl_with_mut_ref};
use vmm_sys_util::ioctl_io_nr;

use crate::page_size;

ioctl_io_nr!(VFIO_IOMMU_GET_INFO, VFIO_TYPE.into(), VFIO_BASE + 12);
ioctl_io_nr!(IOMMU_IOAS_IOVA_RANGES, IOMMUFD_TYPE.into(), IOMMUFD_CMD_IOAS_IOVA_RANGES);

/// The assumptions if the kernel does not say: the pages of every processor that we know, and all
/// addresses except x86's interrupt messages.
const DEFAULT_PAGE: u64 = 4096;
const DEFAULT_RANGES: [(u64, u64); 2] = [(0, 0xfedf_ffff), (0xfef0_0000, u64::MAX)];

/// Properties of an IOMMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    /// The smallest page in bytes, a power of two.
    pub(crate) page: u64,
    /// First and last of each range of addresses that may be used.
    pub(crate) ranges: Vec<(u64, u64)>,
}

impl Info {
    /// Asks a container (type 1).
    pub(crate) fn of_container(container: &VfioContainer) -> io::Result<Self> {
        /// Room for hundreds of ranges; there are two or three.
        const BYTES: u32 = 8192;
        let mut words = vec![0u32; BYTES as usize / 4];
        words[0] = BYTES;
        // SAFETY: the kernel writes at most the `argsz` bytes that the first word says.
        let result =
            unsafe { ioctl_with_mut_ptr(container, VFIO_IOMMU_GET_INFO(), words.as_mut_ptr()) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self::parse(&words))
    }

    /// Reads a `vfio_iommu_type1_info` and the capabilities behind it.
    fn parse(words: &[u32]) -> Self {
        // argsz, flags, iova_pgsizes (64 bits), cap_offset, pad.
        let word = |at: usize| words.get(at).copied().unwrap_or_default();
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 1)) << 32;
        let page = match long(2) {
            0 => DEFAULT_PAGE,
            sizes => 1 << sizes.trailing_zeros(),
        };
        let mut ranges = Vec::new();
        let mut at = if word(1) & VFIO_IOMMU_INFO_CAPS != 0 { word(4) as usize / 4 } else { 0 };
        // Each capability: id and version (16 bits each), offset of the next one.
        for _ in 0..words.len() {
            if at == 0 || at >= words.len() {
                break;
            }
            if word(at) & 0xffff == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE {
                // nr_iovas, reserved, then first and last of each.
                let count = (word(at + 2) as usize).min(words.len() / 4);
                ranges = (0..count).map(|i| (long(at + 4 + 4 * i), long(at + 6 + 4 * i))).collect();
            }
            at = word(at + 1) as usize / 4;
        }
        if ranges.is_empty() {
            ranges = DEFAULT_RANGES.to_vec();
        }
        Self { page, ranges }
    }

    /// Asks an address space of iommufd, after the device was attached to it.
    pub(crate) fn of_iommufd(iommufd: &Arc<IommuFd>, ioas: &IommufdIoas) -> io::Result<Self> {
        const RANGES: usize = 256;
        struct File(std::os::fd::RawFd);
        impl AsRawFd for File {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                self.0
            }
        }
        let mut found = vec![iommu_iova_range::default(); RANGES];
        let mut arguments = iommu_ioas_iova_ranges {
            size: size_of::<iommu_ioas_iova_ranges>() as u32,
            ioas_id: ioas.id(),
            num_iovas: RANGES as u32,
            allowed_iovas: found.as_mut_ptr() as u64,
            ..Default::default()
        };
        let file = File(iommufd.as_raw_fd());
        // SAFETY: the kernel writes the arguments and at most `num_iovas` ranges, for which there
        // is room.
        let result = unsafe { ioctl_with_mut_ref(&file, IOMMU_IOAS_IOVA_RANGES(), &mut arguments) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        found.truncate(arguments.num_iovas as usize);
        let ranges = found.into_iter().map(|range| (range.start, range.last)).collect();
        // Mappings are of the process's pages at least.
        let page = arguments.out_iova_alignment.max(page_size());
        Ok(Self { page, ranges })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB2: u64 = 2 << 20;

    fn info(flags: u32, sizes: u64, caps: &[u32]) -> Info {
        let mut words = vec![0, flags, sizes as u32, (sizes >> 32) as u32, 24, 0];
        words.extend(caps);
        Info::parse(&words)
    }

    #[test]
    fn ranges_come_from_their_capability() {
        let caps = [
            // Migration, 8 words; next at byte 56.
            0x0001_0002,
            56,
            0,
            0,
            0,
            0,
            0,
            0,
            // Ranges, the last one.
            0x0001_0001,
            0,
            2,
            0,
            0,
            0,
            0xfedf_ffff,
            0,
            0xfef0_0000,
            0,
            0xffff_ffff,
            0x7f,
        ];
        let found = info(3, 4096 | MIB2, &caps);
        assert_eq!(found.page, 4096);
        assert_eq!(found.ranges, [(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)]);
    }

    #[test]
    fn absent_capabilities_mean_no_interrupts() {
        let found = info(1, 1 << 16, &[1, 0, 1, 0, 0, 0, 1, 0]);
        assert_eq!(found, Info { page: 1 << 16, ranges: DEFAULT_RANGES.to_vec() });
        assert_eq!(info(1, 0, &[]).page, DEFAULT_PAGE);
    }

    #[test]
    fn nonsense_ends() {
        // A capability that is its own next one, and one beyond the end.
        assert_eq!(info(3, 4096, &[2, 24, 0, 0]).ranges, DEFAULT_RANGES);
        assert_eq!(info(3, 4096, &[2, 4000, 0, 0]).ranges, DEFAULT_RANGES);
        let _ = info(3, 4096, &[1, 0, u32::MAX, 0]);
        let _ = Info::parse(&[]);
    }
}
