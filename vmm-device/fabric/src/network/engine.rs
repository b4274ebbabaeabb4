//! Nodes of the modelled network and what happens at them.
//!
//! An [`Engine`] has some of the nodes, and runs them one by one through a window of time. In that
//! nothing that happens at one node is seen at another, as all that goes from node to node takes a
//! hop and is posted: frames, room that comes back, and DLLPs. So nodes need no common order, and a
//! node's state is in the caches of a processor while it is needed.
//!
//! A node is a crossbar of 16 slots, ten ports and six TNIs, each an input and an output. A frame
//! that comes first in a queue of an input asks for its output, and goes when the output and the
//! input are free and the queue at the other end of the link has room for all of it. It is one
//! event for a hop, and one more where it had to wait.

use std::collections::BTreeMap;

use tofu_abi::topology::{NodeId, Port};
use tofu_links::{
    Check, Counters, Dllp, Effect, Parameters, Reason, Receiver, Seq, Timeout, Verdict,
};

use super::agenda::{self, Agenda, NEVER, Window};
use super::arena::{Arena, NONE};
use super::crossbar::{Crossbar, QUEUES, Queues, Turn, Turns, bit_of, bits};
use super::frame::{
    CLASS, CLASS_ORDER, CLASSES, DOOMED, Far, Frame, LAST, NULLIFIED, PORTS, SLOTS, UNMARKED,
    class_of, class_queue, off_wire, on_wire,
};
use super::mail::{Credit, Mail, Notice, Outlet, Said};
use super::message::Ps;
use super::steps::{Channel, Step, Steps};
use super::watched::{LinkErrors, Receiving, Sending as WatchedSending};
use crate::packet::Class;
use crate::routing::{Hop, Scheduler};
use crate::tap::OnLink;

/// Of [`Output::credit`], the replay buffer's.
const REPLAY: usize = QUEUES;

/// Bytes at the beginning of a frame without which it cannot be sent on.
const HEADER_BYTES: u64 = 16;

/// A port or a TNI. A hop touches the input of one and the output of another one at its node, and
/// the returns of one at the node before; each is a cache line, and a node's are side by side.
#[derive(Clone, Debug)]
struct Slot {
    input: Input,
    output: Output,
    returns: Returns,
}

/// No [`Watched`].
const UNWATCHED: u32 = u32::MAX;

/// The input half of a slot.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Input {
    /// First and last frame of each queue.
    head: [u32; QUEUES],
    tail: [u32; QUEUES],
    /// Until when the crossbar takes in something.
    busy_until: Ps,
    /// Where the other end of the link is: the engine that has it, and the port's slot there.
    far: Far,
    /// Where the state of what comes in is, if things go wrong on it.
    watched: u32,
    /// Bytes of frames that came in.
    bytes: Tally,
    /// Frames that came in.
    frames: Tally,
    /// Picoseconds in which frames waited while the crossbar took in nothing.
    wait: Tally,
}

/// The lower half of a count, whose upper half is in [`Counts`], as that is seldom needed.
#[derive(Clone, Copy, Debug, Default)]
struct Tally(u32);

impl Tally {
    /// Adds to the count. Returns what that is for the upper half, which is nothing mostly.
    #[inline]
    #[must_use]
    const fn add(&mut self, n: u64) -> u64 {
        let sum = self.0 as u64 + n;
        self.0 = sum as u32;
        sum >> 32
    }

    const fn with(self, upper: u64) -> u64 {
        upper << 32 | self.0 as u64
    }
}

/// The output half of a slot.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Output {
    /// The queues whose first frame wants to leave here, and the bits of the channels on which
    /// they do.
    waiting: Queues,
    channels: [Queues; 2],
    /// When the link, or the way to the TNI, is free.
    free_at: Ps,
    /// Rows that are free in the queues at the other end and in the replay buffer, as far as is
    /// known here.
    credit: [u16; QUEUES + 1],
    /// No frame that waits for a channel has fewer rows.
    least: [u8; QUEUES],
    turns: Turns,
    /// Channels for which [`Counts::zero_since`] has a time.
    zero: u8,
    /// Frames that had come in as a whole before they left here.
    stored: Tally,
    /// Where the rest of the link's state is, if things go wrong on it.
    watched: u32,
    /// The link is down, or there is none.
    down: bool,
    /// The link closes a ring.
    date_line: bool,
}

/// The credit that will have come back to an output.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Returns {
    /// When, to which channel, and how many rows, in no order. A link seldom has more under way.
    at: [Ps; RING],
    vc: [u8; RING],
    rows: [u8; RING],
    len: u8,
    /// Channels for which a frame waits without any credit on its way.
    starved: u8,
    /// What found no place there: last of a circle of [`Returned`].
    more: u32,
    /// Room in the replay buffer: last of a circle of [`Returned`].
    replay: u32,
}

/// Places of [`Returns`].
const RING: usize = 4;

impl Returns {
    /// When the next of what found a place here is back on a channel.
    fn next_at(&self, vc: usize) -> Ps {
        let places = 0..usize::from(self.len);
        let of = places.filter(|n| usize::from(self.vc[*n]) == vc).map(|n| self.at[n]);
        of.fold(NEVER, Ps::min)
    }
}

const _: () = assert!(size_of::<Slot>() == 192, "a cache line for each of the three");

impl Output {
    /// The queues that wait for a channel.
    #[inline]
    const fn wants(&self, vc: usize) -> Queues {
        let [low, high] = self.channels;
        let low = if vc & 1 == 0 { !low } else { low };
        let high = if vc & 2 == 0 { !high } else { high };
        self.waiting & low & high
    }

    /// The channel that a queue which waits here does so for.
    #[inline]
    const fn channel(&self, bit: u32) -> usize {
        let [low, high] = self.channels;
        (low >> bit & 1 | (high >> bit & 1) << 1) as usize
    }

    /// The first frame of a queue wants to leave here.
    #[inline]
    const fn ask(&mut self, bit: u32, vc: usize, rows: u8) {
        let least = &mut self.least[vc % QUEUES];
        if rows < *least {
            *least = rows;
        }
        let queue = 1 << bit;
        self.waiting |= queue;
        self.channels[0] |= (vc as Queues & 1) << bit;
        self.channels[1] |= (vc as Queues >> 1 & 1) << bit;
    }

    /// It leaves.
    #[inline]
    const fn take(&mut self, bit: u32) {
        let others = !(1 << bit);
        self.waiting &= others;
        self.channels[0] &= others;
        self.channels[1] &= others;
    }

    /// Whether a frame finds room at the other end, as far as is known.
    #[inline]
    const fn has_room(&self, vc: usize, rows: u16) -> bool {
        self.credit[vc % QUEUES] >= rows && self.credit[REPLAY] >= rows
    }

    /// Those of some queues that wait for a channel whose frames find room at the other end.
    #[inline]
    fn open(&mut self, queues: Queues, vc: usize, longest: u16, rows: &[u8; 64]) -> Queues {
        let room = self.credit[vc].min(self.credit[REPLAY]);
        if room >= longest {
            return queues;
        }
        if room < self.least[vc].into() {
            return 0;
        }
        let mut least = u8::MAX;
        let mut open = 0;
        for bit in bits(self.wants(vc)) {
            let rows = rows[bit as usize];
            least = least.min(rows);
            open |= Queues::from(u16::from(rows) <= room) << bit;
        }
        self.least[vc] = least;
        open & queues
    }
}

/// Room that comes back.
#[derive(Clone, Copy, Debug)]
struct Returned {
    at: Ps,
    next: u32,
    vc: u8,
    rows: u8,
}

/// What a slot counts seldom.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    frames: u64,
    bytes: u64,
    wait: u64,
    stored: u64,
    system: u64,
    nullified: u64,
    discarded_normal: u64,
    discarded_system: u64,
    /// Frames that were marked as bad here while they were sent.
    marked: u64,
    /// Time in which a frame had all but credit, by channel, and since when it is so now.
    zero_credit: [Ps; QUEUES],
    zero_since: [Ps; QUEUES],
}

impl Counts {
    /// A frame lacks nothing but credit of a channel.
    const fn lacks_credit(&mut self, vc: usize, now: Ps) {
        if self.zero_since[vc] == NEVER {
            self.zero_since[vc] = now;
        }
    }

    /// There is credit of a channel.
    const fn has_credit(&mut self, vc: usize, now: Ps) {
        if self.zero_since[vc] != NEVER {
            self.zero_credit[vc] += now - self.zero_since[vc];
            self.zero_since[vc] = NEVER;
        }
    }
}

/// What has come into a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CameIn {
    pub(super) frames: u64,
    pub(super) bytes: u64,
    pub(super) system: u64,
    pub(super) nullified: u64,
    /// Time in which frames waited while the crossbar took in nothing.
    pub(super) wait: Ps,
}

/// What a port has counted of what it sends, but for what has come in at the other end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sending {
    /// Frames that had come in as a whole before they left.
    pub(super) stored: u64,
    pub(super) discarded_normal: u64,
    pub(super) discarded_system: u64,
    pub(super) marked: u64,
    pub(super) zero_credit: [Ps; QUEUES],
}

/// A message at a TNI.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) token: u64,
    /// Its next frame may be sent from here on.
    pub(super) ready_at: Ps,
    pub(super) gap: Ps,
    pub(super) bus: Ps,
    pub(super) steps: Steps,
    pub(super) class: Class,
    pub(super) nullified: bool,
    pub(super) dst_tni: u8,
    /// Its frames, and those that are still to be made.
    pub(super) tlps: u32,
    pub(super) left: u32,
    /// Bytes of routing header and TLP.
    pub(super) full: u16,
    pub(super) last: u16,
    pub(super) next: u32,
}

/// A TNI's messages: the first and last of each class, when a gap ends that the last frame of each
/// class asked for, and how many wait that are not responses.
#[derive(Clone, Debug)]
struct Tni {
    head: [u32; CLASSES],
    tail: [u32; CLASSES],
    quiet: [Ps; CLASSES],
    backlog: u32,
}

/// What engines need to know of links.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    pub(super) parameters: Parameters,
    pub(super) scheduler: Scheduler,
    /// Whether what goes straight on along its axis leaves before all else.
    pub(super) straight_first: bool,
    /// Rows of a receive queue.
    pub(super) queue: u16,
    /// Rows of the longest frame.
    pub(super) longest: u16,
    /// Rows of a replay buffer.
    pub(super) replay: u16,
    /// Whether that can ever be too few, as acknowledgements take their time.
    pub(super) replay_limits: bool,
}

/// Some nodes that follow each other, and what happens at them.
#[derive(Debug)]
pub(super) struct Engine {
    costs: Costs,
    /// The number of the first node.
    first: u32,
    /// What is to happen in the window that is open.
    window: Window,
    agendas: Vec<Agenda>,
    /// When something happens at each node next.
    next_at: Vec<Ps>,
    slots: Vec<Slot>,
    /// The node at the other end of each port's link.
    peers: Vec<u32>,
    crossbars: Vec<Crossbar>,
    counts: Vec<Counts>,
    tnis: Vec<Tni>,
    /// Until when the bus to each node's memory is busy.
    buses: Vec<Ps>,
    frames: Arena<Frame>,
    messages: Arena<Queued>,
    returned: Arena<Returned>,
    sending: Vec<WatchedSending<Frame>>,
    receiving: Vec<Receiving>,
    /// What these have counted that are needed no more, by slot.
    past_sent: BTreeMap<u32, Counters>,
    past_received: BTreeMap<u32, Counters>,
    dllps: Arena<Said>,
    seed: u64,
    /// Frames in queues that were found bad.
    doomed: usize,
    /// Frames moved over links.
    hops: u64,
}

/// The slot of a node, which is counted from the engine's first.
#[inline]
const fn slot(node: u32, n: usize) -> usize {
    node as usize * SLOTS + n
}

/// Adds to a circle that is known by its last, and in which what comes first is first.
fn push(all: &mut Arena<Returned>, last: &mut u32, returned: Returned) {
    let handle = all.add(returned);
    let mut before = *last;
    if before == NONE || all[before].at <= returned.at {
        *last = handle;
    } else {
        // Short frames come back before longer ones that left sooner.
        while all[all[before].next].at <= returned.at {
            before = all[before].next;
        }
    }
    let first =
        if before == NONE { handle } else { std::mem::replace(&mut all[before].next, handle) };
    all[handle].next = first;
}

/// Takes the first of a circle that is known by its last, if its time has come.
#[inline]
fn pop(all: &mut Arena<Returned>, last: &mut u32, now: Ps) -> Option<Returned> {
    if *last == NONE {
        return None;
    }
    let first = all[*last].next;
    let returned = all[first];
    if returned.at > now {
        return None;
    }
    if first == *last {
        *last = NONE;
    } else {
        all[*last].next = returned.next;
    }
    all.free(first);
    Some(returned)
}

impl Engine {
    /// Nodes from `first` on with these neighbours: for each port of each node, the node at the
    /// other end, if there is a link, where that is, and whether the link closes a ring.
    pub(super) fn new(
        costs: Costs,
        (first, nodes): (u32, u32),
        seed: u64,
        mut neighbor: impl FnMut(NodeId, Port) -> Option<(NodeId, Far, bool)>,
    ) -> Self {
        let slots = nodes as usize * SLOTS;
        let mut all = Vec::with_capacity(slots);
        let mut peers = Vec::with_capacity(slots);
        let mut credit = [costs.queue; QUEUES + 1];
        credit[REPLAY] = costs.replay;
        for node in first..first + nodes {
            for n in 0..SLOTS {
                let to = Port::ALL.get(n).map(|port| neighbor(NodeId(node), *port));
                let (down, peer, far, date_line) = match to {
                    None => (false, node, Far::default(), false),
                    Some(None) => (true, node, Far::default(), false),
                    Some(Some((peer, far, date_line))) => (false, peer.0, far, date_line),
                };
                let input = Input {
                    head: [NONE; QUEUES],
                    tail: [NONE; QUEUES],
                    busy_until: 0,
                    far,
                    watched: UNWATCHED,
                    bytes: Tally(0),
                    frames: Tally(0),
                    wait: Tally(0),
                };
                let output = Output {
                    waiting: 0,
                    channels: [0; 2],
                    free_at: 0,
                    credit,
                    least: [u8::MAX; QUEUES],
                    turns: Turns::default(),
                    zero: 0,
                    stored: Tally(0),
                    watched: UNWATCHED,
                    down,
                    date_line,
                };
                let returns = Returns {
                    at: [0; RING],
                    vc: [0; RING],
                    rows: [0; RING],
                    len: 0,
                    starved: 0,
                    more: NONE,
                    replay: NONE,
                };
                all.push(Slot { input, output, returns });
                peers.push(peer);
            }
        }
        let none = [NONE; CLASSES];
        let tni = Tni { head: none, tail: none, quiet: [0; CLASSES], backlog: 0 };
        Self {
            costs,
            first,
            window: Window::new(nodes as usize),
            agendas: vec![Agenda::default(); nodes as usize],
            next_at: vec![NEVER; nodes as usize],
            slots: all,
            peers,
            crossbars: vec![Crossbar::default(); nodes as usize],
            counts: vec![Counts { zero_since: [NEVER; QUEUES], ..Counts::default() }; slots],
            tnis: vec![tni; nodes as usize * (SLOTS - PORTS)],
            buses: vec![0; nodes as usize],
            frames: Arena::new(),
            messages: Arena::new(),
            returned: Arena::new(),
            sending: Vec::new(),
            receiving: Vec::new(),
            past_sent: BTreeMap::new(),
            past_received: BTreeMap::new(),
            dllps: Arena::new(),
            seed,
            doomed: 0,
            hops: 0,
        }
    }

    pub(super) const fn hops(&self) -> u64 {
        self.hops
    }

    /// Directions that go out here whose state is there in full.
    pub(super) const fn in_full(&self) -> usize {
        self.sending.len()
    }

    /// What has come into a slot of a node.
    pub(super) fn came_in(&self, node: u32, n: usize) -> CameIn {
        let here = slot(node, n);
        let (input, counts) = (&self.slots[here].input, &self.counts[here]);
        CameIn {
            frames: input.frames.with(counts.frames),
            bytes: input.bytes.with(counts.bytes),
            system: counts.system,
            nullified: counts.nullified,
            wait: input.wait.with(counts.wait),
        }
    }

    /// What a port of a node has counted in sending.
    pub(super) fn sending(&self, node: u32, port: Port) -> Sending {
        let here = slot(node, port.index());
        let (output, counts) = (&self.slots[here].output, &self.counts[here]);
        Sending {
            stored: output.stored.with(counts.stored),
            discarded_normal: counts.discarded_normal,
            discarded_system: counts.discarded_system,
            marked: counts.marked,
            zero_credit: counts.zero_credit,
        }
    }

    /// Whether no message is at a TNI, no frame in a queue or on a link, and none may have to be
    /// sent again.
    pub(super) fn is_idle(&self) -> bool {
        let sure = |link: &WatchedSending<Frame>| link.sender.unacknowledged() == 0;
        self.frames.len() == 0 && self.messages.len() == 0 && self.sending.iter().all(sure)
    }

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
            + self.peers.capacity() * size_of::<u32>()
            + self.crossbars.capacity() * size_of::<Crossbar>()
            + self.agendas.capacity() * size_of::<Agenda>()
            + self.next_at.capacity() * size_of::<Ps>()
            + self.window.bytes()
            + self.counts.capacity() * size_of::<Counts>()
            + self.tnis.capacity() * size_of::<Tni>()
            + self.frames.bytes()
            + self.messages.bytes()
            + self.returned.bytes()
            + self.sending.iter().map(WatchedSending::bytes).sum::<usize>()
            + self.receiving.capacity() * size_of::<Receiving>()
    }

    pub(super) fn backlog(&self, node: u32, tni: u8) -> Option<u32> {
        self.tni(node, tni).map(|n| self.tnis[n].backlog)
    }

    /// A message that is no response has left its TNI.
    pub(super) fn left(&mut self, node: u32, tni: u8) {
        if let Some(n) = self.tni(node, tni) {
            self.tnis[n].backlog -= 1;
        }
    }

    const fn tni(&self, node: u32, tni: u8) -> Option<usize> {
        let n = SLOTS - PORTS;
        if tni as usize >= n { None } else { Some(node as usize * n + tni as usize) }
    }

    pub(super) fn set_down(&mut self, now: Ps, node: u32, port: Port, down: bool) {
        let n = slot(node, port.index());
        self.slots[n].output.down = down;
        if self.slots[n].output.waiting != 0 {
            self.retry(node, port.index(), now);
        }
    }

    /// Where the link of a port leads, if so much was in vain there that it is to go down.
    pub(super) fn failed_link(&self, node: u32, port: Port) -> Option<Far> {
        let Slot { input, output, .. } = &self.slots[slot(node, port.index())];
        let link = self.sending.get(output.watched as usize)?;
        link.sender.has_failed().then_some(input.far)
    }

    /// The receiver of what comes in at a slot, if things go wrong on that direction.
    pub(super) fn receiver_mut(&mut self, slot: usize) -> Option<&mut Receiver> {
        let watched = self.slots[slot].input.watched;
        self.receiving.get_mut(watched as usize).map(|link| &mut link.receiver)
    }

    /// Takes a port's link down on which nothing gets through. What was on its way over it is lost.
    pub(super) fn fail(
        &mut self,
        now: Ps,
        node: u32,
        port: Port,
        receiver: &mut Receiver,
        out: &mut Outlet<'_>,
    ) {
        let watched = self.slots[slot(node, port.index())].output.watched;
        let Some(link) = self.sending.get_mut(watched as usize) else { return };
        for frame in link.restart(receiver, |frame| frame.vc) {
            let handle = self.frames.add(frame);
            self.discard(now, node, port.index(), handle, out);
        }
        self.set_down(now, node, port, true);
    }

    /// Says so if nothing gets through a link.
    fn note_failure(&self, at: Ps, node: u32, n: usize, out: &mut Outlet<'_>) {
        let port = Port::ALL[n];
        if self.failed_link(node, port).is_some() {
            out.tell_now(at, NodeId(self.first + node), n as u8, Notice::Failed { port });
        }
    }

    pub(super) fn is_down(&self, node: u32, port: Port) -> bool {
        self.slots[slot(node, port.index())].output.down
    }

    /// When something happens next, but for what has been posted.
    pub(super) fn next_at(&self) -> Ps {
        self.next_at.iter().copied().fold(self.window.next_at(), Ps::min)
    }

    /// Queues a message at a TNI, which must exist.
    pub(super) fn inject(&mut self, now: Ps, node: u32, tni: u8, message: Queued) {
        let Some(n) = self.tni(node, tni) else { return };
        let queue = class_queue(message.class);
        let at = message.ready_at.max(now);
        let handle = self.messages.add(Queued { next: NONE, ..message });
        let tni_state = &mut self.tnis[n];
        if message.class != Class::Response {
            tni_state.backlog += 1;
        }
        let last = std::mem::replace(&mut tni_state.tail[queue], handle);
        if last == NONE {
            tni_state.head[queue] = handle;
            self.kick(node, PORTS + usize::from(tni), at);
        } else {
            self.messages[last].next = handle;
        }
    }

    fn kick(&mut self, node: u32, n: usize, at: Ps) {
        if self.agendas[node as usize].kick(n - PORTS, at) {
            self.window.kick(n - PORTS, at);
            self.wake(node, at);
        }
    }

    #[inline]
    fn wake(&mut self, node: u32, at: Ps) {
        let next_at = &mut self.next_at[node as usize];
        *next_at = at.min(*next_at);
    }

    /// Opens a window of time, when all of the one before is done: takes in what was posted.
    pub(super) fn open<'a>(
        &mut self,
        start: Ps,
        end: Ps,
        mails: impl Iterator<Item = &'a mut Mail>,
    ) {
        self.window.open(start, end);
        for mail in mails {
            self.take_in(mail);
        }
        self.window.sort(&mut self.next_at);
    }

    fn take_in(&mut self, mail: &mut Mail) {
        self.take_credits(mail);
        for (slot, frame) in mail.frames.drain(..) {
            let (node, port) = (slot / SLOTS as u16, slot % SLOTS as u16);
            self.doomed += usize::from(frame.flags & DOOMED != 0 && frame.next == NONE);
            let at = frame.arrived;
            let handle = self.frames.add(frame);
            self.window.post(at, node, agenda::ARRIVE + u32::from(port), handle);
        }
        for (at, slot, said) in mail.dllps.drain(..) {
            let (node, port) = (slot / SLOTS as u16, slot % SLOTS as u16);
            let handle = self.dllps.add(said);
            self.window.post(at, node, agenda::DLLP + u32::from(port), handle);
        }
        (mail.soonest, mail.credits_at) = (NEVER, NEVER);
    }

    /// When the first room comes back by post that somebody waits for.
    pub(super) fn waited_for(&self, mail: &Mail) -> Ps {
        let waits = |credit: &&Credit| {
            self.slots[usize::from(credit.slot)].returns.starved >> credit.vc & 1 != 0
        };
        mail.credits.iter().filter(waits).map(|credit| credit.at).fold(NEVER, Ps::min)
    }

    /// Takes in the room that came back by post.
    pub(super) fn take_credits(&mut self, mail: &mut Mail) {
        for Credit { at, slot, vc, rows } in mail.credits.drain(..) {
            self.give_back(slot.into(), at, vc, rows);
        }
    }

    /// Lets happen what is due up to and with a time of the window that is open.
    /// Returns how many nodes had something to do.
    pub(super) fn run(&mut self, until: Ps, out: &mut Outlet<'_>) -> usize {
        let mut busy = 0;
        for node in 0..self.next_at.len() as u32 {
            if self.next_at[node as usize] <= until {
                self.run_node(node, until, out);
                busy += 1;
            }
        }
        busy
    }

    fn run_node(&mut self, node: u32, until: Ps, out: &mut Outlet<'_>) {
        let Self { window, agendas, .. } = self;
        window.enter(node, until, &mut agendas[node as usize]);
        if agendas[node as usize].armed != 0 {
            self.note_timers(node);
        }
        while let Some((at, kind, argument)) = self.window.pop() {
            let n = kind as usize % SLOTS;
            match kind {
                agenda::TIMEOUT.. => self.time_out(at, node, n, out),
                agenda::DLLP.. => self.told(at, node, n, argument, out),
                agenda::RETRY.. => {
                    let n = agenda::output_of(at, kind);
                    self.agendas[node as usize].retried(n);
                    self.serve(at, node, n, out);
                }
                agenda::KICK.. => {
                    self.agendas[node as usize].kicked(n - PORTS);
                    for queue in 0..CLASSES {
                        if let Some(output) = self.load(at, node, n, queue) {
                            self.serve(at, node, output, out);
                        }
                    }
                }
                _ => self.arrive(at, node, n, argument, out),
            }
        }
        let mut next_at = self.agendas[node as usize].next_at().min(self.window.leave());
        if self.agendas[node as usize].armed != 0 {
            next_at = next_at.min(self.timers(node).map(|(_, at)| at).fold(NEVER, Ps::min));
        }
        self.next_at[node as usize] = next_at;
    }

    /// Takes in a frame whose header has come to a port.
    #[inline]
    fn arrive(&mut self, at: Ps, node: u32, n: usize, handle: u32, out: &mut Outlet<'_>) {
        let here = slot(node, n);
        if self.frames[handle].next != NONE {
            if !self.check(at, node, n, handle, out) {
                self.frames.free(handle);
                return;
            }
        } else if self.slots[here].input.watched != UNWATCHED {
            let watched = self.slots[here].input.watched as usize;
            self.receiving[watched].counted[usize::from(self.frames[handle].vc) % QUEUES] += 1;
        }
        let frame = &mut self.frames[handle];
        frame.arrived = at;
        frame.next = NONE;
        let queue = usize::from(frame.vc) % QUEUES;
        let (bytes, flags) = (frame.bytes, frame.flags);
        // What was refused comes again, and is counted then.
        let came = flags & UNMARKED == 0;
        let input = &mut self.slots[here].input;
        let bytes = if came { bytes.into() } else { 0 };
        let carry = (input.frames.add(came.into()), input.bytes.add(bytes));
        if carry != (0, 0) || flags & !LAST != 0 {
            let counts = &mut self.counts[here];
            counts.frames += carry.0;
            counts.bytes += carry.1;
            counts.system += u64::from(came && CLASS_ORDER[1] == class_of(flags));
            counts.nullified += u64::from(came && flags & (NULLIFIED | DOOMED) != 0);
        }
        let last = std::mem::replace(&mut input.tail[queue], handle);
        if last == NONE {
            input.head[queue] = handle;
            let output = self.ask(at, node, n, queue, handle);
            self.serve(at, node, output, out);
        } else {
            self.frames[last].next = handle;
        }
    }

    /// Makes the next frame of a TNI's queue, if there is one to make now. Returns the output
    /// that it asked for.
    fn load(&mut self, now: Ps, node: u32, n: usize, queue: usize) -> Option<usize> {
        let here = slot(node, n);
        if self.slots[here].input.head[queue] != NONE {
            return None;
        }
        let tni = self.tni(node, (n - PORTS) as u8)?;
        let handle = self.tnis[tni].head[queue];
        if handle == NONE {
            return None;
        }
        let message = self.messages[handle];
        let ready_at = message.ready_at.max(self.tnis[tni].quiet[queue]);
        if ready_at > now {
            self.kick(node, n, ready_at);
            return None;
        }
        let last = message.left == 1;
        let bytes = if last { message.last } else { message.full };
        let mut flags = CLASS * queue as u8;
        if last {
            flags |= LAST;
        }
        if message.nullified {
            flags |= NULLIFIED;
        }
        let frame = self.frames.add(Frame {
            token: message.token,
            arrived: now,
            next: NONE,
            wire: self.costs.parameters.wire_ps(bytes) as u32,
            bytes,
            number: message.tlps - message.left,
            steps: message.steps,
            rows: self.costs.parameters.rows(bytes),
            flags,
            vc: 0,
            dst_tni: message.dst_tni,
        });
        self.slots[here].input.head[queue] = frame;
        Some(self.ask(now, node, n, queue, frame))
    }

    /// Notes that the first frame of a queue wants to leave, and returns where.
    #[inline]
    fn ask(&mut self, now: Ps, node: u32, n: usize, queue: usize, handle: u32) -> usize {
        let frame = &mut self.frames[handle];
        let rows = frame.rows;
        let to = match frame.steps.next() {
            None => PORTS + usize::from(frame.dst_tni),
            Some(Step { port, channel }) => {
                let port = usize::from(port);
                let first = frame.class().first_vc();
                frame.vc = match channel {
                    Channel::First => first,
                    Channel::Second => first + 1,
                    Channel::Given(vc) => vc,
                    Channel::Ring { crossed, last } => {
                        let crossed = crossed || self.slots[slot(node, port)].output.date_line;
                        first + u8::from(self.costs.scheduler.second(crossed, last))
                    }
                };
                port
            }
        };
        let vc = frame.vc;
        let doomed = frame.flags & DOOMED != 0;
        let whole_at = frame.arrived + Ps::from(frame.wire);
        let bit = bit_of(n, queue);
        self.crossbars[node as usize].rows[bit as usize] = rows;
        self.slots[slot(node, to)].output.ask(bit, vc.into(), rows);
        if doomed {
            self.retry(node, to, whole_at.max(now));
        }
        to
    }

    /// Sees to it that an output is looked at again at that time at the latest.
    #[inline]
    fn retry(&mut self, node: u32, n: usize, at: Ps) {
        if self.agendas[node as usize].retry(n, at) {
            self.window.retry(n, at);
            self.wake(node, at);
        }
    }

    /// The same at the node at work, which is looked at again when it has done its work.
    #[inline]
    fn retry_here(&mut self, node: u32, n: usize, at: Ps) {
        if self.agendas[node as usize].retry(n, at) {
            self.window.retry(n, at);
        }
    }

    /// Lets go through an output what can go now.
    #[inline]
    fn serve(&mut self, now: Ps, node: u32, n: usize, out: &mut Outlet<'_>) {
        let output = &self.slots[slot(node, n)].output;
        // Most often it is busy.
        if output.free_at > now && output.watched == UNWATCHED && !output.down {
            if output.waiting != 0 {
                let at = output.free_at;
                self.retry_here(node, n, at);
            }
            return;
        }
        self.serve_free(now, node, n, out);
    }

    /// The same of an output that is free, or whose link needs looking after.
    fn serve_free(&mut self, now: Ps, node: u32, n: usize, out: &mut Outlet<'_>) {
        let here = slot(node, n);
        loop {
            if self.slots[here].output.watched != UNWATCHED && self.replay(now, node, n, out) {
                return;
            }
            let output = &self.slots[here].output;
            if output.waiting == 0 {
                return;
            }
            if output.free_at > now && !output.down {
                let at = output.free_at;
                self.retry_here(node, n, at);
                return;
            }
            if self.doomed > 0 && self.drop_doomed(now, node, n, out) {
                continue;
            }
            let turn = match self.choose(now, node, n) {
                Ok(turn) => turn,
                Err(NEVER) => return,
                Err(again) => {
                    self.retry_here(node, n, again);
                    return;
                }
            };
            let output = &mut self.slots[here].output;
            output.turns.pass(turn);
            output.take(turn.bit);
            let Output { down, watched, .. } = *output;
            let handle = self.take(now, node, turn.bit, n, out);
            if down {
                self.discard(now, node, n, handle, out);
                continue;
            }
            if n < PORTS {
                self.send(now, node, n, handle, out);
            } else {
                self.eject(now, node, n, handle, out);
            }
            let output = &self.slots[here].output;
            if watched == UNWATCHED && output.free_at > now {
                if output.waiting != 0 {
                    let at = output.free_at;
                    self.retry_here(node, n, at);
                }
                return;
            }
        }
    }

    /// Whom an output serves next, or when to look again.
    #[inline]
    fn choose(&mut self, now: Ps, node: u32, n: usize) -> Result<Turn, Ps> {
        let straight = self.costs.straight_first.then_some(n);
        let Slot { output, .. } = &mut self.slots[slot(node, n)];
        let crossbar = &mut self.crossbars[node as usize];
        crossbar.release(now);
        let ready = crossbar.ready(output.waiting, n);
        let Some(first) = output.turns.first(ready, straight) else {
            return Err(crossbar.ready_at(output.waiting, n));
        };
        if n >= PORTS || output.down {
            return Ok(first);
        }
        if output.watched != UNWATCHED {
            return self.choose_watched(now, node, n, ready);
        }
        let rows = u16::from(crossbar.rows[first.bit as usize]);
        let vc = output.channel(first.bit);
        if output.has_room(vc, rows) {
            return Ok(first);
        }
        let here = slot(node, n);
        let known = self.slots[here].output.credit;
        self.settle(now, here);
        let output = &mut self.slots[here].output;
        if output.has_room(vc, rows) {
            if output.zero & 1 << vc != 0 {
                self.counts[here].has_credit(vc, now);
                output.zero &= !(1 << vc);
            }
            return Ok(first);
        }
        self.choose_open(now, node, n, ready, known)
    }

    /// Whom an output serves next among those that are ready, if the first of them lacks room at
    /// the other end of the link or in the replay buffer. What has come back was settled, but
    /// before that this credit was known.
    #[inline(never)]
    fn choose_open(
        &mut self,
        now: Ps,
        node: u32,
        n: usize,
        ready: Queues,
        known: [u16; QUEUES + 1],
    ) -> Result<Turn, Ps> {
        let here = slot(node, n);
        let straight = self.costs.straight_first.then_some(n);
        let Slot { output, returns, .. } = &mut self.slots[here];
        let Crossbar { rows, .. } = &self.crossbars[node as usize];
        let counts = &mut self.counts[here];
        let longest = self.costs.longest;
        let wanted: [Queues; QUEUES] = std::array::from_fn(|vc| ready & output.wants(vc));
        let mut open = 0;
        for (vc, wanted) in wanted.into_iter().enumerate() {
            if wanted != 0 {
                open |= output.open(wanted, vc, longest, rows);
            }
        }
        let chosen = output.turns.first(open, straight);
        let turns = output.turns;
        // Whether any of these had its turn, in vain.
        let passed_over = |queues: Queues| {
            let before =
                |chosen: Turn| turns.first(queues | 1 << chosen.bit, straight) != Some(chosen);
            queues != 0 && chosen.is_none_or(before)
        };
        let mut again = NEVER;
        for (vc, wanted) in wanted.into_iter().enumerate() {
            let mut lacking: Queues = wanted & !open;
            if self.costs.replay_limits {
                // These lack room in the replay buffer alone.
                let credit = output.credit[vc];
                let only = bits(lacking).filter(|bit| u16::from(rows[*bit as usize]) <= credit);
                let only = only.fold(0, |only, bit| only | 1 << bit);
                lacking &= !only;
                if passed_over(only) {
                    counts.has_credit(vc, now);
                    output.zero &= !(1 << vc);
                    // Acknowledgements are always on their way.
                    if returns.replay != NONE {
                        again = again.min(self.returned[self.returned[returns.replay].next].at);
                    }
                }
            }
            if lacking == 0 {
                continue;
            }
            if output.zero & 1 << vc == 0 && passed_over(lacking) {
                counts.lacks_credit(vc, now);
                output.zero |= 1 << vc;
            }
            if chosen.is_none() {
                let at = returns.next_at(vc);
                let more = returns.more;
                let more =
                    if more == NONE { NEVER } else { self.returned[self.returned[more].next].at };
                let at = at.min(more);
                if at == NEVER {
                    returns.starved |= 1 << vc;
                }
                again = again.min(at);
            }
        }
        let Some(turn) = chosen else {
            let crossbar = &self.crossbars[node as usize];
            return Err(again.min(crossbar.ready_at(output.waiting & !ready, n)));
        };
        let (vc, rows) = (output.channel(turn.bit), u16::from(rows[turn.bit as usize]));
        if output.zero & 1 << vc != 0 && known[vc].min(known[REPLAY]) < rows {
            counts.has_credit(vc, now);
            output.zero &= !(1 << vc);
        }
        Ok(turn)
    }

    /// The same of an output to a watched link.
    #[cold]
    fn choose_watched(&mut self, now: Ps, node: u32, n: usize, ready: Queues) -> Result<Turn, Ps> {
        let here = slot(node, n);
        let straight = self.costs.straight_first.then_some(n);
        let output = &self.slots[here].output;
        let crossbar = &self.crossbars[node as usize];
        let mut again = crossbar.ready_at(output.waiting & !ready, n);
        let mut left = ready;
        while let Some(turn) = self.slots[here].output.turns.first(left, straight) {
            left &= !(1 << turn.bit);
            let vc = self.slots[here].output.channel(turn.bit);
            let rows = self.crossbars[node as usize].rows[turn.bit as usize];
            match self.may_send(now, here, vc, rows) {
                Ok(()) => return Ok(turn),
                Err(at) => again = again.min(at),
            }
        }
        Err(again)
    }

    /// Takes what has come back to an output by now.
    fn settle(&mut self, now: Ps, here: usize) {
        let Slot { output, returns, .. } = &mut self.slots[here];
        let mut place = 0;
        while place < usize::from(returns.len) {
            if returns.at[place] > now {
                place += 1;
                continue;
            }
            output.credit[usize::from(returns.vc[place]) % QUEUES] +=
                u16::from(returns.rows[place]);
            returns.len -= 1;
            let last = usize::from(returns.len);
            returns.at[place] = returns.at[last];
            returns.vc[place] = returns.vc[last];
            returns.rows[place] = returns.rows[last];
        }
        while let Some(Returned { vc, rows, .. }) = pop(&mut self.returned, &mut returns.more, now)
        {
            output.credit[usize::from(vc) % QUEUES] += u16::from(rows);
        }
        while let Some(Returned { rows, .. }) = pop(&mut self.returned, &mut returns.replay, now) {
            output.credit[REPLAY] += u16::from(rows);
        }
    }

    /// Takes the first frame out of a queue: the input is busy with it now, and the next one may
    /// ask. Returns the frame.
    #[inline]
    fn take(&mut self, now: Ps, node: u32, bit: u32, to: usize, out: &mut Outlet<'_>) -> u32 {
        let (from, queue) = (bit as usize / QUEUES, bit as usize % QUEUES);
        let input = &mut self.slots[slot(node, from)].input;
        let handle = input.head[queue];
        let frame = &self.frames[handle];
        let Frame { wire, next, rows, bytes, flags, .. } = *frame;
        let wire = Ps::from(wire);
        let busy_until = input.busy_until.max(frame.arrived);
        let carry = input.wait.add(now - busy_until.min(now));
        if carry != 0 {
            self.counts[slot(node, from)].wait += carry;
        }
        let free_at = now + wire;
        input.busy_until = input.busy_until.max(free_at);
        self.crossbars[node as usize].take(bit, to, free_at);
        input.head[queue] = next;
        if from >= PORTS {
            let carry = input.bytes.add(bytes.into());
            if carry != 0 {
                self.counts[slot(node, from)].bytes += carry;
            }
            self.sent_from_tni(now, node, from, queue, wire, out);
            return handle;
        }
        if next == NONE {
            input.tail[queue] = NONE;
        }
        let (far, watched) = (input.far, input.watched);
        let at = free_at + self.costs.parameters.hop_ps();
        if watched == UNWATCHED {
            let (slot, vc) = (far.slot, queue as u8);
            out.credit(far, Credit { at, slot, vc, rows });
        } else if flags & UNMARKED == 0 {
            // A frame that was refused has the room of the one that is sent for it again.
            let link = &mut self.receiving[watched as usize];
            link.receiver.freed(queue as u8, rows);
            let counted = link.counted[queue] > 0;
            link.counted[queue] -= u32::from(counted);
            self.tell(now, at, (node, from), counted, out);
        }
        if next != NONE {
            let output = self.ask(now, node, from, queue, next);
            self.retry_here(node, output, free_at);
        }
        handle
    }

    /// A TNI's frame is on its way: the next one may follow.
    fn sent_from_tni(
        &mut self,
        now: Ps,
        node: u32,
        n: usize,
        queue: usize,
        wire: Ps,
        out: &mut Outlet<'_>,
    ) {
        let Some(tni) = self.tni(node, (n - PORTS) as u8) else { return };
        let end = now + wire;
        let handle = self.tnis[tni].head[queue];
        let message = &mut self.messages[handle];
        message.left -= 1;
        if message.gap != 0 {
            self.tnis[tni].quiet[queue] = end + message.gap;
        }
        if message.bus != 0 {
            // While this frame leaves, data of the next one is read.
            let bus = &mut self.buses[node as usize];
            *bus = now.max(*bus).saturating_add(message.bus);
            let quiet = &mut self.tnis[tni].quiet[queue];
            *quiet = (*bus).max(*quiet);
        }
        if message.left == 0 {
            let Queued { token, class, next, .. } = *message;
            self.messages.free(handle);
            let state = &mut self.tnis[tni];
            state.head[queue] = next;
            if next == NONE {
                state.tail[queue] = NONE;
            }
            let request = class != Class::Response;
            let (node, tni) = (NodeId(self.first + node), (n - PORTS) as u8);
            out.tell(end, node, Notice::Left { tni, token, request });
        }
        if let Some(output) = self.load(now, node, n, queue) {
            self.retry_here(node, output, end);
        }
    }

    /// Tells an output that it will have more room in a queue at the other end of its link.
    #[inline]
    fn give_back(&mut self, here: usize, at: Ps, vc: u8, rows: u8) {
        let returns = &mut self.slots[here].returns;
        if usize::from(returns.len) < RING {
            let place = usize::from(returns.len);
            returns.at[place] = at;
            returns.vc[place] = vc;
            returns.rows[place] = rows;
            returns.len += 1;
        } else {
            let returned = Returned { at, next: NONE, vc, rows };
            push(&mut self.returned, &mut returns.more, returned);
        }
        if returns.starved & 1 << vc != 0 {
            returns.starved &= !(1 << vc);
            self.retry((here / SLOTS) as u32, here % SLOTS, at);
        }
    }

    /// The hop over the link at a port.
    fn hop(&self, node: u32, n: usize, vc: u8) -> Hop {
        let to = NodeId(self.peers[slot(node, n)]);
        Hop { from: NodeId(self.first + node), port: Port::ALL[n], to, vc }
    }

    /// Sends a frame over a link.
    #[inline]
    fn send(&mut self, now: Ps, node: u32, n: usize, handle: u32, out: &mut Outlet<'_>) {
        let here = slot(node, n);
        let far = self.slots[here].input.far;
        let hop_ps = self.costs.parameters.hop_ps();
        if self.costs.replay_limits && self.slots[here].output.watched == UNWATCHED {
            // The end of the frame goes there, and the acknowledgement comes back.
            let frame = &self.frames[handle];
            let (rows, wire) = (frame.rows, Ps::from(frame.wire));
            let Slot { output, returns, .. } = &mut self.slots[here];
            output.credit[REPLAY] -= u16::from(rows);
            let at = now + wire + 2 * hop_ps;
            let returned = Returned { at, next: NONE, vc: 0, rows };
            push(&mut self.returned, &mut returns.replay, returned);
        }
        let output = &mut self.slots[here].output;
        let frame = &mut self.frames[handle];
        let watched = output.watched;
        if watched == UNWATCHED {
            output.free_at = now + Ps::from(frame.wire);
            output.credit[usize::from(frame.vc) % QUEUES] -= u16::from(frame.rows);
        }
        frame.steps.advance(output.date_line);
        if frame.flags & DOOMED != 0 {
            self.doomed -= 1;
            self.counts[here].marked += u64::from(frame.flags & UNMARKED != 0);
            frame.flags &= !UNMARKED;
        }
        if now >= frame.arrived + Ps::from(frame.wire) {
            let carry = output.stored.add(1);
            if carry != 0 {
                self.counts[here].stored += carry;
            }
        }
        if out.hops && watched == UNWATCHED && frame.flags & DOOMED == 0 {
            let (class, bytes, token) = (frame.class(), frame.bytes.into(), frame.token);
            let hop = self.hop(node, n, self.frames[handle].vc);
            let notice = Notice::Hop { hop, class, bytes, token, link: None };
            out.tell_now(now, hop.from, n as u8, notice);
        }
        self.hops += 1;
        let frame = self.frames[handle];
        self.frames.free(handle);
        if watched != UNWATCHED {
            self.send_watched(now, node, n, watched, frame, out);
            return;
        }
        out.frame(far, Frame { next: NONE, arrived: now + hop_ps, ..frame });
    }

    /// Sets what goes wrong on the direction of a link out of a port. If it was not modelled in
    /// full before, the other end needs a state from now on, too, which is returned. What was
    /// posted must have been taken in.
    pub(super) fn set_errors(
        &mut self,
        now: Ps,
        node: u32,
        port: Port,
        errors: &LinkErrors,
    ) -> Option<Receiving> {
        let erring = *errors != LinkErrors::default();
        let receiving = if erring { self.watch(now, node, port) } else { None };
        let watched = self.slots[slot(node, port.index())].output.watched;
        if let Some(link) = self.sending.get_mut(watched as usize) {
            link.erring = erring;
            link.chance.dllp_loss = errors.dllp_loss;
            for (lane, rate) in (0..).zip(errors.rates) {
                link.lanes.set_rate(lane, rate);
                link.lanes.set_dead(lane, errors.dead >> lane & 1 != 0);
            }
            self.retry(node, port.index(), now);
        }
        receiving
    }

    /// The same if somebody begins to look at the direction, or ends it.
    pub(super) fn look_at(
        &mut self,
        now: Ps,
        node: u32,
        port: Port,
        look: bool,
    ) -> Option<Receiving> {
        let receiving = if look { self.watch(now, node, port) } else { None };
        let watched = self.slots[slot(node, port.index())].output.watched;
        if let Some(link) = self.sending.get_mut(watched as usize) {
            link.looked_at = look;
        }
        receiving
    }

    /// Has a direction's data link layer modelled in full from now on.
    fn watch(&mut self, now: Ps, node: u32, port: Port) -> Option<Receiving> {
        let here = slot(node, port.index());
        if self.slots[here].output.watched != UNWATCHED {
            return None;
        }
        // What is known to come back has come back, but for what a time-out brings anyway.
        self.settle(NEVER, here);
        let output = &self.slots[here].output;
        let in_use = std::array::from_fn(|vc| self.costs.queue - output.credit[vc]);
        let parameters = &self.costs.parameters;
        let global = slot(self.first, 0) + here;
        let seed = self.seed ^ (global as u64) << 32;
        let mut sending = WatchedSending::new(parameters, in_use, now, seed, here as u32);
        let receiving = Receiving::new(parameters, &sending);
        sending.sent = self.past_sent.remove(&(here as u32)).unwrap_or_default();
        self.slots[here].output.watched = self.sending.len() as u32;
        self.slots[here].returns.starved = 0;
        self.sending.push(sending);
        self.retry(node, port.index(), now);
        Some(receiving)
    }

    /// Where the link of a port leads whose full state is needed no more, and nothing of which is
    /// on the wire.
    pub(super) fn clean_link(&self, now: Ps, node: u32, port: Port) -> Option<Far> {
        let Slot { input, output, .. } = &self.slots[slot(node, port.index())];
        let link = self.sending.get(output.watched as usize)?;
        let on_the_wire = output.free_at + self.costs.parameters.hop_ps() >= now;
        (link.is_clean() && !on_the_wire).then_some(input.far)
    }

    /// Whether a direction out of a port has its state in full, and not for good.
    pub(super) fn may_become_clean(&self, node: u32, port: Port) -> bool {
        let watched = self.slots[slot(node, port.index())].output.watched;
        let link = self.sending.get(watched as usize);
        link.is_some_and(|link| !link.erring && !link.looked_at)
    }

    /// Lets go of the state at a slot where a direction comes in, if nothing is left to say or to
    /// hear. Returns how many rows of each queue have left it, and of how many frames there
    /// nothing will be said that was not counted yet.
    pub(super) fn forget_receiving(
        &mut self,
        now: Ps,
        slot: usize,
    ) -> Option<([u16; QUEUES], u64)> {
        let watched = self.slots[slot].input.watched;
        let link = self.receiving.get(watched as usize)?;
        if link.said_until >= now || link.receiver.is_due() || self.has_doomed(slot) {
            return None;
        }
        let freed = link.receiver.freed_rows();
        let counted: u32 = link.counted.iter().sum();
        let quiet = (self.queued(slot).count() as u64).saturating_sub(counted.into());
        let received = Counters { send_dllp: link.received.send_dllp + quiet, ..link.received };
        self.past_received.insert(slot as u32, received);
        self.slots[slot].input.watched = UNWATCHED;
        self.receiving.swap_remove(watched as usize);
        if let Some(moved) = self.receiving.get(watched as usize) {
            self.slots[moved.slot as usize].input.watched = watched;
        }
        Some((freed, quiet))
    }

    /// The frames in the queues of a slot, queue by queue.
    fn queued(&self, slot: usize) -> impl Iterator<Item = &Frame> {
        self.slots[slot].input.head.into_iter().flat_map(|head| self.queue(head))
    }

    /// Those of the queue that begins with this one.
    fn queue(&self, head: u32) -> impl Iterator<Item = &Frame> {
        let frame = |one: u32| (one != NONE).then(|| &self.frames[one]);
        std::iter::successors(frame(head), move |before| frame(before.next))
    }

    /// Whether a frame that was found bad is in a queue of a slot.
    fn has_doomed(&self, slot: usize) -> bool {
        self.queued(slot).any(|frame| frame.flags & DOOMED != 0)
    }

    /// The same where it goes out: from now on it is known ahead what comes back.
    pub(super) fn forget_sending(
        &mut self,
        now: Ps,
        node: u32,
        port: Port,
        (freed, quiet): ([u16; QUEUES], u64),
    ) {
        let here = slot(node, port.index());
        let watched = self.slots[here].output.watched;
        let Some(link) = self.sending.get(watched as usize) else { return };
        let output = &mut self.slots[here].output;
        for (vc, freed) in (0..).zip(freed) {
            output.credit[usize::from(vc)] = self.costs.queue - link.sender.in_queue(vc, freed);
        }
        output.credit[REPLAY] = self.costs.replay;
        output.watched = UNWATCHED;
        let sent = Counters { recv_dllp: link.sent.recv_dllp + quiet, ..link.sent };
        self.past_sent.insert(here as u32, sent);
        self.agendas[here / SLOTS].armed &= !(1 << port.index());
        self.sending.swap_remove(watched as usize);
        if let Some(moved) = self.sending.get(watched as usize) {
            self.slots[moved.slot as usize].output.watched = watched;
        }
        self.retry(node, port.index(), now);
    }

    /// Has the port where a direction comes in keep the new state of that in full.
    pub(super) fn watch_behind(&mut self, node: u32, port: Port, new: Receiving) {
        let here = slot(node, port.index());
        let received = self.past_received.remove(&(here as u32)).unwrap_or_default();
        // What has come in before, and is in a queue still.
        let counted = self.slots[here].input.head.map(|head| self.queue(head).count() as u32);
        self.slots[here].input.watched = self.receiving.len() as u32;
        self.receiving.push(Receiving { slot: here as u32, received, counted, ..new });
    }

    /// What goes wrong on the direction that comes in at a port.
    pub(super) fn set_errors_behind(&mut self, node: u32, port: Port, errors: &LinkErrors) {
        let watched = self.slots[slot(node, port.index())].input.watched;
        if let Some(receiving) = self.receiving.get_mut(watched as usize) {
            receiving.chance.dllp_loss = errors.dllp_loss;
        }
    }

    /// What a port has counted of the direction that it sends, while all of that was modelled.
    pub(super) fn watched(&self, node: u32, port: Port) -> Option<Counters> {
        let here = slot(node, port.index());
        let now = self.sending.get(self.slots[here].output.watched as usize);
        now.map(|link| link.sent).or_else(|| self.past_sent.get(&(here as u32)).copied())
    }

    /// The same of what comes in.
    pub(super) fn watched_in(&self, node: u32, port: Port) -> Option<Counters> {
        let here = slot(node, port.index());
        let now = self.receiving.get(self.slots[here].input.watched as usize);
        now.map(|link| link.received).or_else(|| self.past_received.get(&(here as u32)).copied())
    }

    /// Whether the sender of a watched link has room for a frame, or when to look again.
    fn may_send(&mut self, now: Ps, here: usize, vc: usize, rows: u8) -> Result<(), Ps> {
        let Output { watched, zero, .. } = &mut self.slots[here].output;
        let link = &mut self.sending[*watched as usize];
        let counts = &mut self.counts[here];
        let Err(wait) = link.sender.may_send(vc as u8, rows, now) else {
            counts.has_credit(vc, now);
            *zero &= !(1 << vc);
            return Ok(());
        };
        if wait.reason == Reason::Credit {
            counts.lacks_credit(vc, now);
            *zero |= 1 << vc;
            link.sender.starve(vc as u8, now);
            self.arm(now, here);
        }
        Err(wait.until)
    }

    /// Sees to it that a sender is asked in time whether it has waited for too long.
    fn arm(&mut self, now: Ps, here: usize) {
        let watched = self.slots[here].output.watched;
        let link = &mut self.sending[watched as usize];
        let at = link.sender.deadline().max(now);
        if at < link.timer_at {
            link.timer_at = at;
            let (node, n) = (here / SLOTS, here % SLOTS);
            self.agendas[node].armed |= 1 << n;
            self.window.time_out(n, at);
            self.wake(node as u32, at);
        }
    }

    /// When timers of a node's ports expire.
    fn timers(&self, node: u32) -> impl Iterator<Item = (usize, Ps)> {
        let armed = self.agendas[node as usize].armed;
        (0..PORTS).filter(move |n| armed >> n & 1 != 0).filter_map(move |n| {
            let watched = self.slots[slot(node, n)].output.watched;
            Some((n, self.sending.get(watched as usize)?.timer_at))
        })
    }

    #[cold]
    fn note_timers(&mut self, node: u32) {
        let mut timers = [NEVER; PORTS];
        self.timers(node).for_each(|(n, at)| timers[n] = at);
        for (n, at) in timers.into_iter().enumerate() {
            self.window.time_out(n, at);
        }
    }

    #[cold]
    fn time_out(&mut self, at: Ps, node: u32, n: usize, out: &mut Outlet<'_>) {
        let here = slot(node, n);
        let watched = self.slots[here].output.watched;
        let Some(link) = self.sending.get_mut(watched as usize) else { return };
        if link.timer_at > at {
            return;
        }
        link.timer_at = NEVER;
        match link.sender.timeout(at, &mut link.sent) {
            Some(Timeout::Replay) => self.serve(at, node, n, out),
            Some(Timeout::Poll) => {
                let said = Said { dllp: Dllp::Poll, counted: false };
                let said = (said, link.chance.loses());
                link.sent.send_dllp += 1;
                self.say(at, at + self.costs.parameters.hop_ps(), (node, n), said, out);
            }
            _ => {}
        }
        self.arm(at, here);
        self.note_failure(at, node, n, out);
    }

    /// Sends what the receiver at a port has to say to its sender, which is there at that time.
    /// Says whether the first of it was counted before.
    fn tell(
        &mut self,
        now: Ps,
        at: Ps,
        (node, n): (u32, usize),
        mut counted: bool,
        out: &mut Outlet<'_>,
    ) {
        let watched = self.slots[slot(node, n)].input.watched;
        while let Some(link) = self.receiving.get_mut(watched as usize)
            && let Some((dllp, lost)) = link.next_dllp()
        {
            link.said_until = link.said_until.max(at);
            link.received.send_dllp -= u64::from(counted);
            self.say(now, at, (node, n), (Said { dllp, counted }, lost), out);
            counted = false;
        }
    }

    /// Sends a DLLP through a port, which is at the other end at that time if it is not lost.
    fn say(
        &self,
        now: Ps,
        at: Ps,
        (node, n): (u32, usize),
        (said, lost): (Said, bool),
        out: &mut Outlet<'_>,
    ) {
        if !lost {
            out.dllp(self.slots[slot(node, n)].input.far, at, said);
        }
        if out.hops {
            let (hop, stat) = (self.hop(node, n, 0), self.stat(node, n));
            let check = if lost { Check::Bad } else { Check::Good };
            let lanes = self.costs.parameters.lanes;
            let (seq, spoilt) = (Seq::default(), 0);
            let link = OnLink { seq, tlp: 0, lanes, stat, spoilt, check, again: false };
            let dllp = said.dllp;
            out.tell_now(now, hop.from, n as u8, Notice::Said { hop, dllp, link });
        }
    }

    /// The lanes on which a port receives badly, if it knows.
    fn stat(&self, node: u32, n: usize) -> u8 {
        let watched = self.slots[slot(node, n)].input.watched;
        self.receiving.get(watched as usize).map_or(0, |link| link.stat)
    }

    /// A DLLP has arrived at a sender; or, if it asks for the latest of all, at its receiver.
    #[cold]
    fn told(&mut self, at: Ps, node: u32, n: usize, dllp: u32, out: &mut Outlet<'_>) {
        let Slot { input, output, .. } = &self.slots[slot(node, n)];
        let (into, watched) = (input.watched, output.watched);
        let handle = dllp;
        let Said { dllp, counted } = self.dllps[handle];
        self.dllps.free(handle);
        if dllp == Dllp::Poll {
            let Some(link) = self.receiving.get_mut(into as usize) else { return };
            link.received.recv_dllp += 1;
            link.receiver.poll();
            self.tell(at, at + self.costs.parameters.hop_ps(), (node, n), false, out);
            return;
        }
        let Some(link) = self.sending.get_mut(watched as usize) else { return };
        let stat = link.lanes.stat();
        link.lanes.tell(stat);
        let effect = link.sender.dllp(dllp, at, &mut link.sent);
        link.sent.recv_dllp -= u64::from(counted);
        self.arm(at, slot(node, n));
        if effect != Effect::Nothing {
            self.serve(at, node, n, out);
        }
        self.note_failure(at, node, n, out);
    }

    /// Sends a frame again, if there is one to be sent again. Returns whether the output waits.
    #[cold]
    fn replay(&mut self, now: Ps, node: u32, n: usize, out: &mut Outlet<'_>) -> bool {
        let here = slot(node, n);
        let watched = self.slots[here].output.watched;
        let link = &mut self.sending[watched as usize];
        if !link.replays(now) {
            return false;
        }
        let free_at = self.slots[here].output.free_at;
        if free_at > now {
            self.retry(node, n, free_at);
            return true;
        }
        if let Some(seq) = link.sender.resend(now, &mut link.sent)
            && let Some(frame) = link.kept(seq)
        {
            self.transmit(now, (node, n), frame, (seq, Check::Good, true), out);
        }
        self.arm(now, here);
        let free_at = self.slots[here].output.free_at;
        self.retry(node, n, free_at);
        true
    }

    /// Gives a new frame to the sender of a watched link.
    #[cold]
    fn send_watched(
        &mut self,
        now: Ps,
        node: u32,
        n: usize,
        watched: u32,
        frame: Frame,
        out: &mut Outlet<'_>,
    ) {
        let link = &mut self.sending[watched as usize];
        let seq = link.sender.send(frame.vc, frame.rows, now, NEVER, &mut link.sent);
        let mut check = Check::Good;
        if frame.flags & DOOMED != 0 {
            link.sender.nullify(frame.vc, &mut link.sent);
            check = Check::Nullified;
        } else {
            link.keep(seq, frame);
        }
        self.transmit(now, (node, n), frame, (seq, check, false), out);
        self.arm(now, slot(node, n));
    }

    /// Puts a frame on the wire of a watched link.
    fn transmit(
        &mut self,
        now: Ps,
        (node, n): (u32, usize),
        frame: Frame,
        (seq, check, again): (Seq, Check, bool),
        out: &mut Outlet<'_>,
    ) {
        let here = slot(node, n);
        let watched = self.slots[here].output.watched;
        let parameters = &self.costs.parameters;
        let link = &mut self.sending[watched as usize];
        let width = link.lanes.width();
        let wire = parameters.wire_ps_on(frame.bytes, width).unwrap_or(frame.wire.into());
        let check = match link.carry(parameters, frame.bytes, width) {
            Check::Bad => Check::Bad,
            _ => check,
        };
        // A slower link's frame must not be sent on faster than it comes in.
        let late = wire.saturating_sub(frame.wire.into());
        let at = now + parameters.hop_ps() + late;
        let (bad, spoilt) = (link.lanes.stat(), link.lanes.spoilt());
        self.slots[here].output.free_at = now + wire;
        let far = self.slots[here].input.far;
        out.frame(far, Frame { next: on_wire(seq, check, bad), arrived: at, ..frame });
        if out.hops {
            let (hop, stat) = (self.hop(node, n, frame.vc), self.stat(node, n));
            let (class, bytes, token) = (frame.class(), frame.bytes.into(), frame.token);
            let link = OnLink { seq, tlp: frame.number, lanes: width, stat, spoilt, check, again };
            let notice = if again || frame.flags & DOOMED != 0 {
                Notice::Again { hop, bytes, token, link }
            } else {
                Notice::Hop { hop, class, bytes, token, link: Some(link) }
            };
            out.tell_now(now, hop.from, n as u8, notice);
        }
    }

    /// Takes a frame that has come over a watched link. Returns whether it goes on.
    #[cold]
    fn check(&mut self, at: Ps, node: u32, n: usize, handle: u32, out: &mut Outlet<'_>) -> bool {
        let watched = self.slots[slot(node, n)].input.watched;
        let Some(link) = self.receiving.get_mut(watched as usize) else { return true };
        let frame = &mut self.frames[handle];
        let (seq, check, bad) = off_wire(frame.next);
        link.stat = bad;
        let expected = link.receiver.expected() == seq;
        let verdict = link.receiver.frame(seq, check, at, &mut link.received);
        let mut goes_on = verdict == Verdict::Accept;
        // What is wrong with it shows at its end, unless it is the header.
        let readable = link.chance.draw() % u64::from(frame.bytes) >= HEADER_BYTES;
        if verdict == Verdict::Refuse && check == Check::Bad && expected && readable {
            frame.flags |= DOOMED | UNMARKED;
            self.doomed += 1;
            goes_on = true;
        }
        let end = at + Ps::from(frame.wire) + self.costs.parameters.hop_ps();
        self.tell(at, end, (node, n), false, out);
        goes_on
    }

    /// Drops a frame that was found bad and has come in as a whole, if one waits for an output.
    #[cold]
    fn drop_doomed(&mut self, now: Ps, node: u32, n: usize, out: &mut Outlet<'_>) -> bool {
        let here = slot(node, n);
        let crossbar = &mut self.crossbars[node as usize];
        crossbar.release(now);
        for bit in bits(crossbar.ready(self.slots[here].output.waiting, n)) {
            let (from, queue) = (bit as usize / QUEUES, bit as usize % QUEUES);
            let handle = self.slots[slot(node, from)].input.head[queue];
            let frame = &self.frames[handle];
            let whole = frame.arrived + Ps::from(frame.wire) <= now;
            if frame.flags & DOOMED != 0 && whole {
                self.slots[here].output.take(bit);
                self.take(now, node, bit, n, out);
                self.frames.free(handle);
                self.doomed -= 1;
                return true;
            }
        }
        false
    }

    /// Hands a frame to a TNI.
    fn eject(&mut self, now: Ps, node: u32, n: usize, handle: u32, out: &mut Outlet<'_>) {
        let frame = self.frames[handle];
        self.frames.free(handle);
        let end = now + Ps::from(frame.wire);
        self.slots[slot(node, n)].output.free_at = end;
        let doomed = frame.flags & DOOMED != 0;
        self.doomed -= usize::from(doomed);
        if frame.flags & LAST != 0 && !doomed {
            let (node, tni) = (NodeId(self.first + node), (n - PORTS) as u8);
            out.tell(end, node, Notice::Delivered { tni, token: frame.token });
        }
    }

    /// Throws away a frame whose link is down.
    #[cold]
    fn discard(&mut self, now: Ps, node: u32, n: usize, handle: u32, out: &mut Outlet<'_>) {
        let frame = self.frames[handle];
        self.frames.free(handle);
        if frame.flags & DOOMED != 0 {
            self.doomed -= 1;
            return;
        }
        let counts = &mut self.counts[slot(node, n)];
        if frame.class() == Class::System {
            counts.discarded_system += 1;
        } else {
            counts.discarded_normal += 1;
        }
        let (node, port) = (NodeId(self.first + node), Port::ALL.get(n).copied());
        let last = frame.flags & LAST != 0;
        out.tell_now(now, node, n as u8, Notice::Discarded { port, token: frame.token, last });
    }
}
