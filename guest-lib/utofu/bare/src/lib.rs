//! uTofu in a small bare-metal guest: [`open`] gives the device's queues to a
//! [`Context`](tofu_utofu::Context), and from there the API is the same as everywhere.
#![no_std]

use tofu_bare::platform::{BarePlatform, Error as BareError};
use tofu_driver::{Device, DeviceError, DmaError, IrqError, Platform};
use tofu_utofu::{DriverProvider, Error, MapUser, Mapped};

/// What a [`Context`](tofu_utofu::Context) of a bare guest is made from.
pub type BareProvider = DriverProvider<Guest>;

/// Why the device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// It was not found.
    Platform(BareError),
    /// It does not answer.
    Device(DeviceError),
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Platform(e) => e.fmt(f),
            Self::Device(e) => e.fmt(f),
        }
    }
}

impl core::error::Error for OpenError {}

/// Takes over the device, with message receive queues of size code `mrq_size`: 0 is 2048 notices
/// in 64 KiB. Each queue takes another 350 KiB of the heap.
///
/// # Errors
///
/// See [`OpenError`].
pub fn open(mrq_size: u8) -> Result<BareProvider, OpenError> {
    let platform = BarePlatform::find().map_err(OpenError::Platform)?;
    let device = Device::probe(Guest(platform)).map_err(OpenError::Device)?;
    Ok(DriverProvider::new(device, mrq_size, 0))
}

/// The platform of a guest, whose memory the device reaches at the addresses that the guest has.
pub struct Guest(BarePlatform);

impl Platform for Guest {
    type Dma = <BarePlatform as Platform>::Dma;

    fn bar0_read64(&self, offset: u64) -> u64 {
        self.0.bar0_read64(offset)
    }

    fn bar0_write64(&self, offset: u64, value: u64) {
        self.0.bar0_write64(offset, value);
    }

    fn doorbell_write64(&self, offset: u64, value: u64) {
        self.0.doorbell_write64(offset, value);
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<Self::Dma, DmaError> {
        self.0.alloc_dma(size, align)
    }

    fn irq_enable(&self, vector: u16) -> Result<(), IrqError> {
        self.0.irq_enable(vector)
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        self.0.irq_wait(vector, timeout_ns)
    }

    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn relax(&self) {
        self.0.relax();
    }
}

impl MapUser for Guest {
    type Mapping = ();

    unsafe fn map_user(&self, addr: usize, _: usize) -> Result<Mapped<()>, Error> {
        // The device finds memory that the guest does not have by itself.
        Ok(Mapped { mapping: (), device_addr: addr as u64, isolated: false })
    }
}
