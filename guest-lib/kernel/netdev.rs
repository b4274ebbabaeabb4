// SPDX-License-Identifier: GPL-2.0

//! `tofu0`: a network interface that carries frames to other nodes in system packets.
//!
//! The engine is the crate `tofu_ipotofu`; the code here provides the kernel's memory, queues and
//! frames. netdev.c forwards the kernel's calls to an interface.
//!
//! A module uses only modules that precede it in this list: `ethtool` has the counters, `tx` and
//! `rx` are the two directions, `link` combines both for a queue, and `interface` is the kernel's
//! view.
//!
//! An interface has one to three queues, each a `Link` over its own TNI. Every node has the first
//! one; frames may take the others if the destination listens on them, too.
//!
//! Each link has two locks, `rx` and `tx`, taken in this order. Both are taken with bottom halves
//! disabled: by the stack when it sends and polls, and by netdev.c for all other callers.

mod ethtool;
mod interface;
mod link;
mod rx;
mod tx;

pub(crate) use interface::{interfaces, Interfaces};
