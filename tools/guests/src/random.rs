//! Numbers for programs that act differently each time, and in the same way with the same seed.

/// xorshift64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A series of numbers.
    pub const fn new(seed: u64) -> Self {
        // Not 0, which would yield only zeros.
        Self(match seed ^ 0x5851_f42d_4c95_7f2d {
            0 => 1,
            seed => seed,
        })
    }

    /// Any number but 0.
    pub const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `n`, which must not be 0.
    pub const fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }

    /// True once in `n` times.
    pub const fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of these; there must be at least one.
    pub const fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
