//! The uTofu API, version 1.0, in Rust: one-sided communication over virtual control queues.
//!
//! A process has a [`Context`]. It is made from a [`Provider`], which has control queues of the
//! node's device. The process may own the device or share it, or the device may be in the process
//! itself. [`Context::create_vcq`] makes a [`Vcq`]. [`Vcq::reg_mem`] gives memory an
//! [`Stadd`](ids::Stadd). [`Vcq::post`] starts [`Command`]s. [`Vcq::poll_tcq`] and
//! [`Vcq::poll_mrq`] report their completion, and other processes' commands.
//!
//! [`Context::alloc_vbg`] and [`Context::set_vbg`] allocate and link barrier gates.
//! [`Context::barrier`] and the reductions start operations, which the gates then complete by
//! themselves.
//!
//! As on real systems, the VCQs that a process makes on one interface share a control queue of the
//! device unless they are exclusive. The rest of the C API (handles, codes, pointers) is in another
//! crate.
//!
//! Choices that public sources leave open are listed in the manual under "uTofu: design choices".
//!
//! A provider is made by `DriverProvider` of any platform of `tofu-driver` and something that maps
//! memory of the program for the device (`MapUser`). `tofu-utofu-local` is a machine in the
//! process; in a guest without an operating system it is `tofu_utofu_bare::open(0)?`:
//!
//! ```ignore
//! let machine = LocalMachine::new("1x1x1x2x1x1".parse()?)?;
//! let node = machine.node(Coords::new(0, 0, 0, 0, 0, 0))?;
//! let context = Context::new(node, DeviceShare::new(0, 1)?);
//! let vcq = context.create_vcq(0, Some(7), 0)?;
//! ```
#![cfg_attr(not(feature = "std"), no_std)]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod barrier;
mod barrier_state;
pub mod command;
mod context;
mod driver;
pub mod error;
pub mod flags;
mod gates;
mod half;
mod idle;
pub mod ids;
mod joint;
mod lock;
mod notice;
mod provider;
mod queue;
mod rest;
pub mod share;
mod split;
mod stag;
mod vcq;
mod wait;
mod wire;

pub use barrier::Reduced;
pub use command::{Command, Posting};
pub use context::Context;
pub use driver::{
    ClaimQueue, DriverBarrier, DriverChannel, DriverProvider, DriverQueue, MapUser, Mapped,
};
pub use error::{Code, Error};
pub use gates::{GatePool, VbgSetting, gates_in};
pub use half::Half;
pub use idle::IdlePolls;
pub use joint::{Divisible, JointQueue, MappedMemory, OwnedQueue};
pub use notice::{Notice, NoticeKind};
pub use provider::{Channel, OpenQueue, Provider, Queue, Registration, no_interrupts};
pub use queue::Completion;
pub use share::DeviceShare;
pub use stag::NUM_STAGS;
pub use vcq::{SharedQueue, Ticket, Transfer, Vcq};
