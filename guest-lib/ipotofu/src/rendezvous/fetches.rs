//! The receiver of a rendezvous: this node fetches frames from others.

use core::fmt::Debug;

use tofu_abi::Coords;

use super::{Message, OVERTAKE_NS, PER_NODE, Request, SLOTS};
use crate::counters::Counters;
use crate::storage::Storage;

/// The most requests that wait for a slot, in all. The second number is for one node: twice as many
/// as it may have unanswered.
const MAX_WAITING: usize = 256;
const WAITING_PER_NODE: usize = 2 * PER_NODE;
/// Number of answers owed to a node that are sent without waiting for more.
const OWED: u32 = 4;
/// The most nodes that may be owed answers at a time.
const OWED_NODES: usize = 32;

/// Operations of a queue that a rendezvous needs.
pub trait Rendezvous {
    /// Begins to fetch the frame of a request into a slot. False if that is not possible.
    fn fetch(&mut self, slot: usize, request: &Request) -> bool;

    /// Sends a message to a node.
    fn tell(&mut self, to: Coords, message: &Message);
}

/// The last handled request of a node, and the number of requests since the last answer.
#[derive(Clone, Copy, Debug)]
struct Owed {
    to: Coords,
    id: u32,
    count: u32,
}

/// The frames that this node fetches. A value of type `H` is kept with each request, such as the
/// head of the frame.
#[derive(Debug)]
pub struct Fetches<S: Storage, H: Debug = ()> {
    /// A ring of waiting requests, the index of the first one, and their number.
    waiting: S::Places<Option<(Request, H)>>,
    first: usize,
    count: usize,
    slots: S::Places<Option<(Request, H)>>,
    /// Number of slots in use.
    under_way: usize,
    owed: S::Places<Option<Owed>>,
    /// Number of nodes in `owed`.
    owed_count: usize,
    /// When the next packet began to wait for frames, or the latest fetch during that wait, in
    /// nanoseconds.
    held_ns: Option<u64>,
    /// True if packets no longer wait, until the next frame was fetched.
    given_up: bool,
}

impl<S: Storage, H: Debug> Fetches<S, H> {
    /// Creates the state without requests.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn new() -> Result<Self, S::Error> {
        Ok(Self {
            waiting: S::places(MAX_WAITING, || None)?,
            first: 0,
            count: 0,
            slots: S::places(SLOTS, || None)?,
            under_way: 0,
            owed: S::places(OWED_NODES, || None)?,
            owed_count: 0,
            held_ns: None,
            given_up: false,
        })
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.waiting.iter_mut().chain(self.slots.iter_mut()).for_each(|place| *place = None);
        self.owed.fill(None);
        (self.first, self.count) = (0, 0);
        (self.under_way, self.owed_count) = (0, 0);
        self.held_ns = None;
        self.given_up = false;
    }

    /// Returns true if any frame is being fetched.
    pub const fn are_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Returns true if any frame of a node is being fetched.
    pub(crate) fn are_under_way_from(&self, node: Coords) -> bool {
        self.are_under_way()
            && self.slots.iter().flatten().any(|(request, _)| request.origin == node)
    }

    /// Returns the time for which the next packet must still wait, in nanoseconds, so that it does
    /// not overtake frames of its origin that are being fetched. `next` returns the node that sent
    /// the packet, and whether that is its origin, see [`is_from_origin`](super::is_from_origin).
    ///
    /// The time begins again with each frame that was fetched: on a busy host each of them may take
    /// long. Once it is over, no packet waits until another frame was fetched, so that a frame
    /// that never comes holds up one packet only.
    pub fn hold(
        &mut self,
        next: impl FnOnce() -> Option<(Coords, bool)>,
        now_ns: impl FnOnce() -> u64,
    ) -> Option<u64> {
        let next = if self.are_under_way() { next() } else { None };
        let waits = |(from, direct)| direct && self.are_under_way_from(from);
        if self.given_up || !next.is_some_and(waits) {
            self.held_ns = None;
            return None;
        }
        let now_ns = now_ns();
        let since_ns = *self.held_ns.get_or_insert(now_ns);
        let left_ns = OVERTAKE_NS.saturating_sub(now_ns.saturating_sub(since_ns));
        if left_ns == 0 {
            self.held_ns = None;
            self.given_up = true;
            return None;
        }
        Some(left_ns)
    }

    /// Returns true if the next packet had to wait when [`Fetches::hold`] was called last.
    pub const fn is_holding(&self) -> bool {
        self.held_ns.is_some()
    }

    /// Takes a request and the value to keep with it. Its frame is fetched now or later. If too
    /// many requests wait, both are dropped.
    pub fn request(
        &mut self,
        request: Request,
        with: H,
        queue: &mut impl Rendezvous,
        counters: &mut Counters,
    ) {
        if !self.add(request, with) {
            counters.rendezvous_failed += 1;
            self.answer(false, queue);
        }
        self.start(queue, counters);
    }

    /// Handles the end of a Get into a slot. Returns the request whose frame is there, and the
    /// value kept with it. When the frame has been taken, [`Fetches::go_on`] must be called.
    pub fn ended(
        &mut self,
        slot: usize,
        fetched: bool,
        queue: &mut impl Rendezvous,
        counters: &mut Counters,
    ) -> Option<(Request, H)> {
        if fetched {
            return self.take(slot);
        }
        self.fail(slot, queue, counters);
        self.start(queue, counters);
        None
    }

    /// Fetches waiting frames, and sends the answers that cannot wait for more.
    pub fn go_on(&mut self, queue: &mut impl Rendezvous, counters: &mut Counters) {
        self.start(queue, counters);
        self.answer(false, queue);
    }

    /// Answers handled requests: those whose answer cannot wait, or with `all` also those of nodes
    /// without other frames being fetched.
    pub fn answer(&mut self, all: bool, queue: &mut impl Rendezvous) {
        while let Some((node, id)) = self.answer_due(all) {
            queue.tell(node, &Message::Done { id, refused: false });
        }
    }

    /// Fetches as many frames as possible.
    fn start(&mut self, queue: &mut impl Rendezvous, counters: &mut Counters) {
        while let Some((slot, request)) = self.begin() {
            if !queue.fetch(slot, &request) {
                self.fail(slot, queue, counters);
            }
        }
    }

    /// Handles a frame that could not be fetched. Requests its origin to send the next ones in
    /// packets.
    fn fail(&mut self, slot: usize, queue: &mut impl Rendezvous, counters: &mut Counters) {
        let Some((request, _)) = self.take(slot) else { return };
        counters.rendezvous_failed += 1;
        for place in self.owed.iter_mut() {
            let taken = place.take_if(|owed| owed.to == request.origin);
            self.owed_count -= usize::from(taken.is_some());
        }
        queue.tell(request.origin, &Message::Done { id: request.id, refused: true });
    }

    /// Adds a request. False if there are too many. Then it is dropped, and an answer is owed.
    fn add(&mut self, request: Request, with: H) -> bool {
        let waiting = self.waiting.iter().flatten();
        let its = waiting.filter(|(waiting, _)| waiting.origin == request.origin).count();
        let fits = its < WAITING_PER_NODE && self.count < MAX_WAITING;
        if fits {
            self.waiting[(self.first + self.count) % MAX_WAITING] = Some((request, with));
            self.count += 1;
        } else {
            self.owe(request.origin, request.id);
        }
        fits
    }

    /// The next request to be fetched, and its slot.
    fn begin(&mut self) -> Option<(usize, Request)> {
        let slot = self.slots.iter().position(Option::is_none)?;
        let (request, with) = self.waiting[self.first].take()?;
        self.first = (self.first + 1) % MAX_WAITING;
        self.count -= 1;
        self.slots[slot] = Some((request, with));
        self.under_way += 1;
        Some((slot, request))
    }

    /// Frees a slot and returns the request that was fetched into it. An answer is owed then.
    fn take(&mut self, slot: usize) -> Option<(Request, H)> {
        let taken = self.slots.get_mut(slot)?.take()?;
        self.under_way -= 1;
        self.held_ns = None;
        self.given_up = false;
        self.owe(taken.0.origin, taken.0.id);
        Some(taken)
    }

    fn owe(&mut self, to: Coords, id: u32) {
        if let Some(owed) = self.owed.iter_mut().flatten().find(|owed| owed.to == to) {
            // The frames may have been fetched out of order.
            if id.wrapping_sub(owed.id) < 1 << 31 {
                owed.id = id;
            }
            owed.count += 1;
        } else if let Some(place) = self.owed.iter_mut().find(|place| place.is_none()) {
            *place = Some(Owed { to, id, count: 1 });
            self.owed_count += 1;
        }
    }

    /// Returns a node for which an answer is due, and the last id that it covers. Without `all`,
    /// only answers that cannot wait. Must be called until it returns `None`.
    fn answer_due(&mut self, all: bool) -> Option<(Coords, u32)> {
        if self.owed_count == 0 {
            return None;
        }
        let full = self.owed_count == self.owed.len();
        let slots = &self.slots;
        let ends = |to| !slots.iter().flatten().any(|(request, _)| request.origin == to);
        let due = |owed: &mut Owed| full || owed.count >= OWED || all && ends(owed.to);
        let owed = self.owed.iter_mut().find_map(|place| place.take_if(due))?;
        self.owed_count -= 1;
        Some((owed.to, owed.id))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::rendezvous::message::tests::{NODE, request};
    use crate::storage::Heap;

    #[test]
    fn fetches_are_answered_up_to_the_last() {
        let Ok(mut fetches) = Fetches::<Heap, u32>::new();
        for id in (0..WAITING_PER_NODE as u32 + 3).map(|n| (u32::MAX - 2).wrapping_add(n)) {
            let fits = fetches.add(request(id), id);
            assert_eq!(fits, id.wrapping_sub(u32::MAX - 2) < WAITING_PER_NODE as u32);
        }
        let dropped = (u32::MAX - 2).wrapping_add(WAITING_PER_NODE as u32 + 2);
        assert_eq!(fetches.answer_due(false), None);
        assert_eq!(fetches.answer_due(true), Some((NODE, dropped)));
        let taken: Vec<_> = core::iter::from_fn(|| fetches.begin()).collect();
        assert_eq!(taken.len(), SLOTS);
        assert!(fetches.are_under_way());
        for (slot, request) in taken.iter().rev().take(4) {
            assert_eq!(fetches.take(*slot), Some((*request, request.id)));
            assert_eq!(fetches.take(*slot), None, "it has been taken");
        }
        // The last of these requests, though it ended first.
        assert_eq!(fetches.answer_due(false), Some((NODE, taken[SLOTS - 1].1.id)));
        assert_eq!(fetches.answer_due(true), None);
        assert!(fetches.are_under_way() && fetches.are_under_way_from(NODE));
        for (slot, _) in taken {
            fetches.take(slot);
        }
        assert!(!fetches.are_under_way() && !fetches.are_under_way_from(NODE));
        assert!(fetches.answer_due(true).is_some());
        fetches.clear();
        assert_eq!(fetches.answer_due(true), None);
    }

    #[test]
    fn packet_waits_while_frames_of_its_origin_come() {
        let Ok(mut fetches) = Fetches::<Heap>::new();
        let other = Coords::new(7, 0, 0, 0, 0, 0);
        let hold = |fetches: &mut Fetches<Heap>, from, direct, now_ns| {
            fetches.hold(|| Some((from, direct)), || now_ns)
        };
        assert_eq!(hold(&mut fetches, NODE, true, 1), None, "nothing is fetched");
        let begin = |fetches: &mut Fetches<Heap>, id| {
            assert!(fetches.add(request(id), ()));
            fetches.begin().unwrap().0
        };
        let slots: Vec<_> = (0..3).map(|id| begin(&mut fetches, id)).collect();
        assert_eq!(hold(&mut fetches, other, true, 1), None);
        assert_eq!(hold(&mut fetches, NODE, false, 1), None, "it is relayed");
        assert_eq!(hold(&mut fetches, NODE, true, 1), Some(OVERTAKE_NS));
        assert!(fetches.is_holding());
        assert_eq!(hold(&mut fetches, NODE, true, OVERTAKE_NS), Some(1));
        // One of the frames comes, and the others have as much time again.
        fetches.take(slots[0]);
        assert_eq!(hold(&mut fetches, NODE, true, OVERTAKE_NS), Some(OVERTAKE_NS));
        assert_eq!(hold(&mut fetches, NODE, true, 2 * OVERTAKE_NS), None);
        assert!(!fetches.is_holding());
        // A frame that has timed out does not delay every packet.
        assert_eq!(hold(&mut fetches, NODE, true, 2 * OVERTAKE_NS), None);
        fetches.take(slots[1]);
        assert_eq!(hold(&mut fetches, NODE, true, 2 * OVERTAKE_NS), Some(OVERTAKE_NS));
        fetches.take(slots[2]);
        assert_eq!(hold(&mut fetches, NODE, true, 2 * OVERTAKE_NS), None);
    }

    #[test]
    fn answers_to_many_nodes_do_not_wait() {
        let Ok(mut fetches) = Fetches::<Heap>::new();
        let nodes = (0..OWED_NODES as u8).map(|n| Coords::new(n, 0, 0, 0, 0, 0));
        for (n, origin) in nodes.enumerate() {
            assert!(fetches.add(Request { origin, ..request(n as u32) }, ()));
            let (slot, _) = fetches.begin().unwrap();
            fetches.take(slot);
            let due = fetches.answer_due(false);
            assert_eq!(due.is_some(), n + 1 == OWED_NODES, "{n}");
        }
        assert_eq!(fetches.answer_due(false), None, "there is room again");
    }
}
