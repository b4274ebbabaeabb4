//! uTofu in a small bare-metal guest: [`open`] gives the device's queues to a
//! [`Context`](tofu_utofu::Context), and from there the API is the same as everywhere.
#![no_std]

use thiserror::Error;
use tofu_bare::platform::{BarePlatform, Error as BareError};
use tofu_driver::{Device, DeviceError};
use tofu_utofu::{DriverProvider, Error, MapUser, Mapped};

/// The provider of a [`Context`](tofu_utofu::Context) in a bare guest.
pub type BareProvider = DriverProvider<BarePlatform, GuestMemory>;

/// The reason why the device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// It was not found.
    #[error(transparent)]
    Platform(BareError),
    /// It does not answer.
    #[error(transparent)]
    Device(DeviceError),
}

/// Takes over the device, with message receive queues of size code `mrq_size`: 0 is 2048 notices
/// in 64 KiB. Each queue takes another 350 KiB of the heap.
///
/// # Errors
///
/// See [`OpenError`].
pub fn open(mrq_size: u8) -> Result<BareProvider, OpenError> {
    let platform = BarePlatform::find().map_err(OpenError::Platform)?;
    let device = Device::probe(platform).map_err(OpenError::Device)?;
    Ok(DriverProvider::new(device, GuestMemory, mrq_size, 0))
}

/// Memory of the guest, which the device reaches at the addresses that the guest has.
#[derive(Clone, Copy, Debug)]
pub struct GuestMemory;

impl<P> MapUser<P> for GuestMemory {
    type Mapping = ();

    unsafe fn map_user(&self, _: &P, addr: usize, _: usize) -> Result<Mapped<()>, Error> {
        // The device finds memory that the guest does not have by itself.
        Ok(Mapped { mapping: (), device_addr: addr as u64, isolated: false })
    }
}
