//! Registers, descriptors, queue entries, tables and addresses of the Tofu
//! interconnect controller (ICC), each defined once and used by both the device
//! model and the drivers.
//!
//! Everything here is plain data: no access to hardware, no allocation, no dependency. Names,
//! offsets and bit positions are public facts of the TofuD ICC; our own choices are marked *ours*
//! in the documentation of the item and listed in the driver developer's guide.
#![no_std]
#![forbid(unsafe_code)]

pub mod addr;
pub mod barrier;
#[doc(hidden)]
pub mod bits;
pub mod cq;
pub mod desc;
pub mod frame;
pub mod generation;
pub mod group;
pub mod ids;
pub mod irq;
pub mod packets;
pub mod pci;
pub mod queue;
pub mod rcode;
pub mod reduce;
pub mod regs;
pub mod subnet;
pub mod table;
pub mod tnw;
pub mod tof;
pub mod topology;

pub use addr::{Coords, Path, StagOffset, decimal};
pub use generation::Generation;
pub use group::Group;
pub use ids::{BchId, BgId, CqId, Doorbell, TniId};
pub use packets::PacketTarget;
pub use rcode::Rcode;
pub use subnet::{NoSubnet, Subnet};
