//! The link over a device's packet interface.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;
use tofu_abi::queue::PrqRcode;
use tofu_abi::{Coords, PacketTarget, Rcode};
use tofu_driver::{
    Device, DmaBuffer, PacketConfig, PacketError, Packets, Platform, Received, Target,
};

use crate::addr::{self, Mac};
use crate::counters::Counters;
use crate::frames::{Config, Core, SendError};
use crate::health::{Health, Report, Reporter};
use crate::inbound::Event;
use crate::neighbor::LocalNode;
use crate::offload::{BadMetadata, HEAD, MAX_HEADERS, METADATA_SIZE, Metadata};
use crate::outbound::{Outbound, PacketQueue, Tag};
use crate::ports::{Ports, dead_links_met};
use crate::rendezvous::{self, Fetches, Message, OVERTAKE_NS, Rendezvous, Request, Requests, Room};
use crate::storage::Heap;
use crate::tree;
use crate::wire::{Capabilities, FRAGMENT_MAX, Fragment, HEADER_SIZE, Words};

/// How long a wait polls for packets in flight before it sleeps, and the longest sleep while there
/// are any, both in nanoseconds.
const SETTLE_NS: u64 = 5_000;
const NAP_NS: u64 = 10_000_000;
/// How often the node's ports are tested while there is a reason to, in nanoseconds.
const BEAT_NS: u64 = 1_000_000_000;
/// Base of the cookies of packets that test a port. The port's number is added.
const PORT_COOKIE: u32 = 1 << Tag::BITS;

/// Why a link cannot be opened, or a frame not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LinkError {
    /// The node is not in the machine.
    #[error("node {0} is not in the machine")]
    NotInMachine(Coords),
    /// Too few buffers for a broadcast of the longest frame.
    #[error("this MTU needs {needed} buffers for sending at least")]
    Buffers {
        /// Number of buffers needed.
        needed: usize,
    },
    /// The packet interface cannot be opened.
    #[error(transparent)]
    Open(PacketError),
    /// Too many packets are in flight. Try again after [`Link::wait_room`].
    #[error("too many packets are on their way out")]
    Full,
    /// The frame cannot be sent.
    #[error(transparent)]
    Frame(SendError),
    /// The offload metadata do not match the frame.
    #[error("checksum or segments do not fit to the frame")]
    Metadata,
}

impl<P: Platform> PacketQueue for Packets<P> {
    fn post(&mut self, target: &PacketTarget, tag: Tag, parts: &[&[u8]]) -> bool {
        Packets::post(self, target, parts, tag.pack()).is_ok()
    }
}

/// The sending side of a link.
struct Out<P: Platform> {
    packets: Packets<P>,
    outbound: Outbound<Heap>,
    me: Coords,
    node: LocalNode,
    ports: Ports,
    reporter: Reporter,
    beat_ns: u64,
    /// Result code of the last packet that was lost.
    last_loss: Option<Rcode>,
    now_ns: u64,
}

impl<P: Platform> Out<P> {
    fn post(&mut self, to: Coords, parts: &[&[u8]]) {
        self.outbound.post(&mut self.packets, to, parts, self.now_ns);
    }

    fn post_fragment(&mut self, fragment: &Fragment<'_>) {
        let Fragment { to, broadcast, header, prefix, body } = fragment;
        if *broadcast {
            self.outbound.relay(&mut self.packets, *to, header, body, self.now_ns);
        } else {
            self.post(*to, &[header, prefix, body]);
        }
    }

    /// Handles packets whose sending has ended.
    fn reap(&mut self) {
        let Self { packets, outbound, ports, last_loss, now_ns, .. } = self;
        while let Some(done) = packets.poll_sent_or_lost() {
            let (cookie, rcode) = match &done {
                Ok(sent) => (sent.cookie, sent.rcode),
                Err(lost) => (lost.sent.cookie, lost.sent.rcode),
            };
            if cookie >> Tag::BITS != 0 {
                if let Some(dead) = ports.answered((cookie - PORT_COOKIE) as u8, rcode) {
                    outbound.health().set_own(dead);
                }
                if let Err(lost) = done {
                    packets.give_up(lost);
                }
                continue;
            }
            let Err(lost) = done else { continue };
            if rcode == Rcode::LINK_DOWN {
                ports.suspect();
            }
            let Some(tag) = Tag::unpack(lost.sent.cookie) else {
                packets.give_up(lost);
                continue;
            };
            if let Some((target, tag)) = outbound.lost(tag, rcode, *now_ns) {
                packets.resend(lost, &target, tag.pack());
                continue;
            }
            if tag.report {
                packets.give_up(lost);
                continue;
            }
            *last_loss = Some(rcode);
            if !tag.broadcast {
                packets.give_up(lost);
                continue;
            }
            let take = |packets: &mut Packets<P>, to: &mut [u8]| {
                let len = packets.read_lost(&lost, to);
                packets.give_up(lost);
                len
            };
            outbound.go_round(packets, tag.to, take, *now_ns);
        }
    }

    /// Tests the node's ports from time to time once a packet has met a dead link: a packet of the
    /// link anywhere, or a packet of another program or node here. Reports dead links to other
    /// nodes. The node's own frames go first: this leaves half of the buffers to them.
    fn look_after_links(&mut self) {
        let Self { packets, outbound, node, ports, reporter, now_ns, .. } = self;
        let (now_ns, half) = (*now_ns, packets.buffers() / 2);
        if now_ns.saturating_sub(self.beat_ns) >= BEAT_NS {
            self.beat_ns = now_ns;
            let irq = packets.device().tnr_irq();
            let met = dead_links_met(irq.pending());
            if !met.is_empty() {
                irq.clear(met);
                ports.suspect();
            }
            let tni = packets.tni();
            ports.look(node, tni, |port, target, header| {
                packets.free() > half
                    && packets.post(target, &[header], PORT_COOKIE + u32::from(port)).is_ok()
            });
        }
        let health = Arc::clone(outbound.health());
        reporter.step(&health, now_ns, |to, header| {
            packets.free() > half && outbound.report(packets, to, header, now_ns)
        });
    }

    /// Time until the next call of [`Out::look_after_links`], in nanoseconds.
    fn next_look_ns(&self) -> u64 {
        (self.beat_ns + BEAT_NS).saturating_sub(self.now_ns).max(1)
    }
}

impl<P: Platform> Rendezvous for Out<P> {
    fn fetch(&mut self, slot: usize, request: &Request) -> bool {
        let at = (slot * rendezvous::SLOT) as u64;
        let target = Target::new(request.origin, self.packets.tni());
        let way = (target, self.outbound.health().path(request.origin, self.now_ns));
        self.packets.fetch(way, request.place, at, request.len, slot as u16).is_ok()
    }

    fn tell(&mut self, to: Coords, message: &Message) {
        let (header, body) = message.emit(self.me);
        self.post(to, &[&header, &body]);
    }
}

/// How long a call polls for frames that are being fetched, and the longest sleep while there are
/// any, both in nanoseconds.
const FETCH_LOOK_NS: u64 = 50_000;
const FETCH_NAP_NS: u64 = 200_000;

/// A received frame: its metadata and its place.
enum Taken {
    /// In the caller's buffer, between these two offsets.
    Here(Metadata, usize, usize),
    /// In the link's own buffer, between these two offsets.
    Scratch(Metadata, usize, usize),
    /// In memory of its own.
    Apart(Metadata, Vec<u8>),
    /// In this slot for fetched frames, up to this offset.
    Fetched(Metadata, usize, usize),
}

/// The number of the next link.
static NEXT_LINK: AtomicU64 = AtomicU64::new(0);

/// A place from which others can fetch a frame, see [`Link::place`].
#[derive(Debug)]
pub struct FrameSlot {
    link: u64,
    slot: usize,
}

/// A received frame.
#[derive(Debug)]
pub struct Frame<'a, D> {
    /// The first bytes: the whole frame, or at least all headers.
    pub head: &'a [u8],
    /// The place of the other bytes, if there are any. It is in memory that the device has written
    /// to, and that malicious nodes may make it overwrite.
    pub rest: Option<(&'a D, Range<usize>)>,
}

impl<D: DmaBuffer> Frame<'_, D> {
    /// Copies the frame to `buf`, as far as it fits, and returns the number of copied bytes.
    pub fn copy_to(&self, buf: &mut [u8]) -> usize {
        let in_head = self.head.len().min(buf.len());
        buf[..in_head].copy_from_slice(&self.head[..in_head]);
        let Some((memory, range)) = &self.rest else { return in_head };
        let in_rest = range.len().min(buf.len() - in_head);
        memory.read(range.start, &mut buf[in_head..in_head + in_rest]);
        in_head + in_rest
    }
}

/// A link to all nodes of the machine: Ethernet frames in and out.
///
/// One thread drives it. Packets go out in batches: [`Link::flush`] and [`Link::wait`] notify the
/// device of them, and so does [`Link::recv`] when it has nothing to return.
pub struct Link<P: Platform> {
    core: Core,
    out: Out<P>,
    requests: Requests<Heap>,
    fetches: Fetches<Heap>,
    /// Distinguishes links.
    id: u64,
    /// The first bytes of a fetched frame.
    head: [u8; HEAD],
    late: Option<Box<Late>>,
    scratch: Box<[u8]>,
}

/// A packet that waits for frames of its origin that are being fetched.
struct Late {
    received: Received,
    header: [u8; HEADER_SIZE],
    body: [u8; FRAGMENT_MAX],
    since_ns: u64,
}

impl<P: Platform> fmt::Debug for Link<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("node", &self.core.me()).finish_non_exhaustive()
    }
}

impl<P: Platform> Link<P> {
    /// Opens the link of this node on a TNI. All nodes of the machine must use the same TNI.
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
        let Config { shape, rendezvous: fetches, .. } = *core.config();
        let fragments = core.config().max_frame().div_ceil(FRAGMENT_MAX);
        let needed = fragments * tree::children(&shape, me, me).count().max(1);
        if usize::from(packets.tx_buffers) < needed {
            return Err(LinkError::Buffers { needed });
        }
        // Only system packets. Other notices of the device are for other programs.
        let mask = !(1 << PrqRcode::SystemTlp as u8);
        let mut packets = PacketConfig { mask, ..packets.clone() };
        if fetches {
            let memory = rendezvous::SLOTS * rendezvous::SLOT;
            let gpid = rendezvous::GROUP;
            packets = PacketConfig { share: memory, fetch: memory, gpid, ..packets };
        }
        let packets = Packets::open(device, &packets).map_err(LinkError::Open)?;
        let now_ns = device.platform().now_ns();
        core.set_next_id(now_ns as u32);
        let Ok(health) = Health::new(shape, me);
        let Ok(outbound) = Outbound::new(shape, me, packets.tni(), Arc::new(health));
        let node = LocalNode { shape, machine: core.config().machine, me };
        let out = Out {
            packets,
            outbound,
            me,
            node,
            ports: Ports::new(&node, u32::MAX, false),
            reporter: Reporter::new(me, now_ns as u32),
            beat_ns: now_ns,
            last_loss: None,
            now_ns,
        };
        let (Ok(requests), Ok(fetches)) = (Requests::new(), Fetches::new());
        Ok(Self {
            core,
            out,
            requests,
            fetches,
            id: NEXT_LINK.fetch_add(1, Ordering::Relaxed),
            head: [0; HEAD],
            late: None,
            scratch: vec![0; FRAGMENT_MAX].into(),
        })
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

    /// The configuration of the link.
    pub fn config(&self) -> &Config {
        self.core.config()
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        let mut counters = self.core.counters();
        counters += self.out.outbound.counters();
        counters
    }

    /// Which links are known to be dead.
    pub fn health(&self) -> &Arc<Health<Heap>> {
        self.out.outbound.health()
    }

    /// The result code of the last lost packet.
    pub fn last_loss(&self) -> Option<Rcode> {
        self.out.last_loss
    }

    /// The packet interface, for access to its interrupt and its counters.
    pub fn packets(&mut self) -> &mut Packets<P> {
        &mut self.out.packets
    }

    /// Sends an Ethernet frame.
    ///
    /// # Errors
    ///
    /// [`LinkError::Full`] if there is no room for it now, [`LinkError::Frame`] if it can never be
    /// sent.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), LinkError> {
        let needed = self.core.packets_for(frame);
        if self.out.packets.free() < needed {
            self.flush();
            if self.out.packets.free() < needed && frame.len() <= self.config().max_frame() {
                return Err(LinkError::Full);
            }
        }
        let Self { core, out, .. } = self;
        core.send(frame, &mut |fragment: &Fragment<'_>| {
            out.post_fragment(fragment);
        })
        .map_err(LinkError::Frame)
    }

    /// Sends an offloaded Ethernet frame. A node that accepts it gets it unchanged; for others it
    /// is completed first, as one frame or several.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]. If there is only room for some of several frames, the others are lost.
    pub fn send_offloaded(&mut self, metadata: &Metadata, frame: &[u8]) -> Result<(), LinkError> {
        if let Some(node) = self.core.fetcher(metadata, frame, frame.len())
            && self.request(node, metadata, frame, frame.len(), None)?
        {
            return Ok(());
        }
        if metadata.is_empty() {
            return self.send(frame);
        }
        // Metadata that does not fit the frame would be refused there, too.
        metadata.check(frame).map_err(|BadMetadata| LinkError::Metadata)?;
        let needed = (METADATA_SIZE + frame.len()).div_ceil(FRAGMENT_MAX);
        if self.out.packets.free() < needed {
            self.flush();
        }
        let Self { core, out, .. } = self;
        let now_ns = out.packets.device().platform().now_ns();
        if out.packets.free() < needed {
            return Err(LinkError::Full);
        }
        if core.send_offloaded(metadata, frame, now_ns, &mut |f| out.post_fragment(f)) {
            return Ok(());
        }
        let mut result = Ok(());
        let completed = metadata.complete(frame, &mut |frame| {
            let sent = self.send(frame);
            result = result.and(sent);
        });
        completed.map_err(|BadMetadata| LinkError::Metadata)?;
        result
    }

    /// A place for the next frame to be sent, if one is free, from which others can fetch it. A
    /// long enough frame is then sent by [`Link::send_placed`] without a copy. The place need not
    /// be used.
    pub fn place(&self) -> Option<FrameSlot> {
        let slot = self.requests.last_free().filter(|_| self.core.config().rendezvous);
        slot.map(|slot| FrameSlot { link: self.id, slot })
    }

    /// The memory of a place of this link, and the range of the place in it: room for the longest
    /// frame.
    pub fn place_memory(&self, place: &FrameSlot) -> Option<(&P::Dma, Range<usize>)> {
        let at = place.slot * rendezvous::SLOT;
        let memory = self.out.packets.share().filter(|_| place.link == self.id);
        memory.map(|memory| (memory, at..at + rendezvous::SLOT))
    }

    /// Sends an offloaded Ethernet frame of `len` bytes. Its first bytes are in `head`, a multiple
    /// of 8 with all headers. The others are in the place, at the same offset as in the frame.
    /// False if the receiver does not fetch it, so that it must be sent in another way.
    ///
    /// If there is no room for it, the frame may stay in its place until there is, as long as
    /// nothing else is sent.
    ///
    /// # Errors
    ///
    /// As [`Link::send_offloaded`].
    pub fn send_placed(
        &mut self,
        metadata: &Metadata,
        head: &[u8],
        place: &FrameSlot,
        len: usize,
    ) -> Result<bool, LinkError> {
        let fits = head.len() % 8 == 0 && (MAX_HEADERS..=len).contains(&head.len());
        let fits = fits && len <= rendezvous::SLOT && place.link == self.id;
        // The place may have been used in another way since.
        let fits = fits && self.requests.is_free(place.slot);
        match self.core.fetcher(metadata, head, len) {
            Some(node) if fits => self.request(node, metadata, head, len, Some(place.slot)),
            _ => Ok(false),
        }
    }

    /// Requests a node to fetch a frame of `len` bytes that begins with `head`. The rest is in the
    /// slot `placed`. False if the node does not fetch frames, or other frames occupy all slots.
    fn request(
        &mut self,
        node: Coords,
        metadata: &Metadata,
        head: &[u8],
        len: usize,
        placed: Option<usize>,
    ) -> Result<bool, LinkError> {
        metadata.check_head(head, len).map_err(|BadMetadata| LinkError::Metadata)?;
        let Self { core, out, requests, .. } = self;
        let now_ns = out.packets.device().platform().now_ns();
        let slot = match requests.room(node, core.peers(), now_ns, out.outbound.count()) {
            Room::Slot(_) if out.packets.free() == 0 => return Err(LinkError::Full),
            Room::Slot(slot) => placed.unwrap_or(slot),
            Room::Busy => return Err(LinkError::Full),
            Room::None => return Ok(false),
        };
        let at = slot * rendezvous::SLOT;
        let (Some(memory), Some(place)) = (out.packets.share(), out.packets.share_at(at as u64))
        else {
            return Ok(false);
        };
        memory.write(at, head);
        let mut words = Words::default();
        words.add_all(head);
        memory.each_word(at + head.len(), len - head.len(), |word| words.add(word));
        let request = core.request(metadata, len, words, place);
        requests.sent(slot, node, request.id, now_ns);
        out.tell(node, &Message::Request(request));
        Ok(true)
    }

    /// Processes a message of a node about frames that are fetched.
    fn take_message(&mut self, from: Coords, says: Capabilities, message: Option<Message>) {
        let Self { core, out, requests, fetches, .. } = self;
        let now_ns = out.packets.device().platform().now_ns();
        let rendezvous = message.is_some();
        core.peers().learn(from, Capabilities { rendezvous, ..says }, now_ns);
        match message {
            Some(Message::Request(request)) => fetches.request(request, (), out, core.count()),
            Some(Message::Done { id, refused }) => requests.done(from, id, refused, now_ns),
            None => core.count().malformed += 1,
        }
    }

    /// Takes the next fetched frame.
    fn take_fetched(&mut self) -> Option<Taken> {
        let Self { core, out, fetches, head, .. } = self;
        while let Some((slot, rcode)) = out.packets.poll_fetched() {
            let slot = slot as usize;
            if !rcode.is_success() {
                out.last_loss = Some(rcode);
            }
            let request = fetches.ended(slot, rcode.is_success(), out, core.count());
            let Some((request, ())) = request else { continue };
            // Other nodes could write there, so the headers are checked in a copy, and this copy is
            // also what is received. Copying the bytes behind them would not help: they could be
            // overwritten before the copy as well.
            let len = request.len as usize;
            let head = &mut head[..len.min(HEAD)];
            let mut words = Words::default();
            if let Some(memory) = out.packets.fetch_memory() {
                let at = slot * rendezvous::SLOT;
                memory.read(at, head);
                words.add_all(head);
                memory.each_word(at + head.len(), len - head.len(), |word| words.add(word));
            }
            if let Some(metadata) = core.fetched(&request, head, len, words) {
                return Some(Taken::Fetched(metadata, slot, len));
            }
            fetches.go_on(out, core.count());
        }
        None
    }

    /// Whether this node is fetching frames.
    pub fn is_fetching(&self) -> bool {
        self.fetches.are_under_way()
    }

    /// Tells the IP stack of this node the addresses of another one, as if it had asked for them:
    /// for stacks that ask slowly. False if too many answers already wait for [`Link::recv`].
    pub fn introduce(&mut self, node: Coords) -> bool {
        self.core.introduce(node)
    }

    /// Whether a frame of any length could be sent now.
    pub fn has_room(&mut self) -> bool {
        let needed = self.config().max_frame().div_ceil(FRAGMENT_MAX);
        if self.out.packets.free() < needed {
            self.flush();
        }
        self.out.packets.free() >= needed
    }

    /// Notifies the device of sent packets, and handles packets that were in flight.
    pub fn flush(&mut self) {
        self.out.now_ns = self.out.packets.device().platform().now_ns();
        let Self { out, fetches, .. } = self;
        fetches.answer(true, out);
        out.packets.flush();
        out.reap();
        out.outbound.expire(&mut out.packets, out.now_ns);
        out.look_after_links();
        // Flushes packets that were sent again.
        out.packets.flush();
    }

    /// Takes the next frame, and returns its length. `buf` should have room for the longest frame
    /// ([`Config::max_frame`]); longer frames are truncated. Offloaded frames are dropped:
    /// [`Link::recv_with`] accepts them.
    pub fn recv(&mut self, buf: &mut [u8]) -> Option<usize> {
        let whole = |frame: &[u8], buf: &mut [u8]| {
            let len = frame.len().min(buf.len());
            buf[..len].copy_from_slice(&frame[..len]);
            len
        };
        loop {
            match self.next(buf)? {
                Taken::Here(metadata, 0, len) if metadata.is_empty() => return Some(len),
                Taken::Scratch(metadata, 0, len) if metadata.is_empty() => {
                    return Some(whole(&self.scratch[..len], buf));
                }
                Taken::Apart(metadata, frame) if metadata.is_empty() => {
                    return Some(whole(&frame, buf));
                }
                Taken::Fetched(metadata, slot, len) => {
                    let copied = self.use_fetched(slot, len, |frame| frame.copy_to(buf));
                    if metadata.is_empty() {
                        return Some(copied);
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes the next frame, and passes it to `take` with its metadata, which are empty unless
    /// [`Config::offload`] is set. The frame may be put into `buf`, but need not be. This is fast
    /// if `buf` has at least [`FRAGMENT_MAX`] bytes.
    pub fn recv_with<R>(
        &mut self,
        buf: &mut [u8],
        take: impl FnOnce(&Metadata, Frame<'_, P::Dma>) -> R,
    ) -> Option<R> {
        let whole = |head| Frame { head, rest: None };
        Some(match self.next(buf)? {
            Taken::Here(metadata, start, len) => take(&metadata, whole(&buf[start..len])),
            Taken::Scratch(metadata, start, len) => {
                take(&metadata, whole(&self.scratch[start..len]))
            }
            Taken::Apart(metadata, frame) => take(&metadata, whole(&frame)),
            Taken::Fetched(metadata, slot, len) => {
                self.use_fetched(slot, len, |frame| take(&metadata, frame))
            }
        })
    }

    /// Passes on a fetched frame, and continues to fetch others into its place.
    fn use_fetched<R>(
        &mut self,
        slot: usize,
        len: usize,
        take: impl FnOnce(Frame<'_, P::Dma>) -> R,
    ) -> R {
        let Self { core, out, fetches, head, .. } = self;
        let at = slot * rendezvous::SLOT;
        let head = &head[..len.min(HEAD)];
        let rest = out.packets.fetch_memory().filter(|_| len > HEAD);
        let rest = rest.map(|memory| (memory, at + HEAD..at + len));
        let result = take(Frame { head, rest });
        fetches.go_on(out, core.count());
        result
    }

    fn next(&mut self, buf: &mut [u8]) -> Option<Taken> {
        loop {
            if let Some(taken) = self.take_fetched() {
                return Some(taken);
            }
            if let Some(reply) = self.core.take_reply() {
                return Some(Taken::Apart(Metadata::default(), reply));
            }
            // A fragment goes directly into `buf` if it fits.
            let direct = buf.len() >= FRAGMENT_MAX;
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
                    body[..FRAGMENT_MAX].copy_from_slice(&late.body);
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
            if received.kind != PrqRcode::SystemTlp {
                continue;
            }
            let from = received.header.source();
            let now_ns = self.out.packets.device().platform().now_ns();
            if Report::is_report(header) {
                match Report::parse(from, header) {
                    Some(report) => _ = self.health().learn(&report, now_ns),
                    None => self.core.count().malformed += 1,
                }
                continue;
            }
            if self.core.config().rendezvous {
                if rendezvous::is_message(header) {
                    // Requests with heads are dropped: this node does not announce that it accepts
                    // them.
                    let message = Message::parse(from, header, body)
                        .filter(|m| !matches!(m, Message::Request(r) if r.is_split()));
                    self.take_message(from, Capabilities::of(header), message);
                    continue;
                }
                let waits = !again && self.fetches.are_under_way_from(from);
                if waits && rendezvous::is_from_origin(header) {
                    let mut late = Box::new(Late {
                        received,
                        header: whole_header,
                        body: [0; FRAGMENT_MAX],
                        since_ns: now_ns,
                    });
                    late.body[..body.len()].copy_from_slice(body);
                    self.late = Some(late);
                    continue;
                }
            }
            let Self { core, out, .. } = self;
            let event = core.receive(from, header, body, now_ns, &mut |fragment| {
                if out.packets.free() == 0 {
                    out.packets.flush();
                    out.reap();
                }
                out.post_fragment(fragment);
            });
            let place = if direct { Taken::Here } else { Taken::Scratch };
            match event {
                Event::Whole(metadata, part) => {
                    return Some(place(metadata, part.start, part.end));
                }
                Event::Assembled(metadata, frame) => return Some(Taken::Apart(metadata, frame)),
                Event::Acknowledged(key) => out.outbound.acknowledged(from, key),
                Event::Nothing => {}
            }
        }
    }

    /// Whether a packet would overtake frames of its origin that are being fetched.
    fn overtakes(&self, late: &Late) -> bool {
        let now_ns = self.out.packets.device().platform().now_ns();
        now_ns.saturating_sub(late.since_ns) < OVERTAKE_NS
            && self.fetches.are_under_way_from(late.received.header.source())
    }

    /// Polls for a moment for frames that are being fetched. Returns whether one has arrived.
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

    /// Whether nothing in flight needs [`Link::flush`] from time to time.
    pub fn is_settled(&self) -> bool {
        self.out.packets.under_way() == 0
            && self.out.outbound.is_settled()
            && self.out.reporter.is_settled()
            && !self.is_fetching()
    }

    /// Waits until there may be something to receive, for at most `timeout_ns` nanoseconds. Returns
    /// whether there is.
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
            // A packet that meets a dead link must be sent another way, so its completion is
            // awaited.
            if self.is_settled() {
                if self.out.packets.wait(left.min(self.out.next_look_ns())) {
                    return true;
                }
                continue;
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

    /// Waits until there is room for a frame, for at most `timeout_ns` nanoseconds. Returns whether
    /// there is.
    pub fn wait_room(&mut self, timeout_ns: u64) -> bool {
        self.wait_until(timeout_ns, Self::has_room)
    }

    /// Waits until all packets have been sent, for at most `timeout_ns` nanoseconds. Packets that
    /// are not sent when the link is closed are lost. Returns whether all are sent.
    pub fn drain(&mut self, timeout_ns: u64) -> bool {
        self.wait_until(timeout_ns, |link| {
            link.flush();
            link.out.packets.under_way() == 0
        })
    }

    fn wait_until(&mut self, timeout_ns: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let start = self.out.packets.device().platform().now_ns();
        loop {
            if done(self) {
                return true;
            }
            if self.out.now_ns.saturating_sub(start) >= timeout_ns {
                return false;
            }
            self.out.packets.device().platform().relax();
        }
    }
}
