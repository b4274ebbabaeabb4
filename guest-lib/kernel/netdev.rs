// SPDX-License-Identifier: GPL-2.0

//! `tofu0`: a network interface whose frames go to other nodes by system packets.
//!
//! The engine is the crate `tofu_ipotofu`; what is here gives it the kernel's memory, queues and
//! frames. netdev.c forwards what the kernel asks of an interface.
//!
//! A module uses only those that are named before it here: `ethtool` is the counters, `tx` and `rx`
//! are the two directions, `link` both of a queue, `interface` is what the kernel sees.
//!
//! An interface has one to three queues, each a `Link` over its own TNI. The first one is
//! what every node has; frames to one node may go by the others if that node listens there, too.
//!
//! Two locks of each, `rx` before `tx`. Both are taken with software interrupts off, by the stack
//! when it sends and polls, and by netdev.c for all others.

mod ethtool;
mod interface;
mod link;
mod rx;
mod tx;

pub(crate) use interface::{interfaces, Interfaces};
