//! PCI devices on bus 0: through the PCI Express configuration space if the VMM
//! says where it is, else through the configuration ports that every PC has.

use core::cell::Cell;

use crate::irq::{MSI_ADDRESS, Vector};
use crate::mem::map_device;
use crate::service::{in32, out32};
use crate::{cmdline, mmio};
use thiserror::Error;

const PORT_ADDRESS: u16 = 0xcf8;
const PORT_DATA: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;

const ID: u8 = 0x00;
const COMMAND: u8 = 0x04;
const COMMAND_MEMORY: u32 = 1 << 1;
const COMMAND_BUS_MASTER: u32 = 1 << 2;
const STATUS_CAPABILITIES: u32 = 1 << 20;
const BAR0: u8 = 0x10;
const CAPABILITIES: u8 = 0x34;
const CAPABILITY_MSIX: u8 = 0x11;
const CAPABILITY_PCIE: u8 = 0x10;
/// Device capabilities of the PCI Express capability, and device control and status.
const PCIE_DEVICE: u8 = 4;
const PCIE_CONTROL: u8 = 8;
const RESET_CAPABLE: u32 = 1 << 28;
const INITIATE_RESET: u32 = 1 << 15;
/// The number of checks of a device that is being reset.
const RESET_TRIES: usize = 100_000;
const MSIX_ENABLE: u32 = 1 << 31;
const MSIX_FUNCTION_MASK: u32 = 1 << 30;
/// Capabilities cannot be more than fit the 192 bytes behind the header.
const CAPABILITIES_MAX: usize = 48;

/// A device on bus 0, its function 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    number: u8,
    vendor: u16,
    device: u16,
}

/// The reason why a device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// There is no memory BAR of that index, or it has no address.
    #[error("BAR {0} is missing or has no address")]
    NoBar(u8),
    /// It has no MSI-X capability, or fewer vectors.
    #[error("too few MSI-X vectors")]
    NoMsix,
    /// Out of memory for page tables.
    #[error("out of memory for page tables")]
    NoMemory,
}

/// The first device with these ids, in order of device number.
pub fn find(vendor: u16, device: u16) -> Option<Device> {
    devices().find(|found| (found.vendor, found.device) == (vendor, device))
}

/// All devices of bus 0, in order of device number.
pub fn devices() -> impl Iterator<Item = Device> {
    (0..32).filter_map(|number| {
        let id = config_read(number, ID);
        let (vendor, device) = (id as u16, (id >> 16) as u16);
        (vendor != 0xffff).then_some(Device { number, vendor, device })
    })
}

impl Device {
    /// Device number on the bus.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Vendor and device id.
    pub fn id(&self) -> (u16, u16) {
        (self.vendor, self.device)
    }

    /// Reads the aligned 32-bit register at `offset` of configuration space.
    pub fn config_read(&self, offset: u8) -> u32 {
        config_read(self.number, offset)
    }

    /// Writes the aligned 32-bit register at `offset` of configuration space.
    pub fn config_write(&self, offset: u8, value: u32) {
        config_write(self.number, offset, value);
    }

    /// Lets the device decode its memory BARs and do DMA.
    pub fn enable(&self) {
        // The upper half is the status register, whose bits are cleared by ones.
        let command = self.config_read(COMMAND) & 0xffff;
        self.config_write(COMMAND, command | COMMAND_MEMORY | COMMAND_BUS_MASTER);
    }

    /// The address of memory BAR `bar`.
    ///
    /// # Errors
    /// [`Error::NoBar`].
    pub fn bar(&self, bar: u8) -> Result<u64, Error> {
        if bar > 5 {
            return Err(Error::NoBar(bar));
        }
        let low = self.config_read(BAR0 + 4 * bar);
        let high = match low & 0b111 {
            0b100 if bar < 5 => self.config_read(BAR0 + 4 * bar + 4),
            0b000 => 0,
            _ => return Err(Error::NoBar(bar)),
        };
        match u64::from(high) << 32 | u64::from(low & !0xf) {
            0 => Err(Error::NoBar(bar)),
            address => Ok(address),
        }
    }

    /// Maps the first `size` bytes of memory BAR `bar` and returns their address,
    /// for use with [`crate::mmio`].
    ///
    /// # Errors
    /// [`Error::NoBar`], [`Error::NoMemory`].
    pub fn map_bar(&self, bar: u8, size: u64) -> Result<usize, Error> {
        let address = self.bar(bar)?;
        if !map_device(address, size) {
            return Err(Error::NoMemory);
        }
        Ok(address as usize)
    }

    /// Finds the device's MSI-X table and maps it. Each call reads configuration
    /// space, at an exit to the VMM a register; keep the result.
    ///
    /// # Errors
    /// [`Error::NoMsix`], [`Error::NoBar`], [`Error::NoMemory`].
    pub fn msix(&self) -> Result<Msix, Error> {
        let capability = self.capability(CAPABILITY_MSIX).ok_or(Error::NoMsix)?;
        let control = self.config_read(capability);
        let vectors = (control >> 16 & 0x7ff) as u16 + 1;
        let table = self.config_read(capability + 4);
        let (bar, offset) = ((table & 7) as u8, u64::from(table & !7));
        let base = self.map_bar(bar, offset + u64::from(vectors) * 16)?;
        Ok(Msix { device: *self, capability, control, vectors, table: base + offset as usize })
    }

    /// The rights of the device on the bus: its command register.
    pub fn command(&self) -> u16 {
        self.config_read(COMMAND) as u16
    }

    /// Resets the device (function level reset) and restores the addresses of its BARs and this
    /// `command`. On a device that cannot be reset, only the latter has an effect.
    pub fn reset(&self, command: u16) {
        let bars: [u32; 6] = core::array::from_fn(|bar| self.config_read(BAR0 + 4 * bar as u8));
        self.config_write(COMMAND, 0);
        if let Some(capability) = self.capability(CAPABILITY_PCIE)
            && self.config_read(capability + PCIE_DEVICE) & RESET_CAPABLE != 0
        {
            let control = self.config_read(capability + PCIE_CONTROL) & 0xffff;
            self.config_write(capability + PCIE_CONTROL, control | INITIATE_RESET);
            for _ in 0..RESET_TRIES {
                if self.config_read(ID) as u16 == self.vendor {
                    break;
                }
            }
            for (bar, value) in (0..).zip(bars) {
                self.config_write(BAR0 + 4 * bar, value);
            }
        }
        self.config_write(COMMAND, command.into());
    }

    fn capability(&self, wanted: u8) -> Option<u8> {
        if self.config_read(COMMAND) & STATUS_CAPABILITIES == 0 {
            return None;
        }
        let mut at = self.config_read(CAPABILITIES) as u8 & !3;
        for _ in 0..CAPABILITIES_MAX {
            if at < 0x40 {
                return None;
            }
            let header = self.config_read(at);
            if header as u8 == wanted {
                return Some(at);
            }
            at = (header >> 8) as u8 & !3;
        }
        None
    }
}

/// A device's MSI-X table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    device: Device,
    capability: u8,
    control: u32,
    vectors: u16,
    table: usize,
}

impl Msix {
    /// The number of vectors.
    pub fn vectors(&self) -> u16 {
        self.vectors
    }

    /// Makes vector `index` of the device raise `vector`, and unmasks it.
    ///
    /// # Errors
    /// [`Error::NoMsix`] if there is no such vector.
    pub fn set(&self, index: u16, vector: Vector) -> Result<(), Error> {
        if index >= self.vectors {
            return Err(Error::NoMsix);
        }
        let entry = self.table + usize::from(index) * 16;
        // SAFETY: the MSI-X table as the device describes it; its messages go to
        // the interrupt controller.
        unsafe {
            mmio::write64(entry, MSI_ADDRESS);
            // Data, and a vector control word of 0: not masked.
            mmio::write64(entry + 8, vector.number().into());
        }
        Ok(())
    }

    /// Switches MSI-X off.
    pub fn disable(&self) {
        self.device.config_write(self.capability, self.control & !MSIX_ENABLE);
    }

    /// Switches MSI-X on.
    pub fn enable(&self) {
        let control = (self.control & !MSIX_FUNCTION_MASK) | MSIX_ENABLE;
        self.device.config_write(self.capability, control);
    }
}

struct Ecam(Cell<Option<usize>>);

// SAFETY: one CPU, one thread.
unsafe impl Sync for Ecam {}

static ECAM: Ecam = Ecam(Cell::new(None));

pub(crate) fn init() {
    // Beyond 4 GiB it would have to be mapped first.
    let address = cmdline::number("ecam").and_then(|address| u32::try_from(address).ok());
    ECAM.0.set(address.map(|address| address as usize));
}

fn ecam(base: usize, number: u8, offset: u8) -> usize {
    base + (usize::from(number) << 15 | usize::from(offset & !3))
}

fn select(number: u8, offset: u8) {
    out32(PORT_ADDRESS, ENABLE | u32::from(number) << 11 | u32::from(offset & !3));
}

fn config_read(number: u8, offset: u8) -> u32 {
    if let Some(base) = ECAM.0.get() {
        // SAFETY: configuration space, as the VMM says.
        return unsafe { mmio::read32(ecam(base, number, offset)) };
    }
    select(number, offset);
    in32(PORT_DATA)
}

fn config_write(number: u8, offset: u8, value: u32) {
    if let Some(base) = ECAM.0.get() {
        // SAFETY: as above; DMA begins with what the drivers write elsewhere.
        return unsafe { mmio::write32(ecam(base, number, offset), value) };
    }
    select(number, offset);
    out32(PORT_DATA, value);
}
