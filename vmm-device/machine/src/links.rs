//! The thread that drives modelled links.
//!
//! Time in the network advances with the host's clock. If the host delayed the thread, the thread
//! catches up without pausing, by up to [`AHEAD_NS`]. A longer delay is not made up: the machine's
//! clock stays behind by the rest, for good. Nothing is skipped. Timeouts run on the same clock,
//! which waits for the thread, because a command must not time out while nothing drives the links.
//! While nothing is in flight the thread cannot be late.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, Thread};
use std::time::Duration;

use tofu_fabric::Progress;

use crate::pump::Pump;
use crate::shared::{Clock, Shared};
use crate::wakeup::Sleep;

const PS_PER_NS: u64 = 1000;
/// The thread spins if the next event is at most this far away, in nanoseconds.
const SPIN_NS: u64 = 500;
/// The thread sleeps if the next event is further away than this, in nanoseconds.
const SLEEP_NS: u64 = 100_000;
/// How far the machine's clock may be ahead of links with packets in flight, in nanoseconds. A host
/// with few runnable threads delays a thread for less, and commands time out after much longer.
const AHEAD_NS: u64 = 5_000_000;

/// Drives the links of a machine, if they are modelled.
#[derive(Debug)]
pub(crate) struct Courier {
    sleep: Sleep,
    thread: OnceLock<Thread>,
    /// How far the machine's clock is behind the host's, in nanoseconds.
    behind: AtomicU64,
    /// The latest time that the clock has shown, in nanoseconds.
    latest_ns: AtomicU64,
    /// The latest time that the clock may show until the links have had a turn, in nanoseconds.
    bound: AtomicU64,
}

/// One turn of the network, in this thread. `None` if links are not modelled.
pub(crate) fn turn(shared: &Shared) -> Option<Progress> {
    if !shared.wires.is_modelled() {
        return None;
    }
    let mut pump = Pump::new(shared);
    let Clock::Host(start) = &shared.clock else {
        // Time advances only in the network.
        return pump.turn(None);
    };
    let host_ns = start.elapsed().as_nanos() as u64;
    let limit_ns = shared.courier.clock(host_ns);
    let progress = pump.turn(Some(limit_ns * PS_PER_NS))?;
    shared.courier.turned(host_ns, limit_ns, progress);
    // A packet sent meanwhile has set a bound, which `turned` has replaced.
    if shared.wires.has_mail() {
        shared.courier.sent(limit_ns);
    }
    Some(progress)
}

/// Time until the next event, in nanoseconds, if there is one.
fn quiet(progress: Progress, now_ns: u64) -> Option<u64> {
    progress.next.map(|next| (next / PS_PER_NS).saturating_sub(now_ns))
}

impl Courier {
    pub(crate) fn new() -> Self {
        Self {
            sleep: Sleep::new(),
            thread: OnceLock::new(),
            behind: AtomicU64::new(0),
            latest_ns: AtomicU64::new(0),
            bound: AtomicU64::new(u64::MAX),
        }
    }

    /// The machine's time for a host time, both in nanoseconds since the machine began. It never
    /// goes back.
    pub(crate) fn clock(&self, host_ns: u64) -> u64 {
        let now = host_ns.saturating_sub(self.behind.load(SeqCst)).min(self.bound.load(SeqCst));
        self.latest_ns.fetch_max(now, SeqCst).max(now)
    }

    /// Notes a turn of the links that began at a host time and ran at most up to a machine time.
    fn turned(&self, host_ns: u64, limit_ns: u64, progress: Progress) {
        // The clock has waited for this long.
        self.behind.fetch_max(host_ns.saturating_sub(limit_ns), SeqCst);
        let next = progress.next.map(|next| next.max(progress.now) / PS_PER_NS + AHEAD_NS);
        self.bound.store(next.unwrap_or(u64::MAX), SeqCst);
    }

    /// Notes that a packet was sent at a machine time. The clock now waits for the thread to take
    /// it.
    pub(crate) fn sent(&self, now_ns: u64) {
        self.bound.fetch_min(now_ns + AHEAD_NS, SeqCst);
        self.wake();
    }

    /// Ends the thread's sleep, because a packet was sent or the machine stops.
    pub(crate) fn wake(&self) {
        if self.sleep.end()
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// The body of the thread.
    pub(crate) fn run(&self, shared: &Shared) {
        // Only one thread calls this, so the cell is empty.
        let _ = self.thread.set(thread::current());
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
                wait => self.rest(shared, wait),
            }
        }
        shared.wires.abandon();
    }

    /// Sleeps for this many nanoseconds, or until the thread is woken.
    fn rest(&self, shared: &Shared, ns: Option<u64>) {
        self.sleep.announce();
        // A packet that arrived before the flag was set has not woken the thread.
        if !shared.wires.has_mail() && !shared.stopping.load(SeqCst) {
            match ns {
                Some(ns) => thread::park_timeout(Duration::from_nanos(ns)),
                None => thread::park(),
            }
        }
        self.sleep.over();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
    fn what_is_late_is_made_up_without_waiting() {
        // There is time enough for all events, as soon as the thread runs.
        assert_eq!(on_a_busy_host(300, 4000 * US).0, 1);
        assert!(on_a_busy_host(20_000, 100 * US).0 < 250);
    }

    #[test]
    fn the_clock_waits_for_the_links() {
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
