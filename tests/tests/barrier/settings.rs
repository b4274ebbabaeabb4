//! Impossible links, and how the driver and the device refuse them.

use tofu_abi::Generation;
use tofu_abi::barrier::{BgAddress, GpidBseq, LocalLink, RemoteLink, SignalMask};
use tofu_abi::irq::BgsIrqs;
use tofu_abi::reduce::Op;
use tofu_abi::regs::{BgsReg, CqsMode};
use tofu_abi::{BchId, BgId, TniId};
use tofu_driver::{Channel, ChannelConfig, ChannelError, Device, Gate};
use tofu_inproc::InProcess;
use tofu_tests::{Cluster, PATIENCE_NS};

use crate::group::{
    BCH, BCH_ID, Group, RELAYS, bg, channel_config, config, doubling, gate, gate_at, gate_register,
    members, profile, tni, tni_id, tree,
};

fn refused(cluster: &Cluster, config: &ChannelConfig, gates: &[Gate]) -> ChannelError {
    let error = Channel::open(cluster.device(0), config, gates).unwrap_err();
    assert!(!error.to_string().is_empty());
    error
}

#[test]
fn driver_reports_bad_links() {
    let cluster = Cluster::new("1x1x1x2x3x2");
    let members = members(&cluster, 4, tni(), BCH);
    let good = doubling(&members, 0);
    let relay = RELAYS[0];
    let [start, first] = [BCH, relay].map(|bg| BgId::new(bg).unwrap());
    let plain = config(0, 0);
    let check = |gates: &[Gate]| refused(&cluster, &plain, gates);
    let change = |n: usize, f: &dyn Fn(&mut Gate)| {
        let mut gates = good.clone();
        f(&mut gates[n]);
        gates
    };
    // An interface that only TofuD has, and a channel.
    let tofu = Cluster::of(Generation::K, "1x1x1x1x1x1");
    for (tni, bch) in [(TniId::ALL[1], BchId::ALL[0]), (TniId::ALL[0], BchId::ALL[8])] {
        let config = ChannelConfig::new(tni, bch);
        assert_eq!(refused(&tofu, &config, &good), ChannelError::NoSuchChannel { tni, bch });
    }
    let numbers = [
        (ChannelConfig { gpid: 1 << 40, ..plain }, 1 << 40),
        (ChannelConfig { bseq: 1 << 24, ..plain }, 1 << 24),
    ];
    for (config, number) in numbers {
        assert_eq!(refused(&cluster, &config, &good), ChannelError::Number(number));
    }
    let beyond = profile().gates;
    let mut nowhere = vec![members[1].with_tni(7), members[1].with_b(3)];
    if let Some(&bg) = BgId::ALL.get(usize::from(beyond)) {
        let none = ChannelError::NoSuchGate { tni: tni_id(), bg };
        assert_eq!(check(&change(1, &|g| g.bg = bg)), none);
        nowhere.push(members[1].with_bg(beyond));
    }
    let gates = [gate(0, 0), gate(1, 20)];
    let error = ChannelError::NoSuchGate { tni: TniId::ALL[1], bg: BgId::ALL[20] };
    assert_eq!(refused(&tofu, &channel_config(0, 0), &gates), error);
    assert_eq!(check(&[good[0], good[0]]), ChannelError::Twice { tni: tni_id(), bg: start });
    assert_eq!(check(&[]), ChannelError::StartGate { tni: tni_id(), bg: start });
    let other = [good[0], good[1], Gate { src_remote: Some(members[1]), ..gate(0, 2) }];
    assert_eq!(check(&other), ChannelError::StartGate { tni: TniId::ALL[0], bg: BgId::ALL[2] });
    for address in nowhere {
        let error = ChannelError::NoSuchAddress { bg: start, address };
        assert_eq!(check(&change(0, &|g| g.dst_remote = Some(address))), error);
        assert_eq!(check(&change(0, &|g| g.src_remote = Some(address))), error);
    }
    // Only X 4 and 5 of 8.
    let subnet = CqsMode(0).with_nx(8).with_sx(4).with_lx(2);
    let config = ChannelConfig { subnet, ..plain };
    let address = good[0].src_remote.unwrap();
    assert_eq!(refused(&cluster, &config, &good), ChannelError::Subnet { bg: start, address });
    let one_way = ChannelError::LocalLink { tni: tni_id(), bg: start, other: first };
    assert_eq!(check(&change(1, &|g| g.src_local = None)), one_way);
    assert_eq!(check(&good[..1]), one_way);
    let error = ChannelError::NoSource { tni: tni_id(), bg: first };
    assert_eq!(check(&[self_linked(), gate(tni(), relay)]), error);
    for gates in [&loop_of_two()[..], &loop_of_one()] {
        assert_eq!(check(gates), ChannelError::NeverFires { tni: tni_id(), bg: first });
    }
    // After all of that, correct settings work.
    Group::new(&cluster, 4, doubling).barrier();
}

/// Two relays that wait for each other.
fn loop_of_two() -> [Gate; 3] {
    let mut gates = [self_linked(), gate(tni(), RELAYS[0]), gate(tni(), RELAYS[1])];
    for (n, other) in [(1, RELAYS[1]), (2, RELAYS[0])] {
        gates[n].src_local = bg(other);
        gates[n].dst_local = bg(other);
    }
    gates
}

/// A relay that waits for itself.
fn loop_of_one() -> [Gate; 2] {
    let mut gates = [self_linked(), gate(tni(), RELAYS[0])];
    gates[1].src_local = bg(RELAYS[0]);
    gates[1].dst_local = bg(RELAYS[0]);
    gates
}

/// A start/end gate whose rounds end immediately.
fn self_linked() -> Gate {
    Gate { src_local: bg(BCH), dst_local: bg(BCH), ..gate(tni(), BCH) }
}

#[test]
fn gates_belong_to_one_open_channel() {
    let cluster = Cluster::new("1x1x1x2x3x2");
    let group = Group::new(&cluster, 12, tree);
    let gates = tree(&group.members, 0);
    let error = refused(&cluster, &config(0, 0), &gates);
    assert_eq!(error, ChannelError::Busy { tni: tni_id(), bg: BCH_ID.gate() });
    // Another channel with a relay in common is refused. Nothing is changed, so the channel is free
    // afterwards.
    let other = channel_config(tni(), BCH + 1);
    let mut own = gate(tni(), BCH + 1);
    own.src_local = bg(BCH + 1);
    own.dst_local = bg(BCH + 1);
    let stolen = Gate { src_remote: Some(group.members[1]), ..gate(tni(), RELAYS[0]) };
    let error = refused(&cluster, &other, &[own, stolen]);
    assert_eq!(error, ChannelError::Busy { tni: tni_id(), bg: BgId::ALL[usize::from(RELAYS[0])] });
    Channel::open(cluster.device(0), &other, &[own]).unwrap();
    drop(group);
    let mut group = Group::new(&cluster, 12, tree);
    group.barrier();
    for channel in group.channels {
        channel.close().unwrap();
    }
    Group::new(&cluster, 8, doubling).barrier();
}

/// Enables a gate with these links; returns STATE and IRR.
fn enable(device: &Device<InProcess>, bg: u8, links: [u64; 4]) -> (u64, BgsIrqs) {
    device.write(gate_register(bg, BgsReg::Irc), u64::MAX);
    let [mask, local, remote, subnet] = links;
    for (reg, value) in [
        (BgsReg::SignalMask, mask),
        (BgsReg::LocalLink, local),
        (BgsReg::RemoteLink, remote),
        (BgsReg::SubnetSize, subnet),
        (BgsReg::Enable, 1),
    ] {
        device.write(gate_register(bg, reg), value);
    }
    let result = (
        device.read(gate_register(bg, BgsReg::State)),
        BgsIrqs::from_raw(device.read(gate_register(bg, BgsReg::Irr))),
    );
    device.write(gate_register(bg, BgsReg::Enable), 0);
    result
}

#[test]
fn device_refuses_links_to_absent_gates() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let device = cluster.device(0);
    let peer = gate_at(cluster.device(1).coords(), profile().tnis - 1, 20).0;
    let (recv, send) = (BgsIrqs::BG_RECV_ADDRESS_EXCEPTION, BgsIrqs::BG_SEND_ADDRESS_EXCEPTION);
    let local = |recv, send| LocalLink(0).with_recv(recv).with_send(send).0;
    let remote =
        |recv: u64, send: u64| RemoteLink(0).with_recv(recv as u32).with_send(send as u32).0;
    let all = SignalMask(0).0;
    let subnet = CqsMode(0).with_nx(8).with_sx(4).with_lx(2).0;
    let wrong = |bg, tni| BgAddress(peer).with_bg(bg).with_tni(tni).0;
    assert_eq!(enable(device, 17, [all, local(20, 21), remote(peer, peer), 0]), (1, BgsIrqs::NONE));
    let beyond = profile().gates;
    // Some generations have all gates that an address can name.
    let gates = [
        ([all, local(beyond, 20), remote(peer, peer), 0], recv),
        ([all, local(20, 63), remote(peer, peer), 0], send),
        ([all, local(20, 20), remote(wrong(beyond, 0), peer), 0], recv),
    ];
    let gates = gates.into_iter().filter(|_| beyond < 64);
    let others = [
        ([all, local(20, 20), remote(peer, wrong(0, 6)), 0], send),
        ([all, local(20, 20), remote(wrong(0, 7), wrong(0, 7)), 0], recv | send),
        ([all, local(20, 20), remote(peer, peer), subnet], recv | send),
        ([all, local(20, 20), remote(BgAddress(peer).with_b(3).0, peer), 0], recv),
    ];
    for (links, irr) in gates.chain(others) {
        assert_eq!(enable(device, 17, links), (0, irr), "{links:x?}");
    }
    // Links that are masked do not matter.
    let none = SignalMask(0)
        .with_sig_recv(true)
        .with_sig_send(true)
        .with_tlp_recv(true)
        .with_tlp_send(true);
    assert_eq!(enable(device, 17, [none.0, u64::MAX, u64::MAX, subnet]), (1, BgsIrqs::NONE));
}

#[test]
fn enabled_gates_settings_are_fixed() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut group = Group::new(&cluster, 2, doubling);
    let device = cluster.device(0);
    let settings = [
        BgsReg::SignalMask,
        BgsReg::LocalLink,
        BgsReg::RemoteLink,
        BgsReg::SubnetSize,
        BgsReg::GpidBseq,
    ];
    let before = settings.map(|reg| device.read(gate_register(BCH, reg)));
    for reg in settings {
        device.write(gate_register(BCH, reg), u64::MAX);
    }
    assert_eq!(settings.map(|reg| device.read(gate_register(BCH, reg))), before);
    group.barrier();
    let number = GpidBseq(device.read(gate_register(BCH, BgsReg::GpidBseq)));
    assert_eq!((number.gpid(), number.bseq()), (0x12_3456, 1), "it counts on");
}

/// A path in the address is the way that signals take.
#[test]
fn signals_take_the_path_of_their_link() {
    let cluster = Cluster::new("1x1x1x2x3x2");
    // Rank 2 is the neighbour on B+, port 3.
    let members = [0, 2].map(|rank| gate_at(cluster.device(rank).coords(), tni(), BCH));
    cluster.set_link(0, 3, false);
    for (path, arrives) in [([0, 1], false), ([2, 2], true)] {
        let mut channels = [0usize, 1].map(|rank| {
            let mut gates = doubling(&members, rank);
            gates[0].dst_remote = gates[0].dst_remote.map(|to| to.with_pb(path[rank]));
            let device = cluster.device(2 * rank as u32);
            Channel::open(device, &config(0, 0), &gates).unwrap()
        });
        for channel in &mut channels {
            channel.start(Op::Barrier, &[0; 8], 0).unwrap();
        }
        for channel in &mut channels {
            assert_eq!(channel.wait(PATIENCE_NS).is_ok(), arrives, "{path:?}");
        }
    }
}
