//! Reasons for which frames wait, and DLLPs that mean nothing.

use tofu_links::{
    Check, Counters, Dllp, Parameters, Reason, Receiver, Sender, Seq, Verdict, WINDOW,
};

const ROWS: u8 = 125;

fn sender() -> (Sender, Counters) {
    (Sender::new(&Parameters::TOFU), Counters::default())
}

#[test]
fn credit_is_waited_for() {
    let (mut sender, mut counters) = sender();
    for n in 0..4 {
        assert_eq!(sender.may_send(1, ROWS), Ok(()));
        assert_eq!(sender.send(1, ROWS, n, &mut counters), Seq::new(n as u16));
    }
    sender.dllp(Dllp::Ack(Seq::new(3)), 5, &mut counters);
    assert_eq!(sender.credit(1), 12);
    assert_eq!(sender.may_send(1, ROWS), Err(Reason::Credit));
    sender.dllp(Dllp::UpdateFc { vc: 2, total: 1 }, 6, &mut counters);
    sender.dllp(Dllp::UpdateFc { vc: 1, total: 100 }, 7, &mut counters);
    assert_eq!(sender.may_send(1, ROWS), Err(Reason::Credit));
    sender.dllp(Dllp::UpdateFc { vc: 1, total: 125 }, 8, &mut counters);
    assert_eq!(sender.may_send(1, ROWS), Ok(()));
}

#[test]
fn replay_buffer_is_waited_for() {
    let (mut sender, mut counters) = sender();
    for n in 0..4 {
        assert_eq!(sender.may_send(n as u8, ROWS), Ok(()));
        sender.send(n as u8, ROWS, n, &mut counters);
    }
    assert_eq!(sender.may_send(0, ROWS), Err(Reason::ReplayBuffer));
    sender.dllp(Dllp::Ack(Seq::new(0)), 100, &mut counters);
    assert_eq!(sender.may_send(0, ROWS), Ok(()));
}

#[test]
fn so_is_the_window() {
    let (mut sender, mut counters) = sender();
    for n in 0..WINDOW as u64 {
        assert_eq!(sender.may_send((n % 4) as u8, 1), Ok(()));
        sender.send((n % 4) as u8, 1, n, &mut counters);
    }
    assert_eq!(sender.may_send(0, 1), Err(Reason::ReplayBuffer));
}

/// As when errors begin on a link that had none, and whose queues are not empty.
#[test]
fn link_may_begin_with_full_queues() {
    let in_queue = [3 * u16::from(ROWS), 0, 0, 0];
    let mut sender = Sender::with_queues(&Parameters::TOFU, in_queue);
    let mut counters = Counters::default();
    let mut receiver = Receiver::new(&Parameters::TOFU, &sender);
    let seq = sender.send(0, ROWS, 20, &mut counters);
    assert_eq!(receiver.frame(seq, Check::Good, 60, &mut counters), Verdict::Accept);
    assert_eq!(sender.may_send(0, ROWS), Err(Reason::Credit));
    // A frame that came before leaves its queue now.
    receiver.freed(0, ROWS);
    let mut told = Vec::new();
    while let Some(dllp) = receiver.take_dllp(&mut counters) {
        told.push(dllp);
        sender.dllp(dllp, 100, &mut counters);
    }
    assert_eq!(told, [Dllp::UpdateFc { vc: 0, total: 125 }, Dllp::Ack(seq)]);
    assert_eq!((sender.credit(0), sender.unacknowledged()), (512 - 375, 0));
    assert_eq!(sender.may_send(0, ROWS), Ok(()));
}

#[test]
fn impossible_dllps_change_nothing() {
    let (mut sender, mut counters) = sender();
    sender.send(0, ROWS, 0, &mut counters);
    let before = format!("{sender:?}");
    for number in 0..0x1000 {
        if number != 0 {
            sender.dllp(Dllp::Ack(Seq::new(number)), 1, &mut counters);
        }
        if number > 1 {
            sender.dllp(Dllp::Nack(Seq::new(number)), 1, &mut counters);
        }
    }
    for total in 0..=u16::MAX {
        if !(1..=u16::from(ROWS)).contains(&total) {
            sender.dllp(Dllp::UpdateFc { vc: 0, total }, 1, &mut counters);
        }
    }
    assert_eq!(format!("{sender:?}"), before);
}
