//! The Tofu driver's platform for devices that this host emulates: nodes of a machine in the same
//! process, or of one that another process serves.
//!
//! The devices are in a separate library, `libtofulocal.so`, which is loaded when a program asks
//! for one. So the libraries that programs link contain only the driver, and nothing else gets into
//! a guest. [`table`] is the interface between the two.
//!
//! ```no_run
//! use tofu_abi::{Coords, Generation};
//! use tofu_driver::Device;
//! use tofu_hosted::{Interconnect, Library};
//!
//! let library = Library::load()?;
//! let machine = library.start("2x1x1".parse()?, Interconnect::Tofu(Generation::Fugaku))?;
//! let device = Device::probe(machine.attach(Coords::default())?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod library;
mod platform;
pub mod table;

pub use library::{Library, LoadError};
pub use platform::{Buffer, HostMachine, HostPlatform, Interconnect, Mapping, Refused};
