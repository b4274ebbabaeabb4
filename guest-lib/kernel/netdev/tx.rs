// SPDX-License-Identifier: GPL-2.0

//! The sending side.

use kernel::cpu::CpuId;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::Arc;

use tofu_abi::{Coords, Rcode, TniId};
use tofu_ipotofu::addr::{self, Mac};
use tofu_ipotofu::neighbor::{Answer, LocalNode};
use tofu_ipotofu::offload::{Fields, Metadata, HEAD, METADATA_SIZE};
use tofu_ipotofu::rendezvous::{
    Message, Rendezvous, Request, Requests, Room, HEAD_MAX, MIN_FRAME, REST_MAX, SLOTS,
};
use tofu_ipotofu::wire::{
    Capabilities, Fragment, PacketKind, Repr, Sum, ETHERNET_HEADER, FRAGMENT_MAX, HEADER_SIZE,
    MAX_FRAGMENTS,
};
use tofu_ipotofu::{tree, Outbound, Ports, Reporter};

use super::ethtool::QueueCounters;
use super::frame::{read, read_and_sum};
use crate::engine::{now_ns, Health, KernelMemory, Peers};
use crate::packets::{Posted, Purpose, Sender, ENOUGH};
use crate::rendezvous::{Chunks, MappedSkb, RendezvousMemory, Shared};
use crate::shim::{self, NetQueue, SkBuff};

/// The stack is held when there is not room for so many packets: for a frame that has to be cut
/// into 200 segments here. It goes on when there is room for [`ENOUGH`].
const RESERVE: usize = ENOUGH / 2;

/// Beats, of a second, between two looks at the ports while all is well.
const QUIET_BEATS: u32 = 5;

/// How many frames wait at most to be taken back together, and for how long at least, in
/// nanoseconds. As many others can be under way.
const MAX_ENDED: usize = SLOTS / 2;
const ENDED_NS: u64 = 5_000_000;
/// Requests that go together, if as many are under way, and frames that are taken together.
const BATCH: usize = 4;
/// How long a frame that was fetched waits at most for others, in nanoseconds.
const FETCHED_WAIT_NS: u64 = 500_000;
/// Bytes of the longest frame that may go behind its metadata.
const MAX_OFFLOADED: usize = u16::MAX as usize - METADATA_SIZE;

/// What has become of a frame of the stack's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It was sent, or copied.
    Sent,
    /// It is to be fetched from where it is.
    Kept,
    /// It could not be sent.
    Dropped,
}

impl Fate {
    const fn of(sent: bool) -> Self {
        match sent {
            true => Self::Sent,
            false => Self::Dropped,
        }
    }
}

/// Has a frame be fetched from where it is, if that is possible, but for so many bytes of its head.
fn map(memory: &mut RendezvousMemory, frame: &Skb) -> Option<(usize, MappedSkb)> {
    // SAFETY: the frame is ours.
    let head = unsafe { shim::tofu_shim_skb_head(frame.raw) } as usize;
    let fits = (1..=HEAD_MAX.min(frame.len - 1)).contains(&head);
    let mapped = fits.then(|| memory.map(frame.raw.cast_mut(), head))??;
    Some((head, mapped))
}

/// Copies the bytes of a frame from `at` on. With metadata it also sums these and the copy up.
fn copy(frame: &Skb, at: usize, to: &mut Chunks, summed: Option<&Metadata>) -> Option<u32> {
    let Some(metadata) = summed else {
        let mut parts = to.parts();
        let copied =
            parts.all(|(n, len, chunk)| read(frame.raw, at + n, &mut chunk.bytes()[..len]));
        return copied.then_some(0);
    };
    let mut sum = Sum::default();
    sum.add(&metadata.emit());
    let mut parts = to.parts();
    let copied = parts.all(|(n, len, chunk)| {
        read_and_sum(frame.raw, at + n, &mut chunk.bytes()[..len], &mut sum)
    });
    copied.then(|| sum.finish())
}

/// The sending side.
pub(super) struct Tx {
    node: LocalNode,
    tni: TniId,
    more_queues: u8,
    pub(super) sender: Option<Sender>,
    pub(super) outbound: Outbound<KernelMemory>,
    pub(super) requests: Requests<KernelMemory>,
    next_id: u32,
    pub(super) ports: Ports,
    /// Tells other nodes of dead ports, if this is the queue that does.
    reporter: Option<Reporter>,
    /// The node whose next frame waits for a slot, and with it all others.
    blocked: Option<Coords>,
    /// Slots for which a Get has ended, and how, in the order of the commands.
    pub(super) fetched: KVVec<(u8, Rcode)>,
    /// When the first of them ended.
    fetched_since: u64,
    scratch: KVVec<u8>,
    /// Since when frames wait to be taken back.
    ended: Option<u64>,
    /// The processor that polls.
    corked: Option<u32>,
    /// It has received one packet at most: whoever sent it may wait for the answer.
    lone: bool,
    /// Requests that were posted, and the device not told of; and the node that all of them are
    /// for, if they are for one.
    untold: usize,
    untold_to: Option<Coords>,
    /// Whether the same is so of Gets.
    fetches: bool,
    /// Gets that have not ended.
    fetching: usize,
    pub(super) counters: QueueCounters,
}

/// A frame of the stack's.
#[derive(Clone, Copy)]
struct Skb {
    raw: *const SkBuff,
    len: usize,
}

impl Skb {
    /// Copies a fragment to the beginning of a buffer.
    fn fragment<'a>(&self, repr: &Repr, to: &'a mut [u8]) -> Option<&'a [u8]> {
        let body = to.get_mut(..repr.length.into())?;
        read(self.raw, repr.offset.into(), body).then_some(&*body)
    }
}

/// The node that a frame is for, if it is for one; and whether it is a frame at all.
fn target(node: &LocalNode, skb: *const SkBuff, mac: &mut Mac) -> (Option<Coords>, bool) {
    // SAFETY: the caller has the frame.
    let len = unsafe { shim::tofu_shim_skb_len(skb) } as usize;
    let is_frame = len >= ETHERNET_HEADER && read(skb, 0, mac);
    (node.other(*mac).filter(|_| is_frame), is_frame)
}

/// The queue for a frame for which the stack has chosen one.
pub(super) fn select(node: &LocalNode, peers: &Peers, skb: *const SkBuff, chosen: u16) -> u16 {
    let more = match target(node, skb, &mut [0; 6]) {
        (Some(node), _) => peers.get(node, now_ns()).more_queues,
        _ => 0,
    };
    if chosen <= more.into() {
        chosen
    } else {
        0
    }
}

/// Lets go of a frame of the stack's with which all is done, unless it is kept.
fn let_go(skb: *mut SkBuff, fate: Fate) {
    // SAFETY: the frame is ours, and not used any more unless it is kept.
    unsafe {
        match fate {
            Fate::Kept => {}
            Fate::Sent => shim::tofu_shim_skb_done(skb),
            Fate::Dropped => shim::tofu_shim_skb_free(skb),
        }
    }
}

impl Tx {
    /// Sends a frame of the stack's, or drops it. False if it has to wait.
    pub(super) fn xmit(
        &mut self,
        peers: &Peers,
        queue: *mut NetQueue,
        mut skb: *mut SkBuff,
        more: bool,
    ) -> bool {
        let now = now_ns();
        let corked = self.is_corked();
        if self.room() < ENOUGH {
            self.reap(now);
        }
        if self.must_wait(peers, skb, now) {
            self.counters.held += 1;
            // SAFETY: the interface is up.
            unsafe { shim::tofu_shim_net_hold(queue) };
            self.flush();
            // SAFETY: as above.
            unsafe { shim::tofu_shim_net_look_again(queue) };
            return false;
        }
        // The last frame is let go of when the device has been told of it.
        let mut last = None;
        while !skb.is_null() {
            let (next, fate) = self.send(peers, queue, &mut skb, now);
            let Some(rest) = next else {
                // It has become several.
                continue;
            };
            // SAFETY: the frame is ours, or kept until this lets go of the lock.
            unsafe { shim::tofu_shim_skb_count(queue, skb, fate != Fate::Dropped) };
            if let Some((before, fate)) = last.replace((skb, fate)) {
                let_go(before, fate);
            }
            skb = rest;
        }
        let room = self.room();
        if room < RESERVE {
            self.counters.held += 1;
            // SAFETY: the interface is up.
            unsafe { shim::tofu_shim_net_hold(queue) };
        }
        let later = more || corked && !self.lone || self.can_wait();
        if !later || room < RESERVE {
            // One is told of at once, those that follow it together.
            self.lone = false;
            self.flush();
            if !corked {
                // A poll does so when it ends.
                self.reap(now);
                self.flush();
            }
        }
        if let Some((last, fate)) = last {
            let_go(last, fate);
        }
        if room < RESERVE || !self.is_settled() {
            // SAFETY: the interface is up.
            unsafe { shim::tofu_shim_net_look_again(queue) };
        }
        true
    }

    /// Sends the first frame of a list. Returns the rest of the list and whether it was sent; no
    /// rest if the frame had to be completed first and is now a list of its own.
    fn send(
        &mut self,
        peers: &Peers,
        queue: *mut NetQueue,
        skb: &mut *mut SkBuff,
        now: u64,
    ) -> (Option<*mut SkBuff>, Fate) {
        let mut offload = Fields::default();
        // SAFETY: the frame is ours.
        let offloaded = unsafe { shim::tofu_shim_skb_offload(*skb, &mut offload) };
        // SAFETY: as above.
        let len = unsafe { shim::tofu_shim_skb_len(*skb) } as usize;
        let mut mac: Mac = [0; 6];
        let (node, is_frame) = target(&self.node, *skb, &mut mac);
        let frame = Skb { raw: *skb, len };
        let metadata = match offloaded {
            true => Metadata::from_fields(offload),
            false => Some(Metadata::default()),
        };
        if let (Some(node), Some(metadata)) = (node, &metadata) {
            if let Some(fate) = self.request(peers, node, frame, metadata, now) {
                // SAFETY: the frame is ours.
                return (Some(unsafe { shim::tofu_shim_skb_next(*skb) }), fate);
            }
        }
        if offloaded {
            let metadata = metadata.filter(|_| node.is_some_and(|to| peers.get(to, now).offload));
            let too_long = len > MAX_OFFLOADED;
            // SAFETY: the frame is ours.
            if metadata.is_some() && too_long && unsafe { shim::tofu_shim_skb_cut(skb) } {
                return (None, Fate::Dropped);
            }
            match (node, metadata) {
                (Some(node), Some(metadata)) if !too_long => {
                    let sent = self.unicast(node, frame, Some(&metadata), now);
                    // SAFETY: the frame is ours.
                    let rest = unsafe { shim::tofu_shim_skb_next(*skb) };
                    return (Some(rest), Fate::of(sent));
                }
                _ => {}
            }
            self.counters.completed += 1;
            // SAFETY: the frame is ours.
            if unsafe { shim::tofu_shim_skb_complete(skb) } {
                // SAFETY: as above.
                let still = unsafe { shim::tofu_shim_skb_offload(*skb, &mut offload) };
                if !still {
                    return (None, Fate::Dropped);
                }
            }
            // SAFETY: as above.
            let rest = unsafe { shim::tofu_shim_skb_next(*skb) };
            return (Some(rest), Fate::Dropped);
        }
        // SAFETY: as above.
        let rest = unsafe { shim::tofu_shim_skb_next(*skb) };
        let sent = if !is_frame || len > u16::MAX.into() {
            self.outbound.count().oversized += 1;
            false
        } else if addr::is_multicast(mac) {
            self.send_to_group(queue, frame, now)
        } else if let Some(node) = node {
            self.unicast(node, frame, None, now)
        } else {
            self.outbound.count().no_such_node += 1;
            false
        };
        (Some(rest), Fate::of(sent))
    }

    fn send_to_group(&mut self, queue: *mut NetQueue, frame: Skb, now: u64) -> bool {
        let mut head = [0; HEAD];
        let head = &mut head[..frame.len.min(HEAD)];
        if !read(frame.raw, 0, head) {
            return false;
        }
        match self.node.answer(head) {
            Answer::Reply(reply) => {
                self.outbound.count().answered += 1;
                let frame = reply.as_bytes();
                // SAFETY: the interface is up; the bytes are copied.
                unsafe {
                    shim::tofu_shim_skb_answer(queue, frame.as_ptr().cast(), frame.len() as u32)
                };
                true
            }
            Answer::Silence => true,
            Answer::None => self.broadcast(frame, now),
        }
    }
}

/// The sending side, as a rendezvous uses it.
pub(super) struct RendezvousQueue<'a> {
    tx: &'a mut Tx,
    now: u64,
}

impl Rendezvous for RendezvousQueue<'_> {
    fn fetch(&mut self, slot: usize, request: &Request) -> bool {
        let len = request.len as usize;
        let sender = self.tx.sender.as_mut();
        let path = self.tx.outbound.health().path(request.origin, self.now);
        let way = (request.origin, path);
        let posted = sender.is_some_and(|sender| sender.fetch(way, request.place, slot, len));
        self.tx.fetches |= posted;
        self.tx.fetching += usize::from(posted);
        posted
    }

    fn tell(&mut self, to: Coords, message: &Message) {
        self.tx.post_message(to, message, &[], self.now);
    }
}

impl Tx {
    /// The sending side of a queue with this TNI, besides which there are so many more. It may be
    /// the one that tells other nodes of dead links.
    pub(super) fn new(
        node: LocalNode,
        (tni, more_queues): (TniId, u8),
        health: Arc<Health>,
        reports: bool,
    ) -> Result<Self> {
        Ok(Self {
            node,
            tni,
            more_queues,
            sender: None,
            outbound: Outbound::new(node.shape, node.me, tni, health)?,
            requests: Requests::new()?,
            next_id: 0,
            ports: Ports::new(&node, QUIET_BEATS, true),
            reporter: reports.then(|| Reporter::new(node.me, now_ns() as u32)),
            blocked: None,
            fetched: KVVec::with_capacity(SLOTS, GFP_KERNEL)?,
            fetched_since: 0,
            scratch: KVVec::from_elem(0, FRAGMENT_MAX, GFP_KERNEL)?,
            ended: None,
            corked: None,
            lone: false,
            untold: 0,
            untold_to: None,
            fetches: false,
            fetching: 0,
            counters: QueueCounters::default(),
        })
    }

    /// Starts over, with nothing under way.
    pub(super) fn start(&mut self, sender: Sender, now: u64) {
        self.sender = Some(sender);
        self.next_id = now as u32;
        self.outbound.clear();
        self.requests.clear();
        self.blocked = None;
        self.fetched.clear();
        self.ended = None;
        self.corked = None;
        (self.untold, self.untold_to) = (0, None);
        (self.fetches, self.fetching) = (false, 0);
        self.ports = Ports::new(&self.node, QUIET_BEATS, true);
    }

    /// Looks at the ports if it is time. To be called every second. Returns whether answers will
    /// come.
    pub(super) fn look_at_ports(&mut self) -> bool {
        let Self {
            node, tni, ports, ..
        } = self;
        let Some(sender) = self.sender.as_mut() else {
            return false;
        };
        let asked = ports.look(node, *tni, |port, target, header| {
            sender.post_parts(Purpose::Port(port), target, &[header])
        });
        sender.flush();
        let due = self.report(now_ns());
        asked || due
    }

    /// Tells other nodes of dead ports. Returns whether there are more to be told soon.
    fn report(&mut self, now: u64) -> bool {
        let Self {
            sender,
            outbound,
            reporter,
            ..
        } = self;
        let (Some(sender), Some(reporter)) = (sender, reporter) else {
            return false;
        };
        if outbound.health().own() == 0 && reporter.is_silent() {
            return false;
        }
        let health = outbound.health().clone();
        reporter.step(&health, now, |to, header| {
            sender.room() > ENOUGH / 2 && outbound.report(sender, to, header, now)
        });
        !reporter.is_settled()
    }

    /// Begins a poll by this processor: of what it posts until [`Self::uncork`] the device is told
    /// together, answers of the stack to what the poll brings among it.
    pub(super) fn begin_poll(&mut self, now: u64) {
        if let Some(sender) = self.sender.as_ref() {
            sender.disarm();
        }
        // What was fetched is to be received, and answers need room; the rest can wait.
        if self.fetching > 0 || self.room() < ENOUGH {
            self.reap(now);
        }
        self.corked = Some(CpuId::current().as_u32());
        self.counters.polls += 1;
    }

    /// The poll has received `count` packets, which the stack is about to get. Of its first answer
    /// to a lone one the device is told at once.
    pub(super) fn received(&mut self, count: c_int) {
        self.lone = count <= 1;
    }

    /// Ends a poll.
    pub(super) fn uncork(&mut self) {
        self.corked = None;
        self.lone = false;
        self.flush();
    }

    /// Whether this processor polls.
    fn is_corked(&self) -> bool {
        self.corked == Some(CpuId::current().as_u32())
    }

    /// Whether what was posted can wait for more: it is requests to a node of which so many others
    /// are under way that an answer is to come soon, and a poll with it. There is one in 10 ms at
    /// the latest. A node that does not answer holds up its own frames only.
    fn can_wait(&self) -> bool {
        let posted = self.sender.as_ref().map_or(0, Sender::posted);
        let Some(to) = self.untold_to else {
            return false;
        };
        posted == self.untold && posted < BATCH && self.requests.under_way_to(to) >= posted + BATCH
    }

    /// Packets that can be posted now.
    fn room(&self) -> usize {
        self.sender.as_ref().map_or(0, Sender::room)
    }

    /// Whether what was fetched is to be taken now. That means to ask the device, so several are
    /// taken together: unless they have waited for long, or nothing else is on its way.
    pub(super) fn are_fetched(&self, now: u64) -> bool {
        let count = self.fetched.len();
        let late = || now.saturating_sub(self.fetched_since) >= FETCHED_WAIT_NS;
        count >= BATCH || count > 0 && (self.fetching == 0 || late())
    }

    /// Whether Gets were posted, and the device not told of them.
    pub(super) fn has_fetches(&self) -> bool {
        self.fetches
    }

    /// Tells the device of what was posted.
    pub(super) fn flush(&mut self) {
        (self.untold, self.untold_to, self.fetches) = (0, None, false);
        if let Some(sender) = self.sender.as_mut() {
            sender.flush();
        }
    }

    pub(super) fn queue(&mut self, now: u64) -> RendezvousQueue<'_> {
        RendezvousQueue { tx: self, now }
    }

    /// What this node says of itself.
    fn says(&self) -> Capabilities {
        Capabilities {
            offload: true,
            rendezvous: self.sender.as_ref().is_some_and(Sender::has_rendezvous),
            split: true,
            more_queues: self.more_queues,
        }
    }

    /// Whether the stack may go on, should it have been held.
    pub(super) fn goes_on(&mut self, peers: &Peers, now: u64) -> bool {
        self.room() >= ENOUGH && !self.is_blocked(peers, now)
    }

    /// Whether nothing is on its way that has to be looked after. A packet that is lost raises an
    /// interrupt.
    pub(super) fn is_settled(&self) -> bool {
        self.outbound.is_settled()
            && self.blocked.is_none()
            && self.ended.is_none()
            && self.reporter.as_ref().is_none_or(Reporter::is_settled)
            && !self.requests.are_under_way()
    }

    /// Where to put a frame for a node to fetch.
    fn room_at(&mut self, peers: &Peers, to: Coords, now: u64) -> Room {
        let room = self.requests.room(to, peers, now, self.outbound.count());
        match self.sender.as_ref() {
            Some(sender) if sender.has_rendezvous() => room,
            _ => Room::None,
        }
    }

    /// Whether a frame has to wait until an earlier one to the same node was fetched.
    fn must_wait(&mut self, peers: &Peers, skb: *const SkBuff, now: u64) -> bool {
        // SAFETY: the frame is ours.
        let len = unsafe { shim::tofu_shim_skb_len(skb) } as usize;
        let to = match len {
            MIN_FRAME.. => target(&self.node, skb, &mut [0; 6]).0,
            _ => None,
        };
        self.blocked = to.filter(|to| self.room_at(peers, *to, now) == Room::Busy);
        self.blocked.is_some()
    }

    /// Whether the stack still has to wait for a slot.
    fn is_blocked(&mut self, peers: &Peers, now: u64) -> bool {
        let Some(to) = self.blocked else {
            return false;
        };
        let blocked = self.room_at(peers, to, now) == Room::Busy;
        if !blocked {
            self.blocked = None;
        }
        blocked
    }

    fn new_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        id
    }

    /// Requests a node to fetch a frame. `None` if it is to be sent.
    fn request(
        &mut self,
        peers: &Peers,
        to: Coords,
        frame: Skb,
        metadata: &Metadata,
        now: u64,
    ) -> Option<Fate> {
        if frame.len < MIN_FRAME {
            return None;
        }
        let Room::Slot(slot) = self.room_at(peers, to, now) else {
            return None;
        };
        let split = peers.get(to, now).split;
        let (head, summed) = match split {
            true => (HEAD, None),
            false => (0, Some(metadata)),
        };
        if frame.len > MAX_OFFLOADED && !split || frame.len - head > REST_MAX {
            return None;
        }
        if self.room() == 0 {
            return None;
        }
        if self
            .rendezvous()
            .is_some_and(|memory| !memory.is_free(slot))
        {
            self.unshare();
        }
        let generation = self.requests.generation(slot);
        let memory = self.rendezvous().filter(|memory| memory.is_free(slot))?;
        let mapped = match split {
            true => map(memory, &frame),
            false => None,
        };
        let (head, sum, shared, fate) = match mapped {
            Some((head, mapped)) => (head, 0, Shared::Skb(mapped), Fate::Kept),
            None => {
                let mut chunks = memory.chunks(frame.len - head)?;
                let sum = copy(&frame, head, &mut chunks, summed)?;
                (head, sum, Shared::Copy(chunks), Fate::Sent)
            }
        };
        let place = memory.share(slot, generation, shared);
        let request = Request {
            origin: self.node.me,
            id: self.new_id(),
            head: head as u16,
            len: (frame.len - head) as u32,
            sum,
            metadata: metadata.emit(),
            place,
        };
        self.requests.sent(slot, to, request.id, now);
        self.send_request(to, frame, request, now);
        let same = self.untold == 0 || self.untold_to == Some(to);
        self.untold_to = same.then_some(to);
        self.untold += 1;
        self.outbound.count().rendezvous_sent += 1;
        self.outbound.count().sent += 1;
        Some(fate)
    }

    fn send_request(&mut self, to: Coords, frame: Skb, request: Request, now: u64) {
        let mut head = [0; HEAD_MAX];
        let head = &mut head[..usize::from(request.head).min(HEAD_MAX)];
        if read(frame.raw, 0, head) {
            self.post_message(to, &Message::Request(request), head, now);
        }
    }

    fn post_message(&mut self, to: Coords, message: &Message, head: &[u8], now: u64) {
        let (mut header, body) = message.emit(self.node.me);
        header[1] |= self.says().flags();
        if let Some(sender) = self.sender.as_mut() {
            let outbound = &mut self.outbound;
            outbound.post(sender, to, &[&header, &body, head], now);
        }
    }

    /// The memory for rendezvous, if there is some.
    pub(super) fn rendezvous(&mut self) -> Option<&mut RendezvousMemory> {
        self.sender.as_mut()?.rendezvous()
    }

    /// Whether the stack may have what was fetched, instead of a copy.
    pub(super) fn may_pass_on(&mut self, chunks: &Chunks) -> bool {
        let may = self.rendezvous().is_some_and(|m| m.may_pass_on(chunks));
        self.counters.copied += u64::from(!may);
        may
    }

    /// Has the device forget memory that was taken from it. False if it does not.
    pub(super) fn forget(&mut self) -> bool {
        self.sender.as_mut().is_none_or(Sender::forget)
    }

    /// Looks after the frames of requests that have ended. They are taken back several at a time,
    /// since that means to ask the device.
    pub(super) fn settle(&mut self, now: u64) {
        let Self {
            sender, requests, ..
        } = self;
        let memory = sender.as_mut().and_then(Sender::rendezvous);
        let Some(memory) = memory.filter(|memory| !memory.shares_nothing()) else {
            self.ended = None;
            return;
        };
        let ended =
            (0..SLOTS).filter(|slot| !memory.is_free(*slot) && !requests.is_under_way(*slot));
        let count = ended.inspect(|slot| memory.orphan(*slot)).count();
        if count == 0 {
            self.ended = None;
            return;
        }
        let since = *self.ended.get_or_insert(now);
        if count >= MAX_ENDED || now.saturating_sub(since) >= ENDED_NS {
            self.unshare();
            self.ended = None;
        }
    }

    /// Takes back the frames of requests that have ended.
    fn unshare(&mut self) {
        let requests = &self.requests;
        if let Some(sender) = self.sender.as_mut() {
            sender.unshare(|slot| requests.is_under_way(slot));
        }
    }

    /// The header of a frame of this node's, whose number and sum are still to come.
    fn header(&self, kind: PacketKind, total: usize) -> Repr {
        Repr {
            kind,
            takes_offloaded: true,
            acknowledge: kind == PacketKind::Broadcast,
            total: total as u16,
            offset: 0,
            length: 0,
            id: 0,
            sum: 0,
            origin: self.node.me,
        }
    }

    /// Sends a frame to a node, with metadata in front of it if it is offloaded.
    fn unicast(&mut self, to: Coords, frame: Skb, metadata: Option<&Metadata>, now: u64) -> bool {
        let emitted = metadata.map(Metadata::emit);
        let prefix: &[u8] = emitted.as_ref().map_or(&[], |metadata| &metadata[..]);
        let total = prefix.len() + frame.len;
        let kind = match metadata {
            Some(_) => PacketKind::Offloaded,
            None => PacketKind::Unicast,
        };
        let mut whole = self.header(kind, total);
        let count = whole.count();
        let mut buffers = [0u16; MAX_FRAGMENTS];
        let Some(sender) = self.sender.as_mut() else {
            return false;
        };
        if count > sender.room() {
            self.counters.full += 1;
            return false;
        }
        let Some((target, tag)) = self.outbound.way(to, now) else {
            return false;
        };
        let summed = Repr::is_summed(kind, total);
        let mut sum = Sum::default();
        for (n, repr) in whole.fragments().enumerate() {
            // There is room, as was just seen.
            let Some(buffer) = sender.take() else {
                return false;
            };
            buffers[n] = buffer;
            let (offset, end) = (repr.offset.into(), HEADER_SIZE + usize::from(repr.length));
            let body = sender
                .payload(buffer)
                .and_then(|all| all.get_mut(HEADER_SIZE..end));
            let copied = body.is_some_and(|body| {
                let in_front = prefix.len().saturating_sub(offset);
                let (front, rest) = body.split_at_mut(in_front);
                front.copy_from_slice(&prefix[..in_front]);
                let copied = read(frame.raw, (offset + in_front) - prefix.len(), rest);
                if summed {
                    sum.add(body);
                }
                copied
            });
            if !copied {
                for buffer in &buffers[..=n] {
                    sender.give_up(*buffer);
                }
                self.outbound.count().lost += 1;
                return false;
            }
        }
        whole.id = self.new_id();
        whole.sum = if summed { sum.finish() } else { 0 };
        let says = self.says();
        let Some(sender) = self.sender.as_mut() else {
            return false;
        };
        for (repr, &buffer) in whole.fragments().zip(&buffers) {
            let header = sender.payload(buffer);
            if let Some(header) = header.and_then(|all| all.first_chunk_mut()) {
                *header = repr.emit_with(says);
            }
            let posted = Posted {
                purpose: Purpose::Packet(tag),
                buffer,
                len: HEADER_SIZE as u16 + repr.length,
            };
            sender.post_buffer(posted, &target);
        }
        self.outbound.count().sent += 1;
        true
    }

    /// Sends a frame to all nodes.
    fn broadcast(&mut self, frame: Skb, now: u64) -> bool {
        let mut scratch = core::mem::take(&mut self.scratch);
        let sent = self.broadcast_by(frame, &mut scratch, now);
        self.scratch = scratch;
        sent
    }

    fn broadcast_by(&mut self, frame: Skb, scratch: &mut [u8], now: u64) -> bool {
        let mut whole = self.header(PacketKind::Broadcast, frame.len);
        let children = tree::children(&self.node.shape, self.node.me, self.node.me);
        let room = self.sender.as_ref().map_or(0, Sender::room);
        if whole.count() * children.clone().count() > room {
            self.counters.full += 1;
            return false;
        }
        if Repr::is_summed(whole.kind, frame.len) {
            let mut sum = Sum::default();
            for repr in whole.fragments() {
                let Some(body) = frame.fragment(&repr, scratch) else {
                    return false;
                };
                sum.add(body);
            }
            whole.sum = sum.finish();
        }
        whole.id = self.new_id();
        for repr in whole.fragments() {
            let Some(body) = frame.fragment(&repr, scratch) else {
                return false;
            };
            for to in children.clone() {
                let fragment = Fragment {
                    to,
                    broadcast: true,
                    header: repr.emit(),
                    prefix: &[],
                    body,
                };
                self.post_fragment(&fragment, now);
            }
        }
        self.outbound.count().sent += 1;
        true
    }

    /// Sends a fragment of a broadcast, or the acknowledgement of one.
    pub(super) fn post_fragment(&mut self, fragment: &Fragment<'_>, now: u64) {
        let Some(sender) = self.sender.as_mut() else {
            return;
        };
        let Fragment {
            to, header, body, ..
        } = fragment;
        if fragment.broadcast {
            self.outbound.relay(sender, *to, header, body, now);
        } else {
            self.outbound.post(sender, *to, &[header, body], now);
        }
    }

    /// Has broadcasts go round nodes that have not acknowledged them in time, and takes back frames
    /// that were not fetched in time.
    pub(super) fn expire(&mut self, now: u64) {
        self.requests.expire(now, self.outbound.count());
        if let Some(sender) = self.sender.as_mut() {
            self.outbound.expire(sender, now);
        }
        self.report(now);
    }

    /// Looks after commands that have ended.
    pub(super) fn reap(&mut self, now: u64) {
        let Some(sender) = self.sender.as_mut() else {
            return;
        };
        while let Some((posted, rcode)) = sender.reap() {
            let Posted {
                purpose,
                buffer,
                len,
            } = posted;
            let tag = match purpose {
                Purpose::Fetch(slot) => {
                    self.fetching = self.fetching.saturating_sub(1);
                    if self.fetched.is_empty() {
                        self.fetched_since = now;
                    }
                    // There is room, as there is one for each slot.
                    let _ = self.fetched.push_within_capacity((slot, rcode));
                    continue;
                }
                Purpose::Port(port) => {
                    if let Some(dead) = self.ports.answered(port, rcode) {
                        self.outbound.health().set_own(dead);
                    }
                    sender.give_up(buffer);
                    continue;
                }
                Purpose::Packet(_) if rcode.is_success() => {
                    sender.give_up(buffer);
                    continue;
                }
                Purpose::Packet(tag) => tag,
            };
            if rcode == Rcode::LINK_DOWN {
                self.ports.suspect();
            }
            if let Some((target, tag)) = self.outbound.lost(tag, rcode, now) {
                let purpose = Purpose::Packet(tag);
                sender.post_buffer(Posted { purpose, ..posted }, &target);
                continue;
            }
            if !tag.broadcast {
                sender.give_up(buffer);
                continue;
            }
            let take = |sender: &mut Sender, to: &mut [u8]| {
                let len = to.len().min(len.into());
                if let Some(payload) = sender.payload(buffer).and_then(|all| all.get(..len)) {
                    to[..len].copy_from_slice(payload);
                }
                sender.give_up(buffer);
                len
            };
            self.outbound.go_round(sender, tag.to, take, now);
        }
    }
}
