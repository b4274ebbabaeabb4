//! The receiving end of one direction of a link.

use crate::{Counters, Dllp, Parameters, Ps, Rows, Sender, Seq, VCS};

/// The fate of a frame on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Check {
    /// It is intact.
    Good,
    /// It is intact, but marked as bad: a switch forwarded it before it noticed an error.
    Nullified,
    /// It is corrupted, so nothing in it can be relied on.
    Bad,
}

/// A receiver's verdict on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It accepts the frame.
    Accept,
    /// It drops the frame and requests its retransmission. If the frame is already being forwarded,
    /// it is marked as bad.
    Refuse,
    /// It drops the frame, because another one with its number will come.
    Nullified,
    /// It drops the frame, as it already has it.
    Duplicate,
}

/// Bits of what is due: an UpdateFC for each virtual channel, and these.
const ACK: u8 = 1 << VCS;
const NACK: u8 = 1 << (VCS + 1);

/// The receiving end of one direction of a link: the next expected frame, and the pending ACKs,
/// NACKs and credit updates.
///
/// Its driver has the queues; the sender's credit ensures that there is room for a frame.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    expected: Seq,
    /// DLLPs that are due, as bits, and whose turn it is among ACK and UpdateFCs.
    due: u8,
    turn: u8,
    /// Rows that have left each queue since the link came up, modulo 2^16.
    freed: [u16; VCS],
    /// When the next NACK may be sent for the frame that is expected.
    refuse_at: Ps,
    patience: Ps,
}

impl Receiver {
    /// Creates the other end of a new sender. Rows that are still in queues count once they leave.
    pub fn new(parameters: &Parameters, sender: &Sender) -> Self {
        Self::at(parameters, sender.next(), sender.returned())
    }

    /// Creates the receiver of a link that expects this frame next, after that many rows have left
    /// its queues. Nothing is due.
    pub const fn at(parameters: &Parameters, expected: Seq, freed: [u16; VCS]) -> Self {
        let patience = parameters.timeout_ps / 2;
        Self { expected, due: 0, turn: 0, freed, refuse_at: 0, patience }
    }

    /// Number of the next frame that it accepts.
    pub const fn expected(&self) -> Seq {
        self.expected
    }

    /// Handles a frame that has arrived as a whole, and returns its fate. If `check` is
    /// [`Check::Bad`], its number is ignored.
    pub fn frame(&mut self, seq: Seq, check: Check, now: Ps, counters: &mut Counters) -> Verdict {
        // Half of all numbers count as behind, half as ahead.
        let ahead = seq.after(self.expected);
        match check {
            Check::Bad => {
                counters.lcrc_errors += 1;
                self.refuse(now);
                Verdict::Refuse
            }
            _ if ahead > Seq::HALF => {
                counters.duplicates += 1;
                self.due |= ACK;
                Verdict::Duplicate
            }
            _ if ahead > 0 => {
                counters.out_of_order += 1;
                self.refuse(now);
                Verdict::Refuse
            }
            Check::Nullified => {
                counters.recv_nullified += 1;
                Verdict::Nullified
            }
            Check::Good => {
                counters.recv_frames += 1;
                self.expected = seq.next();
                self.due = self.due & !NACK | ACK;
                self.refuse_at = 0;
                Verdict::Accept
            }
        }
    }

    /// One NACK covers all frames after the bad one, unless the NACK is lost or the resent frame is
    /// bad again.
    fn refuse(&mut self, now: Ps) {
        if now >= self.refuse_at {
            self.refuse_at = now.saturating_add(self.patience);
            self.due |= NACK;
        }
    }

    /// Notes that a frame has left a virtual channel's queue.
    pub fn freed(&mut self, vc: u8, rows: Rows) {
        let i = usize::from(vc) % VCS;
        self.freed[i] = self.freed[i].wrapping_add(rows.into());
        self.due |= 1 << i;
    }

    /// Makes the latest ACK and credit updates due, because the sender has requested them.
    pub fn poll(&mut self) {
        self.due |= ACK | (ACK - 1);
    }

    /// Starts over with the sender's next frame after the link went down, and announces all room.
    pub fn restart(&mut self, sender: &mut Sender) {
        self.restart_at(sender.next());
        for (vc, total) in (0..).zip(self.freed) {
            sender.update(vc, total);
        }
    }

    /// The same at this end only, where `next` is the sender's next frame.
    pub const fn restart_at(&mut self, next: Seq) {
        self.expected = next;
        (self.due, self.refuse_at) = (0, 0);
    }

    /// Rows that have left the queue of each virtual channel since the link came up, modulo 2^16.
    pub const fn freed_rows(&self) -> [u16; VCS] {
        self.freed
    }

    /// Returns true if a DLLP is due.
    pub const fn is_due(&self) -> bool {
        self.due != 0
    }

    /// Takes the next DLLP that is due, if any: a NACK first, then ACK and UpdateFCs in turn, so
    /// that none of them waits forever.
    pub fn take_dllp(&mut self, counters: &mut Counters) -> Option<Dllp> {
        if self.due == 0 {
            return None;
        }
        counters.send_dllp += 1;
        if self.due & NACK != 0 {
            // It also acknowledges everything before it.
            self.due &= !(NACK | ACK);
            return Some(Dllp::Nack(self.expected));
        }
        while self.due & 1 << self.turn == 0 {
            self.advance();
        }
        let turn = self.turn;
        self.due &= !(1 << turn);
        self.advance();
        Some(match self.freed.get(usize::from(turn)) {
            Some(&total) => Dllp::UpdateFc { vc: turn, total },
            None => Dllp::Ack(self.expected.previous()),
        })
    }

    const fn advance(&mut self) {
        self.turn = (self.turn + 1) % (VCS as u8 + 1);
    }
}
