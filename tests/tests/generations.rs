//! Controllers of each generation: what they support works, and what they do not support is
//! refused.

use tofu_abi::barrier::BchReady;
use tofu_abi::desc::{ArmwOp, Descriptor, Header1};
use tofu_abi::irq::BgsIrqs;
use tofu_abi::reduce::Op;
use tofu_abi::regs::{BchReg, BgsReg, CqsMode, CqsReg, Register, TniReg, TofuReg};
use tofu_abi::topology::Port;
use tofu_abi::{BchId, BgId, CqId, Generation, Rcode, TniId, barrier};
use tofu_driver::{
    Channel, ChannelConfig, ChannelError, Cq, CqConfig, Gate, OpenError, Order, PacketConfig,
    Packets, Target,
};
use tofu_tests::{Cluster, config, pattern};

fn each(test: impl Fn(Generation, &Cluster)) {
    for generation in Generation::ALL {
        test(generation, &Cluster::of(generation, "1x1x1x2x1x1"));
    }
}

#[test]
fn driver_finds_the_generation() {
    each(|generation, cluster| {
        let device = cluster.device(0);
        assert_eq!(device.generation(), generation);
        let raw = device.read(Register::Tofu(TofuReg::Generation));
        assert_eq!(raw & 0xffff, u64::from(generation.description().device_id));
        device.write(Register::Tofu(TofuReg::Generation), 0);
        assert_eq!(device.read(Register::Tofu(TofuReg::Generation)), raw, "read-only");
    });
}

#[test]
fn absent_units_have_no_registers() {
    each(|generation, cluster| {
        let (device, description) = (cluster.device(0), generation.description());
        let mut queues = 0;
        for tni in TniId::ALL {
            let there = description.has_tni(tni);
            let enable = Register::Tni { tni, reg: TniReg::Enable };
            device.write(enable, 1);
            assert_eq!(device.read(enable), u64::from(there), "{generation}: TNI {tni}");
            let present = device.read(Register::Tni { tni, reg: TniReg::CqPresent });
            queues += present.count_ones();
            for cq in CqId::ALL {
                let there = there && description.has_cq(cq);
                assert_eq!(present >> cq.get() & 1 != 0, there, "{generation}: {tni} {cq}");
                let gpid = Register::Cqs { tni, cq, reg: CqsReg::Gpid };
                device.write(gpid, 77);
                assert_eq!(device.read(gpid), if there { 77 } else { 0 });
            }
            for bg in BgId::ALL {
                let link = Register::Bgs { tni, bg, reg: BgsReg::LocalLink };
                device.write(link, 5);
                let expected = if description.has_gate(tni, bg) { 5 } else { 0 };
                assert_eq!(device.read(link), expected, "{generation}: TNI {tni} gate {bg}");
            }
        }
        assert_eq!(queues, u32::from(description.tnis * description.cqs));
    });
}

#[test]
fn driver_opens_no_absent_queue() {
    each(|generation, cluster| {
        let device = cluster.device(0);
        for tni in TniId::ALL {
            for cq in CqId::ALL {
                let opened = Cq::open(device, &CqConfig::new(tni, cq)).map(drop);
                let description = generation.description();
                if description.has_tni(tni) && description.has_cq(cq) {
                    assert_eq!(opened, Ok(()), "{generation}: TNI {tni} CQ {cq}");
                } else {
                    assert_eq!(opened, Err(OpenError::NoSuchCq { tni, cq }), "{generation}");
                }
            }
        }
    });
}

#[test]
fn messages_go_between_all_interfaces() {
    each(|generation, cluster| {
        let description = generation.description();
        for tni in 0..description.tnis {
            let last = description.cqs - 1;
            let mut a = cluster.endpoint(0, tni, last);
            let b = cluster.endpoint(1, description.tnis - 1 - tni, 0);
            a.fill(0, &pattern(tni.into(), 5000));
            let put = Order::put(b.target(), b.at(8), a.at(0), 5000);
            assert_eq!(a.end_of(&put), Rcode::SUCCESS);
            assert_eq!(b.bytes(8, 5000), a.bytes(0, 5000));
            let get = Order::get(b.target(), b.at(0), a.at(8192), 100);
            assert_eq!(a.end_of(&get), Rcode::SUCCESS);
            assert_eq!(a.bytes(8200, 92), a.bytes(0, 92));
            let data = [7; 32];
            for bytes in [8, usize::from(description.piggyback)] {
                let put = Order::put_piggyback(b.target(), b.at(6000), &data[..bytes]).unwrap();
                assert_eq!(a.end_of(&put), Rcode::SUCCESS);
                assert_eq!(b.bytes(6000, bytes), data[..bytes]);
            }
        }
    });
}

#[test]
fn targets_of_other_generations_are_refused() {
    each(|generation, cluster| {
        let description = generation.description();
        let mut a = cluster.endpoint(0, 0, 0);
        let b = cluster.endpoint(1, 0, 1);
        for tni in TniId::ALL.into_iter().filter(|tni| !description.has_tni(*tni)) {
            let put = Order::put(Target::new(b.node, tni), b.at(0), a.at(0), 8);
            assert_eq!(a.run(&put).rcode, Rcode::NO_SUCH_NODE, "{generation}: TNI {tni}");
        }
        for cq in description.cqs..64 {
            let put = Order::put(b.target(), b.at(0).with_cqid(cq), a.at(0), 8);
            assert_eq!(a.end_of(&put), Rcode::NO_SUCH_CQ, "{generation}: CQ {cq}");
        }
    });
}

#[test]
fn atomics_came_with_tofu2() {
    each(|generation, cluster| {
        let mut a = cluster.endpoint(0, 0, 0);
        let b = cluster.endpoint(1, 0, 0);
        b.set_word(64, 5);
        let add = Order::armw8(b.target(), ArmwOp::Add, b.at(64), 2);
        if generation.description().atomics {
            assert_eq!(a.end_of(&add), Rcode::SUCCESS);
            assert_eq!(b.words(8, 1), [7]);
        } else {
            assert_eq!(a.run(&add).rcode, Rcode::UNSUPPORTED_COMMAND, "{generation}");
            assert_eq!(b.words(8, 1), [5]);
            assert_eq!(a.notices(), [], "nothing was sent");
            // The queue continues.
            assert_eq!(a.run(&Order::nop()).rcode, Rcode::SUCCESS);
        }
    });
}

#[test]
fn session_mode_came_with_tofu2() {
    each(|generation, cluster| {
        let (device, description) = (cluster.device(0), generation.description());
        let (tni, cq) = (TniId::ALL[0], CqId::ALL[0]);
        let register = |reg| Register::Cqs { tni, cq, reg };
        device.write(register(CqsReg::Mode), CqsMode(0).with_session(true).0);
        device.write(register(CqsReg::Enable), 1);
        let enabled = device.read(register(CqsReg::Enable)) & 1 != 0;
        assert_eq!(enabled, description.session_mode, "{generation}");
        // TOQ_READ_EXCEPTION, as for other impossible settings.
        assert_eq!(device.read(register(CqsReg::Irr)) & 1 != 0, !description.session_mode);
    });
}

#[test]
fn session_dies_with_its_queue() {
    each(|generation, cluster| {
        if !generation.description().session_mode {
            return;
        }
        let mode = CqsMode(0).with_session(true);
        let mut a = cluster.endpoint_with(0, &CqConfig { mode, ..config(1, 1) });
        let mut b = cluster.endpoint(1, 0, 0);
        let put = Order::put(a.target(), a.at(0), b.at(0), 8);
        // There is no such source type, which is an exception as soon as the session continues.
        let bad = Descriptor([Header1(0).with_source_type(2).0, 0, 0, 0]);
        a.cq.post_and_ring(&Order::raw(&[bad]), 0).unwrap();
        cluster.settle();
        assert!(!a.cq.status().session_dead(), "{generation}");
        assert_eq!(b.end_of(&put.sps(3)), Rcode::SUCCESS);
        cluster.settle();
        let dead = a.cq.status();
        assert!(dead.session_dead() && dead.descriptor_process_stop(), "{generation}");
        // Steps that come now are lost.
        assert_eq!(b.end_of(&put.sps(2)), Rcode::SUCCESS);
        assert_eq!(a.cq.status().session_offset(), dead.session_offset());
        a.cq.close().unwrap();
        let again = cluster.endpoint_with(0, &CqConfig { mode, ..config(1, 1) });
        let status = again.cq.status();
        assert_eq!((status.session_dead(), status.session_offset()), (false, 0));
    });
}

#[test]
fn kernels_queue_sends_system_packets() {
    each(|generation, cluster| {
        let tni = TniId::ALL[usize::from(generation.description().tnis) - 1];
        let open = |rank| Packets::open(cluster.device(rank), &PacketConfig::new(tni)).unwrap();
        let (_a, _b) = (open(0), open(1));
        let cq = generation.description().kernel_cq();
        let mode = cluster.device(0).read(Register::Cqs { tni, cq, reg: CqsReg::Mode });
        assert!(CqsMode(mode).system(), "{generation}: CQ {cq}");
    });
}

#[test]
fn gates_behind_the_channels_are_relays() {
    each(|generation, cluster| {
        let barrier::Profile { tnis, channels, gates, .. } = generation.description().barrier;
        let (device, tni) = (cluster.device(0), TniId::ALL[usize::from(tnis) - 1]);
        let start = BgId::ALL[0];
        let open = |relay: BgId| {
            let pass =
                |at, via| Gate { src_local: Some(via), dst_local: Some(via), ..Gate::new(tni, at) };
            let bch = start.channel().unwrap();
            let both = [pass(start, relay), pass(relay, start)];
            Channel::open(device, &ChannelConfig::new(tni, bch), &both).map(drop)
        };
        for bg in BgId::ALL.into_iter().filter(|bg| bg.get() >= channels) {
            let expected = match bg.get() < gates {
                true => Ok(()),
                false => Err(ChannelError::NoSuchGate { tni, bg }),
            };
            assert_eq!(open(bg), expected, "{generation}: gate {bg}");
        }
        if channels > 1 {
            assert!(open(BgId::ALL[1]).is_err(), "{generation}: another channel's");
        }
    });
}

#[test]
fn channel_takes_its_generations_elements() {
    each(|generation, cluster| {
        let barrier::Profile { tnis, integers, doubles, .. } = generation.description().barrier;
        let device = cluster.device(0);
        let (tni, bch) = (TniId::ALL[usize::from(tnis) - 1], BchId::ALL[2]);
        let start = bch.gate();
        let own = Gate { src_local: Some(start), dst_local: Some(start), ..Gate::new(tni, start) };
        let channel = Channel::open(device, &ChannelConfig::new(tni, bch), &[own]).unwrap();
        let ready = Register::Bch { tni, bch, reg: BchReg::Ready };
        for (op, most) in [(Op::Sum, integers), (Op::FpSum, doubles)] {
            for (count, error) in [(most, BgsIrqs::NONE), (most + 1, BgsIrqs::SIGNAL_STATE_ERROR)] {
                channel.gate_irq(tni, start).unwrap().clear(BgsIrqs::from_raw(u64::MAX));
                let begin = BchReady(0).with_op(op.code()).with_count(count).with_start(true);
                device.write(ready, begin.0);
                cluster.settle();
                assert_eq!(channel.exceptions(), error, "{generation}: {count} of {op:?}");
            }
        }
    });
}

/// FREE_RUN_COUNT counts cycles of the logic.
#[test]
fn clocks_are_the_generations() {
    each(|generation, cluster| {
        let count = Register::Port { port: Port::A, reg: tofu_abi::regs::PortReg::FreeRunCount };
        let before = cluster.device(0).read(count);
        cluster.pass(1_000_000_000);
        let cycles = cluster.device(0).read(count) - before;
        let clock = u64::from(generation.description().clock_khz) * 1000;
        assert!(cycles >= clock && cycles < clock + clock / 100, "{generation}: {cycles}");
    });
}

#[test]
fn closed_queues_can_be_reopened() {
    each(|_, cluster| {
        for _ in 0..3 {
            drop(cluster.endpoint_with(0, &config(3, 2)));
        }
    });
}
