//! One end of a link and its protocol (section 2.2), without clock, thread or memory of a guest.
//!
//! The paper has packets with a check sequence, positive and negative feedback, a receiver that
//! discards everything after an error until RESTART, and a txBuffer from which the sender
//! retransmits everything that was not acknowledged. The following rules are *ours*. They make this
//! reliable even if packets are lost or damaged:
//!
//! - Packets have sequence numbers, so that a lost one is noticed; feedback and RESTART name one.
//! - If no feedback comes for a while, the sender enters resend mode by itself.
//! - Commands carry the number of packets of each channel for which the receiver has room. A sender
//!   never sends more, so no packet is dropped for lack of room, and a full channel stalls only
//!   itself.
//! - Each end has a life, which changes at each reset, and announces it by HELLO. If an end's
//!   neighbour has a new life, the end restarts its sequence numbers and retransmits all
//!   unacknowledged packets.

use std::collections::VecDeque;

use tofu_abi::tnw::{CHANNELS, Channel, LinkCounters, RECEPTION_FIFO, SEQUENCES};
use tofu_inspect::inspect;

use crate::unit::{Check, Control, ControlKind, Data, Session, Unit};

/// Maximum number of packets in txBuffer (ours). It is less than half of the sequence numbers.
pub const TX_BUFFER: u16 = 1024;
const _: () = assert!(TX_BUFFER < SEQUENCES / 2);

/// The time for which an end first waits for feedback, in nanoseconds (ours). Each wait without
/// feedback doubles the next one.
pub const TIMEOUT_NS: u64 = 10_000_000;
/// The longest wait, as a power of two of [`TIMEOUT_NS`].
const MOST_DOUBLINGS: u32 = 6;
/// Number of waits without feedback after which the neighbour counts as silent.
const SILENCE: u32 = 8;
/// Room is announced at the latest when this many packets have left a reception FIFO.
const ANNOUNCE: u16 = RECEPTION_FIFO as u16 / 4;

/// A deadline that never comes.
pub const NEVER: u64 = u64::MAX;

/// Free places in the reception FIFO of each channel.
pub type Room = [u16; CHANNELS];

/// The outcome of a unit that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Nothing for the reception FIFOs.
    Nothing,
    /// The next packets.
    Data(Data),
    /// The neighbour has begun a new life. The messages that it was sending do not continue.
    Renewed,
}

/// One end of a link.
#[derive(Debug)]
pub struct LinkEnd {
    life: u16,
    /// True if anything was sent in this life.
    spoken: bool,
    peer: Option<u16>,
    tx: Sending,
    rx: Receiving,
    counters: LinkCounters,
}

#[derive(Debug, Default)]
struct Sending {
    /// Sequence number of the next packet.
    next: u16,
    /// txBuffer: the packets that were sent and not acknowledged, in order.
    buffer: VecDeque<Data>,
    /// Number of packets in `buffer`.
    buffered: u16,
    /// Packets of each channel sent in this session, and the limits of that number.
    used: Room,
    limits: Room,
    /// Channels that wait for room at the other end, one bit each.
    stalled: u8,
    resending: bool,
    /// Number of packets sent in all when they were last kept.
    kept: u64,
    /// Number of waits in a row without feedback.
    unanswered: u32,
    /// Number of waits in a row without progress.
    attempts: u32,
    deadline: u64,
}

#[derive(Debug)]
struct Receiving {
    /// Sequence number of the next packet.
    expected: u16,
    /// True if packets are discarded until RESTART.
    discarding: bool,
    /// Packets of each channel accepted in this session.
    accepted: Room,
    /// The limits that were last announced to the other end.
    announced: Room,
    /// Feedback that is still to be sent.
    owed: Option<ControlKind>,
}

inspect!(LinkEnd { life, spoken, peer, tx, rx, counters as skip });

inspect!(Sending {
    next,
    buffer as len,
    buffered,
    used as debug,
    limits as debug,
    stalled as hex,
    resending,
    kept,
    unanswered,
    attempts,
    deadline as time,
});

inspect!(Receiving { expected, discarding, accepted as debug, announced as debug, owed as debug });

/// The distance of `a` ahead of `b`, modulo [`SEQUENCES`].
const fn ahead(a: u16, b: u16) -> u16 {
    a.wrapping_sub(b) % SEQUENCES
}

impl LinkEnd {
    /// An end that begins this life. The number is not 0 and is above those of earlier lives.
    pub fn new(life: u16) -> Self {
        let rx = Receiving {
            expected: 0,
            discarding: true,
            accepted: [0; CHANNELS],
            announced: [0; CHANNELS],
            owed: None,
        };
        let tx = Sending { deadline: NEVER, ..Sending::default() };
        Self { life, spoken: false, peer: None, tx, rx, counters: LinkCounters::default() }
    }

    /// The number of the end's life.
    pub const fn life(&self) -> u16 {
        self.life
    }

    /// Returns true if the other end may know of this life.
    pub(crate) const fn has_spoken(&self) -> bool {
        self.spoken
    }

    /// The counters of the link.
    pub const fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// Returns true if the other end has answered in this life.
    pub const fn is_answered(&self) -> bool {
        self.peer.is_some()
    }

    /// Returns true if packets are being retransmitted.
    pub const fn is_resending(&self) -> bool {
        self.tx.resending
    }

    /// Returns true if arriving packets are discarded until RESTART.
    pub(crate) const fn is_discarding(&self) -> bool {
        self.rx.discarding
    }

    /// Returns true if the other end has not answered for a long time.
    pub const fn is_silent(&self) -> bool {
        self.tx.unanswered >= SILENCE
    }

    /// Number of packets in txBuffer.
    pub const fn unacknowledged(&self) -> u16 {
        self.tx.buffered
    }

    /// When [`LinkEnd::expire`] must be called, in nanoseconds; [`NEVER`] if nothing is awaited.
    pub const fn deadline(&self) -> u64 {
        self.tx.deadline
    }

    /// Announces this end's life to the other end.
    pub fn greet(&mut self, room: &Room, out: &mut dyn FnMut(Unit)) {
        self.command(ControlKind::Hello, 0, room, out);
    }

    /// Number of packets that may be sent on a channel now.
    pub fn may_send(&self, channel: Channel) -> u16 {
        if self.peer.is_none() {
            return 0;
        }
        let c = channel.index();
        // After the other end's reset, unacknowledged packets count twice for a moment.
        let room = self.tx.limits[c].wrapping_sub(self.tx.used[c]) as i16;
        (room.max(0) as u16).min(TX_BUFFER.saturating_sub(self.tx.buffered))
    }

    /// Sends packets, no more than [`LinkEnd::may_send`].
    pub fn send(&mut self, mut data: Data, now: u64, out: &mut dyn FnMut(Unit)) {
        let packets = data.packets();
        let c = data.channel().index();
        if self.tx.buffer.is_empty() {
            // Earlier waits, if any, were for room. They do not count as attempts.
            self.tx.attempts = 0;
            self.wait(now);
        }
        self.tx.used[c] = self.tx.used[c].wrapping_add(packets);
        data.seal(self.tx.next, self.outward());
        self.tx.next = (self.tx.next + packets) % SEQUENCES;
        self.tx.buffered += packets;
        self.tx.buffer.push_back(data.clone());
        self.counters.sent += u64::from(packets);
        out(Unit::Data(data));
    }

    /// Notes that a channel has packets that may not be sent now. If the end waits for nothing
    /// else, it requests the other end's room after a while, because the announcement of room may
    /// have been lost.
    pub fn stall(&mut self, channel: Channel, now: u64) {
        let bit = 1 << channel.index();
        if self.tx.stalled & bit == 0 {
            self.tx.stalled |= bit;
            self.counters.stalls += 1;
        }
        if self.tx.deadline == NEVER {
            self.wait(now);
        }
    }

    /// Notes that no packet of a channel waits for room.
    pub fn idle(&mut self, channel: Channel) {
        self.tx.stalled &= !(1 << channel.index());
        if self.tx.stalled == 0 && self.tx.buffer.is_empty() {
            self.tx.deadline = NEVER;
        }
    }

    /// Number of packets sent so far whose data will not be needed again, because they are
    /// acknowledged or were kept.
    pub(crate) fn released(&self) -> u64 {
        (self.counters.sent - u64::from(self.tx.buffered)).max(self.tx.kept)
    }

    /// Reads the memory that packets in txBuffer refer to, for the last time.
    pub(crate) fn keep(&mut self) {
        self.tx.buffer.iter().for_each(|data| data.payload.keep());
        self.tx.kept = self.counters.sent;
    }

    /// Processes a unit that came over the link. [`LinkEnd::answer`] must be called afterwards.
    pub fn arrive(
        &mut self,
        unit: Unit,
        room: &Room,
        now: u64,
        out: &mut dyn FnMut(Unit),
    ) -> Arrival {
        match unit {
            Unit::Data(data) => self.take(data, room, out),
            Unit::Control(control) => self.obey(&control, room, now, out),
        }
    }

    /// Returns true if feedback is still to be sent to the other end.
    pub(crate) const fn owes(&self) -> bool {
        self.rx.owed.is_some()
    }

    /// Answers, with the room that the reception FIFOs have now. The other end gets the pending
    /// feedback, one for everything that has arrived, or gets the room if it may be waiting
    /// for it.
    pub fn answer(&mut self, room: &Room, out: &mut dyn FnMut(Unit)) {
        if self.peer.is_none() {
            return;
        }
        if let Some(kind) = self.rx.owed.take() {
            self.feedback(kind, room, out);
            return;
        }
        let tell = (0..CHANNELS).any(|c| {
            let (announced, accepted) = (self.rx.announced[c], self.rx.accepted[c]);
            let more = accepted.wrapping_add(room[c]).wrapping_sub(announced) as i16;
            let left = announced.wrapping_sub(accepted) as i16;
            more > 0 && (more >= ANNOUNCE as i16 || left < ANNOUNCE as i16)
        });
        if tell {
            self.feedback(ControlKind::Ack, room, out);
        }
    }

    /// Handles the deadline if it has come by `now`.
    pub fn expire(&mut self, room: &Room, now: u64, out: &mut dyn FnMut(Unit)) {
        if now < self.tx.deadline {
            return;
        }
        self.tx.deadline = NEVER;
        if self.tx.buffer.is_empty() && self.tx.stalled == 0 {
            return;
        }
        self.tx.attempts = self.tx.attempts.saturating_add(1);
        self.tx.unanswered = self.tx.unanswered.saturating_add(1);
        self.counters.timeouts += 1;
        self.wait(now);
        if self.peer.is_none() {
            self.greet(room, out);
        } else {
            self.resend(room, out);
        }
    }

    /// Notes that the other end has made progress: waits start from the shortest time again.
    fn progress(&mut self, now: u64) {
        self.tx.attempts = 0;
        if self.tx.deadline != NEVER {
            self.wait(now);
        }
    }

    fn wait(&mut self, now: u64) {
        let doublings = self.tx.attempts.min(MOST_DOUBLINGS);
        self.tx.deadline = now.saturating_add(TIMEOUT_NS << doublings);
    }

    const fn outward(&self) -> Session {
        Session { from: self.life, to: self.peer_or_0() }
    }

    const fn inward(&self) -> Session {
        Session { from: self.peer_or_0(), to: self.life }
    }

    const fn peer_or_0(&self) -> u16 {
        match self.peer {
            Some(life) => life,
            None => 0,
        }
    }

    fn command(
        &mut self,
        kind: ControlKind,
        sequence: u16,
        room: &Room,
        out: &mut dyn FnMut(Unit),
    ) {
        let mut limits = self.rx.accepted;
        for (limit, room) in limits.iter_mut().zip(room) {
            *limit = limit.wrapping_add(*room);
        }
        self.rx.announced = limits;
        self.spoken = true;
        let session = self.outward();
        out(Unit::Control(Control { kind, session, sequence, limits, check: Check::Fits }));
    }

    fn feedback(&mut self, kind: ControlKind, room: &Room, out: &mut dyn FnMut(Unit)) {
        match kind {
            ControlKind::Nack => self.counters.nacks_sent += 1,
            _ => self.counters.acks_sent += 1,
        }
        self.command(kind, self.rx.expected, room, out);
    }

    /// Enters resend mode: sends RESTART and everything in txBuffer.
    fn resend(&mut self, room: &Room, out: &mut dyn FnMut(Unit)) {
        let oldest = self.tx.buffer.front().map_or(self.tx.next, Data::sequence);
        self.tx.resending = !self.tx.buffer.is_empty();
        self.counters.restarts += 1;
        self.command(ControlKind::Restart, oldest, room, out);
        for data in &self.tx.buffer {
            out(Unit::Data(data.clone()));
        }
        self.counters.resent += u64::from(self.tx.buffered);
    }

    fn take(&mut self, mut data: Data, room: &Room, out: &mut dyn FnMut(Unit)) -> Arrival {
        let packets = data.packets();
        if self.peer.is_none() {
            self.counters.discarded += u64::from(packets);
            self.greet(room, out);
            return Arrival::Nothing;
        }
        if self.rx.discarding {
            self.counters.discarded += u64::from(packets);
            return Arrival::Nothing;
        }
        let channel = data.channel().index();
        if packets == 0 || !data.fits(self.inward()) {
            self.counters.crc_errors += 1;
            return self.refuse();
        }
        // The first packets of a run may have arrived before, and the others not.
        let again = ahead(self.rx.expected, data.sequence());
        if again < packets {
            self.counters.discarded += u64::from(again);
            data.skip(again);
        }
        let packets = data.packets();
        match ahead(data.sequence(), self.rx.expected) {
            0 if packets <= room[channel] => {
                self.rx.expected = (self.rx.expected + packets) % SEQUENCES;
                self.rx.accepted[channel] = self.rx.accepted[channel].wrapping_add(packets);
                self.counters.received += u64::from(packets);
                self.rx.owed = Some(ControlKind::Ack);
                Arrival::Data(data)
            }
            // There is no room. A NACK would cause an immediate retransmission; the sender's
            // timeout is slower.
            0 => {
                self.rx.discarding = true;
                self.counters.discarded += u64::from(packets);
                Arrival::Nothing
            }
            // It arrived before, and its feedback was lost or is in flight.
            SEQUENCES_HALF.. => {
                self.counters.discarded += u64::from(packets);
                self.rx.owed = Some(ControlKind::Ack);
                Arrival::Nothing
            }
            _ => {
                self.counters.sequence_errors += 1;
                self.refuse()
            }
        }
    }

    fn refuse(&mut self) -> Arrival {
        self.rx.discarding = true;
        self.rx.owed = Some(ControlKind::Nack);
        Arrival::Nothing
    }

    fn obey(
        &mut self,
        control: &Control,
        room: &Room,
        now: u64,
        out: &mut dyn FnMut(Unit),
    ) -> Arrival {
        let Session { from, to } = control.session;
        if !control.fits() || from == 0 {
            self.counters.crc_errors += 1;
            return Arrival::Nothing;
        }
        let mut arrival = Arrival::Nothing;
        match self.peer {
            Some(peer) if peer == from => {}
            // The command is from a life that is over.
            Some(peer) if (from.wrapping_sub(peer) as i16) < 0 => return Arrival::Nothing,
            known => {
                if known.is_some() {
                    self.counters.renewals += 1;
                    arrival = Arrival::Renewed;
                }
                self.meet(from, room, now, out);
            }
        }
        if to != self.life {
            self.greet(room, out);
            return arrival;
        }
        // Only acknowledgements grant room. So the unacknowledged packets of a channel, which are
        // retransmitted after a reset, are never more than its FIFO has room for.
        if matches!(control.kind, ControlKind::Ack | ControlKind::Nack) {
            let mut more = false;
            for (limit, new) in self.tx.limits.iter_mut().zip(control.limits) {
                if new.wrapping_sub(*limit) as i16 > 0 {
                    *limit = new;
                    more = true;
                }
            }
            if more {
                self.progress(now);
            }
        }
        self.tx.unanswered = 0;
        match control.kind {
            ControlKind::Hello => {}
            ControlKind::Ack => self.acknowledge(control.sequence, now),
            ControlKind::Nack => {
                self.counters.nacks_received += 1;
                self.acknowledge(control.sequence, now);
                if !self.tx.buffer.is_empty() {
                    self.wait(now);
                }
                self.resend(room, out);
            }
            ControlKind::Restart => {
                self.rx.discarding = false;
                self.rx.owed = Some(ControlKind::Ack);
            }
        }
        arrival
    }

    /// Notes that everything before this sequence number has arrived.
    fn acknowledge(&mut self, sequence: u16, now: u64) {
        let oldest = self.tx.next.wrapping_sub(self.tx.buffered) % SEQUENCES;
        let mut arrived = ahead(sequence, oldest);
        if arrived > self.tx.buffered {
            return;
        }
        if arrived > 0 {
            self.tx.buffered -= arrived;
            self.progress(now);
        }
        while let Some(data) = self.tx.buffer.front_mut()
            && arrived > 0
        {
            let packets = data.packets();
            if packets > arrived {
                data.skip(arrived);
                break;
            }
            arrived -= packets;
            self.tx.buffer.pop_front();
        }
        if self.tx.buffer.is_empty() {
            self.tx.resending = false;
            if self.tx.stalled == 0 {
                self.tx.deadline = NEVER;
            }
        }
    }

    /// Notes the other end's new life. Unacknowledged packets are retransmitted, as the first
    /// packets of the session.
    fn meet(&mut self, peer: u16, room: &Room, now: u64, out: &mut dyn FnMut(Unit)) {
        self.peer = Some(peer);
        let session = self.outward();
        self.tx.used = [0; CHANNELS];
        self.tx.limits = [0; CHANNELS];
        self.tx.next = 0;
        (self.tx.attempts, self.tx.unanswered) = (0, 0);
        for data in &mut self.tx.buffer {
            data.seal(self.tx.next, session);
            let (c, packets) = (data.channel().index(), data.packets());
            self.tx.next = (self.tx.next + packets) % SEQUENCES;
            self.tx.used[c] = self.tx.used[c].wrapping_add(packets);
        }
        self.rx.expected = 0;
        self.rx.discarding = true;
        self.rx.accepted = [0; CHANNELS];
        self.rx.owed = None;
        if !self.tx.buffer.is_empty() || self.tx.stalled != 0 {
            self.wait(now);
        }
        self.resend(room, out);
    }
}

const SEQUENCES_HALF: u16 = SEQUENCES / 2;
