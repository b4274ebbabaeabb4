//! Free ranges of an address space.

use alloc::collections::BTreeMap;

/// The free ranges of an address space. They are allocated first-fit, in the order of addresses.
#[derive(Clone, Debug, Default)]
pub struct FreeList {
    /// Start and length of each range. Adjacent ranges are merged.
    ranges: BTreeMap<u64, u64>,
}

impl FreeList {
    /// Allocates `size` bytes (at least 1) at an address that is `phase` above a multiple of
    /// `align`, a power of two greater than `phase`. `None` if there is no such range.
    pub fn take(&mut self, size: u64, align: u64, phase: u64) -> Option<u64> {
        debug_assert!(size > 0 && align.is_power_of_two() && phase < align);
        let (start, len, at) = self.ranges.iter().find_map(|(&start, &len)| {
            let gap = phase.wrapping_sub(start) & (align - 1);
            let needed = gap.checked_add(size)?;
            (needed <= len).then_some((start, len, start + gap))
        })?;
        self.ranges.remove(&start);
        if at > start {
            self.ranges.insert(start, at - start);
        }
        let left = start + len - (at + size);
        if left > 0 {
            self.ranges.insert(at + size, left);
        }
        Some(at)
    }

    /// Adds `len` bytes from `start` on. They must not be free yet.
    pub fn give(&mut self, mut start: u64, mut len: u64) {
        if len == 0 {
            return;
        }
        if let Some((&before, &n)) = self.ranges.range(..start).next_back()
            && before + n == start
        {
            self.ranges.remove(&before);
            start = before;
            len += n;
        }
        if let Some(n) = self.ranges.remove(&(start + len)) {
            len += n;
        }
        self.ranges.insert(start, len);
    }

    /// Total size of the free ranges, in bytes.
    pub fn total(&self) -> u64 {
        self.ranges.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    fn list(ranges: &[(u64, u64)]) -> FreeList {
        let mut list = FreeList::default();
        for (start, len) in ranges {
            list.give(*start, *len);
        }
        list
    }

    #[test]
    fn first_fitting_range_is_cut() {
        let mut free = list(&[(0x1000, 0x1000), (0x8000, 0x10_0000)]);
        assert_eq!(free.take(0x2000, 0x1000, 0), Some(0x8000));
        assert_eq!(free.take(0x1000, 0x1000, 0), Some(0x1000));
        assert_eq!(free.take(0x1000, 0x1_0000, 0), Some(0x1_0000));
        // The range that the alignment skipped is still free.
        assert_eq!(free.take(0x6000, 0x1000, 0), Some(0xa000));
        assert_eq!(free.take(1 << 40, 1, 0), None);
        assert_eq!(free.take(u64::MAX, 1, 0), None);
    }

    #[test]
    fn phase_is_kept() {
        let mut free = list(&[(0x1000, 1 << 30)]);
        let at = free.take(0x30_0000, 0x20_0000, 0x3000).unwrap();
        assert_eq!(at % 0x20_0000, 0x3000);
        assert_eq!(at, 0x3000);
    }

    #[test]
    fn neighbours_grow_together() {
        let mut free = list(&[(0, 0x4000)]);
        let [a, b, c, d] = [(); 4].map(|()| free.take(0x1000, 0x1000, 0).unwrap());
        assert_eq!(free.total(), 0);
        for start in [b, d, a, c] {
            free.give(start, 0x1000);
        }
        assert_eq!(free.take(0x4000, 0x1000, 0), Some(0));
    }

    proptest! {
        /// For any order of allocations and frees, ranges are aligned, in bounds and disjoint, and
        /// in the end everything is one range again.
        #[test]
        fn ranges_never_overlap(
            steps in proptest::collection::vec(
                (1u64..0x4000, 0u32..14, any::<u64>(), any::<bool>()),
                1..200,
            )
        ) {
            const START: u64 = 0x1000;
            const LEN: u64 = 0x10_0000;
            let mut free = list(&[(START, LEN)]);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (size, bits, random, give) in steps {
                if give && !taken.is_empty() {
                    let (start, len) = taken.swap_remove(random as usize % taken.len());
                    free.give(start, len);
                    continue;
                }
                let align = 1 << bits;
                let phase = random % align;
                if let Some(at) = free.take(size, align, phase) {
                    prop_assert_eq!(at % align, phase);
                    prop_assert!(at >= START && at + size <= START + LEN);
                    for (start, len) in &taken {
                        prop_assert!(at + size <= *start || start + len <= at);
                    }
                    taken.push((at, size));
                }
                let used: u64 = taken.iter().map(|(_, len)| len).sum();
                prop_assert_eq!(free.total() + used, LEN);
            }
            for (start, len) in taken {
                free.give(start, len);
            }
            prop_assert_eq!(free.take(LEN, 1, 0), Some(START));
        }
    }
}
