//! Guest memory, as the device accesses it by DMA.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use smallvec::SmallVec;
use thiserror::Error;
use vm_memory::{
    AtomicInteger, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap, MemoryRegionAddress, MmapRegion, VolatileMemory, VolatileSlice,
};

/// Ordering of a load of a word: everything that was written before its store is visible.
const LOAD: Ordering = Ordering::Acquire;
/// Ordering of a store of a word: after everything that was written before.
const STORE: Ordering = Ordering::Release;

/// An address range is not memory, or not aligned as the access requires.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("no memory at {addr:#x}, length {len:#x}")]
pub struct DmaError {
    /// Start of the range.
    pub addr: u64,
    /// Length of the range in bytes.
    pub len: usize,
}

/// The kind of an access. An IOMMU may map an address for one kind and not for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A read and a write in one, as by an atomic operation.
    Update,
}

impl Access {
    /// Returns true if the access reads the memory.
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Update)
    }

    /// Returns true if the access changes the memory.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Update)
    }
}

/// The result of an access.
pub type DmaResult<T = ()> = Result<T, DmaError>;

/// A function that is called with each slice of an address range.
pub type Visit<'a> = dyn FnMut(VolatileSlice<'_>) + 'a;

/// A part of a device's memory that is contiguous in this process and stays where it is: see
/// [`DmaMemory::mappings`].
#[derive(Clone, Debug)]
pub struct Mapped {
    mapping: Arc<MmapRegion<()>>,
    /// The address that the device uses for the first byte of the mapping.
    start: u64,
}

impl Mapped {
    /// A range as one slice; `None` if any of it is not in this mapping.
    #[inline(always)]
    pub fn slice(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        // On hosts with fewer address bits an offset that is cut off is not in the mapping either.
        let offset = usize::try_from(addr.wrapping_sub(self.start)).ok()?;
        self.mapping.get_slice(offset, len).ok()
    }
}

/// Memory that a device can reach by DMA, at the addresses that it uses.
///
/// An address that is mapped, but not for the requested kind of access, counts as no memory.
pub trait DmaMemory: Send + Sync {
    /// Returns true if the whole range is memory that the device may access in this way.
    fn contains(&self, addr: u64, len: usize, access: Access) -> bool;

    /// Calls `f` with the slices of the range, in order. `f` must not do more with them than
    /// `access` says. For [`Access::Write`] it must write all of them: for memory that is not in
    /// this process the slices are a copy.
    ///
    /// # Errors
    ///
    /// If any part of the range is not memory. Then `f` is not called at all, unless this is
    /// noticed only when a copy is made or written back.
    fn access(&self, addr: u64, len: usize, access: Access, f: &mut Visit<'_>) -> DmaResult;

    /// Bytes that are mapped for the device, if a driver can map and unmap them.
    fn mapped_bytes(&self) -> Option<u64> {
        None
    }

    /// The range as one slice, if its memory is contiguous in this process and stays where it is
    /// for as long as `self` is borrowed. A caller that gets `None` uses [`DmaMemory::access`].
    #[inline(always)]
    fn slice(&self, _addr: u64, _len: usize) -> Option<VolatileSlice<'_>> {
        None
    }

    /// Mappings of this process in which the device may make accesses of every kind for as long as
    /// it exists, so that it can keep them. The memory may have other parts.
    fn mappings(&self) -> Vec<Mapped> {
        Vec::new()
    }

    /// Reads `buf.len()` bytes.
    ///
    /// # Errors
    ///
    /// If any part of the range is not memory.
    fn read(&self, addr: u64, buf: &mut [u8]) -> DmaResult {
        let mut at = 0;
        self.access(addr, buf.len(), Access::Read, &mut |slice| {
            let end = at + slice.len();
            slice.copy_to(&mut buf[at..end]);
            at = end;
        })
    }

    /// Writes `buf`.
    ///
    /// # Errors
    ///
    /// If any part of the range is not memory.
    fn write(&self, addr: u64, buf: &[u8]) -> DmaResult {
        let mut at = 0;
        self.access(addr, buf.len(), Access::Write, &mut |slice| {
            let end = at + slice.len();
            slice.copy_from(&buf[at..end]);
            at = end;
        })
    }

    /// Writes the contents of `source`.
    ///
    /// # Errors
    ///
    /// If any part of the range is not memory.
    fn write_from(&self, addr: u64, source: VolatileSlice<'_>) -> DmaResult {
        let mut done = 0;
        self.access(addr, source.len(), Access::Write, &mut |slice| {
            let n = slice.len();
            if let Ok(part) = source.subslice(done, n) {
                part.copy_to_volatile_slice(slice);
            }
            done += n;
        })
    }

    /// Calls `f` with the aligned 64-bit word at `addr`.
    ///
    /// # Errors
    ///
    /// If `addr` is not memory or not a multiple of 8.
    fn word(&self, addr: u64, access: Access, f: &mut dyn FnMut(&AtomicU64)) -> DmaResult {
        with_atomic(self, addr, access, f)
    }

    /// Calls `f` with the aligned 32-bit word at `addr`.
    ///
    /// # Errors
    ///
    /// If `addr` is not memory or not a multiple of 4.
    fn half_word(&self, addr: u64, access: Access, f: &mut dyn FnMut(&AtomicU32)) -> DmaResult {
        with_atomic(self, addr, access, f)
    }

    /// Loads a 64-bit word. Everything that was written before its store is visible.
    ///
    /// # Errors
    ///
    /// As [`DmaMemory::word`].
    #[inline(always)]
    fn load(&self, addr: u64) -> DmaResult<u64> {
        match self.slice(addr, 8).and_then(|slice| load_in(&slice)) {
            Some(value) => Ok(value),
            None => load_any(self, addr),
        }
    }

    /// Loads four words, the first of them before the others. Everything that was written before
    /// its store is visible in them.
    ///
    /// # Errors
    ///
    /// If the 32 bytes are not memory or not aligned to 32.
    #[inline(always)]
    fn load_entry(&self, addr: u64) -> DmaResult<[u64; 4]> {
        let aligned = addr.is_multiple_of(32);
        match self.slice(addr, 32).filter(|_| aligned).and_then(|slice| load_entry_in(&slice)) {
            Some(entry) => Ok(entry),
            None => load_any_entry(self, addr),
        }
    }

    /// Stores four words, the first of them after the others, and all after everything that was
    /// written before.
    ///
    /// # Errors
    ///
    /// If the 32 bytes are not memory or not aligned to 32.
    #[inline(always)]
    fn store_entry(&self, addr: u64, entry: [u64; 4]) -> DmaResult {
        let slice = self.slice(addr, 32).filter(|_| addr.is_multiple_of(32));
        match slice.and_then(|slice| store_entry_in(&slice, entry)) {
            Some(()) => Ok(()),
            None => store_any_entry(self, addr, entry),
        }
    }

    /// Calls `f` with the four words of an aligned 32-byte entry.
    ///
    /// # Errors
    ///
    /// If the 32 bytes are not memory or not aligned to 32.
    fn entry(&self, addr: u64, access: Access, f: &mut dyn FnMut([&AtomicU64; 4])) -> DmaResult {
        let error = DmaError { addr, len: 32 };
        if !addr.is_multiple_of(32) {
            return Err(error);
        }
        let mut found = false;
        self.access(addr, 32, access, &mut |slice| {
            found = with_words(&slice, &mut *f).is_some();
        })?;
        if found { Ok(()) } else { Err(error) }
    }

    /// Stores a 64-bit word after everything that was written before.
    ///
    /// # Errors
    ///
    /// As [`DmaMemory::word`].
    #[inline(always)]
    fn store(&self, addr: u64, value: u64) -> DmaResult {
        match self.slice(addr, 8).and_then(|slice| store_in(&slice, value)) {
            Some(()) => Ok(()),
            None => store_any(self, addr, value),
        }
    }
}

// What the methods of these names do in memory that has no slices.

#[cold]
fn load_any(memory: &(impl DmaMemory + ?Sized), addr: u64) -> DmaResult<u64> {
    let mut value = 0;
    memory.word(addr, Access::Read, &mut |word| value = word.load(LOAD))?;
    Ok(u64::from_le(value))
}

#[cold]
fn store_any(memory: &(impl DmaMemory + ?Sized), addr: u64, value: u64) -> DmaResult {
    memory.word(addr, Access::Write, &mut |word| word.store(value.to_le(), STORE))
}

#[cold]
fn load_any_entry(memory: &(impl DmaMemory + ?Sized), addr: u64) -> DmaResult<[u64; 4]> {
    let mut entry = [0; 4];
    memory.entry(addr, Access::Read, &mut |words| entry = loaded(words))?;
    Ok(entry)
}

#[cold]
fn store_any_entry(memory: &(impl DmaMemory + ?Sized), addr: u64, entry: [u64; 4]) -> DmaResult {
    memory.entry(addr, Access::Write, &mut |words| stored(words, entry))
}

/// Calls `f` with the four words of a slice that is an aligned entry.
#[inline(always)]
fn with_words<R>(slice: &VolatileSlice<'_>, f: impl FnOnce([&AtomicU64; 4]) -> R) -> Option<R> {
    let word = |i: usize| slice.get_atomic_ref::<AtomicU64>(8 * i).ok();
    Some(f([word(0)?, word(1)?, word(2)?, word(3)?]))
}

#[inline(always)]
fn load_in(slice: &VolatileSlice<'_>) -> Option<u64> {
    let word = slice.get_atomic_ref::<AtomicU64>(0).ok()?;
    Some(u64::from_le(word.load(LOAD)))
}

#[inline(always)]
fn store_in(slice: &VolatileSlice<'_>, value: u64) -> Option<()> {
    slice.get_atomic_ref::<AtomicU64>(0).ok()?.store(value.to_le(), STORE);
    Some(())
}

#[inline(always)]
fn load_entry_in(slice: &VolatileSlice<'_>) -> Option<[u64; 4]> {
    with_words(slice, loaded)
}

#[inline(always)]
fn store_entry_in(slice: &VolatileSlice<'_>, entry: [u64; 4]) -> Option<()> {
    with_words(slice, |words| stored(words, entry))
}

#[inline(always)]
fn loaded(words: [&AtomicU64; 4]) -> [u64; 4] {
    load_words(|i, order| u64::from_le(words[i].load(order)))
}

#[inline(always)]
fn stored(words: [&AtomicU64; 4], entry: [u64; 4]) {
    store_words(entry, |i, value, order| words[i].store(value.to_le(), order));
}

/// Loads the four words of an entry, the first of them before the others.
#[inline]
fn load_words(mut load: impl FnMut(usize, Ordering) -> u64) -> [u64; 4] {
    // A closure for `map` of an array is not inlined.
    [load(0, LOAD), load(1, LOAD), load(2, LOAD), load(3, LOAD)]
}

/// Stores the four words of an entry, the first of them after the others.
#[inline]
fn store_words(entry: [u64; 4], mut store: impl FnMut(usize, u64, Ordering)) {
    for (i, value) in entry.into_iter().enumerate().rev() {
        store(i, value, STORE);
    }
}

#[inline]
fn with_atomic<T: AtomicInteger>(
    memory: &(impl DmaMemory + ?Sized),
    addr: u64,
    access: Access,
    f: &mut dyn FnMut(&T),
) -> DmaResult {
    let len = size_of::<T>();
    let mut found = false;
    memory.access(addr, len, access, &mut |slice| {
        if let Ok(word) = slice.get_atomic_ref::<T>(0) {
            found = true;
            f(word);
        }
    })?;
    if found { Ok(()) } else { Err(DmaError { addr, len }) }
}

impl DmaMemory for GuestMemoryMmap<()> {
    fn contains(&self, addr: u64, len: usize, _: Access) -> bool {
        let within = |region: &GuestRegionMmap<()>| {
            let start = addr.wrapping_sub(region.start_addr().0);
            start < region.len() && len as u64 <= region.len() - start
        };
        self.iter().any(within) || self.check_range(GuestAddress(addr), len)
    }

    #[inline(always)]
    fn slice(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        // There are few regions, so this is faster than a binary search.
        for region in self.iter() {
            let start = addr.wrapping_sub(region.start_addr().0);
            if start < region.len() {
                return region.get_slice(MemoryRegionAddress(start), len).ok();
            }
        }
        None
    }

    fn mappings(&self) -> Vec<Mapped> {
        let mapped = |region: &GuestRegionMmap<()>| Mapped {
            mapping: region.get_mmap(),
            start: region.start_addr().0,
        };
        self.iter().map(mapped).collect()
    }

    #[inline]
    fn access(&self, addr: u64, len: usize, _: Access, f: &mut Visit<'_>) -> DmaResult {
        match self.slice(addr, len) {
            Some(slice) => {
                f(slice);
                Ok(())
            }
            None => access_regions(self, addr, len, f),
        }
    }
}

/// [`DmaMemory::access`] of a range that covers several regions, or whose end is not memory.
#[cold]
fn access_regions(
    memory: &GuestMemoryMmap<()>,
    addr: u64,
    len: usize,
    f: &mut Visit<'_>,
) -> DmaResult {
    let error = DmaError { addr, len };
    if !memory.check_range(GuestAddress(addr), len) {
        return Err(error);
    }
    let slices: SmallVec<[VolatileSlice<'_>; 4]> =
        memory.get_slices(GuestAddress(addr), len).collect::<Result<_, _>>().map_err(|_| error)?;
    for slice in slices {
        f(slice);
    }
    Ok(())
}

#[cfg(all(test, loom))]
mod loom_tests;
