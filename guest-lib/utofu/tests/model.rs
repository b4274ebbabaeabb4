//! Random commands against a model of both memories, long runs, and the largest messages.

mod common;

use std::collections::VecDeque;

use common::{Memory, armw, completion, notice, pair, wait, word};
use proptest::prelude::*;
use tofu_utofu::command::{MAX_PUTGET_SIZE, Packets, Posting};
use tofu_utofu::flags::{
    CACHE_INJECTION, DELAY_START, LOCAL_MRQ_NOTICE, PACKET_RESPONSE, PADDING, REMOTE_MRQ_NOTICE,
    STRONG_ORDER, TCQ_NOTICE,
};
use tofu_utofu::ids::Stadd;
use tofu_utofu::{Code, Command, NoticeKind, Transfer, Vcq};
use tofu_utofu_local::LocalProvider;

const ALL: u64 = TCQ_NOTICE | LOCAL_MRQ_NOTICE | REMOTE_MRQ_NOTICE;
/// Bytes of each memory in the model.
const SIZE: usize = 9000;

#[derive(Clone, Debug)]
enum Op {
    Put { from: usize, to: usize, len: usize, mtu: usize },
    Get { from: usize, to: usize, len: usize },
    Blocks { from: usize, to: usize, len: usize, stride: usize, blocks: usize },
    Piggyback { to: usize, data: Vec<u8> },
    Piggyback8 { to: usize, value: u64, len: usize },
    Armw { op: u32, at: usize, value: u64, wide: bool },
    Swap { at: usize, old_is_right: bool, new: u64, wide: bool },
    Nop,
}

fn op() -> impl Strategy<Value = Op> {
    let at = 0..SIZE;
    prop_oneof![
        (at.clone(), at.clone(), 0..6000usize, prop_oneof![Just(0), 8usize..1921])
            .prop_map(|(from, to, len, mtu)| Op::Put { from, to, len, mtu }),
        (at.clone(), at.clone(), 0..6000usize).prop_map(|(from, to, len)| Op::Get {
            from,
            to,
            len
        }),
        (at.clone(), at.clone(), 0..200usize, 0..400usize, 1..12usize).prop_map(
            |(from, to, len, stride, blocks)| Op::Blocks { from, to, len, stride, blocks }
        ),
        (at.clone(), prop::collection::vec(any::<u8>(), 1..33))
            .prop_map(|(to, data)| Op::Piggyback { to, data }),
        (at.clone(), any::<u64>(), 1..9usize).prop_map(|(to, value, len)| Op::Piggyback8 {
            to,
            value,
            len
        }),
        (1..6u32, at.clone(), any::<u64>(), any::<bool>())
            .prop_map(|(op, at, value, wide)| Op::Armw { op, at, value, wide }),
        (at, any::<bool>(), any::<u64>(), any::<bool>())
            .prop_map(|(at, old_is_right, new, wide)| Op::Swap { at, old_is_right, new, wide }),
        Just(Op::Nop),
    ]
}

fn set_word(memory: &mut [u8], at: usize, len: usize, value: u64) {
    memory[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
}

/// The initiator's report: result, and the old value of an atomic command.
type Told = (Code, Option<u64>);

/// Stands for the error of whichever side is found at fault first.
const EITHER_LENGTH: Code = Code::TcqLength;

fn copy(from: &[u8], at: usize, to: &mut [u8], to_at: usize, len: usize) {
    to[to_at..to_at + len].copy_from_slice(&from[at..at + len]);
}

/// The error of a transfer that is too long for the memory on either side.
fn ends(local: usize, remote: usize, len: usize) -> Option<Code> {
    match (local + len > SIZE, remote + len > SIZE) {
        (false, false) => None,
        (true, false) => Some(Code::MrqLclLength),
        (false, true) => Some(Code::MrqRmtLength),
        (true, true) => Some(EITHER_LENGTH),
    }
}

/// Applies an atomic command to a word.
fn atomic(theirs: &mut [u8], at: usize, wide: bool, f: &dyn Fn(u64) -> u64) -> Told {
    let len = if wide { 8 } else { 4 };
    // In the order of the device, which can find both faults in one command.
    if at + len > SIZE {
        return (Code::MrqRmtLength, None);
    }
    if !at.is_multiple_of(len) {
        return (Code::MrqRmtStadd, None);
    }
    let old = word(theirs, at, len);
    set_word(theirs, at, len, f(old));
    (Code::Success, Some(old))
}

/// Applies an operation to the model; returns the reports of each of its commands.
fn apply(op: &Op, mine: &mut [u8], theirs: &mut [u8]) -> Vec<Told> {
    match *op {
        Op::Put { from, to, len, .. } => {
            let failed = ends(from, to, len);
            if failed.is_none() {
                copy(mine, from, theirs, to, len);
            }
            vec![(failed.unwrap_or(Code::Success), None)]
        }
        Op::Get { from, to, len } => {
            let failed = ends(to, from, len);
            if failed.is_none() {
                copy(theirs, from, mine, to, len);
            }
            vec![(failed.unwrap_or(Code::Success), None)]
        }
        Op::Blocks { from, to, len, stride, blocks } => (0..blocks)
            .map(|i| {
                let (from, to) = (from + i * stride, to + i * stride);
                let failed = ends(from, to, len);
                if failed.is_none() {
                    copy(mine, from, theirs, to, len);
                }
                (failed.unwrap_or(Code::Success), None)
            })
            .collect(),
        Op::Piggyback { to, ref data } => {
            let fits = to + data.len() <= SIZE;
            if fits {
                theirs[to..to + data.len()].copy_from_slice(data);
            }
            vec![(if fits { Code::Success } else { Code::MrqRmtLength }, None)]
        }
        Op::Piggyback8 { to, value, len } => {
            let fits = to + len <= SIZE;
            if fits {
                set_word(theirs, to, len, value);
            }
            vec![(if fits { Code::Success } else { Code::MrqRmtLength }, None)]
        }
        Op::Armw { op, at, value, wide } => {
            vec![atomic(theirs, at, wide, &|old| armw(op, old, value))]
        }
        Op::Swap { at, old_is_right, new, wide } => {
            vec![atomic(theirs, at, wide, &|old| if old_is_right { new } else { old })]
        }
        Op::Nop => vec![(Code::Success, None)],
    }
}

/// The command of an operation between these addresses. `theirs` is the target's memory.
fn command(op: &Op, to: &Posting, [lcl, rmt]: [u64; 2], theirs: &[u8]) -> Command {
    let old = |at: usize, wide: bool| {
        let len = if wide { 8 } else { 4 };
        if at + len <= SIZE { word(theirs, at, len) } else { 0 }
    };
    match *op {
        Op::Put { from, to: at, len, mtu } => {
            let packets = Packets::new(mtu, 1).unwrap();
            to.put(lcl + from as u64, rmt + at as u64, len, packets)
        }
        Op::Get { from, to: at, len } => {
            to.get(lcl + at as u64, rmt + from as u64, len, Packets::default())
        }
        Op::Blocks { from, to: at, len, .. } => {
            to.put(lcl + from as u64, rmt + at as u64, len, Packets::default())
        }
        Op::Piggyback { to: at, ref data } => to.put_piggyback(data, rmt + at as u64),
        Op::Piggyback8 { to: at, value, len } => to.put_piggyback8(value, len, rmt + at as u64),
        Op::Armw { op, at, value, wide } => {
            let (value, size) = if wide { (value, 8) } else { (value & 0xffff_ffff, 4) };
            to.armw(op, value, size, rmt + at as u64)
        }
        Op::Swap { at, old_is_right, new, wide } => {
            let old = if old_is_right { old(at, wide) } else { !old(at, wide) };
            if wide {
                to.cswap8(old, new, rmt + at as u64)
            } else {
                to.cswap4(old as u32, new as u32, rmt + at as u64)
            }
        }
        Op::Nop => Command::nop(TCQ_NOTICE),
    }
    .unwrap()
}

/// Checks the notices of a command at both ends, and its completion `done`.
fn check_report(
    [a, b]: [&Vcq<LocalProvider>; 2],
    (op, edata): (&Op, u64),
    (status, value): Told,
    done: Code,
) -> Result<(), TestCaseError> {
    // The completion also reports data that this end could not send or take.
    if status != EITHER_LENGTH {
        let here = status == Code::MrqLclLength;
        prop_assert_eq!(done != Code::Success, here, "{:?}", op);
    }
    if matches!(op, Op::Nop) {
        return Ok(());
    }
    let local = notice(a);
    if status == EITHER_LENGTH {
        let codes = [Code::MrqLclLength, Code::MrqRmtLength];
        prop_assert!(codes.contains(&local.status()), "{:?}", op);
    } else {
        prop_assert_eq!(local.status(), status, "{:?}", op);
    }
    prop_assert_eq!((local.vcq_id, u64::from(local.edata)), (b.id(), edata));
    if let Some(value) = value {
        prop_assert_eq!((local.kind, local.rmt_value), (NoticeKind::LclArmw, value));
    }
    if status == Code::Success {
        let remote = notice(b);
        prop_assert!(!remote.kind.is_local());
        prop_assert_eq!((remote.vcq_id, u64::from(remote.edata)), (a.id(), edata));
        prop_assert_eq!(remote.rmt_stadd, local.rmt_stadd);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_commands_agree_with_the_model(
        ops in prop::collection::vec((op(), 0u8..32), 1..120),
        phases in (0usize..65536, 0usize..8192),
    ) {
        let pair = pair();
        let a = pair.contexts[0].create_vcq(1, None, 0).unwrap();
        let b = pair.contexts[1].create_vcq(3, Some(5), 0).unwrap();
        // The words that atomic commands change are aligned.
        let memories = [Memory::aligned(SIZE, phases.0), Memory::aligned(SIZE, phases.1 * 8)];
        let [lcl, rmt] = [memories[0].register(&a, 0).0, memories[1].register(&b, 0).0];
        let mut model = [vec![0; SIZE], vec![0; SIZE]];
        for (m, seed) in [(0usize, 11), (1, 29)] {
            memories[m].fill(|i| (i * seed + i / 256) as u8);
            for (i, byte) in model[m].iter_mut().enumerate() {
                *byte = (i * seed + i / 256) as u8;
            }
        }
        for (number, (op, bits)) in ops.iter().enumerate() {
            let extra = [STRONG_ORDER, PACKET_RESPONSE, PADDING, CACHE_INJECTION]
                .iter()
                .enumerate()
                .filter(|(i, _)| bits >> i & 1 != 0)
                .fold(ALL, |flags, (_, flag)| flags | flag);
            let edata = number as u64 & 0xff;
            let to = Posting::new(b.id().0, edata, extra).unwrap();
            let command = command(op, &to, [lcl, rmt], &model[1]);
            match *op {
                Op::Blocks { stride, blocks, .. } => {
                    a.post_blocks(&command, stride, blocks, number).unwrap();
                }
                _ => a.post(&command, number).unwrap(),
            }
            let [mine, theirs] = &mut model;
            for (status, value) in apply(op, mine, theirs) {
                let done = completion(&a);
                prop_assert_eq!(done.cbdata, number);
                check_report([&a, &b], (op, edata), (status, value), done.status())?;
            }
            // A Get that fails on this side has been read on the other. The effects of a failed
            // message of several packets are not defined.
            while b.poll_mrq().is_some() {}
            for (memory, model) in memories.iter().zip(&mut model) {
                let bytes = memory.bytes();
                if apply_failed(op) {
                    model.copy_from_slice(&bytes);
                }
                prop_assert_eq!(&bytes, model, "{}: {:?}", number, op);
            }
        }
    }
}

/// Returns true if a part of the operation may have been carried out although it fails.
fn apply_failed(op: &Op) -> bool {
    match *op {
        Op::Put { from, to, len, .. } | Op::Get { from, to, len } => from.max(to) + len > SIZE,
        Op::Blocks { from, to, len, stride, blocks } => {
            from.max(to) + (blocks - 1) * stride + len > SIZE
        }
        _ => false,
    }
}

#[test]
fn million_commands_arrive_once_in_order() {
    const COMMANDS: u64 = 1_000_000;
    let pair = pair();
    let a = pair.contexts[0].create_vcq(0, None, 0).unwrap();
    let b = pair.contexts[1].create_vcq(0, None, 0).unwrap();
    let sink = Memory::new(4096);
    let remote = sink.register(&b, 0);
    let (mut told, mut seen, mut counted) = (0, 0, 0);
    let mut waiting = VecDeque::new();
    for n in 0..COMMANDS {
        // Every seventh command requests nothing, every fifth waits for the next, every third has
        // two descriptors.
        let flags = if n % 7 == 0 { 0 } else { TCQ_NOTICE }
            | if n % 2 == 0 { REMOTE_MRQ_NOTICE } else { 0 }
            | if n % 5 == 0 && n + 1 < COMMANDS { DELAY_START } else { 0 };
        let posting = Posting::new(b.id().0, n & 0xff, flags).unwrap();
        let len = if n % 3 == 0 { 24 } else { 8 };
        let mut data = [0; 24];
        data[..8].copy_from_slice(&n.to_le_bytes());
        let command = posting.put_piggyback(&data[..len], remote.0).unwrap();
        loop {
            match a.post(&command, n as usize) {
                Ok(()) => break,
                Err(error) => assert_eq!(error.code(), Code::Busy),
            }
            while let Some(done) = a.poll_tcq() {
                assert_eq!(done.status(), Code::Success);
                assert_eq!(Some(done.cbdata as u64), waiting.pop_front());
                told += 1;
            }
        }
        if flags & TCQ_NOTICE != 0 {
            waiting.push_back(n);
        }
        while let Some(notice) = b.poll_mrq() {
            assert_eq!(u64::from(notice.edata), (counted * 2) & 0xff);
            counted += 1;
            seen += 1;
        }
    }
    while !waiting.is_empty() {
        let done = completion(&a);
        assert_eq!(Some(done.cbdata as u64), waiting.pop_front());
        told += 1;
    }
    while seen < COMMANDS / 2 {
        assert_eq!(u64::from(notice(&b).edata), (seen * 2) & 0xff);
        seen += 1;
    }
    assert_eq!(told, (0..COMMANDS).filter(|n| n % 7 != 0).count());
    assert_eq!((a.poll_mrq(), b.poll_mrq()), (None, None), "local notices were not asked for");
    assert_eq!(sink.bytes()[..8], (COMMANDS - 1).to_le_bytes());
}

#[test]
fn odd_sizes_and_places_work_up_to_the_most() {
    let pair = pair();
    let a = pair.contexts[0].create_vcq(0, None, 0).unwrap();
    let b = pair.contexts[1].create_vcq(5, None, 0).unwrap();
    let (mine, theirs) = (Memory::new(MAX_PUTGET_SIZE + 4096), Memory::new(MAX_PUTGET_SIZE + 4096));
    let [lcl, rmt] = [mine.register(&a, 0), theirs.register(&b, 0)];
    let byte = |i: usize| (i * 7 + i / 251) as u8;
    mine.fill(byte);
    for (len, from, to) in [
        (1, 0, 4095),
        (2, 4095, 1),
        (7, 1, 63),
        (255, 4000, 257),
        (1919, 3, 5),
        (1921, 4095, 4093),
        (65_535, 1, 2),
        (65_537, 2, 1),
        ((1 << 20) + 1, 4093, 7),
        (MAX_PUTGET_SIZE, 4095, 4096),
    ] {
        let (from_at, to_at) = (Stadd(lcl.0 + from as u64), Stadd(rmt.0 + to as u64));
        let transfer = |local, remote| Transfer {
            peer: b.id(),
            local,
            remote,
            length: len,
            edata: 0,
            flags: ALL,
        };
        a.put(&transfer(from_at, to_at), len).unwrap();
        assert_eq!((completion(&a).cbdata, notice(&a).status()), (len, Code::Success));
        assert_eq!(notice(&b).rmt_stadd, to_at.0 + len as u64);
        let bytes = theirs.bytes();
        assert!((0..len).all(|i| bytes[to + i] == byte(from + i)), "Put {len}");
        // And back to another place.
        let back = Memory::new(MAX_PUTGET_SIZE + 1);
        let back_at = back.register(&a, 0);
        a.get(&transfer(Stadd(back_at.0 + 1), to_at), len).unwrap();
        assert_eq!((completion(&a).cbdata, notice(&a).status()), (len, Code::Success));
        notice(&b);
        let bytes = back.bytes();
        assert!((0..len).all(|i| bytes[1 + i] == byte(from + i)), "Get {len}");
        assert!(bytes[0] == 0 && bytes[1 + len..].iter().all(|&b| b == 0));
        a.dereg_mem(back_at).unwrap();
    }
}

#[test]
fn deregistered_memory_is_out_of_reach() {
    let pair = pair();
    let a = pair.contexts[0].create_vcq(0, None, 0).unwrap();
    let source = Memory::new(64);
    let lcl = source.register(&a, 0);
    source.fill(|_| 9);
    for round in 0..200 {
        let b = pair.contexts[1].create_vcq(0, None, 0).unwrap();
        let sink = Memory::new(64);
        let rmt = sink.register(&b, 0);
        // Many are on their way while the memory is deregistered.
        for _ in 0..50 {
            a.put(
                &Transfer {
                    peer: b.id(),
                    local: lcl,
                    remote: rmt,
                    length: 64,
                    edata: 0,
                    flags: DELAY_START,
                },
                0,
            )
            .unwrap();
        }
        a.put(
            &Transfer {
                peer: b.id(),
                local: lcl,
                remote: rmt,
                length: 64,
                edata: 0,
                flags: TCQ_NOTICE,
            },
            round,
        )
        .unwrap();
        if round % 2 == 0 {
            b.dereg_mem(rmt).unwrap()
        } else {
            drop(b)
        }
        sink.fill(|_| 1);
        let done = completion(&a);
        assert_eq!(done.cbdata, round);
        assert!(sink.bytes().iter().all(|&b| b == 1), "round {round}");
    }
    wait("the queue to be empty", || (a.unread_tcq() == 0).then_some(()));
}
