// SPDX-License-Identifier: GPL-2.0

//! Transmission of the stack's frames.

use tofu_abi::Coords;
use tofu_ipotofu::neighbor::{Destination, LocalNode};
use tofu_ipotofu::offload::{Metadata, MAX_OFFLOADED};
use tofu_ipotofu::Unsent;

use super::{destination, Tx};
use crate::engine::{now_ns, Peers};
use crate::packets::{Sender, ENOUGH};
use crate::skb::{SentSkb, Skb, SkbList};
use crate::tx_queue::TxQueue;

/// The queue is stopped below this many free slots, those of a frame that is segmented into 200
/// here, and woken at [`ENOUGH`].
const RESERVE: usize = ENOUGH / 2;
/// Requests that share a doorbell, if as many are in flight.
const BATCH: usize = 4;

/// The queue for a frame for which the stack has chosen one.
pub(in crate::netdev) fn select(node: &LocalNode, peers: &Peers, skb: &Skb, chosen: u16) -> u16 {
    let to = destination(skb, node).node();
    let more = to.map_or(0, |node| peers.get(node, now_ns()).more_queues);
    if chosen <= more.into() {
        chosen
    } else {
        0
    }
}

impl Tx {
    /// Sends a frame of the stack, or drops it.
    ///
    /// # Errors
    ///
    /// The frame, if it must wait; the queue is then stopped.
    pub(in crate::netdev) fn xmit(
        &mut self,
        peers: &Peers,
        queue: TxQueue<'_>,
        skb: Skb,
        more: bool,
    ) -> Result<(), Skb> {
        let now = now_ns();
        let corked = self.is_corked();
        if self.room() < ENOUGH {
            self.reap(now);
        }
        if self.must_wait(peers, &skb, now) {
            self.counters.held += 1;
            queue.stop_queue();
            self.flush();
            queue.start_timer();
            return Err(skb);
        }
        // The last frame is freed after the doorbell, so that the device can send it in that time.
        let mut last = None;
        let mut list = SkbList::from(skb);
        while let Some(skb) = list.pop() {
            last = self.send(peers, queue, skb, &mut list, now).or(last);
        }
        let room = self.room();
        if room < RESERVE {
            self.counters.held += 1;
            queue.stop_queue();
        }
        let full = self.account(queue) || room < RESERVE;
        let later = more || corked && !self.lone || self.can_wait();
        if !later || full {
            // The doorbell is rung immediately for a lone frame, and once for those that follow it.
            self.lone = false;
            self.flush();
            if !corked {
                // A poll does so when it ends.
                self.reap(now);
                self.flush();
                self.account(queue);
            }
        }
        drop(last);
        if room < RESERVE || !self.is_settled() {
            queue.start_timer();
        }
        Ok(())
    }

    /// Sends a frame, drops it, or puts the frames into which it was segmented at the head of the
    /// list. Returns the frame if it was sent and is no longer needed.
    fn send(
        &mut self,
        peers: &Peers,
        queue: TxQueue<'_>,
        mut skb: Skb,
        list: &mut SkbList,
        now: u64,
    ) -> Option<SentSkb> {
        let len = skb.len();
        let to = destination(&skb, self.outbound.node());
        let offload = skb.offload();
        let offloaded = offload.is_some();
        let mut metadata = offload.map_or(Some(Metadata::default()), Metadata::from_fields);
        if let (Some(node), Some(metadata)) = (to.node(), &metadata) {
            skb = match self.request(peers, node, skb, metadata, now) {
                Ok(copied) => {
                    queue.count_tx(len, true);
                    return copied;
                }
                Err(skb) => skb,
            };
        }
        let sent = if offloaded {
            let node = to.node().filter(|node| peers.get(*node, now).offload);
            metadata = metadata.filter(|_| node.is_some());
            if metadata.is_some() && len > MAX_OFFLOADED {
                skb = match skb.gso_segment() {
                    Ok(segments) => {
                        list.prepend(segments);
                        return None;
                    }
                    Err(skb) => skb,
                };
            }
            let (Some(node), Some(metadata), ..=MAX_OFFLOADED) = (node, metadata, len) else {
                self.counters.completed += 1;
                match skb.complete() {
                    Some(complete) => list.prepend(complete),
                    None => queue.count_tx(len, false),
                }
                return None;
            };
            self.send_offloaded(node, &skb, &metadata, now)
        } else {
            self.send_to(queue, to, &skb, now)
        };
        queue.count_tx(len, sent);
        sent.then(|| SentSkb::new(skb))
    }

    /// Sends a frame. A query for an address is answered. Returns whether it was sent.
    fn send_to(&mut self, queue: TxQueue<'_>, to: Destination, skb: &Skb, now: u64) -> bool {
        let Some(sender) = self.sender.as_mut() else {
            return false;
        };
        let sent = self.outbound.send(sender, to, skb, now);
        if let Ok(Some(reply)) = &sent {
            queue.answer(reply.as_bytes());
        }
        self.is_sent(sent)
    }

    /// Sends a frame with its metadata to a node. Returns whether it was sent.
    fn send_offloaded(&mut self, to: Coords, skb: &Skb, metadata: &Metadata, now: u64) -> bool {
        let Some(sender) = self.sender.as_mut() else {
            return false;
        };
        let outbound = &mut self.outbound;
        let sent = outbound.unicast(sender, to, skb, Some(metadata), now);
        self.is_sent(sent)
    }

    /// Returns true if a frame was sent. If there was no room for it, it is counted.
    fn is_sent<T>(&mut self, sent: Result<T, Unsent>) -> bool {
        let unsent = sent.err();
        self.counters.full += u64::from(unsent == Some(Unsent::Full));
        unsent.is_none()
    }

    /// Returns true if the doorbell can wait for more packets: only requests are posted, and enough
    /// are in flight to that node that a completion, and so a poll, is imminent. There is one in 10
    /// ms at the latest. A node that does not answer holds up its own frames only.
    fn can_wait(&self) -> bool {
        let posted = self.sender.as_ref().map_or(0, Sender::posted);
        let Some(to) = self.untold_to else {
            return false;
        };
        posted == self.untold && posted < BATCH && self.requests.under_way_to(to) >= posted + BATCH
    }
}
