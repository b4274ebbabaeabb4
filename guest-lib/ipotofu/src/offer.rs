//! Long frames that are not sent but fetched: their origin says where they are in its memory, and
//! the receiver reads them from there, by one Get instead of dozens of packets.
//!
//! The kernel driver has this file, too, so nothing here allocates.

use core::ops::{Deref, DerefMut};

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
pub(crate) const PER_NODE: usize = 8;
/// Offers that wait to be fetched, in all; of one node, as many as it may have under way, twice.
pub const MAX_WAITING: usize = 256;
const WAITING_PER_NODE: usize = 2 * PER_NODE;
/// Answers that may be owed to a node before they are sent without waiting for others.
const OWED: u32 = 4;
/// Nodes to which one may be owed at a time.
const OWED_NODES: usize = 32;
/// How long an offer lasts that is not answered, in nanoseconds.
pub const LAPSE_NS: u64 = 250_000_000;
/// How long it is believed that a node fetches, in nanoseconds.
pub const FETCHES_NS: u64 = 2_000_000_000;
/// How long a node is left alone that could not fetch, in nanoseconds.
pub const SHUN_NS: u64 = 10_000_000_000;
/// How long a node is left alone that let an offer lapse, in nanoseconds.
pub const SHUN_LAPSED_NS: u64 = 1_000_000_000;
/// The group of control queues that may fetch from each other, as in their register GPID. Ours:
/// "IP".
pub const GROUP: u64 = 0x4950;
/// How long a packet waits at most for frames of the same origin that were offered before, in
/// nanoseconds: TCP takes what overtakes others for a sign of loss.
pub const OVERTAKE_NS: u64 = 2_000_000;

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
pub fn is_from_origin(header: &[u8]) -> bool {
    let direct = [Kind::Unicast, Kind::Unfinished];
    header.first().is_some_and(|first| direct.map(|kind| VERSION << 4 | kind as u8).contains(first))
}

/// Whether the origin of a packet fetches frames.
pub fn says_fetches(header: &[u8]) -> bool {
    header.get(1).is_some_and(|flags| flags & FETCHES != 0)
}

/// What follows the header of a message.
#[derive(Clone, Copy, Debug)]
pub struct MessageBody {
    bytes: [u8; OFFER_SIZE - HEADER_SIZE],
    len: usize,
}

impl Deref for MessageBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
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
    pub fn emit(&self, me: Coords) -> ([u8; HEADER_SIZE], MessageBody) {
        let mut body = MessageBody { bytes: [0; _], len: 0 };
        let (kind, flags, id, total, sum) = match self {
            Self::Offer(offer) => {
                let (facts, place) = body.bytes.split_at_mut(FACTS_SIZE);
                facts.copy_from_slice(&offer.facts);
                place.copy_from_slice(&offer.place.0.to_be_bytes());
                body.len = body.bytes.len();
                (OFFER, 0, offer.id, offer.total, offer.sum)
            }
            Self::Done { id, refused } => (DONE, if *refused { REFUSED } else { 0 }, *id, 0, 0),
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
pub enum Room {
    /// It goes into this slot.
    Slot(usize),
    /// There will be a slot soon.
    Busy,
    /// It is to be sent.
    None,
}

/// A frame that is offered.
#[derive(Clone, Copy, Debug)]
struct Offered {
    to: Coords,
    id: u32,
    since_ns: u64,
}

/// The places of frames that this node offers.
#[derive(Debug, Default)]
pub struct Slots([Option<Offered>; SLOTS]);

impl Slots {
    /// Where to put a frame for a node that fetches.
    pub fn room(&self, to: Coords) -> Room {
        let its = self.0.iter().flatten().filter(|offered| offered.to == to).count();
        match self.0.iter().position(Option::is_none) {
            Some(slot) if its < PER_NODE => Room::Slot(slot),
            _ if its > 0 => Room::Busy,
            // Others have them all.
            _ => Room::None,
        }
    }

    /// Takes note that the frame in a slot, which was free, is offered.
    pub fn offer(&mut self, slot: usize, to: Coords, id: u32, now_ns: u64) {
        if let Some(place) = self.0.get_mut(slot) {
            *place = Some(Offered { to, id, since_ns: now_ns });
        }
    }

    /// A node has answered an offer, and thereby all before it.
    pub fn done(&mut self, from: Coords, id: u32) {
        for slot in &mut self.0 {
            // Ids count up, and wrap.
            let meant = |o: Offered| o.to == from && id.wrapping_sub(o.id) < 1 << 31;
            if slot.is_some_and(meant) {
                *slot = None;
            }
        }
    }

    /// Gives up what was not answered in time, and names the nodes that have not. It may be
    /// fetched nevertheless, and has a wrong sum then.
    pub fn expire(&mut self, now_ns: u64, mut lapsed: impl FnMut(Coords)) {
        for slot in &mut self.0 {
            let late = |o: &mut Offered| now_ns.saturating_sub(o.since_ns) >= LAPSE_NS;
            if let Some(offered) = slot.take_if(late) {
                lapsed(offered.to);
            }
        }
    }
}

/// The last frame of a node that has been dealt with, and how many since an answer.
#[derive(Clone, Copy, Debug)]
struct Owed {
    to: Coords,
    id: u32,
    count: u32,
}

/// What this node fetches. `W` is where offers wait: [`MAX_WAITING`] places, empty at first.
#[derive(Debug)]
pub struct Fetches<W> {
    /// A ring: the first one of those that wait, and how many there are.
    ring: W,
    first: usize,
    count: usize,
    slots: [Option<Offer>; SLOTS],
    owed: [Option<Owed>; OWED_NODES],
}

impl<W: DerefMut<Target = [Option<Offer>]>> Fetches<W> {
    /// Nothing.
    pub fn new(ring: W) -> Self {
        Self { ring, first: 0, count: 0, slots: [None; SLOTS], owed: [None; OWED_NODES] }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.ring.fill(None);
        (self.first, self.count) = (0, 0);
        (self.slots, self.owed) = ([None; SLOTS], [None; OWED_NODES]);
    }

    /// Whether something is on its way here.
    pub fn are_under_way(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Whether something of a node is on its way here.
    pub fn are_under_way_from(&self, node: Coords) -> bool {
        self.slots.iter().flatten().any(|offer| offer.origin == node)
    }

    /// Takes an offer. False if there are too many, and it is forgotten; [`Fetches::answer`] is to
    /// be asked then.
    pub fn add(&mut self, offer: Offer) -> bool {
        let waiting = self.ring.iter().flatten();
        let its = waiting.filter(|waiting| waiting.origin == offer.origin).count();
        let size = self.ring.len();
        let fits = its < WAITING_PER_NODE && self.count < size;
        if fits {
            self.ring[(self.first + self.count) % size] = Some(offer);
            self.count += 1;
        } else {
            self.owe(offer.origin, offer.id);
        }
        fits
    }

    /// The next one to be fetched, and to which slot.
    pub fn begin(&mut self) -> Option<(usize, Offer)> {
        let slot = self.slots.iter().position(Option::is_none)?;
        let offer = self.ring.get_mut(self.first)?.take()?;
        self.first = (self.first + 1) % self.ring.len();
        self.count -= 1;
        self.slots[slot] = Some(offer);
        Some((slot, offer))
    }

    /// What was fetched to a slot, which is free now. [`Fetches::answer`] is to be asked then.
    pub fn take(&mut self, slot: usize) -> Option<Offer> {
        let offer = self.slots.get_mut(slot)?.take()?;
        self.owe(offer.origin, offer.id);
        Some(offer)
    }

    fn owe(&mut self, to: Coords, id: u32) {
        if let Some(owed) = self.owed.iter_mut().flatten().find(|owed| owed.to == to) {
            // They may have come out of order.
            if id.wrapping_sub(owed.id) < 1 << 31 {
                owed.id = id;
            }
            owed.count += 1;
        } else if let Some(place) = self.owed.iter_mut().find(|place| place.is_none()) {
            *place = Some(Owed { to, id, count: 1 });
        }
    }

    /// To whom an answer is owed, up to which id: those that cannot wait, or all. To be asked
    /// until there are none.
    pub fn answer(&mut self, all: bool) -> Option<(Coords, u32)> {
        let full = self.owed.iter().all(Option::is_some);
        let due = |owed: &mut Owed| all || full || owed.count >= OWED;
        let owed = self.owed.iter_mut().find_map(|place| place.take_if(due))?;
        Some((owed.to, owed.id))
    }

    /// The answer is given in another way.
    pub fn answered(&mut self, to: Coords) {
        for place in &mut self.owed {
            place.take_if(|owed| owed.to == to);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    impl Slots {
        /// What is offered to a node.
        pub(crate) fn ids_of(&self, to: Coords) -> Vec<u32> {
            self.0.iter().flatten().filter(|o| o.to == to).map(|o| o.id).collect()
        }
    }

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
    fn what_is_fetched_is_answered_up_to_the_last_one() {
        let mut fetches = Fetches::new(vec![None; MAX_WAITING]);
        for id in (0..WAITING_PER_NODE as u32 + 3).map(|n| (u32::MAX - 2).wrapping_add(n)) {
            let fits = fetches.add(offer(id));
            assert_eq!(fits, id.wrapping_sub(u32::MAX - 2) < WAITING_PER_NODE as u32);
        }
        let dropped = (u32::MAX - 2).wrapping_add(WAITING_PER_NODE as u32 + 2);
        assert_eq!(fetches.answer(false), None);
        assert_eq!(fetches.answer(true), Some((NODE, dropped)));
        let taken: Vec<_> = core::iter::from_fn(|| fetches.begin()).collect();
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

    #[test]
    fn answers_to_many_nodes_do_not_wait_for_more() {
        let mut fetches = Fetches::new(vec![None; MAX_WAITING]);
        let nodes = (0..OWED_NODES as u8).map(|n| Coords::new(n, 0, 0, 0, 0, 0));
        for (n, origin) in nodes.enumerate() {
            assert!(fetches.add(Offer { origin, ..offer(n as u32) }));
            let (slot, _) = fetches.begin().unwrap();
            fetches.take(slot);
            let due = fetches.answer(false);
            assert_eq!(due.is_some(), n + 1 == OWED_NODES, "{n}");
        }
        assert_eq!(fetches.answer(false), None, "there is room again");
    }
}
