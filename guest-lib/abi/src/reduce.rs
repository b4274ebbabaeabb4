//! Reductions: what barrier gates compute.
//!
//! A barrier channel takes an [`Input`] of 64 bytes, as its IDATA registers do. Gates forward
//! [`Value`]s of 15 qwords, the size of their DATA_A and DATA_B registers. [`widen`] makes a value
//! from an input, and [`combine`] one from two. Every operation is associative and commutative, bit
//! for bit, so the result depends neither on the order in which signals arrive nor on the
//! algorithm.
//!
//! Public: the operations, the sizes, and the format of floating-point sums ([`fpsum`]) except for
//! its bit positions. *Ours*: the places of elements in inputs and values.

pub mod fpsum;
mod value;

use fpsum::{Input160, Sum320};

use crate::codes;

pub use value::{
    INPUT_QWORDS, Input, MAX_DOUBLES, MAX_INTEGERS, MAX_UTOFU_INTEGERS, VALUE_QWORDS, Value,
};

codes! {
    /// The operations, with their codes in signals (OP_TYPE) and in uTofu.
    ///
    /// The codes are uTofu's. That signals use the same codes is inferred.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Op {
        /// No data: the result is 0.
        Barrier = 1,
        /// Bitwise and.
        And = 2,
        /// Bitwise or.
        Or = 3,
        /// Bitwise exclusive or.
        Xor = 4,
        /// The greatest, without sign.
        Max = 5,
        /// Of pairs (number, place): the greatest number, without sign, with its place. Of equal
        /// numbers it is the lowest place, as with MPI_MAXLOC.
        MaxLoc = 6,
        /// Sum modulo 2^64.
        Sum = 7,
        /// Sum of floating-point numbers, see [`fpsum`].
        FpSum = 8,
    }
}

impl Op {
    /// The code.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// The intermediate value of an input.
///
/// Integers keep their places, and qwords 8 to 14 are 0. Bits 511:480 of an input are no part of
/// a floating-point sum.
pub fn widen(op: Op, input: &Input) -> Value {
    let mut value = [0; VALUE_QWORDS];
    match op {
        Op::Barrier => {}
        Op::FpSum => {
            for (i, number) in Input160::unpack(input).into_iter().enumerate() {
                Sum320::from(number).store(&mut value, i);
            }
        }
        _ => value[..INPUT_QWORDS].copy_from_slice(input),
    }
    value
}

/// Puts `other` into `value`. Any bits may be in both.
pub fn combine(op: Op, value: &mut Value, other: &Value) {
    let integer: fn(u64, u64) -> u64 = match op {
        Op::Barrier => {
            *value = [0; VALUE_QWORDS];
            return;
        }
        Op::FpSum => {
            for i in 0..MAX_DOUBLES {
                let sum = Sum320::load(value, i).plus(Sum320::load(other, i));
                sum.store(value, i);
            }
            return;
        }
        Op::MaxLoc => {
            let others = other[..MAX_INTEGERS].chunks_exact(2);
            for (mine, other) in value[..MAX_INTEGERS].chunks_exact_mut(2).zip(others) {
                // Of equal numbers the lowest place, as MPI_MAXLOC wants it.
                if (other[0], !other[1]) > (mine[0], !mine[1]) {
                    mine.copy_from_slice(other);
                }
            }
            return;
        }
        Op::And => |a, b| a & b,
        Op::Or => |a, b| a | b,
        Op::Xor => |a, b| a ^ b,
        Op::Max => u64::max,
        Op::Sum => u64::wrapping_add,
    };
    for (mine, other) in value[..MAX_INTEGERS].iter_mut().zip(&other[..MAX_INTEGERS]) {
        *mine = integer(*mine, *other);
    }
}

/// Returns an input of these integers, filled up with 0; `None` for more than eight.
pub fn integers(data: &[u64]) -> Option<Input> {
    let mut input = [0; INPUT_QWORDS];
    input.get_mut(..data.len())?.copy_from_slice(data);
    Some(input)
}

/// An input of doubles, given by their bits; missing ones are 0. `None` for more than three.
pub fn doubles(data: &[u64]) -> Option<Input> {
    if data.len() > MAX_DOUBLES {
        return None;
    }
    let mut numbers = [Input160::ZERO; MAX_DOUBLES];
    for (number, bits) in numbers.iter_mut().zip(data) {
        *number = Input160::from_double(*bits);
    }
    Some(Input160::pack(&numbers))
}

/// The sums in a value, rounded to doubles, as their bits.
pub fn sums(value: &Value) -> [u64; MAX_DOUBLES] {
    core::array::from_fn(|i| Sum320::load(value, i).to_double())
}

#[cfg(test)]
mod tests;
