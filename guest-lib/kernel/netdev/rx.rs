// SPDX-License-Identifier: GPL-2.0

//! The receiving side.

use kernel::prelude::*;

use tofu_abi::Coords;
use tofu_ipotofu::addr::{self, Mac};
use tofu_ipotofu::offer::{self, Fetches, Offer, MAX_WAITING, OVERTAKE_NS};
use tofu_ipotofu::offload::{Facts, FACTS_SIZE};
use tofu_ipotofu::tree;
use tofu_ipotofu::wire::{self, Kind, Packet, Repr, Sum, PIECE_MAX};

use super::counts::{Count, COUNTS};
use super::frame::{Frame, HEAD};
use super::{now_ns, Link};
use crate::packets::{Purpose, Receiver};
use crate::shim::{self, NetQueue};

/// How long a frame may take from its first piece to its last, in nanoseconds.
const LIFETIME_NS: u64 = 1_000_000_000;
/// Frames that may be under way to this node at a time, and from one node.
const PARTIALS: usize = 32;
const PER_ORIGIN: usize = 8;
/// Pieces of broadcasts that are remembered, to tell those that come twice.
const SEEN: usize = 256;

/// A frame some pieces of which are there.
struct Partial {
    origin: Coords,
    id: u32,
    sum: u32,
    kind: Kind,
    total: u16,
    since: u64,
    /// Bit n is set if piece n is there.
    there: u64,
    so_far: Sum,
    facts: [u8; FACTS_SIZE],
    frame: Frame,
}

/// The receiving side.
pub(super) struct Rx {
    pub(super) receiver: Option<Receiver>,
    pub(super) state: RxState,
}

/// What became of a look for something to receive.
pub(super) enum Step {
    /// There is nothing.
    Idle,
    /// The next packet is to wait for so many nanoseconds, unless something is fetched before.
    Wait(u64),
    /// Something was done.
    Done,
    /// A frame has come, and what is left to do with it.
    Frame(Frame, Option<Facts>),
}

pub(super) struct RxState {
    partials: KVVec<Option<Partial>>,
    /// Origin, id and offset of pieces; the place of the next one.
    seen: KVVec<Option<(Coords, u32, u16)>>,
    next_seen: usize,
    pub(super) counts: [u64; COUNTS],
    pub(super) fetches: Fetches<KVVec<Option<Offer>>>,
    /// When the next packet began to wait for frames that were offered before it.
    late: Option<u64>,
}

impl Rx {
    pub(super) fn new() -> Result<Self> {
        let mut partials = KVVec::with_capacity(PARTIALS, GFP_KERNEL)?;
        for _ in 0..PARTIALS {
            partials.push(None, GFP_KERNEL)?;
        }
        Ok(Self {
            receiver: None,
            state: RxState {
                partials,
                seen: KVVec::from_elem(None, SEEN, GFP_KERNEL)?,
                next_seen: 0,
                counts: [0; COUNTS],
                fetches: Fetches::new(KVVec::from_elem(None, MAX_WAITING, GFP_KERNEL)?),
                late: None,
            },
        })
    }

    /// Takes the next frame that was fetched, or the next packet.
    pub(super) fn step(&mut self, link: &Link, queue: *mut NetQueue, now: u64) -> Step {
        if let Some(step) = self.state.take_fetched(link, queue, now) {
            return step;
        }
        let (Some(receiver), state) = (self.receiver.as_mut(), &mut self.state) else {
            return Step::Idle;
        };
        if let Some(left) = state.must_wait(receiver) {
            return Step::Wait(left);
        }
        let taken = receiver.take(|from, payload| state.receive(link, queue, from, payload, now));
        match taken {
            None => Step::Idle,
            Some(None) => Step::Done,
            Some(Some((frame, facts))) => Step::Frame(frame, facts),
        }
    }
}

impl RxState {
    /// Gives up frames that are not complete.
    pub(super) fn clear(&mut self) {
        for partial in self.partials.iter_mut() {
            *partial = None;
        }
        self.fetches.clear();
        self.late = None;
    }

    /// Whether the next packet waits for a frame.
    pub(super) fn is_waiting(&self) -> bool {
        self.late.is_some()
    }

    /// How much longer the next packet must wait for frames of its origin that were offered before.
    fn must_wait(&mut self, receiver: &Receiver) -> Option<u64> {
        let follows = receiver.peek(|from, payload| {
            offer::is_from_origin(payload) && self.fetches.are_under_way_from(from)
        });
        if follows != Some(true) {
            self.late = None;
            return None;
        }
        let now = now_ns();
        let waited = now.saturating_sub(*self.late.get_or_insert(now));
        let left = OVERTAKE_NS.checked_sub(waited).filter(|left| *left > 0);
        if left.is_none() {
            self.late = None;
        }
        left
    }

    pub(super) fn count(&mut self, what: Count) {
        self.counts[what as usize] += 1;
    }

    /// Takes a packet. Returns a frame that it completes, with what is left to do with it.
    fn receive(
        &mut self,
        link: &Link,
        queue: *mut NetQueue,
        from: Coords,
        payload: &[u8],
        now: u64,
    ) -> Option<(Frame, Option<Facts>)> {
        if offer::is_message(payload) {
            self.hear(link, from, payload, now);
            return None;
        }
        let parsed = Packet::new_checked(payload)
            .and_then(|packet| Repr::parse(&packet, packet.body().len()).map(|r| (r, packet)));
        let Ok((repr, packet)) = parsed else {
            self.count(Count::Malformed);
            return None;
        };
        let body = packet.body().get(..usize::from(repr.length))?;
        // SAFETY: no requirements.
        unsafe {
            shim::tofu_shim_trace_packet(
                link.tni.get(),
                addr::pack(repr.origin),
                repr.id,
                repr.offset,
                repr.length,
                repr.kind as u8,
            )
        };
        match repr.kind {
            Kind::Heard => {
                let mut tx = link.tx.lock();
                tx.deaf.forget(from);
                tx.forget(from, repr.origin, repr.id, repr.offset);
                return None;
            }
            Kind::Unicast | Kind::Unfinished if repr.origin == from => {
                link.heard.takers.learn(from, repr.takes_unfinished, now);
                let more = wire::says_more_queues(payload);
                link.heard
                    .learn(from, offer::says_fetches(payload), more, now);
            }
            Kind::Broadcast
                if link.number == 0
                    && repr.origin != link.me
                    && tree::is_ancestor(&link.shape, repr.origin, from, link.me) =>
            {
                self.hand_on(link, from, &repr, body, now)?;
            }
            _ => {
                self.count(Count::Spoofed);
                return None;
            }
        }
        if repr.is_whole() {
            self.take_whole(link, queue, &repr, body)
        } else {
            self.take_piece(link, queue, &repr, body, now)
        }
    }

    /// Hands a piece of a broadcast on, unless it was here already.
    fn hand_on(
        &mut self,
        link: &Link,
        from: Coords,
        repr: &Repr,
        body: &[u8],
        now: u64,
    ) -> Option<()> {
        let mut tx = link.tx.lock();
        // Also one that has come before: the confirmation may have been lost.
        if repr.asks {
            tx.post_parts(link, from, Purpose::Unicast, &repr.heard().emit(), &[], now);
        }
        let piece = Some((repr.origin, repr.id, repr.offset));
        if self.seen.contains(&piece) {
            drop(tx);
            self.count(Count::Duplicates);
            return None;
        }
        if let Some(place) = self.seen.get_mut(self.next_seen) {
            *place = piece;
        }
        self.next_seen = (self.next_seen + 1) % SEEN;
        for child in tree::children(&link.shape, repr.origin, link.me) {
            self.count(Count::Forwarded);
            tx.spread(link, child, repr, body, now);
        }
        Some(())
    }

    fn take_whole(
        &mut self,
        link: &Link,
        queue: *mut NetQueue,
        repr: &Repr,
        body: &[u8],
    ) -> Option<(Frame, Option<Facts>)> {
        let unfinished = repr.kind == Kind::Unfinished;
        if unfinished && wire::sum(body) != repr.sum {
            self.count(Count::Damaged);
            return None;
        }
        let (facts, whole) = body.split_at_checked(if unfinished { FACTS_SIZE } else { 0 })?;
        let Some(mut frame) = Frame::new(queue, whole.len()) else {
            self.count(Count::NoMemory);
            return None;
        };
        let facts = self.accept(
            link,
            repr.origin,
            repr.kind,
            unfinished.then_some(facts),
            whole,
        )?;
        if !frame.write(0, whole) {
            return None;
        }
        Some((frame, facts))
    }

    /// What is left to do with a frame, if it is one that its origin may send to this node.
    pub(super) fn accept(
        &mut self,
        link: &Link,
        origin: Coords,
        kind: Kind,
        facts: Option<&[u8]>,
        head: &[u8],
    ) -> Option<Option<Facts>> {
        let facts = match facts.map(Facts::parse) {
            None => None,
            // All headers are in the head, and what comes behind them begins there.
            Some(Ok(facts)) if facts.check(head).is_ok() => Some(facts),
            Some(_) => {
                self.count(Count::Malformed);
                return None;
            }
        };
        if head.get(6..12) != Some(&addr::mac(origin)[..]) {
            self.count(Count::Spoofed);
            return None;
        }
        let mac: Mac = *head.first_chunk()?;
        let ours = match kind {
            Kind::Broadcast => addr::is_multicast(mac),
            _ => mac == addr::mac(link.me),
        };
        if !ours {
            self.count(Count::Misdirected);
            return None;
        }
        self.count(Count::Received);
        Some(facts)
    }

    fn take_piece(
        &mut self,
        link: &Link,
        queue: *mut NetQueue,
        repr: &Repr,
        body: &[u8],
        now: u64,
    ) -> Option<(Frame, Option<Facts>)> {
        let at = self.partial(queue, repr, now)?;
        let place = self.partials.get_mut(at)?;
        let partial = place.as_mut()?;
        if (partial.total, partial.sum) != (repr.total, repr.sum) {
            self.count(Count::Damaged);
            return None;
        }
        let offset = usize::from(repr.offset);
        let bit = 1u64 << (offset / PIECE_MAX);
        if partial.there & bit != 0 {
            self.count(Count::Duplicates);
            return None;
        }
        partial.so_far.add(body);
        // The facts are in front of the frame, in the first piece.
        let front = if repr.kind == Kind::Unfinished {
            FACTS_SIZE
        } else {
            0
        };
        let part = if offset == 0 {
            let (facts, part) = body.split_at_checked(front)?;
            if let Some(place) = partial.facts.get_mut(..front) {
                place.copy_from_slice(facts);
            }
            part
        } else {
            body
        };
        let written = partial.frame.write(offset.saturating_sub(front), part);
        partial.there |= bit;
        let pieces = usize::from(repr.total).div_ceil(PIECE_MAX);
        if partial.there.count_ones() as usize != pieces {
            return None;
        }
        let partial = place.take()?;
        if !written || partial.so_far.finish() != partial.sum {
            self.count(Count::Damaged);
            return None;
        }
        let mut head = [0; HEAD];
        let head = partial.frame.head(&mut head);
        let facts = (front > 0).then_some(&partial.facts[..]);
        let facts = self.accept(link, repr.origin, repr.kind, facts, head)?;
        Some((partial.frame, facts))
    }

    /// The place of the frame that a piece belongs to, which begins with it if need be: in the
    /// place of an older one if there are too many.
    fn partial(&mut self, queue: *mut NetQueue, repr: &Repr, now: u64) -> Option<usize> {
        let (mut free, mut oldest, mut oldest_of_origin) = (None, None, None);
        let mut of_origin = 0;
        let mut abandoned = 0;
        for (at, place) in self.partials.iter_mut().enumerate() {
            if place
                .as_ref()
                .is_some_and(|partial| now.saturating_sub(partial.since) >= LIFETIME_NS)
            {
                *place = None;
                abandoned += 1;
            }
            let Some(partial) = place.as_ref() else {
                free = free.or(Some(at));
                continue;
            };
            let key = (partial.origin, partial.id, partial.kind);
            if key == (repr.origin, repr.id, repr.kind) {
                self.counts[Count::Abandoned as usize] += abandoned;
                return Some(at);
            }
            let older = |than: Option<(usize, u64)>| match than {
                Some((_, since)) if since <= partial.since => than,
                _ => Some((at, partial.since)),
            };
            oldest = older(oldest);
            if partial.origin == repr.origin {
                of_origin += 1;
                oldest_of_origin = older(oldest_of_origin);
            }
        }
        let at = if of_origin >= PER_ORIGIN {
            oldest_of_origin.map(|(at, _)| at)
        } else {
            free.or(oldest.map(|(at, _)| at))
        };
        self.counts[Count::Abandoned as usize] += abandoned;
        let place = self.partials.get_mut(at?)?;
        if place.take().is_some() {
            self.counts[Count::Abandoned as usize] += 1;
        }
        let front = if repr.kind == Kind::Unfinished {
            FACTS_SIZE
        } else {
            0
        };
        let frame = usize::from(repr.total)
            .checked_sub(front)
            .and_then(|len| Frame::new(queue, len));
        let Some(frame) = frame else {
            self.count(Count::NoMemory);
            return None;
        };
        *place = Some(Partial {
            origin: repr.origin,
            id: repr.id,
            sum: repr.sum,
            kind: repr.kind,
            total: repr.total,
            since: now,
            there: 0,
            so_far: Sum::default(),
            facts: [0; FACTS_SIZE],
            frame,
        });
        at
    }
}
