//! The thread that drives modelled links.
//!
//! Time in the network advances with the host's clock. If the host delayed the thread, the thread
//! catches up without pausing, by up to [`AHEAD_NS`](crate::courier::AHEAD_NS). It does not catch
//! up on a longer delay: the machine's clock permanently stays behind by the rest. Nothing is
//! skipped. Timeouts run on the same clock, which waits for the thread, because a command must not
//! time out while nothing drives the links. While nothing is in flight the thread cannot be late.

use std::hint::spin_loop;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use tofu_fabric::Progress;

use crate::clock::Clock;
use crate::courier::PS_PER_NS;
use crate::drive::{Drive, View};
use crate::shared::Shared;

/// The thread spins if the next event is at most this far away, in nanoseconds.
const SPIN_NS: u64 = 500;
/// The thread sleeps if the next event is further away than this, in nanoseconds.
const SLEEP_NS: u64 = 100_000;

/// One turn of the network, in this thread. `None` if links are not modelled.
pub(crate) fn turn<D: Drive>(shared: &Shared<D>) -> Option<Progress> {
    if !shared.wires.is_modelled() {
        return None;
    }
    let mut view = D::view(shared);
    let Clock::Host(_) = &shared.clock else {
        // Time advances only in the network.
        return view.turn(None);
    };
    let host_ns = shared.clock.now_ns();
    let limit_ns = shared.courier.clock(host_ns);
    let progress = view.turn(Some(limit_ns * PS_PER_NS))?;
    shared.courier.turned(host_ns, limit_ns, progress);
    // A packet sent during the turn has set a bound, which `turned` has replaced.
    if shared.wires.has_mail() {
        shared.courier.sent(limit_ns);
    }
    Some(progress)
}

/// Time until the next event, in nanoseconds, if there is one.
fn quiet(progress: Progress, now_ns: u64) -> Option<u64> {
    progress.next.map(|next| (next / PS_PER_NS).saturating_sub(now_ns))
}

/// The body of the thread.
pub(crate) fn run<D: Drive>(shared: &Shared<D>) {
    shared.courier.begin();
    let mut busy_at = 0;
    while !shared.stopping.load(SeqCst) {
        let Some(progress) = turn(shared) else { return };
        let now = shared.now_ns();
        let wait = match quiet(progress, now) {
            Some(wait) => {
                busy_at = now;
                Some(wait)
            }
            // More packets may follow soon after others.
            None if now.saturating_sub(busy_at) < shared.spin_ns => Some(SPIN_NS + 1),
            None => None,
        };
        match wait {
            Some(0..=SPIN_NS) => spin_loop(),
            Some(..=SLEEP_NS) => thread::yield_now(),
            wait => {
                let has_work = || shared.wires.has_mail() || shared.stopping.load(SeqCst);
                shared.courier.rest(wait, has_work);
            }
        }
    }
    shared.wires.abandon();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::courier::{AHEAD_NS, Courier};

    const US: u64 = 1000;

    /// Simulates a host that preempts the thread after 0.2 ms, or when it waits. Returns how often
    /// it was preempted during `events` events, 1 us apart, and their greatest delay on the
    /// machine's clock.
    fn on_a_busy_host(events: u64, away_ns: u64) -> (u32, u64) {
        let courier = Courier::new();
        let (mut host_ns, mut reached, mut times, mut late) = (0, 0, 0, 0);
        courier.sent(0);
        while reached < events {
            host_ns += away_ns;
            times += 1;
            late = late.max(courier.clock(host_ns) - reached * US);
            for _ in 0..200 {
                let limit_ns = courier.clock(host_ns);
                // At most two events in a turn.
                reached = reached.max((limit_ns / US).min(reached + 2));
                let now = limit_ns.min(reached * US) * PS_PER_NS;
                let progress = Progress { now, next: Some((reached + 1) * US * PS_PER_NS) };
                courier.turned(host_ns, limit_ns, progress);
                if quiet(progress, courier.clock(host_ns)).is_none_or(|wait| wait > SPIN_NS) {
                    break;
                }
                host_ns += US;
            }
        }
        (times, late)
    }

    #[test]
    fn late_time_is_made_up_without_waiting() {
        // There is enough time for all events, once the thread runs.
        assert_eq!(on_a_busy_host(300, 4000 * US).0, 1);
        assert!(on_a_busy_host(20_000, 100 * US).0 < 250);
    }

    #[test]
    fn clock_waits_for_the_links() {
        for away_ns in [US, 1000 * US, 1_000_000 * US] {
            let (_, late) = on_a_busy_host(1000, away_ns);
            assert!(late <= AHEAD_NS + US, "{away_ns} ns: {late}");
        }
        // The clock does not wait while nothing is in flight.
        let courier = Courier::new();
        assert_eq!(courier.clock(1_000_000 * US), 1_000_000 * US);
        courier.sent(1_000_000 * US);
        assert_eq!(courier.clock(3_000_000 * US), 1_000_000 * US + AHEAD_NS);
        let done = Progress { now: 0, next: None };
        courier.turned(3_000_000 * US, courier.clock(3_000_000 * US), done);
        assert_eq!(courier.clock(4_000_000 * US), 2_000_000 * US + AHEAD_NS);
    }
}
