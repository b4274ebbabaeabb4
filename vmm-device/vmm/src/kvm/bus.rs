//! The bus: everything that a vCPU reaches by an exit.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use log::debug;
use tofu_sync::lock;
use vm_memory::{Bytes, GuestAddress};

use super::pci_host::PciHost;
use super::platform::Platform;
use super::serial::{ByteSink, SerialPort};
use crate::outcome::Outcome;
use crate::{GuestMemory, layout};

/// Accesses to nothing that are logged per VM; the rest are silent.
const STRAY_LOG_MAX: u32 = 16;
const SERIAL_PORTS: u16 = 8;
const I8042_RESET: u8 = 0xfe;
const PCI_PORTS_END: u16 = layout::PORT_PCI_DATA + 4;

/// The devices of a VM, by I/O port and by guest-physical address.
///
/// At addresses without a device, reads return ones and writes are dropped, as on a PC.
pub(crate) struct Bus {
    pub(crate) pci: PciHost,
    serial: Mutex<SerialPort>,
    /// Devices that only Linux guests have.
    platform: OnceLock<Platform>,
    memory: GuestMemory,
    name: String,
    strays: AtomicU32,
}

impl Bus {
    pub(crate) fn new(name: String, pci: PciHost, serial: SerialPort, memory: GuestMemory) -> Self {
        Self {
            pci,
            serial: Mutex::new(serial),
            platform: OnceLock::new(),
            memory,
            name,
            strays: AtomicU32::new(0),
        }
    }

    /// Adds what Linux guests have beyond the devices of small ones. Only the first
    /// call counts.
    pub(crate) fn set_platform(&self, platform: Platform) {
        let _ = self.platform.set(platform);
    }

    /// Hands the serial port's output to `sink`, too.
    pub(crate) fn set_console(&self, sink: ByteSink) {
        lock(&self.serial).set_raw(sink);
    }

    /// Types on the serial port; returns how many bytes were taken.
    pub(crate) fn console_input(&self, data: &[u8]) -> usize {
        lock(&self.serial).input(data)
    }

    /// Serves an OUT. `data` holds several units for string instructions, which only the serial
    /// port supports. Returns an outcome if this ends the VM.
    pub(crate) fn port_write(&self, port: u16, data: &[u8]) -> Option<Outcome> {
        // First, as the reset register lies among the PCI ports.
        if let Some(Ok(outcome)) = self.platform.get().map(|it| it.write(port, data)) {
            return outcome;
        }
        match port {
            layout::PORT_SERIAL.. if port < layout::PORT_SERIAL + SERIAL_PORTS => {
                lock(&self.serial).write((port - layout::PORT_SERIAL) as u8, data);
            }
            layout::PORT_PCI_ADDRESS..PCI_PORTS_END => self.pci.port_write(port, data),
            layout::PORT_EXIT | layout::PORT_PRINT => {
                let Ok(bytes) = data.try_into() else { return None };
                let value = u32::from_le_bytes(bytes);
                if port == layout::PORT_EXIT {
                    return Some(Outcome::Exited(value));
                }
                self.print(value.into());
            }
            layout::PORT_I8042 if data.first() == Some(&I8042_RESET) => {
                return Some(Outcome::Reset);
            }
            _ => self.stray("write to port", port.into()),
        }
        None
    }

    /// Serves an IN.
    pub(crate) fn port_read(&self, port: u16, data: &mut [u8]) {
        if let Some(Ok(())) = self.platform.get().map(|it| it.read(port, data)) {
            return;
        }
        match port {
            layout::PORT_SERIAL.. if port < layout::PORT_SERIAL + SERIAL_PORTS => {
                lock(&self.serial).read((port - layout::PORT_SERIAL) as u8, data);
            }
            layout::PORT_PCI_ADDRESS..PCI_PORTS_END => self.pci.port_read(port, data),
            // No keyboard: both buffers empty.
            layout::PORT_I8042 => data.fill(0),
            _ => {
                data.fill(0xff);
                self.stray("read of port", port.into());
            }
        }
    }

    /// Serves a write to memory that is not RAM.
    pub(crate) fn memory_write(&self, address: u64, data: &[u8]) {
        if !self.pci.write(address, data) {
            self.stray("write to", address);
        }
    }

    /// Serves a read of memory that is not RAM.
    pub(crate) fn memory_read(&self, address: u64, data: &mut [u8]) {
        if !self.pci.read(address, data) {
            data.fill(0xff);
            self.stray("read of", address);
        }
    }

    /// A byte of RAM.
    pub(crate) fn memory_byte(&self, address: u64) -> Option<u8> {
        self.memory.read_obj(GuestAddress(address)).ok()
    }

    /// Prints the text described at guest-physical `address`; nothing if that is
    /// not memory.
    fn print(&self, address: u64) {
        let mut text = [0; layout::PRINT_MAX as usize];
        let Ok(len) = self.memory.read_obj::<u32>(GuestAddress(address)) else { return };
        let text = &mut text[..len.min(layout::PRINT_MAX) as usize];
        if self.memory.read_slice(text, GuestAddress(address + 4)).is_ok() {
            lock(&self.serial).print(text);
        }
    }

    /// Hands out what the guest printed last; called when it has ended.
    pub(crate) fn finish(&self) {
        lock(&self.serial).finish();
    }

    fn stray(&self, what: &str, address: u64) {
        if self.strays.load(Ordering::Relaxed) < STRAY_LOG_MAX {
            let count = self.strays.fetch_add(1, Ordering::Relaxed);
            debug!("{}: {what} {address:#x}, where nothing is ({count})", self.name);
        }
    }
}
