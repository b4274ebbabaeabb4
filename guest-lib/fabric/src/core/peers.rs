//! Peers, their rings, and the free slots of these.

use std::collections::{HashMap, VecDeque};

use super::failure::Failure;
use super::outgoing::Outgoing;
use super::transport::{Address, Place};
use super::{CHUNKS, RINGS_PER_CHUNK, SLOTS};

/// A peer's number, which is that of its ring in this endpoint's memory.
pub(super) type Number = u16;

/// Emptied slots after which a peer gets a signal, unless a message says it.
const TELL_AFTER: u16 = SLOTS / 2;

/// A peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: Address,
    /// The ring in the peer's memory, if it has said hello.
    pub(super) ring: Option<Number>,
    /// The peer knows its ring here.
    pub(super) greeted: bool,
    pub(super) failed: bool,
    /// It is in the list of peers with messages to send.
    pub(super) listed: bool,
    /// Messages that wait for slots.
    pub(super) queue: VecDeque<Outgoing>,
    /// Slots filled, and slots that the peer has emptied, modulo 2^16.
    filled: u16,
    freed: u16,
    /// Slots of the own ring that are filled but not emptied, a bit for each.
    arrived: u16,
    /// Slots that were emptied, and the number last reported to the peer.
    emptied: u16,
    told: u16,
    /// The message whose parts arrive.
    pub(super) current: Option<u64>,
}

impl Peer {
    const fn new(address: Address) -> Self {
        Self {
            address,
            ring: None,
            greeted: false,
            failed: false,
            listed: false,
            queue: VecDeque::new(),
            filled: 0,
            freed: 0,
            arrived: 0,
            emptied: 0,
            told: 0,
            current: None,
        }
    }

    /// Returns the next slot to fill, if one is free.
    pub(super) fn free_slot(&self) -> Option<Place> {
        let ring = self.ring?;
        let used = self.filled.wrapping_sub(self.freed);
        (used < SLOTS).then_some(Place { ring, slot: self.filled % SLOTS })
    }

    /// Notes that the slot was filled, with a header that reports the emptied slots.
    pub(super) fn fill(&mut self) {
        self.filled = self.filled.wrapping_add(1);
        self.told = self.emptied;
    }

    /// Handles a peer's report of the slots that it has emptied. It cannot have emptied more than
    /// were filled.
    pub(super) fn free(&mut self, freed: u16) {
        let used = self.filled.wrapping_sub(self.freed);
        let more = freed.wrapping_sub(self.freed);
        if more <= used {
            self.freed = freed;
        }
    }

    /// The number of emptied slots for the next message.
    pub(super) const fn emptied(&self) -> u16 {
        self.emptied
    }

    /// Returns the number to report to the peer, if a report is due.
    pub(super) const fn to_tell(&self) -> Option<u16> {
        if self.emptied.wrapping_sub(self.told) >= TELL_AFTER { Some(self.emptied) } else { None }
    }

    /// Notes that the number was reported.
    pub(super) const fn tell(&mut self) {
        self.told = self.emptied;
    }

    /// A slot of the own ring was filled.
    pub(super) const fn arrive(&mut self, slot: u16) {
        self.arrived |= 1 << (slot % SLOTS);
    }

    /// Returns the next slot to empty, if it has been filled.
    pub(super) const fn next_arrived(&self) -> Option<u16> {
        let slot = self.emptied % SLOTS;
        if self.arrived >> slot & 1 != 0 { Some(slot) } else { None }
    }

    /// The next slot was emptied.
    pub(super) const fn empty(&mut self) {
        self.arrived &= !(1 << (self.emptied % SLOTS));
        self.emptied = self.emptied.wrapping_add(1);
    }
}

/// All peers of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Peers {
    all: Vec<Peer>,
    by_address: HashMap<Address, Number>,
}

impl Peers {
    /// The most peers.
    const MOST: usize = CHUNKS as usize * RINGS_PER_CHUNK as usize;

    /// Returns the number of a peer, if it has one.
    pub(super) fn find(&self, address: Address) -> Option<Number> {
        self.by_address.get(&address).copied()
    }

    /// Gives a peer a number.
    ///
    /// # Errors
    ///
    /// If no ring is left.
    pub(super) fn add(&mut self, address: Address) -> Result<Number, Failure> {
        if self.all.len() >= Self::MOST {
            return Err(Failure::NoRoom);
        }
        let number = self.all.len() as Number;
        self.all.push(Peer::new(address));
        self.by_address.insert(address, number);
        Ok(number)
    }

    pub(super) fn get(&self, number: Number) -> Option<&Peer> {
        self.all.get(usize::from(number))
    }

    pub(super) fn get_mut(&mut self, number: Number) -> Option<&mut Peer> {
        self.all.get_mut(usize::from(number))
    }

    /// Returns the numbers of all peers.
    pub(super) fn numbers(&self) -> impl Iterator<Item = Number> + use<> {
        0..self.all.len() as Number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// For any order of events, a ring between two peers never has more filled slots than
        /// slots, and slots are emptied in the order in which they were filled.
        #[test]
        fn credits_never_overflow(steps in proptest::collection::vec(0u8..4, 0..400)) {
            let (mut from, mut to) = (Peer::new(Address(1)), Peer::new(Address(2)));
            from.ring = Some(0);
            let (mut in_ring, mut sent, mut got) = (VecDeque::new(), 0u32, 0u32);
            let mut credits = VecDeque::new();
            for step in steps {
                match step {
                    0 => if let Some(place) = from.free_slot() {
                        prop_assert!(in_ring.len() < usize::from(SLOTS));
                        in_ring.push_back((place.slot, sent));
                        to.arrive(place.slot);
                        from.fill();
                        sent += 1;
                    },
                    1 => if let Some(slot) = to.next_arrived() {
                        prop_assert_eq!(in_ring.pop_front(), Some((slot, got)));
                        to.empty();
                        got += 1;
                    },
                    2 => if let Some(told) = to.to_tell() {
                        to.tell();
                        credits.push_back(told);
                    },
                    _ => if let Some(told) = credits.pop_front() { from.free(told) },
                }
            }
            // After any order of events, both can continue.
            while to.next_arrived().is_some() { to.empty(); }
            from.free(to.emptied());
            prop_assert!(from.free_slot().is_some());
        }

        /// A peer that lies about credits gets no more than it has room for.
        #[test]
        fn false_credits_are_ignored(told: u16, filled in 0u16..=SLOTS) {
            let mut peer = Peer::new(Address(1));
            peer.ring = Some(0);
            for _ in 0..filled { peer.fill(); }
            peer.free(told);
            prop_assert!(peer.filled.wrapping_sub(peer.freed) <= filled);
        }
    }

    #[test]
    fn peers_end_at_the_last_ring() {
        let mut peers = Peers::default();
        for n in 0..4080 {
            assert_eq!(peers.add(Address(n)), Ok(n as u16));
        }
        assert_eq!(peers.add(Address(9999)), Err(Failure::NoRoom));
        assert_eq!(peers.find(Address(4079)), Some(4079));
    }
}
