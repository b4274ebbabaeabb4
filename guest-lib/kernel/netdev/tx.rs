// SPDX-License-Identifier: GPL-2.0

//! The sending side.

use kernel::prelude::*;

use tofu_abi::frame::SYSTEM_PAYLOAD_MAX;
use tofu_abi::{Coords, Rcode};
use tofu_ipotofu::addr::{self, Mac};
use tofu_ipotofu::neighbor::{Answer, Place};
use tofu_ipotofu::offer::FETCHES;
use tofu_ipotofu::offload::{Facts, FACTS_SIZE};
use tofu_ipotofu::routes::route;
use tofu_ipotofu::tree;
use tofu_ipotofu::wire::{self, Kind, Packet, Repr, Sum, ETHERNET_HEADER, HEADER_SIZE, PIECE_MAX};

use super::carrier::Ports;
use super::counts::{Count, COUNTS};
use super::frame::{read, HEAD};
use super::known::Known;
use super::long::Long;
use super::spread::{Awaited, AWAITED, NO_PIECE, SPREAD};
use super::{now_ns, Link};
use crate::packets::{Order, Purpose, Sender};
use crate::shim::{self, NetFacts, NetQueue, SkBuff};

/// Pieces of the longest frame, with what is in front of it.
const MAX_PIECES: usize = (u16::MAX as usize).div_ceil(PIECE_MAX);
/// The stack is held when there is not room for so many packets: for a frame that has to be cut
/// into 64 segments here.
const RESERVE: usize = 80;
/// It goes on when there is room for so many.
const ENOUGH: usize = 2 * RESERVE;
/// How long a way round a dead link is kept before the first one is tried again.
const DETOUR_NS: u64 = 1_000_000_000;

/// The sending side.
pub(super) struct Tx {
    pub(super) sender: Option<Sender>,
    pub(super) next_id: u32,
    pub(super) ports: Ports,
    pub(super) long: Long,
    pub(super) detours: Known,
    pub(super) deaf: Known,
    /// A ring, in the order of sending: the next one to be looked at, and how many there are.
    pub(super) awaited: KVVec<Awaited>,
    pub(super) first: usize,
    pub(super) waiting: usize,
    /// Nodes to which the piece that is being spread has still to go.
    pub(super) spread: KVVec<Coords>,
    pub(super) scratch: KVVec<u8>,
    pub(super) counts: [u64; COUNTS],
}

impl Link {
    /// The node that a frame is for, if it is for one; and whether it is a frame at all.
    fn target(&self, skb: *const SkBuff, mac: &mut Mac) -> (Option<Coords>, bool) {
        // SAFETY: the caller has the frame.
        let len = unsafe { shim::tofu_shim_skb_len(skb) } as usize;
        let is_frame = len >= ETHERNET_HEADER && read(skb, 0, mac);
        let node =
            addr::node_of_mac(*mac).filter(|node| *node != self.me && self.shape.contains(*node));
        (node.filter(|_| is_frame), is_frame)
    }

    /// Sends a frame of the stack's, or drops it. False if it has to wait.
    pub(super) fn xmit(&self, queue: *mut NetQueue, mut skb: *mut SkBuff, more: bool) -> bool {
        let now = now_ns();
        let mut tx = self.tx.lock();
        tx.reap(self, now);
        if let (Some(node), _) = self.target(skb, &mut [0; 6]) {
            // SAFETY: the frame is ours.
            let len = unsafe { shim::tofu_shim_skb_len(skb) } as usize;
            if tx.must_wait(self, node, len, now) {
                tx.counts[Count::Held as usize] += 1;
                // SAFETY: the interface is up.
                unsafe { shim::tofu_shim_net_hold(queue) };
                tx.flush();
                // SAFETY: as above.
                unsafe { shim::tofu_shim_net_look_again(queue) };
                return false;
            }
        }
        while !skb.is_null() {
            let (next, sent) = self.send(&mut tx, queue, &mut skb, now);
            let Some(rest) = next else {
                // It has become several.
                continue;
            };
            // SAFETY: the frame is ours and not used any more.
            unsafe { shim::tofu_shim_skb_sent(queue, skb, sent) };
            skb = rest;
        }
        let room = tx.sender.as_ref().map_or(0, Sender::room);
        if room < RESERVE {
            tx.counts[Count::Held as usize] += 1;
            // SAFETY: the interface is up.
            unsafe { shim::tofu_shim_net_hold(queue) };
        }
        if !more || room < RESERVE {
            if let Some(sender) = tx.sender.as_mut() {
                sender.flush();
            }
        }
        // SAFETY: the interface is up.
        unsafe { shim::tofu_shim_net_look_again(queue) };
        true
    }

    /// The queue for a frame for which the stack has chosen one.
    pub(super) fn select(&self, skb: *const SkBuff, chosen: u16) -> u16 {
        let queues = match self.target(skb, &mut [0; 6]) {
            (Some(node), _) => self.heard.queues(node, now_ns()),
            _ => 1,
        };
        if usize::from(chosen) < queues {
            chosen
        } else {
            0
        }
    }

    /// Sends the first frame of a list. Returns the rest of the list and whether it was sent; no
    /// rest if the frame had to be finished first and is now a list of its own.
    fn send(
        &self,
        tx: &mut Tx,
        queue: *mut NetQueue,
        skb: &mut *mut SkBuff,
        now: u64,
    ) -> (Option<*mut SkBuff>, bool) {
        let mut facts = NetFacts::default();
        // SAFETY: the frame is ours.
        let unfinished = unsafe { shim::tofu_shim_skb_facts(*skb, &mut facts) };
        // SAFETY: as above.
        let len = unsafe { shim::tofu_shim_skb_len(*skb) } as usize;
        let mut mac: Mac = [0; 6];
        let (node, is_frame) = self.target(*skb, &mut mac);
        let prefix = match unfinished {
            true => facts.facts(),
            false => Some(Facts::default()),
        };
        let prefix = prefix.filter(|_| len + FACTS_SIZE <= u16::MAX.into());
        if let (Some(node), Some(facts)) = (node, &prefix) {
            if tx.offer(self, node, *skb, len, facts, now) {
                // SAFETY: the frame is ours.
                return (Some(unsafe { shim::tofu_shim_skb_next(*skb) }), true);
            }
        }
        if unfinished {
            match (node, prefix) {
                (Some(node), Some(facts)) if self.heard.takers.has(node, now) => {
                    let sent = tx.unicast(self, node, *skb, len, Some(&facts), now);
                    // SAFETY: the frame is ours.
                    return (Some(unsafe { shim::tofu_shim_skb_next(*skb) }), sent);
                }
                _ => {}
            }
            // A list has only frames that are finished, but for a checksum, so nothing is lost
            // behind this one.
            tx.counts[Count::Finished as usize] += 1;
            // SAFETY: the frame is ours.
            if unsafe { shim::tofu_shim_skb_finish(skb) } {
                // SAFETY: as above.
                let still = unsafe { shim::tofu_shim_skb_facts(*skb, &mut facts) };
                if !still {
                    return (None, false);
                }
            }
            // SAFETY: as above.
            return (Some(unsafe { shim::tofu_shim_skb_next(*skb) }), false);
        }
        // SAFETY: as above.
        let rest = unsafe { shim::tofu_shim_skb_next(*skb) };
        let sent = if !is_frame || len > u16::MAX.into() {
            tx.counts[Count::Oversized as usize] += 1;
            false
        } else if addr::is_multicast(mac) {
            self.send_to_group(tx, queue, *skb, len, now)
        } else if let Some(node) = node {
            tx.unicast(self, node, *skb, len, None, now)
        } else {
            tx.counts[Count::NoSuchNode as usize] += 1;
            false
        };
        (Some(rest), sent)
    }

    fn send_to_group(
        &self,
        tx: &mut Tx,
        queue: *mut NetQueue,
        skb: *const SkBuff,
        len: usize,
        now: u64,
    ) -> bool {
        let mut head = [0; HEAD];
        let head = &mut head[..len.min(HEAD)];
        if !read(skb, 0, head) {
            return false;
        }
        let place = Place {
            shape: &self.shape,
            machine: self.machine,
            me: self.me,
        };
        match place.answer(head) {
            Answer::Reply(reply) => {
                tx.counts[Count::Answered as usize] += 1;
                let frame = reply.as_bytes();
                // SAFETY: the interface is up; the bytes are copied.
                unsafe {
                    shim::tofu_shim_skb_answer(queue, frame.as_ptr().cast(), frame.len() as u32)
                };
                true
            }
            Answer::Silence => true,
            Answer::None => tx.broadcast(self, skb, len, now),
        }
    }
}

impl Tx {
    pub(super) fn new(ports: Ports) -> Result<Self> {
        let awaited = Awaited {
            live: false,
            to: Coords::default(),
            repr: NO_PIECE,
            since: 0,
            body: [0; PIECE_MAX],
        };
        let mut ring = KVVec::with_capacity(AWAITED, GFP_KERNEL)?;
        for _ in 0..AWAITED {
            ring.push(awaited.clone(), GFP_KERNEL)?;
        }
        Ok(Self {
            sender: None,
            next_id: 0,
            ports,
            long: Long::new()?,
            detours: Known::new()?,
            deaf: Known::new()?,
            awaited: ring,
            first: 0,
            waiting: 0,
            spread: KVVec::with_capacity(SPREAD, GFP_KERNEL)?,
            scratch: KVVec::from_elem(0, PIECE_MAX, GFP_KERNEL)?,
            counts: [0; COUNTS],
        })
    }

    pub(super) fn flush(&mut self) {
        if let Some(sender) = self.sender.as_mut() {
            sender.flush();
        }
    }

    /// Whether the stack may go on, should it have been held.
    pub(super) fn goes_on(&mut self, link: &Link, now: u64) -> bool {
        let room = self.sender.as_ref().map_or(0, Sender::room);
        room >= ENOUGH && !self.is_blocked(link, now)
    }

    /// Posts the packet in a buffer.
    pub(super) fn post(
        &mut self,
        link: &Link,
        to: Coords,
        purpose: Purpose,
        buffer: u16,
        len: usize,
        now: u64,
    ) {
        let attempt = self.detours.get(to, now, DETOUR_NS).unwrap_or(0);
        let target = route(&link.shape, link.me, to, link.tni.get(), attempt);
        let Some(sender) = self.sender.as_mut() else {
            return;
        };
        let Some(target) = target else {
            self.counts[Count::Lost as usize] += 1;
            sender.give_up(buffer);
            return;
        };
        // Whoever is held must hear of room as soon as there is some: at the ends of frames.
        let ask = sender.room() < ENOUGH && len < SYSTEM_PAYLOAD_MAX;
        sender.post(Order::new(to, attempt, purpose, buffer, len), &target, ask);
    }

    /// Posts a packet of these two parts.
    pub(super) fn post_parts(
        &mut self,
        link: &Link,
        to: Coords,
        purpose: Purpose,
        header: &[u8; HEADER_SIZE],
        body: &[u8],
        now: u64,
    ) {
        let len = HEADER_SIZE + body.len();
        let sender = self.sender.as_mut();
        let filled = sender.and_then(|sender| {
            let buffer = sender.take()?;
            let payload = sender.payload(buffer).and_then(|all| all.get_mut(..len));
            match payload {
                Some(payload) => {
                    let (head, rest) = payload.split_at_mut(HEADER_SIZE);
                    head.copy_from_slice(header);
                    rest.copy_from_slice(body);
                    Some(buffer)
                }
                None => {
                    sender.give_up(buffer);
                    None
                }
            }
        });
        match filled {
            Some(buffer) => self.post(link, to, purpose, buffer, len, now),
            None => self.counts[Count::Lost as usize] += 1,
        }
    }

    /// Sends a frame to a node, with facts in front of it if it is not finished.
    pub(super) fn unicast(
        &mut self,
        link: &Link,
        to: Coords,
        skb: *const SkBuff,
        len: usize,
        facts: Option<&Facts>,
        now: u64,
    ) -> bool {
        let emitted = facts.map(Facts::emit);
        let prefix: &[u8] = emitted.as_ref().map_or(&[], |facts| &facts[..]);
        let total = prefix.len() + len;
        let pieces = total.div_ceil(PIECE_MAX);
        let mut buffers = [0u16; MAX_PIECES];
        let Some(sender) = self.sender.as_mut() else {
            return false;
        };
        if pieces > MAX_PIECES || pieces > sender.room() {
            self.counts[Count::Full as usize] += 1;
            return false;
        }
        let flags =
            if sender.has_long() { FETCHES } else { 0 } | wire::more_queues(link.queues - 1);
        let summed = pieces > 1 || facts.is_some();
        let mut sum = Sum::default();
        for (n, place) in buffers.iter_mut().take(pieces).enumerate() {
            // There is room, as was just seen.
            let Some(buffer) = sender.take() else {
                return false;
            };
            *place = buffer;
            let offset = n * PIECE_MAX;
            let end = HEADER_SIZE + (total - offset).min(PIECE_MAX);
            let body = sender
                .payload(buffer)
                .and_then(|all| all.get_mut(HEADER_SIZE..end));
            let copied = body.is_some_and(|body| {
                let in_front = prefix.len().saturating_sub(offset);
                let (front, rest) = body.split_at_mut(in_front);
                front.copy_from_slice(&prefix[..in_front]);
                let copied = read(skb, (offset + in_front) - prefix.len(), rest);
                if summed {
                    sum.add(body);
                }
                copied
            });
            if !copied {
                for buffer in &buffers[..=n] {
                    sender.give_up(*buffer);
                }
                self.counts[Count::Lost as usize] += 1;
                return false;
            }
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        for (n, buffer) in buffers.iter().take(pieces).enumerate() {
            let offset = n * PIECE_MAX;
            let length = (total - offset).min(PIECE_MAX);
            let repr = Repr {
                kind: if facts.is_some() {
                    Kind::Unfinished
                } else {
                    Kind::Unicast
                },
                takes_unfinished: true,
                asks: false,
                total: total as u16,
                offset: offset as u16,
                length: length as u16,
                id,
                sum: if summed { sum.finish() } else { 0 },
                origin: link.me,
            };
            let header = self
                .sender
                .as_mut()
                .and_then(|sender| sender.payload(*buffer));
            if let Some(header) = header.and_then(|all| all.first_chunk_mut()) {
                *header = repr.emit();
                header[1] |= flags;
            }
            self.post(
                link,
                to,
                Purpose::Unicast,
                *buffer,
                HEADER_SIZE + length,
                now,
            );
        }
        self.counts[Count::Sent as usize] += 1;
        true
    }

    /// Looks after packets whose sending has ended.
    pub(super) fn reap(&mut self, link: &Link, now: u64) {
        while let Some((order, code)) = self.sender.as_mut().and_then(Sender::reap) {
            let is_packet = match order.purpose {
                Purpose::Port(port) => {
                    self.ports.answered(port, code);
                    false
                }
                Purpose::Fetch(slot) => {
                    self.long.ended(slot, code);
                    continue;
                }
                Purpose::Unicast | Purpose::Broadcast => true,
            };
            if is_packet && code != Rcode::SUCCESS {
                if code == Rcode::LINK_DOWN {
                    self.ports.suspect();
                }
                self.retry(link, &order, code, now);
            } else if let Some(sender) = self.sender.as_mut() {
                sender.give_up(order.buffer());
            }
        }
    }

    /// Sends a lost packet another way, or, if it is a broadcast for a node that cannot be
    /// reached, to those to which that node would have handed it on.
    fn retry(&mut self, link: &Link, order: &Order, code: Rcode, now: u64) {
        let Some(sender) = self.sender.as_mut() else {
            return;
        };
        let next = order.attempt.saturating_add(1);
        let way = (code == Rcode::LINK_DOWN)
            .then(|| route(&link.shape, link.me, order.to, link.tni.get(), next))
            .flatten();
        if let Some(target) = way {
            self.detours.set(order.to, now, next);
            self.counts[Count::Rerouted as usize] += 1;
            let again = Order::new(order.to, next, order.purpose, order.buffer(), order.len());
            sender.post(again, &target, false);
            return;
        }
        self.detours.forget(order.to);
        self.counts[Count::Lost as usize] += 1;
        let mut scratch = core::mem::take(&mut self.scratch);
        let mut repr = None;
        if let Some(payload) = sender.payload(order.buffer()) {
            let parsed = payload.get(..order.len()).and_then(|packet| {
                let (_, body) = packet.split_at_checked(HEADER_SIZE)?;
                let packet = Packet::new_checked(packet).ok()?;
                let repr = Repr::parse(&packet, body.len()).ok()?;
                scratch
                    .get_mut(..usize::from(repr.length))?
                    .copy_from_slice(&body[..usize::from(repr.length)]);
                Some(repr)
            });
            repr = parsed.filter(|_| order.purpose == Purpose::Broadcast);
        }
        sender.give_up(order.buffer());
        if let Some(repr) = repr {
            self.forget(order.to, repr.origin, repr.id, repr.offset);
            for child in tree::children(&link.shape, repr.origin, order.to) {
                self.spread(
                    link,
                    child,
                    &repr,
                    &scratch[..usize::from(repr.length)],
                    now,
                );
            }
        }
        self.scratch = scratch;
    }
}
