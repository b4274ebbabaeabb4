//! The thread that drives modelled links.
//!
//! Time in the network goes on with the host's. When the thread cannot keep up, the machine's clock
//! stays behind by as much, for good: nothing is skipped, and what waits for an answer does so on
//! the same clock. Where nothing is under way there is nothing to fall behind with.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tofu_fabric::Progress;

use crate::pump::Pump;
use crate::shared::{Clock, Shared};
use crate::wakeup::Sleep;

const PS_PER_NS: u64 = 1000;
/// The thread waits for what happens within so many nanoseconds without giving up its processor.
const SPIN_NS: u64 = 500;
/// It sleeps if nothing happens for longer than so many nanoseconds.
const SLEEP_NS: u64 = 100_000;

/// Drives the links of a machine, if they are modelled.
#[derive(Debug)]
pub(crate) struct Courier {
    sleep: Sleep,
    thread: OnceLock<Thread>,
    /// By how much the machine's clock is behind the host's, in nanoseconds.
    behind: AtomicU64,
    /// The latest time that the clock has shown, in nanoseconds.
    shown: AtomicU64,
}

/// One turn of the network, in this thread. `None` if links are not modelled.
pub(crate) fn turn(shared: &Shared) -> Option<Progress> {
    if !shared.wires.is_modelled() {
        return None;
    }
    let mut pump = Pump::new(shared);
    let Clock::Host(start) = &shared.clock else {
        // Time passes in the network alone.
        return pump.turn(None);
    };
    let host_ns = start.elapsed().as_nanos() as u64;
    let limit = shared.courier.clock(start) * PS_PER_NS;
    let progress = pump.turn(Some(limit))?;
    if progress.now < limit {
        let behind = host_ns.saturating_sub(progress.now / PS_PER_NS);
        shared.courier.behind.fetch_max(behind, SeqCst);
    }
    Some(progress)
}

impl Courier {
    pub(crate) fn new() -> Self {
        Self {
            sleep: Sleep::new(),
            thread: OnceLock::new(),
            behind: AtomicU64::new(0),
            shown: AtomicU64::new(0),
        }
    }

    /// The time of a machine that began at `start`, in nanoseconds. It never goes back.
    pub(crate) fn clock(&self, start: &Instant) -> u64 {
        let host_ns = start.elapsed().as_nanos() as u64;
        let now = host_ns.saturating_sub(self.behind.load(SeqCst));
        self.shown.fetch_max(now, SeqCst).max(now)
    }

    /// Ends the thread's sleep: something was sent, or the machine stops.
    pub(crate) fn wake(&self) {
        if self.sleep.end()
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// The thread.
    pub(crate) fn run(&self, shared: &Shared) {
        // Only one thread runs it.
        let _ = self.thread.set(thread::current());
        let mut busy_at = 0;
        while !shared.stopping.load(SeqCst) {
            let Some(progress) = turn(shared) else { return };
            let now = shared.now_ns();
            let wait = match progress.next {
                Some(next) => {
                    busy_at = now;
                    Some((next / PS_PER_NS).saturating_sub(now))
                }
                // Something may be sent soon, after something has been.
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

    /// Sleeps for so many nanoseconds, or until it is woken.
    fn rest(&self, shared: &Shared, ns: Option<u64>) {
        self.sleep.announce();
        // What came before the flag was set has not woken anyone.
        if !shared.wires.has_mail() && !shared.stopping.load(SeqCst) {
            match ns {
                Some(ns) => thread::park_timeout(Duration::from_nanos(ns)),
                None => thread::park(),
            }
        }
        self.sleep.over();
    }
}
