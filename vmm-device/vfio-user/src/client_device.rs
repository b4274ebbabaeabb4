//! A device as one client has it.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use tofu_abi::barrier::BCH_MASK;
use tofu_abi::pci::{MSIX_BAR, REGISTER_BAR};
use tofu_abi::regs::{BgsReg, CqsReg, PAGE_SIZE as REGISTER_PAGE, bgs_page, cqs_page};
use tofu_abi::{BgId, CqId, TniId};
use tofu_pci::{CONFIG_SPACE_SIZE, PciFunction, regs};
use tofu_sync::lock;

use crate::access::Access;
use crate::device::Device;
use crate::irq::ClientVectors;
use crate::memory::ClientMemory;
use crate::pages::Mappable;
use crate::wire::{MAX_DATA, irq, region};

/// Capabilities that a function can have in the first 256 bytes of configuration space.
const MAX_PCI_CAPABILITIES: usize = 48;

/// A device, or a client's part of one that several share, with the client's memory, interrupts and
/// pages.
pub(crate) struct ClientDevice {
    pub(crate) device: Device,
    pub(crate) memory: Arc<ClientMemory>,
    pub(crate) mappable: Option<Mappable>,
    /// ENABLE registers that the client has written to, if others use the device as well.
    pub(crate) used: Option<Mutex<BTreeSet<u64>>>,
    pub(crate) vectors: ClientVectors,
}

impl ClientDevice {
    /// Prepares the device for a client. One that has left may have kept its mappings of pages. If
    /// clients share the node, the memory stays.
    ///
    /// # Errors
    ///
    /// If there is no memory for the pages.
    pub(crate) fn renew(&self) -> io::Result<()> {
        let mappable = self.mappable.as_ref().filter(|_| self.used.is_none());
        mappable.map_or(Ok(()), Mappable::renew)
    }

    /// Resets the device, and forgets the client's memory and descriptors.
    pub(crate) fn release(&self) {
        // In this order: a device that was reset does not touch memory.
        self.reset_used();
        self.memory.clear();
        self.memory.set_process(None);
        if let Some(table) = self.device.endpoint().msix() {
            self.vectors.clear(table);
        }
        if let Some(node) = self.device.tofu().filter(|_| self.used.is_none()) {
            node.renew_doorbell_events();
        }
    }

    /// Resets the device, or what the client has used of it if others use it as well.
    fn reset_used(&self) {
        let (Some(used), Some(node)) = (&self.used, self.device.tofu()) else {
            return self.device.function().reset();
        };
        let used = std::mem::take(&mut *lock(used));
        for tni in TniId::ALL {
            let enabled = |page: u64, offset: u64| used.contains(&(page + offset));
            for cq in CqId::ALL {
                if enabled(cqs_page(tni, cq), CqsReg::Enable.offset()) {
                    node.icc().reset_queue(tni, cq);
                }
            }
            for bg in BgId::ALL {
                let page = bgs_page(tni, bg);
                if enabled(page, BgsReg::Enable.offset()) {
                    let write = |reg: BgsReg, value: u64| {
                        let at = page + reg.offset();
                        node.bar_write(REGISTER_BAR, at, &value.to_le_bytes());
                    };
                    write(BgsReg::BchMask, BCH_MASK);
                    write(BgsReg::Enable, 0);
                }
            }
        }
    }

    /// Size of a region in bytes, 0 if the device does not have it; `None` if there is no such
    /// index.
    pub(crate) fn region_size(&self, index: u32) -> Option<u64> {
        match index {
            region::CONFIG => Some(CONFIG_SPACE_SIZE as u64),
            region::ROM | region::VGA => Some(0),
            _ => {
                let bar = self.device.endpoint().layout().get(index as usize)?;
                Some(bar.map_or(0, |bar| bar.size))
            }
        }
    }

    /// Vectors of an interrupt index; `None` if there is no such index.
    pub(crate) fn irq_count(&self, index: u32) -> Option<u32> {
        match index {
            irq::MSIX => Some(self.vectors.len()),
            // As VFIO has it for every PCI Express device. The device has no errors to report.
            irq::ERROR => Some(1),
            _ => (index < irq::COUNT).then_some(0),
        }
    }

    /// Checks that an access lies in a region.
    pub(crate) fn check_access(&self, index: u32, offset: u64, count: usize) -> Result<(), Errno> {
        let size = self.region_size(index).ok_or(Errno::INVAL)?;
        let end = offset.checked_add(count as u64).ok_or(Errno::INVAL)?;
        if count <= MAX_DATA && end <= size { Ok(()) } else { Err(Errno::INVAL) }
    }

    pub(crate) fn region_read(&self, index: u32, offset: u64, data: &mut [u8]) {
        let _access = Access::of(self.device.coords());
        let longest = self.device.longest_access(index);
        for_natural_accesses(offset, data.len(), longest, |at, range| {
            let piece = &mut data[range];
            match index {
                // Checked: configuration space has 4096 bytes, there are six BARs.
                region::CONFIG => self.device.function().config_read(at as u16, piece),
                bar => self.device.function().bar_read(bar as u8, at, piece),
            }
        });
    }

    pub(crate) fn region_write(&self, index: u32, offset: u64, data: &[u8]) {
        // The server owns the MSI-X table: see `Vectors`.
        if index == u32::from(MSIX_BAR) {
            return;
        }
        if let Some(used) = self.used.as_ref().filter(|_| index == u32::from(REGISTER_BAR)) {
            // ENABLE of control queues and gates, and a few other registers, which do no harm.
            let enable = [CqsReg::Enable.offset(), BgsReg::Enable.offset()];
            if enable.contains(&(offset % REGISTER_PAGE)) {
                lock(used).insert(offset);
            }
        }
        let _access = Access::of(self.device.coords());
        let longest = self.device.longest_access(index);
        for_natural_accesses(offset, data.len(), longest, |at, range| {
            let piece = &data[range];
            match index {
                region::CONFIG => self.device.function().config_write(at as u16, piece),
                bar => self.device.function().bar_write(bar as u8, at, piece),
            }
        });
        if index == region::CONFIG {
            self.restore_vectors();
        }
    }

    /// Unmasks the client's vectors, which a reset has masked.
    fn restore_vectors(&self) {
        if let Some(table) = self.device.endpoint().msix() {
            self.vectors.restore(table);
        }
    }

    pub(crate) fn reset(&self) {
        self.reset_used();
        self.restore_vectors();
    }

    /// Turns MSI-X on or off in configuration space, as VFIO does for a client that binds the
    /// first vector or unbinds all.
    pub(crate) fn enable_msix(&self, on: bool) {
        let Some(capability) = find_capability(self.device.function(), regs::CAP_MSIX) else {
            return;
        };
        let at = capability + regs::MSIX_CONTROL;
        let mut bytes = [0; 2];
        self.device.function().config_read(at, &mut bytes);
        let control = u16::from_le_bytes(bytes);
        let enable = if on { regs::MSIX_ENABLE } else { 0 };
        let new = (control & !regs::MSIX_ENABLE) | enable;
        if new != control {
            self.device.function().config_write(at, &new.to_le_bytes());
        }
    }
}

/// Offset of a capability in configuration space.
fn find_capability(function: &dyn PciFunction, id: u8) -> Option<u16> {
    let byte = |at: u16| {
        let mut byte = [0];
        function.config_read(at, &mut byte);
        byte[0]
    };
    let mut at = u16::from(byte(regs::CAPABILITIES));
    for _ in 0..MAX_PCI_CAPABILITIES {
        if at == 0 {
            return None;
        }
        if byte(at) == id {
            return Some(at);
        }
        at = u16::from(byte(at + 1));
    }
    None
}

/// Cuts an access into naturally aligned ones of powers of two up to `longest`, as a bus would;
/// calls `f` with the offset of each in the region and its place in the data.
fn for_natural_accesses(
    offset: u64,
    len: usize,
    longest: usize,
    mut f: impl FnMut(u64, std::ops::Range<usize>),
) {
    let most = longest.max(1).ilog2();
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let aligned = 1 << at.trailing_zeros().min(most);
        let fits = 1 << (len - done).ilog2().min(most);
        let n = usize::min(aligned, fits);
        f(at, done..done + n);
        done += n;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn accesses_are_natural_and_cover_the_range(offset in 0u64..1 << 28, len in 0usize..100) {
            let mut next = 0;
            let mut pieces = 0;
            for_natural_accesses(offset, len, 8, |at, range| {
                assert_eq!((at, range.start), (offset + next as u64, next));
                assert!(matches!(range.len(), 1 | 2 | 4 | 8));
                assert!(at.is_multiple_of(range.len() as u64));
                next = range.end;
                pieces += 1;
            });
            prop_assert_eq!(next, len);
            // Up to three smaller ones at each end.
            prop_assert!(pieces <= len / 8 + 6);
        }
    }
}
