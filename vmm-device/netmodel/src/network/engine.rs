//! Nodes of the modelled network that run together.
//!
//! An [`Engine`] has some of the nodes, and runs them one by one through a window of time. Nothing
//! that happens at a node in a window is visible at another within it: frames, credits and DLLPs
//! between nodes take a hop and are posted. Nodes therefore need no common order, and a node's
//! state stays in the caches of a processor while it is needed.

use std::collections::BTreeMap;

use tofu_abi::TniId;
use tofu_abi::topology::{NodeId, Port};
use tofu_fabric::{Class, LinkErrors, Ps};
use tofu_links::{Counters, Receiver};

use super::agenda::{self, NEVER, Posted, Window};
use super::arena::{Arena, NONE};
use super::crossbar::QUEUES;
use super::frame::{DOOMED, Far, Frame, PORTS, SLOTS, class_queue};
use super::mail::{Credit, Mail, Outlet};
use super::node::{Costs, Node, Queued, Shared};
use super::slot::{CameIn, Counts, REPLAY, Sending, Slot, UNWATCHED, slot};
use super::watched::{Receiving, Sending as WatchedSending, seed_of};

/// The counters of a network on all of its links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of times a frame was sent over a link.
    pub hops: u64,
    /// Bytes of routing headers and TLPs that the busiest direction of a link has carried.
    pub busiest_bytes: u64,
    /// Frames with a wrong link CRC.
    pub lcrc_errors: u64,
    /// The number of times a sender repeated frames for lack of an acknowledgement.
    pub ack_timeouts: u64,
}

impl Totals {
    /// Combines the totals of two sets of links.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            hops: self.hops + other.hops,
            busiest_bytes: self.busiest_bytes.max(other.busiest_bytes),
            lcrc_errors: self.lcrc_errors + other.lcrc_errors,
            ack_timeouts: self.ack_timeouts + other.ack_timeouts,
        }
    }
}

/// Consecutive nodes, and their events.
#[derive(Debug)]
pub(super) struct Engine {
    nodes: Vec<Node>,
    /// When the next event of each node is due.
    next_at: Vec<Ps>,
    seed: u64,
    shared: Shared,
}

impl Engine {
    /// Creates the nodes from `first` on. For each port of each node with a link, `neighbor`
    /// returns the node at the other end, its place, and whether the link closes a ring.
    pub(super) fn new(
        costs: Costs,
        (first, nodes): (u32, u32),
        seed: u64,
        mut neighbor: impl FnMut(NodeId, Port) -> Option<(NodeId, Far, bool)>,
    ) -> Self {
        let slots = nodes as usize * SLOTS;
        let mut peers = Vec::with_capacity(slots);
        let mut slot_of = |node: u32, n: usize| {
            let to = Port::ALL.get(n).map(|port| neighbor(NodeId(node), *port));
            let (down, peer, far, date_line) = match to {
                None => (false, node, Far::default(), false),
                Some(None) => (true, node, Far::default(), false),
                Some(Some((peer, far, date_line))) => (false, peer.0, far, date_line),
            };
            peers.push(peer);
            Slot::new((costs.queue, costs.replay), far, down, date_line)
        };
        let all = (0..nodes)
            .map(|place| Node::new(place, std::array::from_fn(|n| slot_of(first + place, n))));
        Self {
            nodes: all.collect(),
            next_at: vec![NEVER; nodes as usize],
            seed,
            shared: Shared {
                window: Window::new(nodes as usize),
                first,
                peers,
                counts: vec![Counts::default(); slots],
                frames: Arena::new(),
                messages: Arena::new(),
                returned: Arena::new(),
                sending: Vec::new(),
                receiving: Vec::new(),
                past_sent: BTreeMap::new(),
                past_received: BTreeMap::new(),
                dllps: Arena::new(),
                doomed: 0,
                hops: 0,
                costs,
            },
        }
    }

    fn at(&self, slot: usize) -> &Slot {
        &self.nodes[slot / SLOTS].slots[slot % SLOTS]
    }

    fn at_mut(&mut self, slot: usize) -> &mut Slot {
        &mut self.nodes[slot / SLOTS].slots[slot % SLOTS]
    }

    pub(super) const fn hops(&self) -> u64 {
        self.shared.hops
    }

    /// The counts of this engine.
    pub(super) fn totals(&self) -> Totals {
        let Shared { counts, sending, receiving, past_sent, past_received, hops, .. } =
            &self.shared;
        let bytes = self.nodes.iter().zip(counts.chunks(SLOTS)).flat_map(|(node, counts)| {
            let ports = node.slots.iter().zip(counts).take(PORTS);
            ports.map(|(slot, counts)| slot.input.bytes.with(counts.bytes))
        });
        let received = receiving.iter().map(|link| &link.received).chain(past_received.values());
        let sent = sending.iter().map(|link| &link.sent).chain(past_sent.values());
        Totals {
            hops: *hops,
            busiest_bytes: bytes.max().unwrap_or_default(),
            lcrc_errors: received.map(|counters| counters.lcrc_errors).sum(),
            ack_timeouts: sent.map(|counters| counters.ack_timeouts).sum(),
        }
    }

    /// The number of outgoing directions that have their full state here.
    pub(super) const fn in_full(&self) -> usize {
        self.shared.sending.len()
    }

    /// The arrivals in a slot of a node.
    pub(super) fn came_in(&self, node: u32, n: usize) -> CameIn {
        self.nodes[node as usize].came_in(&self.shared, n)
    }

    /// The counters of a port of a node as a sender.
    pub(super) fn sending(&self, node: u32, port: Port) -> Sending {
        self.nodes[node as usize].sending(&self.shared, port.index())
    }

    /// Returns true if no message is at a TNI, no frame is in a queue or on a link, and no frame is
    /// unacknowledged.
    pub(super) fn is_idle(&self) -> bool {
        let sure = |link: &WatchedSending<Frame>| link.sender.unacknowledged() == 0;
        self.shared.frames.len() == 0
            && self.shared.messages.len() == 0
            && self.shared.sending.iter().all(sure)
    }

    /// The tokens of frames that are here or may have to be resent.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u64> {
        let Shared { frames, sending, .. } = &self.shared;
        let kept = sending.iter().flat_map(WatchedSending::unacknowledged);
        frames.iter().chain(kept).map(|frame| frame.token)
    }

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.shared.peers.capacity() * size_of::<u32>()
            + self.next_at.capacity() * size_of::<Ps>()
            + self.shared.window.bytes()
            + self.shared.counts.capacity() * size_of::<Counts>()
            + self.shared.frames.bytes()
            + self.shared.messages.bytes()
            + self.shared.returned.bytes()
            + self.shared.sending.iter().map(WatchedSending::bytes).sum::<usize>()
            + self.shared.receiving.capacity() * size_of::<Receiving>()
    }

    pub(super) fn backlog(&self, node: u32, tni: TniId) -> u32 {
        self.nodes[node as usize].tnis[tni.index()].backlog
    }

    /// Notes that a message other than a response has left its TNI.
    pub(super) fn left(&mut self, node: u32, tni: TniId) {
        self.nodes[node as usize].tnis[tni.index()].backlog -= 1;
    }

    pub(super) fn set_down(&mut self, now: Ps, node: u32, port: Port, down: bool) {
        let output = &mut self.nodes[node as usize].slots[port.index()].output;
        output.down = down;
        if output.waiting != 0 {
            self.retry(node, port.index(), now);
        }
    }

    /// Returns the other end of a port's link, if so many transfers failed on it that it must go
    /// down.
    pub(super) fn failed_link(&self, node: u32, port: Port) -> Option<Far> {
        self.nodes[node as usize].failed_link(&self.shared, port.index())
    }

    /// The receiver of what comes in at a slot, if that direction is modelled in full.
    pub(super) fn receiver_mut(&mut self, slot: usize) -> Option<&mut Receiver> {
        let watched = self.at(slot).input.watched;
        self.shared.receiving.get_mut(watched as usize).map(|link| &mut link.receiver)
    }

    /// Takes down a port's link, because no frame gets through. Frames in flight on it are lost.
    pub(super) fn fail(
        &mut self,
        now: Ps,
        node: u32,
        port: Port,
        receiver: &mut Receiver,
        out: &mut Outlet<'_>,
    ) {
        let watched = self.nodes[node as usize].slots[port.index()].output.watched;
        let Some(link) = self.shared.sending.get_mut(watched as usize) else { return };
        for frame in link.restart(receiver, |frame| frame.vc) {
            let handle = self.shared.frames.add(frame);
            self.nodes[node as usize].discard(&mut self.shared, now, port.index(), handle, out);
        }
        self.set_down(now, node, port, true);
    }

    pub(super) fn is_down(&self, node: u32, port: Port) -> bool {
        self.nodes[node as usize].slots[port.index()].output.down
    }

    /// When the next event is due, apart from mail that was not taken in yet.
    pub(super) fn next_at(&self) -> Ps {
        self.next_at.iter().copied().fold(self.shared.window.next_at(), Ps::min)
    }

    /// Queues a message at a TNI.
    pub(super) fn inject(&mut self, now: Ps, node: u32, tni: TniId, message: Queued) {
        let Node { agenda, tnis, .. } = &mut self.nodes[node as usize];
        let state = &mut tnis[tni.index()];
        let queue = class_queue(message.class);
        let at = message.ready_at.max(now);
        let handle = self.shared.messages.add(Queued { next: NONE, ..message });
        if message.class != Class::Response {
            state.backlog += 1;
        }
        let last = std::mem::replace(&mut state.tail[queue], handle);
        if last == NONE {
            state.head[queue] = handle;
            if agenda.kick(tni.index(), at) {
                self.wake(node, at);
            }
        } else {
            self.shared.messages[last].next = handle;
        }
    }

    #[inline]
    fn wake(&mut self, node: u32, at: Ps) {
        let next_at = &mut self.next_at[node as usize];
        *next_at = at.min(*next_at);
    }

    /// Opens a window of time once the one before is done, and takes in the mail.
    pub(super) fn open<'a>(
        &mut self,
        start: Ps,
        end: Ps,
        mails: impl Iterator<Item = &'a mut Mail>,
    ) {
        self.shared.window.open(start, end, &mut self.next_at);
        for mail in mails.filter(|mail| !mail.is_empty()) {
            self.take_in(mail);
        }
    }

    fn take_in(&mut self, mail: &mut Mail) {
        self.take_credits(mail);
        if mail.soonest == NEVER {
            mail.credits_at = NEVER;
            return;
        }
        for (slot, frame) in mail.frames.drain(..) {
            let (node, port) = (slot / SLOTS as u16, slot % SLOTS as u16);
            self.shared.doomed += usize::from(frame.flags & DOOMED != 0 && frame.next == NONE);
            let at = frame.arrived;
            let handle = self.shared.frames.add(frame);
            let kind = agenda::ARRIVE as u16 + port;
            let posted = Posted { at, argument: handle, node, kind };
            self.shared.window.post(posted, &mut self.next_at);
        }
        for (at, slot, said) in mail.dllps.drain(..) {
            let (node, port) = (slot / SLOTS as u16, slot % SLOTS as u16);
            let handle = self.shared.dllps.add(said);
            let kind = agenda::DLLP as u16 + port;
            let posted = Posted { at, argument: handle, node, kind };
            self.shared.window.post(posted, &mut self.next_at);
        }
        (mail.soonest, mail.credits_at) = (NEVER, NEVER);
    }

    /// When the first credit in the mail that a frame waits for is due.
    pub(super) fn waited_for(&self, mail: &Mail) -> Ps {
        let waits =
            |credit: &&Credit| self.at(credit.slot.into()).returns.starved >> credit.vc & 1 != 0;
        mail.credits.iter().filter(waits).map(|credit| credit.at).fold(NEVER, Ps::min)
    }

    /// Applies the credits that were returned.
    pub(super) fn take_credits(&mut self, mail: &mut Mail) {
        for Credit { at, slot, vc, rows } in mail.credits.drain(..) {
            let (node, n) = (usize::from(slot) / SLOTS, usize::from(slot) % SLOTS);
            if self.nodes[node].give_back(&mut self.shared.returned, n, (at, vc, rows)) {
                self.wake(node as u32, at);
            }
        }
    }

    /// Handles the events due up to and including `until` in the open window. Returns how many
    /// nodes were busy.
    pub(super) fn run(&mut self, until: Ps, out: &mut Outlet<'_>) -> usize {
        let mut busy = 0;
        for (node, next_at) in self.nodes.iter_mut().zip(&mut self.next_at) {
            if *next_at <= until {
                *next_at = node.run(&mut self.shared, until, out);
                busy += 1;
            }
        }
        busy
    }

    /// Ensures that an output is checked again at `at` at the latest.
    #[inline]
    fn retry(&mut self, node: u32, n: usize, at: Ps) {
        if self.nodes[node as usize].agenda.retry(n, at) {
            self.wake(node, at);
        }
    }

    /// Sets the errors of the direction of a link out of a port. If it was not modelled in full
    /// before, returns the state that the other end needs from now on. Mail must have been taken
    /// in.
    pub(super) fn set_errors(
        &mut self,
        now: Ps,
        node: u32,
        port: Port,
        errors: &LinkErrors,
    ) -> Option<Receiving> {
        let erring = *errors != LinkErrors::default();
        let receiving = if erring { self.watch(now, node, port) } else { None };
        let watched = self.nodes[node as usize].slots[port.index()].output.watched;
        if let Some(link) = self.shared.sending.get_mut(watched as usize) {
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

    /// The same when an observer of the direction starts or stops.
    pub(super) fn look_at(
        &mut self,
        now: Ps,
        node: u32,
        port: Port,
        look: bool,
    ) -> Option<Receiving> {
        let receiving = if look { self.watch(now, node, port) } else { None };
        let watched = self.nodes[node as usize].slots[port.index()].output.watched;
        if let Some(link) = self.shared.sending.get_mut(watched as usize) {
            link.looked_at = look;
        }
        receiving
    }

    /// Models a direction's data link layer in full from now on.
    fn watch(&mut self, now: Ps, node: u32, port: Port) -> Option<Receiving> {
        let here = slot(node, port.index());
        if self.at_mut(here).output.watched != UNWATCHED {
            return None;
        }
        // Applies all returns known so far, even future ones; a timeout recovers the rest.
        self.nodes[node as usize].settle(&mut self.shared, NEVER, port.index());
        let output = &self.nodes[node as usize].slots[port.index()].output;
        let in_use = std::array::from_fn(|vc| self.shared.costs.queue - output.credit[vc]);
        let parameters = &self.shared.costs.parameters;
        let seed = seed_of(self.seed, NodeId(self.shared.first + node), port);
        let mut sending = WatchedSending::new(parameters, in_use, seed, here as u32);
        let receiving = Receiving::new(parameters, &sending);
        sending.sent = self.shared.past_sent.remove(&(here as u32)).unwrap_or_default();
        self.at_mut(here).output.watched = self.shared.sending.len() as u32;
        self.at_mut(here).returns.starved = 0;
        self.shared.sending.push(sending);
        self.retry(node, port.index(), now);
        Some(receiving)
    }

    /// The other end of a port's link, if the link's full state is no longer needed and nothing of
    /// it is on the wire.
    pub(super) fn clean_link(&self, now: Ps, node: u32, port: Port) -> Option<Far> {
        let Slot { input, output, .. } = &self.nodes[node as usize].slots[port.index()];
        let link = self.shared.sending.get(output.watched as usize)?;
        let on_the_wire = output.free_at + self.shared.costs.parameters.hop_ps() >= now;
        (link.is_clean() && !on_the_wire).then_some(input.far)
    }

    /// Returns true if a direction out of a port is modelled in full, but without a lasting reason.
    pub(super) fn may_become_clean(&self, node: u32, port: Port) -> bool {
        let watched = self.nodes[node as usize].slots[port.index()].output.watched;
        let link = self.shared.sending.get(watched as usize);
        link.is_some_and(|link| !link.erring && !link.looked_at)
    }

    /// Drops a receiver's full state if nothing is due in either direction. Returns the rows that
    /// left each queue, and the number of queued frames whose credit is still to be returned.
    pub(super) fn forget_receiving(
        &mut self,
        now: Ps,
        slot: usize,
    ) -> Option<([u16; QUEUES], u64)> {
        let watched = self.at(slot).input.watched;
        let link = self.shared.receiving.get(watched as usize)?;
        if link.said_until >= now || link.receiver.is_due() || self.has_doomed(slot) {
            return None;
        }
        let freed = link.receiver.freed_rows();
        let counted: u32 = link.counted.iter().sum();
        let quiet = (self.queued(slot).count() as u64).saturating_sub(counted.into());
        let received = Counters { send_dllp: link.received.send_dllp + quiet, ..link.received };
        self.shared.past_received.insert(slot as u32, received);
        self.at_mut(slot).input.watched = UNWATCHED;
        self.shared.receiving.swap_remove(watched as usize);
        if let Some(moved) = self.shared.receiving.get(watched as usize).map(|link| link.slot) {
            self.at_mut(moved as usize).input.watched = watched;
        }
        Some((freed, quiet))
    }

    /// The frames in the queues of a slot, queue by queue.
    fn queued(&self, slot: usize) -> impl Iterator<Item = &Frame> {
        self.at(slot).input.head.into_iter().flat_map(|head| self.queue(head))
    }

    /// The frames of the queue that begins with `head`.
    fn queue(&self, head: u32) -> impl Iterator<Item = &Frame> {
        let frame = |one: u32| (one != NONE).then(|| &self.shared.frames[one]);
        std::iter::successors(frame(head), move |before| frame(before.next))
    }

    /// Returns true if a frame that was found bad is in a queue of a slot.
    fn has_doomed(&self, slot: usize) -> bool {
        self.queued(slot).any(|frame| frame.flags & DOOMED != 0)
    }

    /// The same for a sender: from now on the times of returning credits are computed ahead.
    pub(super) fn forget_sending(
        &mut self,
        now: Ps,
        node: u32,
        port: Port,
        (freed, quiet): ([u16; QUEUES], u64),
    ) {
        let here = slot(node, port.index());
        let watched = self.at_mut(here).output.watched;
        let Some(link) = self.shared.sending.get(watched as usize) else { return };
        let output = &mut self.nodes[node as usize].slots[port.index()].output;
        for (vc, freed) in (0..).zip(freed) {
            output.credit[usize::from(vc)] =
                self.shared.costs.queue - link.sender.in_queue(vc, freed);
        }
        output.credit[REPLAY] = self.shared.costs.replay;
        output.watched = UNWATCHED;
        let sent = Counters { recv_dllp: link.sent.recv_dllp + quiet, ..link.sent };
        self.shared.past_sent.insert(here as u32, sent);
        self.nodes[node as usize].agenda.armed &= !(1 << port.index());
        self.shared.sending.swap_remove(watched as usize);
        if let Some(moved) = self.shared.sending.get(watched as usize).map(|link| link.slot) {
            self.at_mut(moved as usize).output.watched = watched;
        }
        self.retry(node, port.index(), now);
    }

    /// Makes the port where a direction comes in keep that direction's new full state.
    pub(super) fn watch_behind(&mut self, node: u32, port: Port, new: Receiving) {
        let here = slot(node, port.index());
        let received = self.shared.past_received.remove(&(here as u32)).unwrap_or_default();
        // Frames that came in before and are still in a queue.
        let counted = self.at(here).input.head.map(|head| self.queue(head).count() as u32);
        self.at_mut(here).input.watched = self.shared.receiving.len() as u32;
        self.shared.receiving.push(Receiving { slot: here as u32, received, counted, ..new });
    }

    /// Sets the errors of the direction that comes in at a port.
    pub(super) fn set_errors_behind(&mut self, node: u32, port: Port, errors: &LinkErrors) {
        let watched = self.nodes[node as usize].slots[port.index()].input.watched;
        if let Some(receiving) = self.shared.receiving.get_mut(watched as usize) {
            receiving.chance.dllp_loss = errors.dllp_loss;
        }
    }

    /// The counters of a port of its outgoing direction while that was modelled in full.
    pub(super) fn watched(&self, node: u32, port: Port) -> Option<Counters> {
        let here = slot(node, port.index());
        let now = self.shared.sending.get(self.at(here).output.watched as usize);
        now.map(|link| link.sent).or_else(|| self.shared.past_sent.get(&(here as u32)).copied())
    }

    /// The same for the incoming direction.
    pub(super) fn watched_in(&self, node: u32, port: Port) -> Option<Counters> {
        let here = slot(node, port.index());
        let now = self.shared.receiving.get(self.at(here).input.watched as usize);
        now.map(|link| link.received)
            .or_else(|| self.shared.past_received.get(&(here as u32)).copied())
    }
}
