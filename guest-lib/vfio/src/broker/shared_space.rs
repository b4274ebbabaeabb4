//! An address space that another process has made, by its descriptor.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use iommufd_bindings::iommufd::{
    iommu_ioas_map, iommu_ioas_unmap, iommufd_ioas_map_flags_IOMMU_IOAS_MAP_FIXED_IOVA,
    iommufd_ioas_map_flags_IOMMU_IOAS_MAP_READABLE,
    iommufd_ioas_map_flags_IOMMU_IOAS_MAP_WRITEABLE,
};
use iommufd_ioctls::{IommuFd, IommufdError};
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE, VFIO_TYPE,
    vfio_iommu_type1_dma_map, vfio_iommu_type1_dma_unmap,
};
use vfio_ioctls::{VfioError, VfioOps};
use vmm_sys_util::errno::Error as Errno;
use vmm_sys_util::ioctl::{ioctl_with_mut_ref, ioctl_with_ref};
use vmm_sys_util::ioctl_io_nr;

use super::wire::SpaceKind;

ioctl_io_nr!(VFIO_IOMMU_MAP_DMA, VFIO_TYPE.into(), VFIO_BASE + 13);
ioctl_io_nr!(VFIO_IOMMU_UNMAP_DMA, VFIO_TYPE.into(), VFIO_BASE + 14);

/// An address space that belongs to another process. This process maps its own memory there.
pub(crate) enum SharedSpace {
    Container(OwnedFd),
    Iommufd { iommufd: IommuFd, ioas: u32 },
}

impl SharedSpace {
    pub(crate) fn new(kind: SpaceKind, fd: OwnedFd) -> Self {
        match kind {
            SpaceKind::Container => Self::Container(fd),
            SpaceKind::Iommufd(ioas) => {
                Self::Iommufd { iommufd: IommuFd::new_from_fd(File::from(fd)), ioas }
            }
        }
    }
}

/// Unmaps everything between two addresses of a container, whichever process has mapped it, and
/// returns how many bytes were mapped. No mapping may lie across either end.
///
/// # Errors
///
/// The error of the kernel.
pub(crate) fn unmap_in_container(
    container: &impl AsRawFd,
    start: u64,
    size: u64,
) -> Result<u64, VfioError> {
    let mut unmap = vfio_iommu_type1_dma_unmap {
        argsz: size_of::<vfio_iommu_type1_dma_unmap>() as u32,
        flags: 0,
        iova: start,
        size,
        ..Default::default()
    };
    // SAFETY: the kernel reads and writes the `argsz` bytes of the structure.
    match unsafe { ioctl_with_mut_ref(container, VFIO_IOMMU_UNMAP_DMA(), &mut unmap) } {
        0 => Ok(unmap.size),
        _ => Err(VfioError::IommuDmaUnmap(Errno::last())),
    }
}

/// The same for an address space of iommufd.
///
/// # Errors
///
/// The error of the kernel, also if nothing is mapped there.
pub(crate) fn unmap_in_ioas(
    iommufd: &IommuFd,
    ioas: u32,
    start: u64,
    size: u64,
) -> Result<u64, VfioError> {
    let mut unmap = iommu_ioas_unmap {
        size: size_of::<iommu_ioas_unmap>() as u32,
        ioas_id: ioas,
        iova: start,
        length: size,
    };
    iommufd.unmap_iommu_ioas(&mut unmap).map_err(VfioError::IommufdIoctlError)?;
    Ok(unmap.length)
}

impl VfioOps for SharedSpace {
    unsafe fn vfio_dma_map(&self, iova: u64, size: usize, from: *mut u8) -> Result<(), VfioError> {
        match self {
            Self::Container(container) => {
                let map = vfio_iommu_type1_dma_map {
                    argsz: size_of::<vfio_iommu_type1_dma_map>() as u32,
                    flags: VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
                    vaddr: from as u64,
                    iova,
                    size: size as u64,
                };
                // SAFETY: the kernel reads the `argsz` bytes of the structure; what is mapped is
                // as the caller has promised.
                match unsafe { ioctl_with_ref(container, VFIO_IOMMU_MAP_DMA(), &map) } {
                    0 => Ok(()),
                    _ => Err(VfioError::IommuDmaMap(Errno::last())),
                }
            }
            Self::Iommufd { iommufd, ioas } => {
                let map = iommu_ioas_map {
                    size: size_of::<iommu_ioas_map>() as u32,
                    flags: iommufd_ioas_map_flags_IOMMU_IOAS_MAP_READABLE
                        | iommufd_ioas_map_flags_IOMMU_IOAS_MAP_WRITEABLE
                        | iommufd_ioas_map_flags_IOMMU_IOAS_MAP_FIXED_IOVA,
                    ioas_id: *ioas,
                    __reserved: 0,
                    user_va: from as u64,
                    length: size as u64,
                    iova,
                };
                iommufd.map_iommu_ioas(&map).map_err(VfioError::IommufdIoctlError)
            }
        }
    }

    fn vfio_dma_unmap(&self, iova: u64, size: usize) -> Result<(), VfioError> {
        let size = size as u64;
        let unmapped = match self {
            Self::Container(container) => unmap_in_container(container, iova, size)?,
            Self::Iommufd { iommufd, ioas } => match unmap_in_ioas(iommufd, *ioas, iova, size) {
                Err(VfioError::IommufdIoctlError(IommufdError::IommuIoasUnmap(errno)))
                    if errno.errno() == rustix::io::Errno::NOENT.raw_os_error() =>
                {
                    0
                }
                unmapped => unmapped?,
            },
        };
        // Nothing is left of it when the broker has taken it back already.
        if unmapped == size || unmapped == 0 { Ok(()) } else { Err(VfioError::InvalidDmaUnmapSize) }
    }
}
