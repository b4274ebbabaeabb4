//! Coalescing: entries and interrupts are held back, so that many of them cost little more than
//! one.

use tofu_inspect::{Inspect, Time, Visit, inspect};

/// Entries of a queue, held back until they fill a cache line or the first of them has waited long
/// enough.
#[derive(Clone, Debug)]
pub(crate) struct Held<T> {
    entries: Vec<T>,
    /// Entries that make a cache line of 256 bytes.
    line: usize,
    until: u64,
}

impl<T> Held<T> {
    /// Holds nothing, for a queue whose entries have `size` bytes.
    pub(crate) const fn new(size: usize) -> Self {
        Self { entries: Vec::new(), line: 256 / size, until: u64::MAX }
    }

    /// Adds an entry that may wait for `hold_ns`. Returns whether all must be written now.
    pub(crate) fn push(&mut self, entry: T, hold_ns: u64, now_ns: u64) -> bool {
        self.entries.push(entry);
        if hold_ns == 0 || self.entries.len() >= self.line {
            return true;
        }
        if self.until == u64::MAX {
            self.until = now_ns.saturating_add(hold_ns);
        }
        false
    }

    /// Returns the entries, which are no longer held back.
    pub(crate) fn release(&mut self) -> &mut Vec<T> {
        self.until = u64::MAX;
        &mut self.entries
    }

    /// Holds the entries that are left back until this time, in nanoseconds.
    pub(crate) fn hold(&mut self, until: u64) {
        self.until = until;
    }

    /// An entry that is held back, the oldest first.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.entries.get(index)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// When they must be written, in nanoseconds; `u64::MAX` if there are none.
    pub(crate) const fn until(&self) -> u64 {
        self.until
    }
}

impl<T> Inspect for Held<T> {
    fn inspect(&self, visit: Visit<'_>) {
        let Self { entries, line: _, until } = self;
        visit.tree(|tree| {
            tree.add("entries", &entries.len());
            tree.add("until", &Time(*until));
        });
    }
}

/// The interrupt for entries that were written, held back until there are enough of them or the
/// first has waited long enough.
#[derive(Clone, Debug)]
pub(crate) struct HeldInterrupt {
    entries: u64,
    until: u64,
}

inspect!(HeldInterrupt { entries, until as time });

impl HeldInterrupt {
    pub(crate) const NONE: Self = Self { entries: 0, until: u64::MAX };

    /// Notes `n` more entries. Returns whether the interrupt must be requested now: if there are
    /// `count` of them, or neither `count` nor `hold_ns` holds it back.
    pub(crate) fn add(&mut self, n: u64, count: u64, hold_ns: u64, now_ns: u64) -> bool {
        self.entries = self.entries.saturating_add(n);
        let (by_count, by_time) = (count > 1, hold_ns > 0);
        if (!by_count && !by_time) || (by_count && self.entries >= count) {
            *self = Self::NONE;
            return true;
        }
        if by_time && self.until == u64::MAX {
            self.until = now_ns.saturating_add(hold_ns);
        }
        false
    }

    /// Returns true if the interrupt is due by now; if so, it is no longer held back.
    pub(crate) fn expire(&mut self, now_ns: u64) -> bool {
        let due = self.until <= now_ns;
        if due {
            *self = Self::NONE;
        }
        due
    }

    /// When the interrupt is due, in nanoseconds; `u64::MAX` if that depends on further entries.
    pub(crate) const fn until(&self) -> u64 {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_wait_for_a_line_or_a_deadline() {
        let mut held = Held::new(64);
        assert!(held.push(0, 0, 100), "nothing holds it back");
        held.release().clear();
        assert!(!held.push(1, 50, 100) && !held.push(2, 50, 120) && !held.push(3, 50, 140));
        assert_eq!(held.until(), 150);
        assert!(held.push(4, 50, 145), "a line of four");
        assert_eq!(held.release().drain(..).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!((held.until(), held.len()), (u64::MAX, 0));
    }

    #[test]
    fn interrupts_wait_for_count_or_deadline() {
        let mut interrupt = HeldInterrupt::NONE;
        assert!(interrupt.add(1, 0, 0, 100) && interrupt.add(1, 1, 0, 100));
        assert!(!interrupt.add(2, 4, 0, 100) && interrupt.until() == u64::MAX);
        assert!(interrupt.add(2, 4, 0, 100));
        assert!(!interrupt.add(1, 4, 50, 100) && !interrupt.add(1, 4, 50, 120));
        assert!(!interrupt.expire(149) && interrupt.expire(150) && !interrupt.expire(151));
    }
}
