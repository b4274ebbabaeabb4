//! Events in the order in which they happen.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tofu_fabric::Ps;

/// A bucket is `1 << SHIFT` picoseconds wide.
const SHIFT: u32 = 10;
/// Buckets of the ring, a power of two: they reach further than a frame or a hop takes.
const BUCKETS: usize = 1024;
const WORDS: usize = BUCKETS / 64;

/// Something that happens at a node.
///
/// Events are ordered by all fields, so that the order of simultaneous events does not depend on
/// the order of pushing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    /// When.
    pub(super) at: Ps,
    /// The node and, in the low byte, what happens there.
    pub(super) what: u32,
    /// The argument of the event.
    pub(super) argument: u32,
}

impl Event {
    /// All fields in one, for faster comparison.
    #[inline]
    fn key(&self) -> u128 {
        u128::from(self.at) << 64 | u128::from(self.what) << 32 | u128::from(self.argument)
    }
}

/// A queue of events: a ring of buckets for the near future, each sorted when its time comes, and a
/// heap for what is further away.
#[derive(Debug)]
pub(super) struct Calendar {
    buckets: Box<[Vec<Event>]>,
    /// A bit for each bucket of the ring that is not empty.
    occupied: [u64; WORDS],
    /// The number of the current bucket, counted from time 0.
    base: u64,
    /// The current bucket, sorted, and how much of it is done.
    current: Vec<Event>,
    done: usize,
    /// Events pushed into the current bucket or before it.
    late: BinaryHeap<Reverse<Event>>,
    /// Events beyond the ring.
    far: BinaryHeap<Reverse<Event>>,
}

impl Calendar {
    /// An empty queue at time 0.
    pub(super) fn new() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| Vec::new()).collect(),
            occupied: [0; WORDS],
            base: 0,
            current: Vec::new(),
            done: 0,
            late: BinaryHeap::new(),
            far: BinaryHeap::new(),
        }
    }

    #[inline]
    pub(super) fn push(&mut self, event: Event) {
        let bucket = event.at >> SHIFT;
        if bucket <= self.base {
            self.late.push(Reverse(event));
        } else if bucket - self.base < BUCKETS as u64 {
            let n = bucket as usize % BUCKETS;
            self.buckets[n].push(event);
            self.occupied[n / 64] |= 1 << (n % 64);
        } else {
            self.far.push(Reverse(event));
        }
    }

    /// The number of the next bucket of the ring that is not empty.
    fn next_in_ring(&self) -> Option<u64> {
        let from = (self.base as usize + 1) % BUCKETS;
        // The first word twice: its upper part first, its lower part last.
        for i in 0..=WORDS {
            let word = (from / 64 + i) % WORDS;
            let mut bits = self.occupied[word];
            if i == 0 {
                bits &= u64::MAX << (from % 64);
            } else if i == WORDS {
                bits &= !(u64::MAX << (from % 64));
            }
            if bits != 0 {
                let n = word * 64 + bits.trailing_zeros() as usize;
                let ahead = (n + BUCKETS - from) % BUCKETS;
                return Some(self.base + 1 + ahead as u64);
            }
        }
        None
    }

    /// The number of the next bucket that is not empty.
    fn next_bucket(&self) -> Option<u64> {
        let far = self.far.peek().map(|Reverse(event)| event.at >> SHIFT);
        match (self.next_in_ring(), far) {
            (Some(ring), Some(far)) => Some(ring.min(far)),
            (ring, far) => ring.or(far),
        }
    }

    /// Makes the next bucket the current one.
    fn advance(&mut self, bucket: u64) {
        self.base = bucket;
        self.current.clear();
        self.done = 0;
        let n = bucket as usize % BUCKETS;
        std::mem::swap(&mut self.current, &mut self.buckets[n]);
        self.occupied[n / 64] &= !(1 << (n % 64));
        while let Some(Reverse(event)) = self.far.peek() {
            if event.at >> SHIFT != bucket {
                break;
            }
            self.current.push(*event);
            self.far.pop();
        }
        self.current.sort_unstable_by_key(Event::key);
    }

    /// Removes the next event, if it is due by `until`.
    #[inline]
    pub(super) fn pop(&mut self, until: Ps) -> Option<Event> {
        loop {
            let current = self.current.get(self.done);
            let late = self.late.peek().map(|Reverse(event)| event);
            let (event, is_late) = match (current, late) {
                (Some(current), Some(late)) if late < current => (*late, true),
                (Some(current), _) => (*current, false),
                (None, Some(late)) => (*late, true),
                (None, None) => {
                    let bucket = self.next_bucket()?;
                    if bucket << SHIFT > until {
                        return None;
                    }
                    self.advance(bucket);
                    continue;
                }
            };
            if event.at > until {
                return None;
            }
            if is_late {
                self.late.pop();
            } else {
                self.done += 1;
            }
            return Some(event);
        }
    }

    /// When the next event is due.
    pub(super) fn next_at(&self) -> Option<Ps> {
        let current = self.current.get(self.done).map(|event| event.at);
        let late = self.late.peek().map(|Reverse(event)| event.at);
        if let Some(at) = current.into_iter().chain(late).min() {
            return Some(at);
        }
        let ring = self.next_in_ring().and_then(|bucket| {
            let events = &self.buckets[bucket as usize % BUCKETS];
            events.iter().map(|event| event.at).min()
        });
        let far = self.far.peek().map(|Reverse(event)| event.at);
        ring.into_iter().chain(far).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a heap, with times near, far and in between, pushing between pops.
    #[test]
    fn events_come_in_order() {
        for seed in [1, 2, 3] {
            let mut calendar = Calendar::new();
            let mut heap = BinaryHeap::new();
            let mut random: u64 = seed;
            let mut now = 0;
            for round in 0..20_000u32 {
                for _ in 0..round % 3 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let range = [1, 100, 100_000, 1_000_000_000][(random >> 40) as usize % 4];
                    let event = Event {
                        at: now + (random >> 33) % range,
                        what: (random >> 20) as u32 % 5,
                        argument: round,
                    };
                    calendar.push(event);
                    heap.push(Reverse(event));
                }
                assert_eq!(calendar.next_at(), heap.peek().map(|Reverse(event)| event.at));
                let until = now + u64::from(round % 7) * 3_000;
                let expected = heap.peek().filter(|Reverse(event)| event.at <= until).copied();
                assert_eq!(calendar.pop(until).map(Reverse), expected);
                if let Some(Reverse(event)) = expected {
                    now = event.at;
                    heap.pop();
                }
            }
            while let Some(Reverse(event)) = heap.pop() {
                assert_eq!(calendar.pop(Ps::MAX), Some(event));
            }
            assert_eq!(calendar.next_at(), None);
        }
    }
}
