//! Conversion between frames and fragments, without a device.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use thiserror::Error;
use tofu_abi::topology::Shape;
use tofu_abi::{Coords, StagOffset};

use crate::addr::{self, Mac};
use crate::counters::Counters;
use crate::inbound::{Event, Inbound, Limits};
use crate::neighbor::{Answer, LocalNode};
use crate::nodes::Peers;
use crate::offload::{METADATA_SIZE, Metadata};
use crate::rendezvous::{MIN_FRAME, Request};
use crate::storage::Heap;
use crate::tree;
use crate::wire::{
    self, Capabilities, ETHERNET_HEADER, FRAGMENT_MAX, Fragment, HEADER_SIZE, PacketKind, Repr,
    Words,
};

/// The most answers to address queries that wait to be taken.
const MAX_REPLIES: usize = 64;

/// The configuration of a link.
#[derive(Clone, Debug)]
pub struct Config {
    /// The machine.
    pub shape: Shape,
    /// Number of the machine, 0 to [`addr::MAX_MACHINE`]: part of IP addresses.
    pub machine: u8,
    /// Largest IP packet, in bytes: [`Config::MIN_MTU`] to [`Config::MAX_MTU`]. All nodes should
    /// have the same.
    pub mtu: u16,
    /// Number of frames in several fragments that can be received at a time.
    pub reassemblies: usize,
    /// Whether this node accepts offloaded frames, see [`crate::offload`].
    pub offload: bool,
    /// Whether broadcasts of this node are acknowledged hop by hop, so that they are routed around
    /// nodes that have a device but do not listen.
    pub acknowledge: bool,
    /// Whether this node fetches long frames of others, and lets nodes that do the same fetch its
    /// own, see [`crate::rendezvous`]. It needs [`Config::offload`].
    pub rendezvous: bool,
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
        }
    }

    /// Size of the longest frame in bytes: MTU and Ethernet header.
    pub fn max_frame(&self) -> usize {
        usize::from(self.mtu) + ETHERNET_HEADER
    }
}

/// Why a frame is not sent.
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
}

/// Takes fragments: the header, the bytes between it and the part of the frame, and that part.
type FragmentSink<'a> = dyn FnMut([u8; HEADER_SIZE], &[u8], &[u8]) + 'a;

/// The state of a node's link.
#[derive(Debug)]
pub struct Core {
    config: Config,
    me: Coords,
    next_id: u32,
    inbound: Inbound<Heap, Vec<u8>>,
    peers: Peers<Heap>,
    replies: VecDeque<Vec<u8>>,
    counters: Counters,
}

impl Core {
    /// The link of node `me`. An MTU out of range is replaced by the nearest valid one.
    pub fn new(mut config: Config, me: Coords) -> Self {
        config.mtu = config.mtu.clamp(Config::MIN_MTU, Config::MAX_MTU);
        config.rendezvous &= config.offload;
        let limits = Limits {
            frame: config.max_frame(),
            offload: config.offload,
            broadcasts: true,
            reassemblies: config.reassemblies,
        };
        let Ok(inbound) = Inbound::new(config.shape, me, limits);
        let Ok(peers) = Peers::new();
        let (replies, counters) = (VecDeque::new(), Counters::default());
        Self { config, me, next_id: 0, inbound, peers, replies, counters }
    }

    /// The configuration of the link.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The node.
    pub fn me(&self) -> Coords {
        self.me
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters += self.inbound.counters();
        counters
    }

    /// The counters, for arriving packets.
    pub(crate) fn count(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// The capabilities that other nodes have announced.
    pub(crate) fn peers(&self) -> &Peers<Heap> {
        &self.peers
    }

    fn node(&self) -> LocalNode {
        LocalNode { shape: self.config.shape, machine: self.config.machine, me: self.me }
    }

    /// Sets the number of the next frame. A node that was restarted must not repeat its earlier
    /// numbers, because fragments of old frames could be taken for new ones.
    pub fn set_next_id(&mut self, id: u32) {
        self.next_id = id;
    }

    /// Tells this node the addresses of another one, as if it had asked for them. False if too many
    /// answers already wait to be taken.
    pub fn introduce(&mut self, node: Coords) -> bool {
        let answers = self.node().introduction(node);
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

    /// Whether [`Core::take_reply`] would return an answer.
    pub fn has_reply(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Number of packets that a frame needs; 0 if it has no destination.
    pub fn packets_for(&self, frame: &[u8]) -> usize {
        let fragments = frame.len().div_ceil(FRAGMENT_MAX);
        match destination(frame) {
            Some(mac) if addr::is_multicast(mac) => {
                fragments * tree::children(&self.config.shape, self.me, self.me).count()
            }
            _ => fragments,
        }
    }

    /// Sends an Ethernet frame: passes its fragments to `out`.
    ///
    /// A query for the address of a node is answered here and not sent.
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    pub fn send(
        &mut self,
        frame: &[u8],
        out: &mut dyn FnMut(&Fragment<'_>),
    ) -> Result<(), SendError> {
        let mac = destination(frame).filter(|_| frame.len() >= ETHERNET_HEADER);
        let mac = mac.ok_or(SendError::Runt(frame.len()))?;
        let max = self.config.max_frame();
        if frame.len() > max {
            self.counters.oversized += 1;
            return Err(SendError::TooLong { len: frame.len(), max });
        }
        if !addr::is_multicast(mac) {
            let Some(to) = self.node().other(mac) else {
                self.counters.no_such_node += 1;
                return Err(SendError::NoSuchNode(mac));
            };
            self.counters.sent += 1;
            self.cut(PacketKind::Unicast, &[], frame, &mut |header, prefix, body| {
                out(&Fragment { to, broadcast: false, header, prefix, body });
            });
            return Ok(());
        }
        match self.node().answer(frame) {
            Answer::Reply(reply) => {
                self.counters.answered += 1;
                if self.replies.len() < MAX_REPLIES {
                    self.replies.push_back(reply.as_bytes().to_vec());
                }
                return Ok(());
            }
            Answer::Silence => return Ok(()),
            Answer::None => {}
        }
        self.counters.sent += 1;
        let children = tree::children(&self.config.shape, self.me, self.me);
        self.cut(PacketKind::Broadcast, &[], frame, &mut |header, prefix, body| {
            for to in children.clone() {
                out(&Fragment { to, broadcast: true, header, prefix, body });
            }
        });
        Ok(())
    }

    /// Sends an offloaded frame if the destination accepts it unchanged. Otherwise it does nothing
    /// and returns false: the frame must be completed ([`Metadata::complete`]) and sent.
    pub fn send_offloaded(
        &mut self,
        metadata: &Metadata,
        frame: &[u8],
        now_ns: u64,
        out: &mut dyn FnMut(&Fragment<'_>),
    ) -> bool {
        let to = self.taker(frame, frame.len()).filter(|to| self.peers.get(*to, now_ns).offload);
        let Some(to) = to else { return false };
        self.counters.sent += 1;
        self.cut(PacketKind::Offloaded, &metadata.emit(), frame, &mut |header, prefix, body| {
            out(&Fragment { to, broadcast: false, header, prefix, body });
        });
        true
    }

    /// The destination of a frame of `len` bytes that begins with `head`, if the frame can be sent
    /// to it with its metadata in front: it must be one node, and the frame not too long.
    fn taker(&self, head: &[u8], len: usize) -> Option<Coords> {
        let fits = METADATA_SIZE + len <= u16::MAX.into() && len >= ETHERNET_HEADER;
        let fits = fits && self.config.offload;
        destination(head).filter(|_| fits).and_then(|mac| self.node().other(mac))
    }

    /// The node that may be requested to fetch a frame of `len` bytes that begins with `head`.
    pub(crate) fn fetcher(&self, metadata: &Metadata, head: &[u8], len: usize) -> Option<Coords> {
        let long = self.config.rendezvous && len >= MIN_FRAME;
        let sendable = !metadata.is_empty() || len <= self.config.max_frame();
        self.taker(head, len).filter(|_| long && sendable)
    }

    /// The request to fetch a frame of `len` bytes at `place`. `words` is the sum of its words.
    pub(crate) fn request(
        &mut self,
        metadata: &Metadata,
        len: usize,
        words: Words,
        place: StagOffset,
    ) -> Request {
        let id = self.new_id();
        self.counters.sent += 1;
        self.counters.rendezvous_sent += 1;
        let (origin, metadata) = (self.me, metadata.emit());
        let (len, sum) = (len as u32, fetched_sum(&metadata, words));
        Request { origin, id, head: 0, len, sum, metadata, place }
    }

    /// Checks a fetched frame of `len` bytes: `head` contains all its headers, `words` is the sum
    /// of its words. Returns its offload metadata if its origin may send it to this node.
    pub(crate) fn fetched(
        &mut self,
        request: &Request,
        head: &[u8],
        len: usize,
        words: Words,
    ) -> Option<Metadata> {
        if fetched_sum(&request.metadata, words) != request.sum {
            self.counters.damaged += 1;
            return None;
        }
        self.inbound.accept_fetched(request.origin, &request.metadata, head, len)
    }

    fn new_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        id
    }

    /// Cuts `prefix` and a frame into fragments.
    fn cut(&mut self, kind: PacketKind, prefix: &[u8], frame: &[u8], out: &mut FragmentSink<'_>) {
        let total = prefix.len() + frame.len();
        let sum = if Repr::is_summed(kind, total) { sum_of([prefix, frame]) } else { 0 };
        let whole = Repr {
            kind,
            takes_offloaded: self.config.offload,
            acknowledge: kind == PacketKind::Broadcast && self.config.acknowledge,
            total: total as u16,
            offset: 0,
            length: 0,
            id: self.new_id(),
            sum,
            origin: self.me,
        };
        let Config { offload, rendezvous, .. } = self.config;
        let says = Capabilities { offload, rendezvous, split: false, more_queues: 0 };
        let (mut prefix, mut rest) = (prefix, frame);
        for repr in whole.fragments() {
            let (body, next) = rest.split_at(usize::from(repr.length) - prefix.len());
            out(repr.emit_with(says), prefix, body);
            (prefix, rest) = (&[], next);
        }
    }

    /// Processes a packet from node `from`, given as its header and the rest.
    ///
    /// A fragment of a broadcast is acknowledged and relayed to other nodes through `out`.
    pub fn receive(
        &mut self,
        from: Coords,
        header: &[u8],
        body: &[u8],
        now_ns: u64,
        out: &mut dyn FnMut(&Fragment<'_>),
    ) -> Event<Vec<u8>> {
        let Some(packet) = self.inbound.parse(header, body) else { return Event::Nothing };
        let make = |len| Some(vec![0; len]);
        self.inbound.receive(from, &packet, &self.peers, now_ns, make, out)
    }
}

/// The sum of a fetched frame with its metadata. `words` is the sum of the frame's words.
fn fetched_sum(metadata: &[u8; METADATA_SIZE], words: Words) -> u32 {
    let mut sum = wire::Sum::default();
    sum.add(metadata);
    sum.add_words(0, words);
    sum.finish()
}

/// The sum over consecutive parts. Each but the last is a multiple of 8 bytes long.
fn sum_of(parts: [&[u8]; 2]) -> u32 {
    let mut sum = wire::Sum::default();
    parts.into_iter().for_each(|part| sum.add(part));
    sum.finish()
}

/// The destination address of a frame.
fn destination(frame: &[u8]) -> Option<Mac> {
    frame.first_chunk().copied()
}
