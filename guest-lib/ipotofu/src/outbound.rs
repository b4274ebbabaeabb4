//! Departing packets, which are routed around dead links, known in advance or found on the way; and
//! broadcasts, which are relayed along a tree and acknowledged hop by hop.

use tofu_abi::topology::Shape;
use tofu_abi::{Coords, PacketTarget, Rcode, TniId};

use crate::addr;
use crate::counters::Counters;
use crate::health::Health;
use crate::nodes::NodeTable;
use crate::routes::route;
use crate::storage::Storage;
use crate::tree;
use crate::wire::{FRAGMENT_MAX, FragmentKey, HEADER_SIZE, Packet, Repr};

/// How long a detour is used before the first route is tried again, in nanoseconds.
const DETOUR_NS: u64 = 1_000_000_000;
/// How long the acknowledgement of a broadcast may take before the broadcast is routed around the
/// node, and how long the node then counts as unresponsive, both in nanoseconds.
const ACKNOWLEDGE_NS: u64 = 100_000_000;
const UNRESPONSIVE_NS: u64 = 10_000_000_000;
/// The most fragments that wait for their acknowledgement at a time. If there are more, the oldest
/// count as acknowledged.
const MAX_AWAITED: usize = 64;
/// The most nodes that one fragment may still have to be sent to: a path down a tree is shorter
/// than all axes together, and each node on it has at most [`tree::MAX_CHILDREN`] children.
const MAX_PENDING: usize = 6 * 32 * tree::MAX_CHILDREN;
/// Size of the largest packet, in bytes.
const PACKET_MAX: usize = HEADER_SIZE + FRAGMENT_MAX;

/// What its sender must know about a packet if it is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// The node that the packet goes to.
    pub to: Coords,
    /// Number of its route, see [`route`].
    pub attempt: u8,
    /// Whether the packet is part of a broadcast.
    pub broadcast: bool,
    /// Whether it is a [`Report`](crate::Report), whose loss does not matter.
    pub report: bool,
    /// Whether routes before the first one tried were skipped. They then come last.
    pub wraps: bool,
}

impl Tag {
    const BROADCAST: u32 = 1 << 26;
    const REPORT: u32 = 1 << 27;
    const WRAPS: u32 = 1 << 28;
    /// Number of bits of [`Tag::pack`].
    pub const BITS: u32 = 29;

    /// The tag as a number: node in bits 18:0, way 25:19, broadcast 26, report 27, wraps 28.
    pub const fn pack(self) -> u32 {
        let broadcast = if self.broadcast { Self::BROADCAST } else { 0 };
        let report = if self.report { Self::REPORT } else { 0 };
        let wraps = if self.wraps { Self::WRAPS } else { 0 };
        addr::pack(self.to) | (self.attempt as u32) << 19 | broadcast | report | wraps
    }

    /// Inverse of [`Tag::pack`].
    pub const fn unpack(number: u32) -> Option<Self> {
        match addr::unpack(number & 0x7_ffff) {
            Some(to) => Some(Self {
                to,
                attempt: (number >> 19 & 0x7f) as u8,
                broadcast: number & Self::BROADCAST != 0,
                report: number & Self::REPORT != 0,
                wraps: number & Self::WRAPS != 0,
            }),
            None => None,
        }
    }
}

/// A queue to send packets by.
pub trait PacketQueue {
    /// Puts a packet into the queue. Its payload is the concatenation of `parts`. False if there is
    /// no buffer for it.
    fn post(&mut self, target: &PacketTarget, tag: Tag, parts: &[&[u8]]) -> bool;
}

/// The routes to other nodes.
#[derive(Debug)]
struct Ways<S: Storage> {
    shape: Shape,
    me: Coords,
    tni: TniId,
    /// The last route, with its node and number: most packets use it again.
    last: Option<(Coords, u8, PacketTarget)>,
    /// The number of the current route to a node.
    detours: NodeTable<S, u8>,
    health: S::Shared<Health<S>>,
    counters: Counters,
}

impl<S: Storage> Ways<S> {
    fn way(&mut self, tag: Tag) -> Option<(PacketTarget, Tag)> {
        let last = self.last.filter(|(to, attempt, _)| (*to, *attempt) == (tag.to, tag.attempt));
        if let Some((.., target)) = last {
            return Some((target, tag));
        }
        let target = route(&self.shape, self.me, tag.to, self.tni, tag.attempt)?;
        self.last = Some((tag.to, tag.attempt, target));
        Some((target, tag))
    }

    /// The first route to try: one that was found lately, or else the first one without links known
    /// to be dead. If there is none, the very first one.
    fn first(&mut self, mut tag: Tag, now_ns: u64) -> Option<(PacketTarget, Tag)> {
        if let Some(attempt) = self.detours.get(tag.to, now_ns, DETOUR_NS) {
            (tag.attempt, tag.wraps) = (attempt, attempt != 0);
        } else if !self.health.is_quiet(now_ns) {
            let way = |attempt| route(&self.shape, self.me, tag.to, self.tni, attempt);
            let mut ways = (0..=u8::MAX).map_while(way);
            let clear = ways.position(|target| self.health.is_clear(&target, now_ns));
            let attempt = clear.unwrap_or(0) as u8;
            if attempt != 0 {
                self.counters.avoided += 1;
            }
            self.detours.set(tag.to, now_ns, attempt);
            (tag.attempt, tag.wraps) = (attempt, attempt != 0);
        }
        self.way(tag)
    }

    /// The next route for a packet.
    fn next(&mut self, tag: Tag) -> Option<(PacketTarget, Tag)> {
        let next = self.way(Tag { attempt: tag.attempt.saturating_add(1), ..tag });
        match tag.wraps {
            true => next.or_else(|| self.way(Tag { attempt: 0, wraps: false, ..tag })),
            false => next,
        }
    }

    fn post(
        &mut self,
        queue: &mut impl PacketQueue,
        to: Coords,
        broadcast: bool,
        parts: &[&[u8]],
        now_ns: u64,
    ) {
        let way = self.first(Tag { to, broadcast, ..Tag::default() }, now_ns);
        if !way.is_some_and(|(target, tag)| queue.post(&target, tag, parts)) {
            self.counters.lost += 1;
        }
    }
}

/// A fragment of a broadcast whose acknowledgement is awaited.
#[derive(Debug)]
struct Awaited {
    /// Whether it was not acknowledged yet.
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
struct Relay<S: Storage> {
    /// A ring in the order of sending, the index of the first entry, and their number.
    awaited: S::Places<Awaited>,
    first: usize,
    count: usize,
    /// Nodes that have not acknowledged a broadcast in time.
    unresponsive: NodeTable<S, ()>,
    pending: S::Places<Coords>,
}

impl<S: Storage> Relay<S> {
    /// Sends a fragment of a broadcast to a node. If that node is known to be unresponsive, also to
    /// the nodes that it would have relayed the fragment to.
    fn send(
        &mut self,
        ways: &mut Ways<S>,
        queue: &mut impl PacketQueue,
        to: Coords,
        (header, body): (&[u8], &[u8]),
        now_ns: u64,
    ) {
        let Some(repr) = parse(header, body) else { return };
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
    fn close(&mut self, to: Coords, key: FragmentKey) {
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

/// The sending side of a node.
#[derive(Debug)]
pub struct Outbound<S: Storage> {
    ways: Ways<S>,
    relay: Relay<S>,
    /// Buffer for a packet that is routed around a node.
    spare: S::Places<u8>,
}

impl<S: Storage> Outbound<S> {
    /// Creates the sending side of node `me` on a TNI, with the known dead links.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn new(
        shape: Shape,
        me: Coords,
        tni: TniId,
        health: S::Shared<Health<S>>,
    ) -> Result<Self, S::Error> {
        let (detours, counters) = (NodeTable::new()?, Counters::default());
        Ok(Self {
            ways: Ways { shape, me, tni, last: None, detours, health, counters },
            relay: Relay {
                awaited: S::places(MAX_AWAITED, || Awaited::NOTHING)?,
                first: 0,
                count: 0,
                unresponsive: NodeTable::new()?,
                pending: S::places(MAX_PENDING, Coords::default)?,
            },
            spare: S::places(PACKET_MAX, || 0)?,
        })
    }

    /// Drops all fragments that wait to be acknowledged.
    pub fn clear(&mut self) {
        self.relay.count = 0;
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        self.ways.counters
    }

    /// The counters, for events that are counted elsewhere.
    pub fn count(&mut self) -> &mut Counters {
        &mut self.ways.counters
    }

    /// Whether no fragment waits to be acknowledged.
    pub fn is_settled(&self) -> bool {
        self.relay.count == 0
    }

    /// The route to a node, for a packet that is not posted by [`Outbound::post`]. `None` if there
    /// is none; the packet then counts as lost.
    pub fn way(&mut self, to: Coords, now_ns: u64) -> Option<(PacketTarget, Tag)> {
        let way = self.ways.first(Tag { to, ..Tag::default() }, now_ns);
        if way.is_none() {
            self.ways.counters.lost += 1;
        }
        way
    }

    /// The known dead links.
    pub fn health(&self) -> &S::Shared<Health<S>> {
        &self.ways.health
    }

    /// Sends a report to a node. False if there is no room for it.
    pub fn report(
        &mut self,
        queue: &mut impl PacketQueue,
        to: Coords,
        header: &[u8; HEADER_SIZE],
        now_ns: u64,
    ) -> bool {
        let way = self.ways.first(Tag { to, report: true, ..Tag::default() }, now_ns);
        way.is_some_and(|(target, tag)| queue.post(&target, tag, &[header]))
    }

    /// Sends a packet to one node.
    pub fn post(&mut self, queue: &mut impl PacketQueue, to: Coords, parts: &[&[u8]], now_ns: u64) {
        self.ways.post(queue, to, false, parts, now_ns);
    }

    /// Sends a fragment of a broadcast to a child. If that is known to be unresponsive, also to the
    /// nodes that it would have relayed the fragment to.
    pub fn relay(
        &mut self,
        queue: &mut impl PacketQueue,
        to: Coords,
        header: &[u8; HEADER_SIZE],
        body: &[u8],
        now_ns: u64,
    ) {
        self.relay.send(&mut self.ways, queue, to, (header, body), now_ns);
    }

    /// Handles a node's acknowledgement of a fragment of a broadcast.
    pub fn acknowledged(&mut self, from: Coords, key: FragmentKey) {
        self.relay.unresponsive.forget(from);
        self.relay.close(from, key);
    }

    /// Routes broadcasts around nodes that have not acknowledged them in time. To be called
    /// periodically.
    pub fn expire(&mut self, queue: &mut impl PacketQueue, now_ns: u64) {
        while self.relay.count > 0 {
            let one = &self.relay.awaited[self.relay.first];
            if one.open && now_ns.saturating_sub(one.since_ns) < ACKNOWLEDGE_NS {
                return;
            }
            let (open, to, len) = (one.open, one.to, one.len);
            self.spare[..len].copy_from_slice(&one.packet[..len]);
            self.relay.take_first();
            if open {
                self.relay.unresponsive.set(to, now_ns, ());
                self.relay_beyond(queue, to, len, now_ns);
            }
        }
    }

    /// Handles a packet that was lost with this result code. Returns the target for sending it
    /// again, if there is another route.
    pub fn lost(&mut self, tag: Tag, rcode: Rcode, now_ns: u64) -> Option<(PacketTarget, Tag)> {
        let way = self.ways.next(tag).filter(|_| rcode == Rcode::LINK_DOWN);
        let count = u64::from(!tag.report);
        if let Some((_, tag)) = way {
            self.ways.detours.set(tag.to, now_ns, tag.attempt);
            self.ways.counters.rerouted += count;
            return way;
        }
        self.ways.detours.forget(tag.to);
        self.ways.counters.lost += count;
        None
    }

    /// Sends a lost packet of a broadcast to the nodes that the lost packet's target would have
    /// relayed it to. `take` copies the packet, returns its length, and releases its buffer.
    pub fn go_round<Q: PacketQueue>(
        &mut self,
        queue: &mut Q,
        to: Coords,
        take: impl FnOnce(&mut Q, &mut [u8]) -> usize,
        now_ns: u64,
    ) {
        let len = take(queue, &mut self.spare).min(self.spare.len());
        let (header, body) = self.spare[..len].split_at(HEADER_SIZE.min(len));
        if let Some(repr) = parse(header, body) {
            self.relay.close(to, repr.key());
            self.relay_beyond(queue, to, len, now_ns);
        }
    }

    fn relay_beyond(&mut self, queue: &mut impl PacketQueue, to: Coords, len: usize, now_ns: u64) {
        let packet = self.spare[..len].split_at(HEADER_SIZE.min(len));
        let Some(repr) = parse(packet.0, packet.1) else { return };
        for child in tree::children(&self.ways.shape, repr.origin, to) {
            self.relay.send(&mut self.ways, queue, child, packet, now_ns);
        }
    }
}

fn parse(header: &[u8], body: &[u8]) -> Option<Repr> {
    Repr::parse(&Packet::new_checked(header).ok()?, body.len()).ok()
}
