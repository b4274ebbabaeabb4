//! A client's memory, as the device reaches it by DMA.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::thread;

use rustix::fs::{
    OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fcntl_getfl, fstat, fstatfs,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use smallvec::SmallVec;
use tofu_abi::table::IPA_BITS;
use tofu_icc::{Access, DmaError, DmaMemory, DmaResult, Epochs, Visit};
use tofu_sync::{lock, read, write};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use crate::process::ClientProcess;
use crate::wire::PAGE_SIZE;

/// The error for memory of huge pages. Any access to it may find that the host has no huge page
/// left, which ends this process.
pub(crate) const HUGE: Errno = Errno::OPNOTSUPP;
/// `f_type` of a file system of huge pages, see statfs(2).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// Ranges that are taken away without letting transfers look up addresses in between.
const RANGES_PER_LOCK: usize = 256;

/// Policies for the files of a client's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Memory files of ordinary pages that are sealed against shrinking, or can be and then are.
    /// QEMU's `memory-backend-memfd` is of this kind unless configured otherwise.
    #[default]
    Sealed,
    /// Any file that can be mapped. A client that shrinks its file, or promises huge pages that
    /// the host does not have, ends this process. Cloud Hypervisor, whose memory cannot be
    /// sealed, needs this.
    Any,
    /// As [`Backing::Sealed`], and also any memory of the client's own process: a range without a
    /// descriptor is such memory, and its offset is the address in the process. Such ranges need
    /// not be whole pages.
    ///
    /// For the user's own programs, never for guests: the client must run as this process's user,
    /// this process must be allowed to debug it, and a client can make an engine wait while the
    /// kernel faults in its pages. A word is written as a whole. Atomic commands are atomic with
    /// respect to the devices of this process, but not to the client's own instructions.
    Process,
}

/// The limits of a client's mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Ranges of addresses that are not contiguous, of about 60 bytes each in this process. A
    /// vIOMMU maps page by page.
    pub ranges: usize,
    /// Files that are mapped at the same time.
    pub files: usize,
    /// Sum of the sizes of mapped files, in bytes. Files are mapped as a whole.
    pub bytes: u64,
}

impl Limits {
    /// 2^20 ranges (4 GiB in pages that lie nowhere side by side), 256 files, 1 TiB.
    pub const DEFAULT: Self = Self { ranges: 1 << 20, files: 256, bytes: 1 << 40 };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The memory of the connected client; none while there is no client.
///
/// A range that the client maps with a descriptor is memory, for the accesses that the client
/// allows. Other ranges are accepted, but accesses of the device to them fail: see the crate's
/// documentation.
///
/// A range that is contiguous with another one, in addresses and in the file, is merged with it;
/// removing a part of a range leaves the rest. A transfer in progress keeps what it has found, and
/// removing a range waits for the transfers that may have found it.
pub struct ClientMemory {
    backing: Backing,
    /// The client may map these addresses.
    window: RangeInclusive<u64>,
    limits: Limits,
    /// By first address. Not held during transfers, which may be from one client's memory to
    /// another's and back.
    ranges: RwLock<BTreeMap<u64, Range>>,
    transfers: Epochs,
    files: Mutex<HashMap<FileId, Weak<MmapRegion<()>>>>,
    /// The client's process, with [`Backing::Process`].
    process: Mutex<Option<Arc<ClientProcess>>>,
}

struct Range {
    last: u64,
    rights: Rights,
    place: Option<MappedPlace>,
}

/// The start of a range.
#[derive(Clone)]
enum MappedPlace {
    /// In a file, this many bytes in.
    File(Arc<MmapRegion<()>>, usize),
    /// In the client's process, at this address.
    Process(Arc<ClientProcess>, usize),
}

impl MappedPlace {
    /// The place that is `skip` bytes further on.
    fn skip(&self, skip: usize) -> Self {
        match self {
            Self::File(file, offset) => Self::File(Arc::clone(file), offset + skip),
            Self::Process(process, address) => Self::Process(Arc::clone(process), address + skip),
        }
    }

    /// Returns true if `next` is where this one is after `size` bytes.
    fn goes_on_in(&self, next: &Self, size: u64) -> bool {
        match (self, next) {
            (Self::File(a, at), Self::File(b, next)) => {
                Arc::ptr_eq(a, b) && *at as u64 + size == *next as u64
            }
            (Self::Process(a, at), Self::Process(b, next)) => {
                Arc::ptr_eq(a, b) && *at as u64 + size == *next as u64
            }
            _ => false,
        }
    }
}

/// The device's rights to a range of a client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Rights {
    fn allow(self, access: Access) -> bool {
        (self.read || !access.reads()) && (self.write || !access.writes())
    }
}

/// Device and inode, the same for all descriptors of a file, and whether it can be written to.
type FileId = (u64, u64, bool);

/// A part of a range that a transfer uses.
struct MappedRun {
    place: MappedPlace,
    len: usize,
}

/// The place of a part of a range.
enum Reached<'a> {
    /// In this process.
    Here(VolatileSlice<'a>),
    /// In the client's process: its address there and its length.
    There(&'a ClientProcess, u64, usize),
}

impl Reached<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Here(slice) => slice.len(),
            Self::There(_, _, len) => *len,
        }
    }
}

impl MappedRun {
    fn reach(&self) -> Option<Reached<'_>> {
        Some(match &self.place {
            MappedPlace::File(file, offset) => {
                Reached::Here(file.get_slice(*offset, self.len).ok()?)
            }
            MappedPlace::Process(process, address) => {
                Reached::There(process, *address as u64, self.len)
            }
        })
    }
}

/// A client's request to map memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapRequest {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) offset: u64,
    pub(crate) rights: Rights,
}

impl Range {
    /// The part of a range that begins `skip` bytes in; its file has that many.
    fn rest(&self, skip: u64) -> Self {
        let place = self.place.as_ref().map(|place| place.skip(skip as usize));
        Self { last: self.last, rights: self.rights, place }
    }

    /// Returns true if `next`, which begins `size` bytes behind the start of this range and at its
    /// end, continues the same memory.
    fn goes_on_in(&self, next: &Self, size: u64) -> bool {
        self.rights == next.rights
            && match (&self.place, &next.place) {
                (Some(a), Some(b)) => a.goes_on_in(b, size),
                (None, None) => true,
                _ => false,
            }
    }
}

impl ClientMemory {
    /// No memory yet.
    pub fn new(backing: Backing, limits: Limits) -> Self {
        Self::within(0..=u64::MAX, backing, limits)
    }

    /// No memory yet, and none ever outside of these addresses.
    fn within(window: RangeInclusive<u64>, backing: Backing, limits: Limits) -> Self {
        Self {
            backing,
            window,
            limits,
            ranges: RwLock::new(BTreeMap::new()),
            transfers: Epochs::new(),
            files: Mutex::new(HashMap::new()),
            process: Mutex::new(None),
        }
    }

    /// Policies for the files of a client's memory.
    pub(crate) fn backing(&self) -> Backing {
        self.backing
    }

    /// From now on ranges without a descriptor are memory of this process; `None`: not any more.
    pub(crate) fn set_process(&self, process: Option<Arc<ClientProcess>>) {
        *lock(&self.process) = process;
    }

    fn process(&self) -> Option<Arc<ClientProcess>> {
        lock(&self.process).clone()
    }

    /// The limits of a client's mappings.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Number of ranges that the client has mapped, those that continue each other counted as one.
    pub fn mapped_ranges(&self) -> usize {
        self.read_ranges().len()
    }

    fn read_ranges(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Range>> {
        read(&self.ranges)
    }

    fn write_ranges(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Range>> {
        write(&self.ranges)
    }

    fn lock_files(&self) -> MutexGuard<'_, HashMap<FileId, Weak<MmapRegion<()>>>> {
        lock(&self.files)
    }

    /// Maps a range; without a file the device finds nothing there.
    pub(crate) fn map(&self, request: MapRequest, file: Option<OwnedFd>) -> Result<(), Errno> {
        let MapRequest { address, size, offset, rights } = request;
        let process = if file.is_none() { self.process() } else { None };
        if process.is_none() && !is_aligned(address | size | offset) {
            return Err(Errno::INVAL);
        }
        let last = last_of(address, size)?;
        if !self.window.contains(&address) || !self.window.contains(&last) {
            return Err(Errno::INVAL);
        }
        // Refused before anything is mapped for it, and again when it is entered.
        check_free(&self.read_ranges(), address, last)?;
        let place = match (file, process) {
            (Some(file), _) => Some(self.map_file(file, request)?),
            (None, Some(process)) => Some(map_process(process, request)?),
            (None, None) => None,
        };
        let mut range = Range { last, rights, place };
        let mut ranges = self.write_ranges();
        check_free(&ranges, address, last)?;
        if let Some((&next, after)) = ranges.range(address..).next()
            && next - 1 == last
            && range.goes_on_in(after, size)
        {
            range.last = after.last;
            ranges.remove(&next);
        }
        if let Some((&first, before)) = ranges.range_mut(..address).next_back()
            && before.last == address - 1
            && before.goes_on_in(&range, address - first)
        {
            before.last = range.last;
            return Ok(());
        }
        if ranges.len() >= self.limits.ranges {
            return Err(Errno::NOSPC);
        }
        ranges.insert(address, range);
        Ok(())
    }

    fn map_file(&self, file: OwnedFd, request: MapRequest) -> Result<MappedPlace, Errno> {
        let end = request.offset.checked_add(request.size).ok_or(Errno::INVAL)?;
        let end = usize::try_from(end).map_err(|_| Errno::INVAL)?;
        // Fits, as `end` does.
        let offset = request.offset as usize;
        let writable = fcntl_getfl(&file)? & OFlags::ACCMODE != OFlags::RDONLY;
        let status = fstat(&file)?;
        let id: FileId = (status.st_dev, status.st_ino, writable);
        let mut files = self.lock_files();
        let known = files.get(&id).and_then(Weak::upgrade).filter(|region| end <= region.size());
        if let Some(file) = known {
            return may_write(request.rights, writable).map(|()| MappedPlace::File(file, offset));
        }
        if self.backing != Backing::Any {
            check_sealed(&file)?;
        }
        may_write(request.rights, writable)?;
        // The length counts that it has since it cannot shrink any more.
        let length = usize::try_from(fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
        if end > length {
            return Err(Errno::INVAL);
        }
        files.retain(|_, region| region.strong_count() > 0);
        let mapped: u64 = files.values().filter_map(Weak::upgrade).map(|r| r.size() as u64).sum();
        let too_much = mapped.checked_add(length as u64).is_none_or(|sum| sum > self.limits.bytes);
        if too_much || files.len() >= self.limits.files {
            return Err(Errno::NOSPC);
        }
        let start = FileOffset::new(File::from(file), 0);
        let mut rights = ProtFlags::READ;
        rights.set(ProtFlags::WRITE, writable);
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let region =
            MmapRegion::build(Some(start), length, rights.bits() as i32, flags.bits() as i32)
                .map_err(errno_of)?;
        let region = Arc::new(region);
        files.insert(id, Arc::downgrade(&region));
        Ok(MappedPlace::File(region, offset))
    }

    /// Unmaps everything in the `size` bytes from `address` on; returns how many bytes were mapped,
    /// which may be none. When this returns, no transfer touches them any more.
    ///
    /// Ranges that are partly in it keep the rest. If that would make too many ranges, it is an
    /// error and nothing is unmapped.
    pub(crate) fn unmap(&self, address: u64, size: u64) -> Result<u64, Errno> {
        // All addresses have one byte more than can be said.
        let last = match last_of(address, size)? {
            last if last >= u64::MAX - PAGE_SIZE => u64::MAX,
            last => last,
        };
        let pages = is_aligned(address) && is_aligned(last.wrapping_add(1));
        if !pages && self.backing != Backing::Process {
            return Err(Errno::INVAL);
        }
        let mut unmapped = 0;
        let mut result = Ok(true);
        while result == Ok(true) {
            let mut taken = SmallVec::<[Range; 1]>::new();
            result = self.take(address, last, &mut taken, &mut unmapped);
            // Dropped without the lock, because the last range of a file may unmap it. Threads that
            // wait for the lock go first.
            drop(taken);
            // A processor that is given away is long gone on a busy host.
            if result == Ok(true) {
                thread::yield_now();
            }
        }
        // Transfers are bounded, and never wait.
        self.transfers.drain();
        result.map(|_| unmapped)
    }

    /// Takes some ranges away; returns whether there may be more.
    fn take(
        &self,
        address: u64,
        last: u64,
        taken: &mut SmallVec<[Range; 1]>,
        unmapped: &mut u64,
    ) -> Result<bool, Errno> {
        let mut ranges = self.write_ranges();
        for _ in 0..RANGES_PER_LOCK {
            let Some((&first, range)) = ranges.range(..=last).next_back() else {
                return Ok(false);
            };
            if range.last < address {
                return Ok(false);
            }
            let (from, to) = (first.max(address), range.last.min(last));
            let after = (range.last > last).then(|| range.rest(to - first + 1));
            if first >= address {
                taken.extend(ranges.remove(&first));
            } else if after.is_some() && ranges.len() >= self.limits.ranges {
                return Err(Errno::NOSPC);
            } else if let Some(range) = ranges.get_mut(&first) {
                range.last = address - 1;
            }
            if let Some(after) = after {
                ranges.insert(to + 1, after);
            }
            // No overflow: what is taken lies in `size` bytes.
            *unmapped += to - from + 1;
            if from == address {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes all ranges away; returns how many bytes they had, or as many as can be counted. When
    /// this returns, no transfer touches them any more.
    pub(crate) fn clear(&self) -> u64 {
        let taken = std::mem::take(&mut *self.write_ranges());
        let size = |(first, range): (&u64, &Range)| (range.last - first).saturating_add(1);
        let size = taken.iter().map(size).fold(0, u64::saturating_add);
        self.transfers.drain();
        drop(taken);
        self.lock_files().clear();
        size
    }

    /// Calls `f` with each part of the range and where it is, until there is nothing left or no
    /// memory for this access.
    fn walk(
        &self,
        addr: u64,
        len: usize,
        access: Access,
        mut f: impl FnMut(&MappedPlace, usize, usize),
    ) -> DmaResult {
        let error = DmaError { addr, len };
        let end = addr.checked_add(len as u64).ok_or(error)?;
        let ranges = self.read_ranges();
        let found = ranges.range(..=addr).next_back().ok_or(error)?;
        let following = ranges.range((Excluded(*found.0), Unbounded));
        let mut at = addr;
        for (&first, range) in std::iter::once(found).chain(following) {
            let usable = (first..=range.last).contains(&at) && range.rights.allow(access);
            let place = range.place.as_ref().filter(|_| usable).ok_or(error)?;
            // Neither overflows: mapped sizes are sizes of files in this address space.
            let left = range.last - at + 1;
            let n = left.min(end - at);
            f(place, (at - first) as usize, n as usize);
            at += n;
            if at == end {
                return Ok(());
            }
        }
        Err(error)
    }
}

impl ClientMemory {
    /// Calls `f` with the runs of a range, in order, if all of it is memory for this access.
    fn reach(
        &self,
        addr: u64,
        len: usize,
        access: Access,
        f: &mut dyn FnMut(Reached<'_>) -> Result<(), Errno>,
    ) -> DmaResult {
        // From before the addresses are looked up until the memory was used.
        let _transfer = Transfer::begin(&self.transfers);
        let mut runs = SmallVec::<[MappedRun; 2]>::new();
        self.walk(addr, len, access, |place, offset, len| {
            let place = place.skip(offset);
            match runs.last_mut() {
                Some(last) if last.place.goes_on_in(&place, last.len as u64) => last.len += len,
                _ => runs.push(MappedRun { place, len }),
            }
        })?;
        let error = DmaError { addr, len };
        let reached: Option<SmallVec<[Reached<'_>; 2]>> =
            runs.iter().map(MappedRun::reach).collect();
        for run in reached.ok_or(error)? {
            f(run).map_err(|_| error)?;
        }
        Ok(())
    }
}

impl DmaMemory for ClientMemory {
    fn contains(&self, addr: u64, len: usize, access: Access) -> bool {
        self.walk(addr, len, access, |_, _, _| {}).is_ok()
    }

    fn mapped_bytes(&self) -> Option<u64> {
        let ranges = read(&self.ranges);
        let sizes = ranges.iter().map(|(first, range)| (range.last - first).saturating_add(1));
        Some(sizes.fold(0, u64::saturating_add))
    }

    fn access(&self, addr: u64, len: usize, access: Access, f: &mut Visit<'_>) -> DmaResult {
        self.reach(addr, len, access, &mut |run| match run {
            Reached::Here(slice) => {
                f(slice);
                Ok(())
            }
            Reached::There(process, address, len) => process.access(address, len, access, f),
        })
    }

    fn write_from(&self, addr: u64, source: VolatileSlice<'_>) -> DmaResult {
        let mut done = 0;
        self.reach(addr, source.len(), Access::Write, &mut |run| {
            let part = source.subslice(done, run.len()).map_err(|_| Errno::INVAL)?;
            done += part.len();
            match run {
                Reached::Here(slice) => {
                    part.copy_to_volatile_slice(slice);
                    Ok(())
                }
                // No copy of a copy.
                Reached::There(process, address, _) => process.write(address, &part),
            }
        })
    }
}

/// The addresses of client `index` of `count` clients that share a node's device: equal parts of
/// the addresses that the device's tables have.
///
/// A client must use only these. They are not negotiated: both sides compute them.
pub fn client_window(index: u16, count: u16) -> RangeInclusive<u64> {
    let size = (1 << IPA_BITS) / u64::from(count).next_power_of_two();
    let start = u64::from(index) * size;
    start..=start + (size - 1)
}

/// The memory of several clients of one node, each at separate addresses.
pub(crate) struct JointMemory {
    clients: Vec<Arc<ClientMemory>>,
}

impl JointMemory {
    /// Memory for so many clients.
    pub(crate) fn new(count: u16, backing: Backing, limits: Limits) -> Self {
        let client =
            |index| Arc::new(ClientMemory::within(client_window(index, count), backing, limits));
        Self { clients: (0..count).map(client).collect() }
    }

    pub(crate) fn clients(&self) -> &[Arc<ClientMemory>] {
        &self.clients
    }

    /// The client with this address. Addresses beyond its own belong to no client.
    fn of(&self, addr: u64, len: usize) -> Result<&ClientMemory, DmaError> {
        let found = self.clients.iter().find(|client| client.window.contains(&addr));
        found.map(AsRef::as_ref).ok_or(DmaError { addr, len })
    }
}

impl DmaMemory for JointMemory {
    fn contains(&self, addr: u64, len: usize, access: Access) -> bool {
        self.of(addr, len).is_ok_and(|client| client.contains(addr, len, access))
    }

    fn mapped_bytes(&self) -> Option<u64> {
        let clients = self.clients.iter().filter_map(|client| client.mapped_bytes());
        Some(clients.fold(0, u64::saturating_add))
    }

    fn access(&self, addr: u64, len: usize, access: Access, f: &mut Visit<'_>) -> DmaResult {
        self.of(addr, len)?.access(addr, len, access, f)
    }

    fn write_from(&self, addr: u64, source: VolatileSlice<'_>) -> DmaResult {
        self.of(addr, source.len())?.write_from(addr, source)
    }
}

/// A transfer in flight.
struct Transfer<'a> {
    transfers: &'a Epochs,
    generation: u64,
}

impl<'a> Transfer<'a> {
    fn begin(transfers: &'a Epochs) -> Self {
        Self { transfers, generation: transfers.enter() }
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.transfers.leave(self.generation);
    }
}

fn map_process(process: Arc<ClientProcess>, request: MapRequest) -> Result<MappedPlace, Errno> {
    last_of(request.offset, request.size)?;
    let address = usize::try_from(request.offset).map_err(|_| Errno::INVAL)?;
    process.check(request.offset, request.size)?;
    Ok(MappedPlace::Process(process, address))
}

fn may_write(rights: Rights, writable: bool) -> Result<(), Errno> {
    if rights.write && !writable { Err(Errno::ACCESS) } else { Ok(()) }
}

fn is_aligned(value: u64) -> bool {
    value & (PAGE_SIZE - 1) == 0
}

fn check_free(ranges: &BTreeMap<u64, Range>, first: u64, last: u64) -> Result<(), Errno> {
    let taken = ranges.range(..=last).next_back().is_some_and(|(_, range)| range.last >= first);
    if taken { Err(Errno::EXIST) } else { Ok(()) }
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
        return Err(HUGE);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_separate_addresses() {
        assert_eq!(client_window(0, 1), 0..=(1 << IPA_BITS) - 1);
        for count in [2, 3, 4, 36] {
            let windows: Vec<_> = (0..count).map(|index| client_window(index, count)).collect();
            assert!(windows.windows(2).all(|two| *two[0].end() + 1 == *two[1].start()), "{count}");
            assert!(windows.iter().all(|window| *window.end() < 1 << IPA_BITS), "{count}");
        }
        let joint = JointMemory::new(3, Backing::Sealed, Limits::DEFAULT);
        let map = |client: usize, address| {
            let rights = Rights { read: true, write: true };
            let request = MapRequest { address, size: 2 * PAGE_SIZE, offset: 0, rights };
            joint.clients()[client].map(request, None)
        };
        let (first, last) = client_window(1, 3).into_inner();
        assert_eq!(map(1, first), Ok(()));
        assert_eq!(map(0, first), Err(Errno::INVAL));
        assert_eq!(map(1, last + 1 - PAGE_SIZE), Err(Errno::INVAL), "it would go on beyond");
        assert_eq!(map(2, first), Err(Errno::INVAL));
        let mapped: Vec<_> = joint.clients().iter().map(|one| one.mapped_ranges()).collect();
        assert_eq!((mapped, joint.mapped_bytes()), (vec![0, 1, 0], Some(2 * PAGE_SIZE)));
    }
}
