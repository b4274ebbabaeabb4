//! PCI Express bus 0: the host bridge, ECAM, and which function answers which address.

use std::sync::{Arc, Mutex, OnceLock, RwLock};

use tofu_pci::{BarRange, ConfigSpace, PciFunction, regs, size_bars};
use tofu_sync::{lock, read, write};

use super::windows::Windows;
use crate::{Error, Slot, layout};

/// Devices on a bus.
const SLOTS: usize = 32;
/// Bytes of configuration space of a bus in the ECAM window.
const ECAM_BUS_SIZE: u64 = 1 << 20;
/// Enable bit of [`layout::PORT_PCI_ADDRESS`].
const ADDRESS_ENABLE: u32 = 1 << 31;

struct Occupant {
    function: Arc<dyn PciFunction>,
    windows: Windows,
}

/// Bus 0. Slot 0 is the host bridge, and every function is function 0 of its
/// device.
pub(crate) struct PciHost {
    occupants: [OnceLock<Occupant>; SLOTS],
    /// The BARs that decode, in order of slot: the lowest slot wins where the
    /// guest lets them overlap.
    decoding: RwLock<Vec<(Slot, BarRange)>>,
    /// Held through a configuration write and its consequences.
    config: Mutex<()>,
    address: Mutex<u32>,
    free: Mutex<Free>,
}

/// The rest of the BAR windows.
struct Free {
    slot: u8,
    mmio32: u64,
    mmio64: u64,
    mmio64_end: u64,
}

impl PciHost {
    pub(crate) fn new(mmio64: u64, mmio64_end: u64, bridge_windows: Windows) -> Self {
        let host = Self {
            occupants: [const { OnceLock::new() }; SLOTS],
            decoding: RwLock::default(),
            config: Mutex::default(),
            address: Mutex::default(),
            free: Mutex::new(Free { slot: 1, mmio32: layout::MMIO32_START, mmio64, mmio64_end }),
        };
        let bridge = Occupant { function: Arc::new(HostBridge::new()), windows: bridge_windows };
        // The lock is new, so this cannot find it taken.
        let _ = host.occupants[0].set(bridge);
        host
    }

    /// Puts a function in the next free slot and assigns its BARs. Memory
    /// decoding is left off: switching it on is the driver's job.
    pub(crate) fn add(
        &self,
        function: Arc<dyn PciFunction>,
        windows: Windows,
    ) -> Result<Slot, Error> {
        let mut free = lock(&self.free);
        if usize::from(free.slot) >= SLOTS {
            return Err(Error::BusFull);
        }
        let slot = Slot(free.slot);
        let (mut mmio32, mut mmio64) = (free.mmio32, free.mmio64);
        for bar in size_bars(&*function) {
            let high = bar.is_64bit && bar.prefetchable;
            let (next, end) = match high {
                true => (&mut mmio64, free.mmio64_end),
                false => (&mut mmio32, layout::MMIO32_END),
            };
            let no_room = Error::BarSpace { size: bar.size, slot: slot.0 };
            // A BAR smaller than a page gets one for itself, so that a page of
            // the guest's page tables never holds two devices.
            let size = bar.size.max(0x1000);
            let Some(address) = next.checked_next_multiple_of(size) else { return Err(no_room) };
            match address.checked_add(size) {
                Some(after) if after <= end => *next = after,
                _ => return Err(no_room),
            }
            bar.assign(&*function, address);
        }
        (free.mmio32, free.mmio64) = (mmio32, mmio64);
        free.slot += 1;
        drop(free);
        let _ = self.occupants[usize::from(slot.0)].set(Occupant { function, windows });
        self.refresh(slot);
        Ok(slot)
    }

    /// The attachments of the BARs of the function in `slot`.
    pub(crate) fn windows(&self, slot: Slot) -> Option<&Windows> {
        self.occupant(slot).map(|occupant| &occupant.windows)
    }

    /// Serves a read of guest-physical `address`; false if nothing is there.
    pub(crate) fn read(&self, address: u64, data: &mut [u8]) -> bool {
        if let Some((slot, offset)) = ecam(address) {
            match slot.and_then(|slot| self.occupant(slot)) {
                Some(occupant) if is_access(data) => occupant.function.config_read(offset, data),
                _ => data.fill(0xff),
            }
            return true;
        }
        let Some((occupant, bar, offset)) = self.decode(address) else { return false };
        occupant.function.bar_read(bar, offset, data);
        true
    }

    /// Serves a write to guest-physical `address`; false if nothing is there.
    pub(crate) fn write(&self, address: u64, data: &[u8]) -> bool {
        if let Some((slot, offset)) = ecam(address) {
            if let Some(slot) = slot.filter(|_| is_access(data)) {
                self.config_write(slot, offset, data);
            }
            return true;
        }
        let Some((occupant, bar, offset)) = self.decode(address) else { return false };
        occupant.function.bar_write(bar, offset, data);
        true
    }

    /// Lifts the protection of all watched pages. Returns how often that has been
    /// done to any of them so far, by anyone.
    pub(crate) fn lift_all(&self) -> u64 {
        let windows = self.occupants.iter().flat_map(OnceLock::get);
        windows.map(|occupant| occupant.windows.lift_all()).sum()
    }

    /// Serves a read of the configuration ports.
    pub(crate) fn port_read(&self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        if port < layout::PORT_PCI_DATA {
            let bytes = lock(&self.address).to_le_bytes();
            let from = usize::from(port - layout::PORT_PCI_ADDRESS);
            for (byte, value) in data.iter_mut().zip(&bytes[from..]) {
                *byte = *value;
            }
            return;
        }
        if let Some((slot, offset)) = self.port_target(port, data)
            && let Some(occupant) = self.occupant(slot)
        {
            occupant.function.config_read(offset, data);
        }
    }

    /// Serves a write to the configuration ports. The address register takes
    /// 32-bit accesses only, as on a PC.
    pub(crate) fn port_write(&self, port: u16, data: &[u8]) {
        if port == layout::PORT_PCI_ADDRESS {
            if let Ok(bytes) = data.try_into() {
                *lock(&self.address) = u32::from_le_bytes(bytes);
            }
        } else if let Some((slot, offset)) = self.port_target(port, data) {
            self.config_write(slot, offset, data);
        }
    }

    fn port_target(&self, port: u16, data: &[u8]) -> Option<(Slot, u16)> {
        let byte = port.checked_sub(layout::PORT_PCI_DATA)?;
        let address = *lock(&self.address);
        let (bus, function) = (address >> 16 & 0xff, address >> 8 & 7);
        let inside = is_access(data) && usize::from(byte) + data.len() <= 4;
        (address & ADDRESS_ENABLE != 0 && bus == 0 && function == 0 && inside)
            .then_some((Slot((address >> 11 & 31) as u8), (address & 0xfc) as u16 + byte))
    }

    fn config_write(&self, slot: Slot, offset: u16, data: &[u8]) {
        let Some(occupant) = self.occupant(slot) else { return };
        let _order = lock(&self.config);
        occupant.function.config_write(offset, data);
        self.refresh(slot);
    }

    /// Takes over where a function's BARs are now.
    fn refresh(&self, slot: Slot) {
        let Some(occupant) = self.occupant(slot) else { return };
        let bars = occupant.function.bars();
        let current = bars.iter().flatten().map(|&range| (slot, range));
        {
            let decoding = read(&self.decoding);
            if decoding.iter().filter(|(of, _)| *of == slot).copied().eq(current.clone()) {
                return;
            }
        }
        let mut decoding = write(&self.decoding);
        decoding.retain(|(of, _)| *of != slot);
        decoding.extend(current);
        decoding.sort_by_key(|(of, range)| (*of, range.index));
        drop(decoding);
        occupant.windows.moved(bars);
    }

    fn decode(&self, address: u64) -> Option<(&Occupant, u8, u64)> {
        let decoding = read(&self.decoding);
        let (slot, bar, offset) = decoding
            .iter()
            .find_map(|(slot, range)| Some((*slot, range.index, range.offset_of(address)?)))?;
        drop(decoding);
        Some((self.occupant(slot)?, bar, offset))
    }

    fn occupant(&self, slot: Slot) -> Option<&Occupant> {
        self.occupants.get(usize::from(slot.0))?.get()
    }
}

/// The function and register behind an address in the ECAM window; no slot for
/// what does not exist.
fn ecam(address: u64) -> Option<(Option<Slot>, u16)> {
    let offset = address.checked_sub(layout::ECAM_START).filter(|at| *at < layout::ECAM_SIZE)?;
    let (device, function) = (offset >> 15 & 31, offset >> 12 & 7);
    let exists = offset < ECAM_BUS_SIZE && function == 0;
    Some((exists.then_some(Slot(device as u8)), (offset & 0xfff) as u16))
}

/// True for what one instruction accesses, as opposed to fragments of accesses
/// that cross a page, and to string instructions.
fn is_access(data: &[u8]) -> bool {
    matches!(data.len(), 1 | 2 | 4 | 8)
}

/// A host bridge without device-specific registers.
struct HostBridge {
    config: ConfigSpace,
}

impl HostBridge {
    /// The generic PCIe host bridge that QEMU offers, which drivers know to leave
    /// alone.
    const VENDOR: u16 = 0x1b36;
    const DEVICE: u16 = 0x0008;
    const CLASS: [u8; 3] = [0x00, 0x00, 0x06];

    fn new() -> Self {
        let mut config = ConfigSpace::new();
        config.set(regs::VENDOR_ID, &Self::VENDOR.to_le_bytes());
        config.set(regs::DEVICE_ID, &Self::DEVICE.to_le_bytes());
        config.set(regs::REVISION_ID + 1, &Self::CLASS);
        Self { config }
    }
}

impl PciFunction for HostBridge {
    fn config_read(&self, offset: u16, data: &mut [u8]) {
        self.config.read(offset, data);
    }

    fn config_write(&self, _offset: u16, _data: &[u8]) {}

    fn bars(&self) -> [Option<BarRange>; tofu_pci::BAR_COUNT] {
        [None; tofu_pci::BAR_COUNT]
    }

    fn bar_read(&self, _bar: u8, _offset: u64, data: &mut [u8]) {
        data.fill(0xff);
    }

    fn bar_write(&self, _bar: u8, _offset: u64, _data: &[u8]) {}

    fn reset(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ecam_addresses_split_into_parts() {
        let base = layout::ECAM_START;
        assert_eq!(ecam(base - 1), None);
        assert_eq!(ecam(base), Some((Some(Slot(0)), 0)));
        assert_eq!(ecam(base + (3 << 15) + 0xfff), Some((Some(Slot(3)), 0xfff)));
        // Function 1 of device 31, and bus 1.
        assert_eq!(ecam(base + (31 << 15) + (1 << 12)), Some((None, 0)));
        assert_eq!(ecam(base + (1 << 20) + 4), Some((None, 4)));
        assert_eq!(ecam(base + layout::ECAM_SIZE - 1), Some((None, 0xfff)));
        assert_eq!(ecam(base + layout::ECAM_SIZE), None);
    }
}
