//! The link over a device's packet interface.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::mem;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;
use tofu_abi::packets::PacketQueues;
use tofu_abi::queue::PrqRcode;
use tofu_abi::{Coords, Group, PacketTarget, Rcode};
use tofu_driver::{
    Completed, Device, DmaBuffer, PacketConfig, PacketError, Packets, Platform, Sent, Target,
    TxBuffer,
};

use crate::addr::{self, Mac};
use crate::counters::Counters;
use crate::frames::{Config, Core, SendError, Sides};
use crate::health::Health;
use crate::inbound::{Arrival, Event};
use crate::offload::{BadMetadata, HEAD, MAX_HEADERS, METADATA_SIZE, Metadata};
use crate::outbound::{Ended, Offer, Outbound, PacketQueue, Purpose};
use crate::ports::dead_links_met;
use crate::rendezvous::{
    self, Fetches, HEAD_MAX, MIN_FRAME, Message, REST_MAX, Rendezvous, Request, Requests, Room,
};
use crate::storage::Heap;
use crate::tree;
use crate::wire::{FRAGMENT_MAX, HEADER_SIZE, Sum, Words};

/// The time for which a wait polls for packets in flight before it sleeps, and the longest sleep
/// while there are any. Both are in nanoseconds.
const SETTLE_NS: u64 = 5_000;
const NAP_NS: u64 = 10_000_000;
/// The interval at which the node's ports are tested while there is a reason to, in nanoseconds.
const BEAT_NS: u64 = 1_000_000_000;

/// The reason why a link cannot be opened, or a frame not be sent.
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
    #[error("transmit queue full")]
    Full,
    /// The frame cannot be sent.
    #[error(transparent)]
    Frame(SendError),
    /// The offload metadata do not match the frame.
    #[error("checksum or segment metadata does not match the frame")]
    Metadata,
}

impl From<SendError> for LinkError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Full => Self::Full,
            error => Self::Frame(error),
        }
    }
}

impl<P: Platform> PacketQueue for Packets<P> {
    type Buffer = TxBuffer;

    fn room(&self) -> usize {
        self.free()
    }

    fn size(&self) -> usize {
        self.buffers()
    }

    fn take(&mut self) -> Option<TxBuffer> {
        self.take_buffer()
    }

    fn give_up(&mut self, buffer: TxBuffer) {
        Packets::give_up(self, buffer);
    }

    fn write(&mut self, buffer: &TxBuffer, at: usize, bytes: &[u8]) -> bool {
        self.write_payload(buffer, at, bytes)
    }

    fn read(&mut self, buffer: &TxBuffer, to: &mut [u8]) -> bool {
        self.read_payload(buffer, to)
    }

    fn post_buffer(
        &mut self,
        buffer: TxBuffer,
        len: u16,
        target: &PacketTarget,
        purpose: Purpose,
    ) -> bool {
        Packets::post_buffer(self, buffer, len, target, purpose.pack()).is_ok()
    }
}

/// Both halves of a link that send.
struct Out<'a, P: Platform> {
    packets: &'a mut Packets<P>,
    outbound: &'a mut Outbound<Heap>,
    now_ns: u64,
}

impl<P: Platform> Rendezvous for Out<'_, P> {
    fn fetch(&mut self, slot: usize, request: &Request) -> bool {
        let at = (slot * fetch_slot(self.packets)) as u64;
        let target = Target::new(request.origin, self.packets.tni());
        let way = (target, self.outbound.health().path(request.origin, self.now_ns));
        self.packets.fetch(way, request.place, at, request.len, slot as u16).is_ok()
    }

    fn tell(&mut self, to: Coords, message: &Message) {
        self.outbound.tell(self.packets, to, message, &[], self.now_ns);
    }
}

/// The time for which a call polls for frames that are being fetched, and the longest sleep while
/// there are any, both in nanoseconds.
const FETCH_LOOK_NS: u64 = 50_000;
const FETCH_NAP_NS: u64 = 200_000;

/// A received frame: its metadata and its place.
enum Taken {
    /// In the caller's buffer, between these two offsets.
    Here(Metadata, usize, usize),
    /// In the link's own buffer, between these two offsets.
    Scratch(Metadata, usize, usize),
    /// In a buffer that the packet owns.
    Apart(Metadata, Vec<u8>),
    /// Fetched, except for its head.
    Fetched(Metadata, Fetched),
}

/// Size of each slot for a fetched frame, in bytes.
fn fetch_slot<P: Platform>(packets: &Packets<P>) -> usize {
    packets.fetch_memory().map_or(0, |memory| memory.len() / rendezvous::SLOTS)
}

/// The place of a fetched frame.
struct Fetched {
    /// Number of its first bytes, in the link's own buffer.
    head: usize,
    /// The others, in the memory for fetched frames.
    rest: Range<usize>,
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
    packets: Packets<P>,
    requests: Requests<Heap>,
    /// Each with the head of the frame, if that came with the request.
    fetches: Fetches<Heap, Box<[u8]>>,
    /// The requests that had timed out when others got the present address of the frames.
    lapses: u32,
    /// Distinguishes links.
    id: u64,
    /// The first bytes of a fetched frame.
    head: [u8; HEAD_MAX],
    scratch: Box<[u8]>,
    /// When the ports were last tested, and the time of the last flush, in nanoseconds.
    beat_ns: u64,
    now_ns: u64,
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
        let now_ns = device.platform().now_ns();
        let core = Core::new(config, me, packets.tni, now_ns);
        let Config { shape, rendezvous: fetches, .. } = *core.config();
        let fragments = core.config().max_frame().div_ceil(FRAGMENT_MAX);
        let needed = fragments * tree::children(&shape, me, me).count().max(1);
        if usize::from(packets.tx_buffers) < needed {
            return Err(LinkError::Buffers { needed });
        }
        // Only system packets. Other notices of the device are for other programs.
        let mut packets = PacketConfig { mask: PacketQueues::SYSTEM_ONLY, ..packets.clone() };
        if fetches {
            let share = rendezvous::SLOTS * rendezvous::SLOT;
            // The rest of a split frame may be longer.
            let fetch = if core.config().split { rendezvous::SLOTS * REST_MAX } else { share };
            let gpid = Group::Kernel.gpid();
            packets = PacketConfig { share, fetch, gpid, ..packets };
        }
        let packets = Packets::open(device, &packets).map_err(LinkError::Open)?;
        let (Ok(requests), Ok(fetches)) = (Requests::new(), Fetches::new());
        Ok(Self {
            core,
            packets,
            requests,
            fetches,
            lapses: 0,
            id: NEXT_LINK.fetch_add(1, Ordering::Relaxed),
            head: [0; HEAD_MAX],
            scratch: vec![0; FRAGMENT_MAX].into(),
            beat_ns: now_ns,
            now_ns,
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
        self.core.counters()
    }

    /// Which links are known to be dead.
    pub fn health(&self) -> &Arc<Health<Heap>> {
        self.core.health()
    }

    /// The result code of the last lost packet.
    pub fn last_loss(&self) -> Option<Rcode> {
        self.core.last_loss()
    }

    /// The packet interface, for access to its interrupt and its counters.
    pub fn packets(&mut self) -> &mut Packets<P> {
        &mut self.packets
    }

    /// Takes the time.
    fn look_at_clock(&mut self) -> u64 {
        self.now_ns = self.packets.device().platform().now_ns();
        self.now_ns
    }

    /// Sends by `send`, once more after a flush if there was no room.
    fn with_room<T>(
        &mut self,
        send: impl Fn(&mut Core, &mut Packets<P>, u64) -> Result<T, SendError>,
    ) -> Result<T, LinkError> {
        match send(&mut self.core, &mut self.packets, self.now_ns) {
            Err(SendError::Full) => {
                self.flush();
                Ok(send(&mut self.core, &mut self.packets, self.now_ns)?)
            }
            sent => Ok(sent?),
        }
    }

    /// Sends an Ethernet frame.
    ///
    /// # Errors
    ///
    /// [`LinkError::Full`] if there is no room for it now, [`LinkError::Frame`] if it can never be
    /// sent.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), LinkError> {
        self.with_room(|core, packets, now_ns| core.send(packets, frame, now_ns))
    }

    /// Sends an offloaded Ethernet frame. A node that accepts it gets it unchanged; for others it
    /// is completed first, as one frame or several.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]. If there is only room for some of several frames, the others are lost.
    pub fn send_offloaded(&mut self, metadata: &Metadata, frame: &[u8]) -> Result<(), LinkError> {
        if self.request(metadata, frame, frame.len(), None)? {
            return Ok(());
        }
        if metadata.is_empty() {
            return self.send(frame);
        }
        // Metadata that does not fit the frame would be refused there, too.
        metadata.check(frame).map_err(|BadMetadata| LinkError::Metadata)?;
        self.look_at_clock();
        let sent = self.with_room(|core, packets, now_ns| {
            core.send_offloaded(packets, metadata, frame, now_ns)
        });
        if sent? {
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
        let memory = self.packets.share().filter(|_| place.link == self.id);
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
        if fits { self.request(metadata, head, len, Some(place.slot)) } else { Ok(false) }
    }

    /// Requests a frame's destination to fetch it. It has `len` bytes and begins with `head`. The
    /// rest is in the slot `placed`. False if the node does not fetch such frames, or other frames
    /// occupy all slots.
    fn request(
        &mut self,
        metadata: &Metadata,
        head: &[u8],
        len: usize,
        placed: Option<usize>,
    ) -> Result<bool, LinkError> {
        if !(MIN_FRAME..=rendezvous::SLOT).contains(&len) {
            return Ok(false);
        }
        let now_ns = self.look_at_clock();
        let Some((node, split)) = self.core.fetcher(metadata, head, len, now_ns) else {
            return Ok(false);
        };
        metadata.check_head(head, len).map_err(|BadMetadata| LinkError::Metadata)?;
        let Self { core, packets, requests, lapses, .. } = self;
        let Sides { outbound, peers, .. } = core.sides();
        requests.expire(now_ns, outbound.count());
        if *lapses != requests.lapses() {
            // A node may still fetch a frame whose request has timed out, but must not get a later
            // frame in its place. So all frames get another address, as soon as no request is
            // outstanding.
            match requests.under_way_to(node) {
                0 if requests.are_under_way() => return Ok(false),
                0 => {}
                _ => return Err(LinkError::Full),
            }
            *lapses = requests.lapses();
            if !packets.renew_share() {
                outbound.end_rendezvous();
                return Ok(false);
            }
        }
        let slot = match requests.room(node, peers, now_ns, outbound.count()) {
            Room::Slot(_) if packets.free() == 0 => return Err(LinkError::Full),
            Room::Slot(slot) => placed.unwrap_or(slot),
            Room::Busy => return Err(LinkError::Full),
            Room::None => return Ok(false),
        };
        let at = slot * rendezvous::SLOT;
        // The first bytes travel in the request if the node supports that; no checksum is computed
        // then.
        let apart = if split { HEAD } else { 0 };
        let (with, rest) = head.split_at(apart.min(head.len()));
        let place = packets.share_at((at + apart) as u64);
        let (Some(memory), Some(place)) = (packets.share(), place) else { return Ok(false) };
        memory.write(at + apart, rest);
        let sum = if split { 0 } else { sum_of(&metadata.emit(), memory, at, head, len).finish() };
        let offer = Offer { metadata, head: with, len: len - apart, sum, slot, place };
        outbound.request(packets, requests, node, &offer, now_ns);
        Ok(true)
    }

    /// Processes a message of a node about frames that are fetched.
    fn take_message(&mut self, from: Coords, packet: (&[u8], &[u8]), now_ns: u64) {
        let Self { core, packets, requests, fetches, .. } = self;
        let Sides { inbound, outbound, peers } = core.sides();
        match inbound.message(from, packet, outbound.says(), peers, now_ns) {
            Some(Message::Request(request)) => {
                let queue = &mut Out { packets, outbound, now_ns };
                fetches.request(request, request.head_in(packet.1).into(), queue, inbound.count());
            }
            Some(Message::Done { id, refused }) => requests.done(from, id, refused, now_ns),
            None => {}
        }
    }

    /// Takes the next fetched frame.
    fn take_fetched(&mut self) -> Option<Taken> {
        let Self { core, packets, fetches, head, now_ns, .. } = self;
        let Sides { inbound, outbound, .. } = core.sides();
        while let Some((slot, rcode)) = packets.poll_fetched() {
            let slot = slot as usize;
            if !rcode.is_success() {
                outbound.note_loss(rcode);
            }
            let queue = &mut Out { packets, outbound, now_ns: *now_ns };
            let request = fetches.ended(slot, rcode.is_success(), queue, inbound.count());
            let Some((request, came)) = request else { continue };
            // Other nodes could write there, so the headers are checked in a copy, and this copy is
            // also what is received. Copying the bytes behind them would not help: they could be
            // overwritten before the copy as well.
            let (at, len) = (slot * fetch_slot(queue.packets), request.len as usize);
            let of_head = if request.is_split() { came.len() } else { len.min(HEAD) };
            let head = &mut head[..of_head];
            let (intact, rest) = if request.is_split() {
                head.copy_from_slice(&came);
                (true, at..at + len)
            } else {
                let Some(memory) = queue.packets.fetch_memory() else { continue };
                memory.read(at, head);
                let sum = sum_of(&request.metadata, memory, at, head, len);
                (request.is_intact(sum, inbound.count()), at + of_head..at + len)
            };
            let whole = head.len() + rest.len();
            if intact
                && let Some(metadata) =
                    inbound.accept_fetched(request.origin, &request.metadata, head, whole)
            {
                return Some(Taken::Fetched(metadata, Fetched { head: of_head, rest }));
            }
            fetches.go_on(queue, inbound.count());
        }
        None
    }

    /// Returns true if this node is fetching frames.
    pub fn is_fetching(&self) -> bool {
        self.fetches.are_under_way()
    }

    /// Gives the IP stack of this node the addresses of another one, as if it had queried them: for
    /// stacks that query slowly. Returns false if too many answers already wait for [`Link::recv`].
    pub fn introduce(&mut self, node: Coords) -> bool {
        self.core.introduce(node)
    }

    /// Returns true if a frame of any length could be sent now.
    pub fn has_room(&mut self) -> bool {
        let needed = self.config().max_frame().div_ceil(FRAGMENT_MAX);
        if self.packets.free() < needed {
            self.flush();
        }
        self.packets.free() >= needed
    }

    /// Notifies the device of sent packets, and handles packets that were in flight.
    pub fn flush(&mut self) {
        let now_ns = self.look_at_clock();
        let Self { core, packets, fetches, .. } = self;
        let outbound = core.outbound();
        fetches.answer(true, &mut Out { packets, outbound, now_ns });
        packets.flush();
        self.reap();
        self.core.outbound().expire(&mut self.packets, now_ns);
        self.look_after_links();
        // Flushes packets that were sent again.
        self.packets.flush();
    }

    /// Handles packets whose sending has ended.
    fn reap(&mut self) {
        let Self { core, packets, now_ns, .. } = self;
        while let Some(Completed { sent, buffer, len }) = packets.poll_completed() {
            let Sent { cookie, rcode } = sent;
            match Purpose::unpack(cookie) {
                Some(purpose) => {
                    let ended = Ended { purpose, rcode, buffer, len };
                    core.outbound().ended(packets, ended, *now_ns);
                }
                None => packets.give_up(buffer),
            }
        }
    }

    /// Tests the node's ports from time to time once a packet has met a dead link: a packet of the
    /// link anywhere, or a packet of another program or node here. Reports dead links to other
    /// nodes.
    fn look_after_links(&mut self) {
        let Self { core, packets, beat_ns, now_ns, .. } = self;
        let outbound = core.outbound();
        if now_ns.saturating_sub(*beat_ns) >= BEAT_NS {
            *beat_ns = *now_ns;
            let irq = packets.device().tnr_irq();
            let met = dead_links_met(irq.pending());
            if !met.is_empty() {
                irq.clear(met);
                outbound.ports_mut().suspect();
            }
            outbound.look_at_ports(packets);
        }
        outbound.report(packets, *now_ns);
    }

    /// Time until the ports are tested again, in nanoseconds.
    fn next_look_ns(&self) -> u64 {
        (self.beat_ns + BEAT_NS).saturating_sub(self.now_ns).max(1)
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
                Taken::Fetched(metadata, fetched) => {
                    let copied = self.use_fetched(fetched, |frame| frame.copy_to(buf));
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
            Taken::Fetched(metadata, fetched) => {
                self.use_fetched(fetched, |frame| take(&metadata, frame))
            }
        })
    }

    /// Passes on a fetched frame, and continues to fetch others into its place.
    fn use_fetched<R>(&mut self, fetched: Fetched, take: impl FnOnce(Frame<'_, P::Dma>) -> R) -> R {
        let Self { core, packets, fetches, head, now_ns, .. } = self;
        let head = &head[..fetched.head];
        let rest = packets.fetch_memory().filter(|_| !fetched.rest.is_empty());
        let rest = rest.map(|memory| (memory, fetched.rest));
        let result = take(Frame { head, rest });
        let Sides { inbound, outbound, .. } = core.sides();
        fetches.go_on(&mut Out { packets, outbound, now_ns: *now_ns }, inbound.count());
        result
    }

    fn next(&mut self, buf: &mut [u8]) -> Option<Taken> {
        // A fragment goes directly into `buf` if it fits.
        if buf.len() >= FRAGMENT_MAX {
            return self.next_to(buf, Taken::Here);
        }
        let mut scratch = mem::take(&mut self.scratch);
        let taken = self.next_to(&mut scratch, Taken::Scratch);
        self.scratch = scratch;
        taken
    }

    /// Takes the next frame. A packet goes into `buf`, which has room for any. If the frame is a
    /// single packet, `place` makes the result from its position there.
    fn next_to(
        &mut self,
        buf: &mut [u8],
        place: fn(Metadata, usize, usize) -> Taken,
    ) -> Option<Taken> {
        loop {
            if let Some(taken) = self.take_fetched() {
                return Some(taken);
            }
            if let Some(reply) = self.core.take_reply() {
                return Some(Taken::Apart(Metadata::default(), reply));
            }
            let mut header = [0; HEADER_SIZE];
            let received = match self.next_waits() {
                true => None,
                false => self.packets.recv_split(&mut header, buf),
            };
            let Some(received) = received else {
                self.flush();
                if self.await_fetched() {
                    continue;
                }
                return None;
            };
            let header = &header[..received.len.min(HEADER_SIZE)];
            let body = &buf[..received.len - header.len()];
            if received.kind != PrqRcode::SystemTlp {
                continue;
            }
            let from = received.header.source();
            let now_ns = self.packets.device().platform().now_ns();
            let Sides { inbound, outbound, .. } = self.core.sides();
            let frame = match inbound.sort(from, header, body, Some(outbound.health()), now_ns) {
                Some(Arrival::Frame(frame)) => frame,
                Some(Arrival::Message) => {
                    self.take_message(from, (header, body), now_ns);
                    continue;
                }
                None => continue,
            };
            // It may be acknowledged, and relayed.
            if self.packets.free() <= tree::MAX_CHILDREN {
                self.packets.flush();
                self.reap();
            }
            match self.core.receive_frame(&mut self.packets, from, &frame, now_ns) {
                Event::Whole(metadata, part) => {
                    return Some(place(metadata, part.start, part.end));
                }
                Event::Assembled(metadata, frame) => return Some(Taken::Apart(metadata, frame)),
                Event::Acknowledged(_) | Event::Nothing => {}
            }
        }
    }

    /// Returns true if the next packet must wait for frames of its origin that are being fetched.
    fn next_waits(&mut self) -> bool {
        let Self { packets, fetches, .. } = self;
        let next = || {
            let mut header = [0; HEADER_SIZE];
            let packet = packets.peek(&mut header)?;
            Some((packet.header.source(), rendezvous::is_from_origin(&header)))
        };
        fetches.hold(next, || packets.device().platform().now_ns()).is_some()
    }

    /// Polls for a moment for frames that are being fetched. Returns whether one has arrived.
    fn await_fetched(&mut self) -> bool {
        let start = self.now_ns;
        while !self.packets.has_fetched() {
            if !self.fetches.are_under_way() {
                return false;
            }
            let platform = self.packets.device().platform();
            if platform.now_ns().saturating_sub(start) >= FETCH_LOOK_NS {
                return false;
            }
            platform.relax();
            self.reap();
        }
        true
    }

    /// Returns true if there may be something to receive. A packet that had to wait for a frame
    /// when [`Link::recv`] was called last does not count: it is tried again by the next call.
    pub fn is_ready(&self) -> bool {
        let packet = self.packets.is_ready() && !self.fetches.is_holding();
        packet || self.core.has_reply() || self.packets.has_fetched()
    }

    /// Returns true if nothing in flight needs [`Link::flush`] from time to time.
    pub fn is_settled(&self) -> bool {
        self.packets.under_way() == 0 && self.core.is_settled() && !self.is_fetching()
    }

    /// Waits until there may be something to receive, for at most `timeout_ns` nanoseconds. Returns
    /// whether there is.
    pub fn wait(&mut self, timeout_ns: u64) -> bool {
        let start = self.packets.device().platform().now_ns();
        loop {
            self.flush();
            // Whether the next packet may overtake depends on the time.
            self.next_waits();
            if self.is_ready() {
                return true;
            }
            let elapsed = self.now_ns.saturating_sub(start);
            if elapsed >= timeout_ns {
                return false;
            }
            let left = timeout_ns - elapsed;
            // A packet that meets a dead link must be sent another way, so its completion is
            // awaited.
            if self.is_settled() {
                if self.packets.wait(left.min(self.next_look_ns())) {
                    return true;
                }
                continue;
            }
            if elapsed < SETTLE_NS {
                self.packets.device().platform().relax();
            } else {
                let nap = if self.is_fetching() { FETCH_NAP_NS } else { NAP_NS };
                if self.packets.wait(left.min(nap)) {
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
            link.packets.under_way() == 0
        })
    }

    fn wait_until(&mut self, timeout_ns: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let start = self.packets.device().platform().now_ns();
        loop {
            if done(self) {
                return true;
            }
            if self.now_ns.saturating_sub(start) >= timeout_ns {
                return false;
            }
            self.packets.device().platform().relax();
        }
    }
}

/// The sum of a frame of `len` bytes that begins with `head`, and of its metadata. The rest is in
/// the memory of the slot that begins at byte `at`.
fn sum_of(
    metadata: &[u8; METADATA_SIZE],
    memory: &impl DmaBuffer,
    at: usize,
    head: &[u8],
    len: usize,
) -> Sum {
    let mut words = Words::default();
    words.add_all(head);
    memory.each_word(at + head.len(), len - head.len(), |word| words.add(word));
    let mut sum = Request::summed(metadata);
    sum.add_words(0, words);
    sum
}
