// SPDX-License-Identifier: GPL-2.0

//! Long frames, which their receiver fetches from their sender's memory.

use kernel::prelude::*;

use tofu_abi::{Coords, Rcode};
use tofu_ipotofu::addr;
use tofu_ipotofu::offer::{Message, Offer, Room, Slots, MIN_FRAME, SHUN_LAPSED_NS, SHUN_NS, SLOTS};
use tofu_ipotofu::offload::{Facts, FACTS_SIZE};
use tofu_ipotofu::wire::{self, Kind, Sum, HEADER_SIZE};

use super::counts::Count;
use super::frame::{read_and_sum, Frame, HEAD};
use super::known::Known;
use super::rx::{RxState, Step};
use super::tx::Tx;
use super::Link;
use crate::packets::Purpose;
use crate::shim::{self, NetQueue, SkBuff};

/// Why nothing is offered to a node for a while.
const REFUSED: u8 = 0;
const LAPSED: u8 = 1;

/// What the sending side keeps of long frames.
pub(super) struct Long {
    slots: Slots,
    /// Nodes to which nothing is offered.
    shunned: Known,
    /// The node whose next frame waits for a slot, and with it all others.
    blocked: Option<Coords>,
    /// Slots for which a Get has ended, and how, in the order of the commands.
    fetched: KVVec<(u8, Rcode)>,
}

impl Long {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            slots: Slots::default(),
            shunned: Known::new()?,
            blocked: None,
            fetched: KVVec::with_capacity(SLOTS, GFP_KERNEL)?,
        })
    }

    /// Forgets what was under way.
    pub(super) fn clear(&mut self) {
        self.slots = Slots::default();
        self.blocked = None;
        self.fetched.clear();
    }

    /// Whether the stack waits for a slot.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Takes note of the end of a Get.
    pub(super) fn ended(&mut self, slot: u8, code: Rcode) {
        // There is room, as there is one for each slot.
        let _ = self.fetched.push_within_capacity((slot, code));
    }

    /// Whether a Get has ended that was not looked at.
    pub(super) fn has_fetched(&self) -> bool {
        !self.fetched.is_empty()
    }

    fn is_shunned(&self, node: Coords, now: u64) -> bool {
        self.shunned.get(node, now, SHUN_NS) == Some(REFUSED)
            || self.shunned.get(node, now, SHUN_LAPSED_NS) == Some(LAPSED)
    }
}

impl Tx {
    /// Where to put a frame for a node.
    fn room_at(&mut self, link: &Link, to: Coords, now: u64) -> Room {
        let Self { long, counts, .. } = self;
        let Long { slots, shunned, .. } = long;
        slots.expire(now, |node| {
            counts[Count::Lapsed as usize] += 1;
            shunned.set(node, now, LAPSED);
        });
        let able = self.sender.as_ref().is_some_and(|sender| sender.has_long());
        if able && link.heard.fetchers.has(to, now) && !self.long.is_shunned(to, now) {
            self.long.slots.room(to)
        } else {
            Room::None
        }
    }

    /// Whether a frame has to wait until an earlier one to the same node was fetched.
    pub(super) fn must_wait(&mut self, link: &Link, to: Coords, len: usize, now: u64) -> bool {
        let waits = len >= MIN_FRAME && self.room_at(link, to, now) == Room::Busy;
        self.long.blocked = waits.then_some(to);
        waits
    }

    /// Whether the stack still has to wait for a slot.
    pub(super) fn is_blocked(&mut self, link: &Link, now: u64) -> bool {
        let Some(to) = self.long.blocked else {
            return false;
        };
        let blocked = self.room_at(link, to, now) == Room::Busy;
        if !blocked {
            self.long.blocked = None;
        }
        blocked
    }

    /// Offers a frame to a node. False if it is to be sent.
    pub(super) fn offer(
        &mut self,
        link: &Link,
        to: Coords,
        skb: *const SkBuff,
        len: usize,
        facts: &Facts,
        now: u64,
    ) -> bool {
        if len < MIN_FRAME {
            return false;
        }
        let Room::Slot(slot) = self.room_at(link, to, now) else {
            return false;
        };
        let sender = self.sender.as_mut().filter(|sender| sender.room() > 0);
        let Some((memory, place)) = sender.and_then(|sender| sender.share(slot)) else {
            return false;
        };
        let Some(memory) = memory.get_mut(..len) else {
            return false;
        };
        let facts = facts.emit();
        let mut sum = Sum::default();
        sum.add(&facts);
        if !read_and_sum(skb, memory, &mut sum) {
            return false;
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let offer = Offer {
            origin: link.me,
            id,
            total: (FACTS_SIZE + len) as u16,
            sum: sum.finish(),
            facts,
            place,
        };
        self.long.slots.offer(slot, to, id, now);
        self.tell(link, to, &Message::Offer(offer), now);
        self.counts[Count::Offered as usize] += 1;
        self.counts[Count::Sent as usize] += 1;
        true
    }

    fn tell(&mut self, link: &Link, to: Coords, message: &Message, now: u64) {
        let (mut header, body) = message.emit(link.me);
        header[1] |= wire::more_queues(link.queues - 1);
        self.post_parts(link, to, Purpose::Unicast, &header, &body, now);
    }

    /// A node has answered an offer, and thereby all before it.
    fn done(&mut self, from: Coords, id: u32, refused: bool, now: u64) {
        self.long.slots.done(from, id);
        if refused {
            self.long.shunned.set(from, now, REFUSED);
        }
    }
}

impl RxState {
    /// Whether frames are on their way here from others' memory.
    pub(super) fn is_fetching(&self) -> bool {
        self.fetches.are_under_way()
    }

    /// Takes a message about frames that are fetched.
    pub(super) fn hear(&mut self, link: &Link, from: Coords, payload: &[u8], now: u64) {
        let mut tx = link.tx.lock();
        let able = tx.sender.as_ref().is_some_and(|sender| sender.has_long());
        let message = payload
            .split_at_checked(HEADER_SIZE)
            .filter(|_| able)
            .and_then(|(header, body)| Message::parse(from, header, body));
        let more = wire::says_more_queues(payload);
        link.heard.learn(from, message.is_some(), more, now);
        let Some(message) = message else {
            self.count(Count::Malformed);
            return;
        };
        let (id, len, kind) = match &message {
            Message::Offer(offer) => (offer.id, offer.total, 4),
            Message::Done { id, .. } => (*id, 0, 5),
        };
        // SAFETY: no requirements.
        unsafe { shim::tofu_shim_trace_packet(link.tni.get(), addr::pack(from), id, 0, len, kind) };
        match message {
            Message::Offer(offer) => {
                if !self.fetches.add(offer) {
                    self.count(Count::Unfetched);
                    self.answer(link, &mut tx, false, now);
                }
                self.fetch(link, &mut tx, now);
            }
            Message::Done { id, refused } => tx.done(from, id, refused, now),
        }
    }

    /// Fetches what can be.
    fn fetch(&mut self, link: &Link, tx: &mut Tx, now: u64) {
        while let Some((slot, offer)) = self.fetches.begin() {
            let len = usize::from(offer.total).saturating_sub(FACTS_SIZE);
            let begun = tx
                .sender
                .as_mut()
                .is_some_and(|sender| sender.fetch(offer.origin, offer.place, slot, len));
            if !begun {
                self.unfetched(link, tx, slot, now);
            }
        }
        tx.flush();
    }

    /// A frame could not be fetched: its origin is to send the next ones.
    fn unfetched(&mut self, link: &Link, tx: &mut Tx, slot: usize, now: u64) {
        let Some(offer) = self.fetches.take(slot) else {
            return;
        };
        self.count(Count::Unfetched);
        self.fetches.answered(offer.origin);
        let (id, refused) = (offer.id, true);
        tx.tell(link, offer.origin, &Message::Done { id, refused }, now);
    }

    /// Answers offers that are dealt with: those whose answer cannot wait, or all.
    pub(super) fn answer(&mut self, link: &Link, tx: &mut Tx, all: bool, now: u64) {
        while let Some((node, id)) = self.fetches.answer(all) {
            let refused = false;
            tx.tell(link, node, &Message::Done { id, refused }, now);
        }
    }

    /// Takes the next frame that was fetched, if one was.
    pub(super) fn take_fetched(
        &mut self,
        link: &Link,
        queue: *mut NetQueue,
        now: u64,
    ) -> Option<Step> {
        let mut tx = link.tx.lock();
        let (slot, code) = tx.long.fetched.remove(0).ok()?;
        let slot = usize::from(slot);
        let frame = if code == Rcode::SUCCESS {
            let offer = self.fetches.take(slot)?;
            let frame = self.copy(&tx, queue, slot, &offer);
            self.answer(link, &mut tx, false, now);
            frame.map(|frame| (frame, offer))
        } else {
            self.unfetched(link, &mut tx, slot, now);
            None
        };
        self.fetch(link, &mut tx, now);
        drop(tx);
        let Some((frame, offer)) = frame else {
            return Some(Step::Done);
        };
        let mut head = [0; HEAD];
        let head = frame.head(&mut head);
        let kind = Kind::Unfinished;
        let Some(facts) = self.accept(link, offer.origin, kind, Some(&offer.facts), head) else {
            return Some(Step::Done);
        };
        self.count(Count::Fetched);
        Some(Step::Frame(frame, facts.filter(|f| !f.is_finished())))
    }

    /// A frame as it was fetched, if it is what was offered. Others could write to where it is, so
    /// that what is summed up and looked at must be a copy.
    fn copy(&mut self, tx: &Tx, queue: *mut NetQueue, slot: usize, offer: &Offer) -> Option<Frame> {
        let sender = tx.sender.as_ref()?;
        let len = usize::from(offer.total).saturating_sub(FACTS_SIZE);
        let Some(mut frame) = Frame::new(queue, len) else {
            self.count(Count::NoMemory);
            return None;
        };
        let mut sum = Sum::default();
        sum.add(&offer.facts);
        let mut at = 0;
        while at < len {
            let part = frame.part(at);
            if part.is_empty() || !sender.fetched(slot, at, part, &mut sum) {
                break;
            }
            at += part.len();
        }
        if at != len || sum.finish() != offer.sum {
            self.count(Count::Damaged);
            return None;
        }
        Some(frame)
    }
}
