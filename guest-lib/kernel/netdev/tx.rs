// SPDX-License-Identifier: GPL-2.0

//! The sending side of a queue: its state, and what becomes of commands that have ended.
//!
//! A module uses only those that are named before it here:
//!
//! - `skb`: frames of the stack's
//! - `gets`: Gets of frames of other nodes
//! - this one: [`Tx`]
//! - `ports`: looks at the node's ports, and reports of dead ones
//! - `packets`: frames and messages that go in packets
//! - `rendezvous`: long frames, which are fetched
//! - `poll`, `xmit`: what a poll and the stack ask for

use kernel::prelude::*;
use kernel::sync::Arc;

use tofu_abi::{Coords, Rcode, TniId};
use tofu_ipotofu::neighbor::LocalNode;
use tofu_ipotofu::rendezvous::Requests;
use tofu_ipotofu::wire::{Capabilities, FRAGMENT_MAX};
use tofu_ipotofu::{Outbound, Ports, Reporter};

use super::ethtool::QueueCounters;
use crate::engine::{now_ns, Health, KernelMemory};
use crate::packets::{Posted, Purpose, Sender};

mod gets;
mod packets;
mod poll;
mod ports;
mod rendezvous;
mod skb;
mod xmit;

pub(super) use xmit::select;

use gets::Gets;

/// Beats, of a second, between two looks at the ports while all is well.
const QUIET_BEATS: u32 = 5;

/// The sending side.
pub(super) struct Tx {
    node: LocalNode,
    tni: TniId,
    more_queues: u8,
    pub(super) sender: Option<Sender>,
    pub(super) outbound: Outbound<KernelMemory>,
    pub(super) requests: Requests<KernelMemory>,
    next_id: u32,
    pub(super) ports: Ports,
    /// Tells other nodes of dead ports, if this is the queue that does.
    reporter: Option<Reporter>,
    /// The node whose next frame waits for a slot, and with it all others.
    blocked: Option<Coords>,
    pub(super) gets: Gets,
    scratch: KVVec<u8>,
    /// Since when frames wait to be taken back.
    ended: Option<u64>,
    /// The processor that polls.
    corked: Option<u32>,
    /// It has received one packet at most: whoever sent it may wait for the answer.
    lone: bool,
    /// Requests that were posted, and the device not told of; and the node that all of them are
    /// for, if they are for one.
    untold: usize,
    untold_to: Option<Coords>,
    pub(super) counters: QueueCounters,
}

impl Tx {
    /// The sending side of a queue with this TNI, besides which there are so many more. It may be
    /// the one that tells other nodes of dead links.
    pub(super) fn new(
        node: LocalNode,
        tni: TniId,
        more_queues: u8,
        health: Arc<Health>,
        reports: bool,
    ) -> Result<Self> {
        Ok(Self {
            node,
            tni,
            more_queues,
            sender: None,
            outbound: Outbound::new(node.shape, node.me, tni, health)?,
            requests: Requests::new()?,
            next_id: 0,
            ports: Ports::new(&node, QUIET_BEATS, true),
            reporter: reports.then(|| Reporter::new(node.me, now_ns() as u32)),
            blocked: None,
            gets: Gets::new()?,
            scratch: KVVec::from_elem(0, FRAGMENT_MAX, GFP_KERNEL)?,
            ended: None,
            corked: None,
            lone: false,
            untold: 0,
            untold_to: None,
            counters: QueueCounters::default(),
        })
    }

    /// Starts over, with nothing under way.
    pub(super) fn start(&mut self, sender: Sender, now: u64) {
        self.sender = Some(sender);
        self.next_id = now as u32;
        self.outbound.clear();
        self.requests.clear();
        self.blocked = None;
        self.gets.clear();
        self.ended = None;
        self.corked = None;
        (self.untold, self.untold_to) = (0, None);
        self.ports = Ports::new(&self.node, QUIET_BEATS, true);
    }

    /// Packets that can be posted now.
    fn room(&self) -> usize {
        self.sender.as_ref().map_or(0, Sender::room)
    }

    /// Tells the device of what was posted.
    pub(super) fn flush(&mut self) {
        (self.untold, self.untold_to) = (0, None);
        self.gets.note_told();
        if let Some(sender) = self.sender.as_mut() {
            sender.flush();
        }
    }

    /// What this node says of itself.
    fn says(&self) -> Capabilities {
        Capabilities {
            offload: true,
            rendezvous: self.sender.as_ref().is_some_and(Sender::has_rendezvous),
            split: true,
            more_queues: self.more_queues,
        }
    }

    /// Whether nothing is on its way that has to be looked after. A packet that is lost raises an
    /// interrupt.
    pub(super) fn is_settled(&self) -> bool {
        self.outbound.is_settled()
            && self.blocked.is_none()
            && self.ended.is_none()
            && self.reporter.as_ref().is_none_or(Reporter::is_settled)
            && !self.requests.are_under_way()
    }

    fn new_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        id
    }

    /// Looks after commands that have ended.
    pub(super) fn reap(&mut self, now: u64) {
        let Some(sender) = self.sender.as_mut() else {
            return;
        };
        while let Some((posted, rcode)) = sender.reap() {
            let Posted {
                purpose,
                buffer,
                len,
            } = posted;
            let tag = match purpose {
                Purpose::Fetch(slot) => {
                    self.gets.note_ended(slot, rcode, now);
                    continue;
                }
                Purpose::Port(port) => {
                    if let Some(dead) = self.ports.answered(port, rcode) {
                        self.outbound.health().set_own(dead);
                    }
                    sender.give_up(buffer);
                    continue;
                }
                Purpose::Packet(_) if rcode.is_success() => {
                    sender.give_up(buffer);
                    continue;
                }
                Purpose::Packet(tag) => tag,
            };
            if rcode == Rcode::LINK_DOWN {
                self.ports.suspect();
            }
            if let Some((target, tag)) = self.outbound.lost(tag, rcode, now) {
                let purpose = Purpose::Packet(tag);
                sender.post_buffer(Posted { purpose, ..posted }, &target);
                continue;
            }
            if !tag.broadcast {
                sender.give_up(buffer);
                continue;
            }
            let take = |sender: &mut Sender, to: &mut [u8]| {
                let len = to.len().min(len.into());
                if let Some(payload) = sender.payload(buffer).and_then(|all| all.get(..len)) {
                    to[..len].copy_from_slice(payload);
                }
                sender.give_up(buffer);
                len
            };
            self.outbound.go_round(sender, tag.to, take, now);
        }
    }
}
