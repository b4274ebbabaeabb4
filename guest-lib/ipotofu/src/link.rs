//! The link over a device's packet interface.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use tofu_abi::Coords;
use tofu_abi::Rcode;
use tofu_abi::queue::PrqRcode;
use tofu_driver::{
    Device, DmaBuffer, Lost, PacketConfig, PacketError, Packets, Platform, Received, Target,
};

use crate::addr::{self, Mac};
use crate::frames::{Config, Core, Counters, Event, Piece, SendError};
use crate::offer::{self, Fetches, GROUP, Message, OVERTAKE_NS, Offer, Room};
use crate::offers::Offers;
use crate::offload::{BadFacts, FACTS_SIZE, Facts};
use crate::routes::route;
use crate::tree;
use crate::wire::{HEADER_SIZE, PIECE_MAX, Packet, Repr};

/// How long a way round a dead link is kept before the first one is tried again, in nanoseconds.
const DETOUR_NS: u64 = 1_000_000_000;
/// Nodes to which a detour is known at a time.
const MAX_DETOURS: usize = 1024;
/// How long a wait looks after packets that are on their way out before it sleeps, and how long it
/// sleeps at most while there are any, both in nanoseconds.
const SETTLE_NS: u64 = 5_000;
const NAP_NS: u64 = 10_000_000;

/// How long the confirmation of a broadcast may take before it goes around the node, and how long
/// it goes around at once from then on, both in nanoseconds.
const CONFIRM_NS: u64 = 100_000_000;
const DEAF_NS: u64 = 10_000_000_000;
/// Pieces that wait for confirmation at a time. Those beyond are taken as confirmed.
const MAX_AWAITED: usize = 64;

/// The cookie of a packet: node in bits 18:0, way 25:19, broadcast 26.
const BROADCAST_BIT: u32 = 1 << 26;

fn cookie(to: Coords, attempt: u8, broadcast: bool) -> u32 {
    addr::pack(to) | u32::from(attempt) << 19 | if broadcast { BROADCAST_BIT } else { 0 }
}

/// Why a link cannot be had, or a frame not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// The node is not in the machine.
    NotInMachine(Coords),
    /// Too few buffers to send a broadcast of the longest frame.
    Buffers {
        /// Buffers that are needed.
        needed: usize,
    },
    /// The packet interface cannot be opened.
    Open(PacketError),
    /// Too much is on its way out. Try again after [`Link::wait_room`].
    Full,
    /// The frame cannot be sent.
    Frame(SendError),
    /// What is said to be left to do with the frame does not fit to it.
    Facts,
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInMachine(node) => write!(f, "node {node} is not in the machine"),
            Self::Buffers { needed } => {
                write!(f, "this MTU needs {needed} buffers for sending at least")
            }
            Self::Open(e) => e.fmt(f),
            Self::Full => f.write_str("too many packets are on their way out"),
            Self::Frame(e) => e.fmt(f),
            Self::Facts => f.write_str("checksum or segments do not fit to the frame"),
        }
    }
}

impl core::error::Error for LinkError {}

/// A way to a node that is not the first one.
#[derive(Clone, Copy, Debug)]
struct Detour {
    attempt: u8,
    since_ns: u64,
}

/// A piece of a broadcast whose confirmation is awaited.
#[derive(Debug)]
struct Awaited {
    to: Coords,
    origin: Coords,
    id: u32,
    offset: u16,
    since_ns: u64,
    packet: Vec<u8>,
}

/// What packets go out by.
struct Out<P: Platform> {
    packets: Packets<P>,
    config: Config,
    me: Coords,
    detours: BTreeMap<u32, Detour>,
    /// In the order of sending.
    awaited: VecDeque<Awaited>,
    /// Nodes that have not confirmed something, and when that was found out.
    deaf: BTreeMap<u32, u64>,
    /// Packets that were sent again by another way.
    rerouted: u64,
    /// Packets that found no way, or no buffer.
    lost: u64,
    /// Result code of the last one that was lost.
    last_loss: Option<Rcode>,
    now_ns: u64,
}

impl<P: Platform> Out<P> {
    fn attempt(&mut self, to: Coords) -> u8 {
        let key = addr::pack(to);
        match self.detours.get(&key) {
            Some(detour) if self.now_ns.saturating_sub(detour.since_ns) < DETOUR_NS => {
                detour.attempt
            }
            Some(_) => {
                self.detours.remove(&key);
                0
            }
            None => 0,
        }
    }

    fn post(&mut self, to: Coords, broadcast: bool, parts: &[&[u8]]) {
        let attempt = if self.detours.is_empty() { 0 } else { self.attempt(to) };
        let tni = self.packets.tni();
        let sent = route(&self.config.shape, self.me, to, tni, attempt).is_some_and(|target| {
            self.packets.post(&target, parts, cookie(to, attempt, broadcast)).is_ok()
        });
        if !sent {
            self.lost += 1;
        }
    }

    fn post_piece(&mut self, piece: &Piece<'_>) {
        let parts = [&piece.header, piece.prefix, piece.body];
        if piece.broadcast {
            self.spread(piece.to, &parts);
        } else {
            self.post(piece.to, false, &parts);
        }
    }

    /// Sends a piece of a broadcast to a node, and, if that is known not to listen, to those to
    /// which it would have handed it on.
    fn spread(&mut self, to: Coords, parts: &[&[u8]]) {
        self.post(to, true, parts);
        let header = Packet::new_checked(parts[0]).and_then(|packet| {
            let length = packet.length().into();
            Repr::parse(&packet, length)
        });
        let Ok(repr) = header else { return };
        if !repr.asks {
            return;
        }
        let since = self.deaf.get(&addr::pack(to)).copied();
        if since.is_some_and(|since| self.now_ns.saturating_sub(since) < DEAF_NS) {
            // The way down a tree is short.
            for child in tree::children(&self.config.shape, repr.origin, to) {
                self.spread(child, parts);
            }
            return;
        }
        // Nobody is behind it.
        if tree::children(&self.config.shape, repr.origin, to).next().is_none() {
            return;
        }
        if self.awaited.len() >= MAX_AWAITED {
            self.awaited.pop_front();
        }
        let Repr { origin, id, offset, .. } = repr;
        let packet = parts.concat();
        let since_ns = self.now_ns;
        self.awaited.push_back(Awaited { to, origin, id, offset, since_ns, packet });
    }

    /// Takes note that a node has got a piece of a broadcast.
    fn heard(&mut self, from: Coords, origin: Coords, id: u32, offset: u16) {
        self.deaf.remove(&addr::pack(from));
        self.forget(from, origin, id, offset);
    }

    fn forget(&mut self, to: Coords, origin: Coords, id: u32, offset: u16) {
        let key = (to, origin, id, offset);
        self.awaited.retain(|one| (one.to, one.origin, one.id, one.offset) != key);
    }

    /// Has broadcasts go around nodes that have not confirmed them in time.
    fn go_around(&mut self) {
        let late = |one: &Awaited, now: u64| now.saturating_sub(one.since_ns) >= CONFIRM_NS;
        while self.awaited.front().is_some_and(|one| late(one, self.now_ns))
            && let Some(one) = self.awaited.pop_front()
        {
            if self.deaf.len() >= MAX_DETOURS {
                self.deaf.clear();
            }
            self.deaf.insert(addr::pack(one.to), self.now_ns);
            let (header, body) = one.packet.split_at(HEADER_SIZE.min(one.packet.len()));
            for child in tree::children(&self.config.shape, one.origin, one.to) {
                self.spread(child, &[header, body]);
            }
        }
    }

    /// Looks after packets whose sending has ended.
    fn reap(&mut self) {
        while let Some(done) = self.packets.poll_sent_or_lost() {
            if let Err(lost) = done {
                self.retry(lost);
            }
        }
    }

    /// Sends a lost packet another way, or, if it is a broadcast for a node that cannot be
    /// reached, to those to which that node would have handed it on.
    fn retry(&mut self, lost: Lost) {
        let cookie_before = lost.sent.cookie;
        let broadcast = cookie_before & BROADCAST_BIT != 0;
        let attempt = (cookie_before >> 19 & 0x7f) as u8;
        let Some(to) = addr::unpack(cookie_before & 0x7_ffff) else {
            self.packets.give_up(lost);
            return;
        };
        let next = attempt.saturating_add(1);
        let tni = self.packets.tni();
        let way = (lost.sent.rcode == Rcode::LINK_DOWN)
            .then(|| route(&self.config.shape, self.me, to, tni, next))
            .flatten();
        if let Some(target) = way {
            if self.detours.len() >= MAX_DETOURS {
                self.detours.clear();
            }
            let detour = Detour { attempt: next, since_ns: self.now_ns };
            self.detours.insert(addr::pack(to), detour);
            self.rerouted += 1;
            self.packets.resend(lost, &target, cookie(to, next, broadcast));
            return;
        }
        self.detours.remove(&addr::pack(to));
        self.last_loss = Some(lost.sent.rcode);
        self.lost += 1;
        let mut packet = [0; HEADER_SIZE + PIECE_MAX];
        let len = self.packets.read_lost(&lost, &mut packet);
        self.packets.give_up(lost);
        if !broadcast {
            return;
        }
        let (header, body) = packet[..len].split_at(HEADER_SIZE.min(len));
        let parsed = Packet::new_checked(header).and_then(|p| Repr::parse(&p, body.len()));
        if let Ok(repr) = parsed {
            self.forget(to, repr.origin, repr.id, repr.offset);
            for child in tree::children(&self.config.shape, repr.origin, to) {
                self.spread(child, &[header, body]);
            }
        }
    }
}

/// How long a look after frames that are being fetched takes before other things are done, and how
/// long a sleep takes at most while there are any, both in nanoseconds.
const FETCH_LOOK_NS: u64 = 50_000;
const FETCH_NAP_NS: u64 = 200_000;

/// A frame that was received: what is left to do with it, and where it is.
enum Taken {
    /// In the buffer that was offered, from one byte to another.
    Here(Facts, usize, usize),
    /// In the link's own one.
    Scratch(Facts, usize, usize),
    /// Elsewhere, from this byte on.
    Apart(Facts, usize, Vec<u8>),
    /// Where fetched frames are, from one byte to another.
    Fetched(Facts, usize, usize),
}

/// A link to all nodes of the machine: Ethernet frames in and out.
///
/// One thread drives it. Packets go out in batches: [`Link::flush`], [`Link::wait`] and
/// [`Link::recv`] when it has nothing tell the device of them.
pub struct Link<P: Platform> {
    core: Core,
    out: Out<P>,
    offers: Offers,
    fetches: Fetches<Vec<Option<Offer>>>,
    /// A frame as it was fetched, behind its facts.
    fetched: Vec<u8>,
    late: Option<Box<Late>>,
    scratch: Box<[u8]>,
}

/// A packet that waits for frames of its origin that are being fetched.
struct Late {
    received: Received,
    header: [u8; HEADER_SIZE],
    body: [u8; PIECE_MAX],
    since_ns: u64,
}

impl<P: Platform> fmt::Debug for Link<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("node", &self.core.me()).finish_non_exhaustive()
    }
}

impl<P: Platform> Link<P> {
    /// Opens the link of this node on a TNI, which all nodes of the machine must do on the same.
    ///
    /// # Errors
    ///
    /// See [`LinkError`].
    pub fn open(
        device: &Device<P>,
        config: Config,
        packets: &PacketConfig,
    ) -> Result<Self, LinkError> {
        let me = device.coords();
        if !config.shape.contains(me) {
            return Err(LinkError::NotInMachine(me));
        }
        let mut core = Core::new(config, me);
        let config = core.config().clone();
        let pieces = config.max_frame().div_ceil(PIECE_MAX);
        let needed = pieces * tree::children(&config.shape, me, me).count().max(1);
        if usize::from(packets.tx_buffers) < needed {
            return Err(LinkError::Buffers { needed });
        }
        // Only system packets; what the device reports is for others.
        let mask = !(1 << PrqRcode::SystemTlp as u8);
        let mut packets = PacketConfig { mask, ..packets.clone() };
        if config.fetches {
            let memory = offer::SLOTS * offer::SLOT;
            packets = PacketConfig { share: memory, fetch: memory, gpid: GROUP, ..packets };
        }
        let packets = Packets::open(device, &packets).map_err(LinkError::Open)?;
        let now_ns = device.platform().now_ns();
        core.set_next_id(now_ns as u32);
        let scratch = vec![0; PIECE_MAX].into();
        let (detours, deaf, awaited) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        let out = Out {
            packets,
            config,
            me,
            detours,
            awaited,
            deaf,
            rerouted: 0,
            lost: 0,
            last_loss: None,
            now_ns,
        };
        let (offers, fetches) = (Offers::default(), Fetches::new(vec![None; offer::MAX_WAITING]));
        let fetched = vec![0; offer::SLOT];
        Ok(Self { core, out, offers, fetches, fetched, late: None, scratch })
    }

    /// The hardware address of this node.
    pub fn mac(&self) -> Mac {
        addr::mac(self.core.me())
    }

    /// The node.
    pub fn coords(&self) -> Coords {
        self.core.me()
    }

    /// Largest IP packet, in bytes.
    pub fn mtu(&self) -> u16 {
        self.core.config().mtu
    }

    /// What the link was made from.
    pub fn config(&self) -> &Config {
        self.core.config()
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        Counters { lapsed: self.offers.lapsed, ..self.core.counters() }
    }

    /// Packets that went another way than the first one because a link was down.
    pub fn rerouted(&self) -> u64 {
        self.out.rerouted
    }

    /// Packets that were lost because no way or no buffer was left.
    pub fn lost(&self) -> u64 {
        self.out.lost
    }

    /// Why the last of them was: a result code, see [`Rcode`](tofu_abi::Rcode).
    pub fn last_loss(&self) -> Option<Rcode> {
        self.out.last_loss
    }

    /// The packet interface, for its interrupt and its counters.
    pub fn packets(&mut self) -> &mut Packets<P> {
        &mut self.out.packets
    }

    /// Sends an Ethernet frame.
    ///
    /// # Errors
    ///
    /// [`LinkError::Full`] if there is no room for it now, [`LinkError::Frame`] if it cannot be
    /// sent at all.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), LinkError> {
        let needed = self.core.packets_for(frame);
        if self.out.packets.free() < needed {
            self.flush();
            if self.out.packets.free() < needed && frame.len() <= self.config().max_frame() {
                return Err(LinkError::Full);
            }
        }
        let Self { core, out, .. } = self;
        core.send(frame, &mut |piece: &Piece<'_>| {
            out.post_piece(piece);
        })
        .map_err(LinkError::Frame)
    }

    /// Sends an Ethernet frame that is not finished: as it is to a node that takes it, or else
    /// finished, as one or several.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]. If there is room for some of several frames, the others are lost.
    pub fn send_unfinished(&mut self, facts: &Facts, frame: &[u8]) -> Result<(), LinkError> {
        if let Some(node) = self.core.offers_to(facts, frame)
            && self.offer(node, facts, frame)?
        {
            return Ok(());
        }
        if facts.is_finished() {
            return self.send(frame);
        }
        // What does not fit to the frame would be refused there, too.
        facts.check(frame).map_err(|BadFacts| LinkError::Facts)?;
        if self.out.packets.free() < (FACTS_SIZE + frame.len()).div_ceil(PIECE_MAX) {
            self.flush();
        }
        let Self { core, out, .. } = self;
        let now_ns = out.packets.device().platform().now_ns();
        if out.packets.free() < (FACTS_SIZE + frame.len()).div_ceil(PIECE_MAX) {
            return Err(LinkError::Full);
        }
        if core.send_unfinished(facts, frame, now_ns, &mut |piece| out.post_piece(piece)) {
            return Ok(());
        }
        let mut result = Ok(());
        let finished = facts.finish(frame, &mut |frame| {
            let sent = self.send(frame);
            result = result.and(sent);
        });
        finished.map_err(|BadFacts| LinkError::Facts)?;
        result
    }

    /// Offers a frame to a node. False if it does not fetch, or everything is taken by others.
    fn offer(&mut self, node: Coords, facts: &Facts, frame: &[u8]) -> Result<bool, LinkError> {
        facts.check(frame).map_err(|BadFacts| LinkError::Facts)?;
        let now_ns = self.out.packets.device().platform().now_ns();
        let slot = match self.offers.room(node, now_ns) {
            Room::Slot(_) if self.out.packets.free() == 0 => return Err(LinkError::Full),
            Room::Slot(slot) => slot,
            Room::Busy => return Err(LinkError::Full),
            Room::None => return Ok(false),
        };
        let at = slot * offer::SLOT;
        let (Some(memory), Some(place)) =
            (self.out.packets.share(), self.out.packets.share_at(at as u64))
        else {
            return Ok(false);
        };
        memory.write(at, frame);
        let offer = self.core.offer(facts, frame, place);
        self.offers.offer(slot, node, offer.id, now_ns);
        self.tell(node, &Message::Offer(offer));
        Ok(true)
    }

    fn tell(&mut self, node: Coords, message: &Message) {
        let (header, body) = message.emit(self.core.me());
        self.out.post(node, false, &[&header, &body]);
    }

    /// Takes a message of a node about frames that are fetched.
    fn hear(&mut self, from: Coords, message: Option<Message>) {
        let now_ns = self.out.packets.device().platform().now_ns();
        self.offers.learn(from, message.is_some(), now_ns);
        match message {
            Some(Message::Offer(offer)) => {
                if !self.fetches.add(offer) {
                    self.core.note_unfetched();
                    self.answer(false);
                }
                self.fetch();
            }
            Some(Message::Done { id, refused }) => self.offers.done(from, id, refused, now_ns),
            None => self.core.note_malformed(),
        }
    }

    /// Fetches what can be.
    fn fetch(&mut self) {
        while let Some((slot, offer)) = self.fetches.begin() {
            let at = (slot * offer::SLOT) as u64;
            let target = Target::new(offer.origin, self.out.packets.tni());
            let len = u32::from(offer.total) - FACTS_SIZE as u32;
            if self.out.packets.fetch(target, offer.place, at, len, slot as u32).is_err() {
                self.unfetched(slot);
            }
        }
    }

    /// Answers offers that are dealt with: those whose answer cannot wait, or all.
    fn answer(&mut self, all: bool) {
        while let Some((node, id)) = self.fetches.answer(all) {
            self.tell(node, &Message::Done { id, refused: false });
        }
    }

    /// A frame could not be fetched: its origin is to send the next ones.
    fn unfetched(&mut self, slot: usize) {
        let Some(offer) = self.fetches.take(slot) else { return };
        self.core.note_unfetched();
        self.fetches.answered(offer.origin);
        self.tell(offer.origin, &Message::Done { id: offer.id, refused: true });
    }

    /// Takes the next frame that was fetched.
    fn take_fetched(&mut self) -> Option<Taken> {
        while let Some((slot, rcode)) = self.out.packets.poll_fetched() {
            let slot = slot as usize;
            if rcode != Rcode::SUCCESS {
                self.out.last_loss = Some(rcode);
                self.unfetched(slot);
                self.fetch();
                continue;
            }
            let Some(offer) = self.fetches.take(slot) else { continue };
            // Others could write there, so what is looked at must be a copy.
            let total = usize::from(offer.total);
            let frame = &mut self.fetched[..total];
            let (facts, rest) = frame.split_at_mut(FACTS_SIZE);
            facts.copy_from_slice(&offer.facts);
            if let Some(memory) = self.out.packets.fetch_memory() {
                memory.read(slot * offer::SLOT, rest);
            }
            let accepted = self.core.fetched(&offer, frame);
            self.fetch();
            self.answer(false);
            if let Some(facts) = accepted {
                return Some(Taken::Fetched(facts, FACTS_SIZE, total));
            }
        }
        None
    }

    /// Whether frames are on their way here from others' memory.
    pub fn is_fetching(&self) -> bool {
        self.fetches.are_under_way()
    }

    /// Tells the IP stack of this node the addresses of another one, as if it had asked for them:
    /// for stacks that ask slowly. False if there are too many answers already that wait for
    /// [`Link::recv`].
    pub fn introduce(&mut self, node: Coords) -> bool {
        self.core.introduce(node)
    }

    /// Whether a frame of any length could be sent now.
    pub fn has_room(&mut self) -> bool {
        let needed = self.config().max_frame().div_ceil(PIECE_MAX);
        if self.out.packets.free() < needed {
            self.flush();
        }
        self.out.packets.free() >= needed
    }

    /// Tells the device of what was sent, and looks after what has been on its way.
    pub fn flush(&mut self) {
        self.out.now_ns = self.out.packets.device().platform().now_ns();
        self.answer(true);
        self.out.packets.flush();
        self.out.reap();
        self.out.go_around();
        // What was sent once more.
        self.out.packets.flush();
    }

    /// Takes the next frame, and returns its length. `buf` should have room for the longest one
    /// ([`Config::max_frame`]); longer ones are cut off. Frames that are not finished are dropped:
    /// [`Link::recv_with`] takes them.
    pub fn recv(&mut self, buf: &mut [u8]) -> Option<usize> {
        let whole = |frame: &[u8], buf: &mut [u8]| {
            let len = frame.len().min(buf.len());
            buf[..len].copy_from_slice(&frame[..len]);
            len
        };
        loop {
            match self.next(buf)? {
                Taken::Here(facts, 0, len) if facts.is_finished() => return Some(len),
                Taken::Scratch(facts, 0, len) if facts.is_finished() => {
                    return Some(whole(&self.scratch[..len], buf));
                }
                Taken::Apart(facts, 0, frame) if facts.is_finished() => {
                    return Some(whole(&frame, buf));
                }
                Taken::Fetched(facts, start, end) if facts.is_finished() => {
                    return Some(whole(&self.fetched[start..end], buf));
                }
                _ => {}
            }
        }
    }

    /// Takes the next frame, and hands it to `take`, with what is left to do with it: nothing,
    /// unless [`Config::unfinished`]. `buf` is a place for it, which `take` need not find it in;
    /// [`PIECE_MAX`] bytes and more make it fast.
    pub fn recv_with<R>(
        &mut self,
        buf: &mut [u8],
        take: impl FnOnce(&Facts, &[u8]) -> R,
    ) -> Option<R> {
        Some(match self.next(buf)? {
            Taken::Here(facts, start, len) => take(&facts, &buf[start..len]),
            Taken::Scratch(facts, start, len) => take(&facts, &self.scratch[start..len]),
            Taken::Apart(facts, start, frame) => take(&facts, &frame[start..]),
            Taken::Fetched(facts, start, end) => take(&facts, &self.fetched[start..end]),
        })
    }

    fn next(&mut self, buf: &mut [u8]) -> Option<Taken> {
        let finished = Facts::default();
        loop {
            if let Some(taken) = self.take_fetched() {
                return Some(taken);
            }
            if let Some(reply) = self.core.take_reply() {
                return Some(Taken::Apart(finished, 0, reply));
            }
            // A piece goes straight to where it is wanted if it fits.
            let direct = buf.len() >= PIECE_MAX;
            let mut header = [0; HEADER_SIZE];
            let late = self.late.take();
            let keep = late.as_ref().is_some_and(|late| self.overtakes(late));
            let body = if direct { &mut buf[..] } else { &mut self.scratch[..] };
            let again = late.is_some();
            let received = match late {
                Some(late) if keep => {
                    self.late = Some(late);
                    None
                }
                Some(late) => {
                    header = late.header;
                    body[..PIECE_MAX].copy_from_slice(&late.body);
                    Some(late.received)
                }
                None => self.out.packets.recv_split(&mut header, body),
            };
            let Some(received) = received else {
                self.flush();
                if self.await_fetched() {
                    continue;
                }
                return None;
            };
            let whole_header = header;
            let header = &header[..received.len.min(HEADER_SIZE)];
            let body = &body[..received.len - header.len()];
            let Self { core, out, .. } = self;
            if received.kind != PrqRcode::SystemTlp {
                continue;
            }
            if core.config().fetches {
                let from = received.header.source();
                if offer::is_message(header) {
                    let message = Message::parse(from, header, body);
                    self.hear(from, message);
                    continue;
                }
                if offer::is_from_origin(header) {
                    let now_ns = out.packets.device().platform().now_ns();
                    self.offers.learn(from, offer::says_fetches(header), now_ns);
                    if !again && self.fetches.are_under_way_from(from) {
                        let mut late = Box::new(Late {
                            received,
                            header: whole_header,
                            body: [0; PIECE_MAX],
                            since_ns: now_ns,
                        });
                        late.body[..body.len()].copy_from_slice(body);
                        self.late = Some(late);
                        continue;
                    }
                }
            }
            let now_ns = out.packets.device().platform().now_ns();
            let event =
                core.receive(received.header.source(), header, body, now_ns, &mut |piece| {
                    if out.packets.free() == 0 {
                        out.packets.flush();
                        out.reap();
                    }
                    out.post_piece(piece);
                });
            let place = |facts, start, len| {
                let place = if direct { Taken::Here } else { Taken::Scratch };
                place(facts, start, len)
            };
            return Some(match event {
                Event::Whole(len) => place(finished, 0, len),
                Event::Unfinished(facts, len, None) => place(facts, FACTS_SIZE, len),
                Event::Assembled(frame) => Taken::Apart(finished, 0, frame),
                Event::Unfinished(facts, _, Some(frame)) => Taken::Apart(facts, FACTS_SIZE, frame),
                Event::Heard(origin, id, offset) => {
                    out.heard(received.header.source(), origin, id, offset);
                    continue;
                }
                Event::Nothing => continue,
            });
        }
    }

    /// Whether a packet would overtake frames of its origin that are being fetched.
    fn overtakes(&self, late: &Late) -> bool {
        let now_ns = self.out.packets.device().platform().now_ns();
        now_ns.saturating_sub(late.since_ns) < OVERTAKE_NS
            && self.fetches.are_under_way_from(late.received.header.source())
    }

    /// Looks for a moment after frames that are being fetched. Returns whether one has come.
    fn await_fetched(&mut self) -> bool {
        let start = self.out.now_ns;
        while !self.out.packets.has_fetched() {
            if !self.fetches.are_under_way() {
                return false;
            }
            let platform = self.out.packets.device().platform();
            if platform.now_ns().saturating_sub(start) >= FETCH_LOOK_NS {
                return false;
            }
            platform.relax();
            self.out.reap();
        }
        true
    }

    /// Whether there may be something to receive.
    pub fn is_ready(&self) -> bool {
        self.core.has_reply()
            || self.late.is_some()
            || self.out.packets.is_ready()
            || self.out.packets.has_fetched()
    }

    /// Whether nothing is on its way out that has to be looked after, by [`Link::flush`] from time
    /// to time.
    pub fn is_settled(&self) -> bool {
        self.out.packets.under_way() == 0 && self.out.awaited.is_empty() && !self.is_fetching()
    }

    /// Waits until there may be something to receive, for `timeout_ns` nanoseconds at most.
    /// Returns whether there is.
    pub fn wait(&mut self, timeout_ns: u64) -> bool {
        let start = self.out.packets.device().platform().now_ns();
        loop {
            self.flush();
            if self.is_ready() {
                return true;
            }
            let elapsed = self.out.now_ns.saturating_sub(start);
            if elapsed >= timeout_ns {
                return false;
            }
            let left = timeout_ns - elapsed;
            // A packet that meets a dead link is to be sent another way, so its end is awaited.
            if self.is_settled() {
                return self.out.packets.wait(left);
            }
            if elapsed < SETTLE_NS {
                self.out.packets.device().platform().relax();
            } else {
                let nap = if self.is_fetching() { FETCH_NAP_NS } else { NAP_NS };
                if self.out.packets.wait(left.min(nap)) {
                    return true;
                }
            }
        }
    }

    /// Waits until there is room for a frame, for `timeout_ns` nanoseconds at most. Returns
    /// whether there is.
    pub fn wait_room(&mut self, timeout_ns: u64) -> bool {
        let start = self.out.packets.device().platform().now_ns();
        loop {
            if self.has_room() {
                return true;
            }
            if self.out.now_ns.saturating_sub(start) >= timeout_ns {
                return false;
            }
            self.out.packets.device().platform().relax();
        }
    }

    /// Waits until everything that was sent is out, for `timeout_ns` nanoseconds at most: what is
    /// not when the link is closed is lost. Returns whether it is.
    pub fn drain(&mut self, timeout_ns: u64) -> bool {
        let start = self.out.packets.device().platform().now_ns();
        loop {
            self.flush();
            if self.out.packets.under_way() == 0 {
                return true;
            }
            if self.out.now_ns.saturating_sub(start) >= timeout_ns {
                return false;
            }
            self.out.packets.device().platform().relax();
        }
    }
}
