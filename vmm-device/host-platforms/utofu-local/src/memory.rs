//! Memory that a node in this process reaches by DMA: its queues and tables, and the memory that
//! the process has mapped for it.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock, RwLockWriteGuard};

use thiserror::Error;
use tofu_icc::{Access, DmaError, DmaMemory, DmaResult, Mapped, Visit};
use tofu_sync::{read, write};
use vm_memory::{GuestMemoryMmap, VolatileSlice};

use crate::maps::{self, Rights};

/// Queues and tables start here, so that address 0 is no memory.
pub(crate) const RING_BASE: u64 = 0x1_0000;
/// Mapped memory starts here.
const MAPPED_BASE: u64 = 1 << 38;
/// Addresses in a device's tables have 40 bits.
const MAPPED_END: u64 = 1 << 40;
/// Mappings share no granule of this size, so that a steering tag never reaches another one.
const GRANULE: u64 = 1 << 16;

/// Memory of one node.
pub(crate) struct NodeMemory {
    rings: GuestMemoryMmap<()>,
    mappings: RwLock<Mappings>,
}

/// Mappings by their first address for the device.
struct Mappings {
    ranges: BTreeMap<u64, Range>,
    /// The address at which the next search for free addresses starts. Addresses are not reused
    /// early, so that a tag that is used after its end finds no mapping rather than another one.
    next: u64,
}

#[derive(Clone, Copy)]
struct Range {
    addr: usize,
    len: usize,
    /// The process itself may write to it.
    writable: bool,
}

/// Memory of the process that a node can reach. Ends when it is dropped.
pub struct Mapping {
    memory: Arc<NodeMemory>,
    device_addr: u64,
}

/// The reason why memory cannot be mapped for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// The process has no such memory.
    #[error("it is not mapped, not all of it, or may not be read")]
    NoMemory,
    /// The device has no addresses for it.
    #[error("the device has no addresses left for it")]
    NoAddresses,
}

impl Mapping {
    /// Address of the first byte for the device.
    pub const fn device_addr(&self) -> u64 {
        self.device_addr
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.memory.mappings_mut().ranges.remove(&self.device_addr);
    }
}

impl Mappings {
    /// Finds `size` free addresses; both it and the result are multiples of the granule.
    fn find(&self, size: u64) -> Option<u64> {
        self.find_from(self.next, size).or_else(|| self.find_from(MAPPED_BASE, size))
    }

    fn find_from(&self, start: u64, size: u64) -> Option<u64> {
        let end = |(&at, range): (&u64, &Range)| (at + range.len as u64).next_multiple_of(GRANULE);
        let mut at = self.ranges.range(..start).next_back().map_or(start, |r| end(r).max(start));
        for (&used, range) in self.ranges.range(start..) {
            if at.checked_add(size)? <= used & !(GRANULE - 1) {
                break;
            }
            at = end((&used, range)).max(at);
        }
        (at.checked_add(size)? <= MAPPED_END).then_some(at)
    }
}

impl NodeMemory {
    pub(crate) const fn new(rings: GuestMemoryMmap<()>) -> Self {
        let mappings = Mappings { ranges: BTreeMap::new(), next: MAPPED_BASE };
        Self { rings, mappings: RwLock::new(mappings) }
    }

    fn mappings_mut(&self) -> RwLockWriteGuard<'_, Mappings> {
        write(&self.mappings)
    }

    /// Maps memory of the process for the device, at a device address with the same offset in its
    /// granule. The device does not write memory that the process may only read.
    ///
    /// # Safety
    ///
    /// Until the mapping is dropped, the memory stays mapped, and the process treats it as memory
    /// that others may change at any time.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn map(
        this: &Arc<Self>,
        addr: usize,
        len: usize,
    ) -> Result<Mapping, MapError> {
        let writable = match maps::rights(addr, len) {
            Rights::None => return Err(MapError::NoMemory),
            Rights::Read => false,
            Rights::ReadWrite => true,
        };
        let phase = addr as u64 % GRANULE;
        let size =
            (len as u64).checked_add(phase).and_then(|n| n.checked_next_multiple_of(GRANULE));
        let mut mappings = this.mappings_mut();
        let granule = size.and_then(|size| mappings.find(size)).ok_or(MapError::NoAddresses)?;
        let device_addr = granule + phase;
        mappings.next = (device_addr + len as u64).next_multiple_of(GRANULE);
        mappings.ranges.insert(device_addr, Range { addr, len, writable });
        Ok(Mapping { memory: Arc::clone(this), device_addr })
    }

    /// The process's address of the memory at an address of the device.
    fn find_mapped(&self, addr: u64, len: usize, access: Access) -> Option<usize> {
        let mappings = read(&self.mappings);
        let (&start, range) = mappings.ranges.range(..=addr).next_back()?;
        let offset = usize::try_from(addr - start).ok()?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= range.len);
        let allowed = range.writable || !access.writes();
        (inside && allowed).then(|| range.addr + offset)
    }
}

impl DmaMemory for NodeMemory {
    fn contains(&self, addr: u64, len: usize, access: Access) -> bool {
        if addr < MAPPED_BASE {
            return self.rings.contains(addr, len, access);
        }
        self.find_mapped(addr, len, access).is_some()
    }

    /// Those of rings. Memory of the process comes and goes.
    fn mappings(&self) -> Vec<Mapped> {
        self.rings.mappings()
    }

    #[allow(unsafe_code)]
    fn access(&self, addr: u64, len: usize, access: Access, f: &mut Visit<'_>) -> DmaResult {
        if addr < MAPPED_BASE {
            return self.rings.access(addr, len, access, f);
        }
        let at = self.find_mapped(addr, len, access).ok_or(DmaError { addr, len })?;
        // SAFETY: the process keeps the memory mapped until the mapping is dropped. That is done
        // only after its steering tag was disabled and the device's translation cache flushed,
        // which waits for accesses in flight; the lock need not be held during this one. The
        // process treats the memory as volatile, as `map` asks of it.
        f(unsafe { VolatileSlice::new(at as *mut u8, len) });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::GuestAddress;

    fn memory() -> Arc<NodeMemory> {
        let rings = GuestMemoryMmap::from_ranges(&[(GuestAddress(RING_BASE), 4096)]).unwrap();
        Arc::new(NodeMemory::new(rings))
    }

    #[allow(unsafe_code)]
    fn map(memory: &Arc<NodeMemory>, bytes: &mut [u8]) -> Mapping {
        // SAFETY: the tests keep the bytes until the mapping is dropped, and look at them
        // afterwards.
        unsafe { NodeMemory::map(memory, bytes.as_mut_ptr() as usize, bytes.len()).unwrap() }
    }

    #[test]
    fn mapped_memory_lasts_with_its_mapping() {
        let memory = memory();
        let mut bytes = vec![0; 100];
        let address = bytes.as_ptr() as u64;
        let mapping = map(&memory, &mut bytes);
        let at = mapping.device_addr();
        assert_eq!(at % GRANULE, address % GRANULE);
        memory.write(at + 90, &[7; 10]).unwrap();
        assert!(memory.write(at + 91, &[7; 10]).is_err());
        assert!(memory.write(at - 1, &[7; 2]).is_err());
        drop(mapping);
        assert!(!memory.contains(at, 1, Access::Read));
        assert_eq!(bytes[89..], [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
    }

    #[test]
    fn loans_share_no_granule_and_are_returned() {
        let memory = memory();
        let mut bytes = vec![0; 3 * GRANULE as usize];
        let mappings: Vec<_> = bytes.chunks_mut(1000).map(|part| map(&memory, part)).collect();
        let mut granules: Vec<_> = mappings
            .iter()
            .flat_map(|l| [l.device_addr(), l.device_addr() + 999].map(|a| a / GRANULE))
            .collect();
        granules.dedup();
        let all = granules.len();
        granules.sort_unstable();
        granules.dedup();
        assert_eq!(granules.len(), all);
        drop(mappings);
        memory.mappings_mut().next = MAPPED_END - GRANULE;
        let mut big = vec![0; 4 * GRANULE as usize];
        assert!(map(&memory, &mut big).device_addr() < MAPPED_BASE + GRANULE);
    }

    #[test]
    fn absent_memory_and_constants_are_refused() {
        static CONSTANT: [u8; 8] = [3; 8];
        let memory = memory();
        #[allow(unsafe_code)]
        // SAFETY: it is refused.
        let refused = unsafe { NodeMemory::map(&memory, 8, 1 << 20) };
        assert_eq!(refused.map(|_| ()).unwrap_err(), MapError::NoMemory);
        #[allow(unsafe_code)]
        // SAFETY: it is not written to, which is what is tested.
        let mapping = unsafe { NodeMemory::map(&memory, CONSTANT.as_ptr() as usize, 8).unwrap() };
        let mut bytes = [0; 8];
        memory.read(mapping.device_addr(), &mut bytes).unwrap();
        assert_eq!(bytes, CONSTANT);
        assert!(memory.write(mapping.device_addr(), &bytes).is_err());
    }

    #[test]
    fn addresses_run_out() {
        let mut mappings = Mappings { ranges: BTreeMap::new(), next: MAPPED_BASE };
        let half = 1 << 39;
        let at = mappings.find(half).unwrap();
        mappings.ranges.insert(at, Range { addr: 0, len: half as usize, writable: true });
        assert_eq!(mappings.find(half), None);
        assert!(mappings.find(half / 4).is_some());
    }
}
