//! Members that do not take part or do something else, and networks that lose signals.

use tofu_abi::barrier::{BchReady, BgAddress, InactiveBg};
use tofu_abi::irq::{BgsIrqs, PortRequest, TniIrqs, TnrIrqs, vector};
use tofu_abi::reduce::{Input, Op};
use tofu_abi::regs::{BchReg, BgsReg, Register, TniReg};
use tofu_abi::topology::Port;
use tofu_driver::{Channel, ChannelConfig, ChannelWaitError, Gate, Platform};
use tofu_tests::{Cluster, PATIENCE_NS};

use crate::group::{
    BCH, BCH_ID, Group, RELAYS, bg, channel_config, channel_register, config, doubling, gate,
    gate_at, gate_register, members, profile, tni, tni_id, tree,
};

const SHORT_NS: u64 = 10_000_000;

/// The exceptions that a gate of the groups' interface reports.
fn pending(cluster: &Cluster, rank: u32, bg: u8) -> BgsIrqs {
    let irr = cluster.device(rank).read(gate_register(bg, BgsReg::Irr));
    BgsIrqs::from_raw(irr) & BgsIrqs::EXCEPTIONS
}

fn info(cluster: &Cluster, rank: u32, bg: u8, reg: BgsReg) -> BgAddress {
    BgAddress(cluster.device(rank).read(gate_register(bg, reg)))
}

#[test]
fn absent_member_times_out_the_others() {
    let cluster = Cluster::new("1x1x1x2x3x2");
    let mut group = Group::with(&cluster, 12, tree, &config(7, 100));
    group.barrier();
    for rank in (0..12).filter(|rank| *rank != 5) {
        group.channels[rank].start(Op::Barrier, &[0; 8], 0).unwrap();
    }
    for rank in (0..12).filter(|rank| *rank != 5) {
        let error = group.channels[rank].wait(SHORT_NS).unwrap_err();
        assert_eq!(error, ChannelWaitError::TimedOut { exceptions: BgsIrqs::NONE });
    }
    assert_eq!(group.channels[5].wait(SHORT_NS), Err(ChannelWaitError::Idle));
    // Set up again with another number, it works as if nothing had happened.
    let Group { channels, .. } = group;
    for channel in channels {
        channel.close().unwrap();
    }
    let mut group = Group::with(&cluster, 12, tree, &config(7, 110));
    for _ in 0..3 {
        group.barrier();
    }
    assert_eq!(group.channels[0].exceptions(), BgsIrqs::NONE);
}

#[test]
fn signal_of_former_setup_is_told_apart() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let members = members(&cluster, 2, tni(), BCH);
    let open = |rank: usize, bseq| {
        let gates = doubling(&members, rank);
        Channel::open(cluster.device(rank as u32), &config(7, bseq), &gates).unwrap()
    };
    let mut late = open(0, 0);
    let mut other = open(1, 4);
    late.start(Op::Barrier, &[0; 8], 0).unwrap();
    cluster.settle();
    assert_eq!(pending(&cluster, 1, BCH), BgsIrqs::BSEQ_UNMATCH);
    drop(late);
    let mut now = open(0, 4);
    other.start(Op::Barrier, &[0; 8], 0).unwrap();
    now.start(Op::Barrier, &[0; 8], 0).unwrap();
    assert!(now.wait(PATIENCE_NS).is_ok() && other.wait(PATIENCE_NS).is_ok());
}

#[test]
fn mismatched_operations_end_with_an_error() {
    let cluster = Cluster::new("1x1x1x2x3x2");
    for odd_one in 0..12 {
        let mut group = Group::new(&cluster, 12, tree);
        for (rank, channel) in group.channels.iter_mut().enumerate() {
            let op = if rank == odd_one { Op::Max } else { Op::Sum };
            channel.start(op, &[rank as u64; 8], profile().integers).unwrap();
        }
        for outcome in group.outcomes() {
            assert_eq!((outcome.op, outcome.value), (None, [0; 15]));
        }
        let ack = BgsIrqs::ERROR_SYNCHRONIZATION_ACKNOWLEDGE;
        for channel in &group.channels {
            assert_eq!(
                channel.gate_irq(tni_id(), BCH_ID.gate()).unwrap().pending()
                    & BgsIrqs::from_raw(7 << 24),
                ack
            );
        }
        let told = group.channels.iter().filter(|c| c.exceptions() == BgsIrqs::SIGNAL_STATE_ERROR);
        assert!(told.count() >= 1, "where the two met");
        // The next round is as good as any.
        group.barrier();
    }
}

#[test]
fn signal_on_dead_link_is_a_port_error() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    cluster.device(0).tnr_irq().reset(TnrIrqs::ALL);
    let mut group = Group::new(&cluster, 2, doubling);
    cluster.set_link(0, 0, false);
    group.start(Op::Barrier, &[[0; 8]; 2], 0);
    for channel in &mut group.channels {
        let error = channel.wait(SHORT_NS).unwrap_err();
        assert_eq!(error, ChannelWaitError::TimedOut { exceptions: BgsIrqs::NONE });
    }
    assert_eq!(cluster.device(0).tnr_irq().pending(), TnrIrqs::of(Port::A, PortRequest::PortError));
    cluster.set_link(0, 0, true);
    drop(group);
    Group::with(&cluster, 2, doubling, &config(0, 2)).barrier();
}

#[test]
fn absent_nodes_gate_cannot_be_signalled() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let nowhere = BgAddress(0).with_x(9).with_bg(BCH);
    let own = Gate {
        src_local: bg(BCH),
        dst_local: bg(BCH),
        dst_remote: Some(nowhere),
        ..gate(tni(), BCH)
    };
    let mut channel = Channel::open(cluster.device(0), &config(0, 0), &[own]).unwrap();
    channel.run(Op::Barrier, &[0; 8], 0, PATIENCE_NS).unwrap();
    assert_eq!(channel.exceptions(), BgsIrqs::BG_SEND_ADDRESS_EXCEPTION);
}

#[test]
fn other_groups_signal_is_refused() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let members = members(&cluster, 2, tni(), BCH);
    let mut channels = [0usize, 1].map(|rank| {
        let gates = doubling(&members, rank);
        let config = config(40 + rank as u64, 0);
        Channel::open(cluster.device(rank as u32), &config, &gates).unwrap()
    });
    for channel in &mut channels {
        channel.start(Op::Barrier, &[0; 8], 0).unwrap();
    }
    cluster.settle();
    for (rank, channel) in channels.iter_mut().enumerate() {
        assert!(cluster.device(rank as u32).platform().irq_wait(vector::bg(tni_id()), 0));
        let exceptions = BgsIrqs::GPID_UNMATCH;
        assert_eq!(channel.wait(SHORT_NS), Err(ChannelWaitError::TimedOut { exceptions }));
        let other = members[1 - rank].place();
        let reg = BgsReg::ExceptionInfoGpidUnmatch;
        assert_eq!(info(&cluster, rank as u32, BCH, reg), other);
    }
}

/// A node's gate sends to a gate that waits for another one, or for none, or is not enabled.
#[test]
fn strangers_signal_changes_nothing() {
    let cluster = Cluster::new("1x1x1x2x3x2");
    let mut group = Group::with(&cluster, 4, doubling, &config(7, 0));
    let stranger = gate_at(cluster.device(9).coords(), tni(), 5);
    let config = ChannelConfig { gpid: 7, ..channel_config(tni(), 5) };
    let reg = BgsReg::ExceptionInfoAddressUnmatch;
    for to in [BCH, RELAYS[0]] {
        let own = Gate {
            src_local: bg(5),
            dst_local: bg(5),
            dst_remote: Some(group.members[1].with_bg(to)),
            ..gate(tni(), 5)
        };
        let mut channel = Channel::open(cluster.device(9), &config, &[own]).unwrap();
        channel.run(Op::Barrier, &[0; 8], 0, PATIENCE_NS).unwrap();
        assert_eq!(pending(&cluster, 1, to), BgsIrqs::NODE_ADDRESS_UNMATCH);
        assert_eq!(info(&cluster, 1, to, reg), stranger.place());
    }
    let device = cluster.device(1);
    device.tni(tni_id()).irq().reset(TniIrqs::ALL);
    let own = Gate {
        src_local: bg(5),
        dst_local: bg(5),
        dst_remote: Some(group.members[1].with_bg(44)),
        ..gate(tni(), 5)
    };
    let mut channel = Channel::open(cluster.device(9), &config, &[own]).unwrap();
    channel.run(Op::Barrier, &[0; 8], 0, PATIENCE_NS).unwrap();
    assert_eq!(device.tni(tni_id()).irq().pending(), TniIrqs::INACTIVE_BG);
    assert!(device.platform().irq_wait(vector::tni(tni_id()), 0));
    let register = Register::Tni { tni: tni_id(), reg: TniReg::ExceptionInfoInactiveBg };
    let info = InactiveBg(device.read(register));
    assert_eq!((info.dest(), u64::from(info.source())), (44, stranger.place().0));
    group.barrier();
}

#[test]
fn disabled_interface_takes_no_part() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut group = Group::new(&cluster, 2, doubling);
    cluster.device(1).tni(tni_id()).disable().unwrap();
    group.start(Op::Barrier, &[[0; 8]; 2], 0);
    for channel in &mut group.channels {
        assert!(channel.wait(SHORT_NS).is_err());
    }
    assert_eq!(group.channels[1].ignored_signals(), 1, "its start");
    let off = cluster.device(1).tni(tni_id());
    assert_eq!(off.irq().pending(), TniIrqs::INACTIVE_BG, "the other's signal");
    off.enable().unwrap();
    drop(group);
    Group::with(&cluster, 2, doubling, &config(0, 2)).barrier();
}

#[test]
fn masked_channel_ignores_and_counts() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut group = Group::new(&cluster, 2, doubling);
    let register = |reg| gate_register(BCH, reg);
    let ready = channel_register(BchReg::Ready);
    let device = cluster.device(1);
    device.write(register(BgsReg::BchMask), 1 << 63);
    assert_eq!(device.read(register(BgsReg::BchMaskStatus)), 0);
    assert!(!BchReady(device.read(ready)).state());
    group.start(Op::Barrier, &[[0; 8]; 2], 0);
    cluster.settle();
    assert_eq!(group.channels[1].ignored_signals(), 2, "its start and the other's signal");
    device.write(register(BgsReg::BchMask), 0);
    assert!(BchReady(device.read(ready)).state());
}

#[test]
fn bad_notice_address_is_an_exception() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut group = Group::new(&cluster, 2, doubling);
    let register = gate_register(BCH, BgsReg::BchNoticeIpa);
    let right = cluster.device(0).read(register);
    // Beyond memory, not aligned, and at the end of all addresses.
    for wrong in [cluster.memory_end(0), right + 4, u64::MAX - 127, u64::MAX] {
        cluster.device(0).write(register, wrong);
        group.start(Op::Sum, &[[1; 8]; 2], profile().integers);
        assert_eq!(group.channels[0].wait(PATIENCE_NS), Err(ChannelWaitError::Notice));
        assert_eq!(group.channels[1].wait(PATIENCE_NS).unwrap().value[0], 2);
    }
    cluster.device(0).write(register, right);
    group.barrier();
    // The same while the device must not write memory.
    cluster.set_bus_master(0, false);
    group.start(Op::Barrier, &[[0; 8]; 2], 0);
    assert_eq!(group.channels[0].wait(PATIENCE_NS), Err(ChannelWaitError::Notice));
    group.channels[1].wait(PATIENCE_NS).unwrap();
    cluster.set_bus_master(0, true);
    group.barrier();
}

#[test]
fn unknown_operation_is_a_start_gate_error() {
    let cluster = Cluster::new("1x1x1x1x1x1");
    let own = Gate { src_local: bg(BCH), dst_local: bg(BCH), ..gate(tni(), BCH) };
    let mut channel = Channel::open(cluster.device(0), &config(0, 0), &[own]).unwrap();
    let ready = channel_register(BchReg::Ready);
    let start = BchReady(0).with_start(true);
    for wrong in [
        start,
        start.with_op(9),
        start.with_op(15),
        start.with_op(1).with_count(1),
        start.with_op(7).with_count(profile().integers + 1),
        start.with_op(8).with_count(profile().doubles + 1),
    ] {
        channel.gate_irq(tni_id(), BCH_ID.gate()).unwrap().clear(BgsIrqs::from_raw(u64::MAX));
        cluster.device(0).write(ready, wrong.0);
        cluster.settle();
        assert_eq!(channel.exceptions(), BgsIrqs::SIGNAL_STATE_ERROR, "{wrong:?}");
        assert!(BchReady(cluster.device(0).read(ready)).state());
    }
    channel.run(Op::Sum, &Input::default(), profile().integers, PATIENCE_NS).unwrap();
}

/// Gates in a circle, one of which begins a round: the signal comes round once and no further.
#[test]
fn gate_circle_does_not_run_for_ever() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let register = |bg, reg| gate_register(bg, reg);
    let here = |bg: u8| gate_at(cluster.device(0).coords(), tni(), bg).0;
    // By local links on node 0: the channel's gate, 20, 21, 22, 20, ...; 20 takes the start gate's
    // signal as a remote one. 22 waits only for 21.
    let gates: [(u8, u64, u64, u64); 4] = [
        (BCH, 1 << 61 | 1 << 63, 0, here(20)),
        (20, 1 << 60 | 1 << 63, 21, here(BCH) << 32),
        (21, 1 << 60 | 1 << 62, 20 << 32 | 22, 0),
        (22, 1 << 61 | 1 << 62, 21 << 32, here(20)),
    ];
    let device = cluster.device(0);
    device.write(register(BCH, BgsReg::BchMask), 0);
    for (bg, mask, local, remote) in gates {
        device.write(register(bg, BgsReg::SignalMask), mask);
        device.write(register(bg, BgsReg::LocalLink), local);
        device.write(register(bg, BgsReg::RemoteLink), remote);
        device.write(register(bg, BgsReg::Enable), 1);
    }
    let ready = channel_register(BchReg::Ready);
    device.write(ready, BchReady(0).with_op(1).with_start(true).0);
    cluster.settle();
    // The signal came back to gate 20, from a gate that 20 does not wait for.
    assert_eq!(pending(&cluster, 0, 20), BgsIrqs::NODE_ADDRESS_UNMATCH);
    assert_eq!([21, 22].map(|bg| pending(&cluster, 0, bg)), [BgsIrqs::NONE; 2]);
}

#[test]
fn reset_forgets_gates_and_channels() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut group = Group::new(&cluster, 2, doubling);
    group.start(Op::Barrier, &[[0; 8]; 2], 0);
    let irq = gate_register(BCH, BgsReg::Imr);
    cluster.icc(0).reset();
    assert_eq!(cluster.device(0).read(irq), u64::MAX);
    let state = gate_register(BCH, BgsReg::State);
    assert_eq!(cluster.device(0).read(state), 0);
    drop(group);
    cluster.icc(0).set_bus_master(true);
    cluster.device(0).tni(tni_id()).enable().unwrap();
    Group::with(&cluster, 2, doubling, &config(0, 2)).barrier();
}
