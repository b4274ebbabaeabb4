//! The origin of a rendezvous: others fetch frames from this node.

use tofu_abi::Coords;

use super::{PER_NODE, SLOTS};
use crate::counters::Counters;
use crate::nodes::{NodeTable, Peers};
use crate::storage::Storage;

/// The time for which an unanswered request lasts, in nanoseconds. The Get of a receiver that is
/// later than that meets a disabled STag. A node of a busy host may not run for hundreds of
/// milliseconds.
const ANSWER_NS: u64 = 1_000_000_000;
/// The time without requests to a node that could not fetch a frame, in nanoseconds.
const BACK_OFF_REFUSED_NS: u64 = 10_000_000_000;
/// The time without requests to a node after a timeout, in nanoseconds.
const BACK_OFF_TIMED_OUT_NS: u64 = 1_000_000_000;

/// The way a frame for a node can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It can be fetched from this slot.
    Slot(usize),
    /// There will be a slot soon.
    Busy,
    /// It must be sent in packets.
    None,
}

/// An unanswered request.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    to: Coords,
    id: u32,
    since_ns: u64,
}

/// A place for a frame.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    under_way: Option<UnderWay>,
    /// Number of requests that timed out.
    lapsed: u32,
}

/// The frames that other nodes fetch from this one.
#[derive(Debug)]
pub struct Requests<S: Storage> {
    slots: S::Places<Slot>,
    /// Number of slots with an unanswered request.
    count: usize,
    /// Number of requests that timed out, of all slots.
    lapses: u32,
    /// The first slot to try. Slots that were used last come last.
    next: usize,
    /// Nodes to which no requests are sent, and for how long, in nanoseconds.
    backed_off: NodeTable<S, u64>,
}

impl<S: Storage> Requests<S> {
    /// Creates the state without requests.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn new() -> Result<Self, S::Error> {
        Ok(Self {
            slots: S::places(SLOTS, Slot::default)?,
            count: 0,
            lapses: 0,
            next: 0,
            backed_off: NodeTable::new()?,
        })
    }

    /// Drops all unanswered requests.
    pub fn clear(&mut self) {
        for slot in self.slots.iter_mut() {
            let lapsed = u32::from(slot.under_way.take().is_some());
            slot.lapsed = slot.lapsed.wrapping_add(lapsed);
            self.lapses = self.lapses.wrapping_add(lapsed);
        }
        self.count = 0;
    }

    /// Ends requests whose answers have timed out. Must be called periodically.
    pub fn expire(&mut self, now_ns: u64, counters: &mut Counters) {
        if self.count == 0 {
            return;
        }
        for slot in self.slots.iter_mut() {
            let late = |one: &mut UnderWay| now_ns.saturating_sub(one.since_ns) >= ANSWER_NS;
            if let Some(late) = slot.under_way.take_if(late) {
                slot.lapsed = slot.lapsed.wrapping_add(1);
                self.lapses = self.lapses.wrapping_add(1);
                self.count -= 1;
                counters.rendezvous_timed_out += 1;
                self.backed_off.set(late.to, now_ns, BACK_OFF_TIMED_OUT_NS);
            }
        }
    }

    /// Returns true if any frame may still be fetched.
    pub const fn are_under_way(&self) -> bool {
        self.count > 0
    }

    /// Returns true if the frame in a slot may still be fetched.
    pub fn is_under_way(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.under_way.is_some())
    }

    /// Number of frames that a node may still fetch.
    pub fn under_way_to(&self, node: Coords) -> usize {
        match self.count {
            0 => 0,
            _ => self.under_way().filter(|one| one.to == node).count(),
        }
    }

    /// A number that changes with each request that timed out. The frame of such a request may
    /// still be fetched, so the next frame needs another address.
    pub fn generation(&self, slot: usize) -> u32 {
        self.slots.get(slot).map_or(0, |slot| slot.lapsed)
    }

    /// A number that changes with each request that timed out, in any slot: for owners that
    /// have one address for all slots.
    pub(crate) const fn lapses(&self) -> u32 {
        self.lapses
    }

    /// Finds room for a frame for a node.
    pub fn room(
        &mut self,
        to: Coords,
        peers: &Peers<S>,
        now_ns: u64,
        counters: &mut Counters,
    ) -> Room {
        self.expire(now_ns, counters);
        let backed_off = self.backed_off.get_for(to, now_ns, |lifetime_ns| *lifetime_ns);
        if backed_off.is_some() || !peers.get(to, now_ns).rendezvous {
            return Room::None;
        }
        let its = self.under_way_to(to);
        match self.free().next() {
            Some(slot) if its < PER_NODE => Room::Slot(slot),
            _ if its > 0 => Room::Busy,
            // Other nodes have all slots.
            _ => Room::None,
        }
    }

    /// Free slots, in the order of use.
    fn free(&self) -> impl DoubleEndedIterator<Item = usize> {
        (0..SLOTS).map(|n| (self.next + n) % SLOTS).filter(|slot| !self.is_under_way(*slot))
    }

    /// The last free slot: [`Requests::room`] takes the first.
    pub fn last_free(&self) -> Option<usize> {
        self.free().next_back()
    }

    /// Returns true if a slot is free.
    pub fn is_free(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.under_way.is_none())
    }

    /// Notes that a node was requested to fetch the frame in a slot. The slot was free.
    pub fn sent(&mut self, slot: usize, to: Coords, id: u32, now_ns: u64) {
        if let Some(place) = self.slots.get_mut(slot) {
            let before = place.under_way.replace(UnderWay { to, id, since_ns: now_ns });
            self.count += usize::from(before.is_none());
            self.next = (slot + 1) % SLOTS;
        }
    }

    fn under_way(&self) -> impl Iterator<Item = &UnderWay> {
        self.slots.iter().filter_map(|slot| slot.under_way.as_ref())
    }

    /// Handles a node's answer to a request. It also answers all requests before. If the request
    /// timed out, its frame may be gone, so a refusal says nothing about the node.
    pub fn done(&mut self, from: Coords, id: u32, refused: bool, now_ns: u64) {
        let refused = refused && self.under_way().any(|one| (one.to, one.id) == (from, id));
        for slot in self.slots.iter_mut() {
            // Ids count up and wrap around.
            let its = |one: &mut UnderWay| one.to == from && id.wrapping_sub(one.id) < 1 << 31;
            self.count -= usize::from(slot.under_way.take_if(its).is_some());
        }
        if refused {
            self.backed_off.set(from, now_ns, BACK_OFF_REFUSED_NS);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::nodes::CAPABILITIES_NS;
    use crate::storage::Heap;
    use crate::wire::Capabilities;

    fn learn(peers: &Peers<Heap>, node: Coords, now_ns: u64) {
        let says = Capabilities { rendezvous: true, ..Capabilities::default() };
        peers.learn(node, says, now_ns);
    }

    /// The requests to a node.
    fn ids_of(requests: &Requests<Heap>, to: Coords) -> Vec<u32> {
        requests.under_way().filter(|one| one.to == to).map(|one| one.id).collect()
    }

    const NODE: Coords = Coords::new(1, 2, 3, 0, 1, 1);

    #[test]
    fn requests_are_bounded_per_node_and_in_all() {
        let (Ok(peers), Ok(mut requests)) = (Peers::new(), Requests::<Heap>::new());
        let mut counters = Counters::default();
        let node = |n: u8| Coords::new(n, 0, 0, 0, 0, 0);
        assert_eq!(
            requests.room(node(1), &peers, 1, &mut counters),
            Room::None,
            "it has not said that it fetches"
        );
        (1..4).for_each(|n| learn(&peers, node(n), 1));
        let mut fill = |n| {
            (0..100)
                .find(|id| match requests.room(node(n), &peers, 2, &mut counters) {
                    Room::Slot(slot) => {
                        requests.sent(slot, node(n), *id, 2);
                        false
                    }
                    _ => true,
                })
                .unwrap() as usize
        };
        assert_eq!([fill(1), fill(2), fill(3)], [PER_NODE, SLOTS - PER_NODE, 0]);
        assert_eq!(requests.room(node(1), &peers, 2, &mut counters), Room::Busy);
        assert_eq!(
            requests.room(node(3), &peers, 2, &mut counters),
            Room::None,
            "it would wait for others"
        );
        let under_way = |n| requests.under_way_to(node(n));
        assert_eq!([1, 2, 3].map(under_way), [PER_NODE, SLOTS - PER_NODE, 0]);
        requests.done(node(1), 3, false, 3);
        requests.done(node(3), 100, false, 3);
        assert!(matches!(requests.room(node(3), &peers, 3, &mut counters), Room::Slot(_)));
        let left: Vec<u32> = (4..PER_NODE as u32).collect();
        assert_eq!(ids_of(&requests, node(1)), left);
        assert_eq!(requests.under_way_to(node(1)), left.len());
        assert!(requests.are_under_way());
        requests.done(node(1), 100, false, 4);
        requests.done(node(2), 100, false, 4);
        assert!(!requests.are_under_way());
        requests.sent(0, node(1), 101, 4);
        requests.sent(0, node(1), 102, 4);
        assert_eq!(requests.under_way_to(node(1)), 1, "it is the same place");
        requests.clear();
        assert!(!requests.are_under_way());
    }

    #[test]
    fn unresponsive_nodes_are_skipped() {
        let (Ok(peers), Ok(mut requests)) = (Peers::new(), Requests::<Heap>::new());
        let mut counters = Counters::default();
        learn(&peers, NODE, 1);
        requests.sent(0, NODE, 0, 1);
        assert!(matches!(requests.room(NODE, &peers, ANSWER_NS, &mut counters), Room::Slot(_)));
        learn(&peers, NODE, 1 + ANSWER_NS);
        assert_eq!(requests.room(NODE, &peers, 1 + ANSWER_NS, &mut counters), Room::None);
        assert_eq!(counters.rendezvous_timed_out, 1);
        assert_eq!((requests.generation(0), requests.generation(1)), (1, 0));
        assert_eq!(requests.lapses(), 1);
        assert!(!requests.is_under_way(0) && !requests.are_under_way());
        let later = 2 + ANSWER_NS + BACK_OFF_TIMED_OUT_NS;
        learn(&peers, NODE, later);
        assert_eq!(requests.room(NODE, &peers, later, &mut counters), Room::Slot(1), "the next");
        requests.done(NODE, 0, true, later);
        assert!(
            matches!(requests.room(NODE, &peers, later, &mut counters), Room::Slot(_)),
            "it was too late to fetch that frame"
        );
        requests.sent(1, NODE, 1, later);
        requests.done(NODE, 1, true, later);
        learn(&peers, NODE, later + BACK_OFF_REFUSED_NS - 1);
        assert_eq!(
            requests.room(NODE, &peers, later + BACK_OFF_REFUSED_NS - 1, &mut counters),
            Room::None
        );
        learn(&peers, NODE, later + BACK_OFF_REFUSED_NS);
        assert_eq!(
            requests.room(NODE, &peers, later + BACK_OFF_REFUSED_NS, &mut counters),
            Room::Slot(2)
        );
        assert_eq!(
            requests.room(
                NODE,
                &peers,
                later + BACK_OFF_REFUSED_NS + CAPABILITIES_NS + 1,
                &mut counters
            ),
            Room::None,
            "old news"
        );
    }
}
