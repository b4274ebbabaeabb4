//! Long frames that are not sent but fetched: their origin says where they are in its memory, and
//! the receiver reads them from there, by one Get instead of dozens of packets.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use tofu_abi::{Coords, StagOffset};
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::addr;
use crate::offload::FACTS_SIZE;
use crate::wire::{ETHERNET_HEADER, HEADER_SIZE, Header, Kind, TAKES_UNFINISHED, VERSION};

/// The flag of packets whose origin fetches frames that are offered to it.
pub const FETCHES: u8 = 4;
/// The flag of an answer that says that the frame could not be fetched.
const REFUSED: u8 = 8;
const OFFER: u8 = VERSION << 4 | 4;
const DONE: u8 = VERSION << 4 | 5;

/// Bytes of a message: an offer has a body behind the header.
pub const OFFER_SIZE: usize = HEADER_SIZE + FACTS_SIZE + 8;

/// Frames of fewer bytes go in packets: a few of these cost less than a Get.
pub const MIN_FRAME: usize = 8 << 10;
/// Bytes of a place for a frame.
pub const SLOT: usize = 1 << 16;
/// Frames that are offered at a time, in all and to one node.
pub const SLOTS: usize = 16;
const PER_NODE: usize = 8;
/// Offers that wait to be fetched, in all; of one node, as many as it may have under way, twice.
const MAX_WAITING: usize = 256;
const WAITING_PER_NODE: usize = 2 * PER_NODE;
/// Answers that may be owed to a node before they are sent without waiting for others.
const OWED: u32 = 4;
/// How long an offer lasts that is not answered, how long it is believed that a node fetches, and
/// how long one is left alone that could not, or that let an offer lapse, all in nanoseconds.
const LAPSE_NS: u64 = 250_000_000;
const FETCHES_NS: u64 = 2_000_000_000;
const SHUN_NS: u64 = 10_000_000_000;
const SHUN_LAPSED_NS: u64 = 1_000_000_000;
/// Nodes that are known at a time.
const MAX_NODES: usize = 4096;

/// A frame in the memory of the node that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The node that the frame comes from.
    pub origin: Coords,
    /// Tells the frames of a node apart.
    pub id: u32,
    /// Bytes of the frame with the facts in front of it.
    pub total: u16,
    /// Sum over these.
    pub sum: u32,
    /// The facts: what is left to do with the frame, see [`crate::offload`].
    pub facts: [u8; FACTS_SIZE],
    /// Where the frame is.
    pub place: StagOffset,
}

/// A message about a frame that is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A node has a frame for the receiver.
    Offer(Offer),
    /// The sender needs the frame with this id, and those offered before, no more.
    Done {
        /// Id of the last frame that is meant.
        id: u32,
        /// Whether it could not be fetched.
        refused: bool,
    },
}

/// Whether a packet with this header is a message of this module.
pub fn is_message(header: &[u8]) -> bool {
    header.first().is_some_and(|first| [OFFER, DONE].contains(first))
}

/// Whether a packet with this header comes from its origin at once, if it is no forgery.
pub(crate) fn is_from_origin(header: &[u8]) -> bool {
    let direct = [Kind::Unicast, Kind::Unfinished];
    header.first().is_some_and(|first| direct.map(|kind| VERSION << 4 | kind as u8).contains(first))
}

/// Whether the origin of a packet fetches frames.
pub(crate) fn says_fetches(header: &[u8]) -> bool {
    header.get(1).is_some_and(|flags| flags & FETCHES != 0)
}

impl Message {
    /// Reads a message that has come from node `from`; `None` if it is none, or in another node's
    /// name.
    pub fn parse(from: Coords, header: &[u8], body: &[u8]) -> Option<Self> {
        let (header, _) = Header::ref_from_prefix(header).ok()?;
        let origin = addr::unpack(header.origin.get()).filter(|origin| *origin == from)?;
        let (id, sum, total) = (header.id.get(), header.sum.get(), header.total.get());
        let (offset, length) = (header.offset.get(), usize::from(header.length.get()));
        match header.version_kind {
            OFFER => {
                let (facts, rest) = body.split_first_chunk()?;
                let (place, _) = U64::ref_from_prefix(rest).ok()?;
                let whole = usize::from(total) >= FACTS_SIZE + ETHERNET_HEADER;
                let right = whole && offset == 0 && length == FACTS_SIZE + 8;
                let place = StagOffset(place.get());
                right.then_some(Self::Offer(Offer { origin, id, total, sum, facts: *facts, place }))
            }
            DONE if (total, offset, length, sum) == (0, 0, 0, 0) => {
                Some(Self::Done { id, refused: header.flags & REFUSED != 0 })
            }
            _ => None,
        }
    }

    /// The message as it lies in a packet of node `me`: its header, and what follows.
    pub fn emit(&self, me: Coords) -> ([u8; HEADER_SIZE], Vec<u8>) {
        let (kind, flags, id, total, sum, body) = match self {
            Self::Offer(offer) => {
                let body = [&offer.facts[..], &offer.place.0.to_be_bytes()].concat();
                (OFFER, 0, offer.id, offer.total, offer.sum, body)
            }
            Self::Done { id, refused } => {
                (DONE, if *refused { REFUSED } else { 0 }, *id, 0, 0, Vec::new())
            }
        };
        let header = Header {
            version_kind: kind,
            // Who knows these messages fetches.
            flags: flags | FETCHES | TAKES_UNFINISHED,
            total: U16::new(total),
            offset: U16::new(0),
            length: U16::new(body.len() as u16),
            id: U32::new(id),
            sum: U32::new(sum),
            origin: U32::new(addr::pack(me)),
        };
        let mut bytes = [0; HEADER_SIZE];
        // The sizes are the same, so this cannot fail.
        let _ = header.write_to(&mut bytes);
        (bytes, body)
    }
}

/// What can be done with a frame for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// It goes into this slot.
    Slot(usize),
    /// There will be a slot soon.
    Busy,
    /// It is to be sent.
    None,
}

/// What is known of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Taker {
    /// When it has said last that it fetches, in nanoseconds.
    since_ns: u64,
    /// Until when nothing is offered to it.
    shunned_ns: u64,
}

/// A frame that is offered.
#[derive(Clone, Copy, Debug)]
struct Offered {
    to: u32,
    id: u32,
    since_ns: u64,
}

/// What this node offers.
#[derive(Debug)]
pub(crate) struct Offers {
    slots: [Option<Offered>; SLOTS],
    takers: BTreeMap<u32, Taker>,
    /// Offers that nobody answered in time.
    pub(crate) lapsed: u64,
}

impl Offers {
    pub(crate) fn new() -> Self {
        Self { slots: [None; SLOTS], takers: BTreeMap::new(), lapsed: 0 }
    }

    /// Takes note of whether a node fetches.
    pub(crate) fn learn(&mut self, node: Coords, fetches: bool, now_ns: u64) {
        let node = addr::pack(node);
        if let Some(taker) = self.takers.get_mut(&node) {
            // A node that does not any more has nothing to be forgotten but this.
            taker.since_ns = if fetches { now_ns } else { 0 };
            if !fetches && taker.shunned_ns <= now_ns {
                self.takers.remove(&node);
            }
        } else if fetches {
            if self.takers.len() >= MAX_NODES {
                self.takers.clear();
            }
            self.takers.insert(node, Taker { since_ns: now_ns, shunned_ns: 0 });
        }
    }

    /// Where to put a frame for a node.
    pub(crate) fn room(&mut self, to: Coords, now_ns: u64) -> Room {
        let to = addr::pack(to);
        let Some(taker) = self.takers.get(&to).copied() else { return Room::None };
        let believed = taker.since_ns > 0 && now_ns.saturating_sub(taker.since_ns) <= FETCHES_NS;
        if !believed || taker.shunned_ns > now_ns {
            return Room::None;
        }
        self.expire(now_ns);
        if self.takers.get(&to).is_some_and(|taker| taker.shunned_ns > now_ns) {
            return Room::None;
        }
        let its = self.slots.iter().flatten().filter(|offered| offered.to == to).count();
        match self.slots.iter().position(Option::is_none) {
            Some(slot) if its < PER_NODE => Room::Slot(slot),
            _ if its > 0 => Room::Busy,
            // Others have them all.
            _ => Room::None,
        }
    }

    pub(crate) fn offer(&mut self, slot: usize, to: Coords, id: u32, now_ns: u64) {
        self.slots[slot] = Some(Offered { to: addr::pack(to), id, since_ns: now_ns });
    }

    /// A node has answered an offer, and thereby all before it.
    pub(crate) fn done(&mut self, from: Coords, id: u32, refused: bool, now_ns: u64) {
        let from = addr::pack(from);
        for slot in &mut self.slots {
            // Ids count up, and wrap.
            let meant = |o: Offered| o.to == from && id.wrapping_sub(o.id) < 1 << 31;
            if slot.is_some_and(meant) {
                *slot = None;
            }
        }
        if refused && let Some(taker) = self.takers.get_mut(&from) {
            taker.shunned_ns = now_ns.saturating_add(SHUN_NS);
        }
    }

    /// Gives up what was not answered in time. It may be fetched nevertheless, and has a wrong
    /// sum then.
    fn expire(&mut self, now_ns: u64) {
        for slot in &mut self.slots {
            let Some(offered) = *slot else { continue };
            if now_ns.saturating_sub(offered.since_ns) < LAPSE_NS {
                continue;
            }
            *slot = None;
            self.lapsed += 1;
            if let Some(taker) = self.takers.get_mut(&offered.to) {
                taker.shunned_ns = now_ns.saturating_add(SHUN_LAPSED_NS);
            }
        }
    }
}

/// What this node fetches.
#[derive(Debug)]
pub(crate) struct Fetches {
    waiting: VecDeque<Offer>,
    slots: [Option<Offer>; SLOTS],
    /// The last frame of each node that has been dealt with, and how many since an answer.
    owed: Vec<(Coords, u32, u32)>,
    /// A frame as it was fetched, behind its facts.
    frame: Vec<u8>,
}

impl Fetches {
    pub(crate) fn new() -> Self {
        let (waiting, owed) = (VecDeque::new(), Vec::new());
        Self { waiting, slots: [None; SLOTS], owed, frame: vec![0; SLOT] }
    }

    /// Whether something is on its way here.
    pub(crate) fn are_under_way(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Whether something of a node is on its way here.
    pub(crate) fn are_under_way_from(&self, node: Coords) -> bool {
        self.slots.iter().flatten().any(|offer| offer.origin == node)
    }

    /// Takes an offer. False if there are too many, and it is forgotten.
    pub(crate) fn add(&mut self, offer: Offer) -> bool {
        let its = self.waiting.iter().filter(|waiting| waiting.origin == offer.origin).count();
        let fits = its < WAITING_PER_NODE && self.waiting.len() < MAX_WAITING;
        if fits {
            self.waiting.push_back(offer);
        } else {
            self.owe(offer.origin, offer.id);
        }
        fits
    }

    /// The next one to be fetched, and to which slot.
    pub(crate) fn next(&mut self) -> Option<(usize, Offer)> {
        let slot = self.slots.iter().position(Option::is_none)?;
        let offer = self.waiting.pop_front()?;
        self.slots[slot] = Some(offer);
        Some((slot, offer))
    }

    /// What was fetched to a slot, which is free now.
    pub(crate) fn take(&mut self, slot: usize) -> Option<Offer> {
        let offer = self.slots.get_mut(slot)?.take()?;
        self.owe(offer.origin, offer.id);
        Some(offer)
    }

    /// A place for a frame with its facts.
    pub(crate) fn frame(&mut self) -> &mut Vec<u8> {
        &mut self.frame
    }

    fn owe(&mut self, to: Coords, id: u32) {
        match self.owed.iter_mut().find(|(node, ..)| *node == to) {
            Some((_, last, count)) => {
                // They may have come out of order.
                if id.wrapping_sub(*last) < 1 << 31 {
                    *last = id;
                }
                *count += 1;
            }
            None => self.owed.push((to, id, 1)),
        }
    }

    /// To whom an answer is owed, up to which id: those that cannot wait, or all.
    pub(crate) fn answer(&mut self, all: bool) -> Option<(Coords, u32)> {
        let at = self.owed.iter().position(|(.., count)| all || *count >= OWED)?;
        let (node, id, _) = self.owed.swap_remove(at);
        Some((node, id))
    }

    /// The answer is given in another way.
    pub(crate) fn answered(&mut self, to: Coords) {
        self.owed.retain(|(node, ..)| *node != to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Coords = Coords::new(1, 2, 3, 0, 1, 1);

    fn offer(id: u32) -> Offer {
        let place = StagOffset::new(11, 0, 3 << 16);
        Offer { origin: NODE, id, total: 9000, sum: 0x1234_5678, facts: [7; FACTS_SIZE], place }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        for message in [Message::Offer(offer(9)), Message::Done { id: u32::MAX, refused: true }] {
            let (header, body) = message.emit(NODE);
            assert!(is_message(&header) && says_fetches(&header));
            assert_eq!(Message::parse(NODE, &header, &body), Some(message));
            assert_eq!(Message::parse(Coords::default(), &header, &body), None, "in another name");
        }
        let (header, body) = Message::Offer(offer(9)).emit(NODE);
        assert_eq!(Message::parse(NODE, &header, &body[..15]), None, "cut off");
        for (at, byte) in [(0, 0x15), (0, 0x13), (5, 1), (7, 15), (2, 0xff)] {
            let mut changed = header;
            changed[at] = byte;
            let parsed = Message::parse(NODE, &changed, &body);
            assert!(parsed.is_none() || at == 2, "byte {at}");
        }
    }

    #[test]
    fn offers_are_bounded_for_each_node_and_in_all() {
        let mut offers = Offers::new();
        let node = |n: u8| Coords::new(n, 0, 0, 0, 0, 0);
        assert_eq!(offers.room(node(1), 1), Room::None, "it has not said that it fetches");
        (1..4).for_each(|n| offers.learn(node(n), true, 1));
        let mut fill = |n| {
            (0..100)
                .find(|id| match offers.room(node(n), 2) {
                    Room::Slot(slot) => {
                        offers.offer(slot, node(n), *id, 2);
                        false
                    }
                    _ => true,
                })
                .unwrap() as usize
        };
        assert_eq!([fill(1), fill(2), fill(3)], [PER_NODE, PER_NODE, 0]);
        assert_eq!(offers.room(node(1), 2), Room::Busy);
        assert_eq!(offers.room(node(3), 2), Room::None, "it would wait for others");
        offers.done(node(1), 3, false, 3);
        offers.done(node(3), 100, false, 3);
        assert!(matches!(offers.room(node(3), 3), Room::Slot(_)));
        let left = offers.slots.iter().flatten().filter(|o| o.to == addr::pack(node(1)));
        assert_eq!(left.map(|o| o.id).collect::<Vec<_>>(), [4, 5, 6, 7]);
    }

    #[test]
    fn nodes_that_do_not_answer_or_cannot_are_left_alone_for_a_while() {
        let mut offers = Offers::new();
        offers.learn(NODE, true, 1);
        offers.offer(0, NODE, 0, 1);
        assert!(matches!(offers.room(NODE, LAPSE_NS), Room::Slot(_)));
        offers.learn(NODE, true, 1 + LAPSE_NS);
        assert_eq!(offers.room(NODE, 1 + LAPSE_NS), Room::None);
        assert_eq!(offers.lapsed, 1);
        let later = 2 + LAPSE_NS + SHUN_LAPSED_NS;
        offers.learn(NODE, true, later);
        assert_eq!(offers.room(NODE, later), Room::Slot(0));
        offers.done(NODE, 0, true, later);
        offers.learn(NODE, true, later + SHUN_NS - 1);
        assert_eq!(offers.room(NODE, later + SHUN_NS - 1), Room::None);
        offers.learn(NODE, true, later + SHUN_NS);
        assert_eq!(offers.room(NODE, later + SHUN_NS), Room::Slot(0));
        assert_eq!(offers.room(NODE, later + SHUN_NS + FETCHES_NS + 1), Room::None, "old news");
    }

    #[test]
    fn what_is_fetched_is_answered_up_to_the_last_one() {
        let mut fetches = Fetches::new();
        for id in (0..WAITING_PER_NODE as u32 + 3).map(|n| (u32::MAX - 2).wrapping_add(n)) {
            let fits = fetches.add(offer(id));
            assert_eq!(fits, id.wrapping_sub(u32::MAX - 2) < WAITING_PER_NODE as u32);
        }
        let dropped = (u32::MAX - 2).wrapping_add(WAITING_PER_NODE as u32 + 2);
        assert_eq!(fetches.answer(false), None);
        assert_eq!(fetches.answer(true), Some((NODE, dropped)));
        let taken: Vec<_> = core::iter::from_fn(|| fetches.next()).collect();
        assert_eq!(taken.len(), SLOTS);
        assert!(fetches.are_under_way());
        for (slot, offer) in taken.iter().rev().take(4) {
            assert_eq!(fetches.take(*slot), Some(*offer));
            assert_eq!(fetches.take(*slot), None, "it has been taken");
        }
        // The last one of those, though it ended first.
        assert_eq!(fetches.answer(false), Some((NODE, taken[SLOTS - 1].1.id)));
        assert_eq!(fetches.answer(true), None);
    }
}
