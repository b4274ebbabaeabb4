//! A node's crossbar: from which inputs it can take, and how its outputs arbitrate.
//!
//! The queues of a node's inputs are bits of a word. The queues that may send are found by bit
//! operations, without a loop over those that wait.

use tofu_abi::topology::Port;
use tofu_fabric::Ps;

use super::agenda::NEVER;
use super::arbiter::Arbiter;
use super::frame::{PORTS, SLOTS};

/// Queues of an input: virtual channels of a port, classes of a TNI.
pub(super) const QUEUES: usize = 4;

/// Some of a node's queues: a bit for input * 4 + queue.
pub(super) type Queues = u64;

/// The bit of a queue in [`Queues`].
#[inline]
pub(super) const fn bit_of(input: usize, queue: usize) -> u32 {
    (input * QUEUES + queue) as u32 % Queues::BITS
}

/// The bits of a set, lowest first.
#[inline]
pub(super) fn bits(mut set: Queues) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        if set == 0 {
            return None;
        }
        let bit = set.trailing_zeros();
        set &= set - 1;
        Some(bit)
    })
}

/// Queues by the part of the crossbar that they enter: each part has five inputs (IEEE Micro 2012).
/// That one part has the TNIs and two have the ports is ours.
const GROUPS: [Queues; 4] = [(1 << GROUP) - 1, ((1 << GROUP) - 1) << GROUP, !0 << (2 * GROUP), 0];
/// Queues of each part but the last, which has those of one more input.
const GROUP: u32 = 5 * QUEUES as u32;
/// The group after each. The fourth pads indices to two bits, and never comes.
const NEXT: [u8; GROUPS.len()] = [1, 2, 0, 0];

/// Outputs of a part of the crossbar (IEEE Micro 2012).
const PART: usize = 3;
/// The number of parts and two more, so that indices are three bits.
const PARTS: usize = 8;

/// The part that serves each output.
const PART_OF: [u8; SLOTS] = {
    let mut parts = [0; SLOTS];
    let mut n = 0;
    while n < SLOTS {
        parts[n] = (n / PART) as u8;
        n += 1;
    }
    parts
};

/// For each queue: queues that are blocked while a frame is taken from it, and queues (those of its
/// input) from which the same part cannot take.
const KEPT: [(Queues, Queues); Queues::BITS as usize] = {
    let mut kept = [(0, 0); Queues::BITS as usize];
    let mut bit = 0;
    while bit < kept.len() {
        let input = ((1 << QUEUES) - 1) << (bit / QUEUES * QUEUES);
        kept[bit] = (if bit < PORTS * QUEUES { 1 << bit } else { input }, input);
        bit += 1;
    }
    kept
};

/// A power of two, at least the number of frames that the crossbar may be taking in: one of each
/// queue.
const MOST: usize = Queues::BITS as usize;

/// The frames that a crossbar is taking in.
///
/// At a time it takes one frame from a port for each of its parts, one frame in all from a TNI, and
/// never two from one queue.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Crossbar {
    /// Queues from which nothing else can be taken, and those from which each part cannot take.
    busy: Queues,
    parts: [Queues; PARTS],
    /// Frames being taken in, as a ring with the first to finish at its head: queue and part, with
    /// the times in `until`.
    head: u8,
    len: u8,
    taken: [(u8, u8); MOST],
    /// Rows of the first frame of each queue.
    pub(super) rows: [u8; Queues::BITS as usize],
    until: [Ps; MOST],
}

impl Default for Crossbar {
    fn default() -> Self {
        Self {
            busy: 0,
            parts: [0; PARTS],
            head: 0,
            len: 0,
            taken: [(0, 0); MOST],
            rows: [0; Queues::BITS as usize],
            until: [0; MOST],
        }
    }
}

impl Crossbar {
    /// Starts a transfer that ends at `until`. Finished ones must have been removed.
    #[inline]
    pub(super) const fn take(&mut self, bit: u32, output: usize, until: Ps) {
        let part = PART_OF[output % SLOTS];
        let (queue, input) = KEPT[bit as usize % KEPT.len()];
        self.busy |= queue;
        self.parts[part as usize % PARTS] |= input;
        let mut place = self.head as usize + self.len as usize;
        self.len += 1;
        // Short frames finish before longer ones that began sooner.
        while place != self.head as usize && self.until[(place - 1) % MOST] > until {
            self.until[place % MOST] = self.until[(place - 1) % MOST];
            self.taken[place % MOST] = self.taken[(place - 1) % MOST];
            place -= 1;
        }
        self.until[place % MOST] = until;
        self.taken[place % MOST] = (bit as u8, part);
    }

    /// Releases the inputs of frames that are in by now.
    #[inline]
    pub(super) const fn release(&mut self, now: Ps) {
        while self.len > 0 && self.until[self.head as usize % MOST] <= now {
            let (bit, part) = self.taken[self.head as usize % MOST];
            let (queue, input) = KEPT[bit as usize % KEPT.len()];
            self.busy &= !queue;
            self.parts[part as usize % PARTS] &= !input;
            self.head = (self.head + 1) % MOST as u8;
            self.len -= 1;
        }
    }

    /// Those of some queues from which a frame can be taken to an output now, as far as the inputs
    /// decide. Finished frames must have been released.
    #[inline]
    pub(super) const fn ready(&self, queues: Queues, output: usize) -> Queues {
        let part = PART_OF[output % SLOTS] as usize;
        queues & !(self.busy | self.parts[part % PARTS])
    }

    /// When to check again queues that are not ready.
    #[inline]
    pub(super) fn ready_at(&self, queues: Queues, output: usize) -> Ps {
        let part = PART_OF[output % SLOTS];
        let places = (usize::from(self.head)..).take(self.len.into());
        let mut kept = places.map(|place| {
            let (bit, of) = self.taken[place % MOST];
            let (queue, input) = KEPT[usize::from(bit) % KEPT.len()];
            (if of == part { queue | input } else { queue }, self.until[place % MOST])
        });
        kept.find(|(kept, _)| kept & queues != 0).map_or(NEVER, |(_, until)| until)
    }
}

/// For each output, the input from which frames go straight on: its group, and its queues.
const STRAIGHT: [(usize, Queues); SLOTS] = {
    let mut straight = [(0, 0); SLOTS];
    let mut n = 0;
    while n < PORTS {
        let queues = ((1 << QUEUES) - 1) << (Port::ALL[n].opposite().index() * QUEUES);
        let group = if GROUPS[0] & queues != 0 { 0 } else { 1 };
        straight[n] = (group, queues);
        n += 1;
    }
    straight
};

/// The queues of ports.
const FROM_PORTS: Queues = GROUPS[0] | GROUPS[1];

/// Arbitration of an output: first the crossbar's parts take turns, then the inputs of a part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turns {
    /// The group whose turn it is, and the bit whose turn it is in each group.
    group: u8,
    bit: [u8; GROUPS.len()],
}

/// The turn of an output: a queue, its group, and the group that is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) bit: u32,
    group: u8,
    next: u8,
}

impl Turns {
    /// Chooses among some queues that wait for an output.
    #[inline]
    pub(super) fn first(&self, among: Queues, rule: (Arbiter, usize)) -> Option<Turn> {
        if among == 0 {
            return None;
        }
        let (arbiter, output) = rule;
        let straight = (arbiter == Arbiter::StraightFirst).then_some(output);
        let transit = among & FROM_PORTS;
        let among = if arbiter == Arbiter::TransitFirst && transit != 0 { transit } else { among };
        if among & (among - 1) == 0 && straight.is_none() {
            let bit = among.trailing_zeros();
            let group = (bit / GROUP).min(2) as usize;
            return Some(Turn { bit, group: group as u8, next: NEXT[group % NEXT.len()] });
        }
        if let Some((group, queues)) = straight.map(|output| STRAIGHT[output % SLOTS])
            && let Some(bit) = self.first_in(group, among & queues)
        {
            return Some(Turn { bit, group: group as u8, next: self.group });
        }
        let mut group = usize::from(self.group) % GROUPS.len();
        for _ in 0..NEXT.len() - 1 {
            let next = NEXT[group];
            if let Some(bit) = self.first_in(group, among & GROUPS[group]) {
                return Some(Turn { bit, group: group as u8, next });
            }
            group = usize::from(next);
        }
        None
    }

    #[inline]
    fn first_in(&self, group: usize, among: Queues) -> Option<u32> {
        let turn = u32::from(self.bit[group % GROUPS.len()]);
        if among == 0 {
            return None;
        }
        Some((among.rotate_right(turn).trailing_zeros() + turn) % Queues::BITS)
    }

    /// Notes that a queue has had its turn.
    #[inline]
    pub(super) fn pass(&mut self, turn: Turn) {
        self.group = turn.next;
        self.bit[usize::from(turn.group) % GROUPS.len()] = ((turn.bit + 1) % Queues::BITS) as u8;
    }
}
