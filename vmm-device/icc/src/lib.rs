//! The Tofu interconnect controller (ICC) of one node, as a device model.
//!
//! The device is a state machine over register accesses, packet arrivals and time. It is
//! independent of KVM and vfio-user: guest memory ([`DmaMemory`]), interrupts and doorbells
//! ([`Host`]) and the network ([`Net`]) are passed to it. All methods take `&self` and may be
//! called from any thread: vCPUs access registers, engine threads run queues and deliver packets.
//!
//! Nothing that a guest writes is trusted. Registers, descriptors and tables are read when they are
//! needed and checked; errors raise the documented exception. The work of a call is bounded, and so
//! is the memory of a queue.
//!
//! Locks: a queue has three, taken in this order. The life lock is held while the queue is enabled,
//! disabled or reset; code that runs queues never takes it. The transmit lock is taken only by
//! [`run_queue`](Icc::run_queue) and when the queue is enabled. The completion lock is never held
//! across a call to the network, or to the host except for [`Host::observe`]. Locks of two queues
//! are never held together, with one exception: under a transmit lock, the completion lock of any
//! queue may be taken. The barrier gates of an interface have one lock; no other lock of the device
//! is taken under it.
#![forbid(unsafe_code)]

mod barrier;
mod coalesce;
mod command;
mod completions;
mod cq;
mod device;
mod disturb;
mod ecc;
mod fault;
mod handover;
mod host;
mod initiator;
mod irq;
mod map;
mod memory;
mod notice;
mod observe;
mod packets;
mod page;
mod regfile;
mod router;
mod target;
mod timing;
mod tlp;
mod tni;
mod translate;
mod transmit;
mod waiting;
mod wire;

pub use crate::barrier::gates::BarrierTime;
pub use crate::device::{Config, Icc};
pub use crate::ecc::{EccErrors, EccPlace};
pub use crate::host::{Host, Net};
pub use crate::map::{RegisterNow, Unit};
pub use crate::memory::{Access, DmaError, DmaMemory, DmaResult, Segment, Segments, Visit};
pub use crate::observe::statistics::{FailedCommands, Faults, ModelTime};
pub use crate::observe::trace_events::{Event, Subject, Which};
pub use crate::observe::violations::LOG_TARGET;
pub use crate::page::SharedPages;
pub use crate::router::discard_rcode;
pub use crate::timing::CommandTiming;
pub use crate::tlp::{Answer, Body, Payload, Request, Signal, Tag, burst_size, wire_bytes};
pub use crate::translate::Pin;
pub use tofu_rules::{Report, Rule, Tally};
pub use tofu_sync::Epochs;
