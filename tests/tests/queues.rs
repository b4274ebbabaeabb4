//! Rings, flip bits, overflow, coalescing, direct descriptors, stopping.

use tofu_abi::desc::{Command, Descriptor, Header1, source_type};
use tofu_abi::irq::CqsIrqs;
use tofu_abi::queue::MrqId;
use tofu_abi::regs::{CqReg, CqsReg, CqsStatus, MRQ_MASK_DISCARD};
use tofu_abi::{CqId, Rcode, TniId};
use tofu_driver::{CqConfig, DmaBuffer, Order};
use tofu_tests::{Cluster, Endpoint, description, pattern};

const ENTRIES: u64 = 2048;

fn pair() -> (Cluster, Endpoint, Endpoint) {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let a = cluster.endpoint(0, 0, 0);
    let b = cluster.endpoint(1, 0, 0);
    (cluster, a, b)
}

/// Both kinds of doorbells.
fn both_ways() -> impl Iterator<Item = (Cluster, Endpoint, Endpoint)> {
    [Cluster::new, Cluster::polled].into_iter().map(|make| {
        let cluster = make("1x1x1x2x1x1");
        let a = cluster.endpoint(0, 0, 0);
        let b = cluster.endpoint(1, 0, 0);
        (cluster, a, b)
    })
}

fn set(end: &Endpoint, reg: CqsReg, value: u64) {
    end.device().write(end.cqs_register(reg), value);
}

fn get(end: &Endpoint, reg: CqsReg) -> u64 {
    end.device().read(end.cqs_register(reg))
}

fn piggyback(from: u64, to: &Endpoint) -> Order {
    Order::put_piggyback(to.target(), to.at(0), &from.to_le_bytes()).unwrap()
}

#[test]
fn rings_go_around_several_times() {
    for (_cluster, mut a, mut b) in both_ways() {
        let mut received = 0u64;
        // Laps that do not line up with the batches.
        for batch in 0..35u64 {
            for i in 0..200 {
                let n = batch * 200 + i;
                a.cq.post(&piggyback(n, &b).remote_notice().edata(n as u16), n).unwrap();
            }
            a.cq.doorbell();
            for i in 0..200 {
                let done = a.complete();
                assert_eq!((done.cookie, done.rcode), (batch * 200 + i, Rcode::SUCCESS));
            }
            assert_eq!(a.notices().len(), 200);
            for notice in b.notices() {
                assert_eq!(notice.word1().edata(), received as u16);
                received += 1;
            }
            let status = a.cq.status();
            let next = (batch + 1) * 200;
            assert_eq!(u64::from(status.next_descriptor_offset_units()), next % ENTRIES);
            assert_eq!(status.blank_entry_flip_bit(), next / ENTRIES % 2 == 1);
        }
        assert_eq!(received, 35 * 200);
        assert_eq!(b.words(0, 1), [35 * 200 - 1]);
    }
}

#[test]
fn full_queue_is_worked_off_by_one_doorbell() {
    for (_cluster, mut a, b) in both_ways() {
        for lap in 0..3 {
            for n in 0..ENTRIES {
                a.cq.post(&Order::nop(), n).unwrap();
            }
            assert_eq!(a.cq.free_slots(), 0);
            a.cq.doorbell();
            for n in 0..ENTRIES {
                assert_eq!(a.complete().cookie, n, "lap {lap}");
            }
        }
        assert_eq!(a.run(&piggyback(5, &b)).rcode, Rcode::SUCCESS);
    }
}

#[test]
fn only_a_doorbell_starts_commands() {
    for (cluster, mut a, _b) in both_ways() {
        a.cq.post(&Order::nop(), 1).unwrap();
        cluster.settle();
        assert_eq!(a.cq.poll_tcq(), None);
        a.cq.doorbell();
        a.cq.doorbell();
        assert_eq!(a.complete().cookie, 1);
        a.cq.doorbell();
        cluster.settle();
        assert_eq!(a.cq.poll_tcq(), None);
        assert_eq!(a.run(&Order::nop()).rcode, Rcode::SUCCESS);
    }
}

#[test]
fn full_mrq_overflows_and_then_recovers() {
    for (cluster, mut a, mut b) in both_ways() {
        let order = piggyback(0, &b).remote_notice();
        for i in 0..ENTRIES {
            a.run(&order.edata(i as u16));
            a.notices();
        }
        assert_eq!(b.cq.exception(), None);
        // The queue is full: the notice is lost, but not the data.
        assert_eq!(a.run(&piggyback(77, &b).remote_notice()).rcode, Rcode::SUCCESS);
        assert_eq!(b.words(0, 1), [77]);
        assert_eq!(b.cq.exception().unwrap().irr, CqsIrqs::MRQ_OVERFLOW);
        b.cq.clear_exceptions();
        for i in 0..ENTRIES {
            assert_eq!(b.cq.poll_mrq().unwrap().word1().edata(), i as u16);
        }
        assert!(b.cq.poll_mrq().is_none());
        // The driver acknowledges a quarter of the ring at a time; now there is room again.
        a.run(&order.edata(0xabc));
        assert_eq!(b.cq.poll_mrq().unwrap().word1().edata(), 0xabc);
        assert_eq!(b.cq.exception(), None);
        let full_pointer = cluster.device(1).read(b.cq_register(CqReg::MrqFullPointer));
        assert_eq!(full_pointer, ENTRIES);
        assert_eq!(cluster.device(1).read(b.cq_register(CqReg::MrqNumNotice)), ENTRIES + 1);
    }
}

#[test]
fn full_pointer_makes_room() {
    for (_cluster, mut a, mut b) in both_ways() {
        let order = piggyback(0, &b).remote_notice();
        let fill = |a: &mut Endpoint, n: u64| {
            for _ in 0..n {
                a.run(&order);
                a.notices();
            }
        };
        fill(&mut a, ENTRIES);
        for _ in 0..100 {
            b.cq.poll_mrq().unwrap();
        }
        b.cq.acknowledge_mrq();
        fill(&mut a, 100);
        assert_eq!(b.cq.exception(), None);
        fill(&mut a, 1);
        assert_eq!(b.cq.exception().unwrap().irr, CqsIrqs::MRQ_OVERFLOW);
        assert_eq!(b.notices().len() as u64, ENTRIES);
    }
}

/// A driver that acknowledges a notice twice leaves no room, as the queue looks full.
#[test]
fn full_pointer_ahead_of_notices_breaks_a_rule() {
    for (cluster, mut a, mut b) in both_ways() {
        let order = piggyback(0, &b).remote_notice();
        let ahead = || {
            let report = cluster.icc(1).rules();
            report.0.iter().find(|tally| tally.rule.id() == "T-MRQ-003").unwrap().broken
        };
        for _ in 0..3 {
            a.run(&order);
        }
        assert_eq!(b.notices().len(), 3);
        cluster.device(1).write(b.cq_register(CqReg::MrqFullPointer), 3);
        a.run(&order);
        assert_eq!((b.notices().len(), ahead()), (1, 0));
        cluster.device(1).write(b.cq_register(CqReg::MrqFullPointer), 5);
        a.run(&order);
        a.run(&order);
        assert_eq!((b.notices().len(), ahead()), (0, 1));
    }
}

#[test]
fn notices_can_be_discarded() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let mut a = cluster.endpoint(0, 0, 0);
    let config =
        CqConfig { mrq_mask: MRQ_MASK_DISCARD, ..CqConfig::new(TniId::ALL[0], CqId::ALL[0]) };
    let mut b = cluster.endpoint_with(1, &config);
    assert_eq!(a.run(&piggyback(3, &b).remote_notice()).rcode, Rcode::SUCCESS);
    assert_eq!((b.words(0, 1), b.notices().len()), (vec![3], 0));
    assert_eq!(a.ids(), [MrqId::PutLast]);
}

#[test]
fn held_entries_come_by_time_or_line() {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let hold = 1_000_000;
    let config = CqConfig {
        tcq_coalescing_ns: hold,
        mrq_coalescing_ns: hold,
        ..CqConfig::new(TniId::ALL[0], CqId::ALL[0])
    };
    let mut a = cluster.endpoint_with(0, &config);
    let b = cluster.endpoint(1, 0, 0);
    // A NOP has no notice that would flush its completion.
    a.cq.post_and_ring(&Order::nop(), 1).unwrap();
    cluster.settle();
    assert_eq!(a.cq.poll_tcq(), None);
    cluster.pass(hold / 2);
    assert_eq!(a.cq.poll_tcq(), None);
    cluster.pass(hold / 2);
    assert_eq!(a.cq.poll_tcq().unwrap().cookie, 1);

    a.cq.post_and_ring(&piggyback(0, &b), 2).unwrap();
    cluster.settle();
    assert_eq!(a.notices(), []);
    assert_eq!(a.cq.poll_tcq().unwrap().cookie, 2, "what completed is seen before its notice");
    cluster.pass(hold);
    assert_eq!(a.ids(), [MrqId::PutLast]);

    // 32 completions or 8 notices fill a cache line and are not held any longer.
    for n in 0..32 {
        a.cq.post(&Order::nop(), n).unwrap();
    }
    a.cq.doorbell();
    cluster.settle();
    for n in 0..32 {
        assert_eq!(a.cq.poll_tcq().unwrap().cookie, n);
    }
    for n in 0..8 {
        a.cq.post(&piggyback(n, &b), n).unwrap();
    }
    a.cq.doorbell();
    cluster.settle();
    assert_eq!(a.ids(), [MrqId::PutLast; 8]);
    while a.cq.poll_tcq().is_some() {}

    // A command that requests an interrupt is not held back.
    a.cq.post_and_ring(&Order::nop().interrupt(), 9).unwrap();
    cluster.settle();
    assert_eq!(a.cq.poll_tcq().unwrap().cookie, 9);
}

#[test]
fn direct_descriptors_of_one_and_two() {
    for (_cluster, mut a, b) in both_ways() {
        a.fill(0, &pattern(1, 100));
        let data = pattern(2, 32);
        let mut swap = Order::cswap8(b.target(), b.at(400), 0, 99);
        if !description().atomics {
            // As many descriptors, with the same effect.
            let mut data = [0; 32];
            data[0] = 99;
            swap = Order::put_piggyback(b.target(), b.at(400), &data).unwrap();
        }
        let orders = [
            Order::put(b.target(), b.at(0), a.at(0), 100),
            Order::put_piggyback(b.target(), b.at(200), &data).unwrap(),
            swap,
            Order::nop(),
        ];
        // Around the ring more than once, with a wrap in the middle of a command.
        for n in 0..1500u64 {
            let order = orders[n as usize % 4];
            a.cq.post_direct(&order, n).unwrap();
            let done = a.complete();
            assert_eq!((done.cookie, done.rcode), (n, Rcode::SUCCESS));
            a.notices();
        }
        assert_eq!(b.bytes(0, 100), pattern(1, 100));
        assert_eq!(b.bytes(200, 32), data);
        assert_eq!(b.words(50, 1), [99]);
        assert_eq!(get(&a, CqsReg::ToqDirectSourceCount), 1500);
        assert_eq!(get(&a, CqsReg::ToqDirectDescriptorCount), 1500 + 2 * 375);
        // The queue and the register mix.
        for n in 0..3000u64 {
            match n % 3 {
                0 => a.cq.post_direct(&Order::nop(), n).unwrap(),
                _ => a.cq.post_and_ring(&Order::nop(), n).unwrap(),
            }
            assert_eq!(a.complete().cookie, n);
        }
        assert_eq!(a.cq.exception(), None);
    }
}

#[test]
fn direct_descriptor_waits_for_posted_ones() {
    for (cluster, mut a, b) in both_ways() {
        for n in 0..10u64 {
            a.cq.post(&piggyback(n, &b).remote_notice(), n).unwrap();
        }
        a.cq.post_direct(&piggyback(10, &b).remote_notice(), 10).unwrap();
        // The register is in use, so this one goes through the queue.
        a.cq.post_direct(&piggyback(11, &b).remote_notice(), 11).unwrap();
        cluster.settle();
        for n in 0..12 {
            assert_eq!(a.complete().cookie, n);
        }
        assert_eq!(b.words(0, 1), [11]);
        assert_eq!(get(&a, CqsReg::ToqDirectSourceCount), 1);
    }
}

/// Writes the direct descriptor register by hand.
fn write_direct(end: &Endpoint, words: &[u64]) {
    for (i, word) in words.iter().enumerate().rev() {
        let reg = CqReg::from_offset(i as u64 * 8).unwrap();
        end.device().write(end.cq_register(reg), *word);
    }
}

#[test]
fn misused_direct_register_stops_the_queue() {
    let (cluster, mut a, _b) = pair();
    // A blank entry is where a direct descriptor may go, but not without its source type.
    write_direct(&a, &[0, 0, 0, 0]);
    cluster.settle();
    assert_eq!(a.cq.exception().unwrap().irr, CqsIrqs::TOQ_SOURCE_TYPE_EXCEPTION);
    assert!(a.cq.status().descriptor_process_stop());
    a.cq.post_and_ring(&Order::nop(), 0).unwrap();
    cluster.settle();
    assert_eq!(a.cq.poll_tcq(), None, "a stopped queue stays stopped");

    // A second command while the first one waits: FETCH_STOP keeps it there.
    let b = cluster.endpoint(0, 1, 0);
    set(&b, CqsReg::FetchStop, 1);
    let direct = Header1(0).with_source_type(source_type::DIRECT).with_flip(true).0;
    write_direct(&b, &[direct, 0, 0, 0]);
    write_direct(&b, &[direct, 0, 0, 0]);
    let irr = b.cq.exception().unwrap().irr;
    assert_eq!(irr, CqsIrqs::TOQ_DIRECT_DESCRIPTOR_EXCEPTION);
}

#[test]
fn unknown_source_type_stops_the_queue() {
    let (cluster, mut a, _b) = pair();
    let bad = Descriptor([Header1(0).with_source_type(2).0, 0, 0, 0]);
    a.cq.post_and_ring(&Order::raw(&[bad]), 0).unwrap();
    cluster.settle();
    assert_eq!(a.cq.exception().unwrap().irr, CqsIrqs::TOQ_SOURCE_TYPE_EXCEPTION);
    assert_eq!(a.cq.poll_tcq(), None);
    // Closing and opening it again helps.
    a.cq.close().unwrap();
    let mut again = cluster.endpoint(0, 0, 0);
    assert_eq!(again.run(&Order::nop()).rcode, Rcode::SUCCESS);
}

#[test]
fn fetch_stop_holds_and_releases_the_queue() {
    let (cluster, mut a, b) = pair();
    set(&a, CqsReg::FetchStop, 1);
    assert!(a.cq.status().descriptor_fetch_stop());
    a.cq.post_and_ring(&piggyback(4, &b), 4).unwrap();
    cluster.settle();
    assert_eq!(b.words(0, 1), [0]);
    set(&a, CqsReg::FetchStop, 0);
    assert_eq!(a.complete().cookie, 4);
    assert_eq!(b.words(0, 1), [4]);
}

#[test]
fn missing_answer_is_a_timeout() {
    let (cluster, mut a, b) = pair();
    cluster.lose_answers(true);
    assert_eq!(a.end_of(&piggyback(4, &b)), Rcode::TIMEOUT);
    let get = Order::get(b.target(), b.at(0), a.at(0), 1 << 15);
    assert_eq!(a.run(&get).rcode, Rcode::SUCCESS, "it was sent");
    let [notice] = a.notices()[..] else { panic!("one notice") };
    let (id, code) = (notice.id(), notice.word0().rcode());
    assert_eq!((id, code), (Some(MrqId::GetLastRemoteError), Rcode::TIMEOUT));
    cluster.lose_answers(false);
    assert_eq!(a.run(&get).rcode, Rcode::SUCCESS);
    // More than can be outstanding at a time, all without an answer.
    cluster.lose_answers(true);
    for n in 0..300 {
        a.cq.post(&piggyback(n, &b), n).unwrap();
    }
    a.cq.doorbell();
    for n in 0..300 {
        let done = a.complete();
        assert_eq!((done.cookie, done.rcode), (n, Rcode::SUCCESS));
    }
    let notices = a.notices();
    assert_eq!(notices.len(), 301, "those and the one of the Get that succeeded");
    let timeouts = notices.iter().filter(|notice| notice.word0().rcode() == Rcode::TIMEOUT);
    assert_eq!(timeouts.count(), 300);
    let failed = cluster.icc(0).failed_commands(a.cq.tni());
    assert_eq!((failed.refused, failed.lost), (0, 302));
}

#[test]
fn closing_forgets_what_was_under_way() {
    let (cluster, mut a, mut b) = pair();
    cluster.lose_answers(true);
    for n in 0..10 {
        a.cq.post(&piggyback(n, &b), n).unwrap();
    }
    a.cq.doorbell();
    cluster.settle();
    a.cq.close().unwrap();
    cluster.lose_answers(false);
    // The next owner of the queue gets nothing of its predecessor's commands.
    let mut a = cluster.endpoint(0, 0, 0);
    assert_eq!(a.run(&Order::nop()).rcode, Rcode::SUCCESS);
    cluster.pass(1_000_000_000);
    assert_eq!((a.cq.poll_tcq(), a.notices()), (None, vec![]));
    assert_eq!(b.run(&piggyback(5, &a)).rcode, Rcode::SUCCESS);
}

#[test]
fn counters_start_anew_with_the_queue() {
    let (cluster, mut a, b) = pair();
    a.run(&piggyback(1, &b));
    a.cq.close().unwrap();
    let a = cluster.endpoint(0, 0, 0);
    for reg in [CqReg::TcqNumNotice, CqReg::MrqNumNotice, CqReg::TxPayloadByte] {
        assert_eq!(a.cq.read_page(reg), 0, "{reg:?}");
    }
}

#[test]
fn queues_outside_of_memory_are_exceptions() {
    // The register that is set to an address outside of memory, and the resulting exception.
    let cases = [
        (CqsReg::ToqIpa, CqsIrqs::TOQ_READ_EXCEPTION),
        (CqsReg::TcqIpa, CqsIrqs::TCQ_WRITE_EXCEPTION),
        (CqsReg::MrqIpa, CqsIrqs::MRQ_WRITE_EXCEPTION),
    ];
    for (reg, exception) in cases {
        let (cluster, mut a, b) = pair();
        // Addresses take effect when the queue is enabled.
        set(&a, CqsReg::Enable, 0);
        set(&a, reg, 1 << 39);
        set(&a, CqsReg::Enable, 1);
        a.cq.post_and_ring(&piggyback(1, &b), 0).unwrap();
        cluster.settle();
        assert_eq!(a.cq.exception().unwrap().irr, exception, "{reg:?}");
        set(&a, CqsReg::Enable, 0);
        assert!(!CqsStatus(get(&a, CqsReg::Status)).cq_enable());
    }
}

#[test]
fn bad_sizes_and_addresses_do_not_enable() {
    for (reg, value) in [
        (CqsReg::ToqSize, 6),
        (CqsReg::MrqSize, u64::MAX),
        (CqsReg::ToqIpa, 8),
        (CqsReg::TcqIpa, 4),
        (CqsReg::MrqIpa, 16),
    ] {
        let (_cluster, a, _b) = pair();
        set(&a, CqsReg::Enable, 0);
        set(&a, reg, value);
        set(&a, CqsReg::Enable, 1);
        assert!(!a.cq.status().cq_enable(), "{reg:?} = {value:#x}");
    }
}

#[test]
fn piggyback_buffers_belong_to_their_queue() {
    let (cluster, mut a, b) = pair();
    let mut c = cluster.endpoint(0, 0, 1);
    let long = |e: &Endpoint, byte| Order::put_piggyback(e.target(), e.at(0), &[byte; 32]).unwrap();
    let (first, second) = (long(&b, 1), long(&b, 2));
    let [buffer, put] = first.descriptors() else { panic!("two descriptors") };
    assert_eq!(buffer.header1().command(), Command::WritePiggybackBuffer as u8);
    assert_eq!(a.run(&Order::raw(&[*buffer])).rcode, Rcode::SUCCESS);
    assert_eq!(c.run(&second).rcode, Rcode::SUCCESS);
    assert_eq!(a.run(&Order::raw(&[*put])).rcode, Rcode::SUCCESS);
    assert_eq!(b.bytes(0, 32), [1; 32]);
}

#[test]
fn strong_order_moves_every_byte() {
    let (_cluster, mut a, b) = pair();
    for len in [1, 7, 8, 9, 15, 16, 17, 1919, 1920, 1921, 30000] {
        b.buffer.fill(0);
        a.fill(0, &pattern(len as u64, len));
        let order = Order::put(b.target(), b.at(0), a.at(0), len as u32).strong_order();
        assert_eq!(a.run(&order).rcode, Rcode::SUCCESS);
        assert_eq!(b.bytes(0, len), pattern(len as u64, len));
        assert_eq!(b.bytes(len, 8), [0; 8]);
    }
}

#[test]
fn old_blank_entry_is_not_taken_for_new() {
    for (cluster, mut a, _b) in both_ways() {
        for n in 0..ENTRIES + 3 {
            a.cq.post_and_ring(&Order::nop(), n).unwrap();
            assert_eq!(a.complete().cookie, n);
        }
        let count = || cluster.device(0).read(a.cq_register(CqReg::TcqNumNotice));
        a.cq.doorbell();
        cluster.settle();
        assert_eq!(count(), ENTRIES + 3);
    }
}
