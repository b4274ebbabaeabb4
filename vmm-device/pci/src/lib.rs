//! A PCI Express endpoint function: everything of it that is visible to software.
//!
//! A device owns an [`Endpoint`] (configuration space, BARs, capabilities) and implements
//! [`PciFunction`] by forwarding configuration accesses to it and serving its own BARs. The owner
//! of the bus (our VMM, a vfio-user server, a test) uses only the trait, and receives interrupts
//! through an [`MsiSink`].
//!
//! Figures, offsets and reset values are those of the PCI Local Bus
//! Specification 3.0 and the PCI Express Base Specification; where those leave
//! a choice the item says "ours". There is no I/O space, no INTx pin, no
//! expansion ROM and no SR-IOV.
//!
//! Everything here is reachable by an untrusted guest: no access panics, blocks
//! on guest behaviour or allocates.

#![forbid(unsafe_code)]

mod config;
mod device;
mod endpoint;
mod function;
mod inspect;
mod msix;
mod nodes;
pub mod testing;

pub use config::{CONFIG_SPACE_SIZE, ConfigSpace, regs};
pub use device::EndpointDevice;
pub use endpoint::{Bar, BarKind, Changes, Endpoint, Error, Identity, LinkSpeed};
pub use function::{BAR_COUNT, BarInfo, BarRange, PciFunction, size_bars};
pub use msix::{MAX_VECTORS, MsiSink, MsixTable};
pub use nodes::{controller, network_processor};
