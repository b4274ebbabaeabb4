//! Which nodes fetch frames that are offered to them, where there is an allocator.

use alloc::collections::BTreeMap;

use tofu_abi::Coords;

use crate::addr;
use crate::offer::{FETCHES_NS, Room, SHUN_LAPSED_NS, SHUN_NS, Slots};

/// Nodes that are known at a time.
const MAX_NODES: usize = 4096;

/// What is known of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Taker {
    /// When it has said last that it fetches, in nanoseconds.
    since_ns: u64,
    /// Until when nothing is offered to it.
    shunned_ns: u64,
}

/// What this node offers.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    slots: Slots,
    takers: BTreeMap<u32, Taker>,
    /// Offers that nobody answered in time.
    pub(crate) lapsed: u64,
}

impl Offers {
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
        self.expire(now_ns);
        let Some(taker) = self.takers.get(&addr::pack(to)) else { return Room::None };
        let believed = taker.since_ns > 0 && now_ns.saturating_sub(taker.since_ns) <= FETCHES_NS;
        if !believed || taker.shunned_ns > now_ns {
            return Room::None;
        }
        self.slots.room(to)
    }

    pub(crate) fn offer(&mut self, slot: usize, to: Coords, id: u32, now_ns: u64) {
        self.slots.offer(slot, to, id, now_ns);
    }

    /// A node has answered an offer, and thereby all before it.
    pub(crate) fn done(&mut self, from: Coords, id: u32, refused: bool, now_ns: u64) {
        self.slots.done(from, id);
        if refused && let Some(taker) = self.takers.get_mut(&addr::pack(from)) {
            taker.shunned_ns = now_ns.saturating_add(SHUN_NS);
        }
    }

    fn expire(&mut self, now_ns: u64) {
        let Self { slots, takers, lapsed } = self;
        slots.expire(now_ns, |to| {
            *lapsed += 1;
            if let Some(taker) = takers.get_mut(&addr::pack(to)) {
                taker.shunned_ns = now_ns.saturating_add(SHUN_LAPSED_NS);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offer::{LAPSE_NS, PER_NODE};

    const NODE: Coords = Coords::new(1, 2, 3, 0, 1, 1);

    #[test]
    fn offers_are_bounded_for_each_node_and_in_all() {
        let mut offers = Offers::default();
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
        assert_eq!(offers.slots.ids_of(node(1)), [4, 5, 6, 7]);
    }

    #[test]
    fn nodes_that_do_not_answer_or_cannot_are_left_alone_for_a_while() {
        let mut offers = Offers::default();
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
}
