//! Driver core for the Tofu interconnect controller (ICC).
//!
//! The core handles the registers, queues and tables of the device. A [`Platform`] provides its
//! environment: the register space, memory for DMA, interrupts and a clock. The same code drives
//! the device from a test in the same process, from a bare-metal guest and from a Linux process.
//!
//! In the order of use:
//!
//! 1. [`Device::probe`] finds out which node this is; [`Device::tni`] enables network interfaces.
//! 2. [`Cq::open`] brings up a control queue with its rings and translation tables.
//! 3. [`Cq::register`] gives memory an STag, so that local and remote commands can name it.
//! 4. [`Order`] builds a command, [`Cq::post`] queues it, [`Cq::doorbell`] starts it.
//! 5. [`Cq::poll_tcq`] and [`Cq::poll_mrq`] reap completions and notices; [`Cq::wait`] sleeps until
//!    there is one.
//!
//! [`Channel`] is a barrier channel with its gates: it synchronises and reduces.
//! [`Packets`] sends and receives system packets, the frames of a kernel's network driver.
//!
//! [`Rings`] and [`Rounds`] are the hot paths of a queue and a channel. They need only memory and a
//! [`UserPage`], so a process can also use them if its kernel sets the queues up. [`ServedRings`]
//! are such rings, served by another process in place of the device.
//!
//! Registers are accessed only while setting up and tearing down, because in a guest a register
//! access may cost an exit to the VMM. The hot path uses memory alone, except for the doorbell and,
//! once for each quarter of a message receive queue, MRQ_FULL_POINTER.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod arm;
mod barrier;
mod cq;
mod device;
#[cfg(feature = "volatile")]
mod free;
mod order;
mod packets;
mod platform;
mod rings;
mod rounds;
mod served;
mod tables;
#[cfg(feature = "volatile")]
mod volatile;

pub use arm::Arm;
pub use barrier::{Channel, ChannelConfig, ChannelError, ChannelWaitError, Gate};
pub use cq::{Cq, CqConfig, CqException, OpenError, WaitError};
pub use device::{Device, DeviceError, IrqUnit, TimedOut, Tni};
#[cfg(feature = "volatile")]
pub use free::FreeList;
pub use order::{BadPiggyback, Order, Target};
pub use packets::{
    Completed, PacketConfig, PacketError, Packets, Received, SendError, Sent, TxBuffer,
};
pub use platform::{DmaBuffer, DmaError, IrqError, Platform, UserPage};
pub use rings::{Completion, Full, Notice, RingMemory, Rings};
pub use rounds::{Outcome, Rounds, StartError};
pub use served::ServedRings;
pub use tables::{Access, MemoryRange, Stag, StagError};
pub use tofu_abi::PacketTarget;
#[cfg(feature = "volatile")]
pub use volatile::VolatileBuffer;
