//! I/O nodes: nodes of a machine that have no guest, but are driven by this process, and join the
//! machine's network to the host.
//!
//! An [`IoNode`] is the link of such a node on its own thread. Its purpose is decided by the
//! [`Tenant`]s on top of it:
//!
//! - [`Stack`], a TCP/IP stack in this process, for connections to nodes without privileges on the
//!   host;
//! - [`Tap`], a network interface of the host's kernel, which needs CAP_NET_ADMIN;
//! - others, such as a boot server.
//!
//! Nothing that nodes send makes this crate panic, block, or allocate without bound.
#![deny(unsafe_code)]

mod antispoof;
mod datagrams;
mod io_node;
mod prefix;
mod stack;
mod tap;

pub use io_node::{
    Config, IoNode, IoNodeError, LinkCounters, LinkStats, Out, Prepared, Tenant, Waker,
};
pub use prefix::machine_network;
pub use stack::{ConnectError, Connected, Connector, Stack};
pub use tap::{Tap, TapError};
pub use tofu_ipotofu::addr;
