//! DMA memory: a part of a node's guest memory, from which an allocator hands out blocks.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use tofu_driver::{DmaBuffer, DmaError, FreeList, VolatileBuffer};
use vm_memory::{
    Address, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MmapRegion, VolatileMemory,
    VolatileSlice,
};

/// An allocator over the first region of a node's memory: first fit, address order.
///
/// Clones hand out parts of the same memory.
#[derive(Clone)]
pub struct Arena(Arc<Inner>);

struct Inner {
    /// The memory of the region.
    mapping: Arc<MmapRegion<()>>,
    /// Start of the region.
    base: u64,
    /// Addresses of the region that are free.
    free: Mutex<FreeList>,
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.0.free().total();
        f.debug_struct("Arena").field("base", &self.0.base).field("free", &free).finish()
    }
}

impl Inner {
    fn free(&self) -> MutexGuard<'_, FreeList> {
        tofu_sync::lock(&self.free)
    }
}

impl Arena {
    /// An arena over all of the first region of `memory`; `None` if there is no region.
    pub fn new(memory: GuestMemoryMmap<()>) -> Option<Self> {
        let region = memory.iter().next()?;
        let (base, len) = (region.start_addr().raw_value(), region.len());
        let mut free = FreeList::default();
        free.give(base, len);
        Some(Self(Arc::new(Inner { mapping: region.get_mmap(), base, free: Mutex::new(free) })))
    }

    /// Address for the device of `len` bytes of this process at `addr`; `None` if they are not all
    /// in the region.
    pub fn device_addr(&self, addr: usize, len: usize) -> Option<u64> {
        let mapping = &self.0.mapping;
        let offset = addr.checked_sub(mapping.as_ptr() as usize)?;
        let end = offset.checked_add(len)?;
        (end <= mapping.size()).then_some(self.0.base + offset as u64)
    }

    /// Allocates zeroed memory.
    ///
    /// # Errors
    ///
    /// If no free range is large enough.
    pub fn alloc(&self, size: usize, align: usize) -> Result<Buffer, DmaError> {
        let error = DmaError { size, align };
        // Buffers start at words, so that the typed accesses can be atomic; an empty one takes a
        // byte, so that each has a distinct address.
        let align = align.max(8) as u64;
        let taken = size.max(1) as u64;
        let addr = self.0.free().take(taken, align, 0).ok_or(error)?;
        let (arena, mapping) = (Arc::clone(&self.0), Arc::clone(&self.0.mapping));
        let offset = (addr - arena.base) as usize;
        let buffer = Buffer { arena, mapping, offset, addr, taken, size };
        buffer.fill(0);
        Ok(buffer)
    }
}

/// Memory from an [`Arena`].
pub struct Buffer {
    arena: Arc<Inner>,
    /// The memory of the region, and where the buffer begins in it.
    mapping: Arc<MmapRegion<()>>,
    offset: usize,
    /// Address of the first byte.
    addr: u64,
    taken: u64,
    size: usize,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:#x}, {} bytes)", self.addr(), self.size)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.arena.free().give(self.addr, self.taken);
    }
}

impl VolatileBuffer for Buffer {
    fn addr(&self) -> u64 {
        self.addr
    }

    #[inline]
    fn memory(&self) -> VolatileSlice<'_> {
        self.mapping.get_slice(self.offset, self.size).expect("the buffer lies in the region")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use vm_memory::GuestAddress;

    fn arena(size: usize) -> Arena {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0x1000), size)]).unwrap();
        Arena::new(memory).unwrap()
    }

    #[test]
    fn pieces_are_aligned_zeroed_and_apart() {
        let arena = arena(1 << 16);
        let odd = arena.alloc(3, 1).unwrap();
        let page = arena.alloc(100, 4096).unwrap();
        assert_eq!(odd.device_addr() % 8, 0);
        assert_eq!(page.device_addr() % 4096, 0);
        page.fill(0xff);
        let mut bytes = [1; 3];
        odd.read(0, &mut bytes);
        assert_eq!(bytes, [0; 3]);
        let addr = page.device_addr();
        drop(page);
        let again = arena.alloc(100, 4096).unwrap();
        assert_eq!(again.device_addr(), addr, "the hole is used again");
        assert_eq!(again.load_u64(0, Ordering::Relaxed), 0);
    }

    #[test]
    fn addresses_of_the_process_are_found_inside_only() {
        let arena = arena(4096);
        let piece = arena.alloc(64, 8).unwrap();
        let addr = piece.memory().ptr_guard().as_ptr() as usize;
        let first = addr - (piece.device_addr() - 0x1000) as usize;
        assert_eq!(arena.device_addr(addr, 64), Some(piece.device_addr()));
        assert_eq!(arena.device_addr(first, 4096), Some(0x1000));
        for (addr, len) in [(first, 4097), (first - 1, 8), (first + 4096, 1), (0, usize::MAX)] {
            assert_eq!(arena.device_addr(addr, len), None, "{addr:#x} {len}");
        }
    }

    #[test]
    fn freed_pieces_grow_together() {
        let arena = arena(4096);
        let mut pieces: Vec<_> = (0..8).map(|_| arena.alloc(512, 8).unwrap()).collect();
        assert_eq!(arena.alloc(8, 8).map(drop), Err(DmaError { size: 8, align: 8 }));
        // In an order that needs joining to the left, to the right and to both sides.
        for i in [3, 1, 4, 0, 1, 0, 1, 0] {
            drop(pieces.remove(i));
        }
        assert!(pieces.is_empty());
        arena.alloc(4096, 8).unwrap();
    }

    #[test]
    fn values_are_little_endian() {
        let buffer = arena(4096).alloc(16, 8).unwrap();
        buffer.write(0, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(buffer.load_u64(0, Ordering::Relaxed), 0x0807_0605_0403_0201);
        assert_eq!(buffer.load_u32(4, Ordering::Relaxed), 0x0807_0605);
        buffer.store_u32(8, 0x0a0b_0c0d, Ordering::Relaxed);
        buffer.store_u8(8, 0xee, Ordering::Relaxed);
        assert_eq!(buffer.load_u8(9, Ordering::Relaxed), 0x0c);
        assert_eq!(buffer.load_u64(8, Ordering::Relaxed), 0x0a0b_0cee);
    }

    #[test]
    #[should_panic(expected = "beyond a buffer")]
    fn accesses_beyond_the_end_panic() {
        arena(4096).alloc(16, 8).unwrap().load_u64(16, Ordering::Relaxed);
    }
}
