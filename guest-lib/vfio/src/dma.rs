//! Memory that the device can reach through the IOMMU.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, Weak};

use tofu_abi::table::IPA_BITS;
use tofu_driver::{DmaBuffer, DmaError, VolatileBuffer};
use tofu_process::lock;
use vfio_ioctls::{VfioDevice, VfioError, VfioOps};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use crate::iommu::Info;
use tofu_driver::FreeList;

/// Size and alignment of the memory that small buffers are cut from: a huge page, which the IOMMU
/// maps in one entry.
pub(crate) const CHUNK: usize = 2 << 20;
/// Memory of the process's own shares no granule of this size of the device's addresses.
pub(crate) const GRANULE: usize = 64 << 10;
/// Buffers from this size on get separate memory. Smaller ones share huge pages: an emulated IOMMU
/// takes a message, and some 50 us, for each entry.
const LARGE: usize = CHUNK;

/// The reason why memory cannot be mapped for the device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The range is empty or goes beyond the end of the address space.
    #[error("there is no memory of {len} bytes at {address:#x}")]
    Range {
        /// Address of the memory.
        address: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// There are no device addresses left.
    #[error("no device addresses are left for {0} bytes")]
    NoAddresses(u64),
    /// The system has no memory left.
    #[error("allocating {size} bytes: {source}")]
    Memory {
        /// The requested bytes.
        size: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The memory may not be pinned.
    #[error(
        "{0} bytes cannot be pinned: the limit of locked memory is too low; raise it (ulimit -l) \
         or run as root"
    )]
    Limit(usize),
    /// The container has as many mappings as it may have.
    #[error("too many mappings: the kernel allows 65535 of a device")]
    TooMany,
    /// The memory is not there, or may not be written.
    #[error("the memory at {address:#x} is not mapped, or read-only")]
    Inaccessible {
        /// Address of the memory.
        address: usize,
    },
    /// The kernel refused something else.
    #[error(transparent)]
    Vfio(VfioError),
}

/// A source of device addresses for when those of a process are used up.
pub(crate) trait MoreAddresses: Send + Sync {
    /// Start and length of a range of at least `size` addresses that is not in use.
    fn more(&self, size: u64) -> Option<(u64, u64)>;
}

/// Something that is kept until it is dropped.
pub(crate) type Right = Arc<dyn Any + Send + Sync>;

/// The address space that the IOMMU gives the device, or the part of it that this process has.
pub(crate) struct Space {
    ops: Arc<dyn VfioOps>,
    /// Stays open as long as there are mappings: with its device, a container loses them.
    _device: Option<Arc<VfioDevice>>,
    page: u64,
    free: Mutex<FreeList>,
    more: Option<Arc<dyn MoreAddresses>>,
    /// The right to exclusive use of the device. It is dropped last, because others may then have
    /// the device. It lasts as long as there are buffers, which may outlive their platform.
    _right: Option<Right>,
}

impl Space {
    /// The address space of `device`, which `ops` maps memory for. `right` is the right to have the
    /// device alone.
    pub(crate) fn new(
        ops: Arc<dyn VfioOps>,
        device: Option<Arc<VfioDevice>>,
        info: &Info,
        right: Option<Right>,
    ) -> Self {
        let free = Mutex::new(free_addresses(info));
        Self { ops, _device: device, page: info.page, free, more: None, _right: right }
    }

    /// A part of an address space; `more` provides further parts.
    pub(crate) fn part(ops: Arc<dyn VfioOps>, info: &Info, more: Arc<dyn MoreAddresses>) -> Self {
        Self { more: Some(more), ..Self::new(ops, None, info, None) }
    }

    /// Takes addresses as [`FreeList::take`] does.
    fn take(&self, size: u64, align: u64, phase: u64) -> Option<u64> {
        let taken = lock(&self.free).take(size, align, phase);
        if taken.is_some() {
            return taken;
        }
        // And as much as the alignment may leave out.
        let (start, len) = self.more.as_ref()?.more(size.checked_add(align)?)?;
        let mut free = lock(&self.free);
        free.give(start, len);
        free.take(size, align, phase)
    }

    /// Maps whole pages for the device, at an address that is `phase` more than a multiple of
    /// `align`. Nothing else is mapped in the blocks of `apart` bytes, a power of two, that hold
    /// them.
    ///
    /// # Safety
    ///
    /// `memory` to `memory + len` stays mapped in this process until the mapping is gone, and there
    /// are no Rust references to it.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn map(
        self: &Arc<Self>,
        memory: *mut u8,
        len: usize,
        align: u64,
        phase: u64,
        apart: u64,
    ) -> Result<Mapping, MapError> {
        let size = len as u64;
        let too_many = MapError::NoAddresses(size);
        // The range before the first page and behind the last one stays empty.
        let front = phase & (apart - 1);
        let Some(whole) = (size + front).checked_next_multiple_of(apart) else {
            return Err(too_many);
        };
        let taken = self.take(whole, align.max(self.page), phase - front).ok_or(too_many)?;
        let addr = taken + front;
        // SAFETY: as promised to this function.
        let mapped = unsafe { self.ops.vfio_dma_map(addr, len, memory) };
        if let Err(error) = mapped {
            lock(&self.free).give(taken, whole);
            return Err(map_error(error, memory as usize, len));
        }
        Ok(Mapping { space: Arc::clone(self), taken: (taken, whole), addr, len, active: true })
    }
}

/// The addresses that the device may be given: those that the IOMMU has, without the first page,
/// so that 0 is never an address, and not beyond what the device's tables hold.
fn free_addresses(info: &Info) -> FreeList {
    let mut free = FreeList::default();
    for &(first, last) in &info.ranges {
        let first = first.max(info.page).next_multiple_of(info.page);
        let end = last.min((1 << IPA_BITS) - 1) + 1;
        let end = end & !(info.page - 1);
        if first < end {
            free.give(first, end - first);
        }
    }
    free
}

fn map_error(error: VfioError, address: usize, len: usize) -> MapError {
    const EFAULT: i32 = 14;
    const ENOMEM: i32 = 12;
    const ENOSPC: i32 = 28;
    const EPERM: i32 = 1;
    let errno = match &error {
        VfioError::IommuDmaMap(errno) => errno.errno(),
        _ => return MapError::Vfio(error),
    };
    match errno {
        ENOMEM => MapError::Limit(len),
        ENOSPC => MapError::TooMany,
        EFAULT | EPERM => MapError::Inaccessible { address },
        _ => MapError::Vfio(error),
    }
}

/// A range of device addresses that is mapped to memory until this is dropped.
pub(crate) struct Mapping {
    space: Arc<Space>,
    /// All addresses that it reserves: start and length.
    taken: (u64, u64),
    addr: u64,
    len: usize,
    active: bool,
}

impl Mapping {
    /// Its device address.
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    /// Takes the memory from the device; false if the kernel does not do it.
    pub(crate) fn unmap(&mut self) -> bool {
        if self.active {
            if let Err(error) = self.space.ops.vfio_dma_unmap(self.addr, self.len) {
                log::error!("unmapping {:#x} from the device: {error}", self.addr);
                return false;
            }
            self.active = false;
            lock(&self.space.free).give(self.taken.0, self.taken.1);
        }
        true
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.unmap();
    }
}

/// Memory of this process that the device can reach, and what is free of it.
pub(crate) struct Chunk {
    memory: ManuallyDrop<MmapRegion<()>>,
    /// Start of the mapped part in `memory`.
    start: usize,
    mapping: Mapping,
    free: Mutex<FreeList>,
}

impl Chunk {
    /// Zeroed memory of at least `size` bytes, at a device address that is a multiple of `align`.
    fn new(space: &Arc<Space>, size: usize, align: u64) -> Result<Self, MapError> {
        let no_memory = |source| MapError::Memory { size, source };
        let too_large = || no_memory(io::ErrorKind::OutOfMemory.into());
        let unit = if size >= CHUNK { CHUNK } else { space.page as usize };
        let len = size.max(1).checked_next_multiple_of(unit).ok_or_else(too_large)?;
        // Aligned to huge pages here and there, the kernel uses them here and there.
        let padded = len.checked_add(unit).ok_or_else(too_large)?;
        let memory = MmapRegion::new(padded).map_err(|error| no_memory(io::Error::other(error)))?;
        let start = (memory.as_ptr() as usize).next_multiple_of(unit) - memory.as_ptr() as usize;
        advise_huge(&memory, start, len);
        // SAFETY: the pages belong to the region, which outlives the mapping (see `drop`), and are
        // accessed only by volatile slices.
        #[allow(unsafe_code)]
        let mapping = unsafe {
            space.map(memory.as_ptr().wrapping_add(start), len, align.max(unit as u64), 0, 1)?
        };
        let mut free = FreeList::default();
        free.give(mapping.addr, len as u64);
        Ok(Self { memory: ManuallyDrop::new(memory), start, mapping, free: Mutex::new(free) })
    }
}

impl Chunk {
    /// All `len` bytes of a file that cannot shrink, in whole pages.
    pub(crate) fn of_file(pool: &Pool, file: File, len: usize) -> Result<Self, MapError> {
        let no_memory = |source| MapError::Memory { size: len, source };
        let memory = MmapRegion::from_file(FileOffset::new(file, 0), len)
            .map_err(|error| no_memory(io::Error::other(error)))?;
        // SAFETY: the pages belong to the region, which outlives the mapping (see `drop`), and are
        // accessed only by volatile slices.
        #[allow(unsafe_code)]
        let mapping = unsafe { pool.space.map(memory.as_ptr(), len, 1, 0, 1)? };
        let memory = ManuallyDrop::new(memory);
        Ok(Self { memory, start: 0, mapping, free: Mutex::default() })
    }

    /// The `len` bytes from `offset` on. They are not given out again.
    pub(crate) fn part(self: &Arc<Self>, offset: usize, len: usize) -> Buffer {
        let addr = self.mapping.addr + offset as u64;
        Buffer { chunk: Arc::clone(self), addr, taken: 0, len }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // Memory that the device might still reach must never be reused.
        if self.mapping.unmap() {
            // SAFETY: not used after this; a chunk is dropped once.
            #[allow(unsafe_code)]
            unsafe {
                ManuallyDrop::drop(&mut self.memory);
            }
        }
    }
}

/// Asks the kernel for huge pages; it may have none.
fn advise_huge(memory: &MmapRegion<()>, start: usize, len: usize) {
    use rustix::mm::{Advice, madvise};
    if len < CHUNK {
        return;
    }
    // SAFETY: inside of the region, whose contents this does not change.
    #[allow(unsafe_code)]
    let advised =
        unsafe { madvise(memory.as_ptr().wrapping_add(start).cast(), len, Advice::LinuxHugepage) };
    if let Err(error) = advised {
        log::debug!("no huge pages: {error}");
    }
}

/// Hands out memory for the device.
pub(crate) struct Pool {
    space: Arc<Space>,
    chunks: Mutex<Chunks>,
    users: Mutex<BTreeMap<usize, Weak<UserRange>>>,
}

#[derive(Default)]
struct Chunks {
    /// The chunk that was used last, kept even if nothing of it is in use.
    current: Option<Arc<Chunk>>,
    /// Others that have buffers.
    others: Vec<Weak<Chunk>>,
}

impl Pool {
    pub(crate) fn new(space: Space) -> Self {
        Self { space: Arc::new(space), chunks: Mutex::default(), users: Mutex::default() }
    }

    /// See [`tofu_driver::Platform::alloc_dma`].
    pub(crate) fn alloc(&self, size: usize, align: usize) -> Result<Buffer, DmaError> {
        self.try_alloc(size, align).map_err(|error| {
            log::warn!("{error}");
            DmaError { size, align }
        })
    }

    fn try_alloc(&self, size: usize, align: usize) -> Result<Buffer, MapError> {
        // Words can be accessed atomically then, and each buffer has a distinct address.
        let (taken, align) = (size.max(1) as u64, align.max(8) as u64);
        if size >= LARGE || align > CHUNK as u64 {
            let chunk = Arc::new(Chunk::new(&self.space, size, align)?);
            let offset = lock(&chunk.free).take(taken, align, 0);
            let addr = offset.ok_or(MapError::NoAddresses(taken))?;
            return Ok(Buffer { chunk, addr, taken, len: size });
        }
        let mut chunks = lock(&self.chunks);
        chunks.others.retain(|chunk| chunk.strong_count() > 0);
        let known = chunks.current.iter().cloned();
        let known = known.chain(chunks.others.iter().filter_map(Weak::upgrade));
        let fitting = known.into_iter().find_map(|chunk| {
            let addr = lock(&chunk.free).take(taken, align, 0)?;
            Some(Buffer { chunk, addr, taken, len: size })
        });
        if let Some(buffer) = fitting {
            // It may hold what an earlier buffer left there.
            buffer.fill(0);
            return Ok(buffer);
        }
        let chunk = Arc::new(Chunk::new(&self.space, CHUNK, 1)?);
        let addr = lock(&chunk.free).take(taken, align, 0);
        let addr = addr.ok_or(MapError::NoAddresses(taken))?;
        if let Some(old) = chunks.current.replace(Arc::clone(&chunk)) {
            chunks.others.push(Arc::downgrade(&old));
        }
        Ok(Buffer { chunk, addr, taken, len: size })
    }

    /// See [`crate::VfioPlatform::map_user`].
    ///
    /// # Safety
    ///
    /// As there.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn map_user(
        &self,
        memory: *mut u8,
        len: usize,
    ) -> Result<UserMemory, MapError> {
        let address = memory as usize;
        let page = self.space.page as usize;
        let range = MapError::Range { address, len };
        let end = address.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
        let Some(end) = end.filter(|_| len > 0 && address > 0) else {
            return Err(range);
        };
        let start = address & !(page - 1);
        let mut users = lock(&self.users);
        let known = users.range(..=start).next_back().and_then(|(_, weak)| weak.upgrade());
        let range = match known.filter(|range| end <= range.start + range.mapping.len) {
            Some(range) => range,
            None => {
                users.retain(|_, weak| weak.strong_count() > 0);
                // In step with huge pages, should the memory have some.
                let step = if end - start >= CHUNK { CHUNK } else { page.max(GRANULE) };
                let phase = (start & (step - 1)) as u64;
                let size = end - start;
                // SAFETY: as promised to this function, for the pages that hold the memory.
                let mapping = unsafe {
                    self.space.map(
                        memory.wrapping_sub(address - start),
                        size,
                        step as u64,
                        phase,
                        GRANULE as u64,
                    )?
                };
                let range = Arc::new(UserRange { start, mapping });
                users.insert(start, Arc::downgrade(&range));
                range
            }
        };
        let addr = range.mapping.addr + (address - range.start) as u64;
        let isolated = range.start == start;
        Ok(UserMemory { _range: range, addr, len, isolated })
    }

    /// The address space that memory is mapped in.
    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Takes addresses that nothing is mapped at.
    pub(crate) fn take_addresses(&self, len: u64, align: u64) -> Option<u64> {
        lock(&self.space.free).take(len, align.max(self.space.page), 0)
    }

    /// Gives them back.
    pub(crate) fn give_addresses(&self, start: u64, len: u64) {
        lock(&self.space.free).give(start, len);
    }

    /// Bytes of address space that are left for mappings.
    pub(crate) fn free_addresses(&self) -> u64 {
        lock(&self.space.free).total()
    }
}

/// Whole pages of the process's own memory that the device can reach.
struct UserRange {
    start: usize,
    mapping: Mapping,
}

/// Memory of the process that was mapped for the device by
/// [`VfioPlatform::map_user`](crate::VfioPlatform::map_user). Clones share the mapping; it ends
/// with the last of them.
#[derive(Clone)]
pub struct UserMemory {
    _range: Arc<UserRange>,
    addr: u64,
    len: usize,
    isolated: bool,
}

impl UserMemory {
    /// The device address of the first byte.
    pub fn device_addr(&self) -> u64 {
        self.addr
    }

    /// True if, in the 64 KiB granule of device addresses that holds the first byte, only memory of
    /// the same page precedes it. The address equals that in the process, modulo 64 KiB.
    pub fn is_isolated(&self) -> bool {
        self.isolated
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for UserMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserMemory({:#x}, {} bytes)", self.addr, self.len)
    }
}

/// Memory that the device can reach.
pub struct Buffer {
    chunk: Arc<Chunk>,
    addr: u64,
    taken: u64,
    len: usize,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:#x}, {} bytes)", self.addr, self.len)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        lock(&self.chunk.free).give(self.addr, self.taken);
    }
}

impl VolatileBuffer for Buffer {
    fn addr(&self) -> u64 {
        self.addr
    }

    #[inline]
    fn memory(&self) -> VolatileSlice<'_> {
        let at = (self.addr - self.chunk.mapping.addr) as usize + self.chunk.start;
        self.chunk.memory.get_slice(at, self.len).expect("the buffer lies in its chunk")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU8, Ordering};

    /// Remembers mappings: device address to length and process address.
    #[derive(Default)]
    struct Fake {
        mapped: Mutex<BTreeMap<u64, (usize, usize)>>,
        refuse_unmap: bool,
    }

    #[allow(unsafe_code)]
    impl VfioOps for Fake {
        unsafe fn vfio_dma_map(
            &self,
            iova: u64,
            size: usize,
            user_addr: *mut u8,
        ) -> Result<(), VfioError> {
            lock(&self.mapped).insert(iova, (size, user_addr as usize));
            Ok(())
        }

        fn vfio_dma_unmap(&self, iova: u64, size: usize) -> Result<(), VfioError> {
            if self.refuse_unmap {
                return Err(VfioError::InvalidDmaUnmapSize);
            }
            let (mapped, _) = lock(&self.mapped).remove(&iova).expect("was mapped");
            assert_eq!(mapped, size);
            Ok(())
        }
    }

    fn pool_of(fake: Fake) -> (Pool, Arc<Fake>) {
        let fake = Arc::new(fake);
        let info = Info { page: 4096, ranges: vec![(0, 0xfedf_ffff), (0xfef0_0000, u64::MAX)] };
        let ops: Arc<dyn VfioOps> = Arc::clone(&fake) as _;
        (Pool::new(Space::new(ops, None, &info, None)), fake)
    }

    fn pool() -> (Pool, Arc<Fake>) {
        pool_of(Fake::default())
    }

    #[test]
    fn small_buffers_share_a_mapping() {
        let (pool, fake) = pool();
        let before = pool.free_addresses();
        let buffers: Vec<_> = (1..100).map(|size| pool.alloc(size * 16, 256).unwrap()).collect();
        assert_eq!(lock(&fake.mapped).len(), 1);
        let mut ends: Vec<_> =
            buffers.iter().map(|b| (b.device_addr(), b.device_addr() + b.len() as u64)).collect();
        ends.sort_unstable();
        assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0), "they overlap");
        assert!(ends.iter().all(|(addr, _)| addr % 256 == 0));
        drop(buffers);
        drop(pool.alloc(8, 8).unwrap());
        assert_eq!(lock(&fake.mapped).len(), 1, "kept for the next one");
        assert_eq!(pool.free_addresses(), before - CHUNK as u64);
        drop(pool);
        assert_eq!(lock(&fake.mapped).len(), 0);
    }

    #[test]
    fn memory_is_zeroed_again() {
        let (pool, _fake) = pool();
        let first = pool.alloc(10_000, 64).unwrap();
        first.fill(0xaa);
        let addr = first.device_addr();
        drop(first);
        let again = pool.alloc(10_000, 64).unwrap();
        assert_eq!(again.device_addr(), addr);
        let mut bytes = vec![1; 10_000];
        again.read(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn large_buffers_come_and_go_alone() {
        let (pool, fake) = pool();
        let before = pool.free_addresses();
        let buffer = pool.alloc(100 << 20, 4096).unwrap();
        assert_eq!(buffer.device_addr() % CHUNK as u64, 0, "huge pages can be used");
        {
            let mapped = lock(&fake.mapped);
            let (len, memory) = mapped[&buffer.device_addr()];
            assert_eq!((len, memory % CHUNK), (100 << 20, 0));
        }
        // Both ends are there.
        buffer.store_u64((100 << 20) - 8, 7, Ordering::Relaxed);
        assert_eq!(buffer.load_u64((100 << 20) - 8, Ordering::Relaxed), 7);
        drop(buffer);
        assert_eq!(lock(&fake.mapped).len(), 0);
        assert_eq!(pool.free_addresses(), before);
        let aligned = pool.alloc(64, 1 << 30).unwrap();
        assert_eq!(aligned.device_addr() % (1 << 30), 0);
    }

    #[test]
    fn unavailable_memory_is_an_error() {
        let (pool, fake) = pool();
        let error = DmaError { size: 1 << 45, align: 8 };
        assert_eq!(pool.alloc(1 << 45, 8).map(drop), Err(error));
        assert!(pool.alloc(usize::MAX, 8).is_err());
        assert_eq!(lock(&fake.mapped).len(), 0);
    }

    #[test]
    fn chunks_without_buffers_go_back() {
        let (pool, fake) = pool();
        let buffers: Vec<_> = (0..40).map(|_| pool.alloc(400 << 10, 4096).unwrap()).collect();
        assert_eq!(lock(&fake.mapped).len(), 8, "five to a chunk");
        drop(buffers);
        assert_eq!(lock(&fake.mapped).len(), 1);
    }

    #[test]
    fn memory_kept_by_the_device_is_not_reused() {
        let (pool, fake) = pool_of(Fake { refuse_unmap: true, ..Fake::default() });
        let buffer = pool.alloc(CHUNK, 8).unwrap();
        let addr = buffer.device_addr();
        drop(buffer);
        assert!(lock(&fake.mapped).contains_key(&addr));
        assert_ne!(pool.alloc(CHUNK, 8).unwrap().device_addr(), addr, "the address stays taken");
    }

    #[test]
    fn addresses_avoid_holes_and_fit_tables() {
        let info = Info { page: 4096, ranges: vec![(0, 0x1_0fff), (0x3_0800, u64::MAX)] };
        let mut free = free_addresses(&info);
        assert_eq!(free.take(0x1_0000, 4096, 0), Some(0x1000));
        assert_eq!(free.take(4096, 4096, 0), Some(0x3_1000));
        assert_eq!(free.total(), (1 << IPA_BITS) - 0x3_2000);
    }

    #[allow(unsafe_code)]
    fn map(pool: &Pool, bytes: &[AtomicU8]) -> UserMemory {
        // SAFETY: the fake never accesses it.
        unsafe { pool.map_user(bytes.as_ptr() as *mut u8, bytes.len()).unwrap() }
    }

    #[test]
    fn user_memory_is_shared_by_pages() {
        let (pool, fake) = pool();
        let memory: Vec<AtomicU8> = (0..100_000).map(|_| AtomicU8::new(0)).collect();
        let at = |i: usize| memory[i..].as_ptr() as u64;
        let all = map(&pool, &memory);
        assert_eq!(all.device_addr() % 4096, at(0) % 4096);
        assert_eq!((all.len(), all.is_empty()), (100_000, false));
        let part = map(&pool, &memory[5_000..6_000]);
        assert_eq!(part.device_addr(), all.device_addr() + 5_000);
        assert_eq!(lock(&fake.mapped).len(), 1, "the same mapping");
        let again = part.clone();
        drop((all, part));
        assert_eq!(lock(&fake.mapped).len(), 1);
        drop(again);
        assert_eq!(lock(&fake.mapped).len(), 0);
        // Another one that only overlaps is a separate mapping.
        let first = map(&pool, &memory[..50_000]);
        let second = map(&pool, &memory[40_000..]);
        assert_eq!(lock(&fake.mapped).len(), 2);
        assert_eq!(second.device_addr() % 4096, at(40_000) % 4096);
        drop((first, second));
        assert_eq!(lock(&fake.mapped).len(), 0);
    }

    #[test]
    fn user_memory_exposes_only_its_page() {
        const STEP: u64 = GRANULE as u64;
        let (pool, _fake) = pool();
        let memory: Vec<AtomicU8> = (0..400_000).map(|_| AtomicU8::new(0)).collect();
        let before = pool.free_addresses();
        // They have many sizes, and none is in the pages of another.
        let mappings: Vec<_> = (0..20)
            .map(|i| {
                let part = &memory[i * 20_000..][..100 + i * 700];
                (part.as_ptr() as u64, map(&pool, part))
            })
            .collect();
        let buffer = pool.alloc(LARGE, 8).unwrap();
        for (address, mapping) in &mappings {
            assert!(mapping.is_isolated());
            assert_eq!(mapping.device_addr() % STEP, address % STEP);
            let end = |l: &UserMemory| l.device_addr() + l.len() as u64;
            for (_, other) in &mappings {
                let apart = mapping.device_addr() / STEP > (end(other) - 1) / STEP
                    || other.device_addr() / STEP > (end(mapping) - 1) / STEP;
                assert!(apart || other.device_addr() == mapping.device_addr());
            }
            assert_ne!(buffer.device_addr() / STEP, mapping.device_addr() / STEP);
        }
        drop((mappings, buffer));
        // A part of another mapping has that in front of it.
        let all = map(&pool, &memory[100_000..200_000]);
        let part = map(&pool, &memory[150_000..160_000]);
        assert_eq!((all.is_isolated(), part.is_isolated()), (true, false));
        drop((all, part));
        assert_eq!(pool.free_addresses(), before);
    }

    #[test]
    fn exhausted_part_grows() {
        struct More(Mutex<Vec<u64>>);
        impl MoreAddresses for More {
            fn more(&self, size: u64) -> Option<(u64, u64)> {
                let mut asked = lock(&self.0);
                asked.push(size);
                (asked.len() < 3).then(|| ((asked.len() as u64) << 32, size))
            }
        }
        let more = Arc::new(More(Mutex::default()));
        let info = Info { page: 4096, ranges: vec![(1 << 30, (1 << 30) + (4 << 20) - 1)] };
        let fake = Arc::new(Fake::default());
        let pool = Pool::new(Space::part(fake, &info, Arc::clone(&more) as _));
        let size = 3 << 20;
        let first = pool.alloc(size, 8).unwrap();
        assert_eq!((first.device_addr(), lock(&more.0).len()), (1 << 30, 0));
        let buffers: Vec<_> = (0..2).map(|_| pool.alloc(size, 8).unwrap()).collect();
        let addresses: Vec<_> = buffers.iter().map(Buffer::device_addr).collect();
        assert_eq!(addresses, [1 << 32, 2 << 32]);
        assert!(lock(&more.0).iter().all(|asked| *asked >= size as u64));
        assert!(pool.alloc(size, 8).is_err(), "there are no more");
    }

    #[test]
    #[allow(unsafe_code)]
    fn user_memory_that_is_none_is_refused() {
        let (pool, _fake) = pool();
        let memory = 0x1000 as *mut u8;
        // SAFETY: refused before anything is accessed.
        unsafe {
            assert!(matches!(pool.map_user(memory, 0), Err(MapError::Range { .. })));
            assert!(matches!(pool.map_user(memory, usize::MAX), Err(MapError::Range { .. })));
            let null = std::ptr::null_mut();
            assert!(matches!(pool.map_user(null, 8), Err(MapError::Range { .. })));
        }
    }
}
