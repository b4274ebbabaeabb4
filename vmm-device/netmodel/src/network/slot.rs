//! The state and the counters of a node's ports and TNIs.

use tofu_fabric::Ps;

use super::agenda::NEVER;
use super::arena::{Arena, NONE};
use super::crossbar::{QUEUES, Queues, Turns, bits};
use super::frame::{Far, SLOTS};

/// Index of the replay buffer's credit in [`Output::credit`].
pub(super) const REPLAY: usize = QUEUES;

/// A port or a TNI. A hop accesses the input of one slot and the output of another at its node, and
/// the returns of a slot at the previous node. Each of these is a cache line; those of a node are
/// adjacent.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) input: Input,
    pub(super) output: Output,
    pub(super) returns: Returns,
}

/// Stands for a direction that is not modelled in full.
pub(super) const UNWATCHED: u32 = u32::MAX;

/// The input half of a slot.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Input {
    /// First and last frame of each queue.
    pub(super) head: [u32; QUEUES],
    pub(super) tail: [u32; QUEUES],
    /// Until when the crossbar takes in a frame.
    pub(super) busy_until: Ps,
    /// The other end of the link: its engine, and the slot of the port there.
    pub(super) far: Far,
    /// Index of the incoming direction's full state, if it is modelled in full.
    pub(super) watched: u32,
    /// Bytes of frames that came in.
    pub(super) bytes: Tally,
    /// Frames that came in.
    pub(super) frames: Tally,
    /// Picoseconds for which frames waited while the crossbar took in nothing.
    pub(super) wait: Tally,
}

/// The lower half of a count. The upper half is in [`Counts`], as it is seldom needed.
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
    /// The queues whose first frame requests this output, and the bits of the channels requested.
    pub(super) waiting: Queues,
    pub(super) channels: [Queues; 2],
    /// When the link, or the way to the TNI, is free.
    pub(super) free_at: Ps,
    /// Rows known to be free in the queues at the other end and in the replay buffer.
    pub(super) credit: [u16; QUEUES + 1],
    /// No frame that waits for a channel has fewer rows.
    pub(super) least: [u8; QUEUES],
    pub(super) turns: Turns,
    /// Channels for which [`Counts::zero_since`] has a time.
    pub(super) zero: u8,
    /// Frames that had arrived as a whole before they left here.
    pub(super) stored: Tally,
    /// Index of the outgoing direction's full state, if it is modelled in full.
    pub(super) watched: u32,
    /// The link is down, or there is none.
    pub(super) down: bool,
    /// The link closes a ring.
    pub(super) date_line: bool,
}

/// Credit on its way back to an output.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Returns {
    /// The time, channel and number of rows of each, unordered. A link seldom has more in flight.
    pub(super) at: [Ps; RING],
    pub(super) vc: [u8; RING],
    pub(super) rows: [u8; RING],
    pub(super) len: u8,
    /// Channels for which a frame waits while no credit is in flight.
    pub(super) starved: u8,
    /// Returns beyond [`RING`]: the last of a circular list of [`Returned`].
    pub(super) more: u32,
    /// Room in the replay buffer: the last of a circular list of [`Returned`].
    pub(super) replay: u32,
}

/// Places of [`Returns`].
pub(super) const RING: usize = 4;

impl Returns {
    /// When to look again for credit of a channel that a frame waits for. If none is in flight, the
    /// channel is starved. `beyond` has the returns beyond the ring, which may be of any channel.
    #[inline]
    pub(super) fn expect(&mut self, vc: usize, beyond: &Arena<Returned>) -> Ps {
        let places = 0..usize::from(self.len);
        let of = places.filter(|n| usize::from(self.vc[*n]) == vc).map(|n| self.at[n]);
        let at = of.fold(first_at(beyond, self.more), Ps::min);
        if at == NEVER {
            self.starved |= 1 << vc;
        }
        at
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

    /// The channel for which a queue waits here.
    #[inline]
    pub(super) const fn channel(&self, bit: u32) -> usize {
        let [low, high] = self.channels;
        (low >> bit & 1 | (high >> bit & 1) << 1) as usize
    }

    /// Notes that the first frame of a queue requests this output.
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

    /// Withdraws the request of a queue, whose frame leaves.
    #[inline]
    pub(super) const fn take(&mut self, bit: u32) {
        let others = !(1 << bit);
        self.waiting &= others;
        self.channels[0] &= others;
        self.channels[1] &= others;
    }

    /// Returns true if a frame is known to have room at the other end and in the replay buffer.
    #[inline]
    pub(super) const fn has_room(&self, vc: usize, rows: u16) -> bool {
        self.credit[vc % QUEUES] >= rows && self.credit[REPLAY] >= rows
    }

    /// Those of some queues waiting for a channel whose frames have room at the other end.
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

/// Credit on its way back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Returned {
    pub(super) at: Ps,
    pub(super) next: u32,
    pub(super) vc: u8,
    pub(super) rows: u8,
}

/// Counts of a slot that are seldom needed.
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
    /// The time for which a frame lacked nothing but credit, by channel, and since when one does
    /// now.
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
    /// Notes that a frame lacks nothing but credit of a channel.
    pub(super) const fn lacks_credit(&mut self, vc: usize, now: Ps) {
        if self.zero_since[vc] == NEVER {
            self.zero_since[vc] = now;
        }
    }

    /// Notes that a channel has credit.
    pub(super) const fn has_credit(&mut self, vc: usize, now: Ps) {
        if self.zero_since[vc] != NEVER {
            self.zero_credit[vc] += now - self.zero_since[vc];
            self.zero_since[vc] = NEVER;
        }
    }
}

/// The arrivals in a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CameIn {
    pub(super) frames: u64,
    pub(super) bytes: u64,
    pub(super) system: u64,
    pub(super) nullified: u64,
    /// The time frames waited while the crossbar took in nothing.
    pub(super) wait: Ps,
}

/// The counters of a port as a sender, apart from what the other end counts on arrival.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sending {
    /// Frames that had arrived as a whole before they left.
    pub(super) stored: u64,
    pub(super) discarded_normal: u64,
    pub(super) discarded_system: u64,
    pub(super) marked: u64,
    pub(super) zero_credit: [Ps; QUEUES],
}

/// The index of a slot in its engine. The node is counted from the engine's first.
#[inline]
pub(super) const fn slot(node: u32, n: usize) -> usize {
    node as usize * SLOTS + n
}

/// Adds to a circular list, which is known by its last element and sorted by time.
pub(super) fn push(all: &mut Arena<Returned>, last: &mut u32, returned: Returned) {
    let handle = all.add(returned);
    let mut before = *last;
    if before == NONE || all[before].at <= returned.at {
        *last = handle;
    } else {
        // Room of short frames comes back before that of longer ones that left sooner.
        while all[all[before].next].at <= returned.at {
            before = all[before].next;
        }
    }
    let first =
        if before == NONE { handle } else { std::mem::replace(&mut all[before].next, handle) };
    all[handle].next = first;
}

/// When the first element of a circular list, which is known by its last, is due.
#[inline]
pub(super) fn first_at(all: &Arena<Returned>, last: u32) -> Ps {
    if last == NONE { NEVER } else { all[all[last].next].at }
}

/// Removes the first element of a circular list, which is known by its last, if it is due.
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
    /// Creates an idle slot whose link leads to `far`. `queue` and `replay` are in rows.
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
