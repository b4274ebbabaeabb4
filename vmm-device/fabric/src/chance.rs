//! Reproducible random numbers: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).

/// Increment of SplitMix64's state for each number.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number that looks random and depends on every bit of `n`, which must not be 0: the finalizer
/// of SplitMix64.
pub const fn scramble(n: u64) -> u64 {
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

/// The same for any number: what SplitMix64 draws from the state `n`.
pub const fn mix(n: u64) -> u64 {
    scramble(n.wrapping_add(STEP))
}

/// A number below `end`, from one that looks random.
pub const fn below(random: u64, end: u64) -> u64 {
    ((random as u128 * end as u128) >> 64) as u64
}
