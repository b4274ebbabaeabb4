//! A platform of the driver's for a process: the device is in another process of this host, which
//! serves it by the vfio-user protocol at a UNIX socket.
//!
//! Registers are messages, but for doorbells, which are events or mapped pages. Queues and tables
//! are in a memory file that both processes map. If the server reaches into this process
//! ([`Backing::Process`](tofu_vfio_user::Backing::Process)), any memory can be mapped for it.
#![forbid(unsafe_code)]

mod interrupts;
mod platform;

pub use crate::platform::{ConnectError, MapError, Mapping, SocketPlatform};
