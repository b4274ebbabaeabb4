//! Barrier gates and channels, from the driver's side.

mod faults;
mod group;
mod settings;
mod shards;
mod threads;
mod wires;

use std::sync::atomic::Ordering;

use tofu_abi::BchId;
use tofu_abi::Generation;
use tofu_abi::barrier::{BchReady, Profile, SignalState};
use tofu_abi::irq::{BgsIrqs, vector};
use tofu_abi::reduce::{self, Input, Op};
use tofu_abi::regs::{BchReg, BgsReg, Register};
use tofu_driver::{Channel, ChannelConfig, ChannelError, Gate, Platform, StartError};
use tofu_fabric::Timing;
use tofu_links::Parameters;
use tofu_machine::Links;
use tofu_tests::{Cluster, PATIENCE_NS};

use crate::group::{
    Algorithm, BCH, BCH_ID, Group, RELAYS, bg, channel_config, channel_register, config, doubling,
    doubling_with, expected, gate, gate_at, gate_register, inputs, profile, renumber, ring, tni,
    tni_id, tree,
};

/// All operations, by all algorithms that work for so many members.
fn every_operation(cluster: &Cluster, sizes: &[u32]) {
    let algorithms: [(&str, Algorithm); 3] =
        [("doubling", doubling), ("tree", tree), ("ring", ring)];
    for &n in sizes {
        for (name, algorithm) in algorithms {
            if name == "doubling" && !n.is_power_of_two() {
                continue;
            }
            let mut group = Group::new(cluster, n, algorithm);
            for op in Op::ALL {
                let inputs = inputs(op, n as usize, n.into());
                let value = group.reduce(op, &inputs, profile().max_elements(op));
                assert_eq!(value, expected(op, &inputs), "{op:?} of {n} nodes by {name}");
            }
        }
    }
}

#[test]
fn operations_work_on_48_nodes_by_algorithm() {
    let sizes: Vec<u32> = (1..=48).collect();
    every_operation(&Cluster::new("2x2x1x2x3x2"), &sizes);
}

#[test]
fn operations_work_with_shared_pages() {
    every_operation(&Cluster::polled("1x1x1x2x3x2"), &[1, 2, 4, 7, 12]);
}

/// 8 channels and 64 gates on TNI 0, and one element.
#[test]
fn barriers_of_tofu_and_tofu2() {
    let profile = Generation::K.description().barrier;
    let cluster = Cluster::of(Generation::K, "1x1x1x2x3x2");
    assert_eq!(cluster.device(0).generation(), Generation::K);
    let config = channel_config(0, 7);
    // Relays that TofuD does not have, and some that would be start/end gates in TofuD.
    let members = group::members(&cluster, 8, 0, 7);
    let relay = |_: usize, step: usize| [63, 8][step - 1];
    let mut channels: Vec<_> = (0..8)
        .map(|rank| {
            let gates = doubling_with(&members, rank, relay);
            Channel::open(cluster.device(rank as u32), &config, &gates).unwrap()
        })
        .collect();
    for op in [Op::Barrier, Op::Sum, Op::FpSum] {
        let inputs = inputs(op, 8, 1);
        let count = profile.max_elements(op);
        assert!(count <= 1);
        for (channel, input) in channels.iter_mut().zip(&inputs) {
            let more = StartError::Count { count: count + 1, max: count };
            assert_eq!(channel.start(op, input, count + 1), Err(more));
            channel.start(op, input, count).unwrap();
        }
        for channel in &mut channels {
            let outcome = channel.wait(PATIENCE_NS).unwrap();
            let full = expected(op, &inputs);
            let qwords = if op == Op::FpSum { 5 } else { usize::from(count) };
            assert_eq!(outcome.value[..qwords], full[..qwords], "{op:?}");
        }
    }
    drop(channels);
    // Interfaces and channels that only TofuD has do not exist.
    for (tni, bch) in [(0, 8), (1, 0), (5, 15)] {
        let own = Gate { src_local: bg(bch), dst_local: bg(bch), ..gate(tni, bch) };
        let config = channel_config(tni, bch);
        let error = Channel::open(cluster.device(0), &config, &[own]).unwrap_err();
        let (tni, bch) = (config.tni, config.bch);
        assert_eq!(error, ChannelError::NoSuchChannel { tni, bch });
    }
}

#[test]
fn elements_beyond_the_count_are_nothing() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut group = Group::new(&cluster, 2, doubling);
    let Profile { integers, doubles, .. } = profile();
    let eight = [reduce::integers(&[7; 8]).unwrap(); 2];
    // IDATA still holds what was written before, but that is no part of the input.
    for count in [integers, integers.min(3), 0] {
        let sums: [u64; 9] = std::array::from_fn(|i| if i < count.into() { 14 } else { 0 });
        assert_eq!(group.reduce(Op::Sum, &eight, count)[..9], sums);
    }
    let three = [reduce::doubles(&[1.5f64.to_bits(); 3]).unwrap(); 2];
    for count in [doubles, 1, 0] {
        let sums = reduce::sums(&group.reduce(Op::FpSum, &three, count)).map(f64::from_bits);
        assert_eq!(sums, std::array::from_fn(|i| if i < count.into() { 3.0 } else { 0.0 }));
    }
}

#[test]
fn twelve_nodes_do_100_000_barriers() {
    let cluster = Cluster::new("1x1x1x2x3x2");
    // Across the wrap of the sequence numbers.
    let mut group = Group::with(&cluster, 12, tree, &config(1, 0xff_ff00));
    for round in 0..100_000u64 {
        if round % 100 == 0 {
            let inputs = [reduce::integers(&[round]).unwrap(); 12];
            assert_eq!(group.reduce(Op::Sum, &inputs, 1)[0], 12 * round);
        } else {
            group.barrier();
        }
    }
    assert_eq!(group.channels[0].bseq(), (0xff_ff00 + 100_000) & 0xff_ffff);
    for channel in &group.channels {
        assert_eq!((channel.exceptions(), channel.ignored_signals()), (BgsIrqs::NONE, 0));
    }
}

#[test]
fn no_node_ends_before_the_last_has_begun() {
    let cluster = Cluster::new("1x1x1x2x3x2");
    let algorithms: [(Algorithm, usize); 3] = [(doubling, 8), (tree, 12), (ring, 12)];
    for (algorithm, n) in algorithms {
        for last in 0..n {
            let mut group = Group::new(&cluster, n as u32, algorithm);
            for rank in (0..n).filter(|rank| *rank != last) {
                group.channels[rank].start(Op::Barrier, &[0; 8], 0).unwrap();
            }
            cluster.settle();
            for channel in &mut group.channels {
                assert_eq!(channel.poll(), None);
            }
            group.channels[last].start(Op::Barrier, &[0; 8], 0).unwrap();
            group.outcomes();
        }
    }
}

/// As when a debugger stops the processors of relaying nodes: their drivers do nothing between
/// the start of the round and its end elsewhere.
#[test]
fn gates_work_without_their_drivers() {
    let cluster = Cluster::new("1x1x1x2x3x2");
    let mut group = Group::new(&cluster, 12, ring);
    let inputs = inputs(Op::Sum, 12, 0);
    group.start(Op::Sum, &inputs, profile().integers);
    let outcome = group.channels[11].wait(PATIENCE_NS).unwrap();
    assert_eq!(outcome.value, expected(Op::Sum, &inputs));
    // By now all the others have the notice in memory.
    for channel in &mut group.channels[..11] {
        assert_eq!(channel.poll().unwrap().value, outcome.value);
    }
}

#[test]
fn fast_node_may_be_a_round_ahead() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut group = Group::new(&cluster, 2, doubling);
    let number = |n: u64| [reduce::integers(&[n]).unwrap(); 2];
    for round in (0..10u64).step_by(2) {
        group.start(Op::Sum, &number(round), 1);
        let [fast, slow] = &mut group.channels[..] else { panic!("two members") };
        assert_eq!(fast.wait(PATIENCE_NS).unwrap().value[0], 2 * round);
        fast.start(Op::Sum, &number(round + 1)[0], 1).unwrap();
        cluster.settle();
        // The signal waits in the other buffer, with its value, before the slow member has polled.
        let read = |reg| cluster.device(1).read(gate_register(BCH, reg));
        let (mut buffers, mut used) = ([BgsReg::SignalA, BgsReg::SignalB], 1);
        if !(round + 1).is_multiple_of(2) {
            buffers.reverse();
            used = 1;
        }
        let state = SignalState(read(buffers[0]));
        assert_eq!((state.tlp_recv(), state.sig_recv(), state.sig_send()), (true, false, false));
        assert_eq!((state.op(), read(buffers[1])), (Op::Sum.code(), 0));
        let data = Register::BgsData { tni: tni_id(), bg: BCH_ID.gate(), buffer: used, qword: 0 };
        assert_eq!(cluster.device(1).read(data), round + 1);
        assert_eq!(slow.poll().unwrap().value[0], 2 * round);
        slow.start(Op::Sum, &number(round + 1)[0], 1).unwrap();
        assert_eq!(slow.wait(PATIENCE_NS).unwrap().value[0], 2 * (round + 1));
        assert_eq!(fast.wait(PATIENCE_NS).unwrap().value[0], 2 * (round + 1));
    }
}

#[test]
fn one_round_at_a_time() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut group = Group::new(&cluster, 2, doubling);
    let ready = channel_register(BchReg::Ready);
    let state = |rank| BchReady(cluster.device(rank).read(ready)).state();
    assert!(state(0) && state(1));
    let channel = &mut group.channels[0];
    channel.start(Op::Barrier, &[0; 8], 0).unwrap();
    assert!(!state(0));
    assert_eq!(channel.start(Op::Barrier, &[0; 8], 0), Err(StartError::Busy));
    // A start that disregards that is ignored, and counted.
    cluster.settle();
    cluster.device(0).write(ready, BchReady(0).with_op(1).with_start(true).0);
    cluster.settle();
    assert_eq!(channel.ignored_signals(), 1);
    assert!(!state(0));
    group.channels[1].start(Op::Barrier, &[0; 8], 0).unwrap();
    group.outcomes();
    assert!(state(0) && state(1));
    let count = |count, max| Err(StartError::Count { count, max });
    assert_eq!(group.channels[0].start(Op::Barrier, &[0; 8], 1), count(1, 0));
    for op in [Op::Sum, Op::FpSum] {
        let max = profile().max_elements(op);
        assert_eq!(group.channels[0].start(op, &[0; 8], max + 1), count(max + 1, max));
    }
    group.barrier();
}

#[test]
fn all_gates_and_channels_work_at_once() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    // A group of the two nodes for each channel, each with three gates of each node.
    let mut groups: Vec<Group> = Vec::new();
    let Profile { tnis, channels, .. } = profile();
    for (tni, bch) in (0..tnis).flat_map(|tni| (0..channels).map(move |bch| (tni, bch))) {
        let config = ChannelConfig { gpid: 9, ..channel_config(tni, bch) };
        let members = group::members(&cluster, 2, tni, bch);
        let channels = (0..2)
            .map(|rank| {
                let mut gates = ring(&members, rank as usize);
                // Each group has its own relays.
                renumber(&mut gates, |bg| {
                    if bg == bch { bg } else { channels + 2 * bch + (bg - RELAYS[0]) }
                });
                Channel::open(cluster.device(rank), &config, &gates).unwrap()
            })
            .collect();
        groups.push(Group { members, channels });
    }
    for round in 0..3 {
        let number = |n: usize| [reduce::integers(&[(n + round) as u64]).unwrap(); 2];
        for (n, group) in groups.iter_mut().enumerate() {
            group.start(Op::Sum, &number(n), 1);
        }
        for (n, group) in groups.iter_mut().enumerate().rev() {
            for outcome in group.outcomes() {
                assert_eq!(outcome.value[0], 2 * (n + round) as u64);
            }
        }
    }
}

/// Processes of one node synchronise through gates of different interfaces, or of the same one.
#[test]
fn members_may_be_on_the_same_node() {
    let cluster = Cluster::new("1x1x1x1x1x1");
    let device = cluster.device(0);
    let Profile { tnis, channels, .. } = profile();
    let [all, one] = [tnis - 1, 4 % tnis];
    let apart = [(0, 0), (all.min(1), 1), (all, channels - 1), (all.min(2), 5)];
    for places in [apart, [0, 1, 2, 3].map(|bch| (one, bch))] {
        let members = places.map(|(tni, bch)| gate_at(device.coords(), tni, bch));
        let mut channels: Vec<_> = places
            .into_iter()
            .enumerate()
            .map(|(rank, (tni, bch))| {
                let gates = doubling_with(&members, rank, |rank, _| RELAYS[rank]);
                Channel::open(device, &channel_config(tni, bch), &gates).unwrap()
            })
            .collect();
        for round in 0..5 {
            for (rank, channel) in channels.iter_mut().enumerate() {
                channel.start(Op::Max, &[rank as u64 + round, 0, 0, 0, 0, 0, 0, 0], 1).unwrap();
            }
            for channel in &mut channels {
                assert_eq!(channel.wait(PATIENCE_NS).unwrap().value[0], 3 + round);
            }
        }
    }
}

#[test]
fn round_end_interrupts_if_unmasked() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut group = Group::new(&cluster, 2, doubling);
    let fired = |rank| cluster.device(rank).platform().irq_wait(vector::bg(tni_id()), 0);
    group.start(Op::Barrier, &[[0; 8]; 2], 0);
    cluster.settle();
    let irq = |group: &Group, rank: usize| {
        group.channels[rank].gate_irq(tni_id(), BCH_ID.gate()).unwrap().pending()
    };
    assert_eq!(irq(&group, 0), BgsIrqs::SYNCHRONIZATION_ACKNOWLEDGE);
    assert!(fired(0) && fired(1));
    assert!(!fired(0) && !fired(1));
    group.outcomes();
    drop(group);
    let polled = ChannelConfig { interrupts: BgsIrqs::NONE, ..config(5, 0) };
    let mut group = Group::with(&cluster, 2, doubling, &polled);
    group.barrier();
    assert_eq!(irq(&group, 0), BgsIrqs::SYNCHRONIZATION_ACKNOWLEDGE);
    assert!(!fired(0) && !fired(1));
}

/// The figures of the TofuD paper (section V.E), where signals do not leave the node.
#[test]
fn modelled_time_is_that_of_the_paper() {
    let cluster = Cluster::new("2x1x1x1x1x1");
    // The simple test of the paper: one channel, two gates connected in series.
    let here = gate_at(cluster.device(0).coords(), tni(), BCH);
    let mut gates = [gate(tni(), BCH), gate(tni(), RELAYS[0])];
    for (gate, other) in [(0, RELAYS[0]), (1, BCH)] {
        gates[gate].src_local = bg(other);
        gates[gate].dst_local = bg(other);
    }
    let mut channel = Channel::open(cluster.device(0), &config(0, 0), &gates).unwrap();
    for rounds in 1..4 {
        channel.run(Op::Barrier, &[0; 8], 0, PATIENCE_NS).unwrap();
        let time = cluster.icc(0).barrier_time(tni_id(), BCH_ID);
        assert_eq!((time.rounds, time.last_ps), (rounds, 480_000 + 130_000));
        assert_eq!(time.total_ps, rounds * time.last_ps);
    }
    drop(channel);
    // Between neighbours a hop is added, and 104 bytes on the link.
    let members = [here, gate_at(cluster.device(1).coords(), tni(), BCH)];
    let mut channels = [0, 1].map(|rank| {
        let gates = doubling(&members, rank as usize);
        Channel::open(cluster.device(rank), &config(0, 0), &gates).unwrap()
    });
    for channel in &mut channels {
        channel.start(Op::Barrier, &[0; 8], 0).unwrap();
    }
    for (rank, channel) in (0..).zip(&mut channels) {
        channel.wait(PATIENCE_NS).unwrap();
        let time = cluster.icc(rank).barrier_time(tni_id(), BCH_ID);
        let expected = 480_000 + timing().transit_ps(1, 104);
        match tofu_tests::links() {
            Links::Direct => assert_eq!(time.last_ps, expected),
            // Frames add overhead to the bytes of a TLP.
            Links::Modelled => assert!(time.last_ps.abs_diff(expected) < expected / 20),
        }
    }
}

/// The time that packets take on the links of the generation.
fn timing() -> Timing {
    Timing::of(Parameters::of(tofu_tests::generation()))
}

/// 0.29 us of each channel's 0.48 us do not overlap with other channels on the interface, and
/// neither do relay gates.
#[test]
fn channels_of_one_tni_add_modelled_time() {
    // A signal within the node takes the time of its 104 bytes.
    let signal = timing().transit_ps(0, 104);
    for n in [1u64, 2, 4] {
        let cluster = Cluster::new("1x1x1x1x1x1");
        let address = |bch| gate_at(cluster.device(0).coords(), tni(), bch);
        let members: Vec<_> = (0..n as u8).map(address).collect();
        let mut channels: Vec<_> = (0..n as u8)
            .map(|bch| {
                let gates = doubling_with(&members, bch.into(), |rank, _| RELAYS[rank]);
                Channel::open(cluster.device(0), &channel_config(tni(), bch), &gates).unwrap()
            })
            .collect();
        for rounds in 1..4 {
            for channel in &mut channels {
                channel.start(Op::Barrier, &Input::default(), 0).unwrap();
            }
            for channel in &mut channels {
                channel.wait(PATIENCE_NS).unwrap();
            }
            let times = BchId::ALL[..n as usize]
                .iter()
                .map(|bch| cluster.icc(0).barrier_time(tni_id(), *bch));
            let last = times.inspect(|t| assert_eq!(t.rounds, rounds)).map(|t| t.last_ps).max();
            let busy = 190_000 + 290_000 * n;
            // With more than two nodes, signals may arrive later than the interface becomes free.
            let relays = if n == 4 { n * 130_000 } else { 0 };
            let waits = if n == 4 { 4 * signal } else { 0 };
            assert!((busy + relays..=busy + relays + waits).contains(&last.unwrap()), "{last:?}");
        }
    }
}

#[test]
fn notice_has_the_half_of_its_round() {
    let cluster = Cluster::new("1x1x1x1x1x1");
    let area = cluster.alloc(0, 512, 256);
    let mut own = gate(tni(), BCH);
    own.src_local = bg(BCH);
    own.dst_local = bg(BCH);
    let channel = Channel::open(cluster.device(0), &config(0, 6), &[own]).unwrap();
    let at = tofu_driver::DmaBuffer::device_addr(&area);
    let device = cluster.device(0);
    device.write(gate_register(BCH, BgsReg::BchNoticeIpa), at);
    let idata = |n: usize| channel_register(BchReg::ALL[n]);
    let ready = channel_register(BchReg::Ready);
    let word = |i: usize| tofu_driver::DmaBuffer::load_u64(&area, 8 * i, Ordering::Acquire);
    let count = profile().integers;
    let last = usize::from(count) - 1;
    for (round, half) in [(6, 0), (7, 16), (8, 0)] {
        for n in 0..=last {
            device.write(idata(n), 100 * n as u64 + round);
        }
        let start = BchReady(0).with_op(Op::Xor.code()).with_count(count).with_start(true);
        device.write(ready, start.0);
        cluster.settle();
        let end = 100 * last as u64 + round;
        assert_eq!((word(half), word(half + last), word(half + last + 1)), (round, end, 0));
        assert_eq!(word(half + 15), 1 << 63 | 4 << 24 | round);
        assert!((32..64).all(|i| word(i) == 0), "the area has 256 bytes");
    }
    drop(channel);
}
