//! Rest of threads whose polls find nothing for long: they sleep for a short time in a poll, so
//! that what they wait for can have the processor. It may be a peer, the device, or another node's
//! processor that this one shares with it.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;

/// The time after which polls that find nothing rest, which a program may change; at first never.
#[derive(Debug)]
pub(crate) struct RestAfter(AtomicU64);

impl Default for RestAfter {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl RestAfter {
    /// Changes it; `None` is never.
    pub(crate) fn set(&self, time: Option<Duration>) {
        let nanoseconds = time.map_or(u128::MAX, |time| time.as_nanos());
        self.0.store(u64::try_from(nanoseconds).unwrap_or(u64::MAX), Relaxed);
    }

    #[cfg(feature = "std")]
    fn get(&self) -> Option<Duration> {
        let nanoseconds = self.0.load(Relaxed);
        (nanoseconds != u64::MAX).then(|| Duration::from_nanos(nanoseconds))
    }
}

/// The polls of a VCQ or barrier since one has found something.
#[derive(Debug, Default)]
pub(crate) struct EmptyPolls {
    count: u32,
    #[cfg(feature = "std")]
    since: Option<std::time::Instant>,
}

impl EmptyPolls {
    /// A poll has found something, or something has happened.
    #[inline]
    pub(crate) fn found(&mut self) {
        self.count = 0;
    }

    /// Notes a poll that has found nothing. If the thread should sleep, returns how long polls have
    /// found nothing.
    #[inline]
    pub(crate) fn add(&mut self, after: &RestAfter) -> Option<Duration> {
        /// Looking at the clock takes as long as some polls.
        const POLLS: u32 = 64;
        self.count = self.count.wrapping_add(1);
        if self.count.is_multiple_of(POLLS) { self.look(after) } else { None }
    }

    #[cfg(not(feature = "std"))]
    fn look(&mut self, _: &RestAfter) -> Option<Duration> {
        None
    }

    #[cfg(feature = "std")]
    #[cold]
    fn look(&mut self, after: &RestAfter) -> Option<Duration> {
        let after = after.get()?;
        let now = std::time::Instant::now();
        // The first look since something was found.
        if self.count <= 64 {
            self.since = None;
        }
        let waited = now.saturating_duration_since(*self.since.get_or_insert(now));
        (waited >= after).then_some(waited)
    }
}

/// Rests with an interrupt at hand: not long, as the program may poll something else as well.
#[cfg(feature = "std")]
pub(crate) fn nap(waited: Duration) -> Duration {
    (waited / 4).clamp(Duration::from_micros(50), Duration::from_millis(1))
}

/// Rests without an interrupt, which is for a sixteenth of the time that was waited. A sleep for a
/// short time takes almost a millisecond in a node under QEMU, and the peer then waits for that. So
/// rests must not begin before that is little, or both sides would make each other rest for ever.
#[cfg(feature = "std")]
pub(crate) fn doze(waited: Duration) {
    const BEGIN: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_millis(1);
    if waited >= BEGIN {
        std::thread::sleep((waited / 16).min(LONGEST));
    }
}

#[cfg(not(feature = "std"))]
pub(crate) fn doze(_: Duration) {}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn polls_rest_only_after_the_time() {
        let (after, mut polls) = (RestAfter::default(), EmptyPolls::default());
        let many = |polls: &mut EmptyPolls, after: &RestAfter| {
            (0..64).filter_map(|_| polls.add(after)).last()
        };
        for _ in 0..100 {
            assert_eq!(many(&mut polls, &after), None, "never");
        }
        after.set(Some(Duration::from_millis(5)));
        polls.found();
        assert_eq!(many(&mut polls, &after), None);
        std::thread::sleep(Duration::from_millis(6));
        assert!(many(&mut polls, &after) >= Some(Duration::from_millis(5)));
        polls.found();
        assert_eq!(many(&mut polls, &after), None, "from the beginning");
        after.set(None);
        std::thread::sleep(Duration::from_millis(6));
        assert_eq!(many(&mut polls, &after), None);
    }
}
