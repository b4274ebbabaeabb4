//! `tofud`: owns a Tofu device and shares it among processes.
//!
//! [`Server`] speaks with the processes (messages: [`tofu_vfio::broker::wire`]), [`Leases`] knows
//! which control queues are whose, [`SharedDevice`] is what both need from a device. The device is
//! opened for the first process and given up after the last one, so that programs which use it
//! through VFIO by themselves can have it while nobody shares it.
#![forbid(unsafe_code)]

mod device;
mod lease;
mod server;
mod throttle;

pub use device::{SharedDevice, Source, Vfio, VfioSource};
pub use lease::{ClientId, Leases, Refused};
pub use server::{MAX_CLIENTS, Server, listen};
