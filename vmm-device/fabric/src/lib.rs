//! The Tofu network between interconnect controllers: a 6D mesh/torus of nodes, the route of a
//! packet through it, the links with their state and counters, and the carriers that take packets
//! from one node to another. The crate `tofu-netmodel` models links on which packets take time.
//!
//! This crate is independent of registers and virtual machines. A device passes a [`Packet`] to a
//! [`Carrier`]. The carrier calls [`Deliver`] when the packet arrives or is lost, with its body, so
//! that the device can answer its sender.
//!
//! A packet is a *burst* of one or more consecutive TLPs of one command with one route. [`Direct`]
//! walks the whole route within the sender's call, checks and counts at each link, and delivers
//! immediately. It has no buffers, and loses only packets that meet a dead link. [`Wires`] is the
//! carrier of a machine, with a tap, which observes packets at each TNI and port, and faults. A
//! packet that a fault holds back is delivered with a later packet to the same target or after 1
//! ms; 256 can be held back. A packet is duplicated once at most. Each link and direction draws its
//! own random numbers (SplitMix64's finalizer over seed, link and count).
//!
//! Each item names the source of its facts: *IEEE Micro 2012* is Ajima et al., "The Tofu
//! Interconnect", IEEE Micro 32(1), 2012; *TofuD paper* is Ajima et al., "The Tofu Interconnect D",
//! IEEE CLUSTER 2018; *ours* marks what neither settles.
#![forbid(unsafe_code)]

mod capacity;
mod carrier;
pub mod chance;
mod counters;
mod ecc;
mod equipment;
mod fabric;
mod faults;
mod link;
mod modelled;
mod packet;
mod routing;
mod shard;
mod tap;
mod ways;
pub mod wire;
mod wires;

pub use capacity::{axes_of, bisection_links, links_between};
pub use carrier::{Cables, Carrier, Crossing, Deliver, Direct, Lost, Stray, Timing, Trip};
pub use counters::{PortCounters, XbCounters, XbCycles};
pub use ecc::{Content, EccErrors, MemoryErrors};
pub use equipment::{Equipment, Equipped};
pub use fabric::{ErrorsRefused, Fabric};
pub use faults::{Disturb, Fate, FaultCounters, FaultPlan, Ppm, REORDER_DEPTH, Rates};
pub use link::{BadErrors, Link, LinkErrors, NoSuchLink, NoSuchNode};
pub use modelled::ModelledLinks;
pub use packet::{Class, DiscardReason, GAP_BYTES, Packet, SENDERS, Way};
pub use routing::{Hop, Route, RouteError, Scheduler, is_date_line};
pub use shard::{BadShards, Block, ShardId, Shards};
pub use tap::{Direction, Observation, OnLink, Tap, TapPoint, Tapped};
pub use tofu_abi::topology::{Axis, NodeId, Port, Shape, ShapeError};
pub use tofu_links::Ps;
pub use ways::Ways;
pub use wires::{ModelledCarrier, Progress, Wires};

use tofu_abi::regs::NUM_TNI;

/// Network interfaces (TNIs) that nodes of some generation have, each an end point of the crossbar.
pub const TNIS: usize = NUM_TNI;
