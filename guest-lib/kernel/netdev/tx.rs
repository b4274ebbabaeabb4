// SPDX-License-Identifier: GPL-2.0

//! The sending side of a queue: its state, and the handling of completed commands.
//!
//! A module uses only modules that precede it in this list:
//!
//! - `gets`: Gets of frames of other nodes
//! - this one: [`Tx`]
//! - `rendezvous`: long frames, which other nodes fetch
//! - `poll`, `xmit`: the work of a poll, and calls of the stack

use core::ops::Range;

use kernel::prelude::*;
use kernel::sync::Arc;

use tofu_abi::{Coords, TniId};
use tofu_ipotofu::neighbor::{Destination, LocalNode};
use tofu_ipotofu::rendezvous::Requests;
use tofu_ipotofu::wire::{Capabilities, Fragment, Sum};
use tofu_ipotofu::{Outbound, Outgoing, PacketQueue, Sending};

use super::ethtool::QueueCounters;
use crate::engine::{now_ns, Health, KernelMemory};
use crate::packets::{Reaped, Sender};
use crate::skb::Skb;
use crate::tx_queue::TxQueue;

mod gets;
mod poll;
mod rendezvous;
mod xmit;

pub(super) use xmit::select;

use gets::Gets;

/// Periods of a second between two tests of the ports while all ports work.
const QUIET_BEATS: u32 = 5;

/// The destination of a frame.
fn destination(skb: &Skb, node: &LocalNode) -> Destination {
    node.destination(skb.len(), |mac| skb.read(0, mac))
}

impl Outgoing<Sender> for Skb {
    fn size(&self) -> usize {
        self.len()
    }

    fn read(&self, at: usize, to: &mut [u8]) -> bool {
        Skb::read(self, at, to)
    }

    fn copy(
        &self,
        part: Range<usize>,
        queue: &mut Sender,
        (buffer, to): (&u16, usize),
        sum: Option<&mut Sum>,
    ) -> bool {
        let payload = queue.payload(*buffer);
        let Some(place) = payload.and_then(|all| all.get_mut(to..to + part.len())) else {
            return false;
        };
        let copied = Skb::read(self, part.start, place);
        if let Some(sum) = sum {
            sum.add(place);
        }
        copied
    }
}

/// The sending side.
pub(super) struct Tx {
    pub(super) sender: Option<Sender>,
    pub(super) outbound: Outbound<KernelMemory>,
    pub(super) requests: Requests<KernelMemory>,
    /// The node whose next frame waits for a slot. All other frames wait behind it.
    blocked: Option<Coords>,
    pub(super) gets: Gets,
    /// When the first of the frames that wait to be taken back began to wait.
    ended: Option<u64>,
    /// The processor that is polling.
    corked: Option<u32>,
    /// The poll has received at most one packet, whose sender may wait for the answer.
    lone: bool,
    /// Requests that were posted without a doorbell, and their node, if all are for the same one.
    untold: usize,
    untold_to: Option<Coords>,
    pub(super) counters: QueueCounters,
}

impl Tx {
    /// Creates the sending side of a queue with this TNI, in an interface with `more_queues` other
    /// queues. With `reports`, it reports dead links to other nodes.
    pub(super) fn new(
        node: LocalNode,
        tni: TniId,
        more_queues: u8,
        health: Arc<Health>,
        reports: bool,
    ) -> Result<Self> {
        let sending = Sending {
            says: Capabilities {
                offload: true,
                split: true,
                more_queues,
                ..Capabilities::NONE
            },
            max_frame: u16::MAX.into(),
            acknowledge: true,
            reports,
            quiet_beats: QUIET_BEATS,
            suspect: true,
            ..Sending::new(node, tni)
        };
        Ok(Self {
            sender: None,
            outbound: Outbound::new(sending, health, now_ns())?,
            requests: Requests::new()?,
            blocked: None,
            gets: Gets::new()?,
            ended: None,
            corked: None,
            lone: false,
            untold: 0,
            untold_to: None,
            counters: QueueCounters::default(),
        })
    }

    /// Starts over, with nothing in flight.
    pub(super) fn start(&mut self, sender: Sender, now: u64) {
        self.outbound.restart(sender.has_rendezvous(), now);
        self.sender = Some(sender);
        self.requests.clear();
        self.blocked = None;
        self.gets.clear();
        self.ended = None;
        self.corked = None;
        (self.untold, self.untold_to) = (0, None);
    }

    /// Packets that can be posted now.
    fn room(&self) -> usize {
        self.sender.as_ref().map_or(0, PacketQueue::room)
    }

    /// Rings the doorbell for all posted commands.
    pub(super) fn flush(&mut self) {
        (self.untold, self.untold_to) = (0, None);
        self.gets.note_told();
        if let Some(sender) = self.sender.as_mut() {
            sender.flush();
        }
    }

    /// Returns true if nothing in flight needs a timer. Lost packets need none, because they raise
    /// an interrupt.
    pub(super) fn is_settled(&self) -> bool {
        self.outbound.is_settled()
            && !self.sender.as_ref().is_some_and(Sender::is_full)
            && self.blocked.is_none()
            && self.ended.is_none()
            && !self.requests.are_under_way()
    }

    /// Tells the kernel's byte queue limits what has passed. Returns true if the stack waits.
    pub(super) fn account(&mut self, queue: TxQueue<'_>) -> bool {
        self.sender.as_mut().is_some_and(|sender| {
            sender.account(queue);
            sender.is_full()
        })
    }

    /// Handles completed commands.
    pub(super) fn reap(&mut self, now: u64) {
        let Some(sender) = self.sender.as_mut() else {
            return;
        };
        while let Some(ended) = sender.reap() {
            match ended {
                Reaped::Packet(ended) => self.outbound.ended(sender, ended, now),
                Reaped::Fetch(slot, rcode) => self.gets.note_ended(slot, rcode, now),
            }
        }
    }

    /// Sends a fragment of a broadcast, or the acknowledgement of one.
    pub(super) fn post_fragment(&mut self, fragment: &Fragment<'_>, now: u64) {
        if let Some(sender) = self.sender.as_mut() {
            self.outbound.post_fragment(sender, fragment, now);
        }
    }
}
