//! Memory that a device reaches because the kernel is told of it.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::mm::{Advice, madvise};
use tofu_driver::{DmaBuffer, DmaError};
use vm_memory::{AtomicInteger, MmapRegion, VolatileMemory, VolatileSlice};

/// Pages of the processor.
const PAGE: usize = 4096;
/// Size and alignment of what buffers are cut from: a large page, if the kernel has one, so
/// that small buffers lie side by side in the machine's memory.
const CHUNK: usize = 2 << 20;

/// Memory that buffers are parts of, which lives as long as one of them.
struct Chunk {
    memory: MmapRegion<()>,
    /// Byte of the memory at which the aligned part begins, and its length.
    start: usize,
    len: usize,
}

impl Chunk {
    /// At least `len` bytes; `None` if there is no such memory.
    #[allow(unsafe_code)]
    fn new(len: usize) -> Option<Self> {
        let len = len.checked_next_multiple_of(CHUNK)?;
        let memory = MmapRegion::<()>::new(len.checked_add(CHUNK)?).ok()?;
        let address = memory.as_ptr() as usize;
        let start = address.next_multiple_of(CHUNK) - address;
        // SAFETY: inside of the region, whose contents this does not change.
        let advised = unsafe {
            madvise(memory.as_ptr().wrapping_add(start).cast(), len, Advice::LinuxHugepage)
        };
        if let Err(error) = advised {
            log::debug!("no large pages: {error}");
        }
        Some(Self { memory, start, len })
    }
}

/// Hands out buffers. What was given back is not used again; a chunk goes with its last buffer.
#[derive(Default)]
pub(crate) struct Pool {
    /// The chunk that was used last, and how much of it has been.
    last: Mutex<(Weak<Chunk>, usize)>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

impl Pool {
    /// Allocates `len` bytes at a multiple of `align`, a page at most.
    ///
    /// # Errors
    ///
    /// If there is no such memory.
    pub(crate) fn alloc(&self, len: usize, align: usize) -> Result<Buffer, DmaError> {
        let error = DmaError { size: len, align };
        let whole = len.max(1).checked_next_multiple_of(PAGE).filter(|_| align <= PAGE);
        let whole = whole.ok_or(error)?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let room = |chunk: &Arc<Chunk>| chunk.len - last.1 >= whole;
        let (chunk, offset) = match last.0.upgrade().filter(room) {
            Some(chunk) => (chunk, last.1),
            None => (Arc::new(Chunk::new(whole).ok_or(error)?), 0),
        };
        *last = (Arc::downgrade(&chunk), offset + whole);
        Ok(Buffer { offset: chunk.start + offset, chunk, len })
    }
}

/// Whole pages of zeroes that nothing else is in. Their device addresses are those of this process:
/// it is the kernel that knows the device's.
pub struct Buffer {
    chunk: Arc<Chunk>,
    /// Byte of the chunk's memory at which it begins.
    offset: usize,
    len: usize,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:#x}, {} bytes)", self.device_addr(), self.len)
    }
}

impl Buffer {
    #[inline]
    fn slice(&self, offset: usize, len: usize) -> VolatileSlice<'_, ()> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{offset} + {len} is beyond a buffer of {} bytes", self.len);
        let at = self.offset + offset;
        self.chunk.memory.get_slice(at, len).expect("the buffer lies in its chunk")
    }

    #[inline]
    fn atomic<T: AtomicInteger, R>(&self, offset: usize, f: impl FnOnce(&T) -> R) -> R {
        let slice = self.slice(offset, size_of::<T>());
        f(slice.get_atomic_ref(0).expect("typed accesses are aligned"))
    }
}

impl DmaBuffer for Buffer {
    fn device_addr(&self) -> u64 {
        self.chunk.memory.as_ptr() as u64 + self.offset as u64
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
