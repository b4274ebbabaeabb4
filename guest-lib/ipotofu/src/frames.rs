//! Frames in and packets out, and the reverse, without a device.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use thiserror::Error;
use tofu_abi::topology::Shape;
use tofu_abi::{Coords, Rcode, TniId};

use crate::addr::Mac;
use crate::counters::Counters;
use crate::health::Health;
use crate::inbound::{Event, Inbound, Incoming, Limits};
use crate::neighbor::{Destination, LocalNode};
use crate::nodes::Peers;
use crate::offload::{MAX_OFFLOADED, Metadata};
use crate::outbound::{Outbound, PacketQueue, Sending, Unsent};
use crate::storage::Heap;
use crate::wire::{self, Capabilities, ETHERNET_HEADER, Fragment};

/// The most answers to address queries that wait to be taken.
const MAX_REPLIES: usize = 64;

/// The configuration of a link.
#[derive(Clone, Debug)]
pub struct Config {
    /// The machine.
    pub shape: Shape,
    /// Number of the machine, 0 to [`MAX_MACHINE`](crate::addr::MAX_MACHINE): part of IP addresses.
    pub machine: u8,
    /// Largest IP packet, in bytes: [`Config::MIN_MTU`] to [`Config::MAX_MTU`]. All nodes should
    /// have the same.
    pub mtu: u16,
    /// Number of frames in several fragments that can be received at a time.
    pub reassemblies: usize,
    /// True if this node accepts offloaded frames, see [`crate::offload`].
    pub offload: bool,
    /// True if broadcasts of this node are acknowledged hop by hop, so that they are routed around
    /// nodes that have a device but do not listen.
    pub acknowledge: bool,
    /// True if this node fetches long frames of others, and lets nodes that do the same fetch its
    /// own, see [`crate::rendezvous`]. It needs [`Config::offload`].
    pub rendezvous: bool,
    /// True if the head of such a frame travels in the request, when the other node supports that
    /// too: then neither node computes a checksum of the frame. It needs [`Config::rendezvous`].
    pub split: bool,
}

impl Config {
    /// The smallest MTU.
    pub const MIN_MTU: u16 = wire::MIN_MTU;
    /// The largest MTU: with its Ethernet header a frame has at most 2^16 - 1 bytes.
    pub const MAX_MTU: u16 = wire::MAX_MTU;

    /// MTU 1500, 32 frames at a time, machine 0.
    pub const fn new(shape: Shape) -> Self {
        Self {
            shape,
            machine: 0,
            mtu: 1500,
            reassemblies: Limits::REASSEMBLIES,
            offload: false,
            acknowledge: false,
            rendezvous: false,
            split: false,
        }
    }

    /// Size of the longest frame in bytes: MTU and Ethernet header.
    pub fn max_frame(&self) -> usize {
        usize::from(self.mtu) + ETHERNET_HEADER
    }
}

/// The reason why a frame is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// It is shorter than an Ethernet header.
    #[error("a frame of {0} bytes has no Ethernet header")]
    Runt(usize),
    /// It is longer than the MTU allows.
    #[error("a frame has {max} bytes at most, not {len}")]
    TooLong {
        /// Size of the frame, in bytes.
        len: usize,
        /// Maximum size, in bytes.
        max: usize,
    },
    /// No node of the machine has this hardware address.
    #[error(
        "no node has the address {:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}",
        .0[0], .0[1], .0[2], .0[3], .0[4], .0[5]
    )]
    NoSuchNode(Mac),
    /// Too many packets are in flight. Try again when there is room.
    #[error("transmit queue full")]
    Full,
}

/// The sides of a link, and what it knows of the capabilities of other nodes.
pub(crate) struct Sides<'a> {
    pub(crate) inbound: &'a mut Inbound<Heap, Vec<u8>>,
    pub(crate) outbound: &'a mut Outbound<Heap>,
    pub(crate) peers: &'a Peers<Heap>,
}

/// The state of a node's link, apart from frames that are fetched.
#[derive(Debug)]
pub struct Core {
    config: Config,
    inbound: Inbound<Heap, Vec<u8>>,
    outbound: Outbound<Heap>,
    peers: Peers<Heap>,
    replies: VecDeque<Vec<u8>>,
}

impl Core {
    /// The link of node `me` on a TNI. An MTU out of range is replaced by the nearest valid one.
    pub fn new(mut config: Config, me: Coords, tni: TniId, now_ns: u64) -> Self {
        config.mtu = config.mtu.clamp(Config::MIN_MTU, Config::MAX_MTU);
        config.rendezvous &= config.offload;
        config.split &= config.rendezvous;
        let Config { shape, machine, offload, rendezvous, split, acknowledge, .. } = config;
        let limits = Limits {
            frame: config.max_frame(),
            offload,
            broadcasts: true,
            reassemblies: config.reassemblies,
        };
        let sending = Sending {
            says: Capabilities { offload, rendezvous, split, ..Capabilities::NONE },
            max_frame: config.max_frame(),
            acknowledge,
            reports: true,
            ..Sending::new(LocalNode { shape, machine, me }, tni)
        };
        let Ok(inbound) = Inbound::new(shape, me, limits);
        let (Ok(health), Ok(peers)) = (Health::new(shape, me), Peers::new());
        let Ok(outbound) = Outbound::new(sending, Arc::new(health), now_ns);
        Self { config, inbound, outbound, peers, replies: VecDeque::new() }
    }

    /// The configuration of the link.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The node.
    pub fn me(&self) -> Coords {
        self.outbound.node().me
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        let mut counters = self.outbound.counters();
        counters += self.inbound.counters();
        counters
    }

    /// Its sides.
    pub(crate) fn sides(&mut self) -> Sides<'_> {
        let Self { inbound, outbound, peers, .. } = self;
        Sides { inbound, outbound, peers }
    }

    /// The result code of the last lost packet.
    pub(crate) fn last_loss(&self) -> Option<Rcode> {
        self.outbound.last_loss()
    }

    /// Returns true if nothing has to be done after some time.
    pub(crate) fn is_settled(&self) -> bool {
        self.outbound.is_settled()
    }

    /// The sending side.
    pub fn outbound(&mut self) -> &mut Outbound<Heap> {
        &mut self.outbound
    }

    /// Which links are known to be dead.
    pub fn health(&self) -> &Arc<Health<Heap>> {
        self.outbound.health()
    }

    /// Gives this node the addresses of another one, as if it had queried them. Returns false if
    /// too many answers already wait to be taken.
    pub fn introduce(&mut self, node: Coords) -> bool {
        let answers = self.outbound.node().introduction(node);
        let fits = self.replies.len() + answers.len() <= MAX_REPLIES;
        if fits {
            self.replies.extend(answers.map(|answer| answer.as_bytes().to_vec()));
        }
        fits
    }

    /// Takes an answer to an address query of this node.
    pub fn take_reply(&mut self) -> Option<Vec<u8>> {
        self.replies.pop_front()
    }

    /// Returns true if [`Core::take_reply`] would return an answer.
    pub fn has_reply(&self) -> bool {
        !self.replies.is_empty()
    }

    /// The destination of a frame.
    pub fn destination(&self, frame: &[u8]) -> Destination {
        let first = |mac: &mut Mac| frame.first_chunk().map(|first| *mac = *first).is_some();
        self.outbound.node().destination(frame.len(), first)
    }

    /// Sends an Ethernet frame: puts its fragments into the queue.
    ///
    /// A query for the address of a node is answered here and not sent.
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    pub fn send(
        &mut self,
        queue: &mut impl PacketQueue,
        frame: &[u8],
        now_ns: u64,
    ) -> Result<(), SendError> {
        let to = self.destination(frame);
        match self.outbound.send(queue, to, &frame, now_ns) {
            Ok(reply) => {
                let reply = reply.filter(|_| self.replies.len() < MAX_REPLIES);
                self.replies.extend(reply.map(|reply| reply.as_bytes().to_vec()));
                Ok(())
            }
            // It is in the counters.
            Err(Unsent::Lost) => Ok(()),
            Err(Unsent::Full) => Err(SendError::Full),
            Err(Unsent::TooLong) => {
                Err(SendError::TooLong { len: frame.len(), max: self.config.max_frame() })
            }
            Err(Unsent::NoSuchNode(mac)) => Err(SendError::NoSuchNode(mac)),
            Err(Unsent::Runt) => Err(SendError::Runt(frame.len())),
        }
    }

    /// Sends an offloaded frame if the destination accepts it unchanged. Otherwise it does nothing
    /// and returns false: the frame must be completed ([`Metadata::complete`]) and sent.
    ///
    /// # Errors
    ///
    /// [`SendError::Full`].
    pub fn send_offloaded(
        &mut self,
        queue: &mut impl PacketQueue,
        metadata: &Metadata,
        frame: &[u8],
        now_ns: u64,
    ) -> Result<bool, SendError> {
        let fits = self.config.offload && frame.len() <= MAX_OFFLOADED;
        let to = self.destination(frame).node().filter(|_| fits);
        let Some(to) = to.filter(|to| self.peers.get(*to, now_ns).offload) else {
            return Ok(false);
        };
        match self.outbound.unicast(queue, to, &frame, Some(metadata), now_ns) {
            Err(Unsent::Full) => Err(SendError::Full),
            _ => Ok(true),
        }
    }

    /// Returns the node that may be requested to fetch a frame of `len` bytes that begins with
    /// `head`, and whether the head travels in the request.
    pub(crate) fn fetcher(
        &self,
        metadata: &Metadata,
        head: &[u8],
        len: usize,
        now_ns: u64,
    ) -> Option<(Coords, bool)> {
        let node = self.destination(head).node()?;
        let split = self.config.split && self.peers.get(node, now_ns).split;
        self.outbound.may_be_fetched(metadata, len, split).then_some((node, split))
    }

    /// Processes a packet from node `from`, given as its header and the rest.
    ///
    /// A fragment of a broadcast is acknowledged and relayed to other nodes.
    pub fn receive(
        &mut self,
        queue: &mut impl PacketQueue,
        from: Coords,
        (header, body): (&[u8], &[u8]),
        now_ns: u64,
    ) -> Event<Vec<u8>> {
        match self.inbound.parse(header, body) {
            Some(packet) => self.receive_frame(queue, from, &packet, now_ns),
            None => Event::Nothing,
        }
    }

    /// Like [`Core::receive`], for a packet with a valid header.
    pub(crate) fn receive_frame(
        &mut self,
        queue: &mut impl PacketQueue,
        from: Coords,
        packet: &Incoming<'_>,
        now_ns: u64,
    ) -> Event<Vec<u8>> {
        let Self { inbound, outbound, peers, .. } = self;
        let make = |len| Some(vec![0; len]);
        let mut send = |fragment: &Fragment<'_>| outbound.post_fragment(queue, fragment, now_ns);
        let event = inbound.receive(from, packet, peers, now_ns, make, &mut send);
        if let Event::Acknowledged(key) = &event {
            outbound.acknowledged(from, *key);
        }
        event
    }
}
