//! The sending end of one direction of a link.

use crate::{Counters, Dllp, NEVER, Parameters, Ps, Rows, Seq, VCS};

/// Most frames that may be unacknowledged (*ours*): about as many of the shortest as the replay
/// buffer holds.
pub const WINDOW: usize = 64;

/// The number of times in a row that frames may be resent, or credit requested, without an answer
/// (*ours*): after more attempts the link goes down.
pub const MOST_ATTEMPTS: u16 = 256;

/// The reason for which a frame cannot be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Earlier frames are being resent.
    Replay,
    /// The replay buffer has no room for it.
    ReplayBuffer,
    /// Its virtual channel has no credit for it.
    Credit,
}

/// The effect of a DLLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// None: it was late or is impossible.
    Nothing,
    /// Frames have been acknowledged: the replay buffer has more room.
    Acknowledged,
    /// A virtual channel has more credit.
    Credit,
    /// Frames must be resent: [`Sender::resend`].
    Replay,
    /// The other end requests the latest ACK and credit updates:
    /// [`Receiver::poll`](crate::Receiver::poll).
    Polled,
}

/// The action on a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Frames must be resent: [`Sender::resend`].
    Replay,
    /// [`Dllp::Poll`] must be sent.
    Poll,
}

/// The sending end of one direction of a link: sequence numbers, the replay buffer, and the credit
/// of each virtual channel.
///
/// Its driver keeps the frames. Frames to resend are named by their sequence numbers, of which at
/// most [`WINDOW`] are in use.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Sender {
    /// Number of the next new frame.
    next: Seq,
    /// Number of the next frame on the wire: `next`, or an earlier one that is resent.
    cursor: Seq,
    /// Number of the first frame that has not been acknowledged.
    oldest: Seq,
    /// Free rows of the replay buffer.
    room: u16,
    /// Rows sent into each queue since the link came up, modulo 2^16.
    used: [u16; VCS],
    /// The limit of `used`: the rows that have left the queue, plus its size.
    limit: [u16; VCS],
    /// Rows of one queue.
    queue: u16,
    /// A bit for each virtual channel that waits for credit and may have missed it.
    starved: u8,
    /// Replays since a frame was acknowledged, and requests for credit since any was returned.
    replays: u16,
    polls: u16,
    timeout: Ps,
    /// The deadlines for an acknowledgement, and for credit.
    ack_deadline: Ps,
    credit_deadline: Ps,
    /// The size of frame n, at n % WINDOW.
    rows: [Rows; WINDOW],
}

const fn slot(seq: Seq) -> usize {
    seq.get() as usize % WINDOW
}

impl Sender {
    /// Creates the sender of a link that has just come up, with all queues empty.
    pub fn new(parameters: &Parameters) -> Self {
        Self::with_queues(parameters, [0; VCS])
    }

    /// Creates the sender of a link whose queues hold so many rows already, which are of no frame
    /// that it knows.
    pub fn with_queues(parameters: &Parameters, used: [u16; VCS]) -> Self {
        let rows = |bytes: u32| {
            u16::try_from(bytes / u32::from(parameters.row)).unwrap_or(u16::MAX).min(1 << 14)
        };
        let queue = rows(parameters.queue_bytes);
        Self {
            next: Seq::default(),
            cursor: Seq::default(),
            oldest: Seq::default(),
            room: rows(parameters.replay_bytes),
            used,
            limit: [queue; VCS],
            queue,
            starved: 0,
            replays: 0,
            polls: 0,
            timeout: parameters.timeout_ps,
            ack_deadline: NEVER,
            credit_deadline: NEVER,
            rows: [0; WINDOW],
        }
    }

    /// Number of the next new frame.
    pub const fn next(&self) -> Seq {
        self.next
    }

    /// Number of frames that have not been acknowledged.
    pub const fn unacknowledged(&self) -> u16 {
        self.next.after(self.oldest)
    }

    /// Credit of a virtual channel, in rows.
    #[inline]
    pub const fn credit(&self, vc: u8) -> u16 {
        self.limit[vc as usize % VCS].wrapping_sub(self.used[vc as usize % VCS])
    }

    /// Rows in the queue of a virtual channel or on their way to it, given how many have left it in
    /// all.
    pub const fn in_queue(&self, vc: u8, freed: u16) -> u16 {
        self.used[vc as usize % VCS].wrapping_sub(freed)
    }

    /// Rows that have left the other end's queues in all: the running totals from which a
    /// [`Receiver`](crate::Receiver) continues.
    pub(crate) fn returned(&self) -> [u16; VCS] {
        self.limit.map(|limit| limit.wrapping_sub(self.queue))
    }

    const fn has_room(&self, rows: Rows) -> bool {
        self.room >= rows as u16 && self.unacknowledged() < WINDOW as u16
    }

    /// Returns true if a new frame of that many rows may be sent on a virtual channel.
    ///
    /// # Errors
    /// The reason for which it waits.
    #[inline]
    pub const fn may_send(&self, vc: u8, rows: Rows) -> Result<(), Reason> {
        if self.is_replaying() {
            return Err(Reason::Replay);
        }
        if self.credit(vc) < rows as u16 {
            return Err(Reason::Credit);
        }
        if !self.has_room(rows) {
            return Err(Reason::ReplayBuffer);
        }
        Ok(())
    }

    /// Returns true if there are frames to be resent.
    pub const fn is_replaying(&self) -> bool {
        self.cursor.get() != self.next.get()
    }

    /// Sends a new frame, for which [`may_send`](Self::may_send) has found room. Returns its
    /// sequence number.
    #[inline]
    pub fn send(&mut self, vc: u8, rows: Rows, now: Ps, counters: &mut Counters) -> Seq {
        debug_assert!(self.may_send(vc, rows).is_ok(), "no room for this frame");
        let seq = self.next;
        self.rows[slot(seq)] = rows;
        self.next = seq.next();
        self.cursor = self.next;
        self.room = self.room.wrapping_sub(rows.into());
        let used = &mut self.used[usize::from(vc) % VCS];
        *used = used.wrapping_add(rows.into());
        if self.ack_deadline == NEVER {
            self.ack_deadline = now.saturating_add(self.timeout);
        }
        counters.send_frames += 1;
        seq
    }

    /// Marks the latest new frame as bad while it is sent, because the incoming frame was bad. The
    /// other end drops it, and its number, room and credit are free again.
    pub fn nullify(&mut self, vc: u8, counters: &mut Counters) {
        if self.oldest == self.next {
            return;
        }
        let seq = self.next.previous();
        let rows = u16::from(self.rows[slot(seq)]);
        if self.cursor == self.next {
            self.cursor = seq;
        }
        self.next = seq;
        self.room += rows;
        let used = &mut self.used[usize::from(vc) % VCS];
        *used = used.wrapping_sub(rows);
        if self.oldest == self.next {
            self.ack_deadline = NEVER;
        }
        counters.send_nullified += 1;
    }

    /// Handles a DLLP that has arrived. An impossible one has no effect.
    pub fn dllp(&mut self, dllp: Dllp, now: Ps, counters: &mut Counters) -> Effect {
        counters.recv_dllp += 1;
        match dllp {
            Dllp::Ack(seq) => {
                let frames = seq.next().after(self.oldest);
                if frames == 0 || !self.acknowledge(frames, now) {
                    return Effect::Nothing;
                }
                Effect::Acknowledged
            }
            Dllp::Nack(seq) => {
                let frames = seq.after(self.oldest);
                if !self.acknowledge(frames, now) {
                    return Effect::Nothing;
                }
                if self.oldest == self.next {
                    return if frames > 0 { Effect::Acknowledged } else { Effect::Nothing };
                }
                self.cursor = self.oldest;
                self.replays = self.replays.saturating_add(1);
                Effect::Replay
            }
            Dllp::UpdateFc { vc, total } => self.update(vc, total),
            Dllp::Poll => Effect::Polled,
        }
    }

    /// Notes that the first frames have been acknowledged. Returns false if there are not as many.
    fn acknowledge(&mut self, frames: u16, now: Ps) -> bool {
        if frames > self.unacknowledged() {
            return false;
        }
        if frames > 0 {
            self.release(frames);
            self.replays = 0;
            let waiting = self.oldest != self.next;
            self.ack_deadline = if waiting { now.saturating_add(self.timeout) } else { NEVER };
        }
        true
    }

    /// Releases the first frames.
    fn release(&mut self, frames: u16) {
        for _ in 0..frames {
            self.room += u16::from(self.rows[slot(self.oldest)]);
            if self.cursor == self.oldest {
                self.cursor = self.oldest.next();
            }
            self.oldest = self.oldest.next();
        }
    }

    pub(crate) fn update(&mut self, vc: u8, total: u16) -> Effect {
        let i = usize::from(vc) % VCS;
        self.polls = 0;
        let limit = total.wrapping_add(self.queue);
        let more = limit.wrapping_sub(self.limit[i]);
        if more == 0 || limit.wrapping_sub(self.used[i]) > self.queue || more > self.queue {
            return Effect::Nothing;
        }
        self.limit[i] = limit;
        self.starved &= !(1 << i);
        if self.starved == 0 {
            self.credit_deadline = NEVER;
        }
        Effect::Credit
    }

    /// Resends the next frame that must be resent, if any. Returns its number.
    pub fn resend(&mut self, now: Ps, counters: &mut Counters) -> Option<Seq> {
        if self.cursor == self.next {
            return None;
        }
        let seq = self.cursor;
        self.cursor = seq.next();
        self.ack_deadline = now.saturating_add(self.timeout);
        counters.send_frames += 1;
        counters.replayed += 1;
        Some(seq)
    }

    /// Notes that a frame waits for credit, because an UpdateFC may have been lost.
    pub fn starve(&mut self, vc: u8, now: Ps) {
        self.starved |= 1 << (usize::from(vc) % VCS);
        if self.credit_deadline == NEVER {
            self.credit_deadline = now.saturating_add(self.timeout);
        }
    }

    /// Returns true if so many attempts failed that the link must go down: [`MOST_ATTEMPTS`].
    pub const fn has_failed(&self) -> bool {
        self.replays > MOST_ATTEMPTS || self.polls > MOST_ATTEMPTS
    }

    /// Starts over with the frame after the latest, because the link went down. Unacknowledged
    /// frames are dropped. `lost` returns the virtual channel of a frame that the other end has not
    /// accepted, whose credit is then free again. [`Receiver::restart`](crate::Receiver::restart)
    /// comes next.
    pub fn restart(&mut self, mut lost: impl FnMut(Seq) -> Option<u8>) {
        let mut seq = self.oldest;
        while seq != self.next {
            if let Some(vc) = lost(seq) {
                let used = &mut self.used[usize::from(vc) % VCS];
                *used = used.wrapping_sub(self.rows[slot(seq)].into());
            }
            seq = seq.next();
        }
        self.release(self.unacknowledged());
        (self.replays, self.polls, self.starved) = (0, 0, 0);
        (self.ack_deadline, self.credit_deadline) = (NEVER, NEVER);
    }

    /// Returns when to call [`timeout`](Self::timeout), if nothing happens before; [`NEVER`] if
    /// nothing is pending.
    pub const fn deadline(&self) -> Ps {
        if self.ack_deadline < self.credit_deadline {
            self.ack_deadline
        } else {
            self.credit_deadline
        }
    }

    /// The action after nothing has arrived for too long. It may be called at any time.
    pub fn timeout(&mut self, now: Ps, counters: &mut Counters) -> Option<Timeout> {
        if self.oldest == self.next {
            self.ack_deadline = NEVER;
        }
        if self.ack_deadline <= now {
            self.ack_deadline = now.saturating_add(self.timeout);
            self.cursor = self.oldest;
            self.replays = self.replays.saturating_add(1);
            counters.ack_timeouts += 1;
            return Some(Timeout::Replay);
        }
        if self.credit_deadline <= now {
            self.credit_deadline = now.saturating_add(self.timeout);
            self.polls = self.polls.saturating_add(1);
            counters.credit_timeouts += 1;
            return Some(Timeout::Poll);
        }
        None
    }
}
