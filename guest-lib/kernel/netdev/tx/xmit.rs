// SPDX-License-Identifier: GPL-2.0

//! Frames as the stack sends them.

use tofu_abi::Coords;
use tofu_ipotofu::neighbor::{Destination, LocalNode};
use tofu_ipotofu::offload::{Fields, Metadata, MAX_OFFLOADED};
use tofu_ipotofu::Unsent;

use super::skb::{Fate, Skb};
use super::Tx;
use crate::engine::{now_ns, Peers};
use crate::packets::{Sender, ENOUGH};
use crate::shim::{self, NetQueue, SkBuff};

/// The stack is held when there is not room for so many packets: for a frame that has to be cut
/// into 200 segments here. It goes on when there is room for [`ENOUGH`].
const RESERVE: usize = ENOUGH / 2;
/// Requests that go together, if as many are under way.
const BATCH: usize = 4;

/// The queue for a frame for which the stack has chosen one.
pub(in crate::netdev) fn select(
    node: &LocalNode,
    peers: &Peers,
    skb: *const SkBuff,
    chosen: u16,
) -> u16 {
    let to = Skb::new(skb).destination(node).node();
    let more = to.map_or(0, |node| peers.get(node, now_ns()).more_queues);
    if chosen <= more.into() {
        chosen
    } else {
        0
    }
}

/// Lets go of a frame of the stack's with which all is done, unless it is kept.
fn let_go(skb: *mut SkBuff, fate: Fate) {
    // SAFETY: the frame is ours, and not used any more unless it is kept.
    unsafe {
        match fate {
            Fate::Kept => {}
            Fate::Sent => shim::tofu_shim_skb_done(skb),
            Fate::Dropped => shim::tofu_shim_skb_free(skb),
        }
    }
}

impl Tx {
    /// Sends a frame of the stack's, or drops it. False if it has to wait.
    pub(in crate::netdev) fn xmit(
        &mut self,
        peers: &Peers,
        queue: *mut NetQueue,
        mut skb: *mut SkBuff,
        more: bool,
    ) -> bool {
        let now = now_ns();
        let corked = self.is_corked();
        if self.room() < ENOUGH {
            self.reap(now);
        }
        if self.must_wait(peers, skb, now) {
            self.counters.held += 1;
            // SAFETY: the interface is up.
            unsafe { shim::tofu_shim_net_hold(queue) };
            self.flush();
            // SAFETY: as above.
            unsafe { shim::tofu_shim_net_look_again(queue) };
            return false;
        }
        // The last frame is let go of when the device has been told of it.
        let mut last = None;
        while !skb.is_null() {
            let (next, fate) = self.send(peers, queue, &mut skb, now);
            let Some(rest) = next else {
                // It has become several.
                continue;
            };
            // SAFETY: the frame is ours, or kept until this lets go of the lock.
            unsafe { shim::tofu_shim_skb_count(queue, skb, fate != Fate::Dropped) };
            if let Some((before, fate)) = last.replace((skb, fate)) {
                let_go(before, fate);
            }
            skb = rest;
        }
        let room = self.room();
        if room < RESERVE {
            self.counters.held += 1;
            // SAFETY: the interface is up.
            unsafe { shim::tofu_shim_net_hold(queue) };
        }
        let later = more || corked && !self.lone || self.can_wait();
        if !later || room < RESERVE {
            // One is told of at once, those that follow it together.
            self.lone = false;
            self.flush();
            if !corked {
                // A poll does so when it ends.
                self.reap(now);
                self.flush();
            }
        }
        if let Some((last, fate)) = last {
            let_go(last, fate);
        }
        if room < RESERVE || !self.is_settled() {
            // SAFETY: the interface is up.
            unsafe { shim::tofu_shim_net_look_again(queue) };
        }
        true
    }

    /// Sends the first frame of a list. Returns the rest of the list and whether it was sent; no
    /// rest if the frame had to be completed first and is now a list of its own.
    fn send(
        &mut self,
        peers: &Peers,
        queue: *mut NetQueue,
        skb: &mut *mut SkBuff,
        now: u64,
    ) -> (Option<*mut SkBuff>, Fate) {
        let mut offload = Fields::default();
        // SAFETY: the frame is ours.
        let offloaded = unsafe { shim::tofu_shim_skb_offload(*skb, &mut offload) };
        let frame = Skb::new(*skb);
        let to = frame.destination(self.outbound.node());
        let node = to.node();
        let metadata = match offloaded {
            true => Metadata::from_fields(offload),
            false => Some(Metadata::default()),
        };
        if let (Some(node), Some(metadata)) = (node, &metadata) {
            if let Some(fate) = self.request(peers, node, frame, metadata, now) {
                // SAFETY: the frame is ours.
                return (Some(unsafe { shim::tofu_shim_skb_next(*skb) }), fate);
            }
        }
        if offloaded {
            let metadata = metadata.filter(|_| node.is_some_and(|to| peers.get(to, now).offload));
            let too_long = frame.len > MAX_OFFLOADED;
            // SAFETY: the frame is ours.
            if metadata.is_some() && too_long && unsafe { shim::tofu_shim_skb_cut(skb) } {
                return (None, Fate::Dropped);
            }
            match (node, metadata) {
                (Some(node), Some(metadata)) if !too_long => {
                    let sent = self.send_offloaded(node, frame, &metadata, now);
                    // SAFETY: the frame is ours.
                    let rest = unsafe { shim::tofu_shim_skb_next(*skb) };
                    return (Some(rest), Fate::of(sent));
                }
                _ => {}
            }
            self.counters.completed += 1;
            // SAFETY: the frame is ours.
            if unsafe { shim::tofu_shim_skb_complete(skb) } {
                // SAFETY: as above.
                let still = unsafe { shim::tofu_shim_skb_offload(*skb, &mut offload) };
                if !still {
                    return (None, Fate::Dropped);
                }
            }
            // SAFETY: as above.
            let rest = unsafe { shim::tofu_shim_skb_next(*skb) };
            return (Some(rest), Fate::Dropped);
        }
        // SAFETY: as above.
        let rest = unsafe { shim::tofu_shim_skb_next(*skb) };
        let sent = self.send_to(queue, to, frame, now);
        (Some(rest), Fate::of(sent))
    }

    /// Sends a frame. A query for an address is answered. Returns whether it was sent.
    fn send_to(&mut self, queue: *mut NetQueue, to: Destination, frame: Skb, now: u64) -> bool {
        let Some(sender) = self.sender.as_mut() else {
            return false;
        };
        let sent = self.outbound.send(sender, to, &frame, now);
        if let Ok(Some(reply)) = &sent {
            let frame = reply.as_bytes();
            // SAFETY: the interface is up; the bytes are copied.
            unsafe { shim::tofu_shim_skb_answer(queue, frame.as_ptr().cast(), frame.len() as u32) };
        }
        self.is_sent(sent)
    }

    /// Sends a frame with its metadata to a node. Returns whether it was sent.
    fn send_offloaded(&mut self, to: Coords, frame: Skb, metadata: &Metadata, now: u64) -> bool {
        let Some(sender) = self.sender.as_mut() else {
            return false;
        };
        let outbound = &mut self.outbound;
        let sent = outbound.unicast(sender, to, &frame, Some(metadata), now);
        self.is_sent(sent)
    }

    /// Whether a frame was sent. If there was no room for it, it is counted.
    fn is_sent<T>(&mut self, sent: Result<T, Unsent>) -> bool {
        let unsent = sent.err();
        self.counters.full += u64::from(unsent == Some(Unsent::Full));
        unsent.is_none()
    }

    /// Whether what was posted can wait for more: it is requests to a node of which so many others
    /// are under way that an answer is to come soon, and a poll with it. There is one in 10 ms at
    /// the latest. A node that does not answer holds up its own frames only.
    fn can_wait(&self) -> bool {
        let posted = self.sender.as_ref().map_or(0, Sender::posted);
        let Some(to) = self.untold_to else {
            return false;
        };
        posted == self.untold && posted < BATCH && self.requests.under_way_to(to) >= posted + BATCH
    }
}
