//! Packets on their way out: round links that are known to be dead, and detours round those that
//! turn out to be; and broadcasts, which are relayed along a tree and acknowledged from node to
//! node.

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

/// How long a way round a dead link is kept before the first one is tried again, in nanoseconds.
const DETOUR_NS: u64 = 1_000_000_000;
/// How long the acknowledgement of a broadcast may take before the broadcast goes round the node,
/// and how long the node counts as unresponsive from then on, both in nanoseconds.
const ACKNOWLEDGE_NS: u64 = 100_000_000;
const UNRESPONSIVE_NS: u64 = 10_000_000_000;
/// Fragments that wait for their acknowledgement at a time. Of more, the oldest count as
/// acknowledged.
const MAX_AWAITED: usize = 64;
/// Nodes that one fragment has still to be sent to: the way down a tree is shorter than all axes
/// together, and each node on it has at most so many children.
const MAX_PENDING: usize = 6 * 32 * tree::MAX_CHILDREN;
/// Bytes of a packet.
const PACKET_MAX: usize = HEADER_SIZE + FRAGMENT_MAX;

/// What a packet was sent for, which its sender has to know when it is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// The node that it goes to.
    pub to: Coords,
    /// Number of its way, see [`route`].
    pub attempt: u8,
    /// Whether it is part of a broadcast.
    pub broadcast: bool,
    /// Whether it is a [`Report`](crate::Report), which nobody misses.
    pub report: bool,
    /// Whether ways before the first one that was tried were left out, and come last.
    pub wraps: bool,
}

impl Tag {
    const BROADCAST: u32 = 1 << 26;
    const REPORT: u32 = 1 << 27;
    const WRAPS: u32 = 1 << 28;
    /// Bits of [`Tag::pack`].
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

/// A queue that packets are sent by.
pub trait PacketQueue {
    /// Puts a packet into the queue, whose payload is the `parts` one after the other. False if
    /// there is no buffer for it.
    fn post(&mut self, target: &PacketTarget, tag: Tag, parts: &[&[u8]]) -> bool;
}

/// The ways to other nodes.
#[derive(Debug)]
struct Ways<S: Storage> {
    shape: Shape,
    me: Coords,
    tni: TniId,
    /// The way that was taken last, by its node and number: most packets take it again.
    last: Option<(Coords, u8, PacketTarget)>,
    /// The number of the way to a node.
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

    /// The way to begin with: the one that was found lately, or the first one without links that
    /// are known to be dead. If there is none, the first one of all.
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

    /// The way to send a packet by once more.
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
    /// It was not acknowledged yet.
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

/// Broadcasts on their way to the nodes below this one in a tree.
#[derive(Debug)]
struct Relay<S: Storage> {
    /// A ring, in the order of sending: the next one to be looked at, and how many there are.
    awaited: S::Places<Awaited>,
    first: usize,
    count: usize,
    /// Nodes that have not acknowledged something.
    unresponsive: NodeTable<S, ()>,
    pending: S::Places<Coords>,
}

impl<S: Storage> Relay<S> {
    /// Sends a fragment of a broadcast to a node, and, if that is known to be unresponsive, to
    /// those to which it would have relayed it.
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
        // Every node is in the tree once, so this ends.
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

    /// A fragment has come to a node, or never will.
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
    /// A packet that goes round a node.
    spare: S::Places<u8>,
}

impl<S: Storage> Outbound<S> {
    /// The sending side of node `me`, through a TNI, with what it knows of dead links.
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

    /// Forgets what waits to be acknowledged.
    pub fn clear(&mut self) {
        self.relay.count = 0;
    }

    /// The counters of what was done.
    pub fn counters(&self) -> Counters {
        self.ways.counters
    }

    /// The same, to count what the parts of this do not.
    pub fn count(&mut self) -> &mut Counters {
        &mut self.ways.counters
    }

    /// Whether nothing waits to be acknowledged.
    pub fn is_settled(&self) -> bool {
        self.relay.count == 0
    }

    /// The way to a node, for whoever posts a packet to one node without [`Outbound::post`]. `None`
    /// if there is none; the packet counts as lost then.
    pub fn way(&mut self, to: Coords, now_ns: u64) -> Option<(PacketTarget, Tag)> {
        let way = self.ways.first(Tag { to, ..Tag::default() }, now_ns);
        if way.is_none() {
            self.ways.counters.lost += 1;
        }
        way
    }

    /// The dead links that are known.
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

    /// Sends a fragment of a broadcast to a child, and, if that is known to be unresponsive, to
    /// those to which it would have relayed it.
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

    /// A node has acknowledged a fragment of a broadcast.
    pub fn acknowledged(&mut self, from: Coords, key: FragmentKey) {
        self.relay.unresponsive.forget(from);
        self.relay.close(from, key);
    }

    /// Routes broadcasts around nodes that have not acknowledged them in time. To be called from
    /// time to time.
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

    /// Handles a packet that was lost with this result code: returns the target for sending it once
    /// more, if there is another path.
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

    /// Sends a packet of a broadcast, which was lost for good, to those to which the node would
    /// have relayed it. `take` copies the packet, returns its length, and gives its buffer back.
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
