//! KVM memory slots.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};

use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;
use tofu_sync::lock;
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryRegion, MmapRegion};

use crate::{Error, GuestMemory};

/// The memory slots of a VM. Holds a reference to everything that is mapped.
pub(crate) struct Slots {
    vm: Arc<VmFd>,
    used: Mutex<Vec<MemorySlot>>,
}

enum MemorySlot {
    Free,
    /// Kept for the life of the VM.
    Ram(#[expect(dead_code, reason = "keeps the memory mapped")] GuestMemory),
    /// Kept until unmapped.
    Pages(#[expect(dead_code, reason = "keeps the memory mapped")] Arc<MmapRegion<()>>),
}

/// Index of a KVM memory slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(u32);

impl Slots {
    pub(crate) fn new(vm: Arc<VmFd>) -> Self {
        Self { vm, used: Mutex::new(Vec::new()) }
    }

    /// Maps all regions of `memory` as RAM.
    pub(crate) fn map_ram(&self, memory: &GuestMemory) -> Result<(), Error> {
        let mut used = lock(&self.used);
        for region in memory.iter() {
            let id = used.len() as u32;
            let description = kvm_userspace_memory_region {
                slot: id,
                flags: 0,
                guest_phys_addr: region.start_addr().raw_value(),
                memory_size: region.len(),
                userspace_addr: region.as_ptr() as u64,
            };
            // SAFETY: the region is a live mapping of that size, and the clone of
            // `memory` stored next to the slot keeps it so.
            unsafe { self.vm.set_user_memory_region(description) }
                .map_err(Error::kvm("mapping guest memory"))?;
            used.push(MemorySlot::Ram(memory.clone()));
        }
        Ok(())
    }

    /// Maps `len` bytes at `offset` in `region` at guest-physical `address`; KVM
    /// wants all three to be multiples of the page size. Writes to a `read_only`
    /// mapping exit as MMIO.
    ///
    /// The range must lie inside `region`.
    pub(crate) fn map(
        &self,
        address: u64,
        region: &Arc<MmapRegion<()>>,
        offset: usize,
        len: usize,
        read_only: bool,
    ) -> Result<SlotId, Error> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= region.size()));
        let mut used = lock(&self.used);
        let at =
            used.iter().position(|slot| matches!(slot, MemorySlot::Free)).unwrap_or(used.len());
        let description = kvm_userspace_memory_region {
            slot: at as u32,
            flags: if read_only { KVM_MEM_READONLY } else { 0 },
            guest_phys_addr: address,
            memory_size: len as u64,
            userspace_addr: region.as_ptr() as u64 + offset as u64,
        };
        // SAFETY: the assertion checked the range, and the reference stored next
        // to the slot keeps it mapped.
        unsafe { self.vm.set_user_memory_region(description) }
            .map_err(Error::kvm("mapping shared pages"))?;
        let slot = MemorySlot::Pages(region.clone());
        match used.get_mut(at) {
            Some(free) => *free = slot,
            None => used.push(slot),
        }
        Ok(SlotId(at as u32))
    }

    /// Takes a slot of [`Slots::map`] away; the guest's next access exits as
    /// MMIO.
    pub(crate) fn unmap(&self, SlotId(id): SlotId) -> Result<(), Error> {
        let mut used = lock(&self.used);
        let description = kvm_userspace_memory_region { slot: id, ..Default::default() };
        // SAFETY: a slot of size 0 is removed; no memory is made accessible.
        unsafe { self.vm.set_user_memory_region(description) }
            .map_err(Error::kvm("unmapping shared pages"))?;
        used[id as usize] = MemorySlot::Free;
        Ok(())
    }
}
