//! Atomic operations on numbers in a region, which the endpoint of the region executes.

/// An operation. The numbers are those of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operator {
    /// The smaller one.
    Min,
    /// The greater one.
    Max,
    /// The sum.
    Sum,
    /// The product.
    Product,
    /// 1 if one is not 0, else 0.
    LogicalOr,
    /// 1 if both are not 0, else 0.
    LogicalAnd,
    /// Bits of either.
    Or,
    /// Bits of both.
    And,
    /// 1 if just one is not 0, else 0.
    LogicalXor,
    /// Bits of just one.
    Xor,
    /// No change.
    Read,
    /// The operand.
    Write,
    /// The operand if the number equals the one to compare with.
    SwapEqual,
    /// The operand if they differ.
    SwapNotEqual,
    /// The operand if the one to compare with is less than or equal to the number.
    SwapLessEqual,
    /// The operand if it is less.
    SwapLess,
    /// The operand if it is greater or equal.
    SwapGreaterEqual,
    /// The operand if it is greater.
    SwapGreater,
    /// The operand's bits where the one to compare with has ones.
    SwapMasked,
}

impl Operator {
    const ALL: [Self; 19] = [
        Self::Min,
        Self::Max,
        Self::Sum,
        Self::Product,
        Self::LogicalOr,
        Self::LogicalAnd,
        Self::Or,
        Self::And,
        Self::LogicalXor,
        Self::Xor,
        Self::Read,
        Self::Write,
        Self::SwapEqual,
        Self::SwapNotEqual,
        Self::SwapLessEqual,
        Self::SwapLess,
        Self::SwapGreaterEqual,
        Self::SwapGreater,
        Self::SwapMasked,
    ];

    /// The operation of a number.
    pub fn of(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Returns whether it compares with a second operand.
    pub const fn compares(self) -> bool {
        self as u8 >= Self::SwapEqual as u8
    }

    const fn is_bitwise(self) -> bool {
        matches!(self, Self::Or | Self::And | Self::Xor | Self::SwapMasked)
    }
}

/// The type of numbers. The numbers of the types are those of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Number {
    /// Integers of 1 byte.
    I8,
    /// The same, without a sign.
    U8,
    /// Integers of 2 bytes.
    I16,
    /// The same, without a sign.
    U16,
    /// Integers of 4 bytes.
    I32,
    /// The same, without a sign.
    U32,
    /// Integers of 8 bytes.
    I64,
    /// The same, without a sign.
    U64,
    /// Floating point of 4 bytes.
    F32,
    /// Floating point of 8 bytes.
    F64,
}

impl Number {
    const ALL: [Self; 10] = [
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F32,
        Self::F64,
    ];

    /// The type of a number.
    pub fn of(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Its bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    operator: Operator,
    number: Number,
    /// The old numbers are wanted.
    pub(super) fetches: bool,
}

impl Atomic {
    /// Creates it, if the numbers have the operation.
    pub fn new(operator: Operator, number: Number, fetches: bool) -> Option<Self> {
        let exists = !(operator.is_bitwise() && number.is_float());
        exists.then_some(Self { operator, number, fetches })
    }

    /// Returns it as a number.
    pub(super) fn encode(self) -> u64 {
        let fetches = u64::from(self.fetches) << 16;
        self.operator as u64 | (self.number as u64) << 8 | fetches
    }

    /// Returns `None` for what no peer sends.
    pub(super) fn decode(code: u64) -> Option<Self> {
        let byte = |at: u32| (code >> at & 0xff) as u32;
        let (operator, number) = (Operator::of(byte(0))?, Number::of(byte(8))?);
        Self::new(operator, number, byte(16) & 1 != 0)
    }

    /// Returns whether it reads and writes the region.
    pub(super) const fn access(self) -> super::Access {
        let only_reads = matches!(self.operator, Operator::Read);
        super::Access { read: self.fetches || only_reads, write: !only_reads }
    }

    /// The bytes of the numbers in the region, for operands of so many bytes.
    pub(super) fn length(self, operands: usize) -> Option<usize> {
        let length = if self.operator.compares() { operands / 2 } else { operands };
        length.is_multiple_of(self.number.size()).then_some(length)
    }

    /// Changes numbers. After the operands are those to compare with, if there are any.
    pub(super) fn apply(self, numbers: &mut [u8], operands: &[u8]) {
        match self.number {
            Number::I8 => self.apply_to(numbers, operands, i8::from_ne_bytes, i8::to_ne_bytes),
            Number::U8 => self.apply_to(numbers, operands, u8::from_ne_bytes, u8::to_ne_bytes),
            Number::I16 => self.apply_to(numbers, operands, i16::from_ne_bytes, i16::to_ne_bytes),
            Number::U16 => self.apply_to(numbers, operands, u16::from_ne_bytes, u16::to_ne_bytes),
            Number::I32 => self.apply_to(numbers, operands, i32::from_ne_bytes, i32::to_ne_bytes),
            Number::U32 => self.apply_to(numbers, operands, u32::from_ne_bytes, u32::to_ne_bytes),
            Number::I64 => self.apply_to(numbers, operands, i64::from_ne_bytes, i64::to_ne_bytes),
            Number::U64 => self.apply_to(numbers, operands, u64::from_ne_bytes, u64::to_ne_bytes),
            Number::F32 => self.apply_to(numbers, operands, f32::from_ne_bytes, f32::to_ne_bytes),
            Number::F64 => self.apply_to(numbers, operands, f64::from_ne_bytes, f64::to_ne_bytes),
        }
    }

    fn apply_to<T: Arithmetic, const SIZE: usize>(
        self,
        numbers: &mut [u8],
        operands: &[u8],
        from: impl Fn([u8; SIZE]) -> T,
        to: impl Fn(T) -> [u8; SIZE],
    ) {
        let compared = operands.get(numbers.len()..).unwrap_or(&[]);
        let mut operands = operands.as_chunks().0.iter();
        let mut compared = compared.as_chunks().0.iter();
        for place in numbers.as_chunks_mut().0 {
            let operand = operands.next().copied().unwrap_or([0; SIZE]);
            let compared = compared.next().copied().unwrap_or([0; SIZE]);
            *place = to(self.one(from(*place), from(operand), from(compared)));
        }
    }

    fn one<T: Arithmetic>(self, old: T, operand: T, compared: T) -> T {
        let truth = |value: bool| if value { T::ONE } else { T::ZERO };
        let swap_if = |condition: bool| if condition { operand } else { old };
        let (first, second) = (old != T::ZERO, operand != T::ZERO);
        match self.operator {
            Operator::Min => swap_if(operand < old),
            Operator::Max => swap_if(operand > old),
            Operator::Sum => old.sum(operand),
            Operator::Product => old.product(operand),
            Operator::LogicalOr => truth(first || second),
            Operator::LogicalAnd => truth(first && second),
            Operator::LogicalXor => truth(first != second),
            Operator::Or => old.bits(operand, |a, b| a | b),
            Operator::And => old.bits(operand, |a, b| a & b),
            Operator::Xor => old.bits(operand, |a, b| a ^ b),
            Operator::Read => old,
            Operator::Write => operand,
            Operator::SwapEqual => swap_if(compared == old),
            Operator::SwapNotEqual => swap_if(compared != old),
            Operator::SwapLessEqual => swap_if(compared <= old),
            Operator::SwapLess => swap_if(compared < old),
            Operator::SwapGreaterEqual => swap_if(compared >= old),
            Operator::SwapGreater => swap_if(compared > old),
            Operator::SwapMasked => {
                let kept = old.bits(compared, |old, mask| old & !mask);
                kept.bits(operand.bits(compared, |new, mask| new & mask), |a, b| a | b)
            }
        }
    }
}

/// The arithmetic that numbers of all types have.
trait Arithmetic: Copy + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    /// An operation on bits, which numbers with a point do not have.
    fn bits(self, other: Self, operation: impl Fn(u64, u64) -> u64) -> Self;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Arithmetic for $type {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn bits(self, other: Self, operation: impl Fn(u64, u64) -> u64) -> Self {
                operation(self as u64, other as u64) as $type
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty)*) => {$(
        impl Arithmetic for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            fn sum(self, other: Self) -> Self {
                self + other
            }
            fn product(self, other: Self) -> Self {
                self * other
            }
            fn bits(self, _: Self, _: impl Fn(u64, u64) -> u64) -> Self {
                self
            }
        }
    )*};
}

integers!(i8 u8 i16 u16 i32 u32 i64 u64);
floats!(f32 f64);

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(operator: Operator, old: i32, operand: i32, compared: i32) -> i32 {
        let atomic = Atomic::new(operator, Number::I32, false).unwrap();
        let mut numbers = old.to_ne_bytes();
        let operands = [operand.to_ne_bytes(), compared.to_ne_bytes()].concat();
        atomic.apply(&mut numbers, &operands);
        i32::from_ne_bytes(numbers)
    }

    #[test]
    fn operators_compute_what_they_say() {
        use Operator::*;
        let cases = [
            (Min, 3, -4, -4),
            (Max, 3, -4, 3),
            (Sum, i32::MAX, 1, i32::MIN),
            (Product, 3, -4, -12),
            (LogicalOr, 0, 7, 1),
            (LogicalAnd, 0, 7, 0),
            (LogicalXor, 5, 7, 0),
            (Or, 5, 3, 7),
            (And, 5, 3, 1),
            (Xor, 5, 3, 6),
            (Read, 5, 3, 5),
            (Write, 5, 3, 3),
        ];
        for (operator, old, operand, new) in cases {
            assert_eq!(changed(operator, old, operand, 0), new, "{operator:?}");
        }
        // The one to compare with is 4, and the number is 5.
        let swaps = [
            (SwapEqual, false),
            (SwapNotEqual, true),
            (SwapLessEqual, true),
            (SwapLess, true),
            (SwapGreaterEqual, false),
            (SwapGreater, false),
        ];
        for (operator, swapped) in swaps {
            assert_eq!(changed(operator, 5, 9, 4), if swapped { 9 } else { 5 }, "{operator:?}");
        }
        assert_eq!(changed(SwapMasked, 0b1111, 0b0101, 0b0110), 0b1101);
    }

    #[test]
    fn codes_come_back_or_are_refused() {
        for code in 0..1 << 17 {
            if let Some(atomic) = Atomic::decode(code) {
                assert_eq!(atomic.encode(), code);
            }
        }
        assert_eq!(Atomic::decode(19), None);
        assert_eq!(Atomic::decode(10 << 8), None);
        assert_eq!(Atomic::new(Operator::Or, Number::F64, false), None);
    }

    #[test]
    fn numbers_are_changed_one_by_one() {
        let atomic = Atomic::new(Operator::Sum, Number::F64, true).unwrap();
        let bytes = |numbers: &[f64]| numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
        let mut numbers: Vec<u8> = bytes(&[1.5, 2.5, 3.0]);
        let operands: Vec<u8> = bytes(&[0.5, -2.5, 4.0]);
        atomic.apply(&mut numbers, &operands);
        assert_eq!(numbers, bytes(&[2.0, 0.0, 7.0]) as Vec<u8>);
        assert_eq!(atomic.length(24), Some(24));
        assert_eq!(atomic.length(23), None);
    }
}
