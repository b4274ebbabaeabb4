//! Against exact arithmetic, in any order and by any tree.

extern crate std;

use std::vec;
use std::vec::Vec;

use num_bigint::BigInt;
use proptest::prelude::*;

use super::*;

/// All doubles, and sums of them, are multiples of this: 2^-1074.
fn exact(x: f64) -> BigInt {
    let bits = x.to_bits();
    let biased = (bits >> 52 & 0x7ff) as u32;
    let fraction = bits & ((1 << 52) - 1);
    let magnitude = match biased {
        0 => BigInt::from(fraction),
        _ => BigInt::from(fraction | 1 << 52) << (biased - 1),
    };
    if x.is_sign_negative() { -magnitude } else { magnitude }
}

/// The double next to `n * 2^-1074`, by comparison with its neighbours.
fn nearest(n: &BigInt) -> f64 {
    let negative = *n < BigInt::ZERO;
    let n = if negative { -n } else { n.clone() };
    // The bits of positive doubles are in the order of their values; infinity counts as 2^1024.
    let value = |bits: u64| match bits {
        0x7ff0_0000_0000_0000 => BigInt::from(1) << 2098,
        bits => exact(f64::from_bits(bits)),
    };
    let (mut low, mut high) = (0, 0x7ff0_0000_0000_0000u64);
    if n >= value(high) {
        low = high;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if value(middle) <= n { low = middle } else { high = middle }
    }
    let (below, above) = (&n - value(low), value(high) - &n);
    let bits = match below.cmp(&above) {
        std::cmp::Ordering::Less => low,
        std::cmp::Ordering::Greater => high,
        std::cmp::Ordering::Equal => low + (low & 1),
    };
    if negative && bits != 0 { -f64::from_bits(bits) } else { f64::from_bits(bits) }
}

/// The step of exponents that a double belongs to: of its last bit, by its definition.
fn step(x: f64) -> i32 {
    let biased = (x.to_bits() >> 52 & 0x7ff) as i32;
    (biased.max(1) - 1 - 1074).div_euclid(80)
}

/// The sum as documented: exact over the numbers of the two greatest steps, rounded once.
fn reference(numbers: &[f64]) -> f64 {
    if numbers.iter().any(|x| x.is_nan()) {
        return f64::NAN;
    }
    let infinite = |sign: f64| numbers.contains(&(sign * f64::INFINITY));
    match (infinite(1.0), infinite(-1.0)) {
        (true, true) => return f64::NAN,
        (true, false) => return f64::INFINITY,
        (false, true) => return f64::NEG_INFINITY,
        (false, false) => {}
    }
    let Some(greatest) = numbers.iter().filter(|x| **x != 0.0).map(|x| step(*x)).max() else {
        return 0.0;
    };
    let counted = numbers.iter().filter(|x| **x != 0.0 && step(**x) >= greatest - 1);
    nearest(&counted.map(|x| exact(*x)).sum())
}

fn value(x: f64) -> Value {
    widen(Op::FpSum, &doubles(&[x.to_bits()]).unwrap())
}

/// Combines values two by two, those that `choose` says.
fn by_tree(op: Op, mut values: Vec<Value>, mut choose: impl FnMut(usize) -> usize) -> Value {
    while values.len() > 1 {
        let one = values.swap_remove(choose(values.len()));
        let other = choose(values.len());
        combine(op, &mut values[other], &one);
    }
    values[0]
}

fn in_order(numbers: &[f64]) -> Value {
    by_tree(Op::FpSum, numbers.iter().map(|x| value(*x)).collect(), |_| 0)
}

fn sum(numbers: &[f64]) -> f64 {
    f64::from_bits(sums(&in_order(numbers))[0])
}

/// The same double, bit by bit, except for the payload of a NaN.
fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[test]
fn cancellation_leaves_what_is_small() {
    assert_eq!(sum(&[1e16, 1.0, -1e16]), 1.0);
    assert_eq!(sum(&[1.0, 1e16, -1e16]), 1.0);
    assert_eq!(1e16 + 1.0 - 1e16, 0.0, "as the processor does it");
    // 2^-80 of the greatest, and less, may be dropped, in any position.
    assert_eq!(sum(&[1e300, 1.0, -1e300]), 0.0);
    assert_eq!(sum(&[1.0, 1e300, -1e300]), 0.0);
    // A sum that is 0 still has the exponent of what it was made of.
    assert_eq!(sum(&[1e300, -1e300, 1.0, 2.0]), 0.0);
    // More than processors keep, and all of it within the two digits.
    let (huge, tiny) = (2f64.powi(100), 2f64.powi(-20));
    assert_eq!(sum(&[huge, tiny, -huge]), tiny);
}

#[test]
fn special_values_have_defined_results() {
    let (max, min, inf, nan) = (f64::MAX, f64::MIN_POSITIVE, f64::INFINITY, f64::NAN);
    let least = f64::from_bits(1);
    let cases: &[(&[f64], f64)] = &[
        (&[0.0], 0.0),
        (&[-0.0], 0.0),
        (&[-0.0, -0.0], 0.0),
        (&[-0.0, 5.0], 5.0),
        (&[1.0, -1.0], 0.0),
        (&[max], max),
        (&[max, max], inf),
        (&[-max, -max], -inf),
        // Beyond the greatest double on the way, and back.
        (&[max, max, -max], max),
        // Half of the last place of the greatest double rounds up to infinity; less does not.
        (&[max, 2f64.powi(970)], inf),
        (&[max, 2f64.powi(969)], max),
        (&[least], least),
        (&[least, least], f64::from_bits(2)),
        (&[-least], -least),
        (&[min, -least], f64::from_bits((1 << 52) - 1)),
        (&[inf, 1.0], inf),
        (&[-inf, max], -inf),
        (&[inf, inf], inf),
        (&[inf, -inf], nan),
        (&[nan, 1.0], nan),
        (&[-nan, inf], nan),
        (&[f64::from_bits(0x7ff0_0000_0000_0001), 0.0], nan),
        // Ties go to even.
        (&[1.0, 2f64.powi(-53)], 1.0),
        (&[1.0, 2f64.powi(-52), 2f64.powi(-53)], 1.0 + 2f64.powi(-51)),
        (&[1.0, 2f64.powi(-53), least], 1.0),
        (&[1.0, 2f64.powi(-53), 2f64.powi(-79)], 1.0 + 2f64.powi(-52)),
    ];
    for (numbers, expected) in cases {
        let got = sum(numbers);
        assert!(same(got, *expected), "{numbers:?}: {got:e}, not {expected:e}");
        assert!(same(got, reference(numbers)), "{numbers:?}: {:e}", reference(numbers));
    }
    assert_eq!(sum(&[nan]).to_bits(), 0x7ff8_0000_0000_0000);
    assert_eq!(sum(&[inf, -inf]).to_bits(), 0x7ff8_0000_0000_0000);
}

#[test]
fn layout() {
    // 1 is 2^52 * 2^-52: step -1, code 14, shifted by 28.
    assert_eq!(doubles(&[1f64.to_bits()]).unwrap(), [0, 1 << 16, 14 << 27, 0, 0, 0, 0, 0]);
    // -2^-1074 is step -14, code 1, shifted by 46: all ones from bit 46 to 154.
    let negative = [!0 << 46, !0, (1 << 28) - 1];
    let least = (-f64::from_bits(1)).to_bits();
    assert_eq!(doubles(&[least]).unwrap()[..3], negative);
    // The second number begins at bit 160, the third at bit 320.
    let one = 1f64.to_bits();
    let packed = doubles(&[0, one, one]).unwrap();
    assert_eq!(packed, [0, 0, 0, 1 << 48, 14 << 59, 0, 1 << 16, 14 << 27]);
    assert_eq!(doubles(&[0; 4]), None);
    // In a value they begin at qwords 0, 5 and 10.
    let wide = widen(Op::FpSum, &packed);
    assert_eq!(wide[5..10], [0, 1 << 16, 14 << 27, 0, 0]);
    assert_eq!(wide[10..], [0, 1 << 16, 14 << 27, 0, 0]);
    // 2^80 with 1: the smaller one goes to the second digit, at bit 160 of the sum.
    let both = in_order(&[2f64.powi(80), 1.0]);
    assert_eq!(both[..5], [0, 1 << 16, 15 << 27, 1 << 48, 0]);
    assert_eq!(f64::from_bits(sums(&both)[0]), 2f64.powi(80));
}

#[test]
fn operations_on_integers() {
    let all = |op, a: &[u64], b: &[u64]| {
        let mut value = widen(op, &integers(a).unwrap());
        combine(op, &mut value, &widen(op, &integers(b).unwrap()));
        assert_eq!(value[8..], [0; 7]);
        value[..a.len()].to_vec()
    };
    assert_eq!(all(Op::Barrier, &[7; 8], &[9; 8]), [0; 8]);
    assert_eq!(all(Op::And, &[0b1100; 8], &[0b1010; 8]), [0b1000; 8]);
    assert_eq!(all(Op::Or, &[0b1100; 8], &[0b1010; 8]), [0b1110; 8]);
    assert_eq!(all(Op::Xor, &[0b1100; 8], &[0b1010; 8]), [0b0110; 8]);
    assert_eq!(all(Op::Max, &[1, u64::MAX], &[2, 0]), [2, u64::MAX]);
    assert_eq!(all(Op::Sum, &[u64::MAX, 5], &[2, 6]), [1, 11]);
    let pairs = all(Op::MaxLoc, &[5, 1, 7, 3, 9, 2, 0, 8], &[6, 0, 7, 2, 9, 3, 0, 8]);
    assert_eq!(pairs, [6, 0, 7, 2, 9, 2, 0, 8]);
    assert_eq!(integers(&[0; 9]), None);
}

#[test]
fn codes_come_back() {
    for op in Op::ALL {
        assert_eq!(Op::from_code(op.code()), Some(op));
    }
    assert_eq!((Op::from_code(0), Op::from_code(9)), (None, None));
}

/// Any double, with those at the edges, of one magnitude, and that cancel each other often.
fn double() -> impl Strategy<Value = f64> {
    let edge = prop::sample::select(vec![
        0.0,
        -0.0,
        1.0,
        -1.0,
        1e16,
        -1e16,
        f64::MAX,
        f64::MIN,
        f64::MIN_POSITIVE,
        f64::from_bits(1),
        -f64::from_bits(1),
    ]);
    let power = (-1074..1024i32, any::<bool>())
        .prop_map(|(e, negative)| if negative { -(2f64.powi(e)) } else { 2f64.powi(e) });
    prop_oneof![
        any::<u64>().prop_map(f64::from_bits).prop_filter("finite", |x| x.is_finite()),
        edge,
        power,
        -1e3..1e3f64,
        -1e40..1e40f64,
    ]
}

fn special() -> impl Strategy<Value = f64> {
    prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn double_round_trips(x in double()) {
        let expected = if x == 0.0 { 0.0 } else { x };
        prop_assert_eq!(sum(&[x]).to_bits(), expected.to_bits());
    }

    #[test]
    fn sums_are_exact_over_two_digits(numbers in prop::collection::vec(double(), 1..60)) {
        let (got, expected) = (sum(&numbers), reference(&numbers));
        prop_assert!(same(got, expected), "{:e}, not {:e}", got, expected);
    }

    #[test]
    fn any_order_and_any_tree(
        numbers in prop::collection::vec(prop_oneof![40 => double(), 1 => special()], 1..48),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 100),
    ) {
        let mut choices = choices.iter().cycle();
        let values = numbers.iter().map(|x| value(*x)).collect();
        let other = by_tree(Op::FpSum, values, |n| choices.next().unwrap().index(n));
        prop_assert_eq!(other, in_order(&numbers), "not the same bits");
        prop_assert!(same(sum(&numbers), reference(&numbers)));
    }

    #[test]
    fn numbers_and_their_negatives_cancel(
        numbers in prop::collection::vec(double(), 1..20),
        turn in any::<prop::sample::Index>(),
    ) {
        let mut all: Vec<f64> = numbers.iter().flat_map(|x| [*x, -x]).collect();
        let turn = turn.index(all.len());
        all.rotate_left(turn);
        prop_assert_eq!(sum(&all).to_bits(), 0);
    }

    #[test]
    fn huge_and_tiny_by_turns(huge in 1e280..1e300f64, tiny in 1e-300..1e-280f64, n in 1..40usize) {
        let mut numbers = Vec::new();
        for _ in 0..n {
            numbers.extend([huge, tiny, -huge, -tiny]);
        }
        numbers.push(huge);
        prop_assert_eq!(sum(&numbers), huge);
    }

    #[test]
    fn error_of_a_sum_is_small(numbers in prop::collection::vec(double(), 1..40)) {
        let all: BigInt = numbers.iter().map(|x| exact(*x)).sum();
        let counted = sum(&numbers);
        if counted.abs() >= f64::MAX {
            // Nothing is above it; other tests have such sums.
            return Ok(());
        }
        let greatest = numbers.iter().map(|x| exact(x.abs())).max().unwrap();
        // Half of the last place for rounding, and 2^-80 of the greatest for each that is dropped.
        let above = f64::from_bits(counted.abs().to_bits() + 1);
        let place = exact(above) - exact(counted.abs());
        let error = exact(counted) - all;
        let error = if error < BigInt::ZERO { -error } else { error };
        let allowed: BigInt = (place << 80) + greatest * numbers.len();
        prop_assert!((error << 80) <= allowed);
    }

    #[test]
    fn operations_associate_and_commute(
        op in prop::sample::select(Op::ALL.to_vec()),
        a: Value, b: Value, c: Value,
    ) {
        // Gates of a peer may hold anything.
        let of = |x: &Value, y: &Value| { let mut z = *x; combine(op, &mut z, y); z };
        // Bits that are not part of any number are lost at the first gate.
        let zero = widen(op, &[0; INPUT_QWORDS]);
        let clean = |x: &Value| match op {
            Op::FpSum => of(x, &zero),
            Op::Barrier => zero,
            _ => { let mut y = *x; y[8..].fill(0); y }
        };
        let (a, b, c) = (clean(&a), clean(&b), clean(&c));
        prop_assert_eq!(of(&a, &b), of(&b, &a));
        prop_assert_eq!(of(&of(&a, &b), &c), of(&a, &of(&b, &c)));
        // And is rounded without trouble.
        let _ = sums(&a);
    }

    #[test]
    fn inputs_are_read_as_written(numbers in prop::array::uniform3(double()), rest: u32) {
        let bits = numbers.map(f64::to_bits);
        let mut input = doubles(&bits).unwrap();
        prop_assert_eq!(input[7] >> 32, 0);
        // The last 32 bits are for others.
        input[7] |= u64::from(rest) << 32;
        let expected = numbers.map(|x| if x == 0.0 { 0 } else { x.to_bits() });
        prop_assert_eq!(sums(&widen(Op::FpSum, &input)), expected);
    }
}
