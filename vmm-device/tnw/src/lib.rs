//! The network processor (NWP) of the torus network TNW, as a device model: the second device, on
//! the interfaces of the first.
//!
//! *Paper* is Pivanti, Schifano and Simma, *An FPGA-based Torus Communication Network* (2010);
//! items name its sections. *Ours* marks choices that the paper leaves open. Registers and formats
//! are in [`tofu_abi::tnw`].
//!
//! The device ([`Nwp`]) is a state machine over register accesses, stores to its windows, arrivals
//! over links, and time. It knows neither KVM nor a machine: guest memory
//! ([`DmaMemory`](tofu_dma::DmaMemory)), interrupts and clock ([`Host`]) and links ([`Net`]) are
//! passed to it. All methods take `&self` and may be called from any thread.
//!
//! Inside the device a link has three parts that do not depend on each other: the protocol
//! ([`LinkEnd`]), injection windows ([`Window`]) and reception FIFOs with their credits
//! ([`Receive`]).
//!
//! Nothing that a guest or a neighbour writes is trusted. It is checked, and an error is reported
//! by a status or a counter. Work and memory are bounded.
//!
//! Locks: each link has a state lock and an arrivals lock. The arrivals lock may be taken under the
//! link's own state lock, and under the state lock of the link at another node that sends to it. No
//! lock is taken under an arrivals lock. Two state locks are never held together.
#![forbid(unsafe_code)]

mod device;
mod host;
mod inspect;
mod link;
mod payload;
mod receive;
mod regfile;
mod shared;
mod transmit;
mod unit;
mod window;

pub use crate::device::{Config, Nwp};
pub use crate::host::{Host, Net};
pub use crate::link::{Arrival, LinkEnd, NEVER, Room, TIMEOUT_NS, TX_BUFFER};
pub use crate::receive::{Done, Receive, Request};
pub use crate::regfile::register_fields;
pub use crate::shared::SharedWindows;
pub use crate::unit::{CONTROL_SIZE, Control, ControlKind, Data, MAX_RUN, Session, Unit};
pub use crate::window::{StoreError, Taken, Window};
