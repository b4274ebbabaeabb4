//! The driver's platform for a device in another process of this host, which serves it by the
//! vfio-user protocol at a UNIX socket.
//!
//! Accesses to registers are messages, except for doorbells, which are events or mapped pages.
//! Queues and tables are in a memory file that both processes map. If the server can reach this
//! process's memory ([`Backing::Process`](tofu_vfio_user::Backing::Process)), any memory can be
//! mapped for it.
#![forbid(unsafe_code)]

mod interrupts;
mod platform;

pub use crate::platform::{ConnectError, MapError, Mapping, SocketPlatform};
