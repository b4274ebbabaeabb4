//! Acknowledgements and credits are announced ahead, as on links that lose nothing.

use tofu_links::{
    Check, Counters, Dllp, NEVER, Parameters, Reason, Receiver, Sender, Seq, Verdict, WINDOW, Wait,
};

const ROWS: u8 = 125;

fn sender() -> (Sender, Counters) {
    (Sender::new(&Parameters::TOFU), Counters::default())
}

#[test]
fn expected_credit_is_waited_for() {
    let (mut sender, mut counters) = sender();
    for n in 0..4 {
        assert_eq!(sender.may_send(1, ROWS, n), Ok(()));
        assert_eq!(sender.send(1, ROWS, n, n + 10, &mut counters), Seq::new(n as u16));
    }
    assert_eq!(sender.credit(1), 12);
    let wait = |until| Err(Wait { reason: Reason::Credit, until });
    assert_eq!(sender.may_send(1, ROWS, 50), wait(NEVER));
    sender.return_credit(1, 100, 70, 50);
    assert_eq!(sender.may_send(1, ROWS, 50), wait(NEVER));
    sender.return_credit(2, 1, 80, 50);
    sender.return_credit(1, 25, 90, 50);
    assert_eq!(sender.may_send(1, ROWS, 89), wait(90));
    assert_eq!(sender.may_send(1, ROWS, 90), Ok(()));
    // Acknowledgements that are announced ahead have no time-out.
    assert_eq!((sender.deadline(), sender.unacknowledged()), (NEVER, 0));
}

#[test]
fn replay_buffer_is_waited_for() {
    let (mut sender, mut counters) = sender();
    for n in 0..4 {
        assert_eq!(sender.may_send(n as u8, ROWS, n), Ok(()));
        sender.send(n as u8, ROWS, n, 100 + n, &mut counters);
    }
    let wait = Wait { reason: Reason::ReplayBuffer, until: 100 };
    assert_eq!(sender.may_send(0, ROWS, 50), Err(wait));
    assert_eq!(sender.may_send(0, ROWS, 100), Ok(()));
}

#[test]
fn so_is_the_window() {
    let (mut sender, mut counters) = sender();
    for n in 0..WINDOW as u64 {
        assert_eq!(sender.may_send((n % 4) as u8, 1, n), Ok(()));
        sender.send((n % 4) as u8, 1, n, 100 + n, &mut counters);
    }
    assert_eq!(sender.may_send(0, 1, 99).map_err(|wait| wait.until), Err(100));
}

/// More returns on their way than there are places for: the latest ones are merged.
#[test]
fn no_return_is_lost_if_there_are_many() {
    let (mut sender, mut counters) = sender();
    for n in 0..32 {
        assert_eq!(sender.may_send(n % 4, 16, 0), Ok(()));
        sender.send(n % 4, 16, 0, 0, &mut counters);
    }
    for n in 0..32 {
        sender.return_credit(n % 4, 16, 100 + u64::from(n), 0);
    }
    sender.settle(100);
    assert_eq!(sender.credit(0), 512 - 7 * 16);
    sender.settle(131);
    assert_eq!([0, 1, 2, 3].map(|vc| sender.credit(vc)), [512; 4]);
}

/// As when errors begin on a link that had none.
#[test]
fn receiver_may_take_over_at_any_time() {
    let (mut sender, mut counters) = sender();
    for _ in 0..3 {
        sender.send(0, ROWS, 0, 40, &mut counters);
    }
    sender.return_credit(0, ROWS, 90, 10);
    let mut receiver = Receiver::new(&Parameters::TOFU, &sender);
    let seq = sender.send(0, ROWS, 20, NEVER, &mut counters);
    assert_eq!(receiver.frame(seq, Check::Good, 60, &mut counters), Verdict::Accept);
    // The second frame, which was sent before, leaves its queue now.
    receiver.freed(0, ROWS);
    assert_eq!(sender.may_send(0, ROWS, 90), Ok(()));
    let mut told = Vec::new();
    while let Some(dllp) = receiver.take_dllp(&mut counters) {
        told.push(dllp);
        sender.dllp(dllp, 100, &mut counters);
    }
    assert_eq!(told, [Dllp::UpdateFc { vc: 0, total: 250 }, Dllp::Ack(seq)]);
    assert_eq!((sender.credit(0), sender.unacknowledged()), (512 - 250, 0));
}

#[test]
fn impossible_dllps_change_nothing() {
    let (mut sender, mut counters) = sender();
    sender.send(0, ROWS, 0, NEVER, &mut counters);
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
