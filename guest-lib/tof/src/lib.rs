//! The Tofu device of a Linux process through the files of `/proc/tofu`, which a kernel driver
//! offers.
//!
//! A process that drives a queue writes descriptors and doorbells itself, as everywhere: the
//! driver's [`Rings`](tofu_driver::Rings) and [`Rounds`](tofu_driver::Rounds) post and poll. The
//! kernel owns the registers that set up queues and gates, and the tables of registered memory.
//! [`ControlQueue`] and [`BarrierChannel`] request set-up from it.
//!
//! Locks on `/proc/tofu/position` record which process of a node uses which queue or gate. Programs
//! that use the files without this library ignore these locks ([`TofDevice::lock_queue`],
//! [`TofDevice::lock_gate`]).
#![deny(unsafe_code)]

mod buffer;
mod channel;
mod device;
mod error;
mod file;
mod locks;
mod page;
mod queue;
mod signal;
mod uapi;

pub use buffer::Buffer;
pub use channel::BarrierChannel;
pub use device::TofDevice;
pub use error::{OpenError, RegisterError};
pub use file::PageFile;
pub use locks::{Claim, Locks};
pub use queue::{ControlQueue, QueueConfig};
