//! Every command, flag and field of a descriptor, as seen at both ends.

use tofu_abi::Rcode;
use tofu_abi::desc::{ArmwOp, Command, Descriptor, Header1, MAX_MESSAGE};
use tofu_abi::queue::MrqId;
use tofu_abi::regs::{CqReg, CqsMode};
use tofu_abi::topology::Port;
use tofu_abi::{Coords, Path};
use tofu_driver::{CqConfig, DmaBuffer, Order};
use tofu_tests::{Cluster, Endpoint, description, pattern};

fn pair() -> (Cluster, Endpoint, Endpoint) {
    let cluster = Cluster::new("1x1x1x2x3x2");
    let a = cluster.endpoint(0, 0, 0);
    let b = cluster.endpoint(11, 3, 5);
    (cluster, a, b)
}

#[test]
fn nop_completes_without_a_notice() {
    let (_cluster, mut a, _b) = pair();
    let done = a.run(&Order::nop());
    assert_eq!((done.rcode, done.length), (Rcode::SUCCESS, 0));
    assert_eq!(a.notices(), []);
}

#[test]
fn put_moves_the_bytes_and_nothing_else() {
    let (_cluster, mut a, b) = pair();
    a.fill(0, &pattern(1, 5000));
    b.buffer.fill(0xee);
    let done = a.run(&Order::put(b.target(), b.at(33), a.at(7), 4099));
    assert_eq!((done.rcode, done.length), (Rcode::SUCCESS, 4099));
    assert_eq!(b.bytes(33, 4099), a.bytes(7, 4099));
    assert_eq!(b.bytes(0, 33), vec![0xee; 33]);
    assert_eq!(b.bytes(33 + 4099, 64), vec![0xee; 64]);
}

#[test]
fn get_moves_the_bytes_the_other_way() {
    for order in [Order::get, Order::getl] {
        let (_cluster, mut a, b) = pair();
        b.fill(0, &pattern(2, 9000));
        a.buffer.fill(0xee);
        let done = a.run(&order(b.target(), b.at(3), a.at(101), 8191));
        assert_eq!((done.rcode, done.length), (Rcode::SUCCESS, 8191));
        assert_eq!(a.bytes(101, 8191), b.bytes(3, 8191));
        assert_eq!(a.bytes(0, 101), vec![0xee; 101]);
        assert_eq!(a.bytes(101 + 8191, 64), vec![0xee; 64]);
    }
}

#[test]
fn empty_messages_complete_with_notices() {
    let (_cluster, mut a, mut b) = pair();
    a.fill(0, &[1; 16]);
    let put = Order::put(b.target(), b.at(0), a.at(0), 0).remote_notice();
    assert_eq!(a.run(&put).rcode, Rcode::SUCCESS);
    assert_eq!(b.bytes(0, 16), [0; 16]);
    assert_eq!(b.ids(), [MrqId::PutLastHalfway]);
    let get = Order::get(b.target(), b.at(0), a.at(0), 0).remote_notice();
    assert_eq!(a.run(&get).rcode, Rcode::SUCCESS);
    assert_eq!(b.ids(), [MrqId::GetLastHalfway]);
    assert_eq!(a.ids(), [MrqId::PutLast, MrqId::GetLast]);
}

#[test]
fn piggyback_puts_carry_up_to_32_bytes() {
    let (_cluster, mut a, b) = pair();
    let data = pattern(3, 32);
    for len in 1..=32 {
        b.buffer.fill(0);
        let order = Order::put_piggyback(b.target(), b.at(5), &data[..len]).unwrap();
        let done = a.run(&order);
        assert_eq!((done.rcode, done.length as usize), (Rcode::SUCCESS, len));
        assert_eq!(b.bytes(5, len), data[..len]);
        assert_eq!(b.bytes(5 + len, 64), [0; 64]);
    }
    assert!(Order::put_piggyback(b.target(), b.at(5), &[]).is_err());
    assert!(Order::put_piggyback(b.target(), b.at(5), &[0; 33]).is_err());
}

#[test]
fn piggyback_data_comes_from_registers() {
    let (cluster, mut a, b) = pair();
    let words = [0x11, 0x22, 0x33u64];
    let regs = [CqReg::PiggybackBuffer0, CqReg::PiggybackBuffer1, CqReg::PiggybackBuffer2];
    for (reg, word) in regs.into_iter().zip(words) {
        cluster.device(0).write(a.cq_register(reg), word);
    }
    let mut put = Order::put_piggyback(b.target(), b.at(0), &[7; 32]).unwrap().descriptors()[1];
    put.0[3] = 0x0707_0707;
    assert_eq!(a.run(&Order::raw(&[put])).rcode, Rcode::SUCCESS);
    assert_eq!(b.words(0, 4), [0x0707_0707, 0x11, 0x22, 0x33]);
}

/// The operations, and what they make of `old` and `x`. The low 4 bytes hold for words of 4 bytes.
fn results(old: u64, x: u64) -> [(ArmwOp, u64); 5] {
    [
        (ArmwOp::Swap, x),
        (ArmwOp::Add, old.wrapping_add(x)),
        (ArmwOp::Xor, old ^ x),
        (ArmwOp::And, old & x),
        (ArmwOp::Or, old | x),
    ]
}

#[test]
fn atomics_change_8_bytes_and_return_old() {
    if !description().atomics {
        return;
    }
    let (_cluster, mut a, b) = pair();
    let old = 0xffff_ffff_ffff_fff0u64;
    let x = 0x1234_5678_9abc_def0u64;
    for (op, new) in results(old, x) {
        b.set_word(8, old);
        let done = a.run(&Order::armw8(b.target(), op, b.at(8), x));
        assert_eq!((done.rcode, done.length), (Rcode::SUCCESS, 8));
        assert_eq!(b.words(0, 3), [0, new, 0], "{op:?}");
        let [notice] = a.notices()[..] else { panic!("one notice") };
        assert_eq!(notice.id(), Some(MrqId::Armw));
        assert_eq!(notice.old_value(), old);
        assert_eq!(notice.word1().op(), op as u8);
    }
}

#[test]
fn atomics_change_4_bytes_and_no_neighbours() {
    if !description().atomics {
        return;
    }
    let (_cluster, mut a, b) = pair();
    let old = 0xffff_fff0u32;
    let x = 0x89ab_cdefu32;
    for (op, new) in results(old.into(), x.into()) {
        b.set_word(8, u64::from(old) << 32 | 0x5555);
        assert_eq!(a.run(&Order::armw4(b.target(), op, b.at(12), x)).rcode, Rcode::SUCCESS);
        assert_eq!(b.words(1, 2), [new << 32 | 0x5555, 0], "{op:?}");
        assert_eq!(a.notices()[0].old_value(), u64::from(old));
    }
}

#[test]
fn compare_and_swap_needs_expected_value() {
    if !description().atomics {
        return;
    }
    let (_cluster, mut a, b) = pair();
    b.set_word(0, 10);
    for (old, new, after) in [(11, 12, 10), (10, u64::MAX, u64::MAX)] {
        let before = b.words(0, 1)[0];
        assert_eq!(a.run(&Order::cswap8(b.target(), b.at(0), old, new)).rcode, Rcode::SUCCESS);
        assert_eq!(b.words(0, 1), [after]);
        assert_eq!(a.notices()[0].old_value(), before);
    }
    b.set_word(0, 0xaaaa_aaaa_0000_000a);
    for (old, new, after) in [(11, 12, 10u64), (10, 13, 13)] {
        assert_eq!(a.run(&Order::cswap4(b.target(), b.at(0), old, new)).rcode, Rcode::SUCCESS);
        assert_eq!(b.words(0, 1), [0xaaaa_aaaa_0000_0000 | after]);
        assert_eq!(a.notices()[0].old_value(), 10);
    }
}

#[test]
fn notices_tell_both_ends_about_each_other() {
    let (_cluster, mut a, mut b) = pair();
    let order = Order::put(b.target(), b.at(64), a.at(128), 4000).remote_notice().edata(0xa55a);
    let path = Path::new(0, 1, 1);
    a.run(&order.path(path));
    let [at_a] = a.notices()[..] else { panic!("one notice at the initiator") };
    let [at_b] = b.notices()[..] else { panic!("one notice at the target") };
    assert_eq!((at_a.id(), at_b.id()), (Some(MrqId::PutLast), Some(MrqId::PutLastHalfway)));
    assert_eq!((at_a.word0().coords(), at_a.word0().i()), (b.node, b.tni.get()));
    assert_eq!((at_b.word0().coords(), at_b.word0().i()), (a.node, a.tni.get()));
    for notice in [at_a, at_b] {
        let word0 = notice.word0();
        assert_eq!(word0.rcode(), Rcode::SUCCESS);
        assert_eq!(Path::new(word0.pa(), word0.pb(), word0.pc()), path);
        assert_eq!(notice.word1().edata(), 0xa55a);
        assert_eq!(notice.word1().length(), 4000 % 1920, "payload of the last TLP");
        assert!(!notice.word1().initial());
    }
    // Addresses are advanced by the length; each end has its own address as the local one.
    assert_eq!((at_a.local(), at_a.remote()), (a.at(128 + 4000), b.at(64 + 4000)));
    assert_eq!((at_b.local(), at_b.remote()), (b.at(64 + 4000), a.at(128 + 4000)));
}

#[test]
fn target_without_notice_flag_gets_none() {
    let (_cluster, mut a, mut b) = pair();
    a.run(&Order::put(b.target(), b.at(0), a.at(0), 8));
    a.run(&Order::get(b.target(), b.at(0), a.at(0), 8));
    a.run(&Order::put_piggyback(b.target(), b.at(0), &[1; 3]).unwrap());
    assert_eq!(a.ids(), [MrqId::PutLast, MrqId::GetLast, MrqId::PutLast]);
    assert_eq!(b.notices(), []);
    a.run(&Order::get(b.target(), b.at(0), a.at(0), 8).remote_notice());
    a.run(&Order::put_piggyback(b.target(), b.at(0), &[1; 3]).unwrap().remote_notice());
    assert_eq!(b.ids(), [MrqId::GetLastHalfway, MrqId::PutLastHalfway]);
    if description().atomics {
        a.notices();
        let add = Order::armw8(b.target(), ArmwOp::Add, b.at(0), 1);
        a.run(&add);
        a.run(&add.remote_notice());
        assert_eq!(a.ids(), [MrqId::Armw; 2]);
        assert_eq!(b.ids(), [MrqId::ArmwHalfway]);
    }
}

#[test]
fn packet_response_notifies_for_every_tlp() {
    let (_cluster, mut a, mut b) = pair();
    let put = Order::put(b.target(), b.at(0), a.at(0), 1000).mtu(400);
    a.run(&put.packet_response().remote_notice());
    assert_eq!(a.ids(), [MrqId::Put, MrqId::Put, MrqId::PutLast]);
    let seen: Vec<_> = b
        .notices()
        .iter()
        .map(|n| (n.id().unwrap(), n.word1().initial(), n.word1().length(), n.local().offset()))
        .collect();
    let base = b.at(0).offset();
    assert_eq!(
        seen,
        [
            (MrqId::PutHalfway, true, 400, base + 400),
            (MrqId::PutHalfway, false, 400, base + 800),
            (MrqId::PutLastHalfway, false, 200, base + 1000),
        ]
    );
    let get = Order::get(b.target(), b.at(0), a.at(0), 1000).mtu(800);
    a.run(&get.packet_response().remote_notice());
    assert_eq!(a.ids(), [MrqId::Get, MrqId::GetLast]);
    assert_eq!(b.ids(), [MrqId::GetHalfway, MrqId::GetLastHalfway]);
}

#[test]
fn mtu_cuts_messages_into_tlps() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let b = cluster.endpoint(1, 0, 0);
    for (order, tlps) in [
        (Order::put(b.target(), b.at(0), a.at(0), 1920), 1),
        (Order::put(b.target(), b.at(0), a.at(0), 1921), 2),
        (Order::put(b.target(), b.at(0), a.at(0), 1920).mtu(1920), 1),
        (Order::put(b.target(), b.at(0), a.at(0), 1920).mtu(256), 8),
        (Order::put(b.target(), b.at(0), a.at(0), 17).mtu(8), 3),
    ] {
        let before = cluster.sent_tlps(0, 0);
        assert_eq!(a.run(&order).rcode, Rcode::SUCCESS);
        assert_eq!(cluster.sent_tlps(0, 0) - before, tlps);
    }
}

#[test]
fn padding_and_gap_do_not_change_the_data() {
    let (_cluster, mut a, b) = pair();
    a.fill(0, &pattern(4, 3000));
    let order = Order::put(b.target(), b.at(1), a.at(2), 2500);
    for order in [order.padding(), order.gap(255), order.cache_injection(), order.strong_order()] {
        b.buffer.fill(0);
        assert_eq!(a.run(&order.sps(15)).rcode, Rcode::SUCCESS);
        assert_eq!(b.bytes(1, 2500), a.bytes(2, 2500));
        assert_eq!(b.bytes(2501, 256), vec![0; 256], "padding is for the link only");
    }
}

#[test]
fn padding_takes_more_bytes_on_the_link() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let b = cluster.endpoint(1, 0, 0);
    let order = Order::put(b.target(), b.at(0), a.at(0), 300);
    let mut cost = |order: &Order| {
        let before = cluster.sent_bytes(0, Port::A);
        a.run(order);
        cluster.sent_bytes(0, Port::A) - before
    };
    let (plain, padded) = (cost(&order), cost(&order.padding()));
    assert!(padded > plain, "{padded} > {plain}");
}

#[test]
fn every_path_arrives_and_is_reported() {
    let cluster = Cluster::new("2x2x1x2x3x2");
    let mut a = cluster.endpoint(0, 0, 0);
    for rank in [1, 5, 23, 47] {
        let mut b = cluster.endpoint(rank, 2, 1);
        for path in (0..12).map(|i| Path::new(i / 6, i / 2 % 3, i % 2)) {
            a.fill(0, &pattern(rank as u64 * 12 + u64::from(path.b), 64));
            let order = Order::put(b.target(), b.at(0), a.at(0), 64).path(path).remote_notice();
            assert_eq!(a.run(&order).rcode, Rcode::SUCCESS);
            assert_eq!(b.bytes(0, 64), a.bytes(0, 64));
            let word0 = b.notices()[0].word0();
            assert_eq!(Path::new(word0.pa(), word0.pb(), word0.pc()), path);
        }
        a.notices();
    }
}

#[test]
fn queue_reaches_itself_and_its_nodes_tnis() {
    let cluster = Cluster::new("1x1x1x2x3x2");
    let mut a = cluster.endpoint(4, 0, 0);
    let tnis = 1..description().tnis;
    let mut others: Vec<_> = tnis.map(|tni| cluster.endpoint(4, tni, 11)).collect();
    a.fill(0, &pattern(5, 100));
    let order = Order::put(a.target(), a.at(1000), a.at(0), 100).remote_notice();
    assert_eq!(a.run(&order).rcode, Rcode::SUCCESS);
    assert_eq!(a.bytes(1000, 100), pattern(5, 100));
    // The command's own completion comes before the notice that it caused.
    assert_eq!(a.ids(), [MrqId::PutLast, MrqId::PutLastHalfway]);
    for b in &mut others {
        let order = Order::put(b.target(), b.at(0), a.at(0), 100).remote_notice();
        assert_eq!(a.run(&order).rcode, Rcode::SUCCESS);
        assert_eq!(b.bytes(0, 100), pattern(5, 100));
        assert_eq!(b.ids(), [MrqId::PutLastHalfway]);
    }
}

#[test]
fn overlapping_self_puts_stay_in_range() {
    let cluster = Cluster::new("1x1x1x1x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    a.fill(0, &[9; 256]);
    let order = Order::put(a.target(), a.at(16), a.at(0), 240);
    assert_eq!(a.run(&order).rcode, Rcode::SUCCESS);
    assert_eq!(a.bytes(0, 256), [9; 256]);
    assert_eq!(a.bytes(256, 16), [0; 16]);
}

#[test]
fn longest_message_moves_at_odd_alignment() {
    let cluster = Cluster::with_memory("1x1x1x2x1x1", 80 << 20);
    let len = MAX_MESSAGE as usize;
    let mut a = cluster.endpoint_of(0, 0, 0, len + 4096);
    let b = cluster.endpoint_of(1, 0, 0, len + 4096);
    a.fill(3, &pattern(6, len));
    assert_eq!(a.run(&Order::put(b.target(), b.at(1), a.at(3), MAX_MESSAGE)).length, MAX_MESSAGE);
    assert!(b.bytes(1, len) == pattern(6, len));
    assert_eq!((b.bytes(0, 1), b.bytes(1 + len, 8)), (vec![0], vec![0; 8]));
    a.buffer.fill(0);
    assert_eq!(a.run(&Order::get(b.target(), b.at(1), a.at(5), MAX_MESSAGE)).length, MAX_MESSAGE);
    assert!(a.bytes(5, len) == pattern(6, len));
    assert_eq!((a.bytes(4, 1), a.bytes(5 + len, 8)), (vec![0], vec![0; 8]));
}

#[test]
fn payload_bytes_are_counted_at_both_ends() {
    let (cluster, mut a, b) = pair();
    a.run(&Order::put(b.target(), b.at(0), a.at(0), 1000));
    a.run(&Order::get(b.target(), b.at(0), a.at(0), 77));
    a.run(&Order::put_piggyback(b.target(), b.at(0), &[0; 5]).unwrap());
    let count = |e: &Endpoint, reg| cluster.device(e.rank).read(e.cq_register(reg));
    assert_eq!((count(&a, CqReg::TxPayloadByte), count(&a, CqReg::RxPayloadByte)), (1005, 77));
    assert_eq!((count(&b, CqReg::TxPayloadByte), count(&b, CqReg::RxPayloadByte)), (77, 1005));
    assert_eq!(count(&a, CqReg::TcqNumNotice), 3);
    assert_eq!(count(&a, CqReg::MrqNumNotice), 3);
    assert_eq!(count(&b, CqReg::MrqNumNotice), 0);
}

#[test]
fn completions_come_in_posting_order() {
    let (_cluster, mut a, b) = pair();
    for i in 0..200u64 {
        a.cq.post(&Order::put(b.target(), b.at(i), a.at(i), 1 + i as u32), i).unwrap();
    }
    a.cq.doorbell();
    for i in 0..200 {
        let done = a.complete();
        assert_eq!((done.cookie, done.length), (i, 1 + i as u32));
    }
}

#[test]
fn forbidden_commands_are_refused() {
    let (cluster, mut a, b) = pair();
    let with = |command: u8| {
        let header = Header1(0).with_command(command).with_target(b.node).with_ri(b.tni.get());
        Order::raw(&[Descriptor([header.0, 0, b.at(0).0, a.at(0).0])])
    };
    let orders: Vec<_> = (0..=255).filter(|c| Command::from_code(*c).is_none()).map(with).collect();
    let raw = [0x10, 0x11, 0x12, 0x13].map(with);
    for order in orders {
        assert_eq!(a.run(&order).rcode, Rcode::UNDEFINED_COMMAND);
    }
    for order in raw {
        assert_eq!(a.run(&order).rcode, Rcode::NOT_PERMITTED);
    }
    assert_eq!(a.notices(), [], "a command that was never sent has no notice");
    // The right for system packets does not include raw packets; each kind of these has a separate
    // right.
    let with_rights = |mode: CqsMode, tni| {
        let mut queue = cluster.endpoint_with(0, &CqConfig { mode, ..tofu_tests::config(tni, 11) });
        raw.map(|order| queue.run(&order).rcode)
    };
    let (refused, allowed) = (Rcode::NOT_PERMITTED, Rcode::BAD_LENGTH);
    let system = CqsMode(0).with_system(true);
    assert_eq!(with_rights(system, 1), [refused, refused, allowed, allowed]);
    assert_eq!(with_rights(system.with_trp1_enable(true), 2)[..2], [allowed, refused]);
    assert_eq!(with_rights(system.with_trp2_enable(true), 3)[..2], [refused, allowed]);
    let raw_only = CqsMode(0).with_trp1_enable(true).with_trp2_enable(true);
    assert_eq!(with_rights(raw_only, 4), [refused; 4]);
}

#[test]
fn fields_out_of_range_are_refused() {
    let (_cluster, mut a, b) = pair();
    let put = Order::put(b.target(), b.at(0), a.at(0), 8);
    assert_eq!(a.run(&put.mtu(1928)).rcode, Rcode::BAD_MTU);
    assert_eq!(a.run(&put.mtu(2040)).rcode, Rcode::BAD_MTU);
    let mut piggyback = Order::put_piggyback(b.target(), b.at(0), &[1; 8]).unwrap();
    piggyback = piggyback_len(piggyback, 33);
    assert_eq!(a.run(&piggyback).rcode, Rcode::BAD_LENGTH);
    // A command that does not exist is refused before its fields are checked.
    let atomics = description().atomics;
    let checked = |code| if atomics { code } else { Rcode::UNSUPPORTED_COMMAND };
    for len in [0, 1, 2, 3, 5, 16] {
        let d = Descriptor::armw(
            put.descriptors()[0].header1(),
            Default::default(),
            ArmwOp::Add,
            b.at(0),
            1,
            len,
        );
        assert_eq!(a.run(&Order::raw(&[d])).rcode, checked(Rcode::BAD_LENGTH), "{len}");
    }
    let mut armw = Order::armw8(b.target(), ArmwOp::Add, b.at(0), 1).descriptors()[0];
    for op in 6..16 {
        armw.0[0] = armw.header1().with_op(op).0;
        assert_eq!(a.run(&Order::raw(&[armw])).rcode, checked(Rcode::BAD_OPERATOR));
    }
    for tni in description().tnis..8 {
        let mut d = put.descriptors()[0];
        d.0[0] = d.header1().with_ri(tni).0;
        assert_eq!(a.run(&Order::raw(&[d])).rcode, Rcode::NO_SUCH_NODE);
    }
    assert_eq!(b.words(0, 4), [0; 4]);
}

fn piggyback_len(order: Order, len: u8) -> Order {
    let mut d = order.descriptors()[0];
    d.0[1] = d.header2().with_piggyback_length(len).0;
    Order::raw(&[d])
}

#[test]
fn nodes_and_paths_outside_are_refused() {
    let (_cluster, mut a, b) = pair();
    for node in [
        Coords::new(1, 0, 0, 0, 0, 0),
        Coords::new(0, 0, 0, 0, 3, 0),
        Coords::new(255, 255, 255, 1, 3, 1),
    ] {
        let mut target = b.target();
        target.node = node;
        let order = Order::put(target, b.at(0), a.at(0), 8).path(Path::new(0, 0, 0));
        assert_eq!(a.end_of(&order), Rcode::NO_SUCH_NODE, "{node}");
    }
    let order = Order::put(b.target(), b.at(0), a.at(0), 8).path(Path::new(0, 3, 0));
    assert_eq!(a.end_of(&order), Rcode::NO_SUCH_PATH);
}

#[test]
fn atomic_address_must_be_aligned() {
    if !description().atomics {
        return;
    }
    let (_cluster, mut a, b) = pair();
    for (order, code) in [
        (Order::armw8(b.target(), ArmwOp::Add, b.at(4), 1), Rcode::ALIGNMENT.remote()),
        (Order::armw4(b.target(), ArmwOp::Add, b.at(2), 1), Rcode::ALIGNMENT.remote()),
        (Order::armw4(b.target(), ArmwOp::Add, b.at(4), 1), Rcode::SUCCESS),
    ] {
        assert_eq!(a.run(&order).rcode, Rcode::SUCCESS, "it was sent");
        let [notice] = a.notices()[..] else { panic!("one notice") };
        let id = if code.is_success() { MrqId::Armw } else { MrqId::ArmwRemoteError };
        assert_eq!((notice.id(), notice.word0().rcode()), (Some(id), code));
    }
    assert_eq!(b.words(0, 2), [1 << 32, 0]);
    assert_eq!(b.buffer.len() % 8, 0);
}
