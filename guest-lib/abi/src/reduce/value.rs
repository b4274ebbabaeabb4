//! The values that gates take, pass on and return.

/// Qwords of a barrier channel's input: eight integers, or three 160-bit numbers and 32 bits left.
pub const INPUT_QWORDS: usize = 8;
/// Qwords of an intermediate value and of a result: eight integers, or three 320-bit numbers.
pub const VALUE_QWORDS: usize = 15;
/// The most integers of one reduction in the device.
pub const MAX_INTEGERS: usize = 8;
/// The most integers of one reduction of uTofu.
pub const MAX_UTOFU_INTEGERS: usize = 6;
/// The most doubles of one reduction.
pub const MAX_DOUBLES: usize = 3;

/// The operand of a barrier channel.
pub type Input = [u64; INPUT_QWORDS];
/// The value that gates pass on, and that a barrier channel returns.
pub type Value = [u64; VALUE_QWORDS];
