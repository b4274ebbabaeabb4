// SPDX-License-Identifier: GPL-2.0

//! Control queues of processes.
//!
//! [`Cq`] is an open queue. `queue` handles its life from INIT_CQ to the last close, and
//! `registration` the requests of its process for STags. `ring` is one of its rings, `stag`
//! registered memory, `tables` the device's tables of STags, and `interrupt` handles its
//! exceptions.

mod interrupt;
mod queue;
mod registration;
mod ring;
mod stag;
mod tables;

pub(crate) use queue::Cq;
