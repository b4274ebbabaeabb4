//! Memory that a device reaches because the kernel is told of it.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use tofu_driver::{DmaBuffer, DmaError};
use vm_memory::{AtomicInteger, MmapRegion, VolatileMemory, VolatileSlice};

/// Pages of the processor.
const PAGE: usize = 4096;

/// Whole pages of zeroes that nothing else is in. Their device addresses are those of this process:
/// it is the kernel that knows the device's.
pub struct Buffer {
    memory: MmapRegion<()>,
    len: usize,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:#x}, {} bytes)", self.device_addr(), self.len)
    }
}

impl Buffer {
    /// Allocates `len` bytes at a multiple of `align`, a page at most.
    ///
    /// # Errors
    ///
    /// If there is no such memory.
    pub fn new(len: usize, align: usize) -> Result<Self, DmaError> {
        let error = DmaError { size: len, align };
        let whole = len.max(1).checked_next_multiple_of(PAGE).filter(|_| align <= PAGE);
        let memory = MmapRegion::new(whole.ok_or(error)?).map_err(|_| error)?;
        Ok(Self { memory, len })
    }

    #[inline]
    fn slice(&self, offset: usize, len: usize) -> VolatileSlice<'_, ()> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{offset} + {len} is beyond a buffer of {} bytes", self.len);
        self.memory.get_slice(offset, len).expect("the buffer has so many bytes")
    }

    #[inline]
    fn atomic<T: AtomicInteger, R>(&self, offset: usize, f: impl FnOnce(&T) -> R) -> R {
        let slice = self.slice(offset, size_of::<T>());
        f(slice.get_atomic_ref(0).expect("typed accesses are aligned"))
    }
}

impl DmaBuffer for Buffer {
    fn device_addr(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        u64::from_le(self.atomic(offset, |word: &AtomicU64| word.load(order)))
    }

    #[inline]
    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.atomic(offset, |word: &AtomicU64| word.store(value.to_le(), order));
    }

    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        u32::from_le(self.atomic(offset, |word: &AtomicU32| word.load(order)))
    }

    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        self.atomic(offset, |word: &AtomicU32| word.store(value.to_le(), order));
    }

    fn load_u8(&self, offset: usize, order: Ordering) -> u8 {
        self.atomic(offset, |byte: &AtomicU8| byte.load(order))
    }

    fn store_u8(&self, offset: usize, value: u8, order: Ordering) {
        self.atomic(offset, |byte: &AtomicU8| byte.store(value, order));
    }

    fn read(&self, offset: usize, buf: &mut [u8]) {
        self.slice(offset, buf.len()).copy_to(buf);
    }

    fn write(&self, offset: usize, buf: &[u8]) {
        self.slice(offset, buf.len()).copy_from(buf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_addresses_of_the_process() {
        let buffer = Buffer::new(5000, 256).unwrap();
        assert_eq!(buffer.device_addr() % 4096, 0);
        assert_eq!(buffer.len(), 5000);
        buffer.store_u64(4096, 0x1234, Ordering::Relaxed);
        assert_eq!(buffer.load_u64(4096, Ordering::Relaxed), 0x1234);
        let mut bytes = [1; 3];
        buffer.read(4997, &mut bytes);
        assert_eq!(bytes, [0; 3]);
        assert!(Buffer::new(usize::MAX, 256).is_err());
        assert!(Buffer::new(1, 8192).is_err());
    }
}
