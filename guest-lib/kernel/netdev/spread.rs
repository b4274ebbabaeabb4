// SPDX-License-Identifier: GPL-2.0

//! Broadcasts, which spread along a tree and are confirmed.

use tofu_abi::Coords;
use tofu_ipotofu::tree;
use tofu_ipotofu::wire::{Kind, Repr, Sum, PIECE_MAX};

use super::counts::Count;
use super::frame::read;
use super::tx::Tx;
use super::Link;
use crate::packets::{Purpose, Sender};
use crate::shim::SkBuff;

/// How long the confirmation of a broadcast may take before it goes around the node, and how long
/// it goes around at once from then on.
const CONFIRM_NS: u64 = 100_000_000;
const DEAF_NS: u64 = 10_000_000_000;
/// Pieces that wait for confirmation at a time.
pub(super) const AWAITED: usize = 64;
/// Nodes to which one piece of a broadcast may still have to go.
pub(super) const SPREAD: usize = 128;

/// A piece of a broadcast whose confirmation is awaited.
#[derive(Clone)]
pub(super) struct Awaited {
    pub(super) live: bool,
    pub(super) to: Coords,
    pub(super) repr: Repr,
    pub(super) since: u64,
    pub(super) body: [u8; PIECE_MAX],
}

/// In place of the piece of a broadcast where there is none.
pub(super) const NO_PIECE: Repr = Repr {
    kind: Kind::Heard,
    takes_unfinished: false,
    asks: false,
    total: 0,
    offset: 0,
    length: 0,
    id: 0,
    sum: 0,
    origin: Coords::new(0, 0, 0, 0, 0, 0),
};

impl Tx {
    /// Sends a frame to all nodes.
    pub(super) fn broadcast(
        &mut self,
        link: &Link,
        skb: *const SkBuff,
        len: usize,
        now: u64,
    ) -> bool {
        let mut scratch = core::mem::take(&mut self.scratch);
        let sent = self.broadcast_by(link, skb, len, &mut scratch, now);
        self.scratch = scratch;
        sent
    }

    fn broadcast_by(
        &mut self,
        link: &Link,
        skb: *const SkBuff,
        len: usize,
        scratch: &mut [u8],
        now: u64,
    ) -> bool {
        let pieces = len.div_ceil(PIECE_MAX);
        let children = tree::children(&link.shape, link.me, link.me);
        let room = self.sender.as_ref().map_or(0, Sender::room);
        if pieces * children.clone().count() > room {
            self.counts[Count::Full as usize] += 1;
            return false;
        }
        let piece = |n: usize| n * PIECE_MAX..len.min((n + 1) * PIECE_MAX);
        let mut sum = Sum::default();
        for part in (0..pieces).map(piece).filter(|_| pieces > 1) {
            let Some(body) = scratch.get_mut(..part.len()) else {
                return false;
            };
            if !read(skb, part.start, body) {
                return false;
            }
            sum.add(body);
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        for part in (0..pieces).map(piece) {
            let Some(body) = scratch.get_mut(..part.len()) else {
                return false;
            };
            if !read(skb, part.start, body) {
                return false;
            }
            let repr = Repr {
                kind: Kind::Broadcast,
                takes_unfinished: true,
                asks: true,
                total: len as u16,
                offset: part.start as u16,
                length: part.len() as u16,
                id,
                sum: if pieces > 1 { sum.finish() } else { 0 },
                origin: link.me,
            };
            for child in children.clone() {
                self.spread(link, child, &repr, body, now);
            }
        }
        self.counts[Count::Sent as usize] += 1;
        true
    }

    /// Sends a piece of a broadcast to a node, and, if that is known not to listen, to those to
    /// which it would have handed it on.
    pub(super) fn spread(&mut self, link: &Link, to: Coords, repr: &Repr, body: &[u8], now: u64) {
        let header = repr.emit();
        self.spread.clear();
        let _ = self.spread.push_within_capacity(to);
        // Every node is in the tree once, so this ends.
        while let Some(node) = self.spread.pop() {
            self.post_parts(link, node, Purpose::Broadcast, &header, body, now);
            if !repr.asks {
                continue;
            }
            let mut behind = tree::children(&link.shape, repr.origin, node).peekable();
            if behind.peek().is_none() {
                continue;
            }
            if self.deaf.get(node, now, DEAF_NS).is_some() {
                for child in behind {
                    if self.spread.push_within_capacity(child).is_err() {
                        self.counts[Count::Lost as usize] += 1;
                    }
                }
            } else {
                self.expect(node, repr, body, now);
            }
        }
    }

    /// Notes that a piece is to be confirmed. If too many are, the oldest counts as confirmed.
    fn expect(&mut self, to: Coords, repr: &Repr, body: &[u8], now: u64) {
        if self.waiting == AWAITED {
            self.first = (self.first + 1) % AWAITED;
            self.waiting -= 1;
        }
        let at = (self.first + self.waiting) % AWAITED;
        if let Some(one) = self.awaited.get_mut(at) {
            one.live = true;
            one.to = to;
            one.repr = *repr;
            one.since = now;
            if let Some(place) = one.body.get_mut(..body.len()) {
                place.copy_from_slice(body);
            }
            self.waiting += 1;
        }
    }

    /// Takes note that a piece has come to a node, or never will.
    pub(super) fn forget(&mut self, to: Coords, origin: Coords, id: u32, offset: u16) {
        for one in self.awaited.iter_mut() {
            if (one.to, one.repr.origin, one.repr.id, one.repr.offset) == (to, origin, id, offset) {
                one.live = false;
            }
        }
    }

    /// Has broadcasts go around nodes that have not confirmed them in time.
    pub(super) fn go_around(&mut self, link: &Link, now: u64) {
        while self.waiting > 0 {
            let Some(one) = self.awaited.get(self.first) else {
                return;
            };
            if one.live && now.saturating_sub(one.since) < CONFIRM_NS {
                return;
            }
            let (live, to, repr) = (one.live, one.to, one.repr);
            let mut scratch = core::mem::take(&mut self.scratch);
            let len = usize::from(repr.length).min(scratch.len());
            scratch[..len].copy_from_slice(&one.body[..len]);
            self.first = (self.first + 1) % AWAITED;
            self.waiting -= 1;
            if live {
                self.deaf.set(to, now, 0);
                for child in tree::children(&link.shape, repr.origin, to) {
                    self.spread(link, child, &repr, &scratch[..len], now);
                }
            }
            self.scratch = scratch;
        }
    }
}
