//! The events of nodes, in the order in which they happen.
//!
//! Timers are kept until they expire. Messages between nodes are sorted one window at a time, when
//! it opens. While a node runs, its next event is the least of a few numbers.

use tofu_fabric::Ps;

use super::arena::NONE;
use super::frame::{PORTS, SLOTS};

/// A time that never comes.
pub(super) const NEVER: Ps = Ps::MAX;

// Events of a node. Simultaneous events happen in this order.
/// `ARRIVE + port`: a frame's header arrives.
pub(super) const ARRIVE: u32 = 0;
/// `KICK + slot`: a TNI may have something to send.
pub(super) const KICK: u32 = 32;
/// `RETRY + rank`: an output may have something to send.
pub(super) const RETRY: u32 = 48;
/// `DLLP + port`: a DLLP arrives.
pub(super) const DLLP: u32 = 64;
/// `TIMEOUT + port`: nothing was received for too long.
pub(super) const TIMEOUT: u32 = 80;

const TNIS: usize = SLOTS - PORTS;

// Places of timers: outputs, then TNIs, then links modelled in full.
const KICKS: usize = SLOTS;
const TIMEOUTS: usize = KICKS + TNIS;
const KEYS: usize = TIMEOUTS + PORTS;

/// The key that stands for no event.
const NO_KEY: u32 = u32::MAX;

/// Width of a timer bucket in picoseconds, as a power of two.
const BUCKET: u32 = 17;
/// Number of timer buckets, a power of two: they span more than a frame takes.
const BUCKETS: usize = 16;

/// Timers of a node.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Agenda {
    /// Timers in each of the buckets from the base on, a bit for each.
    buckets: [u32; BUCKETS],
    /// Buckets that hold timers.
    occupied: u16,
    /// Ports whose links are modelled in full and have separate timers.
    pub(super) armed: u16,
    /// Timers too late for any bucket.
    far: u32,
    /// The number of the first bucket, counted from time 0.
    base: u64,
    /// When each output, and each TNI, is checked again.
    at: [Ps; TIMEOUTS],
}

impl Default for Agenda {
    fn default() -> Self {
        Self {
            buckets: [0; BUCKETS],
            occupied: 0,
            armed: 0,
            far: 0,
            base: 0,
            at: [NEVER; TIMEOUTS],
        }
    }
}

impl Agenda {
    #[inline]
    const fn place(&mut self, place: usize, at: Ps) {
        let bucket = at >> BUCKET;
        if bucket.wrapping_sub(self.base) < BUCKETS as u64 {
            let n = bucket as usize % BUCKETS;
            self.buckets[n] |= 1 << place;
            self.occupied |= 1 << n;
        } else {
            self.far |= 1 << place;
        }
    }

    #[inline]
    const fn displace(&mut self, place: usize, at: Ps) {
        let n = (at >> BUCKET) as usize % BUCKETS;
        self.far &= !(1 << place);
        self.buckets[n] &= !(1 << place);
        if self.buckets[n] == 0 {
            self.occupied &= !(1 << n);
        }
    }

    #[inline]
    const fn set(&mut self, place: usize, at: Ps) -> bool {
        let former = self.at[place];
        if at >= former {
            return false;
        }
        if former != NEVER {
            self.displace(place, former);
        }
        self.at[place] = at;
        self.place(place, at);
        true
    }

    #[inline]
    const fn clear(&mut self, place: usize) {
        self.displace(place, self.at[place]);
        self.at[place] = NEVER;
    }

    /// Ensures that an output is checked at `at` at the latest. Returns false if it will be anyway.
    #[inline]
    pub(super) const fn retry(&mut self, output: usize, at: Ps) -> bool {
        self.set(output % SLOTS, at)
    }

    /// The same for a TNI.
    pub(super) const fn kick(&mut self, tni: usize, at: Ps) -> bool {
        self.set(KICKS + tni % TNIS, at)
    }

    /// Clears the timer of an output.
    #[inline]
    pub(super) const fn retried(&mut self, output: usize) {
        self.clear(output % SLOTS);
    }

    /// Clears the timer of a TNI.
    pub(super) const fn kicked(&mut self, tni: usize) {
        self.clear(KICKS + tni % TNIS);
    }

    /// Timers that may expire in an interval. Earlier ones must have expired.
    #[inline]
    fn due(&mut self, start: Ps, end: Ps) -> u32 {
        self.base = start >> BUCKET;
        if self.far != 0 {
            for place in bits(std::mem::take(&mut self.far)) {
                self.place(place, self.at[place % TIMEOUTS]);
            }
        }
        let mut due = 0;
        let last = end.saturating_sub(1) >> BUCKET;
        for bucket in self.base..=last.min(self.base + BUCKETS as u64 - 1) {
            due |= self.buckets[bucket as usize % BUCKETS];
        }
        due | self.far
    }

    /// When the first timer expires.
    #[inline]
    pub(super) fn next_at(&self) -> Ps {
        let from = (self.base % BUCKETS as u64) as u32;
        let first = self.occupied.rotate_right(from).trailing_zeros();
        let mut set = self.far;
        if first < BUCKETS as u32 {
            set |= self.buckets[(first + from) as usize % BUCKETS];
        }
        bits(set).fold(NEVER, |next, place| next.min(self.at[place % TIMEOUTS]))
    }
}

/// The bits that are set, lowest first.
#[inline]
fn bits(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if set == 0 {
            return None;
        }
        let bit = set.trailing_zeros() as usize;
        set &= set - 1;
        Some(bit)
    })
}

/// The step by which the order of outputs is rotated, so that outputs that compete for one input
/// take turns at being first.
#[inline]
const fn turn(at: Ps) -> u32 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as u32
}

/// The output that a [`RETRY`] is for.
#[inline]
pub(super) const fn output_of(at: Ps, kind: u32) -> usize {
    (kind - RETRY + SLOTS as u32 - turn(at)) as usize % SLOTS
}

/// A message from one node to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) at: Ps,
    pub(super) argument: u32,
    /// The node, counted from the engine's first, and what happens there.
    pub(super) node: u16,
    pub(super) kind: u16,
}

/// An arrival in a window: time and kind, its argument, and the next arrival at the node.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    key: u32,
    argument: u32,
    next: u32,
}

/// A window of time.
#[derive(Debug)]
pub(super) struct Window {
    start: Ps,
    end: Ps,
    /// Mail for after this window, and when the first of it arrives.
    later: Vec<Posted>,
    soonest: Ps,
    /// Arrivals in this window, and for each node the first that was not handled yet.
    arrivals: Vec<Arrival>,
    nodes: Vec<u32>,
    // Of the running node: its timers, those of them within this window, the first of those, its
    // next arrival, and the first key beyond its turn.
    keys: [u32; KEYS],
    due: u32,
    first: u32,
    node: u32,
    next: u32,
    limit: u32,
}

impl Window {
    /// Creates an empty window at time 0, for that many nodes.
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            start: 0,
            end: 0,
            later: Vec::new(),
            soonest: NEVER,
            arrivals: Vec::new(),
            nodes: vec![NONE; nodes],
            keys: [NO_KEY; KEYS],
            due: 0,
            first: NO_KEY,
            node: 0,
            next: NONE,
            limit: 0,
        }
    }

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.later.capacity() * size_of::<Posted>()
            + self.arrivals.capacity() * size_of::<Arrival>()
            + self.nodes.capacity() * size_of::<u32>()
    }

    /// When the first event after this window is due.
    pub(super) const fn next_at(&self) -> Ps {
        self.soonest
    }

    /// Opens a window once the last one is done, and notes each node's first event in it.
    pub(super) fn open(&mut self, start: Ps, end: Ps, next_at: &mut [Ps]) {
        self.start = start;
        self.end = end;
        self.arrivals.clear();
        self.soonest = NEVER;
        for posted in std::mem::take(&mut self.later) {
            self.post(posted, next_at);
        }
    }

    /// Inserts a message to a node. Events of one time and kind have one source, and keep order.
    #[inline]
    pub(super) fn post(&mut self, posted: Posted, next_at: &mut [Ps]) {
        let Posted { at, argument, node, kind } = posted;
        if at >= self.end {
            self.later.push(posted);
            self.soonest = self.soonest.min(at);
            return;
        }
        let next_at = &mut next_at[usize::from(node)];
        *next_at = at.min(*next_at);
        let key = ((at - self.start) as u32) << 8 | u32::from(kind);
        let new = self.arrivals.len() as u32;
        let first = &mut self.nodes[usize::from(node)];
        let mut before = *first;
        let next = if before == NONE || self.arrivals[before as usize].key > key {
            std::mem::replace(first, new)
        } else {
            loop {
                let next = self.arrivals[before as usize].next;
                if next == NONE || self.arrivals[next as usize].key > key {
                    break;
                }
                before = next;
            }
            std::mem::replace(&mut self.arrivals[before as usize].next, new)
        };
        self.arrivals.push(Arrival { key, argument, next });
    }

    /// Notes a timer of the running node.
    #[inline]
    const fn note(&mut self, place: usize, at: Ps, kind: u32) {
        if at < self.end {
            let key = ((at - self.start) as u32) << 8 | kind;
            self.keys[place % KEYS] = key;
            self.due |= 1 << (place % KEYS);
            if key < self.first {
                self.first = key;
            }
        }
    }

    /// Starts running a node up to and including `until`, which is within this window.
    #[inline]
    pub(super) fn enter(&mut self, node: u32, until: Ps, agenda: &mut Agenda) {
        (self.due, self.first) = (0, NO_KEY);
        for place in bits(agenda.due(self.start, self.end)) {
            let at = agenda.at[place % TIMEOUTS];
            if place < KICKS { self.retry(place, at) } else { self.kick(place - KICKS, at) }
        }
        self.node = node;
        self.next = self.nodes[node as usize];
        self.limit = ((until - self.start + 1) as u32) << 8;
    }

    /// Sets when an output of the running node is checked.
    #[inline]
    pub(super) const fn retry(&mut self, n: usize, at: Ps) {
        let order = (n as u32 + turn(at)) % SLOTS as u32;
        self.note(n % SLOTS, at, RETRY + order);
    }

    /// Sets when a TNI is checked.
    pub(super) const fn kick(&mut self, tni: usize, at: Ps) {
        self.note(KICKS + tni, at, KICK + (PORTS + tni) as u32);
    }

    /// Sets when a port's timer expires.
    pub(super) const fn time_out(&mut self, port: usize, at: Ps) {
        self.note(TIMEOUTS + port, at, TIMEOUT + port as u32);
    }

    /// Removes the next event of the running node: its time, kind and argument.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(Ps, u32, u32)> {
        let arrival = self.arrivals.get(self.next as usize).copied();
        let arrives = arrival.map_or(NO_KEY, |arrival| arrival.key);
        let key = arrives.min(self.first);
        if key >= self.limit {
            return None;
        }
        let (at, kind) = (self.start + Ps::from(key >> 8), key & 0xff);
        if let Some(arrival) = arrival.filter(|_| arrives == key) {
            self.next = arrival.next;
            return Some((at, kind, arrival.argument));
        }
        let place = match kind {
            TIMEOUT.. => TIMEOUTS + kind as usize % SLOTS,
            RETRY.. => output_of(at, kind),
            _ => KICKS + (kind as usize % SLOTS) - PORTS,
        };
        self.due &= !(1 << place);
        let timers = bits(self.due).map(|place| self.keys[place % KEYS]);
        self.first = timers.fold(NO_KEY, u32::min);
        Some((at, kind, 0))
    }

    /// Ends the run of a node. Returns when its next message arrives, if any is left.
    pub(super) fn leave(&mut self) -> Ps {
        self.nodes[self.node as usize] = self.next;
        let arrival = self.arrivals.get(self.next as usize);
        arrival.map_or(NEVER, |arrival| self.start + Ps::from(arrival.key >> 8))
    }
}
