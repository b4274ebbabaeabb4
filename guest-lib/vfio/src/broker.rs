//! A device that several processes use at the same time.
//!
//! VFIO gives a device to one process. A broker, `tofud`, is that process. It passes descriptors of
//! the device and of its address space to other processes over a UNIX socket, and records which
//! process has which control queues and device addresses. A process then maps the registers, maps
//! its memory, and opens its queues without the broker. When a process ends, normally or not, its
//! connection ends. The broker then stops its queues, takes its memory from the device, and can
//! give both to other processes.
//!
//! The node's network is one of the processes, with the packet interface of a TNI
//! ([`Broker::join_packets`]). It yields to a process that wants the device alone
//! ([`Reservation`]), and returns after that process.
//!
//! Processes that share a device in this way must trust each other: each can reach all registers
//! and, through the device, all memory that the others have mapped. VFIO cannot isolate them. So
//! only root's processes share it this way. Processes of other users get the rings and notices of
//! their own queues and channels, as memory files. For everything else they send requests to the
//! broker ([`wire::IsolatedRequest`]), which opens queues, writes tables and registers, and maps
//! memory ([`IsolatedDevice`]).
//!
//! Other ways to isolate programs do not work: with a descriptor of the container they could unmap
//! others' memory, an address space for each job needs PASIDs, which the device does not have, VFIO
//! gives a page of doorbells only with all others, and copies of payload are not one-sided.
//!
//! Processes that share a control queue have rings that the broker serves. `tofu run --local` is a
//! broker, too, for such ranks, which have mapped their memory for the device themselves.
//!
//! [`Broker`] is the process's side, [`SharedPlatform`] the resulting platform. The messages are in
//! [`wire`]. [`VfioPlatform`](crate::VfioPlatform) has what the broker needs from this crate: its
//! terms, addresses to grant, and revoking them.

mod client;
mod isolated;
mod own;
pub(crate) mod shared_space;
mod stop;
pub mod wire;

use std::path::PathBuf;

use crate::bdf::Bdf;

pub use client::{Broker, BrokerError, Shared, SharedPlatform};
pub use isolated::{
    BrokerPage, IsolatedChannel, IsolatedDevice, IsolatedQueue, Joined, Part, RegisterError,
    SharedRings, Wake,
};
pub use own::ShareError;

/// The right to have a device alone, where a broker would otherwise give it to the node's network.
/// It ends when it is dropped.
#[derive(Debug)]
pub struct Reservation {
    _broker: Broker,
}

impl Reservation {
    /// Asks the broker of a device, if there is one that answers and releases it.
    pub fn of(bdf: Bdf) -> Option<Self> {
        let broker = Broker::connect(&socket_path(bdf)).ok()??;
        broker.reserve().ok()?;
        Some(Self { _broker: broker })
    }
}

/// The folder of sockets of brokers.
pub const FOLDER: &str = "/run/tofu";

/// The file, owned by root, in which brokers find the subnet that confines a user's queues and
/// gates, if it exists.
pub fn subnet_path(user: u32) -> PathBuf {
    PathBuf::from(FOLDER).join(format!("subnets/{user}"))
}

/// The path of the socket on which the broker of a device listens by default.
pub fn socket_path(bdf: Bdf) -> PathBuf {
    PathBuf::from(FOLDER).join(format!("{bdf}.sock"))
}
