//! A node of the modelled network, and what happens there.
//!
//! A node is a crossbar of 16 slots, ten ports and six TNIs, each with an input and an output. The
//! first frame in a queue of an input requests its output. It leaves when the output and the input
//! are free and the queue at the other end of the link has room for the whole frame. A hop is one
//! event, or two if the frame has to wait.
//!
//! The path of every hop is inlined by force. It has several callers, so the compiler would not do
//! so, and a hop would take an eighth more instructions.

use std::collections::BTreeMap;

use tofu_abi::TniId;
use tofu_abi::topology::{NodeId, Port};
use tofu_fabric::{Class, Hop, Ps, Scheduler};
use tofu_links::{Counters, Parameters};

use super::agenda::{self, Agenda, NEVER, Window};
use super::arbiter::Arbiter;
use super::arena::{Arena, NONE};
use super::broken::Which;
use super::crossbar::{Crossbar, QUEUES, Queues, Turn, bit_of, bits};
use super::frame::{
    CLASS, CLASS_ORDER, CLASSES, DOOMED, Far, Frame, LAST, NULLIFIED, PORTS, SLOTS, UNMARKED,
    class_of,
};
use super::mail::{Credit, Notice, Outlet, Said};
use super::slot::{
    CameIn, Counts, REPLAY, RING, Returned, Sending, Slot, UNWATCHED, first_at, pop, push, slot,
};
use super::steps::{Channel, Step, Steps};
use super::watched::{Receiving, Sending as WatchedSending};

/// TNIs of a node.
const TNIS: usize = SLOTS - PORTS;

/// A message at a TNI.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) token: u64,
    /// The earliest time at which its next frame may be sent.
    pub(super) ready_at: Ps,
    pub(super) gap: Ps,
    pub(super) bus: Ps,
    pub(super) steps: Steps,
    pub(super) class: Class,
    pub(super) nullified: bool,
    pub(super) dst_tni: TniId,
    /// The number of its frames, and of those still to be made.
    pub(super) tlps: u32,
    pub(super) left: u32,
    /// Bytes of routing header and TLP.
    pub(super) full: u16,
    pub(super) last: u16,
    pub(super) next: u32,
}

/// A TNI's messages. For each class: the first and last one, and when the gap after the last frame
/// ends. Also the number of waiting messages other than responses.
#[derive(Clone, Debug)]
pub(super) struct Tni {
    pub(super) head: [u32; CLASSES],
    pub(super) tail: [u32; CLASSES],
    pub(super) quiet: [Ps; CLASSES],
    pub(super) backlog: u32,
}

/// The settings of links for engines.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    pub(super) parameters: Parameters,
    pub(super) scheduler: Scheduler,
    pub(super) arbiter: Arbiter,
    /// Rows of a receive queue.
    pub(super) queue: u16,
    /// Rows of the longest frame.
    pub(super) longest: u16,
    /// Rows of a replay buffer.
    pub(super) replay: u16,
    /// True if a replay buffer can ever be too small, given how long acknowledgements take.
    pub(super) replay_limits: bool,
}

/// Everything that a node needs while it runs, side by side.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Node {
    /// Which of the engine's nodes it is.
    pub(super) place: u32,
    /// Until when the bus to the node's memory is busy.
    bus: Ps,
    pub(super) agenda: Agenda,
    pub(super) crossbar: Crossbar,
    pub(super) slots: [Slot; SLOTS],
    pub(super) tnis: [Tni; TNIS],
}

/// State that the nodes of an engine share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) costs: Costs,
    /// The number of the first node.
    pub(super) first: u32,
    /// The events of the open window.
    pub(super) window: Window,
    /// The node at the other end of each port's link, by slot.
    pub(super) peers: Vec<u32>,
    pub(super) counts: Vec<Counts>,
    pub(super) frames: Arena<Frame>,
    pub(super) messages: Arena<Queued>,
    pub(super) returned: Arena<Returned>,
    pub(super) sending: Vec<WatchedSending<Frame>>,
    pub(super) receiving: Vec<Receiving>,
    /// The counters of directions no longer modelled in full, by slot.
    pub(super) past_sent: BTreeMap<u32, Counters>,
    pub(super) past_received: BTreeMap<u32, Counters>,
    pub(super) dllps: Arena<Said>,
    /// Frames in queues that were found bad.
    pub(super) doomed: usize,
    /// Frames moved over links.
    pub(super) hops: u64,
}

impl Node {
    /// Creates an idle node.
    pub(super) fn new(place: u32, slots: [Slot; SLOTS]) -> Self {
        let none = [NONE; CLASSES];
        let tni = Tni { head: none, tail: none, quiet: [0; CLASSES], backlog: 0 };
        Self {
            place,
            bus: 0,
            agenda: Agenda::default(),
            crossbar: Crossbar::default(),
            slots,
            tnis: std::array::from_fn(|_| tni.clone()),
        }
    }

    /// The arrivals in a slot.
    pub(super) fn came_in(&self, shared: &Shared, n: usize) -> CameIn {
        let (input, counts) = (&self.slots[n].input, &shared.counts[slot(self.place, n)]);
        CameIn {
            frames: input.frames.with(counts.frames),
            bytes: input.bytes.with(counts.bytes),
            system: counts.system,
            nullified: counts.nullified,
            wait: input.wait.with(counts.wait),
        }
    }

    /// The counters of a port as a sender.
    pub(super) fn sending(&self, shared: &Shared, n: usize) -> Sending {
        let (output, counts) = (&self.slots[n].output, &shared.counts[slot(self.place, n)]);
        Sending {
            stored: output.stored.with(counts.stored),
            discarded_normal: counts.discarded_normal,
            discarded_system: counts.discarded_system,
            marked: counts.marked,
            zero_credit: counts.zero_credit,
        }
    }

    /// Returns the other end of a port's link, if so many transfers failed on it that it must go
    /// down.
    pub(super) fn failed_link(&self, shared: &Shared, n: usize) -> Option<Far> {
        let Slot { input, output, .. } = &self.slots[n % SLOTS];
        let link = shared.sending.get(output.watched as usize)?;
        link.sender.has_failed().then_some(input.far)
    }

    /// Reports a link through which no frame gets.
    pub(super) fn note_failure(&self, shared: &Shared, at: Ps, n: usize, out: &mut Outlet<'_>) {
        let port = Port::ALL[n];
        if self.failed_link(shared, n).is_some() {
            out.tell_now(at, self.id(shared), n as u8, Notice::Failed { port });
        }
    }

    /// Handles the events due up to and including `until` in the open window. Returns when the next
    /// one is due.
    pub(super) fn run(&mut self, shared: &mut Shared, until: Ps, out: &mut Outlet<'_>) -> Ps {
        shared.window.enter(self.place, until, &mut self.agenda);
        if self.agenda.armed != 0 {
            self.note_timers(shared);
        }
        while let Some((at, kind, argument)) = shared.window.pop() {
            let n = kind as usize % SLOTS;
            match kind {
                agenda::TIMEOUT.. => self.time_out(shared, at, n, out),
                agenda::DLLP.. => self.told(shared, at, n, argument, out),
                agenda::RETRY.. => {
                    let n = agenda::output_of(at, kind);
                    self.agenda.retried(n);
                    self.serve(shared, at, n, out);
                }
                agenda::KICK.. => {
                    self.agenda.kicked(n - PORTS);
                    for queue in 0..CLASSES {
                        if let Some(output) = self.load(shared, (at, at), n, queue) {
                            self.serve(shared, at, output, out);
                        }
                    }
                }
                _ => self.arrive(shared, at, n, argument, out),
            }
        }
        let mut next_at = self.agenda.next_at().min(shared.window.leave());
        if self.agenda.armed != 0 {
            next_at = next_at.min(self.timers(shared).map(|(_, at)| at).fold(NEVER, Ps::min));
        }
        next_at
    }

    /// Accepts a frame whose header has arrived at a port.
    #[inline(always)]
    fn arrive(&mut self, shared: &mut Shared, at: Ps, n: usize, handle: u32, out: &mut Outlet<'_>) {
        if shared.frames[handle].next != NONE {
            if !self.check(shared, at, n, handle, out) {
                shared.frames.free(handle);
                return;
            }
        } else if self.slots[n % SLOTS].input.watched != UNWATCHED {
            let watched = self.slots[n % SLOTS].input.watched as usize;
            shared.receiving[watched].counted[usize::from(shared.frames[handle].vc) % QUEUES] += 1;
        }
        let frame = &mut shared.frames[handle];
        frame.arrived = at;
        frame.next = NONE;
        let queue = usize::from(frame.vc) % QUEUES;
        let (bytes, flags) = (frame.bytes, frame.flags);
        // A refused frame comes again, and is counted then.
        let came = flags & UNMARKED == 0;
        let input = &mut self.slots[n % SLOTS].input;
        let bytes = if came { bytes.into() } else { 0 };
        let carry = (input.frames.add(came.into()), input.bytes.add(bytes));
        if carry != (0, 0) || flags & !LAST != 0 {
            let counts = &mut shared.counts[slot(self.place, n)];
            counts.frames += carry.0;
            counts.bytes += carry.1;
            counts.system += u64::from(came && CLASS_ORDER[1] == class_of(flags));
            counts.nullified += u64::from(came && flags & (NULLIFIED | DOOMED) != 0);
        }
        let last = std::mem::replace(&mut input.tail[queue], handle);
        if last == NONE {
            input.head[queue] = handle;
            let output = self.ask(shared, at, n, queue, handle);
            self.serve(shared, at, output, out);
        } else {
            shared.frames[last].next = handle;
        }
    }

    /// Makes the next frame of a TNI's queue, if one is ready by `free_at`, when the TNI may send
    /// it. Returns the output that it requested.
    fn load(
        &mut self,
        shared: &mut Shared,
        (now, free_at): (Ps, Ps),
        n: usize,
        queue: usize,
    ) -> Option<usize> {
        if self.slots[n % SLOTS].input.head[queue] != NONE {
            return None;
        }
        let tni = n - PORTS;
        let handle = self.tnis[tni % TNIS].head[queue];
        if handle == NONE {
            return None;
        }
        let message = shared.messages[handle];
        let ready_at = message.ready_at.max(self.tnis[tni % TNIS].quiet[queue]);
        if ready_at > free_at {
            if self.agenda.kick(n - PORTS, ready_at) {
                shared.window.kick(n - PORTS, ready_at);
            }
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
        let frame = shared.frames.add(Frame {
            token: message.token,
            arrived: ready_at.max(now),
            next: NONE,
            wire: shared.costs.parameters.wire_ps(bytes) as u32,
            bytes,
            number: message.tlps - message.left,
            steps: message.steps,
            rows: shared.costs.parameters.rows(bytes),
            flags,
            vc: 0,
            dst_tni: message.dst_tni,
        });
        self.slots[n % SLOTS].input.head[queue] = frame;
        Some(self.ask(shared, now, n, queue, frame))
    }

    /// Requests an output for the first frame of a queue. Returns that output.
    #[inline(always)]
    fn ask(&mut self, shared: &mut Shared, now: Ps, n: usize, queue: usize, handle: u32) -> usize {
        let frame = &mut shared.frames[handle];
        let rows = frame.rows;
        let to = match frame.steps.next() {
            None => PORTS + frame.dst_tni.index(),
            Some(Step { port, channel }) => {
                let port = usize::from(port);
                let first = frame.class().first_vc();
                frame.vc = match channel {
                    Channel::First => first,
                    Channel::Second => first + 1,
                    Channel::Given(vc) => vc,
                    Channel::Ring { crossed, last } => {
                        let crossed = crossed || self.slots[port % SLOTS].output.date_line;
                        first + u8::from(shared.costs.scheduler.second(crossed, last))
                    }
                };
                port
            }
        };
        let vc = frame.vc;
        let doomed = frame.flags & DOOMED != 0;
        let whole_at = frame.arrived + Ps::from(frame.wire);
        let bit = bit_of(n, queue);
        self.crossbar.rows[bit as usize] = rows;
        self.slots[to % SLOTS].output.ask(bit, vc.into(), rows);
        if doomed {
            self.retry(shared, to, whole_at.max(now));
        }
        to
    }

    /// Ensures that an output is checked again at `at` at the latest. When the node itself must run
    /// again is determined at the end of its run.
    #[inline]
    pub(super) fn retry(&mut self, shared: &mut Shared, n: usize, at: Ps) {
        if self.agenda.retry(n, at) {
            shared.window.retry(n, at);
        }
    }

    /// Sends what can go through an output now.
    pub(super) fn serve(&mut self, shared: &mut Shared, now: Ps, n: usize, out: &mut Outlet<'_>) {
        let output = &self.slots[n % SLOTS].output;
        if output.watched != UNWATCHED || output.down || shared.doomed > 0 {
            self.serve_any(shared, now, n, out);
            return;
        }
        if output.waiting == 0 {
            return;
        }
        let mut again = output.free_at;
        // Most often it is busy.
        if again <= now {
            again = match self.let_go(shared, now, n, out) {
                Err(again) => again,
                Ok(()) => {
                    let output = &self.slots[n % SLOTS].output;
                    if output.waiting == 0 { NEVER } else { output.free_at }
                }
            };
            if again == NEVER {
                return;
            }
        }
        self.retry(shared, n, again);
    }

    /// Like `serve`, for an output that may be down or whose link is modelled in full.
    #[cold]
    fn serve_any(&mut self, shared: &mut Shared, now: Ps, n: usize, out: &mut Outlet<'_>) {
        loop {
            let watched = self.slots[n % SLOTS].output.watched != UNWATCHED;
            if watched && self.replay(shared, now, n, out) {
                return;
            }
            let output = &self.slots[n % SLOTS].output;
            if output.waiting == 0 {
                return;
            }
            let free_at = output.free_at;
            if free_at > now && !output.down {
                self.retry(shared, n, free_at);
                return;
            }
            if shared.doomed > 0 && self.drop_doomed(shared, now, n, out) {
                continue;
            }
            match self.let_go(shared, now, n, out) {
                Ok(()) => {}
                Err(NEVER) => return,
                Err(again) => {
                    self.retry(shared, n, again);
                    return;
                }
            }
        }
    }

    /// Sends one frame through a free output, or returns when to check again.
    #[inline(always)]
    fn let_go(
        &mut self,
        shared: &mut Shared,
        now: Ps,
        n: usize,
        out: &mut Outlet<'_>,
    ) -> Result<(), Ps> {
        let turn = self.choose(shared, now, n)?;
        let output = &mut self.slots[n % SLOTS].output;
        output.turns.pass(turn);
        output.take(turn.bit);
        let down = output.down;
        let handle = self.take(shared, now, turn.bit, n, out);
        if down {
            self.discard(shared, now, n, handle, out);
        } else if n < PORTS {
            self.send(shared, now, n, handle, out);
        } else {
            self.eject(shared, now, n, handle, out);
        }
        Ok(())
    }

    /// Chooses what an output serves next, or returns when to check again.
    #[inline(always)]
    fn choose(&mut self, shared: &mut Shared, now: Ps, n: usize) -> Result<Turn, Ps> {
        let rule = (shared.costs.arbiter, n);
        let Slot { output, .. } = &mut self.slots[n % SLOTS];
        let crossbar = &mut self.crossbar;
        crossbar.release(now);
        let ready = crossbar.ready(output.waiting, n);
        let Some(first) = output.turns.first(ready, rule) else {
            return Err(crossbar.ready_at(output.waiting, n));
        };
        if n >= PORTS || output.down {
            return Ok(first);
        }
        if output.watched != UNWATCHED {
            return self.choose_watched(shared, now, n, ready);
        }
        let rows = u16::from(crossbar.rows[first.bit as usize]);
        let vc = output.channel(first.bit);
        if output.has_room(vc, rows) {
            return Ok(first);
        }
        let known = self.slots[n % SLOTS].output.credit;
        self.settle(shared, now, n);
        let output = &mut self.slots[n % SLOTS].output;
        if output.has_room(vc, rows) {
            if output.zero & 1 << vc != 0 {
                shared.counts[slot(self.place, n)].has_credit(vc, now);
                output.zero &= !(1 << vc);
            }
            return Ok(first);
        }
        self.choose_open(shared, now, n, ready, known)
    }

    /// Chooses the next queue for an output among those that are ready, when the first of them
    /// lacks room at the other end of the link or in the replay buffer. Returned credit has been
    /// applied; `known` is the credit before that.
    #[inline(never)]
    fn choose_open(
        &mut self,
        shared: &mut Shared,
        now: Ps,
        n: usize,
        ready: Queues,
        known: [u16; QUEUES + 1],
    ) -> Result<Turn, Ps> {
        let rule = (shared.costs.arbiter, n);
        let Slot { output, returns, .. } = &mut self.slots[n % SLOTS];
        let Crossbar { rows, .. } = &self.crossbar;
        let counts = &mut shared.counts[slot(self.place, n)];
        let longest = shared.costs.longest;
        let wanted: [Queues; QUEUES] = std::array::from_fn(|vc| ready & output.wants(vc));
        let mut open = 0;
        for (vc, wanted) in wanted.into_iter().enumerate() {
            if wanted != 0 {
                open |= output.open(wanted, vc, longest, rows);
            }
        }
        let chosen = output.turns.first(open, rule);
        let turns = output.turns;
        // Whether one of these had its turn and could not take it.
        let passed_over = |queues: Queues| {
            let before = |chosen: Turn| turns.first(queues | 1 << chosen.bit, rule) != Some(chosen);
            queues != 0 && chosen.is_none_or(before)
        };
        let mut again = NEVER;
        for (vc, wanted) in wanted.into_iter().enumerate() {
            let mut lacking: Queues = wanted & !open;
            if shared.costs.replay_limits {
                // These lack room only in the replay buffer.
                let credit = output.credit[vc];
                let only = bits(lacking).filter(|bit| u16::from(rows[*bit as usize]) <= credit);
                let only = only.fold(0, |only, bit| only | 1 << bit);
                lacking &= !only;
                if passed_over(only) {
                    counts.has_credit(vc, now);
                    output.zero &= !(1 << vc);
                    // Acknowledgements are always on their way.
                    again = again.min(first_at(&shared.returned, returns.replay));
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
                again = again.min(returns.expect(vc, &shared.returned));
            }
        }
        let Some(turn) = chosen else {
            let crossbar = &self.crossbar;
            return Err(again.min(crossbar.ready_at(output.waiting & !ready, n)));
        };
        let (vc, rows) = (output.channel(turn.bit), u16::from(rows[turn.bit as usize]));
        if output.zero & 1 << vc != 0 && known[vc].min(known[REPLAY]) < rows {
            counts.has_credit(vc, now);
            output.zero &= !(1 << vc);
        }
        Ok(turn)
    }

    /// Applies the credit that has come back to an output by now.
    #[inline(always)]
    pub(super) fn settle(&mut self, shared: &mut Shared, now: Ps, n: usize) {
        let Slot { output, returns, .. } = &mut self.slots[n % SLOTS];
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
        while let Some(Returned { vc, rows, .. }) =
            pop(&mut shared.returned, &mut returns.more, now)
        {
            output.credit[usize::from(vc) % QUEUES] += u16::from(rows);
        }
        while let Some(Returned { rows, .. }) = pop(&mut shared.returned, &mut returns.replay, now)
        {
            output.credit[REPLAY] += u16::from(rows);
        }
    }

    /// Takes the first frame out of a queue and returns it. The input is now busy with it, and the
    /// next frame may request its output.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        shared: &mut Shared,
        now: Ps,
        bit: u32,
        to: usize,
        out: &mut Outlet<'_>,
    ) -> u32 {
        let (from, queue) = (bit as usize / QUEUES, bit as usize % QUEUES);
        let input = &mut self.slots[from % SLOTS].input;
        let handle = input.head[queue];
        let frame = &shared.frames[handle];
        let Frame { wire, next, rows, bytes, flags, .. } = *frame;
        let wire = Ps::from(wire);
        let busy_until = input.busy_until.max(frame.arrived);
        let carry = input.wait.add(now - busy_until.min(now));
        if carry != 0 {
            shared.counts[slot(self.place, from)].wait += carry;
        }
        let free_at = now + wire;
        input.busy_until = input.busy_until.max(free_at);
        self.crossbar.take(bit, to, free_at);
        input.head[queue] = next;
        if from >= PORTS {
            let carry = input.bytes.add(bytes.into());
            if carry != 0 {
                shared.counts[slot(self.place, from)].bytes += carry;
            }
            self.sent_from_tni(shared, now, from, queue, wire, out);
            return handle;
        }
        if next == NONE {
            input.tail[queue] = NONE;
        }
        let (far, watched) = (input.far, input.watched);
        let at = free_at + shared.costs.parameters.hop_ps();
        if watched == UNWATCHED {
            let (slot, vc) = (far.slot, queue as u8);
            out.credit(far, Credit { at, slot, vc, rows });
        } else if flags & UNMARKED == 0 {
            // A refused frame shares the room of the one that is sent in its place.
            let link = &mut shared.receiving[watched as usize];
            link.receiver.freed(queue as u8, rows);
            let counted = link.counted[queue] > 0;
            link.counted[queue] -= u32::from(counted);
            self.tell(shared, now, at, from, counted, out);
        }
        if next != NONE {
            let output = self.ask(shared, now, from, queue, next);
            self.retry(shared, output, free_at);
        }
        handle
    }

    /// Notes that a TNI's frame is leaving, and makes the next one.
    fn sent_from_tni(
        &mut self,
        shared: &mut Shared,
        now: Ps,
        n: usize,
        queue: usize,
        wire: Ps,
        out: &mut Outlet<'_>,
    ) {
        let tni = n - PORTS;
        let end = now + wire;
        let handle = self.tnis[tni % TNIS].head[queue];
        let message = &mut shared.messages[handle];
        message.left -= 1;
        if message.gap != 0 {
            self.tnis[tni % TNIS].quiet[queue] = end + message.gap;
        }
        if message.bus != 0 {
            // The data of the next frame is read while this one leaves.
            let bus = &mut self.bus;
            *bus = now.max(*bus).saturating_add(message.bus);
            let quiet = &mut self.tnis[tni % TNIS].quiet[queue];
            *quiet = (*bus).max(*quiet);
        }
        if message.left == 0 {
            let Queued { token, class, next, .. } = *message;
            shared.messages.free(handle);
            let state = &mut self.tnis[tni % TNIS];
            state.head[queue] = next;
            if next == NONE {
                state.tail[queue] = NONE;
            }
            let request = class != Class::Response;
            let (node, tni) = (self.id(shared), TniId::ALL[(n - PORTS) % TNIS]);
            out.tell(end, node, Notice::Left { tni, token, request });
        }
        if let Some(output) = self.load(shared, (now, end), n, queue) {
            self.retry(shared, output, end);
        }
    }

    /// Notes that an output will have more room in a queue at the other end of its link. Returns
    /// whether a frame waits for it, so that the node must run at that time.
    #[inline]
    pub(super) fn give_back(
        &mut self,
        returned: &mut Arena<Returned>,
        n: usize,
        (at, vc, rows): (Ps, u8, u8),
    ) -> bool {
        let returns = &mut self.slots[n % SLOTS].returns;
        if usize::from(returns.len) < RING {
            let place = usize::from(returns.len);
            returns.at[place] = at;
            returns.vc[place] = vc;
            returns.rows[place] = rows;
            returns.len += 1;
        } else {
            push(returned, &mut returns.more, Returned { at, next: NONE, vc, rows });
        }
        let waited_for = returns.starved & 1 << vc != 0;
        if waited_for {
            returns.starved &= !(1 << vc);
            self.agenda.retry(n, at);
        }
        waited_for
    }

    /// The hop over the link at a port.
    pub(super) fn hop(&self, shared: &Shared, n: usize, vc: u8) -> Hop {
        let to = NodeId(shared.peers[slot(self.place, n)]);
        Hop { from: self.id(shared), port: Port::ALL[n], to, vc }
    }

    /// The node's number in the machine.
    const fn id(&self, shared: &Shared) -> NodeId {
        NodeId(shared.first + self.place)
    }

    /// Sends a frame over a link.
    #[inline(always)]
    fn send(&mut self, shared: &mut Shared, now: Ps, n: usize, handle: u32, out: &mut Outlet<'_>) {
        let far = self.slots[n % SLOTS].input.far;
        let hop_ps = shared.costs.parameters.hop_ps();
        if shared.costs.replay_limits && self.slots[n % SLOTS].output.watched == UNWATCHED {
            // The end of the frame arrives, and its acknowledgement comes back.
            let frame = &shared.frames[handle];
            let (rows, wire) = (frame.rows, Ps::from(frame.wire));
            let Slot { output, returns, .. } = &mut self.slots[n % SLOTS];
            output.credit[REPLAY] -= u16::from(rows);
            let at = now + wire + 2 * hop_ps;
            let returned = Returned { at, next: NONE, vc: 0, rows };
            push(&mut shared.returned, &mut returns.replay, returned);
        }
        let output = &mut self.slots[n % SLOTS].output;
        let frame = &mut shared.frames[handle];
        let watched = output.watched;
        if watched == UNWATCHED {
            output.free_at = now + Ps::from(frame.wire);
            output.credit[usize::from(frame.vc) % QUEUES] -= u16::from(frame.rows);
        }
        frame.steps.advance(output.date_line);
        if frame.flags & DOOMED != 0 {
            shared.doomed -= 1;
            shared.counts[slot(self.place, n)].marked += u64::from(frame.flags & UNMARKED != 0);
            frame.flags &= !UNMARKED;
        }
        if now >= frame.arrived + Ps::from(frame.wire) {
            let carry = output.stored.add(1);
            if carry != 0 {
                shared.counts[slot(self.place, n)].stored += carry;
            }
        }
        if out.hops && watched == UNWATCHED && frame.flags & DOOMED == 0 {
            let (class, bytes, token) = (frame.class(), frame.bytes.into(), frame.token);
            let hop = self.hop(shared, n, shared.frames[handle].vc);
            let notice = Notice::Hop { hop, class, bytes, token, link: None };
            out.tell_now(now, hop.from, n as u8, notice);
        }
        shared.hops += 1;
        let frame = shared.frames[handle];
        shared.frames.free(handle);
        if watched != UNWATCHED {
            self.send_watched(shared, now, n, watched, frame, out);
            return;
        }
        out.frame(far, Frame { next: NONE, arrived: now + hop_ps, ..frame });
    }

    /// Hands a frame to a TNI.
    #[inline(always)]
    fn eject(&mut self, shared: &mut Shared, now: Ps, n: usize, handle: u32, out: &mut Outlet<'_>) {
        let frame = shared.frames[handle];
        shared.frames.free(handle);
        let end = now + Ps::from(frame.wire);
        self.slots[n % SLOTS].output.free_at = end;
        let doomed = frame.flags & DOOMED != 0;
        shared.doomed -= usize::from(doomed);
        if frame.flags & LAST != 0 && !doomed {
            let (node, tni) = (self.id(shared), TniId::ALL[(n - PORTS) % TNIS]);
            out.tell(end, node, Notice::Delivered { tni, token: frame.token });
        }
    }

    /// Throws away a frame whose link is down.
    #[cold]
    pub(super) fn discard(
        &mut self,
        shared: &mut Shared,
        now: Ps,
        n: usize,
        handle: u32,
        out: &mut Outlet<'_>,
    ) {
        let frame = shared.frames[handle];
        shared.frames.free(handle);
        if frame.flags & DOOMED != 0 {
            shared.doomed -= 1;
            return;
        }
        let counts = &mut shared.counts[slot(self.place, n)];
        if frame.class() == Class::System {
            counts.discarded_system += 1;
        } else {
            counts.discarded_normal += 1;
        }
        let (node, port) = (self.id(shared), Port::ALL.get(n).copied());
        let which = match (frame.flags & LAST != 0, frame.number) {
            (false, _) => Which::Earlier,
            (true, 0) => Which::Only,
            (true, _) => Which::Last,
        };
        out.tell_now(now, node, n as u8, Notice::Discarded { port, token: frame.token, which });
    }
}
