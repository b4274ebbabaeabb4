//! Barrier gates: codes, exhaustion, freeing in any order, and what reductions return.

mod common;

use common::{Pair, pair, pair_of, wait};
use tofu_abi::reduce::Op;
use tofu_abi::topology::Shape;
use tofu_utofu::ids::VbgId;
use tofu_utofu::{Code, Context, DeviceShare, Error, Reduced, VbgSetting};
use tofu_utofu_local::{Generation, LocalMachine, LocalProvider};

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> Code {
    let error = result.unwrap_err();
    let text = error.to_string();
    assert!(text.split(": ").filter(|part| !part.is_empty()).count() >= 3, "{text}");
    error.code()
}

/// A gate that exchanges with a gate of the other node.
fn exchange(own: VbgId, peer: VbgId) -> VbgSetting {
    VbgSetting {
        src_local: Some(own),
        dst_local: Some(own),
        src_remote: Some(peer),
        dst_remote: Some(peer),
        ..VbgSetting::new(own)
    }
}

/// A start and end gate on each node of a pair, linked to one another.
fn linked(contexts: &[Context<LocalProvider>; 2], tni: u16) -> [VbgId; 2] {
    let ids = [0, 1].map(|i: usize| contexts[i].alloc_vbg(tni, 1, 0).unwrap()[0]);
    contexts[0].set_vbg(&[exchange(ids[0], ids[1])]).unwrap();
    contexts[1].set_vbg(&[exchange(ids[1], ids[0])]).unwrap();
    ids
}

/// Polls until it is over.
fn over<T>(mut poll: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    wait("end of a round", || match poll() {
        Err(error) if error.code() == Code::NotCompleted => None,
        result => Some(result),
    })
}

#[test]
fn two_nodes_meet_and_reduce() {
    let Pair { contexts, .. } = pair();
    let [one, other] = &contexts;
    let [a, b] = linked(&contexts, 3);
    for round in 0..50u64 {
        one.barrier(a, 0).unwrap();
        assert_eq!(code(one.poll_barrier(a, 0)), Code::NotCompleted);
        other.barrier(b, 0).unwrap();
        over(|| one.poll_barrier(a, 0)).unwrap();
        over(|| other.poll_barrier(b, 0)).unwrap();

        let (x, y) = ([round, 5, u64::MAX], [2 * round, 6, 1]);
        for (op, expected) in [
            (Op::And, [0, 1, 2].map(|i: usize| x[i] & y[i])),
            (Op::Or, [0, 1, 2].map(|i: usize| x[i] | y[i])),
            (Op::Xor, [0, 1, 2].map(|i: usize| x[i] ^ y[i])),
            (Op::Max, [0, 1, 2].map(|i: usize| x[i].max(y[i]))),
            (Op::Sum, [3 * round, 11, 0]),
        ] {
            let op = op.code().into();
            one.reduce_uint64(a, op, &x, 0).unwrap();
            other.reduce_uint64(b, op, &y, 0).unwrap();
            assert_eq!(*over(|| one.poll_reduce_uint64(a, 0)).unwrap(), expected);
            assert_eq!(*over(|| other.poll_reduce_uint64(b, 0)).unwrap(), expected);
        }

        one.reduce_double(a, 8, &[1e16, round as f64], 0).unwrap();
        other.reduce_double(b, 8, &[1.0, -0.5], 0).unwrap();
        let expected = [1e16 + 1.0, round as f64 - 0.5];
        let result: Reduced<f64> = over(|| one.poll_reduce_double(a, 0)).unwrap();
        assert_eq!(*result, expected);
        assert_eq!(*over(|| other.poll_reduce_double(b, 0)).unwrap(), expected);
    }
    one.reduce_uint64(a, 6, &[7, 1, 9, 2], 0).unwrap();
    other.reduce_uint64(b, 6, &[8, 3, 9, 4], 0).unwrap();
    assert_eq!(*over(|| one.poll_reduce_uint64(a, 0)).unwrap(), [8, 3, 9, 2]);
    over(|| other.poll_reduce_uint64(b, 0)).unwrap();
}

#[test]
fn mismatched_operations_spoil_one_round() {
    let Pair { contexts, .. } = pair();
    let [one, other] = &contexts;
    let [a, b] = linked(&contexts, 0);
    one.barrier(a, 0).unwrap();
    other.reduce_uint64(b, 7, &[1], 0).unwrap();
    assert_eq!(code(over(|| one.poll_barrier(a, 0))), Code::BarrierMismatch);
    assert_eq!(code(over(|| other.poll_reduce_uint64(b, 0))), Code::BarrierMismatch);
    one.reduce_uint64(a, 7, &[40], 0).unwrap();
    other.reduce_uint64(b, 7, &[2], 0).unwrap();
    assert_eq!(*over(|| one.poll_reduce_uint64(a, 0)).unwrap(), [42]);
    assert_eq!(*over(|| other.poll_reduce_uint64(b, 0)).unwrap(), [42]);
}

#[test]
fn unfinished_round_relinks_the_gates() {
    let Pair { contexts, .. } = pair();
    let [one, other] = &contexts;
    // The process that does not take part has done several rounds, one or none.
    for rounds in [5, 1, 0] {
        let [a, b] = linked(&contexts, 4);
        for round in 0..rounds {
            one.reduce_uint64(a, 7, &[round], 0).unwrap();
            other.reduce_uint64(b, 7, &[1], 0).unwrap();
            assert_eq!(*over(|| one.poll_reduce_uint64(a, 0)).unwrap(), [round + 1]);
            over(|| other.poll_reduce_uint64(b, 0)).unwrap();
        }
        one.reduce_uint64(a, 7, &[1 << 40], 0).unwrap();
        assert_eq!(code(one.poll_reduce_uint64(a, 0)), Code::NotCompleted);
        assert_eq!(code(one.barrier(a, 0)), Code::Busy);
        // Both free their gates before one links them again: see utofu-choices.md.
        one.free_vbg(&[a]).unwrap();
        other.free_vbg(&[b]).unwrap();
    }
    let [a, b] = linked(&contexts, 4);
    for round in 0..4 {
        one.reduce_uint64(a, 7, &[round], 0).unwrap();
        other.reduce_uint64(b, 7, &[2], 0).unwrap();
        assert_eq!(*over(|| one.poll_reduce_uint64(a, 0)).unwrap(), [round + 2]);
        assert_eq!(*over(|| other.poll_reduce_uint64(b, 0)).unwrap(), [round + 2]);
    }
}

#[test]
fn gates_of_tofu_and_tofu2() {
    for generation in [Generation::K, Generation::Fx100] {
        let Pair { contexts, .. } = pair_of(generation);
        let [one, other] = &contexts;
        for tni in 1..4 {
            assert_eq!(code(one.alloc_vbg(tni, 1, 0)), Code::Full, "TNI 0 alone has gates");
        }
        assert_eq!(code(one.alloc_vbg(4, 1, 0)), Code::InvalidTniId);
        let [a, b] = linked(&contexts, 0);
        assert_eq!((one.integers_at_once(), one.doubles_at_once()), (1, 1));
        assert_eq!(code(one.reduce_uint64(a, 7, &[1, 2], 0)), Code::InvalidNumber);
        assert_eq!(code(one.reduce_double(a, 8, &[1.0, 2.0], 0)), Code::InvalidNumber);
        one.reduce_uint64(a, 7, &[1], 0).unwrap();
        other.reduce_uint64(b, 7, &[2], 0).unwrap();
        assert_eq!(*over(|| one.poll_reduce_uint64(a, 0)).unwrap(), [3]);
        over(|| other.poll_reduce_uint64(b, 0)).unwrap();
        // Start and end gates are 0 to 7, so 8 is a relay here.
        let [start, relay] = one.alloc_vbg(0, 2, 0).unwrap()[..] else { panic!("two gates") };
        assert_eq!((start.bg(), relay.bg()), (1, 8));
        let pass = |at: VbgId, via: VbgId| VbgSetting {
            src_local: Some(via),
            dst_local: Some(via),
            ..VbgSetting::new(at)
        };
        one.set_vbg(&[pass(start, relay), pass(relay, start)]).unwrap();
        one.barrier(start, 0).unwrap();
        over(|| one.poll_barrier(start, 0)).unwrap();
        let all = one.alloc_vbg(0, 56, 0).unwrap();
        assert_eq!(all[55].bg(), 63, "55 relays are left");
        for _ in 3..7 {
            one.alloc_vbg(0, 1, 0).unwrap();
        }
        assert_eq!(code(one.alloc_vbg(0, 1, 0)), Code::Full, "no start gate is left");
    }
}

#[test]
fn codes_of_rounds() {
    let Pair { contexts, .. } = pair();
    let one = &contexts[0];
    let [a, b] = linked(&contexts, 1);
    let alone = one.alloc_vbg(1, 2, 0).unwrap();
    assert_eq!(code(one.barrier(b, 0)), Code::InvalidVbgId, "the other node's");
    assert_eq!(code(one.barrier(a.with_bg(15), 0)), Code::InvalidVbgId, "not allocated");
    assert_eq!(code(one.barrier(alone[1], 0)), Code::InvalidVbgId, "a relay");
    assert_eq!(code(one.barrier(alone[0], 0)), Code::NotAvailable, "not linked");
    assert_eq!(code(one.barrier(a, 1)), Code::InvalidFlags);
    assert_eq!(code(one.poll_barrier(a, 1)), Code::InvalidFlags);
    assert_eq!(code(one.poll_barrier(a, 0)), Code::NotProcessed);
    for op in [0, 1, 8, 9, 256 + 7] {
        assert_eq!(code(one.reduce_uint64(a, op, &[1], 0)), Code::InvalidOp, "{op}");
    }
    for op in [0, 1, 7, 9] {
        assert_eq!(code(one.reduce_double(a, op, &[1.0], 0)), Code::InvalidOp, "{op}");
    }
    assert_eq!(code(one.reduce_uint64(a, 7, &[], 0)), Code::InvalidNumber);
    assert_eq!(code(one.reduce_uint64(a, 7, &[0; 7], 0)), Code::InvalidNumber);
    assert_eq!(code(one.reduce_uint64(a, 6, &[0; 3], 0)), Code::InvalidNumber, "half a pair");
    assert_eq!(code(one.reduce_double(a, 8, &[], 0)), Code::InvalidNumber);
    assert_eq!(code(one.reduce_double(a, 8, &[0.0; 4], 0)), Code::InvalidNumber);
    one.reduce_uint64(a, 7, &[1; 6], 0).unwrap();
    assert_eq!(code(one.barrier(a, 0)), Code::Busy);
    assert_eq!(code(one.poll_barrier(a, 0)), Code::NotProcessed);
    assert_eq!(code(one.poll_reduce_double(a, 0)), Code::NotProcessed);
    assert_eq!(code(one.poll_reduce_uint64(a, 0)), Code::NotCompleted);
}

#[test]
fn codes_of_links() {
    let Pair { contexts, .. } = pair();
    let [one, other] = &contexts;
    let ids = one.alloc_vbg(2, 3, 1).unwrap();
    assert_eq!(ids.iter().map(|id| id.bg()).collect::<Vec<_>>(), [0, 16, 17]);
    let theirs = other.alloc_vbg(2, 1, 0).unwrap()[0];
    let own =
        |id: VbgId| VbgSetting { src_local: Some(id), dst_local: Some(id), ..VbgSetting::new(id) };
    assert_eq!(code(one.set_vbg(&[])), Code::InvalidNumber);
    assert_eq!(code(one.set_vbg(&vec![own(ids[0]); 289])), Code::InvalidNumber);
    assert_eq!(code(one.set_vbg(&[own(theirs)])), Code::InvalidVbgId);
    assert_eq!(code(one.set_vbg(&[own(ids[0].with_bg(20))])), Code::InvalidVbgId);
    assert_eq!(code(one.set_vbg(&[own(ids[0]), own(ids[0])])), Code::InvalidVbgId);
    assert_eq!(code(one.set_vbg(&[own(ids[1])])), Code::InvalidVbgId, "no start gate");
    let half = VbgSetting { dst_local: Some(ids[1]), ..own(ids[0]) };
    assert_eq!(code(one.set_vbg(&[half, own(ids[1])])), Code::InvalidVbgId, "not mutual");
    assert_eq!(code(one.set_vbg(&[VbgSetting::new(ids[0])])), Code::InvalidArg, "no input");
    // Two relays that wait for each other.
    let pair = |id: VbgId, other: VbgId| VbgSetting {
        src_local: Some(other),
        dst_local: Some(other),
        ..VbgSetting::new(id)
    };
    let round = [own(ids[0]), pair(ids[1], ids[2]), pair(ids[2], ids[1])];
    assert_eq!(code(one.set_vbg(&round)), Code::InvalidArg);
    // None of this has linked anything.
    one.set_vbg(&[own(ids[0])]).unwrap();
    one.barrier(ids[0], 0).unwrap();
    over(|| one.poll_barrier(ids[0], 0)).unwrap();
    assert_eq!(code(one.set_vbg(&[own(ids[0])])), Code::Used);
    // If a channel cannot be opened, those opened for the same call are closed as well.
    let second = one.alloc_vbg(2, 1, 0).unwrap()[0];
    let third = one.alloc_vbg(2, 1, 0).unwrap()[0];
    assert_eq!(code(one.set_vbg(&[own(second), VbgSetting::new(third)])), Code::InvalidArg);
    one.set_vbg(&[own(second), own(third)]).unwrap();
}

#[test]
fn gates_run_out_and_nothing_is_taken_then() {
    let Pair { contexts, .. } = pair();
    let one = &contexts[0];
    assert_eq!(code(one.alloc_vbg(6, 1, 0)), Code::InvalidTniId);
    assert_eq!(code(one.alloc_vbg(0, 1, 2)), Code::InvalidFlags);
    assert_eq!(code(one.alloc_vbg(0, 0, 0)), Code::InvalidNumber);
    assert_eq!(code(one.alloc_vbg(0, 34, 0)), Code::Full);
    assert_eq!(code(one.alloc_vbg(0, usize::MAX, 0)), Code::Full);
    let many = one.alloc_vbg(0, 30, 0).unwrap();
    assert_eq!(code(one.alloc_vbg(0, 5, 0)), Code::Full, "three relays are left");
    let few = one.alloc_vbg(0, 4, 0).unwrap();
    let starts: Vec<_> = (2..16).map(|_| one.alloc_vbg(0, 1, 0).unwrap()[0]).collect();
    assert_eq!(code(one.alloc_vbg(0, 1, 0)), Code::Full, "no start gate is left");
    one.alloc_vbg(1, 33, 0).unwrap();
    // In any order, and from several calls at once.
    one.free_vbg(&[few[2], starts[0], many[29]]).unwrap();
    assert_eq!(code(one.free_vbg(&[few[1], few[2]])), Code::InvalidVbgId);
    assert_eq!(code(one.free_vbg(&[few[1], few[1]])), Code::InvalidVbgId);
    assert_eq!(code(one.free_vbg(&[])), Code::InvalidNumber);
    let again = one.alloc_vbg(0, 3, 0).unwrap();
    assert_eq!(again[0], starts[0]);
    let mut relays = [few[2], many[29]];
    relays.sort_by_key(|id| id.bg());
    assert_eq!(again[1..], relays);
    one.free_vbg(&[few[1], few[0], few[3]]).unwrap();
}

#[test]
fn channels_close_when_any_gate_is_freed() {
    let Pair { contexts, .. } = pair();
    let one = &contexts[0];
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let ids = one.alloc_vbg(5, 3, 0).unwrap();
        let link = |from: usize, at: usize, to: usize| VbgSetting {
            src_local: Some(ids[from]),
            dst_local: Some(ids[to]),
            ..VbgSetting::new(ids[at])
        };
        one.set_vbg(&[link(2, 0, 1), link(0, 1, 2), link(1, 2, 0)]).unwrap();
        one.reduce_uint64(ids[0], 7, &[6], 0).unwrap();
        assert_eq!(*over(|| one.poll_reduce_uint64(ids[0], 0)).unwrap(), [6]);
        one.free_vbg(&[ids[order[0]]]).unwrap();
        let expected = if order[0] == 0 { Code::InvalidVbgId } else { Code::NotAvailable };
        assert_eq!(code(one.barrier(ids[0], 0)), expected);
        one.free_vbg(&[ids[order[1]]]).unwrap();
        one.free_vbg(&[ids[order[2]]]).unwrap();
    }
    assert_eq!(one.alloc_vbg(5, 33, 0).unwrap().len(), 33, "all of them are back");
}

#[test]
fn processes_of_a_node_share_its_gates() {
    let machine = LocalMachine::new(Shape::new([1; 6]).unwrap()).unwrap();
    let node = machine.node(Default::default()).unwrap();
    let process = |index| Context::new(node.clone(), DeviceShare::new(index, 4).unwrap());
    let [one, other] = [process(0), process(1)];
    let first = one.alloc_vbg(0, 33, 0).unwrap();
    assert_eq!(code(other.alloc_vbg(0, 2, 0)), Code::Full);
    let second = other.alloc_vbg(0, 1, 0).unwrap();
    assert_ne!(first[0], second[0]);
    assert_eq!(code(other.free_vbg(&first[..1])), Code::InvalidVbgId);
    // Within a node remote links do.
    one.free_vbg(&first[1..]).unwrap();
    one.set_vbg(&[exchange(first[0], second[0])]).unwrap();
    other.set_vbg(&[exchange(second[0], first[0])]).unwrap();
    one.reduce_uint64(first[0], 7, &[1], 0).unwrap();
    other.reduce_uint64(second[0], 7, &[2], 0).unwrap();
    assert_eq!(*over(|| one.poll_reduce_uint64(first[0], 0)).unwrap(), [3]);
    // A process that exits frees what it had, also in the middle of a round.
    other.reduce_uint64(second[0], 7, &[2], 0).unwrap_err();
    drop(one);
    assert_eq!(other.alloc_vbg(0, 33, 0).unwrap()[0], first[0]);
    // Five processes divide the interfaces among themselves.
    let five = Context::new(node.clone(), DeviceShare::new(1, 5).unwrap());
    assert_eq!(code(five.alloc_vbg(0, 1, 0)), Code::NotAvailable);
}
