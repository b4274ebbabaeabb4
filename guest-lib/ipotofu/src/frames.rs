//! Frames to pieces and back, without a device.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;

use tofu_abi::topology::Shape;
use tofu_abi::{Coords, StagOffset};

use crate::addr::{self, Mac};
use crate::neighbor::{Answer, Place};
use crate::offer::{FETCHES, MIN_FRAME, Offer};
use crate::offload::{FACTS_SIZE, Facts};
use crate::reassembly::{Outcome, Reassembly};
use crate::tree;
use crate::wire::{self, ETHERNET_HEADER, HEADER_SIZE, Kind, PIECE_MAX, Packet, Repr};

/// Answers to questions for addresses that wait to be taken.
const MAX_REPLIES: usize = 64;
/// Pieces of broadcasts that are remembered, to tell those that come twice.
const MAX_SEEN: usize = 256;
/// How long it is believed that a node takes frames that are not finished, in nanoseconds: what
/// runs there may be replaced by something that does not.
const TAKES_NS: u64 = 2_000_000_000;
/// Nodes of which that is known at a time.
const MAX_TAKERS: usize = 4096;

/// What a link is made from.
#[derive(Clone, Debug)]
pub struct Config {
    /// The machine.
    pub shape: Shape,
    /// Number of the machine, 0 to [`addr::MAX_MACHINE`]: part of IP addresses.
    pub machine: u8,
    /// Largest IP packet, in bytes: 1280 to [`Config::MAX_MTU`]. All nodes should have the same.
    pub mtu: u16,
    /// Frames in several pieces that may be under way to this node at a time.
    pub reassemblies: usize,
    /// Whether this node takes frames that are not finished, see [`crate::offload`].
    pub unfinished: bool,
    /// Whether broadcasts of this node are to be confirmed from node to node, so that they go
    /// around nodes that have a device but do not listen.
    pub confirmed: bool,
    /// Whether this node fetches long frames that others offer to it, and offers them to those
    /// that do so, see [`crate::offer`]. It needs [`Config::unfinished`].
    pub fetches: bool,
}

impl Config {
    /// The largest MTU: with its Ethernet header a frame has at most 2^16 - 1 bytes.
    pub const MAX_MTU: u16 = u16::MAX - ETHERNET_HEADER as u16;

    /// MTU 1500, 32 frames under way, machine 0.
    pub const fn new(shape: Shape) -> Self {
        Self {
            shape,
            machine: 0,
            mtu: 1500,
            reassemblies: 32,
            unfinished: false,
            confirmed: false,
            fetches: false,
        }
    }

    /// Bytes of the longest frame: MTU and Ethernet header.
    pub fn max_frame(&self) -> usize {
        usize::from(self.mtu) + ETHERNET_HEADER
    }

    /// Bytes of the longest frame that can arrive, with what is in front of it.
    fn max_total(&self) -> usize {
        if self.unfinished { u16::MAX.into() } else { self.max_frame() }
    }
}

/// What was done, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames sent, broadcasts once.
    pub sent: u64,
    /// Frames received.
    pub received: u64,
    /// Questions for addresses that were answered here.
    pub answered: u64,
    /// Pieces of broadcasts handed on.
    pub forwarded: u64,
    /// Packets that are none of this format.
    pub malformed: u64,
    /// Packets and frames that name another sender than they have.
    pub spoofed: u64,
    /// Frames for other nodes than the one that they came to.
    pub misdirected: u64,
    /// Pieces that came twice.
    pub duplicates: u64,
    /// Frames whose sum is wrong, and pieces that do not fit to theirs.
    pub damaged: u64,
    /// Frames that were longer than the MTU allows.
    pub oversized: u64,
    /// Frames not all of whose pieces came in time, or for which there was no room.
    pub abandoned: u64,
    /// Frames among those sent that were offered to be fetched.
    pub offered: u64,
    /// Frames that were fetched.
    pub fetched: u64,
    /// Frames that were offered but could not be fetched.
    pub unfetched: u64,
    /// Frames among those offered of which nothing was heard in time.
    pub lapsed: u64,
    /// Frames to hardware addresses of no node.
    pub no_such_node: u64,
}

/// Why a frame is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// It is shorter than an Ethernet header.
    Runt(usize),
    /// It is longer than the MTU allows.
    TooLong {
        /// Bytes of the frame.
        len: usize,
        /// Bytes that it may have.
        max: usize,
    },
    /// No node of the machine has this hardware address.
    NoSuchNode(Mac),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runt(len) => write!(f, "a frame of {len} bytes has no Ethernet header"),
            Self::TooLong { len, max } => write!(f, "a frame has {max} bytes at most, not {len}"),
            Self::NoSuchNode([a, b, c, d, e, g]) => {
                write!(f, "no node has the address {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
            }
        }
    }
}

impl core::error::Error for SendError {}

/// A piece on its way to a node.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The node that it goes to next.
    pub to: Coords,
    /// Whether it is part of a broadcast.
    pub broadcast: bool,
    /// Its header.
    pub header: [u8; HEADER_SIZE],
    /// What is between its header and its part of the frame.
    pub prefix: &'a [u8],
    /// Its part of the frame.
    pub body: &'a [u8],
}

/// Takes pieces: header, what is between it and the part of the frame, and that part.
type PieceSink<'a> = dyn FnMut([u8; HEADER_SIZE], &[u8], &[u8]) + 'a;

/// What came of a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The packet's body is a frame of this length.
    Whole(usize),
    /// A frame is complete.
    Assembled(Vec<u8>),
    /// A frame that is not finished; it begins at byte [`FACTS_SIZE`] of the packet's body, up to
    /// this length of both, or of what was assembled.
    Unfinished(Facts, usize, Option<Vec<u8>>),
    /// The packet's sender has got the piece of a broadcast with this origin, id and offset.
    Heard(Coords, u32, u16),
    /// Nothing for this node, or not yet.
    Nothing,
}

/// The state of a node's link.
#[derive(Debug)]
pub struct Core {
    config: Config,
    me: Coords,
    next_id: u32,
    reassembly: Reassembly,
    seen: VecDeque<(Coords, u32, u16)>,
    /// When a node has said last that it takes frames that are not finished, in nanoseconds.
    takers: BTreeMap<u32, u64>,
    replies: VecDeque<Vec<u8>>,
    counters: Counters,
}

impl Core {
    /// The link of node `me`. An MTU out of range is taken as the nearest that is possible.
    pub fn new(mut config: Config, me: Coords) -> Self {
        config.mtu = config.mtu.clamp(1280, Config::MAX_MTU);
        config.fetches &= config.unfinished;
        let reassembly = Reassembly::new(config.reassemblies);
        Self {
            config,
            me,
            next_id: 0,
            reassembly,
            seen: VecDeque::new(),
            takers: BTreeMap::new(),
            replies: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// What the link was made from.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The node.
    pub fn me(&self) -> Coords {
        self.me
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        Counters { abandoned: self.reassembly.abandoned, ..self.counters }
    }

    /// Starts the numbers of frames elsewhere than at 0: a node that was started anew must not
    /// repeat the numbers that it had before, lest pieces of old frames be taken for new ones.
    pub fn set_next_id(&mut self, id: u32) {
        self.next_id = id;
    }

    /// Tells this node the addresses of another one, as if it had asked for them. False if there
    /// are too many answers already that wait to be taken.
    pub fn introduce(&mut self, node: Coords) -> bool {
        let (shape, machine, me) = (&self.config.shape, self.config.machine, self.me);
        let answers = Place { shape, machine, me }.introduction(node);
        let fits = self.replies.len() + answers.len() <= MAX_REPLIES;
        if fits {
            self.replies.extend(answers.map(|answer| answer.as_bytes().to_vec()));
        }
        fits
    }

    /// An answer to a question that this node asked.
    pub fn take_reply(&mut self) -> Option<Vec<u8>> {
        self.replies.pop_front()
    }

    /// Whether [`Core::take_reply`] has something.
    pub fn has_reply(&self) -> bool {
        !self.replies.is_empty()
    }

    /// How many packets a frame takes, 0 if it goes nowhere.
    pub fn packets_for(&self, frame: &[u8]) -> usize {
        let pieces = frame.len().div_ceil(PIECE_MAX);
        match destination(frame) {
            Some(mac) if addr::is_multicast(mac) => {
                pieces * tree::children(&self.config.shape, self.me, self.me).count()
            }
            _ => pieces,
        }
    }

    /// Sends an Ethernet frame: hands its pieces to `out`.
    ///
    /// A question for the address of a node is not sent but answered.
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    pub fn send(&mut self, frame: &[u8], out: &mut dyn FnMut(&Piece<'_>)) -> Result<(), SendError> {
        let mac = destination(frame).filter(|_| frame.len() >= ETHERNET_HEADER);
        let mac = mac.ok_or(SendError::Runt(frame.len()))?;
        let max = self.config.max_frame();
        if frame.len() > max {
            self.counters.oversized += 1;
            return Err(SendError::TooLong { len: frame.len(), max });
        }
        let shape = &self.config.shape;
        if !addr::is_multicast(mac) {
            let node =
                addr::node_of_mac(mac).filter(|node| *node != self.me && shape.contains(*node));
            let Some(node) = node else {
                self.counters.no_such_node += 1;
                return Err(SendError::NoSuchNode(mac));
            };
            self.counters.sent += 1;
            self.cut(Kind::Unicast, &[], frame, &mut |header, prefix, body| {
                out(&Piece { to: node, broadcast: false, header, prefix, body });
            });
            return Ok(());
        }
        let place = Place { shape, machine: self.config.machine, me: self.me };
        match place.answer(frame) {
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
        let children = tree::children(shape, self.me, self.me);
        self.cut(Kind::Broadcast, &[], frame, &mut |header, prefix, body| {
            for to in children.clone() {
                out(&Piece { to, broadcast: true, header, prefix, body });
            }
        });
        Ok(())
    }

    /// Sends a frame that is not finished, if the node that it goes to takes it as it is. If not,
    /// nothing is done, and false returned: it is to be finished ([`Facts::finish`]) and sent.
    pub fn send_unfinished(
        &mut self,
        facts: &Facts,
        frame: &[u8],
        now_ns: u64,
        out: &mut dyn FnMut(&Piece<'_>),
    ) -> bool {
        let Some(node) = self.taker(frame) else { return false };
        let since = self.takers.get(&addr::pack(node)).copied();
        if since.is_none_or(|since| now_ns.saturating_sub(since) > TAKES_NS) {
            return false;
        }
        self.counters.sent += 1;
        self.cut(Kind::Unfinished, &facts.emit(), frame, &mut |header, prefix, body| {
            out(&Piece { to: node, broadcast: false, header, prefix, body });
        });
        true
    }

    /// The node that a frame goes to with its facts in front of it, if it goes to one, and is not
    /// too long for that.
    fn taker(&self, frame: &[u8]) -> Option<Coords> {
        let fits = FACTS_SIZE + frame.len() <= u16::MAX.into() && frame.len() >= ETHERNET_HEADER;
        let node = destination(frame).filter(|_| fits).and_then(addr::node_of_mac)?;
        (self.config.shape.contains(node) && node != self.me).then_some(node)
    }

    /// The node to which a long frame may be offered.
    pub(crate) fn offers_to(&self, facts: &Facts, frame: &[u8]) -> Option<Coords> {
        let long = self.config.fetches && frame.len() >= MIN_FRAME;
        let sendable = !facts.is_finished() || frame.len() <= self.config.max_frame();
        self.taker(frame).filter(|_| long && sendable)
    }

    /// The offer of a frame that lies at `place`.
    pub(crate) fn offer(&mut self, facts: &Facts, frame: &[u8], place: StagOffset) -> Offer {
        let id = self.new_id();
        self.counters.sent += 1;
        self.counters.offered += 1;
        let (origin, facts) = (self.me, facts.emit());
        let total = (FACTS_SIZE + frame.len()) as u16;
        Offer { origin, id, total, sum: sum_of([&facts, frame]), facts, place }
    }

    /// Looks at a frame that was fetched, its facts in front of it: what is left to do with it, if
    /// it is one that its origin may send to this node.
    pub(crate) fn fetched(&mut self, offer: &Offer, frame: &[u8]) -> Option<Facts> {
        if wire::sum(frame) != offer.sum {
            self.counters.damaged += 1;
            return None;
        }
        let facts = self.accepts(Kind::Unfinished, offer.origin, frame)?;
        self.counters.fetched += 1;
        if facts.is_finished() && frame.len() - FACTS_SIZE > self.config.max_frame() {
            self.counters.received -= 1;
            self.counters.oversized += 1;
            return None;
        }
        Some(facts)
    }

    /// A message of [`crate::offer`] that makes no sense, or is in another node's name.
    pub(crate) fn note_malformed(&mut self) {
        self.counters.malformed += 1;
    }

    /// An offer for which there was no room, or a frame that could not be fetched.
    pub(crate) fn note_unfetched(&mut self) {
        self.counters.unfetched += 1;
    }

    fn new_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        id
    }

    /// Cuts a frame into pieces, with something in front of it.
    fn cut(&mut self, kind: Kind, prefix: &[u8], frame: &[u8], out: &mut PieceSink<'_>) {
        let id = self.new_id();
        let total = prefix.len() + frame.len();
        // A frame that is not finished has no checksum of its own that would find damage.
        let summed = total > PIECE_MAX || kind == Kind::Unfinished;
        let sum = if summed { sum_of([prefix, frame]) } else { 0 };
        let (mut offset, mut prefix, mut rest) = (0, prefix, frame);
        while offset < total {
            let (body, next) = rest.split_at(rest.len().min(PIECE_MAX - prefix.len()));
            let length = prefix.len() + body.len();
            let repr = Repr {
                kind,
                takes_unfinished: self.config.unfinished,
                asks: kind == Kind::Broadcast && self.config.confirmed,
                total: total as u16,
                offset: offset as u16,
                length: length as u16,
                id,
                sum,
                origin: self.me,
            };
            let mut header = repr.emit();
            if self.config.fetches {
                header[1] |= FETCHES;
            }
            out(header, prefix, body);
            (offset, prefix, rest) = (offset + length, &[], next);
        }
    }

    /// Takes a packet that came from node `from`, its header apart from what follows.
    ///
    /// A piece of a broadcast is handed on to others by way of `out`.
    pub fn receive(
        &mut self,
        from: Coords,
        header: &[u8],
        body: &[u8],
        now_ns: u64,
        out: &mut dyn FnMut(&Piece<'_>),
    ) -> Event {
        let parsed = Packet::new_checked(header).and_then(|p| Repr::parse(&p, body.len()));
        let Ok(repr) = parsed else {
            self.counters.malformed += 1;
            return Event::Nothing;
        };
        let body = &body[..usize::from(repr.length)];
        if usize::from(repr.total) > self.config.max_total() {
            self.counters.oversized += 1;
            return Event::Nothing;
        }
        match repr.kind {
            Kind::Unfinished if !self.config.unfinished => {
                self.counters.malformed += 1;
                return Event::Nothing;
            }
            Kind::Unicast | Kind::Unfinished if repr.origin == from => self.learn(&repr, now_ns),
            Kind::Heard => return Event::Heard(repr.origin, repr.id, repr.offset),
            Kind::Broadcast if self.may_spread(from, repr.origin) => {
                // Also one that has come before: the confirmation may have been lost.
                if repr.asks {
                    let header = repr.heard().emit();
                    out(&Piece { to: from, broadcast: false, header, prefix: &[], body: &[] });
                }
                if self.was_seen(&repr) {
                    self.counters.duplicates += 1;
                    return Event::Nothing;
                }
                for to in tree::children(&self.config.shape, repr.origin, self.me) {
                    self.counters.forwarded += 1;
                    out(&Piece { to, broadcast: true, header: repr.emit(), prefix: &[], body });
                }
            }
            _ => {
                self.counters.spoofed += 1;
                return Event::Nothing;
            }
        }
        if repr.is_whole() {
            if repr.kind == Kind::Unfinished && wire::sum(body) != repr.sum {
                self.counters.damaged += 1;
                return Event::Nothing;
            }
            return match self.accepts(repr.kind, repr.origin, body) {
                Some(facts) if repr.kind == Kind::Unfinished => {
                    Event::Unfinished(facts, body.len(), None)
                }
                Some(_) => Event::Whole(body.len()),
                None => Event::Nothing,
            };
        }
        match self.reassembly.insert(&repr, body, now_ns) {
            Outcome::Complete(frame) => match self.accepts(repr.kind, repr.origin, &frame) {
                Some(facts) if repr.kind == Kind::Unfinished => {
                    Event::Unfinished(facts, frame.len(), Some(frame))
                }
                Some(_) => Event::Assembled(frame),
                None => Event::Nothing,
            },
            Outcome::Pending => Event::Nothing,
            Outcome::Duplicate => {
                self.counters.duplicates += 1;
                Event::Nothing
            }
            Outcome::Damaged => {
                self.counters.damaged += 1;
                Event::Nothing
            }
        }
    }

    /// Remembers whether the origin of a packet takes frames that are not finished.
    fn learn(&mut self, repr: &Repr, now_ns: u64) {
        if !self.config.unfinished {
            return;
        }
        let node = addr::pack(repr.origin);
        if !repr.takes_unfinished {
            self.takers.remove(&node);
            return;
        }
        if self.takers.len() >= MAX_TAKERS && !self.takers.contains_key(&node) {
            self.takers.clear();
        }
        self.takers.insert(node, now_ns);
    }

    /// Whether a node may hand on what comes from `origin` to this one: it is on the way.
    fn may_spread(&self, from: Coords, origin: Coords) -> bool {
        origin != self.me && tree::is_ancestor(&self.config.shape, origin, from, self.me)
    }

    /// Whether a piece of a broadcast was here already; if not, it is remembered.
    fn was_seen(&mut self, repr: &Repr) -> bool {
        let piece = (repr.origin, repr.id, repr.offset);
        if self.seen.contains(&piece) {
            return true;
        }
        if self.seen.len() >= MAX_SEEN {
            self.seen.pop_front();
        }
        self.seen.push_back(piece);
        false
    }

    /// What is left to do with a frame, if it is one that its origin may send to this node.
    fn accepts(&mut self, kind: Kind, origin: Coords, frame: &[u8]) -> Option<Facts> {
        let (facts, frame) = match frame.split_at_checked(FACTS_SIZE) {
            Some((facts, frame)) if kind == Kind::Unfinished => {
                let facts = Facts::parse(facts).and_then(|facts| facts.check(frame).map(|_| facts));
                let Ok(facts) = facts else {
                    self.counters.malformed += 1;
                    return None;
                };
                (facts, frame)
            }
            _ => (Facts::default(), frame),
        };
        let own = addr::mac(self.me);
        let to_me = destination(frame).is_some_and(|mac| match kind {
            Kind::Unicast | Kind::Unfinished => mac == own,
            Kind::Broadcast => addr::is_multicast(mac),
            Kind::Heard => false,
        });
        if frame.get(6..12) != Some(&addr::mac(origin)[..]) {
            self.counters.spoofed += 1;
            return None;
        }
        if !to_me {
            self.counters.misdirected += 1;
            return None;
        }
        self.counters.received += 1;
        Some(facts)
    }
}

/// The sum over parts one after the other, of which all but the last are multiples of 4 bytes.
fn sum_of(parts: [&[u8]; 2]) -> u32 {
    let mut sum = wire::Sum::default();
    parts.into_iter().for_each(|part| sum.add(part));
    sum.finish()
}

/// The hardware address that a frame goes to.
fn destination(frame: &[u8]) -> Option<Mac> {
    frame.first_chunk().copied()
}
