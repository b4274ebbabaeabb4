//! Links of a node whose data link layer is modelled in full, as something goes wrong on them or
//! they are observed.

use tofu_fabric::{OnLink, Ps};
use tofu_links::{Check, Dllp, Effect, Reason, Seq, Timeout, Verdict};

use super::agenda::NEVER;
use super::crossbar::{QUEUES, Queues, Turn, bits};
use super::frame::{DOOMED, Frame, PORTS, SLOTS, UNMARKED, off_wire, on_wire};
use super::mail::{Notice, Outlet, Said};
use super::node::{Node, Shared};
use super::slot::{Output, Slot, slot};

/// Bytes at the beginning of a frame that are needed to send it on.
const HEADER_BYTES: u64 = 16;

impl Node {
    /// Like `choose`, for an output to a watched link.
    #[cold]
    pub(super) fn choose_watched(
        &mut self,
        shared: &mut Shared,
        now: Ps,
        n: usize,
        ready: Queues,
    ) -> Result<Turn, Ps> {
        let rule = (shared.costs.arbiter, n);
        let output = &self.slots[n % SLOTS].output;
        let crossbar = &self.crossbar;
        let again = crossbar.ready_at(output.waiting & !ready, n);
        let mut left = ready;
        while let Some(turn) = self.slots[n % SLOTS].output.turns.first(left, rule) {
            left &= !(1 << turn.bit);
            let vc = self.slots[n % SLOTS].output.channel(turn.bit);
            let rows = self.crossbar.rows[turn.bit as usize];
            if self.may_send(shared, now, n, vc, rows) {
                return Ok(turn);
            }
        }
        Err(again)
    }

    /// Returns true if the sender of a watched link has room for a frame.
    fn may_send(&mut self, shared: &mut Shared, now: Ps, n: usize, vc: usize, rows: u8) -> bool {
        let Output { watched, zero, .. } = &mut self.slots[n % SLOTS].output;
        let link = &mut shared.sending[*watched as usize];
        let counts = &mut shared.counts[slot(self.place, n)];
        let Err(reason) = link.sender.may_send(vc as u8, rows) else {
            counts.has_credit(vc, now);
            *zero &= !(1 << vc);
            return true;
        };
        if reason == Reason::Credit {
            counts.lacks_credit(vc, now);
            *zero |= 1 << vc;
            link.sender.starve(vc as u8, now);
            self.arm(shared, now, n);
        }
        false
    }

    /// Sets a sender's acknowledgement timer.
    fn arm(&mut self, shared: &mut Shared, now: Ps, n: usize) {
        let watched = self.slots[n % SLOTS].output.watched;
        let link = &mut shared.sending[watched as usize];
        let at = link.sender.deadline().max(now);
        if at < link.timer_at {
            link.timer_at = at;
            self.agenda.armed |= 1 << n;
            shared.window.time_out(n, at);
        }
    }

    /// When the timers of a node's ports expire.
    pub(super) fn timers(&self, shared: &Shared) -> impl Iterator<Item = (usize, Ps)> {
        let armed = self.agenda.armed;
        (0..PORTS).filter(move |n| armed >> n & 1 != 0).filter_map(move |n| {
            let watched = self.slots[n % SLOTS].output.watched;
            Some((n, shared.sending.get(watched as usize)?.timer_at))
        })
    }

    #[cold]
    pub(super) fn note_timers(&mut self, shared: &mut Shared) {
        let mut timers = [NEVER; PORTS];
        self.timers(shared).for_each(|(n, at)| timers[n] = at);
        for (n, at) in timers.into_iter().enumerate() {
            shared.window.time_out(n, at);
        }
    }

    #[cold]
    pub(super) fn time_out(&mut self, shared: &mut Shared, at: Ps, n: usize, out: &mut Outlet<'_>) {
        let watched = self.slots[n % SLOTS].output.watched;
        let Some(link) = shared.sending.get_mut(watched as usize) else { return };
        if link.timer_at > at {
            return;
        }
        link.timer_at = NEVER;
        match link.sender.timeout(at, &mut link.sent) {
            Some(Timeout::Replay) => self.serve(shared, at, n, out),
            Some(Timeout::Poll) => {
                let said = Said { dllp: Dllp::Poll, counted: false };
                let said = (said, link.chance.loses());
                link.sent.send_dllp += 1;
                self.say(shared, at, at + shared.costs.parameters.hop_ps(), n, said, out);
            }
            _ => {}
        }
        self.arm(shared, at, n);
        self.note_failure(shared, at, n, out);
    }

    /// Sends the receiver's due DLLPs, which arrive at `at`. `counted` is whether the first was
    /// counted before.
    pub(super) fn tell(
        &mut self,
        shared: &mut Shared,
        now: Ps,
        at: Ps,
        n: usize,
        mut counted: bool,
        out: &mut Outlet<'_>,
    ) {
        let watched = self.slots[n % SLOTS].input.watched;
        while let Some(link) = shared.receiving.get_mut(watched as usize)
            && let Some((dllp, lost)) = link.next_dllp()
        {
            link.said_until = link.said_until.max(at);
            link.received.send_dllp -= u64::from(counted);
            self.say(shared, now, at, n, (Said { dllp, counted }, lost), out);
            counted = false;
        }
    }

    /// Sends a DLLP through a port. It arrives at `at` unless it is lost.
    fn say(
        &self,
        shared: &Shared,
        now: Ps,
        at: Ps,
        n: usize,
        (said, lost): (Said, bool),
        out: &mut Outlet<'_>,
    ) {
        if !lost {
            out.dllp(self.slots[n % SLOTS].input.far, at, said);
        }
        if out.hops {
            let (hop, stat) = (self.hop(shared, n, 0), self.stat(shared, n));
            let check = if lost { Check::Bad } else { Check::Good };
            let lanes = shared.costs.parameters.lanes;
            let (seq, spoilt) = (Seq::default(), 0);
            let link = OnLink { seq, tlp: 0, lanes, stat, spoilt, check, again: false };
            let dllp = said.dllp;
            out.tell_now(now, hop.from, n as u8, Notice::Said { hop, dllp, link });
        }
    }

    /// The lanes on which a port receives badly, if it knows.
    fn stat(&self, shared: &Shared, n: usize) -> u8 {
        let watched = self.slots[n % SLOTS].input.watched;
        shared.receiving.get(watched as usize).map_or(0, |link| link.stat)
    }

    /// Handles a DLLP that has arrived at a sender or, if it is a poll, at a receiver.
    #[cold]
    pub(super) fn told(
        &mut self,
        shared: &mut Shared,
        at: Ps,
        n: usize,
        dllp: u32,
        out: &mut Outlet<'_>,
    ) {
        let Slot { input, output, .. } = &self.slots[n % SLOTS];
        let (into, watched) = (input.watched, output.watched);
        let handle = dllp;
        let Said { dllp, counted } = shared.dllps[handle];
        shared.dllps.free(handle);
        if dllp == Dllp::Poll {
            let Some(link) = shared.receiving.get_mut(into as usize) else { return };
            link.received.recv_dllp += 1;
            link.receiver.poll();
            self.tell(shared, at, at + shared.costs.parameters.hop_ps(), n, false, out);
            return;
        }
        let Some(link) = shared.sending.get_mut(watched as usize) else { return };
        let stat = link.lanes.stat();
        link.lanes.tell(stat);
        let effect = link.sender.dllp(dllp, at, &mut link.sent);
        link.sent.recv_dllp -= u64::from(counted);
        self.arm(shared, at, n);
        if effect != Effect::Nothing {
            self.serve(shared, at, n, out);
        }
        self.note_failure(shared, at, n, out);
    }

    /// Resends a frame, if one is due. Returns whether that keeps the output busy.
    #[cold]
    pub(super) fn replay(
        &mut self,
        shared: &mut Shared,
        now: Ps,
        n: usize,
        out: &mut Outlet<'_>,
    ) -> bool {
        let watched = self.slots[n % SLOTS].output.watched;
        let link = &mut shared.sending[watched as usize];
        if !link.sender.is_replaying() {
            return false;
        }
        let free_at = self.slots[n % SLOTS].output.free_at;
        if free_at > now {
            self.retry(shared, n, free_at);
            return true;
        }
        if let Some(seq) = link.sender.resend(now, &mut link.sent)
            && let Some(frame) = link.kept(seq)
        {
            self.transmit(shared, now, n, frame, (seq, Check::Good, true), out);
        }
        self.arm(shared, now, n);
        let free_at = self.slots[n % SLOTS].output.free_at;
        self.retry(shared, n, free_at);
        true
    }

    /// Hands a new frame to the sender of a watched link.
    #[cold]
    pub(super) fn send_watched(
        &mut self,
        shared: &mut Shared,
        now: Ps,
        n: usize,
        watched: u32,
        frame: Frame,
        out: &mut Outlet<'_>,
    ) {
        let link = &mut shared.sending[watched as usize];
        let seq = link.sender.send(frame.vc, frame.rows, now, &mut link.sent);
        let mut check = Check::Good;
        if frame.flags & DOOMED != 0 {
            link.sender.nullify(frame.vc, &mut link.sent);
            check = Check::Nullified;
        } else {
            link.keep(seq, frame);
        }
        self.transmit(shared, now, n, frame, (seq, check, false), out);
        self.arm(shared, now, n);
    }

    /// Puts a frame on the wire of a watched link.
    fn transmit(
        &mut self,
        shared: &mut Shared,
        now: Ps,
        n: usize,
        frame: Frame,
        (seq, check, again): (Seq, Check, bool),
        out: &mut Outlet<'_>,
    ) {
        let watched = self.slots[n % SLOTS].output.watched;
        let parameters = &shared.costs.parameters;
        let link = &mut shared.sending[watched as usize];
        let width = link.lanes.width();
        let wire = parameters.wire_ps_on(frame.bytes, width).unwrap_or(frame.wire.into());
        let check = match link.carry(parameters, frame.bytes, width) {
            Check::Bad => Check::Bad,
            _ => check,
        };
        // A frame on a slower link must not be sent on faster than it comes in.
        let late = wire.saturating_sub(frame.wire.into());
        let at = now + parameters.hop_ps() + late;
        let (bad, spoilt) = (link.lanes.stat(), link.lanes.spoilt());
        self.slots[n % SLOTS].output.free_at = now + wire;
        let far = self.slots[n % SLOTS].input.far;
        out.frame(far, Frame { next: on_wire(seq, check, bad), arrived: at, ..frame });
        if out.hops {
            let (hop, stat) = (self.hop(shared, n, frame.vc), self.stat(shared, n));
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

    /// Accepts or refuses a frame from a watched link. Returns true if it is to be forwarded.
    #[cold]
    pub(super) fn check(
        &mut self,
        shared: &mut Shared,
        at: Ps,
        n: usize,
        handle: u32,
        out: &mut Outlet<'_>,
    ) -> bool {
        let watched = self.slots[n % SLOTS].input.watched;
        let Some(link) = shared.receiving.get_mut(watched as usize) else { return true };
        let frame = &mut shared.frames[handle];
        let (seq, check, bad) = off_wire(frame.next);
        link.stat = bad;
        let expected = link.receiver.expected() == seq;
        let verdict = link.receiver.frame(seq, check, at, &mut link.received);
        let mut goes_on = verdict == Verdict::Accept;
        // Damage shows at the end of the frame, unless it is in the header.
        let readable = link.chance.draw() % u64::from(frame.bytes) >= HEADER_BYTES;
        if verdict == Verdict::Refuse && check == Check::Bad && expected && readable {
            frame.flags |= DOOMED | UNMARKED;
            shared.doomed += 1;
            goes_on = true;
        }
        let end = at + Ps::from(frame.wire) + shared.costs.parameters.hop_ps();
        self.tell(shared, at, end, n, false, out);
        goes_on
    }

    /// Drops a frame that waits for an output, was found bad and has arrived as a whole. Returns
    /// whether there was one.
    #[cold]
    pub(super) fn drop_doomed(
        &mut self,
        shared: &mut Shared,
        now: Ps,
        n: usize,
        out: &mut Outlet<'_>,
    ) -> bool {
        let crossbar = &mut self.crossbar;
        crossbar.release(now);
        for bit in bits(crossbar.ready(self.slots[n % SLOTS].output.waiting, n)) {
            let (from, queue) = (bit as usize / QUEUES, bit as usize % QUEUES);
            let handle = self.slots[from % SLOTS].input.head[queue];
            let frame = &shared.frames[handle];
            let whole = frame.arrived + Ps::from(frame.wire) <= now;
            if frame.flags & DOOMED != 0 && whole {
                self.slots[n % SLOTS].output.take(bit);
                self.take(shared, now, bit, n, out);
                shared.frames.free(handle);
                shared.doomed -= 1;
                return true;
            }
        }
        false
    }
}
