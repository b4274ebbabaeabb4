//! Modelled time of the barrier: what the gates and channels of one interface cost.
//!
//! The TofuD paper (section V.E) measured a channel with its start/end gate at 0.48 us, of which
//! 0.19 us overlap with those of other channels and 0.29 us do not, and a relay gate at 0.13 us. It
//! found that all channels and gates of an interface work one after the other. The split of the
//! 0.29 us between the start and the end of a round is ours.

use smallvec::SmallVec;

/// Beginning of a round, as far as channels overlap, in picoseconds.
pub(super) const START_OVERLAP_PS: u64 = 190_000;
/// Rest of the beginning: the start gate.
pub(super) const START_PS: u64 = 130_000;
/// End of a round: the end gate and the channel.
pub(super) const END_PS: u64 = 160_000;
/// A relay gate.
pub(super) const RELAY_PS: u64 = 130_000;

/// Spans of time that are kept of a round: every gate once, and every channel twice, fit.
const SPANS: usize = 128;

/// When the gates of an interface are at work in one round, from its beginning on.
///
/// Signals are not handled in the order of modelled time, so gaps are filled: a gate takes the
/// first one in which it fits.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    round: u32,
    /// Spans in use, in order, none touching the next.
    spans: SmallVec<[(u64, u64); 4]>,
}

impl Schedule {
    /// The end of the first free span of `length` that does not begin before `ready`.
    pub(super) fn take(&mut self, round: u32, ready: u64, length: u64) -> u64 {
        if self.round != round {
            self.round = round;
            self.spans.clear();
        }
        let mut begin = ready;
        let mut at = 0;
        for &(from, to) in &self.spans {
            if begin.saturating_add(length) <= from {
                break;
            }
            begin = begin.max(to);
            at += 1;
        }
        let end = begin.saturating_add(length);
        let joins_last = at > 0 && self.spans[at - 1].1 == begin;
        let joins_next = self.spans.get(at).is_some_and(|next| next.0 == end);
        match (joins_last, joins_next) {
            (true, true) => {
                self.spans[at - 1].1 = self.spans[at].1;
                self.spans.remove(at);
            }
            (true, false) => self.spans[at - 1].1 = end,
            (false, true) => self.spans[at].0 = begin,
            (false, false) if self.spans.len() < SPANS => self.spans.insert(at, (begin, end)),
            (false, false) => {}
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_and_rounds_start_anew() {
        let mut s = Schedule::default();
        assert_eq!(s.take(1, 10, 5), 15);
        assert_eq!(s.take(1, 20, 5), 25);
        assert_eq!(s.take(1, 0, 5), 5);
        assert_eq!(s.take(1, 12, 5), 20, "the gap between, moved behind the first");
        assert_eq!(s.take(1, 0, 6), 31, "no gap is long enough");
        assert_eq!(s.take(1, 0, 5), 10);
        assert_eq!(s.spans.len(), 1);
        assert_eq!(s.take(2, 0, 5), 5);
    }

    #[test]
    fn round_keeps_few_spans() {
        let mut s = Schedule::default();
        for i in 0..1000 {
            assert_eq!(s.take(1, 10 * i, 5), 10 * i + 5);
        }
        assert_eq!(s.spans.len(), SPANS);
    }
}
