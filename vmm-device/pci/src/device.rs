//! The trait that makes a function of a device behind an endpoint.

use crate::endpoint::Endpoint;
use crate::function::{BAR_COUNT, BarRange, PciFunction};

/// A device behind an [`Endpoint`], which does the work that all functions share. Every such device
/// is a [`PciFunction`].
pub trait EndpointDevice: Send + Sync {
    /// The endpoint.
    fn endpoint(&self) -> &Endpoint;

    /// Bus mastering was turned on or off, which covers memory and interrupts.
    fn bus_master_changed(&self, on: bool) {
        let _ = on;
    }

    /// Reads `data.len()` bytes at `offset` in BAR `bar`, where the MSI-X table is not.
    fn read(&self, bar: u8, offset: u64, data: &mut [u8]);

    /// Writes `data` at `offset` in BAR `bar`, where the MSI-X table is not.
    fn write(&self, bar: u8, offset: u64, data: &[u8]);

    /// Returns true if accesses to configuration space reach the device. Otherwise they read as all
    /// ones, as on a bus without the device, and writes have no effect.
    fn answers(&self) -> bool {
        true
    }

    /// The device returns to its reset state; the endpoint has done so.
    fn reset_device(&self) {}
}

impl<T: EndpointDevice> PciFunction for T {
    fn config_read(&self, offset: u16, data: &mut [u8]) {
        if self.answers() {
            self.endpoint().config_read(offset, data);
        } else {
            data.fill(0xff);
        }
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        if !self.answers() {
            return;
        }
        let changes = self.endpoint().config_write(offset, data);
        if changes.function_reset {
            self.reset_device();
        }
        if changes.bus_master || changes.function_reset {
            self.bus_master_changed(self.endpoint().bus_master());
        }
    }

    fn bars(&self) -> [Option<BarRange>; BAR_COUNT] {
        self.endpoint().bars()
    }

    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        if !self.endpoint().msix_bar_read(bar, offset, data) {
            self.read(bar, offset, data);
        }
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) {
        if !self.endpoint().msix_bar_write(bar, offset, data) {
            self.write(bar, offset, data);
        }
    }

    fn reset(&self) {
        self.endpoint().reset();
        self.reset_device();
    }
}
