//! Broadcasts on their way to the nodes below this one in a tree.

use tofu_abi::Coords;

use super::queue::PacketQueue;
use super::ways::Ways;
use crate::nodes::NodeTable;
use crate::storage::Storage;
use crate::tree;
use crate::wire::{FragmentKey, HEADER_SIZE, PACKET_MAX, Repr};

/// The time after which a broadcast without an acknowledgement is routed around the node, and the
/// time for which the node then counts as unresponsive. Both are in nanoseconds.
const ACKNOWLEDGE_NS: u64 = 100_000_000;
const UNRESPONSIVE_NS: u64 = 10_000_000_000;
/// The most fragments that wait for their acknowledgement at a time. If there are more, the oldest
/// count as acknowledged.
const MAX_AWAITED: usize = 64;
/// The most nodes that one fragment may still have to be sent to.
const MAX_PENDING: usize = tree::MAX_DEPTH * tree::MAX_CHILDREN;

/// A fragment of a broadcast whose acknowledgement is awaited.
#[derive(Debug)]
struct Awaited {
    /// True if it was not acknowledged yet.
    open: bool,
    to: Coords,
    key: FragmentKey,
    since_ns: u64,
    len: usize,
    packet: [u8; PACKET_MAX],
}

impl Awaited {
    const NOTHING: Self = Self {
        open: false,
        to: Coords::new(0, 0, 0, 0, 0, 0),
        key: FragmentKey { origin: Coords::new(0, 0, 0, 0, 0, 0), id: 0, offset: 0 },
        since_ns: 0,
        len: 0,
        packet: [0; PACKET_MAX],
    };
}

/// Broadcasts in transit to the nodes below this one in a tree.
#[derive(Debug)]
pub(super) struct Relay<S: Storage> {
    /// A ring in the order of sending, the index of the first entry, and their number.
    awaited: S::Places<Awaited>,
    first: usize,
    count: usize,
    /// Nodes whose acknowledgement of a broadcast has timed out.
    unresponsive: NodeTable<S, ()>,
    pending: S::Places<Coords>,
}

impl<S: Storage> Relay<S> {
    pub(super) fn new() -> Result<Self, S::Error> {
        Ok(Self {
            awaited: S::places(MAX_AWAITED, || Awaited::NOTHING)?,
            first: 0,
            count: 0,
            unresponsive: NodeTable::new()?,
            pending: S::places(MAX_PENDING, Coords::default)?,
        })
    }

    /// Drops all fragments that wait to be acknowledged.
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// Returns true if no fragment waits to be acknowledged.
    pub(super) fn is_settled(&self) -> bool {
        self.count == 0
    }

    /// Handles a node's acknowledgement of a fragment.
    pub(super) fn acknowledged(&mut self, from: Coords, key: FragmentKey) {
        self.unresponsive.forget(from);
        self.close(from, key);
    }

    /// Takes the next fragment whose acknowledgement has timed out. Copies its packet to `spare`,
    /// and returns the packet's size and the node, which now counts as unresponsive.
    pub(super) fn expired(&mut self, spare: &mut [u8], now_ns: u64) -> Option<(Coords, usize)> {
        while self.count > 0 {
            let one = &self.awaited[self.first];
            if one.open && now_ns.saturating_sub(one.since_ns) < ACKNOWLEDGE_NS {
                return None;
            }
            let (open, to, len) = (one.open, one.to, one.len);
            spare[..len].copy_from_slice(&one.packet[..len]);
            self.take_first();
            if open {
                self.unresponsive.set(to, now_ns, ());
                return Some((to, len));
            }
        }
        None
    }

    /// Sends a fragment of a broadcast to a node. If that node is known to be unresponsive, also to
    /// the nodes that it would have relayed the fragment to.
    pub(super) fn send(
        &mut self,
        ways: &mut Ways<S>,
        queue: &mut impl PacketQueue,
        to: Coords,
        (header, body): (&[u8], &[u8]),
        now_ns: u64,
    ) {
        let Some(repr) = Repr::of(header, body) else { return };
        self.pending[0] = to;
        let mut pending = 1;
        // Every node is in the tree only once, so the loop ends.
        while let Some(last) = usize::checked_sub(pending, 1) {
            let node = self.pending[last];
            pending = last;
            ways.post(queue, node, true, &[header, body], now_ns);
            let mut children = tree::children(&ways.shape, repr.origin, node).peekable();
            if !repr.acknowledge || children.peek().is_none() {
                continue;
            }
            if self.unresponsive.get(node, now_ns, UNRESPONSIVE_NS).is_none() {
                self.expect(node, repr.key(), header, body, now_ns);
                continue;
            }
            for child in children {
                if let Some(place) = self.pending.get_mut(pending) {
                    *place = child;
                    pending += 1;
                }
            }
        }
    }

    fn expect(&mut self, to: Coords, key: FragmentKey, header: &[u8], body: &[u8], now_ns: u64) {
        if self.count == MAX_AWAITED {
            self.take_first();
        }
        let place = &mut self.awaited[(self.first + self.count) % MAX_AWAITED];
        let (front, rest) = place.packet.split_at_mut(HEADER_SIZE);
        let len = body.len().min(rest.len());
        front.copy_from_slice(header);
        rest[..len].copy_from_slice(&body[..len]);
        place.len = HEADER_SIZE + len;
        (place.open, place.to, place.key, place.since_ns) = (true, to, key, now_ns);
        self.count += 1;
    }

    /// Notes that a fragment has reached a node, or never will.
    pub(super) fn close(&mut self, to: Coords, key: FragmentKey) {
        for one in self.awaited.iter_mut().filter(|one| (one.to, one.key) == (to, key)) {
            one.open = false;
        }
        while self.count > 0 && !self.awaited[self.first].open {
            self.take_first();
        }
    }

    fn take_first(&mut self) {
        self.first = (self.first + 1) % MAX_AWAITED;
        self.count -= 1;
    }
}
