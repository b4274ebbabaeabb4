//! Memory for a device: all of the guest's, or the part that an IOMMU allows.

use smallvec::SmallVec;
use vm_memory::bitmap::BS;
use vm_memory::guest_memory::{
    Error, GuestMemoryBackendSliceIterator, GuestMemorySliceIterator, Result,
};
use vm_memory::{
    GuestAddress, GuestMemory as GuestMemoryView, GuestMemoryBackend, Permissions, VolatileSlice,
};

use crate::GuestMemory;
use crate::iommu::{Access, Endpoint};

/// Memory at the addresses that a device uses.
#[derive(Debug)]
pub struct DeviceMemory {
    physical: GuestMemory,
    endpoint: Option<Endpoint>,
}

type Ranges = SmallVec<[(u64, usize); 2]>;

impl DeviceMemory {
    /// Memory of a device behind an IOMMU, as `endpoint`, or of one that is behind none.
    pub fn new(physical: GuestMemory, endpoint: Option<Endpoint>) -> Self {
        Self { physical, endpoint }
    }

    /// Calls `f` with each slice of the range, in order. Returns false, without a call, if any part
    /// of the range is not memory, or not mapped for this access. While `f` runs, requests of the
    /// guest to remove a mapping of these slices do not complete.
    pub fn access(
        &self,
        address: u64,
        len: usize,
        access: Permissions,
        f: &mut dyn FnMut(VolatileSlice<'_>),
    ) -> bool {
        let _begun = self.begin();
        let slices = self.get_slices(GuestAddress(address), len, access);
        let slices: SmallVec<[VolatileSlice<'_>; 2]> =
            match slices.and_then(|mut slices| slices.by_ref().collect()) {
                Ok(slices) => slices,
                Err(_) => return false,
            };
        slices.into_iter().for_each(f);
        true
    }

    /// Returns true if addresses are translated.
    pub(crate) fn is_translated(&self) -> bool {
        self.endpoint.is_some()
    }

    /// Begins a use of slices: while the result lives, requests of the guest to unmap their memory
    /// do not complete.
    pub(crate) fn begin(&self) -> Option<Access<'_>> {
        self.endpoint.as_ref().map(Endpoint::begin)
    }

    /// The places of the range in guest memory.
    fn ranges(&self, address: GuestAddress, len: usize, access: Permissions) -> Option<Ranges> {
        let mut ranges = Ranges::new();
        match self.begin() {
            None => ranges.push((address.0, len)),
            Some(begun) => {
                let add = &mut |at: u64, len: usize| match ranges.last_mut() {
                    Some((from, before)) if from.checked_add(*before as u64) == Some(at) => {
                        *before += len;
                    }
                    _ => ranges.push((at, len)),
                };
                begun.translate(address.0, len, access, add).ok()?;
            }
        }
        Some(ranges)
    }
}

impl GuestMemoryView for DeviceMemory {
    type PhysicalMemory = GuestMemory;
    type Bitmap = ();

    fn check_range(&self, address: GuestAddress, len: usize, access: Permissions) -> bool {
        let inside =
            |&(at, len): &_| GuestMemoryBackend::check_range(&self.physical, GuestAddress(at), len);
        self.ranges(address, len, access).is_some_and(|ranges| ranges.iter().all(inside))
    }

    fn get_slices<'a>(
        &'a self,
        address: GuestAddress,
        len: usize,
        access: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'a, BS<'a, ()>>> {
        let ranges =
            self.ranges(address, len, access).ok_or(Error::InvalidGuestAddress(address))?;
        Ok(Slices { memory: &self.physical, ranges: ranges.into_iter(), now: None })
    }

    fn physical_memory(&self) -> Option<&GuestMemory> {
        self.endpoint.is_none().then_some(&self.physical)
    }
}

struct Slices<'a> {
    memory: &'a GuestMemory,
    ranges: smallvec::IntoIter<[(u64, usize); 2]>,
    now: Option<GuestMemoryBackendSliceIterator<'a, GuestMemory>>,
}

impl<'a> Iterator for Slices<'a> {
    type Item = Result<VolatileSlice<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(slice) = self.now.as_mut().and_then(Iterator::next) {
                if slice.is_err() {
                    // Nothing comes after an error.
                    self.ranges = Ranges::new().into_iter();
                    self.now = None;
                }
                return Some(slice);
            }
            let (at, len) = self.ranges.next()?;
            self.now = Some(GuestMemoryBackend::get_slices(self.memory, GuestAddress(at), len));
        }
    }
}

impl std::iter::FusedIterator for Slices<'_> {}
impl<'a> GuestMemorySliceIterator<'a, ()> for Slices<'a> {}
