//! Memory that peers may read and write.

use std::collections::HashMap;
use std::sync::Arc;

use super::transport::Memory;

/// The use of a region by a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Peers may read it, or one does.
    pub read: bool,
    /// Peers may write it, or one does.
    pub write: bool,
}

/// Held by an operation that has not ended, for the memory of a region.
#[derive(Clone, Debug)]
pub struct Lease(Arc<()>);

impl Lease {
    /// Returns whether an operation still uses the region.
    pub fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

#[derive(Debug)]
struct Region<M> {
    memory: M,
    /// The address of the first byte for peers.
    base: u64,
    access: Access,
    lease: Lease,
}

/// The regions of a domain, by key.
#[derive(Debug)]
pub struct Regions<M>(HashMap<u64, Region<M>>);

impl<M> Default for Regions<M> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<M: Memory> Regions<M> {
    /// Adds a region, whose first byte has the address `base` for peers. Returns whether the key
    /// was free.
    pub fn add(&mut self, key: u64, memory: M, base: u64, access: Access) -> bool {
        if self.0.contains_key(&key) {
            return false;
        }
        let lease = Lease(Arc::default());
        self.0.insert(key, Region { memory, base, access, lease });
        true
    }

    /// Removes a region. Operations that have begun may still use its memory.
    pub fn remove(&mut self, key: u64) -> Option<Lease> {
        self.0.remove(&key).map(|region| region.lease)
    }

    /// Returns a part of a region, if it is within the region and the access is allowed.
    pub(super) fn find(
        &self,
        key: u64,
        place: u64,
        length: usize,
        access: Access,
    ) -> Option<(M, Lease)> {
        let region = self.0.get(&key)?;
        let offset = usize::try_from(place.checked_sub(region.base)?).ok()?;
        let permitted =
            (region.access.read || !access.read) && (region.access.write || !access.write);
        let end = offset.checked_add(length)?;
        if !permitted || end > region.memory.len() {
            return None;
        }
        Some((region.memory.part(offset, length), region.lease.clone()))
    }
}
