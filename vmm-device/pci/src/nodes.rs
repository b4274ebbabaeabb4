//! The endpoints of Tofu's devices.

use tofu_abi::generation::Generation;
use tofu_abi::irq::vector;
use tofu_abi::{Coords, pci, tnw};

use crate::endpoint::{Bar, Endpoint, Error, Identity, LinkSpeed};

/// The endpoint of a node's controller.
///
/// # Errors
///
/// None that can happen: the description of the device is checked as any other.
pub fn controller(generation: Generation, coords: Coords) -> Result<Endpoint, Error> {
    let registers = Bar::memory64(tofu_abi::regs::BAR0_SIZE).prefetchable();
    Ok(Endpoint::new(identity(generation.description().device_id), LinkSpeed::Gen3)
        .with_bar(pci::REGISTER_BAR, registers)?
        .with_msix(pci::MSIX_BAR, vector::COUNT)?
        .with_serial_number(serial_number(coords)))
}

/// The endpoint of a node's network processor of TNW.
///
/// # Errors
///
/// As [`controller`].
pub fn network_processor(coords: Coords) -> Result<Endpoint, Error> {
    // Gen2 (section 1).
    Ok(Endpoint::new(identity(pci::DEVICE_TNW), LinkSpeed::Gen2)
        .with_bar(tnw::REGISTER_BAR, Bar::memory64(tnw::REGISTER_BAR_SIZE))?
        .with_msix(pci::MSIX_BAR, tnw::vector::COUNT)?
        .with_bar(tnw::WINDOW_BAR, Bar::memory64(tnw::WINDOW_BAR_SIZE).prefetchable())?
        .with_serial_number(serial_number(coords)))
}

fn identity(device: u16) -> Identity {
    Identity {
        vendor: pci::VENDOR_ID,
        device,
        class: pci::CLASS_CODE,
        revision: pci::REVISION,
        subsystem_vendor: pci::VENDOR_ID,
        subsystem: device,
    }
}

/// The serial number distinguishes nodes in a PCI listing: it has their
/// coordinates.
fn serial_number(coords: Coords) -> u64 {
    coords.to_array().iter().fold(0, |n, &c| n << 8 | u64::from(c))
}
