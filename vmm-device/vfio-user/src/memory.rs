//! A client's memory, as the device reaches it by DMA.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};
use std::thread;
use std::time::Duration;

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;
use smallvec::SmallVec;
use tofu_icc::{DmaError, DmaMemory};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use crate::wire::PAGE_SIZE;

/// `f_type` of a file system of huge pages, see statfs(2).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// What a client's memory may be made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Memory files of ordinary pages that are sealed against shrinking, or can be and then are.
    /// QEMU's `memory-backend-memfd` is of this kind unless it is told otherwise.
    #[default]
    Sealed,
    /// Any file that can be mapped. A client that shrinks its file, or promises huge pages that
    /// the host does not have, ends this process. Cloud Hypervisor, whose memory cannot be
    /// sealed, needs this.
    Any,
}

/// How much a client may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Ranges of addresses. A vIOMMU maps page by page.
    pub ranges: usize,
    /// Files that are mapped at the same time.
    pub files: usize,
    /// Sum of the sizes of mapped files, in bytes. Files are mapped as a whole.
    pub bytes: u64,
}

impl Limits {
    /// As many ranges as Linux allows a VFIO container by default, 256 files, 1 TiB.
    pub const DEFAULT: Self = Self { ranges: 65_535, files: 256, bytes: 1 << 40 };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The memory of whatever client is connected; none while there is no client.
///
/// What the client has mapped for both reading and writing, with a descriptor, is memory; other
/// ranges are accepted but the device finds no memory there (ours: the device makes no difference
/// between addresses it reads and addresses it writes).
///
/// A transfer under way keeps its mapping alive, so it finds either all of a range or nothing, and
/// taking a range away waits for the transfers that have found it.
pub struct ClientMemory {
    backing: Backing,
    limits: Limits,
    /// By first address. Not held during transfers, which may be from one client's memory to
    /// another's and back.
    ranges: RwLock<BTreeMap<u64, Range>>,
    files: Mutex<HashMap<FileId, Weak<MmapRegion<()>>>>,
}

struct Range {
    last: u64,
    mapping: Option<Arc<Mapping>>,
}

/// Where a range begins in a file.
struct Mapping {
    file: Arc<MmapRegion<()>>,
    offset: usize,
}

/// Device and inode, the same for all descriptors of a file.
type FileId = (u64, u64);

/// A part of a range that a transfer uses.
struct Piece {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
}

impl Piece {
    fn slice(&self) -> Option<VolatileSlice<'_>> {
        self.mapping.file.get_slice(self.mapping.offset + self.offset, self.len).ok()
    }
}

/// What a client asks to be mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapRequest {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) offset: u64,
}

impl ClientMemory {
    /// No memory yet.
    pub fn new(backing: Backing, limits: Limits) -> Self {
        Self {
            backing,
            limits,
            ranges: RwLock::new(BTreeMap::new()),
            files: Mutex::new(HashMap::new()),
        }
    }

    /// How much a client may map.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Number of ranges that the client has mapped.
    pub fn mapped_ranges(&self) -> usize {
        self.read_ranges().len()
    }

    fn read_ranges(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Range>> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_ranges(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Range>> {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_files(&self) -> MutexGuard<'_, HashMap<FileId, Weak<MmapRegion<()>>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps a range; without a file the device finds nothing there.
    pub(crate) fn map(&self, request: MapRequest, file: Option<OwnedFd>) -> Result<(), Errno> {
        let MapRequest { address, size, offset } = request;
        if (address | size | offset) & (PAGE_SIZE - 1) != 0 {
            return Err(Errno::INVAL);
        }
        let last = last_of(address, size)?;
        // Refused before anything is mapped for it, and again when it is entered.
        self.check_free(&self.read_ranges(), address, last)?;
        let mapping = file.map(|file| self.map_file(file, offset, size)).transpose()?;
        let mut ranges = self.write_ranges();
        self.check_free(&ranges, address, last)?;
        ranges.insert(address, Range { last, mapping: mapping.map(Arc::new) });
        Ok(())
    }

    fn check_free(
        &self,
        ranges: &BTreeMap<u64, Range>,
        first: u64,
        last: u64,
    ) -> Result<(), Errno> {
        if ranges.range(..=last).next_back().is_some_and(|(_, range)| range.last >= first) {
            return Err(Errno::EXIST);
        }
        if ranges.len() >= self.limits.ranges { Err(Errno::NOSPC) } else { Ok(()) }
    }

    fn map_file(&self, file: OwnedFd, offset: u64, size: u64) -> Result<Mapping, Errno> {
        if self.backing == Backing::Sealed {
            check_sealed(&file)?;
        }
        let status = fstat(&file)?;
        let length = u64::try_from(status.st_size).map_err(|_| Errno::INVAL)?;
        if offset.checked_add(size).is_none_or(|end| end > length) {
            return Err(Errno::INVAL);
        }
        let length = usize::try_from(length).map_err(|_| Errno::INVAL)?;
        let end = usize::try_from(offset + size).map_err(|_| Errno::INVAL)?;
        let id: FileId = (status.st_dev, status.st_ino);
        let mut files = self.lock_files();
        let known = files.get(&id).and_then(Weak::upgrade).filter(|region| end <= region.size());
        let region = match known {
            Some(region) => region,
            None => {
                files.retain(|_, region| region.strong_count() > 0);
                let mapped: u64 =
                    files.values().filter_map(Weak::upgrade).map(|r| r.size() as u64).sum();
                let too_much =
                    mapped.checked_add(length as u64).is_none_or(|sum| sum > self.limits.bytes);
                if too_much || files.len() >= self.limits.files {
                    return Err(Errno::NOSPC);
                }
                let start = FileOffset::new(File::from(file), 0);
                let region = MmapRegion::from_file(start, length).map_err(errno_of)?;
                let region = Arc::new(region);
                files.insert(id, Arc::downgrade(&region));
                region
            }
        };
        // Fits, as `end` does.
        Ok(Mapping { file: region, offset: offset as usize })
    }

    /// Takes away the ranges that lie in `size` bytes from `address`; returns how many bytes they
    /// had, which may be none. When this returns, no transfer touches them any more.
    ///
    /// A range that lies in it only in part is an error, and then all stay.
    pub(crate) fn unmap(&self, address: u64, size: u64) -> Result<u64, Errno> {
        let last = last_of(address, size)?;
        let mut ranges = self.write_ranges();
        let before = ranges.range(..address).next_back();
        let within = ranges.range(address..=last).next_back();
        if before.is_some_and(|(_, range)| range.last >= address)
            || within.is_some_and(|(_, range)| range.last > last)
        {
            return Err(Errno::INVAL);
        }
        let firsts: Vec<u64> = ranges.range(address..=last).map(|(&first, _)| first).collect();
        let taken: Vec<(u64, Range)> =
            firsts.into_iter().filter_map(|first| ranges.remove_entry(&first)).collect();
        drop(ranges);
        Ok(taken.into_iter().map(|(first, range)| range.give_up(first)).sum())
    }

    /// Takes all ranges away; returns how many bytes they had, or as many as can be told. When
    /// this returns, no transfer touches them any more.
    pub(crate) fn clear(&self) -> u64 {
        let taken = std::mem::take(&mut *self.write_ranges());
        let sizes = taken.into_iter().map(|(first, range)| range.give_up(first));
        let size = sizes.fold(0, u64::saturating_add);
        self.lock_files().clear();
        size
    }

    /// Calls `f` with each part of the range and the mapping behind it, until there is nothing
    /// left or no memory.
    fn walk(
        &self,
        addr: u64,
        len: usize,
        mut f: impl FnMut(&Arc<Mapping>, usize, usize),
    ) -> Result<(), DmaError> {
        let error = DmaError { addr, len };
        let end = addr.checked_add(len as u64).ok_or(error)?;
        let ranges = self.read_ranges();
        let mut at = addr;
        loop {
            let (&first, range) = ranges.range(..=at).next_back().ok_or(error)?;
            let mapping = range.mapping.as_ref().filter(|_| at <= range.last).ok_or(error)?;
            // Neither overflows: mapped sizes are sizes of files in this address space.
            let left = range.last - at + 1;
            let n = left.min(end - at);
            f(mapping, (at - first) as usize, n as usize);
            at += n;
            if at == end {
                return Ok(());
            }
        }
    }
}

impl Range {
    /// Waits until no transfer uses the range; returns its size.
    fn give_up(self, first: u64) -> u64 {
        if let Some(mut mapping) = self.mapping {
            let mut looks = 0u32;
            // Transfers are bounded and no new one can find the mapping. `get_mut` also orders
            // their accesses before what follows.
            while Arc::get_mut(&mut mapping).is_none() {
                looks += 1;
                if looks < 64 {
                    thread::yield_now();
                } else {
                    thread::sleep(Duration::from_micros(50));
                }
            }
        }
        // No overflow: the size came in 64 bits.
        self.last - first + 1
    }
}

impl DmaMemory for ClientMemory {
    fn contains(&self, addr: u64, len: usize) -> bool {
        self.walk(addr, len, |_, _, _| {}).is_ok()
    }

    fn access(
        &self,
        addr: u64,
        len: usize,
        f: &mut dyn FnMut(VolatileSlice<'_>),
    ) -> Result<(), DmaError> {
        let mut pieces = SmallVec::<[Piece; 2]>::new();
        self.walk(addr, len, |mapping, offset, len| {
            pieces.push(Piece { mapping: Arc::clone(mapping), offset, len });
        })?;
        let slices: SmallVec<[VolatileSlice<'_>; 2]> =
            pieces.iter().map(Piece::slice).collect::<Option<_>>().ok_or(DmaError { addr, len })?;
        for slice in slices {
            f(slice);
        }
        Ok(())
    }
}

/// The last address of a range.
fn last_of(address: u64, size: u64) -> Result<u64, Errno> {
    size.checked_sub(1).and_then(|rest| address.checked_add(rest)).ok_or(Errno::INVAL)
}

/// Seals a file against shrinking, or finds that it is.
fn check_sealed(file: &OwnedFd) -> Result<(), Errno> {
    // Fails where seals are not supported at all: then it is not a memory file.
    let seals = fcntl_get_seals(file).map_err(|_| Errno::PERM)?;
    if !seals.contains(SealFlags::SHRINK) {
        fcntl_add_seals(file, SealFlags::SHRINK).map_err(|_| Errno::PERM)?;
    }
    if fstatfs(file)?.f_type as u64 & 0xffff_ffff == HUGETLBFS_MAGIC {
        return Err(Errno::PERM);
    }
    Ok(())
}

fn errno_of(error: vm_memory::mmap::MmapRegionError) -> Errno {
    match error {
        vm_memory::mmap::MmapRegionError::Mmap(error) => {
            Errno::from_io_error(&error).unwrap_or(Errno::NOMEM)
        }
        _ => Errno::INVAL,
    }
}
