//! Elements of messages as the numbers that gates reduce: integers of 64 bits, and doubles.

/// A type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    I32,
    I64,
    U32,
    U64,
    Double,
}

/// An operation of MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Max,
    Min,
    Sum,
    And,
    Or,
    Xor,
}

/// A reduction of gates: an operation over words, or the sum of doubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    And,
    Or,
    Xor,
    Max,
    Sum,
    Doubles,
}

const SIGN: u64 = 1 << 63;

impl Kind {
    /// Bytes of an element.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::I32 | Self::U32 => 4,
            Self::I64 | Self::U64 | Self::Double => 8,
        }
    }

    /// Returns the reduction that does this operation on elements of this type, if there is one.
    pub(crate) fn reduction(self, op: Op) -> Option<Reduction> {
        Some(match (op, self) {
            (Op::Sum, Self::Double) => Reduction::Doubles,
            (Op::And | Op::Or | Op::Xor, Self::Double) => return None,
            (Op::And, _) => Reduction::And,
            (Op::Or, _) => Reduction::Or,
            (Op::Xor, _) => Reduction::Xor,
            (Op::Sum, _) => Reduction::Sum,
            // The smallest is the largest of the complements.
            (Op::Max | Op::Min, _) => Reduction::Max,
        })
    }

    /// Returns an element of `bytes` bytes as a word for an operation.
    pub(crate) fn word(self, op: Op, bytes: &[u8]) -> u64 {
        let mut all = [0; 8];
        all[..self.size()].copy_from_slice(&bytes[..self.size()]);
        let raw = u64::from_le_bytes(all);
        let value = match self {
            Self::I32 => i64::from(raw as u32 as i32) as u64,
            _ => raw,
        };
        match op {
            Op::Max => self.ordered(value),
            Op::Min => !self.ordered(value),
            _ => value,
        }
    }

    /// Writes the word of a result as an element.
    pub(crate) fn element(self, op: Op, word: u64, bytes: &mut [u8]) {
        let value = match op {
            Op::Max => self.unordered(word),
            Op::Min => self.unordered(!word),
            _ => word,
        };
        bytes[..self.size()].copy_from_slice(&value.to_le_bytes()[..self.size()]);
    }

    /// Returns a word whose order among unsigned ones is that of the elements.
    fn ordered(self, value: u64) -> u64 {
        match self {
            Self::U32 | Self::U64 => value,
            Self::I32 | Self::I64 => value ^ SIGN,
            // Of negative doubles, the larger has the smaller bits.
            Self::Double if value & SIGN != 0 => !value,
            Self::Double => value ^ SIGN,
        }
    }

    fn unordered(self, word: u64) -> u64 {
        match self {
            Self::U32 | Self::U64 => word,
            Self::I32 | Self::I64 => word ^ SIGN,
            Self::Double if word & SIGN != 0 => word ^ SIGN,
            Self::Double => !word,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The result of gates for two words.
    fn reduce(reduction: Reduction, a: u64, b: u64) -> u64 {
        match reduction {
            Reduction::And => a & b,
            Reduction::Or => a | b,
            Reduction::Xor => a ^ b,
            Reduction::Max => a.max(b),
            Reduction::Sum => a.wrapping_add(b),
            Reduction::Doubles => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        }
    }

    fn result<const N: usize>(kind: Kind, op: Op, a: [u8; N], b: [u8; N]) -> [u8; N] {
        let reduction = kind.reduction(op).unwrap();
        let mut bytes = [0; N];
        let word = reduce(reduction, kind.word(op, &a), kind.word(op, &b));
        kind.element(op, word, &mut bytes);
        bytes
    }

    /// Compares all operations on a type of integers.
    macro_rules! integers {
        ($kind:expr, $a:expr, $b:expr) => {{
            let (a, b) = ($a, $b);
            let all = [
                (Op::Max, a.max(b)),
                (Op::Min, a.min(b)),
                (Op::Sum, a.wrapping_add(b)),
                (Op::And, a & b),
                (Op::Or, a | b),
                (Op::Xor, a ^ b),
            ];
            for (op, expected) in all {
                let got = result($kind, op, a.to_le_bytes(), b.to_le_bytes());
                prop_assert_eq!(got, expected.to_le_bytes(), "{:?} {:?} {} {}", $kind, op, a, b);
            }
        }};
    }

    proptest! {
        #[test]
        fn results_are_those_of_the_types(a: u64, b: u64) {
            integers!(Kind::U64, a, b);
            integers!(Kind::I64, a as i64, b as i64);
            integers!(Kind::U32, a as u32, b as u32);
            integers!(Kind::I32, a as i32, b as i32);
        }

        #[test]
        fn doubles_are_in_order(a in any::<f64>(), b in any::<f64>()) {
            let of = |op| f64::from_le_bytes(
                result(Kind::Double, op, a.to_le_bytes(), b.to_le_bytes()));
            prop_assert_eq!(of(Op::Max), a.max(b));
            prop_assert_eq!(of(Op::Min), a.min(b));
            prop_assert_eq!(of(Op::Sum), a + b);
        }
    }

    #[test]
    fn bits_of_doubles_are_not_reduced() {
        assert_eq!(Kind::Double.reduction(Op::And), None);
        assert_eq!(Kind::Double.reduction(Op::Sum), Some(Reduction::Doubles));
    }
}
