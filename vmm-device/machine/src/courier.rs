//! The clock of a machine with modelled links. It waits for the thread that drives them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, Thread};
use std::time::Duration;

use tofu_fabric::Progress;

use crate::wakeup::Sleep;

pub(crate) const PS_PER_NS: u64 = 1000;

/// The lead that the machine's clock may have over links with packets in flight, in nanoseconds. A
/// host with few runnable threads delays a thread for less, and commands time out after much
/// longer.
pub(crate) const AHEAD_NS: u64 = 5_000_000;

/// The thread of the links of a machine, if they are modelled.
#[derive(Debug)]
pub(crate) struct Courier {
    sleep: Sleep,
    thread: OnceLock<Thread>,
    /// The lag of the machine's clock behind the host's, in nanoseconds.
    behind: AtomicU64,
    /// The latest time that the clock has shown, in nanoseconds.
    latest_ns: AtomicU64,
    /// The latest time that the clock may show until the links have had a turn, in nanoseconds.
    bound: AtomicU64,
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
    pub(crate) fn turned(&self, host_ns: u64, limit_ns: u64, progress: Progress) {
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

    /// Names the calling thread as the one that drives the links.
    pub(crate) fn begin(&self) {
        // Only one thread calls this, so the cell is empty.
        let _ = self.thread.set(thread::current());
    }

    /// Sleeps for this many nanoseconds, or until the thread is woken, unless there is work.
    pub(crate) fn rest(&self, ns: Option<u64>, has_work: impl FnOnce() -> bool) {
        self.sleep.announce();
        // A packet that arrived before the flag was set has not woken the thread.
        if !has_work() {
            match ns {
                Some(ns) => thread::park_timeout(Duration::from_nanos(ns)),
                None => thread::park(),
            }
        }
        self.sleep.over();
    }
}
