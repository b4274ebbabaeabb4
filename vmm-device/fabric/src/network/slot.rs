//! What a node has for each port and TNI, and what it counts there.

use super::agenda::NEVER;
use super::arena::{Arena, NONE};
use super::crossbar::{QUEUES, Queues, Turns, bits};
use super::frame::{Far, SLOTS};
use super::message::Ps;

/// Index of the replay buffer's credit in [`Output::credit`].
pub(super) const REPLAY: usize = QUEUES;

/// A port or a TNI. A hop touches the input of one and the output of another one at its node, and
/// the returns of one at the node before; each is a cache line, and a node's are side by side.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) input: Input,
    pub(super) output: Output,
    pub(super) returns: Returns,
}

/// No [`Watched`].
pub(super) const UNWATCHED: u32 = u32::MAX;

/// The input half of a slot.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Input {
    /// First and last frame of each queue.
    pub(super) head: [u32; QUEUES],
    pub(super) tail: [u32; QUEUES],
    /// Until when the crossbar takes in something.
    pub(super) busy_until: Ps,
    /// Where the other end of the link is: the engine that has it, and the port's slot there.
    pub(super) far: Far,
    /// Where the state of what comes in is, if things go wrong on it.
    pub(super) watched: u32,
    /// Bytes of frames that came in.
    pub(super) bytes: Tally,
    /// Frames that came in.
    pub(super) frames: Tally,
    /// Picoseconds in which frames waited while the crossbar took in nothing.
    pub(super) wait: Tally,
}

/// The lower half of a count, whose upper half is in [`Counts`], as that is seldom needed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally(u32);

impl Tally {
    /// Adds to the count. Returns the carry into the upper half, mostly 0.
    #[inline]
    #[must_use]
    pub(super) const fn add(&mut self, n: u64) -> u64 {
        let sum = self.0 as u64 + n;
        self.0 = sum as u32;
        sum >> 32
    }

    pub(super) const fn with(self, upper: u64) -> u64 {
        upper << 32 | self.0 as u64
    }
}

/// The output half of a slot.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Output {
    /// The queues whose first frame wants to leave here, and the bits of the channels on which
    /// they do.
    pub(super) waiting: Queues,
    pub(super) channels: [Queues; 2],
    /// When the link, or the way to the TNI, is free.
    pub(super) free_at: Ps,
    /// Rows that are free in the queues at the other end and in the replay buffer, as far as is
    /// known here.
    pub(super) credit: [u16; QUEUES + 1],
    /// No frame that waits for a channel has fewer rows.
    pub(super) least: [u8; QUEUES],
    pub(super) turns: Turns,
    /// Channels for which [`Counts::zero_since`] has a time.
    pub(super) zero: u8,
    /// Frames that had come in as a whole before they left here.
    pub(super) stored: Tally,
    /// Where the rest of the link's state is, if things go wrong on it.
    pub(super) watched: u32,
    /// The link is down, or there is none.
    pub(super) down: bool,
    /// The link closes a ring.
    pub(super) date_line: bool,
}

/// The credit that will have come back to an output.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Returns {
    /// When, to which channel, and how many rows, in no order. A link seldom has more under way.
    pub(super) at: [Ps; RING],
    pub(super) vc: [u8; RING],
    pub(super) rows: [u8; RING],
    pub(super) len: u8,
    /// Channels for which a frame waits without any credit on its way.
    pub(super) starved: u8,
    /// Returns beyond [`RING`]: the last of a circular list of [`Returned`].
    pub(super) more: u32,
    /// Room in the replay buffer: the last of a circular list of [`Returned`].
    pub(super) replay: u32,
}

/// Places of [`Returns`].
pub(super) const RING: usize = 4;

impl Returns {
    /// When the next of what found a place here is back on a channel.
    pub(super) fn next_at(&self, vc: usize) -> Ps {
        let places = 0..usize::from(self.len);
        let of = places.filter(|n| usize::from(self.vc[*n]) == vc).map(|n| self.at[n]);
        of.fold(NEVER, Ps::min)
    }
}

const _: () = assert!(size_of::<Slot>() == 192, "a cache line for each of the three");

impl Output {
    /// The queues that wait for a channel.
    #[inline]
    pub(super) const fn wants(&self, vc: usize) -> Queues {
        let [low, high] = self.channels;
        let low = if vc & 1 == 0 { !low } else { low };
        let high = if vc & 2 == 0 { !high } else { high };
        self.waiting & low & high
    }

    /// The channel that a queue which waits here does so for.
    #[inline]
    pub(super) const fn channel(&self, bit: u32) -> usize {
        let [low, high] = self.channels;
        (low >> bit & 1 | (high >> bit & 1) << 1) as usize
    }

    /// The first frame of a queue wants to leave here.
    #[inline]
    pub(super) const fn ask(&mut self, bit: u32, vc: usize, rows: u8) {
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
    pub(super) const fn take(&mut self, bit: u32) {
        let others = !(1 << bit);
        self.waiting &= others;
        self.channels[0] &= others;
        self.channels[1] &= others;
    }

    /// Whether a frame finds room at the other end, as far as is known.
    #[inline]
    pub(super) const fn has_room(&self, vc: usize, rows: u16) -> bool {
        self.credit[vc % QUEUES] >= rows && self.credit[REPLAY] >= rows
    }

    /// Those of some queues that wait for a channel whose frames find room at the other end.
    #[inline]
    pub(super) fn open(
        &mut self,
        queues: Queues,
        vc: usize,
        longest: u16,
        rows: &[u8; 64],
    ) -> Queues {
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
pub(super) struct Returned {
    pub(super) at: Ps,
    pub(super) next: u32,
    pub(super) vc: u8,
    pub(super) rows: u8,
}

/// What a slot counts seldom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) frames: u64,
    pub(super) bytes: u64,
    pub(super) wait: u64,
    pub(super) stored: u64,
    pub(super) system: u64,
    pub(super) nullified: u64,
    pub(super) discarded_normal: u64,
    pub(super) discarded_system: u64,
    /// Frames that were marked as bad here while they were sent.
    pub(super) marked: u64,
    /// Time in which a frame had all but credit, by channel, and since when it is so now.
    pub(super) zero_credit: [Ps; QUEUES],
    pub(super) zero_since: [Ps; QUEUES],
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            frames: 0,
            bytes: 0,
            wait: 0,
            stored: 0,
            system: 0,
            nullified: 0,
            discarded_normal: 0,
            discarded_system: 0,
            marked: 0,
            zero_credit: [0; QUEUES],
            zero_since: [NEVER; QUEUES],
        }
    }
}

impl Counts {
    /// A frame lacks nothing but credit of a channel.
    pub(super) const fn lacks_credit(&mut self, vc: usize, now: Ps) {
        if self.zero_since[vc] == NEVER {
            self.zero_since[vc] = now;
        }
    }

    /// There is credit of a channel.
    pub(super) const fn has_credit(&mut self, vc: usize, now: Ps) {
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

/// The slot of a node, which is counted from the engine's first.
#[inline]
pub(super) const fn slot(node: u32, n: usize) -> usize {
    node as usize * SLOTS + n
}

/// Adds to a circle that is known by its last, and in which what comes first is first.
pub(super) fn push(all: &mut Arena<Returned>, last: &mut u32, returned: Returned) {
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
pub(super) fn pop(all: &mut Arena<Returned>, last: &mut u32, now: Ps) -> Option<Returned> {
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

impl Slot {
    /// An idle one, whose link leads there. A receive queue and a replay buffer have so many rows.
    pub(super) fn new((queue, replay): (u16, u16), far: Far, down: bool, date_line: bool) -> Self {
        let mut credit = [queue; QUEUES + 1];
        credit[REPLAY] = replay;
        Self {
            input: Input {
                head: [NONE; QUEUES],
                tail: [NONE; QUEUES],
                busy_until: 0,
                far,
                watched: UNWATCHED,
                bytes: Tally(0),
                frames: Tally(0),
                wait: Tally(0),
            },
            output: Output {
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
            },
            returns: Returns {
                at: [0; RING],
                vc: [0; RING],
                rows: [0; RING],
                len: 0,
                starved: 0,
                more: NONE,
                replay: NONE,
            },
        }
    }
}
