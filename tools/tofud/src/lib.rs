//! `tofud`: owns a Tofu device and shares it among processes.
//!
//! [`Server`] serves the processes (messages: [`tofu_vfio::broker::wire`]), and [`Leases`] records
//! the control queues of each process. [`SharedDevice`] is the interface of both to a device, and
//! [`Part`] the part of it for a process that is isolated from others. The device is opened for the
//! first process and closed after the last one, so that programs that use it through VFIO by
//! themselves can open it while no process shares it.
#![forbid(unsafe_code)]

mod device;
mod isolated;
mod lease;
mod limits;
mod server;
mod sharer;
mod throttle;

pub use device::{SharedDevice, Source, Vfio, VfioSource};
pub use isolated::{NewMemory, NewQueue, Part, Registers};
pub use lease::{ClientId, Leases};
pub use server::{MAX_CLIENTS, Server, listen};
pub use tofu_queue_owner::Refused;
