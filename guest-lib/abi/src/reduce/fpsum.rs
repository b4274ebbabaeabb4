//! Floating-point sums whose result does not depend on the order.
//!
//! Public: a channel's input is a number of 160 bits. It has a signed significand of 155 bits and
//! an exponent of 5 bits, which encodes -1200 to +1200 in steps of 80. Gates hold 320 bits: two
//! significands of 155 bits with neighbouring exponents. They do not normalise; if exponents
//! differ, the smaller digit is dropped. So the result is the sum of the inputs with the greatest
//! exponent, plus the sum of the inputs with the next smaller one. Both are exact as integers. All
//! other inputs are ignored.
//!
//! *Ours*, as the layout of bits is not public:
//!
//! - A number is `significand * 2^(80 * (code - 15))`, its exponent code 0 to 30. A double
//!   `m * 2^q` with an integer `m` below 2^53 has the exponent `80 * floor(q / 80)`: its
//!   significand takes up to 132 bits and the sign, which leaves room for sums of 2^22 of them.
//! - Code 31 is for what is no finite number: bits 0, 1, 2 of the significand say that there was a
//!   NaN, +infinity, -infinity. Their sum has all bits of both.
//! - Significands are in bits 154:0 in two's complement, exponent codes in bits 159:155. In 320
//!   bits the digit with the greater exponent is at bits 159:0, the other at bits 314:160; bits
//!   319:315 are 0. Three inputs are consecutive, without gaps; so are three sums.
//! - Zero has the exponent code 0. It has no sign: a sum of negative zeros is +0.
//! - A result is rounded to the nearest double, ties to even, once, at the end; beyond the greatest
//!   double it is an infinity. A NaN, or infinities of both signs, give the NaN 0x7ff8000000000000.
//!
//! An input that does not count is less than 2^-80 of the greatest input. So the error of a sum of
//! `n` numbers, before rounding, is less than `n * 2^-80` of the greatest of them.

use super::value::{INPUT_QWORDS, Input, MAX_DOUBLES, Value};

/// Bits of a significand in the third qword.
const TOP_BITS: u32 = 155 - 128;
const TOP_MASK: u64 = (1 << TOP_BITS) - 1;
/// Exponents are multiples of this.
const STEP: i32 = 80;
/// The code of exponent 0.
const BIAS: i32 = 15;
/// The code of what is no finite number.
const SPECIAL: u8 = 31;

const NAN: u64 = 1 << 0;
const PLUS_INFINITY: u64 = 1 << 1;
const MINUS_INFINITY: u64 = 1 << 2;
const SPECIALS: u64 = NAN | PLUS_INFINITY | MINUS_INFINITY;

/// Bits of a double: its fraction.
const FRACTION: u32 = 52;
const FRACTION_MASK: u64 = (1 << FRACTION) - 1;
/// Exponent of the last bit of the smallest doubles.
const LEAST: i32 = -1074;
const INFINITY: u64 = 0x7ff << FRACTION;
const QUIET_NAN: u64 = INFINITY | 1 << (FRACTION - 1);
const SIGN: u64 = 1 << 63;

/// A significand: 155 bits, two's complement, in three qwords, the upper bits of which are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Digit([u64; 3]);

impl Digit {
    const ZERO: Self = Self([0; 3]);

    /// The sum modulo 2^155.
    fn plus(self, other: Self) -> Self {
        let mut sum = [0; 3];
        add(&mut sum, &self.0, &other.0);
        sum[2] &= TOP_MASK;
        Self(sum)
    }

    fn negated(self) -> Self {
        let inverted = Self(self.0.map(|q| !q));
        inverted.plus(Self([1, 0, 0]))
    }

    /// With the sign in all upper bits.
    fn extended(self) -> [u64; 4] {
        let [low, middle, top] = self.0;
        let top = ((top << (64 - TOP_BITS)) as i64 >> (64 - TOP_BITS)) as u64;
        [low, middle, top, (top as i64 >> 63) as u64]
    }
}

/// Adds integers of `N` qwords, the lowest first.
fn add<const N: usize>(sum: &mut [u64; N], a: &[u64; N], b: &[u64; N]) {
    let mut carry = false;
    for ((sum, a), b) in sum.iter_mut().zip(a).zip(b) {
        let (partial, one) = a.overflowing_add(*b);
        let (all, two) = partial.overflowing_add(carry.into());
        *sum = all;
        carry = one || two;
    }
}

/// Bits `from..from + 64`, those beyond the end being 0.
fn window<const N: usize>(qwords: &[u64; N], from: u32) -> u64 {
    let (index, shift) = ((from / 64) as usize, from % 64);
    let at = |index: usize| qwords.get(index).copied().unwrap_or(0);
    match shift {
        0 => at(index),
        _ => at(index) >> shift | at(index + 1) << (64 - shift),
    }
}

/// Puts 160 bits, in three qwords, at bit `from`, a multiple of 32 below 320, of zeroed qwords.
fn insert(qwords: &mut [u64], from: u32, bits: &[u64; 3]) {
    let (index, shift) = ((from / 64) as usize, from % 64);
    for (i, bits) in bits.iter().enumerate() {
        if let Some(at) = qwords.get_mut(index + i) {
            *at |= bits << shift;
        }
        let next = qwords.get_mut(index + i + 1).filter(|_| shift != 0);
        if let Some(at) = next {
            *at |= bits >> (64 - shift);
        }
    }
}

/// A number as a barrier channel takes it: 160 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input160 {
    code: u8,
    digit: Digit,
}

impl Input160 {
    /// Zero, which changes no sum.
    pub const ZERO: Self = Self { code: 0, digit: Digit::ZERO };

    const fn special(kind: u64) -> Self {
        Self { code: SPECIAL, digit: Digit([kind, 0, 0]) }
    }

    /// The number of a double, given by its bits. It is exact.
    pub fn from_double(bits: u64) -> Self {
        let biased = (bits >> FRACTION & 0x7ff) as i32;
        let fraction = bits & FRACTION_MASK;
        let negative = bits & SIGN != 0;
        let (significand, exponent) = match biased {
            0x7ff => {
                return Self::special(match (fraction, negative) {
                    (0, false) => PLUS_INFINITY,
                    (0, true) => MINUS_INFINITY,
                    _ => NAN,
                });
            }
            0 => (fraction, LEAST),
            _ => (fraction | 1 << FRACTION, LEAST + biased - 1),
        };
        if significand == 0 {
            return Self::ZERO;
        }
        let shift = exponent.rem_euclid(STEP) as u32;
        let wide = u128::from(significand) << (shift % 64);
        let digit = match shift / 64 {
            0 => Digit([wide as u64, (wide >> 64) as u64, 0]),
            _ => Digit([0, wide as u64, (wide >> 64) as u64]),
        };
        let digit = if negative { digit.negated() } else { digit };
        Self { code: (exponent.div_euclid(STEP) + BIAS) as u8, digit }
    }

    fn from_bits(bits: [u64; 3]) -> Self {
        let [low, middle, top] = bits;
        let digit = Digit([low, middle, top & TOP_MASK]);
        Self { code: (top >> TOP_BITS & 0x1f) as u8, digit }
    }

    fn to_bits(self) -> [u64; 3] {
        let [low, middle, top] = self.digit.0;
        [low, middle, top | u64::from(self.code) << TOP_BITS]
    }

    /// Three numbers as an input. Its last 32 bits are 0.
    pub fn pack(numbers: &[Self; MAX_DOUBLES]) -> Input {
        let mut input = [0; INPUT_QWORDS];
        for (number, from) in numbers.iter().zip((0..).step_by(160)) {
            insert(&mut input, from, &number.to_bits());
        }
        input
    }

    /// The three numbers of an input, whose last 32 bits may be anything.
    pub fn unpack(input: &Input) -> [Self; MAX_DOUBLES] {
        core::array::from_fn(|i| {
            let from = i as u32 * 160;
            Self::from_bits([0, 64, 128].map(|offset| window(input, from + offset)))
        })
    }
}

/// A number as gates pass it on: 320 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum320 {
    /// The digit with the greater exponent.
    high: Input160,
    /// That with the next smaller one.
    low: Digit,
}

impl From<Input160> for Sum320 {
    fn from(high: Input160) -> Self {
        Self { high, low: Digit::ZERO }
    }
}

impl Sum320 {
    /// The `i`th of the three numbers of a value.
    ///
    /// # Panics
    ///
    /// If `i` is not below 3.
    pub fn load(value: &Value, i: usize) -> Self {
        let qwords = [0, 1, 2, 3, 4].map(|q| value[i * 5 + q]);
        let bits = |from: u32| [0, 64, 128].map(|offset| window(&qwords, from + offset));
        Self { high: Input160::from_bits(bits(0)), low: Input160::from_bits(bits(160)).digit }
    }

    /// Makes it the `i`th of the three numbers of a value.
    ///
    /// # Panics
    ///
    /// If `i` is not below 3.
    pub fn store(&self, value: &mut Value, i: usize) {
        let mut qwords = [0; 5];
        insert(&mut qwords, 0, &self.high.to_bits());
        insert(&mut qwords, 160, &self.low.0);
        value[i * 5..][..5].copy_from_slice(&qwords);
    }

    /// The result of a gate for two numbers.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let (greater, other) =
            if self.high.code >= other.high.code { (self, other) } else { (other, self) };
        let Input160 { code, digit } = greater.high;
        if code == SPECIAL {
            let seen = |sum: &Self| match sum.high {
                Input160 { code: SPECIAL, digit } => digit.0[0] & SPECIALS,
                _ => 0,
            };
            return Input160::special(seen(&greater) | seen(&other)).into();
        }
        match code - other.high.code {
            0 => Self {
                high: Input160 { code, digit: digit.plus(other.high.digit) },
                low: greater.low.plus(other.low),
            },
            1 => Self { high: greater.high, low: greater.low.plus(other.high.digit) },
            _ => greater,
        }
    }

    /// The nearest double, as its bits; of two that are as near, the even one.
    pub fn to_double(self) -> u64 {
        let Input160 { code, digit } = self.high;
        if code == SPECIAL {
            return match digit.0[0] & SPECIALS {
                PLUS_INFINITY => INFINITY,
                MINUS_INFINITY => SIGN | INFINITY,
                _ => QUIET_NAN,
            };
        }
        // The high digit 80 bits further up, and the low one: 236 bits at most.
        let high = digit.extended();
        let moved = [0, high[0] << 16, window(&high, 48), window(&high, 112)];
        let mut total = [0; 4];
        add(&mut total, &moved, &self.low.extended());
        let sign = if total[3] >> 63 != 0 {
            let inverted = total.map(|q| !q);
            add(&mut total, &inverted, &[1, 0, 0, 0]);
            SIGN
        } else {
            0
        };
        let last = (i32::from(code) - BIAS - 1) * STEP;
        match round(&total, last) {
            0 => 0,
            magnitude => sign | magnitude,
        }
    }
}

/// The bits of the double that is nearest to `magnitude * 2^exponent`.
fn round(magnitude: &[u64; 4], exponent: i32) -> u64 {
    let Some(top) = (0..4).rev().find(|i| magnitude[*i] != 0) else { return 0 };
    let length = top as i32 * 64 + (64 - magnitude[top].leading_zeros() as i32);
    let first = exponent + length - 1;
    if first > 1023 {
        return INFINITY;
    }
    // Exponent of the double's last bit.
    let last = (first - FRACTION as i32).max(LEAST);
    let dropped = last - exponent;
    let significand = if dropped <= 0 {
        magnitude[0] << -dropped
    } else if dropped > length {
        0
    } else {
        let dropped = dropped as u32;
        let kept = window(magnitude, dropped);
        let half = window(magnitude, dropped - 1) & 1 != 0;
        let rest = (0..4u32).any(|i| {
            let below = (dropped - 1).saturating_sub(i * 64).min(64);
            below != 0 && magnitude[i as usize] << (64 - below) != 0
        });
        kept + u64::from(half && (rest || kept & 1 != 0))
    };
    // A significand that rounding has made longer carries into the exponent, as it should, up to
    // infinity. Without its highest bit it is the smallest kind of double.
    match significand >> FRACTION {
        0 => significand,
        _ => (((last - LEAST) as u64) << FRACTION) + significand,
    }
}
