//! A limit on the log lines that other processes can cause.

use std::time::{Duration, Instant};

/// Time for which lines are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// Lines in it at most.
const LINES: u32 = 20;

/// Warns, but not too often.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    since: Option<Instant>,
    lines: u32,
    left_out: u32,
}

impl Throttle {
    /// Counts a line. Returns the number of lines suppressed before it, or
    /// `None` to suppress it too.
    fn allow(&mut self, now: Instant) -> Option<u32> {
        if self.since.is_none_or(|since| now.duration_since(since) > WINDOW) {
            self.since = Some(now);
            self.lines = 0;
        }
        if self.lines >= LINES {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }

    pub(crate) fn warn(&mut self, text: impl std::fmt::Display) {
        match self.allow(Instant::now()) {
            Some(0) => log::warn!("{text}"),
            Some(left_out) => log::warn!("{text} (and {left_out} warnings before)"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stop_and_go_on_with_a_count() {
        let mut throttle = Throttle::default();
        let start = Instant::now();
        for _ in 0..LINES {
            assert_eq!(throttle.allow(start), Some(0));
        }
        for _ in 0..5 {
            assert_eq!(throttle.allow(start + WINDOW), None);
        }
        let later = start + WINDOW + Duration::from_millis(1);
        assert_eq!(throttle.allow(later), Some(5));
        assert_eq!(throttle.allow(later), Some(0));
    }
}
