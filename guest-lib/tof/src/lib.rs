//! The Tofu driver's platform in a Linux process: the device through the files of `/proc/tofu`,
//! which a kernel driver offers.
//!
//! A process that drives a queue writes descriptors and doorbells itself, as everywhere; but the
//! registers that set up queues and gates are the kernel's. [`TofPlatform`] keeps what is written
//! to these, and asks the kernel for all of it at once when a queue is enabled. So the driver's
//! queues and channels work here as they are.
//!
//! Three things differ from other platforms, and [`TofPlatform`] has calls for them: a queue has
//! to be [opened](TofPlatform::open_queue) first, which says whether the process may have it; the
//! gates of a channel are enabled together, [at the end](TofPlatform::enable_channel); and
//! registered memory has entries in tables of the kernel's ([`TofPlatform::register`]).
//!
//! What processes of a node have is told apart by locks on `/proc/tofu/position`, which are
//! invisible to programs that use the files without this library ([`TofPlatform::lock_queue`],
//! [`TofPlatform::lock_gate`]).
#![deny(unsafe_code)]

mod buffer;
mod gates;
mod locks;
mod page;
mod platform;
mod signal;
mod uapi;

pub use buffer::Buffer;
pub use platform::{OpenError, RegisterError, TofPlatform};
