//! Injection control: a gap between packets relieves an overloaded receiver.
#![allow(unreachable_pub)]

mod congestion;

use congestion::congestion;

/// With a gap as long as a packet, each of two senders takes half of what the receiver's interface
/// takes: the interface is as busy as before, and no packet waits for credit, or behind one that
/// does.
#[test]
fn gap_relieves_a_congested_receiver() {
    let (fast, spaced) = (congestion(0), congestion(64));
    assert!(fast.zero_credit > 10 * spaced.zero_credit.max(1), "{fast:?} {spaced:?}");
    assert!(fast.short_ps > 2 * spaced.short_ps, "{fast:?} {spaced:?}");
    assert!(spaced.time_ps < fast.time_ps * 11 / 10, "{fast:?} {spaced:?}");
    // With a longer gap the receiver has idle time.
    let slow = congestion(255);
    assert!(slow.time_ps > spaced.time_ps * 3 / 2, "{slow:?} {spaced:?}");
}
