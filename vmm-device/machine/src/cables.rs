//! Cables to the shards of a machine that are in other processes.
//!
//! Packets travel over a [`Transport`] as messages: a byte that gives the kind of message, and the
//! packet as bytes ([`tofu_fabric::wire`]). A peer's message is checked here, by the fabric, and by
//! the device that it is for. A message that fails a check is counted and dropped, and this shard
//! continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tofu_abi::Rcode;
use tofu_fabric::wire::{self, Malformed, Wire};
use tofu_fabric::{Class, Crossing, NodeId, Packet, Route, ShardId, Shards, Stray, Way};

/// Takes messages to other shards.
///
/// Messages for one shard arrive there in the order in which they were sent, each once. After the
/// first message that is lost, none arrives.
pub trait Transport: Send + Sync {
    /// Sends a message to a shard without waiting. Returns false if that shard is not connected.
    fn send(&self, to: ShardId, message: Vec<u8>) -> bool;

    /// Like [`Transport::send`], for a message from or about another shard's node. It also returns
    /// false if too much already waits for that shard: this shard cannot stop such messages from
    /// coming.
    fn pass_on(&self, to: ShardId, message: Vec<u8>) -> bool {
        self.send(to, message)
    }

    /// Reports that requests of `whose` caused the message just sent to `to`. If much data waits
    /// for `to`, `whose` must be throttled for a while.
    fn hold_back(&self, _whose: ShardId, _to: ShardId) {}

    /// True if the transport accepts more requests. If not, it must call
    /// [`NetworkOf::room`](crate::NetworkOf::room) when it accepts them again.
    fn has_room(&self) -> bool {
        true
    }
}

/// Maximum size of a message, in bytes.
pub const MAX_MESSAGE: usize = 2 + wire::most_bytes::<tofu_icc::Body>();

const PACKET: u8 = 1;
const UNDELIVERED: u8 = 2;

/// The reason why a message from another shard is refused. No honest shard sends such a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its kind is unknown.
    #[error("it is of no known kind")]
    Kind,
    /// Its bytes are not a valid packet.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Its packet cannot come from that shard.
    #[error(transparent)]
    Stray(#[from] Stray),
    /// It reports the loss of a packet that is not from a node here or did not go that way.
    #[error("it reports a packet as lost that did not go there")]
    Report,
}

/// Counters of the cables to one other shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CableCounters {
    /// Messages sent.
    pub sent: u64,
    /// Total size of the messages sent, in bytes.
    pub sent_bytes: u64,
    /// Messages received.
    pub received: u64,
    /// Total size of the messages received, in bytes.
    pub received_bytes: u64,
    /// Messages received that were refused.
    pub refused: u64,
}

/// The same counters, as they are kept.
#[derive(Debug, Default)]
struct Counters {
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    received: AtomicU64,
    received_bytes: AtomicU64,
    refused: AtomicU64,
}

/// The cables of a shard.
pub(crate) struct Cables {
    shards: Arc<Shards>,
    own: ShardId,
    transport: Arc<dyn Transport>,
    counters: Box<[Counters]>,
}

/// The shard on whose behalf a message was sent, and whether the message only passes through here.
struct Whose {
    /// The shard whose request it is, or whose request it answers.
    asked: ShardId,
    /// True if the message is not from a node here.
    through: bool,
}

/// A parsed message from another shard.
pub enum Incoming<B> {
    /// A packet.
    Packet(Crossing<B>),
    /// A packet of a node here was not delivered.
    Undelivered(Rcode, Packet<B>),
}

impl Cables {
    pub(crate) fn new(shards: Arc<Shards>, own: ShardId, transport: Arc<dyn Transport>) -> Self {
        let counters = shards.all().map(|_| Counters::default()).collect();
        Self { shards, own, transport, counters }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.transport.has_room()
    }

    pub(crate) fn counters(&self, shard: ShardId) -> Option<CableCounters> {
        let Counters { sent, sent_bytes, received, received_bytes, refused } =
            self.counters.get(shard.index())?;
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        Some(CableCounters {
            sent: read(sent),
            sent_bytes: read(sent_bytes),
            received: read(received),
            received_bytes: read(received_bytes),
            refused: read(refused),
        })
    }

    fn send_message(&self, to: ShardId, message: Vec<u8>, whose: Whose) -> bool {
        let Some(counters) = self.counters.get(to.index()) else { return false };
        let bytes = message.len() as u64;
        let sent = match whose.through {
            true => self.transport.pass_on(to, message),
            false => self.transport.send(to, message),
        };
        if sent {
            if whose.asked != self.own {
                self.transport.hold_back(whose.asked, to);
            }
            counters.sent.fetch_add(1, Relaxed);
            counters.sent_bytes.fetch_add(bytes, Relaxed);
        }
        sent
    }

    fn whose<B>(&self, packet: &Packet<B>) -> Whose {
        let of = |at| {
            let node = self.shards.shape().node_id(at);
            node.and_then(|node| self.shards.of(node)).unwrap_or(self.own)
        };
        let from = of(packet.src);
        let asked = match packet.class {
            Class::Response => of(packet.dst),
            Class::Request | Class::System => from,
        };
        Whose { asked, through: from != self.own }
    }

    /// Reports an undelivered packet to the shard of the node that sent it.
    pub(crate) fn report<B: Wire>(&self, to: ShardId, rcode: Rcode, packet: &Packet<B>) {
        let packet = Packet { body: packet.body.without_data(), ..*packet };
        let crossing = Crossing { packet, hops: 0, held: None, duplicated: false };
        let mut message = vec![UNDELIVERED, rcode.raw()];
        if wire::encode(&crossing, &mut message).is_ok() {
            // If that shard is gone, so is the node that would be notified. If the shard is
            // overloaded, the node's command ends by its timeout.
            self.send_message(to, message, Whose { asked: to, through: true });
        }
    }

    /// Parses a message from a shard, and checks that this shard may send it.
    pub(crate) fn take<B: Wire>(
        &self,
        from: ShardId,
        message: &[u8],
    ) -> Result<Incoming<B>, Refused> {
        let (kind, rest) = message.split_first().ok_or(Refused::Kind)?;
        match *kind {
            PACKET => Ok(Incoming::Packet(wire::decode(rest)?)),
            UNDELIVERED => {
                let (rcode, rest) = rest.split_first().ok_or(Malformed::Short)?;
                let (rcode, packet) = (Rcode::new(*rcode), wire::decode::<B>(rest)?.packet);
                let known = [Rcode::LINK_DOWN, Rcode::TARGET_DMA_OFF].contains(&rcode);
                if !known || !self.went_through(from, &packet) {
                    return Err(Refused::Report);
                }
                Ok(Incoming::Undelivered(rcode, packet))
            }
            _ => Err(Refused::Kind),
        }
    }

    /// True if a packet is from a node here and its route leads through `shard`.
    fn went_through<B>(&self, shard: ShardId, packet: &Packet<B>) -> bool {
        let shape = self.shards.shape();
        let Packet { src, dst, path, class, .. } = *packet;
        let Some(source) = shape.node_id(src) else { return false };
        if self.shards.of(source) != Some(self.own) {
            return false;
        }
        let there = |node: NodeId| self.shards.of(node) == Some(shard);
        match packet.way {
            Way::Hop { port, .. } => {
                let far = shape.neighbor(src, port).and_then(|node| shape.node_id(node));
                far.is_some_and(there)
            }
            Way::Distances(distances) => {
                Route::by_distances(shape, src, dst, distances, path, class)
                    .is_ok_and(|(_, mut route)| route.any(|hop| there(hop.to)))
            }
            Way::Shortest => Route::new(shape, src, dst, path, class)
                .is_ok_and(|mut route| route.any(|hop| there(hop.to))),
        }
    }

    /// Counts a message from a shard. Logs a refused message, and the first one as a warning.
    pub(crate) fn count(&self, from: ShardId, bytes: usize, result: &Result<(), Refused>) {
        let Some(counters) = self.counters.get(from.index()) else { return };
        counters.received.fetch_add(1, Relaxed);
        counters.received_bytes.fetch_add(bytes as u64, Relaxed);
        if let Err(why) = result {
            let level = match counters.refused.fetch_add(1, Relaxed) {
                0 => log::Level::Warn,
                _ => log::Level::Debug,
            };
            log::log!(level, "a message from shard {from} is dropped: {why}");
        }
    }
}

impl<B: Wire + Send + Sync> tofu_fabric::Cables<B> for Cables {
    fn send(&self, to: ShardId, crossing: Crossing<B>) -> Option<Crossing<B>> {
        let mut message = Vec::with_capacity(512);
        message.push(PACKET);
        if wire::encode(&crossing, &mut message).is_err() {
            // The sender's memory is gone, and with it the guest that would notice the loss.
            return Some(crossing);
        }
        let whose = self.whose(&crossing.packet);
        (!self.send_message(to, message, whose)).then_some(crossing)
    }
}
