//! Directions of links on which something may go wrong.

use tofu_abi::topology::{NodeId, Port};
use tofu_fabric::chance::mix;
use tofu_links::{
    Check, Counters, Dllp, ErrorRate, Lanes, NEVER, Parameters, Receiver, Sender, Seq, VCS, WINDOW,
};

use super::frame::SLOTS;

/// The random seed of the direction of a link out of a port.
pub(super) const fn seed_of(seed: u64, node: NodeId, port: Port) -> u64 {
    let slot = (node.index() * SLOTS + port.index()) as u64;
    seed ^ slot << 32
}

/// The random errors of one end.
#[derive(Debug)]
pub(super) struct Chance {
    /// Loss rate of DLLPs that this end sends about the direction.
    pub(super) dllp_loss: ErrorRate,
    seed: u64,
    draws: u64,
}

impl Chance {
    const fn new(seed: u64) -> Self {
        Self { dllp_loss: ErrorRate::NEVER, seed, draws: 0 }
    }

    /// Draws a random number: the same ones in every run with the same seed.
    pub(super) const fn draw(&mut self) -> u64 {
        self.draws += 1;
        mix(self.seed ^ mix(self.draws))
    }

    /// Draws whether a DLLP is lost.
    pub(super) fn loses(&mut self) -> bool {
        let draw = self.draw();
        self.dllp_loss.spoils(1, draw)
    }
}

/// The sending end of a direction of a link, with its whole data link layer. For other directions,
/// acknowledgements and credit are computed ahead. This one gets them by DLLPs, each of which is an
/// event.
#[derive(Debug)]
pub(super) struct Sending<Frame> {
    pub(super) sender: Sender,
    pub(super) lanes: Lanes,
    pub(super) chance: Chance,
    /// The counters of this end, and what the lanes count for the other end.
    pub(super) sent: Counters,
    /// The frames that may have to be resent, by sequence number.
    kept: Box<[Option<Frame>; WINDOW]>,
    /// When to check the sender for a timeout.
    pub(super) timer_at: u64,
    /// The slot of the port that sends.
    pub(super) slot: u32,
    /// True if anything may go wrong.
    pub(super) erring: bool,
    /// True if it is observed.
    pub(super) looked_at: bool,
}

impl<Frame: Copy> Sending<Frame> {
    /// Creates the sender of a direction whose queues at the other end already hold these rows.
    pub(super) fn new(parameters: &Parameters, in_use: [u16; VCS], seed: u64, slot: u32) -> Self {
        Self {
            sender: Sender::with_queues(parameters, in_use),
            lanes: Lanes::new(parameters),
            chance: Chance::new(seed),
            sent: Counters::default(),
            kept: Box::new([None; WINDOW]),
            timer_at: NEVER,
            slot,
            erring: false,
            looked_at: false,
        }
    }

    /// Returns true if its full state is no longer needed: nothing goes wrong or recently did, no
    /// client observes it, and nothing waits for an acknowledgement.
    pub(super) fn is_clean(&self) -> bool {
        !self.erring
            && !self.looked_at
            && self.lanes.is_as_new()
            && self.sender.unacknowledged() == 0
    }

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.kept)
    }

    pub(super) const fn keep(&mut self, seq: Seq, frame: Frame) {
        self.kept[seq.get() as usize % WINDOW] = Some(frame);
    }

    pub(super) const fn kept(&self, seq: Seq) -> Option<Frame> {
        self.kept[seq.get() as usize % WINDOW]
    }

    /// The frames that may have to be resent.
    pub(super) fn unacknowledged(&self) -> impl Iterator<Item = &Frame> {
        let next = self.sender.next().get();
        let before = 1..=self.sender.unacknowledged();
        before.filter_map(move |n| {
            self.kept[Seq::new(next.wrapping_sub(n)).get() as usize % WINDOW].as_ref()
        })
    }

    /// Sends a frame over the lanes. Returns the result of the receiver's check.
    pub(super) fn carry(&mut self, parameters: &Parameters, bytes: u16, width: u8) -> Check {
        let Self { lanes, sent, chance, .. } = self;
        lanes.carry(parameters, bytes, width, || chance.draw(), sent)
    }

    /// Starts over with the other end, as the link goes down. Returns the frames lost by that; `vc`
    /// returns the virtual channel of a frame.
    pub(super) fn restart(
        &mut self,
        receiver: &mut Receiver,
        vc: impl Fn(&Frame) -> u8,
    ) -> Vec<Frame> {
        let Self { sender, kept, .. } = self;
        let mut lost = Vec::new();
        let expected = receiver.expected();
        let unknown = sender.next().after(expected);
        sender.restart(|seq| {
            // The other end has all earlier frames.
            let frame =
                kept[seq.get() as usize % WINDOW].filter(|_| seq.after(expected) < unknown)?;
            lost.push(frame);
            Some(vc(&frame))
        });
        receiver.restart(sender);
        self.sent.failures += 1;
        lost
    }
}

/// The receiving end of the same direction.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) receiver: Receiver,
    pub(super) chance: Chance,
    pub(super) received: Counters,
    /// The slot of the port that receives.
    pub(super) slot: u32,
    /// When the latest of its DLLPs arrives at the sender.
    pub(super) said_until: u64,
    /// Lanes that it receives badly: the STAT of frames in the other direction.
    pub(super) stat: u8,
    /// Frames of each queue sent before the direction was modelled in full, so that both of the
    /// DLLPs that they cause were counted as they came in.
    pub(super) counted: [u32; VCS],
}

impl Receiving {
    /// Creates the receiver of a new sender.
    pub(super) fn new<Frame>(parameters: &Parameters, sending: &Sending<Frame>) -> Self {
        Self {
            receiver: Receiver::new(parameters, &sending.sender),
            chance: Chance::new(!sending.chance.seed),
            received: Counters::default(),
            slot: 0,
            said_until: 0,
            stat: 0,
            counted: [0; VCS],
        }
    }

    /// Takes the next DLLP that the receiver has to send, and draws whether it is lost.
    pub(super) fn next_dllp(&mut self) -> Option<(Dllp, bool)> {
        let dllp = self.receiver.take_dllp(&mut self.received)?;
        Some((dllp, self.chance.loses()))
    }
}
