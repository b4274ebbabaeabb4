// SPDX-License-Identifier: GPL-2.0

//! Control queues of processes.
//!
//! [`Cq`] is a queue that is open: `queue` has its life from INIT_CQ to the last close,
//! `registration` the STags that its process asks for. `ring` is one of its rings, `stag` memory
//! that is registered, `tables` what the device reads of STags, `interrupt` its exceptions.

mod interrupt;
mod queue;
mod registration;
mod ring;
mod stag;
mod tables;

pub(crate) use queue::Cq;
