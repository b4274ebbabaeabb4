//! The receiving end of one direction of a link.

use crate::{Counters, Dllp, Parameters, Ps, Rows, Sender, Seq, VCS};

/// What became of a frame on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Check {
    /// It is as it was sent.
    Good,
    /// It is as it was sent, and marked as bad: a switch sent it on before it saw that.
    Nullified,
    /// It is not as it was sent, so nothing in it can be relied on.
    Bad,
}

/// What a receiver does with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It takes it in.
    Accept,
    /// It drops it and has it sent again. Where it goes on already, it is marked as bad.
    Refuse,
    /// It drops it, as another with its number will come.
    Nullified,
    /// It drops it, as it has it.
    Duplicate,
}

/// Bits of what is due: an UpdateFC for each virtual channel, and these.
const ACK: u8 = 1 << VCS;
const NACK: u8 = 1 << (VCS + 1);

/// The receiving end of one direction of a link: which frame comes next, and what there is to say
/// to the sender.
///
/// It has no queues, as whoever drives it has them; a sender with credit for a frame knows that
/// there is room.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    expected: Seq,
    /// What is due to be said, by bits, and whose turn it is among ACK and UpdateFCs.
    due: u8,
    turn: u8,
    /// Rows that have left each queue since the link came up, counted around.
    freed: [u16; VCS],
    /// When the next NACK may be sent for the frame that is expected.
    refuse_at: Ps,
    patience: Ps,
}

impl Receiver {
    /// The other end of a sender that has just been made, or of one whose returns were all said
    /// ahead so far. Rows that are still in queues count once they leave.
    pub fn new(parameters: &Parameters, sender: &Sender) -> Self {
        Self::at(parameters, sender.next(), sender.returned())
    }

    /// The receiver of a link that expects this frame next, after so many rows have left its
    /// queues, and has nothing to say.
    pub const fn at(parameters: &Parameters, expected: Seq, freed: [u16; VCS]) -> Self {
        let patience = parameters.timeout_ps / 2;
        Self { expected, due: 0, turn: 0, freed, refuse_at: 0, patience }
    }

    /// Number of the next frame that it takes in.
    pub const fn expected(&self) -> Seq {
        self.expected
    }

    /// Takes a frame that has arrived as a whole, and returns its fate. If `check` is
    /// [`Check::Bad`], its number is not looked at.
    pub fn frame(&mut self, seq: Seq, check: Check, now: Ps, counters: &mut Counters) -> Verdict {
        // Half of all numbers are behind, half ahead.
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

    /// One NACK is enough for all that follows the frame, unless it is lost or the frame is bad
    /// again.
    fn refuse(&mut self, now: Ps) {
        if now >= self.refuse_at {
            self.refuse_at = now.saturating_add(self.patience);
            self.due |= NACK;
        }
    }

    /// Says that a frame has left a virtual channel's queue.
    pub fn freed(&mut self, vc: u8, rows: Rows) {
        let i = usize::from(vc) % VCS;
        self.freed[i] = self.freed[i].wrapping_add(rows.into());
        self.due |= 1 << i;
    }

    /// Makes the latest of everything due, as the sender asks for it.
    pub fn poll(&mut self) {
        self.due |= ACK | (ACK - 1);
    }

    /// Begins anew with the sender's next frame, as the link went down, and tells it of all room.
    pub fn restart(&mut self, sender: &mut Sender) {
        self.restart_at(sender.next());
        for (vc, total) in (0..).zip(self.freed) {
            sender.update(vc, total);
        }
    }

    /// The same at its own end only, where the sender's next frame is this one.
    pub const fn restart_at(&mut self, next: Seq) {
        self.expected = next;
        (self.due, self.refuse_at) = (0, 0);
    }

    /// Rows that have left the queue of each virtual channel since the link came up, counted
    /// around.
    pub const fn freed_rows(&self) -> [u16; VCS] {
        self.freed
    }

    /// Whether there is something to say.
    pub const fn is_due(&self) -> bool {
        self.due != 0
    }

    /// What to say next, if there is something: a NACK first, then ACK and UpdateFCs in turn, so
    /// that none of them waits for good.
    pub fn take_dllp(&mut self, counters: &mut Counters) -> Option<Dllp> {
        if self.due == 0 {
            return None;
        }
        counters.send_dllp += 1;
        if self.due & NACK != 0 {
            // It acknowledges what is before it, too.
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
