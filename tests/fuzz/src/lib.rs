//! What the fuzz targets do, apart from the engine that feeds them.
//!
//! Each target turns bytes into what a guest or a peer may do to a device, and panics when the
//! device breaks a promise: it answers and goes on, it changes no memory that it was not told
//! to, and other nodes do not notice. Any bytes are a valid input.
#![forbid(unsafe_code)]

pub mod arrivals;
pub mod barrier;
pub mod cables;
pub mod descriptors;
pub mod ipotofu;
pub mod links;
pub mod netboot;
pub mod news;
pub mod pci_config;
pub mod registers;
pub mod tables;
pub mod tnw;
pub mod vfio_user;
mod world;
