//! Memory that is registered with the kernel, so that the device can reach it.

use std::fmt;

use tofu_driver::{DmaError, VolatileBuffer};
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

/// Bytes of a page of the processor.
#[allow(unsafe_code)]
fn page_size() -> usize {
    // SAFETY: this only queries a value.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("Linux knows its pages")
}

/// Whole pages of zeroes that contain nothing else. Their addresses are this process's, because
/// only the kernel has the device's addresses.
pub struct Buffer {
    memory: MmapRegion<()>,
    len: usize,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:#x}, {} bytes)", self.addr(), self.len)
    }
}

impl Buffer {
    /// Allocates `len` bytes at a multiple of `align`, which is at most a page.
    ///
    /// # Errors
    ///
    /// If there is no such memory.
    pub fn new(len: usize, align: usize) -> Result<Self, DmaError> {
        let error = DmaError { size: len, align };
        let page = page_size();
        let whole = len.max(1).checked_next_multiple_of(page).filter(|_| align <= page);
        let memory = MmapRegion::new(whole.ok_or(error)?).map_err(|_| error)?;
        Ok(Self { memory, len })
    }
}

impl VolatileBuffer for Buffer {
    fn addr(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    #[inline]
    fn memory(&self) -> VolatileSlice<'_> {
        self.memory.get_slice(0, self.len).expect("the region is as long at least")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use tofu_driver::DmaBuffer;

    #[test]
    fn memory_has_addresses_of_the_process() {
        let buffer = Buffer::new(5000, 256).unwrap();
        assert_eq!(buffer.device_addr() % page_size() as u64, 0);
        assert_eq!(buffer.len(), 5000);
        buffer.store_u64(4096, 0x1234, Ordering::Relaxed);
        assert_eq!(buffer.load_u64(4096, Ordering::Relaxed), 0x1234);
        let mut bytes = [1; 3];
        buffer.read(4997, &mut bytes);
        assert_eq!(bytes, [0; 3]);
        assert!(Buffer::new(usize::MAX, 256).is_err());
        assert!(Buffer::new(1, 2 * page_size()).is_err());
    }
}
