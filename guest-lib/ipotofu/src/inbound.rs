//! Arriving packets: their headers, whether they are accepted, and their frames.

use core::ops::Range;

use tofu_abi::Coords;
use tofu_abi::topology::Shape;

use crate::addr;
use crate::counters::Counters;
use crate::health::{Health, Report};
use crate::nodes::Peers;
use crate::offload::{METADATA_SIZE, Metadata};
use crate::reassembly::{FrameBuffer, Reassembly};
use crate::rendezvous::{self, Message};
use crate::storage::Storage;
use crate::tree;
use crate::wire::{self, Capabilities, Fragment, FragmentKey, Packet, PacketKind, Repr};

/// Number of fragments of broadcasts that are remembered, to detect repeated ones.
const MAX_OBSERVED: usize = 256;

/// Limits of what a node accepts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum size of a complete frame, in bytes.
    pub frame: usize,
    /// True if offloaded frames, which may have any length, are accepted.
    pub offload: bool,
    /// True if broadcasts are accepted.
    pub broadcasts: bool,
    /// Number of frames in several fragments that can be received at a time.
    pub reassemblies: usize,
}

impl Limits {
    /// Number of frames in several fragments that suffices.
    pub const REASSEMBLIES: usize = 32;
}

/// A packet with a valid header, and a frame or a fragment of one.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// The header.
    pub repr: Repr,
    /// The sender's capabilities, if it is the origin.
    pub says: Capabilities,
    /// The fragment.
    pub body: &'a [u8],
}

/// The content of a packet.
#[derive(Clone, Copy, Debug)]
pub enum Arrival<'a> {
    /// A message about frames to fetch, see [`Inbound::message`].
    Message,
    /// A frame, a fragment of one, or an acknowledgement, see [`Inbound::receive`].
    Frame(Incoming<'a>),
}

/// The result of a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<F> {
    /// This part of the packet's body is a frame.
    Whole(Metadata, Range<usize>),
    /// A frame is complete.
    Assembled(Metadata, F),
    /// The packet's sender has received this fragment of a broadcast.
    Acknowledged(FragmentKey),
    /// Nothing for this node, or not yet.
    Nothing,
}

/// The receiving side of a node, with frames in memory of type `F`.
#[derive(Debug)]
pub struct Inbound<S: Storage, F: FrameBuffer> {
    shape: Shape,
    me: Coords,
    limits: Limits,
    reassembly: Reassembly<S, F>,
    /// A ring of fragments of broadcasts, and the index of its next place.
    observed: S::Places<Option<FragmentKey>>,
    next: usize,
    counters: Counters,
}

impl<S: Storage, F: FrameBuffer> Inbound<S, F> {
    /// Creates the receiving side of node `me`.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn new(shape: Shape, me: Coords, limits: Limits) -> Result<Self, S::Error> {
        Ok(Self {
            shape,
            me,
            limits,
            reassembly: Reassembly::new(limits.reassemblies)?,
            observed: S::places(MAX_OBSERVED, || None)?,
            next: 0,
            counters: Counters::default(),
        })
    }

    /// Drops incomplete frames.
    pub fn clear(&mut self) {
        self.reassembly.clear();
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The counters, for events that are counted elsewhere.
    pub fn count(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Sorts a packet from node `from` by its kind. Its header is separate from the rest. A report
    /// of dead links is stored in `health`, if this node takes reports. This returns `None` for it,
    /// and for an invalid packet, which is counted.
    pub fn sort<'a>(
        &mut self,
        from: Coords,
        header: &[u8],
        body: &'a [u8],
        health: Option<&Health<S>>,
        now_ns: u64,
    ) -> Option<Arrival<'a>> {
        if Report::is_report(header) {
            match (Report::parse(from, header), health) {
                (Some(report), Some(health)) => _ = health.learn(&report, now_ns),
                _ => self.counters.malformed += 1,
            }
            return None;
        }
        if rendezvous::is_message(header) {
            return Some(Arrival::Message);
        }
        self.parse(header, body).map(Arrival::Frame)
    }

    /// Parses a message of node `from` about frames to fetch, and stores the node's capabilities.
    /// `says` are the capabilities that this node announces: a message that does not match them is
    /// invalid. Invalid messages are counted.
    pub fn message(
        &mut self,
        from: Coords,
        (header, body): (&[u8], &[u8]),
        says: Capabilities,
        peers: &Peers<S>,
        now_ns: u64,
    ) -> Option<Message> {
        let fits = |message: &Message| match message {
            Message::Request(request) => says.split || !request.is_split(),
            Message::Done { .. } => true,
        };
        let message = Message::parse(from, header, body).filter(|_| says.rendezvous).filter(fits);
        let rendezvous = message.is_some();
        peers.learn(from, Capabilities { rendezvous, ..Capabilities::of(header) }, now_ns);
        self.counters.malformed += u64::from(message.is_none());
        message
    }

    /// Parses the header of a packet, which is separate from the rest. An invalid packet is
    /// counted.
    pub fn parse<'a>(&mut self, header: &[u8], body: &'a [u8]) -> Option<Incoming<'a>> {
        let parsed = Packet::new_checked(header).and_then(|p| Repr::parse(&p, body.len()));
        let Ok(repr) = parsed else {
            self.counters.malformed += 1;
            return None;
        };
        let body = &body[..usize::from(repr.length)];
        Some(Incoming { repr, says: Capabilities::of(header), body })
    }

    /// Processes a packet from node `from`.
    ///
    /// `send` gets the acknowledgement of a broadcast and the packets that relay it. `make`
    /// allocates the memory for a frame of the given size in bytes.
    pub fn receive(
        &mut self,
        from: Coords,
        packet: &Incoming<'_>,
        peers: &Peers<S>,
        now_ns: u64,
        make: impl FnOnce(usize) -> Option<F>,
        send: &mut dyn FnMut(&Fragment<'_>),
    ) -> Event<F> {
        let Incoming { repr, says, body } = packet;
        let limit = if self.limits.offload { u16::MAX.into() } else { self.limits.frame };
        if usize::from(repr.total) > limit {
            self.counters.oversized += 1;
            return Event::Nothing;
        }
        match repr.kind {
            PacketKind::Offloaded if !self.limits.offload => {
                self.counters.malformed += 1;
                return Event::Nothing;
            }
            PacketKind::Unicast | PacketKind::Offloaded if repr.origin == from => {
                peers.learn(from, *says, now_ns);
            }
            PacketKind::Acknowledgement => return Event::Acknowledged(repr.key()),
            PacketKind::Broadcast if self.may_relay(from, repr.origin) => {
                if !self.relay(from, repr, body, send) {
                    return Event::Nothing;
                }
            }
            _ => {
                self.counters.spoofed += 1;
                return Event::Nothing;
            }
        }
        if !repr.is_whole() {
            let whole = self.reassembly.insert(repr, body, now_ns, &mut self.counters, make);
            let Some(whole) = whole else { return Event::Nothing };
            let metadata = (repr.kind == PacketKind::Offloaded).then_some(&whole.metadata[..]);
            let len = usize::from(repr.total) - metadata.map_or(0, <[u8]>::len);
            let accepted =
                whole.frame.look(|head| self.accept(repr.kind, repr.origin, metadata, head, len));
            return accepted.map_or(Event::Nothing, |m| Event::Assembled(m, whole.frame));
        }
        let (metadata, frame) = match body.split_at_checked(METADATA_SIZE) {
            Some((metadata, frame)) if repr.kind == PacketKind::Offloaded => {
                if wire::sum(body) != repr.sum {
                    self.counters.damaged += 1;
                    return Event::Nothing;
                }
                (Some(metadata), frame)
            }
            _ => (None, *body),
        };
        match self.accept(repr.kind, repr.origin, metadata, frame, frame.len()) {
            Some(metadata) => Event::Whole(metadata, body.len() - frame.len()..body.len()),
            None => Event::Nothing,
        }
    }

    /// Returns true if `from` may relay broadcasts of `origin` to this node: it must be on the way.
    fn may_relay(&self, from: Coords, origin: Coords) -> bool {
        self.limits.broadcasts
            && origin != self.me
            && tree::is_ancestor(&self.shape, origin, from, self.me)
    }

    /// Acknowledges a fragment of a broadcast, and relays it if it is new. Returns whether it is.
    fn relay(
        &mut self,
        from: Coords,
        repr: &Repr,
        body: &[u8],
        send: &mut dyn FnMut(&Fragment<'_>),
    ) -> bool {
        // A repeated fragment is acknowledged, too: the first acknowledgement may have been lost.
        if repr.acknowledge {
            let header = repr.acknowledgement().emit();
            send(&Fragment { to: from, broadcast: false, header, body: &[] });
        }
        let key = Some(repr.key());
        if self.observed.contains(&key) {
            self.counters.duplicates += 1;
            return false;
        }
        self.observed[self.next] = key;
        self.next = (self.next + 1) % MAX_OBSERVED;
        for to in tree::children(&self.shape, repr.origin, self.me) {
            self.counters.relayed += 1;
            send(&Fragment { to, broadcast: true, header: repr.emit(), body });
        }
        true
    }

    /// Returns the metadata of a fetched frame if it is not too long and its origin may send it to
    /// this node. `head` is its first bytes, including all headers.
    pub fn accept_fetched(
        &mut self,
        origin: Coords,
        metadata: &[u8; METADATA_SIZE],
        head: &[u8],
        len: usize,
    ) -> Option<Metadata> {
        let metadata = self.accept(PacketKind::Offloaded, origin, Some(metadata), head, len)?;
        self.counters.rendezvous_received += 1;
        if metadata.is_empty() && len > self.limits.frame {
            self.counters.received -= 1;
            self.counters.oversized += 1;
            return None;
        }
        Some(metadata)
    }

    /// Returns the metadata of a frame of `len` bytes if its origin may send it to this node.
    /// `head` is its first bytes, including all headers.
    fn accept(
        &mut self,
        kind: PacketKind,
        origin: Coords,
        metadata: Option<&[u8]>,
        head: &[u8],
        len: usize,
    ) -> Option<Metadata> {
        let metadata = match metadata.map(Metadata::parse) {
            None => Metadata::default(),
            Some(Ok(metadata)) if metadata.check_head(head, len).is_ok() => metadata,
            Some(_) => {
                self.counters.malformed += 1;
                return None;
            }
        };
        if head.get(6..12) != Some(&addr::mac(origin)[..]) {
            self.counters.spoofed += 1;
            return None;
        }
        let to = *head.first_chunk()?;
        let to_me = match kind {
            PacketKind::Unicast | PacketKind::Offloaded => to == addr::mac(self.me),
            PacketKind::Broadcast => addr::is_multicast(to),
            PacketKind::Acknowledgement => false,
        };
        if !to_me {
            self.counters.misdirected += 1;
            return None;
        }
        self.counters.received += 1;
        Some(metadata)
    }
}
