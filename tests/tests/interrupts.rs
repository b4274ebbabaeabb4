//! Requests, masks and messages.

use std::sync::atomic::Ordering;

use tofu_abi::Rcode;
use tofu_abi::irq::{CqsIrqs, vector};
use tofu_abi::queue::MrqId;
use tofu_abi::regs::{CqsMode, CqsReg};
use tofu_driver::{CqConfig, DmaBuffer, Order, Platform, WaitError};
use tofu_tests::{Cluster, Endpoint};

const TCQ_WRITE_ACKNOWLEDGE: u64 = CqsIrqs::TCQ_WRITE_ACKNOWLEDGE.raw();
const MRQ_WRITE_ACKNOWLEDGE: u64 = CqsIrqs::MRQ_WRITE_ACKNOWLEDGE.raw();

/// Two nodes whose drivers request interrupts through memory.
fn asking_pair(config: &CqConfig) -> (Cluster, Endpoint, Endpoint) {
    let cluster = Cluster::new("1x1x1x2x1x1");
    let a = cluster.endpoint_with(0, config);
    let b = cluster.endpoint(1, 0, 0);
    (cluster, a, b)
}

/// Two nodes whose requests stay in IRR.
fn pair(config: &CqConfig) -> (Cluster, Endpoint, Endpoint) {
    let (cluster, a, b) = asking_pair(config);
    for end in [&a, &b] {
        write(end, CqsReg::InterruptArmIpa, 0);
    }
    (cluster, a, b)
}

fn config() -> CqConfig {
    tofu_tests::config(2, 3)
}

/// Returns true if the queue's interrupt message was sent since the last call.
fn fired(end: &Endpoint) -> bool {
    let index = vector::cq(end.cq.tni(), end.cq.cq());
    // With a timeout of 0, `irq_wait` only polls.
    end.device().platform().irq_wait(index, 0)
}

fn write(end: &Endpoint, reg: CqsReg, value: u64) {
    end.device().write(end.cqs_register(reg), value);
}

fn read(end: &Endpoint, reg: CqsReg) -> u64 {
    end.device().read(end.cqs_register(reg))
}

#[test]
fn completion_interrupts_on_request() {
    let (_cluster, mut a, _b) = pair(&config());
    a.run(&Order::nop());
    assert_eq!((fired(&a), read(&a, CqsReg::Irr)), (false, 0));
    a.run(&Order::nop().interrupt());
    assert_eq!((fired(&a), read(&a, CqsReg::Irr)), (true, TCQ_WRITE_ACKNOWLEDGE));
}

#[test]
fn message_is_sent_for_a_new_request() {
    let (_cluster, mut a, _b) = pair(&config());
    let order = Order::nop().interrupt();
    a.run(&order);
    assert!(fired(&a));
    a.run(&order);
    assert!(!fired(&a), "the request is pending already");
    write(&a, CqsReg::Irc, TCQ_WRITE_ACKNOWLEDGE);
    assert_eq!(read(&a, CqsReg::Irr), 0);
    a.run(&order);
    assert!(fired(&a));
}

#[test]
fn masked_request_fires_on_unmask() {
    let (_cluster, mut a, _b) = pair(&config());
    write(&a, CqsReg::Imr, TCQ_WRITE_ACKNOWLEDGE);
    assert_ne!(read(&a, CqsReg::Imr) & TCQ_WRITE_ACKNOWLEDGE, 0);
    a.run(&Order::nop().interrupt());
    assert_eq!((fired(&a), read(&a, CqsReg::Irr)), (false, TCQ_WRITE_ACKNOWLEDGE));
    write(&a, CqsReg::Imc, MRQ_WRITE_ACKNOWLEDGE);
    assert!(!fired(&a), "another bit");
    write(&a, CqsReg::Imc, TCQ_WRITE_ACKNOWLEDGE);
    assert!(fired(&a));
    assert_eq!(read(&a, CqsReg::Imr) & CqsIrqs::ALL.raw(), 0);
    write(&a, CqsReg::Imc, TCQ_WRITE_ACKNOWLEDGE);
    assert!(!fired(&a), "it was unmasked before");
}

#[test]
fn failed_commands_interrupt_on_request() {
    let refused = |mode: CqsMode| {
        let (_cluster, mut a, b) = pair(&CqConfig { mode, ..config() });
        a.run(&Order::put(b.target(), b.at(0), a.at(0), 8));
        assert_eq!(read(&a, CqsReg::Irr) & TCQ_WRITE_ACKNOWLEDGE, 0, "this one has not failed");
        write(&a, CqsReg::Irc, u64::MAX);
        fired(&a);
        // A local address that is not mapped, which the TCQ entry reports.
        a.cq.post_and_ring(&Order::put(b.target(), b.at(0), a.at(0).with_stag(9), 8), 0).unwrap();
        assert_eq!(a.cq.wait_tcq(1_000_000).unwrap().rcode, Rcode::STAG_DISABLED);
        read(&a, CqsReg::Irr) & TCQ_WRITE_ACKNOWLEDGE != 0
    };
    assert!(!refused(CqsMode(0)));
    assert!(refused(CqsMode(0).with_failures(true)));
}

#[test]
fn notices_interrupt_at_both_ends() {
    let (_cluster, mut a, b) = pair(&config());
    a.run(&Order::put(b.target(), b.at(0), a.at(0), 8).remote_notice());
    assert_eq!((fired(&a), fired(&b)), (true, true));
    assert_eq!(read(&a, CqsReg::Irr), MRQ_WRITE_ACKNOWLEDGE);
    assert_eq!(read(&b, CqsReg::Irr), MRQ_WRITE_ACKNOWLEDGE);
}

#[test]
fn notices_are_kept_from_interrupting_by_id() {
    let quiet = CqConfig { mrq_interrupt_mask: 1 << MrqId::PutLast as u64, ..config() };
    let (_cluster, mut a, b) = pair(&quiet);
    a.run(&Order::put(b.target(), b.at(0), a.at(0), 8));
    assert!(!fired(&a));
    assert_eq!(a.ids(), [MrqId::PutLast]);
    a.run(&Order::get(b.target(), b.at(0), a.at(0), 8));
    assert!(fired(&a));
}

#[test]
fn interrupt_is_coalesced_by_count_or_time() {
    let hold = 1_000_000;
    let lazy = CqConfig { mrq_interrupt_count: 4, mrq_interrupt_ns: hold, ..config() };
    let (cluster, mut a, b) = pair(&lazy);
    let order = Order::put_piggyback(b.target(), b.at(0), &[1]).unwrap();
    for n in 1..=8 {
        a.run(&order);
        assert_eq!(fired(&a), n % 4 == 0, "notice {n}");
        write(&a, CqsReg::Irc, u64::MAX);
    }
    assert_eq!(a.notices().len(), 8, "entries do not wait, only the interrupt does");
    a.run(&order);
    cluster.pass(hold / 2);
    assert!(!fired(&a));
    cluster.pass(hold);
    assert!(fired(&a));
}

#[test]
fn request_in_memory_gets_one_interrupt() {
    let (cluster, mut a, mut b) = pair(&config());
    let word = cluster.alloc(0, 8, 8);
    let ask = || word.store_u64(0, 1, Ordering::Release);
    let asked = || word.load_u64(0, Ordering::Acquire) != 0;
    write(&a, CqsReg::InterruptArmIpa, word.device_addr());
    let order = Order::nop().interrupt();
    a.run(&order);
    assert_eq!((fired(&a), read(&a, CqsReg::Irr)), (false, 0), "not asked for");
    ask();
    a.run(&Order::nop());
    assert_eq!((fired(&a), asked()), (false, true), "this one is not reported");
    a.run(&order);
    assert_eq!((fired(&a), asked(), read(&a, CqsReg::Irr)), (true, false, 0));
    a.run(&order);
    assert!(!fired(&a), "once");
    ask();
    b.run(&Order::put_piggyback(a.target(), a.at(0), &[1]).unwrap().remote_notice());
    assert_eq!((fired(&a), asked()), (true, false), "by a notice");
    write(&a, CqsReg::Imr, TCQ_WRITE_ACKNOWLEDGE);
    ask();
    a.run(&order);
    assert!(!fired(&a), "masked");
    ask();
    cluster.set_bus_master(0, false);
    a.cq.post_and_ring(&order, 0).unwrap();
    cluster.settle();
    assert!(asked(), "memory is not touched without bus mastering");
}

#[test]
fn word_outside_memory_is_an_exception() {
    let (cluster, mut a, _b) = pair(&config());
    for addr in [cluster.memory_end(0) + 64, a.at(0).0 | 4] {
        write(&a, CqsReg::InterruptArmIpa, addr);
        a.run(&Order::nop().interrupt());
        assert_eq!(read(&a, CqsReg::Irr), CqsIrqs::MRQ_WRITE_EXCEPTION.raw(), "{addr:#x}");
        write(&a, CqsReg::Irc, u64::MAX);
    }
}

#[test]
fn wait_ends_with_another_nodes_notice() {
    let (_cluster, mut a, mut b) = asking_pair(&config());
    assert_eq!(a.cq.wait(1_000_000), Err(WaitError::TimedOut));
    for n in 0..100u16 {
        let order = Order::put_piggyback(a.target(), a.at(0), &[1]).unwrap();
        b.cq.post_and_ring(&order.remote_notice().edata(n), 0).unwrap();
        // The device only works while this thread waits.
        let notice = a.cq.wait_mrq(1_000_000).unwrap();
        assert_eq!(notice.word1().edata(), n);
        assert!(b.cq.wait_tcq(1_000_000).unwrap().is_success());
        b.notices();
    }
}

#[test]
fn wait_reports_exceptions() {
    let (_cluster, mut a, b) = asking_pair(&config());
    let order = Order::put(b.target(), b.at(0), a.at(0).with_stag(9), 8);
    a.cq.post_and_ring(&order, 0).unwrap();
    assert_eq!(a.cq.wait_tcq(1_000_000).unwrap().rcode, Rcode::STAG_DISABLED);
    a.notices();
    let Err(WaitError::Exception(exception)) = a.cq.wait(1_000_000) else { panic!("no exception") };
    assert_eq!(exception.irr, CqsIrqs::STEERING_READ_EXCEPTION);
    a.cq.clear_exceptions();
    assert_eq!(a.cq.exception(), None);
}

#[test]
fn closed_queue_is_silent() {
    let (cluster, a, mut b) = pair(&config());
    let to = a.target();
    let at = a.at(0);
    a.cq.close().unwrap();
    b.run(&Order::put_piggyback(to, at, &[1]).unwrap().remote_notice());
    let index = vector::cq(config().tni, config().cq);
    assert!(!cluster.device(0).platform().irq_wait(index, 0));
}
